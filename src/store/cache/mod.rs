//! A cache below the dataset: ranges of pinned versions that were read once are read from a disk of this machine, or from memory.
//!
//! ```text
//!   Object::read ─► Through ─► Cache ─► disk or memory ──► there, and its checksums agree
//!                                 └───► somebody fetches it just now ──► wait for that one
//!                                 └───► its home, the cache of another host (`cluster`), has it, if there are others
//!                                 └───► the origin ──► whoever asked, and the cache if the plans need it soon enough
//! ```
//! Nothing above knows of it, with one exception: open plans tell it when they need blocks. `keeper` and `foresight` decide what is kept,
//! without a disk or a clock. Files of this machine are not cached.

mod admin;
mod ahead;
mod asked;
mod beside;
mod block;
mod claim;
#[cfg(feature = "flight")]
pub(crate) mod cluster;
mod coming;
mod counts;
mod directory;
mod disk;
mod fetched;
mod file;
mod foresight;
mod hold;
#[cfg(feature = "flight")]
mod home;
mod keeper;
mod ledger;
mod memory;
mod readers;
mod record;
mod remembered;
mod saved;
mod saves;
mod shared;
#[cfg(test)]
mod simulated;
mod staged;
#[cfg(test)]
mod tests;
mod through;

#[cfg(feature = "cli")]
pub(crate) use admin::verify_seen;
pub use admin::{Removed, Status, Unstored, Verified, remove, status, verify};
#[cfg(feature = "flight")]
pub(crate) use asked::Again;
#[cfg(feature = "flight")]
pub(crate) use block::Block;
pub(crate) use block::ObjectKey;
pub use counts::{CacheStats, Unkept};
pub(crate) use foresight::{Foreseen, Later, Spans};
pub(crate) use hold::{Held, SLICE, Whole};
#[cfg(feature = "flight")]
pub(crate) use readers::Reader;
pub(crate) use record::{Begun, Target};
pub(crate) use saved::Save;
pub(crate) use saves::{Saves, Source, Turn};
#[cfg(all(feature = "cli", feature = "flight"))]
pub(crate) use shared::MEMORY;
pub(in crate::store) use shared::is_of_the_disk;
pub use shared::{Cache, totals};
pub(crate) use shared::{OVERHEAD, Wanted};
pub(crate) use staged::Staged;
pub use through::CachePlace;
pub(crate) use through::{CacheReader, Through};
