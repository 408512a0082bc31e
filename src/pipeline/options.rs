//! All options of a loader, as plain fields with one validation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::option_table::option;
use super::{machine, rank};
use crate::codec::{BadRows, ColumnOptions};
use crate::dataset::filter::Filter;
use crate::dataset::{Index, Limits, Ngram, OpenOptions, Partitioning, Selector};
use crate::device::{Fence, Place};
use crate::error::{Error, Result};
use crate::plan::{Mix, OrderVersion, PlanSpec, Share, Shuffle, Stop, Tail};
#[cfg(feature = "cloud")]
use crate::store::CredentialSource;
use crate::store::cache::CachePlace;
use crate::store::{FileOptions, MountSource};
use crate::trace::TraceContext;

/// Maximum memory for evaluating a filter, if the budget is larger.
const FILTER_BYTES: u64 = 512 << 20;

/// Options of a [`Loader`](crate::Loader). The names are the same in Python, in the environment
/// (`BOWSTRING_BATCH_SIZE`) and as flags; [`option_table`](super::option_table) lists them all.
#[derive(Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoaderOptions {
    /// Files, directories, globs or URLs of one dataset; or one entry per dataset when `weights` is given.
    pub urls: Vec<String>,
    /// Mix the datasets in `urls` in these proportions; empty means that `urls` are parts of one dataset.
    pub weights: Vec<f64>,
    /// When an epoch of a mixture ends: `first_exhausted` or `all_exhausted`.
    pub stop: Stop,
    /// Rows per rank and step. Give this or `global_batch_size`.
    pub batch_size: Option<u64>,
    /// Rows of all ranks together per step; it must stay the same for an elastic resume.
    pub global_batch_size: Option<u64>,
    /// Shuffle rows; `false` delivers them in file order: a step of all ranks together has consecutive rows, unless `lanes` is given.
    /// Files are sorted by name, also those of a list.
    pub shuffle: bool,
    /// Seed of the order and of random augmentation.
    pub seed: u64,
    /// Lanes of the plan; the default is computed from the global batch and the dataset, see [`PlanSpec::resolve`]. In
    /// file order one, or as many as requested: each is then a part of the file order.
    pub lanes: Option<u32>,
    /// Rows among which the shuffle mixes within a lane; the default is computed from the dataset.
    pub window_rows: Option<u64>,
    /// Version of the order; without it, new epochs use the latest one, and a resumed state its own.
    pub order_version: Option<OrderVersion>,
    /// Treatment of the last, incomplete step: `short`, which is a loader's default, `even`, `pad`, `repeat` or `drop`.
    pub tail: Option<Tail>,
    /// If true, batches have `_mask`, which is false on padding, under any tail. Under `pad` they always do.
    pub mask: bool,
    /// Selection and treatment of columns.
    pub columns: ColumnOptions,
    /// Rows to select.
    pub filter: Option<Filter>,
    /// Row groups to read, by number or by the indexes that Petastorm stored.
    pub selector: Option<Selector>,
    /// Windows of consecutive rows as samples, instead of rows.
    pub ngram: Option<Ngram>,
    /// This rank; by default taken from the launcher's environment, see [`rank::discover`].
    pub rank: Option<u32>,
    /// Number of ranks; goes with `rank`.
    pub world_size: Option<u32>,
    /// Bytes that everything in flight may take; the default is half of the free memory, at most 4 GiB.
    pub memory_budget: Option<u64>,
    /// CPU threads for decoding; the default is all that this process may use.
    pub threads: Option<usize>,
    /// Batches made ahead of the consumer.
    pub prefetch: usize,
    /// Handling of a row that cannot be decoded: `error`, `skip` or `zero`.
    pub bad_rows: BadRows,
    /// Seconds to wait for the next batch before an error that names the cause.
    pub timeout: f64,
    /// Options of the store, by object_store's names.
    pub storage_options: BTreeMap<String, String>,
    /// Source of expiring credentials, in addition to the options of the store. A server has its own.
    #[cfg(feature = "cloud")]
    #[serde(skip)]
    pub credential_provider: Option<CredentialSource>,
    /// The span that the loader is opened in, if traces are exported; default: that of the environment's `TRACEPARENT`. The traces of
    /// its steps are linked to it.
    #[serde(skip)]
    pub caller: Option<TraceContext>,
    /// The mounts that addresses below `bow://` lead to: a TOML file with `[mounts.NAME]` tables. Each mount has options of its own.
    pub mounts: Option<MountSource>,
    /// Source of the footers' content: `auto` (an index beside the dataset, if there is one), `none` (the footers), or
    /// the address of an index.
    pub index: Index,
    /// Cache of data read from remote stores, to be read from there the next time: a directory of this machine, which
    /// all its processes share, or `memory`; no cache without it.
    pub cache: Option<String>,
    /// Bytes that the cache may take; the default is half of what is free on its disk.
    pub cache_bytes: Option<u64>,
    /// Bytes that are fetched into the cache ahead of their use, beyond as many as have been read; the default is 256 MiB, 0 for none.
    pub cache_ahead: Option<u64>,
    /// Hosts whose served caches are one with this one: `host:port`, `grpc+tls://host:port`, or `dns://name:port` for all hosts
    /// behind a name. They are asked before the store is.
    pub cache_peers: Vec<String>,
    /// Credentials for these hosts: `token` or `token_file`, `ca`, `cert` and `key`, `server_name`.
    pub cache_peer_options: BTreeMap<String, String>,
    /// The version of a Delta table, or the snapshot of an Iceberg table; the latest one without it.
    pub version: Option<u64>,
    /// The branch or tag of an Iceberg table.
    #[serde(rename = "ref")]
    pub reference: Option<String>,
    /// The time whose version of a table is read, see [`OpenOptions::timestamp`].
    pub timestamp: Option<String>,
    /// Treatment of `key=value` directories as partition columns: `hive` or `none`.
    pub partitioning: Partitioning,
    /// If true, the dataset's own schema of its cells applies (that of bowstring or Petastorm); without it, cells are
    /// bytes.
    pub decode: bool,
    /// Target of [`Loader`](crate::Loader)'s tensors: `cpu`, `pinned` (page-locked host memory), `auto` (the GPU of
    /// this process if there is one), `cuda`, `cuda:N`, `cuda:GPU-<uuid>` or `cuda:MIG-<uuid>`. The source in this
    /// module delivers on the CPU.
    pub device: String,
    /// Batches in the device's memory at once, at least 2: those held by the consumer, and those made ahead.
    pub device_slots: usize,
    /// The condition for reusing a batch's device memory: after all work queued on its consumers' streams (`stream`),
    /// after all work queued on the device (`context`), or after waiting for that on the host (`sync`).
    pub device_fence: Fence,
    /// If true, more device memory is taken when the consumer holds all slots, instead of waiting for it.
    pub device_overflow: bool,
    /// Limits against hostile files.
    pub limits: Limits,
    /// Names of the options that were given. A dataset of a server has what its catalogue says where a client gives nothing: fields with
    /// their default count as not given, unless they are named here. Documents fill it in; a program that sets fields inserts the names
    /// of those that are to have their default there too, as `options.given.insert("seed")` for seed 0.
    #[serde(skip)]
    pub given: BTreeSet<&'static str>,
    /// True to have a server's dataset padded if neither `tail` nor its catalogue says anything, as consumers want that compile for one
    /// shape. Of other data `tail` alone decides.
    #[serde(skip)]
    pub pads: bool,
}

