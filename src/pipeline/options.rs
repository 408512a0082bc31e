//! Everything a loader can be told, as plain fields with one validation.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{machine, rank};
use crate::codec::{BadRows, ColumnOptions};
use crate::dataset::filter::Expr;
use crate::dataset::{Limits, OpenOptions, Partitioning};
use crate::error::{Error, Result};
use crate::plan::{Mix, PlanSpec, Share, Shuffle, Stop, Tail};

/// A filter as people write it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Filter {
    /// An expression such as `label >= 3 and country in ('de', 'us')`.
    Text(String),
    /// pyarrow's and Petastorm's tuples: a list of `[column, op, value]` (all must hold) or a list of such lists (any).
    Dnf(Value),
}

impl Filter {
    /// The filter as an expression.
    ///
    /// # Errors
    /// [`Error::Config`] naming the position or the tuple that is wrong.
    pub fn parse(&self) -> Result<Expr> {
        match self {
            Self::Text(text) => Expr::parse(text),
            Self::Dnf(tuples) => Expr::from_dnf(tuples),
        }
    }
}

/// Options of a [`Loader`](super::Loader). The names are the same in Python, in the environment (`BOWSTRING_BATCH_SIZE`) and as flags.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// Rows of all ranks together per step; what must stay the same for an elastic resume.
    pub global_batch_size: Option<u64>,
    /// Shuffle rows; `false` delivers them in file order.
    pub shuffle: bool,
    /// Seed of the order and of random augmentation.
    pub seed: u64,
    /// Lanes of the plan; the default is computed from the dataset.
    pub lanes: Option<u32>,
    /// Rows among which the shuffle mixes within a lane; the default is computed from the dataset.
    pub window_rows: Option<u64>,
    /// What to do with the last, incomplete step: `pad`, `repeat` or `drop`.
    pub tail: Tail,
    /// Which columns, and what becomes of them.
    pub columns: ColumnOptions,
    /// Rows to select.
    pub filter: Option<Filter>,
    /// This rank; the default is taken from the launcher's environment, see [`rank::discover`].
    pub rank: Option<u32>,
    /// Number of ranks; goes with `rank`.
    pub world_size: Option<u32>,
    /// Bytes that everything in flight may take; the default is half of the free memory, at most 4 GiB.
    pub memory_budget: Option<u64>,
    /// CPU threads for decoding; the default is all that this process may use.
    pub threads: Option<usize>,
    /// Batches made ahead of the consumer.
    pub prefetch: usize,
    /// What to do with a row that cannot be decoded: `error`, `skip` or `zero`.
    pub bad_rows: BadRows,
    /// Seconds to wait for the next batch before giving up with the culprit's name.
    pub timeout: f64,
    /// Options of the store, by object_store's names.
    pub storage_options: BTreeMap<String, String>,
    /// Whether `key=value` directories are partition columns: `hive` or `none`.
    pub partitioning: Partitioning,
    /// Limits against hostile files.
    pub limits: Limits,
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
            tail: Tail::default(),
            columns: ColumnOptions::default(),
            filter: None,
            rank: None,
            world_size: None,
            memory_budget: None,
            threads: None,
            prefetch: 4,
            bad_rows: BadRows::default(),
            timeout: 600.0,
            storage_options: BTreeMap::new(),
            partitioning: Partitioning::default(),
            limits: Limits::default(),
        }
    }
}

/// The options after validation: what the pipeline is built from.
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

impl LoaderOptions {
    /// Options for the dataset at `url`, `batch_size` rows per rank and step.
    pub fn new(url: impl Into<String>, batch_size: u64) -> Self {
        Self { urls: vec![url.into()], batch_size: Some(batch_size), ..Self::default() }
    }

    /// Options from a flat object, as Python's keyword arguments and the flags of the command line give them: the fields of
    /// [`ColumnOptions`] stand beside the others, and a byte count may be text such as `2GiB`. What the object leaves out is
    /// taken from the environment by `lookup`, as `BOWSTRING_<NAME>` in upper case: plain text, or JSON for lists and maps.
    ///
    /// # Errors
    /// [`Error::Config`] naming the unknown or ill-typed option.
    pub fn from_flat(mut flat: Map<String, Value>, lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let defaults = object(&Self::default());
        let column_defaults = object(&ColumnOptions::default());
        for name in defaults.keys().chain(column_defaults.keys()) {
            let variable = format!("BOWSTRING_{}", name.to_uppercase());
            if let Some(text) = lookup(&variable).filter(|_| !flat.contains_key(name)) {
                flat.insert(name.clone(), from_text(name, text));
            }
        }
        let mut columns = Map::new();
        for name in column_defaults.keys() {
            columns.extend(flat.remove_entry(name).filter(|(_, value)| !value.is_null()));
        }
        flat.retain(|_, value| !value.is_null());
        if let Some(budget) = flat.get_mut("memory_budget") {
            *budget = Value::from(byte_count(budget)?);
        }
        flat.insert("columns".to_owned(), Value::Object(columns));
        // The path that serde reports is the option's name, so the text needs no more than that.
        serde_json::from_value(Value::Object(flat)).map_err(|error| Error::config("options", error.to_string()))
    }

