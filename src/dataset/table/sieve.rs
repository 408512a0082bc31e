//! A filter as a test of files: finds those that may have a selected row, by facts in the metadata of a table.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};

use super::column::{Column, Kind};
use super::value::exact;
use crate::dataset::OpenOptions;
use crate::dataset::filter::{Bound, Facts};

/// See the module.
#[derive(Debug)]
pub(in crate::dataset) struct Sieve {
    bound: Bound,
    /// The columns of the filter; `None` for one that metadata have no facts about.
    tested: Vec<Option<Tested>>,
}

/// A column that the filter tests: one of the table, or a member of its structs.
#[derive(Debug, Clone)]
pub(in crate::dataset) struct Tested {
    /// Name of the top-level column.
    pub(in crate::dataset) name: String,
    /// Path of names in data files.
    pub(in crate::dataset) physical: Vec<String>,
    pub(in crate::dataset) id: Option<i32>,
    pub(in crate::dataset) kind: DataType,
}

impl Tested {
    /// Tests for a top-level column. Of a member, null counts may or may not include those of its struct.
    pub(in crate::dataset) fn is_top(&self) -> bool {
        self.physical.len() == 1
    }
}

impl Sieve {
    /// The filter of `options` for a table of `columns`. `None` without a filter; with a selector, which counts row groups, so that none
    /// may be missing; and for a filter that does not fit the columns, an error that its evaluation reports.
    pub(in crate::dataset) fn new(columns: &[Column], options: &OpenOptions) -> Option<Self> {
        let filter = options.filter.as_ref().filter(|_| options.selector.is_none())?;
        let schema = Arc::new(Schema::new(columns.iter().map(Column::field).collect::<Vec<_>>()));
        if let Some(hidden) = &options.hidden {
            hidden.check(&hidden.visible(&schema).ok()?).ok()?;
        }
        let bound = filter.bind(&schema).ok()?;
        let tested = bound.tested().map(|(path, kind, is_list)| {
            let found = Tested::find(columns, path)?;
            (!is_list && found.kind == *kind).then_some(found)
        });
        let tested = tested.collect();
        Some(Self { bound, tested })
    }

    /// The columns of the filter whose facts are used, with their numbers.
    pub(in crate::dataset) fn tested(&self) -> impl Iterator<Item = (usize, &Tested)> {
        self.tested.iter().enumerate().filter_map(|(at, tested)| Some((at, tested.as_ref()?)))
    }

    /// Tests whether a file may have a selected row; `facts` takes the number of a column and the column.
    pub(in crate::dataset) fn keeps(&self, facts: &mut dyn FnMut(usize, &Tested) -> Vec<Facts>) -> bool {
        self.bound.may_match_file(&mut |at| {
            let tested = self.tested.get(at).and_then(Option::as_ref);
            tested.map_or_else(Vec::new, |tested| facts(at, tested))
        })
    }
}

impl Tested {
    fn find(columns: &[Column], path: &[String]) -> Option<Self> {
        let (name, below) = path.split_first()?;
        let mut found = columns.iter().find(|column| column.name == *name)?;
        let mut physical = vec![found.physical.clone()];
        for name in below {
            let Kind::Struct(members) = &found.kind else { return None };
            found = members.iter().find(|column| column.name == *name)?;
            physical.push(found.physical.clone());
        }
        let Kind::Leaf(kind) = &found.kind else { return None };
        Some(Self { name: name.clone(), physical, id: found.id, kind: kind.clone() })
    }
}

/// Facts about a column that has one value in all of `rows` rows: that of `text`, or null.
pub(in crate::dataset) fn constant(text: Option<&str>, kind: &DataType, rows: u64) -> Option<Facts> {
    match text {
        None => Some(Facts::null(rows)),
        Some(text) => exact(text, kind).map(|value| Facts::exactly(rows, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::filter::{Expr, Scalar};

    fn leaf(name: &str, kind: DataType) -> Column {
        Column {
            name: name.to_owned(),
            physical: format!("p-{name}"),
            id: Some(7),
            nullable: true,
            kind: Kind::Leaf(kind),
        }
    }

    fn columns() -> Vec<Column> {
        let below = Kind::Struct(vec![leaf("x", DataType::Int64)]);
        let list = Kind::List(Box::new(Kind::Leaf(DataType::Int64)), true);
        vec![
            leaf("n", DataType::Int64),
            leaf("s", DataType::Utf8View),
            Column { kind: below, ..leaf("t", DataType::Null) },
            Column { kind: list, ..leaf("l", DataType::Null) },
        ]
    }

    fn sieve(text: &str) -> Option<Sieve> {
        let options = OpenOptions { filter: Some(Expr::parse(text).unwrap()), ..OpenOptions::default() };
        Sieve::new(&columns(), &options)
    }

    #[test]
    fn columns_are_found_by_the_names_in_files() {
        let found = sieve("t.x = 1 and n in (1, 2) and l overlaps (1)").unwrap();
        let tested: Vec<_> = found.tested().map(|(_, tested)| (tested.physical.join("/"), tested.is_top())).collect();
        assert_eq!(tested, [("p-t/p-x".to_owned(), false), ("p-n".to_owned(), true)]);
        assert!(sieve("other = 1").is_none() && sieve("n = 'x'").is_none());
    }

    #[test]
    fn a_file_is_left_out_only_where_all_that_is_known_agrees() {
        let keeps = |text: &str, facts: &[Facts]| {
            sieve(text).unwrap().keeps(&mut |_, tested| if tested.name == "n" { facts.to_vec() } else { Vec::new() })
        };
        let value = |text| constant(text, &DataType::Int64, 5).unwrap();
        assert!(keeps("n = 1", &[]) && keeps("n = 1", &[value(Some("1"))]));
        assert!(!keeps("n = 1", &[value(Some("2"))]) && !keeps("n = 1", &[value(None)]));
        assert!(!keeps("n = 1 and s = 'x'", &[value(Some("2"))]) && keeps("n = 1 or s = 'x'", &[value(Some("2"))]));
        assert!(
            keeps("n is null", &[]) && keeps("n is null", &[value(None)]) && !keeps("n is null", &[value(Some("2"))])
        );
        assert!(keeps("n = 1", &[value(Some("2")), value(None)]), "what contradicts itself says nothing");
        let nan = constant(Some("NaN"), &DataType::Float64, 5).unwrap();
        assert_eq!(nan, Facts::exactly(5, Scalar::Float(f64::NAN)));
        assert!(constant(Some("x"), &DataType::Int64, 5).is_none());
    }
}
