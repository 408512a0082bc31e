//! One moment of a gang under test: the machine itself, its disk, the processes of its ranks, and the messages between them.

use std::hash::DefaultHasher;
use std::time::Duration;

use tokio::time::Instant;

use super::super::collectives::CollectiveKind;
use super::super::journal::Record;
use super::super::machine::{Machine, Meeting};
use super::super::own_lease::OwnLease;
use super::super::registry::RegistryOptions;
use super::super::wire::{
    AckRequest, Caller, JoinRequest, LeaveRequest, MeetRequest, MemberInfo, Polled, Position, Reading, Refusal,
};
use super::spec::{Answer, Call, Phase, Process as Number, Spec};
use crate::flight::explore::tell;
use crate::manifest::Fingerprint;

pub(super) const TICK: Duration = Duration::from_secs(1);
/// In ticks.
pub(super) const LEASE: u8 = 2;
pub(super) const GRACE: u8 = 1;

/// The current task of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Stage {
    Joining,
    Reading,
    Acking,
    Meeting,
    Leaving,
    /// It reports that it failed.
    Failing,
    /// It has left, or has given up.
    Over,
}

/// The progress of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Flight {
    /// On its way, or lost and to be repeated.
    Sent,
    /// The server holds it; `rung` when it is to be asked again.
    Held {
        rung: bool,
    },
    Answered(Answer),
    /// Its answer will not come; it is repeated after some time.
    Lost,
}

/// The progress of its heartbeat; `ago` counts ticks since it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Beat {
    None,
    Sent { ago: u8 },
    Answered { ago: u8, answer: Answer },
}

/// The state of a process's connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Link {
    Whole,
    /// Nothing gets through.
    Cut,
    /// Answers do not.
    Deaf,
}

/// One process of a rank.
#[derive(Debug, Clone)]
pub(super) struct Process {
    pub(super) rank: usize,
    pub(super) life: u8,
    pub(super) stage: Stage,
    pub(super) flight: Flight,
    /// Ticks for which it still waits, if it waits.
    pub(super) waits: u8,
    /// Ticks since its call was sent.
    pub(super) ago: u8,
    pub(super) beat: Beat,
    pub(super) link: Link,
    pub(super) lease: Option<OwnLease>,
    pub(super) generation: u64,
    /// The last step that it has done.
    pub(super) step: u64,
    pub(super) round: u64,
    pub(super) plan: u8,
    /// Ticks since its generation ended, until it hears of that.
    pub(super) outdated: u8,
    /// Another process has its rank.
    pub(super) is_zombie: bool,
}

impl Process {
    pub(super) fn number(&self) -> Number {
        number(self.rank, self.life)
    }

    pub(super) fn is_member(&self) -> bool {
        self.lease.is_some()
    }

    /// Its current call.
    pub(super) fn call(&self) -> Call {
        let generation = self.generation;
        match self.stage {
            Stage::Joining => Call::Join { patience: self.waits },
            Stage::Reading => Call::Read { generation, plan: self.plan },
            Stage::Acking => Call::Ack { generation, step: self.step + 1 },
            Stage::Meeting => Call::Meet { generation, round: self.round, patience: self.waits },
            Stage::Leaving | Stage::Over => Call::Leave { generation, failed: false },
            Stage::Failing => Call::Leave { generation, failed: true },
        }
    }
}

pub(super) fn number(rank: usize, life: u8) -> Number {
    u16::try_from(rank).expect("few ranks") * 10 + u16::from(life)
}

/// All of it.
#[derive(Debug, Clone)]
pub(super) struct Life {
    pub(super) now: Duration,
    /// Start of the server, at which its clock begins.
    started: Duration,
    pub(super) machine: Machine,
    /// The records on its disk, compacted at every durable write, and the promises at that time.
    disk: Vec<Record>,
    kept: Spec,
    /// Records that a power cut may take away, each with the promises after it.
    loose: Vec<(Record, Spec)>,
    pub(super) spec: Spec,
    pub(super) processes: Vec<Process>,
    /// Calls that were sent long ago, by rank and life, and arrive when their process has had an answer, or is gone.
    pub(super) strays: Vec<(usize, u8, Call)>,
    /// Faults that may still happen.
    pub(super) faults: u8,
}

