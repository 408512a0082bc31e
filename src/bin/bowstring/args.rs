//! The loader's options as flags and environment variables, under the names they have everywhere.
//!
//! What was typed is laid over the JSON file of `--options` and read as one [`LoaderOptions`], so that a name, a type and a
//! default exist once, in the library.

use std::path::PathBuf;

use clap::Parser;
use serde_json::{Map, Value, json};

use bowstring::pipeline::LoaderOptions;
use bowstring::{Error, Result};

/// The dataset, and how to reach it.
#[derive(Debug, Clone, Parser)]
#[command(next_help_heading = "Dataset")]
pub(crate) struct DatasetArgs {
    /// Files, directories, globs or URLs of one dataset; with --weights, one entry per dataset
    #[arg(value_name = "URL", required_unless_present = "options")]
    pub(crate) urls: Vec<String>,
    /// Columns by name, glob or nested path, separated by commas
    #[arg(long, env = "BOWSTRING_COLUMNS", value_name = "NAMES", value_delimiter = ',', hide_env_values = true)]
    pub(crate) columns: Vec<String>,
    /// Columns to leave out
    #[arg(long, env = "BOWSTRING_EXCLUDE", value_name = "NAMES", value_delimiter = ',', hide_env_values = true)]
    exclude: Vec<String>,
    /// What becomes of nulls: error, mask, or JSON such as {"fill": 0} or {"age": {"fill": -1}, "*": "mask"}
    #[arg(long, env = "BOWSTRING_NULLS", value_name = "JSON", value_parser = word_or_json, hide_env_values = true)]
    nulls: Option<Value>,
    /// How lists are delivered: ragged, or JSON such as {"padded": {"length": 128}}
    #[arg(long, env = "BOWSTRING_LISTS", value_name = "JSON", value_parser = word_or_json, hide_env_values = true)]
    lists: Option<Value>,
    /// Columns packed into matrices, e.g. [{"name": "dense", "columns": ["i*"], "dtype": "float32"}]
    #[arg(long, env = "BOWSTRING_PACK", value_name = "JSON", value_parser = word_or_json, hide_env_values = true)]
    pack: Option<Value>,
    /// Binary columns that hold images, e.g. {"image": {"size": 224, "crop": "random_resized"}}
    #[arg(long, env = "BOWSTRING_IMAGES", value_name = "JSON", value_parser = word_or_json, hide_env_values = true)]
    images: Option<Value>,
    /// Columns delivered as Arrow arrays of their own type, as they are stored
    #[arg(long, env = "BOWSTRING_ARROW", value_name = "NAMES", value_delimiter = ',', hide_env_values = true)]
    arrow: Vec<String>,
    /// Element types to convert to, e.g. {"price": "float32"}
    #[arg(long, env = "BOWSTRING_CAST", value_name = "JSON", value_parser = word_or_json, hide_env_values = true)]
    cast: Option<Value>,
    /// Deliver _row_id, the row's number in the dataset
    #[arg(long, env = "BOWSTRING_ROW_ID", value_parser = clap::builder::FalseyValueParser::new(), hide_env_values = true)]
    row_id: bool,
    /// Rows to select, e.g. "label >= 3 and country in ('de', 'us')"
    #[arg(long, env = "BOWSTRING_FILTER", value_name = "EXPR", hide_env_values = true)]
    filter: Option<String>,
    /// Row groups to read, e.g. {"index": "by_label", "values": [3]} or {"row_groups": [0, 1]}
    #[arg(long, env = "BOWSTRING_SELECTOR", value_name = "JSON", value_parser = word_or_json, hide_env_values = true)]
    selector: Option<Value>,
    /// Windows of rows as samples, e.g. {"fields": {"0": ["x"], "1": ["x"]}, "timestamp_field": "t", "delta_threshold": 5}
    #[arg(long, env = "BOWSTRING_NGRAM", value_name = "JSON", value_parser = word_or_json, hide_env_values = true)]
    ngram: Option<Value>,
    /// Whether key=value directories are partition columns
    #[arg(long, env = "BOWSTRING_PARTITIONING", value_parser = ["hive", "none"], hide_env_values = true)]
    partitioning: Option<String>,
    /// Whether cells are decoded as the dataset says; the default is true
    #[arg(long, env = "BOWSTRING_DECODE", value_name = "BOOL", hide_env_values = true)]
    decode: Option<bool>,
    /// Options of the store by object_store's names, e.g. aws_region=eu-central-1; separated by commas
    #[arg(
        long,
        env = "BOWSTRING_STORAGE_OPTIONS",
        value_name = "KEY=VALUE",
        value_delimiter = ',',
        value_parser = pair,
        hide_env_values = true
    )]
    storage_options: Vec<(String, String)>,
    /// Where what footers say comes from: auto (an index beside the dataset), none (the footers), or the address of an index
    #[arg(long, env = "BOWSTRING_INDEX", value_name = "URL", hide_env_values = true)]
    pub(crate) index: Option<String>,
    /// JSON file of options, by the names of the flags and of Python; flags and environment go before it
    #[arg(long, env = "BOWSTRING_OPTIONS", value_name = "FILE", hide_env_values = true)]
    options: Option<PathBuf>,
}

