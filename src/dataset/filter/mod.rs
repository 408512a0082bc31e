//! Row filters: `label >= 3 and country in ('de', 'us')`, or the same as pyarrow's tuples.
//!
//! An [`Expr`] is what was written, without a schema; its `Display` is canonical and goes into fingerprints. [`Bound`] is
//! an expression whose columns were found and whose literals were converted once: it skips row groups and pages that
//! cannot match and decides rows exactly. Nulls follow SQL: a comparison with null is unknown, `not` of unknown is
//! unknown, and only rows for which the whole is true are selected. The grammar is in `docs/filter.md`.

mod bind;
mod dnf;
mod evaluate;
mod lex;
mod literal;
mod parse;
mod prune;
mod split;
mod statistics;

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};

pub use bind::Bound;
pub use prune::Partitions;

use crate::error::{Error, Result};

/// The option that all errors about the text of a filter name.
const OPTION: &str = "filter";

/// Deepest nesting of parentheses and `not`.
const MAX_DEPTH: usize = 100;

/// Most comparisons, list members and operators in one filter.
const MAX_TERMS: usize = 1_000_000;

/// A filter as written: columns are names, literals have no column type yet.
///
/// Two filters are equal when their canonical texts are; it says nothing about what they select.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Expr {
    node: Node,
}

/// The tree. `All` and `Any` have two or more members, none of their own kind: the parsers see to it, so that the
/// canonical text parses to the same tree.
#[derive(Debug, Clone, PartialEq)]
enum Node {
    Compare {
        column: String,
        op: Op,
        value: Literal,
    },
    In {
        column: String,
        values: Vec<Literal>,
        negated: bool,
    },
    Between {
        column: String,
        low: Literal,
        high: Literal,
        negated: bool,
    },
    IsNull {
        column: String,
        negated: bool,
    },
    /// The list in the column and `values` have a member in common.
    Overlaps {
        column: String,
        values: Vec<Literal>,
    },
    /// The hash of the value lies in this part of all hashes.
    Split {
        column: String,
        low: f64,
        high: f64,
    },
    All(Vec<Node>),
    Any(Vec<Node>),
    Not(Box<Node>),
}

/// A comparison, the column on its left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Op {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A constant as written. Floats are finite.
#[derive(Debug, Clone, PartialEq)]
enum Literal {
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
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
        let (mut found, mut seen) = (Vec::new(), HashSet::new());
        self.node.columns(&mut |column| {
            if seen.insert(column) {
                found.push(column.to_owned());
            }
        });
        found
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

impl TryFrom<String> for Expr {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl From<Expr> for String {
    fn from(expr: Expr) -> Self {
        expr.to_string()
    }
}

impl Node {
    /// `and` of `nodes`, flat; a single one stays what it is.
    fn all(nodes: Vec<Self>) -> Self {
        Self::flat(nodes, Self::All, |node| match node {
            Self::All(inner) => Ok(inner),
            other => Err(other),
        })
    }

    /// `or` of `nodes`, flat; a single one stays what it is.
    fn any(nodes: Vec<Self>) -> Self {
        Self::flat(nodes, Self::Any, |node| match node {
            Self::Any(inner) => Ok(inner),
            other => Err(other),
        })
    }

    fn flat(nodes: Vec<Self>, join: fn(Vec<Self>) -> Self, split: fn(Self) -> Result<Vec<Self>, Self>) -> Self {
        let mut flat = Vec::with_capacity(nodes.len());
        for node in nodes {
            match split(node) {
                Ok(inner) => flat.extend(inner),
                Err(node) => flat.push(node),
            }
        }
        match flat.pop() {
            Some(only) if flat.is_empty() => only,
            last => {
                flat.extend(last);
                join(flat)
            }
        }
    }

