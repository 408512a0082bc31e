//! The row groups that are read at all: by number, or by the indexes that Petastorm stored.

use std::collections::{BTreeSet, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::petastorm::{IndexKind, IndexValue, RowGroupIndex};
use crate::error::{Error, Result};

/// A choice of row groups, which are numbered over the files sorted by path.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    deny_unknown_fields,
    expecting = "no selection; write {\"row_groups\": [0, 3]}, {\"index\": NAME, \"values\": [...]}, {\"any\": [...]} or {\"all\": [...]}"
)]
pub enum Selector {
    /// These row groups.
    RowGroups {
        /// Their numbers.
        row_groups: Vec<u32>,
    },
    /// Those in which a stored index has any of `values`; of an index of non-null fields, all that it has.
    Index {
        /// The index's name.
        index: String,
        /// Values of the indexed column.
        #[serde(default)]
        values: Vec<Value>,
    },
    /// Those that any of these selects.
    Any {
        /// One or more.
        any: Vec<Self>,
    },
    /// Those that all of these select.
    All {
        /// One or more.
        all: Vec<Self>,
    },
}

impl Selector {
    /// The numbers of the row groups selected, out of `count`.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an index that is not there, with those that are; [`Error::Config`] for a row group beyond the last,
    /// and for an index of values that is asked for none; [`Error::Mismatch`] for an index that knows row groups beyond the last.
    pub(super) fn row_groups(&self, indexes: &[RowGroupIndex], count: u32) -> Result<BTreeSet<u32>> {
        match self {
            Self::RowGroups { row_groups } => match row_groups.iter().find(|group| **group >= count) {
                Some(group) => Err(Error::config("selector", format!("row group {group} of {count}"))),
                None => Ok(row_groups.iter().copied().collect()),
            },
            Self::Index { index, values } => {
                let Some(found) = indexes.iter().find(|found| found.name == *index) else {
                    let names: Vec<&str> = indexes.iter().map(|index| index.name.as_str()).collect();
                    let hint = match names[..] {
                        [] => "the dataset has no row-group indexes".to_owned(),
                        _ => format!("the indexes are {}", names.join(", ")),
                    };
                    return Err(Error::NotFound { what: format!("row-group index {index:?}"), hint });
                };
                if let Some(beyond) = found.row_groups().find(|group| *group >= count) {
                    return Err(Error::Mismatch {
                        what: format!("row-group index {index:?}, which was made when the dataset had other files"),
                        expected: format!("{count} row groups"),
                        found: format!("row group {beyond}"),
                        hint: "build it anew, for example with build_rowgroup_index".to_owned(),
                    });
                }
                match &found.kind {
                    IndexKind::FieldNotNull { row_groups } => Ok(row_groups.iter().copied().collect()),
                    IndexKind::SingleField { .. } if values.is_empty() => {
                        Err(Error::config("selector", format!("index {index:?} is one of values; give some")))
                    }
                    IndexKind::SingleField { values: known } => {
                        let wanted = Wanted::new(values);
                        let found = known.iter().filter(|(value, _)| wanted.has(value));
                        Ok(found.flat_map(|(_, row_groups)| row_groups.iter().copied()).collect())
                    }
                }
            }
            Self::Any { any } => any.iter().try_fold(BTreeSet::new(), |mut found, selector| {
                found.append(&mut selector.row_groups(indexes, count)?);
                Ok(found)
            }),
            Self::All { all } => {
                let mut sets = all.iter().map(|selector| selector.row_groups(indexes, count));
                let first = sets.next().unwrap_or_else(|| Err(Error::config("selector", "all of nothing")))?;
                sets.try_fold(first, |found, next| Ok(&found & &next?))
            }
        }
    }

    /// Returns true if any part of it asks an index.
    pub(super) fn asks_indexes(&self) -> bool {
        match self {
            Self::RowGroups { .. } => false,
            Self::Index { .. } => true,
            Self::Any { any: of } | Self::All { all: of } => of.iter().any(Self::asks_indexes),
        }
    }
}

