//! The JSON Schema of a server's configuration, for editors and checks. Nothing is said here twice: keys, types and descriptions of
//! `[server]` come from the structs that read it, ranges from the tables that check it, and options of datasets from the table of options.

use schemars::{JsonSchema, schema_for};
use serde_json::{Map, Value, json};

use super::entry::ClientLimits;
use super::file::is_size;
use super::options::{self, ServerOptions};
use crate::flight::server::ops::limits;
use crate::pipeline::LoaderOptions;
use crate::pipeline::option_table::{About, OPTIONS, OptionEntry};

/// Options of a loader that no dataset of a catalogue has: the ranks are the clients'.
const NOT_HERE: [&str; 3] = ["urls", "rank", "world_size"];

/// The schema of the file that [`ServeFile`](super::file::ServeFile) reads.
pub(crate) fn schema() -> Value {
    let mut definitions = Map::new();
    let server = of::<ServerOptions>(&mut definitions);
    with_ranges(&mut definitions);
    with_sizes(&mut definitions);
    let clients = of::<ClientLimits>(&mut definitions);
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "serve.toml",
        "description": "The configuration of `bowstring serve --config`.",
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "server": server,
            "datasets": {
                "description": "Datasets by name.",
                "type": "object",
                "propertyNames": {"pattern": "^[A-Za-z0-9._-]{1,128}$"},
                "additionalProperties": dataset(&definitions, &clients),
            },
            "mounts": {
                "description": "Stores that addresses below bow:// lead to, by name: segments with / between them.",
                "type": "object",
                "propertyNames": {"pattern": "^[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*$"},
                "additionalProperties": mount(),
            },
        },
        "$defs": definitions,
    })
}

/// A reference to the schema of `T`, which is put with those that it needs into `definitions`.
fn of<T: JsonSchema>(definitions: &mut Map<String, Value>) -> Value {
    let mut schema = schema_for!(T).to_value();
    tidy(&mut schema);
    if let Value::Object(parts) = &mut schema {
        parts.remove("$schema");
        if let Some(Value::Object(inner)) = parts.remove("$defs") {
            definitions.extend(inner);
        }
    }
    let name = T::schema_name().into_owned();
    let reference = json!({"$ref": format!("#/$defs/{name}")});
    definitions.insert(name, schema);
    reference
}

/// Leaves null out: TOML has none, and an option that is not given is left out of the file. Formats are widths of Rust's numbers.
fn tidy(schema: &mut Value) {
    let is_null = |value: &Value| *value == "null" || *value == json!({"type": "null"});
    match schema {
        Value::Array(parts) => parts.iter_mut().for_each(tidy),
        Value::Object(parts) => {
            parts.retain(|key, value| !(value.is_null() || key == "format" && value.is_string()));
            // The lines of a comment are not those of a text.
            if let Some(Value::String(text)) = parts.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            for key in ["type", "anyOf"] {
                let Some(Value::Array(choices)) = parts.get_mut(key) else { continue };
                choices.retain(|choice| !is_null(choice));
                let [only] = choices.as_slice() else { continue };
                match only.clone() {
                    Value::Object(inner) => {
                        parts.remove(key);
                        parts.extend(inner);
                    }
                    only => drop(parts.insert(key.to_owned(), only)),
                }
            }
            parts.values_mut().for_each(tidy);
        }
        _ => {}
    }
}

/// Adds the ranges that are checked when the file is read.
fn with_ranges(definitions: &mut Map<String, Value>) {
    let mut range = |of: &str, name: &str, least: Value, most: Value| {
        if let Some(Value::Object(option)) =
            definitions.get_mut(of).and_then(|of| of.pointer_mut(&format!("/properties/{name}")))
        {
            option.extend([("minimum".to_owned(), least), ("maximum".to_owned(), most)]);
        }
    };
    for (name, least, most) in limits::RANGES {
        range("Limits", name, least.into(), most.into());
    }
    for options::Range { name, least, most, .. } in options::RANGES {
        range("ServerOptions", name, number(least), number(most));
    }
}

/// Sizes may be texts, too.
fn with_sizes(definitions: &mut Map<String, Value>) {
    for definition in definitions.values_mut() {
        let Some(Value::Object(properties)) = definition.get_mut("properties") else { continue };
        let sizes = properties.iter_mut().filter(|(key, _)| is_size(key));
        sizes.filter_map(|(_, option)| option.get_mut("type")).for_each(|kind| *kind = json!(["integer", "string"]));
    }
}

/// A number without a fraction where it has none.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 { json!(value as i64) } else { json!(value) }
}

