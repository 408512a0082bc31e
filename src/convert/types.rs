//! Types as text: `list<float32>`, `timestamp[us, UTC]`, `struct<a: int64, b: string>`; the form in which users write and read schemas.

use std::fmt::Write as _;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Fields, IntervalUnit, Metadata, Schema, SchemaRef, TimeUnit};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::schema::DType;

/// Deepest nesting of a type.
const MAX_DEPTH: usize = 32;

/// Types by column name.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Types(pub(crate) Vec<(String, DataType)>);

impl Types {
    /// Parses `name: type, name: type`, or the same as a JSON object.
    ///
    /// # Errors
    /// `Config` with the position of the mistake.
    pub fn parse(text: &str) -> Result<Self> {
        if text.trim_start().starts_with('{') {
            return serde_json::from_str(text).map_err(|error| Error::config("schema", error.to_string()));
        }
        let mut parser = Parser { text, at: 0 };
        let mut types = Vec::new();
        loop {
            let name = parser.name()?;
            parser.expect(':')?;
            types.push((name, parser.data_type(0)?));
            if !parser.eat(',') {
                break;
            }
        }
        parser.end()?;
        Self(types).unique()
    }

    /// Returns the type of column `name`.
    pub(crate) fn get(&self, name: &str) -> Option<&DataType> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, data_type)| data_type)
    }

    fn unique(self) -> Result<Self> {
        let mut names: Vec<&String> = self.0.iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::config("schema", format!("names column {:?} twice", pair[0]))),
            None => Ok(self),
        }
    }
}

impl Serialize for Types {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, data_type)| (name, type_text(data_type))))
    }
}

impl<'de> Deserialize<'de> for Types {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Self::parse(&text).map_err(|error| D::Error::custom(problem(error))),
            Value::Object(map) => {
                let types = map.iter().map(|(name, value)| {
                    let text =
                        value.as_str().ok_or_else(|| D::Error::custom(format!("the type of {name:?} is not text")))?;
                    Ok((name.clone(), parse_type(text).map_err(|error| D::Error::custom(problem(error)))?))
                });
                Ok(Self(types.collect::<Result<_, D::Error>>()?))
            }
            _ => Err(D::Error::custom("a schema is an object of types by column name, or `name: type, ...`")),
        }
    }
}

/// What is wrong with a type, without the name of the option: who reads the options adds that.
fn problem(error: Error) -> String {
    match error {
        Error::Config { problem, .. } => problem,
        other => other.to_string(),
    }
}

