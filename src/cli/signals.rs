//! Signals to a program that runs until it is told to end.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{Error, Result};

/// The handled signals: two end a program that runs until then, one makes a server read its files again.
pub(crate) struct Signals {
    pub(crate) hangup: Option<Signal>,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(crate) fn new() -> Result<Self> {
        let on =
            |kind| signal(kind).map_err(|error| Error::Closed { why: format!("signals cannot be caught: {error}") });
        Ok(Self {
            hangup: Some(on(SignalKind::hangup())?),
            terminate: on(SignalKind::terminate())?,
            interrupt: on(SignalKind::interrupt())?,
        })
    }

    /// Returns the exit code of the next signal.
    pub(crate) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.terminate.recv() => 143,
            _ = self.interrupt.recv() => 130,
        }
    }

    /// Forwards the first signal, and returns the second.
    pub(crate) async fn watch(&mut self, first: tokio::sync::oneshot::Sender<()>) -> u8 {
        self.next().await;
        tracing::info!("told to end: draining");
        let _ = first.send(());
        self.next().await
    }
}
