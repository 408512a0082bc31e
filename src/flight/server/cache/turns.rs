//! Whose block is sent next. A few are sent at once and the others wait, for a link that many share would have all of them come too late.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Blocks that are sent at once, to all readers and to one connection.
const TURNS: usize = 8;
const OF_ONE: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    connections: Mutex<HashMap<Option<SocketAddr>, Weak<Semaphore>>>,
}

/// The turn of one block, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _all: OwnedSemaphorePermit,
    _of_one: OwnedSemaphorePermit,
    _connection: Arc<Semaphore>,
}

impl Default for Turns {
    fn default() -> Self {
        Self { all: Arc::new(Semaphore::new(TURNS)), connections: Mutex::default() }
    }
}

impl Turns {
    /// Waits for the turn of one more block for the reader at the other end of a connection. A reader that stands still has some turns and
    /// not all of them.
    pub(super) async fn next(&self, connection: Option<SocketAddr>) -> Option<Turn> {
        let connection = self.of(connection);
        let of_one = Arc::clone(&connection).acquire_owned().await.ok()?;
        let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
        Some(Turn { _all: all, _of_one: of_one, _connection: connection })
    }

    fn of(&self, connection: Option<SocketAddr>) -> Arc<Semaphore> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turns) = connections.get(&connection).and_then(Weak::upgrade) {
            return turns;
        }
        connections.retain(|_, turns| turns.strong_count() > 0);
        let turns = Arc::new(Semaphore::new(OF_ONE));
        connections.insert(connection, Arc::downgrade(&turns));
        turns
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn one_connection_has_some_turns_and_all_of_them_few() {
        let turns = Turns::default();
        let address = |number: u16| Some(SocketAddr::from(([127, 0, 0, 1], number)));
        let next = |number| turns.next(address(number)).now_or_never().flatten();
        let one: Vec<_> = (0..OF_ONE).map(|_| next(1).unwrap()).collect();
        assert!(next(1).is_none(), "the others of a connection wait");
        let mut more: Vec<_> = (2..).map_while(next).collect();
        assert_eq!(more.len(), TURNS - OF_ONE);
        drop(one);
        more.extend((0..OF_ONE).map(|_| next(1).unwrap()));
        assert!(next(9).is_none());
        drop(more);
        assert!(next(9).is_some());
        assert_eq!(turns.connections.lock().unwrap().len(), 1, "connections that wait for nothing are forgotten");
    }
}
