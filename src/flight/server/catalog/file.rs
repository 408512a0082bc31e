//! The TOML configuration of a server: `[server]`, `[datasets.NAME]` and `[mounts.NAME]`; every error gives its line and key.
//!
//! An error repeats neither a line of the file nor a text of eight characters or more in it, which may be a password in the wrong place.

#[cfg(feature = "cli")]
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use toml::de::{DeTable, DeValue};

use super::catalogue::Catalogue;
use super::config::ServerOptions;
use super::entry::{ClientLimits, Entry, LIMITS};
use crate::document::words;
use crate::error::{Error, Result};
use crate::pipeline::{LoaderOptions, bytes, gathered};
use crate::store::Mounts;

/// Largest configuration, in bytes.
pub const MAX_FILE: u64 = 4 << 20;

/// Shortest text that errors leave out; shorter ones are no secrets, but parts of words.
const HIDDEN: usize = 8;

/// Parsed configuration.
#[derive(Debug, Clone, Default)]
pub struct ServeFile {
    /// The table `[server]`.
    pub server: ServerOptions,
    /// The tables `[datasets.NAME]`, with the mounts of `[mounts.NAME]`.
    pub catalogue: Catalogue,
}

impl Catalogue {
    /// Reads the tables `[datasets.NAME]` of a configuration; `origin` is its file's name for errors. See [`ServeFile`].
    ///
    /// # Errors
    /// As [`ServeFile::from_toml`].
    pub fn from_toml(text: &str, origin: &str) -> Result<Self> {
        Ok(ServeFile::from_toml(text, origin)?.catalogue)
    }
}

impl ServeFile {
    /// Reads `text`; `origin` is the file's name for errors. Paths and addresses are relative to the working directory.
    ///
    /// ```
    /// use bowstring::flight::server::file::ServeFile;
    ///
    /// # fn main() -> bowstring::Result<()> {
    /// let file = ServeFile::from_toml(
    ///     r#"
    ///     [server]
    ///     listen = "127.0.0.1:8815"
    ///
    ///     [datasets.photos]
    ///     url = "fixtures/imagenet40.parquet"
    ///     images = { image = { size = 64 } }
    ///     limits = { max_batch_size = 512 }
    ///     "#,
    ///     "serve.toml",
    /// )?;
    /// assert_eq!(file.catalogue.names().collect::<Vec<_>>(), ["photos"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] naming `origin`, the line and the key.
    pub fn from_toml(text: &str, origin: &str) -> Result<Self> {
        let source = Source { text, origin };
        let document = DeTable::parse(text).map_err(|error| {
            source.wrong(error.span().map(|span| span.start), format!("this is no TOML: {}", error.message()))
        })?;
        source.file(document.get_ref()).map_err(|error| {
            let mut texts = Vec::new();
            add_texts(document.get_ref(), &mut texts);
            without(error, texts)
        })
    }
}

/// The keys that `text` gives, as paths with dots (`server.limits.connections`), each with its line; none of a text that is no TOML.
#[cfg(feature = "cli")]
pub(crate) fn lines(text: &str) -> BTreeMap<String, usize> {
    fn add(table: &DeTable<'_>, path: &str, line: &impl Fn(usize) -> usize, lines: &mut BTreeMap<String, usize>) {
        for (key, value) in table {
            let path = if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
            lines.insert(path.clone(), line(key.span().start));
            if let Some(table) = value.get_ref().as_table() {
                add(table, &path, line, lines);
            }
        }
    }
    let line = |at: usize| text.get(..at).map_or(1, |before| before.matches('\n').count() + 1);
    let mut lines = BTreeMap::new();
    if let Ok(document) = DeTable::parse(text) {
        add(document.get_ref(), "", &line, &mut lines);
    }
    lines
}

/// Adds all texts in `table` to `texts`; the keys are none.
fn add_texts(table: &DeTable<'_>, texts: &mut Vec<String>) {
    fn add(value: &DeValue<'_>, texts: &mut Vec<String>) {
        match value {
            DeValue::String(text) => texts.push(text.to_string()),
            DeValue::Array(list) => list.iter().for_each(|value| add(value.get_ref(), texts)),
            DeValue::Table(table) => add_texts(table, texts),
            _ => {}
        }
    }
    table.values().for_each(|value| add(value.get_ref(), texts));
}

