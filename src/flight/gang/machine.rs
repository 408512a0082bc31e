//! All gangs of a server as one pure state machine: no clock, no I/O, no waiting.
//!
//! A waiting call is a poll: it is asked again when its gang was woken, and answers `Waiting` until something happened. Each
//! call first lets everything happen that is due at its `now`, so that no answer depends on when a sweeper ran.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::crew::{Crew, Effects, Phase};
use super::journal::Record;
use super::limits;
use super::registry::RegistryOptions;
use super::rounds::{Arriving, Meeting};
use super::wire::{
    AckRequest, Acked, Alive, Caller, JoinRequest, Joined, LeaveRequest, MeetRequest, Members, Met, Polled, Reading,
    Refusal, Share, State, from_hex,
};

/// Generations of tokens from outside are below this, so that counting never overflows.
const GENERATIONS: u64 = 1 << 53;

/// What happened, for the shell to carry out before it answers.
#[derive(Debug, Default)]
pub(super) struct Happened {
    /// To be written to the journal.
    pub(super) records: Vec<Record>,
    /// Gangs whose waiting calls must be asked again.
    pub(super) woken: BTreeSet<String>,
}

#[derive(Debug)]
pub(super) struct Machine {
    options: RegistryOptions,
    gangs: BTreeMap<String, Crew>,
    /// The highest generation of a gang that was forgotten.
    floor: u64,
    happened: Happened,
    #[cfg(test)]
    pub(super) unfenced: bool,
}

impl Machine {
    pub(super) fn new(options: RegistryOptions) -> Self {
        Self {
            options,
            gangs: BTreeMap::new(),
            floor: 0,
            happened: Happened::default(),
            #[cfg(test)]
            unfenced: false,
        }
    }

