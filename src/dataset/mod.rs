//! dataset

pub mod filter;
