//! The library's warnings as records of Python's logger `bowstring`.
//!
//! Loader threads never take the GIL: they leave their words in a short queue, and whoever waits for a batch passes them on.

use std::fmt::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Warnings kept until the next batch is asked for; later ones are left out. The ledger counts them all.
const KEPT: usize = 256;

static KEPT_WARNINGS: OnceLock<Mutex<Receiver<Warning>>> = OnceLock::new();

#[derive(Debug)]
struct Warning {
    error: bool,
    text: String,
}

/// Starts listening. Does nothing if this process has a subscriber already.
pub(crate) fn listen() {
    let (sender, receiver) = sync_channel(KEPT);
    if tracing::subscriber::set_global_default(Listener(sender)).is_ok() {
        drop(KEPT_WARNINGS.set(Mutex::new(receiver)));
    }
}

/// Passes on what was left in the queue.
pub(crate) fn pass_on(py: Python<'_>) -> PyResult<()> {
    // Another thread that is at it passes on everything; in a forked child the lock may be held for ever.
    let Some(receiver) = KEPT_WARNINGS.get().and_then(|queue| queue.try_lock().ok()) else { return Ok(()) };
    let warnings: Vec<_> = receiver.try_iter().collect();
    drop(receiver);
    if warnings.is_empty() {
        return Ok(());
    }
    let logger = py.import("logging")?.call_method1("getLogger", ("bowstring",))?;
    for Warning { error, text } in warnings {
        logger.call_method1(if error { "error" } else { "warning" }, ("%s", text))?;
    }
    Ok(())
}

struct Listener(SyncSender<Warning>);

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN && metadata.is_event() && metadata.target().starts_with("bowstring")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::WARN)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let warning = Warning { error: *event.metadata().level() == Level::ERROR, text: text.0 };
        // A full queue: nobody takes batches, or there are too many to read.
        drop(self.0.try_send(warning));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Spans are not enabled; the trait wants an id that is not 0.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// `message`, then the other fields as `name=value`.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let separator = if self.0.is_empty() { "" } else { " " };
        // Writing to a string cannot fail.
        let _ = match field.name() {
            "message" => {
                let rest = std::mem::take(&mut self.0);
                let separator = if rest.is_empty() { "" } else { " " };
                write!(self.0, "{value:?}{separator}{rest}")
            }
            name => write!(self.0, "{separator}{name}={value:?}"),
        };
    }
}
