//! The possible values of an option, as JSON and as text: of a flag, an environment variable, a document.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Value, json};

/// Maximum characters of a value shown in an error.
const SHOWN: usize = 64;

/// The kind of value that an option takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A whole number within a range, both ends included.
    Whole {
        /// The minimum.
        least: u64,
        /// The maximum.
        most: u64,
    },
    /// Seconds: above zero, and at most this many.
    Seconds(f64),
    /// True or false.
    Switch,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Text.
    Text,
    /// Bytes: a number, or text such as `512MiB`.
    Bytes,
    /// Texts; as text they are separated by commas.
    Names,
    /// Numbers; as text they are separated by commas.
    Numbers,
    /// Texts by name, which may be secret; as text `key=value`, separated by commas. A part without `=` belongs to the value before it.
    Pairs,
    /// A filter: an expression, or tuples.
    Filter,
    /// A word, a list or a mapping, whose parts are checked by their user; as text JSON, or a word without quotes.
    Structure,
}

impl Kind {
    /// Returns true if several values of it can be combined into one.
    pub fn is_list(self) -> bool {
        matches!(self, Self::Names | Self::Numbers | Self::Pairs)
    }

    /// The fault of `value`, as the rest of a sentence that begins with the option's name; `None` if there is none.
    pub fn problem(self, value: &Value) -> Option<String> {
        let texts = |list: &[Value]| list.iter().all(Value::is_string);
        let right = match (self, value) {
            (Self::Whole { least, most }, value) => {
                value.as_u64().is_some_and(|number| (least..=most).contains(&number))
            }
            (Self::Seconds(most), value) => value.as_f64().is_some_and(|seconds| seconds > 0.0 && seconds <= most),
            (Self::Switch, value) => value.is_boolean(),
            (Self::Choice(words), value) => value.as_str().is_some_and(|text| words.contains(&text)),
            (Self::Text, value) => value.is_string(),
            (Self::Bytes, Value::String(text)) => return bytes(text).err(),
            (Self::Bytes, value) => value.is_u64(),
            (Self::Names, value) => value.as_array().is_some_and(|list| texts(list)),
            (Self::Numbers, value) => value.as_array().is_some_and(|list| list.iter().all(Value::is_number)),
            // The values may be secrets.
            (Self::Pairs, Value::Object(pairs)) if pairs.values().all(Value::is_string) => true,
            (Self::Pairs, _) => return Some(format!("it must be {self}")),
            // A table is most likely one of `storage_options` in the wrong place.
            (Self::Filter, Value::Object(_)) => return Some(format!("it must be {self}")),
            (Self::Filter, value) => value.is_string() || value.is_array(),
            (Self::Structure, _) => true,
        };
        (!right).then(|| format!("{} is not {self}", shown(value)))
    }

    /// The values as JSON Schema has them; a word, a list or a mapping may be anything.
    pub fn schema(self) -> Value {
        let texts = json!({"type": "string"});
        match self {
            Self::Whole { least, most: u64::MAX } => json!({"type": "integer", "minimum": least}),
            Self::Whole { least, most } => json!({"type": "integer", "minimum": least, "maximum": most}),
            Self::Seconds(most) => json!({"type": "number", "exclusiveMinimum": 0, "maximum": most}),
            Self::Switch => json!({"type": "boolean"}),
            Self::Choice(words) => json!({"enum": words}),
            Self::Text => texts,
            Self::Bytes => json!({"anyOf": [{"type": "integer", "minimum": 0}, texts]}),
            Self::Names => json!({"type": "array", "items": texts}),
            Self::Numbers => json!({"type": "array", "items": {"type": "number"}}),
            Self::Pairs => json!({"type": "object", "additionalProperties": texts}),
            Self::Filter => json!({"type": ["string", "array"]}),
            Self::Structure => json!({}),
        }
    }

    /// The value that `text` stands for.
    ///
    /// # Errors
    /// The fault of the text, as in [`problem`](Self::problem).
    pub fn parse(self, text: &str) -> Result<Value, String> {
        let parts = || text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let wrong = || format!("{} is not {self}", shown(&json!(text)));
        let value = match self {
            Self::Whole { .. } => {
                json!(text.trim().parse::<i128>().ok().and_then(|n| u64::try_from(n).ok()).ok_or_else(wrong)?)
            }
            Self::Seconds(_) => {
                json!(text.trim().parse::<f64>().ok().filter(|seconds| seconds.is_finite()).ok_or_else(wrong)?)
            }
            Self::Switch => match text.trim().to_ascii_lowercase().as_str() {
                "true" | "1" | "yes" | "on" => json!(true),
                "false" | "0" | "no" | "off" => json!(false),
                _ => return Err(wrong()),
            },
            Self::Choice(_) | Self::Text | Self::Filter => json!(text),
            Self::Bytes => json!(bytes(text)?),
            Self::Names => json!(parts().collect::<Vec<_>>()),
            Self::Numbers => {
                let numbers: Result<Vec<f64>, _> = parts().map(str::parse).collect();
                json!(numbers.map_err(|_| wrong())?)
            }
            Self::Pairs => json!(pairs(text)?),
            Self::Structure => word_or_json(text)?,
        };
        self.problem(&value).map_or(Ok(value), Err)
    }
}

