//! The formats by name, and their detection from paths.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::convert::read::listing;
use crate::error::{Error, Result};
use crate::store::{is_metadata, is_named};

/// A format that datasets are converted from or to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Format {
    /// Parquet files.
    Parquet,
    /// Parquet with Petastorm's schema in `_common_metadata`.
    Petastorm,
    /// Arrow IPC files and streams, Feather version 2.
    Arrow,
    /// Comma-separated values with a header line.
    Csv,
    /// The same with tabs.
    Tsv,
    /// JSON Lines: one object per line.
    Jsonl,
    /// TensorFlow's records of `tf.train.Example` or `tf.train.SequenceExample`.
    Tfrecord,
    /// WebDataset: tar files of samples.
    Webdataset,
    /// MosaicML's streaming shards with their `index.json`.
    Mds,
    /// A directory per class with image files in it.
    Images,
    /// A directory of `.npy` or `.npz` files, one array per row.
    Numpy,
    /// A directory that `datasets.Dataset.save_to_disk` writes.
    Datasets,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Parquet,
        Self::Petastorm,
        Self::Arrow,
        Self::Csv,
        Self::Tsv,
        Self::Jsonl,
        Self::Tfrecord,
        Self::Webdataset,
        Self::Mds,
        Self::Images,
        Self::Numpy,
        Self::Datasets,
    ];

    /// Returns its name in options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Petastorm => "petastorm",
            Self::Arrow => "arrow",
            Self::Csv => "csv",
            Self::Tsv => "tsv",
            Self::Jsonl => "jsonl",
            Self::Tfrecord => "tfrecord",
            Self::Webdataset => "webdataset",
            Self::Mds => "mds",
            Self::Images => "images",
            Self::Numpy => "numpy",
            Self::Datasets => "datasets",
        }
    }

    /// Parses the name of a format.
    ///
    /// # Errors
    /// `Unsupported` for Lance; `Config` listing the formats.
    pub fn parse(name: &str) -> Result<Self> {
        let lower = name.to_ascii_lowercase();
        if lower == "lance" {
            return Err(lance());
        }
        let alias = match lower.as_str() {
            "feather" | "ipc" => "arrow",
            "json" | "ndjson" => "jsonl",
            "tar" | "wds" => "webdataset",
            "imagefolder" => "images",
            "npy" | "npz" => "numpy",
            "huggingface" | "hf" => "datasets",
            "tfrecords" => "tfrecord",
            other => other,
        };
        Self::ALL.into_iter().find(|format| format.name() == alias).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|format| format.name()).collect();
            Error::config("format", format!("{name:?} is not one of {}", names.join(", ")))
        })
    }

    /// Returns the extension of its files; empty if rows name the files.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Parquet | Self::Petastorm => "parquet",
            Self::Arrow | Self::Datasets => "arrow",
            Self::Csv => "csv",
            Self::Tsv => "tsv",
            Self::Jsonl => "jsonl",
            Self::Tfrecord => "tfrecord",
            Self::Webdataset => "tar",
            Self::Mds => "mds",
            Self::Images | Self::Numpy => "",
        }
    }

    /// Returns the separator of cells, for formats with one.
    pub(crate) fn separator(self) -> Option<u8> {
        match self {
            Self::Csv => Some(b','),
            Self::Tsv => Some(b'\t'),
            _ => None,
        }
    }

    /// Returns the format of a file of this name.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        let lower = name.to_ascii_lowercase();
        // Metadata of an Iceberg table, which is read as in training.
        if is_metadata(&lower) {
            return Some(Self::Parquet);
        }
        let bare =
            [".gz", ".zst", ".zstd", ".zz", ".bz2"].iter().find_map(|end| lower.strip_suffix(end)).unwrap_or(&lower);
        Some(match bare.rsplit_once('.').map_or("", |(_, ending)| ending) {
            "parquet" | "parq" => Self::Parquet,
            "arrow" | "feather" | "ipc" | "arrows" => Self::Arrow,
            "csv" => Self::Csv,
            "tsv" => Self::Tsv,
            "jsonl" | "ndjson" | "json" | "jsonlines" | "ldjson" => Self::Jsonl,
            "tar" | "tgz" => Self::Webdataset,
            "mds" => Self::Mds,
            "npy" | "npz" => Self::Numpy,
            // Names such as `train.tfrecord-00000-of-00010`, and Spark's `part-r-00000` below `x.tfrecord`.
            "tfrec" | "tfr" => Self::Tfrecord,
            ending if bare.contains(".tfrecord") || ending.is_empty() && bare.starts_with("part-r-") => Self::Tfrecord,
            _ => return None,
        })
    }

    /// Returns true if it is read as in training: a dataset that finds its files itself.
    pub(crate) fn is_dataset(self) -> bool {
        matches!(self, Self::Parquet | Self::Petastorm)
    }

    /// Returns the format that an address implies before anything is opened: that of a pattern, of a file in a store, or of a table of a catalog.
    pub(crate) fn of_address(address: &str) -> Option<Self> {
        // The name of a table may end as one of a file does.
        if is_named(address) {
            return Some(Self::Parquet);
        }
        let told = listing::is_remote(address) || listing::is_pattern(address);
        // A shard of MDS is useless without its index.
        Self::of_name(address).filter(|format| told && *format != Self::Mds)
    }

    /// Returns the format that a destination's name implies.
    pub(crate) fn of_destination(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let name = name.trim_end_matches('/');
        Self::of_name(name).or_else(|| {
            let last = name.rsplit(['.', '-', '_']).next()?;
            Self::parse(last).ok()
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Refuses Lance, a table format with versions and deletions of its own; no maintained crate reads it.
pub(crate) fn lance() -> Error {
    Error::unsupported(
        "the format Lance",
        "write Parquet with `lance.dataset(path).to_batches()` and pyarrow, then convert that",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_formats() {
        let of = |name| Format::of_name(name).map(Format::name);
        assert_eq!(of("a.jsonl.gz"), Some("jsonl"));
        assert_eq!((of("train.tfrecord-00000-of-00010"), of("part-r-00000.gz")), (Some("tfrecord"), Some("tfrecord")));
        assert_eq!((of("part-r-00000-1f0c.gz.parquet"), of("part-r-1.csv")), (Some("parquet"), Some("csv")));
        assert_eq!((of("x.tsv.gz"), Format::parse("TSV").unwrap().name()), (Some("tsv"), "tsv"));
        assert_eq!((of("00001-x.metadata.json"), of("v1.metadata.json.gz")), (Some("parquet"), Some("parquet")));
        assert_eq!((of("a.jsonlines"), of("a.LDJSON.gz")), (Some("jsonl"), Some("jsonl")));
        assert_eq!((of("train00.tfrec"), of("a.tfr.gz")), (Some("tfrecord"), Some("tfrecord")));
        assert_eq!((of("x.TAR"), of("README"), of("shard.00000.mds.zstd")), (Some("webdataset"), None, Some("mds")));
        #[cfg(feature = "cloud")]
        assert_eq!(
            ["uc://a.b.csv", "glue://db.tar", "iceberg://db.x"].map(Format::of_address),
            [Some(Format::Parquet); 3]
        );
        assert_eq!(Format::of_destination(Path::new("/tmp/out-mds/")), Some(Format::Mds));
        assert_eq!(Format::of_destination(Path::new("/tmp/out")), None);
        assert!(matches!(Format::parse("lance"), Err(Error::Unsupported { .. })));
        assert!(Format::ALL.into_iter().all(|format| Format::parse(format.name()).unwrap() == format));
    }
}
