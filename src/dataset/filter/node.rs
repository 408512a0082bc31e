//! A filter as a tree, and its canonical text.

use std::borrow::Cow;
use std::fmt;

use super::digits::Digits;
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
        column: Name,
        op: Op,
        value: Literal,
    },
    In {
        column: Name,
        values: Vec<Literal>,
        negated: bool,
    },
    Between {
        column: Name,
        low: Literal,
        high: Literal,
        negated: bool,
    },
    IsNull {
        column: Name,
        negated: bool,
    },
    /// The list in the column and `values` have a member in common.
    Overlaps {
        column: Name,
        values: Vec<Literal>,
    },
    /// The hash of the value lies in this part of all hashes.
    Split {
        column: Name,
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

/// A column as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name {
    /// A name that may have dots of its own, or lead into structs.
    Dotted(String),
    /// Two or more names, each in quotes: of a column, of a member of it, and so on.
    Members(Vec<String>),
}

impl Name {
    /// All of it with dots between.
    pub(super) fn dotted(&self) -> Cow<'_, str> {
        match self {
            Self::Dotted(name) => Cow::Borrowed(name),
            Self::Members(names) => Cow::Owned(names.join(".")),
        }
    }
}

/// A constant as written. Floats are finite.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Literal {
    Bool(bool),
    Int(i128),
    /// As [`Digits::of_float`] has it.
    Float(f64),
    /// A number that no float stands for, and the float nearest to it.
    Exact(Box<Digits>, f64),
    Text(String),
}

impl Literal {
    /// The number that `text` writes with a point or an exponent; `near` is the float nearest to it.
    pub(super) fn number(text: &str, near: f64) -> Self {
        let written = Digits::read(text).filter(|digits| !digits.is_zero());
        match written {
            Some(written) if Digits::of_float(near).as_ref() != Some(&written) => Self::Exact(Box::new(written), near),
            _ => Self::Float(near),
        }
    }
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

    /// Every column named, in order.
    pub(super) fn names(&self) -> Vec<&Name> {
        match self {
            Self::Compare { column, .. }
            | Self::In { column, .. }
            | Self::Between { column, .. }
            | Self::IsNull { column, .. }
            | Self::Overlaps { column, .. }
            | Self::Split { column, .. } => vec![column],
            Self::All(nodes) | Self::Any(nodes) => nodes.iter().flat_map(Self::names).collect(),
            Self::Not(node) => node.names(),
        }
    }

    /// Gives columns the names that `other` has for them.
    pub(super) fn rename(&mut self, other: &impl Fn(&Name) -> Option<Name>) {
        match self {
            Self::Compare { column, .. }
            | Self::In { column, .. }
            | Self::Between { column, .. }
            | Self::IsNull { column, .. }
            | Self::Overlaps { column, .. }
            | Self::Split { column, .. } => *column = other(column).unwrap_or_else(|| column.clone()),
            Self::All(nodes) | Self::Any(nodes) => nodes.iter_mut().for_each(|node| node.rename(other)),
            Self::Not(node) => node.rename(other),
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
            Self::Compare { column, op, value } => write!(f, "{column} {op} {value}"),
            Self::In { column, values, negated } => {
                write!(f, "{column} {}in {}", not(*negated), List(values))
            }
            Self::Overlaps { column, values } => write!(f, "{column} overlaps {}", List(values)),
            Self::Split { column, low, high } => write!(f, "split({column}, {low:?}, {high:?})"),
            Self::Between { column, low, high, negated } => {
                write!(f, "{column} {}between {low} and {high}", not(*negated))
            }
            Self::IsNull { column, negated } => write!(f, "{column} is {}null", not(*negated)),
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
            Self::Float(value) => {
                // The shortest text that reads back as the same float, always with a point or an exponent.
                let shortest = format!("{value:?}");
                if Digits::read(&shortest) == Digits::of_float(*value) {
                    f.write_str(&shortest)
                } else {
                    write!(f, "{value:.1}")
                }
            }
            Self::Exact(digits, _) => write!(f, "{digits}"),
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

/// Bare where the grammar allows it, else in double quotes.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quoted = |name: &String| format!("\"{}\"", name.replace('"', "\"\""));
        match self {
            Self::Dotted(name) if name.split('.').all(|segment| is_bare(segment) && !is_keyword(segment)) => {
                f.write_str(name)
            }
            Self::Dotted(name) => f.write_str(&quoted(name)),
            Self::Members(names) => f.write_str(&names.iter().map(quoted).collect::<Vec<_>>().join(".")),
        }
    }
}
