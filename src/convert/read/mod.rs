//! Reading of sources: their files on a disk or in a store, decompressed, slightly ahead of use.

pub(crate) mod files;
pub(crate) mod folder;
pub(crate) mod input;
pub(crate) mod listing;
pub(crate) mod records;
pub(crate) mod remote;
pub(crate) mod success;
