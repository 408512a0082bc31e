//! Memory that a stream holds between messages, and that waiting streams may revoke.
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

/// Any holding, as seen by the streams that need memory.
pub(crate) trait Held: fmt::Debug + Send + Sync {
    /// Returns the tenant of the stream.
    fn tenant(&self) -> &Tenant;
    /// Returns the time since the stream last used it; `None` while a message is made, or if nothing is held.
    fn idle(&self) -> Option<Duration>;
    /// Returns the time since a message was sent to the client; `None` while the next one is made.
    fn unread(&self) -> Option<Duration>;
    /// Returns the handle that ends its connection, if there is one: unread messages go with the connection.
    fn hangup(&self) -> Option<&Hangup>;
    /// Releases what is held: at once, or when the message being made is done. False if nothing is held.
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
    /// Time when the message was sent that the client has now; `None` while the next one is made.
    sent: Mutex<Option<Instant>>,
}

#[derive(Debug)]
enum State<T> {
    /// Held, and the time when the stream last used it.
    Here(T, Instant),
    /// With the stream, which is making a message.
    Away,
    /// As `Away`, to be released on return.
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
    /// Makes an empty holding of a stream of `tenant` over the connection that `hangup` ends.
    pub(crate) fn new(tenant: &Tenant, hangup: Option<Hangup>) -> Self {
        let (state, sent) = (Mutex::new(State::Gone), Mutex::new(Some(Instant::now())));
        Self(Arc::new(Inner { tenant: tenant.clone(), hangup, state, sent }))
    }

    /// Records that the client asks for the next message: it has read the one before.
    pub(crate) fn asked(&self) {
        *self.0.sent() = None;
    }

    /// Records that a message goes to the client.
    pub(crate) fn sent(&self) {
        *self.0.sent() = Some(Instant::now());
    }

    /// Returns the view for other streams.
    pub(crate) fn held(&self) -> Arc<dyn Held> {
        Arc::<Inner<T>>::clone(&self.0)
    }

    /// Takes what is held; `None` if it was revoked.
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

    /// Holds `value` until it is taken or revoked.
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
                // Memory is returned outside the lock.
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
        let holding = Revocable::new(&Tenant::anonymous(), None);
        let held = holding.held();
        assert!(holding.take().is_none() && held.idle().is_none() && !held.give_up());
        let value = Arc::new(());
        holding.put(Arc::clone(&value));
        tokio::time::advance(Duration::from_secs(7)).await;
        assert_eq!(held.idle(), Some(Duration::from_secs(7)));
        let taken = holding.take().unwrap();
        assert!(held.idle().is_none() && held.give_up() && Arc::strong_count(&value) == 2);
        holding.put(taken);
        assert!(Arc::strong_count(&value) == 1 && holding.take().is_none());
        holding.put(Arc::clone(&value));
        assert!(held.give_up() && Arc::strong_count(&value) == 1 && holding.take().is_none());
        // A message that its client leaves unread is not part of what it holds.
        holding.sent();
        tokio::time::advance(Duration::from_secs(5)).await;
        assert_eq!((held.unread(), held.idle()), (Some(Duration::from_secs(5)), None));
        holding.asked();
        assert_eq!(held.unread(), None);
    }
}
