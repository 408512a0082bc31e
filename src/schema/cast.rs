//! The one place where values change their type: a value that does not fit is an error with its row, never another
//! value.
//!
//! | conversion | result |
//! |---|---|
//! | a number out of range, a fraction to an integer, an integer that a float cannot hold | refused |
//! | a time to a coarser unit or to a date, with something cut off; beyond the range of a finer one | refused |
//! | text that is not such a value, or a time with more digits than the unit has | refused |
//! | a float to a narrower float, a decimal to a float | rounded, as the request for that type implies; infinity is refused |
//! | a struct to one with a member that it does not have | refused |
//! | another layout of the same values: views, offsets of other widths, dictionaries | unchanged |
//!
//! What a null above hides is no value: it is never looked at.
//!
//! Arrow's own casts truncate fractions and times silently, by default turn misfits into nulls, and pair the members of structs by position
//! if not all names are in both.

use std::fmt;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, FixedSizeListArray, GenericListArray, MapArray, OffsetSizeTrait, StructArray, UInt64Array,
};
use arrow::compute::kernels::cmp::distinct;
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, TimeUnit};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};

use super::half::odd;
use super::nested::{items, missing, paired};
use super::zones;

/// Maximum characters of a value in an error.
const SHOWN: usize = 40;

/// A value that does not fit the requested type.
#[derive(Debug)]
pub(crate) struct Misfit {
    /// Row in the array, if one is to blame.
    pub(crate) row: Option<usize>,
    value: String,
    from: DataType,
    to: DataType,
    cause: Option<ArrowError>,
}

impl Misfit {
    /// What was asked for, without a verdict.
    pub(crate) fn conversion(&self) -> String {
        format!("the value {} of {} as {}", self.value, self.from, self.to)
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.cause {
            None => write!(f, "the value {} of {} does not fit {}", self.value, self.from, self.to),
            Some(cause) => write!(f, "{} does not become {}: {cause}", self.from, self.to),
        }
    }
}

impl From<Misfit> for ArrowError {
    fn from(misfit: Misfit) -> Self {
        let row = misfit.row.map_or_else(String::new, |row| format!("row {row}: "));
        Self::CastError(format!("{row}{misfit}"))
    }
}

/// Casts the values to `to`.
///
/// # Errors
/// The first value that does not fit, or that there is no such cast.
pub(crate) fn cast(array: &ArrayRef, to: &DataType) -> Result<ArrayRef, Misfit> {
    let from = array.data_type();
    if from == to {
        return Ok(Arc::clone(array));
    }
    let failed =
        |cause| Misfit { row: None, value: String::new(), from: from.clone(), to: to.clone(), cause: Some(cause) };
    if let Some(member) = missing(from, to) {
        return Err(failed(ArrowError::CastError(format!("there is no member {member:?}"))));
    }
    if lossless(from, to) {
        return plain(array, to, false).map_err(failed);
    }
    let seen = visible(array).and_then(|seen| odd(&seen, to)).map_err(failed)?;
    if let Some(row) = misfit(&seen, to).map_err(failed)? {
        return Err(Misfit {
            row: Some(row),
            value: shown(array, row),
            from: from.clone(),
            to: to.clone(),
            cause: None,
        });
    }
    plain(&seen, to, false).map_err(failed)
}

