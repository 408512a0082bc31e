//! The formation of a gang: which ranks may join and which are missing, whether their requests agree, and the position at which they start.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::super::collectives::Collectives;
use super::super::journal::{MemberRecord, Record};
use super::super::refusal::millis;
use super::super::wire::{JoinRequest, Joined, Polled, Position, Reading, Refusal};
use super::{Effects, Group, Joiner, Member, Phase, REMEMBERED, Retired, config, share};
use crate::figures::ranks;
use crate::manifest::Fingerprint;

/// The start of a generation: the position after which it begins, and the plan of that position.
pub(super) type Start = (Option<Position>, Option<Reading>);

impl Group {
    /// One poll of a join whose form the machine has checked.
    pub(in super::super) fn join(
        &mut self,
        now: Duration,
        request: &JoinRequest,
        effects: &mut Effects,
    ) -> Result<Polled<Joined>, Refusal> {
        let rank = request.rank;
        if let Some(retired) = self.retired(rank, request.attempt) {
            return Err((*retired.end).clone());
        }
        if let Some(member) = self.members.get(&rank).filter(|it| it.left && it.record.attempt == request.attempt) {
            return Err(self.departed(member.record.rank));
        }
        if self.phase == Phase::Ended {
            // A refused call changes nothing.
            self.agrees(request, request.world_size, None)?;
            // A new run under an old name: it starts from the beginning, or from its checkpoint.
            for (rank, member) in self.take_members() {
                self.retire(rank, member.record.attempt, (Arc::new(self.departed(rank)), Some(self.generation)));
            }
            self.phase = Phase::Forming;
            self.generation += 1;
            self.why = "the run before this one has ended".into();
            (self.base, self.acknowledged, self.reads) = (None, None, None);
        }
        if self.phase == Phase::Running {
            if let Some(member) = self.members.get_mut(&rank).filter(|it| it.record.attempt == request.attempt) {
                member.until = member.until.max(now + self.lease);
                self.calls += 1;
                return Ok(Polled::Done(self.joined()));
            }
            let shares = self.members.values().next().map(|it| it.record.share.of);
            if let Err(refusal) = self.agrees(request, self.world, shares) {
                return self.contest(request, refusal);
            }
            self.raise(format!("rank {rank} joined again: a new process is in its place"), effects);
        }
        let first = self.joiners.values().find(|it| it.request.rank != rank);
        let (world, shares) = first.map_or((request.world_size, None), |it| (self.world, Some(share(&it.request).of)));
        if let Err(refusal) = self.agrees(request, world, shares) {
            return self.contest(request, refusal);
        }
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
        self.calls += 1;
        let joiner = self.joiners.entry(rank).or_insert_with(|| Joiner {
            request: request.clone(),
            since: now,
            deadline,
            until,
            holders: 0,
        });
        joiner.deadline = joiner.deadline.min(deadline);
        joiner.until = joiner.until.max(until);
        self.quiet_until = self.quiet_until.min(joiner.deadline).min(joiner.until);
        if self.joiners.len() == self.world as usize {
            return self.form(now, effects).map(Polled::Done);
        }
        // A deadline that has already passed is over for all waiting ranks.
        self.tick(now, effects);
        if let Some(retired) = self.retired(rank, request.attempt) {
            return Err((*retired.end).clone());
        }
        let (missing, count) = self.missing_joiners();
        Ok(Polled::Waiting { missing, missing_count: count as u64, lease_ms: millis(self.lease) })
    }

    /// What a rank is told that has left cleanly.
    fn departed(&self, rank: u32) -> Refusal {
        let (gang, generation) = (self.name.clone(), self.generation);
        Refusal::Fenced { gang, generation, why: format!("rank {rank} has left") }
    }

    /// What a rank is told that does not fit the ranks that are there, by `refusal`. It may be of a new run of another size, and they of one
    /// that was killed and whose lease is not over: it waits until one of them calls.
    fn contest(&mut self, request: &JoinRequest, refusal: Refusal) -> Result<Polled<Joined>, Refusal> {
        let fits_itself = self.agrees(request, request.world_size, None).is_ok();
        let somebody_lives = self.contested.is_some_and(|calls| calls != self.calls);
        if somebody_lives || !fits_itself || request.timeout_ms == 0 {
            self.contested = None;
            return Err(refusal);
        }
        self.contested.get_or_insert(self.calls);
        let missing = (0..request.world_size).filter(|rank| *rank != request.rank).take(16).collect();
        let missing_count = u64::from(request.world_size) - 1;
        Ok(Polled::Waiting { missing, missing_count, lease_ms: millis(self.lease) })
    }

