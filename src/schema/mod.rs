//! What a column is, before and after decoding.

mod dtype;

pub use dtype::DType;