/// Returns the same rows with nothing behind them: what null structs and lists hide is null or gone, at any depth, and so is what is
/// beyond the ends of a slice. Members and items may have another layout.
///
/// # Errors
/// Those of Arrow, for unions below nulls.
pub(crate) fn visible(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    let array: ArrayRef = match array.data_type() {
        DataType::Struct(fields) => {
            let structs = array.as_struct();
            let columns = structs.columns().iter().map(member).collect::<Result<Vec<_>, _>>()?;
            let fields = fields.iter().zip(&columns).map(|(field, column)| retyped(field, column)).collect();
            let nulls = structs.nulls().cloned();
            let seen: ArrayRef = Arc::new(StructArray::try_new_with_length(fields, columns, nulls, structs.len())?);
            return if seen.null_count() > 0 { taken(&seen) } else { Ok(seen) };
        }
        DataType::FixedSizeList(field, length) => {
            let lists = array.as_fixed_size_list();
            let values = member(lists.values())?;
            let (field, nulls) = (retyped(field, &values), lists.nulls().cloned());
            let seen = FixedSizeListArray::try_new_with_length(field, *length, values, nulls, lists.len())?;
            let seen: ArrayRef = Arc::new(seen);
            return if seen.null_count() > 0 { taken(&seen) } else { Ok(seen) };
        }
        DataType::ListView(field) | DataType::LargeListView(field) => {
            plain(array, &DataType::LargeList(Arc::clone(field)), false)?
        }
        DataType::Dictionary(_, values) if values.is_nested() => plain(array, values, false)?,
        DataType::RunEndEncoded(_, values) if values.data_type().is_nested() => {
            plain(array, values.data_type(), false)?
        }
        _ => Arc::clone(array),
    };
    match array.data_type() {
        DataType::List(field) => visible_lists::<i32>(&array, field),
        DataType::LargeList(field) => visible_lists::<i64>(&array, field),
        DataType::Map(field, sorted) => {
            let maps = taken(&array)?;
            let maps = maps.as_map();
            let entries = visible(&(Arc::new(maps.entries().clone()) as ArrayRef))?;
            let field = retyped(field, &entries);
            let (offsets, nulls) = (maps.offsets().clone(), maps.nulls().cloned());
            Ok(Arc::new(MapArray::try_new(field, offsets, entries.as_struct().clone(), nulls, *sorted)?))
        }
        DataType::Struct(_) | DataType::FixedSizeList(..) => visible(&array),
        _ => Ok(array),
    }
}

fn visible_lists<O: OffsetSizeTrait>(array: &ArrayRef, field: &FieldRef) -> Result<ArrayRef, ArrowError> {
    let lists = taken(array)?;
    let lists = lists.as_list::<O>();
    let values = member(lists.values())?;
    let (field, offsets) = (retyped(field, &values), lists.offsets().clone());
    Ok(Arc::new(GenericListArray::try_new(field, offsets, values, lists.nulls().cloned())?))
}

/// The field of values that may have another layout now.
fn retyped(field: &FieldRef, values: &ArrayRef) -> FieldRef {
    if field.data_type() == values.data_type() {
        return Arc::clone(field);
    }
    Arc::new(field.as_ref().clone().with_data_type(values.data_type().clone()))
}

/// The same for values below others, written out where a null cannot be put into them.
fn member(values: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match values.data_type() {
        DataType::RunEndEncoded(_, inner) => visible(&plain(values, inner.data_type(), false)?),
        _ => visible(values),
    }
}

/// Copies the rows: nulls for null rows, and nothing below them.
fn taken(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    if array.is_empty() {
        return Ok(array.slice(0, 0));
    }
    let rows: UInt64Array = (0..array.len()).map(|row| array.is_valid(row).then_some(row as u64)).collect();
    take(array, &rows, None)
}

/// Arrow's cast. `safe` turns the misfits that Arrow detects into nulls.
fn plain(array: &dyn Array, to: &DataType, safe: bool) -> Result<ArrayRef, ArrowError> {
    let from = array.data_type();
    if let DataType::Dictionary(_, values) = to
        && !matches!(from, DataType::Dictionary(..))
        && from != values.as_ref()
    {
        // Arrow packs a time's number as one of the other unit.
        return plain(&*plain(array, values, safe)?, to, safe);
    }
    cast_with_options(array, to, &CastOptions { safe, ..CastOptions::default() })
}

fn shown(array: &ArrayRef, row: usize) -> String {
    let options = FormatOptions::default().with_null("null");
    let one = zones::shown(&array.slice(row, 1)).ok();
    let formatter = one.as_ref().and_then(|one| ArrayFormatter::try_new(one, &options).ok());
    // A value that cannot be formatted, such as a time beyond the calendar, is still a value.
    let text = formatter.and_then(|formatter| formatter.value(0).try_to_string().ok());
    text.map_or_else(|| "?".to_owned(), |text| text.chars().take(SHOWN).collect())
}