/// `error` with dots for `texts`, as they are and as they are quoted; some errors drop grave accents.
fn without(error: Error, mut texts: Vec<String>) -> Error {
    let Error::Config { option, mut problem } = error else { return error };
    texts.retain(|text| text.chars().count() >= HIDDEN);
    // Some begin as others do.
    texts.sort_by_key(|text| std::cmp::Reverse(text.len()));
    for text in texts {
        let quoted = format!("{text:?}");
        for shown in [&*text, quoted.trim_matches('"')] {
            problem = problem.replace(shown, "...");
            let bare = shown.replace('`', "");
            if bare.chars().count() >= HIDDEN {
                problem = problem.replace(&bare, "...");
            }
        }
    }
    Error::Config { option, problem }
}

/// Returns the text of an error without the option's name, since line and key replace it.
fn inner(error: &Error) -> String {
    match error {
        Error::Config { problem, .. } => problem.clone(),
        other => other.to_string(),
    }
}

struct Source<'a> {
    text: &'a str,
    origin: &'a str,
}

impl Source<'_> {
    fn wrong(&self, at: Option<usize>, problem: impl Into<String>) -> Error {
        let line = at.and_then(|at| self.text.get(..at)).map(|before| before.matches('\n').count() + 1);
        let line = line.map_or_else(String::new, |line| format!(", line {line}"));
        Error::config("config", format!("{}{line}: {}", self.origin, problem.into()))
    }

    fn file(&self, document: &DeTable<'_>) -> Result<ServeFile> {
        let mut file = ServeFile::default();
        for (key, value) in document {
            let at = Some(key.span().start);
            let table = value.get_ref().as_table();
            let table = table.ok_or_else(|| self.wrong(at, format!("{} must be a table", key.get_ref())));
            match key.get_ref().as_ref() {
                "server" => file.server = self.server(table?)?,
                "datasets" => {
                    for (name, value) in table? {
                        let at = name.span().start;
                        let name = name.get_ref().as_ref();
                        let options = value.get_ref().as_table().ok_or_else(|| {
                            self.wrong(Some(at), format!("datasets.{name} must be a table: [datasets.{name}]"))
                        })?;
                        let entry = self.dataset(name, options, at)?;
                        file.catalogue.insert(entry).map_err(|error| self.wrong(Some(at), inner(&error)))?;
                    }
                }
                "mounts" => {
                    table?;
                    let mounts = Mounts::from_toml(self.text, self.origin);
                    file.catalogue.set_mounts(Arc::new(mounts.map_err(|error| match error {
                        Error::Config { problem, .. } => Error::config("config", problem),
                        other => other,
                    })?));
                }
                other => {
                    return Err(self.wrong(at, format!("unknown key `{other}`; there are server, datasets, mounts")));
                }
            }
        }
        Ok(file)
    }

    fn server(&self, table: &DeTable<'_>) -> Result<ServerOptions> {
        let mut whole = self.table(table)?;
        let sizes = sizes(&mut whole);
        sizes.map_err(|(key, problem)| self.wrong(find(table, &key), format!("server.{key}: {problem}")))?;
        let options: ServerOptions = self.read(table, whole, "server", 0)?;
        options.limits.validate().and(options.quotas.validate()).map_err(|error| {
            let key = match &error {
                Error::Config { option, .. } => *option,
                _ => "server",
            };
            self.wrong(find(table, key), error.to_string())
        })?;
        Ok(options)
    }

    fn dataset(&self, name: &str, table: &DeTable<'_>, at: usize) -> Result<Entry> {
        let path = format!("datasets.{name}");
        let mut options = DeTable::new();
        let mut limits = DeTable::new();
        let mut urls = None;
        for (key, value) in table {
            match (key.get_ref().as_ref(), value.get_ref()) {
                ("url" | "urls", _) if urls.is_some() => {
                    return Err(self.wrong(Some(key.span().start), format!("{path}: give url or urls, not both")));
                }
                ("url", DeValue::String(url)) => urls = Some(vec![url.to_string()]),
                ("urls", list @ DeValue::Array(_)) => {
                    let list = self.json(list, key.span().start)?;
                    let list = serde_json::from_value(list).map_err(|_| {
                        self.wrong(Some(key.span().start), format!("{path}.urls must be a list of texts"))
                    })?;
                    urls = Some(list);
                }
                (key_text @ ("url" | "urls"), _) => {
                    let kind = if key_text == "url" { "a text" } else { "a list of texts" };
                    return Err(self.wrong(Some(key.span().start), format!("{path}.{key_text} must be {kind}")));
                }
                // `limits` holds both the limits on clients and those on files.
                ("limits", DeValue::Table(table)) => {
                    let mut files = DeTable::new();
                    for (limit, value) in table {
                        let of_clients = LIMITS.contains(&limit.get_ref().as_ref());
                        let table = if of_clients { &mut limits } else { &mut files };
                        table.insert(limit.clone(), value.clone());
                    }
                    options.insert(key.clone(), toml::Spanned::new(value.span(), DeValue::Table(files)));
                }
                _ => {
                    options.insert(key.clone(), value.clone());
                }
            }
        }
        let urls = urls.ok_or_else(|| self.wrong(Some(at), format!("{path} needs url or urls")))?;
        let limits: ClientLimits = self.read(&limits, self.table(&limits)?, &format!("{path}.limits"), at)?;
        // Parsed once for its errors, to give them a line; the entry parses it again when a client asks.
        let Options(options) = self.read(&options, self.table(&options)?, &path, at)?;
        Entry::new(name, urls, options, limits)
            .map_err(|error| self.wrong(Some(at), format!("{path}: {}", inner(&error))))
    }

    /// Reads a table as `T`. An error names the deepest key that causes it alone.
    fn read<T: DeserializeOwned>(
        &self,
        table: &DeTable<'_>,
        whole: Map<String, Value>,
        path: &str,
        at: usize,
    ) -> Result<T> {
        let error = match serde_json::from_value::<T>(Value::Object(whole)) {
            Ok(read) => return Ok(read),
            Err(error) => error.to_string(),
        };
        let alone = |key: &str, value: Value| {
            let problem = serde_json::from_value::<T>(json!({key: value})).err().map(|error| error.to_string());
            problem.is_some_and(|problem| problem == error)
        };
        for (key, value) in table {
            let (name, start) = (key.get_ref().as_ref(), key.span().start);
            if !alone(name, self.json(value.get_ref(), start)?) {
                continue;
            }
            // The values are secrets.
            if matches!(name, "storage_options" | "cache_peer_options") {
                return Err(self.wrong(Some(start), format!("{path}.{name} must be a table of texts")));
            }
            if let Some(inner) = value.get_ref().as_table() {
                for (below, value) in inner {
                    let start = below.span().start;
                    let value = self.json(value.get_ref(), start)?;
                    if alone(name, json!({below.get_ref().as_ref(): value})) {
                        return Err(
                            self.wrong(Some(start), format!("{path}.{name}.{}: {}", below.get_ref(), words(&error)))
                        );
                    }
                }
            }
            return Err(self.wrong(Some(start), format!("{path}.{name}: {}", words(&error))));
        }
        Err(self.wrong(Some(at), format!("{path}: {}", words(&error))))
    }

    fn table(&self, table: &DeTable<'_>) -> Result<Map<String, Value>> {
        table
            .iter()
            .map(|(key, value)| Ok((key.get_ref().to_string(), self.json(value.get_ref(), key.span().start)?)))
            .collect()
    }

    /// Converts a value to JSON. TOML's parser bounds the depth.
    fn json(&self, value: &DeValue<'_>, at: usize) -> Result<Value> {
        Ok(match value {
            DeValue::String(text) => json!(text),
            DeValue::Boolean(yes) => json!(yes),
            DeValue::Integer(number) => {
                let (digits, radix) = (number.as_str(), number.radix());
                let signed = i64::from_str_radix(digits, radix).map(|number| json!(number));
                let number = signed.or_else(|_| u64::from_str_radix(digits, radix).map(|number| json!(number)));
                number.map_err(|_| self.wrong(Some(at), "a number is too large"))?
            }
            DeValue::Float(number) => {
                let number = number.as_str().parse::<f64>().ok().filter(|number| number.is_finite());
                json!(number.ok_or_else(|| self.wrong(Some(at), "a number is not finite; write it as a text"))?)
            }
            DeValue::Datetime(_) => return Err(self.wrong(Some(at), "dates and times are written as texts")),
            DeValue::Array(list) => Value::Array(
                list.iter().map(|value| self.json(value.get_ref(), value.span().start)).collect::<Result<_>>()?,
            ),
            DeValue::Table(table) => Value::Object(self.table(table)?),
        })
    }
}

