//! The transport of calls from a member to its registry.

use std::time::Duration;

use futures::future::BoxFuture;

use crate::error::Error;

/// Failure of a call.
#[derive(Debug)]
pub enum CallError {
    /// The peer was not reached, or the connection broke before the answer: the call is repeated until its deadline.
    Unreached(Error),
    /// The server's answer ([`Refusal`](super::Refusal) carries it across). It is final, but for an error of the server's own store or
    /// transport; and but for a server that refuses the caller ([`Error::Remote`]), which may only lag behind a change of tokens: a member
    /// repeats such a call as long as its lease allows, a rank that joins does not.
    Answered(Error),
}

impl CallError {
    /// What happened.
    pub fn error(&self) -> &Error {
        match self {
            Self::Unreached(error) | Self::Answered(error) => error,
        }
    }
}

impl From<CallError> for Error {
    fn from(failed: CallError) -> Self {
        match failed {
            CallError::Unreached(error) | CallError::Answered(error) => error,
        }
    }
}

/// Carries calls to a [`Registry`](super::Registry), e.g. as Flight actions.
pub trait Wire: Send + Sync {
    /// Calls `action` with `body` and returns the answer. The caller stops waiting after `deadline`, and drops the future.
    ///
    /// # Errors
    /// See [`CallError`].
    fn call(&self, action: &str, body: Vec<u8>, deadline: Duration) -> BoxFuture<'_, Result<Vec<u8>, CallError>>;

    /// The peer, to be named when it does not answer.
    fn peer(&self) -> String {
        "the server".to_owned()
    }
}
