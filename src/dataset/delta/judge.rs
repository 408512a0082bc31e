//! The filter as a test of entries of the log: whether a file may have a selected row. It is asked as soon as an entry is read, so that of a
//! file's statistics, of which there may be a million, only the row count is kept.

use arrow::array::ArrayRef;

use super::action::{PartitionValues, Verdict};
use super::statistics::Statistics;
use crate::dataset::table::{Sieve, Tested, constant};

/// See the module.
#[derive(Debug)]
pub(super) struct Judge {
    sieve: Sieve,
    /// Names of the columns whose values are in the entries.
    partitions: Vec<String>,
}

impl Judge {
    pub(super) fn new(sieve: Sieve, partitions: Vec<String>) -> Self {
        Self { sieve, partitions }
    }

    /// The columns that the filter tests.
    pub(super) fn tested(&self) -> impl Iterator<Item = &Tested> {
        self.sieve.tested().map(|(_, tested)| tested)
    }

    /// The verdict on a file with statistics as `json`; `None` without a row count, since rows of later files could not be numbered.
    pub(super) fn by_json(&self, json: &str, values: &PartitionValues) -> Option<Verdict> {
        Some(self.by(Statistics::parse(json, &self.sieve)?, values))
    }

    /// The verdict on a file with statistics in row `row` of `column`, a struct.
    pub(super) fn by_column(&self, column: &ArrayRef, row: usize, values: &PartitionValues) -> Option<Verdict> {
        Some(self.by(Statistics::at(column, row, &self.sieve)?, values))
    }

    fn by(&self, mut statistics: Statistics, values: &PartitionValues) -> Verdict {
        let rows = statistics.rows;
        let keeps = self.sieve.keeps(&mut |at, tested| {
            let known = if self.partitions.contains(&tested.name) {
                // If columns are mapped, the log has their names in files too.
                let text = tested.physical.first().and_then(|name| values.get(name)?.as_deref());
                constant(text.filter(|text| !text.is_empty()), &tested.kind, rows)
            } else {
                statistics.take(at)
            };
            known.into_iter().collect()
        });
        Verdict { rows, is_pruned: !keeps }
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::DataType;

    use super::*;
    use crate::dataset::OpenOptions;
    use crate::dataset::filter::Expr;
    use crate::dataset::table::{Column, Kind};

    fn judge(filter: &str) -> Judge {
        let column = |name: &str| {
            let (name, physical) = (name.to_owned(), format!("col-{name}"));
            Column { name, physical, id: None, nullable: true, kind: Kind::Leaf(DataType::Int32) }
        };
        let options = OpenOptions { filter: Some(Expr::parse(filter).unwrap()), ..OpenOptions::default() };
        Judge::new(Sieve::new(&[column("a"), column("p")], &options).unwrap(), vec!["p".to_owned()])
    }

    fn is_pruned(filter: &str, partition: Option<&str>) -> bool {
        let values = PartitionValues::from([("col-p".to_owned(), partition.map(str::to_owned))]);
        let json = r#"{"numRecords":4,"minValues":{"col-a":1,"col-p":9},"maxValues":{"col-a":5,"col-p":9},"nullCount":{"col-a":0}}"#;
        let verdict = judge(filter).by_json(json, &values).unwrap();
        assert_eq!(verdict.rows, 4);
        verdict.is_pruned
    }

    #[test]
    fn statistics_judge_columns_and_values_judge_partitions() {
        assert!(is_pruned("a = 7", Some("7")) && !is_pruned("a = 5", Some("7")));
        assert!(is_pruned("p = 9", Some("7")) && !is_pruned("p = 7", Some("7")), "not by statistics");
        assert!(is_pruned("p = 7 and a > 5", Some("7")) && !is_pruned("p = 9 or a = 5", Some("7")));
        for null in [None, Some("")] {
            assert!(is_pruned("p = 7", null) && !is_pruned("p is null", null) && is_pruned("p is not null", null));
        }
        assert!(!is_pruned("p = 7", Some("x")), "a value that is none tells nothing");
    }

    #[test]
    fn a_file_without_a_row_count_has_no_verdict() {
        let none = PartitionValues::new();
        assert_eq!(judge("a = 7").by_json(r#"{"minValues":{"col-a":1},"maxValues":{"col-a":5}}"#, &none), None);
        assert_eq!(judge("p = 7").by_json("{}", &none), None);
        assert_eq!(judge("p = 7").by_json("{\"numRecords\":0}", &none), Some(Verdict { rows: 0, is_pruned: true }));
    }
}
