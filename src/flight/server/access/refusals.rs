//! How often one peer may be refused: beyond that it waits for its refusals, and they are not logged one by one.
//!
//! Calls that are let in are never held, whatever their address was refused: many ranks may share one.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::flight::server::ops::connections::host;

/// Most peers that are remembered; those that were refused longest ago are forgotten.
const PEERS: usize = 16_384;
/// How long a refusal beyond the rate is held.
pub(crate) const HELD: Duration = Duration::from_secs(1);
const MINUTE: f64 = 60.0;

#[derive(Debug, Clone, Copy)]
struct Peer {
    /// Refusals that are left at `at`.
    left: f64,
    at: Instant,
    /// Those that were held since one was answered at once.
    held: u64,
}

/// Refusals by the address that they went to.
#[derive(Debug)]
pub(crate) struct Refusals {
    per_minute: f64,
    peers: Mutex<Peers>,
}

#[derive(Debug, Default)]
struct Peers {
    known: HashMap<IpAddr, Peer>,
    /// When nobody could be forgotten: looking at all of them for each refusal would cost more than a refusal is worth.
    full: Option<Instant>,
}

impl Refusals {
    /// So many a minute, and at once.
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { per_minute: per_minute.into(), peers: Mutex::default() }
    }

    /// Counts a refusal of `peer` at `now`: those that were held since the last one, or `None` if this one is to be held too.
    pub(crate) fn count(&self, peer: IpAddr, now: Instant) -> Option<u64> {
        let peer = host(peer);
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.known.len() >= PEERS && !peers.known.contains_key(&peer) {
            if peers.full.is_some_and(|full| now.saturating_duration_since(full) < HELD) {
                return None;
            }
            // What has all of its refusals left is as if it had never been here.
            peers.known.retain(|_, peer| self.left(*peer, now) < self.per_minute);
            peers.full = (peers.known.len() >= PEERS).then_some(now);
            if peers.full.is_some() {
                return None;
            }
        }
        let known = peers.known.entry(peer).or_insert(Peer { left: self.per_minute, at: now, held: 0 });
        let left = self.left(*known, now);
        (known.left, known.at) = (left, now);
        if left < 1.0 {
            known.held += 1;
            return None;
        }
        known.left -= 1.0;
        Some(std::mem::take(&mut known.held))
    }

    fn left(&self, peer: Peer, now: Instant) -> f64 {
        let gained = now.saturating_duration_since(peer.at).as_secs_f64() * self.per_minute / MINUTE;
        (peer.left + gained).min(self.per_minute)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_is_held_and_the_others_are_not() {
        let (refusals, start) = (Refusals::new(60), Instant::now());
        let address = |at: u32| IpAddr::from(at.to_be_bytes());
        assert!((0..60).all(|_| refusals.count(address(1), start) == Some(0)));
        assert!((0..10).all(|_| refusals.count(address(1), start).is_none()));
        assert_eq!(refusals.count(address(2), start), Some(0));
        assert_eq!(refusals.count(address(1), start + Duration::from_secs(1)), Some(10), "one a second comes again");
        assert_eq!(refusals.count(address(1), start + Duration::from_secs(1)), None);
        let of_one_host = |at: u16| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, at]);
        assert!((0..60).all(|at| refusals.count(of_one_host(at), start).is_some()));
        assert_eq!(refusals.count(of_one_host(60), start), None, "another address of the same host");
        // As many peers as there are addresses cost no more memory than the limit says.
        for at in 0..100_000 {
            refusals.count(address(at), start);
        }
        assert!(refusals.peers.lock().unwrap().known.len() <= PEERS);
        assert_eq!(refusals.count(address(200_000), start + Duration::from_secs(120)), Some(0), "forgotten in time");
    }
}
