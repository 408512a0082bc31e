//! One dataset of the catalogue, and the options that a client may set for it.
//!
//! The catalogue's options of a dataset are the defaults; a client's options override them one by one, as far as the dataset allows.
//! Restrictions stay: the filter, the selection of row groups, the omitted columns, which do not exist for clients, and the limits of
//! images.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::pictures::limits_for;
use crate::dataset::filter::Filter;
use crate::error::{Error, Result};
use crate::flight::server::access::auth::is_name;
use crate::pipeline::option_table::{About, Scope, alternative, in_scope, is_of_columns, option};
use crate::pipeline::{HiddenColumns, Kind, LoaderOptions, gathered, paths_at_home};
use crate::store::{MountSource, Mounts};

/// The keys of [`ClientLimits`].
pub(crate) const LIMITS: [&str; 3] = ["max_batch_size", "max_global_batch", "allow_options"];

/// Limits on a client's options for a dataset.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ClientLimits {
    /// Most rows per rank and step.
    pub max_batch_size: Option<u64>,
    /// Most rows of all ranks together per step.
    pub max_global_batch: Option<u64>,
    /// Options of a loader that clients may set. `columns` permits every option of columns: `exclude`, `nulls`, `lists`, `pack`, `images`,
    /// `arrow`, `cast` and `row_id`; without it, each is permitted by its own name. `batch_size` and `global_batch_size` are one permission.
    pub allow_options: Vec<String>,
}

impl Default for ClientLimits {
    fn default() -> Self {
        // Options of columns are allowed with `columns`.
        let apart = |name: &&str| *name == "columns" || option(name).is_some_and(|entry| entry.about != About::Columns);
        let allow_options = in_scope(Scope::Asked).filter(apart).map(str::to_owned).collect();
        Self { max_batch_size: None, max_global_batch: None, allow_options }
    }
}

impl ClientLimits {
    fn validate(&self) -> Result<()> {
        for name in &self.allow_options {
            let problem = match option(name).map(|entry| entry.scope) {
                Some(Scope::Asked | Scope::Own) => continue,
                Some(Scope::Never) => "is never a client's to set",
                None => "is no option",
            };
            return Err(Error::config("allow_options", format!("allow_options: {name:?} {problem}")));
        }
        Ok(())
    }
}

/// One dataset of the catalogue.
#[derive(Clone)]
pub struct Entry {
    name: String,
    /// Options of a loader, including `urls`, as JSON: only those that were given.
    options: Map<String, Value>,
    limits: ClientLimits,
    /// The mounts of the configuration, for a dataset that names no file of them itself.
    mounts: Option<Arc<Mounts>>,
}

impl fmt::Debug for Entry {
    /// Omits values, because addresses and options of the store may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options: Vec<_> = self.options.keys().collect();
        f.debug_struct("Entry")
            .field("name", &self.name)
            .field("options", &options)
            .field("limits", &self.limits)
            .finish()
    }
}

impl Entry {
    /// Makes the dataset `name` at `urls`, read with `options` (a loader's options by name; options of columns may be given beside
    /// `columns`) unless a client sets others within `limits`.
    ///
    /// # Errors
    /// [`Error::Config`] naming what is wrong.
    pub fn new(name: &str, urls: Vec<String>, options: Map<String, Value>, limits: ClientLimits) -> Result<Self> {
        if !is_name(name) {
            return Err(Error::config(
                "datasets",
                format!("{name:?} cannot name a dataset: a name is 1 to 128 letters, digits, `-`, `_` and `.`"),
            ));
        }
        if urls.is_empty() {
            return Err(Error::config("urls", format!("dataset {name} has no urls")));
        }
        limits.validate()?;
        let mut options = gathered(options)?;
        paths_at_home(&mut options);
        for option in ["rank", "world_size", "urls", "url"] {
            if options.contains_key(option) {
                return Err(Error::config("datasets", format!("{option} is no option of a dataset in the catalogue")));
            }
        }
        options.insert("urls".to_owned(), json!(urls));
        let entry = Self { name: name.to_owned(), options, limits, mounts: None };
        // Every detectable mistake is reported at start rather than to the first client.
        let read = entry.read(&entry.options)?;
        read.open_options()?;
        entry.check_batch_size(read.batch_size)?;
        Ok(entry)
    }

