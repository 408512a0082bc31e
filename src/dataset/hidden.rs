//! Hidden columns: those that the owner of a dataset keeps back from other readers.
//!
//! They are in no schema, no hint and no filter of a reader. The owner's own filter may use them.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, Fields, Schema, SchemaRef};

use super::filter::Expr;
use super::petastorm::RowGroupIndex;
use crate::error::{Error, Result};

/// The hidden columns, and the parts of the options that come from readers who must not see them.
#[derive(Debug, Clone)]
pub struct Hidden {
    /// Names of columns, prefixes of them, or globs.
    pub patterns: Vec<String>,
    /// Returns true if a pattern means a column, by its dotted name.
    pub means: fn(&str, &str) -> bool,
    /// Their part of the filter.
    pub filter: Option<Expr>,
    /// True if the selector is theirs.
    pub selector: bool,
    /// True if the windows are theirs.
    pub ngram: bool,
}

impl Hidden {
    /// Visible part of `schema`.
    ///
    /// # Errors
    /// [`Error::Config`] for a pattern that means nothing: the columns that it was to hide would be seen.
    pub(super) fn visible(&self, schema: &SchemaRef) -> Result<SchemaRef> {
        for pattern in &self.patterns {
            if pattern != "*" && !schema.fields().iter().any(|field| self.any(pattern, field.name(), field)) {
                // Without a hint, which would tell names.
                let problem =
                    format!("{pattern:?} in the catalogue means no column of the dataset; its owner must mend it");
                return Err(Error::config("exclude", problem));
            }
        }
        Ok(visible(schema, &|name| self.patterns.iter().any(|pattern| (self.means)(pattern, name))))
    }

    fn any(&self, pattern: &str, name: &str, field: &FieldRef) -> bool {
        (self.means)(pattern, name)
            || members(field).iter().any(|(below, member)| self.any(pattern, &format!("{name}.{below}"), member))
    }

    /// Refuses a filter of theirs that asks for hidden columns, as it refuses one for columns that do not exist.
    ///
    /// # Errors
    /// As [`Expr::bind`].
    pub(super) fn check(&self, visible: &SchemaRef) -> Result<()> {
        self.filter.as_ref().map_or(Ok(()), |filter| filter.check(visible))
    }

    /// The indexes that they may use: those over columns that they see.
    pub(super) fn indexes(&self, mut indexes: Vec<RowGroupIndex>) -> Vec<RowGroupIndex> {
        if self.selector {
            let hidden = |name: &String| self.patterns.iter().any(|pattern| (self.means)(pattern, name));
            indexes.retain(|index| !index.columns.iter().any(hidden));
        }
        indexes
    }
}

