//! Columns from JSON values: each value becomes exactly a value of its column's type, or an error that names it.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, FixedSizeListArray, ListArray, MapArray, NullBufferBuilder, StructArray, new_empty_array,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, FieldRef, Fields};

use super::cells::as_type;
use super::json::{Broken, Lexer, Token};
use super::scalar::{Growing, growing, shown};
use crate::convert::errors::unexpected;
use crate::convert::types::{is_text, item, type_text};
use crate::error::{Error, Result};

/// An error about a value: the path below the column, and a description.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// Names on the path, outermost first.
    pub(crate) path: Vec<String>,
    pub(crate) what: String,
}

impl Wrong {
    fn new(what: impl Into<String>) -> Self {
        Self { path: Vec::new(), what: what.into() }
    }

    fn within(mut self, name: &str) -> Self {
        self.path.insert(0, name.to_owned());
        self
    }
}

impl From<Broken> for Wrong {
    fn from(why: Broken) -> Self {
        Self::new(format!("it is not JSON: {why}"))
    }
}

/// The tokens that represent a type.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Boolean,
    Number,
    Text,
    /// Decimals are accepted in both forms.
    NumberOrText,
}

/// A column under construction.
enum Column {
    Scalar {
        cells: Box<dyn Growing>,
        form: Form,
        of: DataType,
        rows: usize,
    },
    List {
        field: FieldRef,
        of: DataType,
        items: Box<Self>,
        ends: Vec<i32>,
        valid: NullBufferBuilder,
    },
    Struct {
        members: Members,
        valid: NullBufferBuilder,
    },
    Map {
        of: DataType,
        keys: Box<dyn Growing>,
        values: Box<Self>,
        ends: Vec<i32>,
        valid: NullBufferBuilder,
    },
    /// A column that was not requested.
    Skipped {
        rows: usize,
    },
}

fn never(data_type: &DataType) -> Error {
    Error::unsupported(format!("{} in JSON", type_text(data_type)), "give another type")
}

impl Column {
    fn new(of: &DataType, given: bool) -> Result<Self> {
        let valid = NullBufferBuilder::new(0);
        if let Some(cells) = growing(of, given) {
            let form = match of {
                DataType::Boolean => Form::Boolean,
                kind if kind.is_decimal() => Form::NumberOrText,
                kind if kind.is_integer() || kind.is_floating() => Form::Number,
                _ => Form::Text,
            };
            return Ok(Self::Scalar { cells, form, of: of.clone(), rows: 0 });
        }
        Ok(match of {
            DataType::Struct(fields) => Self::Struct { members: Members::new(fields, given, |_| true)?, valid },
            DataType::Map(entries, _) => match entries.data_type() {
                DataType::Struct(pair) if pair.len() == 2 && is_text(pair[0].data_type()) => {
                    let keys = growing(pair[0].data_type(), given).ok_or_else(|| never(of))?;
                    let values = Box::new(Self::new(pair[1].data_type(), given)?);
                    Self::Map { of: of.clone(), keys, values, ends: vec![0], valid }
                }
                _ => return Err(never(of)),
            },
            _ => {
                let inner = item(of).ok_or_else(|| never(of))?;
                let field = match of {
                    DataType::List(field)
                    | DataType::LargeList(field)
                    | DataType::FixedSizeList(field, _)
                    | DataType::ListView(field)
                    | DataType::LargeListView(field) => Arc::clone(field),
                    _ => Arc::new(Field::new("item", inner.clone(), true)),
                };
                let items = Box::new(Self::new(inner, given)?);
                Self::List { field, of: of.clone(), items, ends: vec![0], valid }
            }
        })
    }

    fn rows(&self) -> usize {
        match self {
            Self::Scalar { rows, .. } | Self::Skipped { rows } => *rows,
            Self::List { ends, .. } | Self::Map { ends, .. } => ends.len() - 1,
            Self::Struct { members, .. } => members.rows,
        }
    }