    /// Calls `each` with every column named, in order.
    fn columns<'a>(&'a self, each: &mut impl FnMut(&'a str)) {
        match self {
            Self::Compare { column, .. }
            | Self::In { column, .. }
            | Self::Between { column, .. }
            | Self::IsNull { column, .. }
            | Self::Overlaps { column, .. }
            | Self::Split { column, .. } => each(column),
            Self::All(nodes) | Self::Any(nodes) => nodes.iter().for_each(|node| node.columns(each)),
            Self::Not(node) => node.columns(each),
        }
    }

    /// Writes the node, in parentheses where it stands inside something that binds closer.
    fn within(&self, f: &mut fmt::Formatter<'_>, parenthesised: bool) -> fmt::Result {
        if parenthesised { write!(f, "({self})") } else { write!(f, "{self}") }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = |negated: bool| if negated { "not " } else { "" };
        match self {
            Self::Compare { column, op, value } => write!(f, "{} {op} {value}", Name(column)),
            Self::In { column, values, negated } => {
                write!(f, "{} {}in {}", Name(column), not(*negated), List(values))
            }
            Self::Overlaps { column, values } => write!(f, "{} overlaps {}", Name(column), List(values)),
            Self::Split { column, low, high } => write!(f, "split({}, {low:?}, {high:?})", Name(column)),
            Self::Between { column, low, high, negated } => {
                write!(f, "{} {}between {low} and {high}", Name(column), not(*negated))
            }
            Self::IsNull { column, negated } => write!(f, "{} is {}null", Name(column), not(*negated)),
            Self::All(nodes) => {
                for (index, node) in nodes.iter().enumerate() {
                    f.write_str(if index == 0 { "" } else { " and " })?;
                    node.within(f, matches!(node, Self::Any(_)))?;
                }
                Ok(())
            }
            Self::Any(nodes) => {
                for (index, node) in nodes.iter().enumerate() {
                    write!(f, "{}{node}", if index == 0 { "" } else { " or " })?;
                }
                Ok(())
            }
            Self::Not(node) => {
                f.write_str("not ")?;
                node.within(f, matches!(**node, Self::All(_) | Self::Any(_)))
            }
        }
    }
}

impl Op {
    /// The operator with its sides exchanged: `3 < x` is `x > 3`.
    fn flipped(self) -> Self {
        match self {
            Self::Eq | Self::Ne => self,
            Self::Lt => Self::Gt,
            Self::Le => Self::Ge,
            Self::Gt => Self::Lt,
            Self::Ge => Self::Le,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eq => "=",
            Self::Ne => "!=",
            Self::Lt => "<",
            Self::Le => "<=",
            Self::Gt => ">",
            Self::Ge => ">=",
        })
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bool(value) => write!(f, "{value}"),
            Self::Int(value) => write!(f, "{value}"),
            // Debug is the shortest text that reads back as the same number, always with a point or an exponent.
            Self::Float(value) => write!(f, "{value:?}"),
            Self::Text(text) => write!(f, "'{}'", text.replace('\'', "''")),
        }
    }
}

/// Literals in parentheses.
struct List<'a>(&'a [Literal]);

impl fmt::Display for List<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (index, value) in self.0.iter().enumerate() {
            write!(f, "{}{value}", if index == 0 { "" } else { ", " })?;
        }
        f.write_str(")")
    }
}

/// A column name in text: bare where the grammar allows it, else in double quotes.
struct Name<'a>(&'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bare = self.0.split('.').all(|segment| lex::is_bare(segment) && !lex::is_keyword(segment));
        if bare { f.write_str(self.0) } else { write!(f, "\"{}\"", self.0.replace('"', "\"\"")) }
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

    #[test]
    fn serde_is_the_text() {
        let expr = Expr::parse("a=1 & b is null").unwrap();
        let json = serde_json::to_string(&expr).unwrap();
        assert_eq!(json, "\"a = 1 and b is null\"");
        assert_eq!(serde_json::from_str::<Expr>(&json).unwrap(), expr);
        assert!(serde_json::from_str::<Expr>("\"a = \"").unwrap_err().to_string().contains("character 5"));
    }
}
