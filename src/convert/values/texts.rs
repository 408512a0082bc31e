//! Columns of texts as a type that the user gave, at any depth, by the strict parsers of text formats: a text of Parquet or Arrow becomes
//! the same value as that of a CSV, or is refused. Arrow's casts of texts round decimals, truncate times and shift instants.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, StructArray,
};
use arrow::datatypes::{DataType, Field};

use super::scalar::{growing, shown};
use crate::convert::errors::unexpected;
use crate::convert::types::{is_text, item, type_text};
use crate::error::{Error, Place, Result};
use crate::schema::{cast, entries, paired, visible};

/// Types within a nested one that become those of another, by position in the first.
fn inner<'a>(from: &'a DataType, to: &'a DataType) -> Vec<(&'a DataType, &'a DataType)> {
    match (from, to) {
        (DataType::Struct(own), DataType::Struct(wanted)) => {
            let pairs = paired(own, wanted).into_iter();
            pairs.filter_map(|(at, wanted)| Some((own.get(at)?.data_type(), wanted.data_type()))).collect()
        }
        (DataType::Map(own, _), DataType::Map(wanted, _)) => match (own.data_type(), wanted.data_type()) {
            (DataType::Struct(own), DataType::Struct(wanted)) => {
                own.iter().zip(wanted).map(|(own, wanted)| (own.data_type(), wanted.data_type())).collect()
            }
            _ => Vec::new(),
        },
        _ => item(from).zip(item(to)).into_iter().collect(),
    }
}

/// The type that texts are parsed as on their way to `to`; `None` if they are not parsed.
fn parsed(to: &DataType) -> Option<&DataType> {
    match to {
        DataType::Dictionary(_, values) => parsed(values),
        DataType::RunEndEncoded(_, values) => parsed(values.data_type()),
        // Arrow makes a list of one of a value.
        other => {
            item(other).map_or_else(|| (!is_text(other) && growing(other, true).is_some()).then_some(other), parsed)
        }
    }
}

/// Returns true if there are texts in `from` that are parsed on their way to `to`.
fn has_parsed(from: &DataType, to: &DataType) -> bool {
    match from {
        DataType::Dictionary(_, values) => has_parsed(values, to),
        DataType::RunEndEncoded(_, values) => has_parsed(values.data_type(), to),
        from if is_text(from) => parsed(to).is_some(),
        from => inner(from, to).into_iter().any(|(from, to)| has_parsed(from, to)),
    }
}

/// Returns the array with the values of its texts where `to` has another type, and all else as it is.
///
/// # Errors
/// The first text that is no such value, with its row in the array.
pub(crate) fn read(array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    if !has_parsed(array.data_type(), to) {
        return Ok(Arc::clone(array));
    }
    within(&visible(array).map_err(unexpected)?, to)
}

fn within(array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let from = array.data_type();
    if !has_parsed(from, to) {
        return Ok(Arc::clone(array));
    }
    let unpacked = |values: &DataType| {
        let plain = cast(array, values).map_err(|misfit| unexpected(misfit.into()))?;
        within(&plain, to)
    };
    match (from, to) {
        (DataType::Dictionary(_, values), _) => unpacked(values),
        (DataType::RunEndEncoded(_, values), _) => unpacked(values.data_type()),
        (from, _) if is_text(from) => parsed(to).map_or_else(|| Ok(Arc::clone(array)), |to| parse(array, to)),
        (DataType::Struct(own), DataType::Struct(wanted)) => {
            let structs = array.as_struct();
            let mut columns = structs.columns().to_vec();
            for (at, wanted) in paired(own, wanted) {
                columns[at] = within(structs.column(at), wanted.data_type())?;
            }
            let fields = own.iter().zip(&columns).map(|(field, column)| retyped(field, column)).collect();
            let nulls = structs.nulls().cloned();
            let structs = StructArray::try_new_with_length(fields, columns, nulls, structs.len());
            Ok(Arc::new(structs.map_err(unexpected)?))
        }
        (DataType::Map(entry, sorted), DataType::Map(wanted, _)) => {
            let maps = array.as_map();
            let row = |at: usize| maps.offsets().partition_point(|end| *end as usize <= at).saturating_sub(1);
            let wanted = entries(entry.data_type(), wanted.data_type());
            let entries = within(&(Arc::new(maps.entries().clone()) as ArrayRef), &wanted);
            let entries = entries.map_err(|error| moved(error, row))?;
            let field = Arc::new(entry.as_ref().clone().with_data_type(entries.data_type().clone()));
            let (offsets, nulls) = (maps.offsets().clone(), maps.nulls().cloned());
            let maps = MapArray::try_new(field, offsets, entries.as_struct().clone(), nulls, *sorted);
            Ok(Arc::new(maps.map_err(unexpected)?))
        }
        (DataType::List(field), _) => list::<i32>(array, field, to),
        (DataType::LargeList(field), _) => list::<i64>(array, field, to),
        (DataType::FixedSizeList(field, length), _) => {
            let lists = array.as_fixed_size_list();
            let width = usize::try_from(*length).unwrap_or(1).max(1);
            let values = items(lists.values(), to).map_err(|error| moved(error, |at| at / width))?;
            let nulls = lists.nulls().cloned();
            let field = retyped(field, &values);
            let lists = FixedSizeListArray::try_new_with_length(field, *length, values, nulls, lists.len());
            Ok(Arc::new(lists.map_err(unexpected)?))
        }
        _ => Ok(Arc::clone(array)),
    }
}

/// The field of values that may have another type now.
fn retyped(field: &Field, values: &ArrayRef) -> Arc<Field> {
    let nullable = field.is_nullable() || values.null_count() > 0;
    Arc::new(field.clone().with_data_type(values.data_type().clone()).with_nullable(nullable))
}

