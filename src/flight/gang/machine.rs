//! All gangs of a server as one pure state machine: no clock, no I/O, no waiting.
//!
//! A waiting call is a poll: it is asked again when its gang was woken, and answers `Waiting` until something happened. Each
//! call first applies everything that is due at its `now`, so that no answer depends on when a sweeper ran.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::collectives::{Arriving, CollectiveKind};
use super::group::{Effects, Group, Phase, REMEMBERED};
use super::journal::Record;
use super::limits;
use super::overview::Overview;
use super::registry::RegistryOptions;
use super::wire::{
    AckRequest, Acked, Alive, Caller, Gathered, JoinRequest, Joined, LeaveRequest, MeetRequest, Members, Polled,
    Position, Reading, Refusal, Share, State, from_hex,
};
use crate::manifest::Fingerprint;

/// Generations of tokens from outside are below this, so that counting never overflows, or were reached here.
const GENERATIONS: u64 = 1 << 53;

/// The changes that the shell must carry out before it answers.
#[derive(Debug, Default)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Happened {
    /// To be written to the journal.
    pub(super) records: Vec<Record>,
    /// Gangs whose waiting calls must be asked again.
    pub(super) woken: BTreeSet<String>,
}

/// An arrival at a round, whose message was decoded before the machine is locked.
#[derive(Debug)]
pub(super) struct Meeting {
    pub(super) request: MeetRequest,
    kind: CollectiveKind,
    message: Vec<u8>,
}

impl Meeting {
    /// The arrival in `request`, with a message of at most `limit` bytes.
    pub(super) fn new(kind: CollectiveKind, mut request: MeetRequest, limit: u64) -> Result<Self, Refusal> {
        limits::name(&request.caller.gang)?;
        let hex = std::mem::take(&mut request.message);
        let asked = hex.len() as u64 / 2;
        if asked > limit {
            return Err(Refusal::Limit { what: whose(&request), asked, limit, option: "max_message".into() });
        }
        let message = from_hex(&hex).filter(|it| it.is_empty() || kind == CollectiveKind::AllGather);
        let Some(message) = message else {
            let problem = format!("{}: not hex, or not empty at a barrier", whose(&request));
            return Err(Refusal::Config { option: "gang call".into(), problem });
        };
        Ok(Self { request, kind, message })
    }
}

/// The space of a gang, for its floor: empty for those in none.
fn floor_of(name: &str) -> &str {
    limits::space(name).unwrap_or_default()
}

