//! Ending a connection on behalf of others: its client has stopped reading while streams need the memory, or it has made no call while
//! another one needs its place.
//!
//! An unread batch is held by the transport, which sends it once the client makes room and reacts to nothing else in the meantime: the
//! stream itself can no longer be ended. Its connection can.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// Bytes sent that show that a client reads; answers to pings are fewer.
const READS: u64 = 64 << 10;
/// Why a connection ends.
const UNREAD: &str = "its client read nothing while others waited for memory";
const GIVES_WAY: &str = "it made no admitted call, and another connection needed its place";

/// Ends one connection. Clones end the same one.
#[derive(Debug, Clone)]
pub(crate) struct Hangup(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// The reason, once it is to end.
    end: watch::Sender<Option<&'static str>>,
    /// True once a call of its client was admitted.
    admitted: AtomicBool,
    moved: Mutex<Moved>,
}

/// What the connection has taken.
#[derive(Debug)]
struct Moved {
    /// Bytes sent since the client was last seen to read, and that time.
    sent: u64,
    at: Instant,
    /// Time for which it took nothing, and since when it takes nothing now.
    stuck: Duration,
    since: Option<Instant>,
}

impl Default for Hangup {
    fn default() -> Self {
        Self(Arc::new(Inner {
            end: watch::Sender::new(None),
            admitted: AtomicBool::new(false),
            moved: Mutex::new(Moved { sent: 0, at: Instant::now(), stuck: Duration::ZERO, since: None }),
        }))
    }
}

impl Hangup {
    /// Asks for the end, because nothing is read. Returns true on the first call.
    pub(crate) fn ask(&self) -> bool {
        self.end(UNREAD)
    }

    /// Asks for the end, because another connection needs its place.
    pub(crate) fn give_way(&self) {
        self.end(GIVES_WAY);
    }

    fn end(&self, reason: &'static str) -> bool {
        self.0.end.send_if_modified(|why| {
            let first = why.is_none();
            why.get_or_insert(reason);
            first
        })
    }

    /// Returns the reason for the end that was asked for.
    pub(crate) fn why(&self) -> Option<&'static str> {
        *self.0.end.borrow()
    }

    /// Records that a call of the client was admitted.
    pub(crate) fn admit(&self) {
        self.0.admitted.store(true, Ordering::Relaxed);
    }

    /// Returns true if no call of the client was admitted yet.
    pub(crate) fn is_stranger(&self) -> bool {
        !self.0.admitted.load(Ordering::Relaxed)
    }

    fn moved(&self) -> MutexGuard<'_, Moved> {
        self.0.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that `bytes` were sent, or that the connection takes none.
    pub(crate) fn wrote(&self, bytes: Option<usize>) {
        let mut moved = self.moved();
        let Some(bytes) = bytes else {
            moved.since.get_or_insert_with(Instant::now);
            return;
        };
        if let Some(since) = moved.since.take() {
            moved.stuck += since.elapsed();
        }
        moved.sent = moved.sent.saturating_add(bytes as u64);
        if moved.sent >= READS {
            (moved.sent, moved.at) = (0, Instant::now());
        }
    }

    /// Returns the time for which the client has taken next to nothing.
    pub(crate) fn still(&self) -> Duration {
        self.moved().at.elapsed()
    }

    /// Returns the time for which the connection took no bytes, in all.
    pub(crate) fn stuck(&self) -> Duration {
        let moved = self.moved();
        moved.stuck + moved.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Waits until the end is asked for.
    pub(crate) fn asked(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut asked, inner) = (self.0.end.subscribe(), Arc::clone(&self.0));
        async move {
            // Its sender lives as long as this future.
            let _ = asked.wait_for(Option::is_some).await;
            drop(inner);
        }
    }

    /// Returns true if both end the same connection.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The connections of a server by the client's address, which only one connection has at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hangups(Arc<Mutex<HashMap<SocketAddr, Hangup>>>);

impl Hangups {
    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Hangup>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a connection from `address`.
    pub(crate) fn connect(&self, address: SocketAddr) -> Connected {
        let hangup = Hangup::default();
        self.lock().insert(address, hangup.clone());
        Connected { all: self.clone(), address, hangup }
    }

    /// Records that a call that came from `address` was admitted.
    pub(crate) fn admit(&self, address: Option<SocketAddr>) {
        if let Some(hangup) = address.and_then(|address| self.of(address)) {
            hangup.admit();
        }
    }

    /// Returns the handle that ends the connection from `address`.
    pub(crate) fn of(&self, address: SocketAddr) -> Option<Hangup> {
        self.lock().get(&address).cloned()
    }
}

/// A registered connection, which can be ended for as long as it lasts.
#[derive(Debug)]
pub(crate) struct Connected {
    all: Hangups,
    address: SocketAddr,
    pub(crate) hangup: Hangup,
}

impl Drop for Connected {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        // The next connection from the same address may have come before this one was dropped.
        if all.get(&self.address).is_some_and(|known| known.same(&self.hangup)) {
            all.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_found_by_their_address_and_end_once() {
        let (all, address) = (Hangups::default(), "10.0.0.1:7".parse().unwrap());
        let first = all.connect(address);
        let found = all.of(address).unwrap();
        assert!(found.same(&first.hangup));
        let waits = tokio::spawn(first.hangup.asked());
        assert!(first.hangup.is_stranger());
        all.admit(Some(address));
        assert!(!first.hangup.is_stranger() && first.hangup.why().is_none());
        assert!(found.ask() && !first.hangup.ask());
        waits.await.unwrap();
        let second = all.connect(address);
        drop(first);
        assert!(all.of(address).unwrap().same(&second.hangup), "the later one");
        drop(second);
        assert!(all.of(address).is_none());
    }
}
