//! Files of what was saved and is not in its store yet. They lie beside the blocks; nothing evicts them.
//!
//! ```text
//!   saved/NAME        the bytes, locked by whoever writes them, and for sharing by whoever reads them
//!   saved/NAME.sums   their checksums, as of a whole object
//!   saved/NAME.json   the record: with it the save is there, without it there is none
//!   saved/NAME.lock   the lock of whoever uploads it; also of whoever makes an object appear at an address, whose digest is then the name
//! ```

use std::collections::HashSet;
use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::super::directory::flush_names;
use super::super::pinned::is_at;
use super::super::pinned::shown;
use super::block::ObjectKey;
use super::directory::{Directory, SAVED, gone, readable, writable};
use super::ledger::boot;
use super::record::{Record, Target, digest};

const SUMS: &str = "sums";
const RECORD: &str = "json";
const RECORD_ASIDE: &str = "new";
const LOCK: &str = "lock";

/// Most bytes of a record: an upload has 10,000 parts at most.
const MOST: u64 = 16 << 20;

/// A save.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Save {
    pub(super) name: ObjectKey,
    pub(crate) record: Record,
}

impl Save {
    /// Its name, which no other save has.
    pub(crate) fn name(&self) -> ObjectKey {
        self.name
    }

    /// Returns true if readers of `target` find it.
    pub(super) fn is_for(&self, target: &Target) -> bool {
        self.record.is_there && self.record.target == *target
    }
}

/// A record that cannot be read: damaged, of another version, or of another user. What it tells of may be in no store.
#[derive(Debug)]
pub(super) struct Unread {
    /// The number of its save, if that can be told: what is saved from here on comes after it.
    sequence: u64,
    /// Why, and where.
    pub(super) why: io::Error,
}

/// The records of saves.
#[derive(Debug, Default)]
pub(super) struct Records {
    /// In the order in which they were closed.
    pub(super) good: Vec<Save>,
    pub(super) bad: Vec<Unread>,
}

impl Records {
    /// The number of the next save.
    pub(super) fn next(&self) -> u64 {
        let known = self.good.iter().map(|save| save.record.sequence);
        known.chain(self.bad.iter().map(|bad| bad.sequence)).max().unwrap_or(0).saturating_add(1)
    }
}

/// A name that no other save has or will have.
pub(super) fn fresh() -> ObjectKey {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let numbers = [u64::from(std::process::id()), COUNT.fetch_add(1, Ordering::Relaxed)].map(u64::to_le_bytes);
    digest(&[b"save", &boot(), &numbers.concat(), &since.as_nanos().to_le_bytes()])
}

impl Directory {
    fn saved(&self) -> PathBuf {
        self.at().join(SAVED)
    }

    /// Path of the bytes of the save `name`.
    pub(super) fn saved_bytes(&self, name: ObjectKey) -> PathBuf {
        self.saved().join(name.hex())
    }

    /// Path of its checksums.
    pub(super) fn saved_sums(&self, name: ObjectKey) -> PathBuf {
        self.saved_bytes(name).with_extension(SUMS)
    }

    /// Path of its lock.
    pub(super) fn saved_lock(&self, name: ObjectKey) -> PathBuf {
        self.saved_bytes(name).with_extension(LOCK)
    }

    fn record(&self, name: ObjectKey) -> PathBuf {
        self.saved_bytes(name).with_extension(RECORD)
    }

    /// What is in the directory of saves: names and endings.
    fn saved_files(&self) -> io::Result<Vec<(ObjectKey, Option<String>)>> {
        let listed = match fs::read_dir(self.saved()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed?,
        };
        let mut found = Vec::new();
        for entry in listed {
            let name = entry?.file_name();
            let Some(name) = name.to_str() else { continue };
            let (name, ending) = name.split_once('.').map_or((name, None), |(name, ending)| (name, Some(ending)));
            found.extend(ObjectKey::parse(name).map(|name| (name, ending.map(str::to_owned))));
        }
        Ok(found)
    }