/// Defects of the gang's server, for the checkers to catch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Shell {
    /// Nothing is brought to the disk.
    pub(super) no_sync: bool,
    /// Answers go out before anything is written.
    pub(super) no_journal: bool,
}

pub(super) fn options() -> RegistryOptions {
    let ticks = |ticks: u8| TICK * u32::from(ticks);
    RegistryOptions { lease: ticks(LEASE), grace: ticks(GRACE), ..RegistryOptions::default() }
}

impl Life {
    pub(super) fn new(machine: Machine, processes: Vec<Process>, faults: u8) -> Self {
        Self {
            now: Duration::ZERO,
            started: Duration::ZERO,
            machine,
            disk: Vec::new(),
            kept: Spec::new(processes.len(), LEASE, GRACE),
            loose: Vec::new(),
            spec: Spec::new(processes.len(), LEASE, GRACE),
            processes,
            strays: Vec::new(),
            faults,
        }
    }

    fn clock(&self) -> Duration {
        self.now - self.started
    }

    /// The server answers; the records are not written yet.
    pub(super) fn ask(&mut self, rank: usize, life: u8, call: Call) -> (Answer, Vec<Record>) {
        let now = self.clock();
        let attempt = u128::from(number(rank, life));
        let rank = u32::try_from(rank).expect("few ranks");
        let caller = |generation| Caller { gang: "g".into(), generation, rank, attempt };
        let machine = &mut self.machine;
        let at = |position: Option<Position>| position.map_or(0, |position| position.step);
        let ms = |patience: u8| u64::from(patience) * 1000;
        let answer = match call {
            Call::Join { patience } => {
                let world_size = u32::try_from(self.spec.world()).expect("few ranks");
                let (gang, info) = ("g".into(), MemberInfo::default());
                let request = JoinRequest {
                    gang,
                    rank,
                    world_size,
                    attempt,
                    share: None,
                    info,
                    token: None,
                    timeout_ms: ms(patience),
                    poll_ms: 0,
                };
                machine.join(now, &request).map(|polled| match polled {
                    Polled::Waiting { .. } => Answer::Waiting,
                    Polled::Done(it) => Answer::Joined { generation: it.generation, after: at(it.resume) },
                })
            }
            Call::Read { generation, plan } => {
                let plan = Reading { plan: Fingerprint::from_bytes([plan; 32]), data: None, about: String::new() };
                machine.read(now, &caller(generation), &plan).map(|()| Answer::Done { all: None })
            }
            Call::Ack { generation, step } => {
                let position = Position { epoch: 0, step };
                let request = AckRequest { caller: caller(generation), position, plan: None };
                machine.ack(now, &request).map(|acked| Answer::Done { all: Some(at(acked.acknowledged)) })
            }
            Call::Meet { generation, round, patience } => {
                machine.arrive(now, &meeting(caller(generation), round), ms(patience)).map(|polled| match polled {
                    Polled::Waiting { .. } => Answer::Waiting,
                    Polled::Done(_) => Answer::Done { all: None },
                })
            }
            Call::Beat { generation } => {
                let alive = machine.heartbeat(now, &caller(generation));
                alive.map(|alive| Answer::Done { all: Some(at(alive.acknowledged)) })
            }
            Call::Leave { generation, failed } => {
                let failure = failed.then(|| "x".to_owned());
                let request = LeaveRequest { caller: caller(generation), failure };
                machine.leave(now, &request).map(|()| Answer::Done { all: None })
            }
        };
        let answer = answer.unwrap_or_else(|refusal| match refusal {
            Refusal::Fenced { .. } => Answer::Fenced,
            Refusal::Timeout { .. } => Answer::TimedOut,
            _ => Answer::Refused,
        });
        (answer, self.happened())
    }

    /// Takes the records to be written, and wakes waiting calls.
    pub(super) fn happened(&mut self) -> Vec<Record> {
        let happened = self.machine.take_happened();
        if !happened.woken.is_empty() {
            self.ring();
        }
        happened.records
    }

