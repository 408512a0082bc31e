//! Columns that the owner of a dataset hides from its clients.

use serde::Serialize;

use super::options::LoaderOptions;
use crate::codec::column_is_meant;
use crate::dataset::filter::Filter;
use crate::dataset::{Hidden, OpenOptions};
use crate::error::Result;

/// Columns that do not exist for clients, and the owner's parts of the options, which must not reveal those columns.
///
/// Without columns nothing is hidden.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct HiddenColumns {
    /// The columns, by name, by prefix, or by a glob, at any depth.
    pub exclude: Vec<String>,
    /// The owner's part of the filter.
    pub filter: Option<Filter>,
    /// Set if the selector is the owner's.
    pub selector: bool,
    /// Set if the windows are the owner's.
    pub ngram: bool,
}

impl HiddenColumns {
    /// `open` with the columns hidden.
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

    /// `options` without any mention of the hidden columns.
    pub(super) fn without(&self, options: &LoaderOptions) -> LoaderOptions {
        let mut options = options.clone();
        options.columns.exclude.retain(|pattern| !self.exclude.contains(pattern));
        options
    }
}
