//! The schema of a data file with the table's names in it, so that all later code finds columns by those alone.
//!
//! A table that maps its columns knows them in its files by other names, or by numbers. They are found by these once,
//! here. A column of the file that the table does not have any more must not stand for another one that took its name since.

use std::collections::BTreeSet;
use std::sync::Arc;

use parquet::basic::{ConvertedType, LogicalType, Repetition};
use parquet::errors::ParquetError;
use parquet::schema::types::{Type, TypePtr};
use serde_json::{Value, json};

use super::column::{Column, Kind};

/// Mark on the name of a column of a file that the table does not have, if the name is another one's now.
const GONE: &str = " (not in the table)";

/// Name of the repeated group of a list that says that it is an item itself, whatever the list is called.
const ITEM: &str = "array";

/// The way in which columns are found in data files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::dataset) enum Mapping {
    /// By their names.
    None,
    /// By names of their own.
    Name,
    /// By their numbers.
    Id,
}

/// Names for the columns of one table.
#[derive(Debug, Clone)]
pub(in crate::dataset) struct Naming {
    pub(in crate::dataset) columns: Vec<Column>,
    /// Names that come from the log: no column of a file stands for them.
    pub(in crate::dataset) taken: BTreeSet<String>,
    pub(in crate::dataset) mapping: Mapping,
}

impl Naming {
    /// `root`, the schema of a file, by the names of the table.
    pub(super) fn named(&self, root: &Type) -> Result<TypePtr, ParquetError> {
        self.group(root, root.name(), Some(&self.columns), &self.taken)
    }

    /// Returns true unless columns are found by number and the file has no numbers for them.
    pub(super) fn is_numbered(&self, root: &Type) -> bool {
        self.mapping != Mapping::Id || root.get_fields().iter().any(|field| id(field).is_some())
    }

    fn finds(&self, column: &Column, field: &Type) -> bool {
        match self.number(column) {
            Some(number) => Some(number) == id(field),
            None => column.physical == field.name(),
        }
    }

    /// The number by which `column` is found, if it is found by one.
    fn number(&self, column: &Column) -> Option<i32> {
        column.id.filter(|_| self.mapping == Mapping::Id)
    }

    /// What the columns are found by, at every depth, as one text: two columns of one name may be different ones. `None` if these are
    /// their names.
    pub(in crate::dataset) fn identity(&self) -> Option<String> {
        let is_mapped = self.mapping == Mapping::Id || self.columns.iter().any(Column::is_renamed);
        is_mapped.then(|| self.identities(&self.columns).to_string())
    }

    fn identities(&self, columns: &[Column]) -> Value {
        let one = |column: &Column| {
            let found_by = self.number(column).map_or_else(|| json!(column.physical), Value::from);
            json!([column.name, found_by, self.below(&column.kind)])
        };
        columns.iter().map(one).collect()
    }

    /// The same of the columns in a `kind`.
    fn below(&self, kind: &Kind) -> Value {
        match kind {
            Kind::Leaf(_) => Value::Null,
            Kind::Struct(members) => self.identities(members),
            Kind::List(item, _) => self.below(item),
            Kind::Map(key, value, _) => json!([self.below(key), self.below(value)]),
        }
    }

    /// The fields of `ty` by the names of `columns`, and by their own without.
    fn group(
        &self,
        ty: &Type,
        name: &str,
        columns: Option<&[Column]>,
        taken: &BTreeSet<String>,
    ) -> Result<TypePtr, ParquetError> {
        let Some(columns) = columns else { return self.renamed(ty, name, ty.get_fields().to_vec()) };
        let found: Vec<Option<&Column>> =
            ty.get_fields().iter().map(|field| columns.iter().find(|column| self.finds(column, field))).collect();
        let mut names: BTreeSet<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        names.extend(taken.iter().map(String::as_str));
        let fields = ty.get_fields().iter().zip(&found).map(|(field, column)| match column {
            Some(column) => self.node(field, &column.name, Some(&column.kind)),
            None => {
                let mut name = field.name().to_owned();
                while names.contains(name.as_str()) {
                    name.push_str(GONE);
                }
                self.node(field, &name, None)
            }
        });
        let fields = fields.collect::<Result<_, _>>()?;
        self.renamed(ty, name, fields)
    }

