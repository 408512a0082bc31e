//! One gang: who waits, who is in, which generation, what is acknowledged. Pure: time comes in as a number.
//!
//! ```text
//!  Forming(g) ── all N joined ──► Running(g) ── a member lost, or failed, or replaced ──► Forming(g + 1)
//!                                     └──────── all left cleanly ──► Ended ── a join ──► Forming(g + 1)
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::journal::{Record, Seat};
use super::rounds::{Arrived, Arriving, Meeting, Rounds};
use super::wire::{
    Acked, Alive, Caller, JoinRequest, Joined, MemberEntry, Members, Met, Polled, Position, Refusal, Share, State,
    Token, millis, ranks, to_hex,
};

/// How many ended processes per rank are remembered, so that a late repetition of their call is told its end again.
const REMEMBERED: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Forming,
    Running,
    Ended,
}

#[derive(Debug)]
struct Member {
    seat: Seat,
    /// When its lease runs out.
    until: Duration,
    left: bool,
    acked: Option<Position>,
}

#[derive(Debug)]
struct Joiner {
    request: JoinRequest,
    since: Duration,
    deadline: Duration,
    /// When it is forgotten if its process asks no more.
    until: Duration,
    holders: u32,
}

/// What a call changed beside its answer.
#[derive(Debug, Default)]
pub(super) struct Effects {
    /// To be on disk before any answer that follows from them.
    pub(super) records: Vec<Record>,
    /// Whether those who wait for this gang must look again.
    pub(super) woken: bool,
}

#[derive(Debug)]
pub(super) struct Crew {
    name: String,
    phase: Phase,
    generation: u64,
    /// What ended the generation before.
    why: String,
    world: u32,
    members: BTreeMap<u32, Member>,
    joiners: BTreeMap<u32, Joiner>,
    retired: BTreeMap<u32, VecDeque<(u128, Refusal)>>,
    /// The position at which this generation began; no rank acknowledges it, or what is before it, again.
    base: Option<Position>,
    acknowledged: Option<Position>,
    rounds: Rounds,
    lease: Duration,
    /// When somebody last called.
    pub(super) touched: Duration,
    /// Negative control: a machine that fences nobody, which the checkers must notice.
    #[cfg(test)]
    pub(super) unfenced: bool,
}

impl Crew {
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
            base: None,
            acknowledged: None,
            rounds: Rounds::default(),
            lease,
            touched: Duration::ZERO,
            #[cfg(test)]
            unfenced: false,
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether forgetting it loses nothing but a name: it has ended, or never began.
    pub(super) fn is_spent(&self) -> bool {
        self.joiners.is_empty() && (self.phase == Phase::Ended || (self.phase == Phase::Forming && self.why.is_empty()))
    }

    /// Whether nobody is in it or waits for it.
    pub(super) fn is_empty(&self) -> bool {
        self.joiners.is_empty() && self.phase != Phase::Running
    }

    // ---- time -------------------------------------------------------------------------------------------------------

    /// Lets everything happen that is due at `now`: leases run out, the join deadline passes.
    pub(super) fn tick(&mut self, now: Duration, effects: &mut Effects) {
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
    }

    /// When the next thing is due, if nobody calls before.
    pub(super) fn due(&self) -> Option<Duration> {
        match self.phase {
            Phase::Running => self.members.values().filter(|it| !it.left).map(|it| it.until).min(),
            Phase::Forming => self.joiners.values().map(|joiner| joiner.deadline.min(joiner.until)).min(),
            Phase::Ended => None,
        }
    }

    // ---- joining ----------------------------------------------------------------------------------------------------

