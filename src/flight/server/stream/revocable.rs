//! What a stream holds while nobody takes anything of it, within reach of those who need its memory.
//!
//! ```text
//!   take ─► (a message is made) ─► put ─► (the client reads) ─► take …
//!                                    └─ given up meanwhile: take finds nothing, and the stream gets it anew
//! ```

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::hangup::Hangup;
use crate::flight::server::access::auth::Tenant;

/// A seat of any kind, as those see it who need memory.
pub(crate) trait Held: fmt::Debug + Send + Sync {
    /// Whose it is.
    fn tenant(&self) -> &Tenant;
    /// How long nobody has taken anything of it; none while a message is made, or where nothing is held.
    fn idle(&self) -> Option<Duration>;
    /// How long its client has taken nothing of the message that it was sent; none while the next one is made.
    fn unread(&self) -> Option<Duration>;
    /// What ends its connection, if anything does: what was sent and is not read goes with it.
    fn hangup(&self) -> Option<&Hangup>;
    /// Lets go of what is held: at once, or as soon as the message that is being made is made. False where nothing is held.
    fn give_up(&self) -> bool;
}

/// See the module. One stream uses it, one message at a time.
#[derive(Debug)]
pub(crate) struct Revocable<T>(Arc<Inner<T>>);

#[derive(Debug)]
struct Inner<T> {
    tenant: Tenant,
    hangup: Option<Hangup>,
    state: Mutex<State<T>>,
    /// When the message was sent that the client has now; none while the next one is made.
    sent: Mutex<Option<Instant>>,
}

#[derive(Debug)]
enum State<T> {
    /// Held, and since when nobody has taken anything of it.
    Here(T, Instant),
    /// With the stream, which makes a message of it.
    Away,
    /// As `Away`, and not to come back.
    Wanted,
    /// Nothing is held.
    Gone,
}

impl<T> Inner<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // The state is replaced whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sent(&self) -> MutexGuard<'_, Option<Instant>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: fmt::Debug + Send + 'static> Revocable<T> {
    /// A seat of `tenant` that holds nothing, of a stream over the connection that `hangup` ends.
    pub(crate) fn new(tenant: &Tenant, hangup: Option<Hangup>) -> Self {
        let (state, sent) = (Mutex::new(State::Gone), Mutex::new(Some(Instant::now())));
        Self(Arc::new(Inner { tenant: tenant.clone(), hangup, state, sent }))
    }

    /// Notes that the client asks for the next message: it has read the one before.
    pub(crate) fn asked(&self) {
        *self.0.sent() = None;
    }

    /// Notes that a message goes to the client.
    pub(crate) fn sent(&self) {
        *self.0.sent() = Some(Instant::now());
    }

    /// As others see it.
    pub(crate) fn held(&self) -> Arc<dyn Held> {
        Arc::<Inner<T>>::clone(&self.0)
    }

    /// What is held; none if it was given up.
    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.0.lock();
        match std::mem::replace(&mut *state, State::Gone) {
            State::Here(value, _) => {
                *state = State::Away;
                Some(value)
            }
            _ => None,
        }
    }

    /// Holds `value` until it is taken or given up.
    pub(crate) fn put(&self, value: T) {
        let mut state = self.0.lock();
        if matches!(*state, State::Wanted) {
            *state = State::Gone;
            drop(state);
            drop(value);
            return;
        }
        *state = State::Here(value, Instant::now());
    }
}

impl<T: fmt::Debug + Send> Held for Inner<T> {
    fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    fn idle(&self) -> Option<Duration> {
        match &*self.lock() {
            State::Here(_, since) => Some(since.elapsed()),
            _ => None,
        }
    }

    fn unread(&self) -> Option<Duration> {
        self.sent().map(|sent| sent.elapsed())
    }

    fn hangup(&self) -> Option<&Hangup> {
        self.hangup.as_ref()
    }

    fn give_up(&self) -> bool {
        let mut state = self.lock();
        match &*state {
            State::Here(..) => {
                let held = std::mem::replace(&mut *state, State::Gone);
                drop(state);
                // Memory goes back outside the lock.
                drop(held);
                true
            }
            State::Away => {
                *state = State::Wanted;
                true
            }
            State::Wanted | State::Gone => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_given_up_is_not_found_and_what_is_used_is_given_up_after_use() {
        let seat = Revocable::new(&Tenant::anonymous(), None);
        let held = seat.held();
        assert!(seat.take().is_none() && held.idle().is_none() && !held.give_up());
        let value = Arc::new(());
        seat.put(Arc::clone(&value));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(held.idle(), Some(Duration::from_secs(7)));
        let taken = seat.take().unwrap();
        assert!(held.idle().is_none() && held.give_up() && Arc::strong_count(&value) == 2);
        seat.put(taken);
        assert!(Arc::strong_count(&value) == 1 && seat.take().is_none());
        seat.put(Arc::clone(&value));
        assert!(held.give_up() && Arc::strong_count(&value) == 1 && seat.take().is_none());
        // What its client has and does not read is not what it holds.
        seat.sent();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!((held.unread(), held.idle()), (Some(Duration::from_secs(5)), None));
        seat.asked();
        assert_eq!(held.unread(), None);
    }
}
