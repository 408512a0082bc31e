//! Turns at slow work that any client may request: a bounded number at once, half of them for one tenant, none on a thread that other
//! tasks need.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::{Error, Result};
use crate::flight::server::access::auth::Tenant;

/// Least and most turns at once; in between, one per decoding thread.
const AT_ONCE: std::ops::RangeInclusive<usize> = 4..=16;

/// Longest wait for a turn.
const PATIENCE: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug)]
pub(crate) struct Turns {
    /// The server's work, for the error after a vain wait.
    doing: &'static str,
    all: Arc<Semaphore>,
    /// Turns that one tenant may have at once.
    each: usize,
    tenants: Mutex<HashMap<Tenant, Arc<Semaphore>>>,
}

/// One turn: a permit of its tenant's and one of all.
#[derive(Debug)]
pub(crate) struct Turn {
    _own: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Turns {
    /// Makes the turns at `doing` of a server that decodes on `threads` threads.
    pub(crate) fn new(doing: &'static str, threads: usize) -> Self {
        let all = threads.clamp(*AT_ONCE.start(), *AT_ONCE.end());
        Self { doing, all: Arc::new(Semaphore::new(all)), each: all / 2, tenants: Mutex::default() }
    }

    /// The turns of `tenant`.
    fn own(&self, tenant: &Tenant) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        // A tenant that has no turn and waits for none is forgotten.
        tenants.retain(|_, own| Arc::strong_count(own) > 1);
        Arc::clone(tenants.entry(tenant.clone()).or_insert_with(|| Arc::new(Semaphore::new(self.each))))
    }

    /// Returns a turn of `tenant` if one is free now.
    pub(crate) fn try_turn(&self, tenant: &Tenant) -> Option<Turn> {
        let own = self.own(tenant).try_acquire_owned().ok()?;
        let all = Arc::clone(&self.all).try_acquire_owned().ok()?;
        Some(Turn { _own: own, _all: all })
    }

    /// Waits for the next free turn of `tenant`.
    ///
    /// # Errors
    /// [`Error::Remote`], to be retried, if it did not come in time.
    pub(crate) async fn turn(&self, tenant: &Tenant) -> Result<Turn> {
        let own = self.own(tenant);
        let turn = async {
            let own = own.acquire_owned().await.ok()?;
            let all = Arc::clone(&self.all).acquire_owned().await.ok()?;
            Some(Turn { _own: own, _all: all })
        };
        match tokio::time::timeout(PATIENCE, turn).await {
            Ok(Some(turn)) => Ok(turn),
            Ok(None) => Err(Error::Closed { why: "the server is closed".to_owned() }),
            Err(_) => Err(Error::Remote {
                peer: "the server".to_owned(),
                what: format!(
                    "{}, {} at once and {} of one tenant, and none was done within {} s",
                    self.doing,
                    self.all.available_permits().max(2 * self.each),
                    self.each,
                    PATIENCE.as_secs()
                ),
                source: None,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_does_not_come_is_an_error_and_one_tenant_leaves_turns_to_others() {
        let turns = Turns::new("works", 1);
        let anna = [turns.turn(&tenant("anna")).await.unwrap(), turns.turn(&tenant("anna")).await.unwrap()];
        assert!(turns.try_turn(&tenant("anna")).is_none());
        let error = turns.turn(&tenant("anna")).await.unwrap_err();
        assert!(matches!(error, Error::Remote { .. }), "{error}");
        turns.turn(&tenant("bert")).await.unwrap();
        assert!(turns.try_turn(&tenant("bert")).is_some());
        drop(anna);
        turns.turn(&tenant("anna")).await.unwrap();
    }
}
