//! Direct access to numbers in the pages of one column chunk, reading and writing, for the common case that needs
//! nothing else.
//!
//! ```text
//!   chunk ─► page ─► unpacked ─┬─ levels ─► nulls; offsets of lists
//!                              └─ values ─► PLAIN, or indices into the dictionary ─► where they are wanted
//! ```
//!
//! The Arrow reader decodes everything, and reports faults. This module reads what training reads most: numbers of 4 or
//! 8 bytes, flat, or in one list without nulls. For anything else, damage included, it returns `None`, and the Arrow
//! reader takes the column. This saves level buffers, a second copy, and, in a pack, the columns themselves, since rows
//! are made from 40 chunks side by side while their pages are in the cache. Writing is as narrow, and saves the copies
//! of an encoder.

mod checked;
mod chunk;
mod compact_avx2;
mod holes;
mod hybrid;
mod kept;
mod levels;
mod lists;
mod plain;
mod quiet;
mod slice;
mod unpack;
mod unpack_avx2;

pub(crate) use checked::Checked;
pub(crate) use chunk::{Chunk, Convert, Element, MOST_SPLIT, Source};
pub(crate) use holes::Holes;
pub(crate) use kept::SPARE;
pub(crate) use levels::{Lineage, Tally};
pub(crate) use plain::{PlainChunk, Values, width};
pub use quiet::quiet;
pub(crate) use quiet::said;
pub(crate) use slice::PagedRows;