impl Default for LoaderOptions {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            weights: Vec::new(),
            stop: Stop::default(),
            batch_size: None,
            global_batch_size: None,
            shuffle: true,
            seed: 0,
            lanes: None,
            window_rows: None,
            order_version: None,
            tail: None,
            mask: false,
            columns: ColumnOptions::default(),
            filter: None,
            selector: None,
            ngram: None,
            rank: None,
            world_size: None,
            memory_budget: None,
            threads: None,
            prefetch: 4,
            bad_rows: BadRows::default(),
            timeout: 600.0,
            storage_options: BTreeMap::new(),
            #[cfg(feature = "cloud")]
            credential_provider: None,
            caller: None,
            mounts: None,
            index: Index::default(),
            cache: None,
            cache_bytes: None,
            cache_ahead: None,
            cache_peers: Vec::new(),
            cache_peer_options: BTreeMap::new(),
            version: None,
            reference: None,
            timestamp: None,
            partitioning: Partitioning::default(),
            decode: true,
            device: "cpu".to_owned(),
            device_slots: 4,
            device_fence: Fence::default(),
            device_overflow: false,
            limits: Limits::default(),
            given: BTreeSet::new(),
            pads: false,
        }
    }
}

/// The validated options, from which the pipeline is built.
#[derive(Debug)]
pub(super) struct Settings {
    /// One list of addresses per dataset.
    pub(super) datasets: Vec<Vec<String>>,
    pub(super) open: OpenOptions,
    pub(super) spec: PlanSpec,
    pub(super) share: Share,
    pub(super) budget: usize,
    pub(super) threads: usize,
    pub(super) prefetch: usize,
    pub(super) timeout: Duration,
}

