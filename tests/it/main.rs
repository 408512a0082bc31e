//! Integration tests: one binary, one module per subject.

/// Locked dependencies stay above the advisory floors of `deny.toml`, and no banned crate comes back.
mod advisories;
/// Sources that change while they are read.
mod changed;
/// Damaged and hostile Parquet files.
mod corrupt;
/// Datasets on written files: values, layouts, addresses, schemas, filters, the network.
mod dataset;
/// Filters on written files.
mod filter;
/// The floors of the house: which module may name which, what stays pure, where `unsafe` lives.
mod floors;
