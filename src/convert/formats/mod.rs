//! The formats: one file for each, and the two lists that select one.

mod csv;
mod distinct;
mod example;
pub(crate) mod frames;
mod guess;
pub(crate) mod huggingface;
pub(crate) mod images;
pub(crate) mod ipc;
mod jsonl;
mod labels;
pub(crate) mod mds;
mod members;
pub(crate) mod numpy;
mod parquet;
mod partitions;
mod petastorm;
pub(crate) mod tar;
pub(crate) mod tfrecord;
mod webdataset;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::convert::format::Format;
use crate::convert::options::ConvertOptions;
use crate::convert::read::listing::{Listing, is_pattern, is_remote};
use crate::convert::read::success;
use crate::convert::sink::Sink;
use crate::convert::source::{Opening, Source};
use crate::convert::types;
use crate::error::{Error, Place, Result};
use crate::store::{display, is_mounted};

pub use self::example::{Example, Feature, Kind};
pub use self::tar::{Entry, TarReader};
pub use self::tfrecord::{RecordReader, write_record};

/// Opens the dataset at `src`, in the format of the options or detected from its names.
///
/// # Errors
/// `NotFound` if nothing is there; `Config` naming `from` if the format cannot be determined; `Corrupt`, `Unsupported`, `Limit` and
/// `Store` for data that cannot be read.
pub fn open(src: &str, options: &ConvertOptions) -> Result<Box<dyn Source>> {
    let mut opening = Opening::of(options);
    let known = options.from.or_else(|| Format::of_address(src));
    if is_mounted(src) {
        // Of one mount it would be the address in its store by now.
        return match known {
            None | Some(Format::Parquet | Format::Petastorm) => open_some(None, Format::Parquet, src, &opening),
            Some(other) => {
                let hint = "convert the mounts one by one: only Parquet is read from several at once";
                Err(Error::unsupported(format!("{src}: {other} in several mounts"), hint))
            }
        };
    }
    // A dataset finds its files itself, and the matches of a pattern have no `_SUCCESS`. (Petastorm's is needed to know which arrays
    // were lists.)
    if known == Some(Format::Parquet) && is_remote(src) || is_pattern(src) {
        return open_some(None, known.unwrap_or(Format::Parquet), src, &opening);
    }
    let tree = Listing::open(src, &opening.storage_options, opening.read_bytes)?;
    let success = success::read(&tree, &options.limits);
    let format = match known {
        Some(format) => format,
        // Names do not tell the format of images without classes.
        None => guess::format(&tree).or_else(|error| success.as_ref().and_then(success::format).ok_or(error))?,
    };
    opening.written = success.and_then(|success| types::schema_from_json(success.get("schema")?));
    open_some(Some(tree), format, src, &opening)
}

/// Opens `src`, which must have columns.
fn open_some(tree: Option<Listing>, format: Format, src: &str, opening: &Opening) -> Result<Box<dyn Source>> {
    let source = open_in(tree, format, src, opening)?;
    if source.schema().fields().is_empty() {
        let hint = match format {
            Format::Jsonl | Format::Tfrecord => "no row of the sample has a value; give the columns with --schema",
            _ => "it has no values to read",
        };
        return Err(Error::unsupported(format!("{format} without columns"), hint).at(Place::file(display(src))));
    }
    Ok(source)
}

/// Opens `src`, which is of `format`.
///
/// # Errors
/// Those of [`open`].
pub(crate) fn open_as(format: Format, src: &str, opening: &Opening) -> Result<Box<dyn Source>> {
    open_in(None, format, src, opening)
}

/// Opens `src`; `tree` is its listing, if there is one already.
fn open_in(tree: Option<Listing>, format: Format, src: &str, opening: &Opening) -> Result<Box<dyn Source>> {
    let source = open_any(tree, format, src, opening)?;
    distinct::check(source.schema()).map_err(|error| error.at(Place::file(display(src))))?;
    Ok(source)
}

/// The same, whatever the names of its columns.
fn open_any(tree: Option<Listing>, format: Format, src: &str, opening: &Opening) -> Result<Box<dyn Source>> {
    let open = match format {
        Format::Parquet | Format::Petastorm => return parquet::open(src, opening),
        Format::Arrow => ipc::open,
        Format::Csv => csv::open,
        Format::Tsv => csv::open_tabs,
        Format::Jsonl => jsonl::open,
        Format::Tfrecord => tfrecord::open,
        Format::Webdataset => webdataset::open,
        Format::Mds => mds::open,
        Format::Images => images::open,
        Format::Numpy => numpy::open,
        Format::Datasets => huggingface::open,
    };
    let tree = tree.map_or_else(|| Listing::open(src, &opening.storage_options, opening.read_bytes), Ok)?;
    partitions::partitioned(open(&tree, opening)?, opening)
}

/// Makes the sink of `format` for the columns of `schema`.
///
/// # Errors
/// `Unsupported` with the first column that the format cannot hold, and its type; `Config` for options that it does not have.
///
/// `sample` holds the first rows of the source, with its types.
pub(crate) fn sink(
    format: Format,
    schema: &SchemaRef,
    options: &ConvertOptions,
    sample: &RecordBatch,
) -> Result<Box<dyn Sink>> {
    check_names(format, schema)?;
    check_options(format, options)?;
    match format {
        Format::Parquet => parquet::sink(schema, options, sample, false),
        Format::Petastorm => parquet::sink(schema, options, sample, true),
        Format::Arrow => ipc::sink(schema, options),
        Format::Csv => csv::sink(format, b',', schema, options),
        Format::Tsv => csv::sink(format, b'\t', schema, options),
        Format::Jsonl => jsonl::sink(schema, options),
        Format::Tfrecord => tfrecord::sink(schema, options),
        Format::Webdataset => webdataset::sink(schema, options),
        Format::Mds => mds::sink(schema, options),
        Format::Images => images::sink(schema, options),
        Format::Numpy => numpy::sink(schema, options),
        Format::Datasets => huggingface::sink(schema, options),
    }
}

/// Refuses options that the format does not use: a given option should have an effect.
fn check_options(format: Format, options: &ConvertOptions) -> Result<()> {
    let named_by_rows = matches!(format, Format::Images | Format::Numpy);
    let groups = matches!(format, Format::Parquet | Format::Petastorm);
    let level = options.compression.as_deref().is_some_and(|name| name.contains(':'));
    let sized = options.target_file_size != ConvertOptions::default().target_file_size;
    let level = level && matches!(format, Format::Arrow | Format::Datasets);
    for (option, given, why) in [
        ("shards", named_by_rows && options.shards.is_some(), "each row is a file; leave it out"),
        ("compression", named_by_rows && options.compression.is_some(), "files stay as they are; leave it out"),
        ("rows_per_group", !groups && options.rows_per_group.is_some(), "only Parquet has row groups; leave it out"),
        ("target_file_size", sized && options.shards.is_some(), "shards says how many files there are; leave one out"),
        ("compression", level, "its zstd takes no level; write zstd"),
    ] {
        if given {
            return Err(Error::config(option, format!("{format}: {why}")));
        }
    }
    Ok(())
}

/// Refuses duplicate column names, and an empty schema.
fn check_names(format: Format, schema: &SchemaRef) -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    for field in schema.fields() {
        if !seen.insert(field.name()) {
            let what = format!("two columns named {:?} in {format}", field.name());
            return Err(Error::unsupported(what, "name each once in --columns"));
        }
    }
    if schema.fields().is_empty() {
        return Err(Error::config("columns", "none are left to write"));
    }
    Ok(())
}
