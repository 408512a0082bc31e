//! A gang as operators see it: its generation, who is missing, and the barrier that ranks wait at. Nothing in it lets its reader act as a
//! member.

use serde::{Deserialize, Serialize};

use super::wire::Position;

/// Most ranks that are named.
pub(super) const NAMED: usize = 16;

/// One gang.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// Its name.
    pub gang: String,
    /// `forming`, `running` or `ended`.
    pub phase: String,
    /// The generation that runs, or the one that is being formed.
    pub generation: u64,
    /// Number of ranks; 0 while it is unknown.
    pub world_size: u32,
    /// Ranks that are there.
    pub present: u64,
    /// Ranks that are missing: not joined yet, or left cleanly. At most the first 16.
    pub missing: Vec<u32>,
    /// The position that all ranks have acknowledged.
    pub acknowledged: Option<Position>,
    /// The reason for the end of the previous generation; empty if there was none.
    pub why: String,
    /// Barriers and all-gathers that opened in this generation.
    pub rounds: u64,
    /// The one that ranks wait at now.
    pub waits: Option<Waits>,
}

/// Ranks that wait for others.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// `barrier` or `all_gather`.
    pub kind: String,
    /// Number of the round, from 1.
    pub round: u64,
    /// Ranks that wait.
    pub arrived: u64,
    /// Ranks that they wait for. At most the first 16.
    pub missing: Vec<u32>,
}
