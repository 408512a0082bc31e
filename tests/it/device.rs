//! Batches in the memory of a device: one suite for every kind of device, the GPU's driver, and the loader on top.

#[cfg(target_os = "linux")]
mod cuda;
#[cfg(target_os = "linux")]
mod fake;
mod host;
mod loader;
mod sim;
mod suite;