/// An address without its user information or query.
fn without_secrets(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or_else(|| authority.to_owned(), |(_, host)| format!("***@{host}"));
    let path = path.split_once('?').map_or_else(|| path.to_owned(), |(path, _)| format!("{path}?***"));
    format!("{scheme}://{host}{path}")
}

impl fmt::Debug for LoaderOptions {
    /// As JSON. Values of store options may be secret, so only their names are shown; and so may a user, a password or
    /// a signature in an address.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = |options: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            options.keys().map(|key| (key.clone(), "***".to_owned())).collect()
        };
        let urls = self.urls.iter().map(|url| without_secrets(url)).collect();
        let (storage_options, cache_peer_options) = (hidden(&self.storage_options), hidden(&self.cache_peer_options));
        let shown = Self { urls, storage_options, cache_peer_options, ..self.clone() };
        let json = serde_json::to_string(&shown).map_err(|_| fmt::Error)?;
        write!(f, "LoaderOptions {json}")
    }
}

impl LoaderOptions {
    /// Options for the dataset at `url`, `batch_size` rows per rank and step.
    pub fn new(url: impl Into<String>, batch_size: u64) -> Self {
        Self { urls: vec![url.into()], batch_size: Some(batch_size), ..Self::default() }
    }

    /// The options for only opening the dataset.
    ///
    /// # Errors
    /// [`Error::Config`] if the filter or the time-out is wrong.
    pub fn open_options(&self) -> Result<OpenOptions> {
        Ok(OpenOptions {
            timeout: self.deadline()?,
            memory: self.budget().min(FILTER_BYTES),
            memory_limit: self.budget(),
            storage_options: self.storage_options.clone(),
            #[cfg(feature = "cloud")]
            credential_provider: self.credential_provider.clone(),
            mounts: self.mounts.clone(),
            index: self.index.clone(),
            cache: self.cache_place()?,
            version: self.version,
            reference: self.reference.clone(),
            timestamp: self.timestamp.clone(),
            partitioning: self.partitioning,
            decode: self.decode,
            filter: self.filter.as_ref().map(Filter::parse).transpose()?,
            selector: self.selector.clone(),
            ngram: self.ngram.clone(),
            limits: self.limits.clone(),
            ..OpenOptions::default()
        })
    }

