//! The blocks that readers fetch for this home: one reader for each, and the others that ask for it wait.
//!
//! A lease ends when its reader has given the block or is gone, or after a while. Those that wait get the bytes as soon as they are here,
//! before they are on the disk; or else one of them gets the next lease.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;

use crate::store::cache::Block;

/// Most leases at once.
const MOST: usize = 1 << 16;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Leases {
    numbers: AtomicU64,
    taken: Mutex<HashMap<Block, Arc<Fetch>>>,
}

/// The fetch of one block.
#[derive(Debug)]
struct Fetch {
    number: u64,
    state: watch::Sender<State>,
}

#[derive(Debug, Clone)]
enum State {
    /// Its reader fetches it.
    Leased,
    /// Its reader has given it.
    Here(Bytes),
    /// Its reader is gone, or too slow.
    Over,
}

/// The outcome of taking a lease.
#[derive(Debug)]
pub(super) enum Taken {
    Mine(Lease),
    /// Another reader has it.
    Theirs(Waiting),
    /// There are too many.
    Full,
}

/// The right to fetch a block, until it is dropped.
#[derive(Debug)]
pub(super) struct Lease {
    leases: Arc<Leases>,
    block: Block,
    fetch: Arc<Fetch>,
}

/// A reader that waits for the block of another one's lease.
#[derive(Debug)]
pub(super) struct Waiting(watch::Receiver<State>);

/// A block that its reader gives now. Its lease is over once this is dropped.
#[derive(Debug)]
pub(super) struct Giving {
    leases: Arc<Leases>,
    block: Block,
    fetch: Arc<Fetch>,
}

impl Leases {
    fn taken(&self) -> MutexGuard<'_, HashMap<Block, Arc<Fetch>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the lease of `block`, unless another reader has it.
    pub(super) fn take(self: &Arc<Self>, block: Block) -> Taken {
        let mut taken = self.taken();
        let count = taken.len();
        match taken.entry(block) {
            Entry::Occupied(entry) => Taken::Theirs(Waiting(entry.get().state.subscribe())),
            Entry::Vacant(_) if count >= MOST => Taken::Full,
            Entry::Vacant(entry) => {
                let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
                let fetch = Arc::new(Fetch { number, state: watch::channel(State::Leased).0 });
                entry.insert(Arc::clone(&fetch));
                Taken::Mine(Lease { leases: Arc::clone(self), block, fetch })
            }
        }
    }

    /// The reader with lease `number` gives `block`; none if there is no such lease.
    pub(super) fn given(self: &Arc<Self>, block: Block, number: u64) -> Option<Giving> {
        let fetch = self.taken().get(&block).filter(|fetch| fetch.number == number).cloned()?;
        Some(Giving { leases: Arc::clone(self), block, fetch })
    }

    fn end(&self, block: &Block, number: u64) {
        let mut taken = self.taken();
        if taken.get(block).is_some_and(|fetch| fetch.number == number) {
            taken.remove(block);
        }
    }
}

impl Lease {
    pub(super) fn number(&self) -> u64 {
        self.fetch.number
    }

    /// Waits until the block is given.
    pub(super) async fn fulfilled(&self) {
        // The sender lives as long as this does.
        let _ = self.fetch.state.subscribe().wait_for(|state| !matches!(state, State::Leased)).await;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let ended = self.fetch.state.send_if_modified(|state| {
            let is_leased = matches!(state, State::Leased);
            if is_leased {
                *state = State::Over;
            }
            is_leased
        });
        // If the block is here, it stays findable until it is kept.
        if ended {
            self.leases.end(&self.block, self.fetch.number);
        }
    }
}

impl Waiting {
    /// The bytes, once they are here; none if the lease is over.
    pub(super) async fn outcome(&mut self) -> Option<Bytes> {
        let state = self.0.wait_for(|state| !matches!(state, State::Leased)).await;
        match state.as_deref() {
            Ok(State::Here(bytes)) => Some(bytes.clone()),
            _ => None,
        }
    }
}

impl Giving {
    /// Hands `bytes` to all that wait.
    pub(super) fn is_here(&self, bytes: Bytes) {
        self.fetch.state.send_replace(State::Here(bytes));
    }
}

impl Drop for Giving {
    fn drop(&mut self) {
        let is_here = matches!(*self.fetch.state.borrow(), State::Here(_));
        // A reader whose block did not arrive may still have its lease.
        if is_here {
            self.leases.end(&self.block, self.fetch.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::cache::cluster::wire;

    fn block(number: u64) -> Block {
        wire::travelling(&format!("{:032x}-{:x}-{:x}", 7, number, number + 10)).unwrap()
    }

    fn lease(leases: &Arc<Leases>, block: Block) -> Lease {
        match leases.take(block) {
            Taken::Mine(lease) => lease,
            other => panic!("{other:?}"),
        }
    }

    fn waiting(leases: &Arc<Leases>, block: Block) -> Waiting {
        match leases.take(block) {
            Taken::Theirs(waiting) => waiting,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn one_fetches_and_the_others_get_it() {
        let leases = Arc::new(Leases::default());
        let (mine, mut first) = (lease(&leases, block(1)), waiting(&leases, block(1)));
        let other = lease(&leases, block(2));
        assert!(mine.number() != other.number());
        assert!(leases.given(block(1), other.number()).is_none(), "another lease");
        let giving = leases.given(block(1), mine.number()).unwrap();
        giving.is_here(Bytes::from_static(b"bytes"));
        mine.fulfilled().await;
        drop(mine);
        // It is on its way to the disk.
        let mut late = waiting(&leases, block(1));
        assert_eq!(first.outcome().await.unwrap(), "bytes");
        assert_eq!(late.outcome().await.unwrap(), "bytes");
        drop(giving);
        lease(&leases, block(1));
        drop(other);
        assert!(leases.taken().is_empty());
    }

    #[tokio::test]
    async fn if_the_reader_is_gone_one_of_the_others_is_next() {
        let leases = Arc::new(Leases::default());
        let mine = lease(&leases, block(1));
        let (mut first, mut second) = (waiting(&leases, block(1)), waiting(&leases, block(1)));
        // What arrived of it was damaged.
        drop(leases.given(block(1), mine.number()).unwrap());
        let number = mine.number();
        drop(mine);
        assert_eq!((first.outcome().await, second.outcome().await), (None, None));
        let next = lease(&leases, block(1));
        assert!(next.number() > number && leases.given(block(1), number).is_none());
        waiting(&leases, block(1));
    }
}
