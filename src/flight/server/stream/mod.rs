//! Streams of batches: production shared by many streams, and the memory and quotas that they take.

pub(crate) mod budget;
pub(crate) mod departed;
pub(crate) mod hangup;
pub(crate) mod live;
pub mod quota;
pub(crate) mod revocable;
pub(crate) mod rows;
pub(crate) mod shared_plan;
pub(crate) mod shared_stream;
pub(crate) mod shared_streams;
pub(crate) mod usage;
pub(crate) mod wanted;
