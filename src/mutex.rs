//! The lock of what threads and tasks share: the standard library's. Unit tests replace it by one whose holder a scheduler chooses.

#[cfg(not(test))]
pub(crate) use std::sync::{Mutex, MutexGuard};

#[cfg(test)]
pub(crate) use scheduled::{Mutex, MutexGuard, impatient, in_many_orders};

#[cfg(test)]
mod scheduled;
