//! Batches over Arrow Flight: one server reads and decodes, ranks receive.
//!
//! | part | what it is |
//! |---|---|
//! | [`request`], [`ticket`] | what a client wants; the same, signed |
//! | [`wire`] | a batch as one Arrow message, and back, without a copy |
//! | `grpc_codec`, [`status`] | gRPC messages by hand; errors as statuses |
//! | [`server`] | datasets by name to streams of batches |
//! | [`client`] | a stream of batches, whatever happens to servers on the way |
//! | [`shm`] | the same batches through shared memory, on one host |
//! | [`gang`] | ranks that start, meet and restart together |
//! | [`put`] | datasets that appear at once or not at all |

pub mod client;
pub mod gang;
mod grpc_codec;
pub mod put;
pub mod request;
pub mod server;
pub mod shm;
pub mod status;
pub mod ticket;
pub mod wire;
