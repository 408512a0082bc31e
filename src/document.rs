//! Options as a JSON document, from Python or a file: errors name the option and its value in the user's words.
//!
//! The messages of the JSON reader name Rust types and positions in a generated text. Here they become sentences, and
//! the option is found by reading the document option by option.

use serde::de::value::Error as Refused;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::nearest::nearest;

/// Characters of an unknown key shown in an error.
const SHOWN: usize = 64;
/// Maximum depth of nested mappings searched for the faulty part.
const DEPTH: usize = 4;

/// Options from JSON text.
///
/// # Errors
/// [`Error::Config`] naming an option that is unknown, with the nearest known one, or that has an impossible value.
pub fn read<T: DeserializeOwned>(text: &str) -> Result<T> {
    match serde_json::from_str(text) {
        Ok(Value::Object(document)) => from_map(document),
        Ok(_) => Err(Error::config("options", "the options must be one JSON object")),
        Err(error) => Err(Error::config("options", format!("this is not JSON: {error}"))),
    }
}

/// Options by name.
///
/// # Errors
/// As [`read`].
pub fn from_map<T: DeserializeOwned>(document: Map<String, Value>) -> Result<T> {
    // Not from a copy: a filter may list a million values.
    let error = match T::deserialize(&document) {
        Ok(options) => return Ok(options),
        Err(error) => error.to_string(),
    };
    let names = names_of::<T>();
    // A missing option is reported only at the end of a document; before that, the first unreadable option makes the
    // error.
    let culprit = first_wrong::<T>(&document, &[]).and_then(|(name, value, problem)| {
        let known = names.iter().copied().find(|known| *known == name)?;
        Some(Error::config(known, within::<T>(name, value, DEPTH).unwrap_or(problem)))
    });
    Err(culprit.unwrap_or_else(|| Error::config("options", words(&error))))
}

/// Nests `part` in a document, below the names in `path`.
fn standing(path: &[String], part: Map<String, Value>) -> Value {
    let below = |value, name: &String| Value::Object(Map::from_iter([(name.clone(), value)]));
    path.iter().rev().fold(Value::Object(part), below)
}

/// Returns the first entry of `parts` that makes the document unreadable, with its value and the reason.
fn first_wrong<'a, T: DeserializeOwned>(
    parts: &'a Map<String, Value>,
    path: &[String],
) -> Option<(&'a str, &'a Value, String)> {
    parts.iter().find_map(|(name, value)| {
        let alone = Map::from_iter([(name.clone(), value.clone())]);
        let error = serde_json::from_value::<T>(standing(path, alone)).err()?.to_string();
        (!error.starts_with("missing field")).then(|| (name.as_str(), value, words(&error)))
    })
}

/// Describes the fault within the mapping `value` of the option `name`: `max_files: -1 is not a whole number`.
fn within<T: DeserializeOwned>(name: &str, value: &Value, depth: usize) -> Option<String> {
    let mut path = vec![name.to_owned()];
    let (mut value, mut found) = (value, None);
    for _ in 0..depth {
        let Some(parts) = value.as_object() else { break };
        let Some((part, inner, problem)) = first_wrong::<T>(parts, &path) else { break };
        // An unknown key is reported at its mapping, with the known keys.
        if problem.starts_with(&format!("unknown key `{part}`")) {
            return Some(prefixed(&path, &problem));
        }
        path.push(part.to_owned());
        found = Some(prefixed(&path, &problem));
        value = inner;
    }
    found
}

fn prefixed(path: &[String], problem: &str) -> String {
    let inner = path.get(1..).unwrap_or_default();
    if inner.is_empty() {
        return problem.to_owned();
    }
    let shown: String = inner.join(".").chars().take(SHOWN).collect();
    format!("{shown}: {problem}")
}

/// Returns the names of the fields of `T`, which a derived reader passes to the deserializer.
fn names_of<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Asked<'a>(&'a mut &'static [&'static str]);

    impl<'de> Deserializer<'de> for Asked<'_> {
        type Error = Refused;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> std::result::Result<V::Value, Refused> {
            Err(Refused::custom("no struct"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            fields: &'static [&'static str],
            _: V,
        ) -> std::result::Result<V::Value, Refused> {
            *self.0 = fields;
            Err(Refused::custom("the names were all that was asked for"))
        }

        forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct newtype_struct
            seq tuple tuple_struct map enum identifier ignored_any
        }
    }

    let mut names: &'static [&'static str] = &[];
    drop(T::deserialize(Asked(&mut names)));
    names
}

