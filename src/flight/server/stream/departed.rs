//! Accounting of a stream's batches on their way out: paid for by the stream while it lasts, then by each batch that its receiver still
//! has.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::budget::Claim;

/// A stream's claim on its batches on their way out.
#[derive(Debug)]
pub(crate) struct Departures(Arc<Shared>);

#[derive(Debug)]
struct Shared(Mutex<State>);

#[derive(Debug)]
struct State {
    claim: Option<Claim>,
    /// Bytes of the claim for each batch.
    each: u64,
    /// Batches that receivers have.
    out: u64,
    /// True if no more will come.
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The claim and the numbers are consistent between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// After the stream has ended, returns the part of the claim that outstanding batches do not need.
    fn settle(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        if !state.ended {
            return;
        }
        let needed = state.each.saturating_mul(state.out);
        let free = if needed == 0 {
            state.claim.take()
        } else {
            state.claim.as_mut().and_then(|claim| claim.split(claim.bytes().saturating_sub(needed)))
        };
        drop(state);
        drop(free);
    }
}

impl Departures {
    /// Wraps the `claim` on `batches` batches at once.
    pub(crate) fn new(claim: Option<Claim>, batches: u64) -> Self {
        let each = claim.as_ref().map_or(0, |claim| claim.bytes() / batches.max(1));
        Self(Arc::new(Shared(Mutex::new(State { claim, each, out: 0, ended: false }))))
    }

    /// Counts a batch as outstanding until the returned value is dropped.
    pub(crate) fn leave(&self) -> Departed {
        self.0.lock().out += 1;
        Departed(Arc::clone(&self.0))
    }
}

impl Drop for Departures {
    fn drop(&mut self) {
        self.0.settle(|state| state.ended = true);
    }
}

/// A batch that its receiver may still have, even after the end of the stream. Dropped when it is returned.
#[derive(Debug)]
pub(crate) struct Departed(Arc<Shared>);

impl Drop for Departed {
    fn drop(&mut self) {
        self.0.settle(|state| state.out -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flight::server::access::auth::Tenant;
    use crate::flight::server::stream::budget::ByteBudget;

    #[tokio::test]
    async fn batches_that_a_receiver_keeps_are_paid_for_after_the_end_of_their_stream() {
        let claims = ByteBudget::new(1 << 20);
        let of = claims.claim(&Tenant::anonymous(), 10 << 14).await.unwrap();
        let stream = Departures::new(Some(of), 10);
        let mut kept: Vec<_> = (0..4).map(|_| stream.leave()).collect();
        drop(kept.pop());
        assert_eq!(claims.used(), 10 << 14, "as long as it lasts it has room for more");
        drop(stream);
        for left in [3, 2, 1, 0] {
            assert_eq!(claims.used(), left << 14);
            drop(kept.pop());
        }
        drop(Departures::new(None, 10).leave());
    }
}
