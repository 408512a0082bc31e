//! Batches in the memory of a device: one suite for every kind of device, and the loader on top of it.

#[cfg(target_os = "linux")]
mod cuda;
#[cfg(target_os = "linux")]
mod driven;
#[cfg(target_os = "linux")]
mod fake;
#[cfg(target_os = "linux")]
mod held;
mod host;
#[cfg(target_os = "linux")]
mod kernels;
mod sim;
mod suite;
