//! Readers of the versions of written datasets: later commits keep a version that is being read, and in a directory one that was read lately.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// One opening of a version.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    opened: OnceLock<Weak<dyn Any + Send + Sync>>,
    used: Mutex<Option<Instant>>,
}

impl Lease {
    /// Keeps the version as long as anyone but the cache of open datasets has `opened`, and for the grace of its target from now on: between
    /// two epochs, and between a ticket and its stream, nobody has it.
    pub(crate) fn keep_for<T: Any + Send + Sync>(&self, opened: &Arc<T>) {
        let opened: Weak<T> = Arc::downgrade(opened);
        // A lease is for one opening.
        let _ = self.opened.set(opened);
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// The version before the current one stays in any case, so an opening that is under way needs no lease yet.
    fn is_used(&self, grace: Duration) -> bool {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        self.opened.get().is_some_and(|opened| opened.strong_count() > 1)
            || used.is_some_and(|used| used.elapsed() < grace)
    }
}

/// The leases of all versions, by the version's path.
#[derive(Debug, Default)]
pub(super) struct Leases(Mutex<HashMap<String, Vec<Weak<Lease>>>>);

impl Leases {
    /// A lease of the version at `path`.
    pub(super) fn take(&self, path: &str) -> Arc<Lease> {
        let lease = Arc::new(Lease::default());
        let mut leases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let of_version = leases.entry(path.to_owned()).or_default();
        of_version.retain(|lease| lease.strong_count() > 0);
        of_version.push(Arc::downgrade(&lease));
        lease
    }

    /// Returns true if somebody reads the version at `path`, or did within `grace`.
    pub(super) fn is_read(&self, path: &str, grace: Duration) -> bool {
        let mut leases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        leases.retain(|_, of_version| of_version.iter().any(|lease| lease.strong_count() > 0));
        leases
            .get(path)
            .is_some_and(|of_version| of_version.iter().filter_map(Weak::upgrade).any(|lease| lease.is_used(grace)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_read_while_anyone_but_the_cache_has_it_open() {
        let leases = Leases::default();
        let (one, two) = (leases.take("1"), leases.take("1"));
        let read = |path: &str| leases.is_read(path, Duration::ZERO);
        assert!(!read("1") && !leases.is_read("1", Duration::MAX), "nothing is open");
        let cached = Arc::new(1);
        one.keep_for(&cached);
        assert!(!read("1"), "only the cache has it");
        assert!(
            leases.is_read("1", Duration::from_secs(60)) && !leases.is_read("2", Duration::MAX),
            "somebody had it lately"
        );
        let reading = Arc::clone(&cached);
        assert!(read("1") && !read("2"));
        drop(two);
        drop(reading);
        assert!(!read("1"));
        let (_reading, _other) = (Arc::clone(&cached), leases.take("2"));
        assert!(read("1") && !read("2"));
        drop(one);
        assert!(!read("1"), "its cache let go of it");
    }
}
