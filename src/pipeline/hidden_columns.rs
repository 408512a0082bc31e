//! Columns that the owner of a dataset keeps back from its clients.

use serde::Serialize;

use super::options::{Filter, LoaderOptions};
use crate::codec::column_is_meant;
use crate::dataset::{Hidden, OpenOptions};
use crate::error::Result;

/// Columns that do not exist for clients, and the parts of the options that are theirs and must not reveal those columns.
///
/// Without columns nothing is kept back.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HiddenColumns {
    /// The columns, by name, by prefix, or by a glob, at any depth.
    pub exclude: Vec<String>,
    /// His part of the filter.
    pub filter: Option<Filter>,
    /// Whether the selector is his.
    pub selector: bool,
    /// Whether the windows are his.
    pub ngram: bool,
}

impl HiddenColumns {
    /// `open` behind the hidden.
    pub(super) fn over(&self, open: OpenOptions) -> Result<OpenOptions> {
        if self.exclude.is_empty() {
            return Ok(open);
        }
        let hidden = Hidden {
            patterns: self.exclude.clone(),
            means: column_is_meant,
            filter: self.filter.as_ref().map(Filter::parse).transpose()?,
            selector: self.selector,
            ngram: self.ngram,
        };
        Ok(OpenOptions { hidden: Some(hidden), ..open })
    }

    /// `options` without the mention of what is not there.
    pub(super) fn without(&self, options: &LoaderOptions) -> LoaderOptions {
        let mut options = options.clone();
        options.columns.exclude.retain(|pattern| !self.exclude.contains(pattern));
        options
    }
}