/// Returns true for keys of a server whose values are sizes, which may be texts.
pub(super) fn is_size(key: &str) -> bool {
    key == "memory_budget" || key.ends_with("_bytes")
}

/// Makes numbers of bytes of sizes that are texts: `"4GiB"`.
///
/// # Errors
/// The key of a text that is no size, and why.
fn sizes(table: &mut Map<String, Value>) -> Result<(), (String, String)> {
    for (key, value) in table {
        match value {
            Value::String(text) if is_size(key) => {
                *value = bytes(text).map_err(|problem| (key.clone(), problem))?.into();
            }
            Value::Object(inner) => sizes(inner)?,
            _ => {}
        }
    }
    Ok(())
}

/// Returns the position of `key` in `table` or in a table in it.
fn find(table: &DeTable<'_>, key: &str) -> Option<usize> {
    table.iter().find_map(|(name, value)| {
        let here = (name.get_ref() == key).then(|| name.span().start);
        here.or_else(|| value.get_ref().as_table().and_then(|table| find(table, key)))
    })
}

/// Options of a loader, checked and kept as written.
struct Options(Map<String, Value>);

impl<'de> serde::Deserialize<'de> for Options {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = Map::deserialize(deserializer)?;
        let options = gathered(written).map_err(|error| serde::de::Error::custom(inner(&error)))?;
        LoaderOptions::from_document(options.clone()).map_err(|error| serde::de::Error::custom(inner(&error)))?;
        Ok(Self(options))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_can_be_said_is_read() {
        let text = r#"
            [server]
            listen = "127.0.0.1:0"
            admin = "127.0.0.1:0"
            memory_budget = "1.5 GiB"
            threads = 2
            max_streams = 64
            replicas = ["grpc://a:1", "grpc://b:1"]
            tls = { cert = "c.pem", key = "k.pem", client_ca = "a.pem" }
            tokens = "tokens"
            key_file = "key"
            insecure = false
            drain_grace = 5
            journal = "journal"
            [server.limits]
            connections = 10
            frame_bytes = "64KiB"
            [server.quotas.default]
            streams = 8
            [server.quotas.tenants.anna]
            bytes_per_second = 1_000_000

            [datasets.photos]
            urls = ["a.parquet", "b.parquet"]
            columns = ["image", "label"]
            images = { image = { size = 64, crop = "center" } }
            shuffle = false
            storage_options = { aws_region = "x" }
            [datasets.photos.limits]
            max_batch_size = 256
            allow_options = ["batch_size", "seed"]
            max_files = 5
        "#;
        let file = ServeFile::from_toml(text, "x.toml").unwrap();
        assert_eq!(file.server.tls.as_ref().unwrap().client_ca, Some("a.pem".into()));
        assert_eq!((file.server.limits.connections, file.server.max_streams), (10, Some(64)));
        assert_eq!((file.server.memory_budget, file.server.limits.frame_bytes), (Some(3 << 29), 64 << 10));
        assert_eq!(file.server.quotas.tenants["anna"].bytes_per_second, Some(1_000_000));
        let options = file.catalogue.get("photos").unwrap().options(&json!({"batch_size": 2})).unwrap();
        assert_eq!(options.urls, ["a.parquet", "b.parquet"]);
        assert_eq!(options.columns.columns, ["image", "label"]);
        assert_eq!(options.columns.images["image"].size.unwrap().height, 64);
        assert_eq!((options.limits.max_files, options.shuffle), (5, false));
        assert!(ServeFile::from_toml("", "x.toml").unwrap().catalogue.is_empty());
    }

