//! Options as a document: JSON from Python and from clients, a file of options, a table of a server's catalogue.
//!
//! An error names the option and its value in the user's words, never a position in a document that the user did not write.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::option_kind::{Kind, bytes};
use super::option_table::{OPTIONS, OptionEntry, is_of_columns, option, unknown};
use super::options::LoaderOptions;
use crate::document::words;
use crate::error::{Error, Result};
#[cfg(any(feature = "cli", feature = "flight"))]
use crate::store::at_home;

impl LoaderOptions {
    /// Options from JSON text.
    ///
    /// # Errors
    /// As [`from_document`](Self::from_document), and [`Error::Config`] for anything but a JSON object.
    pub fn from_json(json: &str) -> Result<Self> {
        match serde_json::from_str(json) {
            Ok(Value::Object(document)) => Self::from_document(document),
            Ok(_) => Err(Error::config("options", "the options must be one JSON object")),
            Err(error) => Err(Error::config("options", format!("this is no JSON: {error}"))),
        }
    }

    /// Options by name; those of columns may be placed under `columns`, or beside the others.
    ///
    /// # Errors
    /// [`Error::Config`] naming an option that is unknown, with the nearest known one, or that has an impossible value.
    pub fn from_document(document: Map<String, Value>) -> Result<Self> {
        let mut document = gathered(document)?;
        for (name, value) in &document {
            match value {
                Value::Object(columns) if name == "columns" => columns.iter().try_for_each(|(name, value)| {
                    if is_of_columns(name) {
                        checked(name, value)
                    } else {
                        Err(Error::config("columns", unknown(name, true)))
                    }
                })?,
                value => checked(name, value)?,
            }
        }
        for (name, value) in &mut document {
            if let (Some(OptionEntry { name, kind: Kind::Bytes, .. }), Some(text)) = (option(name), value.as_str()) {
                *value = json!(bytes(text).map_err(|problem| Error::config(name, problem))?);
            }
        }
        let read = read(&document).map_err(|error| culprit(&document, &error))?;
        Ok(Self { given: given(&document), ..read })
    }
}

/// The names of the options in a gathered document. An empty list, mapping or text, as of a variable that is set to nothing, gives nothing.
fn given(document: &Map<String, Value>) -> BTreeSet<&'static str> {
    let columns = document.get("columns").and_then(Value::as_object);
    let apart = document.iter().filter(|(name, _)| *name != "columns");
    let given = apart.chain(columns.into_iter().flatten()).filter(|(_, value)| !is_nothing(value));
    given.filter_map(|(name, _)| Some(option(name)?.name)).collect()
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(parts) => parts.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// Expands a `~` at the start of the options that are paths.
#[cfg(any(feature = "cli", feature = "flight"))]
pub(crate) fn paths_at_home(document: &mut Map<String, Value>) {
    for name in ["cache", "mounts", "index"] {
        if let Some(Value::String(path)) = document.get_mut(name) {
            *path = at_home(path);
        }
    }
}

fn read(document: &Map<String, Value>) -> serde_json::Result<LoaderOptions> {
    serde_json::from_value(Value::Object(document.clone()))
}

/// Refuses an unknown option, and an impossible value. Null means that an option was not given.
fn checked(name: &str, value: &Value) -> Result<()> {
    let entry = option(name).ok_or_else(|| Error::config("options", unknown(name, false)))?;
    let problem = if value.is_null() && entry.default.is_empty() { None } else { entry.kind.problem(value) };
    problem.map_or(Ok(()), |problem| Err(Error::config(entry.name, problem)))
}

/// The error of an unreadable document, with the option, and if that is a mapping the key, that alone causes it.
fn culprit(document: &Map<String, Value>, error: &serde_json::Error) -> Error {
    let alone = |name: &str, value: &Value| {
        let value = if is_of_columns(name) { json!({"columns": {name: value}}) } else { json!({name: value}) };
        serde_json::from_value::<LoaderOptions>(value).err()
    };
    let columns = document.get("columns").and_then(Value::as_object);
    let options = document.iter().filter(|(name, _)| *name != "columns").chain(columns.into_iter().flatten());
    for (name, value) in options {
        let (Some(entry), Some(error)) = (option(name), alone(name, value)) else { continue };
        let parts = value.as_object().into_iter().flatten();
        let part = parts.filter(|_| !matches!(entry.kind, Kind::Pairs)).find_map(|(part, value)| {
            let error = alone(name, &json!({part: value}))?;
            Some(format!("{}: {}", part.chars().take(64).collect::<String>(), words(&error.to_string())))
        });
        return Error::config(entry.name, part.unwrap_or_else(|| words(&error.to_string())));
    }
    Error::config("options", words(&error.to_string()))
}