    /// One poll of a join whose form the machine has checked.
    pub(super) fn join(
        &mut self,
        now: Duration,
        request: &JoinRequest,
        effects: &mut Effects,
    ) -> Result<Polled<Joined>, Refusal> {
        let rank = request.rank;
        if let Some(end) = self.retired.get(&rank).and_then(|all| all.iter().find(|(it, _)| *it == request.attempt)) {
            return Err(end.1.clone());
        }
        if self.phase == Phase::Ended {
            // A new run under an old name: it starts from the beginning, or where its checkpoint says.
            self.phase = Phase::Forming;
            self.generation += 1;
            self.why = "the run before this one has ended".into();
            self.members.clear();
            (self.base, self.acknowledged) = (None, None);
        }
        if self.phase == Phase::Running {
            if let Some(member) = self.members.get_mut(&rank).filter(|it| it.seat.attempt == request.attempt) {
                member.until = member.until.max(now + self.lease);
                return Ok(Polled::Done(self.joined()));
            }
            self.agrees(request, self.world, self.members.values().next().map(|it| it.seat.share.of))?;
            self.raise(format!("rank {rank} joined again: a new process is in its place"), effects);
        }
        let first = self.joiners.values().find(|it| it.request.rank != rank);
        let (world, shares) = first.map_or((request.world_size, None), |it| (self.world, Some(share(&it.request).of)));
        self.agrees(request, world, shares)?;
        if let Some(there) = self.joiners.get(&rank).filter(|it| it.request.attempt != request.attempt) {
            return Err(config(
                "rank",
                format!(
                    "rank {rank} of gang {} is taken by a process at {:?} that waits to join; each rank joins once",
                    self.name, there.request.info.address
                ),
            ));
        }
        self.world = world;
        let deadline = now + Duration::from_millis(request.timeout_ms);
        let until = now + Duration::from_millis(request.poll_ms) + self.lease;
        let joiner = self.joiners.entry(rank).or_insert_with(|| Joiner {
            request: request.clone(),
            since: now,
            deadline,
            until,
            holders: 0,
        });
        joiner.deadline = joiner.deadline.min(deadline);
        joiner.until = joiner.until.max(until);
        if self.joiners.len() == self.world as usize {
            return self.form(now, effects).map(Polled::Done);
        }
        // A deadline that is over already is over for everybody who waits.
        self.tick(now, effects);
        if let Some(end) = self.retired.get(&rank).and_then(|all| all.iter().find(|(it, _)| *it == request.attempt)) {
            return Err(end.1.clone());
        }
        let (missing, count) = self.missing_joiners();
        Ok(Polled::Waiting { missing, missing_count: count as u64, lease_ms: millis(self.lease) })
    }

    /// Whether `request` fits a gang of `world` ranks and `shares` shares.
    fn agrees(&self, request: &JoinRequest, world: u32, shares: Option<u32>) -> Result<(), Refusal> {
        let (name, rank) = (&self.name, request.rank);
        if request.world_size != world {
            let problem = format!("rank {rank} says {}, gang {name} has {world} ranks", request.world_size);
            return Err(config("world_size", problem));
        }
        if rank >= world {
            let problem = format!("rank {rank} is outside of gang {name}, which has ranks 0 to {}", world - 1);
            return Err(config("rank", problem));
        }
        let share = share(request);
        if share.rank >= share.of || shares.is_some_and(|of| of != share.of) {
            let problem = match shares {
                Some(of) if of != share.of => format!("rank {rank} says {} shares, the others {of}", share.of),
                _ => format!("rank {rank} has share {} of {}", share.rank, share.of),
            };
            return Err(config("share", format!("{problem}, in gang {name}")));
        }
        Ok(())
    }

    fn form(&mut self, now: Duration, effects: &mut Effects) -> Result<Joined, Refusal> {
        let at = match self.agreed_start() {
            Ok(at) => at,
            Err(refusal) => {
                self.fail_joins(&refusal, effects);
                return Err(refusal);
            }
        };
        let newest = self.joiners.values().filter_map(|it| it.request.token.as_ref()).map(|it| it.generation).max();
        // A token may be from before this server's memory began.
        self.generation = self.generation.max(newest.map_or(0, |generation| generation.saturating_add(1)));
        let seats: Vec<Seat> = self
            .joiners
            .values()
            .map(|it| Seat {
                rank: it.request.rank,
                attempt: it.request.attempt,
                share: share(&it.request),
                info: it.request.info.clone(),
            })
            .collect();
        effects.records.push(Record::Formed {
            gang: self.name.clone(),
            generation: self.generation,
            at,
            acknowledged: at,
            members: seats.clone(),
        });
        effects.woken = true;
        self.seat(seats, self.generation, at, now + self.lease);
        Ok(self.joined())
    }

