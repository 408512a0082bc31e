//! The stored index: which row groups have a value, or have any.

use serde::{Deserialize, Serialize};

use super::arena::{Cell, Id, Object};
use super::globals::Global;
use super::numpy::Plain;
use super::pickle::{self, ELEMENT, Pickle};
use crate::dataset::Limits;
use crate::error::{Place, Result};

/// One index over the row groups of a dataset. Row groups count over all files, which are sorted by path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowGroupIndex {
    /// The index's name.
    pub name: String,
    /// The columns it is over; Petastorm's own have one.
    pub columns: Vec<String>,
    /// Its kind and content.
    pub kind: IndexKind,
}

impl RowGroupIndex {
    /// All row groups that it names, some several times.
    pub(in crate::dataset) fn row_groups(&self) -> impl Iterator<Item = u32> {
        let (values, not_null) = match &self.kind {
            IndexKind::SingleField { values } => (values.as_slice(), &[][..]),
            IndexKind::FieldNotNull { row_groups } => (&[][..], row_groups.as_slice()),
        };
        values.iter().flat_map(|(_, row_groups)| row_groups).chain(not_null).copied()
    }
}

/// Kind and content of an index.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum IndexKind {
    /// For each value the row groups that have it.
    SingleField {
        /// Values in the order they are stored in, with row groups in ascending order.
        values: Vec<(IndexValue, Vec<u32>)>,
    },
    /// The row groups that have any value but null.
    FieldNotNull {
        /// In ascending order.
        row_groups: Vec<u32>,
    },
}

/// An indexed value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IndexValue {
    /// None.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// An integer beyond those of `Int`.
    Uint(u64),
    /// A number; as JSON, a text if JSON has no such number: `NaN`, `inf`, `-inf`.
    Float(#[serde(with = "float")] f64),
    /// A text.
    Text(String),
    /// Bytes that are not a text.
    Bytes(Vec<u8>),
}

