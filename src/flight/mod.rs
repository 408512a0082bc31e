//! Batches over Arrow Flight: one server reads and decodes, ranks receive.

pub mod gang;
pub mod put;
pub mod server;
pub mod shm;
