//! A client's request: the command of a descriptor, and the content of a ticket.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::gang::wire::Caller;
use crate::codec::ImageOptions;
use crate::error::{Error, Result};
use crate::manifest::Fingerprint;
use crate::pipeline::LoaderOptions;
use crate::pipeline::option_table::{OPTIONS, OptionEntry, Scope, alternative, option};
use crate::plan::{OrderVersion, Share};

/// Most bytes of a descriptor's command or a ticket.
pub const MAX_BYTES: usize = 64 << 10;

/// The option that is always sent, since servers may be older or newer than their clients.
const ORDER_VERSION: &str = "order_version";

/// The option that is null if the client leaves it to the catalogue. A client that does not send it pads, unless the catalogue says
/// otherwise: it knows nothing else, or compiles for one shape.
pub(super) const TAIL: &str = "tail";

/// A request for a stream of batches: the dataset, its options, and the first step.
///
/// On the wire it is JSON, the command of a Flight descriptor:
/// `{"dataset": "photos", "options": {"batch_size": 32, "seed": 1}, "rank": 0, "world_size": 4}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamRequest {
    /// Name in the server's catalogue.
    pub dataset: String,
    /// Options of a [`LoaderOptions`], by their names; an absent one has the catalogue's value, or else the default of a new loader,
    /// with two exceptions: without `order_version` it is the first version, and without `tail` it is `pad`; a null counts as present.
    /// A descriptor with a step is a position, and one from before versions and other tails existed continues in its own.
    #[serde(default)]
    pub options: Map<String, Value>,
    /// The epoch.
    #[serde(default)]
    pub epoch: u64,
    /// The first step.
    #[serde(default)]
    pub step: u64,
    /// The rank; without, all ranks of the world are offered, one endpoint each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Number of ranks.
    #[serde(default = "one")]
    pub world_size: u32,
    /// The fingerprint of the data when the stream was first described, in hexadecimal. A resumed stream sends it and gets these files,
    /// even if there are newer ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<Fingerprint>,
    /// The gang that the stream belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<Caller>,
    /// Stored rows instead of batches: of `options`, those that select rows and columns apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<StoredRows>,
}

/// A selection of a dataset's stored rows: part `part` of `parts`, which are split at row groups.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredRows {
    /// From 0; without, all parts are offered, one endpoint each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// Number of parts; some are empty if there are fewer row groups.
    #[serde(default = "one")]
    pub parts: u32,
}

fn one() -> u32 {
    1
}

impl StreamRequest {
    /// Makes the request of a loader with `options` for the dataset `dataset`.
    ///
    /// # Errors
    /// [`Error::Config`] for options that a server does not support, and for those that only the data's owner may set.
    pub fn new(dataset: &str, options: &LoaderOptions, share: Share) -> Result<Self> {
        let mut asked = object(options)?;
        let usual = object(&LoaderOptions::default())?;
        let says = |name: &str, value: &Value, usual: &Map<String, Value>| {
            options.given.contains(name) || usual.get(name) != Some(value)
        };
        if let Some(entry) = OPTIONS.iter().find(|entry| {
            let value = asked.get(entry.name).filter(|value| value.as_str() != Some(""));
            entry.is_of_the_owner() && value.is_some_and(|value| says(entry.name, value, &usual))
        }) {
            return Err(of_the_owner(entry));
        }
        // What is not said is left to the catalogue.
        asked.retain(|key, value| {
            let is_asked = option(key).is_some_and(|entry| entry.scope == Scope::Asked);
            // The size of a batch is sent as rows of all ranks together.
            is_asked
                && alternative(key).is_none()
                && value.as_str() != Some("")
                && (key == "columns" || says(key, value, &usual))
        });
        if let Some(Value::Object(columns)) = asked.get_mut("columns")
            && let Some(Value::Object(usual)) = usual.get("columns")
        {
            columns.retain(|key, value| says(key, value, usual));
            if let Some(Value::Object(images)) = columns.get_mut("images") {
                // A column's image replaces the catalogue's as a whole.
                let usual = object(&ImageOptions::default())?;
                for image in images.values_mut().filter_map(Value::as_object_mut) {
                    image.retain(|key, value| usual.get(key) != Some(value));
                }
            }
            if columns.is_empty() {
                asked.remove("columns");
            }
        }
        let global = match (options.batch_size, options.global_batch_size) {
            (None, None) => None,
            (Some(batch), _) => Some(
                batch
                    .checked_mul(u64::from(share.world))
                    .ok_or_else(|| Error::config("batch_size", "batch_size times world_size overflows"))?,
            ),
            (None, global) => global,
        };
        if let (Some(global), Some(given)) = (global, options.global_batch_size)
            && global != given
        {
            return Err(Error::config("global_batch_size", "it is not batch_size times world_size; give one"));
        }
        asked.extend(global.map(|global| ("global_batch_size".to_owned(), global.into())));
        let version = options.order_version.unwrap_or(OrderVersion::LATEST);
        asked.insert(ORDER_VERSION.to_owned(), version.number().into());
        // Left out, it is the catalogue's or else padding; null is the catalogue's or else the default.
        if !options.pads {
            asked.entry(TAIL).or_insert(Value::Null);
        }
        Ok(Self {
            dataset: dataset.to_owned(),
            options: asked,
            epoch: 0,
            step: 0,
            rank: Some(share.rank),
            world_size: share.world,
            fingerprint: None,
            gang: None,
            rows: None,
        })
    }