/// The order, the share of this rank, and the means.
#[derive(Debug, Clone, Parser)]
#[command(next_help_heading = "Loader")]
pub(crate) struct LoaderArgs {
    #[command(flatten)]
    pub(crate) dataset: DatasetArgs,
    /// Rows per rank and step
    #[arg(long, env = "BOWSTRING_BATCH_SIZE", value_name = "ROWS", hide_env_values = true)]
    pub(crate) batch_size: Option<u64>,
    /// Rows of all ranks together per step
    #[arg(long, env = "BOWSTRING_GLOBAL_BATCH_SIZE", value_name = "ROWS", hide_env_values = true)]
    pub(crate) global_batch_size: Option<u64>,
    /// Number of ranks; goes with --rank
    #[arg(long, env = "BOWSTRING_WORLD_SIZE", value_name = "N", hide_env_values = true)]
    pub(crate) world_size: Option<u32>,
    /// This rank, from 0; the launcher's environment is asked where it is not given
    #[arg(long, env = "BOWSTRING_RANK", value_name = "N", hide_env_values = true)]
    pub(crate) rank: Option<u32>,
    /// Whether rows are shuffled; the default is true
    #[arg(long, env = "BOWSTRING_SHUFFLE", value_name = "BOOL", hide_env_values = true)]
    shuffle: Option<bool>,
    /// Seed of the order and of random augmentation
    #[arg(long, env = "BOWSTRING_SEED", value_name = "N", hide_env_values = true)]
    seed: Option<u64>,
    /// Lanes of the plan; the default follows the global batch and the data
    #[arg(long, env = "BOWSTRING_LANES", value_name = "N", hide_env_values = true)]
    lanes: Option<u32>,
    /// Rows among which the shuffle mixes within a lane
    #[arg(long, env = "BOWSTRING_WINDOW_ROWS", value_name = "ROWS", hide_env_values = true)]
    window_rows: Option<u64>,
    /// Version of the order; the default is the latest
    #[arg(long, env = "BOWSTRING_ORDER_VERSION", value_name = "N", hide_env_values = true)]
    order_version: Option<u32>,
    /// What to do with the last, incomplete step
    #[arg(long, env = "BOWSTRING_TAIL", value_parser = ["pad", "repeat", "drop"], hide_env_values = true)]
    tail: Option<String>,
    /// Mix the datasets in these proportions, separated by commas
    #[arg(long, env = "BOWSTRING_WEIGHTS", value_name = "NUMBERS", value_delimiter = ',', hide_env_values = true)]
    weights: Vec<f64>,
    /// When an epoch of a mixture ends
    #[arg(long, env = "BOWSTRING_STOP", value_parser = ["first_exhausted", "all_exhausted"], hide_env_values = true)]
    stop: Option<String>,
    /// Memory for everything in flight, e.g. 512MiB or 2GiB
    #[arg(long, env = "BOWSTRING_MEMORY_BUDGET", value_name = "BYTES", value_parser = bytes, hide_env_values = true)]
    memory_budget: Option<u64>,
    /// CPU threads for decoding
    #[arg(long, env = "BOWSTRING_THREADS", value_name = "N", hide_env_values = true)]
    threads: Option<usize>,
    /// Batches made ahead of the consumer
    #[arg(long, env = "BOWSTRING_PREFETCH", value_name = "N", hide_env_values = true)]
    prefetch: Option<usize>,
    /// What to do with a row that cannot be decoded
    #[arg(long, env = "BOWSTRING_BAD_ROWS", value_parser = ["error", "skip", "zero"], hide_env_values = true)]
    bad_rows: Option<String>,
    /// Where tensors are delivered: cpu, pinned, auto, cuda, cuda:N, cuda:GPU-<uuid>
    #[arg(long, env = "BOWSTRING_DEVICE", value_name = "DEVICE", hide_env_values = true)]
    device: Option<String>,
    /// Batches in the device's memory at once
    #[arg(long, env = "BOWSTRING_DEVICE_SLOTS", value_name = "N", hide_env_values = true)]
    device_slots: Option<usize>,
    /// When a batch's device memory is written again
    #[arg(long, env = "BOWSTRING_DEVICE_FENCE", value_parser = ["stream", "context", "sync"], hide_env_values = true)]
    device_fence: Option<String>,
    /// Take more device memory when the consumer has all slots
    #[arg(long, env = "BOWSTRING_DEVICE_OVERFLOW", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", hide_env_values = true)]
    device_overflow: Option<bool>,
    /// Seconds to wait for a batch before giving up
    #[arg(long, env = "BOWSTRING_TIMEOUT", value_name = "SECONDS", hide_env_values = true)]
    timeout: Option<f64>,
}