/// Formats the type as text. Kinds of strings, bytes and lists that differ only in memory layout have one name.
pub fn type_text(data_type: &DataType) -> String {
    let unit = |unit: &TimeUnit| match unit {
        TimeUnit::Second => "s",
        TimeUnit::Millisecond => "ms",
        TimeUnit::Microsecond => "us",
        TimeUnit::Nanosecond => "ns",
    };
    match data_type {
        DataType::Null => "null".into(),
        DataType::Boolean => "bool".into(),
        DataType::Int8 => "int8".into(),
        DataType::Int16 => "int16".into(),
        DataType::Int32 => "int32".into(),
        DataType::Int64 => "int64".into(),
        DataType::UInt8 => "uint8".into(),
        DataType::UInt16 => "uint16".into(),
        DataType::UInt32 => "uint32".into(),
        DataType::UInt64 => "uint64".into(),
        DataType::Float16 => "float16".into(),
        DataType::Float32 => "float32".into(),
        DataType::Float64 => "float64".into(),
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => "string".into(),
        DataType::Binary | DataType::LargeBinary | DataType::BinaryView => "binary".into(),
        DataType::FixedSizeBinary(size) => format!("binary[{size}]"),
        DataType::Date32 => "date32".into(),
        DataType::Date64 => "date64".into(),
        DataType::Time32(of) => format!("time32[{}]", unit(of)),
        DataType::Time64(of) => format!("time64[{}]", unit(of)),
        DataType::Timestamp(of, None) => format!("timestamp[{}]", unit(of)),
        DataType::Timestamp(of, Some(zone)) => format!("timestamp[{}, {zone}]", unit(of)),
        DataType::Duration(of) => format!("duration[{}]", unit(of)),
        DataType::Interval(IntervalUnit::YearMonth) => "interval[months]".into(),
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => format!("decimal({precision}, {scale})"),
        DataType::List(item) | DataType::LargeList(item) | DataType::ListView(item) | DataType::LargeListView(item) => {
            format!("list<{}>", type_text(item.data_type()))
        }
        DataType::FixedSizeList(item, size) => format!("list<{}>[{size}]", type_text(item.data_type())),
        DataType::Struct(members) => {
            let mut text = String::from("struct<");
            for (number, member) in members.iter().enumerate() {
                let name = member.name();
                let plain = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
                let name = if plain { name.clone() } else { json!(name).to_string() };
                let comma = if number > 0 { ", " } else { "" };
                // Writing to a string cannot fail.
                let _ = write!(text, "{comma}{name}: {}", type_text(member.data_type()));
            }
            text + ">"
        }
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(pair) if pair.len() == 2 => {
                format!("map<{}, {}>", type_text(pair[0].data_type()), type_text(pair[1].data_type()))
            }
            _ => "map".into(),
        },
        DataType::Dictionary(_, values) => type_text(values),
        DataType::RunEndEncoded(_, values) => type_text(values.data_type()),
        other => other.to_string(),
    }
}

/// Parses the output of [`type_text`].
///
/// # Errors
/// `Config` with the position of the mistake.
pub(crate) fn parse_type(text: &str) -> Result<DataType> {
    let mut parser = Parser { text, at: 0 };
    let data_type = parser.data_type(0)?;
    parser.end()?;
    Ok(data_type)
}

/// Returns the Arrow type of the element type; bfloat16 has none.
pub(crate) fn number(dtype: DType) -> Option<DataType> {
    if dtype == DType::Bool { Some(DataType::Boolean) } else { dtype.arrow() }
}

