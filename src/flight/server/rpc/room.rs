//! Room for an answer: memory that it is charged to, from before it is made until its client has read it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tonic::Response;

use super::incoming::{Claim, Place};
use crate::error::Result;

/// Bytes of an answer that is not paid for: the number of such answers is limited by the number of calls.
const SHORT: usize = 64 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Room {
    place: Arc<Place>,
    claim: Mutex<Option<Claim>>,
}

impl Room {
    /// Makes room for an answer to the call of `place`; none is taken yet.
    pub(crate) fn new(place: Arc<Place>) -> Self {
        Self { place, claim: Mutex::default() }
    }

    /// Waits for memory for an answer of `bytes` bytes. Whoever asks holds no part of the answer meanwhile.
    ///
    /// # Errors
    /// [`Error::Timeout`](crate::error::Error::Timeout) if others are not read for too long.
    pub(crate) async fn take(&self, bytes: usize) -> Result<()> {
        if bytes > SHORT {
            let claim = self.place.answer(bytes).await?;
            *self.lock() = Some(claim);
        }
        Ok(())
    }

    /// Gives back what an answer of `bytes` bytes does not need.
    pub(crate) fn shrink(&self, bytes: usize) {
        let mut claim = self.lock();
        match &mut *claim {
            Some(claim) if bytes > SHORT => claim.shrink(bytes),
            _ => *claim = None,
        }
    }

    /// Returns the memory that was taken.
    pub(crate) fn into_claim(self) -> Option<Claim> {
        self.claim.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Attaches to `answer` the memory that it is charged to.
    pub(crate) fn paid<T>(self, answer: T) -> Response<T> {
        let mut response = Response::new(answer);
        if let Some(claim) = self.into_claim() {
            response.extensions_mut().insert(Arc::new(claim));
        }
        response
    }

    fn lock(&self) -> MutexGuard<'_, Option<Claim>> {
        // A claim is replaced whole.
        self.claim.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
