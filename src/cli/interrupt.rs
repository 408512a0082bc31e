//! Ctrl-C and SIGTERM: the first one makes a verb end with its partial result, the second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::cli::signals::Ends;

/// The exit code of the signal that has come; 0 before.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicU8>);

impl Interrupt {
    /// Listens from now on, and calls `first` on the first signal. If signals cannot be caught, they have their default effect.
    pub(crate) fn listen(first: impl Fn() + Send + 'static) -> Self {
        let interrupt = Self::default();
        let come = Self(Arc::clone(&interrupt.0));
        let (ready, listening) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("bowstring-signals".to_owned()).spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                let Ok(mut ends) = Ends::new() else { return };
                drop(ready);
                come.0.store(ends.next().await, Ordering::Relaxed);
                first();
                std::process::exit(ends.next().await.into());
            });
        });
        if thread.is_ok() {
            // The channel closes without a message once the signals are caught, or cannot be.
            let _ = listening.recv();
        }
        interrupt
    }

    /// Returns true once a signal has come.
    pub(crate) fn has_come(&self) -> bool {
        self.code() != 0
    }

    /// Returns the exit code of the signal that has come, by the convention of shells; 0 before.
    pub(crate) fn code(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}
