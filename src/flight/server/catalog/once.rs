//! Answers computed once for many ranks that ask the same of an open dataset: plans of epochs, and memory needs of shares.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OnceCell;

use super::turns::Turns;
use crate::error::{Error, Result};
use crate::flight::server::access::auth::Tenant;

/// The last few answers, by key.
#[derive(Debug)]
pub(crate) struct Once<K, T> {
    /// The most recently used is last.
    answers: Mutex<VecDeque<(K, Arc<OnceCell<T>>)>>,
    most: usize,
}

impl<K: PartialEq, T: Clone + Send + Sync + 'static> Once<K, T> {
    /// Makes an empty set that keeps `most` answers.
    pub(crate) fn new(most: usize) -> Self {
        Self { answers: Mutex::default(), most }
    }

    fn cell(&self, key: K) -> Arc<OnceCell<T>> {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let at = answers.iter().position(|(known, _)| *known == key);
        let (key, cell) = at.and_then(|at| answers.remove(at)).unwrap_or_else(|| (key, Arc::default()));
        answers.push_back((key, Arc::clone(&cell)));
        if answers.len() > self.most {
            answers.pop_front();
        }
        cell
    }

    /// Returns the answer to `key`. `work` computes it in the turn of `tenant`, on a thread that may block, unless another caller has
    /// done so.
    ///
    /// # Errors
    /// Those of `work` and of [`Turns::turn`]; they are not kept.
    pub(crate) async fn get(
        &self,
        key: K,
        (turns, tenant): (&Turns, &Tenant),
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let cell = self.cell(key);
        if let Some(known) = cell.get() {
            return Ok(known.clone());
        }
        // Taken before the cell, so that nobody waits there for a tenant whose turn is yet to come.
        let turn = turns.turn(tenant).await?;
        let find = async || {
            // The turn ends with the work, even if the caller gives up.
            let found = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                work()
            });
            found.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("planning ended: {error}") }))
        };
        cell.get_or_try_init(find).await.cloned()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn what_all_ranks_ask_for_is_worked_out_once() {
        let (once, turns) = (Once::new(2), Turns::new("plans", 4));
        let asked = Arc::new(AtomicUsize::new(0));
        let ask = async |key: u64| {
            let asked = Arc::clone(&asked);
            let work = move || {
                std::thread::sleep(Duration::from_millis(20));
                asked.fetch_add(1, Ordering::SeqCst);
                Ok(key + 1)
            };
            once.get(key, (&turns, &Tenant::anonymous()), work).await
        };
        let all = futures::future::join_all((0..64).map(|rank| ask(rank % 2))).await;
        assert!(all.iter().zip(0..).all(|(found, rank)| *found.as_ref().unwrap() == rank % 2 + 1), "{all:?}");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        // The least recently used makes room.
        for (key, count) in [(0, 2), (7, 3), (0, 3), (1, 4)] {
            assert_eq!(ask(key).await.unwrap(), key + 1);
            assert_eq!(asked.load(Ordering::SeqCst), count, "{key}");
        }
        let failed = || Err::<u64, _>(Error::Closed { why: "once".to_owned() });
        assert!(once.get(9, (&turns, &Tenant::anonymous()), failed).await.is_err());
        assert_eq!(ask(9).await.unwrap(), 10, "an error is not kept");
    }
}