    /// Requests all of `dataset`, with the catalogue's options.
    pub fn all(dataset: &str) -> Self {
        let dataset = dataset.to_owned();
        Self {
            dataset,
            options: Map::new(),
            epoch: 0,
            step: 0,
            rank: None,
            world_size: 1,
            fingerprint: None,
            gang: None,
            rows: None,
        }
    }

    /// Sets the step to `rows` rows.
    pub(super) fn in_batches_of(mut self, rows: u64) -> Self {
        self.options.insert("global_batch_size".to_owned(), rows.into());
        self
    }

    /// Sets the version of the order.
    pub(super) fn in_version(mut self, version: OrderVersion) -> Self {
        self.options.insert(ORDER_VERSION.to_owned(), version.number().into());
        self
    }

    /// Reads the command of a descriptor.
    ///
    /// # Errors
    /// [`Error::Config`] if it is too long or not such JSON.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        if json.len() > MAX_BYTES {
            return Err(Error::config("descriptor", format!("{} bytes; at most {MAX_BYTES}", json.len())));
        }
        serde_json::from_slice(json).map_err(|error| {
            let example = r#"{"dataset": "name", "options": {"batch_size": 32}, "rank": 0, "world_size": 1}"#;
            Error::config("descriptor", format!("{error}; it should look like {example}"))
        })
    }

    /// Encodes the request as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        // Strings, numbers and JSON values cannot fail to encode.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Returns the share of the requested rank, else of rank `rank`.
    ///
    /// # Errors
    /// [`Error::Config`] for a rank beyond the world.
    pub fn share(&self, rank: u32) -> Result<Share> {
        Share::new(self.rank.unwrap_or(rank), self.world_size)
    }
}

/// The refusal of an option that the server would not obey.
pub(crate) fn of_the_owner(entry: &OptionEntry) -> Error {
    let name = entry.name;
    if name == "weights" {
        return Error::config(name, "a mixture is opened by the server: give it a name in its catalogue");
    }
    // Other variables are left to the server anyway.
    let variable = entry.variable().filter(|_| !entry.is_left_to_a_server());
    let variable = variable.map(|variable| format!(", also as {variable}")).unwrap_or_default();
    Error::config(name, format!("it is set in the server's catalogue, for the dataset; leave it out{variable}"))
}

