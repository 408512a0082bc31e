//! The barriers and all-gathers of one generation: numbered rounds that open when all ranks have arrived, or break for all.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::overview::{NAMED, Waits};
use super::refusal::millis;
use super::wire::Refusal;
use crate::figures::ranks;

/// The purpose of a round. All ranks must state the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum CollectiveKind {
    Barrier,
    AllGather,
}

impl CollectiveKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::AllGather => "all_gather",
        }
    }

    fn stage(self) -> &'static str {
        match self {
            Self::Barrier => "gang barrier",
            Self::AllGather => "gang all_gather",
        }
    }
}

/// The outcome of an arrival.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Arrived {
    /// Not all are there; these are missing (the first 16, and how many).
    Waiting(Vec<u32>, usize),
    /// This arrival was the last: the round opened now.
    Opened(Arc<Vec<Vec<u8>>>),
    /// The round had opened before; this is its result again.
    Before(Arc<Vec<Vec<u8>>>),
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct Arrival {
    message: Vec<u8>,
    since: Duration,
    /// Calls that hold this arrival open now.
    holders: u32,
}

/// One rank's arrival, in the caller's words.
#[derive(Debug)]
pub(super) struct Arriving<'a> {
    pub(super) rank: u32,
    pub(super) round: u64,
    pub(super) meeting: CollectiveKind,
    pub(super) message: &'a [u8],
    /// End of the caller's patience, on the server's clock.
    pub(super) deadline: Duration,
}

/// Round counter, the ranks that have arrived at the next round, and the last result for ranks whose answer was lost.
///
/// One result is enough: no rank can be two rounds behind, because round n + 1 opens only with every rank in it.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Collectives {
    opened: u64,
    result: Arc<Vec<Vec<u8>>>,
    /// Bytes of the result.
    kept: u64,
    meeting: Option<CollectiveKind>,
    arrived: BTreeMap<u32, Arrival>,
    /// All other ranks, once one has arrived, so that repeated polls need not collect them again.
    missing: BTreeSet<u32>,
    bytes: u64,
    broken: Option<Refusal>,
}

impl Collectives {
    /// The number and the messages of the last round that opened; for the journal.
    pub(super) fn last(&self) -> (u64, &Arc<Vec<Vec<u8>>>) {
        (self.opened, &self.result)
    }

    /// Takes the state of a round that opened before the server restarted.
    pub(super) fn restore(&mut self, round: u64, messages: Vec<Vec<u8>>) {
        let kept = messages.iter().map(|message| message.len() as u64).sum();
        *self = Self { opened: round, result: Arc::new(messages), kept, ..Self::default() };
    }

    /// Hashes everything that determines its further behaviour, for rounds without messages.
    #[cfg(test)]
    pub(super) fn identify(&self, to: &mut std::hash::DefaultHasher) {
        use std::hash::Hash as _;
        let arrived: Vec<(u32, u32)> = self.arrived.iter().map(|(rank, arrival)| (*rank, arrival.holders)).collect();
        (self.opened, self.meeting.map(CollectiveKind::name), arrived, self.broken.is_some()).hash(to);
    }

    /// Bytes of kept messages: of waiting ranks, and of the last round.
    pub(super) fn held(&self) -> u64 {
        self.bytes + self.kept
    }

    /// Returns true if all rounds are over, for every rank.
    pub(super) fn is_broken(&self) -> bool {
        self.broken.is_some()
    }

    /// Returns true if the arrival of `rank` at `round` would be one more.
    pub(super) fn is_new(&self, rank: u32, round: u64) -> bool {
        round == self.opened + 1 && !self.arrived.contains_key(&rank)
    }

