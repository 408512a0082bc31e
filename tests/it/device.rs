//! Batches in the memory of a device: one suite for every kind of device, the GPU's over a fake driver, and the loader on top.

#[cfg(all(target_os = "linux", feature = "cuda"))]
pub(crate) mod cuda;
mod deferred;
#[cfg(all(target_os = "linux", feature = "cuda"))]
pub(crate) mod driven;
#[cfg(all(target_os = "linux", feature = "cuda"))]
pub(crate) mod fake;
#[cfg(all(target_os = "linux", feature = "cuda"))]
mod held;
mod host;
#[cfg(all(target_os = "linux", feature = "cuda"))]
pub(crate) mod kernels;
mod loader;
#[cfg(all(target_os = "linux", feature = "cuda"))]
pub(crate) mod nvjpeg;
mod sim;
mod suite;
