//! The trainers of a gang under test: the calls of a process, its reactions to answers, and its behaviour over time.

use super::super::own_lease::OwnLease;
use super::life::{self, Beat, Flight, LEASE, Life, Link, Process, Stage, TICK};
use super::spec::{Answer, Call};
use super::{Gang, Kind};

/// Time for which processes wait for others, in ticks.
const JOIN: u8 = 3;
const MEET: u8 = 3;

impl Gang {
    pub(super) fn fresh(&self, rank: usize, life: u8, plan: u8) -> Process {
        Process {
            rank,
            life,
            stage: Stage::Joining,
            flight: Flight::Sent,
            waits: JOIN,
            ago: 0,
            beat: Beat::None,
            link: Link::Whole,
            lease: None,
            generation: 0,
            step: 0,
            round: 0,
            plan,
            outdated: 0,
            is_zombie: false,
        }
    }

    /// The process at `at` is over; another starts in its place, as long as there is one.
    pub(super) fn reborn(&self, life: &mut Life, at: usize) {
        let process = &life.processes[at];
        if process.is_zombie {
            life.processes.remove(at);
        } else if process.life < self.lives {
            // It finds the other plan, if there are two.
            let plan = (process.plan + 1) % 2;
            life.processes[at] = self.fresh(process.rank, process.life + 1, plan);
        } else {
            life.processes[at] = Process { stage: Stage::Over, flight: Flight::Sent, lease: None, ..process.clone() };
            life.processes[at].beat = Beat::None;
        }
    }

    /// Moves a process to its next stage.
    fn goes_on(&self, process: &mut Process) {
        let rounds = self.steps - 1 + u64::from(self.uneven && process.rank == 1);
        process.stage = match process.stage {
            Stage::Joining if self.reads => Stage::Reading,
            Stage::Acking if process.step <= rounds => Stage::Meeting,
            Stage::Joining | Stage::Reading | Stage::Acking | Stage::Meeting if process.step < self.steps => {
                Stage::Acking
            }
            Stage::Leaving => Stage::Over,
            _ => Stage::Leaving,
        };
        (process.flight, process.ago) = (Flight::Sent, 0);
        process.waits = if process.stage == Stage::Meeting { MEET } else { 0 };
        if process.stage == Stage::Over {
            (process.lease, process.beat) = (None, Beat::None);
        }
    }

    /// The server answers a call, which the promises must allow.
    pub(super) fn serve(&self, life: &mut Life, rank: usize, number: u8, call: Call) -> Result<Answer, String> {
        let (answer, records) = life.ask(rank, number, call);
        life.spec.hear(rank, life::number(rank, number), call, answer)?;
        life.write(records, self.kinds.contains(&Kind::Power), self.shell);
        Ok(answer)
    }

    /// The call of a process reaches the server, which answers or holds it.
    pub(super) fn ask(&self, life: &mut Life, at: usize) -> Result<(), String> {
        let process = life.processes[at].clone();
        let (rank, number, call) = (process.rank, process.life, process.call());
        let answer = self.serve(life, rank, number, call)?;
        let was_held = matches!(process.flight, Flight::Held { .. });
        let holds = answer == Answer::Waiting;
        if process.link == Link::Deaf {
            life.processes[at].flight = Flight::Lost;
            return Ok(());
        }
        match (was_held, holds) {
            (false, true) => life.hold(rank, number, call, None),
            (true, false) => life.hold(rank, number, call, Some(false)),
            _ => {}
        }
        life.processes[at].flight = if holds { Flight::Held { rung: false } } else { Flight::Answered(answer) };
        Ok(())
    }

    pub(super) fn hear(&self, life: &mut Life, at: usize) {
        let process = &mut life.processes[at];
        let Flight::Answered(answer) = process.flight else { return };
        let now = self.base + life.now;
        match (process.stage, answer) {
            (Stage::Joining, Answer::Joined { generation, after }) => {
                let sent = if self.late_lease { now } else { now - TICK * u32::from(process.ago) };
                let lease = OwnLease::new(TICK * u32::from(LEASE), sent);
                (process.generation, process.step, process.round) = (generation, after, 1);
                process.lease = Some(lease);
                if lease.is_over(now) { self.reborn(life, at) } else { self.goes_on(process) }
            }
            (Stage::Joining, _) | (_, Answer::Fenced) | (Stage::Failing, _) => self.reborn(life, at),
            (Stage::Reading, Answer::Refused) => {
                // It reads the plan of the others.
                process.plan = (process.plan + 1) % 2;
                process.flight = Flight::Sent;
            }
            (_, Answer::Done { .. }) => {
                process.step += u64::from(process.stage == Stage::Acking);
                process.round += u64::from(process.stage == Stage::Meeting);
                self.goes_on(process);
            }
            _ => {
                process.stage = Stage::Failing;
                process.flight = Flight::Sent;
            }
        }
    }

    pub(super) fn hear_beat(&self, life: &mut Life, at: usize, ago: u8, answer: Answer) {
        let now = self.base + life.now;
        let process = &mut life.processes[at];
        process.beat = Beat::None;
        match answer {
            Answer::Done { .. } => {
                let sent = if self.late_lease { now } else { now - TICK * u32::from(ago) };
                if let Some(lease) = &mut process.lease {
                    lease.renew(sent);
                }
            }
            _ => self.reborn(life, at),
        }
    }

    pub(super) fn tick(&self, life: &mut Life) -> Result<(), String> {
        life.now += TICK;
        life.spec.tick();
        let records = life.sweep();
        life.write(records, self.kinds.contains(&Kind::Power), self.shell);
        let now = self.base + life.now;
        for at in (0..life.processes.len()).rev() {
            let process = &mut life.processes[at];
            if process.stage == Stage::Over {
                continue;
            }
            let gave_up = matches!(process.stage, Stage::Joining | Stage::Meeting) && process.waits == 0;
            let is_dead = process.lease.is_some_and(|lease| lease.is_over(now));
            if gave_up || is_dead {
                self.reborn(life, at);
                continue;
            }
            process.waits = process.waits.saturating_sub(1);
            match &mut process.flight {
                // Its time is over: it is repeated.
                Flight::Held { rung } => (*rung, process.ago) = (true, 0),
                flight @ Flight::Lost => (*flight, process.ago) = (Flight::Sent, 0),
                _ => process.ago += 1,
            }
            match &mut process.beat {
                beat @ Beat::None if process.lease.is_some() && process.link != Link::Cut => {
                    *beat = Beat::Sent { ago: 0 }
                }
                Beat::None => {}
                Beat::Sent { ago } | Beat::Answered { ago, .. } => *ago += 1,
            }
            let is_outdated = process.lease.is_some() && process.generation < life.spec.present();
            process.outdated = if is_outdated { process.outdated + 1 } else { 0 };
        }
        Ok(())
    }

    /// A link breaks; the server notices nothing.
    pub(super) fn link(life: &mut Life, at: usize, link: Link) {
        let process = life.processes[at].clone();
        if matches!(process.flight, Flight::Held { .. }) {
            life.hold(process.rank, process.life, process.call(), Some(false));
        }
        let process = &mut life.processes[at];
        process.link = link;
        if link == Link::Cut {
            (process.flight, process.beat) = (Flight::Sent, Beat::None);
        } else if process.flight != Flight::Sent {
            process.flight = Flight::Lost;
        }
    }
}
