//! Pruning: row groups by their statistics, pages by the page index, files by their partition.
//!
//! Statistics only say what may be there. For each part of the filter three things are tracked: may it be true, may it be
//! false, may it be unknown, for any row. Whatever is missing, contradictory or written in an order that is not the
//! column's counts as "may be". So a row that the filter selects is never skipped.

use arrow::datatypes::DataType;
use parquet::arrow::arrow_reader::{RowSelection, RowSelector};
use parquet::file::metadata::ParquetMetaData;

use super::bind::{Bound, Column, Match, Part, Test};
use super::digits::Place;
use super::facts::{Extent, Facts};
use super::literal::{Point, Scalar, Spot};
use super::node::Op;
use super::statistics::Chunk;

/// The values of partition columns: `None` for any other column, `Some(None)` for a null partition, else the text.
pub(crate) type Partitions<'a> = dyn Fn(&str) -> Option<Option<&'a str>> + 'a;

/// Results that a part of the filter may have for some row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct May {
    be_true: bool,
    be_false: bool,
    be_unknown: bool,
}

impl Bound {
    /// Returns true if row group `row_group` can have a row that the filter selects, judged by its statistics and by the partition
    /// its file lies in. `true` where nothing is known, also if there is no such row group.
    ///
    /// `partitions` answers for the columns whose values come from the file's path, by name; members of structs are not asked for.
    pub fn may_match(&self, metadata: &ParquetMetaData, row_group: usize, partitions: &Partitions<'_>) -> bool {
        let facts: Vec<_> = self
            .columns
            .iter()
            .map(|column| {
                let value = if let [name] = column.path.as_slice() { partitions(name) } else { None };
                match value {
                    Some(value) => Known::Value(value.map(|text| Point::of_partition(text, &column.kind))),
                    None => Known::Facts(Chunk::find(metadata, row_group, &column.path).map(|c| c.facts(&column.kind))),
                }
            })
            .collect();
        may(&self.root, &|column| facts.get(column).unwrap_or(&Known::Facts(None))).be_true
    }

    /// Tests whether a file may have a row that the filter selects. `facts` takes the number of a column in [`tested`](Self::tested) and
    /// returns facts from the metadata of the table, all of which hold; none if nothing is known.
    pub(in crate::dataset) fn may_match_file(&self, facts: &mut dyn FnMut(usize) -> Vec<Facts>) -> bool {
        let facts: Vec<_> = (0..self.columns.len()).map(|column| Known::Every(facts(column))).collect();
        may(&self.root, &|column| facts.get(column).unwrap_or(&Known::Facts(None))).be_true
    }

    /// The columns of the filter: path of names, type of values, and whether the values are items of lists.
    pub(in crate::dataset) fn tested(&self) -> impl Iterator<Item = (&[String], &DataType, bool)> {
        self.columns.iter().map(|column| (column.path.as_slice(), &column.kind, column.list))
    }

    /// The rows of row group `row_group` in pages that may match, judged by the page index. `None` if the index is missing
    /// or excludes nothing; a selection that selects nothing means that the row group has no row to read.
    pub fn pages(&self, metadata: &ParquetMetaData, row_group: usize) -> Option<RowSelection> {
        let columns: Vec<_> = self.columns.iter().map(|column| Paged::find(metadata, row_group, column)).collect();
        if !columns.iter().any(|column| column.indexed) {
            return None;
        }
        let rows = u64::try_from(metadata.row_groups().get(row_group)?.num_rows()).ok()?;
        // Between two of these rows no column changes its page.
        let mut starts: Vec<u64> = columns.iter().flat_map(|column| column.starts.iter().copied()).collect();
        starts.push(0);
        starts.sort_unstable();
        starts.dedup();
        let ends = starts.iter().copied().skip(1).chain([rows]);
        let mut selectors: Vec<RowSelector> = Vec::new();
        for (start, end) in starts.iter().copied().zip(ends) {
            let count = usize::try_from(end.checked_sub(start)?).ok()?;
            let skip =
                !may(&self.root, &|column| columns.get(column).map_or(&Known::Facts(None), |c| c.at(start))).be_true;
            match selectors.last_mut() {
                Some(last) if last.skip == skip => last.row_count += count,
                _ if count == 0 => {}
                _ => selectors.push(RowSelector { row_count: count, skip }),
            }
        }
        selectors.iter().any(|selector| selector.skip).then(|| selectors.into())
    }
}

