//! Numbers for the columns of files that have none: a table tells by which names its columns went where they were written.

use std::collections::BTreeMap;
use std::sync::Arc;

use parquet::errors::ParquetError;
use parquet::schema::types::{Type, TypePtr};
use serde_json::Value as Json;

use super::naming::{group, is_item, is_list, is_map, is_repeated, primitive};

/// By the name of a column, its number and the numbers of what is in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(in crate::dataset) struct Numbers(BTreeMap<String, (Option<i32>, Arc<Numbers>)>);

impl Numbers {
    /// A mapping of names as Iceberg's tables have it; none if it is damaged.
    pub(in crate::dataset) fn parse(json: &str) -> Option<Self> {
        // Nesting has the limit of serde_json.
        Self::of(&serde_json::from_str(json).ok()?)
    }

    fn of(json: &Json) -> Option<Self> {
        let mut numbers = Self::default();
        for field in json.as_array()? {
            let id = field.get("field-id").and_then(Json::as_i64).and_then(|id| i32::try_from(id).ok());
            // Shared, since each of its names may have as many below it.
            let below = Arc::new(field.get("fields").map_or_else(|| Some(Self::default()), Self::of)?);
            for name in field.get("names").and_then(Json::as_array)? {
                numbers.0.insert(name.as_str()?.to_owned(), (id, Arc::clone(&below)));
            }
        }
        Some(numbers)
    }

    /// `root`, the schema of a file, with the numbers of its columns.
    pub(in crate::dataset) fn given(&self, root: &Type) -> Result<TypePtr, ParquetError> {
        group(root, root.name(), None, self.fields(root)?)
    }

    fn fields(&self, ty: &Type) -> Result<Vec<TypePtr>, ParquetError> {
        ty.get_fields().iter().map(|field| self.field(field, field.name())).collect()
    }

    /// `ty`, which the mapping knows as `known`.
    fn field(&self, ty: &Type, known: &str) -> Result<TypePtr, ParquetError> {
        let none = (None, Arc::default());
        let (id, below) = self.0.get(known).unwrap_or(&none);
        if ty.is_primitive() {
            return primitive(ty, ty.name(), *id);
        }
        let fields = match ty.get_fields() {
            // Whatever writers called what is in a list or map, the mapping has one name for it.
            [repeated]
                if is_repeated(repeated) && (is_list(ty) || is_repeated(ty) && below.0.contains_key("element")) =>
            {
                vec![if is_item(ty, repeated) {
                    below.field(repeated, "element")?
                } else {
                    let items = repeated.get_fields().iter().map(|item| below.field(item, "element"));
                    group(repeated, repeated.name(), None, items.collect::<Result<_, _>>()?)?
                }]
            }
            [entries] if is_repeated(entries) && !entries.is_primitive() && is_map(ty) => {
                let parts =
                    entries.get_fields().iter().zip(["key", "value"]).map(|(part, name)| below.field(part, name));
                vec![group(entries, entries.name(), None, parts.collect::<Result<_, _>>()?)?]
            }
            _ => below.fields(ty)?,
        };
        group(ty, ty.name(), *id, fields)
    }
}

#[cfg(test)]
mod tests {
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::printer::print_schema;

    use super::*;