/// `schema` without the columns and members of structs that `hidden` selects by their dotted names. A list or map that holds something
/// hidden is hidden itself, since lists are read whole; so is a struct of which nothing is left.
pub(super) fn visible(schema: &SchemaRef, hidden: &dyn Fn(&str) -> bool) -> SchemaRef {
    let fields: Fields = schema.fields().iter().filter_map(|field| left(field, field.name(), hidden)).collect();
    if fields == *schema.fields() {
        return Arc::clone(schema);
    }
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn left(field: &FieldRef, name: &str, hidden: &dyn Fn(&str) -> bool) -> Option<FieldRef> {
    if hidden(name) {
        return None;
    }
    let below = members(field);
    if below.is_empty() {
        return Some(Arc::clone(field));
    }
    let named = below.iter().map(|(below, member)| (format!("{name}.{below}"), member));
    let DataType::Struct(_) = field.data_type() else {
        let whole =
            |(name, member): (String, &FieldRef)| left(member, &name, hidden).is_some_and(|left| left == *member);
        return named.into_iter().all(whole).then(|| Arc::clone(field));
    };
    let fields: Fields = named.filter_map(|(name, member)| left(member, &name, hidden)).collect();
    if fields.is_empty() {
        return None;
    }
    Some(Arc::new(field.as_ref().clone().with_data_type(DataType::Struct(fields))))
}

/// Members below a field, with the names they are known by. Items of lists add nothing to a name; of a map they are `key` and `value`.
fn members(field: &FieldRef) -> Vec<(String, FieldRef)> {
    match field.data_type() {
        DataType::Struct(fields) => fields.iter().map(|member| (member.name().clone(), Arc::clone(member))).collect(),
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::ListView(item)
        | DataType::LargeListView(item)
        | DataType::FixedSizeList(item, _) => members(item),
        DataType::Map(entries, _) => {
            let names = ["key", "value"].into_iter().map(str::to_owned);
            match entries.data_type() {
                DataType::Struct(fields) => names.zip(fields.iter().map(Arc::clone)).collect(),
                _ => Vec::new(),
            }
        }
        _ => Vec::new(),
    }
}

/// The paths of everything below the member `path` of a field: the path itself if it is no struct.
pub(super) fn below(field: &FieldRef, path: &[String]) -> Vec<Vec<String>> {
    let Some((first, rest)) = path.split_first() else { return paths(field) };
    let DataType::Struct(fields) = field.data_type() else { return vec![path.to_vec()] };
    let member = fields.iter().find(|member| member.name() == first);
    let deeper = member.map(|member| below(member, rest)).unwrap_or_default();
    deeper.into_iter().map(|path| [vec![first.clone()], path].concat()).collect()
}

/// The paths of all members of a struct, lists among them as a whole; one empty path for anything else.
pub(super) fn paths(field: &FieldRef) -> Vec<Vec<String>> {
    let DataType::Struct(fields) = field.data_type() else { return vec![Vec::new()] };
    let below = |member: &FieldRef| {
        paths(member).into_iter().map(|path| [vec![member.name().clone()], path].concat()).collect::<Vec<_>>()
    };
    fields.iter().flat_map(below).collect()
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Field;

    use super::*;

    fn structure(name: &str, fields: Vec<Field>) -> Field {
        Field::new(name, DataType::Struct(fields.into()), true)
    }

    #[test]
    fn what_is_hidden_is_gone_at_any_depth() {
        let number = |name: &str| Field::new(name, DataType::Int64, true);
        let events = structure("element", vec![number("at"), number("secret_d")]);
        let inner = structure("inner", vec![number("secret_c")]);
        let person = structure("person", vec![number("age"), number("secret_b"), inner]);
        let fields = vec![
            number("id"),
            number("secret_a"),
            person,
            Field::new("events", DataType::List(Arc::new(events)), true),
            Field::new("tags", DataType::List(Arc::new(number("element"))), true),
        ];
        let schema = Arc::new(Schema::new(fields));
        let names = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
            let means = |pattern: &str, name: &str| {
                pattern == name || pattern.strip_prefix('*').is_some_and(|end| name.contains(end.trim_end_matches('*')))
            };
            let hidden = Hidden { patterns, means, filter: None, selector: false, ngram: false };
            hidden.visible(&schema).map(|left| {
                let roots = left.fields().iter();
                roots
                    .flat_map(|root| {
                        paths(root).into_iter().map(|path| [vec![root.name().clone()], path].concat().join("."))
                    })
                    .collect::<Vec<_>>()
            })
        };
        assert_eq!(names(&["*secret*"]).unwrap(), ["id", "person.age", "tags"]);
        assert_eq!(
            names(&["person.age"]).unwrap(),
            ["id", "secret_a", "person.secret_b", "person.inner.secret_c", "events", "tags"]
        );
        assert_eq!(names(&["person"]).unwrap(), ["id", "secret_a", "events", "tags"]);
        assert_eq!(names(&["events.at"]).unwrap().len(), 6, "the list as a whole");
        let error = names(&["sekret"]).unwrap_err().to_string();
        assert!(error.contains("sekret") && !error.contains("secret_a"), "{error}");
    }
}