    /// Returns true if any rank waits.
    pub(super) fn waited_for(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// The number of the last round that opened, and the one that ranks wait at.
    pub(super) fn progress(&self) -> (u64, Option<Waits>) {
        let waits = |kind: CollectiveKind| Waits {
            kind: kind.name().to_owned(),
            round: self.opened + 1,
            arrived: self.arrived.len() as u64,
            missing: self.missing.iter().copied().take(NAMED).collect(),
        };
        (self.opened, self.meeting.filter(|_| self.waited_for()).map(waits))
    }

    /// Says which ranks wait, in brackets after what they wait at; nothing if none does.
    pub(super) fn waiting(&self) -> String {
        let waiting: Vec<u32> = self.arrived.keys().copied().collect();
        if waiting.is_empty() {
            return String::new();
        }
        format!(" ({} wait there)", ranks(&waiting, waiting.len()))
    }

    /// Ends the next and every later round of the generation with `refusal`, and returns it.
    pub(super) fn break_with(&mut self, refusal: Refusal) -> Refusal {
        self.arrived.clear();
        self.bytes = 0;
        self.broken.get_or_insert(refusal).clone()
    }

    /// Rank `arriving.rank` arrives at a round, and opens it if it was the last one missing.
    ///
    /// A mismatch of kind or number breaks the rounds for all ranks: their programs have diverged, and waiting would never end.
    pub(super) fn arrive(
        &mut self,
        now: Duration,
        gang: &str,
        world: u32,
        limit: u64,
        arriving: Arriving<'_>,
    ) -> Result<Arrived, Refusal> {
        let Arriving { rank, round, meeting, message, deadline } = arriving;
        // An opened round is open for all ranks, even if a later one has broken meanwhile.
        if round == self.opened && round > 0 {
            return Ok(Arrived::Before(Arc::clone(&self.result)));
        }
        if let Some(broken) = &self.broken {
            return Err(broken.clone());
        }
        let next = self.opened + 1;
        if round != next {
            let refusal = apart(
                format!("rounds of gang {gang}"),
                format!("round {next} (opened so far: {})", self.opened),
                format!("rank {rank} at {} {round}", meeting.name()),
            );
            // No rank is behind by two: this call was late, and its rank has continued since.
            return Err(if (1..self.opened).contains(&round) { refusal } else { self.break_with(refusal) });
        }
        let other = self.meeting.filter(|other| *other != meeting && self.arrived.keys().any(|there| *there != rank));
        if let Some(other) = other {
            return Err(self.break_with(apart(
                format!("round {round} of gang {gang}"),
                format!("{}{}", other.name(), self.waiting()),
                format!("rank {rank} at {}", meeting.name()),
            )));
        }
        self.meeting = Some(meeting);
        if let Some(there) = self.arrived.get(&rank) {
            if there.message != message {
                return Err(apart(
                    format!("message of rank {rank} in round {round} of gang {gang}"),
                    "the message it arrived with".into(),
                    "another one; a cancelled all_gather is repeated with the same bytes".into(),
                ));
            }
        } else {
            let asked = self.bytes + message.len() as u64;
            if asked > limit {
                return Err(self.break_with(Refusal::Limit {
                    what: format!("round {round} of gang {gang}, at rank {rank}"),
                    asked,
                    limit,
                    option: "max_gathered".into(),
                }));
            }
            self.bytes = asked;
            if self.missing.len() + self.arrived.len() != world as usize {
                self.missing = (0..world).filter(|rank| !self.arrived.contains_key(rank)).collect();
            }
            self.missing.remove(&rank);
            self.arrived.insert(rank, Arrival { message: message.to_vec(), since: now, holders: 0 });
        }
        if self.arrived.len() == world as usize {
            let all = std::mem::take(&mut self.arrived);
            let messages = match meeting {
                CollectiveKind::Barrier => Vec::new(),
                CollectiveKind::AllGather => all.into_values().map(|arrival| arrival.message).collect(),
            };
            self.restore(round, messages);
            return Ok(Arrived::Opened(Arc::clone(&self.result)));
        }
        let (missing, count): (Vec<u32>, _) = (self.missing.iter().copied().take(16).collect(), self.missing.len());
        if now >= deadline {
            let since = self.withdraw(rank, round).unwrap_or(now);
            return Err(Refusal::Timeout {
                stage: meeting.stage().into(),
                culprit: format!("{} of gang {gang} at round {round}", ranks(&missing, count)),
                waited_ms: millis(now.saturating_sub(since)),
            });
        }
        Ok(Arrived::Waiting(missing, count))
    }

    /// Takes an arrival back, unless its round has opened. Returns the time of the arrival.
    pub(super) fn withdraw(&mut self, rank: u32, round: u64) -> Option<Duration> {
        if round != self.opened + 1 {
            return None;
        }
        let arrival = self.arrived.remove(&rank)?;
        self.missing.insert(rank);
        self.bytes -= arrival.message.len() as u64;
        if self.arrived.is_empty() {
            self.meeting = None;
        }
        Some(arrival.since)
    }

    /// One more call holds the arrival of `rank`.
    pub(super) fn hold(&mut self, rank: u32, round: u64) {
        if round == self.opened + 1
            && let Some(arrival) = self.arrived.get_mut(&rank)
        {
            arrival.holders += 1;
        }
    }

    /// A call no longer holds it; a call that was `dropped` takes the arrival with it, if it was the last that held it.
    pub(super) fn release(&mut self, rank: u32, round: u64, dropped: bool) {
        if round != self.opened + 1 {
            return;
        }
        if let Some(arrival) = self.arrived.get_mut(&rank) {
            arrival.holders = arrival.holders.saturating_sub(1);
            if dropped && arrival.holders == 0 {
                self.withdraw(rank, round);
            }
        }
    }
}

fn apart(what: String, expected: String, found: String) -> Refusal {
    let hint = "all ranks must run the same barriers and all_gathers in the same order".into();
    Refusal::Mismatch { what, expected, found, hint }
}
