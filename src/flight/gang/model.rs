//! A small gang explored whole: the machine of the server, the journal's records and a member's own lease are the real code; trainers, the
//! network and the disk are simulated around them. Each answer is compared with [`spec`], and so is the gang after each restart.
//!
//! | fault | what happens |
//! |---|---|
//! | kill | a process is killed and another starts in its place; the server may see the connection break, or not |
//! | twin | a process is taken for dead and replaced, but continues, perhaps cut off |
//! | cut, deaf | nothing, or no answer, gets through to a process, until that is mended |
//! | lose, stray | an answer is lost, so that the call is repeated; a copy of a call comes much later |
//! | late | the answer to a heartbeat takes its time |
//! | delay | time goes by while messages are on their way |
//! | crash | the server restarts: with its journal, with a compacted one, or killed in the middle of an append |
//! | power | the machine restarts, and any part at the end of the data that were not fsynced is gone |
//! | fail | a process says that it failed |

mod act;
mod life;
mod spec;
mod tests;
mod trainer;

use std::hash::DefaultHasher;

use tokio::time::Instant;

use self::act::{Act, Told};
use self::life::{Beat, Flight, LEASE, Life, Link, Process, Shell, Stage};
use self::spec::{Answer, Call};
use super::machine::Machine;
use super::planted::Planted;
use crate::flight::explore::System;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Kill,
    Twin,
    Cut,
    Deaf,
    Lose,
    Stray,
    Late,
    Delay,
    Crash,
    Power,
    Fail,
}

/// All but power cuts, which promise less.
const ALL: &[Kind] = &[
    Kind::Kill,
    Kind::Twin,
    Kind::Cut,
    Kind::Deaf,
    Kind::Lose,
    Kind::Stray,
    Kind::Late,
    Kind::Delay,
    Kind::Crash,
    Kind::Fail,
];

/// A gang to be explored.
#[derive(Debug, Clone)]
struct Gang {
    world: usize,
    /// Steps that each rank acknowledges; ranks meet between two steps.
    steps: u64,
    /// Processes that a rank has at most, one after another.
    lives: u8,
    faults: u8,
    kinds: &'static [Kind],
    /// If true, ranks first read one of two plans.
    reads: bool,
    /// If true, rank 1 meets the others once more.
    uneven: bool,
    planted: Planted,
    shell: Shell,
    /// A member counts its lease from when an answer came.
    late_lease: bool,
    base: Instant,
}

impl Gang {
    fn new(world: usize, steps: u64, faults: u8, kinds: &'static [Kind]) -> Self {
        Self {
            world,
            steps,
            lives: 3,
            faults,
            kinds,
            reads: false,
            uneven: false,
            planted: Planted::Nothing,
            shell: Shell::default(),
            late_lease: false,
            base: Instant::now(),
        }
    }