    /// All saves of which there is a record.
    pub(super) fn saves(&self) -> io::Result<Records> {
        let mut found = Records::default();
        let is_record =
            |(name, ending): (ObjectKey, Option<String>)| (ending.as_deref() == Some(RECORD)).then_some(name);
        let names: HashSet<_> = self.saved_files()?.into_iter().filter_map(is_record).collect();
        self.records().keep(&names);
        for name in names {
            match self.records().record(name, &self.record(name), || self.read_record(name)) {
                Ok(Some(record)) => found.good.push(Save { name, record }),
                Ok(None) => {}
                Err(why) if matches!(why.kind(), io::ErrorKind::InvalidData | io::ErrorKind::PermissionDenied) => {
                    found.bad.push(Unread { sequence: self.sequence(name), why });
                }
                Err(error) => return Err(error),
            }
        }
        found.good.sort_by_key(|save| (save.record.sequence, save.name));
        Ok(found)
    }

    /// The number of a save whose record means nothing here otherwise; 0 if it has none.
    fn sequence(&self, name: ObjectKey) -> u64 {
        let file = readable(&self.record(name)).ok();
        let found: Option<serde_json::Value> =
            file.and_then(|file| serde_json::from_reader(io::BufReader::new(io::Read::take(file, MOST))).ok());
        found.and_then(|record| record.get("sequence")?.as_u64()).unwrap_or(0)
    }