    /// `ty`, which holds a `kind`, under `name`.
    fn node(&self, ty: &Type, name: &str, kind: Option<&Kind>) -> Result<TypePtr, ParquetError> {
        if ty.is_primitive() {
            return primitive(ty, name, id(ty));
        }
        let none = BTreeSet::new();
        let inner = |ty: &Type, kind: &Kind| self.node(ty, ty.name(), Some(kind));
        match (kind, ty.get_fields()) {
            (Some(Kind::Struct(members)), _) => {
                self.check_numbered(ty, members)?;
                self.group(ty, name, Some(members), &none)
            }
            (Some(Kind::List(item, _)), [repeated]) if is_repeated(repeated) => {
                let below = if is_item(ty, repeated) {
                    // The list may get another name, which its group's name would not begin with.
                    let called = if is_named_item(ty, repeated) { ITEM } else { repeated.name() };
                    self.node(repeated, called, Some(item))?
                } else {
                    let element = repeated.get_fields().iter().map(|element| inner(element, item));
                    self.renamed(repeated, repeated.name(), element.collect::<Result<_, _>>()?)?
                };
                self.renamed(ty, name, vec![below])
            }
            (Some(Kind::Map(key, value, _)), [entries]) if is_repeated(entries) && !entries.is_primitive() => {
                let parts = entries.get_fields().iter().zip([key, value]).map(|(part, kind)| inner(part, kind));
                let parts: Vec<TypePtr> = parts.collect::<Result<_, _>>()?;
                let parts =
                    if parts.len() == entries.get_fields().len() { parts } else { entries.get_fields().to_vec() };
                let entries = self.renamed(entries, entries.name(), parts)?;
                self.renamed(ty, name, vec![entries])
            }
            _ => self.renamed(ty, name, ty.get_fields().to_vec()),
        }
    }

    /// Refuses a struct without any number where the table finds `members` by those and the struct has some of their names: all would
    /// be null.
    fn check_numbered(&self, ty: &Type, members: &[Column]) -> Result<(), ParquetError> {
        let fields = ty.get_fields();
        let numbered = |column: &Column, field: &TypePtr| column.id.is_some() && column.physical == field.name();
        let is_known = |field: &TypePtr| members.iter().any(|column| numbered(column, field));
        if self.mapping != Mapping::Id || fields.iter().any(|field| id(field).is_some()) || !fields.iter().any(is_known)
        {
            return Ok(());
        }
        let what = format!("the members of {:?} have no numbers, and its table finds them by those", ty.name());
        Err(ParquetError::General(what))
    }

    /// The group `ty` under `name`, with these fields.
    fn renamed(&self, ty: &Type, name: &str, fields: Vec<TypePtr>) -> Result<TypePtr, ParquetError> {
        group(ty, name, id(ty), fields)
    }
}

/// The number of a field.
pub(super) fn id(ty: &Type) -> Option<i32> {
    let info = ty.get_basic_info();
    info.has_id().then(|| info.id())
}

/// The group `ty` under `name` and number `id`, with these fields.
pub(super) fn group(ty: &Type, name: &str, id: Option<i32>, fields: Vec<TypePtr>) -> Result<TypePtr, ParquetError> {
    let info = ty.get_basic_info();
    let mut builder = Type::group_type_builder(name)
        .with_fields(fields)
        .with_logical_type(info.logical_type_ref().cloned())
        .with_converted_type(info.converted_type())
        .with_id(id);
    if info.has_repetition() {
        builder = builder.with_repetition(info.repetition());
    }
    builder.build().map(Arc::new)
}

pub(super) fn is_repeated(ty: &Type) -> bool {
    ty.get_basic_info().has_repetition() && ty.get_basic_info().repetition() == Repetition::REPEATED
}

/// Returns true if a group says that it is a list.
pub(super) fn is_list(ty: &Type) -> bool {
    let info = ty.get_basic_info();
    info.logical_type_ref() == Some(&LogicalType::List) || info.converted_type() == ConvertedType::LIST
}

/// Returns true if a group says that it is a map. Old writers marked maps as what is in them.
pub(super) fn is_map(ty: &Type) -> bool {
    let info = ty.get_basic_info();
    info.logical_type_ref() == Some(&LogicalType::Map)
        || matches!(info.converted_type(), ConvertedType::MAP | ConvertedType::MAP_KEY_VALUE)
}

