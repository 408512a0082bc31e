//! Members of JSON at given paths. Statistics tell of every column, and a filter tests few: the others are passed over, not kept.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Number, Value};

/// The parts of statistics with a value for each column, in this order in what is found.
pub(super) const PARTS: [&str; 3] = ["minValues", "maxValues", "nullCount"];

/// The scalars at one path in each of [`PARTS`], as text.
pub(super) type Texts<'a> = [Option<Cow<'a, str>>; PARTS.len()];

/// The members of one file's statistics.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Members<'a> {
    pub(super) rows: Option<u64>,
    /// For each path.
    pub(super) texts: Vec<Texts<'a>>,
}

impl<'a> Members<'a> {
    /// Finds the members at `paths`, the last one where a name comes twice. `None` for anything but an object.
    pub(super) fn find(json: &'a str, paths: &[&[String]]) -> Option<Self> {
        let mut found = Self { rows: None, texts: vec![Default::default(); paths.len()] };
        let mut reader = serde_json::Deserializer::from_str(json);
        reader.deserialize_map(Statistics { paths, found: &mut found }).ok()?;
        reader.end().ok()?;
        Some(found)
    }
}

/// What a name is.
enum Name {
    Rows,
    Part(usize),
    Other,
}

/// Reads a name without copying it.
struct Named<F>(F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Named<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<T, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for Named<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<T, E> {
        Ok(self.0(name))
    }
}

/// Reads the text of a scalar; `None` for null, lists and objects.
struct Scalar;

impl<'de> DeserializeSeed<'de> for Scalar {
    type Value = Option<Cow<'de, str>>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Scalar {
    type Value = Option<Cow<'de, str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of a column")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(text.to_owned())))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Some(Cow::Borrowed(if value { "true" } else { "false" })))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(value.to_string())))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(Cow::Owned(value.to_string())))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Number::from_f64(value).map(|number| Cow::Owned(number.to_string())))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

struct Statistics<'a, 'de> {
    paths: &'a [&'a [String]],
    found: &'a mut Members<'de>,
}

impl<'de> Visitor<'de> for Statistics<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("statistics")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { paths, found } = self;
        let all: Vec<usize> = (0..paths.len()).collect();
        let name = |name: &str| match name {
            "numRecords" => Name::Rows,
            _ => PARTS.iter().position(|part| *part == name).map_or(Name::Other, Name::Part),
        };
        while let Some(name) = map.next_key_seed(Named(name))? {
            match name {
                Name::Rows => found.rows = map.next_value::<Value>()?.as_u64(),
                Name::Part(part) => {
                    found.texts.iter_mut().for_each(|texts| texts[part] = None);
                    map.next_value_seed(Below { paths, active: &all, depth: 0, part, found: &mut *found })?;
                }
                Name::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// An object whose members are at `depth` of the paths numbered in `active`, or anything else, which has none.
struct Below<'a, 'de> {
    paths: &'a [&'a [String]],
    active: &'a [usize],
    depth: usize,
    part: usize,
    found: &'a mut Members<'de>,
}

impl<'de> DeserializeSeed<'de> for Below<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<(), D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Below<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("values of columns")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { paths, active, depth, part, found } = self;
        let meant = |name: &str| -> Vec<usize> {
            active.iter().copied().filter(|at| paths[*at].get(depth).is_some_and(|part| part == name)).collect()
        };
        while let Some(meant) = map.next_key_seed(Named(meant))? {
            meant.iter().for_each(|at| found.texts[*at][part] = None);
            if meant.is_empty() {
                map.next_value::<IgnoredAny>()?;
            } else if meant.iter().all(|at| paths[*at].len() == depth + 1) {
                let text = map.next_value_seed(Scalar)?;
                meant.iter().for_each(|at| found.texts[*at][part].clone_from(&text));
            } else {
                let below = Below { paths, active: &meant, depth: depth + 1, part, found: &mut *found };
                map.next_value_seed(below)?;
            }
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find<'a>(json: &'a str, paths: &[&[&str]]) -> Option<Members<'a>> {
        let paths: Vec<Vec<String>> =
            paths.iter().map(|path| path.iter().map(|&name| name.to_owned()).collect()).collect();
        Members::find(json, &paths.iter().map(Vec::as_slice).collect::<Vec<_>>())
    }

    /// The same by way of the whole document.
    fn parsed(json: &str, paths: &[&[&str]]) -> Option<Members<'static>> {
        let all: serde_json::Map<String, Value> = serde_json::from_str(json).ok()?;
        let text = |part: &str, path: &[&str]| {
            let found = path.iter().try_fold(all.get(part)?, |found, name| found.get(name))?;
            match found {
                Value::String(text) => Some(text.clone().into()),
                Value::Number(_) | Value::Bool(_) => Some(found.to_string().into()),
                _ => None,
            }
        };
        let texts = paths.iter().map(|path| PARTS.map(|part| text(part, path))).collect();
        Some(Members { rows: all.get("numRecords").and_then(Value::as_u64), texts })
    }

    #[test]
    fn members_are_those_of_the_whole_document() {
        let paths: &[&[&str]] = &[&["a"], &["s", "x"], &["s", "y"], &["\"q\" \u{e9}"], &["none"]];
        for json in [
            r#"{"numRecords":4,"minValues":{"a":1,"b":[1,{"a":2}],"s":{"y":"t","z":{"x":9},"x":-0.5}},"maxValues":{"a":1e30}}"#,
            r#"{"nullCount":{"a":0,"s":{"x":3}},"other":{"minValues":{"a":7}},"numRecords":18446744073709551615}"#,
            r#"{"numRecords":1,"numRecords":2,"minValues":{"a":1,"s":{"x":1}},"minValues":{"a":2,"a":{"x":1},"s":[]}}"#,
            r#"{"minValues":{"s":{"x":1},"s":{"y":2}},"maxValues":{"s":5,"a":true},"nullCount":null}"#,
            r#"{"minValues":{"\"q\" \u00e9":"\u0041\n"},"maxValues":{"\"q\" é":"b"},"numRecords":"4"}"#,
            r#"{"minValues":[{"a":1}],"maxValues":"a","nullCount":3.5}"#,
            r#"{"minValues":false,"maxValues":-1,"numRecords":-1}"#,
            " { } ",
            "{}{}",
            "{\"minValues\":{\"a\":1}",
            "[]",
            "7",
            "",
        ] {
            assert_eq!(find(json, paths), parsed(json, paths), "{json}");
        }
    }
}
