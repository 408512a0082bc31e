//! The rate of refusals per peer: beyond it refusals are delayed and no longer logged one by one.
//!
//! Accepted calls are never delayed, however many calls from their address were refused: many ranks may share one address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tonic::Status;

use crate::flight::server::ops::places::host;

/// Most peers that are remembered; those that were refused longest ago are forgotten.
const PEERS: usize = 16_384;
/// Delay of a refusal beyond the rate.
const HELD: Duration = Duration::from_secs(1);
const MINUTE: f64 = 60.0;

#[derive(Debug, Clone, Copy)]
struct Peer {
    /// Refusals left at `at`.
    left: f64,
    at: Instant,
    /// Refusals delayed since the last one that was answered at once.
    held: u64,
}

/// Refusals by address of the peer.
#[derive(Debug)]
pub(crate) struct Refusals {
    per_minute: f64,
    peers: Mutex<Peers>,
}

#[derive(Debug, Default)]
struct Peers {
    known: HashMap<IpAddr, Peer>,
    /// Set when no peer could be forgotten: scanning all of them for each refusal would cost more than a refusal is worth.
    full: Option<Instant>,
}

impl Refusals {
    /// Allows `per_minute` refusals a minute, and as many at once.
    pub(crate) fn new(per_minute: u32) -> Self {
        Self { per_minute: per_minute.into(), peers: Mutex::default() }
    }

    /// Counts a refusal of `peer` at `now`. Returns the number delayed since the last immediate one, or `None` if this one is to be
    /// delayed too.
    fn count(&self, peer: IpAddr, now: Instant) -> Option<u64> {
        let peer = host(peer);
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if peers.known.len() >= PEERS && !peers.known.contains_key(&peer) {
            if peers.full.is_some_and(|full| now.saturating_duration_since(full) < HELD) {
                return None;
            }
            // A peer with its full allowance need not be remembered.
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

    /// Delays a refusal of `peer` if it has had too many. Returns the refusal with the number of earlier ones that were delayed, or
    /// `None` if this one was.
    pub(crate) async fn hold(&self, peer: Option<IpAddr>, status: Status) -> (Status, Option<u64>) {
        let Some(address) = peer else { return (status, Some(0)) };
        match self.count(address, Instant::now()) {
            Some(held) => (status, Some(held)),
            None => {
                tokio::time::sleep(HELD).await;
                (Status::resource_exhausted("too many calls from your address are refused; mend them first"), None)
            }
        }
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
        // Memory stays bounded for any number of addresses.
        for at in 0..100_000 {
            refusals.count(address(at), start);
        }
        assert!(refusals.peers.lock().unwrap().known.len() <= PEERS);
        assert_eq!(refusals.count(address(200_000), start + Duration::from_secs(120)), Some(0), "forgotten in time");
    }
}