    /// The options for opening the dataset alone.
    ///
    /// # Errors
    /// [`Error::Config`] if the filter is wrong.
    pub fn open_options(&self) -> Result<OpenOptions> {
        Ok(OpenOptions {
            storage_options: self.storage_options.clone(),
            partitioning: self.partitioning,
            filter: self.filter.as_ref().map(Filter::parse).transpose()?,
            limits: self.limits.clone(),
            ..OpenOptions::default()
        })
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
        let datasets = if mix.is_some() {
            self.urls.iter().map(|url| vec![url.clone()]).collect()
        } else {
            vec![self.urls.clone()]
        };
        let timeout = Duration::try_from_secs_f64(self.timeout)
            .ok()
            .filter(|timeout| !timeout.is_zero())
            .ok_or_else(|| Error::config("timeout", format!("{} is no positive number of seconds", self.timeout)))?;
        let budget = self.memory_budget.unwrap_or_else(machine::default_budget);
        let budget = usize::try_from(budget).map_err(|_| Error::config("memory_budget", "does not fit in memory"))?;
        if self.threads == Some(0) || self.prefetch == 0 {
            let option = if self.prefetch == 0 { "prefetch" } else { "threads" };
            return Err(Error::config(option, "must be at least 1"));
        }
        Ok(Settings {
            datasets,
            open: self.open_options()?,
            spec: PlanSpec {
                seed: self.seed,
                shuffle: if self.shuffle { Shuffle::Windows } else { Shuffle::None },
                global_batch,
                lanes: self.lanes,
                window_rows: self.window_rows,
                tail: self.tail,
                mix,
            },
            share,
            budget,
            threads: self.threads.unwrap_or_else(machine::threads),
            prefetch: self.prefetch,
            timeout,
        })
    }
}

fn object(options: &impl Serialize) -> Map<String, Value> {
    match serde_json::to_value(options) {
        Ok(Value::Object(object)) => object,
        // Plain fields always serialise to an object.
        _ => Map::new(),
    }
}

/// A variable's text: a list of names for the options that hold lists, JSON where it parses, else the text itself.
fn from_text(name: &str, text: String) -> Value {
    match serde_json::from_str(&text) {
        Ok(value) => value,
        Err(_) if matches!(name, "urls" | "columns" | "exclude") => {
            text.split(',').map(|part| Value::from(part.trim())).collect()
        }
        Err(_) => Value::from(text),
    }
}

/// Bytes from a number or from text with a unit: `1500000`, `512MiB`, `2GiB`, `2GB`.
fn byte_count(value: &Value) -> Result<u64> {
    let wrong = || Error::config("memory_budget", format!("{value} is no byte count such as 2147483648 or \"2GiB\""));
    let Value::String(text) = value else { return value.as_u64().ok_or_else(wrong) };
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(wrong()),
    };
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(text: &str) -> Map<String, Value> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn flat_options_meet_the_environment_and_unknown_names_are_refused() {
        let environment = |name: &str| match name {
            "BOWSTRING_SEED" => Some("7".to_owned()),
            "BOWSTRING_BATCH_SIZE" => Some("64".to_owned()),
            "BOWSTRING_EXCLUDE" => Some("a, b*".to_owned()),
            _ => None,
        };
        let given =
            flat(r#"{"urls": ["x"], "batch_size": 8, "columns": ["label"], "memory_budget": "2GiB", "rank": null}"#);
        let options = LoaderOptions::from_flat(given, environment).unwrap();
        assert_eq!((options.batch_size, options.seed, options.memory_budget), (Some(8), 7, Some(2 << 30)));
        assert_eq!(options.columns.columns, ["label"]);
        assert_eq!(options.columns.exclude, ["a", "b*"]);
        let error = LoaderOptions::from_flat(flat(r#"{"batchsize": 8}"#), |_| None).unwrap_err();
        assert!(error.to_string().contains("batchsize"), "{error}");
        let error = LoaderOptions::from_flat(flat(r#"{"memory_budget": "2 lots"}"#), |_| None).unwrap_err();
        assert!(error.to_string().contains("2 lots"), "{error}");
    }

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
}
