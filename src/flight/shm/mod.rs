//! Batches for ranks on the server's host, through shared memory: decoded into a sealed memfd, used in place by the rank.
//!
//! ```text
//!   server                        abstract unix socket                          rank
//!   source ─► Listener ── Batch {header, slab, [descriptor], extra} ──► Receiver ─► Incoming
//!              ▲  keeps the slab                                          │
//!              └──────────────── Release {number} ◄── last reference dropped
//! ```
//!
//! Nothing has a name in a file system, so nothing is left behind by a crash: the kernel ends the socket and the memory with the
//! last process that has them. Both ends ask the kernel who the other is, and speak only with their own user or root.
//! Each side says something every few seconds, so that silence means that a peer is gone or stopped, never that it is slow.

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
