//! The calls of Arrow Flight and their bodies, and the same streams for ranks on this host.

mod answer;
pub(crate) mod body;
pub(crate) mod core;
mod in_task;
pub(crate) mod incoming;
mod listing;
pub(crate) mod local;
pub(crate) mod put;
mod room;
pub(crate) mod service;
mod stats;
mod streaming;
pub(crate) mod view;
pub(crate) mod writes;