    fn faults(&self, life: &Life, all: &mut Vec<(Act, bool)>) {
        let may = |kind| self.kinds.contains(&kind);
        let mut add = |kind, act| {
            if may(kind) {
                all.push((act, true));
            }
        };
        let zombies = life.processes.len() > self.world;
        for (at, process) in life.processes.iter().enumerate().filter(|(_, it)| it.stage != Stage::Over) {
            let is_held = matches!(process.flight, Flight::Held { .. });
            let is_whole = process.link == Link::Whole;
            if !process.is_zombie {
                // A process that has not called yet is as good as one that has just started.
                if process.is_member() || process.flight != Flight::Sent {
                    add(Kind::Kill, Act::Kill { at, seen: false });
                }
                if is_held {
                    add(Kind::Kill, Act::Kill { at, seen: true });
                }
                if process.is_member() && !zombies && process.life < self.lives {
                    add(Kind::Twin, Act::Twin { at, cut: false });
                    add(Kind::Twin, Act::Twin { at, cut: true });
                }
            }
            if is_whole {
                add(Kind::Cut, Act::Link(at, Link::Cut));
                add(Kind::Deaf, Act::Link(at, Link::Deaf));
            }
            if matches!(process.flight, Flight::Answered(_)) {
                add(Kind::Lose, Act::Lose(at));
            }
            if life.strays.is_empty() {
                add(Kind::Stray, Act::Stray(at));
            }
            if matches!(process.beat, Beat::Sent { .. }) && is_whole {
                add(Kind::Late, Act::LateBeat(at));
            }
            if process.is_member() && process.stage != Stage::Failing {
                add(Kind::Fail, Act::Fail(at));
            }
            if process.flight == Flight::Sent && process.link != Link::Cut {
                add(Kind::Crash, Act::Torn { at, written: 1 });
                add(Kind::Crash, Act::Torn { at, written: 2 });
            }
        }
        add(Kind::Crash, Act::Crash { compacted: false });
        add(Kind::Crash, Act::Crash { compacted: true });
        for lost in 0..=life.loose() {
            add(Kind::Power, Act::Power { lost });
        }
        if life.is_busy() {
            add(Kind::Delay, Act::Tick);
        }
    }

    /// The server is killed while it writes the changes of a call. After that all of them are there, or none.
    fn torn(&self, life: &mut Life, at: usize, written: usize) -> Result<(), String> {
        let process = life.processes[at].clone();
        let (rank, number, call) = (process.rank, process.life, process.call());
        let (before, mut records) = (life.spec.clone(), life.durable());
        let (answer, new) = life.ask(rank, number, call);
        life.spec.hear(rank, process.number(), call, answer)?;
        let whole = written >= new.len();
        records.extend(new.into_iter().take(written));
        let after = life.spec.clone();
        life.come_back(records, &if whole { vec![after] } else { vec![before, after] })
    }
}

impl System for Gang {
    type State = Life;
    type Action = Told;

    fn starts(&self) -> Vec<Life> {
        let mut machine = Machine::new(life::options());
        machine.planted = self.planted;
        let processes = (0..self.world).map(|rank| self.fresh(rank, 1, u8::from(rank % 2 == 1))).collect();
        vec![Life::new(machine, processes, self.faults)]
    }

    fn actions(&self, life: &Life) -> Vec<(Told, bool)> {
        let mut all = Vec::new();
        for (at, process) in life.processes.iter().enumerate() {
            if process.stage == Stage::Over {
                continue;
            }
            if process.link != Link::Whole {
                all.push((Act::Mend(at), false));
            }
            match process.flight {
                _ if process.link == Link::Cut => {}
                Flight::Sent | Flight::Held { rung: true } => all.push((Act::Ask(at), false)),
                Flight::Held { rung: false } | Flight::Lost => {}
                Flight::Answered(_) => all.push((Act::Hear(at), false)),
            }
            match process.beat {
                Beat::Sent { .. } if process.link != Link::Cut => all.push((Act::Beat(at), false)),
                Beat::Answered { .. } => all.push((Act::HearBeat(at), false)),
                _ => {}
            }
        }
        all.extend((0..life.strays.len()).map(|stray| (Act::Late(stray), false)));
        if !life.is_busy() && !self.is_over(life) {
            all.push((Act::Tick, false));
        }
        if life.faults > 0 {
            self.faults(life, &mut all);
        }
        all.into_iter().map(|(act, is_fault)| (Told::new(life, act), is_fault)).collect()
    }