    /// With the mounts of the configuration that it is in.
    pub(super) fn set_mounts(&mut self, mounts: Arc<Mounts>) {
        self.mounts = Some(mounts);
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the options of a loader that were given, with `urls`, as JSON. Addresses and options of the store may hold secrets.
    #[cfg(feature = "cli")]
    pub(crate) fn given(&self) -> &Map<String, Value> {
        &self.options
    }

    /// Returns its addresses, which may hold secrets.
    pub(super) fn urls(&self) -> impl Iterator<Item = &str> {
        self.options.get("urls").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
    }

    /// Returns the limits on a client's options.
    pub fn limits(&self) -> &ClientLimits {
        &self.limits
    }

    /// Returns the loader's options for a client of one rank that sent `asked`, an object of options by name, or null for none.
    ///
    /// # Errors
    /// [`Error::Config`] naming an option that clients may not set, or a wrong value; [`Error::Limit`] for too large a batch.
    pub fn options(&self, asked: &Value) -> Result<LoaderOptions> {
        self.options_of(asked, 1)
    }

    /// As [`options`](Self::options), for one of `ranks` ranks.
    fn options_of(&self, asked: &Value, ranks: u32) -> Result<LoaderOptions> {
        let asked = match asked {
            Value::Null => Map::new(),
            Value::Object(asked) => gathered(asked.clone())?,
            _ => return Err(Error::config("options", "the options must be one JSON object")),
        };
        let mut options = self.options.clone();
        // A client's alternative replaces the dataset's.
        let asks = |option: &str| asked.get(option).is_some_and(|value| !value.is_null());
        options.retain(|option, _| asks(option) || !alternative(option).is_some_and(asks));
        for (option, value) in asked {
            match (option.as_str(), value) {
                // Null means that an option was not given.
                (name, Value::Null) if is_null_for_none(name) => {}
                ("columns", Value::Object(asked)) => self.merge_columns(&mut options, asked)?,
                (option, value) => {
                    if !self.has(option, &value) && !self.has_batch(option, &value, ranks) {
                        self.allow(option)?;
                    }
                    match option {
                        "filter" => self.merge_filter(&mut options, value)?,
                        "selector" if self.options.contains_key("selector") => {
                            return Err(self.denied("selector", "the dataset is a selection of row groups already"));
                        }
                        _ => {
                            options.insert(option.to_owned(), value);
                        }
                    }
                }
            }
        }
        let options = self.read(&options)?;
        self.check_batch_size(options.batch_size)?;
        if let Some(rows) = options.global_batch_size {
            // The number of ranks is not known here.
            self.within(rows, self.limits.max_global_batch, "max_global_batch")?;
        }
        Ok(options)
    }

    /// As [`options`](Self::options), for one of `ranks` ranks, with the columns that the dataset hides from clients, which the client's
    /// own filter, selector and windows must not use.
    ///
    /// # Errors
    /// As [`options`](Self::options).
    pub fn request(&self, asked: &Value, ranks: u32) -> Result<(LoaderOptions, HiddenColumns)> {
        let options = self.options_of(asked, ranks)?;
        let own = self.read(&self.options)?;
        let theirs = |option: &str| asked.get(option).filter(|value| !value.is_null());
        let wrong = |error: serde_json::Error| Error::config("filter", error.to_string());
        let hidden = HiddenColumns {
            exclude: own.columns.exclude,
            filter: theirs("filter").map(|filter| serde_json::from_value(filter.clone())).transpose().map_err(wrong)?,
            selector: theirs("selector").is_some(),
            ngram: theirs("ngram").is_some(),
        };
        Ok((options, hidden))
    }

    /// Refuses a step of `rows` rows over `ranks` ranks that exceeds the dataset's limits.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub(crate) fn check_global_batch(&self, rows: u64, ranks: u32) -> Result<()> {
        self.within(rows, self.limits.max_global_batch, "max_global_batch")?;
        // The first ranks get one more row if it does not divide evenly.
        self.check_batch_size(Some(rows.div_ceil(u64::from(ranks.max(1)))))
    }