    /// The position at which the joiners start: what their tokens say, if all say the same, else the acknowledged one.
    fn agreed_start(&self) -> Result<Option<Position>, Refusal> {
        let shares = self.joiners.values().next().map_or(0, |it| share(&it.request).of);
        let held: std::collections::BTreeSet<u32> = self.joiners.values().map(|it| share(&it.request).rank).collect();
        if held.len() != shares as usize {
            let missing: Vec<u32> = (0..shares).filter(|share| !held.contains(share)).take(16).collect();
            return Err(Refusal::Mismatch {
                what: format!("shares of gang {}", self.name),
                expected: format!("each of the {shares} shares at one rank or more"),
                found: format!("nobody with share {missing:?}"),
                hint: "give each rank the number of its data-parallel group".into(),
            });
        }
        let token = |it: &Joiner| it.request.token.as_ref().map(|token| (token.generation, token.position));
        let Some((first, joiner)) = self.joiners.iter().next() else { return Ok(self.acknowledged) };
        let expected = token(joiner);
        let other: Vec<u32> = self.joiners.iter().filter(|(_, it)| token(it) != expected).map(|(r, _)| *r).collect();
        let Some(differs) = other.first().and_then(|rank| self.joiners.get(rank)) else {
            return Ok(expected.map_or(self.acknowledged, |(_, position)| Some(position)));
        };
        let say = |it: Option<(u64, Position)>| {
            it.map_or("no token".into(), |(generation, at)| format!("{at} of generation {generation}"))
        };
        Err(Refusal::Mismatch {
            what: format!("tokens of gang {}", self.name),
            expected: format!("the token of rank {first} ({}) at all ranks", say(expected)),
            found: format!("{} at {}", say(token(differs)), ranks(&other, other.len())),
            hint: "load the same checkpoint at all ranks".into(),
        })
    }

    fn seat(&mut self, seats: Vec<Seat>, generation: u64, at: Option<Position>, until: Duration) {
        self.phase = Phase::Running;
        self.generation = generation;
        self.world = u32::try_from(seats.len()).unwrap_or(u32::MAX);
        self.members =
            seats.into_iter().map(|seat| (seat.rank, Member { seat, until, left: false, acked: None })).collect();
        self.joiners.clear();
        self.rounds = Rounds::default();
        (self.base, self.acknowledged) = (at, at);
    }

    fn joined(&self) -> Joined {
        Joined { generation: self.generation, lease_ms: millis(self.lease), resume: self.base }
    }

    fn fail_joins(&mut self, refusal: &Refusal, effects: &mut Effects) {
        for (rank, joiner) in std::mem::take(&mut self.joiners) {
            self.retire(rank, joiner.request.attempt, refusal.clone());
        }
        effects.woken = true;
    }

    fn missing_joiners(&self) -> (Vec<u32>, usize) {
        let missing = (0..self.world).filter(|rank| !self.joiners.contains_key(rank)).take(16).collect();
        (missing, (self.world as usize).saturating_sub(self.joiners.len()))
    }

    fn retire(&mut self, rank: u32, attempt: u128, end: Refusal) {
        let all = self.retired.entry(rank).or_default();
        if all.len() >= REMEMBERED {
            all.pop_front();
        }
        all.push_back((attempt, end));
    }

    /// One more call waits for the join of this process.
    pub(super) fn hold_join(&mut self, rank: u32, attempt: u128) {
        if let Some(joiner) = self.joiners.get_mut(&rank).filter(|it| it.request.attempt == attempt) {
            joiner.holders += 1;
        }
    }

    /// A call no longer waits; one that was `dropped` takes the join back, if it was the last.
    pub(super) fn release_join(&mut self, rank: u32, attempt: u128, dropped: bool) {
        if let Some(joiner) = self.joiners.get_mut(&rank).filter(|it| it.request.attempt == attempt) {
            joiner.holders = joiner.holders.saturating_sub(1);
            if dropped && joiner.holders == 0 {
                self.joiners.remove(&rank);
            }
        }
    }

    // ---- members ----------------------------------------------------------------------------------------------------

    /// Whether `caller` is a member of the running generation. `departed`: also one that has left cleanly.
    pub(super) fn check(&self, caller: &Caller, departed: bool) -> Result<(), Refusal> {
        #[cfg(test)]
        if self.unfenced && self.phase == Phase::Running {
            return Ok(());
        }
        let fenced = |why: String| Err(Refusal::Fenced { gang: self.name.clone(), generation: caller.generation, why });
        if caller.generation != self.generation {
            return if caller.generation.checked_add(1) == Some(self.generation) && !self.why.is_empty() {
                fenced(self.why.clone())
            } else {
                fenced(format!("the gang is at generation {} now", self.generation))
            };
        }
        let member = self.members.get(&caller.rank).filter(|it| it.seat.attempt == caller.attempt);
        match (self.phase, member) {
            (Phase::Running, Some(member)) if !member.left || departed => Ok(()),
            (Phase::Ended, Some(_)) if departed => Ok(()),
            (Phase::Running | Phase::Ended, Some(_)) => fenced(format!("rank {} has left", caller.rank)),
            (Phase::Ended, None) => fenced("all ranks have left".into()),
            (Phase::Running, None) => fenced(format!("another process is rank {} in it", caller.rank)),
            (Phase::Forming, _) => fenced("it has not begun".into()),
        }
    }

