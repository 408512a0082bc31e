//! The end of a connection whose client takes nothing any more, asked for by those who need what its streams hold.
//!
//! A batch that a client does not read lies with the transport, which sends it when the client makes room, and hears of nothing else
//! meanwhile: the stream itself cannot be ended any more. Its connection can.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Ends one connection. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Hangup(Arc<watch::Sender<bool>>);

impl Default for Hangup {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(false)))
    }
}

impl Hangup {
    /// Asks for the end; whether nobody did before.
    pub(crate) fn ask(&self) -> bool {
        !self.0.send_replace(true)
    }

    /// Waits until somebody asks for the end.
    pub(crate) fn asked(&self) -> impl Future<Output = ()> + Send + use<> {
        let (mut asked, sender) = (self.0.subscribe(), Arc::clone(&self.0));
        async move {
            // Its sender lives as long as this.
            let _ = asked.wait_for(|asked| *asked).await;
            drop(sender);
        }
    }

    /// Whether both end the same connection.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The connections of a server by the address of their client, which is one connection's at a time.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hangups(Arc<Mutex<HashMap<SocketAddr, Hangup>>>);

impl Hangups {
    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Hangup>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection from `address` begins.
    pub(crate) fn connect(&self, address: SocketAddr) -> Connected {
        let hangup = Hangup::default();
        self.lock().insert(address, hangup.clone());
        Connected { all: self.clone(), address, hangup }
    }

    /// What ends the connection from `address`.
    pub(crate) fn of(&self, address: SocketAddr) -> Option<Hangup> {
        self.lock().get(&address).cloned()
    }
}

/// A connection that can be ended, for as long as it lasts.
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
        assert!(found.ask() && !first.hangup.ask());
        waits.await.unwrap();
        let second = all.connect(address);
        drop(first);
        assert!(all.of(address).unwrap().same(&second.hangup), "the later one");
        drop(second);
        assert!(all.of(address).is_none());
    }
}
