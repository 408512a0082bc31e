//! Datasets as directories of Parquet files. A dataset's name is a symbolic link to one of its versions, so that every commit,
//! whatever its mode, is one rename of a link.
//!
//! ```text
//!   root/train                          ─► .bowstring/train/00000002-w7      what readers follow
//!   root/.bowstring/train/00000002-w7/     00000001-000000-00000-w3.parquet    linked from the version before (append)
//!                                          00000002-000000-00000-w7.parquet    linked from the staged attempt
//!                                          _record.json, _SUCCESS
//!   root/.bowstring/_lock                                                      held by the server that has `root` open
//!   root/.bowstring/_staged/17/            part-00000.parquet, _SUCCESS        an attempt; hidden until it is whole
//! ```
//! A dataset is dropped by removing its link.
//! A process killed at any point leaves the link at the old version or at the new one, both whole. The next start removes what no
//! link leads to. The version before the current one stays until the next commit or start, for readers that have opened it.

#[cfg(test)]
mod model;

use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::disk::{Disk, DiskClaim};
use super::lease::{Lease, Leases};
use super::{Committed, DiskQuotas, Mode, Record, WriteId, columns, same_columns};
use crate::dataset::{DatasetWriter, WriterOptions, Written};
use crate::error::{Error, Place, Result};
use crate::flight::ticket::TICKET_LIFE;
use crate::store::directory::{SERVED as HIDDEN, SERVED_LOCK as LOCK, failed};
use crate::store::files::{Files, SystemFiles};
use crate::store::lock::Lock;
use crate::store::pinned::{Pinned, shown};
use crate::store::publish::turn;

// No name of a dataset begins with an underscore.
const STAGED: &str = "_staged";
const RECORD: &str = "_record.json";

/// A directory of datasets, held by one process at a time.
#[derive(Debug)]
pub(super) struct Directory {
    /// Where the names of the datasets are.
    root: PathBuf,
    /// The hidden directory in it. Both are paths of what was there at the start, whatever has their names by now.
    hidden: PathBuf,
    pins: Pins,
    options: WriterOptions,
    disk: Arc<Disk>,
    files: Arc<dyn Files>,
    leases: Leases,
    /// Negative control: a defect that must be noticed.
    #[cfg(test)]
    planted: model::Planted,
    /// Held while it is open: another server would take live attempts for leftovers of a killed one.
    _lock: Arc<Lock>,
}

/// What the paths through a directory need: as long as one of them may be used, it is there.
type Pins = [Option<Pinned>; 2];

/// A whole attempt. Dropped, it is removed.
#[derive(Debug)]
pub(super) struct Piece {
    files: Arc<dyn Files>,
    _pins: Pins,
    directory: PathBuf,
    written: Written,
    columns: Vec<String>,
    /// Until a commit has its files.
    disk: Mutex<DiskClaim>,
}

impl Drop for Piece {
    fn drop(&mut self) {
        // The error has no recipient; leftovers are hidden, and the next start removes them.
        let _ = self.files.remove_directory(&self.directory);
    }
}

/// Most bytes kept of finished row groups of an attempt if memory is short, approximately: `FOOTER`, or one in `FOOTER_PART` of the row
/// group that ends if that is more. With less, files of wide rows would have a single row group each.
const FOOTER: usize = 1 << 20;
const FOOTER_PART: usize = 8;

/// An attempt that is being written. Dropped, it is removed.
#[derive(Debug)]
pub(super) struct Writer {
    files: Arc<dyn Files>,
    pins: Pins,
    directory: PathBuf,
    columns: Vec<String>,
    writer: DatasetWriter,
    disk: DiskClaim,
}

