//! Batches for ranks on the server's host, through shared memory: decoded into a sealed memfd, used in place by the rank.
//!
//! ```text
//!   server                        abstract unix socket                          rank
//!   source ─► Listener ── Batch {header, slab, [descriptor], extra} ──► Receiver ─► Incoming
//!              ▲  keeps the slab                                          │
//!              └──────────────── Release {number} ◄── last reference dropped
//! ```
//!
//! Nothing has a name in a file system, so a crash leaves nothing behind: the kernel removes the socket and the memory with the last
//! process that has them. Each end gets the other's identity from the kernel, and accepts only its own user or root. Each side sends
//! something every few seconds, so silence means that the peer is gone or stopped, never that it is slow.

#![cfg(target_os = "linux")]

mod client;
mod fd;
#[cfg(test)]
mod hostile;
mod link;
mod listener;
pub mod wire;

pub use client::{ConnectOptions, Incoming, Receiver, connect};
pub use listener::{Listener, ListenerOptions, Outgoing, Source};
pub use wire::Refusal;
