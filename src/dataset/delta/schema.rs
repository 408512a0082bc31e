//! The schema of a table: its JSON as columns in Arrow's types, with the names and numbers that data files know them by.

use arrow::datatypes::{DataType, TimeUnit};
use serde_json::Value;

use crate::dataset::table::{Column, Kind, Mapping};
use crate::error::{Error, Place, Result};

/// The zone of times that are instants.
const UTC: &str = "UTC";

/// The columns that `json`, the schema of the table at `url`, tells of.
///
/// # Errors
/// [`Error::Corrupt`] for a damaged schema; [`Error::Unsupported`] for a type that is not read, each naming the column.
pub(super) fn columns(json: &str, mapping: Mapping, url: &str) -> Result<Vec<Column>> {
    let place = || Place::file(format!("{url}/{}", crate::store::LOG));
    // Nesting has the limit of serde_json.
    let schema: Value = serde_json::from_str(json)
        .map_err(|error| Error::corrupt_by(place(), "the table's schema is not JSON", error))?;
    members(&schema, mapping, "").map_err(|fault| match fault {
        Fault::Corrupt(column, what) => {
            Error::corrupt(place(), format!("the table's schema: column {column:?}: {what}"))
        }
        Fault::Unsupported(column, ty) => {
            let what = format!("{url}: type {ty} of column {column:?} of Delta Lake");
            Error::unsupported(what, "write a copy of the table without the column")
        }
    })
}

