//! Petastorm's metadata, read without running any Python.
//!
//! ```text
//!   _common_metadata ─footer─► key_values ─┬─ unischema.v1 ──────► pickle ─► Unischema ─► Stored, per field
//!                                          ├─ rowgroups_index.v1 ► pickle ─► RowGroupIndex
//!                                          └─ num_row_groups...  ► JSON ───► row groups per file
//! ```
//!
//! A pickle is a program for a stack machine whose instructions import and call whatever they name. The machine here has no
//! import and no call: names come from a closed list of pairs, each stands for a kind of data, and everything else is an error
//! that names what it refused. Functions here are pure: bytes in, values out.

mod arena;
mod budget;
mod escape;
mod globals;
mod index;
mod memo;
mod metadata;
mod numpy;
mod objects;
mod pickle;
mod spark;
mod unischema;
mod write;

pub use index::{IndexKind, IndexValue, RowGroupIndex, indexes};
pub use metadata::{
    ROW_GROUP_COUNTS_KEY, ROW_GROUP_INDEX_KEY, UNISCHEMA_KEY, key_values, row_group_counts, row_group_counts_to_json,
};
pub use spark::SparkType;
pub use unischema::{FieldCodec, Unischema, UnischemaField};
