//! The schema of an Avro file: what its bytes mean, with the numbers that Iceberg gives to fields.

use std::collections::BTreeMap;

use serde_json::Value as Json;

/// A field of a record.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    pub(super) id: Option<i32>,
    pub(super) schema: Schema,
}

/// A type.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Schema {
    Null,
    Bool,
    /// Integers of 32 and 64 bits, which look alike, and the numbers of an enumeration.
    Long,
    /// Days since 1970.
    Date,
    Float,
    Double,
    Bytes,
    Text,
    Fixed(usize),
    /// A number in two's complement, of that many bytes, or of as many as it says.
    Decimal(Option<usize>),
    Union(Vec<Schema>),
    Record(Vec<Field>),
    List(Box<Schema>),
    Map(Box<Schema>),
}

/// Types may be this deep, and have so many parts: a name may stand for a large type many times over.
const DEPTH: usize = 32;
const PARTS: usize = 100_000;

/// A type with a name: the number of its parts, and its depth.
struct Known {
    schema: Schema,
    parts: usize,
    height: usize,
}

/// Types that have names, which stand for them further down.
#[derive(Default)]
struct Names {
    known: BTreeMap<String, Known>,
    parts: usize,
}

impl Schema {
    /// The schema in `json`; `Err` says what is wrong.
    pub(super) fn parse(json: &[u8]) -> Result<Self, String> {
        let json: Json = serde_json::from_slice(json).map_err(|_| "its schema is not JSON".to_owned())?;
        Names::default().schema(&json, 0)
    }

    /// Depth of types within each other.
    fn height(&self) -> usize {
        let inside = match self {
            Self::Union(branches) => branches.iter().map(Self::height).max(),
            Self::Record(fields) => fields.iter().map(|field| field.schema.height()).max(),
            Self::List(item) | Self::Map(item) => Some(item.height()),
            _ => None,
        };
        inside.map_or(0, |inside| inside + 1)
    }
}

impl Names {
    fn schema(&mut self, json: &Json, depth: usize) -> Result<Schema, String> {
        self.parts += 1;
        if depth > DEPTH || self.parts > PARTS {
            return Err("its schema is too deep or too large".to_owned());
        }
        if let Some(branches) = json.as_array() {
            return Ok(Schema::Union(
                branches.iter().map(|one| self.schema(one, depth + 1)).collect::<Result<_, _>>()?,
            ));
        }
        let name = json.as_str().or_else(|| json.get("type")?.as_str());
        let Some(name) = name else {
            let inner = json.get("type").ok_or("its schema has a type that is none")?;
            return self.schema(inner, depth + 1);
        };
        let inner = |key: &str| json.get(key).ok_or_else(|| format!("its schema has a type {name:?} without {key:?}"));
        let logical = json.get("logicalType").and_then(Json::as_str);
        let is_decimal = logical == Some("decimal");
        let before = self.parts;
        let schema = match name {
            "null" => Schema::Null,
            "boolean" => Schema::Bool,
            "int" if logical == Some("date") => Schema::Date,
            "int" | "long" | "enum" => Schema::Long,
            "float" => Schema::Float,
            "double" => Schema::Double,
            "bytes" if is_decimal => Schema::Decimal(None),
            "bytes" => Schema::Bytes,
            "string" => Schema::Text,
            "fixed" => {
                let size = inner("size")?.as_u64().and_then(|size| usize::try_from(size).ok());
                let size = size.ok_or("its schema has a size that is none")?;
                if is_decimal { Schema::Decimal(Some(size)) } else { Schema::Fixed(size) }
            }
            "array" => Schema::List(Box::new(self.schema(inner("items")?, depth + 1)?)),
            "map" => Schema::Map(Box::new(self.schema(inner("values")?, depth + 1)?)),
            "record" => {
                let fields = inner("fields")?.as_array().ok_or("its schema has a record without fields")?;
                let field = |field: &Json| {
                    let id = field.get("field-id").and_then(Json::as_i64).and_then(|id| i32::try_from(id).ok());
                    let schema = field.get("type").ok_or("its schema has a field without a type")?;
                    Ok::<_, String>(Field { id, schema: self.schema(schema, depth + 1)? })
                };
                Schema::Record(fields.iter().map(field).collect::<Result<_, _>>()?)
            }
            other => {
                let Known { schema, parts, height } = self.known.get(other).ok_or_else(|| {
                    format!("its schema has the unknown type {:?}", other.chars().take(64).collect::<String>())
                })?;
                self.parts = self.parts.saturating_add(*parts);
                return if self.parts > PARTS || depth + height > DEPTH {
                    Err("its schema is too deep or too large".to_owned())
                } else {
                    Ok(schema.clone())
                };
            }
        };
        if let ("fixed" | "record" | "enum", Some(own)) = (name, json.get("name").and_then(Json::as_str)) {
            let (height, parts) = (schema.height(), self.parts - before);
            self.known.insert(own.to_owned(), Known { schema: schema.clone(), parts, height });
        }
        Ok(schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_read_with_their_numbers_and_names() {
        let json = r#"{"type":"record","name":"m","fields":[
            {"name":"a","type":["null",{"type":"record","name":"r2","fields":[{"name":"x","type":"int","field-id":5}]}],"field-id":1},
            {"name":"b","type":"r2","field-id":2},{"name":"c","type":{"type":{"type":"fixed","name":"f","size":16}}},
            {"name":"d","type":{"type":"fixed","name":"g","size":4,"logicalType":"decimal"}}]}"#;
        let inner = Schema::Record(vec![Field { id: Some(5), schema: Schema::Long }]);
        let expected = Schema::Record(vec![
            Field { id: Some(1), schema: Schema::Union(vec![Schema::Null, inner.clone()]) },
            Field { id: Some(2), schema: inner },
            Field { id: None, schema: Schema::Fixed(16) },
            Field { id: None, schema: Schema::Decimal(Some(4)) },
        ]);
        assert_eq!(Schema::parse(json.as_bytes()).unwrap(), expected);
    }

    #[test]
    fn what_is_none_is_told() {
        let deep = (0..100).fold("\"int\"".to_owned(), |inner, _| format!(r#"{{"type":"array","items":{inner}}}"#));
        // Each record has the one before it ten times.
        let mut wide = r#"{"type":"record","name":"r0","fields":[{"name":"x","type":"int"}]}"#.to_owned();
        for level in 1..9 {
            let again = format!(r#",{{"name":"y","type":"r{}"}}"#, level - 1).repeat(9);
            wide = format!(r#"{{"type":"record","name":"r{level}","fields":[{{"name":"x","type":{wide}}}{again}]}}"#);
        }
        // Each is as deep as allowed, and ends in the one before it.
        let record = |level: usize, inner: &str| {
            let deep = (0..20).fold(inner.to_owned(), |inner, _| format!(r#"{{"type":"array","items":{inner}}}"#));
            format!(r#"{{"type":"record","name":"r{level}","fields":[{{"name":"x","type":{deep}}}]}}"#)
        };
        let chained = format!("[{},{}]", record(0, "\"int\""), record(1, "\"r0\""));
        assert!(Schema::parse(record(0, "\"int\"").as_bytes()).is_ok() && Schema::parse(chained.as_bytes()).is_err());
        for json in ["", "{}", "7", r#""r""#, r#"{"type":"array"}"#, r#"{"type":"fixed","size":-1}"#, &deep, &wide] {
            assert!(Schema::parse(json.as_bytes()).is_err(), "{}", json.chars().take(80).collect::<String>());
        }
    }
}