    fn check_batch_size(&self, rows: Option<u64>) -> Result<()> {
        self.within(rows.unwrap_or(0), self.limits.max_batch_size, "max_batch_size")
    }

    fn within(&self, asked: u64, limit: Option<u64>, option: &'static str) -> Result<()> {
        match limit {
            Some(limit) if asked > limit => {
                Err(Error::limit(format!("a batch of dataset {}", self.name), asked, limit, option))
            }
            _ => Ok(()),
        }
    }

    fn read(&self, options: &Map<String, Value>) -> Result<LoaderOptions> {
        let read = LoaderOptions::from_document(options.clone()).map_err(|error| match error {
            Error::Config { option, problem } => Error::config(option, format!("dataset {}: {problem}", self.name)),
            other => other,
        })?;
        let mounts = read.mounts.or_else(|| self.mounts.clone().map(MountSource::Given));
        Ok(LoaderOptions { mounts, ..read })
    }

    fn allows(&self, option: &str) -> bool {
        // A client that resumes from a position must be able to name its version of the order.
        let is_named = |name: &str| self.limits.allow_options.iter().any(|allowed| allowed == name);
        // Clients send each size of a batch as the other, so the two are one permission.
        option == "order_version" || !never(option) && (is_named(option) || alternative(option).is_some_and(is_named))
    }

    fn allow(&self, option: &str) -> Result<()> {
        if self.allows(option) {
            return Ok(());
        }
        let why = format!("clients may set {}", self.limits.allow_options.join(", "));
        Err(self.denied(option, &why))
    }

    /// Returns true if the dataset has this value anyway: a client may name what it may not change. Only for switches, words and numbers of
    /// the order, and the treatment of nulls and lists, which every stream shows; a client must not find out others by trying.
    fn has(&self, name: &str, value: &Value) -> bool {
        let Some(entry) = option(name).filter(|entry| entry.scope == Scope::Asked) else { return false };
        let is_treatment = matches!(name, "nulls" | "lists");
        if !is_treatment && !matches!(entry.kind, Kind::Switch | Kind::Choice(_) | Kind::Whole { .. }) {
            return false;
        }
        let columns = self.options.get("columns").and_then(Value::as_object);
        let own =
            if is_of_columns(name) { columns.and_then(|columns| columns.get(name)) } else { self.options.get(name) };
        if is_treatment {
            let theirs = treatment(name, Some(value));
            return theirs.is_some() && theirs == treatment(name, own.filter(|own| !own.is_null()));
        }
        match own.filter(|own| !own.is_null()) {
            Some(own) => own == value,
            None => !entry.default.is_empty() && entry.kind.parse(entry.default).is_ok_and(|usual| usual == *value),
        }
    }

    /// Returns true if a batch of `ranks` ranks together has as many rows by the dataset's options as by `name` with `value`.
    fn has_batch(&self, name: &str, value: &Value, ranks: u32) -> bool {
        let rows = |name: &str, value: &Value| {
            let ranks = if name == "batch_size" { ranks.max(1) } else { 1 };
            value.as_u64()?.checked_mul(u64::from(ranks))
        };
        let Some(other) = alternative(name) else { return false };
        let mut own = [name, other].into_iter().filter_map(|name| rows(name, self.options.get(name)?));
        rows(name, value).is_some_and(|asked| own.any(|own| own == asked))
    }

    fn denied(&self, name: &str, why: &str) -> Error {
        // Shortened: a client may send any text as a name.
        let mut shown = format!("{:?}", name.chars().take(64).collect::<String>());
        let mut named = option(name).map_or("options", |entry| entry.name);
        if alternative(name).is_some() {
            // The request does not tell which of the two the client gave.
            (named, shown) = ("batch_size", "\"batch_size\" or \"global_batch_size\"".to_owned());
        }
        Error::config(named, format!("dataset {} does not let clients set {shown}: {why}", self.name))
    }

