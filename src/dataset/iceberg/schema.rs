//! The schema of a table: its JSON as columns in Arrow's types, with the numbers that data files know them by.

use std::collections::HashSet;

use arrow::datatypes::{DataType, TimeUnit};
use serde_json::Value as Json;

use super::metadata::Fault;
use crate::dataset::table::{Column, Kind};

/// The zone of times that are instants.
const UTC: &str = "UTC";

/// Types may be nested this deep.
const DEPTH: usize = 64;

/// A column, and what it is in files that are older than it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Defined {
    pub(super) column: Column,
    /// As in the schema.
    pub(super) initial: Option<Json>,
}

/// The columns of `schema`.
pub(super) fn columns(schema: &Json) -> Result<Vec<Defined>, Fault> {
    members(schema, "", 0)
}

fn members(schema: &Json, above: &str, depth: usize) -> Result<Vec<Defined>, Fault> {
    let broken = |what: &str| Fault::Broken(format!("its schema: {above:?} {what}"));
    if depth > DEPTH {
        return Err(broken("is nested too deep"));
    }
    let fields = schema.get("fields").and_then(Json::as_array).ok_or_else(|| broken("is no struct"))?;
    let mut found: Vec<Defined> = Vec::with_capacity(fields.len());
    let (mut names, mut ids) = (HashSet::new(), HashSet::new());
    for field in fields {
        let name = field.get("name").and_then(Json::as_str).ok_or_else(|| broken("has a field without a name"))?;
        let path = if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") };
        let id = field.get("id").and_then(Json::as_i64).and_then(|id| i32::try_from(id).ok());
        let id = id.ok_or_else(|| Fault::Broken(format!("its schema: column {path:?} has no number")))?;
        if !names.insert(name) || !ids.insert(id) {
            return Err(Fault::Broken(format!("its schema: there are two columns {path:?}, or two of number {id}")));
        }
        let kind = kind(field.get("type").unwrap_or(&Json::Null), &path, depth)?;
        let initial = field.get("initial-default").filter(|default| !default.is_null()).cloned();
        if let (Some(_), false) = (&initial, above.is_empty()) {
            return Err(Fault::Refused(format!("a default of {path:?}, a member of a struct,")));
        }
        let nullable = field.get("required").and_then(Json::as_bool) != Some(true);
        let column = Column { name: name.to_owned(), physical: name.to_owned(), id: Some(id), nullable, kind };
        found.push(Defined { column, initial });
    }
    Ok(found)
}

fn kind(ty: &Json, path: &str, depth: usize) -> Result<Kind, Fault> {
    let broken = |what: &str| Fault::Broken(format!("its schema: column {path:?} {what}"));
    if let Some(name) = ty.as_str() {
        let shown = || name.chars().take(64).collect::<String>();
        return leaf(name)
            .map(Kind::Leaf)
            .ok_or_else(|| Fault::Refused(format!("type {:?} of column {path:?}", shown())));
    }
    if depth > DEPTH {
        return Err(broken("is nested too deep"));
    }
    let below = |key: &str| match ty.get(key) {
        Some(inner) => kind(inner, &format!("{path}.{key}"), depth + 1),
        None => Err(broken(&format!("has no {key}"))),
    };
    let nullable = |key: &str| ty.get(key).and_then(Json::as_bool) != Some(true);
    match ty.get("type").and_then(Json::as_str) {
        Some("struct") => {
            Ok(Kind::Struct(members(ty, path, depth + 1)?.into_iter().map(|defined| defined.column).collect()))
        }
        Some("list") => Ok(Kind::List(Box::new(below("element")?), nullable("element-required"))),
        Some("map") => Ok(Kind::Map(Box::new(below("key")?), Box::new(below("value")?), nullable("value-required"))),
        Some(other) => {
            Err(Fault::Refused(format!("type {:?} of column {path:?}", other.chars().take(64).collect::<String>())))
        }
        None => Err(broken("has no type")),
    }
}

