//! The transport of calls from a member to its registry.

use std::time::Duration;

use futures::future::BoxFuture;

use crate::error::Result;

/// Carries calls to a [`Registry`](super::Registry), e.g. as Flight actions.
///
/// [`Error::Remote`](crate::Error::Remote) means that the peer was not reached, or that the connection broke before the answer: the call is then
/// repeated until its deadline, as after [`Error::Store`](crate::Error::Store) and after an [`Error::Timeout`](crate::Error::Timeout) of the transport. Every other
/// error is the server's answer ([`Refusal`](super::Refusal) carries it across) and final.
pub trait Wire: Send + Sync {
    /// Calls `action` with `body` and returns the answer. The caller stops waiting after `deadline`, and drops the future.
    fn call(&self, action: &str, body: Vec<u8>, deadline: Duration) -> BoxFuture<'_, Result<Vec<u8>>>;

    /// The peer, to be named when it does not answer.
    fn peer(&self) -> String {
        "the server".to_owned()
    }
}