/// Rewrites a message of the JSON reader in plain words.
pub fn words(message: &str) -> String {
    let message = message.split(" at line ").next().unwrap_or(message);
    if let Some((key, known)) = message.strip_prefix("unknown field `").and_then(|rest| rest.split_once('`')) {
        let known: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
        let key: String = key.chars().take(SHOWN).collect();
        return match nearest(&key, known.iter().copied()) {
            Some(meant) => format!("unknown key `{key}`; did you mean `{meant}`?"),
            None => format!("unknown key `{key}`; there are {}", known.join(", ")),
        };
    }
    let value = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "));
    let Some((value, expected)) = value.and_then(|rest| rest.rsplit_once(", expected ")) else {
        return message.replace("missing field", "missing key").replace("unknown variant", "unknown word");
    };
    let value = ["string ", "integer ", "floating point ", "boolean "]
        .iter()
        .find_map(|kind| value.strip_prefix(kind))
        .unwrap_or(value);
    let expected = match expected {
        "u8" => "a whole number from 0 to 255",
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number of 0 or more",
        "i8" => "a whole number from -128 to 127",
        "i16" => "a whole number from -32768 to 32767",
        "i32" => "a whole number from -2147483648 to 2147483647",
        "i64" | "isize" => "a whole number from -9223372036854775808 to 9223372036854775807",
        "f32" | "f64" => "a number",
        "a string" => "a text",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "a mapping",
        other if other.starts_with("struct ") => "a mapping",
        other => other,
    };
    let value = match value {
        "map" => "a mapping",
        "sequence" => "a list",
        "null" => "nothing",
        other => other,
    };
    format!("{value} is not {expected}").replace('`', "")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Inner {
        most: u32,
        deeper: Option<Box<Inner>>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Options {
        name: String,
        rank: Option<u32>,
        timeout: f64,
        #[serde(default)]
        limits: Inner,
    }

    fn wrong(text: &str) -> (&'static str, String) {
        match read::<Options>(text).unwrap_err() {
            Error::Config { option, problem } => (option, problem),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn an_error_names_the_option_and_its_value() {
        let good = read::<Options>(r#"{"name": "a", "timeout": 1, "limits": {"most": 3}}"#).unwrap();
        assert_eq!((good.rank, good.limits.most), (None, 3));
        for (text, option, problem) in [
            (r#"{"name": "a", "timeout": 1, "rank": -1}"#, "rank", "-1 is not a whole number from 0 to 4294967295"),
            (r#"{"name": "a", "timeout": 1, "rank": 4294967296}"#, "rank", "4294967296 is not a whole number from 0"),
            (r#"{"name": "a", "timeout": "nan"}"#, "timeout", "\"nan\" is not a number"),
            (r#"{"name": "a", "rank": -1, "timeout": "nan"}"#, "rank", "-1 is not a whole number"),
            (r#"{"name": 3, "timeout": 1}"#, "name", "3 is not a text"),
            (r#"{"timeout": 1, "limits": {"most": -7}}"#, "limits", "most: -7 is not a whole number"),
            (r#"{"limits": {"deeper": {"most": 1.5}}}"#, "limits", "deeper.most: 1.5 is not a whole number"),
            (r#"{"limits": {"mots": 1}}"#, "limits", "unknown key `mots`; did you mean `most`?"),
            (r#"{"limits": {"deeper": {"mots": 1}}}"#, "limits", "deeper: unknown key `mots`"),
            (r#"{"rnak": 1}"#, "options", "unknown key `rnak`; did you mean `rank`?"),
            (r#"{"timeout": 1}"#, "options", "missing key `name`"),
            ("[1]", "options", "one JSON object"),
        ] {
            let (found, said) = wrong(text);
            assert!(found == option && said.contains(problem), "{text}: {found}: {said}");
            assert!(!said.contains("expected") && !said.contains("column"), "{said}");
        }
    }
}