fn leaf(name: &str) -> Option<DataType> {
    let time = |unit, zone: Option<&str>| DataType::Timestamp(unit, zone.map(Into::into));
    Some(match name {
        "boolean" => DataType::Boolean,
        "int" => DataType::Int32,
        "long" => DataType::Int64,
        "float" => DataType::Float32,
        "double" => DataType::Float64,
        "date" => DataType::Date32,
        "time" => DataType::Time64(TimeUnit::Microsecond),
        "timestamp" => time(TimeUnit::Microsecond, None),
        "timestamptz" => time(TimeUnit::Microsecond, Some(UTC)),
        "timestamp_ns" => time(TimeUnit::Nanosecond, None),
        "timestamptz_ns" => time(TimeUnit::Nanosecond, Some(UTC)),
        "string" => DataType::Utf8View,
        "uuid" => DataType::FixedSizeBinary(16),
        "binary" => DataType::BinaryView,
        "unknown" => DataType::Null,
        _ => match name.split_once(['(', '[']) {
            Some(("decimal", rest)) => {
                let (precision, scale) = rest.strip_suffix(')')?.split_once(',')?;
                let (precision, scale) = (precision.trim().parse::<u8>().ok()?, scale.trim().parse::<i8>().ok()?);
                let fits = (1..=38).contains(&precision) && (0..=38).contains(&scale) && scale as u8 <= precision;
                fits.then_some(DataType::Decimal128(precision, scale))?
            }
            Some(("fixed", rest)) => {
                let length = rest.strip_suffix(']')?.trim().parse::<i32>().ok()?;
                (length > 0).then_some(DataType::FixedSizeBinary(length))?
            }
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(ty: &str, more: &str) -> Result<Vec<Defined>, Fault> {
        let json = format!(r#"{{"type":"struct","fields":[{{"id":1,"name":"a","required":true,"type":{ty}{more}}}]}}"#);
        columns(&serde_json::from_str(&json).unwrap())
    }

    #[test]
    fn types_become_arrows() {
        for (ty, shown) in [
            (r#""decimal(9, 2)""#, "Decimal128(9, 2)"),
            (r#""fixed[3]""#, "FixedSizeBinary(3)"),
            (r#""timestamptz""#, "Timestamp(µs, \"UTC\")"),
            (r#""timestamp_ns""#, "Timestamp(ns)"),
            (r#""unknown""#, "Null"),
            (
                r#"{"type":"list","element-id":2,"element":"string","element-required":true}"#,
                "List(non-null Utf8View, field: 'element')",
            ),
        ] {
            let found = one(ty, "").unwrap();
            assert_eq!(found[0].column.kind.data_type().to_string(), shown);
            assert!(!found[0].column.nullable && found[0].column.id == Some(1));
        }
        let map = r#"{"type":"map","key-id":2,"key":"int","value-id":3,"value":{"type":"struct","fields":[{"id":4,"name":"x","type":"long"}]}}"#;
        assert!(
            matches!(&one(map, "").unwrap()[0].column.kind, Kind::Map(_, value, true) if matches!(**value, Kind::Struct(_)))
        );
        assert_eq!(one(r#""int""#, r#","initial-default":5"#).unwrap()[0].initial, Some(5.into()));
    }

    #[test]
    fn what_is_no_schema_or_not_read_is_named() {
        for ty in [
            r#""variant""#,
            r#""geometry(srid:4326)""#,
            r#""decimal(40,2)""#,
            r#"{"type":"geography"}"#,
            r#""fixed[x]""#,
        ] {
            assert!(matches!(one(ty, ""), Err(Fault::Refused(what)) if what.contains("\"a\"")), "{ty}");
        }
        let inner = r#"{"type":"struct","fields":[{"id":2,"name":"x","type":"int","initial-default":1}]}"#;
        assert!(matches!(one(inner, ""), Err(Fault::Refused(what)) if what.contains("a.x")));
        for ty in [
            "7",
            r#"{"type":"list"}"#,
            r#"{"type":"struct"}"#,
            r#"{"type":"struct","fields":[{"name":"x","type":"int"}]}"#,
        ] {
            assert!(matches!(one(ty, ""), Err(Fault::Broken(_))), "{ty}");
        }
        let deep = (0..80).fold("\"int\"".to_owned(), |inner, _| format!(r#"{{"type":"list","element":{inner}}}"#));
        assert!(one(&deep, "").is_err());
    }
}
