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

/// The members that become those of `to`, by name: their positions, and what they become. [`missing`] tells of those that are not there.
pub(crate) fn paired<'a>(from: &Fields, to: &'a Fields) -> Vec<(usize, &'a FieldRef)> {
    // Two members of one name stay apart.
    if from.len() == to.len() && from.iter().zip(to).all(|(own, wanted)| own.name() == wanted.name()) {
        return to.iter().enumerate().collect();
    }
    let named = |wanted: &FieldRef| from.iter().position(|own| own.name() == wanted.name());
    to.iter().filter_map(|wanted| Some((named(wanted)?, wanted))).collect()
}

/// The type of entries `to` with the names of `from`: writers name keys and values differently, so they are matched by position.
pub(crate) fn entries(from: &DataType, to: &DataType) -> DataType {
    match (from, to) {
        (DataType::Struct(own), DataType::Struct(wanted)) => {
            let named = |(own, wanted): (&FieldRef, &FieldRef)| wanted.as_ref().clone().with_name(own.name());
            DataType::Struct(own.iter().zip(wanted).map(named).collect())
        }
        _ => to.clone(),
    }
}

/// The path of the first member of `to`, in structs at any depth, of which `from` has none of that name. Arrow casts another one to it then.
pub(crate) fn missing(from: &DataType, to: &DataType) -> Option<String> {
    match (from, to) {
        (DataType::Struct(own), DataType::Struct(wanted)) => {
            if let Some(wanted) = wanted.iter().find(|wanted| own.iter().all(|own| own.name() != wanted.name())) {
                return Some(wanted.name().clone());
            }
            paired(own, wanted).into_iter().find_map(|(at, wanted)| {
                let below = missing(own.get(at)?.data_type(), wanted.data_type())?;
                Some(format!("{}.{below}", wanted.name()))
            })
        }
        (DataType::Map(own, _), DataType::Map(wanted, _)) => {
            missing(own.data_type(), &entries(own.data_type(), wanted.data_type()))
        }
        (DataType::Dictionary(_, values), to) => missing(values, to),
        (DataType::RunEndEncoded(_, values), to) => missing(values.data_type(), to),
        (from, DataType::Dictionary(_, values)) => missing(from, values),
        (from, DataType::RunEndEncoded(_, values)) => missing(from, values.data_type()),
        // Arrow makes a list of one of a value.
        (from, to) => missing(items(from).unwrap_or(from), items(to)?),
    }
}

/// The arrays that an array of `from` is made of and that a cast to `to` converts: their positions, and what they become.
pub(super) fn inner(from: &DataType, to: &DataType) -> Vec<(usize, DataType)> {
    match (from, to) {
        (DataType::Struct(own), DataType::Struct(fields)) => {
            paired(own, fields).into_iter().map(|(at, field)| (at, field.data_type().clone())).collect()
        }
        (DataType::Map(own, _), DataType::Map(wanted, _)) => {
            vec![(0, entries(own.data_type(), wanted.data_type()))]
        }
        (DataType::Dictionary(..), DataType::Dictionary(_, values)) => vec![(0, values.as_ref().clone())],
        (DataType::Dictionary(..), to) => vec![(0, to.clone())],
        (DataType::RunEndEncoded(..), DataType::RunEndEncoded(_, values)) => vec![(1, values.data_type().clone())],
        (DataType::RunEndEncoded(..), to) => vec![(1, to.clone())],
        (from, to) => items(from).and(items(to)).map(|to| (0, to.clone())).into_iter().collect(),
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::Field;

    use super::*;

    fn structs(names: &[&str]) -> DataType {
        DataType::Struct(names.iter().map(|name| Field::new(*name, DataType::Int8, true)).collect())
    }

    #[test]
    fn members_are_paired_by_name_and_entries_by_position() {
        let (here, there) = (structs(&["lat", "lon"]), structs(&["lon", "alt"]));
        assert_eq!(missing(&here, &structs(&["lon", "lat"])), None);
        assert_eq!(missing(&here, &structs(&["lon"])), None);
        assert_eq!(missing(&here, &there).as_deref(), Some("alt"));
        let list = |item: &DataType| DataType::new_list(item.clone(), true);
        assert_eq!(missing(&list(&here), &DataType::new_large_list(there.clone(), true)).as_deref(), Some("alt"));
        assert_eq!(missing(&here, &list(&there)).as_deref(), Some("alt"));
        let outer = |of: DataType| DataType::Struct(vec![Field::new("gps", of, true)].into());
        assert_eq!(missing(&outer(list(&here)), &outer(list(&there))).as_deref(), Some("gps.alt"));
        let map = |key: &str, of: &DataType| {
            let pair = vec![Field::new(key, DataType::Utf8, false), Field::new("value", of.clone(), true)];
            DataType::Map(Arc::new(Field::new("entries", DataType::Struct(pair.into()), false)), false)
        };
        assert_eq!(missing(&map("key", &here), &map("keys", &here)), None);
        assert_eq!(missing(&map("key", &here), &map("keys", &there)).as_deref(), Some("value.alt"));
        let (DataType::Struct(own), DataType::Struct(wanted)) = (&here, &there) else { unreachable!() };
        let pairs: Vec<(usize, &str)> = paired(own, wanted).iter().map(|(at, to)| (*at, to.name().as_str())).collect();
        assert_eq!(pairs, [(1, "lon")]);
    }
}
