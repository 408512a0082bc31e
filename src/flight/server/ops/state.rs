//! The state of a server that operators see: its phase, its counters, its snapshot, and who may see them.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, header};

use super::metrics::Metrics;
use super::snapshot::Snapshot;
use crate::flight::server::access::auth::{Denied, Tokens};

/// Time for which a snapshot serves all who look.
const FRESH: Duration = Duration::from_millis(250);

/// Called before counters are shown, to update those that are looked up rather than counted.
type Probe = Box<dyn Fn(&Metrics) + Send + Sync>;

/// Takes a snapshot of the server; nothing once it is gone.
type View = Box<dyn Fn() -> Option<Snapshot> + Send + Sync>;

/// See the module.
#[derive(Default)]
pub struct AdminState {
    metrics: Metrics,
    phase: AtomicU8,
    probe: OnceLock<Probe>,
    tokens: OnceLock<Tokens>,
    view: OnceLock<View>,
    shown: Mutex<Option<Shown>>,
}

/// The last snapshot, with or without names, as JSON. A port shows one of the two.
struct Shown {
    taken: Instant,
    named: bool,
    json: Arc<str>,
}

const STARTING: u8 = 0;
const READY: u8 = 1;
const DRAINING: u8 = 2;

impl fmt::Debug for AdminState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminState").field("phase", &self.phase()).finish_non_exhaustive()
    }
}

impl AdminState {
    /// Makes the state of a server that has not started yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the counters.
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Calls `probe` before each time that the counters are shown; the first probe stays.
    pub(crate) fn set_probe(&self, probe: impl Fn(&Metrics) + Send + Sync + 'static) {
        let _ = self.probe.set(Box::new(probe));
    }

    /// Returns the tokens that give access to counters.
    pub(crate) fn tokens(&self) -> Option<&Tokens> {
        self.tokens.get()
    }

    /// Restricts counters to holders of one of `tokens`; the first call wins.
    pub(crate) fn set_tokens(&self, tokens: Tokens) {
        let _ = self.tokens.set(tokens);
    }

    /// Marks the server as ready, unless it is already draining.
    pub(crate) fn set_ready(&self) {
        let _ = self.phase.compare_exchange(STARTING, READY, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Marks the server as draining, so that new calls go elsewhere.
    pub(crate) fn set_draining(&self) {
        self.phase.store(DRAINING, Ordering::SeqCst);
        self.metrics.draining();
    }

    /// Returns `starting`, `ready` or `draining`.
    pub fn phase(&self) -> &'static str {
        match self.phase.load(Ordering::SeqCst) {
            STARTING => "starting",
            READY => "ready",
            _ => "draining",
        }
    }

    /// Takes snapshots with `view`; the first one stays.
    pub(crate) fn set_view(&self, view: impl Fn() -> Option<Snapshot> + Send + Sync + 'static) {
        let _ = self.view.set(Box::new(view));
    }

    /// Returns the server at this moment, or a little before, as JSON. Takes a lock and perhaps some time.
    pub(super) fn snapshot(&self, named: bool) -> Arc<str> {
        // Held meanwhile, so that one snapshot serves all who ask at the same time.
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = shown.take().filter(|last| last.named == named && last.taken.elapsed() < FRESH);
        let last = shown.insert(fresh.unwrap_or_else(|| {
            let snapshot = self.view.get().and_then(|view| view()).unwrap_or_else(|| Snapshot::new(self.phase()));
            let snapshot = if named { snapshot } else { snapshot.nameless() };
            let json = serde_json::to_string(&snapshot).unwrap_or_default().into();
            Shown { taken: Instant::now(), named, json }
        }));
        Arc::clone(&last.json)
    }

    /// Checks that a request with these headers may see what needs a token, if any tokens are configured. Returns whether there are any.
    ///
    /// # Errors
    /// The reason that it may not, which is counted.
    pub(super) fn admit(&self, headers: &HeaderMap) -> Result<bool, Denied> {
        let Some(tokens) = self.tokens.get() else { return Ok(false) };
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        tokens.check(given).inspect_err(|denied| self.metrics.refused(*denied))?;
        Ok(true)
    }

    /// Returns true if these headers have a good token.
    pub(super) fn knows(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        given.is_some() && self.tokens.get().is_some_and(|tokens| tokens.check(given).is_ok())
    }

    /// Returns the counters as text, up to date.
    pub(super) fn text(&self) -> String {
        if let Some(probe) = self.probe.get() {
            probe(&self.metrics);
        }
        self.metrics.encode()
    }
}