/// Facts about a column in some slice of rows.
#[derive(Debug)]
enum Known {
    /// Statistics, if there are any.
    Facts(Option<Facts>),
    /// Facts that all hold.
    Every(Vec<Facts>),
    /// One value for all rows: `None` is null, `Some(None)` a value that could not be read.
    Value(Option<Option<Point>>),
}

/// A column's pages within a row group.
struct Paged {
    /// The first row of each page; one row group-wide entry if there is no index.
    starts: Vec<u64>,
    known: Vec<Known>,
    indexed: bool,
}

impl Paged {
    fn find(metadata: &ParquetMetaData, row_group: usize, column: &Column) -> Self {
        let Some(chunk) = Chunk::find(metadata, row_group, &column.path) else {
            return Self { starts: vec![0], known: vec![Known::Facts(None)], indexed: false };
        };
        match chunk.pages(&column.kind) {
            Some(pages) => {
                let (starts, known) =
                    pages.into_iter().map(|(start, facts)| (start, Known::Facts(Some(facts)))).unzip();
                Self { starts, known, indexed: true }
            }
            None => {
                Self { starts: vec![0], known: vec![Known::Facts(Some(chunk.facts(&column.kind)))], indexed: false }
            }
        }
    }

    /// Facts about the page with row `row`.
    fn at(&self, row: u64) -> &Known {
        let page = self.starts.partition_point(|start| *start <= row).saturating_sub(1);
        self.known.get(page).unwrap_or(&Known::Facts(None))
    }
}

fn may<'a>(part: &Part, known: &impl Fn(usize) -> &'a Known) -> May {
    match part {
        Part::Test { column, test } => match known(*column) {
            Known::Facts(facts) => test.may(facts.as_ref()),
            Known::Every(every) => May::every(every.iter().map(|facts| test.may(Some(facts)))),
            Known::Value(None) => May { be_true: false, be_false: false, be_unknown: true },
            Known::Value(Some(point)) => test.decides(point.as_ref()),
        },
        // Statistics of items say little of lists.
        Part::AnyItem { .. } => May::ANYTHING,
        Part::IsNull { column } => match known(*column) {
            Known::Facts(None) => May::UNDECIDED,
            Known::Facts(Some(facts)) => May::null(facts),
            Known::Every(every) if every.is_empty() => May::UNDECIDED,
            Known::Every(every) => May::every(every.iter().map(May::null)),
            Known::Value(value) => May { be_true: value.is_none(), be_false: value.is_some(), be_unknown: false },
        },
        // The rows that make a part true are unknown, so parts are combined as if they were independent.
        Part::All(parts) => parts.iter().map(|part| may(part, known)).fold(May::only(true), |all, part| May {
            be_true: all.be_true && part.be_true,
            be_false: all.be_false || part.be_false,
            be_unknown: all.be_unknown || part.be_unknown,
        }),
        Part::Any(parts) => parts.iter().map(|part| may(part, known)).fold(May::only(false), |any, part| May {
            be_true: any.be_true || part.be_true,
            be_false: any.be_false && part.be_false,
            be_unknown: any.be_unknown || part.be_unknown,
        }),
        Part::Not(part) => {
            let part = may(part, known);
            May { be_true: part.be_false, be_false: part.be_true, be_unknown: part.be_unknown }
        }
    }
}

impl May {
    const ANYTHING: Self = Self { be_true: true, be_false: true, be_unknown: true };

    /// For tests that are never unknown.
    const UNDECIDED: Self = Self { be_true: true, be_false: true, be_unknown: false };