    /// The options of files of the same stores, of a model or a table, read through the same cache.
    ///
    /// # Errors
    /// [`Error::Config`] for an empty cache and an impossible timeout.
    pub fn file_options(&self) -> Result<FileOptions> {
        Ok(FileOptions {
            storage_options: self.storage_options.clone(),
            #[cfg(feature = "cloud")]
            credential_provider: self.credential_provider.clone(),
            mounts: self.mounts.clone(),
            cache: self.cache_place()?,
            timeout: self.deadline()?,
            max_files: self.limits.max_files,
        })
    }

    /// The place of the cache.
    ///
    /// # Errors
    /// [`Error::Config`] for an empty place.
    fn cache_place(&self) -> Result<Option<CachePlace>> {
        match &self.cache {
            Some(place) if !place.is_empty() => Ok(Some(CachePlace {
                place: place.clone(),
                bytes: self.cache_bytes,
                ahead: self.cache_ahead,
                peers: self.cache_peers.clone(),
                peer_options: self.cache_peer_options.clone(),
            })),
            Some(_) => Err(Error::config("cache", "it is empty; give a directory, or memory, or leave it out")),
            // Variables may set the limit and the peers once for programs both with a cache and without.
            None => Ok(None),
        }
    }

    /// The place of delivery, once all options of devices are checked.
    ///
    /// # Errors
    /// [`Error::Config`] naming the wrong option.
    pub fn place(&self) -> Result<Place> {
        possible("device_slots", self.device_slots)?;
        Place::parse(&self.device)
    }

    pub(super) fn budget(&self) -> u64 {
        self.memory_budget.unwrap_or_else(machine::default_budget)
    }

    /// The longest wait for a batch.
    ///
    /// # Errors
    /// [`Error::Config`] unless it is a positive number of seconds, of at most 10^9.
    pub(crate) fn deadline(&self) -> Result<Duration> {
        possible("timeout", self.timeout)?;
        let deadline = Duration::try_from_secs_f64(self.timeout).ok().filter(|timeout| !timeout.is_zero());
        deadline.ok_or_else(|| Error::config("timeout", format!("{} is less than any clock counts", self.timeout)))
    }

    /// Batches made ahead.
    ///
    /// # Errors
    /// [`Error::Config`] for zero, and for more than a queue can hold.
    pub(crate) fn ahead(&self) -> Result<usize> {
        possible("prefetch", self.prefetch).map(|()| self.prefetch)
    }

    fn mix(&self) -> Result<Option<Mix>> {
        if self.weights.is_empty() {
            return Ok(None);
        }
        if self.weights.len() != self.urls.len() {
            let problem = format!("{} weights for {} datasets; give one each", self.weights.len(), self.urls.len());
            return Err(Error::config("weights", problem));
        }
        Mix::new(&self.weights, self.stop).map(Some)
    }

