//! Columns whose rows are checked before they are delivered: those in which a null is an error, and those of 64-bit
//! integers.

use std::sync::Arc;

use arrow::array::ArrayRef;

use super::Columns;
use super::leaf::Kind;
use super::output::{Form, Held, NullPlan};
use super::parts::Data;
use super::prepare;
use crate::schema::DType;

/// One column to check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Watched {
    member: usize,
    /// Its name.
    pub(crate) name: Arc<str>,
    /// The part of it that is read: a dotted path.
    pub(crate) path: String,
    /// The leaf of that path that footers report on.
    pub(crate) told: String,
    /// Set if its numbers are signed.
    pub(crate) signed: bool,
}

impl Columns {
    fn watched(&self, member: usize) -> Watched {
        let of = &self.members[member];
        let signed = of.leaf.kind != Kind::Number(DType::Uint64);
        let path = of.leaf.read.clone();
        // Of the members of Spark's vectors, one is never null.
        let told = if matches!(of.leaf.kind, Kind::Vector(_)) { format!("{path}.type") } else { path.clone() };
        Watched { member, name: Arc::clone(&of.name), path, told, signed }
    }

    /// The columns in which a null is an error. Lists of varying length are not among them: footers count empty ones as
    /// nulls.
    pub(crate) fn strict(&self) -> Vec<Watched> {
        let strict = |(_, member): &(usize, &super::Member)| member.nulls == NullPlan::Error && member.leaf.levels == 0;
        self.members.iter().enumerate().filter(strict).map(|(at, _)| self.watched(at)).collect()
    }

    /// The columns delivered as the 64-bit integers that they are stored as.
    pub(crate) fn long(&self) -> Vec<Watched> {
        let outputs = self.outputs.iter().filter(|output| {
            matches!(output.form, Form::Fixed | Form::Ragged(..) | Form::Padded(_))
                && matches!(output.dtype, DType::Int64 | DType::Uint64)
        });
        let members = outputs.flat_map(|output| &output.members).copied();
        let as_stored = |at: &usize| {
            let member = &self.members[*at];
            matches!(member.held, Held::Values) && member.leaf.kind == Kind::Number(member.dtype)
        };
        members.filter(as_stored).map(|at| self.watched(at)).collect()
    }

    /// The first row of the root column `root` that is null in `column`. Its values are not touched.
    pub(crate) fn null_in(&self, column: &Watched, root: &ArrayRef) -> Option<usize> {
        prepare::first_null(&self.members[column.member], root).ok().flatten()
    }

    /// The first integer of the root column `root` that does not fit in 32 bits, and its row, if it is not in a list.
    pub(crate) fn wide_in(&self, column: &Watched, root: &ArrayRef) -> Option<(i128, Option<usize>)> {
        let member = &self.members[column.member];
        let part = prepare::part(member, root, None).ok()?;
        let (bytes, each) = match &part.data {
            Data::Fixed { bytes, width, .. } => (bytes, Some(width / member.dtype.size())),
            Data::Lists { values, .. } => (values, None),
            _ => return None,
        };
        let words = bytes.chunks_exact(8).map(|word| i64::from_le_bytes(word.try_into().unwrap_or_default()));
        let found = words.enumerate().find_map(|(at, word)| {
            let (value, fits) = if column.signed {
                (i128::from(word), i32::try_from(word).is_ok())
            } else {
                let word = word.cast_unsigned();
                (i128::from(word), u32::try_from(word).is_ok())
            };
            (!fits).then_some((value, at))
        });
        found.map(|(value, at)| (value, each.and_then(|each| at.checked_div(each))))
    }
}
