//! What a source is read through: its files on a disk or in a store, unpacked on the way, a little ahead of need.

pub(crate) mod files;
pub(crate) mod folder;
pub(crate) mod input;
pub(crate) mod listing;
pub(crate) mod records;
pub(crate) mod remote;
pub(crate) mod success;
