//! A column of a table, and what data files know it by.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Fields};

/// A column, or a member of a struct.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::dataset) struct Column {
    pub(in crate::dataset) name: String,
    /// Name in data files and in the log.
    pub(in crate::dataset) physical: String,
    /// Its number in data files, where those are found by number.
    pub(in crate::dataset) id: Option<i32>,
    pub(in crate::dataset) nullable: bool,
    pub(in crate::dataset) kind: Kind,
}

/// A type.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::dataset) enum Kind {
    Leaf(DataType),
    Struct(Vec<Column>),
    /// Items, and whether they may be null.
    List(Box<Kind>, bool),
    /// Keys, values, and whether these may be null.
    Map(Box<Kind>, Box<Kind>, bool),
}

impl Column {
    /// The field as it is delivered.
    pub(in crate::dataset) fn field(&self) -> Field {
        Field::new(&self.name, self.kind.data_type(), self.nullable)
    }

    /// Returns true if data files know it, or a column in it, by another name.
    pub(super) fn is_renamed(&self) -> bool {
        self.name != self.physical || self.kind.is_renamed()
    }
}

impl Kind {
    /// Returns true if data files know a column in it by another name.
    fn is_renamed(&self) -> bool {
        match self {
            Self::Leaf(_) => false,
            Self::Struct(members) => members.iter().any(Column::is_renamed),
            Self::List(item, _) => item.is_renamed(),
            Self::Map(key, value, _) => key.is_renamed() || value.is_renamed(),
        }
    }

    /// The type in which the column is read: strings and bytes as views.
    pub(in crate::dataset) fn data_type(&self) -> DataType {
        match self {
            Self::Leaf(leaf) => leaf.clone(),
            Self::Struct(members) => DataType::Struct(members.iter().map(Column::field).collect()),
            Self::List(item, nullable) => DataType::List(Arc::new(Field::new("element", item.data_type(), *nullable))),
            Self::Map(key, value, nullable) => {
                let entries = Fields::from(vec![
                    Field::new("key", key.data_type(), false),
                    Field::new("value", value.data_type(), *nullable),
                ]);
                DataType::Map(Arc::new(Field::new("key_value", DataType::Struct(entries), false)), false)
            }
        }
    }
}