    /// Calls that the server holds are asked again.
    pub(super) fn ring(&mut self) {
        for process in &mut self.processes {
            if let Flight::Held { rung } = &mut process.flight {
                *rung = true;
            }
        }
    }

    /// Time passes at the server, which handles everything that is due.
    pub(super) fn sweep(&mut self) -> Vec<Record> {
        self.machine.tick(self.clock());
        self.happened()
    }

    /// Writes records; without power cuts, written records are durable.
    pub(super) fn write(&mut self, records: Vec<Record>, power: bool, shell: Shell) {
        if records.is_empty() {
            return;
        }
        let is_vital = !power || records.iter().any(Record::is_vital);
        self.loose.extend(records.into_iter().map(|record| (record, self.spec.clone())));
        if is_vital && !shell.no_sync && !shell.no_journal {
            let records: Vec<Record> = self.loose.drain(..).map(|(record, _)| record).collect();
            self.disk.extend(records);
            self.disk = Machine::restore(options(), &self.disk).snapshot();
            self.kept = self.spec.clone();
        }
    }

    /// The server is killed, and comes back from its disk, without the last `lost` records.
    pub(super) fn restart(&mut self, lost: usize, compacted: bool, shell: Shell) -> Result<(), String> {
        let kept = if shell.no_journal { 0 } else { self.loose.len() - lost };
        let promised = match kept {
            _ if lost == 0 || shell.no_journal => self.spec.clone(),
            0 => self.kept.clone(),
            kept => self.loose[kept - 1].1.clone(),
        };
        let now = (self.spec.generation, self.spec.phase);
        // A new run is not written down before it begins.
        let is_before_a_run = now == (promised.generation, Phase::Forming) && promised.phase == Phase::Ended;
        if (promised.generation, promised.phase) != now && !is_before_a_run {
            return Err(format!("a power cut took away that generation {} is {:?}", now.0, now.1));
        }
        let records: Vec<Record> = self.loose.drain(..).take(kept).map(|(record, _)| record).collect();
        let records =
            if compacted { self.machine.snapshot() } else { [std::mem::take(&mut self.disk), records].concat() };
        self.come_back(records, &[promised])
    }

    /// The server comes back with `records`; the gang then has one of the states in `promised`.
    pub(super) fn come_back(&mut self, records: Vec<Record>, promised: &[Spec]) -> Result<(), String> {
        let planted = self.machine.planted;
        self.machine = Machine::restore(options(), &records);
        self.machine.planted = planted;
        self.started = self.now;
        self.loose.clear();
        self.disk = self.machine.snapshot();
        let allowed = promised.iter().flat_map(Spec::restarted);
        let mut found = String::new();
        let mut fits = None;
        for spec in allowed {
            match refines(&self.machine, &spec) {
                Ok(()) => {
                    fits = Some(spec);
                    break;
                }
                Err(wrong) => found = wrong,
            }
        }
        self.spec = fits.ok_or_else(|| format!("a restart changed the gang: {found}"))?;
        self.kept = self.spec.clone();
        for process in &mut self.processes {
            if matches!(process.flight, Flight::Held { .. }) {
                // The connection broke; it is repeated.
                process.flight = Flight::Sent;
            }
        }
        Ok(())
    }

    /// The records on the disk, without the last append.
    pub(super) fn durable(&self) -> Vec<Record> {
        [self.disk.clone(), self.loose.iter().map(|(record, _)| record.clone()).collect()].concat()
    }

    pub(super) fn loose(&self) -> usize {
        self.loose.len()
    }

    /// The server starts to hold a call, or lets it go: with an answer, or because its connection broke.
    pub(super) fn hold(&mut self, rank: usize, life: u8, call: Call, dropped: Option<bool>) {
        let attempt = u128::from(number(rank, life));
        let rank = u32::try_from(rank).expect("few ranks");
        match call {
            Call::Join { .. } => {
                let request = JoinRequest {
                    gang: "g".into(),
                    rank,
                    world_size: 0,
                    attempt,
                    share: None,
                    info: MemberInfo::default(),
                    token: None,
                    timeout_ms: 0,
                    poll_ms: 0,
                };
                self.machine.hold_join(&request, dropped);
            }
            Call::Meet { generation, round, .. } => {
                let caller = Caller { gang: "g".into(), generation, rank, attempt };
                self.machine.hold_round(&meeting(caller, round), dropped);
            }
            _ => {}
        }
    }