fn list<O: OffsetSizeTrait>(array: &ArrayRef, field: &Field, to: &DataType) -> Result<ArrayRef> {
    let lists = array.as_list::<O>();
    let row = |at: usize| lists.offsets().partition_point(|end| end.as_usize() <= at).saturating_sub(1);
    let values = items(lists.values(), to).map_err(|error| moved(error, row))?;
    let (field, nulls) = (retyped(field, &values), lists.nulls().cloned());
    let lists = GenericListArray::try_new(field, lists.offsets().clone(), values, nulls);
    Ok(Arc::new(lists.map_err(unexpected)?))
}

fn items(values: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    item(to).map_or_else(|| Ok(Arc::clone(values)), |to| within(values, to))
}

/// The error with the row of the list in place of that of the item.
fn moved(error: Error, row: impl Fn(usize) -> usize) -> Error {
    let told = error.place().and_then(|place| place.row).and_then(|at| usize::try_from(at).ok());
    match told {
        Some(at) => error.at(Place::default().row(row(at) as u64)),
        None => error,
    }
}

fn parse(array: &ArrayRef, to: &DataType) -> Result<ArrayRef> {
    let texts = cast(array, &DataType::Utf8View).map_err(|misfit| unexpected(misfit.into()))?;
    let Some(mut values) = growing(to, true) else { return Ok(Arc::clone(array)) };
    for (row, text) in texts.as_string_view().iter().enumerate() {
        match text {
            Some(text) => values.push(text).map_err(|why| {
                let what = format!("{} is not a valid {}: {why}", shown(text), type_text(to));
                Error::corrupt(Place::default().row(row as u64), format!("{what}; give another type with --schema"))
            })?,
            None => values.null(),
        }
    }
    Ok(values.finish())
}

#[cfg(test)]
mod tests {
    use arrow::array::{ListArray, MapArray, StringArray};
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::util::display::array_value_to_string;

    use super::*;
    use crate::convert::types::parse_type;
    use crate::convert::values::cells::as_type_of;

    fn column(texts: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(texts.to_vec()))
    }

    #[test]
    fn a_text_is_the_value_of_a_csv_or_is_refused() {
        for (text, of, value) in [
            ("1.00", "decimal(10, 2)", "1.00"),
            ("12:00:00.500", "time32[ms]", "12:00:00.500"),
            ("2024-01-01", "date32", "2024-01-01"),
            ("2024-01-01 12:00:00+02:00", "timestamp[us, +00:00]", "2024-01-01T10:00:00Z"),
            ("007", "int64", "7"),
            ("1", "bool", "true"),
            ("9007199254740992", "float64", "9007199254740992.0"),
            ("a", "string", "a"),
            ("1", "dictionary<int8, int64>", "1"),
            ("7", "list<int64>", "[7]"),
        ] {
            let Ok(of) = parse_type(of) else { continue };
            let found = as_type_of("x", &column(&[text]), &of).unwrap_or_else(|error| panic!("{}", error.chain()));
            assert_eq!(found.data_type(), &of);
            assert_eq!(array_value_to_string(&found, 0).unwrap(), value, "{text} as {of}");
        }
        for (text, of) in [
            ("1.005", "decimal(10, 2)"),
            ("12:00:00.5678", "time32[ms]"),
            ("2024-01-01T12:00:00", "date32"),
            ("2024-01-01 12:00:00+02:00", "timestamp[us]"),
            ("yes", "bool"),
            ("9007199254740993", "float64"),
            ("1.005", "list<decimal(10, 2)>"),
        ] {
            let error = as_type_of("x", &column(&[text]), &parse_type(of).unwrap()).unwrap_err();
            let said = error.chain();
            assert!(said.contains(text) && said.contains("--schema"), "{said}");
            let place = error.place().cloned().unwrap_or_default();
            assert_eq!((place.row, place.column.as_deref()), (Some(0), Some("x")), "{said}");
        }
    }

    #[test]
    fn texts_are_read_at_any_depth_and_the_row_is_told() {
        let texts = column(&["1.00", "x", "2.50", "3.005"]);
        let field = Arc::new(Field::new("item", DataType::Utf8, true));
        let ends = || OffsetBuffer::new(vec![0, 1, 2, 3, 4].into());
        let nulls = Some(NullBuffer::from(vec![true, false, true, true]));
        let list: ArrayRef = Arc::new(ListArray::new(field, ends(), Arc::clone(&texts), nulls.clone()));
        let pair = vec![Field::new("key", DataType::Utf8, false), Field::new("value", DataType::Utf8, true)];
        let entries = StructArray::new(pair.into(), vec![column(&["a", "b", "c", "d"]), Arc::clone(&texts)], None);
        let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
        let map: ArrayRef = Arc::new(MapArray::new(entry, ends(), entries, nulls.clone(), false));
        let member = Arc::new(Field::new("a", DataType::Utf8, false));
        let structs: ArrayRef = Arc::new(StructArray::new(vec![member].into(), vec![texts], nulls));
        for (array, of) in [
            (list, "list<decimal(10, 2)>"),
            (map, "map<string, decimal(10, 2)>"),
            (structs, "struct<a: decimal(10, 2)>"),
        ] {
            let of = parse_type(of).unwrap();
            let error = as_type_of("x", &array, &of).unwrap_err();
            assert_eq!(error.place().and_then(|place| place.row), Some(3), "{}", error.chain());
            let found = as_type_of("x", &array.slice(0, 3), &of).unwrap_or_else(|error| panic!("{}", error.chain()));
            assert!(found.data_type() == &of && found.is_null(1), "{found:?}");
            assert!(array_value_to_string(&found, 2).unwrap().contains("2.50"), "{found:?}");
        }
    }
}
