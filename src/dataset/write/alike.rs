//! Whether a column is one that a writer was made for: the same values under the same names, with the same meaning.

use std::collections::BTreeSet;

use arrow::datatypes::{DataType, Field, FieldRef};
use serde_json::Value;

use crate::schema::{extension, paired};

/// Returns true if values of `given`, whose type is plain, are those of `own`: of no other extension type, and with the members of its structs in
/// any order. Names of items, keys and values are the writers' own.
pub(super) fn alike(own: &Field, given: &Field) -> bool {
    let same = match (extension::own(own), extension::own(given)) {
        (Some((own, of)), Some((given, other))) => own == given && parameters(of) == parameters(other),
        // What has no such type is the storage of whichever the other has.
        _ => true,
    };
    same && types(own.data_type(), given.data_type())
}

/// The parameters in `text` of an extension type, as most are JSON: with other blanks, or none for an order of axes that changes nothing, they
/// are the same.
fn parameters(text: Option<&str>) -> Value {
    let mut value = text.map_or(Value::Null, |text| serde_json::from_str(text).unwrap_or_else(|_| text.into()));
    if let Some(object) = value.as_object_mut() {
        let is_in_order =
            |axes: &Vec<Value>| axes.iter().enumerate().all(|(at, axis)| axis.as_u64() == Some(at as u64));
        if object.get("permutation").and_then(Value::as_array).is_some_and(is_in_order) {
            object.remove("permutation");
        }
        if object.is_empty() {
            return Value::Null;
        }
    }
    value
}

fn within(own: &FieldRef, given: &FieldRef) -> bool {
    own.is_nullable() == given.is_nullable() && alike(own, given)
}

fn types(own: &DataType, given: &DataType) -> bool {
    match (own, given) {
        (DataType::List(own), DataType::List(given)) | (DataType::LargeList(own), DataType::LargeList(given)) => {
            within(own, given)
        }
        (DataType::FixedSizeList(own, length), DataType::FixedSizeList(given, other)) => {
            length == other && within(own, given)
        }
        (DataType::Struct(own), DataType::Struct(given)) => {
            let pairs = paired(given, own);
            let places: BTreeSet<usize> = pairs.iter().map(|(at, _)| *at).collect();
            own.len() == given.len()
                && places.len() == own.len()
                && pairs.iter().all(|(at, own)| given.get(*at).is_some_and(|given| within(own, given)))
        }
        (DataType::Map(own, sorted), DataType::Map(given, other)) => match (own.data_type(), given.data_type()) {
            (DataType::Struct(own), DataType::Struct(given)) => {
                sorted == other
                    && own.len() == given.len()
                    && own.iter().zip(given).all(|(own, given)| within(own, given))
            }
            _ => false,
        },
        (DataType::Dictionary(keys, own), DataType::Dictionary(other, given)) => keys == other && types(own, given),
        (DataType::RunEndEncoded(ends, own), DataType::RunEndEncoded(other, given)) => {
            ends.data_type() == other.data_type() && within(own, given)
        }
        (own, given) => own == given,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn structs(names: &[&str]) -> DataType {
        DataType::Struct(names.iter().map(|name| Field::new(*name, DataType::Int8, true)).collect())
    }

    #[test]
    fn members_have_names_and_items_have_any() {
        let alike = |own: &DataType, given: &DataType| {
            alike(&Field::new("x", own.clone(), true), &Field::new("x", given.clone(), false))
        };
        let place = structs(&["lat", "lon"]);
        let list = |name: &str, item: &DataType| DataType::List(Arc::new(Field::new(name, item.clone(), true)));
        let map = |key: &str, value: &DataType| {
            let pair = vec![Field::new(key, DataType::Utf8, false), Field::new("v", value.clone(), true)];
            DataType::Map(Arc::new(Field::new(key, DataType::Struct(pair.into()), false)), false)
        };
        for (given, same) in [
            (structs(&["lat", "lon"]), true),
            (structs(&["lon", "lat"]), true),
            (structs(&["lon", "alt"]), false),
            (structs(&["lat"]), false),
            (structs(&["lat", "lon", "alt"]), false),
            (structs(&["lat", "lat"]), false),
        ] {
            assert_eq!(alike(&place, &given), same, "{given}");
            assert_eq!(alike(&list("item", &place), &list("element", &given)), same, "{given}");
            assert_eq!(alike(&map("key", &place), &map("keys", &given)), same, "{given}");
        }
        assert!(!alike(&structs(&["x", "x", "y"]), &structs(&["x", "y", "y"])));
        assert!(!alike(&list("item", &place), &DataType::new_list(place.clone(), false)));
    }

    #[test]
    fn a_tensor_of_another_shape_is_another_column() {
        let values = || DataType::new_fixed_size_list(DataType::Int32, 6, true);
        let tensor = |parameters: &str| {
            let of = [("ARROW:extension:name", "arrow.fixed_shape_tensor"), ("ARROW:extension:metadata", parameters)];
            let of = of.map(|(key, value)| (key.to_owned(), value.to_owned()));
            Field::new("x", values(), true).with_metadata(of)
        };
        let own = tensor(r#"{"shape":[2,3]}"#);
        let lists = |item: &Field| Field::new("l", DataType::List(Arc::new(item.clone())), true);
        for (given, same) in [
            (tensor(r#"{"shape":[2,3]}"#), true),
            (tensor(r#"{"permutation":[0,1], "shape": [2, 3]}"#), true),
            (tensor(r#"{"shape":[3,2]}"#), false),
            (tensor(r#"{"shape":[2,3],"permutation":[1,0]}"#), false),
            (tensor(""), false),
            (Field::new("x", values(), true), true),
        ] {
            assert_eq!(alike(&own, &given), same, "{given}");
            assert_eq!(alike(&lists(&own), &lists(&given)), same, "{given}");
        }
    }
}
