//! Repetition and definition levels, checked against each other and against those of neighbouring leaves.
//!
//! Both kinds of levels tell which lists are empty, and every leaf of a struct repeats what the others tell about it.
//! The Arrow reader trusts the first that it meets; where they disagree, values move into other rows.

use std::sync::{Mutex, PoisonError};

use parquet::basic::Repetition;
use parquet::errors::{ParquetError, Result};
use parquet::schema::types::{SchemaDescriptor, Type};

/// The constraints on the levels of a leaf.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lineage {
    /// For every repetition level from 1, the definition level from which there is an item.
    items: Vec<u8>,
    /// Maximum levels of the last group shared with the leaf before, and with the leaf after.
    shared: [Option<[u8; 2]>; 2],
}

impl Lineage {
    /// The lineage of each of `leaves`, ascending numbers of leaves of one root column.
    pub(crate) fn of(schema: &SchemaDescriptor, leaves: &[usize]) -> Vec<Self> {
        let Some(first) = leaves.first() else { return Vec::new() };
        let root = schema.get_column_root_idx(*first);
        let begin = (0..*first).rev().take_while(|leaf| schema.get_column_root_idx(*leaf) == root).count();
        let (mut trails, mut next) = (Vec::with_capacity(leaves.len()), first - begin);
        descend(schema.get_column_root(*first), &mut Vec::new(), &mut next, leaves, &mut trails);
        let shared = |a: &[&Type], b: &[&Type]| {
            let common = a.iter().zip(b).take_while(|(a, b)| std::ptr::eq(**a, **b)).count();
            levels(a.get(..common)?).filter(|levels| *levels != [0, 0])
        };
        let between: Vec<_> = trails.windows(2).map(|pair| shared(&pair[0], &pair[1])).collect();
        let lineage = |(at, trail): (usize, &Vec<&Type>)| {
            let ends = (1..=trail.len()).filter(|end| repetition(trail[end - 1]) == Repetition::REPEATED);
            let items = ends.map(|end| levels(&trail[..end]).map(|[_, definition]| definition));
            let before = at.checked_sub(1).and_then(|at| between.get(at).copied().flatten());
            // Levels beyond a byte are deeper than any schema that is read.
            Self {
                items: items.collect::<Option<_>>().unwrap_or_default(),
                shared: [before, between.get(at).copied().flatten()],
            }
        };
        trails.iter().enumerate().map(lineage).collect()
    }

    /// Returns true if there is anything to check.
    pub(super) fn matters(&self) -> bool {
        !self.items.is_empty() || self.shared.iter().any(Option::is_some)
    }

    /// Returns true if every value that continues a list is in one, as is the value before it; `last` is the definition
    /// level of the value before the first.
    pub(super) fn holds(&self, mut last: Option<u8>, repetitions: &[u8], definitions: &[u8]) -> bool {
        repetitions.iter().zip(definitions).all(|(repetition, definition)| {
            let before = last.replace(*definition);
            let Some(list) = repetition.checked_sub(1) else { return true };
            let item = self.items.get(usize::from(list));
            item.is_some_and(|item| definition >= item && before.is_none_or(|before| before >= *item))
        })
    }
}

/// Collects the paths to `leaves` from the root column down.
fn descend<'a>(
    node: &'a Type,
    trail: &mut Vec<&'a Type>,
    next: &mut usize,
    leaves: &[usize],
    trails: &mut Vec<Vec<&'a Type>>,
) {
    trail.push(node);
    if node.is_primitive() {
        if leaves.binary_search(next).is_ok() {
            trails.push(trail.clone());
        }
        *next += 1;
    } else {
        node.get_fields().iter().for_each(|field| descend(field, trail, next, leaves, trails));
    }
    trail.pop();
}

fn repetition(node: &Type) -> Repetition {
    let info = node.get_basic_info();
    if info.has_repetition() { info.repetition() } else { Repetition::REQUIRED }
}

/// Maximum repetition and definition level at the end of the trail; `None` beyond a byte.
fn levels(trail: &[&Type]) -> Option<[u8; 2]> {
    let count = |counts: fn(Repetition) -> bool| trail.iter().filter(|node| counts(repetition(node))).count();
    let repeated = count(|repetition| repetition == Repetition::REPEATED);
    let defined = count(|repetition| repetition != Repetition::REQUIRED);
    Some([u8::try_from(repeated).ok()?, u8::try_from(defined).ok()?])
}