    fn null(&mut self) {
        match self {
            Self::Skipped { rows } => *rows += 1,
            Self::Scalar { cells, rows, .. } => {
                cells.null();
                *rows += 1;
            }
            Self::List { of, items, ends, valid, .. } => {
                if let DataType::FixedSizeList(_, size) = of {
                    (0..*size).for_each(|_| items.null());
                }
                ends.push(i32::try_from(items.rows()).unwrap_or(i32::MAX));
                valid.append_null();
            }
            Self::Map { ends, valid, .. } => {
                ends.push(ends.last().copied().unwrap_or(0));
                valid.append_null();
            }
            Self::Struct { members, valid } => {
                members.fill();
                valid.append_null();
            }
        }
    }

    /// Reads the next value.
    fn read(&mut self, lexer: &mut Lexer<'_>) -> Result<(), Wrong> {
        let start = lexer.at();
        let token = lexer.value()?;
        if token == Token::Null {
            self.null();
            return Ok(());
        }
        let other = |lexer: &mut Lexer<'_>, token: &Token<'_>, of: &DataType| -> Result<(), Wrong> {
            lexer.skip(token)?;
            let raw = String::from_utf8_lossy(lexer.since(start)).into_owned();
            let raw = if matches!(token, Token::Text(_)) { raw.chars().take(80).collect() } else { short(&raw) };
            Err(Wrong::new(format!("{raw} is {}, the column is of type {}", token.kind(), type_text(of))))
        };
        match self {
            Self::Skipped { rows } => {
                lexer.skip(&token)?;
                *rows += 1;
            }
            Self::Scalar { cells, form, of, rows } => {
                let text: Cow<'_, str> = match (&token, *form) {
                    (Token::Boolean(true), Form::Boolean) => "true".into(),
                    (Token::Boolean(false), Form::Boolean) => "false".into(),
                    (Token::Number(text), Form::Number | Form::NumberOrText) => (*text).into(),
                    (Token::Text(text), Form::Text | Form::NumberOrText) => Cow::Borrowed(&**text),
                    _ => return other(lexer, &token, of),
                };
                cells.push(&text).map_err(|why| {
                    let raw = if matches!(token, Token::Text(_)) { shown(&text) } else { short(&text) };
                    Wrong::new(format!("{raw} is not a valid {}: {why}", type_text(of)))
                })?;
                *rows += 1;
            }
            Self::List { of, items, ends, valid, .. } => {
                if token != Token::List {
                    return other(lexer, &token, of);
                }
                let before = items.rows();
                let mut first = true;
                while lexer.item(first)? {
                    first = false;
                    items.read(lexer)?;
                }
                let found = items.rows() - before;
                if let DataType::FixedSizeList(_, size) = of
                    && usize::try_from(*size) != Ok(found)
                {
                    return Err(Wrong::new(format!(
                        "a list of {found} items, the column is of type {}",
                        type_text(of)
                    )));
                }
                ends.push(i32::try_from(items.rows()).map_err(|_| Wrong::new("more than 2^31 items in one batch"))?);
                valid.append_non_null();
            }
            Self::Map { of, keys, values, ends, valid } => {
                if token != Token::Object {
                    return other(lexer, &token, of);
                }
                let mut seen = HashSet::new();
                let mut first = true;
                while let Some(name) = lexer.member(first)? {
                    first = false;
                    values.read(lexer).map_err(|wrong| wrong.within(&name))?;
                    keys.push(&name).map_err(|why| Wrong::new(why).within(&name))?;
                    if seen.contains(&name) {
                        return Err(Wrong::new(format!("the key {} stands there twice", shown(&name))));
                    }
                    seen.insert(name);
                }
                ends.push(i32::try_from(values.rows()).map_err(|_| Wrong::new("more than 2^31 entries in one batch"))?);
                valid.append_non_null();
            }
            Self::Struct { members, valid } => {
                if token != Token::Object {
                    let of = DataType::Struct(members.fields.clone());
                    return other(lexer, &token, &of);
                }
                members.read(lexer)?;
                valid.append_non_null();
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<ArrayRef, arrow::error::ArrowError> {
        let offsets = |ends: &mut Vec<i32>| {
            let ends = std::mem::replace(ends, vec![0]);
            OffsetBuffer::new(ScalarBuffer::from(ends))
        };
        Ok(match self {
            Self::Skipped { rows } => {
                *rows = 0;
                new_empty_array(&DataType::Null)
            }
            Self::Scalar { cells, rows, .. } => {
                *rows = 0;
                cells.finish()
            }
            Self::List { field, of, items, ends, valid } => {
                let (inner, nulls) = (items.finish()?, valid.finish());
                let ends = offsets(ends);
                match of {
                    DataType::FixedSizeList(_, size) => {
                        let rows = ends.len() - 1;
                        Arc::new(FixedSizeListArray::try_new_with_length(Arc::clone(field), *size, inner, nulls, rows)?)
                    }
                    _ => {
                        let lists: ArrayRef = Arc::new(ListArray::try_new(Arc::clone(field), ends, inner, nulls)?);
                        // Only the width of the offsets may differ.
                        as_type(&lists, of).map_err(|error| arrow::error::ArrowError::ExternalError(error.into()))?
                    }
                }
            }
            Self::Map { of, keys, values, ends, valid } => {
                let DataType::Map(entries, sorted) = &*of else { return Ok(new_empty_array(of)) };
                let DataType::Struct(pair) = entries.data_type() else { return Ok(new_empty_array(of)) };
                let inner = StructArray::try_new(pair.clone(), vec![keys.finish(), values.finish()?], None)?;
                Arc::new(MapArray::try_new(Arc::clone(entries), offsets(ends), inner, valid.finish(), *sorted)?)
            }
            Self::Struct { members, valid } => {
                let rows = members.rows;
                let (fields, nulls) = (members.fields.clone(), valid.finish());
                Arc::new(StructArray::try_new_with_length(fields, members.finish()?, nulls, rows)?)
            }
        })
    }
}

/// Shortens a raw token.
fn short(raw: &str) -> String {
    let short: String = raw.chars().take(60).collect();
    if short.len() < raw.len() { short + "..." } else { short }
}

/// The members of objects, by name.
struct Members {
    fields: Fields,
    numbers: HashMap<String, usize>,
    columns: Vec<Column>,
    rows: usize,
}

impl Members {
    fn new(fields: &Fields, given: bool, wanted: impl Fn(usize) -> bool) -> Result<Self> {
        let column = |(number, field): (usize, &FieldRef)| match wanted(number) {
            true => Column::new(field.data_type(), given),
            false => Ok(Column::Skipped { rows: 0 }),
        };
        let columns = fields.iter().enumerate().map(column).collect::<Result<_>>()?;
        let numbers = fields.iter().enumerate().map(|(number, field)| (field.name().clone(), number)).collect();
        Ok(Self { fields: fields.clone(), numbers, columns, rows: 0 })
    }

    /// Reads the members of an opened object.
    fn read(&mut self, lexer: &mut Lexer<'_>) -> Result<(), Wrong> {
        let (mut first, mut next) = (true, 0);
        while let Some(name) = lexer.member(first)? {
            first = false;
            // Objects mostly have their members in the same order.
            let number = match self.fields.get(next).is_some_and(|field| *field.name() == *name) {
                true => next,
                false => match self.numbers.get(&*name) {
                    Some(number) => *number,
                    None => {
                        let why = format!("the member {} is not in the sample of the first rows", shown(&name));
                        return Err(Wrong::new(why).within(&name));
                    }
                },
            };
            next = number + 1;
            let Some(column) = self.columns.get_mut(number) else { continue };
            if column.rows() > self.rows {
                return Err(Wrong::new(format!("the member {} stands there twice", shown(&name))).within(&name));
            }
            column.read(lexer).map_err(|wrong| wrong.within(&name))?;
        }
        self.fill();
        Ok(())
    }

    /// Ends a row: missing members become null.
    fn fill(&mut self) {
        self.rows += 1;
        for column in &mut self.columns {
            if column.rows() < self.rows {
                column.null();
            }
        }
    }

    /// Returns the arrays of the columns; empty ones for skipped columns.
    fn finish(&mut self) -> Result<Vec<ArrayRef>, arrow::error::ArrowError> {
        self.rows = 0;
        self.columns.iter_mut().map(Column::finish).collect()
    }
}

/// Rows under construction from objects.
pub(crate) struct Objects(Members);

impl Objects {
    /// Makes rows for objects with these members, keeping those whose number `wanted` accepts. `given` marks types given by the user.
    ///
    /// # Errors
    /// `Unsupported` for a type that JSON cannot represent.
    pub(crate) fn new(fields: &Fields, given: &[bool], wanted: impl Fn(usize) -> bool) -> Result<Self> {
        let mut members = Members::new(fields, false, |_| false)?;
        for (number, field) in fields.iter().enumerate().filter(|(number, _)| wanted(*number)) {
            members.columns[number] = Column::new(field.data_type(), given.get(number).copied().unwrap_or(false))?;
        }
        Ok(Self(members))
    }

    /// Adds the row in `line`.
    ///
    /// # Errors
    /// An error with the column. Nothing can be added afterwards.
    pub(crate) fn push(&mut self, line: &[u8]) -> Result<(), Wrong> {
        let mut lexer = Lexer::new(line);
        let token = lexer.value()?;
        if token != Token::Object {
            return Err(Wrong::new(format!("it is {}, where an object is wanted", token.kind())));
        }
        self.0.read(&mut lexer)?;
        Ok(lexer.end()?)
    }

    pub(crate) fn rows(&self) -> usize {
        self.0.rows
    }

    /// Returns the kept columns, in order.
    ///
    /// # Errors
    /// `Corrupt` if a type forbids an existing null.
    pub(crate) fn finish(&mut self) -> Result<Vec<ArrayRef>> {
        let kept: Vec<bool> = self.0.columns.iter().map(|column| !matches!(column, Column::Skipped { .. })).collect();
        let arrays = self.0.finish().map_err(unexpected)?;
        Ok(arrays.into_iter().zip(kept).filter_map(|(array, kept)| kept.then_some(array)).collect())
    }
}

/// A column under construction from JSON texts of one value each.
pub(crate) struct Values(Column);

impl Values {
    /// Makes a column of this type, which the user gave.
    ///
    /// # Errors
    /// `Unsupported` for a type that JSON cannot represent.
    pub(crate) fn new(of: &DataType) -> Result<Self> {
        Column::new(of, true).map(Self)
    }

    /// Adds a value.
    ///
    /// # Errors
    /// An error about the value. Nothing can be added afterwards.
    pub(crate) fn push(&mut self, text: &[u8]) -> Result<(), Wrong> {
        let mut lexer = Lexer::new(text);
        self.0.read(&mut lexer)?;
        Ok(lexer.end()?)
    }

    pub(crate) fn null(&mut self) {
        self.0.null();
    }

    /// Returns the array.
    ///
    /// # Errors
    /// `Corrupt` if the type forbids an existing null.
    pub(crate) fn finish(&mut self) -> Result<ArrayRef> {
        self.0.finish().map_err(unexpected)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray};
    use arrow::datatypes::Int64Type;
    use arrow::util::display::array_value_to_string;

    use super::*;
    use crate::convert::types::parse_type;

    fn read(of: &str, texts: &[&str]) -> Result<Vec<String>, Wrong> {
        let mut values = Values::new(&parse_type(of).unwrap()).unwrap();
        texts.iter().try_for_each(|text| values.push(text.as_bytes()))?;
        let array = values.finish().unwrap();
        assert_eq!(*array.data_type(), parse_type(of).unwrap());
        let value =
            |row| if array.is_null(row) { "null".to_owned() } else { array_value_to_string(&array, row).unwrap() };
        Ok((0..array.len()).map(value).collect())
    }

    #[test]
    fn nested_values_are_what_was_written() {
        assert_eq!(read("list<int64>", &["[1, null]", "null", "[]"]).unwrap(), ["[1, ]", "null", "[]"]);
        assert_eq!(read("list<int64>[2]", &["[1, 2]", "null", "[3, 4]"]).unwrap(), ["[1, 2]", "null", "[3, 4]"]);
        let found = read("struct<a: int64, b: list<string>>", &[r#"{"b": ["x"], "a": 1}"#, "{}", "null"]).unwrap();
        assert_eq!(found, ["{a: 1, b: [x]}", "{a: , b: }", "null"]);
        assert_eq!(read("map<string, int32>", &[r#"{"k": 1, "l": null}"#, "{}"]).unwrap(), ["{k: 1, l: }", "{}"]);
        assert_eq!(read("decimal(10, 2)", &["1.5", "\"2.25\""]).unwrap(), ["1.50", "2.25"]);
        assert_eq!(read("date32", &["\"2024-02-29\""]).unwrap(), ["2024-02-29"]);
    }

    #[test]
    fn another_kind_of_value_is_an_error_with_its_place() {
        for (of, text, path, word) in [
            ("int64", "3.7", "", "3.7"),
            ("int64", "\"7\"", "", "\"7\" is a text"),
            ("int64", "true", "", "true is a boolean"),
            ("string", "7", "", "7 is a number"),
            ("bool", "1", "", "1 is a number"),
            ("bool", "\"no\"", "", "a text"),
            ("float64", "9007199254740993", "", "exactly"),
            ("float64", "1e400", "", "1e400"),
            ("date32", "7", "", "a number"),
            ("list<int64>", "1", "", "1 is a number"),
            ("list<int64>", "[1, 2.5]", "", "2.5"),
            ("list<int64>[2]", "[1]", "", "a list of 1 items"),
            ("struct<a: int64>", "{\"a\": \"x\"}", "a", "\"x\" is a text"),
            ("struct<a: int64>", "{\"b\": 1}", "b", "\"b\""),
            ("struct<a: int64>", "{\"a\": 1, \"a\": 1}", "a", "twice"),
            ("struct<a: struct<b: int8>>", "{\"a\": {\"b\": 300}}", "a.b", "300"),
            ("map<string, int32>", "{\"k\": 1, \"k\": 2}", "", "twice"),
            ("int64", "1 2", "", "not JSON"),
            ("int64", "{", "", "not JSON"),
        ] {
            let wrong = read(of, &[text]).unwrap_err();
            assert_eq!(wrong.path.join("."), path, "{of} {text}: {}", wrong.what);
            assert!(wrong.what.contains(word), "{of} {text}: {}", wrong.what);
        }
    }

    #[test]
    fn what_is_not_wanted_is_passed_over() {
        let DataType::Struct(fields) = parse_type("struct<a: int64, b: int64>").unwrap() else { unreachable!() };
        let mut objects = Objects::new(&fields, &[false, false], |number| number == 1).unwrap();
        objects.push(br#"{"a": [1, {"x": "y"}], "b": 2}"#).unwrap();
        objects.push(br"{}").unwrap();
        assert_eq!(objects.rows(), 2);
        let arrays = objects.finish().unwrap();
        assert_eq!((arrays.len(), objects.rows()), (1, 0));
        assert_eq!(arrays[0].as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(2), None]);
        assert!(objects.push(b"[1]").is_err() && objects.push(b"{} {}").is_err());
    }
}