    /// Checks that `request` fits a gang of `world` ranks and `shares` shares.
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
        let (at, reads) = match self.agreed_start() {
            Ok(start) => start,
            Err(refusal) => {
                self.fail_joins(&refusal, effects);
                return Err(refusal);
            }
        };
        let newest = self.joiners.values().filter_map(|it| it.request.token.as_ref()).map(|it| it.generation).max();
        // A token may be from before this server's memory began.
        self.generation = self.generation.max(newest.map_or(0, |generation| generation.saturating_add(1)));
        let records: Vec<MemberRecord> = self
            .joiners
            .values()
            .map(|it| MemberRecord {
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
            members: records.clone(),
            reads: reads.clone(),
        });
        effects.woken = true;
        self.install(records, self.generation, (at, reads), now + self.lease);
        Ok(self.joined())
    }

    /// The position at which the joiners start, with its plan: that of their tokens if all agree, else the acknowledged one.
    fn agreed_start(&self) -> Result<Start, Refusal> {
        let shares = self.joiners.values().next().map_or(0, |it| share(&it.request).of);
        let held: BTreeSet<u32> = self.joiners.values().map(|it| share(&it.request).rank).collect();
        if held.len() != shares as usize {
            let missing: Vec<u32> = (0..shares).filter(|share| !held.contains(share)).take(16).collect();
            return Err(Refusal::Mismatch {
                what: format!("shares of gang {}", self.name),
                expected: format!("each of the {shares} shares at one rank or more"),
                found: format!("nobody with share {missing:?}"),
                hint: "give each rank the number of its data-parallel group".into(),
            });
        }
        let acknowledged = || (self.acknowledged, self.reads.clone().filter(|_| self.acknowledged.is_some()));
        let token = |it: &Joiner| it.request.token.as_ref().map(|token| (token.generation, token.position, token.plan));
        let Some((first, joiner)) = self.joiners.iter().next() else { return Ok(acknowledged()) };
        let expected = token(joiner);
        let other: Vec<u32> = self.joiners.iter().filter(|(_, it)| token(it) != expected).map(|(r, _)| *r).collect();
        let Some(differs) = other.first().and_then(|rank| self.joiners.get(rank)) else {
            let Some((_, position, plan)) = expected else { return Ok(acknowledged()) };
            // If the plan is known here, this may be more than the token's fingerprint.
            let known = self.reads.clone().filter(|reads| Some(reads.plan) == plan);
            return Ok((Some(position), known.or_else(|| plan.map(Reading::named))));
        };
        let say = |it: Option<(u64, Position, Option<Fingerprint>)>| {
            it.map_or("no token".into(), |(generation, at, plan)| {
                let plan = plan.map(|plan| format!(", plan {plan}")).unwrap_or_default();
                format!("{at} of generation {generation}{plan}")
            })
        };
        Err(Refusal::Mismatch {
            what: format!("tokens of gang {}", self.name),
            expected: format!("the token of rank {first} ({}) at all ranks", say(expected)),
            found: format!("{} at {}", say(token(differs)), ranks(&other, other.len())),
            hint: "load the same checkpoint at all ranks".into(),
        })
    }

    pub(super) fn install(&mut self, records: Vec<MemberRecord>, generation: u64, (at, reads): Start, until: Duration) {
        self.phase = Phase::Running;
        self.quiet_until = until;
        self.generation = generation;
        self.world = u32::try_from(records.len()).unwrap_or(u32::MAX);
        self.members = records
            .into_iter()
            .map(|record| (record.rank, Member { record, until, left: false, acked: None }))
            .collect();
        self.standing = BTreeMap::from([(None, self.members.len())]);
        self.left = 0;
        self.joiners.clear();
        self.rounds = Collectives::default();
        self.gone = None;
        (self.base, self.acknowledged, self.reads) = (at, at, reads);
    }

    fn joined(&self) -> Joined {
        Joined {
            generation: self.generation,
            lease_ms: millis(self.lease),
            resume: self.base,
            reads: self.reads.clone(),
            plans: true,
        }
    }

    pub(super) fn fail_joins(&mut self, refusal: &Refusal, effects: &mut Effects) {
        let end = Arc::new(refusal.clone());
        for (rank, joiner) in std::mem::take(&mut self.joiners) {
            self.retire(rank, joiner.request.attempt, (Arc::clone(&end), None));
        }
        effects.woken = true;
    }

    pub(super) fn missing_joiners(&self) -> (Vec<u32>, usize) {
        // Both in order: no look-up for each rank.
        let mut there = self.joiners.keys().peekable();
        let absent = |rank: &u32| there.next_if(|next| *next == rank).is_none();
        let missing = (0..self.world).filter(absent).take(16).collect();
        (missing, (self.world as usize).saturating_sub(self.joiners.len()))
    }

    /// A process that is over, if it is remembered.
    pub(super) fn retired(&self, rank: u32, attempt: u128) -> Option<&Retired> {
        self.retired.get(&rank)?.iter().find(|it| it.attempt == attempt)
    }

    /// Remembers that a process is over: what it is told, and the generation that it left cleanly, if its run has ended.
    pub(super) fn retire(&mut self, rank: u32, attempt: u128, (end, left): (Arc<Refusal>, Option<u64>)) {
        #[cfg(test)]
        if self.planted == super::Planted::EndsForgotten {
            return;
        }
        let all = self.retired.entry(rank).or_default();
        self.remembered += 1;
        if all.len() >= REMEMBERED {
            all.pop_front();
            self.remembered -= 1;
        }
        all.push_back(Retired { attempt, end, left });
    }

    /// One more call waits for the join of this process.
    pub(in super::super) fn hold_join(&mut self, rank: u32, attempt: u128) {
        if let Some(joiner) = self.joiners.get_mut(&rank).filter(|it| it.request.attempt == attempt) {
            joiner.holders += 1;
        }
    }

    /// A call no longer waits; one that was `dropped` takes the join back, if it was the last.
    pub(in super::super) fn release_join(&mut self, rank: u32, attempt: u128, dropped: bool) {
        if let Some(joiner) = self.joiners.get_mut(&rank).filter(|it| it.request.attempt == attempt) {
            joiner.holders = joiner.holders.saturating_sub(1);
            if dropped && joiner.holders == 0 {
                self.joiners.remove(&rank);
            }
        }
    }
}