    pub(super) fn settings(&self) -> Result<Settings> {
        if self.urls.is_empty() {
            return Err(Error::config("urls", "no dataset is given"));
        }
        self.place()?;
        let found = rank::resolve(self.rank, self.world_size)?;
        let share = Share::new(found.rank, found.world_size)?;
        let global_batch = match (self.batch_size, self.global_batch_size) {
            (None, None) => return Err(Error::config("batch_size", "give batch_size (per rank) or global_batch_size")),
            (Some(0), _) | (_, Some(0)) => return Err(Error::config("batch_size", "a batch needs at least one row")),
            (None, Some(global)) => global,
            (Some(batch), global) => {
                let product = batch
                    .checked_mul(u64::from(share.world))
                    .ok_or_else(|| Error::config("batch_size", "batch_size times world_size overflows"))?;
                if global.is_some_and(|global| global != product) {
                    let problem = format!(
                        "batch_size {batch} on {} ranks is {product}, not global_batch_size; give one",
                        share.world
                    );
                    return Err(Error::config("global_batch_size", problem));
                }
                product
            }
        };
        let mix = self.mix()?;
        if mix.is_some() && matches!(self.index, Index::At(_) | Index::Bytes(_)) {
            let problem = "a mixture has several datasets, and an index is of one; leave it beside each of them";
            return Err(Error::config("index", problem));
        }
        let datasets = if mix.is_some() {
            self.urls.iter().map(|url| vec![url.clone()]).collect()
        } else {
            vec![self.urls.clone()]
        };
        let budget =
            usize::try_from(self.budget()).map_err(|_| Error::config("memory_budget", "does not fit in memory"))?;
        self.threads.map_or(Ok(()), |threads| possible("threads", threads))?;
        let spec = PlanSpec {
            seed: self.seed,
            shuffle: if self.shuffle { Shuffle::Windows } else { Shuffle::None },
            global_batch,
            lanes: self.lanes,
            window_rows: self.window_rows,
            tail: self.tail.unwrap_or(Tail::USUAL),
            mix,
            order_version: self.order_version.unwrap_or(OrderVersion::LATEST),
        };
        // Values impossible for any dataset are reported before one is opened.
        spec.check_numbers()?;
        Ok(Settings {
            datasets,
            open: self.open_options()?,
            spec,
            share,
            budget,
            threads: self.threads.unwrap_or_else(machine::threads),
            prefetch: self.ahead()?,
            timeout: self.deadline()?,
        })
    }
}

/// Refuses a value that the table of options does not allow for `name`: programs set fields too.
fn possible(name: &'static str, value: impl Serialize) -> Result<()> {
    let value = serde_json::to_value(value).unwrap_or_default();
    let problem = option(name).and_then(|entry| entry.kind.problem(&value));
    problem.map_or(Ok(()), |problem| Err(Error::config(name, problem)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradictions_are_named() {
        let mut options = LoaderOptions::new("x", 8);
        options.rank = Some(0);
        options.world_size = Some(4);
        assert_eq!(options.settings().unwrap().spec.global_batch, 32);
        options.global_batch_size = Some(30);
        assert!(options.settings().unwrap_err().to_string().contains("global_batch_size"));
        options.global_batch_size = None;
        options.weights = vec![1.0, 2.0];
        assert!(options.settings().unwrap_err().to_string().contains("weights"));
    }

    #[test]
    fn numbers_that_nothing_can_have_are_named_before_anything_is_opened() {
        const HUGE: u64 = 1 << 63;
        let with = |change: &dyn Fn(&mut LoaderOptions)| {
            let mut options = LoaderOptions { rank: Some(0), world_size: Some(1), ..LoaderOptions::new("x", 8) };
            change(&mut options);
            match options.settings().and(options.place().map(drop)) {
                Err(Error::Config { option, .. }) => option,
                other => panic!("{other:?}"),
            }
        };
        let huge = usize::try_from(HUGE).unwrap();
        assert_eq!(with(&|options| options.batch_size = Some(HUGE)), "global_batch_size");
        assert_eq!(with(&|options| (options.batch_size, options.world_size) = (Some(HUGE), Some(2))), "batch_size");
        assert_eq!(
            with(&|options| (options.batch_size, options.global_batch_size) = (None, Some(HUGE))),
            "global_batch_size"
        );
        assert_eq!(with(&|options| options.lanes = Some(u32::MAX)), "lanes");
        assert_eq!(with(&|options| options.window_rows = Some(HUGE)), "window_rows");
        for prefetch in [0, huge, usize::MAX] {
            assert_eq!(with(&|options| options.prefetch = prefetch), "prefetch");
        }
        for timeout in [HUGE as f64, f64::MAX, f64::INFINITY, f64::NAN, 0.0, -1.0] {
            assert_eq!(with(&|options| options.timeout = timeout), "timeout");
        }
        assert_eq!(with(&|options| options.threads = Some(huge)), "threads");
        assert_eq!(with(&|options| options.device_slots = usize::MAX), "device_slots");
    }
}
