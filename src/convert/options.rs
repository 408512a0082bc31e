//! Options of a conversion.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::convert::format::Format;
use crate::convert::limits::Limits;
use crate::convert::types::Types;
use crate::dataset::filter::Filter;
use crate::error::{Error, Result};
use crate::store::directory::Replace;
use crate::store::{Access, unmounted};

/// Options of a conversion. Names are those of the command line and of Python.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConvertOptions {
    /// Format of the source; by default guessed from its names.
    pub from: Option<Format>,
    /// Format of the destination; by default guessed from its name.
    pub to: Option<Format>,
    /// Columns to take, in this order; by default all.
    pub columns: Vec<String>,
    /// Types by column name: override inference, and cast columns.
    pub schema: Option<Types>,
    /// Most rows of a Parquet row group.
    pub rows_per_group: Option<usize>,
    /// Bytes of an output file, after which the next one starts. Default 256 MiB.
    pub target_file_size: u64,
    /// `none`, or a codec of the format: `snappy`, `lz4`, `zstd`, `zstd:LEVEL`, `gzip`. Default: one that suits the format.
    pub compression: Option<String>,
    /// Quality from 1 to 100 for re-encoding images as JPEG, including those smaller than `resize`.
    pub image_quality: Option<u8>,
    /// Length of the shorter side to which larger images are scaled down: JPEG is encoded again as JPEG, of quality 90 without
    /// `image_quality`, and everything else as PNG.
    pub resize: Option<u32>,
    /// Columns that `resize` and `image_quality` apply to. By default the one that holds images; of several none is chosen.
    pub images: Vec<String>,
    /// Seed of a shuffle of all rows; by default they keep their order.
    pub shuffle: Option<u64>,
    /// Exact number of output files.
    pub shards: Option<usize>,
    /// Condition that selects rows: an expression, or tuples.
    pub filter: Option<Filter>,
    /// Threads. Default: the number of CPUs.
    pub jobs: Option<usize>,
    /// True to continue an interrupted conversion to the same destination.
    pub resume: bool,
    /// True to make a dataset at the destination again and replace it, if a conversion made it.
    pub overwrite: bool,
    /// True if `overwrite` also deletes data at the destination that no conversion made.
    pub overwrite_foreign: bool,
    /// True to check before publication: the rows of the source are counted without reading them and compared with those read, and the
    /// output is read again and compared with the delivered values.
    pub verify: bool,
    /// Bytes for everything in flight. Default 512 MiB.
    pub memory_budget: u64,
    /// Options of the source's store, by object_store's names.
    pub storage_options: BTreeMap<String, String>,
    /// Limits against hostile files.
    pub limits: Limits,
}

impl fmt::Debug for ConvertOptions {
    /// As JSON. Values of store options may be secret, so only their names are shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let storage_options = self.storage_options.keys().map(|key| (key.clone(), "***".to_owned())).collect();
        let json = serde_json::to_string(&Self { storage_options, ..self.clone() }).map_err(|_| fmt::Error)?;
        write!(f, "ConvertOptions {json}")
    }
}

impl Default for ConvertOptions {
    fn default() -> Self {
        Self {
            from: None,
            to: None,
            columns: Vec::new(),
            schema: None,
            rows_per_group: None,
            target_file_size: 256 << 20,
            compression: None,
            image_quality: None,
            resize: None,
            images: Vec::new(),
            shuffle: None,
            shards: None,
            filter: None,
            jobs: None,
            resume: false,
            overwrite: false,
            overwrite_foreign: false,
            verify: false,
            memory_budget: 512 << 20,
            storage_options: BTreeMap::new(),
            limits: Limits::default(),
        }
    }
}

/// Least budget that lets a task make progress.
const LEAST_BUDGET: u64 = 32 << 20;

/// Most threads: more would divide the budget too finely.
const MOST_JOBS: usize = 256;

impl ConvertOptions {
    /// Returns what may be replaced at the destination.
    pub(crate) fn replace(&self) -> Replace {
        Replace { overwrite: self.overwrite, foreign: self.overwrite_foreign }
    }

