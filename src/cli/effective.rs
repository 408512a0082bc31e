//! The configuration that a server has in effect, each value with its source: a line of the file, a variable, a flag, the default. As text
//! it is TOML that a server reads again, except for secrets, which are hidden.

use std::collections::BTreeMap;
use std::fmt;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::cli::table::plain;
use crate::flight::server::Entry;
use crate::flight::server::file::ServeFile;
use crate::pipeline::Kind;
use crate::pipeline::option_table::{OPTIONS, OptionEntry, option};
use crate::store::{Mount, display};

/// The source of what was not given.
const DEFAULT: &str = "default";
/// Shown in place of a secret.
const HIDDEN: &str = "***";

/// Where values come from.
#[derive(Debug)]
pub(crate) struct Sources {
    file: String,
    /// Line of each key of the file.
    lines: BTreeMap<String, usize>,
    /// Flag or variable of each key that one was given for.
    typed: BTreeMap<String, String>,
}

impl Sources {
    /// The file `name`, whose keys have these `lines`.
    pub(crate) fn new(name: String, lines: BTreeMap<String, usize>) -> Self {
        Self { file: name, lines, typed: BTreeMap::new() }
    }

    /// The same with the flags and variables that `matches` found for `command`.
    pub(crate) fn typed(mut self, command: &Command, matches: &ArgMatches) -> Self {
        for argument in command.get_arguments() {
            let id = argument.get_id().as_str();
            let source = match matches.value_source(id) {
                Some(ValueSource::CommandLine) => argument.get_long().map(|flag| format!("--{flag}")),
                Some(ValueSource::EnvVariable) => argument.get_env().map(|name| name.to_string_lossy().into_owned()),
                _ => None,
            };
            let key = match id {
                "tls_cert" => "tls.cert",
                "tls_key" => "tls.key",
                "client_ca" => "tls.client_ca",
                other => other,
            };
            if let Some(source) = source {
                self.typed.insert(format!("server.{key}"), source);
            }
        }
        self
    }

    /// The source of the first of `paths` that was given.
    fn of(&self, paths: &[&str]) -> Option<String> {
        let line = |line: &usize| format!("{}, line {line}", self.file);
        paths.iter().find_map(|path| self.typed.get(*path).cloned().or_else(|| self.lines.get(*path).map(line)))
    }
}

/// A value with its source; null is none.
#[derive(Debug, Serialize)]
struct Sourced {
    value: Value,
    source: String,
}

/// See the module. Tables by their paths, with their values by key.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct Effective(BTreeMap<String, BTreeMap<String, Sourced>>);

impl Effective {
    /// Of the configuration `file`.
    pub(crate) fn of(file: &ServeFile, sources: &Sources) -> Self {
        let mut effective = Self(BTreeMap::new());
        let server = serde_json::to_value(file.server.with_defaults()).unwrap_or_default();
        effective.server(&["server".to_owned()], server.as_object().unwrap_or(&Map::new()), sources);
        for entry in file.catalogue.entries() {
            effective.dataset(entry, sources);
        }
        file.catalogue
            .mounts()
            .into_iter()
            .flat_map(|mounts| mounts.iter())
            .for_each(|mount| effective.mount(mount, sources));
        effective
    }

    fn put(&mut self, table: &[String], key: &str, value: Value, source: Option<String>) {
        let table: Vec<String> = table.iter().map(|part| bare(part)).collect();
        let source = source.unwrap_or_else(|| DEFAULT.to_owned());
        self.0.entry(table.join(".")).or_default().insert(bare(key), Sourced { value, source });
    }

    fn server(&mut self, table: &[String], values: &Map<String, Value>, sources: &Sources) {
        for (key, value) in values {
            if let Value::Object(inner) = value {
                self.server(&[table, std::slice::from_ref(key)].concat(), inner, sources);
                continue;
            }
            let path = format!("{}.{key}", table.join("."));
            // The same limit at two places: that beside the others counts.
            let source = match path.as_str() {
                "server.max_streams" | "server.limits.max_streams" => {
                    sources.of(&["server.max_streams", "server.limits.max_streams"])
                }
                // A tenant has the default's value of what it does not have itself.
                path if path.starts_with("server.quotas.tenants.") => {
                    sources.of(&[path, &format!("server.quotas.default.{key}")])
                }
                path => sources.of(&[path]),
            };
            self.put(table, key, value.clone(), source);
        }
    }

