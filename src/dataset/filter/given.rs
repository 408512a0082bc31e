//! A filter in either form that users write.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Expr;
use crate::error::Result;

/// A filter as written by users, in the options of a loader or of a conversion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Filter {
    /// An expression such as `label >= 3 and country in ('de', 'us')`.
    Text(String),
    /// pyarrow's and Petastorm's tuples: a list of `[column, op, value]` (all must hold) or a list of such lists (any).
    Dnf(Value),
}

impl Filter {
    /// The filter as an expression.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) naming the wrong position or tuple.
    pub fn parse(&self) -> Result<Expr> {
        match self {
            Self::Text(text) => Expr::parse(text),
            Self::Dnf(tuples) => Expr::from_dnf(tuples),
        }
    }
}
