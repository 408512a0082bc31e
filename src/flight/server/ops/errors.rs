//! The last errors that callers got: kinds and places, no texts. Texts name files; they are in the log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Most different ones that are kept.
const MOST: usize = 50;

/// One kind of error at one place, however often it came.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RecentError {
    /// The kind, as in the metric of errors: `store`.
    pub kind: String,
    /// The call: `DoGet`, or the name of an action.
    pub call: String,
    /// The dataset, if the call is about one.
    pub dataset: Option<String>,
    /// The rank.
    pub rank: Option<u32>,
    /// How often it came.
    pub times: u64,
    /// When it came first and last, in seconds since 1970.
    pub first: f64,
    /// See [`first`](Self::first).
    pub last: f64,
}

/// The last errors, the latest last. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct RecentErrors(Arc<Mutex<VecDeque<RecentError>>>);

/// Where an error came about.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct At<'a> {
    pub(crate) call: &'a str,
    pub(crate) dataset: Option<&'a str>,
    pub(crate) rank: Option<u32>,
}

impl<'a> At<'a> {
    pub(crate) fn call(call: &'a str) -> Self {
        Self { call, ..Self::default() }
    }
}

impl RecentErrors {
    /// Adds an error of `kind`.
    pub(crate) fn add(&self, kind: &'static str, at: At<'_>) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        self.add_at(kind, at, now);
    }

    fn add_at(&self, kind: &'static str, at: At<'_>, now: f64) {
        // Names of actions and of unknown datasets come from callers.
        let call: String = at.call.chars().take(64).collect();
        let dataset: Option<String> = at.dataset.map(|dataset| dataset.chars().take(256).collect());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let same =
            |one: &RecentError| one.kind == kind && one.call == call && one.dataset == dataset && one.rank == at.rank;
        let known = all.iter().position(same).and_then(|known| all.remove(known));
        let mut error = known.unwrap_or_else(|| RecentError {
            kind: kind.to_owned(),
            call,
            dataset,
            rank: at.rank,
            first: now,
            ..RecentError::default()
        });
        (error.last, error.times) = (now, error.times.saturating_add(1));
        if all.len() >= MOST {
            all.pop_front();
        }
        all.push_back(error);
    }

    /// All that are kept, the latest first.
    pub(crate) fn all(&self) -> Vec<RecentError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_place_and_bounded() {
        let errors = RecentErrors::default();
        let at = At { call: "DoGet", dataset: Some("photos"), rank: Some(3) };
        errors.add_at("store", at, 1.0);
        errors.add_at("usage", At::call("gang.join"), 2.0);
        errors.add_at("store", at, 3.0);
        errors.add_at("store", At { rank: Some(4), ..at }, 4.0);
        let all = errors.all();
        let short: Vec<_> = all.iter().map(|one| (one.kind.as_str(), one.rank, one.times, one.last)).collect();
        assert_eq!(short, [("store", Some(4), 1, 4.0), ("store", Some(3), 2, 3.0), ("usage", None, 1, 2.0)]);
        assert_eq!(all[1].first, 1.0);
        for number in 0..1000 {
            errors.add("data", At { dataset: Some(&"x".repeat(number)), ..at });
        }
        // Names that agree as far as they are kept are one.
        for end in ["a", "b"] {
            errors.add("data", At { dataset: Some(&("y".repeat(300) + end)), ..at });
        }
        assert_eq!(errors.all()[0].times, 2);
        let all = errors.all();
        assert!(all.len() == MOST && all.iter().all(|one| one.dataset.as_ref().is_none_or(|name| name.len() <= 256)));
    }
}