/// Returns true if the repeated field of a list is an item itself: a list of two levels. One of three has its items below it.
pub(super) fn is_item(list: &Type, repeated: &Type) -> bool {
    // What only repeats a field, as a list in a list may, has no level for its items.
    if repeated.is_primitive() || !is_list(list) {
        return true;
    }
    let [only] = repeated.get_fields() else { return true };
    is_repeated(only) || is_named_item(list, repeated)
}

/// Returns true if the repeated group of a list is an item itself by the names that old writers gave it.
fn is_named_item(list: &Type, repeated: &Type) -> bool {
    repeated.name() == ITEM || repeated.name() == format!("{}_tuple", list.name())
}

/// The leaf `ty` under `name` and number `id`.
pub(super) fn primitive(ty: &Type, name: &str, id: Option<i32>) -> Result<TypePtr, ParquetError> {
    let Type::PrimitiveType { basic_info, physical_type, type_length, scale, precision } = ty else {
        return Err(ParquetError::General("a leaf that is not one".to_owned()));
    };
    let mut builder = Type::primitive_type_builder(name, *physical_type)
        .with_logical_type(basic_info.logical_type_ref().cloned())
        .with_length(*type_length)
        .with_precision(*precision)
        .with_scale(*scale)
        .with_id(id);
    if basic_info.converted_type() != ConvertedType::NONE {
        builder = builder.with_converted_type(basic_info.converted_type());
    }
    if basic_info.has_repetition() {
        builder = builder.with_repetition(basic_info.repetition());
    }
    builder.build().map(Arc::new)
}

#[cfg(test)]
mod tests {
    use parquet::schema::parser::parse_message_type;
    use parquet::schema::printer::print_schema;

    use super::*;

    fn column(name: &str, physical: &str, id: i32, kind: Kind) -> Column {
        Column { name: name.to_owned(), physical: physical.to_owned(), id: Some(id), nullable: true, kind }
    }

    fn named(message: &str, columns: &[Column], mapping: Mapping) -> String {
        let root = parse_message_type(message).unwrap();
        let naming = Naming { columns: columns.to_vec(), taken: BTreeSet::from(["p".to_owned()]), mapping };
        let mut text = Vec::new();
        print_schema(&mut text, &naming.named(&root).unwrap());
        String::from_utf8(text).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    fn leaf() -> Kind {
        Kind::Leaf(arrow::datatypes::DataType::Int32)
    }

    #[test]
    fn names_change_at_every_depth() {
        let item = Kind::Struct(vec![column("x", "c3", 3, leaf())]);
        let map = Kind::Map(Box::new(leaf()), Box::new(item.clone()), true);
        let columns = [
            column("a", "c1", 1, leaf()),
            column("l", "c2", 2, Kind::List(Box::new(item), true)),
            column("m", "c4", 4, map),
        ];
        let message = "message s { optional int32 c1; optional int32 a; optional int32 p;
            optional group c2 (LIST) { repeated group list { optional group element { optional int32 c3; } } }
            optional group c4 (MAP) { repeated group key_value { required int32 key; optional group value { optional int32 c3; } } } }";
        assert_eq!(
            named(message, &columns, Mapping::Name),
            "message s { OPTIONAL INT32 a; OPTIONAL INT32 a (not in the table); OPTIONAL INT32 p (not in the table); \
             OPTIONAL group l (LIST) { REPEATED group list { OPTIONAL group element { OPTIONAL INT32 x; } } } \
             OPTIONAL group m (MAP) { REPEATED group key_value { REQUIRED INT32 key; OPTIONAL group value { OPTIONAL INT32 x; } } } }"
        );
    }