    fn mount(&mut self, mount: &Mount, sources: &Sources) {
        let table = ["mounts".to_owned(), mount.name().to_owned()];
        let source = |key: &str| {
            let other = || {
                format!("{}={}", option("mounts").and_then(OptionEntry::variable).unwrap_or_default(), mount.origin())
            };
            sources.of(&[&format!("mounts.{}.{key}", mount.name())]).or_else(|| Some(other()))
        };
        self.put(&table, "url", json!(mount.shown()), source("url"));
        let options: Map<_, _> = mount.option_names().map(|name| (name.to_owned(), json!(HIDDEN))).collect();
        if !options.is_empty() {
            self.put(&table, "storage_options", Value::Object(options), source("storage_options"));
        }
    }

    fn dataset(&mut self, entry: &Entry, sources: &Sources) {
        let table = ["datasets".to_owned(), entry.name().to_owned()];
        let at = |key: &str| format!("datasets.{}.{key}", entry.name());
        let mut given = entry.given().clone();
        let limits = given.remove("limits");
        let columns = given.remove("columns");
        let columns = columns.as_ref().and_then(Value::as_object).cloned().unwrap_or_default();
        let source = |key: &str| {
            let found = match key {
                "urls" => sources.of(&[&at("url"), &at("urls")]),
                _ => sources.of(&[&at(&format!("columns.{key}")), &at(key)]),
            };
            found.or_else(|| Some("command line".to_owned()))
        };
        for (key, value) in given.iter().chain(&columns) {
            self.put(&table, key, hidden(key, value), source(key));
        }
        let here = |entry: &&OptionEntry| {
            let is_given = given.contains_key(entry.name) || columns.contains_key(entry.name);
            !entry.default.is_empty() && entry.is_of_the_data() && !is_given
        };
        for entry in OPTIONS.iter().filter(here) {
            let value = entry.kind.parse(entry.default).unwrap_or_else(|_| json!(entry.default));
            self.put(&table, entry.name, value, None);
        }
        let clients = serde_json::to_value(entry.limits()).unwrap_or_default();
        let all = [Some(clients), limits].into_iter().flatten();
        let table = [&table[..], &["limits".to_owned()]].concat();
        for (key, value) in all.filter_map(|limits| limits.as_object().cloned()).flatten() {
            self.put(&table, &key, value, sources.of(&[&at(&format!("limits.{key}"))]));
        }
    }
}

/// `value` of the option `name` without secrets: values of the store's options, and credentials in addresses.
fn hidden(name: &str, value: &Value) -> Value {
    match (option(name).map(|entry| entry.kind), value) {
        (Some(Kind::Pairs), Value::Object(pairs)) => {
            Value::Object(pairs.keys().map(|key| (key.clone(), json!(HIDDEN))).collect())
        }
        (Some(Kind::Pairs), _) => json!(HIDDEN),
        (Some(Kind::Text), Value::String(text)) => json!(display(text)),
        (Some(Kind::Names), Value::Array(list)) => {
            list.iter().map(|one| one.as_str().map_or_else(|| one.clone(), |text| json!(display(text)))).collect()
        }
        _ => value.clone(),
    }
}

/// A key as TOML has it: in quotes where it needs them.
fn bare(key: &str) -> String {
    let is_bare = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
    if is_bare { key.to_owned() } else { toml(&json!(key)) }
}