enum Fault {
    Corrupt(String, &'static str),
    Unsupported(String, String),
}

fn members(ty: &Value, mapping: Mapping, above: &str) -> Result<Vec<Column>, Fault> {
    let fields = ty.get("fields").and_then(Value::as_array).filter(|_| ty.get("type") == Some(&"struct".into()));
    let fields = fields.ok_or_else(|| Fault::Corrupt(above.to_owned(), "it is not a struct"))?;
    let mut columns: Vec<Column> = Vec::with_capacity(fields.len());
    for field in fields {
        let name = field.get("name").and_then(Value::as_str);
        let name = name.ok_or_else(|| Fault::Corrupt(above.to_owned(), "a field has no name"))?;
        let path = if above.is_empty() { name.to_owned() } else { format!("{above}.{name}") };
        let said = |key: &str| field.get("metadata").and_then(|metadata| metadata.get(key));
        let (mut physical, mut id) = (name.to_owned(), None);
        if mapping != Mapping::None {
            let text = said("delta.columnMapping.physicalName").and_then(Value::as_str);
            physical = text.ok_or_else(|| Fault::Corrupt(path.clone(), "it has no physical name"))?.to_owned();
            id = said("delta.columnMapping.id").and_then(Value::as_i64).and_then(|id| i32::try_from(id).ok());
            if mapping == Mapping::Id && id.is_none() {
                return Err(Fault::Corrupt(path, "it has no number"));
            }
        }
        if columns.iter().any(|column| column.name == name) {
            return Err(Fault::Corrupt(path, "there are two of its name"));
        }
        let ty = field.get("type").unwrap_or(&Value::Null);
        let kind = kind(ty, mapping, &path)?;
        let nullable = field.get("nullable").and_then(Value::as_bool).unwrap_or(true);
        columns.push(Column { name: name.to_owned(), physical, id, nullable, kind });
    }
    Ok(columns)
}

fn kind(ty: &Value, mapping: Mapping, path: &str) -> Result<Kind, Fault> {
    let corrupt = |what| Fault::Corrupt(path.to_owned(), what);
    if let Some(name) = ty.as_str() {
        let unsupported =
            || Fault::Unsupported(path.to_owned(), format!("{:?}", name.chars().take(64).collect::<String>()));
        return leaf(name).map(Kind::Leaf).ok_or_else(unsupported);
    }
    let part = |name: &'static str| ty.get(name).ok_or_else(|| corrupt("a part of its type is missing"));
    let nullable = |name: &str| ty.get(name).and_then(Value::as_bool).unwrap_or(true);
    match ty.get("type").and_then(Value::as_str) {
        Some("struct") => Ok(Kind::Struct(members(ty, mapping, path)?)),
        Some("array") => Ok(Kind::List(Box::new(kind(part("elementType")?, mapping, path)?), nullable("containsNull"))),
        Some("map") => {
            let (key, value) = (kind(part("keyType")?, mapping, path)?, kind(part("valueType")?, mapping, path)?);
            Ok(Kind::Map(Box::new(key), Box::new(value), nullable("valueContainsNull")))
        }
        // Spark's own types over others, such as vectors. Members below them have no other names and no numbers.
        Some("udt") => kind(part("sqlType")?, Mapping::None, path),
        Some(other) => {
            Err(Fault::Unsupported(path.to_owned(), format!("{:?}", other.chars().take(64).collect::<String>())))
        }
        None => Err(corrupt("it has no type")),
    }
}

fn leaf(name: &str) -> Option<DataType> {
    Some(match name {
        "string" => DataType::Utf8View,
        "long" => DataType::Int64,
        "integer" => DataType::Int32,
        "short" => DataType::Int16,
        "byte" => DataType::Int8,
        "float" => DataType::Float32,
        "double" => DataType::Float64,
        "boolean" => DataType::Boolean,
        "binary" => DataType::BinaryView,
        "date" => DataType::Date32,
        "timestamp" => DataType::Timestamp(TimeUnit::Microsecond, Some(UTC.into())),
        "timestamp_ntz" => DataType::Timestamp(TimeUnit::Microsecond, None),
        "void" | "null" => DataType::Null,
        "decimal" => DataType::Decimal128(10, 0),
        _ => {
            let (precision, scale) = name.strip_prefix("decimal(")?.strip_suffix(')')?.split_once(',')?;
            let (precision, scale) = (precision.trim().parse::<u8>().ok()?, scale.trim().parse::<i8>().ok()?);
            let fits = (1..=38).contains(&precision) && (0..=38).contains(&scale) && scale as u8 <= precision;
            fits.then_some(DataType::Decimal128(precision, scale))?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_become_arrows() {
        let json = r#"{"type":"struct","fields":[
            {"name":"a","type":"decimal(5, 2)","nullable":false,"metadata":{}},
            {"name":"b","type":{"type":"array","elementType":"string","containsNull":false},"nullable":true,"metadata":{}},
            {"name":"c","type":{"type":"map","keyType":"byte","valueType":{"type":"struct","fields":[
                {"name":"x","type":"timestamp","nullable":true,"metadata":{}}]},"valueContainsNull":true},"nullable":true,"metadata":{}},
            {"name":"v","type":{"type":"udt","class":"V","sqlType":{"type":"struct","fields":[{"name":"n","type":"integer"}]}}}]}"#;
        let found = columns(json, Mapping::None, "t").unwrap();
        let types: Vec<String> = found.iter().map(|column| column.field().data_type().to_string()).collect();
        assert_eq!(types[0], "Decimal128(5, 2)");
        assert_eq!(types[1], "List(non-null Utf8View, field: 'element')");
        assert!(types[2].contains("Int8") && types[2].contains("Timestamp(µs, \"UTC\")"), "{}", types[2]);
        assert!(types[3].contains("Int32"), "{}", types[3]);
        assert_eq!((found[0].nullable, found[1].physical.as_str()), (false, "b"));
    }

    #[test]
    fn types_of_sparks_own_have_members_by_their_names() {
        let json = r#"{"type":"struct","fields":[{"name":"v","type":{"type":"udt","class":"V","sqlType":{"type":"struct","fields":[
            {"name":"n","type":"integer"}]}},"metadata":{"delta.columnMapping.id":3,"delta.columnMapping.physicalName":"col-3"}}]}"#;
        for mapping in [Mapping::Name, Mapping::Id] {
            let found = columns(json, mapping, "t").unwrap();
            let Kind::Struct(members) = &found[0].kind else { panic!("{:?}", found[0].kind) };
            assert_eq!((found[0].physical.as_str(), members[0].physical.as_str(), members[0].id), ("col-3", "n", None));
        }
    }

    #[test]
    fn what_is_no_schema_or_not_read_is_named() {
        let one = |ty: &str| format!(r#"{{"type":"struct","fields":[{{"name":"a","type":{ty},"metadata":{{}}}}]}}"#);
        let error = |json: &str, mapping| columns(json, mapping, "t").unwrap_err();
        for ty in [
            "\"variant\"",
            "\"interval year to month\"",
            "{\"type\":\"geometry\"}",
            "\"decimal(40,2)\"",
            "\"decimal(2,3)\"",
        ] {
            let error = error(&one(ty), Mapping::None);
            assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains("\"a\""), "{error}");
        }
        for json in [r#""#, "7", r#"{"type":"struct"}"#, &one("7"), &one(r#"{"type":"array"}"#)] {
            assert!(matches!(error(json, Mapping::None), Error::Corrupt { .. }), "{json}");
        }
        let twice = r#"{"type":"struct","fields":[{"name":"a","type":"long"},{"name":"a","type":"long"}]}"#;
        assert!(error(twice, Mapping::None).to_string().contains("two of its name"));
        assert!(error(&one("\"long\""), Mapping::Name).to_string().contains("no physical name"));
    }
}
