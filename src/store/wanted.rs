//! Names below a directory that a pattern means.

use super::data_name::is_data;
use super::glob::Pattern;
use crate::error::Result;

/// A pattern, and the part of a name before those that it is compared with.
pub(super) struct Wanted<'s> {
    pattern: Pattern,
    start: &'s str,
}

impl<'s> Wanted<'s> {
    /// Names that match `pattern` once `start` and a slash are before them, if that is not empty.
    pub(super) fn new(pattern: Pattern, start: &'s str) -> Self {
        Self { pattern, start }
    }

    /// Returns true if `name` matches and is one of data, of a store or of this machine (`local`).
    pub(super) fn is_meant(&self, name: &str, local: bool) -> bool {
        if self.start.is_empty() {
            return self.pattern.matches(name).is_some_and(|named| is_data(name, named, local));
        }
        let name = format!("{}/{name}", self.start);
        self.pattern.matches(&name).is_some_and(|named| is_data(&name, named, local))
    }

    /// False if nothing below the start can be meant by `pattern`, this one's text, of an address; so nothing there needs to be listed.
    ///
    /// # Errors
    /// As [`Pattern::encoded`].
    pub(super) fn may_be_below(&self, pattern: &str) -> Result<bool> {
        let depth = self.start.split('/').count();
        let head = pattern.split('/').take(depth).collect::<Vec<_>>().join("/");
        // Braces may have slashes in them.
        let is_plain = !pattern.contains(['{', '}']) && !head.contains("**");
        Ok(!is_plain || Pattern::encoded(&head)?.matches(self.start).is_some())
    }
}