    /// Returns true if any message is in flight that the network will deliver.
    pub(super) fn is_busy(&self) -> bool {
        self.processes.iter().any(|process| {
            let moves = process.stage != Stage::Over && process.link != Link::Cut;
            let rests = matches!(process.flight, Flight::Held { rung: false } | Flight::Lost);
            moves && (!rests || process.beat != Beat::None)
        })
    }

    pub(super) fn identify(&self, base: Instant, to: &mut DefaultHasher) {
        self.machine.identify("g", self.clock(), to);
        tell(to, &self.spec);
        tell(to, &self.faults);
        tell(to, &self.strays);
        for it in &self.processes {
            let left = it.lease.map(|lease| lease.ends().saturating_duration_since(base + self.now).as_millis());
            tell(to, &(it.rank, it.life, it.stage, it.flight, it.waits, it.beat, it.link, left));
            let sent = if it.stage == Stage::Joining { it.ago } else { 0 };
            tell(to, &(it.generation, it.step, it.round, it.plan, it.outdated, it.is_zombie, sent));
        }
        // Machine and promises together determine the disk, except for a new run that has not begun, and for records that a power cut may
        // take away.
        tell(to, &matches!(self.disk.last(), Some(Record::Ended { .. })));
        for (record, spec) in &self.loose {
            tell(to, &format!("{record:?}"));
            tell(to, spec);
        }
    }
}

fn meeting(caller: Caller, round: u64) -> Meeting {
    let request = MeetRequest { caller, round, message: String::new(), timeout_ms: 0, poll_ms: 0 };
    Meeting::new(CollectiveKind::Barrier, request, 0).expect("an empty message fits")
}

/// Checks that `machine` is in the state of `spec`, as far as it must survive a restart.
pub(super) fn refines(machine: &Machine, spec: &Spec) -> Result<(), String> {
    let (mut phase, mut generation, mut committed, mut opened) = (Phase::Forming, None, None, 0);
    let mut seats = Vec::new();
    let step = |at: Option<Position>| at.map_or(0, |at| at.step);
    for record in machine.snapshot() {
        match record {
            Record::Floor { .. } | Record::Bound { .. } => {}
            Record::Formed { generation: it, at, acknowledged, members, .. } => {
                (phase, generation, committed) = (Phase::Running, Some((it, step(at))), Some(step(acknowledged)));
                seats = members.iter().map(|it| (it.attempt, None, false)).collect();
            }
            Record::Raised { generation: it, acknowledged, .. } => {
                if it <= spec.generation {
                    return Err(format!("generation {it} is to come, {} was there", spec.generation));
                }
                committed = Some(step(acknowledged));
            }
            Record::Acked { rank, position, .. } => seats[rank as usize].1 = Some(position.step),
            Record::Left { rank, .. } => seats[rank as usize].2 = true,
            Record::Opened { round, .. } => opened = round,
            Record::Ended { .. } => phase = Phase::Ended,
        }
    }
    let same = |what: &str, found: &dyn std::fmt::Debug, expected: &dyn std::fmt::Debug| {
        let (found, expected) = (format!("{found:?}"), format!("{expected:?}"));
        if found == expected { Ok(()) } else { Err(format!("{what}: the gang has {found}, the promise {expected}")) }
    };
    if phase != spec.phase {
        return same("phase", &phase, &spec.phase);
    }
    if phase != Phase::Ended && spec.generation > 0 && committed.unwrap_or(0) != spec.committed {
        return same("done by all", &committed, &spec.committed);
    }
    if phase != Phase::Running {
        return Ok(());
    }
    if generation != Some((spec.generation, spec.base)) {
        return same("generation and its start", &generation, &(spec.generation, spec.base));
    }
    let promised = spec.members.iter().map(|it| (u128::from(it.process), it.acked, it.left));
    if !promised.clone().eq(seats.iter().copied()) {
        return same("members", &seats, &promised.collect::<Vec<_>>());
    }
    if opened != spec.opened {
        return same("rounds", &opened, &spec.opened);
    }
    Ok(())
}
