//! A call on a runtime of its own, whose caller may wait for it in slices.

use std::future::Future;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use tokio::runtime::{Handle, Runtime};
use tokio::task::AbortHandle;

use crate::error::{Error, Result};

/// The outcome of a running call. Dropping it cancels the call.
#[derive(Debug)]
pub struct Pending<T> {
    receiver: Receiver<Result<T>>,
    task: AbortHandle,
    /// Ends with the call, if nothing else uses it.
    runtime: Option<Runtime>,
}

impl<T: Send + 'static> Pending<T> {
    /// Runs `work` on `handle`.
    pub(super) fn spawn(handle: &Handle, work: impl Future<Output = Result<T>> + Send + 'static) -> Self {
        let (sender, receiver) = sync_channel(1);
        // Nobody receives the outcome of a cancelled call.
        let task = handle.spawn(async move { drop(sender.send(work.await)) });
        Self { receiver, task: task.abort_handle(), runtime: None }
    }

    /// Ties `runtime`, which the call runs on, to the call's life.
    pub(super) fn ending(mut self, runtime: Runtime) -> Self {
        self.runtime = Some(runtime);
        self
    }

    /// Takes the runtime, for work that continues.
    pub(super) fn runtime(&mut self) -> Option<Runtime> {
        self.runtime.take()
    }

    /// Returns the outcome if it comes within `wait`; once.
    pub fn wait(&mut self, wait: Duration) -> Option<Result<T>> {
        match self.receiver.recv_timeout(wait) {
            Ok(outcome) => Some(outcome),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(given_up())),
        }
    }

    /// Waits for the outcome.
    ///
    /// # Errors
    /// Those of the call.
    pub fn finish(self) -> Result<T> {
        self.receiver.recv().unwrap_or_else(|_| Err(given_up()))
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        self.task.abort();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn given_up() -> Error {
    Error::Closed { why: "this rank has left the gang".to_owned() }
}