    /// The schema `message` with the numbers of the mapping `json`, in one line.
    fn given(json: &str, message: &str) -> String {
        let (root, mut text) = (parse_message_type(message), Vec::new());
        print_schema(&mut text, &Numbers::parse(json).unwrap().given(&root.unwrap()).unwrap());
        String::from_utf8(text).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn every_old_form_of_a_list_or_map_has_numbers_at_its_leaves() {
        let json = r#"[{"field-id":1,"names":["l"],"fields":[{"field-id":2,"names":["element"],"fields":[{"field-id":3,"names":["u"]}]}]},
            {"field-id":4,"names":["m"],"fields":[{"field-id":5,"names":["key"]},
                {"field-id":6,"names":["value"],"fields":[{"field-id":7,"names":["u"]}]}]},
            {"field-id":8,"names":["n"],"fields":[{"field-id":9,"names":["element"],"fields":[{"field-id":10,"names":["element"],
                "fields":[{"field-id":11,"names":["u"]}]}]}]}]"#;
        for (form, expected) in [
            ("l (LIST) { repeated group array { @; } }", "l [1] (LIST) { REPEATED group array [2] { @ [3]; } }"),
            ("l (LIST) { repeated group l_tuple { @; } }", "l [1] (LIST) { REPEATED group l_tuple [2] { @ [3]; } }"),
            ("l (LIST) { repeated group x { @; @; } }", "l [1] (LIST) { REPEATED group x [2] { @ [3]; @ [3]; } }"),
            (
                "l (LIST) { repeated group bag { optional group array { @; } } }",
                "l [1] (LIST) { REPEATED group bag { OPTIONAL group array [2] { @ [3]; } } }",
            ),
            (
                "m (MAP_KEY_VALUE) { repeated group map { required int32 key; optional group value { @; } } }",
                "m [4] (MAP_KEY_VALUE) { REPEATED group map { REQUIRED INT32 key [5]; OPTIONAL group value [6] { @ [7]; } } }",
            ),
            (
                "m (MAP) { repeated group map (MAP_KEY_VALUE) { required int32 key; optional group value { @; } } }",
                "m [4] (MAP) { REPEATED group map (MAP_KEY_VALUE) { REQUIRED INT32 key [5]; OPTIONAL group value [6] { @ [7]; } } }",
            ),
            (
                "n (LIST) { repeated group array (LIST) { repeated group array { @; } } }",
                "n [8] (LIST) { REPEATED group array [9] (LIST) { REPEATED group array [10] { @ [11]; } } }",
            ),
            (
                "n (LIST) { repeated group x { repeated group y { @; } } }",
                "n [8] (LIST) { REPEATED group x [9] { REPEATED group y [10] { @ [11]; } } }",
            ),
            (
                "n (LIST) { repeated group list { optional group element (LIST) { repeated group array { @; } } } }",
                "n [8] (LIST) { REPEATED group list { OPTIONAL group element [9] (LIST) { REPEATED group array [10] { @ [11]; } } } }",
            ),
        ] {
            let message = format!("message t {{ optional group {} }}", form.replace('@', "optional int64 u"));
            let expected = format!("message t {{ OPTIONAL group {} }}", expected.replace('@', "OPTIONAL INT64 u"));
            assert_eq!(given(json, &message), expected);
        }
    }

    #[test]
    fn names_get_their_numbers_at_every_depth() {
        let json = r#"[{"field-id":1,"names":["a","old"]},
            {"field-id":2,"names":["s"],"fields":[{"field-id":3,"names":["x"]}]},
            {"field-id":4,"names":["l"],"fields":[{"field-id":5,"names":["element"],"fields":[{"field-id":6,"names":["p"]}]}]},
            {"field-id":7,"names":["m"],"fields":[{"field-id":8,"names":["key"]},{"field-id":9,"names":["value"]}]}]"#;
        let text = given(
            json,
            "message t { optional int32 old; optional int32 other; optional group s { optional int32 x; optional int32 y; }
            optional group l (LIST) { repeated group bag { optional group array_element { optional int32 p; } } }
            optional group m (MAP) { repeated group map { required int32 k; optional int32 v; } } }",
        );
        assert_eq!(
            text,
            "message t { OPTIONAL INT32 old [1]; OPTIONAL INT32 other; OPTIONAL group s [2] { OPTIONAL INT32 x [3]; OPTIONAL INT32 y; } \
             OPTIONAL group l [4] (LIST) { REPEATED group bag { OPTIONAL group array_element [5] { OPTIONAL INT32 p [6]; } } } \
             OPTIONAL group m [7] (MAP) { REPEATED group map { REQUIRED INT32 k [8]; OPTIONAL INT32 v [9]; } } }"
        );
        // Two names at each of 20 levels are a million paths.
        let deep = (0..20)
            .fold("[]".to_owned(), |below, id| format!(r#"[{{"field-id":{id},"names":["a","b"],"fields":{below}}}]"#));
        assert_eq!(Numbers::parse(&deep).unwrap().0.len(), 2);
        for json in ["", "{}", "[7]", r#"[{"field-id":1}]"#, r#"[{"names":[7]}]"#] {
            assert_eq!(Numbers::parse(json), None, "{json}");
        }
    }
}
