//! The library's messages as records of Python's logger `bowstring`: errors, warnings and, if it is enabled for them, events (INFO).
//!
//! Loader threads never take the GIL: they leave messages in a short queue, and the thread that waits for a batch logs them. That thread
//! looks up the logger's level too, now and then, for the others. A process has one subscriber for good, so this one yields when the
//! command line runs, which has a log of its own.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{LazyLock, Mutex, OnceLock};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, NoSubscriber};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};

use crate::calls::entered;

/// Most messages kept until the next batch is requested; later ones are dropped. The ledger counts all bad rows.
const KEPT: usize = 256;
/// Most events among them: however many there are, warnings have room.
const KEPT_EVENTS: usize = 64;
/// Time between two looks at the logger's level.
const LOOK: Duration = Duration::from_secs(1);

static KEPT_MESSAGES: OnceLock<Mutex<Receiver<Message>>> = OnceLock::new();

/// True if the logger is enabled for INFO, as of the last look. Any thread may read it without the GIL.
static EVENTS: AtomicBool = AtomicBool::new(false);
/// Events in the queue.
static EVENTS_KEPT: AtomicUsize = AtomicUsize::new(0);
/// The moment of the next look, in milliseconds since [`START`].
static NEXT_LOOK: AtomicU64 = AtomicU64::new(0);
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The subscriber that replaces this one.
static OTHER: OnceLock<Dispatch> = OnceLock::new();

#[derive(Debug)]
struct Message {
    level: Level,
    text: String,
}

/// The number of a level in Python's `logging`.
fn number(level: Level) -> u8 {
    match level {
        Level::ERROR => 40,
        Level::WARN => 30,
        _ => 20,
    }
}

/// Starts listening. Does nothing if this process has a subscriber already.
pub(crate) fn listen() {
    let (sender, receiver) = sync_channel(KEPT);
    if tracing::subscriber::set_global_default(Listener(sender)).is_ok() {
        drop(KEPT_MESSAGES.set(Mutex::new(receiver)));
    }
}

/// Passes all events to `other` from now on.
pub(crate) fn give_way(other: Dispatch) {
    if OTHER.set(other).is_ok() {
        // Call sites cache the interest of subscribers; creating another subscriber makes them query it again.
        drop(Dispatch::new(NoSubscriber::default()));
    }
}

/// Looks up whether the logger is enabled for INFO: when something is opened, and now and then while batches are taken.
pub(crate) fn look(py: Python<'_>) -> PyResult<()> {
    NEXT_LOOK.store(since_start().saturating_add(LOOK.as_millis() as u64), Ordering::Relaxed);
    // A program that never imported it has not enabled anything, and does not pay for the import.
    let logging = py.import("sys")?.getattr("modules")?.call_method1("get", ("logging",))?;
    let events = if logging.is_none() {
        false
    } else {
        let logger = logging.call_method1("getLogger", ("bowstring",))?;
        logger.call_method1("isEnabledFor", (number(Level::INFO),))?.is_truthy()?
    };
    EVENTS.store(events, Ordering::Relaxed);
    Ok(())
}

fn since_start() -> u64 {
    START.elapsed().as_millis() as u64
}

/// Logs the messages in the queue.
pub(crate) fn pass_on(py: Python<'_>) -> PyResult<()> {
    // Another thread that is doing so logs everything; in a forked child the lock may be held for ever.
    let Some(receiver) = KEPT_MESSAGES.get().and_then(|queue| queue.try_lock().ok()) else { return Ok(()) };
    let messages: Vec<_> = receiver.try_iter().collect();
    drop(receiver);
    let is_due = since_start() >= NEXT_LOOK.load(Ordering::Relaxed);
    if messages.is_empty() && !is_due {
        return Ok(());
    }
    let _entry = entered(py);
    if is_due {
        look(py)?;
    }
    if messages.is_empty() {
        return Ok(());
    }
    let events = messages.iter().filter(|message| message.level == Level::INFO).count();
    EVENTS_KEPT.fetch_sub(events, Ordering::Relaxed);
    let logger = py.import("logging")?.call_method1("getLogger", ("bowstring",))?;
    for Message { level, text } in messages {
        logger.call_method1("log", (number(level), "%s", text))?;
    }
    Ok(())
}

struct Listener(SyncSender<Message>);

/// Returns true for messages that may be logged: those of the library.
fn is_ours(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::INFO && metadata.is_event() && metadata.target().starts_with("bowstring")
}

impl Subscriber for Listener {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        match OTHER.get() {
            Some(other) => other.register_callsite(metadata),
            None if !is_ours(metadata) => Interest::never(),
            // The level may change at any time.
            None if *metadata.level() == Level::INFO => Interest::sometimes(),
            None => Interest::always(),
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_wanted = || *metadata.level() < Level::INFO || EVENTS.load(Ordering::Relaxed);
        OTHER.get().map_or_else(|| is_ours(metadata) && is_wanted(), |other| other.enabled(metadata))
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        if OTHER.get().is_some() { None } else { Some(LevelFilter::INFO) }
    }

    fn event(&self, event: &Event<'_>) {
        if let Some(other) = OTHER.get() {
            return other.event(event);
        }
        let level = *event.metadata().level();
        let is_event = level == Level::INFO;
        if is_event && EVENTS_KEPT.fetch_add(1, Ordering::Relaxed) >= KEPT_EVENTS {
            EVENTS_KEPT.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        // The queue is full: batches are not taken, or there are too many messages to read.
        if self.0.try_send(Message { level, text: text.0 }).is_err() && is_event {
            EVENTS_KEPT.fetch_sub(1, Ordering::Relaxed);
        }
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
