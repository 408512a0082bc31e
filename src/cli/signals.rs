//! Signals that tell a program to end, or to read its files again, or that would end it without a word.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{Error, Result};

/// The signals that tell a program to end: SIGTERM, and SIGINT of Ctrl-C.
pub(crate) struct Ends {
    terminate: Signal,
    interrupt: Signal,
}

impl Ends {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { terminate: on(SignalKind::terminate())?, interrupt: on(SignalKind::interrupt())? })
    }

    /// Returns the exit code of the next signal, by the convention of shells.
    pub(crate) async fn next(&mut self) -> u8 {
        tokio::select! {
            _ = self.terminate.recv() => 143,
            _ = self.interrupt.recv() => 130,
        }
    }
}

/// The handled signals: those that end a program which runs until then, and one that makes a server read its files again.
pub(crate) struct Signals {
    pub(crate) hangup: Option<Signal>,
    ends: Ends,
}

impl Signals {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { hangup: Some(on(SignalKind::hangup())?), ends: Ends::new()? })
    }

    /// Returns the exit code of the next signal that ends the program.
    pub(crate) async fn next(&mut self) -> u8 {
        self.ends.next().await
    }

    /// Forwards the first signal, and returns the second.
    pub(crate) async fn watch(&mut self, first: tokio::sync::oneshot::Sender<()>) -> u8 {
        self.next().await;
        tracing::info!("told to end: draining");
        let _ = first.send(());
        self.next().await
    }
}

fn on(kind: SignalKind) -> Result<Signal> {
    signal(kind).map_err(|error| Error::Closed { why: format!("signals cannot be caught: {error}") })
}

/// Makes a write beyond a limit on the size of files (`ulimit -f`) fail, which otherwise ends the process without a word. If signals cannot be
/// caught, it still does.
pub(crate) fn outlive_limits() {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let _within = runtime.enter();
    // A signal that was caught once stays caught. Programs that are started from here have it as it was.
    drop(signal(SignalKind::from_raw(libc::SIGXFSZ)));
}
