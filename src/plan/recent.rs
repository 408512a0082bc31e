//! Orders of windows that were drawn lately. A step takes a few rows of a window, and drawing makes the order of all of them.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::permute::shuffle;

/// Most bytes kept: two windows of each of 32 lanes at two positions of the epoch, or more of smaller ones. What is not kept is drawn again.
const MOST_BYTES: usize = 4 << 20;
/// Bytes that an order takes beside its rows, about.
const OVERHEAD: usize = 96;

/// See the module.
#[derive(Default)]
pub(super) struct Recent(Mutex<Orders>);

#[derive(Default)]
struct Orders {
    /// By key and number of rows, which are all that an order depends on.
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
        // Outside of the lock: who needs another one does not wait, and who draws the same draws the same.
        let mut order: Vec<u16> = (0..n).map(|row| row as u16).collect();
        shuffle(&mut order, key);
        let order: Arc<[u16]> = order.into();
        self.lock().keep(n, key, &order);
        order
    }

    /// Bytes held, about.
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

    /// Forgets the half that was used longest ago, so that forgetting costs little per order.
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
