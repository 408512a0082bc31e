//! Checks that two datasets have the same rows, by other means than those that wrote them.

pub(crate) mod census;
pub(crate) mod digest;
mod raw;
pub(crate) mod tokens;
pub(crate) mod verify;