/// The values that are asked for, to be found at once: there may be as many as the index has.
#[derive(Debug, Default)]
struct Wanted<'a> {
    null: bool,
    bools: HashSet<bool>,
    /// Numbers without a fraction, `7.0` too.
    whole: HashSet<i128>,
    /// Their bits.
    floats: HashSet<u64>,
    texts: HashSet<&'a str>,
}

impl<'a> Wanted<'a> {
    fn new(values: &'a [Value]) -> Self {
        Self {
            null: values.iter().any(Value::is_null),
            bools: values.iter().filter_map(Value::as_bool).collect(),
            whole: values.iter().filter_map(whole).collect(),
            floats: values.iter().filter_map(Value::as_f64).map(bits).collect(),
            texts: values.iter().filter_map(Value::as_str).collect(),
        }
    }

    /// Returns true if an indexed value is one of them.
    fn has(&self, value: &IndexValue) -> bool {
        match value {
            IndexValue::Null => self.null,
            IndexValue::Bool(value) => self.bools.contains(value),
            IndexValue::Int(value) => self.whole.contains(&i128::from(*value)),
            IndexValue::Uint(value) => self.whole.contains(&i128::from(*value)),
            // JSON has none that differs from itself.
            IndexValue::Float(value) => self.floats.contains(&bits(*value)),
            IndexValue::Text(value) => self.texts.contains(value.as_str()),
            IndexValue::Bytes(value) => std::str::from_utf8(value).is_ok_and(|value| self.texts.contains(value)),
        }
    }
}

/// The number that `value` is, if it is one without a fraction. A float beyond 2^127 is equal to no indexed integer.
fn whole(value: &Value) -> Option<i128> {
    let integer = value.as_i64().map(i128::from).or(value.as_u64().map(i128::from));
    integer.or_else(|| value.as_f64().filter(|float| float.fract() == 0.0).map(|float| float as i128))
}

/// The same bits for both zeros.
fn bits(value: f64) -> u64 {
    (value + 0.0).to_bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_combine() {
        let values = vec![
            (IndexValue::Text("a".to_owned()), vec![0, 2]),
            (IndexValue::Int(7), vec![1, 2]),
            (IndexValue::Float(-0.0), vec![3]),
            (IndexValue::Bytes(b"b".to_vec()), vec![1]),
        ];
        let index = RowGroupIndex {
            name: "ix".to_owned(),
            columns: vec!["x".to_owned()],
            kind: IndexKind::SingleField { values },
        };
        let chosen = |json: &str| {
            let selector: Selector = serde_json::from_str(json).unwrap();
            selector.row_groups(std::slice::from_ref(&index), 4).map(|found| found.into_iter().collect::<Vec<_>>())
        };
        assert_eq!(chosen(r#"{"index": "ix", "values": ["a"]}"#).unwrap(), [0, 2]);
        assert_eq!(chosen(r#"{"index": "ix", "values": ["a", 7]}"#).unwrap(), [0, 1, 2]);
        assert_eq!(chosen(r#"{"index": "ix", "values": [7.0]}"#).unwrap(), [1, 2]);
        assert_eq!(chosen(r#"{"index": "ix", "values": [7.5, 1e300]}"#).unwrap(), [0_u32; 0]);
        assert_eq!(chosen(r#"{"index": "ix", "values": [0, "b"]}"#).unwrap(), [1, 3]);
        assert_eq!(chosen(r#"{"index": "ix", "values": [null, true, 8, "c"]}"#).unwrap(), [0_u32; 0]);
        let both = r#"{"all": [{"index": "ix", "values": ["a"]}, {"any": [{"row_groups": [2, 3]}]}]}"#;
        assert_eq!(chosen(both).unwrap(), [2]);
        assert!(chosen(r#"{"row_groups": [4]}"#).is_err());
        assert!(chosen(r#"{"index": "ix"}"#).is_err());
        assert!(chosen(r#"{"index": "iy", "values": [1]}"#).unwrap_err().to_string().contains("ix"));
        for wrong in [r#"{"group": 1}"#, "[0]", "0"] {
            let error = serde_json::from_str::<Selector>(wrong).unwrap_err().to_string();
            assert!(error.starts_with(r#"no selection; write {"row_groups": [0, 3]}"#), "{wrong}: {error}");
        }
    }
}
