//! A filter as a tree, and its canonical text.

use std::fmt;

use super::words::{is_bare, is_keyword};
use crate::error::Result;

/// The option that all errors about the text of a filter name.
pub(super) const OPTION: &str = "filter";

/// Deepest nesting of parentheses and `not`.
pub(super) const MAX_DEPTH: usize = 100;

/// Most comparisons, list members and operators in one filter.
pub(super) const MAX_TERMS: usize = 1_000_000;

/// The tree. `All` and `Any` have two or more members, none of their own kind: the parsers see to it, so that the
/// canonical text parses to the same tree.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
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
pub(super) enum Op {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A constant as written. Floats are finite.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
}

impl Node {
    /// `and` of `nodes`, flat; a single one stays what it is.
    pub(super) fn all(nodes: Vec<Self>) -> Self {
        Self::flat(nodes, Self::All, |node| match node {
            Self::All(inner) => Ok(inner),
            other => Err(other),
        })
    }

    /// `or` of `nodes`, flat; a single one stays what it is.
    pub(super) fn any(nodes: Vec<Self>) -> Self {
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
    pub(super) fn columns<'a>(&'a self, each: &mut impl FnMut(&'a str)) {
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
    pub(super) fn flipped(self) -> Self {
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
        let bare = self.0.split('.').all(|segment| is_bare(segment) && !is_keyword(segment));
        if bare { f.write_str(self.0) } else { write!(f, "\"{}\"", self.0.replace('"', "\"\"")) }
    }
}
