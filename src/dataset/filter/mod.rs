//! Row filters: `label >= 3 and country in ('de', 'us')`, or the same as pyarrow's tuples.
//!
//! An [`Expr`] is a filter as written, without a schema; its `Display` is canonical and goes into fingerprints. [`Bound`] is
//! an expression whose columns were found and whose literals were converted once: it skips row groups and pages that
//! cannot match and decides rows exactly. Nulls follow SQL: a comparison with null is unknown, `not` of unknown is
//! unknown, and only rows for which the whole is true are selected. The grammar is in `docs/filter.md`.

mod bind;
mod bucket;
mod digits;
mod dnf;
mod evaluate;
mod facts;
mod given;
mod lex;
mod literal;
mod members;
mod node;
mod parse;
mod prune;
mod split;
mod statistics;
mod words;

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use arrow::datatypes::SchemaRef;

pub use bind::Bound;
pub(super) use bucket::Bucket;
pub(super) use facts::{Bounds, Extent, Facts, StoredStatistics};
pub use given::Filter;
pub(super) use literal::{Scalar, days_since_1970};

use self::node::{Name, Node};
use crate::error::{Error, Result};

/// A filter as written: columns are names, literals have no column type yet.
///
/// Two filters are equal when their canonical texts are; it says nothing about what they select.
#[derive(Debug, Clone, PartialEq)]
pub struct Expr {
    node: Node,
}

impl Expr {
    /// Parses the text form, e.g. `label >= 3 and country in ('de', 'us')`.
    ///
    /// # Errors
    /// [`Error::Config`] with the character (from 1) where the text stops making sense.
    pub fn parse(text: &str) -> Result<Self> {
        Ok(Self { node: parse::parse(text)? })
    }

    /// Reads the tuples of pyarrow and Petastorm: `[column, op, value]`, a list of them (all must hold), or a list of
    /// such lists (one must hold). The operators are `=`, `==`, `!=`, `<>`, `<`, `<=`, `>`, `>=`, `in` and `not in`.
    ///
    /// # Errors
    /// [`Error::Config`] naming the tuple that is wrong.
    pub fn from_dnf(tuples: &serde_json::Value) -> Result<Self> {
        Ok(Self { node: dnf::read(tuples)? })
    }

    /// The columns named, as dotted paths, each once, in order of first appearance.
    pub fn columns(&self) -> Vec<String> {
        let mut seen = HashSet::new();
        let names = self.node.names().into_iter().map(|name| name.dotted().into_owned());
        names.filter(|name| seen.insert(name.clone())).collect()
    }

    /// The canonical text for data of this schema: members are written as the dotted name that means them, if there is one.
    pub(super) fn text_for(&self, schema: &SchemaRef) -> String {
        if !self.node.names().into_iter().any(|name| bind::is_dotted(schema, name)) {
            // Its lists may be long.
            return self.node.to_string();
        }
        let mut node = self.node.clone();
        node.rename(&|name| bind::is_dotted(schema, name).then(|| Name::Dotted(name.dotted().into_owned())));
        node.to_string()
    }

    /// Checks the filter against a schema without keeping the result: see [`bind`](Self::bind).
    ///
    /// # Errors
    /// As [`bind`](Self::bind).
    pub fn check(&self, schema: &SchemaRef) -> Result<()> {
        self.bind(schema).map(drop)
    }

    /// Finds the columns in `schema` and converts the literals to their types.
    ///
    /// # Errors
    /// [`Error::NotFound`] for a column that is not there, with the nearest names; [`Error::Config`] for a literal that
    /// cannot be compared with its column; [`Error::Unsupported`] for a column type without comparisons.
    pub fn bind(&self, schema: &SchemaRef) -> Result<Bound> {
        Bound::new(&self.node, schema)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.fmt(f)
    }
}

impl FromStr for Expr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn canonical(text: &str) -> String {
        let expr = Expr::parse(text).unwrap();
        let shown = expr.to_string();
        assert_eq!(Expr::parse(&shown).unwrap(), expr, "{text} -> {shown}");
        shown
    }

    #[test]
    fn one_text_for_all_spellings() {
        for (text, expected) in [
            ("label >= 3 and country in ('de', 'us')", "label >= 3 and country in ('de', 'us')"),
            ("LABEL==3&(b<>1|!c IS NOT NULL)", "LABEL = 3 and (b != 1 or not c is not null)"),
            ("(a=1 and b=2) and c=3", "a = 1 and b = 2 and c = 3"),
            ("((a=1)) || b=2 && c=3", "a = 1 or b = 2 and c = 3"),
            ("not (a between 1 and 2.50 or b)", "not (a between 1 and 2.5 or b = true)"),
            ("3 < a", "a > 3"),
            (
                "Tags OVERLAPS (1, 2) and not split ( user.id, 0, .5)",
                "Tags overlaps (1, 2) and not split(user.id, 0.0, 0.5)",
            ),
            ("split = 1 and split", "split = 1 and split = true"),
            ("\"a b\".c = 'it''s' and \"in\" not in (1)", "\"a b.c\" = 'it''s' and \"in\" not in (1)"),
            ("~flag and x = -0.0", "not flag = true and x = -0.0"),
            ("not not a = 1e300", "not not a = 1e300"),
            ("a in (1e16, 4611686018427387904.0)", "a in (1e16, 4611686018427387904.0)"),
            (
                "a < 4.611686018427388e+18 or a = 9007199254740993.0",
                "a < 4.611686018427388e18 or a = 9.007199254740993e15",
            ),
            ("a.\"b\" = 1 or \"a.b\" = 1 or \"a\".\"b\" = 1", "a.b = 1 or a.b = 1 or \"a\".\"b\" = 1"),
            ("\"a\".\"b\"\"c\".\"\" is null", "\"a\".\"b\"\"c\".\"\" is null"),
            ("größe NOT BETWEEN 'a' AND 'b'", "größe not between 'a' and 'b'"),
        ] {
            assert_eq!(canonical(text), expected, "{text}");
        }
    }

    #[test]
    fn columns_come_once_in_order() {
        let expr = Expr::parse("b.c = 1 and a in (1, 2) or not b.c is null and \"z z\" = 'a'").unwrap();
        assert_eq!(expr.columns(), ["b.c", "a", "z z"]);
    }
}
