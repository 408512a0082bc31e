//! The library's warnings as records of Python's logger `bowstring`.
//!
//! Loader threads never take the GIL: they leave warnings in a short queue, and the thread that waits for a batch logs them. A process
//! has one subscriber for good, so this one yields when the command line runs, which has a log of its own.

use std::fmt::Write;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, NoSubscriber};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use crate::calls::entered;

/// Most warnings kept until the next batch is requested; later ones are dropped. The ledger counts them all.
const KEPT: usize = 256;

static KEPT_WARNINGS: OnceLock<Mutex<Receiver<Warning>>> = OnceLock::new();

/// The subscriber that replaces this one.
static OTHER: OnceLock<Dispatch> = OnceLock::new();

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

/// Passes all events to `other` from now on.
pub(crate) fn give_way(other: Dispatch) {
    if OTHER.set(other).is_ok() {
        // Call sites cache the interest of subscribers; creating another subscriber makes them query it again.
        drop(Dispatch::new(NoSubscriber::default()));
    }
}

/// Logs the warnings in the queue.
pub(crate) fn pass_on(py: Python<'_>) -> PyResult<()> {
    // Another thread that is doing so logs everything; in a forked child the lock may be held for ever.
    let Some(receiver) = KEPT_WARNINGS.get().and_then(|queue| queue.try_lock().ok()) else { return Ok(()) };
    let warnings: Vec<_> = receiver.try_iter().collect();
    drop(receiver);
    if warnings.is_empty() {
        return Ok(());
    }
    let _entry = entered(py);
    let logger = py.import("logging")?.call_method1("getLogger", ("bowstring",))?;
    for Warning { error, text } in warnings {
        logger.call_method1(if error { "error" } else { "warning" }, ("%s", text))?;
    }
    Ok(())
}

struct Listener(SyncSender<Warning>);

fn is_warning(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::WARN && metadata.is_event() && metadata.target().starts_with("bowstring")
}

impl Subscriber for Listener {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match OTHER.get() {
            Some(other) => other.register_callsite(metadata),
            None if is_warning(metadata) => Interest::always(),
            None => Interest::never(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        OTHER.get().map_or_else(|| is_warning(metadata), |other| other.enabled(metadata))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        if OTHER.get().is_some() { None } else { Some(LevelFilter::WARN) }
    }

    fn event(&self, event: &Event<'_>) {
        if let Some(other) = OTHER.get() {
            return other.event(event);
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        let warning = Warning { error: *event.metadata().level() == Level::ERROR, text: text.0 };
        // The queue is full: batches are not taken, or there are too many warnings to read.
        drop(self.0.try_send(warning));
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        // Spans of its own are not enabled; the trait requires an id other than 0.
        OTHER.get().map_or_else(|| Id::from_u64(1), |other| other.new_span(span))
    }

    fn record(&self, span: &Id, values: &Record<'_>) {
        if let Some(other) = OTHER.get() {
            other.record(span, values);
        }
    }

    fn record_follows_from(&self, span: &Id, follows: &Id) {
        if let Some(other) = OTHER.get() {
            other.record_follows_from(span, follows);
        }
    }

    fn enter(&self, span: &Id) {
        if let Some(other) = OTHER.get() {
            other.enter(span);
        }
    }

    fn exit(&self, span: &Id) {
        if let Some(other) = OTHER.get() {
            other.exit(span);
        }
    }

    fn clone_span(&self, span: &Id) -> Id {
        OTHER.get().map_or_else(|| span.clone(), |other| other.clone_span(span))
    }

    fn try_close(&self, span: Id) -> bool {
        OTHER.get().is_some_and(|other| other.try_close(span))
    }
}

/// Formats `message`, then the other fields as `name=value`.
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
