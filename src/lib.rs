//! An Arrow-based, zero-copy pipeline from Parquet to training ranks.

pub mod codec;
pub mod dataset;
pub mod error;
pub mod manifest;
pub mod memory;
pub mod pipeline;
pub mod plan;
pub mod schema;
pub mod store;
pub mod tensor;

pub use error::{Error, Place, Result};