impl Writer {
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.writer.write(batch)?;
        self.disk.resize(self.writer.stored_bytes())
    }

    /// Bytes of memory of the row group being gathered, and of the data kept of those before it.
    pub(super) fn gathered(&self) -> u64 {
        self.writer.memory_size() as u64
    }

    /// Ends the row group, and the file if much is kept of its row groups.
    pub(super) fn flush(&mut self) -> Result<()> {
        let most = FOOTER.max(self.writer.memory_size() / FOOTER_PART);
        self.writer.flush()?;
        self.writer.end_beyond(most)
    }

    pub(super) fn finish(self) -> Result<Piece> {
        let written = self.writer.finish()?;
        // Dropped if the quota has no room for the footers.
        let disk = Mutex::new(self.disk);
        let Self { files, pins, directory, columns, .. } = self;
        let piece = Piece { files, _pins: pins, directory, written, columns, disk };
        piece.disk.lock().unwrap_or_else(PoisonError::into_inner).resize(written.bytes)?;
        Ok(piece)
    }
}

impl Piece {
    pub(super) fn written(&self) -> (u64, u64) {
        (self.written.rows, self.written.bytes)
    }
}

impl Directory {
    /// Opens `root`, whose lock is `lock`, and removes leftovers of a killed process.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(super) fn open(root: &Path, options: WriterOptions, disk: DiskQuotas, lock: Lock) -> Result<Self> {
        Self::open_on(Arc::new(SystemFiles), root, options, disk, Arc::new(lock))
    }

    fn open_on(
        files: Arc<dyn Files>,
        root: &Path,
        options: WriterOptions,
        disk: DiskQuotas,
        lock: Arc<Lock>,
    ) -> Result<Self> {
        // Targets of links are compared as text, so they must not depend on this process's working directory.
        let root = files.canonical(root).map_err(|error| failed("open", root, error))?;
        let pinned = |path: &Path| files.pinned(path).map_err(|error| failed("open", path, error));
        let (root, outer) = pinned(&root)?;
        let (hidden, inner) = pinned(&root.join(HIDDEN))?;
        let directory = Self {
            root,
            hidden,
            pins: [outer, inner],
            options,
            disk: Disk::new(disk),
            files,
            leases: Leases::default(),
            #[cfg(test)]
            planted: model::Planted::default(),
            _lock: lock,
        };
        directory.sweep()?;
        // The hidden directory must be on the disk before a name leads into it.
        directory.flush(&directory.root)?;
        let hidden = &directory.hidden;
        let is_dataset = |name: &&String| *name != STAGED && directory.files.is_directory(&hidden.join(name));
        for dataset in directory.entries(hidden)?.iter().filter(is_dataset) {
            directory.measure(dataset, &[])?;
        }
        Ok(directory)
    }

    /// Names in a directory, sorted.
    fn entries(&self, directory: &Path) -> Result<Vec<String>> {
        self.files.names(directory).map_err(|error| failed("list", directory, error))
    }

    /// Brings the names in a directory to the disk.
    fn flush(&self, directory: &Path) -> Result<()> {
        self.files.flush(directory).map_err(|error| failed("flush", directory, error))
    }

    /// Removes staged attempts, and versions that no dataset leads to.
    fn sweep(&self) -> Result<()> {
        let hidden = &self.hidden;
        for dataset in self.entries(hidden)? {
            let path = hidden.join(&dataset);
            if !self.files.is_directory(&path) {
                continue;
            }
            let current = self.files.read_link(&self.root.join(&dataset)).ok();
            for version in self.entries(&path)? {
                let link = Path::new(HIDDEN).join(&dataset).join(&version);
                if dataset == STAGED || current.as_ref() != Some(&link) {
                    let path = path.join(&version);
                    let is_directory = self.files.is_directory(&path);
                    let removed =
                        if is_directory { self.files.remove_directory(&path) } else { self.files.remove_file(&path) };
                    removed.map_err(|error| failed("remove", &path, error))?;
                }
            }
        }
        let staged = hidden.join(STAGED);
        self.files.create_directories(&staged).map_err(|error| failed("create", &staged, error))
    }

    /// Measures what `dataset` takes of the disk, where the files of `pieces` are its own now.
    fn measure(&self, dataset: &str, pieces: &[Arc<Piece>]) -> Result<()> {
        let versions = self.hidden.join(dataset);
        self.disk.measure(dataset, &versions, pieces.iter().map(|piece| &piece.disk))
    }

    /// The path of the current version: not the dataset's name, which leads to another one after the next commit.
    pub(super) fn url(&self, dataset: &str) -> Option<String> {
        // Anything else there was not written here, and is not shown.
        let path = self.version(dataset).ok()??;
        self.files.is_directory(&path).then(|| shown(&path).to_string_lossy().into_owned())
    }

    /// A lease of the version at `url`.
    pub(super) fn lease(&self, url: &str) -> Arc<Lease> {
        self.leases.take(url)
    }

    /// A writer of attempt `number` of a write in `space`.
    pub(super) fn writer(&self, space: Option<&str>, number: u64, schema: SchemaRef) -> Result<Writer> {
        let directory = self.hidden.join(STAGED).join(number.to_string());
        let columns = columns(&schema);
        let mut options = self.options.clone();
        // Floats hardly repeat, and a dictionary of them takes five times their memory, which ends row groups early.
        let floats = schema.fields().iter().filter(|field| field.data_type().is_floating());
        options.plain.extend(floats.map(|field| field.name().clone()));
        let writer = DatasetWriter::create(&directory, schema, options)?;
        let (files, pins, disk) = (Arc::clone(&self.files), self.pins.clone(), self.disk.claim(space));
        Ok(Writer { files, pins, directory, columns, writer, disk })
    }

    /// The directory of the version that readers see.
    fn version(&self, dataset: &str) -> Result<Option<PathBuf>> {
        let path = self.root.join(dataset);
        match self.files.read_link(&path) {
            Ok(link) => {
                if let Some(version) = version_of(&link, dataset) {
                    return Ok(Some(self.hidden.join(dataset).join(version)));
                }
                let path = shown(&path);
                let problem = format!("{} is a link that no server made, and cannot be changed by one", path.display());
                Err(Error::config("dataset", problem))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                let path = shown(&path);
                let problem = format!("{} was not written by a server and cannot be changed by one", path.display());
                Err(Error::config("dataset", problem))
            }
            Err(error) => Err(failed("read", &path, error)),
        }
    }

    /// The version that readers see: its directory and its record.
    fn current(&self, dataset: &str) -> Result<Option<(PathBuf, Record)>> {
        let Some(directory) = self.version(dataset)? else { return Ok(None) };
        let record = directory.join(RECORD);
        let text = self.files.read(&record).map_err(|error| failed("read", &record, error))?;
        let record = serde_json::from_slice(&text).map_err(|error| {
            Error::corrupt_by(Place::file(shown(&record).to_string_lossy()), "the record of commits is damaged", error)
        })?;
        Ok(Some((directory, record)))
    }

    /// The answer of a commit that was made, perhaps by a process before this one.
    pub(super) fn answer(&self, write: &WriteId) -> Result<Option<Committed>> {
        Ok(self.current(write.dataset())?.and_then(|(_, record)| record.answer(write.id())))
    }

    /// [`answer`](Self::answer), once it is on the disk: a commit on a disk that failed may be one that a power cut would undo.
    pub(super) fn repeated(&self, write: &WriteId) -> Result<Option<Committed>> {
        let answer = self.answer(write)?;
        if answer.is_some() {
            self.flush(&self.root)?;
        }
        Ok(answer)
    }

    /// Makes `pieces` visible, remembered under the name `once`. On an error, readers see the former state, and the pieces are unchanged.
    ///
    /// If the disk fails after the link was turned, the link is turned back. If even that fails, the commit is visible and is answered as
    /// made; only a power cut before the next commit, or its repetition, could still undo it, and a warning says so.
    pub(super) fn publish(&self, write: &WriteId, once: &str, mode: Mode, pieces: &[Arc<Piece>]) -> Result<Committed> {
        let committed = self.make(write, once, mode, pieces)?;
        if let Err(error) = self.measure(write.dataset(), pieces) {
            // The files of the attempts stay charged to them until they are gone.
            tracing::warn!(error = %error.chain(), "what a dataset takes of the disk is not known until its next commit");
        }
        Ok(committed)
    }

    fn make(&self, write: &WriteId, once: &str, mode: Mode, pieces: &[Arc<Piece>]) -> Result<Committed> {
        let current = self.current(write.dataset())?;
        let columns = same_columns(write, pieces.iter().map(|piece| piece.columns.as_slice()))?;
        let total = |of: fn(&Written) -> u64| pieces.iter().map(|piece| of(&piece.written)).sum();
        let files = total(|written| written.files as u64);
        let committed = Committed { rows: total(|written| written.rows), bytes: total(|written| written.bytes), files };
        let old = current.as_ref().map(|(_, record)| record);
        let (record, keep) = Record::after(old, (write.dataset(), once), mode, columns, committed)?;
        let versions = self.hidden.join(write.dataset());
        let version = format!("{:08}-{}", record.version, write.id());
        let directory = versions.join(&version);
        let own = Path::new(HIDDEN).join(write.dataset()).join(version);
        #[cfg(test)]
        let record = match self.planted {
            model::Planted::ShownFirst => self.show(write.dataset(), &own).map(|()| record)?,
            model::Planted::OldGoesFirst => {
                self.forget(&versions, &[]);
                record
            }
            model::Planted::Unremembered => Record { commits: Vec::new(), ..record },
            model::Planted::Nothing => record,
        };
        let built =
            self.build(&directory, write, &record, pieces, current.as_ref().filter(|_| keep).map(|(old, _)| old));
        let shown = built.and_then(|()| self.show(write.dataset(), &own));
        if let Err(error) = shown {
            let _ = self.files.remove_directory(&directory);
            return Err(error);
        }
        let before = current.map(|(old, _)| old);
        if let Err(error) = self.flush(&self.root) {
            match self.turn_back(write.dataset(), before.as_deref()) {
                Ok(()) => {
                    // A version that the name may lead to after a power cut must be whole: this one is removed only once the old name is on
                    // the disk.
                    if self.flush(&self.root).is_ok() {
                        let _ = self.files.remove_directory(&directory);
                    }
                    return Err(error);
                }
                Err(stuck) => {
                    let (dataset, id) = (write.dataset(), write.id());
                    let (error, stuck) = (error.chain(), stuck.chain());
                    tracing::warn!(
                        error,
                        stuck,
                        "commit {id} of dataset {dataset} is visible, but a power cut may undo it"
                    );
                    return Ok(committed);
                }
            }
        }
        // From here on the commit stands: its record in this version answers a repeated call.
        self.forget(&versions, &[Some(directory), before]);
        Ok(committed)
    }

    /// Turns the dataset's name back to the version `before`, or takes it away if there was none.
    fn turn_back(&self, dataset: &str, before: Option<&Path>) -> Result<()> {
        match before.map(|before| before.strip_prefix(&self.hidden).unwrap_or(before)) {
            Some(before) => self.show(dataset, &Path::new(HIDDEN).join(before)),
            None => {
                let path = self.root.join(dataset);
                self.files.remove_file(&path).map_err(|error| failed("remove", &path, error))
            }
        }
    }

    /// Removes all versions in `versions` except those that are `kept`, and those that are read: a later commit removes them. The commit
    /// is made: leftovers do no harm.
    fn forget(&self, versions: &Path, kept: &[Option<PathBuf>]) {
        let stays = |error: &dyn std::fmt::Display, directory: &Path| {
            let directory = shown(directory);
            tracing::warn!(%error, directory = %directory.display(), "an old version stays until the next start");
        };
        let names = match self.entries(versions) {
            Ok(names) => names,
            Err(error) => return stays(&error, versions),
        };
        for version in names.into_iter().map(|name| versions.join(name)) {
            if kept.iter().flatten().all(|kept| *kept != version)
                && !self.leases.is_read(&shown(&version).to_string_lossy(), TICKET_LIFE)
                && let Err(error) = self.files.remove_directory(&version)
            {
                stays(&error, &version);
            }
        }
    }

    /// Removes the dataset; false if there was none. The link is removed first, which hides the whole dataset from readers; the next start
    /// removes the leftovers of a process killed here.
    pub(super) fn drop_dataset(&self, dataset: &str) -> Result<bool> {
        if self.version(dataset)?.is_none() {
            return Ok(false);
        }
        let path = self.root.join(dataset);
        self.files.remove_file(&path).map_err(|error| failed("remove", &path, error))?;
        // The link must not come back after a crash without its target.
        self.flush(&self.root)?;
        let versions = self.hidden.join(dataset);
        if let Err(error) = self.files.remove_directory(&versions) {
            let versions = shown(&versions);
            tracing::warn!(%error, directory = %versions.display(), "files of a dropped dataset stay until the next start");
        }
        // The dataset is dropped even if counting its disk space fails.
        if let Err(error) = self.measure(dataset, &[]) {
            tracing::warn!(error = %error.chain(), "what a dropped dataset took of the disk is counted until the next start");
        }
        Ok(true)
    }

    /// Fills a version's directory and brings it to the disk.
    fn build(
        &self,
        directory: &Path,
        write: &WriteId,
        record: &Record,
        pieces: &[Arc<Piece>],
        old: Option<&PathBuf>,
    ) -> Result<()> {
        let parent = self.hidden.join(write.dataset());
        self.files.create_directories(&parent).map_err(|error| failed("create", &parent, error))?;
        // A directory that could not be removed after a failure: the name on the disk may still lead to it.
        if self.files.is_directory(directory) {
            self.flush(&self.root)?;
            self.files.remove_directory(directory).map_err(|error| failed("remove", directory, error))?;
        }
        self.files.create_directory(directory).map_err(|error| failed("create", directory, error))?;
        let link = |from: PathBuf, to: String| {
            self.files.link(&from, &directory.join(to)).map_err(|error| failed("link", &from, error))
        };
        if let Some(old) = old {
            for name in self.entries(old)?.into_iter().filter(|name| name.ends_with(".parquet")) {
                link(old.join(&name), name)?;
            }
        }
        for (task, piece) in pieces.iter().enumerate() {
            let files = self.entries(&piece.directory)?.into_iter().filter(|name| name.ends_with(".parquet"));
            for (file, name) in files.enumerate() {
                let to = format!("{:08}-{task:06}-{file:05}-{}.parquet", record.version, write.id());
                link(piece.directory.join(name), to)?;
            }
        }
        let json = serde_json::to_vec(record).map_err(|error| Error::Store {
            operation: "describe".to_owned(),
            url: shown(directory).display().to_string(),
            source: error.into(),
        })?;
        for (name, bytes) in [(RECORD, json.as_slice()), ("_SUCCESS", &[])] {
            let path = directory.join(name);
            self.files.put_file(&path, bytes).map_err(|error| failed("write", &path, error))?;
        }
        self.flush(directory)?;
        self.flush(&parent)?;
        // The first version makes its dataset's directory; without that name the link would lead nowhere after a power cut.
        self.flush(&self.hidden)
    }

    /// Turns the dataset's name to `version`, at once.
    fn show(&self, dataset: &str, version: &Path) -> Result<()> {
        // Each dataset has its own aside, because commits of other datasets run concurrently.
        let (path, new) = (self.root.join(dataset), self.hidden.join(format!("_link.{dataset}")));
        turn(&*self.files, &path, version, &new)
    }
}

/// The version that a link leads to, if it is one that [`Directory::show`] makes for `dataset`.
fn version_of(link: &Path, dataset: &str) -> Option<PathBuf> {
    let version = link.strip_prefix(Path::new(HIDDEN).join(dataset)).ok()?;
    let mut parts = version.components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)).then(|| version.to_owned())
}

/// Holds `root`, which is made if it does not exist, against other servers; waits up to `patience` for the one that has it.
///
/// # Errors
/// [`Error::Closed`] naming the process that has it; [`Error::Store`].
pub(super) async fn lock(root: &Path, patience: Duration) -> Result<Lock> {
    let hidden = root.join(HIDDEN);
    std::fs::create_dir_all(&hidden).map_err(|error| failed("create", &hidden, error))?;
    // A link that another user left there leads to no lock.
    let pinned = Pinned::unlinked(&hidden).map_err(|error| failed("open", &hidden, error))?;
    Lock::take_within(&pinned.at().join(LOCK), &format!("write to {}", root.display()), patience).await
}