fn object(options: &impl Serialize) -> Result<Map<String, Value>> {
    match serde_json::to_value(options) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Ok(Map::new()),
        Err(error) => Err(Error::config("options", error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_differs_is_asked_for() {
        let mut options = LoaderOptions::new("grpc://x/photos", 8);
        options.seed = 7;
        options.threads = Some(3);
        options.columns.columns = vec!["label".to_owned()];
        let asked = StreamRequest::new("photos", &options, Share::new(1, 4).unwrap()).unwrap();
        let keys: Vec<&str> = asked.options.keys().map(String::as_str).collect();
        assert_eq!(keys, ["columns", "global_batch_size", "order_version", "seed", "tail"]);
        assert_eq!(asked.options["global_batch_size"], 32);
        assert_eq!(asked.options["columns"], serde_json::json!({ "columns": ["label"] }));
        assert_eq!(StreamRequest::from_json(&asked.to_json()).unwrap(), asked);
        assert!(StreamRequest::from_json(br#"{"dataset": "x", "sudo": 1}"#).unwrap_err().to_string().contains("sudo"));
    }

    /// The options that a client of `document` asks for.
    fn asked(document: Value) -> Result<Map<String, Value>> {
        let Value::Object(document) = document else { panic!() };
        let options = LoaderOptions::from_document(document)?;
        Ok(StreamRequest::new("photos", &options, Share::whole())?.options)
    }

    #[test]
    fn an_empty_filter_asks_for_nothing() {
        assert!(!asked(json!({"filter": "", "seed": 3})).unwrap().contains_key("filter"));
        assert_eq!(asked(json!({"filter": "x > 1"})).unwrap()["filter"], "x > 1");
    }

    #[test]
    fn a_default_that_was_given_is_asked_for_too() {
        let given = json!({"shuffle": true, "seed": 0, "mask": false, "bad_rows": "error", "decode": true});
        let mut asked_for = asked(given.clone()).unwrap();
        assert!(asked_for.remove(ORDER_VERSION).is_some() && asked_for.remove(TAIL).is_some());
        assert_eq!(Value::Object(asked_for), given);
        assert_eq!(asked(json!({"row_id": false, "lanes": null})).unwrap()["columns"], json!({"row_id": false}));
        let mut fields = LoaderOptions::new("grpc://x/photos", 8);
        fields.given.insert("seed");
        assert_eq!(StreamRequest::new("photos", &fields, Share::whole()).unwrap().options["seed"], 0);
    }

    #[test]
    fn a_client_that_pads_leaves_the_tail_to_the_catalogue_and_names_one_that_was_given() {
        let of = |tail| {
            let options = LoaderOptions { pads: true, tail, ..LoaderOptions::new("grpc://x/photos", 8) };
            StreamRequest::new("photos", &options, Share::whole()).unwrap().options
        };
        assert!(!of(None).contains_key(TAIL));
        assert_eq!(of(Some(crate::plan::Tail::Drop))[TAIL], "drop");
    }

    #[test]
    fn what_is_empty_was_not_given() {
        let nothing = json!({"columns": [], "exclude": [], "cast": {}, "pack": [], "arrow": [], "images": {}, "weights": [],
            "limits": {}, "cache_peers": [], "ref": ""});
        assert_eq!(asked(nothing).unwrap().len(), 2, "the version of the order and the tail");
    }

    #[test]
    fn what_only_the_owner_sets_is_refused_by_name() {
        for (name, value) in [
            ("version", json!(0)),
            ("ref", json!("audit")),
            ("timestamp", json!("2026-01-01")),
            ("partitioning", json!("hive")),
            ("weights", json!([1.0])),
            ("stop", json!("all_exhausted")),
            ("index", json!("auto")),
            ("mounts", json!("/mounts.toml")),
            ("limits", json!({"max_files": 1})),
            ("cache", json!("memory")),
            ("cache_bytes", json!(1)),
            ("cache_ahead", json!(1)),
            ("cache_peers", json!(["h:1"])),
            ("cache_peer_options", json!({"token": "t"})),
        ] {
            let error = asked(json!({ name: value })).unwrap_err();
            assert!(matches!(error, Error::Config { option, .. } if option == name), "{name}: {error}");
        }
        for (name, ends) in [("index", "leave it out"), ("version", "leave it out, also as BOWSTRING_VERSION")] {
            let error = asked(json!({ name: if name == "index" { json!("auto") } else { json!(1) } })).unwrap_err();
            assert!(error.to_string().ends_with(ends), "{error}");
        }
        let own = json!({"rank": 1, "world_size": 2, "memory_budget": "1GiB", "threads": 1, "prefetch": 2, "timeout": 9,
            "device": "cuda", "device_slots": 2, "device_fence": "sync", "device_overflow": true,
            "storage_options": {"token": "t"}, "urls": ["grpc://x/photos"]});
        assert_eq!(asked(own).unwrap().len(), 2, "the version of the order and the tail");
    }
}
