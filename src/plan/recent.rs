//! Recently drawn orders of windows. A step takes a few rows of a window, and drawing makes the order of all of them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::permute::shuffle;

/// Maximum bytes kept: two windows of each of 32 lanes at two positions of the epoch, or more of smaller ones. Evicted
/// orders are drawn again.
const MOST_BYTES: usize = 4 << 20;
/// Approximate bytes of an order besides its rows.
const OVERHEAD: usize = 96;

/// See the module documentation.
#[derive(Default)]
pub(super) struct Recent(Mutex<Orders>);

#[derive(Default)]
struct Orders {
    /// By key and number of rows, which fully determine an order.
    orders: HashMap<(u64, u64), Used>,
    bytes: usize,
    uses: u64,
}

struct Used {
    order: Arc<[u16]>,
    last: u64,
}

impl Recent {
    /// The order of the `n` rows of the window of `key`: at most 2^16.
    pub(super) fn order(&self, n: u64, key: u64) -> Arc<[u16]> {
        if let Some(order) = self.lock().take(n, key) {
            return order;
        }
        // Outside of the lock: callers that need another order do not wait, and those that draw the same one get the
        // same.
        let mut order: Vec<u16> = (0..n).map(|row| row as u16).collect();
        shuffle(&mut order, key);
        let order: Arc<[u16]> = order.into();
        self.lock().keep(n, key, &order);
        order
    }

    /// Approximate bytes held.
    pub(super) fn memory(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Recent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Recent({} bytes)", self.memory())
    }
}

impl Orders {
    fn take(&mut self, n: u64, key: u64) -> Option<Arc<[u16]>> {
        self.uses += 1;
        let used = self.orders.get_mut(&(key, n))?;
        used.last = self.uses;
        Some(Arc::clone(&used.order))
    }

    fn keep(&mut self, n: u64, key: u64, order: &Arc<[u16]>) {
        let used = Used { order: Arc::clone(order), last: self.uses };
        if self.orders.insert((key, n), used).is_none() {
            self.bytes += size(order);
        }
        if self.bytes > MOST_BYTES {
            self.forget_half();
        }
    }

    /// Drops the least recently used half, so that dropping costs little per order.
    fn forget_half(&mut self) {
        let mut uses: Vec<u64> = self.orders.values().map(|used| used.last).collect();
        let middle = uses.len() / 2;
        let oldest = *uses.select_nth_unstable(middle).1;
        self.orders.retain(|_, used| used.last > oldest);
        self.bytes = self.orders.values().map(|used| size(&used.order)).sum();
    }
}

fn size(order: &[u16]) -> usize {
    size_of_val(order) + OVERHEAD
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
}