    fn act(&self, state: &Life, Told { act, .. }: &Told) -> Result<Life, String> {
        let mut life = state.clone();
        let is_delay = matches!(act, Act::Tick) && life.is_busy();
        let is_free = matches!(
            act,
            Act::Ask(_) | Act::Hear(_) | Act::Beat(_) | Act::HearBeat(_) | Act::Late(_) | Act::Mend(_) | Act::Tick
        );
        life.faults -= u8::from(is_delay || !is_free);
        match *act {
            Act::Ask(at) => self.ask(&mut life, at)?,
            Act::Hear(at) => self.hear(&mut life, at),
            Act::Beat(at) | Act::LateBeat(at) => {
                let Process { rank, life: number, generation, beat, link, .. } = life.processes[at];
                let Beat::Sent { ago } = beat else { return Ok(life) };
                let answer = self.serve(&mut life, rank, number, Call::Beat { generation })?;
                if matches!(act, Act::LateBeat(_)) {
                    life.processes[at].beat = Beat::Answered { ago, answer };
                } else if link == Link::Deaf {
                    life.processes[at].beat = Beat::None;
                } else {
                    self.hear_beat(&mut life, at, ago, answer);
                }
            }
            Act::HearBeat(at) => {
                if let Beat::Answered { ago, answer } = life.processes[at].beat {
                    self.hear_beat(&mut life, at, ago, answer);
                }
            }
            Act::Late(stray) => {
                let (rank, number, call) = life.strays.remove(stray);
                self.serve(&mut life, rank, number, call)?;
            }
            Act::Mend(at) => life.processes[at].link = Link::Whole,
            Act::Tick => self.tick(&mut life)?,
            Act::Kill { at, seen } => {
                let process = life.processes[at].clone();
                if seen {
                    life.hold(process.rank, process.life, process.call(), Some(true));
                    life.spec.dropped(process.rank, process.number(), process.call());
                }
                self.reborn(&mut life, at);
            }
            Act::Twin { at, cut } => {
                if cut {
                    Self::link(&mut life, at, Link::Cut);
                }
                let old = life.processes[at].clone();
                self.reborn(&mut life, at);
                life.processes.push(Process { is_zombie: true, ..old });
            }
            Act::Link(at, link) => Self::link(&mut life, at, link),
            Act::Lose(at) => (life.processes[at].flight, life.processes[at].ago) = (Flight::Sent, 0),
            Act::Stray(at) => {
                let process = &life.processes[at];
                life.strays.push((process.rank, process.life, process.call()));
            }
            Act::Crash { compacted } => life.restart(0, compacted, self.shell)?,
            Act::Torn { at, written } => self.torn(&mut life, at, written)?,
            Act::Power { lost } => life.restart(lost, false, self.shell)?,
            Act::Fail(at) => {
                let process = &mut life.processes[at];
                (process.stage, process.flight) = (Stage::Failing, Flight::Sent);
            }
        }
        Ok(life)
    }

    fn check(&self, life: &Life) -> Result<(), String> {
        life::refines(&life.machine, &life.spec)?;
        let now = self.base + life.now;
        for process in &life.processes {
            if process.lease.is_none_or(|lease| lease.is_over(now)) {
                continue;
            }
            // A member acts by itself, without a call, only while its lease lasts.
            if life.spec.lost.contains(&process.number()) {
                return Err(format!(
                    "process {} of rank {} acts on, and its rank is given away",
                    process.life, process.rank
                ));
            }
            if process.outdated > LEASE {
                let Process { life: number, rank, outdated, .. } = process;
                return Err(format!(
                    "process {number} of rank {rank} acts {outdated} ticks after its generation ended"
                ));
            }
        }
        for process in &life.processes {
            if process.flight == (Flight::Held { rung: false }) {
                let mut ahead = life.clone();
                let (answer, _) = ahead.ask(process.rank, process.life, process.call());
                if answer != Answer::Waiting {
                    return Err(format!(
                        "process {} of rank {} waits, and nobody wakes it",
                        process.life, process.rank
                    ));
                }
            }
        }
        Ok(())
    }

    fn identify(&self, life: &Life, to: &mut DefaultHasher) {
        life.identify(self.base, to);
    }

    fn is_over(&self, life: &Life) -> bool {
        life.processes.iter().all(|process| process.stage == Stage::Over)
    }
}
