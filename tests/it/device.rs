//! Batches in the memory of a device: one suite for every kind of device, the GPU's over a fake driver, and the loader on top.

#[cfg(target_os = "linux")]
mod cuda;
mod deferred;
#[cfg(target_os = "linux")]
mod driven;
#[cfg(target_os = "linux")]
pub(crate) mod fake;
#[cfg(target_os = "linux")]
mod held;
mod host;
#[cfg(target_os = "linux")]
mod kernels;
mod loader;
#[cfg(target_os = "linux")]
mod nvjpeg;
mod sim;
mod suite;
