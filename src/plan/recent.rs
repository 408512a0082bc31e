//! Recently drawn orders of windows. A step takes a few rows of a window, and drawing makes the order of all of them.
//!
//! The order of a large window is computed row by row. Where all of it was needed at once, it stays for as long as somebody
//! [holds](KeptOrder) it: steps then look its rows up.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::permute::shuffle;

/// Maximum bytes kept of small windows: two of each of 32 lanes at two positions of the epoch, or more of smaller ones. Evicted
/// orders are drawn again.
const MOST_BYTES: usize = 4 << 20;
/// Maximum rows of a large window.
const MOST_ROWS: u64 = 1 << 20;
/// Fewer large orders are not worth scanning.
const FEW: usize = 64;
/// Approximate bytes of an order besides its rows.
const OVERHEAD: usize = 96;

/// See the module documentation.
#[derive(Default)]
pub(super) struct Recent {
    small: Mutex<Orders>,
    large: Mutex<LargeOrders>,
}

/// The order of a large window. Steps find it while it lives.
#[derive(Debug, Clone)]
pub struct KeptOrder(Arc<Large>);

/// The rows of a row group in the order in which an epoch takes them.
#[derive(Debug)]
pub struct TakenRows {
    /// The rows, each once.
    pub rows: Vec<u32>,
    /// What was computed of whole windows on the way. The steps that take the rows are found faster while these live. They have four
    /// bytes for each row of their windows.
    pub kept: Vec<KeptOrder>,
}

/// An order that is computed once: the row groups of a window are decoded at about the same time.
type Large = OnceLock<Arc<[u32]>>;

/// By key and number of rows, which fully determine an order.
type Key = (u64, u64);

#[derive(Default)]
struct LargeOrders {
    /// Some of them are gone.
    orders: HashMap<Key, Weak<Large>>,
    /// Number of entries at which gone ones are next removed.
    most: usize,
}

#[derive(Default)]
struct Orders {
    orders: HashMap<Key, Used>,
    bytes: usize,
    uses: u64,
}

struct Used {
    order: Arc<[u16]>,
    bytes: usize,
    last: u64,
}

impl Recent {
    /// The order of the `n` rows of the window of `key`: at most 2^16.
    pub(super) fn order(&self, n: u64, key: u64) -> Arc<[u16]> {
        if let Some(order) = lock(&self.small).take(n, key) {
            return order;
        }
        // Outside of the lock: callers that need another order do not wait, and those that draw the same one get the
        // same.
        let mut order: Vec<u16> = (0..n).map(|row| row as u16).collect();
        shuffle(&mut order, key);
        let order: Arc<[u16]> = order.into();
        let mut small = lock(&self.small);
        small.keep(n, key, Arc::clone(&order));
        if small.bytes > MOST_BYTES {
            small.forget_half();
        }
        drop(small);
        order
    }

    /// The order of the `n` rows of the large window of `key`, if it is [kept](Self::keep_large).
    pub(super) fn large(&self, n: u64, key: u64) -> Option<Arc<[u32]>> {
        lock(&self.large).find(n, key)?.0.get().cloned()
    }

    /// Keeps the order of the `n` rows of the large window of `key` until the last of those that it is returned to drops it. `compute`
    /// makes it unless it is kept already. `None` if it is too long.
    pub(super) fn keep_large(&self, n: u64, key: u64, compute: impl FnOnce() -> Vec<u32>) -> Option<KeptOrder> {
        if n > MOST_ROWS {
            return None;
        }
        let mut large = lock(&self.large);
        let order = large.find(n, key).unwrap_or_else(|| large.add(n, key));
        drop(large);
        // Outside of the lock; only callers that need the same order wait.
        order.0.get_or_init(|| compute().into());
        Some(order)
    }

    /// Approximate bytes held, without kept orders.
    pub(super) fn memory(&self) -> usize {
        lock(&self.small).bytes
    }
}

fn lock<T>(orders: &Mutex<T>) -> MutexGuard<'_, T> {
    orders.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recent({} bytes)", self.memory())
    }
}

impl LargeOrders {
    fn find(&self, n: u64, key: u64) -> Option<KeptOrder> {
        self.orders.get(&(key, n))?.upgrade().map(KeptOrder)
    }

    /// An order that is not computed yet.
    fn add(&mut self, n: u64, key: u64) -> KeptOrder {
        // At twice as many as were left the last time, so that an order costs one check however many live.
        if self.orders.len() >= self.most.max(FEW) {
            self.orders.retain(|_, order| order.strong_count() > 0);
            self.most = 2 * self.orders.len();
        }
        let order = Arc::default();
        self.orders.insert((key, n), Arc::downgrade(&order));
        KeptOrder(order)
    }
}

impl Orders {
    fn take(&mut self, n: u64, key: u64) -> Option<Arc<[u16]>> {
        self.uses += 1;
        let used = self.orders.get_mut(&(key, n))?;
        used.last = self.uses;
        Some(Arc::clone(&used.order))
    }

    /// Keeps `order`.
    fn keep(&mut self, n: u64, key: u64, order: Arc<[u16]>) {
        let used = Used { bytes: size_of_val(&*order) + OVERHEAD, order, last: self.uses };
        self.bytes += used.bytes;
        self.bytes -= self.orders.insert((key, n), used).map_or(0, |before| before.bytes);
    }

    /// Drops the least recently used half, so that dropping costs little per order.
    fn forget_half(&mut self) {
        let mut uses: Vec<u64> = self.orders.values().map(|used| used.last).collect();
        let middle = uses.len() / 2;
        let oldest = *uses.select_nth_unstable(middle).1;
        self.orders.retain(|_, used| used.last > oldest);
        self.bytes = self.orders.values().map(|used| used.bytes).sum();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn what_is_kept_is_bounded_and_the_same_as_what_is_drawn() {
        let (recent, fresh) = (Recent::default(), Recent::default());
        for round in 0..2 {
            for key in 0..4000_u64 {
                let n = if round == 0 { 1 + key % 4096 } else { 1 + (key * 37) % 300 };
                assert_eq!(recent.order(n, key), recent.order(n, key));
                assert!(recent.memory() <= MOST_BYTES);
            }
        }
        for key in 3990..4000_u64 {
            assert_eq!(recent.order(1000, key), fresh.order(1000, key));
        }
    }

    #[test]
    fn the_order_of_a_large_window_is_computed_once_and_stays_while_it_is_held() {
        let recent = Recent::default();
        let n = 1000;
        let order = |key: u64| (0..n as u32).map(|row| row.rotate_left(key as u32)).collect::<Vec<_>>();
        let mut held = VecDeque::new();
        for key in 0..1000 {
            assert!(recent.large(n, key).is_none());
            let first = recent.keep_large(n, key, || {
                assert!(recent.large(n, key).is_none(), "others do not wait for it");
                order(key)
            });
            let second = recent.keep_large(n, key, || unreachable!("it is kept"));
            drop(first);
            assert_eq!(*recent.large(n, key).unwrap(), order(key));
            assert!(recent.large(n - 1, key).is_none(), "another window of the same key");
            held.push_back(second);
            if held.len() > 8 {
                held.pop_front();
                assert!(recent.large(n, key - 8).is_none(), "nobody holds it");
            }
            assert!(lock(&recent.large).orders.len() <= FEW);
        }
        assert!(recent.large(n, 995).is_some(), "it is held");
        assert!(recent.keep_large(MOST_ROWS + 1, 7, || unreachable!("too long")).is_none());
        assert_eq!(recent.order(1000, 99).len(), 1000, "small windows have a place of their own");
    }
}
