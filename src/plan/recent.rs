//! Recently drawn orders of windows. A step takes a few rows of a window, and drawing makes the order of all of them.
//!
//! The order of a large window is computed row by row. It is kept where all of it was needed at once: steps then look its rows up.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::permute::shuffle;

/// Maximum bytes kept of small windows: two of each of 32 lanes at two positions of the epoch, or more of smaller ones. Evicted
/// orders are drawn again.
const MOST_BYTES: usize = 4 << 20;
/// The same of large windows, whose rows take much more than the four bytes of a row here: two of each of 8 lanes of a million rows,
/// or more of smaller ones.
const MOST_LARGE_BYTES: usize = 64 << 20;
/// Maximum rows of a large window: sixteen of them fit.
const MOST_ROWS: u64 = (MOST_LARGE_BYTES / 16 / size_of::<u32>()) as u64;
/// Approximate bytes of an order besides its rows.
const OVERHEAD: usize = 96;

/// See the module documentation.
#[derive(Default)]
pub(super) struct Recent {
    small: Mutex<Orders<Arc<[u16]>>>,
    large: Mutex<Orders<Large>>,
}

/// An order that is computed once: the row groups of a window are decoded at about the same time.
type Large = Arc<OnceLock<Arc<[u32]>>>;

struct Orders<T> {
    /// By key and number of rows, which fully determine an order.
    orders: HashMap<(u64, u64), Used<T>>,
    bytes: usize,
    uses: u64,
}

struct Used<T> {
    order: T,
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
        small.keep(n, key, Arc::clone(&order), size_of_val(&*order));
        if small.bytes > MOST_BYTES {
            small.forget_half();
        }
        drop(small);
        order
    }

    /// The order of the `n` rows of the large window of `key`, if it was [kept](Self::keep_large).
    pub(super) fn large(&self, n: u64, key: u64) -> Option<Arc<[u32]>> {
        lock(&self.large).take(n, key)?.get().cloned()
    }

    /// Keeps the order of the `n` rows of the large window of `key`, which `compute` returns unless it is kept already, or is too long.
    pub(super) fn keep_large(&self, n: u64, key: u64, compute: impl FnOnce() -> Vec<u32>) {
        if n > MOST_ROWS {
            return;
        }
        let order = {
            let mut large = lock(&self.large);
            large.take(n, key).unwrap_or_else(|| {
                let order = Large::default();
                large.keep(n, key, Arc::clone(&order), n as usize * size_of::<u32>());
                // One by one: windows that lanes come to next were used as little as those that they have left.
                while large.bytes > MOST_LARGE_BYTES {
                    large.forget_oldest();
                }
                order
            })
        };
        // Outside of the lock; only callers that need the same order wait.
        order.get_or_init(|| compute().into());
    }

    /// Approximate bytes held.
    pub(super) fn memory(&self) -> usize {
        lock(&self.small).bytes + lock(&self.large).bytes
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

impl<T> Default for Orders<T> {
    fn default() -> Self {
        Self { orders: HashMap::new(), bytes: 0, uses: 0 }
    }
}

impl<T: Clone> Orders<T> {
    fn take(&mut self, n: u64, key: u64) -> Option<T> {
        self.uses += 1;
        let used = self.orders.get_mut(&(key, n))?;
        used.last = self.uses;
        Some(used.order.clone())
    }

    /// Keeps `order`, which has `bytes`.
    fn keep(&mut self, n: u64, key: u64, order: T, bytes: usize) {
        let used = Used { order, bytes: bytes + OVERHEAD, last: self.uses };
        self.bytes += used.bytes;
        self.bytes -= self.orders.insert((key, n), used).map_or(0, |before| before.bytes);
    }

    /// Drops the least recently used order.
    fn forget_oldest(&mut self) {
        let oldest = self.orders.iter().min_by_key(|(_, used)| used.last).map(|(key, _)| *key);
        let dropped = oldest.and_then(|key| self.orders.remove(&key));
        self.bytes -= dropped.map_or(self.bytes, |used| used.bytes);
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
    fn large_windows_are_kept_within_their_bytes_and_computed_once() {
        let recent = Recent::default();
        let n = MOST_ROWS / 4;
        let order = |key: u64| (0..n as u32).map(|row| row.rotate_left(key as u32)).collect::<Vec<_>>();
        for key in 0..100 {
            assert!(recent.large(n, key).is_none());
            recent.keep_large(n, key, || {
                assert!(recent.large(n, key).is_none(), "others do not wait for it");
                order(key)
            });
            recent.keep_large(n, key, || unreachable!("it is kept"));
            assert_eq!(*recent.large(n, key).unwrap(), order(key));
            assert!(recent.large(n - 1, key).is_none(), "another window of the same key");
            assert!(recent.memory() <= MOST_LARGE_BYTES);
        }
        assert!(recent.large(n, 0).is_none(), "the oldest went");
        assert!(recent.large(n, 40).is_some(), "and only as many as had to");
        recent.keep_large(MOST_ROWS + 1, 7, || unreachable!("too long"));
        assert_eq!(recent.order(1000, 99).len(), 1000, "small windows have a place of their own");
    }
}