/// A dataset: where it is, options of a loader, limits of clients and of files.
fn dataset(definitions: &Map<String, Value>, clients: &Value) -> Value {
    let mut properties = Map::from_iter([
        ("url".to_owned(), json!({"description": "Its address.", "type": "string"})),
        (
            "urls".to_owned(),
            json!({"description": "Its addresses.", "type": "array", "items": {"type": "string"}, "minItems": 1}),
        ),
    ]);
    let of_columns = |entry: &&OptionEntry| entry.about == About::Columns;
    let columns: Map<_, _> = OPTIONS.iter().filter(of_columns).map(option).collect();
    properties.extend(OPTIONS.iter().filter(|entry| !NOT_HERE.contains(&entry.name)).map(option));
    if let Some(Value::Object(own)) = properties.get_mut("columns") {
        own.remove("type");
        own.remove("items");
        let mapping = json!({"type": "object", "additionalProperties": false, "properties": columns});
        own.insert("anyOf".to_owned(), json!([{"type": "array", "items": {"type": "string"}}, mapping]));
    }
    if let Some(Value::Object(own)) = properties.get_mut("limits") {
        own.extend(limits_of(definitions, clients));
    }
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
        "oneOf": [{"required": ["url"]}, {"required": ["urls"]}],
    })
}

/// A mount: a directory of a store, and the options that it alone is reached with.
fn mount() -> Value {
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "url": {"description": "The address of a directory.", "type": "string"},
            "storage_options": {
                "description": "Options of its store, under object_store's names.",
                "type": "object",
                "additionalProperties": {"type": "string"},
            },
        },
        "required": ["url"],
    })
}

/// `limits` holds both the limits on clients and those on files, which are whole numbers.
fn limits_of(definitions: &Map<String, Value>, clients: &Value) -> Map<String, Value> {
    let name = clients["$ref"].as_str().and_then(|path| path.rsplit('/').next()).unwrap_or_default();
    let own = definitions.get(name).and_then(|of| of["properties"].as_object()).cloned().unwrap_or_default();
    let files = serde_json::to_value(LoaderOptions::default().limits).unwrap_or_default();
    let files = files.as_object().cloned().unwrap_or_default();
    let file = |(name, default)| (name, json!({"type": "integer", "minimum": 0, "default": default}));
    let properties: Map<_, _> = own.into_iter().chain(files.into_iter().map(file)).collect();
    Map::from_iter([
        ("type".to_owned(), json!("object")),
        ("additionalProperties".to_owned(), json!(false)),
        ("properties".to_owned(), Value::Object(properties)),
    ])
}

fn option(entry: &OptionEntry) -> (String, Value) {
    let mut schema = entry.kind.schema();
    if let Value::Object(parts) = &mut schema {
        parts.insert("description".to_owned(), json!(entry.sentence));
        if let Ok(default) = entry.kind.parse(entry.default)
            && !entry.default.is_empty()
        {
            parts.insert("default".to_owned(), default);
        }
    }
    (entry.name.to_owned(), schema)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::server::file::ServeFile;

    #[test]
    fn it_has_every_key_of_a_server_with_its_type_range_and_description() {
        let schema = schema();
        let known = |of: &str| schema.pointer(&format!("/$defs/{of}/properties")).unwrap().as_object().unwrap();
        let options = serde_json::to_value(ServeFile::default().server).unwrap();
        for (of, options) in
            [("ServerOptions", &options), ("Limits", &options["limits"]), ("Quota", &options["quotas"]["default"])]
        {
            let (known, options) = (known(of), options.as_object().unwrap());
            assert!(known.keys().eq(options.keys()), "{of}: {known:?}");
            assert!(known.values().all(|option| option["description"].is_string()), "{of}: {known:?}");
        }
        let server = known("ServerOptions");
        assert_eq!((&server["threads"]["type"], &server["threads"]["maximum"]), (&json!("integer"), &json!(4096)));
        assert_eq!((&server["gang_lease"]["minimum"], &server["listen"]["type"]), (&json!(0.1), &json!("string")));
        assert_eq!(server["tls"]["$ref"], "#/$defs/TlsFiles");
        assert_eq!(known("Limits")["frame_bytes"]["minimum"], 16_384);
        let text = schema.to_string();
        assert!(!text.contains(":null") && !text.contains("\"null\"") && !text.contains("\\n"), "{text}");
        for part in text.split("\"#/$defs/").skip(1) {
            let name = part.split('"').next().unwrap();
            assert!(schema["$defs"].get(name).is_some(), "{name} is defined");
        }
    }

    #[test]
    fn datasets_have_the_options_of_the_table_and_no_others() {
        let schema = schema();
        let dataset = &schema["properties"]["datasets"]["additionalProperties"];
        let known = dataset["properties"].as_object().unwrap();
        for entry in OPTIONS {
            assert_eq!(
                known.contains_key(entry.name),
                entry.name == "urls" || !NOT_HERE.contains(&entry.name),
                "{}",
                entry.name
            );
        }
        assert_eq!(known.len(), OPTIONS.len() - NOT_HERE.len() + 2, "with url and urls");
        assert_eq!((&known["seed"]["default"], &known["tail"]["enum"][0]), (&json!(0), &json!("short")));
        assert!(known["limits"]["properties"]["max_batch_size"].is_object());
        assert_eq!(known["limits"]["properties"]["max_files"]["default"], 1_000_000);
        assert!(known["columns"]["anyOf"][1]["properties"]["images"].is_object());
        // The file reads what the schema has.
        let file =
            "[datasets.x]\nurl = \"a\"\nseed = 3\ntail = \"short\"\nlimits = { max_batch_size = 3, max_files = 2 }";
        ServeFile::from_toml(file, "x").unwrap();
    }
}
