//! The parts of nested types, and which part of one type becomes which of another.

use arrow::datatypes::{DataType, FieldRef, Fields};

/// Item type of a list of any kind.
pub(super) fn items(ty: &DataType) -> Option<&DataType> {
    match ty {
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => Some(item.data_type()),
        _ => None,
    }
}

/// The fields of a nested type: the members of a struct, the items of a list, the entries of a map.
pub(crate) fn children(ty: &DataType) -> &[FieldRef] {
    match ty {
        DataType::Struct(members) => members,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => std::slice::from_ref(item),
        _ => &[],
    }
}

/// Positions of the members that become those of `to`: by name if there is one for each, else in order. Arrow casts structs so.
pub(crate) fn paired(from: &Fields, to: &Fields) -> Vec<usize> {
    let in_order = from.len() == to.len() && from.iter().zip(to).all(|(own, wanted)| own.name() == wanted.name());
    let named = |wanted: &FieldRef| from.iter().position(|own| own.name() == wanted.name());
    match to.iter().map(named).collect::<Option<Vec<usize>>>() {
        Some(named) if !in_order => named,
        _ => (0..from.len().min(to.len())).collect(),
    }
}

/// The arrays that an array of `from` is made of and that a cast to `to` converts: their positions, and what they become.
pub(super) fn inner<'a>(from: &DataType, to: &'a DataType) -> Vec<(usize, &'a DataType)> {
    match (from, to) {
        (DataType::Struct(own), DataType::Struct(fields)) => {
            paired(own, fields).into_iter().zip(fields.iter().map(|field| field.data_type())).collect()
        }
        (DataType::Map(..), DataType::Map(entries, _)) => vec![(0, entries.data_type())],
        (DataType::Dictionary(..), DataType::Dictionary(_, values)) => vec![(0, values)],
        (DataType::Dictionary(..), to) => vec![(0, to)],
        (DataType::RunEndEncoded(..), DataType::RunEndEncoded(_, values)) => vec![(1, values.data_type())],
        (DataType::RunEndEncoded(..), to) => vec![(1, to)],
        (from, to) => items(from).and(items(to)).map(|to| (0, to)).into_iter().collect(),
    }
}

/// The type of a child array of an array of type `ty`, by its position.
pub(super) fn child(ty: &DataType, at: usize) -> Option<&DataType> {
    match ty {
        DataType::Struct(fields) => fields.get(at).map(|field| field.data_type()),
        DataType::Map(entries, _) => Some(entries.data_type()),
        DataType::Dictionary(_, values) => Some(values),
        DataType::RunEndEncoded(_, values) => Some(values.data_type()),
        ty => items(ty),
    }
}