    /// A machine that continues where the journal ends. Members of running generations have until `lease + grace` to be
    /// heard of again.
    pub(super) fn restore(options: RegistryOptions, records: &[Record]) -> Self {
        let mut machine = Self::new(options);
        let until = machine.options.lease + machine.options.grace;
        for record in records {
            let name = match record {
                Record::Floor { generation } => {
                    machine.floor = machine.floor.max(*generation);
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
            let (floor, lease) = (machine.floor, machine.options.lease);
            let crew = machine.gangs.entry(name.clone()).or_insert_with(|| Crew::new(name, floor + 1, lease));
            crew.replay(record, until);
        }
        machine
    }

    /// The fewest records that make this machine again.
    pub(super) fn snapshot(&self) -> Vec<Record> {
        let mut records = vec![Record::Floor { generation: self.floor }];
        records.extend(self.gangs.values().flat_map(Crew::snapshot));
        records
    }

    /// What happened since it was last asked.
    pub(super) fn take_happened(&mut self) -> Happened {
        std::mem::take(&mut self.happened)
    }

    /// Lets everything happen that is due, and says when the next thing is.
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
        self.gangs.values().filter_map(Crew::due).min()
    }

    /// Runs `act` on a gang at `now`, and gathers what it changed.
    fn with<T>(
        &mut self,
        now: Duration,
        name: &str,
        act: impl FnOnce(&mut Crew, &mut Effects) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        limits::name(name)?;
        let Some(crew) = self.gangs.get_mut(name) else {
            return Err(Refusal::NotFound { what: format!("gang {name:?}"), hint: "nobody has joined it".into() });
        };
        #[cfg(test)]
        {
            crew.unfenced = self.unfenced;
        }
        let mut effects = Effects::default();
        crew.touched = now;
        crew.tick(now, &mut effects);
        let answer = act(crew, &mut effects);
        self.happened.records.append(&mut effects.records);
        if effects.woken {
            self.happened.woken.insert(name.to_owned());
        }
        answer
    }

    /// As `with`, for calls of members: a gang that is not known here is over for them.
    fn with_member<T>(
        &mut self,
        now: Duration,
        caller: &Caller,
        act: impl FnOnce(&mut Crew, &mut Effects) -> Result<T, Refusal>,
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
            if !token.is_intact() || token.generation >= GENERATIONS {
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
        if !self.gangs.get(name).is_some_and(|crew| crew.knows(request.rank)) {
            self.make_room_for_one(name)?;
        }
        if !self.gangs.contains_key(name) {
            self.make_room(name)?;
            self.gangs.insert(name.clone(), Crew::new(name, self.floor + 1, self.options.lease));
        }
        self.with(now, name, |crew, effects| crew.join(now, request, effects))
    }

    /// Makes room for one more gang, `name`.
    fn make_room(&mut self, name: &str) -> Result<(), Refusal> {
        if self.gangs.len() < self.options.max_gangs || self.forget_one(name) {
            return Ok(());
        }
        Err(Refusal::Limit {
            what: format!("gang {name}"),
            asked: self.gangs.len() as u64 + 1,
            limit: self.options.max_gangs as u64,
            option: "max_gangs".into(),
        })
    }

    /// Forgets gangs until one more rank may join `name`.
    fn make_room_for_one(&mut self, name: &str) -> Result<(), Refusal> {
        loop {
            let ranks: usize = self.gangs.values().map(Crew::ranks).sum();
            if ranks < self.options.max_members {
                return Ok(());
            }
            if !self.forget_one(name) {
                return Err(Refusal::Limit {
                    what: format!("another rank of gang {name}, beside those of all gangs"),
                    asked: ranks as u64 + 1,
                    limit: self.options.max_members as u64,
                    option: "max_members".into(),
                });
            }
        }
    }

    /// Forgets the gang that matters least, but not `name`; false if somebody is in each.
    fn forget_one(&mut self, name: &str) -> bool {
        let victim = self
            .gangs
            .iter()
            .filter(|(it, crew)| crew.is_empty() && *it != name)
            .min_by_key(|(_, crew)| (!crew.is_spent(), crew.touched))
            .map(|(victim, crew)| (victim.clone(), crew.generation()));
        let Some((victim, generation)) = victim else { return false };
        self.gangs.remove(&victim);
        self.floor = self.floor.max(generation);
        self.happened.records.push(Record::Floor { generation: self.floor });
        true
    }

    pub(super) fn heartbeat(&mut self, now: Duration, caller: &Caller) -> Result<Alive, Refusal> {
        self.with_member(now, caller, |crew, _| crew.heartbeat(now, caller))
    }

    pub(super) fn members(&mut self, now: Duration, caller: &Caller) -> Result<Members, Refusal> {
        self.with_member(now, caller, |crew, _| crew.members(caller))
    }

    pub(super) fn check(&mut self, now: Duration, caller: &Caller) -> Result<(), Refusal> {
        self.with_member(now, caller, |crew, _| crew.check(caller, false))
    }

    /// The share of the data that a member joined with.
    pub(super) fn share(&mut self, now: Duration, caller: &Caller) -> Result<Share, Refusal> {
        self.with_member(now, caller, |crew, _| crew.share(caller))
    }

    /// A member begins to read, which binds its generation if nothing did before.
    pub(super) fn read(&mut self, now: Duration, caller: &Caller, reading: &Reading) -> Result<(), Refusal> {
        self.with_member(now, caller, |crew, effects| crew.read(caller, reading, effects))
    }

    /// What the generation of a member reads, and whether it resumes there.
    pub(super) fn reads(&mut self, now: Duration, caller: &Caller) -> Result<Option<(Reading, bool)>, Refusal> {
        self.with_member(now, caller, |crew, _| crew.reads(caller))
    }

    pub(super) fn meet(
        &mut self,
        now: Duration,
        meeting: Meeting,
        request: &MeetRequest,
    ) -> Result<Polled<Met>, Refusal> {
        limits::name(&request.caller.gang)?;
        let (asked, limit) = (request.message.len() as u64 / 2, self.options.max_message);
        let what = || format!("message of rank {} of gang {}", request.caller.rank, request.caller.gang);
        if asked > limit {
            return Err(Refusal::Limit { what: what(), asked, limit, option: "max_message".into() });
        }
        let message = from_hex(&request.message).filter(|it| it.is_empty() || meeting == Meeting::AllGather);
        let Some(message) = message else {
            let problem = format!("{}: not hex, or not empty at a barrier", what());
            return Err(Refusal::Config { option: "gang call".into(), problem });
        };
        let adds =
            self.gangs.get(&request.caller.gang).map_or(0, |crew| crew.adds(&request.caller, request.round, asked));
        let held = self.gangs.values().map(Crew::held).sum::<u64>() + adds;
        if adds > 0 && held > self.options.max_held {
            let (what, limit) = (format!("{}, beside those of all gangs", what()), self.options.max_held);
            return Err(Refusal::Limit { what, asked: held, limit, option: "max_held".into() });
        }
        let deadline = now + Duration::from_millis(request.timeout_ms);
        let arriving = Arriving { rank: request.caller.rank, round: request.round, meeting, message, deadline };
        let gathered = self.options.max_gathered;
        self.with_member(now, &request.caller, |crew, effects| {
            crew.meet(now, &request.caller, gathered, arriving, effects)
        })
    }

    pub(super) fn ack(&mut self, now: Duration, request: &AckRequest) -> Result<Acked, Refusal> {
        self.with_member(now, &request.caller, |crew, effects| {
            crew.ack(now, &request.caller, request.position, request.plan, effects)
        })
    }

    pub(super) fn leave(&mut self, now: Duration, request: &LeaveRequest) -> Result<(), Refusal> {
        let failure: Option<String> = request.failure.as_ref().map(|text| text.chars().take(limits::FAILURE).collect());
        self.with_member(now, &request.caller, |crew, effects| crew.leave(&request.caller, failure.as_deref(), effects))
    }

    pub(super) fn state(&mut self, now: Duration, gang: &str) -> Result<State, Refusal> {
        self.with(now, gang, |crew, _| Ok(crew.state()))
    }

    /// A call starts to wait (`dropped` is `None`), or stops: with an answer, or dropped.
    pub(super) fn hold_join(&mut self, request: &JoinRequest, dropped: Option<bool>) {
        if let Some(crew) = self.gangs.get_mut(&request.gang) {
            match dropped {
                None => crew.hold_join(request.rank, request.attempt),
                Some(dropped) => crew.release_join(request.rank, request.attempt, dropped),
            }
        }
    }

    /// As `hold_join`, for a round.
    pub(super) fn hold_round(&mut self, request: &MeetRequest, dropped: Option<bool>) {
        if let Some(crew) = self.gangs.get_mut(&request.caller.gang) {
            match dropped {
                None => crew.hold_round(&request.caller, request.round),
                Some(dropped) => crew.release_round(&request.caller, request.round, dropped),
            }
        }
    }

    /// How many gangs run now.
    pub(super) fn running(&self) -> usize {
        self.gangs.values().filter(|crew| crew.phase() == Phase::Running).count()
    }
}
