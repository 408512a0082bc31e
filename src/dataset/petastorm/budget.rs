//! Limit on what a pickle may build, and errors that say what was read, and where.

use crate::error::{Error, Place, Result};

/// Bytes that may still be built.
#[derive(Debug)]
pub(super) struct Budget {
    pub(super) limit: u64,
    pub(super) left: u64,
    place: Place,
    /// Noun for the thing that is read, in messages.
    noun: &'static str,
}

impl Budget {
    pub(super) fn new(limit: u64, noun: &'static str, place: &Place) -> Self {
        Self { limit, left: limit, place: place.clone(), noun }
    }

    /// Takes `bytes` off, before they are allocated.
    pub(super) fn charge(&mut self, bytes: u64) -> Result<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(self.exceeded((self.limit - self.left).saturating_add(bytes))),
        }
    }

    /// The error of `asked` bytes in all.
    pub(super) fn exceeded(&self, asked: u64) -> Error {
        Error::limit(self.noun, asked, self.limit, "limits.max_pickle_bytes").at(self.place.clone())
    }

    /// An error about what was read.
    pub(super) fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        Error::corrupt(self.place.clone(), format!("{}: {what}", self.noun))
    }

    /// An error about what is valid, but beyond this reader.
    pub(super) fn unsupported(&self, what: impl std::fmt::Display, hint: &str) -> Error {
        Error::unsupported(format!("{}: {what}", self.noun), hint).at(self.place.clone())
    }

    /// An error about a count, with the option that limits it.
    pub(super) fn too_many(&self, what: &str, asked: usize, limit: usize, option: &'static str) -> Error {
        Error::limit(format!("{}: {what}", self.noun), asked as u64, limit as u64, option).at(self.place.clone())
    }
}
