//! Addresses on a device.

/// An address in a device's memory.
pub type Address = u64;
