//! Extension types of Arrow: what the metadata of a field, or of one within it, makes of its type.

use arrow::datatypes::Field;

use super::nested::children;

/// The type of `field` for people, with the extension types in it: types that are stored alike differ in these alone.
pub(crate) fn type_text(field: &Field) -> String {
    format!("{}{}", field.data_type(), extensions(field))
}

/// What [`type_text`] says beyond the type: nothing for a field without extension types.
pub(crate) fn extensions(field: &Field) -> String {
    let mut text = String::new();
    add(field, "", &mut text);
    text
}

/// Returns true if `text` begins as what [`extensions`] says.
#[cfg(feature = "flight")]
pub(crate) fn are(text: &str) -> bool {
    text.starts_with(" as ") || text.starts_with(" of .")
}

/// Name and parameters of the extension type of `field` itself.
pub(crate) fn own(field: &Field) -> Option<(&str, Option<&str>)> {
    let metadata = field.extension_type_metadata().filter(|metadata| !metadata.is_empty());
    Some((field.extension_type_name()?, metadata))
}

/// Adds the extension types of `field`, and of those within it, which is at `path` below the root.
fn add(field: &Field, path: &str, text: &mut String) {
    if let Some((name, metadata)) = own(field) {
        let of = if path.is_empty() { String::new() } else { format!(" of {path}") };
        *text += &format!("{of} as {name}{}", metadata.map(|metadata| format!(" {metadata}")).unwrap_or_default());
    }
    children(field.data_type()).iter().for_each(|child| add(child, &format!("{path}.{}", child.name()), text));
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use arrow::datatypes::DataType;

    use super::*;

    #[test]
    fn types_that_are_stored_alike_differ_in_their_extensions() {
        let extended = |field: Field, name: &str, metadata: &str| {
            let of = [("ARROW:extension:name", name), ("ARROW:extension:metadata", metadata)];
            let of = of.map(|(key, value)| (key.to_owned(), value.to_owned()));
            field.with_metadata(HashMap::from(of))
        };
        let plain = Field::new("x", DataType::Int8, false);
        assert_eq!((type_text(&plain).as_str(), extensions(&plain).as_str()), ("Int8", ""));
        assert_eq!(type_text(&extended(plain.clone(), "arrow.bool8", "")), "Int8 as arrow.bool8");
        let tensor = extended(plain.clone(), "arrow.fixed_shape_tensor", "{\"shape\":[1]}");
        assert_eq!(extensions(&tensor), " as arrow.fixed_shape_tensor {\"shape\":[1]}");
        let list = DataType::List(Arc::new(extended(plain.with_name("item"), "arrow.bool8", "")));
        let nested = Field::new("s", DataType::Struct(vec![Field::new("l", list, true)].into()), true);
        assert_eq!(extensions(&nested), " of .l.item as arrow.bool8");
    }
}