/// A value as TOML has it, on one line.
fn toml(value: &Value) -> String {
    match value {
        Value::Null => "\"\"".to_owned(),
        // Escapes of JSON are those of TOML, which has more.
        Value::String(_) => value.to_string(),
        Value::Array(list) => format!("[{}]", list.iter().map(toml).collect::<Vec<_>>().join(", ")),
        Value::Object(parts) => {
            let parts: Vec<_> = parts
                .iter()
                .filter(|(_, value)| !value.is_null())
                .map(|(key, value)| format!("{} = {}", bare(key), toml(value)))
                .collect();
            if parts.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", parts.join(", ")) }
        }
        number_or_switch => number_or_switch.to_string(),
    }
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (table, values)) in self.0.iter().enumerate() {
            writeln!(f, "{}[{}]", if at == 0 { "" } else { "\n" }, plain(table))?;
            for (key, Sourced { value, source }) in values {
                match value {
                    Value::Null => writeln!(f, "# {} is not set", plain(key))?,
                    value => writeln!(f, "{} = {}  # {}", plain(key), plain(&toml(value)), plain(source))?,
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::server::file::lines;

    const FILE: &str = r#"
[server]
listen = "127.0.0.1:1"
max_streams = 9
memory_budget = 1_000_000_000
tls = { cert = "c.pem", key = "k.pem" }
[server.quotas.default]
bytes_per_second = 5
[server.quotas.tenants."certificate:anna"]
streams = 2
[server.spaces]
research = ["anna"]
[datasets.photos]
url = "https://me:s3cr3t@host/x.parquet?sig=s3cr3t"
storage_options = { token = "s3cr3t" }
images = { image = { size = 64 } }
filter = "label == 'a://b?c'"
limits = { max_batch_size = 7, max_files = 5 }
"#;

    fn effective() -> (Effective, String) {
        let file = ServeFile::from_toml(FILE, "serve.toml").unwrap();
        let effective = Effective::of(&file, &Sources::new("serve.toml".to_owned(), lines(FILE)));
        let text = effective.to_string();
        (effective, text)
    }

    #[test]
    fn every_value_has_its_source_and_secrets_are_hidden() {
        let (effective, text) = effective();
        for line in [
            "listen = \"127.0.0.1:1\"  # serve.toml, line 3",
            "max_streams = 9  # serve.toml, line 4",
            "cert = \"c.pem\"  # serve.toml, line 6",
            "drain_grace = 30.0  # default",
            "# tokens is not set",
            "[server.quotas.tenants.\"certificate:anna\"]",
            "bytes_per_second = 5  # serve.toml, line 8",
            "streams = 256  # default",
            "streams = 2  # serve.toml, line 10",
            "research = [\"anna\"]  # serve.toml, line 12",
            "urls = [\"https://host/x.parquet\"]  # serve.toml, line 14",
            "storage_options = { token = \"***\" }  # serve.toml, line 15",
            "images = { image = { size = 64 } }  # serve.toml, line 16",
            "filter = \"label == 'a://b?c'\"  # serve.toml, line 17",
            "max_batch_size = 7  # serve.toml, line 18",
            "max_files = 5  # serve.toml, line 18",
            "shuffle = true  # default",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("s3cr3t") && !text.contains("device"), "{text}");
        let document = serde_json::to_value(&effective).unwrap();
        assert_eq!(document["server"]["admin"], json!({"value": null, "source": "default"}));
        assert!(!document.to_string().contains("s3cr3t"), "{document}");
    }

    #[test]
    fn the_text_is_a_configuration_with_the_same_effect() {
        let (_, text) = effective();
        let again = ServeFile::from_toml(&text, "shown").unwrap_or_else(|error| panic!("{error}\n{text}"));
        let before = ServeFile::from_toml(FILE, "serve.toml").unwrap();
        assert_eq!(again.server.with_defaults(), before.server.with_defaults());
        assert_eq!(again.catalogue.names().collect::<Vec<_>>(), ["photos"]);
    }

    #[test]
    fn names_and_texts_of_any_letters_are_toml() {
        let value = json!({"a b": "x\n\"\u{1b}\t", "c": [1, 2.5, true, {}]});
        let text = format!("{} = {}", bare("k.1"), toml(&value));
        let read: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(serde_json::to_value(&read["k.1"]).unwrap(), value);
    }
}
