//! Types of files whose values are values of a table's type.

use arrow::datatypes::{DataType, FieldRef, TimeUnit};

/// Returns true if values of a file's column of type `from` are values of the table's type `to`: the same type, one that widens to it,
/// or another form of the same values.
pub(in crate::dataset) fn widens(from: &DataType, to: &DataType) -> bool {
    use DataType::*;
    let integer = |ty: &DataType| match ty {
        Int8 => Some(3),
        Int16 => Some(5),
        Int32 => Some(10),
        Int64 => Some(20),
        _ => None,
    };
    let both = |a: &FieldRef, b: &FieldRef| widens(a.data_type(), b.data_type());
    match (from, to) {
        (from, to) if from == to => true,
        (Null, _) => true,
        (Utf8 | LargeUtf8 | Utf8View, Utf8View) => true,
        // Old writers only say of text that it is bytes.
        (Binary | LargeBinary | BinaryView, BinaryView) => true,
        (Float32, Float64) => true,
        (from, Float64) => integer(from).is_some_and(|digits| digits <= 10),
        (Date32, Timestamp(TimeUnit::Microsecond | TimeUnit::Nanosecond, None)) => true,
        (Timestamp(..), Timestamp(..)) => true,
        (Decimal32(p, s) | Decimal64(p, s) | Decimal128(p, s), Decimal128(q, t)) => {
            s <= t && i16::from(*p) - i16::from(*s) <= i16::from(*q) - i16::from(*t)
        }
        (from, Decimal128(q, t)) => integer(from).is_some_and(|digits| digits <= i16::from(*q) - i16::from(*t)),
        (from, to) if integer(from).is_some() => {
            integer(to).is_some_and(|wide| integer(from).is_some_and(|own| own <= wide))
        }
        (List(a), List(b)) => both(a, b),
        (Map(a, _), Map(b, _)) => {
            let (Struct(a), Struct(b)) = (a.data_type(), b.data_type()) else { return false };
            // Keys and values by their places: writers name them differently.
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| both(a, b))
        }
        (Struct(a), Struct(b)) => {
            let same = |member: &FieldRef| b.iter().find(|other| other.name() == member.name());
            a.iter().all(|member| same(member).is_none_or(|other| both(member, other)))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wider_types_take_the_values() {
        use DataType::*;
        for (from, to) in [
            (Int8, Int64),
            (Int32, Float64),
            (Float32, Float64),
            (Date32, Timestamp(TimeUnit::Microsecond, None)),
            (Date32, Timestamp(TimeUnit::Nanosecond, None)),
            (Decimal128(5, 2), Decimal128(8, 4)),
            (Int32, Decimal128(10, 0)),
            (Int64, Decimal128(20, 0)),
        ] {
            assert!(widens(&from, &to) && !widens(&to, &from), "{from} to {to}");
        }
        for (from, to) in [
            (Int64, Float64),
            (Decimal128(5, 2), Decimal128(5, 3)),
            (Int32, Decimal128(10, 1)),
            (Utf8View, Int32),
            (BinaryView, Utf8View),
        ] {
            assert!(!widens(&from, &to), "{from} to {to}");
        }
    }
}