impl DatasetArgs {
    /// The options as far as they say which dataset and which columns.
    pub(crate) fn options(&self) -> Result<LoaderOptions> {
        parsed(self.map()?)
    }

    fn map(&self) -> Result<Map<String, Value>> {
        let mut map = match &self.options {
            Some(path) => read(path)?,
            None => Map::new(),
        };
        set(&mut map, "urls", &given(&self.urls));
        let Value::Object(columns) = map.entry("columns").or_insert_with(|| json!({})) else {
            return Err(Error::config("columns", "must be an object in the options file"));
        };
        set(columns, "columns", &given(&self.columns));
        set(columns, "exclude", &given(&self.exclude));
        set(columns, "nulls", &self.nulls);
        set(columns, "lists", &self.lists);
        set(columns, "pack", &self.pack);
        set(columns, "images", &self.images);
        set(columns, "arrow", &given(&self.arrow));
        set(columns, "cast", &self.cast);
        set(columns, "row_id", &self.row_id.then_some(true));
        if !self.storage_options.is_empty() {
            let options: Map<_, _> =
                self.storage_options.iter().map(|(key, value)| (key.clone(), json!(value))).collect();
            map.insert("storage_options".to_owned(), Value::Object(options));
        }
        set(&mut map, "index", &self.index);
        set(&mut map, "filter", &self.filter);
        set(&mut map, "partitioning", &self.partitioning);
        set(&mut map, "decode", &self.decode);
        set(&mut map, "selector", &self.selector);
        set(&mut map, "ngram", &self.ngram);
        Ok(map)
    }
}

