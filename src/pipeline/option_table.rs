//! The table of a loader's options: the name, values, default and scope of each, in one place.
//!
//! Flags, `BOWSTRING_*` variables and their help are made from it, documents are checked against it, and tests compare
//! the fields of [`LoaderOptions`](super::LoaderOptions), Python's keywords and `docs/options.md` with it.

use super::machine::MAX_THREADS;
use super::option_kind::Kind;
use crate::nearest::{distance, nearest};
use crate::plan::{MAX_GLOBAL_BATCH, MAX_LANES, MAX_WINDOW_ROWS, OrderVersion};

/// The sides that may set an option of a served dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Set by a client, unless the catalogue keeps it to itself.
    Asked,
    /// Set by each side for itself; no request carries it.
    Own,
    /// Never set by a client: where data lies, what the server spends on it, who the client is, where batches go.
    Never,
}

/// The subject of an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum About {
    /// The data, and access to it.
    Dataset,
    /// Columns; in a document of options these may be placed under `columns`.
    Columns,
    /// The order, the share of a rank, and resources.
    Loading,
}

/// One option.
#[derive(Debug, Clone, Copy)]
pub struct OptionEntry {
    /// Name: of a Python keyword, of a key in a document.
    pub name: &'static str,
    /// Kind of its values.
    pub kind: Kind,
    /// Default as text; empty if there is none, or if it follows from the data or the machine.
    pub default: &'static str,
    /// Subject.
    pub about: About,
    /// Sides that may set it.
    pub scope: Scope,
    /// Description.
    pub sentence: &'static str,
    /// An example value, if it adds to the sentence; otherwise empty.
    pub example: &'static str,
}

impl OptionEntry {
    /// The flag without its dashes; `None` for the addresses, which are positional on a command line.
    pub fn flag(&self) -> Option<String> {
        (self.name != "urls").then(|| self.name.replace('_', "-"))
    }

    /// The environment variable.
    pub fn variable(&self) -> Option<String> {
        (self.name != "urls").then(|| format!("{PREFIX}{}", self.name.to_ascii_uppercase()))
    }

    /// Returns true unless it is of one process alone: threads, memory, devices, its rank.
    #[cfg(all(feature = "cli", feature = "flight"))]
    pub(crate) fn is_of_the_data(&self) -> bool {
        self.scope != Scope::Never || self.about != About::Loading
    }

    /// Returns true if only the owner of the data gives it, so that a loader of a server refuses it: which data it is and how the server
    /// gets at it. The address, the caller's credentials and what each process has of its own are no such options.
    pub(crate) fn is_of_the_owner(&self) -> bool {
        let is_of_the_data = self.about == About::Dataset && !matches!(self.name, "urls" | "storage_options");
        self.scope == Scope::Never && (is_of_the_data || matches!(self.name, "weights" | "stop"))
    }

    /// Returns true if each process of a job sets it for itself: its rank, its resources, its way to a server. What it gets does not depend
    /// on that.
    pub fn is_of_each_process(&self) -> bool {
        let is_its_own = self.scope == Scope::Own || (self.scope == Scope::Never && self.about == About::Loading);
        (is_its_own && !self.is_of_the_owner()) || self.name == "storage_options"
    }

    /// Returns true if it says how data are found and read, and not which. A variable of it is set for all loaders of a job, and one of a
    /// server leaves it to the server.
    pub fn is_left_to_a_server(&self) -> bool {
        self.is_of_the_owner()
            && (self.name.starts_with("cache") || matches!(self.name, "mounts" | "index" | "limits" | "partitioning"))
    }

    /// The sentence, the example and the default, as in a help text.
    pub fn help(&self) -> String {
        let mut text = self.sentence.to_owned();
        if !self.example.is_empty() {
            text.push_str(&format!(", e.g. {}", self.example));
        }
        if !self.default.is_empty() {
            text.push_str(&format!(" [default: {}]", self.default));
        }
        text
    }
}

const PREFIX: &str = "BOWSTRING_";

const ANY: u64 = u64::MAX;
const RANKS: u64 = u32::MAX as u64;

use About::{Columns, Dataset, Loading};
use Kind::{Bytes, Choice, Names, Numbers, Pairs, Seconds, Structure, Switch, Text};
use Scope::{Asked, Never, Own};