    /// The record of `name`, if there is one.
    pub(super) fn read_record(&self, name: ObjectKey) -> io::Result<Option<Record>> {
        let path = self.record(name);
        let file = match readable(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                return Err(io::Error::new(error.kind(), format!("{}: {error}", shown(&path).display())));
            }
            file => file?,
        };
        match serde_json::from_reader(io::BufReader::new(io::Read::take(file, MOST))) {
            Ok(record) => Ok(Some(record)),
            // The disk fails, which tells nothing of the record.
            Err(error) if error.is_io() => Err(error.into()),
            Err(error) => {
                let hint = if error.is_data() {
                    ""
                } else {
                    "; its bytes are beside it, without ending: copy them, and remove it"
                };
                let problem = format!("{}: {error}{hint}", shown(&path).display());
                Err(io::Error::new(io::ErrorKind::InvalidData, problem))
            }
        }
    }

    /// Writes the record of `name`; with `safely` all names beside it are on the disk afterwards. What it replaces was on the disk, so its own
    /// bytes always are.
    pub(super) fn write_record(&self, name: ObjectKey, record: &Record, safely: bool) -> io::Result<()> {
        let (path, aside) = (self.record(name), self.saved_bytes(name).with_extension(RECORD_ASIDE));
        gone(fs::remove_file(&aside))?;
        let mut file = writable(&aside)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(&aside, &path)?;
        if safely { self.flush_saved() } else { Ok(()) }
    }

    /// Brings the names of all saves to the disk.
    pub(super) fn flush_saved(&self) -> io::Result<()> {
        flush_names(&self.saved())?;
        // The first save has made that directory.
        flush_names(self.at())
    }

    /// Removes a save: its record, then the rest. Its bytes stay as long as somebody has them open; see [`reap_saves`](Self::reap_saves).
    pub(super) fn delete_save(&self, name: ObjectKey) -> io::Result<()> {
        gone(fs::remove_file(self.record(name)))?;
        self.reap_save(name)
    }

    /// Removes what killed processes left: bytes that are being written by nobody.
    pub(super) fn reap_saves(&self) -> io::Result<()> {
        for (name, ending) in self.saved_files()? {
            match ending.as_deref() {
                None | Some(SUMS | RECORD_ASIDE) if !self.record(name).exists() => self.reap_save(name)?,
                Some(LOCK) if !self.record(name).exists() => {
                    let path = self.saved_lock(name);
                    if let Ok(file) = readable(&path)
                        && file.try_lock().is_ok()
                        && is_at(&file, &path)
                    {
                        gone(fs::remove_file(path))?;
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes the files of a save without a record, unless somebody has its bytes.
    fn reap_save(&self, name: ObjectKey) -> io::Result<()> {
        let path = self.saved_bytes(name);
        match readable(&path) {
            Ok(file) if file.try_lock().is_err() => return Ok(()),
            Ok(_) => gone(fs::remove_file(&path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        gone(fs::remove_file(self.saved_sums(name)))?;
        gone(fs::remove_file(path.with_extension(RECORD_ASIDE)))
    }

    /// Returns true if a live process writes the bytes of `name`.
    pub(super) fn is_written(&self, name: ObjectKey) -> bool {
        readable(&self.saved_bytes(name)).is_ok_and(|file| file.try_lock_shared().is_err())
    }

    /// Bytes that saves take.
    pub(super) fn saved_size(&self) -> io::Result<u64> {
        let mut all = 0_u64;
        for (name, ending) in self.saved_files()? {
            if ending.is_none() {
                all = all.saturating_add(fs::metadata(self.saved_bytes(name)).map_or(0, |found| found.len()));
            }
        }
        Ok(all)
    }

    /// Removes all saves, and their directory if nothing else is in it.
    pub(super) fn remove_saves(&self) -> io::Result<()> {
        for (name, ending) in self.saved_files()? {
            if matches!(ending.as_deref(), None | Some(SUMS | RECORD | RECORD_ASIDE | LOCK)) {
                let path = self.saved_bytes(name);
                gone(fs::remove_file(ending.map_or(path.clone(), |ending| path.with_extension(ending))))?;
            }
        }
        match fs::remove_dir(self.saved()) {
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty) => Ok(()),
            removed => removed,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::super::record::Begun;
    use super::*;

    fn target(url: &str) -> Target {
        Target { url: url.to_owned(), origin: "o".to_owned() }
    }

    #[test]
    fn a_record_makes_a_save_and_leftovers_without_one_go() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::open(root.path()).unwrap();
        assert_eq!(directory.saves().unwrap().good, []);
        let names: Vec<_> = (0..3).map(|_| fresh()).collect();
        directory.prepare(&directory.saved_bytes(names[0])).unwrap();
        for name in &names {
            fs::write(directory.saved_bytes(*name), "bytes").unwrap();
            fs::write(directory.saved_sums(*name), "sums").unwrap();
        }
        let mut record = Record::new(target("s3://b/x"), 5, true);
        (record.sequence, record.upload) =
            (7, Some(Begun { id: "u".to_owned(), parts: vec![None, Some("p".to_owned())] }));
        directory.write_record(names[0], &record, true).unwrap();
        let writing = File::open(directory.saved_bytes(names[1])).unwrap();
        writing.try_lock().unwrap();
        assert!(directory.is_written(names[1]) && !directory.is_written(names[0]));
        directory.reap_saves().unwrap();
        assert_eq!(directory.saves().unwrap().good, [Save { name: names[0], record }]);
        let there = |name: ObjectKey| (directory.saved_bytes(name).exists(), directory.saved_sums(name).exists());
        assert_eq!((there(names[0]), there(names[1]), there(names[2])), ((true, true), (true, true), (false, false)));
        assert_eq!(directory.saved_size().unwrap(), 10);
        directory.delete_save(names[0]).unwrap();
        assert_eq!((directory.saves().unwrap().good, there(names[0])), (vec![], (false, false)));
        fs::write(root.path().join("saved/thesis.tex"), "work of years").unwrap();
        directory.remove_saves().unwrap();
        assert_eq!((there(names[1]), root.path().join("saved/thesis.tex").exists()), ((false, false), true));
    }

    #[test]
    fn a_record_is_read_again_once_its_file_is_another_one() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::open(root.path()).unwrap();
        let (name, mut record) = (fresh(), Record::new(target("s3://b/x"), 5, true));
        directory.prepare(&directory.saved_bytes(name)).unwrap();
        let found = || directory.saves().unwrap().good.into_iter().map(|save| save.record).collect::<Vec<_>>();
        for sequence in 1..4 {
            record.sequence = sequence;
            directory.write_record(name, &record, false).unwrap();
            assert_eq!(found(), [record.clone()]);
        }
        // An old file is read once: what is written into it in place, with its old time, is not seen.
        let file = fs::File::options().write(true).open(directory.record(name)).unwrap();
        let old = SystemTime::now() - std::time::Duration::from_secs(60);
        file.set_modified(old).unwrap();
        assert_eq!(found(), [record.clone()]);
        let text = fs::read_to_string(directory.record(name)).unwrap().replace("s3://b/x", "s3://b/y");
        fs::write(directory.record(name), text).unwrap();
        file.set_modified(old).unwrap();
        assert_eq!(found(), [record.clone()]);
        record.sequence = 4;
        directory.write_record(name, &record, false).unwrap();
        assert_eq!(found(), [record]);
        directory.delete_save(name).unwrap();
        assert_eq!(found(), []);
    }

    #[test]
    fn a_damaged_record_is_told_beside_the_good_ones_and_its_bytes_stay() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::open(root.path()).unwrap();
        let name = fresh();
        directory.prepare(&directory.saved_bytes(name)).unwrap();
        fs::write(directory.saved_bytes(name), "bytes").unwrap();
        let (other, record) = (fresh(), Record::new(target("s3://b/x"), 5, true));
        directory.write_record(other, &record, true).unwrap();
        for damaged in ["", "{\"bowstring_save\": 1"] {
            fs::write(directory.record(name), damaged).unwrap();
            let found = directory.saves().unwrap();
            assert_eq!((found.good.len(), found.bad.len(), found.next()), (1, 1, 1));
            let why = found.bad[0].why.to_string();
            assert!(why.contains(&name.hex()) && why.contains("copy them"), "{why}");
            directory.reap_saves().unwrap();
            assert!(directory.saved_bytes(name).exists());
        }
        // A read that fails is no damage.
        fs::remove_file(directory.record(name)).unwrap();
        fs::create_dir(directory.record(name)).unwrap();
        assert_eq!(directory.saves().unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn a_record_of_another_version_is_told_and_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let directory = Directory::open(root.path()).unwrap();
        let name = fresh();
        directory.prepare(&directory.saved_bytes(name)).unwrap();
        fs::write(directory.saved_bytes(name), "bytes").unwrap();
        let record = Record { sequence: 7, ..Record::new(target("s3://b/x"), 5, true) };
        directory.write_record(name, &record, true).unwrap();
        let text = fs::read_to_string(directory.record(name)).unwrap();
        // Whatever else another version has in it.
        for newer in
            [text.replacen(":1,", ":2,", 1), r#"{"bowstring_save": 2, "sequence": 7, "where": "s3://b/x"}"#.to_owned()]
        {
            fs::write(directory.record(name), &newer).unwrap();
            let mut found = directory.saves().unwrap();
            assert_eq!((found.good.len(), found.next()), (0, 8), "what is saved now comes after it");
            for error in [found.bad.pop().unwrap().why, directory.read_record(name).unwrap_err()] {
                let text = error.to_string();
                assert!(text.contains("version 2") && text.contains(&name.hex()), "{text}");
                assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            }
            directory.reap_saves().unwrap();
            assert_eq!(fs::read_to_string(directory.record(name)).unwrap(), newer);
            assert!(directory.saved_bytes(name).exists());
        }
    }

    #[test]
    fn one_address_in_two_stores_is_two_targets() {
        let other = Target { origin: "p".to_owned(), ..target("s3://b/x") };
        assert_ne!(target("s3://b/x").name(), other.name());
        assert_ne!(target("s3://b/x").name(), target("s3://b/y").name());
        assert_eq!(target("s3://b/x").name(), target("s3://b/x").name());
        assert_ne!(fresh(), fresh());
    }
}
