//! The plan that a generation reads: one for all its ranks.
//!
//! Two ranks whose plans differ by a file, a seed or a version of the order get rows twice and others never, however well they
//! agree on shares and steps. So a generation is bound to the fingerprint of everything that decides the rows: by the position
//! that it resumes from, else by the first stream or acknowledgement in it. A member with another one is refused.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::manifest::Fingerprint;
use crate::plan::{PlanSpec, State};

/// Longest description of a plan, in bytes: an error names two of them.
const LONGEST: usize = 512;

/// The plan that a generation reads, as the server knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reading {
    /// Fingerprint of everything that decides the rows: data, resolved spec, version of the order.
    pub plan: Fingerprint,
    /// Fingerprint of the data alone; unknown where a token or an acknowledgement named the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Fingerprint>,
    /// The plan in words, for display.
    pub about: String,
}

impl Reading {
    /// The plan of `spec`, resolved over `data`, which is served as `dataset`.
    pub fn new(dataset: &str, data: Fingerprint, spec: &PlanSpec) -> Self {
        let words = serde_json::to_string(spec).unwrap_or_default();
        let about = cut(format!("dataset {dataset}, fingerprint {data}, spec {words}"), LONGEST);
        Self { plan: Self::fingerprint(data, spec), data: Some(data), about }
    }

    /// A plan that is known by its fingerprint only.
    pub(super) fn named(plan: Fingerprint) -> Self {
        Self { plan, data: None, about: "known by its fingerprint only".into() }
    }

    /// The fingerprint of the plan of `spec` over `data`: SHA-256 over the state at its origin, which holds all that decides the rows.
    pub fn fingerprint(data: Fingerprint, spec: &PlanSpec) -> Fingerprint {
        let mut digest = Sha256::new();
        digest.update(b"bowstring plan 1");
        digest.update(State::at(data, spec.clone(), 0, 0).to_json());
        Fingerprint::from_bytes(digest.finalize().into())
    }
}

impl std::fmt::Display for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "plan {} ({})", self.plan, self.about)
    }
}

/// The first `longest` bytes of `text`, or a few less.
pub(super) fn cut(mut text: String, longest: usize) -> String {
    if text.len() > longest {
        let end = (0..=longest).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