    #[test]
    fn what_columns_are_found_by_identifies_them() {
        let inner = |id| Kind::List(Box::new(Kind::Struct(vec![column("x", "c3", id, leaf())])), true);
        let identity = |first: &str, id, inner, mapping| {
            let columns = vec![column("a", first, id, leaf()), column("l", "c2", 2, inner)];
            Naming { columns, taken: BTreeSet::new(), mapping }.identity()
        };
        let (name, id) = (Mapping::Name, Mapping::Id);
        assert_eq!(identity("c1", 1, inner(3), name), identity("c1", 9, inner(9), name));
        assert_ne!(identity("c1", 1, inner(3), name), identity("c9", 1, inner(3), name));
        assert_eq!(identity("c1", 1, inner(3), id), identity("c9", 1, inner(3), id));
        assert_ne!(identity("c1", 1, inner(3), id), identity("c1", 9, inner(3), id));
        assert_ne!(identity("c1", 1, inner(3), id), identity("c1", 1, inner(9), id));
        let plain = |member: &str, mapping| {
            let item = Kind::Struct(vec![column("x", member, 3, leaf())]);
            let map = Kind::Map(Box::new(leaf()), Box::new(Kind::List(Box::new(item), true)), true);
            Naming { columns: vec![column("m", "m", 1, map)], taken: BTreeSet::new(), mapping }.identity()
        };
        assert_eq!((plain("x", name), plain("x", Mapping::None)), (None, None));
        assert!(plain("c3", name).is_some() && plain("x", id).is_some());
    }

    #[test]
    fn lists_of_two_levels_have_their_items_in_the_repeated_group() {
        let item = Kind::Struct(vec![column("x", "c3", 3, leaf()), column("y", "c4", 4, leaf())]);
        let columns = [column("l", "c2", 2, Kind::List(Box::new(item), true))];
        let message =
            "message s { optional group c2 (LIST) { repeated group array { optional int32 c3; optional int32 c4; } } }";
        let expected =
            "message s { OPTIONAL group l (LIST) { REPEATED group array { OPTIONAL INT32 x; OPTIONAL INT32 y; } } }";
        assert_eq!(named(message, &columns, Mapping::Name), expected);
    }

    #[test]
    fn items_by_their_name_stay_items_under_another_name_of_the_list() {
        let item = Kind::Struct(vec![column("x", "c3", 3, leaf())]);
        let columns = [column("l", "c2", 2, Kind::List(Box::new(item), true))];
        let message = |group: &str| {
            format!("message s {{ optional group c2 (LIST) {{ repeated group {group} {{ optional int32 c3; }} }} }}")
        };
        let expected = "message s { OPTIONAL group l (LIST) { REPEATED group array { OPTIONAL INT32 x; } } }";
        for group in ["array", "c2_tuple"] {
            assert_eq!(named(&message(group), &columns, Mapping::Name), expected);
        }
    }

    #[test]
    fn members_without_numbers_are_no_nulls() {
        let columns = [column("s", "s", 1, Kind::Struct(vec![column("x", "x", 2, leaf())]))];
        let outcome = |members: &str| {
            let root = parse_message_type(&format!("message s {{ optional group s = 1 {{ {members} }} }}")).unwrap();
            let naming = Naming { columns: columns.to_vec(), taken: BTreeSet::new(), mapping: Mapping::Id };
            naming.named(&root).map(|_| ()).map_err(|error| error.to_string())
        };
        let error = outcome("optional int32 x;").unwrap_err();
        assert!(error.contains("\"s\"") && error.contains("no numbers"), "{error}");
        // These are other columns than the table's.
        for members in ["optional int32 x = 7;", "optional int32 y = 2; optional int32 x;", "optional int32 y;"] {
            assert_eq!(outcome(members), Ok(()), "{members}");
        }
    }

    #[test]
    fn members_that_the_table_gives_no_numbers_are_found_by_their_names() {
        let member = Column { id: None, ..column("n", "n", 0, leaf()) };
        let columns = [column("v", "c1", 1, Kind::Struct(vec![member]))];
        let message = "message s { optional group c1 = 1 { optional int32 n; } }";
        let expected = "message s { OPTIONAL group v [1] { OPTIONAL INT32 n; } }";
        assert_eq!(named(message, &columns, Mapping::Id), expected);
    }

    #[test]
    fn numbers_win_over_names_where_the_table_goes_by_them() {
        let columns = [column("a", "b", 2, leaf()), column("b", "a", 1, leaf())];
        let message = "message s { optional int32 a = 1; optional int32 b = 2; }";
        assert_eq!(named(message, &columns, Mapping::Id), "message s { OPTIONAL INT32 b [1]; OPTIONAL INT32 a [2]; }");
    }
}