const fn whole(least: u64, most: u64) -> Kind {
    Kind::Whole { least, most }
}

const fn entry(
    name: &'static str,
    kind: Kind,
    default: &'static str,
    about: About,
    scope: Scope,
    sentence: &'static str,
    example: &'static str,
) -> OptionEntry {
    OptionEntry { name, kind, default, about, scope, sentence, example }
}

/// Every option of a loader, in the order of help texts.
#[rustfmt::skip]
pub const OPTIONS: &[OptionEntry] = &[
    entry("urls", Names, "", Dataset, Never, "files, directories, globs or URLs of one dataset, whose files are sorted by name, also those of a list; with weights, one entry per dataset", ""),
    entry("columns", Names, "", Columns, Asked, "columns to read, in this order, by name, glob or nested path (a.b); default: all", ""),
    entry("exclude", Names, "", Columns, Asked, "columns to leave out", ""),
    entry("nulls", Structure, "", Columns, Asked, "how nulls are delivered: error (default), mask, or a fill value; for all columns, or a mapping by column", r#"{"age": -1, "name": {"fill": ""}, "*": "mask"}"#),
    entry("lists", Structure, "", Columns, Asked, "how lists are delivered: ragged (default), padded or cut; Spark vectors: vector or csr; for all columns, or a mapping by column", r#"{"padded": {"length": 128}}"#),
    entry("pack", Structure, "", Columns, Asked, "groups of columns delivered as one matrix each", r#"[{"name": "dense", "columns": ["i*"], "dtype": "float32"}]"#),
    entry("images", Structure, "", Columns, Asked, "binary columns that hold images, and how to decode them", r#"{"image": {"size": 224, "crop": "random_resized"}}"#),
    entry("arrow", Names, "", Columns, Asked, "columns delivered as Arrow arrays, in their stored type: text, binary, decimals, dates", ""),
    entry("cast", Structure, "", Columns, Asked, "element types to convert to, by column", r#"{"price": "float32"}"#),
    entry("row_id", Switch, "false", Columns, Asked, "deliver _row_id, the row's number in the dataset", ""),
    entry("filter", Kind::Filter, "", Dataset, Asked, "rows to select", r#""label >= 3 and country in ('de', 'us')""#),
    entry("selector", Structure, "", Dataset, Asked, "row groups to read, by number or by a stored Petastorm index", r#"{"index": "by_label", "values": [3]}"#),
    entry("ngram", Structure, "", Dataset, Asked, "windows of consecutive rows as samples", r#"{"fields": {"0": ["x"], "1": ["x"]}, "timestamp_field": "t", "delta_threshold": 5}"#),
    entry("partitioning", Choice(&["hive", "dates", "none"]), "hive", Dataset, Never, "how key=value directories become columns: hive (integers and text), dates (dates too, as in Spark) or none", ""),
    entry("version", whole(0, ANY), "", Dataset, Never, "version of a Delta table or snapshot of an Iceberg table; default: the latest", ""),
    entry("ref", Text, "", Dataset, Never, "branch or tag of an Iceberg table", "main"),
    entry("timestamp", Text, "", Dataset, Never, "read a table as of this time, in UTC unless it has a zone", "2026-01-31 12:30:00"),
    entry("decode", Switch, "true", Dataset, Asked, "decode cells by the schema stored in the dataset, bowstring's or Petastorm's", ""),
    entry("storage_options", Pairs, "", Dataset, Never, "options of the store, under object_store's names; as text separated by commas, a part without = belongs to the value before it", "aws_region=eu-central-1"),
    entry("mounts", Text, "", Dataset, Never, "TOML file of the stores that bow:// addresses lead to, each with options of its own", "/etc/bowstring/mounts.toml"),
    entry("index", Text, "auto", Dataset, Never, "source of file metadata: auto (an index beside the dataset, else the footers), none (the footers), or the address of an index", ""),
    entry("cache", Text, "", Dataset, Never, "cache for data of remote stores, shared by epochs and processes: a local directory, or memory", "/nvme/bowstring"),
    entry("cache_bytes", Bytes, "", Dataset, Never, "maximum size of the cache; default: half of the free space on its disk", "500GiB"),
    entry("cache_ahead", Bytes, "", Dataset, Never, "bytes fetched into the cache ahead of their use, beyond as many as have been read; 0 for none; default: 256MiB", "2GiB"),
    entry("cache_peers", Names, "", Dataset, Never, "hosts whose served caches form one with this one and are asked before the store: host:port, grpc+tls://host:port, or dns://name:port for all hosts behind a name", "dns://bowstring-cache:8816"),
    entry("cache_peer_options", Pairs, "", Dataset, Never, "credentials for the hosts of cache_peers: token, token_file, ca, cert, key, server_name", "token_file=/etc/bowstring/cache-token"),
    entry("limits", Structure, "", Dataset, Never, "limits that protect against hostile files", r#"{"max_files": 1000}"#),
    entry("batch_size", whole(1, MAX_GLOBAL_BATCH), "", Loading, Asked, "rows per rank and step", ""),
    entry("global_batch_size", whole(1, MAX_GLOBAL_BATCH), "", Loading, Asked, "rows of all ranks together per step", ""),
    entry("world_size", whole(1, RANKS), "", Loading, Never, "number of ranks; set together with rank", ""),
    entry("rank", whole(0, RANKS), "", Loading, Never, "this rank, from 0; default: from the launcher's environment", ""),
    entry("shuffle", Switch, "true", Loading, Asked, "shuffle rows; false reads in file order: files are sorted by name, also those of a list", ""),
    entry("seed", whole(0, ANY), "0", Loading, Asked, "seed of the shuffle and of random augmentation", ""),
    entry("lanes", whole(1, MAX_LANES as u64), "", Loading, Asked, "number of lanes; default: chosen from the global batch size and the data", ""),
    entry("window_rows", whole(1, MAX_WINDOW_ROWS), "", Loading, Asked, "rows of a lane that are shuffled together", ""),
    entry("order_version", whole(1, OrderVersion::LATEST.number() as u64), "", Loading, Asked, "version of the order; default: the latest, or that of a loaded state", ""),
    entry("tail", Choice(&["short", "even", "pad", "repeat", "drop"]), "", Loading, Asked, "last, incomplete step: short (default; JAX: pad) shares the remaining rows equally and repeats fewer rows than there are ranks, even repeats none, pad adds masked rows, repeat adds rows from the start of the epoch, drop omits it", ""),
    entry("mask", Switch, "false", Loading, Asked, "deliver _mask, false on padding, with every tail; pad always does", ""),
    entry("weights", Numbers, "", Loading, Never, "proportions in which the datasets are mixed", ""),
    entry("stop", Choice(&["first_exhausted", "all_exhausted"]), "first_exhausted", Loading, Never, "when an epoch of a mixture ends", ""),
    entry("memory_budget", Bytes, "", Loading, Never, "memory for everything in flight; default: half of the free memory, at most 4 GiB", "2GiB"),
    entry("threads", whole(1, MAX_THREADS as u64), "", Loading, Never, "CPU threads for decoding; default: all that the process may use", ""),
    entry("prefetch", whole(1, 1 << 16), "4", Loading, Own, "batches prepared ahead of the consumer", ""),
    entry("bad_rows", Choice(&["error", "skip", "zero"]), "error", Loading, Asked, "how to handle a row that cannot be decoded", ""),
    entry("device", Text, "cpu", Loading, Never, "where tensors are delivered: cpu, pinned (page-locked host memory), auto (the GPU of this process if there is one), cuda, cuda:N, cuda:GPU-<uuid> or cuda:MIG-<uuid>", ""),
    entry("device_slots", whole(2, 1 << 12), "4", Loading, Never, "batches in device memory at once, in use or prepared", ""),
    entry("device_fence", Choice(&["stream", "context", "sync"]), "stream", Loading, Never, "when the device memory of a batch is reused: after its consumers' streams, after the whole context, or after a wait on the host", ""),
    entry("device_overflow", Switch, "false", Loading, Never, "allocate more device memory if the consumer holds all slots", ""),
    entry("timeout", Seconds(1e9), "600", Loading, Own, "seconds to wait for a batch before an error that names the cause", ""),
];

/// Bowstring's variables that are not options of a loader.
const OTHER_VARIABLES: &[&str] = &[
    "ADMIN",
    "ADMIN_TOKENS",
    "AUDIT_LOG",
    "CACHE_LISTEN",
    "CACHE_TOKENS",
    "CLIENT_CA",
    "CONFIG",
    "DRAIN_GRACE",
    "GANG_LEASE",
    "INSECURE",
    "JOURNAL",
    "KEY_FILE",
    "LISTEN",
    "LOG",
    "LOG_FORMAT",
    "MAX_STREAMS",
    "NVJPEG",
    "OPEN_BYTES",
    "OPTIONS",
    "PUT",
    "REFRESH",
    "REPLICAS",
    "RESOURCES",
    "SHARE_BYTES",
    "SHARED_MEMORY",
    "SOAK",
    "TLS_CERT",
    "TLS_KEY",
    "TOKEN",
    "TOKENS",
    "TOKEN_FILE",
];

/// The option `name`.
pub fn option(name: &str) -> Option<&'static OptionEntry> {
    OPTIONS.iter().find(|entry| entry.name == name)
}

/// The option that says the same as `name` in another way: of the two sizes of a batch, the one given last replaces the other.
pub(crate) fn alternative(name: &str) -> Option<&'static str> {
    match name {
        "batch_size" => Some("global_batch_size"),
        "global_batch_size" => Some("batch_size"),
        _ => None,
    }
}

/// The names of options in `scope`.
pub(crate) fn in_scope(scope: Scope) -> impl Iterator<Item = &'static str> {
    OPTIONS.iter().filter(move |entry| entry.scope == scope).map(|entry| entry.name)
}

/// Returns true if `name` is an option of columns.
pub fn is_of_columns(name: &str) -> bool {
    option(name).is_some_and(|entry| entry.about == About::Columns)
}

/// The message for `name`, which is not an option at its place: the nearest one that is, or where they are listed.
pub(super) fn unknown(name: &str, among_columns: bool) -> String {
    let shown: String = name.chars().take(64).collect();
    let known = OPTIONS.iter().filter(|entry| !among_columns || entry.about == About::Columns);
    match nearest(name, known.map(|entry| entry.name)) {
        _ if option(name).is_some() => format!("`{shown}` is no option of columns; it stands beside `columns`"),
        Some(meant) => format!("unknown option `{shown}`; did you mean `{meant}`?"),
        None => format!("unknown option `{shown}`; docs/options.md lists all"),
    }
}

/// Every variable of bowstring.
pub(crate) fn variables() -> impl Iterator<Item = String> {
    let options = OPTIONS.iter().filter_map(OptionEntry::variable);
    options.chain(OTHER_VARIABLES.iter().map(|name| format!("{PREFIX}{name}")))
}

/// The variable that `variable` most likely means, if it is unknown but close to a known one: a letter or two differ,
/// or the dashes.
pub fn misspelt(variable: &str) -> Option<String> {
    let name = variable.strip_prefix(PREFIX)?;
    if variables().any(|known| known == variable) {
        return None;
    }
    let bare = |text: &str| text.replace('_', "").to_ascii_uppercase();
    let wanted = bare(name);
    let ranked =
        variables().map(|known| (distance(&wanted, &bare(known.get(PREFIX.len()..).unwrap_or_default())), known));
    let near = |(far, known): &(usize, String)| *far <= if known.len() > PREFIX.len() + 5 { 2 } else { 1 };
    ranked.min().filter(near).map(|(_, known)| known)
}

/// The message for `variable`, if it is a misspelt variable of bowstring.
pub fn misspelling(variable: &str) -> Option<String> {
    misspelt(variable).map(|meant| format!("environment variable {variable}: did you mean {meant}? Else unset it"))
}

/// The table in Markdown, as in `docs/options.md`.
pub fn markdown() -> String {
    let part = |title: &str, about: &[About]| {
        let mut text = format!("## {title}\n\n| option | values | default | set by | |\n|---|---|---|---|---|\n");
        for entry in OPTIONS.iter().filter(|entry| about.contains(&entry.about)) {
            let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
            let example =
                if entry.example.is_empty() { String::new() } else { format!(", e.g. {}", code(entry.example)) };
            let scope = match entry.scope {
                Scope::Asked => "client",
                Scope::Own => "each side",
                Scope::Never => "owner",
            };
            let (name, kind, default) = (entry.name, entry.kind, code(entry.default));
            text.push_str(&format!("| `{name}` | {kind} | {default} | {scope} | {}{example} |\n", entry.sentence));
        }
        text
    };
    [
        part("Dataset", &[About::Dataset]),
        part("Columns", &[About::Columns]),
        part("Order, ranks and resources", &[About::Loading]),
    ]
    .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::LoaderOptions;
    use serde_json::{Value, json};

    /// The fields of the options struct, with those of columns beside the others.
    fn fields() -> serde_json::Map<String, Value> {
        let Value::Object(mut fields) = serde_json::to_value(LoaderOptions::default()).unwrap() else { panic!() };
        let Some(Value::Object(columns)) = fields.remove("columns") else { panic!() };
        fields.extend(columns);
        fields
    }

    #[test]
    fn what_each_process_sets_for_itself_changes_no_rows() {
        let names = OPTIONS.iter().filter(|entry| entry.is_of_each_process()).map(|entry| entry.name);
        let own = [
            "storage_options",
            "world_size",
            "rank",
            "memory_budget",
            "threads",
            "prefetch",
            "device",
            "device_slots",
            "device_fence",
            "device_overflow",
            "timeout",
        ];
        let mut names: Vec<_> = names.collect();
        names.sort_unstable_by_key(|name| own.iter().position(|own| own == name));
        assert_eq!(names, own);
    }

    #[test]
    fn the_table_has_every_field_and_no_other() {
        let mut names: Vec<_> = OPTIONS.iter().map(|entry| entry.name).collect();
        let fields = fields();
        let mut known: Vec<_> = fields.keys().map(String::as_str).collect();
        names.sort_unstable();
        known.sort_unstable();
        assert_eq!(names, known);
        let Value::Object(columns) = serde_json::to_value(LoaderOptions::default().columns).unwrap() else { panic!() };
        for entry in OPTIONS {
            assert_eq!(columns.contains_key(entry.name), entry.about == About::Columns, "{}", entry.name);
        }
    }

    #[test]
    fn the_defaults_of_the_table_are_those_of_the_fields() {
        for (name, value) in fields() {
            let entry = option(&name).unwrap();
            let empty = value.is_null() || value == json!([]) || value == json!({});
            if entry.default.is_empty() {
                assert!(empty || name == "limits", "{name} is {value} by default");
                continue;
            }
            let said = entry.kind.parse(entry.default).unwrap();
            assert!(
                said == value || said.as_f64() == value.as_f64() && said.is_number(),
                "{name}: {said}, not {value}"
            );
        }
    }

    #[test]
    fn the_words_of_a_choice_are_those_that_are_read_and_no_others() {
        for entry in OPTIONS {
            let Kind::Choice(words) = entry.kind else { continue };
            let read = |word: &str| serde_json::from_value::<LoaderOptions>(json!({ entry.name: word }));
            for word in words {
                read(word).unwrap();
            }
            // The error lists the accepted words.
            let error = read("?").unwrap_err().to_string();
            let listed = error.split_once("expected").unwrap().1;
            assert_eq!(listed.matches('`').count() / 2, words.len(), "{}: {error}", entry.name);
        }
    }

    #[test]
    fn a_misspelt_variable_is_told_and_one_of_somebody_else_is_not() {
        for (variable, meant) in [
            ("BOWSTRING_BATCHSIZE", Some("BOWSTRING_BATCH_SIZE")),
            ("BOWSTRING_BACH_SIZE", Some("BOWSTRING_BATCH_SIZE")),
            ("BOWSTRING_SUFFLE", Some("BOWSTRING_SHUFFLE")),
            ("BOWSTRING_TOKENFILE", Some("BOWSTRING_TOKEN_FILE")),
            ("BOWSTRING_RANKS", Some("BOWSTRING_RANK")),
            ("BOWSTRING_BATCH_SIZE", None),
            ("BOWSTRING_TOKENS", None),
            ("BOWSTRING_SOAK", None),
            ("BOWSTRING_AUDIT_LOG", None),
            ("BOWSTRING_HOST", None),
            ("BATCHSIZE", None),
        ] {
            assert_eq!(misspelt(variable).as_deref(), meant, "{variable}");
        }
    }
}
