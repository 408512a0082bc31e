//! A source in which two columns, or two members of a struct, have one name. Columns are chosen, compared and written by their names,
//! so one of the two would be lost.

use std::collections::HashSet;

use arrow::datatypes::{DataType, Field, FieldRef, Schema};

use crate::error::{Error, Result};

/// Refuses such a source.
///
/// # Errors
/// `Unsupported` with the name.
pub(super) fn check(schema: &Schema) -> Result<()> {
    let Some(twice) = twice(schema.fields(), "") else { return Ok(()) };
    Err(Error::unsupported(format!("two columns named {twice:?}"), "rename one of them"))
}

/// A name, dotted below `above`, that two of `fields` or two of what is in one of them have.
fn twice(fields: &[FieldRef], above: &str) -> Option<String> {
    let mut seen = HashSet::new();
    fields.iter().find_map(|field| {
        let name = format!("{above}{}", field.name());
        if seen.insert(field.name()) { within(field.data_type(), &name) } else { Some(name) }
    })
}

fn within(data_type: &DataType, name: &str) -> Option<String> {
    let inner = |field: &Field| within(field.data_type(), name);
    match data_type {
        DataType::Struct(members) => twice(members, &format!("{name}.")),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _)
        | DataType::RunEndEncoded(_, item) => inner(item),
        DataType::Dictionary(_, values) => within(values, name),
        DataType::Map(entries, _) => match entries.data_type() {
            // Keys and values are told apart by their places.
            DataType::Struct(pair) => pair.iter().find_map(|field| inner(field)),
            other => within(other, name),
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::Fields;

    use super::*;

    fn field(name: &str, data_type: DataType) -> Field {
        Field::new(name, data_type, true)
    }

    #[test]
    fn one_name_for_two_columns_or_members_is_refused_at_any_depth() {
        let pair = |a, b| DataType::Struct(Fields::from(vec![field(a, DataType::Int8), field(b, DataType::Utf8)]));
        let list = |inner| DataType::List(Arc::new(field("item", inner)));
        let map = |inner| {
            let entries = DataType::Struct(Fields::from(vec![field("e", DataType::Utf8), field("e", inner)]));
            DataType::Map(Arc::new(field("entries", entries)), false)
        };
        let run = |inner| {
            let ends = Arc::new(Field::new("run_ends", DataType::Int32, false));
            DataType::RunEndEncoded(ends, Arc::new(field("values", inner)))
        };
        let checked = |fields: Vec<Field>| check(&Schema::new(fields)).map_err(|error| error.to_string());
        let said = checked(vec![field("x", DataType::Int8), field("x", DataType::Utf8)]).unwrap_err();
        assert!(said.contains("two columns named \"x\"") && said.contains("rename"), "{said}");
        for inner in [pair("a", "a"), list(pair("a", "a")), map(pair("a", "a")), run(list(pair("a", "a")))] {
            let said = checked(vec![field("x", inner)]).unwrap_err();
            assert!(said.contains("\"x.a\""), "{said}");
        }
        checked(vec![field("a", pair("a", "b")), field("b", list(map(pair("a", "b"))))]).unwrap();
    }
}
