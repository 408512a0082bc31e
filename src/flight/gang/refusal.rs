//! An error on its way over the wire, and out of it as the same error.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// An error in a form that crosses the wire and comes out as the same [`Error`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "refused", rename_all = "lowercase")]
pub enum Refusal {
    /// [`Error::Fenced`].
    Fenced {
        /// The gang.
        gang: String,
        /// The caller's generation.
        generation: u64,
        /// The reason for its end.
        why: String,
    },
    /// [`Error::Timeout`].
    Timeout {
        /// The wait.
        stage: String,
        /// The ranks that did not come.
        culprit: String,
        /// Time waited, milliseconds.
        waited_ms: u64,
    },
    /// [`Error::Mismatch`].
    Mismatch {
        /// The compared item.
        what: String,
        /// The expected side.
        expected: String,
        /// The side found.
        found: String,
        /// The remedy.
        hint: String,
    },
    /// [`Error::Config`].
    Config {
        /// The option.
        option: String,
        /// The fault.
        problem: String,
    },
    /// [`Error::Limit`].
    Limit {
        /// The user of the limited resource.
        what: String,
        /// Asked for.
        asked: u64,
        /// Allowed.
        limit: u64,
        /// The option that sets it.
        option: String,
    },
    /// [`Error::NotFound`].
    NotFound {
        /// The missing item.
        what: String,
        /// The existing ones.
        hint: String,
    },
    /// Any other error of the server, as text.
    Other {
        /// The text with its causes.
        what: String,
    },
}

/// Names that errors carry as `&'static str`; a name from the wire is one of these or the last.
const STAGES: [&str; 5] = ["gang join", "gang barrier", "gang all_gather", "gang call", "peer"];
const OPTIONS: [&str; 14] = [
    "gang",
    "rank",
    "world_size",
    "share",
    "token",
    "max_message",
    "max_gathered",
    "max_gangs",
    "max_members",
    "max_held",
    "gangs_per_tenant",
    "gang_ranks_per_tenant",
    "held_per_tenant",
    "gang call",
];

fn known(name: &str, names: &'static [&'static str]) -> &'static str {
    names.iter().find(|known| **known == name).or(names.last()).copied().unwrap_or("")
}

impl Refusal {
    /// Converts it back to an error; `peer` names the server in errors without a type of their own.
    pub fn into_error(self, peer: &str) -> Error {
        match self {
            Self::Fenced { gang, generation, why } => Error::Fenced { gang, generation, why },
            Self::Timeout { stage, culprit, waited_ms } => {
                Error::Timeout { stage: known(&stage, &STAGES), culprit, waited: Duration::from_millis(waited_ms) }
            }
            Self::Mismatch { what, expected, found, hint } => Error::Mismatch { what, expected, found, hint },
            Self::Config { option, problem } => Error::Config { option: known(&option, &OPTIONS), problem },
            Self::Limit { what, asked, limit, option } => Error::limit(what, asked, limit, known(&option, &OPTIONS)),
            Self::NotFound { what, hint } => Error::NotFound { what, hint },
            Self::Other { what } => Error::Remote { peer: peer.to_owned(), what, source: None },
        }
    }

    /// The form of `error` that crosses the wire.
    pub fn of(error: &Error) -> Self {
        match error {
            Error::Fenced { gang, generation, why } => {
                Self::Fenced { gang: gang.clone(), generation: *generation, why: why.clone() }
            }
            Error::Timeout { stage, culprit, waited } => {
                Self::Timeout { stage: (*stage).into(), culprit: culprit.clone(), waited_ms: millis(*waited) }
            }
            Error::Mismatch { what, expected, found, hint } => Self::Mismatch {
                what: what.clone(),
                expected: expected.clone(),
                found: found.clone(),
                hint: hint.clone(),
            },
            Error::Config { option, problem } => Self::Config { option: (*option).into(), problem: problem.clone() },
            Error::Limit { what, asked, limit, option, .. } => {
                Self::Limit { what: what.clone(), asked: *asked, limit: *limit, option: (*option).into() }
            }
            Error::NotFound { what, hint } => Self::NotFound { what: what.clone(), hint: hint.clone() },
            other => Self::Other { what: other.chain() },
        }
    }
}

/// Milliseconds of a duration, as far as they fit.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