mod float {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Form {
        Number(f64),
        Text(String),
    }

    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        if value.is_finite() { serializer.serialize_f64(*value) } else { serializer.collect_str(value) }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        match Form::deserialize(deserializer)? {
            Form::Number(value) => Ok(value),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// The indexes in the pickle `bytes`, the value of [`ROW_GROUP_INDEX_KEY`](super::ROW_GROUP_INDEX_KEY), in stored order.
///
/// # Errors
/// [`Error::Corrupt`](crate::Error::Corrupt), [`Error::Unsupported`](crate::Error::Unsupported) and
/// [`Error::Limit`](crate::Error::Limit) with the byte of the pickle or the name of the index.
pub fn indexes(bytes: &[u8], limits: &Limits, place: &Place) -> Result<Vec<RowGroupIndex>> {
    let mut pickle = pickle::read(bytes, "the row-group index", limits, place)?;
    let Some(pairs) = pickle.arena.pairs(pickle.root) else {
        let what = pickle.arena.describe(pickle.root);
        return Err(pickle.budget.corrupt(format_args!("it is {what}, not a dict of indexes")));
    };
    let pairs: Vec<_> = pairs.collect();
    let mut found = Vec::new();
    for (name, indexer) in pairs {
        pickle.budget.charge(128)?;
        let name = owned(&mut pickle, name, "an index's name")?;
        found.push(index(&mut pickle, name, indexer)?);
    }
    Ok(found)
}

fn index(pickle: &mut Pickle<'_>, name: String, indexer: Id) -> Result<RowGroupIndex> {
    let short: String = name.chars().take(60).collect();
    let damaged = |pickle: &Pickle<'_>, what: &str| pickle.budget.corrupt(format_args!("index {short:?}: {what}"));
    let object = pickle.arena.object(indexer).ok_or_else(|| damaged(pickle, "it is not an indexer"))?;
    let attribute = |pickle: &mut Pickle<'_>, object: Object, name: &str| {
        pickle.attribute(object, name)?.ok_or_else(|| damaged(pickle, &format!("it has no {name}")))
    };
    let column = attribute(pickle, object, "_column_name")?;
    let data = attribute(pickle, object, "_index_data")?;
    let columns = vec![owned(pickle, column, "a column's name")?];
    let kind = match object.class {
        Global::SingleFieldIndexer => {
            let pairs = pickle.arena.pairs(data).ok_or_else(|| damaged(pickle, "its data is not a dict"))?;
            let pairs: Vec<_> = pairs.collect();
            let mut values = Vec::new();
            for (key, row_groups) in pairs {
                pickle.budget.charge(64)?;
                let value = match pickle.plain(key)? {
                    Some(Plain::Null) => IndexValue::Null,
                    Some(Plain::Bool(value)) => IndexValue::Bool(value),
                    Some(Plain::Int(value)) => IndexValue::Int(value),
                    Some(Plain::Uint(value)) => IndexValue::Uint(value),
                    Some(Plain::Float(value)) => IndexValue::Float(value),
                    Some(Plain::Text(value)) => IndexValue::Text(value),
                    Some(Plain::Bytes(value)) => IndexValue::Bytes(value),
                    None => {
                        return Err(damaged(pickle, &format!("{} is not a value", pickle.arena.describe(key))));
                    }
                };
                values.push((value, ordinals(pickle, row_groups, &short)?));
            }
            IndexKind::SingleField { values }
        }
        Global::FieldNotNullIndexer => IndexKind::FieldNotNull { row_groups: ordinals(pickle, data, &short)? },
        _ => return Err(damaged(pickle, &format!("{} is not an indexer", pickle.arena.describe(indexer)))),
    };
    Ok(RowGroupIndex { name, columns, kind })
}

/// A set of row groups, sorted.
fn ordinals(pickle: &mut Pickle<'_>, set: Id, index: &str) -> Result<Vec<u32>> {
    let elements = match pickle.arena.cell(set) {
        Cell::Set(_) | Cell::List(_) => pickle.arena.elements(set),
        _ => None,
    };
    let Some(elements) = elements else {
        let what = pickle.arena.describe(set);
        return Err(pickle.budget.corrupt(format_args!("index {index:?}: {what} is not a set of row groups")));
    };
    // The same set may be named again and again.
    pickle.budget.charge(elements.len() as u64 * ELEMENT)?;
    let elements = elements.to_vec();
    let mut row_groups = Vec::with_capacity(elements.len());
    for id in elements {
        let ordinal = match pickle.plain(id)? {
            Some(Plain::Int(ordinal)) => u32::try_from(ordinal).ok(),
            _ => None,
        };
        let what = || format!("index {index:?}: {} is not the number of a row group", pickle.arena.describe(id));
        row_groups.push(ordinal.ok_or_else(|| pickle.budget.corrupt(what()))?);
    }
    row_groups.sort_unstable();
    row_groups.dedup();
    Ok(row_groups)
}

fn owned(pickle: &mut Pickle<'_>, id: Id, what: &str) -> Result<String> {
    pickle.text(id)?.ok_or_else(|| pickle.budget.corrupt(format_args!("{what} is {}", pickle.arena.describe(id))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn one_state_of_many_indexes_is_looked_through_from_the_budget() {
        // A dict of 1000 pairs, and 300 indexes that all have it as their state.
        let mut input = b"\x80\x02}(".to_vec();
        for _ in 0..1000 {
            input.extend(b"K\x01K\x01");
        }
        input.extend(b"X\x0c\0\0\0_column_nameX\x01\0\0\0xX\x0b\0\0\0_index_data");
        input.extend(b"c__builtin__\nset\n]\x85Ruq\x000}(");
        for number in 0..300 {
            input.extend(b"X\x03\0\0\0");
            input.extend(format!("{number:03}").as_bytes());
            input.extend(b"cpetastorm.etl.rowgroup_indexers\nFieldNotNullIndexer\n)\x81h\0b");
        }
        input.extend(b"u.");
        let read = |bytes| {
            let limits = Limits { max_pickle_bytes: bytes, ..Limits::default() };
            indexes(&input, &limits, &Place::file("x"))
        };
        let error = read(400_000).unwrap_err();
        assert!(matches!(error, Error::Limit { asked, .. } if asked >= 400_000), "{error}");
        assert_eq!(read(64 << 20).unwrap().len(), 300);
    }
}