/// Returns the element type of a numeric Arrow type.
pub(crate) fn dtype(data_type: &DataType) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| number(*dtype).as_ref() == Some(data_type))
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn space(&mut self) {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start().len();
    }

    fn eat(&mut self, c: char) -> bool {
        self.space();
        let found = self.rest().starts_with(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn wrong(&self, expected: &str) -> Error {
        let at = self.text.get(..self.at).map_or(0, |before| before.chars().count()) + 1;
        let shown: String = self.text.chars().take(200).collect();
        Error::config("schema", format!("{shown:?}, character {at}: expected {expected}"))
    }

    fn expect(&mut self, c: char) -> Result<()> {
        if self.eat(c) { Ok(()) } else { Err(self.wrong(&format!("{c:?}"))) }
    }

    fn end(&mut self) -> Result<()> {
        self.space();
        if self.rest().is_empty() { Ok(()) } else { Err(self.wrong("the end")) }
    }

    fn word(&mut self, more: &str) -> String {
        self.space();
        let word: String = self.rest().chars().take_while(|c| c.is_alphanumeric() || more.contains(*c)).collect();
        self.at += word.len();
        word
    }

    fn name(&mut self) -> Result<String> {
        self.space();
        if self.rest().starts_with('"') {
            let mut stream = serde_json::Deserializer::from_str(self.rest()).into_iter::<String>();
            let name = stream.next().and_then(Result::ok);
            let len = stream.byte_offset();
            let name = name.ok_or_else(|| self.wrong("a name in quotes"))?;
            self.at += len;
            return Ok(name);
        }
        let name = self.word("_-./ ").trim_end().to_owned();
        if name.is_empty() { Err(self.wrong("a name")) } else { Ok(name) }
    }

    fn number<T: std::str::FromStr>(&mut self) -> Result<T> {
        let word = self.word("-");
        word.parse().map_err(|_| self.wrong("a number"))
    }

    fn unit(&mut self) -> Result<TimeUnit> {
        match self.word("").as_str() {
            "s" => Ok(TimeUnit::Second),
            "ms" => Ok(TimeUnit::Millisecond),
            "us" => Ok(TimeUnit::Microsecond),
            "ns" => Ok(TimeUnit::Nanosecond),
            _ => Err(self.wrong("s, ms, us or ns")),
        }
    }

    fn bracketed_unit(&mut self) -> Result<TimeUnit> {
        self.expect('[')?;
        let unit = self.unit()?;
        self.expect(']')?;
        Ok(unit)
    }

    fn data_type(&mut self, depth: usize) -> Result<DataType> {
        if depth > MAX_DEPTH {
            return Err(self.wrong("less nesting"));
        }
        let started = self.at;
        let word = self.word("_").to_ascii_lowercase();
        Ok(match word.as_str() {
            "null" => DataType::Null,
            "bool" | "boolean" => DataType::Boolean,
            "string" | "str" | "utf8" | "text" => DataType::Utf8,
            "binary" | "bytes" => {
                if !self.eat('[') {
                    return Ok(DataType::Binary);
                }
                let size = self.number::<i32>()?;
                self.expect(']')?;
                if size < 0 {
                    return Err(self.wrong("a size"));
                }
                DataType::FixedSizeBinary(size)
            }
            "date32" | "date" => DataType::Date32,
            "date64" => DataType::Date64,
            "time32" => match self.bracketed_unit()? {
                unit @ (TimeUnit::Second | TimeUnit::Millisecond) => DataType::Time32(unit),
                _ => return Err(self.wrong("s or ms")),
            },
            "time64" => match self.bracketed_unit()? {
                unit @ (TimeUnit::Microsecond | TimeUnit::Nanosecond) => DataType::Time64(unit),
                _ => return Err(self.wrong("us or ns")),
            },
            "duration" => DataType::Duration(self.bracketed_unit()?),
            "timestamp" => {
                self.expect('[')?;
                let unit = self.unit()?;
                let zone = if self.eat(',') { Some(self.word("/+-:_").into()) } else { None };
                self.expect(']')?;
                DataType::Timestamp(unit, zone)
            }
            "decimal" => {
                self.expect('(')?;
                let precision = self.number::<u8>()?;
                self.expect(',')?;
                let scale = self.number::<i8>()?;
                self.expect(')')?;
                match precision {
                    1..=38 => DataType::Decimal128(precision, scale),
                    39..=76 => DataType::Decimal256(precision, scale),
                    _ => return Err(self.wrong("a precision from 1 to 76")),
                }
            }
            "list" => {
                self.expect('<')?;
                let item = self.data_type(depth + 1)?;
                self.expect('>')?;
                if !self.eat('[') {
                    return Ok(DataType::new_list(item, true));
                }
                let size = self.number::<i32>()?;
                self.expect(']')?;
                if size < 0 {
                    return Err(self.wrong("a size"));
                }
                DataType::new_fixed_size_list(item, size, true)
            }
            "struct" => {
                self.expect('<')?;
                let mut members = Vec::new();
                loop {
                    let name = self.name()?;
                    self.expect(':')?;
                    members.push(Field::new(name, self.data_type(depth + 1)?, true));
                    if !self.eat(',') {
                        break;
                    }
                }
                self.expect('>')?;
                DataType::Struct(members.into())
            }
            "map" => {
                self.expect('<')?;
                let key = self.data_type(depth + 1)?;
                self.expect(',')?;
                let value = self.data_type(depth + 1)?;
                self.expect('>')?;
                let pair = vec![Field::new("key", key, false), Field::new("value", value, true)];
                DataType::Map(Arc::new(Field::new("entries", DataType::Struct(pair.into()), false)), false)
            }
            "int" => DataType::Int64,
            "double" => DataType::Float64,
            "float" => DataType::Float32,
            name => match DType::parse(name).and_then(number) {
                Some(data_type) => data_type,
                None => {
                    self.at = started;
                    return Err(self.wrong("a type such as int64, string, list<float32> or timestamp[us]"));
                }
            },
        })
    }
}

/// Encodes a schema as JSON, for the `_SUCCESS` of a finished conversion.
pub(crate) fn schema_json(schema: &Schema) -> Value {
    let field = |field: &FieldRef| {
        json!({
            "name": field.name(),
            "type": type_text(field.data_type()),
            "nullable": field.is_nullable(),
            "metadata": field.metadata().iter().collect::<std::collections::BTreeMap<_, _>>(),
        })
    };
    Value::Array(schema.fields().iter().map(field).collect())
}

/// Decodes the output of [`schema_json`]; `None` if it is something else.
pub(crate) fn schema_from_json(value: &Value) -> Option<SchemaRef> {
    let field = |value: &Value| {
        let data_type = parse_type(value.get("type")?.as_str()?).ok()?;
        let field = Field::new(value.get("name")?.as_str()?, data_type, value.get("nullable")?.as_bool()?);
        let metadata = value.get("metadata")?.as_object()?;
        let metadata = metadata.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        Some(field.with_metadata(metadata.collect::<Metadata>()))
    };
    let fields: Option<Vec<Field>> = value.as_array()?.iter().map(field).collect();
    Some(Arc::new(Schema::new(Fields::from(fields?))))
}

/// Returns true for types of numbers or booleans.
pub(crate) fn is_number(data_type: &DataType) -> bool {
    dtype(data_type).is_some()
}

/// Returns the type of the items, for all kinds of lists.
pub(crate) fn item(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::ListView(item)
        | DataType::LargeListView(item) => Some(item.data_type()),
        _ => None,
    }
}

