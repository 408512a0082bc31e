//! One gang: its waiting and present ranks, its generation, and the acknowledged position. Pure: time comes in as a number.
//!
//! ```text
//!  Forming(g) ── all N joined ──► Running(g) ── a member lost, or failed, or replaced ──► Forming(g + 1)
//!                                     └──────── all left cleanly ──► Ended ── a join ──► Forming(g + 1)
//! ```

#[cfg(test)]
mod identity;
mod joining;
mod plan;
mod restart;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::collectives::{Arrived, Arriving, CollectiveKind, Collectives};
use super::journal::{MemberRecord, Record};
use super::overview::Overview;
#[cfg(test)]
use super::planted::Planted;
use super::refusal::millis;
use super::wire::{
    Acked, Alive, Caller, Gathered, JoinRequest, MemberEntry, Members, Polled, Position, Reading, Refusal, Share,
    State, Token, to_hex,
};
use crate::figures::ranks;
use crate::manifest::Fingerprint;

/// Number of ended processes per rank that are remembered, so that a late repetition of their call gets the same end again.
pub(super) const REMEMBERED: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Forming,
    Running,
    Ended,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct Member {
    record: MemberRecord,
    /// End of its lease.
    until: Duration,
    left: bool,
    acked: Option<Position>,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct Joiner {
    request: JoinRequest,
    since: Duration,
    deadline: Duration,
    /// Time at which it is forgotten if its process does not call again.
    until: Duration,
    holders: u32,
}

/// A process that is over for the gang.
#[derive(Debug, Clone)]
struct Retired {
    attempt: u128,
    /// What a late call of it is told.
    end: Arc<Refusal>,
    /// The generation that it left cleanly, in a run that has ended.
    left: Option<u64>,
}

/// The changes that a call made, besides its answer.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// To be on disk before any answer that follows from them.
    pub(super) records: Vec<Record>,
    /// Set if the calls that wait for this gang must check again.
    pub(super) woken: bool,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Group {
    name: String,
    phase: Phase,
    generation: u64,
    /// The reason for the end of the previous generation.
    why: String,
    world: u32,
    members: BTreeMap<u32, Member>,
    /// Number of members that have acknowledged each position, or none.
    standing: BTreeMap<Option<Position>, usize>,
    /// Number of members that have left cleanly.
    left: usize,
    joiners: BTreeMap<u32, Joiner>,
    retired: BTreeMap<u32, VecDeque<Retired>>,
    /// Their number.
    remembered: usize,
    /// The position at which this generation began; no rank acknowledges it, or an earlier one, again.
    base: Option<Position>,
    acknowledged: Option<Position>,
    /// The plan of these positions, and the only one that this generation reads. Nothing is settled before the first stream.
    reads: Option<Reading>,
    /// The steps of an epoch of a plan, as its last stream told; nobody needs to remember that.
    ends: Option<(Fingerprint, u64)>,
    rounds: Collectives,
    /// The first rank that left this generation cleanly.
    gone: Option<u32>,
    /// Number of calls of members, and of ranks that wait to be.
    calls: u64,
    /// That number when a rank came that does not fit them.
    contested: Option<u64>,
    lease: Duration,
    /// Nothing is due before this; it may be too early, never too late.
    quiet_until: Duration,
    /// Time of the last call.
    pub(super) touched: Duration,
    /// Negative control: a defect that the checkers must notice.
    #[cfg(test)]
    pub(super) planted: Planted,
}

impl Group {
    pub(super) fn new(name: &str, generation: u64, lease: Duration) -> Self {
        Self {
            name: name.to_owned(),
            phase: Phase::Forming,
            generation,
            why: String::new(),
            world: 0,
            members: BTreeMap::new(),
            joiners: BTreeMap::new(),
            retired: BTreeMap::new(),
            remembered: 0,
            standing: BTreeMap::new(),
            left: 0,
            base: None,
            acknowledged: None,
            reads: None,
            ends: None,
            rounds: Collectives::default(),
            gone: None,
            calls: 0,
            contested: None,
            lease,
            quiet_until: Duration::ZERO,
            touched: Duration::ZERO,
            #[cfg(test)]
            planted: Planted::default(),
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns true if forgetting it loses nothing but a name: it has ended, or never began.
    pub(super) fn is_spent(&self) -> bool {
        self.joiners.is_empty() && (self.phase == Phase::Ended || (self.phase == Phase::Forming && self.why.is_empty()))
    }

    /// Returns true if it was interrupted, and its next generation continues from its acknowledged position.
    pub(super) fn resumes(&self) -> bool {
        self.phase == Phase::Forming && self.acknowledged.is_some()
    }

    /// Number of ranks of which it keeps something.
    pub(super) fn ranks(&self) -> usize {
        self.members.len() + self.joiners.len()
    }

    /// Number of ended processes that it remembers.
    pub(super) fn remembered(&self) -> usize {
        self.remembered
    }

    /// Forgets them: a late call of one of them is taken for that of a new process.
    pub(super) fn forget_ends(&mut self) {
        self.retired.clear();
        self.remembered = 0;
    }

    /// Returns true if the rank has a place in it, though perhaps another process holds it.
    pub(super) fn knows(&self, rank: u32) -> bool {
        self.joiners.contains_key(&rank) || self.members.contains_key(&rank)
    }

    /// Bytes of messages that it keeps.
    pub(super) fn held(&self) -> u64 {
        self.rounds.held()
    }

    /// Bytes by which a message of `bytes` increases those kept.
    pub(super) fn adds(&self, caller: &Caller, round: u64, bytes: u64) -> u64 {
        if self.check(caller, false).is_ok() && self.rounds.is_new(caller.rank, round) { bytes } else { 0 }
    }

    /// Returns true if no rank is in it or waits for it.
    pub(super) fn is_empty(&self) -> bool {
        self.joiners.is_empty() && self.phase != Phase::Running
    }

    // ---- time -------------------------------------------------------------------------------------------------------

    /// Applies everything that is due at `now`: leases run out, the join deadline passes.
    pub(super) fn tick(&mut self, now: Duration, effects: &mut Effects) {
        // Leases only grow, so a full look at all members is seldom needed.
        if now < self.quiet_until {
            return;
        }
        if self.phase == Phase::Running {
            let lost: Vec<u32> =
                self.members.iter().filter(|(_, it)| !it.left && it.until <= now).map(|(rank, _)| *rank).collect();
            if !lost.is_empty() {
                let lease = self.lease.as_secs_f64();
                let who = ranks(&lost, lost.len());
                self.raise(format!("{who} lost: no heartbeat within the lease of {lease} s"), effects);
            }
        }
        if self.phase == Phase::Forming {
            self.joiners.retain(|_, joiner| joiner.until > now);
            let due = self.joiners.values().map(|joiner| joiner.deadline).min().is_some_and(|deadline| deadline <= now);
            if due {
                let since = self.joiners.values().map(|joiner| joiner.since).min().unwrap_or(now);
                let (missing, count) = self.missing_joiners();
                let who = ranks(&missing, count);
                let culprit = format!("{who} of gang {}, {} of {} joined", self.name, self.joiners.len(), self.world);
                let waited_ms = millis(now.saturating_sub(since));
                self.fail_joins(&Refusal::Timeout { stage: "gang join".into(), culprit, waited_ms }, effects);
            }
        }
        self.quiet_until = self.due().unwrap_or(Duration::MAX);
    }

    /// Time of the next event, if there is no call before.
    pub(super) fn due(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running => self.members.values().filter(|it| !it.left).map(|it| it.until).min(),
            Phase::Forming => self.joiners.values().map(|joiner| joiner.deadline.min(joiner.until)).min(),
            Phase::Ended => None,
        }
    }

    // ---- members ----------------------------------------------------------------------------------------------------

    /// Checks that `caller` is a member of the running generation. `departed`: one that has left cleanly passes too.
    pub(super) fn check(&self, caller: &Caller, departed: bool) -> Result<(), Refusal> {
        #[cfg(test)]
        match self.planted {
            Planted::NoFences if self.phase == Phase::Running => return Ok(()),
            Planted::OlderCallers if self.phase == Phase::Running && caller.generation < self.generation => {
                return Ok(());
            }
            _ => {}
        }
        let fenced = |why: String| Err(Refusal::Fenced { gang: self.name.clone(), generation: caller.generation, why });
        if caller.generation != self.generation {
            return if caller.generation.checked_add(1) == Some(self.generation) && !self.why.is_empty() {
                fenced(self.why.clone())
            } else {
                fenced(format!("the gang is at generation {} now", self.generation))
            };
        }
        let member = self.members.get(&caller.rank).filter(|it| it.record.attempt == caller.attempt);
        match (self.phase, member) {
            (Phase::Running, Some(member)) if !member.left || departed => Ok(()),
            (Phase::Ended, Some(_)) if departed => Ok(()),
            (Phase::Running | Phase::Ended, Some(_)) => fenced(format!("rank {} has left", caller.rank)),
            (Phase::Ended, None) => fenced("all ranks have left".into()),
            (Phase::Running, None) => fenced(format!("another process is rank {} in it", caller.rank)),
            (Phase::Forming, _) => fenced("it has not begun".into()),
        }
    }

    /// The share of the data that `caller` joined with, and the position that its generation resumes from.
    pub(super) fn part(&self, caller: &Caller) -> Result<(Share, Option<Position>), Refusal> {
        self.check(caller, false)?;
        let whole = Share { rank: caller.rank, of: self.world };
        Ok((self.members.get(&caller.rank).map_or(whole, |member| member.record.share), self.base))
    }

    fn renew(&mut self, now: Duration, rank: u32) {
        let lease = self.lease;
        if let Some(member) = self.members.get_mut(&rank) {
            member.until = member.until.max(now + lease);
            self.calls += 1;
        }
    }

    pub(super) fn heartbeat(&mut self, now: Duration, caller: &Caller) -> Result<Alive, Refusal> {
        self.check(caller, false)?;
        self.renew(now, caller.rank);
        Ok(Alive { lease_ms: millis(self.lease), acknowledged: self.acknowledged })
    }

    pub(super) fn members(&self, caller: &Caller) -> Result<Members, Refusal> {
        self.check(caller, false)?;
        Ok(Members { generation: self.generation, members: self.entries() })
    }

    fn entries(&self) -> Vec<MemberEntry> {
        let entry = |rank, share, info| MemberEntry { rank, share, info };
        if self.phase == Phase::Running {
            self.members.values().map(|it| entry(it.record.rank, it.record.share, it.record.info.clone())).collect()
        } else {
            self.joiners
                .values()
                .map(|it| entry(it.request.rank, share(&it.request), it.request.info.clone()))
                .collect()
        }
    }

    /// Ends the running generation: its waits and streams end with `why`.
    fn raise(&mut self, why: String, effects: &mut Effects) {
        let end = Refusal::Fenced { gang: self.name.clone(), generation: self.generation, why: why.clone() };
        let end = Arc::new(end);
        for (rank, member) in self.take_members() {
            self.retire(rank, member.record.attempt, (Arc::clone(&end), None));
        }
        self.phase = Phase::Forming;
        self.contested = None;
        self.generation += 1;
        #[cfg(test)]
        if self.planted == Planted::SameNumber {
            self.generation -= 1;
        }
        self.rounds = Collectives::default();
        if self.acknowledged.is_none() {
            // All start anew, with whatever is there then.
            self.reads = None;
        }
        effects.records.push(Record::Raised {
            gang: self.name.clone(),
            generation: self.generation,
            acknowledged: self.acknowledged,
            why: why.clone(),
            reads: self.reads.clone(),
        });
        self.why = why;
        effects.woken = true;
        #[cfg(test)]
        if self.planted == Planted::NobodyWoken {
            effects.woken = false;
        }
    }

    pub(super) fn leave(
        &mut self,
        caller: &Caller,
        failure: Option<&str>,
        effects: &mut Effects,
    ) -> Result<(), Refusal> {
        // Its answer was lost, and another run has begun since.
        if failure.is_none()
            && self.retired(caller.rank, caller.attempt).is_some_and(|it| it.left == Some(caller.generation))
        {
            return Ok(());
        }
        self.check(caller, true)?;
        if let Some(failure) = failure {
            if self.phase == Phase::Running {
                self.raise(format!("rank {} failed: {failure}", caller.rank), effects);
            }
            return Ok(());
        }
        if !self.depart(caller.rank) {
            return Ok(());
        }
        self.gone.get_or_insert(caller.rank);
        effects.records.push(Record::Left { gang: self.name.clone(), generation: self.generation, rank: caller.rank });
        if self.rounds.waited_for() {
            self.rounds.break_with(self.gone(caller.rank));
        }
        if self.left == self.members.len() {
            self.phase = Phase::Ended;
            self.rounds = Collectives::default();
            effects.records.push(Record::Ended { gang: self.name.clone(), generation: self.generation });
        }
        effects.woken = true;
        Ok(())
    }

    /// Takes all members out.
    fn take_members(&mut self) -> BTreeMap<u32, Member> {
        self.standing.clear();
        self.left = 0;
        std::mem::take(&mut self.members)
    }

    /// A rank leaves cleanly; false if it is not in it.
    fn depart(&mut self, rank: u32) -> bool {
        let Some(member) = self.members.get_mut(&rank).filter(|member| !member.left) else { return false };
        member.left = true;
        self.left += 1;
        true
    }

    fn gone(&self, rank: u32) -> Refusal {
        Refusal::Mismatch {
            what: format!("barrier of gang {}{}", self.name, self.rounds.waiting()),
            expected: format!("all {} ranks", self.world),
            found: format!("rank {rank} left cleanly"),
            hint: "leave after the last barrier".into(),
        }
    }

    // ---- rounds and acknowledgements --------------------------------------------------------------------------------

    pub(super) fn meet(
        &mut self,
        now: Duration,
        caller: &Caller,
        limit: u64,
        arriving: Arriving<'_>,
        effects: &mut Effects,
    ) -> Result<Polled<Gathered>, Refusal> {
        self.check(caller, false)?;
        self.renew(now, caller.rank);
        let (rank, round, meeting) = (caller.rank, arriving.round, arriving.meeting);
        // A further round can never be complete; one that has opened is still answered.
        if let Some(gone) = self.gone.filter(|_| round > self.rounds.last().0) {
            return Err(self.gone(gone));
        }
        let broken = self.rounds.is_broken();
        let arrived = self.rounds.arrive(now, &self.name, self.world, limit, Arriving { rank, ..arriving });
        let messages = match arrived {
            Err(refusal) => {
                // A broken round concerns all ranks in it; any other refusal, only the caller.
                effects.woken = !broken && self.rounds.is_broken();
                return Err(refusal);
            }
            Ok(Arrived::Waiting(missing, count)) => {
                let missing_count = count as u64;
                return Ok(Polled::Waiting { missing, missing_count, lease_ms: millis(self.lease) });
            }
            Ok(Arrived::Before(messages)) => messages,
            Ok(Arrived::Opened(messages)) => {
                effects.woken = true;
                effects.records.push(Record::Opened {
                    gang: self.name.clone(),
                    generation: self.generation,
                    round,
                    messages: messages.iter().map(|message| to_hex(message)).collect(),
                });
                messages
            }
        };
        // The kind may differ from that of the opened round only for a caller that is a whole round late, and it says which it wants.
        Ok(Polled::Done(Gathered(if meeting == CollectiveKind::Barrier { Arc::default() } else { messages })))
    }

    pub(super) fn hold_round(&mut self, caller: &Caller, round: u64) {
        if self.check(caller, false).is_ok() {
            self.rounds.hold(caller.rank, round);
        }
    }

    pub(super) fn release_round(&mut self, caller: &Caller, round: u64, dropped: bool) {
        if self.check(caller, false).is_ok() {
            self.rounds.release(caller.rank, round, dropped);
        }
    }

    pub(super) fn ack(
        &mut self,
        now: Duration,
        caller: &Caller,
        position: Position,
        plan: Option<Fingerprint>,
        effects: &mut Effects,
    ) -> Result<Acked, Refusal> {
        self.check(caller, false)?;
        self.renew(now, caller.rank);
        if let Some(plan) = plan {
            self.read(caller, &Reading::named(plan), effects)?;
        }
        self.within_epoch(caller.rank, position)?;
        let (rank, base) = (caller.rank, self.base);
        let Some(member) = self.members.get(&rank) else {
            return self.check(caller, false).and(Err(self.nobody(rank)));
        };
        let behind = member.acked.map_or(base >= Some(position), |acked| position < acked);
        #[cfg(test)]
        let behind = behind && self.planted != Planted::NoFences;
        if behind {
            let at = member.acked.or(base);
            return Err(Refusal::Mismatch {
                what: format!("acknowledgement of rank {rank} of gang {}", self.name),
                expected: format!("a position after {}", at.map_or("the start".into(), |at| at.to_string())),
                found: position.to_string(),
                hint: "continue after the position that join gave".into(),
            });
        }
        if member.acked != Some(position) {
            self.stand(rank, position);
            effects.records.push(Record::Acked {
                gang: self.name.clone(),
                generation: self.generation,
                rank,
                position,
            });
        }
        let plan = self.reads.as_ref().map(|reads| reads.plan);
        let token = Token::new(self.name.clone(), self.generation, position).of_plan(plan);
        Ok(Acked { token, acknowledged: self.acknowledged })
    }

    fn nobody(&self, rank: u32) -> Refusal {
        config("rank", format!("gang {} has no rank {rank}", self.name))
    }

    /// Records that a rank acknowledged `position`. The gang's position is the least of all ranks, once each has acknowledged one in this
    /// generation.
    fn stand(&mut self, rank: u32, position: Position) {
        let Some(member) = self.members.get_mut(&rank) else { return };
        let before = member.acked.replace(position);
        if let Some(count) = self.standing.get_mut(&before) {
            *count -= 1;
            if *count == 0 {
                self.standing.remove(&before);
            }
        }
        *self.standing.entry(Some(position)).or_default() += 1;
        if let Some(least) = self.standing.keys().next().copied().flatten() {
            self.acknowledged = self.acknowledged.max(Some(least));
        }
    }

    /// The name of the phase, and the first ranks that are missing.
    fn told(&self) -> (&'static str, Vec<u32>) {
        let left = || self.members.values().filter(|it| it.left).map(|it| it.record.rank).take(16).collect();
        match self.phase {
            Phase::Forming => ("forming", self.missing_joiners().0),
            Phase::Running => ("running", left()),
            Phase::Ended => ("ended", left()),
        }
    }

    /// As [`state`](Self::state), in short.
    pub(super) fn overview(&self) -> Overview {
        let (phase, missing) = self.told();
        let (rounds, waits) = self.rounds.progress();
        let present = match self.phase {
            Phase::Forming => self.joiners.len(),
            _ => self.members.len().saturating_sub(self.left),
        };
        Overview {
            gang: self.name.clone(),
            phase: phase.into(),
            generation: self.generation,
            world_size: self.world,
            present: present as u64,
            missing,
            acknowledged: self.acknowledged,
            why: self.why.clone(),
            rounds,
            waits,
        }
    }

    pub(super) fn state(&self) -> State {
        let (phase, missing) = self.told();
        State {
            gang: self.name.clone(),
            phase: phase.into(),
            generation: self.generation,
            world_size: self.world,
            present: self.entries(),
            missing,
            acknowledged: self.acknowledged,
            why: self.why.clone(),
            reads: self.reads.clone(),
        }
    }
}

fn share(request: &JoinRequest) -> Share {
    request.share.unwrap_or(Share { rank: request.rank, of: request.world_size })
}

fn config(option: &str, problem: String) -> Refusal {
    Refusal::Config { option: option.into(), problem }
}
