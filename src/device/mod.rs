//! Batches in the memory of a device: page-locked staging, one copy per batch ahead of the consumer, and slots that are used again
//! only when nobody reads them any more.
//!
//! | part | what it is |
//! |---|---|
//! | [`Device`] | what a device must offer: memory, a copy stream, events, fences |
//! | [`Conversion`] | what a device does to a tensor on its way into place, defined bit by bit |
//! | [`cuda`] | the GPU |

mod conversion;
pub mod cuda;
mod host;
mod port;
mod ring;
pub mod sim;
mod spec;

pub use conversion::Conversion;
pub use host::Host;
pub use port::{Address, DEVICE_ALIGNMENT, Device, Event, Fenced, Kind, Stream, refused};
pub use sim::Sim;
pub use spec::{Gpu, Place};