/// Returns true for types of text.
pub(crate) fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Returns true for types of bytes.
pub(crate) fn is_binary(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_reads_as_the_type_it_was_written_from() {
        for text in [
            "int8",
            "uint64",
            "float16",
            "bool",
            "string",
            "binary",
            "binary[16]",
            "date32",
            "time64[ns]",
            "timestamp[us]",
            "timestamp[ms, Europe/Berlin]",
            "duration[s]",
            "decimal(10, 2)",
            "decimal(50, 0)",
            "list<list<float32>>",
            "list<int64>[4]",
            "struct<a: int64, \"b c\": list<string>>",
            "map<string, int32>",
        ] {
            assert_eq!(type_text(&parse_type(text).unwrap()), text);
        }
        for wrong in ["", "int65", "list<int8", "list<int8>[", "decimal(99, 0)", "struct<>", "timestamp[y]", "int8 x"] {
            assert!(parse_type(wrong).is_err(), "{wrong}");
        }
        assert!(parse_type(&"list<".repeat(1000)).is_err());
    }

    #[test]
    fn a_schema_is_a_map_or_a_text() {
        let types = Types::parse("a: int64, b.c: list<string>").unwrap();
        assert_eq!(types.get("b.c"), Some(&DataType::new_list(DataType::Utf8, true)));
        assert_eq!(Types::parse(r#"{"a": "int64", "b.c": "list<string>"}"#).unwrap(), types);
        assert!(Types::parse("a: int64, a: int8").is_err());
        for wrong in ["a: int63", r#"{"a": "int63"}"#] {
            let json = if wrong.starts_with('{') { wrong.to_owned() } else { json!(wrong).to_string() };
            let said = serde_json::from_str::<Types>(&json).unwrap_err().to_string();
            assert!(said.contains("int63") && !said.contains("option"), "{said}");
            assert_eq!(Types::parse(wrong).unwrap_err().to_string().matches("option schema").count(), 1);
        }
        let fields = vec![Field::new("x", DataType::Int32, false)];
        let schema = Schema::new(fields);
        assert_eq!(*schema_from_json(&schema_json(&schema)).unwrap(), schema);
    }
}
