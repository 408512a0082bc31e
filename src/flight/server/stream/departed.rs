//! What the batches of a stream on their way out are paid with: by the stream as long as it lasts, then by each that its receiver still has.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::budget::Claim;

/// The claim of a stream on its batches on their way out.
#[derive(Debug)]
pub(crate) struct Departures(Arc<Shared>);

#[derive(Debug)]
struct Shared(Mutex<State>);

#[derive(Debug)]
struct State {
    claim: Option<Claim>,
    /// Bytes of the claim for each batch.
    each: u64,
    /// Batches that somebody has.
    out: u64,
    /// Whether no more will come.
    ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A claim and the numbers are whole between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives back what the batches that are still out do not need, once there will be no more.
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
    /// A `claim` for `batches` batches at once.
    pub(crate) fn new(claim: Option<Claim>, batches: u64) -> Self {
        let each = claim.as_ref().map_or(0, |claim| claim.bytes() / batches.max(1));
        Self(Arc::new(Shared(Mutex::new(State { claim, each, out: 0, ended: false }))))
    }

    /// One batch leaves.
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

/// A batch that its receiver may still have, whatever became of the stream. Dropped when it is given back.
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