    fn renew(&mut self, now: Duration, rank: u32) {
        let lease = self.lease;
        if let Some(member) = self.members.get_mut(&rank) {
            member.until = member.until.max(now + lease);
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
            self.members.values().map(|it| entry(it.seat.rank, it.seat.share, it.seat.info.clone())).collect()
        } else {
            self.joiners
                .values()
                .map(|it| entry(it.request.rank, share(&it.request), it.request.info.clone()))
                .collect()
        }
    }

    /// Ends the running generation: whoever waits or streams in it is told `why`.
    fn raise(&mut self, why: String, effects: &mut Effects) {
        let end = Refusal::Fenced { gang: self.name.clone(), generation: self.generation, why: why.clone() };
        for (rank, member) in std::mem::take(&mut self.members) {
            self.retire(rank, member.seat.attempt, end.clone());
        }
        self.phase = Phase::Forming;
        self.generation += 1;
        self.rounds = Rounds::default();
        effects.records.push(Record::Raised {
            gang: self.name.clone(),
            generation: self.generation,
            acknowledged: self.acknowledged,
            why: why.clone(),
        });
        self.why = why;
        effects.woken = true;
    }

    pub(super) fn leave(
        &mut self,
        caller: &Caller,
        failure: Option<&str>,
        effects: &mut Effects,
    ) -> Result<(), Refusal> {
        self.check(caller, true)?;
        if let Some(failure) = failure {
            if self.phase == Phase::Running {
                self.raise(format!("rank {} failed: {failure}", caller.rank), effects);
            }
            return Ok(());
        }
        match self.members.get_mut(&caller.rank) {
            Some(member) if !member.left => member.left = true,
            _ => return Ok(()),
        }
        effects.records.push(Record::Left { gang: self.name.clone(), generation: self.generation, rank: caller.rank });
        if self.rounds.waited_for() {
            self.rounds.break_with(self.gone(caller.rank));
        }
        if self.members.values().all(|member| member.left) {
            self.phase = Phase::Ended;
            effects.records.push(Record::Ended { gang: self.name.clone(), generation: self.generation });
        }
        effects.woken = true;
        Ok(())
    }