/// The message of an arrival, in words.
fn whose(request: &MeetRequest) -> String {
    format!("message of rank {} of gang {}", request.caller.rank, request.caller.gang)
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct Machine {
    options: RegistryOptions,
    gangs: BTreeMap<String, Group>,
    /// The highest generation of a gang that was forgotten, in any space, as journals without spaces say it.
    floor: u64,
    /// The same for each space: the counts of a tenant are hidden from the others.
    floors: BTreeMap<String, u64>,
    happened: Happened,
    #[cfg(test)]
    pub(super) planted: super::planted::Planted,
}

impl Machine {
    pub(super) fn new(options: RegistryOptions) -> Self {
        Self {
            options,
            gangs: BTreeMap::new(),
            floor: 0,
            floors: BTreeMap::new(),
            happened: Happened::default(),
            #[cfg(test)]
            planted: super::planted::Planted::default(),
        }
    }

    /// A machine that continues at the end of the journal. Members of running generations have `lease + grace` to call
    /// again.
    pub(super) fn restore(options: RegistryOptions, records: &[Record]) -> Self {
        let mut machine = Self::new(options);
        let until = machine.options.lease + machine.options.grace;
        for record in records {
            let name = match record {
                Record::Floor { generation, space } => {
                    let floor = match space {
                        Some(space) => machine.floors.entry(space.clone()).or_default(),
                        None => &mut machine.floor,
                    };
                    *floor = (*floor).max(*generation);
                    continue;
                }
                Record::Formed { gang, .. }
                | Record::Raised { gang, .. }
                | Record::Bound { gang, .. }
                | Record::Acked { gang, .. }
                | Record::Opened { gang, .. }
                | Record::Left { gang, .. }
                | Record::Ended { gang, .. } => gang,
            };
            let (floor, lease) = (machine.floor(name), machine.options.lease);
            let group = machine.gangs.entry(name.clone()).or_insert_with(|| Group::new(name, floor + 1, lease));
            group.replay(record, until);
        }
        machine
    }

    /// The fewest records that make this machine again.
    pub(super) fn snapshot(&self) -> Vec<Record> {
        let mut records = vec![Record::Floor { generation: self.floor, space: None }];
        let own = |(space, floor): (&String, &u64)| Record::Floor { generation: *floor, space: Some(space.clone()) };
        records.extend(self.floors.iter().map(own));
        records.extend(self.gangs.values().flat_map(Group::snapshot));
        records
    }

    /// Takes the changes since the last call.
    pub(super) fn take_happened(&mut self) -> Happened {
        std::mem::take(&mut self.happened)
    }

    /// Applies everything that is due, and returns the time of the next event.
    pub(super) fn tick(&mut self, now: Duration) -> Option<Duration> {
        let names: Vec<String> = self
            .gangs
            .iter()
            .filter(|(_, it)| it.due().is_some_and(|due| due <= now))
            .map(|(n, _)| n.clone())
            .collect();
        for name in names {
            let _ = self.with(now, &name, |_, _| Ok(()));
        }
        self.gangs.values().filter_map(Group::due).min()
    }

    /// Runs `act` on a gang at `now`, and gathers its changes.
    fn with<T>(
        &mut self,
        now: Duration,
        name: &str,
        act: impl FnOnce(&mut Group, &mut Effects) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        limits::name(name)?;
        let Some(group) = self.gangs.get_mut(name) else {
            return Err(Refusal::NotFound { what: format!("gang {name:?}"), hint: "nobody has joined it".into() });
        };
        #[cfg(test)]
        {
            group.planted = self.planted;
        }
        let mut effects = Effects::default();
        let remembered = group.remembered();
        group.touched = now;
        group.tick(now, &mut effects);
        let answer = act(group, &mut effects);
        if group.remembered() > remembered {
            self.forget_ends(name);
        }
        self.happened.records.append(&mut effects.records);
        if effects.woken {
            self.happened.woken.insert(name.to_owned());
        }
        answer
    }

    /// As `with`, for calls of members: a gang that is unknown here is over for them.
    fn with_member<T>(
        &mut self,
        now: Duration,
        caller: &Caller,
        act: impl FnOnce(&mut Group, &mut Effects) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        limits::name(&caller.gang)?;
        if !self.gangs.contains_key(&caller.gang) {
            let (gang, generation) = (caller.gang.clone(), caller.generation);
            return Err(Refusal::Fenced { gang, generation, why: "the server does not know the gang".into() });
        }
        self.with(now, &caller.gang, act)
    }

    pub(super) fn join(&mut self, now: Duration, request: &JoinRequest) -> Result<Polled<Joined>, Refusal> {
        let name = &request.gang;
        let config = |option: &str, problem: String| Err(Refusal::Config { option: option.into(), problem });
        limits::name(name)?;
        if request.world_size == 0 || request.rank >= request.world_size {
            let problem = format!("rank {} of {} ranks cannot be", request.rank, request.world_size);
            return config(if request.world_size == 0 { "world_size" } else { "rank" }, problem);
        }
        if request.world_size > self.options.max_world {
            return config("world_size", format!("{}, at most {}", request.world_size, self.options.max_world));
        }
        let info = &request.info;
        if [&info.address, &info.device, &info.host].iter().any(|text| text.len() > limits::INFO) {
            return config("rank", format!("address, device and host have at most {} bytes each", limits::INFO));
        }
        if request.share.is_some_and(|share| share.of > self.options.max_world) {
            return config(
                "share",
                format!("more shares than the {} ranks that a gang may have", self.options.max_world),
            );
        }
        if let Some(token) = &request.token {
            limits::name(&token.gang)?;
            if !token.is_intact() || (token.generation >= GENERATIONS && token.generation > self.reached(name)) {
                return config("token", format!("the token of rank {} is damaged", request.rank));
            }
            if token.gang != *name {
                return Err(Refusal::Mismatch {
                    what: format!("token of rank {}", request.rank),
                    expected: format!("a token of gang {name}"),
                    found: format!("one of gang {}", token.gang),
                    hint: "load the checkpoint of this gang, or pass no token to start anew".into(),
                });
            }
        }
        if !self.gangs.get(name).is_some_and(|group| group.knows(request.rank)) {
            self.make_room_for_one(name)?;
        }
        if !self.gangs.contains_key(name) {
            self.make_room(name)?;
            self.gangs.insert(name.clone(), Group::new(name, self.floor(name) + 1, self.options.lease));
        }
        self.with(now, name, |group, effects| group.join(now, request, effects))
    }

    /// The highest generation of a gang that was forgotten, for a gang that is called `name`.
    fn floor(&self, name: &str) -> u64 {
        self.floors.get(floor_of(name)).copied().unwrap_or(0).max(self.floor)
    }

    /// The highest generation in the space that `name` is in.
    fn reached(&self, name: &str) -> u64 {
        self.beside(name).map(Group::generation).max().unwrap_or(0).max(self.floor(name))
    }

    /// Returns true if the space of `name` is subject to the limits of a tenant: not on a server without tenants.
    fn is_tenants(&self, name: &str) -> bool {
        self.options.tenants || limits::space(name).is_some()
    }

    /// Forgets ended processes that gangs of the space of `name` remember, those of the gangs without calls for longest first, until there
    /// are no more than its ranks may have.
    fn forget_ends(&mut self, name: &str) {
        let ranks = if self.is_tenants(name) { self.options.ranks_per_tenant } else { self.options.max_members };
        let most = ranks.saturating_mul(REMEMBERED);
        let mut all: usize = self.beside(name).map(Group::remembered).sum();
        while all > most {
            let others = self
                .gangs
                .iter_mut()
                .filter(|(it, group)| limits::space(it) == limits::space(name) && group.remembered() > 0);
            // Its own come last.
            let Some((_, group)) = others.min_by_key(|(it, group)| (*it == name, group.touched)) else { return };
            all = all.saturating_sub(group.remembered());
            group.forget_ends();
        }
    }

    /// The gangs of the space that `name` is in.
    fn beside<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Group> {
        self.gangs.iter().filter(move |(it, _)| limits::space(it) == limits::space(name)).map(|(_, group)| group)
    }

    /// Makes room for one more gang, `name`: in its space, and in all.
    fn make_room(&mut self, name: &str) -> Result<(), Refusal> {
        let refused = |what: String, asked: usize, limit: usize, option: &str| {
            Err(Refusal::Limit { what, asked: asked as u64 + 1, limit: limit as u64, option: option.into() })
        };
        let (own, limit) = (self.beside(name).count(), self.options.gangs_per_tenant);
        if self.is_tenants(name) && own >= limit && !self.forget_one(name, true) {
            return refused(format!("gang {name}, beside those of the same tenant"), own, limit, "gangs_per_tenant");
        }
        let (all, limit) = (self.gangs.len(), self.options.max_gangs);
        if all >= limit && !self.forget_one(name, false) {
            return refused(format!("gang {name}"), all, limit, "max_gangs");
        }
        Ok(())
    }

    /// Forgets gangs until one more rank may join `name`.
    fn make_room_for_one(&mut self, name: &str) -> Result<(), Refusal> {
        loop {
            let own: usize = self.beside(name).map(Group::ranks).sum();
            let all: usize = self.gangs.values().map(Group::ranks).sum();
            let (each, most) = (self.options.ranks_per_tenant, self.options.max_members);
            let own_is_full = self.is_tenants(name) && own >= each;
            if !own_is_full && all < most {
                return Ok(());
            }
            if !self.forget_one(name, own_is_full) {
                let (whose, asked, limit, option) = if own_is_full {
                    ("the same tenant", own, each, "gang_ranks_per_tenant")
                } else {
                    ("all gangs", all, most, "max_members")
                };
                return Err(Refusal::Limit {
                    what: format!("another rank of gang {name}, beside those of {whose}"),
                    asked: asked as u64 + 1,
                    limit: limit as u64,
                    option: option.into(),
                });
            }
        }
    }

    /// Forgets the least important gang other than `name`, with `own` one of its space; false if each is in use, or would resume, in a
    /// space of others.
    fn forget_one(&mut self, name: &str, own: bool) -> bool {
        let victim = self
            .gangs
            .iter()
            .filter(|(it, group)| group.is_empty() && *it != name)
            .filter(|(it, group)| limits::space(it) == limits::space(name) || !(own || group.resumes()))
            .min_by_key(|(_, group)| (!group.is_spent(), group.touched))
            .map(|(victim, group)| (victim.clone(), group.generation()));
        let Some((victim, generation)) = victim else { return false };
        self.gangs.remove(&victim);
        let space = floor_of(&victim).to_owned();
        let floor = self.floors.entry(space.clone()).or_default();
        *floor = (*floor).max(generation);
        self.happened.records.push(Record::Floor { generation: *floor, space: Some(space) });
        true
    }

    pub(super) fn heartbeat(&mut self, now: Duration, caller: &Caller) -> Result<Alive, Refusal> {
        self.with_member(now, caller, |group, _| group.heartbeat(now, caller))
    }

    pub(super) fn members(&mut self, now: Duration, caller: &Caller) -> Result<Members, Refusal> {
        self.with_member(now, caller, |group, _| group.members(caller))
    }

    pub(super) fn check(&mut self, now: Duration, caller: &Caller) -> Result<(), Refusal> {
        self.with_member(now, caller, |group, _| group.check(caller, false))
    }

    /// The share of the data that a member joined with, and the position that its generation resumes from.
    pub(super) fn part(&mut self, now: Duration, caller: &Caller) -> Result<(Share, Option<Position>), Refusal> {
        self.with_member(now, caller, |group, _| group.part(caller))
    }

    /// A member begins to read, which binds its generation if nothing did before.
    pub(super) fn read(&mut self, now: Duration, caller: &Caller, reading: &Reading) -> Result<(), Refusal> {
        self.with_member(now, caller, |group, effects| group.read(caller, reading, effects))
    }

    /// Epochs of this plan, which a member reads, have this many steps.
    pub(super) fn ends(&mut self, now: Duration, caller: &Caller, plan: (Fingerprint, u64)) -> Result<(), Refusal> {
        self.with_member(now, caller, |group, _| {
            group.ends(plan);
            Ok(())
        })
    }

    /// The plan that the generation of a member reads, and whether the generation resumes in it.
    pub(super) fn reads(&mut self, now: Duration, caller: &Caller) -> Result<Option<(Reading, bool)>, Refusal> {
        self.with_member(now, caller, |group, _| group.reads(caller))
    }

    /// As [`arrive`](Self::arrive), with a request from the wire.
    #[cfg(test)]
    pub(super) fn meet(
        &mut self,
        now: Duration,
        kind: CollectiveKind,
        request: &MeetRequest,
    ) -> Result<Polled<Gathered>, Refusal> {
        let meeting = Meeting::new(kind, request.clone(), self.options.max_message)?;
        self.arrive(now, &meeting, request.timeout_ms)
    }

    /// A rank arrives at a round, and waits there for another `timeout_ms`.
    pub(super) fn arrive(
        &mut self,
        now: Duration,
        meeting: &Meeting,
        timeout_ms: u64,
    ) -> Result<Polled<Gathered>, Refusal> {
        let Meeting { request, kind, message } = meeting;
        let name = &request.caller.gang;
        let asked = message.len() as u64;
        let adds = self.gangs.get(name).map_or(0, |group| group.adds(&request.caller, request.round, asked));
        if adds > 0 {
            let own = if self.is_tenants(name) { self.beside(name).map(Group::held).sum::<u64>() + adds } else { 0 };
            let all = self.gangs.values().map(Group::held).sum::<u64>() + adds;
            for (held, limit, whose_else, option) in [
                (own, self.options.held_per_tenant, "the same tenant", "held_per_tenant"),
                (all, self.options.max_held, "all gangs", "max_held"),
            ] {
                if held > limit {
                    let what = format!("{}, beside those of {whose_else}", whose(request));
                    return Err(Refusal::Limit { what, asked: held, limit, option: option.into() });
                }
            }
        }
        let deadline = now + Duration::from_millis(timeout_ms);
        let (rank, round) = (request.caller.rank, request.round);
        let arriving = Arriving { rank, round, meeting: *kind, message, deadline };
        let gathered = self.options.max_gathered;
        self.with_member(now, &request.caller, |group, effects| {
            group.meet(now, &request.caller, gathered, arriving, effects)
        })
    }

    pub(super) fn ack(&mut self, now: Duration, request: &AckRequest) -> Result<Acked, Refusal> {
        self.with_member(now, &request.caller, |group, effects| {
            group.ack(now, &request.caller, request.position, request.plan, effects)
        })
    }

    pub(super) fn leave(&mut self, now: Duration, request: &LeaveRequest) -> Result<(), Refusal> {
        let failure: Option<String> = request.failure.as_ref().map(|text| text.chars().take(limits::FAILURE).collect());
        self.with_member(now, &request.caller, |group, effects| {
            group.leave(&request.caller, failure.as_deref(), effects)
        })
    }

    pub(super) fn state(&mut self, now: Duration, gang: &str) -> Result<State, Refusal> {
        self.with(now, gang, |group, _| Ok(group.state()))
    }

    /// A call starts to wait (`dropped` is `None`), or stops: with an answer, or dropped.
    pub(super) fn hold_join(&mut self, request: &JoinRequest, dropped: Option<bool>) {
        if let Some(group) = self.gangs.get_mut(&request.gang) {
            match dropped {
                None => group.hold_join(request.rank, request.attempt),
                Some(dropped) => group.release_join(request.rank, request.attempt, dropped),
            }
        }
    }

    /// As `hold_join`, for a round.
    pub(super) fn hold_round(&mut self, Meeting { request, .. }: &Meeting, dropped: Option<bool>) {
        if let Some(group) = self.gangs.get_mut(&request.caller.gang) {
            match dropped {
                None => group.hold_round(&request.caller, request.round),
                Some(dropped) => group.release_round(&request.caller, request.round, dropped),
            }
        }
    }

    /// Number of ranks of a gang, for answers about it.
    pub(super) fn ranks(&self, gang: &str) -> usize {
        self.gangs.get(gang).map_or(0, Group::ranks)
    }

    /// Hashes everything that determines the further behaviour of a gang at `now`.
    #[cfg(test)]
    pub(super) fn identify(&self, gang: &str, now: Duration, to: &mut std::hash::DefaultHasher) {
        if let Some(group) = self.gangs.get(gang) {
            group.identify(now, to);
        }
    }

    /// Number of ended processes that the gangs other than `name` remember.
    #[cfg(test)]
    pub(super) fn remembered(&self, name: &str) -> usize {
        self.beside(name).map(Group::remembered).sum()
    }

    /// The gangs whose name `asked` takes, at most `most` of them: those that were called last.
    pub(super) fn overview(&self, asked: impl Fn(&str) -> bool, most: usize) -> Vec<Overview> {
        let mut found: Vec<&Group> =
            self.gangs.iter().filter(|(name, _)| asked(name)).map(|(_, group)| group).collect();
        found.sort_by_key(|group| std::cmp::Reverse(group.touched));
        found.into_iter().take(most).map(Group::overview).collect()
    }

    /// Number of running gangs with a name of the kind.
    pub(super) fn running(&self, asked: impl Fn(&str) -> bool) -> usize {
        self.gangs.iter().filter(|(name, group)| asked(name) && group.phase() == Phase::Running).count()
    }
}