    /// The address that `src` stands for, and these options with those of its store, if it is below a mount; else both as they are.
    ///
    /// # Errors
    /// Those of a name without a mount, and for options of the store beside those of the mount.
    pub(crate) fn mounted<'a>(&'a self, src: &'a str) -> Result<(Cow<'a, str>, Cow<'a, Self>)> {
        Ok(match unmounted(src, Access::from(&self.storage_options))? {
            Some((address, storage_options)) => (address.into(), Cow::Owned(Self { storage_options, ..self.clone() })),
            None => (src.into(), Cow::Borrowed(self)),
        })
    }

    /// Refuses impossible values.
    ///
    /// # Errors
    /// `Config` names the option.
    pub(crate) fn check(&self) -> Result<()> {
        for (option, zero) in [
            ("rows_per_group", self.rows_per_group == Some(0)),
            ("target_file_size", self.target_file_size == 0),
            ("shards", self.shards == Some(0)),
            ("jobs", self.jobs == Some(0)),
            ("resize", self.resize == Some(0)),
        ] {
            if zero {
                return Err(Error::config(option, "0 is less than 1"));
            }
        }
        if self.overwrite_foreign && !self.overwrite {
            return Err(Error::config("overwrite_foreign", "only goes with overwrite"));
        }
        if let Some(quality) = self.image_quality.filter(|quality| !(1..=100).contains(quality)) {
            return Err(Error::config("image_quality", format!("{quality} is not from 1 to 100")));
        }
        if self.memory_budget < LEAST_BUDGET {
            let problem = format!("{} is less than 33554432 (32 MiB)", self.memory_budget);
            return Err(Error::config("memory_budget", problem));
        }
        if let Some(shards) = self.shards.filter(|shards| *shards > 100_000) {
            return Err(Error::config("shards", format!("{shards} is more than 100000")));
        }
        Ok(())
    }

    /// Returns the number of threads, such that each has a workable part of the budget.
    pub(crate) fn threads(&self) -> usize {
        let wanted = self.jobs.unwrap_or_else(crate::pipeline::machine::threads);
        wanted.min(usize::try_from(self.memory_budget / (LEAST_BUDGET / 2)).unwrap_or(MOST_JOBS)).clamp(1, MOST_JOBS)
    }

    /// Returns the memory of a task's writer: a quarter of the task's share.
    pub(crate) fn sink_bytes(&self) -> u64 {
        (self.memory_budget / self.threads() as u64 / 4).clamp(1 << 20, 64 << 20)
    }

    /// Returns the bytes that a task reads of a store at once: a sixteenth of its share, since several such reads are in progress.
    pub(crate) fn read_bytes(&self) -> u64 {
        (self.memory_budget / self.threads() as u64 / 16).clamp(256 << 10, 4 << 20)
    }
}

/// A compression by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Packing {
    None,
    Snappy,
    Lz4,
    Gzip,
    Zstd(i32),
}

impl Packing {
    /// Parses `text` as one of `allowed`; without a text, `default`.
    ///
    /// # Errors
    /// `Config` listing the format's codecs.
    pub(crate) fn parse(text: Option<&str>, format: Format, allowed: &[&str], default: Self) -> Result<Self> {
        let Some(text) = text else { return Ok(default) };
        let (name, level) = match text.split_once(':') {
            Some((name, level)) => (name, level.parse::<i32>().ok().filter(|level| (1..=22).contains(level))),
            None => (text, Some(3)),
        };
        let wrong = || {
            let problem = format!("{format} has no {text:?}, but {}", allowed.join(", "));
            Error::config("compression", problem)
        };
        if !allowed.contains(&name) || (text.contains(':') && name != "zstd") {
            return Err(wrong());
        }
        Ok(match name {
            "none" => Self::None,
            "snappy" => Self::Snappy,
            "lz4" => Self::Lz4,
            "gzip" => Self::Gzip,
            "zstd" => Self::Zstd(level.ok_or_else(|| Error::config("compression", "the levels of zstd are 1 to 22"))?),
            _ => return Err(wrong()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_shown_without_values_that_may_be_secret() {
        let storage_options = BTreeMap::from([("aws_secret_access_key".to_owned(), "s3cr3t".to_owned())]);
        let shown = format!("{:?}", ConvertOptions { storage_options, ..ConvertOptions::default() });
        assert!(shown.contains("aws_secret_access_key") && !shown.contains("s3cr3t"), "{shown}");
    }
}
