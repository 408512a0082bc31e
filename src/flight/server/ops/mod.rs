//! Operation of a server: threads, connections, limits, health, metrics, the admin port.

pub mod admin;
pub(crate) mod background;
pub mod connections;
pub mod errors;
pub(crate) mod health;
pub mod limits;
pub mod metrics;
pub(crate) mod places;
pub(crate) mod request;
pub mod snapshot;
pub(crate) mod state;
pub(crate) mod strips;
mod timings;
mod ui;