fn is_text(ty: &DataType) -> bool {
    matches!(ty, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn is_binary(ty: &DataType) -> bool {
    matches!(ty, DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_))
}

/// Bits of an integer type without its sign, and true if it has one.
fn bits(ty: &DataType) -> Option<(u32, bool)> {
    Some(match ty {
        DataType::Boolean => (1, false),
        DataType::Int8 => (7, true),
        DataType::Int16 => (15, true),
        DataType::Int32 => (31, true),
        DataType::Int64 => (63, true),
        DataType::UInt8 => (8, false),
        DataType::UInt16 => (16, false),
        DataType::UInt32 => (32, false),
        DataType::UInt64 => (64, false),
        _ => return None,
    })
}

/// Bits of an integer that a float type can hold.
fn mantissa(ty: &DataType) -> Option<u32> {
    match ty {
        DataType::Float16 => Some(11),
        DataType::Float32 => Some(24),
        DataType::Float64 => Some(53),
        _ => None,
    }
}

/// Returns true if every value of `from` is one of `to`, so that none needs checking.
fn lossless(from: &DataType, to: &DataType) -> bool {
    if from == to || *from == DataType::Null {
        return true;
    }
    match (from, to) {
        (DataType::Dictionary(_, values), to) => return lossless(values, to),
        (DataType::RunEndEncoded(_, values), to) => return lossless(values.data_type(), to),
        (from, DataType::Dictionary(_, values)) => return lossless(from, values),
        (from, DataType::RunEndEncoded(_, values)) => return lossless(from, values.data_type()),
        (_, DataType::FixedSizeList(..) | DataType::FixedSizeBinary(_)) => return false,
        (DataType::Struct(from), DataType::Struct(to)) => {
            let same = |(from, to): (&Arc<Field>, &Arc<Field>)| {
                from.name() == to.name() && lossless(from.data_type(), to.data_type())
            };
            return from.len() == to.len() && from.iter().zip(to.iter()).all(same);
        }
        (DataType::Map(from, _), DataType::Map(to, _)) => {
            // Arrow casts keys and values by position, whatever their names.
            let (DataType::Struct(from), DataType::Struct(to)) = (from.data_type(), to.data_type()) else {
                return false;
            };
            let same = |(from, to): (&Arc<Field>, &Arc<Field>)| lossless(from.data_type(), to.data_type());
            return from.len() == to.len() && from.iter().zip(to.iter()).all(same);
        }
        _ => {}
    }
    if let (Some(from), Some(to)) = (items(from), items(to)) {
        return lossless(from, to);
    }
    if let (Some((own, signed)), Some((most, sign))) = (bits(from), bits(to)) {
        return own <= most && (sign || !signed);
    }
    if let Some(most) = mantissa(to) {
        return bits(from).is_some_and(|(own, _)| own <= most) || mantissa(from).is_some_and(|own| own <= most);
    }
    is_text(to) && !is_binary(from) || is_binary(to) && (is_binary(from) || is_text(from))
}

/// The first row whose value does not fit, of an array without anything hidden.
fn misfit(array: &ArrayRef, to: &DataType) -> Result<Option<usize>, ArrowError> {
    let from = array.data_type();
    match (from, to) {
        (DataType::Dictionary(_, values), _) => return misfit(&plain(array, values, false)?, to),
        (DataType::RunEndEncoded(_, values), _) => return misfit(&plain(array, values.data_type(), false)?, to),
        (_, DataType::Dictionary(_, values)) => return misfit(array, values),
        (_, DataType::RunEndEncoded(_, values)) => return misfit(array, values.data_type()),
        (DataType::Struct(own), DataType::Struct(fields)) => {
            let structs = array.as_struct();
            let mut first: Option<usize> = None;
            for (at, field) in paired(own, fields) {
                let column = structs.column(at);
                if lossless(column.data_type(), field.data_type()) {
                    continue;
                }
                let row = misfit(column, field.data_type())?;
                first = row.into_iter().chain(first).min();
            }
            return Ok(first);
        }
        (DataType::Map(..), DataType::Map(entries, _)) => {
            let DataType::Struct(fields) = entries.data_type() else { return Ok(None) };
            let maps = array.as_map();
            let offsets = maps.value_offsets();
            let (start, end) = (offsets.first().copied().unwrap_or(0), offsets.last().copied().unwrap_or(0));
            let row = |at: usize| offsets.partition_point(|offset| *offset <= start + at as i32) - 1;
            let mut first: Option<usize> = None;
            for (column, field) in [maps.keys(), maps.values()].into_iter().zip(fields.iter()) {
                let column = column.slice(start as usize, (end - start) as usize);
                if !lossless(column.data_type(), field.data_type()) {
                    let row = misfit(&column, field.data_type())?.map(row);
                    first = row.into_iter().chain(first).min();
                }
            }
            return Ok(first);
        }
        _ => {}
    }
    let (inner, wanted) = match (items(from), items(to)) {
        (Some(inner), Some(wanted)) => (inner, wanted),
        // Arrow makes a list of one of a value.
        (None, Some(wanted)) => return misfit(array, wanted),
        _ => return leaf(array, to),
    };
    if lossless(inner, wanted) {
        return Ok(None);
    }
    let large = DataType::LargeList(Arc::new(Field::new("item", inner.clone(), true)));
    let lists = plain(array, &large, false)?;
    let lists = lists.as_list::<i64>();
    let offsets = lists.value_offsets();
    let (first, last) = (offsets.first().copied().unwrap_or(0), offsets.last().copied().unwrap_or(0));
    let values = lists.values().slice(first as usize, (last - first) as usize);
    let row = |at: usize| offsets.partition_point(|offset| *offset <= first + at as i64) - 1;
    Ok(misfit(&values, wanted)?.map(row))
}

/// The same for values without nested ones.
fn leaf(array: &ArrayRef, to: &DataType) -> Result<Option<usize>, ArrowError> {
    let from = array.data_type();
    let cast = plain(array, to, true)?;
    // Misfits that Arrow detects itself became null.
    let (before, after) = (array.logical_nulls(), cast.logical_nulls());
    let valid = |nulls: &Option<arrow::buffer::NullBuffer>, row| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
    if let Some(row) = (0..array.len()).find(|row| valid(&before, *row) && !valid(&after, *row)) {
        return Ok(Some(row));
    }
    let wide = |array: &dyn Array| plain(array, &DataType::Float64, true);
    if is_text(from) {
        return match to {
            DataType::Timestamp(unit, _) => cut(array, *unit),
            to if to.is_floating() => {
                let (texts, values) = (plain(array, &DataType::Utf8View, false)?, wide(&cast)?);
                let texts = texts.as_string_view();
                let values = values.as_primitive::<Float64Type>();
                let endless = |row: &usize| {
                    texts.is_valid(*row)
                        && values.value(*row).is_infinite()
                        && !texts.value(*row).to_ascii_lowercase().contains("inf")
                };
                Ok((0..array.len()).find(endless))
            }
            _ => Ok(None),
        };
    }
    if to.is_floating() && (from.is_floating() || from.is_decimal()) {
        let (from, to) = (wide(array)?, wide(&cast)?);
        let (from, to) = (from.as_primitive::<Float64Type>(), to.as_primitive::<Float64Type>());
        return Ok((0..array.len())
            .find(|row| from.is_valid(*row) && from.value(*row).is_finite() && !to.value(*row).is_finite()));
    }
    if is_text(to) || is_binary(to) {
        return Ok(None);
    }
    // A truncated or rounded value does not survive the round trip.
    let back = plain(&cast, from, true)?;
    if from.is_floating() {
        let (from, back) = (wide(array)?, wide(&back)?);
        let (from, back) = (from.as_primitive::<Float64Type>(), back.as_primitive::<Float64Type>());
        // Zero has two signs as a float, and one as anything else.
        return Ok((0..array.len())
            .find(|row| from.is_valid(*row) && (back.is_null(*row) || from.value(*row) != back.value(*row))));
    }
    let differs = distinct(array, &back)?;
    Ok((0..differs.len()).find(|row| differs.value(*row)))
}

/// Returns the first time in text with digits beyond `unit`, which Arrow truncates.
fn cut(array: &ArrayRef, unit: TimeUnit) -> Result<Option<usize>, ArrowError> {
    let most = match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    };
    let texts = plain(array, &DataType::Utf8View, false)?;
    let beyond = |text: &str| {
        let fraction = text.split_once('.').map_or("", |(_, fraction)| fraction);
        let digits = fraction.bytes().take_while(u8::is_ascii_digit);
        digits.skip(most).any(|digit| digit != b'0')
    };
    let texts = texts.as_string_view();
    Ok((0..texts.len()).find(|row| texts.is_valid(*row) && beyond(texts.value(*row))))
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        Decimal128Array, Float32Array, Float64Array, Int32Array, Int64Array, ListArray, StringArray, StructArray,
        TimestampNanosecondArray, TimestampSecondArray, UInt64Array,
    };
    use arrow::datatypes::{Int32Type, Int64Type, TimestampMillisecondType};

    use super::*;

    /// Expects row 2 to be refused and the two rows before it to be accepted.
    fn refused(array: impl Array + 'static, to: DataType) {
        let array: ArrayRef = Arc::new(array);
        let error = cast(&array, &to).expect_err(&format!("{array:?} as {to}"));
        assert_eq!(error.row, Some(2), "{array:?} as {to}: {error}");
        let taken = cast(&array.slice(0, 2), &to).unwrap_or_else(|error| panic!("{array:?} as {to}: {error}"));
        assert_eq!(taken.null_count(), array.slice(0, 2).null_count());
    }

    #[test]
    fn maps_are_cast_by_their_keys_and_values() {
        use arrow::array::{Int64Builder, MapBuilder, StringBuilder};
        let mut builder = MapBuilder::new(None, StringBuilder::new(), Int64Builder::new());
        for values in [vec![1, 127], vec![], vec![5, 128]] {
            for value in values {
                builder.keys().append_value(value.to_string());
                builder.values().append_value(value);
            }
            builder.append(true).unwrap();
        }
        let maps = builder.finish();
        let of = |keys: DataType, values: DataType| {
            let fields = vec![Field::new("key", keys, false), Field::new("value", values, true)];
            DataType::Map(Arc::new(Field::new("key_value", DataType::Struct(fields.into()), false)), false)
        };
        let array: ArrayRef = Arc::new(maps.clone());
        let views = cast(&array, &of(DataType::Utf8View, DataType::Int64)).unwrap();
        assert_eq!(cast(&views, array.data_type()).unwrap().as_ref(), array.as_ref());
        refused(maps, of(DataType::Utf8View, DataType::Int8));
    }

    #[test]
    fn what_a_null_hides_neither_is_refused_nor_hides_what_is() {
        use arrow::buffer::{NullBuffer, OffsetBuffer};
        let nulls = || Some(NullBuffer::from(vec![false, true, true]));
        let of = |values: [f64; 3]| -> Vec<ArrayRef> {
            let values: ArrayRef = Arc::new(Float64Array::from(values.to_vec()));
            let field = |name: &str| Arc::new(Field::new(name, DataType::Float64, false));
            let ends = || OffsetBuffer::new(vec![0, 1, 2, 3].into());
            let structs: ArrayRef =
                Arc::new(StructArray::new(vec![field("x")].into(), vec![Arc::clone(&values)], nulls()));
            let outer = Field::new("s", structs.data_type().clone(), true);
            let keys: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
            let pair = vec![Field::new("key", DataType::Int32, false), Field::new("value", DataType::Float64, true)];
            let entries = StructArray::new(pair.into(), vec![keys, Arc::clone(&values)], None);
            let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
            vec![
                Arc::clone(&structs),
                Arc::new(StructArray::new(vec![outer].into(), vec![structs], None)),
                Arc::new(ListArray::new(field("item"), ends(), Arc::clone(&values), nulls())),
                Arc::new(FixedSizeListArray::new(field("item"), 1, values, nulls())),
                Arc::new(MapArray::new(entry, ends(), entries, nulls(), false)),
            ]
        };
        fn integers(ty: &DataType) -> DataType {
            match ty {
                DataType::Float64 => DataType::Int64,
                other => crate::schema::within::within(other, integers),
            }
        }
        for (hidden, misfit) in of([0.5, 1.0, 2.0]).into_iter().zip(of([0.5, 1.5, 2.0])) {
            let to = integers(hidden.data_type());
            let error = cast(&misfit, &to).unwrap_err();
            assert_eq!(error.row, Some(1), "{to}: {error}");
            let taken = cast(&hidden, &to).unwrap_or_else(|error| panic!("{to}: {error}"));
            assert_eq!(cast(&taken, hidden.data_type()).unwrap().slice(1, 2).as_ref(), hidden.slice(1, 2).as_ref());
            // Beyond the ends of a slice there is nothing either.
            assert!(cast(&misfit.slice(2, 1), &to).is_ok(), "{to}");
        }
    }

    #[test]
    fn doubles_are_rounded_once_to_half_floats_at_any_depth() {
        let doubles = Float64Array::from(vec![65_519.999_999, 1.0 + 2_f64.powi(-11) + 2_f64.powi(-40)]);
        let field = Arc::new(Field::new("item", DataType::Float64, true));
        let ends = arrow::buffer::OffsetBuffer::new(vec![0, 1, 2].into());
        let lists: ArrayRef = Arc::new(ListArray::new(field, ends, Arc::new(doubles.clone()), None));
        let halves = cast(&(Arc::new(doubles.clone()) as ArrayRef), &DataType::Float16).unwrap();
        assert_eq!(
            cast(&halves, &DataType::Float64).unwrap().as_primitive::<Float64Type>().values(),
            &[65_504.0, 1.000_976_562_5]
        );
        let found = cast(&lists, &DataType::new_large_list(DataType::Float16, true)).unwrap();
        assert_eq!(found.as_list::<i64>().values(), &halves);
        // The members of the target are in another order.
        let member = |name: &str, ty| Field::new(name, ty, true);
        let other: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let fields = vec![member("x", lists.data_type().clone()), member("y", DataType::Int64)];
        let structs: ArrayRef = Arc::new(StructArray::new(fields.into(), vec![lists, other], None));
        let wanted = vec![member("y", DataType::Int64), member("x", DataType::new_list(DataType::Float16, true))];
        let found = cast(&structs, &DataType::Struct(wanted.into())).unwrap();
        assert_eq!(found.as_struct().column(1).as_list::<i32>().values(), &halves);
        let keys = Int32Array::from(vec![0, 1]);
        let packed: ArrayRef = Arc::new(arrow::array::DictionaryArray::new(keys, Arc::new(doubles)));
        assert_eq!(&cast(&packed, &DataType::Float16).unwrap(), &halves);
        // Beyond the range is refused as before.
        refused(Float64Array::from(vec![1.0, 65_504.0, 65_520.0]), DataType::Float16);
    }

    #[test]
    fn members_in_another_order_are_checked_as_they_are_cast() {
        let (x, y): (ArrayRef, ArrayRef) =
            (Arc::new(Float64Array::from(vec![1.0, 2.0, 2.5])), Arc::new(Int64Array::from(vec![1, 2, 3])));
        let (float, whole) = (DataType::Float64, DataType::Int64);
        let fields = vec![Field::new("x", float.clone(), true), Field::new("y", whole.clone(), true)];
        let structs = StructArray::new(fields.into(), vec![x, y], None);
        refused(structs, DataType::Struct(vec![Field::new("y", float, true), Field::new("x", whole, true)].into()));
    }

    #[test]
    fn a_member_of_another_name_is_not_taken_for_one_that_is_missing() {
        let column: ArrayRef = Arc::new(Float64Array::from(vec![52.5, 13.4]));
        let of = |names: [&str; 2]| names.map(|name| Field::new(name, DataType::Float64, true)).to_vec();
        let columns = vec![Arc::clone(&column), column];
        let structs: ArrayRef = Arc::new(StructArray::new(of(["lat", "lon"]).into(), columns, None));
        let ends = arrow::buffer::OffsetBuffer::new(vec![0, 1, 2].into());
        let item = Arc::new(Field::new("item", structs.data_type().clone(), true));
        let lists: ArrayRef = Arc::new(ListArray::new(item, ends, Arc::clone(&structs), None));
        let wanted = DataType::Struct(of(["lon", "alt"]).into());
        for (array, to) in [(structs, wanted.clone()), (lists, DataType::new_large_list(wanted, true))] {
            let error = cast(&array, &to).unwrap_err();
            assert!(error.to_string().ends_with("there is no member \"alt\""), "{error}");
        }
    }

    #[test]
    fn a_time_of_a_named_zone_is_shown() {
        for zone in ["UTC", "Europe/Berlin", "+00:00"] {
            let times: ArrayRef = Arc::new(TimestampNanosecondArray::from(vec![1000, 1]).with_timezone(zone));
            let error = cast(&times, &DataType::Timestamp(TimeUnit::Microsecond, Some(zone.into()))).unwrap_err();
            assert!(error.to_string().starts_with("the value 1970-01-01T00:00:00.000000001Z of "), "{error}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_by_row() {
        use DataType::*;
        let micros = || Timestamp(TimeUnit::Microsecond, None);
        refused(Int64Array::from(vec![Some(-128), None, Some(128)]), Int8);
        refused(Int64Array::from(vec![1, 2, -1]), UInt64);
        refused(UInt64Array::from(vec![1, 2, u64::MAX]), Int64);
        refused(Int64Array::from(vec![0, 1, 2]), Boolean);
        refused(Int64Array::from(vec![1 << 53, 3, (1 << 53) + 1]), Float64);
        refused(Int32Array::from(vec![1 << 24, 3, (1 << 24) + 1]), Float32);
        refused(Float64Array::from(vec![-0.0, 7.0, 3.7]), Int64);
        refused(Float64Array::from(vec![1.0, 7.0, f64::NAN]), Int64);
        refused(Float64Array::from(vec![0.1, f64::INFINITY, 1e300]), Float32);
        refused(TimestampNanosecondArray::from(vec![1000, -1000, 1001]), micros());
        refused(TimestampNanosecondArray::from(vec![0, 86_400_000_000_000, 1]), Date32);
        refused(TimestampSecondArray::from(vec![0, -5, i64::MAX]), Timestamp(TimeUnit::Nanosecond, None));
        refused(StringArray::from(vec!["1.5", "inf", "1e400"]), Float64);
        refused(StringArray::from(vec!["1", "-7", "7.5"]), Int64);
        let times = vec!["2024-01-01T00:00:00.000001", "2024-01-01", "2024-01-01T00:00:00.0000001"];
        refused(StringArray::from(times), micros());
        let prices = Decimal128Array::from(vec![150, 200, 151]).with_precision_and_scale(10, 2).unwrap();
        refused(prices, Decimal128(10, 1));
        refused(Float64Array::from(vec![1.0, 2.0, 2.5]), DataType::new_list(Int64, true));
        let lists = [Some(vec![Some(1), None]), None, Some(vec![Some(2), Some(300)])];
        refused(
            ListArray::from_iter_primitive::<Int64Type, _, _>(lists),
            LargeList(Arc::new(Field::new("item", UInt8, true))),
        );
        let member: ArrayRef = Arc::new(Float64Array::from(vec![1.0, 2.0, 2.5]));
        let structs = StructArray::from(vec![(Arc::new(Field::new("x", Float64, true)), member)]);
        refused(structs, Struct(vec![Field::new("x", Int32, true)].into()));
    }

    #[test]
    fn what_fits_comes_as_it_is() {
        let narrow = Float64Array::from(vec![0.1, f64::NEG_INFINITY, f64::NAN]);
        let found = cast(&(Arc::new(narrow) as ArrayRef), &DataType::Float32).unwrap();
        let found: &Float32Array = found.as_primitive();
        assert_eq!((found.value(0), found.value(1)), (0.1_f32, f32::NEG_INFINITY));
        assert!(found.value(2).is_nan());
        let text: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
        for to in [DataType::Utf8View, DataType::LargeBinary, DataType::BinaryView, DataType::LargeUtf8] {
            let there = cast(&text, &to).unwrap();
            assert_eq!(&cast(&there, &DataType::Utf8).unwrap(), &text);
        }
        let bytes: ArrayRef = Arc::new(arrow::array::BinaryArray::from_vec(vec![b"a", b"\xff"]));
        assert_eq!(cast(&bytes, &DataType::Utf8).unwrap_err().row, Some(1));
        let repeated: ArrayRef = Arc::new(Int32Array::from(vec![5, 5, 6]));
        let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Int64));
        let there = cast(&repeated, &dictionary).unwrap();
        assert_eq!(cast(&there, &DataType::Int32).unwrap().as_primitive::<Int32Type>().values(), &[5, 5, 6]);
        assert_eq!(cast(&there, &DataType::Boolean).unwrap_err().row, Some(0));
        let time = |unit| DataType::Timestamp(unit, None);
        let seconds: ArrayRef = Arc::new(TimestampSecondArray::from(vec![7, 7]));
        let packed = DataType::Dictionary(Box::new(DataType::Int8), Box::new(time(TimeUnit::Millisecond)));
        let back = cast(&cast(&seconds, &packed).unwrap(), &time(TimeUnit::Millisecond)).unwrap();
        assert_eq!(back.as_primitive::<TimestampMillisecondType>().values(), &[7000, 7000]);
    }
}
