//! Batches in the memory of a device: page-locked staging, one copy per batch ahead of the consumer, and slots that are reused
//! only after their last reader.
//!
//! | part | description |
//! |---|---|
//! | [`Device`] | the interface of a device: memory, a copy stream, events, fences |
//! | [`Host`], [`Sim`] | the host's own memory, where nothing is copied; a simulation for tests |
//! | [`Conversion`] | a conversion that a device applies while it copies a tensor, defined bit by bit |
//! | [`Decoding`], [`Photos`] | photos that a device decodes |
//! | `cuda` | a GPU, with the feature of that name |
//! | [`Place`], [`Fence`] | the options |
//! | `ring` | the states of slots: a pure state machine |
//! | `slot`, `placement` | the memory of slots, their events and fences; the placement of a batch in one |
//! | [`Transfer`] | the one thread per device that copies batches ahead of the consumer |
//! | [`DeviceBatch`], [`DeviceTensor`] | the consumer's side; dropping the last tensor of a batch frees its slot |
//! | [`AnyBatch`] | a batch on the host or on a device |
//! | [`Target`], [`Targets`] | the consumer's own tensors, which a batch is copied into |

mod address;
mod batch;
mod conversion;
#[cfg(feature = "cuda")]
pub mod cuda;
mod decoding;
mod host;
mod lease;
mod placement;
mod ring;
pub mod sim;
mod slot;
mod spec;
mod target;
mod traits;
mod upload;

pub use address::Address;
pub use batch::{AnyBatch, DeviceBatch, DeviceTensor, DeviceValue};
pub use conversion::{Conversion, Lists};
pub use decoding::{Decoding, Photo, Photos, View};
pub use host::Host;
pub use lease::Consumer;
pub use placement::{Developing, Normalisation, Padding, Recipes};
pub use sim::Sim;
pub use spec::{Fence, Gpu, Place};
pub use target::{Target, Targets};
pub use traits::{DEVICE_ALIGNMENT, Device, Event, Fenced, Kind, Stream, refused};
pub use upload::{DeviceStats, Feeding, Pull, Transfer};

/// Opens the GPU that `which` names.
///
/// # Errors
/// [`Error::Device`](crate::Error::Device) if there is no usable driver, no GPU, or not this one, and in builds without
/// the feature `cuda`.
#[cfg(feature = "cuda")]
pub fn gpu(which: &Gpu) -> crate::error::Result<std::sync::Arc<dyn Device>> {
    cuda::open(which)
}

/// Opens the GPU that `which` names: never possible in a build without the feature `cuda`.
///
/// # Errors
/// [`Error::Device`](crate::Error::Device), always.
#[cfg(not(feature = "cuda"))]
pub fn gpu(which: &Gpu) -> crate::error::Result<std::sync::Arc<dyn Device>> {
    Err(crate::Error::Device {
        device: which.to_string(),
        what: "open".into(),
        why: "this build of bowstring has no GPUs: build it with the feature cuda".into(),
    })
}