    fn merge_columns(&self, options: &mut Map<String, Value>, asked: Map<String, Value>) -> Result<()> {
        let own = options.entry("columns").or_insert_with(|| json!({}));
        let Some(own) = own.as_object_mut() else { return Ok(()) };
        for (option, value) in asked {
            if !self.allows("columns") && !self.has(&option, &value) {
                self.allow(&option)?;
            }
            let value = match (option.as_str(), value) {
                ("exclude", Value::Array(more)) => {
                    let former = own.get("exclude").and_then(Value::as_array).cloned().unwrap_or_default();
                    Value::Array(former.into_iter().chain(more).collect())
                }
                ("images", Value::Object(images)) => self.merge_images(own.get("images"), images)?,
                (_, value) => value,
            };
            own.insert(option, value);
        }
        Ok(())
    }

    /// Merges a client's images into the dataset's, keeping the dataset's limits; images that it does not name stay as they are.
    fn merge_images(&self, own: Option<&Value>, asked: Map<String, Value>) -> Result<Value> {
        let mut merged = own.and_then(Value::as_object).cloned().unwrap_or_default();
        for (column, mut image) in asked {
            if let Some(image) = image.as_object_mut() {
                if image.contains_key("limits") {
                    return Err(self.denied("images.*.limits", "limits are the server's"));
                }
                if let Some(limits) = own.and_then(Value::as_object).and_then(|own| limits_for(own, &column)) {
                    image.insert("limits".to_owned(), limits);
                }
            }
            merged.insert(column, image);
        }
        Ok(Value::Object(merged))
    }

    /// Combines both filters. Each is parsed on its own first, so that neither can close the other's bracket.
    fn merge_filter(&self, options: &mut Map<String, Value>, asked: Value) -> Result<()> {
        let wrong = |error: serde_json::Error| Error::config("filter", error.to_string());
        let Some(own) = self.options.get("filter").filter(|own| !own.is_null()) else {
            options.insert("filter".to_owned(), asked);
            return Ok(());
        };
        let filter: Filter = serde_json::from_value(asked).map_err(wrong)?;
        filter.parse()?;
        let (Filter::Text(asked), Some(own)) = (filter, own.as_str()) else {
            return Err(
                self.denied("filter", "the dataset has a filter, and the two join only if both are expressions")
            );
        };
        options.insert("filter".to_owned(), json!(format!("({own}) and ({asked})")));
        Ok(())
    }
}

/// What the option `name` of columns is with `value`, or without one; `None` if that is no value of it.
fn treatment(name: &str, value: Option<&Value>) -> Option<Value> {
    let document = value.map(|value| (name.to_owned(), value.clone())).into_iter().collect();
    let mut columns = LoaderOptions::from_document(document).ok()?.columns;
    // All other columns have the default.
    columns.nulls.0.entry("*".to_owned()).or_default();
    columns.lists.0.entry("*".to_owned()).or_default();
    serde_json::to_value(columns).ok()?.get(name).cloned()
}

/// Returns true if null means that option `name` was not given.
fn is_null_for_none(name: &str) -> bool {
    option(name).is_some_and(|entry| entry.scope != Scope::Own)
}

