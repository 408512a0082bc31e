//! Host memory: its allocators, its owners, and the one byte budget that holds everything in flight.
//!
//! ```text
//!   Pool (budget) ── reserve(n).await ─► Reservation ── allocate(len) ─► HostBuffer ─► Tensor ─► consumer
//!        ▲                                    │ drop                        │ drop, or deliver()
//!        └────────────────────────────────────┴─────────────────────────────┘
//! ```
//!
//! A reservation is a claim on bytes, whether or not bowstring's own allocator provides them: column chunks and Arrow
//! arrays are held under reservations, tensors under buffers. Waiting for a reservation is the only back-pressure.

mod buffer;
mod caching_allocator;
mod fresh;
#[cfg(target_os = "linux")]
mod mapping;
#[cfg(target_os = "linux")]
mod pages;
mod pool;
mod prefetch;
#[cfg(target_os = "linux")]
mod shared;
#[cfg(target_os = "linux")]
mod slab_pool;

pub use buffer::{ALIGNMENT, HostAllocator, HostBuffer, SystemAllocator};
pub use caching_allocator::CachingAllocator;
#[cfg(target_os = "linux")]
pub use mapping::Mapping;
#[cfg(target_os = "linux")]
pub use pages::Access;
pub(crate) use pool::Spare;
pub(crate) use pool::buffer_bytes;
pub use pool::{Pool, Reservation};
pub(crate) use prefetch::prefetch;
#[cfg(all(target_os = "linux", feature = "flight"))]
pub(crate) use shared::SlabAllocator;
#[cfg(target_os = "linux")]
pub use shared::{SharedAllocator, Slab};
#[cfg(target_os = "linux")]
pub use slab_pool::SlabPool;