    /// The test `is null`.
    fn null(facts: &Facts) -> Self {
        Self { be_true: facts.nulls != Some(0), be_false: facts.nulls != Some(facts.rows), be_unknown: false }
    }

    /// Outcomes that all of them allow; any outcome where they contradict each other, since any of them may be wrong.
    fn every(all: impl Iterator<Item = Self>) -> Self {
        let both = all.fold(Self::ANYTHING, |both, one| Self {
            be_true: both.be_true && one.be_true,
            be_false: both.be_false && one.be_false,
            be_unknown: both.be_unknown && one.be_unknown,
        });
        if both.be_true || both.be_false || both.be_unknown { both } else { Self::ANYTHING }
    }

    fn only(value: bool) -> Self {
        Self { be_true: value, be_false: !value, be_unknown: false }
    }
}

impl Test {
    fn may(&self, facts: Option<&Facts>) -> May {
        let Some(facts) = facts else { return May::ANYTHING };
        if facts.nulls == Some(facts.rows) {
            return May { be_true: false, be_false: false, be_unknown: true };
        }
        let (mut be_true, mut be_false) = match (self, &facts.extent) {
            (Self::Constant(value), _) => (*value, !*value),
            (Self::Whole(test), Some(Extent::Whole(low, high))) => test.within(low, high),
            (Self::Float(test), Some(Extent::Float(low, high))) => test.within(low, high),
            (Self::Bytes(test), Some(Extent::Bytes(low, high))) => test.within(low, high),
            (Self::Whole(test), Some(Extent::Bucket(bucket))) => {
                (test.any(|value| bucket.holds(&Scalar::Whole(*value)) != Some(false)), true)
            }
            (Self::Bytes(test), Some(Extent::Bucket(bucket))) => {
                (test.any(|value| bucket.holds(&Scalar::Bytes(value.clone())) != Some(false)), true)
            }
            _ => (true, true),
        };
        // Bounds leave NaN out, and NaN passes `!=` alone.
        if let Self::Float(test) = self
            && facts.nans != Some(0)
        {
            let passes = matches!(test, Match::Compare(Op::Ne, _));
            be_true |= passes;
            be_false |= !passes;
        }
        May { be_true, be_false, be_unknown: facts.nulls != Some(0) }
    }

    /// The test of one known value.
    fn decides(&self, point: Option<&Point>) -> May {
        match (self, point) {
            (Self::Constant(value), Some(_)) => May::only(*value),
            (Self::Whole(test), Some(Point::Whole(Place::At(value)))) => May::only(test.holds(value)),
            (Self::Float(test), Some(Point::Float(Spot::At(value)))) => May::only(test.holds(value)),
            (Self::Bytes(test), Some(Point::Bytes(value))) => May::only(test.holds(value)),
            _ => May::ANYTHING,
        }
    }
}

impl<V: PartialOrd> Match<V> {
    /// Tests whether a value for which `is` holds may pass. Only equality can exclude it.
    fn any(&self, is: impl FnMut(&V) -> bool) -> bool {
        match self {
            Self::Compare(Op::Eq, value) => std::iter::once(value).any(is),
            Self::In(values) => values.iter().any(is),
            Self::Compare(..) => true,
        }
    }

    /// Returns whether a value from `low` to `high` may pass, and whether one may fail.
    fn within(&self, low: &V, high: &V) -> (bool, bool) {
        match self {
            Self::Compare(Op::Eq, v) => (low <= v && v <= high, !(low == v && v == high)),
            Self::Compare(Op::Ne, v) => (!(low == v && v == high), low <= v && v <= high),
            Self::Compare(Op::Lt, v) => (low < v, high >= v),
            Self::Compare(Op::Le, v) => (low <= v, high > v),
            Self::Compare(Op::Gt, v) => (high > v, low <= v),
            Self::Compare(Op::Ge, v) => (high >= v, low < v),
            Self::In(members) => {
                let first = members.partition_point(|member| member < low);
                let passes = members.get(first).is_some_and(|member| member <= high);
                (passes, !(passes && low == high))
            }
        }
    }
}
