//! Integration tests: one binary, one module per subject.

/// Locked dependencies stay above the advisory floors of `deny.toml`, and no banned crate comes back.
mod advisories;
/// Filters on written files.
mod filter;
/// The floors of the house: which module may name which, what stays pure, where `unsafe` lives.
mod floors;