/// Returns true if no client may ever set `name`.
fn never(name: &str) -> bool {
    option(name).is_some_and(|entry| entry.scope == Scope::Never)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(options: Value, limits: ClientLimits) -> Result<Entry> {
        Entry::new("photos", vec!["/secret/place.parquet".into()], options.as_object().unwrap().clone(), limits)
    }

    #[test]
    fn what_a_client_asks_is_laid_over_what_the_dataset_says() {
        let entry = entry(
            json!({"batch_size": 8, "seed": 3, "tail": "drop", "columns": ["image", "label"],
                   "images": {"image": {"size": 64, "limits": {"max_pixels": 1000}}}, "exclude": ["owner"]}),
            ClientLimits { max_batch_size: Some(100), max_global_batch: Some(1000), ..ClientLimits::default() },
        )
        .unwrap();
        let plain = entry.options(&Value::Null).unwrap();
        assert_eq!((plain.batch_size, plain.seed, plain.urls.len()), (Some(8), 3, 1));
        let asked =
            json!({"global_batch_size": 64, "columns": {"images": {"image": {"size": 32}}}, "exclude": ["path"]});
        let options = entry.options(&asked).unwrap();
        assert_eq!((options.batch_size, options.global_batch_size, options.seed), (None, Some(64), 3));
        assert_eq!(options.columns.columns, ["image", "label"]);
        assert_eq!(options.columns.exclude, ["owner", "path"], "what the dataset leaves out stays out");
        let image = &options.columns.images["image"];
        assert_eq!((image.size.unwrap().width, image.limits.max_pixels), (32, 1000));
        let both = entry.options(&json!({"batch_size": 8, "global_batch_size": 64})).unwrap();
        assert_eq!((both.batch_size, both.global_batch_size), (Some(8), Some(64)));
        assert_eq!(entry.options(&json!({"columns": ["label"]})).unwrap().columns.columns, ["label"]);
        for (asked, what) in [
            (json!({"batch_size": 101}), "max_batch_size"),
            (json!({"global_batch_size": 1001}), "max_global_batch"),
            (json!({"columns": {"images": {"image": {"limits": {"max_pixels": 1}}}}}), "images.*.limits"),
            (json!({"bach_size": 1}), "bach_size"),
            (json!({"seed": "x"}), "whole number"),
            (json!({"columns": 3}), "columns"),
            (json!({"images": {}, "columns": {"images": {}}}), "twice"),
            (json!([]), "object"),
        ] {
            let error = entry.options(&asked).unwrap_err().to_string();
            assert!(error.contains(what), "{asked}: {error}");
            assert!(!error.contains("/secret"), "{error}");
        }
        assert!(entry.check_global_batch(1000, 10).is_ok() && entry.check_global_batch(1001, 100).is_err());
    }

    #[test]
    fn a_batch_of_one_rank_is_held_to_its_limit_however_it_is_asked_for() {
        let limits = ClientLimits { max_batch_size: Some(100), ..ClientLimits::default() };
        let entry = entry(json!({}), limits).unwrap();
        for (global, ranks, fits) in [(100, 1, true), (101, 1, false), (800, 8, true), (801, 8, false), (0, 0, true)] {
            let held = entry.check_global_batch(global, ranks);
            assert_eq!(held.is_ok(), fits, "{global} on {ranks}");
            assert!(held.is_ok() || held.unwrap_err().to_string().contains("max_batch_size"));
        }
    }

    #[test]
    fn what_a_dataset_leaves_out_is_kept_back_from_what_a_client_asks_with() {
        let entry = entry(json!({"exclude": ["*secret*"], "filter": "secret_a > 1"}), ClientLimits::default()).unwrap();
        let (options, hidden) =
            entry.request(&json!({"filter": "id > 3", "exclude": ["path"], "ngram": null}), 1).unwrap();
        assert_eq!(options.columns.exclude, ["*secret*", "path"]);
        assert_eq!(hidden.exclude, ["*secret*"]);
        assert_eq!((hidden.filter, hidden.selector, hidden.ngram), (Some(Filter::Text("id > 3".into())), false, false));
        assert_eq!(entry.request(&Value::Null, 1).unwrap().1.filter, None);
    }

    #[test]
    fn what_is_the_servers_is_never_a_clients() {
        let open = entry(json!({}), ClientLimits::default()).unwrap();
        for option in in_scope(Scope::Never) {
            let error = open.options(&json!({option: 1})).unwrap_err().to_string();
            assert!(error.contains(option), "{error}");
            let limits = ClientLimits { allow_options: vec![option.to_owned()], ..ClientLimits::default() };
            assert!(entry(json!({}), limits).is_err(), "{option}");
        }
        // The option table must agree with the former two lists.
        let never: Vec<_> = in_scope(Scope::Never).collect();
        for option in ["urls", "storage_options", "memory_budget", "limits", "rank", "device", "index", "partitioning"]
        {
            assert!(never.contains(&option), "{option}");
        }
        assert_eq!(in_scope(Scope::Own).collect::<Vec<_>>(), ["prefetch", "timeout"]);
        let allowed = ClientLimits::default().allow_options;
        assert_eq!(allowed.len(), 15, "{allowed:?}");
        let few = ClientLimits { allow_options: vec!["seed".into(), "cast".into()], ..ClientLimits::default() };
        let few = entry(json!({}), few).unwrap();
        few.options(&json!({"seed": 1, "cast": {"x": "float32"}})).unwrap();
        for asked in [json!({"batch_size": 1}), json!({"columns": ["x"]}), json!({"columns": {"row_id": true}})] {
            assert!(few.options(&asked).is_err(), "{asked}");
        }
    }

    #[test]
    fn a_client_may_name_what_the_dataset_has_anyway() {
        let none = ClientLimits { allow_options: Vec::new(), ..ClientLimits::default() };
        let own = json!({"shuffle": false, "mask": true, "filter": "x > 1", "row_id": true, "nulls": {"x": -1}});
        let entry = entry(own, none).unwrap();
        let same = json!({"shuffle": false, "seed": 0, "mask": true, "bad_rows": "error",
            "columns": {"row_id": true, "nulls": {"x": -1}, "lists": "ragged"}});
        let options = entry.options(&same).unwrap();
        assert_eq!((options.shuffle, options.mask, options.columns.row_id), (false, true, true));
        for other in [
            json!({"shuffle": true}),
            json!({"seed": 1}),
            json!({"columns": {"row_id": false}}),
            json!({"columns": {"nulls": "error"}}),
            json!({"columns": {"lists": {"padded": {"length": 3}}}}),
            json!({"columns": {"lists": 3}}),
            // Nobody finds these out by trying.
            json!({"filter": "x > 1"}),
            json!({"urls": ["/secret/place.parquet"]}),
        ] {
            assert!(entry.options(&other).is_err(), "{other}");
        }
    }

    #[test]
    fn the_two_sizes_of_a_batch_are_one_permission() {
        let allowing = |own: Value, names: &[&str]| {
            let allow_options = names.iter().map(|name| (*name).to_owned()).collect();
            entry(own, ClientLimits { allow_options, ..ClientLimits::default() }).unwrap()
        };
        for name in ["batch_size", "global_batch_size"] {
            let either = allowing(json!({"batch_size": 64}), &[name]);
            assert_eq!(either.options(&json!({"batch_size": 8})).unwrap().batch_size, Some(8), "{name}");
            let options = either.request(&json!({"global_batch_size": 16}), 2).unwrap().0;
            assert_eq!((options.batch_size, options.global_batch_size), (None, Some(16)), "{name}");
        }
        let own = allowing(json!({"batch_size": 64}), &["seed"]);
        for (asked, ranks) in [(json!({"global_batch_size": 64}), 1), (json!({"global_batch_size": 128}), 2)] {
            let options = own.request(&asked, ranks).unwrap().0;
            assert_eq!(Some(options.global_batch_size.unwrap() / u64::from(ranks)), Some(64), "{asked}");
        }
        own.request(&json!({"batch_size": 64}), 2).unwrap();
        let global = allowing(json!({"global_batch_size": 64}), &[]);
        global.request(&json!({"batch_size": 32}), 2).unwrap();
        assert!(global.request(&json!({"batch_size": 64}), 2).is_err());
        for (asked, ranks) in [(json!({"global_batch_size": 64}), 2), (json!({"batch_size": 8}), 1)] {
            let error = own.request(&asked, ranks).unwrap_err();
            assert!(matches!(error, Error::Config { option: "batch_size", .. }), "{error}");
            assert!(
                error.to_string().contains("\"batch_size\" or \"global_batch_size\": clients may set seed"),
                "{error}"
            );
        }
        let error = own.options(&json!({"shuffle": false})).unwrap_err();
        assert!(matches!(error, Error::Config { option: "shuffle", .. }), "{error}");
    }

    #[test]
    fn a_client_cannot_escape_the_filter() {
        let fenced =
            entry(json!({"filter": "public = true", "selector": {"row_groups": [0]}}), ClientLimits::default());
        let fenced = fenced.unwrap();
        let filter = |asked: Value| fenced.options(&json!({"filter": asked})).map(|options| options.filter.unwrap());
        let joined = filter(json!("id > 3")).unwrap();
        assert_eq!(joined, Filter::Text("(public = true) and (id > 3)".into()));
        joined.parse().unwrap();
        assert!(fenced.options(&json!({"selector": null, "rank": null})).is_ok(), "null asks for nothing");
        assert_eq!(filter(Value::Null).unwrap(), Filter::Text("public = true".into()));
        for escape in [json!("id > 3) or (id < 9"), json!("true) or (true"), json!([["id", ">", 3]]), json!("")] {
            assert!(filter(escape.clone()).is_err(), "{escape}");
        }
        assert!(fenced.options(&json!({"selector": {"row_groups": [1]}})).is_err());
    }

    /// Any JSON of a client gives an answer or an error, and never what belongs to the server.
    #[test]
    fn no_request_gets_past_the_rules() {
        use proptest::prelude::*;
        let options = json!({"filter": "public = true", "exclude": ["owner"], "batch_size": 8,
                             "images": {"image": {"size": 64, "limits": {"max_pixels": 1000}}}});
        let limits =
            ClientLimits { max_batch_size: Some(100), max_global_batch: Some(1000), ..ClientLimits::default() };
        let entry = entry(options, limits).unwrap();
        let words: Vec<String> =
            crate::pipeline::option_table::OPTIONS.iter().map(|entry| entry.name.to_owned()).collect();
        let words = [words, ["image", "size", "columns", "max_pixels", "x"].map(str::to_owned).to_vec()].concat();
        let text = ["owner", "id > 3", "id > 3) or (id < 9", "drop", "float32", "*"].map(str::to_owned).to_vec();
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0_u64..2000).prop_map(Value::from),
            proptest::sample::select(text).prop_map(Value::from),
        ];
        let value = leaf.prop_recursive(4, 24, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map(proptest::sample::select(words.clone()), inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        });
        let accepted = std::cell::Cell::new(0);
        let cases = if std::env::var_os("BOWSTRING_SOAK").is_some() { 100_000 } else { 10_000 };
        let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(cases));
        let ran = runner.run(&value, |asked| {
            let Ok(options) = entry.options(&asked) else { return Ok(()) };
            accepted.set(accepted.get() + 1);
            prop_assert_eq!(&options.urls, &["/secret/place.parquet"]);
            prop_assert!(options.storage_options.is_empty() && options.memory_budget.is_none());
            prop_assert!(options.rank.is_none() && options.threads.is_none());
            prop_assert!(options.columns.exclude.contains(&"owner".to_owned()));
            prop_assert!(options.batch_size.unwrap_or(0) <= 100 && options.global_batch_size.unwrap_or(0) <= 1000);
            let image = options.columns.images.get("image");
            prop_assert!(image.is_some_and(|image| image.limits.max_pixels == 1000));
            let Some(Filter::Text(filter)) = &options.filter else { return Err(TestCaseError::fail("no filter")) };
            let theirs = filter.strip_prefix("(public = true) and (").and_then(|rest| rest.strip_suffix(')'));
            let alone = theirs.is_some_and(|theirs| Filter::Text(theirs.to_owned()).parse().is_ok());
            prop_assert!(filter == "public = true" || alone, "{}", filter);
            Ok(())
        });
        ran.unwrap();
        assert!(accepted.get() > cases / 100, "only {} of {cases} were accepted", accepted.get());
    }
}
