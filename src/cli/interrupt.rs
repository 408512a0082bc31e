//! Ctrl-C: the first one makes a verb end with its partial result, the second one ends it at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The exit code of what a signal ended, as shells have it.
pub(crate) const INTERRUPTED: u8 = 130;

/// Set by Ctrl-C.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on, and calls `first` when it was pressed. Where signals cannot be caught, Ctrl-C does what it always does.
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
            // It ends without a message once the signal is caught, or cannot be.
            let _ = listening.recv();
        }
        interrupt
    }

    /// True once it was pressed.
    pub(crate) fn is_pressed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// `path` with a `~` at its start as the home directory: a shell does not expand it inside of quotes, and after `--flag=`.
pub(crate) fn at_home(path: &str) -> String {
    let home = std::env::var("HOME").ok().filter(|home| !home.is_empty());
    match (path.strip_prefix('~'), home) {
        (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with('/') => format!("{home}{rest}"),
        _ => path.to_owned(),
    }
}
