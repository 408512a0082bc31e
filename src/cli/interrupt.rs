//! Ctrl-C: the first one makes a verb end with its partial result, the second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code after a signal, by the convention of shells.
pub(crate) const INTERRUPTED: u8 = 130;

/// Set by Ctrl-C.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on, and calls `first` on the first Ctrl-C. If signals cannot be caught, Ctrl-C has its default effect.
    pub(crate) fn listen(first: impl Fn() + Send + 'static) -> Self {
        let interrupt = Self::default();
        let pressed = Self(Arc::clone(&interrupt.0));
        let (ready, listening) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new().name("bowstring-ctrl-c".to_owned()).spawn(move || {
            let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
            runtime.block_on(async {
                use tokio::signal::unix::{SignalKind, signal};
                let Ok(mut signals) = signal(SignalKind::interrupt()) else { return };
                drop(ready);
                signals.recv().await;
                pressed.0.store(true, Ordering::Relaxed);
                first();
                signals.recv().await;
                std::process::exit(INTERRUPTED.into());
            });
        });
        if thread.is_ok() {
            // The channel closes without a message once the signal is caught, or cannot be.
            let _ = listening.recv();
        }
        interrupt
    }

    /// Returns true once it was pressed.
    pub(crate) fn is_pressed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
