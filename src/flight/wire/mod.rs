//! A batch on the wire: one Arrow RecordBatch whose body is the batch's slab as it is in memory.
//!
//! ```text
//!   slab   │ image [B,3,224,224] u8 ....│pad│ label [B] i64 │pad│ _mask [B] │
//!          └──────────────────────── body of the message ────────────────────┘ + tail: offsets of lists that have none, Arrow columns
//!   header   Arrow IPC RecordBatch: the offset of each buffer in the body
//! ```
//!
//! Sending a batch copies nothing. A receiver that reads the body into one aligned block has the tensors in place, and any other Arrow
//! client reads the same message as columns: `arrow.fixed_shape_tensor` for tensors, lists for ragged columns.

mod columns;
mod decode;
mod encode;
mod position;

pub use columns::{Columns, arrow_schema};
pub use decode::decode;
pub(crate) use encode::schema_message;
pub use encode::{Encoded, encode};
pub use position::Position;
