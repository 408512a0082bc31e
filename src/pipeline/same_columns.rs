//! Datasets of a mixture give the same columns: the same batches, made of columns with the same meaning.

use std::sync::Arc;

use crate::codec::{Columns, StoredColumn};
use crate::error::{Error, Result};
use crate::schema::{Field, Schema};

/// Most characters of a column's meaning in errors.
const SHOWN: usize = 200;

/// Checks that batches of the dataset at `urls`, with the columns `other`, are as those of the first dataset.
pub(super) fn fields(first: &Schema, other: &Schema, urls: &[String]) -> Result<()> {
    let pairs = || first.fields().iter().zip(other.fields());
    let unnamed = |field: &Field| Field { classes: None, ..field.clone() };
    if first.fields().len() == other.fields().len() && pairs().all(|(one, two)| unnamed(one) == unnamed(two)) {
        // Those within lists and structs are judged by the stored columns.
        let is_own = |field: &Field| field.dims.len() == 1 && !field.name.contains('.');
        return match pairs().find(|(one, two)| is_own(one) && one.classes != two.classes) {
            Some((one, two)) => Err(other_classes(&one.name, one.classes.as_deref(), two.classes.as_deref(), urls)),
            None => Ok(()),
        };
    }
    Err(Error::Mismatch {
        what: format!("columns of the mixture's datasets, at {}", urls.join(", ")),
        expected: first.to_string(),
        found: other.to_string(),
        hint: "select and cast columns so that all datasets give the same".to_owned(),
    })
}

/// Checks that `other` makes each column of batches of the same stored columns as `first`, in the same units and classes: neither is seen
/// in a pack, nor after a cast to floats.
pub(super) fn stored_columns(first: &Columns, other: &Columns, urls: &[String]) -> Result<()> {
    for ((name, ones), (_, twos)) in first.stored_columns().zip(other.stored_columns()) {
        let named = |columns: &[StoredColumn<'_>]| columns.iter().map(|one| one.column).collect::<Vec<_>>().join(", ");
        if named(&ones) != named(&twos) {
            return Err(Error::Mismatch {
                what: format!("columns of {name:?} in the mixture's datasets, at {}", urls.join(", ")),
                expected: shown(named(&ones)),
                found: shown(named(&twos)),
                hint: "name the columns of the pack one by one, in one order".to_owned(),
            });
        }
        for (one, two) in ones.iter().zip(&twos) {
            if one.unit != two.unit {
                let unit = |column: &StoredColumn<'_>| column.unit.unwrap_or("none").to_owned();
                return Err(Error::Mismatch {
                    what: format!("unit of column {:?} of the mixture's datasets, at {}", one.column, urls.join(", ")),
                    expected: unit(one),
                    found: unit(two),
                    hint: "equal numbers would mean other times; write the column of one dataset again in the other's unit"
                        .to_owned(),
                });
            }
            if contradict(one.classes, two.classes) {
                return Err(other_classes(one.column, one.classes, two.classes, urls));
            }
        }
    }
    Ok(())
}

/// Returns true if one number means two classes: names may be missing, and may continue the others.
fn contradict(one: Option<&[Arc<str>]>, two: Option<&[Arc<str>]>) -> bool {
    one.zip(two).is_some_and(|(one, two)| !one.starts_with(two) && !two.starts_with(one))
}

fn other_classes(column: &str, one: Option<&[Arc<str>]>, two: Option<&[Arc<str>]>, urls: &[String]) -> Error {
    let names = |classes: Option<&[Arc<str>]>| match classes {
        Some(names) => shown(names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ")),
        None => "none".to_owned(),
    };
    Error::Mismatch {
        what: format!("class names of column {column:?} of the mixture's datasets, at {}", urls.join(", ")),
        expected: names(one),
        found: names(two),
        hint: "one number may mean two classes; give the labels of all datasets the same names".to_owned(),
    }
}

fn shown(text: String) -> String {
    text.chars().take(SHOWN).collect()
}