/// Gathers the options of columns under `columns`, where the loader looks for them.
///
/// # Errors
/// [`Error::Config`] for one that is given twice.
pub(crate) fn gathered(mut options: Map<String, Value>) -> Result<Map<String, Value>> {
    let mut columns = match options.remove("columns") {
        None | Some(Value::Null) => Map::new(),
        Some(Value::Object(columns)) => columns,
        Some(names @ Value::Array(_)) => Map::from_iter([("columns".to_owned(), names)]),
        Some(_) => return Err(Error::config("columns", "must be a list of names, or an object of options")),
    };
    for entry in OPTIONS.iter().filter(|entry| is_of_columns(entry.name)) {
        if let Some(value) = options.remove(entry.name)
            && columns.insert(entry.name.to_owned(), value).is_some()
        {
            return Err(Error::config("columns", format!("{} is given twice, once in columns", entry.name)));
        }
    }
    if !columns.is_empty() {
        options.insert("columns".to_owned(), Value::Object(columns));
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_option_and_its_value() {
        for (document, error) in [
            (json!({"batch_size": -1}), "option batch_size: -1 is not a whole number from 1 to 2147483648"),
            (json!({"batch_size": 2.0}), "option batch_size: 2.0 is not a whole number from 1 to 2147483648"),
            (json!({"prefetch": 1_u64 << 40}), "option prefetch: 1099511627776 is not a whole number from 1 to 65536"),
            (json!({"tail": "keep"}), "option tail: \"keep\" is not one of short, even, pad, repeat, drop"),
            (json!({"bach_size": 1}), "option options: unknown option `bach_size`; did you mean `batch_size`?"),
            (json!({"columns": {"exclud": []}}), "option columns: unknown option `exclud`; did you mean `exclude`?"),
            (
                json!({"columns": {"seed": 1}}),
                "option columns: `seed` is no option of columns; it stands beside `columns`",
            ),
            (json!({"timeout": 0}), "option timeout: 0 is not a number of seconds above 0, at most 1000000000"),
            (json!({"seed": "x"}), "option seed: \"x\" is not a whole number of 0 or more"),
            (
                json!({"images": {"a": {"size": 8}, "b": {"siz": 8}}}),
                "option images: b: unknown key `siz`; did you mean `size`?",
            ),
            (
                json!({"limits": {"max_files": "x"}}),
                "option limits: max_files: \"x\" is not a whole number of 0 or more",
            ),
            (json!({"pack": 3}), "option pack: 3 is not a list"),
            (
                json!({"memory_budget": "2 apples"}),
                "option memory_budget: \"2 apples\" is no size; write e.g. 512MiB or 2GB",
            ),
        ] {
            let Value::Object(object) = document.clone() else { panic!() };
            assert_eq!(LoaderOptions::from_document(object).unwrap_err().to_string(), error, "{document}");
        }
    }

    #[test]
    fn options_of_columns_stand_under_columns_or_beside_the_others() {
        let flat =
            LoaderOptions::from_json(r#"{"batch_size": 3, "columns": ["x"], "row_id": true, "lanes": null}"#).unwrap();
        let nested =
            LoaderOptions::from_json(r#"{"batch_size": 3, "columns": {"columns": ["x"], "row_id": true}}"#).unwrap();
        assert_eq!(serde_json::to_value(&flat).unwrap(), serde_json::to_value(&nested).unwrap());
        assert!(flat.given.into_iter().eq(["batch_size", "columns", "row_id"]), "a null is not given");
        assert_eq!(LoaderOptions::from_json(r#"{"memory_budget": "1KiB"}"#).unwrap().memory_budget, Some(1024));
        assert!(LoaderOptions::from_json(r#"{"row_id": true, "columns": {"row_id": true}}"#).is_err());
        assert!(LoaderOptions::from_json("[]").is_err() && LoaderOptions::from_json("{").is_err());
    }
}
