//! Reading a log: what is listed of it, and the actions in its files.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::stream::{StreamExt, TryStreamExt};

use super::action::{Actions, Add, Metadata, Protocol};
use super::checkpoint::{self, Asked};
use super::judge::Judge;
use super::log::{Gone, Log, Segment};
use super::path::decoded;
use super::replay::Replay;
use super::{protocol, schema};
use crate::dataset::table::Sieve;
use crate::dataset::{Dataset, OpenOptions, within};
use crate::error::{Error, Place, Result};
use crate::store::{Found, LOG, Ratified, Root, STAGED};

/// The option that limits a file of a log.
const LIMIT: &str = "limits.max_index_bytes";

/// Sidecars of a checkpoint are in this directory of the log.
const SIDECARS: &str = "_sidecars";

/// A log that was listed.
#[derive(Debug)]
pub(super) struct Listed {
    root: Root,
    files: Vec<Found>,
    pub(super) log: Log,
    /// A catalog has told of its commits.
    managed: bool,
}

/// Content of a version.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) version: u64,
    /// The filter as a test of files, if there is a filter.
    pub(super) judge: Option<Arc<Judge>>,
    pub(super) files: Vec<Add>,
    pub(super) protocol: Protocol,
    pub(super) metadata: Metadata,
    /// A catalog has told of its commits.
    pub(super) managed: bool,
}

impl Listed {
    /// Lists the log of the table at `root`. Where a catalog has the last word on its commits, `ratified` are those.
    pub(super) async fn of(root: Root, ratified: Option<Ratified>, options: &OpenOptions) -> Result<Self> {
        // A log may have more files than its table.
        let listing = root.list(LOG, options.limits.max_files.saturating_mul(4));
        let mut files = within(options.timeout, format!("the log of the table {}", root.url()), listing).await?;
        let mut log = Log::new(files.iter().map(|file| file.name.as_ref()));
        let managed = ratified.is_some();
        if let Some(Ratified { latest, commits }) = ratified {
            let mut staged = BTreeMap::new();
            for (version, name) in commits {
                let wrong = || {
                    Error::corrupt(
                        Place::file(format!("{}/{LOG}", root.url())),
                        "a commit of its catalog has no name of a file",
                    )
                };
                staged.insert(version, files.len());
                files.push(root.file(&format!("{LOG}/{STAGED}/{name}")).ok_or_else(wrong)?);
            }
            log.ratify(latest, staged);
        }
        Ok(Self { root, files, log, managed })
    }

    pub(super) fn root(&self) -> &Root {
        &self.root
    }

    pub(super) fn into_root(self) -> Root {
        self.root
    }

    fn url(&self) -> String {
        self.root.url()
    }

    /// The latest version.
    pub(super) fn latest(&self) -> Result<u64> {
        self.log.latest().ok_or_else(|| self.gone(None, &Gone::Empty))
    }

    /// Segment that makes `version`, or the latest one.
    pub(super) fn segment(&self, version: Option<u64>) -> Result<Segment> {
        self.log.segment(version).map_err(|gone| self.gone(version, &gone))
    }

    fn gone(&self, version: Option<u64>, gone: &Gone) -> Error {
        let url = self.url();
        let place = Place::file(format!("{url}/{LOG}"));
        let asked = version.map_or_else(|| "the latest version".to_owned(), |version| format!("version {version}"));
        match gone {
            Gone::Empty => Error::corrupt(place, "there is no commit and no whole checkpoint in the table's log"),
            Gone::Later { latest } => Error::NotFound {
                what: format!("{asked} of the Delta table {url}"),
                hint: format!("the latest is {latest}"),
            },
            Gone::Cleaned { first } => Error::NotFound {
                what: format!("{asked} of the Delta table {url}"),
                hint: format!(
                    "its log was cleaned up{}; how long it is kept is the table's delta.logRetentionDuration",
                    first.map_or_else(String::new, |first| format!(
                        ": the earliest version that it still tells is {first}"
                    ))
                ),
            },
            Gone::Missing { commit } => {
                Error::corrupt(place, format!("commit {commit} is missing, without which {asked} cannot be told"))
            }
        }
    }

    fn file(&self, at: usize) -> Result<&Found> {
        self.files.get(at).ok_or_else(|| Error::Closed { why: "a file of a log was not listed".to_owned() })
    }

    /// When file number `at` of the listing was written, in milliseconds.
    pub(super) fn modified(&self, at: usize) -> i64 {
        let stamp = self.files.get(at).and_then(|file| file.stamp.as_ref());
        stamp.and_then(|stamp| stamp.modified).map_or(0, |nanos| nanos.div_euclid(1_000_000))
    }

    /// The actions of commit number `at` of the listing.
    pub(super) async fn commit(&self, at: usize, options: &OpenOptions) -> Result<Actions> {
        json(self.file(at)?, options).await
    }