    fn gone(&self, rank: u32) -> Refusal {
        Refusal::Mismatch {
            what: format!("barrier of gang {} ({} wait there)", self.name, self.rounds.waiting()),
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
        arriving: Arriving,
        effects: &mut Effects,
    ) -> Result<Polled<Met>, Refusal> {
        self.check(caller, false)?;
        self.renew(now, caller.rank);
        let (rank, round, meeting) = (caller.rank, arriving.round, arriving.meeting);
        // Whom nobody can meet any more; a round that has opened is still answered.
        let gone = self.members.values().find(|it| it.left).map(|it| it.seat.rank);
        if let Some(gone) = gone.filter(|_| round > self.rounds.last().0) {
            return Err(self.gone(gone));
        }
        let arrived = self.rounds.arrive(now, &self.name, self.world, limit, Arriving { rank, ..arriving });
        let messages = match arrived {
            Err(refusal) => {
                // A broken round concerns everybody in it.
                effects.woken = true;
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
        // The kind may differ from what opened only for a caller that is behind by a whole round, and it says which it wants.
        let messages =
            if meeting == Meeting::Barrier { Vec::new() } else { messages.iter().map(|m| to_hex(m)).collect() };
        Ok(Polled::Done(Met { messages }))
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
        effects: &mut Effects,
    ) -> Result<Acked, Refusal> {
        self.check(caller, false)?;
        self.renew(now, caller.rank);
        let (rank, base) = (caller.rank, self.base);
        let Some(member) = self.members.get_mut(&rank) else {
            return self.check(caller, false).and(Err(self.nobody(rank)));
        };
        let behind = member.acked.map_or(base >= Some(position), |acked| position < acked);
        #[cfg(test)]
        let behind = behind && !self.unfenced;
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
            member.acked = Some(position);
            effects.records.push(Record::Acked {
                gang: self.name.clone(),
                generation: self.generation,
                rank,
                position,
            });
            self.recount();
        }
        let token = Token::new(self.name.clone(), self.generation, position);
        Ok(Acked { token, acknowledged: self.acknowledged })
    }

    fn nobody(&self, rank: u32) -> Refusal {
        config("rank", format!("gang {} has no rank {rank}", self.name))
    }

    /// The acknowledged position is the least of all ranks, once each has acknowledged one in this generation.
    fn recount(&mut self) {
        if let Some(least) = self.members.values().map(|member| member.acked).min().flatten() {
            self.acknowledged = self.acknowledged.max(Some(least));
        }
    }

    pub(super) fn state(&self) -> State {
        let (missing, _) = match self.phase {
            Phase::Forming => self.missing_joiners(),
            _ => (self.members.values().filter(|it| it.left).map(|it| it.seat.rank).take(16).collect(), 0),
        };
        let phase = match self.phase {
            Phase::Forming => "forming",
            Phase::Running => "running",
            Phase::Ended => "ended",
        };
        State {
            gang: self.name.clone(),
            phase: phase.into(),
            generation: self.generation,
            world_size: self.world,
            present: self.entries(),
            missing,
            acknowledged: self.acknowledged,
            why: self.why.clone(),
        }
    }

    // ---- the journal ------------------------------------------------------------------------------------------------

    /// Takes over what a record says. Members of a running generation get a lease until `until`.
    pub(super) fn replay(&mut self, record: &Record, until: Duration) {
        match record {
            Record::Formed { generation, at, acknowledged, members, .. } => {
                self.seat(members.clone(), *generation, *at, until);
                self.acknowledged = *acknowledged;
            }
            Record::Raised { generation, acknowledged, why, .. } => {
                let end = Refusal::Fenced { gang: self.name.clone(), generation: self.generation, why: why.clone() };
                for (rank, member) in std::mem::take(&mut self.members) {
                    self.retire(rank, member.seat.attempt, end.clone());
                }
                self.phase = Phase::Forming;
                self.generation = *generation;
                self.acknowledged = *acknowledged;
                self.rounds = Rounds::default();
                self.why.clone_from(why);
            }
            Record::Ended { generation, .. } => {
                self.phase = Phase::Ended;
                self.generation = *generation;
            }
            // The rest belongs to a generation that runs; a record of another one cannot be there.
            Record::Acked { generation, rank, position, .. } if *generation == self.generation => {
                if let Some(member) = self.members.get_mut(rank) {
                    member.acked = Some(*position);
                    self.recount();
                }
            }
            Record::Left { generation, rank, .. } if *generation == self.generation => {
                if let Some(member) = self.members.get_mut(rank) {
                    member.left = true;
                }
            }
            Record::Opened { generation, round, messages, .. } if *generation == self.generation => {
                let messages = messages.iter().map(|it| super::wire::from_hex(it).unwrap_or_default()).collect();
                self.rounds.restore(*round, messages);
            }
            Record::Acked { .. } | Record::Left { .. } | Record::Opened { .. } | Record::Floor { .. } => {}
        }
    }

    /// The fewest records that make this gang again.
    pub(super) fn snapshot(&self) -> Vec<Record> {
        let (gang, generation, acknowledged) = (self.name.clone(), self.generation, self.acknowledged);
        let formed = Record::Formed {
            gang: gang.clone(),
            generation,
            at: self.base,
            acknowledged,
            members: self.members.values().map(|it| it.seat.clone()).collect(),
        };
        match self.phase {
            Phase::Forming if self.why.is_empty() => Vec::new(),
            Phase::Forming => vec![Record::Raised { gang, generation, acknowledged, why: self.why.clone() }],
            Phase::Ended => vec![formed, Record::Ended { gang, generation }],
            Phase::Running => {
                let mut records = vec![formed];
                for (rank, member) in &self.members {
                    let (gang, rank) = (gang.clone(), *rank);
                    if let Some(position) = member.acked {
                        records.push(Record::Acked { gang: gang.clone(), generation, rank, position });
                    }
                    if member.left {
                        records.push(Record::Left { gang, generation, rank });
                    }
                }
                let (round, messages) = self.rounds.last();
                if round > 0 {
                    let messages = messages.iter().map(|message| to_hex(message)).collect();
                    records.push(Record::Opened { gang, generation, round, messages });
                }
                records
            }
        }
    }
}

fn share(request: &JoinRequest) -> Share {
    request.share.unwrap_or(Share { rank: request.rank, of: request.world_size })
}

fn config(option: &str, problem: String) -> Refusal {
    Refusal::Config { option: option.into(), problem }
}