impl fmt::Display for Kind {
    /// With its article: `a whole number from 1 to 65536`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole { least, most: u64::MAX } => write!(f, "a whole number of {least} or more"),
            Self::Whole { least, most } => write!(f, "a whole number from {least} to {most}"),
            Self::Seconds(most) => write!(f, "a number of seconds above 0, at most {most}"),
            Self::Switch => write!(f, "true or false"),
            Self::Choice(words) => write!(f, "one of {}", words.join(", ")),
            Self::Text => write!(f, "a text"),
            Self::Bytes => write!(f, "a number of bytes, or a text such as 512MiB"),
            Self::Names => write!(f, "a list of texts"),
            Self::Numbers => write!(f, "a list of numbers"),
            Self::Pairs => write!(f, "a mapping of texts"),
            Self::Filter => write!(f, "an expression, or a list of tuples"),
            Self::Structure => write!(f, "a word, a list or a mapping"),
        }
    }
}

/// Formats a value for an error.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text,
    }
}

/// The values of `text` by key. Secrets and lists of hosts have commas in them: a part without `=` goes on with the value before it.
fn pairs(text: &str) -> Result<BTreeMap<String, String>, String> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut commas = 0;
    for part in text.split(',').map(str::trim_end) {
        match (part.split_once('='), pairs.last_mut()) {
            (Some((key, value)), _) if !key.trim().is_empty() => {
                pairs.push((key.trim().to_owned(), value.to_owned()));
                commas = 0;
            }
            (None, _) if part.is_empty() => {}
            (None, Some((_, value))) => {
                value.push_str(&",".repeat(commas));
                value.push_str(part);
                commas = 0;
            }
            // The text may be a secret that lost its key.
            _ => return Err("write KEY=VALUE, separated by commas".to_owned()),
        }
        commas += 1;
    }
    Ok(pairs.into_iter().collect())
}

/// JSON, or a single word, which needs no quotes.
fn word_or_json(text: &str) -> Result<Value, String> {
    if !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && text.parse::<f64>().is_err() {
        return Ok(json!(text));
    }
    serde_json::from_str(text).map_err(|error| format!("{} is neither a word nor JSON: {error}", shown(&json!(text))))
}

/// Bytes from text: `1048576`, `1MiB`, `1.5 GB`; not parsed by `bytesize`, where `1M` is 10^6 and an excessive value
/// becomes the maximum.
///
/// # Errors
/// The fault of the text, and a correct form.
pub fn bytes(text: &str) -> Result<u64, String> {
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
        _ => return Err(format!("{} is no size; write e.g. 512MiB or 2GB", shown(&json!(text)))),
    };
    let number: f64 =
        number.parse().map_err(|_| format!("{} is no size; write e.g. 512MiB or 2GB", shown(&json!(text))))?;
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
    fn text_becomes_the_value_that_a_document_has() {
        let whole = Kind::Whole { least: 1, most: 9 };
        for (kind, text, value) in [
            (whole, "9", json!(9)),
            (Kind::Seconds(10.0), "2.5", json!(2.5)),
            (Kind::Switch, "FALSE", json!(false)),
            (Kind::Choice(&["pad", "drop"]), "drop", json!("drop")),
            (Kind::Names, "a, b,", json!(["a", "b"])),
            (Kind::Numbers, "1,0.5", json!([1.0, 0.5])),
            (Kind::Pairs, "region=x, key=a=b,", json!({"region": "x", "key": "a=b"})),
            (Kind::Pairs, "key=a,b, c,,d , region=x", json!({"key": "a,b, c,,d", "region": "x"})),
            (Kind::Pairs, "", json!({})),
            (Kind::Structure, "mask", json!("mask")),
            (Kind::Structure, r#"{"fill": 0}"#, json!({"fill": 0})),
        ] {
            assert_eq!(kind.parse(text), Ok(value), "{kind:?} {text}");
        }
        for (kind, text, problem) in [
            (whole, "-1", "\"-1\" is not a whole number from 1 to 9"),
            (whole, "10", "10 is not a whole number from 1 to 9"),
            (whole, "x", "\"x\" is not a whole number from 1 to 9"),
            (Kind::Seconds(10.0), "nan", "\"nan\" is not a number of seconds above 0, at most 10"),
            (Kind::Switch, "perhaps", "\"perhaps\" is not true or false"),
            (Kind::Choice(&["pad", "drop"]), "keep", "\"keep\" is not one of pad, drop"),
        ] {
            assert_eq!(kind.parse(text), Err(problem.to_owned()), "{kind:?} {text}");
        }
        for text in ["s3cr3t", "s3cr3t,region=x", "region=x,=s3cr3t"] {
            assert!(!Kind::Pairs.parse(text).unwrap_err().contains("s3cr3t"), "{text}");
        }
        assert!(!Kind::Pairs.problem(&json!({"key": ["s3cr3t"]})).unwrap().contains("s3cr3t"));
        assert!(Kind::Text.problem(&json!(vec![9; 1000])).unwrap().len() < 100);
    }
}