    /// Content of `version`, or of the latest one.
    pub(super) async fn snapshot(&self, version: Option<u64>, options: &OpenOptions) -> Result<Snapshot> {
        let segment = self.segment(version)?;
        let (replay, judge) = self.replay(&segment, true, options).await?;
        let place = || Place::file(format!("{}/{LOG}", self.url()));
        let missing = |what: &str| Error::corrupt(place(), format!("version {} has no {what}", segment.version));
        let protocol = replay.protocol.ok_or_else(|| missing("protocol"))?;
        let metadata = replay.metadata.ok_or_else(|| missing("metadata"))?;
        let managed = self.managed;
        Ok(Snapshot { version: segment.version, judge, files: replay.live, protocol, metadata, managed })
    }

    /// Description of the table in its latest version, without its files.
    pub(super) async fn metadata(&self, options: &OpenOptions) -> Result<Option<Metadata>> {
        let segment = self.segment(None)?;
        Ok(self.replay(&segment, false, options).await?.0.metadata)
    }

    async fn replay(
        &self,
        segment: &Segment,
        files: bool,
        options: &OpenOptions,
    ) -> Result<(Replay, Option<Arc<Judge>>)> {
        let mut replay = Replay::default();
        let numbers: Vec<usize> = segment.commits.iter().map(|(_, at)| *at).collect();
        let mut commits =
            futures::stream::iter(numbers).map(|at| self.commit(at, options)).buffered(options.concurrency);
        while let Some(actions) = commits.try_next().await? {
            replay.commit(actions);
            if !files && replay.metadata.is_some() {
                return Ok((replay, None));
            }
        }
        let parts = segment.checkpoint.iter().map(|at| self.file(*at).cloned()).collect::<Result<Vec<_>>>()?;
        let mut judge = None;
        if files && options.filter.is_some() {
            if replay.metadata.is_none() || replay.protocol.is_none() {
                // The schema decides which statistics to read; they are most of a checkpoint.
                let of_table = checkpoints(parts.clone(), Asked::Table, options).await?;
                of_table.into_iter().for_each(|actions| replay.about(actions.protocol, actions.metadata));
            }
            judge = self.judge(&replay, options).map(Arc::new);
        }
        let asked = if files { Asked::Files(judge.as_ref()) } else { Asked::Table };
        let mut sidecars = Vec::new();
        for actions in checkpoints(parts, asked, options).await? {
            for sidecar in &actions.sidecars {
                sidecars.push(self.sidecar(&sidecar.path, options)?);
            }
            replay.checkpoint(actions);
        }
        if files {
            checkpoints(sidecars, asked, options).await?.into_iter().for_each(|actions| replay.checkpoint(actions));
        }
        Ok((replay, judge))
    }

    /// The filter as a test of files, by the schema in `replay`.
    fn judge(&self, replay: &Replay, options: &OpenOptions) -> Option<Judge> {
        let (protocol, metadata) = (replay.protocol.as_ref()?, replay.metadata.as_ref()?);
        let url = self.url();
        // Errors in them are reported where the table is built.
        let mapping = protocol::check(protocol, metadata, self.managed, &url).ok()?;
        let sieve = Sieve::new(&schema::columns(&metadata.schema_string, mapping, &url).ok()?, options)?;
        Some(Judge::new(sieve, metadata.partition_columns.clone()))
    }

    /// The sidecar that a checkpoint names: as a rule in their directory.
    fn sidecar(&self, path: &str, options: &OpenOptions) -> Result<Found> {
        let place = || Place::file(format!("{}/{LOG}", self.url()));
        if path.contains(':') || path.starts_with('/') {
            return self.root.elsewhere(path, options.access());
        }
        let name = decoded(path).and_then(|name| self.root.file(&format!("{LOG}/{SIDECARS}/{name}")));
        name.ok_or_else(|| Error::corrupt(place(), format!("{path:?} is not the name of a sidecar")))
    }
}

/// Reads the actions that `asked` names from all parts of a checkpoint.
async fn checkpoints(parts: Vec<Found>, asked: Asked<'_>, options: &OpenOptions) -> Result<Vec<Actions>> {
    futures::stream::iter(parts)
        .map(|part| async move {
            if part.name.ends_with(".json") {
                return json(&part, options).await;
            }
            let name = part.name.to_string();
            let opened = Dataset::of_log(part, options.beside()).await?;
            within(options.timeout, format!("the checkpoint {name}"), checkpoint::read(opened, asked)).await
        })
        .buffered(options.concurrency)
        .try_collect()
        .await
}

/// The actions in a file of JSON.
async fn json(file: &Found, options: &OpenOptions) -> Result<Actions> {
    let reading = file.whole(options.limits.max_index_bytes, LIMIT);
    let bytes = within(options.timeout, format!("{LOG}/{}", file.name), reading).await?;
    let (name, filtered) = (file.name.to_string(), options.filter.is_some());
    let parsed = tokio::task::spawn_blocking(move || {
        let wrong = |(line, what): (usize, String)| {
            Error::corrupt(checkpoint::place(&name), format!("line {line} is not an action of Delta Lake: {what}"))
        };
        let mut actions = Actions::parse(&bytes).map_err(wrong)?;
        if !filtered {
            actions.adds.iter_mut().for_each(|add| add.stats = None);
        }
        Ok(actions)
    });
    parsed.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("a log was not read: {error}") }))
}