    #[cfg(feature = "cli")]
    #[test]
    fn keys_have_lines() {
        let text = "[server]\nthreads = 2\nlimits.connections = 3\n\n[datasets.x]\nurl = \"a\"\n";
        let found: Vec<_> = lines(text).into_iter().collect();
        let expected = [
            ("datasets", 5),
            ("datasets.x", 5),
            ("datasets.x.url", 6),
            ("server", 1),
            ("server.limits", 3),
            ("server.limits.connections", 3),
            ("server.threads", 2),
        ];
        assert_eq!(found, expected.map(|(path, line)| (path.to_owned(), line)));
        assert!(lines("[server").is_empty());
    }

    #[test]
    fn mistakes_have_a_line_and_a_key_and_no_secret() {
        for (text, line, what) in [
            ("[server]\nlisen = 1", 2, "server.lisen: unknown key `lisen`; did you mean `listen`?"),
            ("[server]\nthreads = \"two\"", 2, "server.threads"),
            ("[server]\nmemory_budget = \"4 elephants\"", 2, "server.memory_budget: \"...\" is no size"),
            ("[servers]", 1, "unknown key `servers`"),
            ("server = 1", 1, "must be a table"),
            ("[server]\n\n[server.limits]\nconections = 1", 4, "server.limits.conections"),
            ("[server.limits]\nconnections = 0", 2, "connections"),
            ("[server]\ntls = { cert = \"c\" }", 2, "missing key `key`"),
            ("[server\n", 1, "no TOML"),
            (
                "[datasets.x]\nurl = \"a\"\nbach_size = 3",
                3,
                "datasets.x.bach_size: unknown option `bach_size`; did you mean `batch_size`?",
            ),
            (
                "[datasets.x]\nurl = \"a\"\n[datasets.x.columns]\ncolumns = []\nexclud = []",
                5,
                "datasets.x.columns.exclud",
            ),
            ("[datasets.x]\nurl = \"a\"\nimages = { image = { sise = 3 } }", 3, "datasets.x.images"),
            ("[datasets.x]\nurl = \"a\"\ntail = \"keep\"", 3, "datasets.x.tail"),
            ("[datasets.x]\nurl = \"a\"\n[datasets.x.limits]\nmax_bach = 3", 4, "datasets.x.limits.max_bach"),
            ("[datasets.x]\nurl = \"a\"\n[datasets.x.limits]\nmax_batch_size = -3", 4, "max_batch_size"),
            ("[datasets.x]\nurl = \"a\"\nlimits = { allow_options = [\"urls\"] }", 1, "allow_options"),
            ("[datasets.x]\nbatch_size = 3", 1, "needs url or urls"),
            ("[datasets.x]\nurl = \"a\"\nurls = [\"b\"]", 3, "not both"),
            ("[datasets.x]\nurl = 3", 2, "must be a text"),
            ("[datasets.x]\nurls = [3]", 2, "list of texts"),
            ("[datasets.\"a b\"]\nurl = \"a\"", 1, "letters, digits"),
            ("[datasets.x]\nurl = \"a\"\nrank = 1", 1, "rank"),
            ("[datasets.x]\nurl = \"a\"\nseed = 2024-01-01", 3, "dates"),
            ("[datasets.x]\nurl = \"a\"\nseed = 99999999999999999999", 3, "too large"),
            ("[datasets.x]\nurl = \"a\"\nfilter = \"id <\"", 1, "filter"),
            ("[datasets.x]\nurl = \"a\"\nstorage_options = \"s3cr3t\"", 3, "storage_options"),
            ("[datasets.x]\nurl = \"a\"\nstorage_options = { key = [\"s3cr3t\"] }", 3, "storage_options"),
            ("[datasets.x]\nurl = \"a\"\nstorage_options = { key = \"s3cr3t\" \"", 3, "no TOML"),
            (
                "[datasets.x]\nurl = \"a\"\n[datasets.x.limits]\nmax_batch_size = \"a s3cr3t text\"",
                4,
                "datasets.x.limits.max_batch_size: \"...\" is not a whole number",
            ),
            ("[server]\nthreads = \"a s3cr3t ` text\"", 2, "server.threads: \"...\" is not a whole number"),
            ("[server]\nthreads = \"a s3cr3t \\\" quoted\"", 2, "server.threads: \"...\" is not a whole number"),
            ("[datasets.x]\nurl = \"a\"\ntail = \"a s3cr3t text\"", 3, "datasets.x.tail: \"...\" is not one of"),
            (
                "[datasets.x]\nurl = \"a\"\nfilter = \"a s3cr3t text\"",
                1,
                "datasets.x: at character 3: expected a comparison",
            ),
        ] {
            let error = ServeFile::from_toml(text, "serve.toml").unwrap_err().to_string();
            assert!(error.contains(&format!("serve.toml, line {line}: ")) && error.contains(what), "{text:?}: {error}");
            assert!(!error.contains("s3cr3t"), "{error}");
        }
    }
}