/// A comparison of what the leaves of one column tell about the groups they share.
#[derive(Debug)]
pub(crate) struct Tally(Mutex<Vec<Told>>);

/// One leaf's account of what it shares with the leaf before and the leaf after.
#[derive(Debug, Clone, Default)]
struct Told {
    entries: [u64; 2],
    sums: [u32; 2],
    /// Set if some of its pages were not checked.
    partly: bool,
}

impl Tally {
    /// A tally of `leaves` leaves.
    pub(crate) fn new(leaves: usize) -> Self {
        Self(Mutex::new(vec![Told::default(); leaves]))
    }

    /// Records what a page of leaf number `at` tells, or that a page is unknown.
    pub(super) fn note(&self, at: usize, lineage: &Lineage, levels: Option<[&[u8]; 2]>) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(told) = told.get_mut(at) else { return };
        let Some([repetitions, definitions]) = levels else {
            told.partly = true;
            return;
        };
        let mut entries = Vec::new();
        for (side, shared) in lineage.shared.iter().enumerate() {
            let Some([most, defined]) = shared else { continue };
            entries.clear();
            for (repetition, definition) in repetitions.iter().zip(definitions) {
                if repetition <= most {
                    entries.extend([*repetition, *definition.min(defined)]);
                }
            }
            let mut sum = crc32fast::Hasher::new_with_initial(told.sums[side]);
            sum.update(&entries);
            told.sums[side] = sum.finalize();
            told.entries[side] += entries.len() as u64 / 2;
        }
    }

    /// Checks that all leaves that were read as a whole agree.
    ///
    /// # Errors
    /// An error that names the leaves by their order.
    pub(crate) fn agree(&self) -> Result<()> {
        let told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, pair) in told.windows(2).enumerate() {
            let [before, after] = pair else { continue };
            let same = (before.entries[1], before.sums[1]) == (after.entries[0], after.sums[0]);
            if !(same || before.partly || after.partly) {
                let what = "of its leaves disagree on where a struct is null or how long a list is";
                return Err(ParquetError::General(format!("number {at} and {} {what}", at + 1)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parquet::schema::parser::parse_message_type;

    use super::*;

    #[test]
    fn groups_and_lists_are_known_from_the_schema() {
        let message = "message m { required int32 first; optional group l (LIST) { repeated group list {
            optional group element { required int32 a; optional group b { repeated int32 c; } } } } }";
        let schema = SchemaDescriptor::new(Arc::new(parse_message_type(message).unwrap()));
        let found = Lineage::of(&schema, &[1, 2]);
        let [a, c] = found.as_slice() else { panic!("{found:?}") };
        // The list exists from level 1 and has an item from 2, which is not null from 3; `b` exists from 4, and has an
        // item from 5.
        assert_eq!((a.items.as_slice(), a.shared), (&[2][..], [None, Some([1, 3])]));
        assert_eq!((c.items.as_slice(), c.shared), (&[2, 5][..], [Some([1, 3]), None]));
        assert!(!Lineage::of(&schema, &[0])[0].matters());
        assert!(Lineage::of(&schema, &[2])[0].shared == [None, None]);
        // Rows: [{c: [x, y]}, {c: []}], null.
        assert!(c.holds(None, &[0, 2, 1, 0], &[5, 5, 4, 0]));
        assert!(!c.holds(None, &[0, 2, 1, 1], &[5, 5, 4, 0]), "a null goes on with nothing");
        assert!(!c.holds(None, &[0, 2], &[4, 5]), "an empty list has no second item");
        assert!(!c.holds(Some(0), &[1], &[5]), "nor has a null of the page before");
        let tally = Tally::new(2);
        tally.note(0, a, Some([&[0, 1, 0], &[3, 3, 0]]));
        tally.note(1, c, Some([&[0, 2, 1], &[5, 5, 4]]));
        tally.note(1, c, Some([&[0], &[0]]));
        tally.agree().unwrap();
        tally.note(1, c, Some([&[0], &[0]]));
        assert!(tally.agree().is_err(), "a row more");
        tally.note(0, a, None);
        tally.agree().unwrap();
    }
}
