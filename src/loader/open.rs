//! The source that options name: files read by this process or by a server, on the host or on a device.

use std::sync::Arc;

use super::decoding;
use super::device::DeviceSource;
#[cfg(feature = "flight")]
use super::remote::is_remote;
use crate::device::{Device, Gpu, Place, gpu};
#[cfg(all(feature = "cloud", feature = "flight"))]
use crate::error::Error;
use crate::error::Result;
#[cfg(feature = "flight")]
use crate::flight::client::{Gang, RemoteSource};
use crate::pipeline::{BatchMemory, BatchSource, LoaderOptions, LocalSource};

/// Opens a source of batches in host memory.
pub(super) trait Open: Fn(&LoaderOptions, BatchMemory) -> Result<Box<dyn BatchSource>> {}

impl<F: Fn(&LoaderOptions, BatchMemory) -> Result<Box<dyn BatchSource>>> Open for F {}

/// Opens the dataset that `options.urls` name.
pub(super) fn any(options: &LoaderOptions, memory: BatchMemory) -> Result<Box<dyn BatchSource>> {
    #[cfg(feature = "flight")]
    if is_remote(options) {
        #[cfg(feature = "cloud")]
        if options.credential_provider.is_some() {
            let problem = "a server reads with credentials of its own; leave it out, and give the server's token in storage_options";
            return Err(Error::config("credential_provider", problem));
        }
        return Ok(Box::new(RemoteSource::open(options, None, &memory)?));
    }
    let source = LocalSource::open_in(options.clone(), memory)?;
    source.warn_of_shared_reads(options);
    source.warn_of_order();
    Ok(Box::new(source))
}

/// Opens a dataset on a server, for a member of `gang`.
#[cfg(feature = "flight")]
pub(super) fn in_gang(gang: &Gang) -> impl Open {
    |options: &LoaderOptions, memory: BatchMemory| -> Result<Box<dyn BatchSource>> {
        Ok(Box::new(RemoteSource::open(options, Some(gang), &memory)?))
    }
}

/// Opens a source by `open` and delivers its batches where `options.device` says.
pub(super) fn at_place(options: &LoaderOptions, open: impl Open) -> Result<Box<dyn BatchSource>> {
    let device = match options.place()? {
        Place::Cpu => {
            decoding::check_host(options)?;
            None
        }
        Place::Pinned => {
            decoding::check_host(options)?;
            let allocator = gpu(&Gpu::Default)?.staging();
            return open(options, BatchMemory { allocator, returning: options.device_slots });
        }
        Place::Gpu(which) => Some(gpu(&which)?),
        Place::Auto => gpu(&Gpu::Default)
            .inspect_err(|error| tracing::warn!("device auto: batches stay on the CPU: {}", error.chain()))
            .ok(),
    };
    match device {
        Some(device) => on_device(options, device, open),
        None => open(&decoding::on_host(options), BatchMemory::default()),
    }
}

/// Opens a source by `open`, in memory that `device` copies from directly, and delivers its batches there.
pub(super) fn on_device(
    options: &LoaderOptions,
    device: Arc<dyn Device>,
    open: impl Open,
) -> Result<Box<dyn BatchSource>> {
    // One batch per slot is being copied, and one waits for a slot.
    let memory = BatchMemory { allocator: device.staging(), returning: options.device_slots + 1 };
    Ok(Box::new(DeviceSource::open(options, device, |options| open(options, memory.clone()))?))
}
