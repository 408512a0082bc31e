//! Batches in the memory of a device: one suite for every kind of device, and the loader on top of it.

mod host;
mod sim;
mod suite;