impl LoaderArgs {
    /// All options.
    pub(crate) fn options(&self) -> Result<LoaderOptions> {
        let mut map = self.dataset.map()?;
        set(&mut map, "batch_size", &self.batch_size);
        set(&mut map, "global_batch_size", &self.global_batch_size);
        set(&mut map, "world_size", &self.world_size);
        set(&mut map, "rank", &self.rank);
        set(&mut map, "shuffle", &self.shuffle);
        set(&mut map, "seed", &self.seed);
        set(&mut map, "lanes", &self.lanes);
        set(&mut map, "window_rows", &self.window_rows);
        set(&mut map, "order_version", &self.order_version);
        set(&mut map, "tail", &self.tail);
        set(&mut map, "stop", &self.stop);
        set(&mut map, "memory_budget", &self.memory_budget);
        set(&mut map, "threads", &self.threads);
        set(&mut map, "prefetch", &self.prefetch);
        set(&mut map, "bad_rows", &self.bad_rows);
        set(&mut map, "device", &self.device);
        set(&mut map, "device_slots", &self.device_slots);
        set(&mut map, "device_fence", &self.device_fence);
        set(&mut map, "device_overflow", &self.device_overflow);
        set(&mut map, "timeout", &self.timeout);
        set(&mut map, "weights", &given(&self.weights));
        parsed(map)
    }
}

/// A list, unless it is empty: clap cannot tell an empty one from none.
fn given<T>(list: &[T]) -> Option<&[T]> {
    (!list.is_empty()).then_some(list)
}

fn set(map: &mut Map<String, Value>, name: &str, value: &Option<impl serde::Serialize>) {
    if let Some(value) = value {
        map.insert(name.to_owned(), json!(value));
    }
}

fn read(path: &std::path::Path) -> Result<Map<String, Value>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::config("options", format!("{} cannot be read: {error}", path.display())))?;
    match serde_json::from_str(&text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(Error::config("options", format!("{}: the options must be one JSON object", path.display()))),
        Err(error) => Err(Error::config("options", format!("{}: {error}", path.display()))),
    }
}

fn parsed(map: Map<String, Value>) -> Result<LoaderOptions> {
    serde_json::from_value(Value::Object(map)).map_err(|error| Error::config("options", error.to_string()))
}

pub(crate) fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

/// JSON, or a single word, which needs no quotes.
fn word_or_json(text: &str) -> Result<Value, String> {
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && text.parse::<f64>().is_err() {
        return Ok(json!(text));
    }
    serde_json::from_str(text).map_err(|error| format!("neither a word nor JSON: {error}"))
}

/// `1048576`, `1MiB`, `1.5 GB`.
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let unit: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        other => return Err(format!("`{other}` is no unit; use B, KiB, MiB, GiB, TiB, KB, MB, GB or TB")),
    };
    let number: f64 = number.parse().map_err(|_| "write a number of bytes, e.g. 512MiB".to_owned())?;
    let product = number * unit;
    if product < 9e18 { Ok(product as u64) } else { Err("is more than any machine has".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units() {
        let good = [("0", 0), ("123", 123), ("1KiB", 1024), ("1.5 GiB", 3 << 29), ("2MB", 2_000_000), ("4g", 4 << 30)];
        for (text, expected) in good {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for bad in ["", "x", "-1", "1QB", "1e400TiB", "99999999TiB", "1..2"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn flags_go_before_the_options_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, r#"{"urls": ["a"], "batch_size": 3, "seed": 7, "columns": {"columns": ["x"]}}"#).unwrap();
        let path = file.path().to_str().unwrap();
        let args = |more: &[&str]| LoaderArgs::try_parse_from([&["x", "--options", path], more].concat());
        let options = args(&["--batch-size", "5", "--tail=drop", "--shuffle=false", "--columns", "p,q"])
            .unwrap()
            .options()
            .unwrap();
        assert_eq!((options.batch_size, options.seed, options.shuffle), (Some(5), 7, false));
        assert_eq!(
            (options.urls, options.columns.columns),
            (vec!["a".to_owned()], vec!["p".to_owned(), "q".to_owned()])
        );
        assert_eq!(args(&["b", "--shuffle", "true"]).unwrap().options().unwrap().urls, ["b"]);
        assert!(args(&["--tail=keep"]).is_err());
        std::fs::write(&file, r#"{"urls": ["a"], "batch": 3}"#).unwrap();
        let error = args(&[]).unwrap().options().unwrap_err().to_string();
        assert!(error.contains("unknown field `batch`"), "{error}");
    }
}
