//! Batches over Arrow Flight: one server reads and decodes, ranks receive.
//!
//! | part | what it is |
//! |---|---|
//! | [`request`], [`ticket`] | the request of a client; the same, signed |
//! | [`wire`] | a batch as one Arrow message, and back, without a copy |
//! | `grpc_codec`, [`status`] | framing of gRPC messages; errors as statuses |
//! | `seldom` | warnings that peers can cause, once a minute |
//! | `version` | the version of the other side, for errors |
//! | [`server`] | streams of batches from datasets by name |
//! | [`client`] | a stream of batches that survives the loss of servers |
//! | [`shm`] | the same batches through shared memory, on one host |
//! | [`gang`] | ranks that start, synchronise and restart together |
//! | [`put`] | datasets that appear at once or not at all |

pub mod client;
#[cfg(test)]
mod explore;
pub mod gang;
mod grpc_codec;
pub mod put;
pub mod request;
pub(crate) mod seldom;
pub mod server;
pub mod shm;
pub mod status;
pub mod ticket;
pub(crate) mod version;
pub mod wire;
