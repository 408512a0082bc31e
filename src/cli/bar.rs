//! Progress bars on standard error, for whatever takes longer than two seconds.
//!
//! A thread draws what it sees of the work, so work that stands still is seen to, and nothing waits for a terminal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::cli::out::Out;

/// Work of this time or less has no bar.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time between two drawings.
const PAUSE: Duration = Duration::from_millis(100);

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unit {
    Bytes,
    Steps,
}

/// How far some work is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) done: u64,
    /// 0 while it is unknown.
    pub(crate) all: u64,
    /// Ends the line.
    pub(crate) more: String,
}

/// Work as counted by the thread that does it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counts(Arc<(AtomicU64, AtomicU64)>);

impl Counts {
    pub(crate) fn of(all: u64) -> Self {
        let counts = Self::default();
        counts.set(0, all);
        counts
    }

    pub(crate) fn set(&self, done: u64, all: u64) {
        self.0.0.store(done, Ordering::Relaxed);
        self.0.1.store(all, Ordering::Relaxed);
    }

    /// What is done, for those who count it themselves.
    pub(crate) fn done(&self) -> &AtomicU64 {
        &self.0.0
    }

    fn seen(&self) -> Seen {
        let [done, all] = [&self.0.0, &self.0.1].map(|count| count.load(Ordering::Relaxed));
        Seen { done, all, more: String::new() }
    }
}

/// A bar, until it is dropped.
#[derive(Debug)]
pub(crate) struct Bar {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bar {
    /// Draws what `look` returns, if somebody watches; `what` says what is done while its end is unknown.
    pub(crate) fn new(out: &Out, what: &'static str, unit: Unit, look: impl FnMut() -> Seen + Send + 'static) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let thread = out.is_watched().then(|| {
            let told = Arc::clone(&over);
            let thread = std::thread::Builder::new().name("bowstring-bar".to_owned());
            thread.spawn(move || draw(what, unit, look, &told)).ok()
        });
        Self { over, thread: thread.flatten() }
    }

    /// Draws `counts`.
    pub(crate) fn counted(out: &Out, what: &'static str, unit: Unit, counts: &Counts) -> Self {
        let counts = counts.clone();
        Self::new(out, what, unit, move || counts.seen())
    }

    /// Says what is done, and for how long: nobody knows how much of it is left.
    pub(crate) fn waiting(out: &Out, what: &'static str) -> Self {
        Self::new(out, what, Unit::Steps, Seen::default)
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It only draws; it has no result.
            let _ = thread.join();
        }
    }
}

/// The line of work, in indicatif's words.
fn template(unit: Unit, is_known: bool) -> &'static str {
    match (unit, is_known) {
        (_, false) => "{spinner} {prefix}, {elapsed} {msg}",
        (Unit::Bytes, true) => {
            "{bar:40} {binary_bytes}/{binary_total_bytes}  {binary_bytes_per_sec}  {eta} left  {msg}"
        }
        (Unit::Steps, true) => "{bar:40} {human_pos}/{human_len} steps  {per_sec}  {eta} left  {msg}",
    }
}

fn draw(what: &'static str, unit: Unit, mut look: impl FnMut() -> Seen, over: &AtomicBool) {
    let start = Instant::now();
    // Its times and rates begin here, with the work.
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_prefix(what);
    while start.elapsed() < PATIENCE {
        if over.load(Ordering::Relaxed) {
            return;
        }
        std::thread::park_timeout(PATIENCE.saturating_sub(start.elapsed()));
    }
    let mut was_known = None;
    while !over.load(Ordering::Relaxed) {
        let Seen { done, all, more } = look();
        let is_known = all > 0;
        if was_known != Some(is_known) {
            if let Ok(style) = ProgressStyle::with_template(template(unit, is_known)) {
                bar.set_style(style);
            }
            was_known = Some(is_known);
        }
        bar.set_length(all);
        bar.set_position(done.min(all));
        bar.set_message(more);
        if bar.is_hidden() {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.tick();
        std::thread::park_timeout(PAUSE);
    }
    bar.finish_and_clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_one_that_indicatif_knows() {
        for unit in [Unit::Bytes, Unit::Steps] {
            for is_known in [false, true] {
                assert!(ProgressStyle::with_template(template(unit, is_known)).is_ok());
            }
        }
    }

    #[test]
    fn short_work_waits_for_no_bar() {
        let (start, looked) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let (over, seen) = (Arc::new(AtomicBool::new(false)), Arc::clone(&looked));
        let told = Arc::clone(&over);
        let look = move || {
            seen.store(true, Ordering::Relaxed);
            Seen::default()
        };
        let thread = std::thread::spawn(move || draw("working", Unit::Steps, look, &told));
        drop(Bar { over, thread: Some(thread) });
        assert!(start.elapsed() < PATIENCE && !looked.load(Ordering::Relaxed));
    }
}
