//! The promises of a gang, as an abstract machine that shares no code with it.
//!
//! Generations, processes, steps and rounds are plain numbers; step 0 is the start. Times are ticks. It hears each call with the gang's
//! answer, and says whether the promises allow that answer.

/// The number of a process: no two have the same.
pub(super) type Process = u16;

/// A call of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Call {
    /// Joins as a member, or gives up after some ticks.
    Join {
        patience: u8,
    },
    /// Names the plan that it reads.
    Read {
        generation: u64,
        plan: u8,
    },
    Ack {
        generation: u64,
        step: u64,
    },
    /// To meet the others, or give up after some ticks.
    Meet {
        generation: u64,
        round: u64,
        patience: u8,
    },
    Beat {
        generation: u64,
    },
    Leave {
        generation: u64,
        failed: bool,
    },
}

/// An answer to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Answer {
    Joined {
        generation: u64,
        after: u64,
    },
    Waiting,
    /// The call is done; all ranks have acknowledged up to `all`, where that is said.
    Done {
        all: Option<u64>,
    },
    Fenced,
    TimedOut,
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Forming,
    Running,
    Ended,
}

/// A member of the newest generation.
#[derive(Debug, Clone, Hash)]
pub(super) struct Member {
    pub(super) process: Process,
    /// Ticks until it is lost.
    patience: u8,
    pub(super) acked: Option<u64>,
    pub(super) left: bool,
}

/// A process that waits to join: the ticks that it still waits, and those until it is forgotten.
#[derive(Debug, Clone, Hash)]
struct Asking {
    process: Process,
    patience: u8,
    silence: u8,
}

/// The promises about one gang.
#[derive(Debug, Clone, Hash)]
pub(super) struct Spec {
    lease: u8,
    grace: u8,
    pub(super) phase: Phase,
    /// The newest that began.
    pub(super) generation: u64,
    pub(super) members: Vec<Member>,
    /// The step after which the generation began, and the one that all have done.
    pub(super) base: u64,
    pub(super) committed: u64,
    plan: Option<u8>,
    pub(super) opened: u64,
    /// Ranks at the next round.
    arrived: u8,
    broken: bool,
    asking: Vec<Option<Asking>>,
    /// Processes that are over, and whether a restart may have made the gang forget that.
    over: Vec<(Process, bool)>,
    /// Members of runs that have ended, of which each had left, the generation, and whether the gang surely knows that still.
    departed: Vec<(Process, u64, bool)>,
    /// Processes whose lease ran out.
    pub(super) lost: Vec<Process>,
}

type Verdict = Result<(), String>;

impl Spec {
    pub(super) fn new(world: usize, lease: u8, grace: u8) -> Self {
        Self {
            lease,
            grace,
            phase: Phase::Forming,
            generation: 0,
            members: Vec::new(),
            base: 0,
            committed: 0,
            plan: None,
            opened: 0,
            arrived: 0,
            broken: false,
            asking: vec![None; world],
            over: Vec::new(),
            departed: Vec::new(),
            lost: Vec::new(),
        }
    }

    pub(super) fn world(&self) -> usize {
        self.asking.len()
    }

    /// The generation that runs, or the next one.
    pub(super) fn present(&self) -> u64 {
        self.generation + u64::from(self.phase == Phase::Forming)
    }

    /// Returns true if `process` is rank `rank` of the running generation, and has not left.
    fn may_act(&self, rank: usize, process: Process, generation: u64) -> bool {
        let member = self.members.get(rank).is_some_and(|member| member.process == process && !member.left);
        self.phase == Phase::Running && generation == self.generation && member
    }

    /// The generation is over, and with it its members.
    fn end(&mut self) {
        for member in &self.members {
            self.over.retain(|(process, _)| *process != member.process);
            self.over.push((member.process, true));
        }
        self.over.sort_unstable();
        self.phase = Phase::Forming;
        self.arrived = 0;
    }

    fn end_asking(&mut self) {
        for asking in self.asking.iter_mut().filter_map(Option::take) {
            self.over.push((asking.process, true));
        }
        self.over.sort_unstable();
    }

    /// A tick of time goes by.
    pub(super) fn tick(&mut self) {
        if self.phase == Phase::Running {
            let mut lost = Vec::new();
            for member in self.members.iter_mut().filter(|member| !member.left) {
                member.patience -= 1;
                if member.patience == 0 {
                    lost.push(member.process);
                }
            }
            if !lost.is_empty() {
                self.lost.extend(lost);
                self.lost.sort_unstable();
                self.end();
            }
        } else {
            for asking in &mut self.asking {
                if let Some(it) = asking {
                    (it.patience, it.silence) = (it.patience.saturating_sub(1), it.silence - 1);
                }
                asking.take_if(|it| it.silence == 0);
            }
            if self.asking.iter().flatten().any(|asking| asking.patience == 0) {
                self.end_asking();
            }
        }
    }

    /// A server was killed and comes back: which of these the gang may be then is not promised.
    pub(super) fn restarted(&self) -> Vec<Self> {
        let mut after = self.clone();
        after.arrived = 0;
        after.broken = false;
        after.asking.fill(None);
        for member in &mut after.members {
            member.patience = self.lease + self.grace;
        }
        after.over.iter_mut().for_each(|(_, surely)| *surely = false);
        after.departed.iter_mut().for_each(|(.., surely)| *surely = false);
        let mut all = vec![after.clone()];
        // A new run of a gang that had ended may have been forgotten before anything of it began.
        if after.phase == Phase::Forming && after.members.iter().all(|member| member.left) && !after.members.is_empty()
        {
            after.phase = Phase::Ended;
            all.push(after);
        }
        all
    }

    /// The connection of a waiting call broke, and the gang heard of it.
    pub(super) fn dropped(&mut self, rank: usize, process: Process, call: Call) {
        match call {
            Call::Join { .. } => {
                self.asking[rank].take_if(|it| it.process == process);
            }
            Call::Meet { generation, round, .. }
                if self.may_act(rank, process, generation) && round == self.opened + 1 =>
            {
                self.arrived &= !(1 << rank);
            }
            _ => {}
        }
    }

    /// Rank `rank`, which is process `process`, was given `answer` to `call`.
    pub(super) fn hear(&mut self, rank: usize, process: Process, call: Call, answer: Answer) -> Verdict {
        match call {
            Call::Join { patience } => return self.join(rank, process, patience, answer),
            Call::Leave { generation, failed } => return self.leave(rank, process, generation, failed, answer),
            _ => {}
        }
        let (Call::Read { generation, .. }
        | Call::Ack { generation, .. }
        | Call::Meet { generation, .. }
        | Call::Beat { generation }) = call
        else {
            return Ok(());
        };
        if !self.may_act(rank, process, generation) {
            return expect("no member of the generation that runs is fenced", Answer::Fenced, answer);
        }
        if !matches!(call, Call::Read { .. }) {
            let lease = self.lease;
            self.members[rank].patience = self.members[rank].patience.max(lease);
        }
        match call {
            Call::Read { plan, .. } => match *self.plan.get_or_insert(plan) == plan {
                true => expect("the first plan binds", Answer::Done { all: None }, answer),
                false => expect("one plan in a generation", Answer::Refused, answer),
            },
            Call::Ack { step, .. } => self.ack(rank, step, answer),
            Call::Meet { round, patience, .. } => self.meet(rank, round, patience, answer),
            _ => expect("a member is alive", Answer::Done { all: Some(self.committed) }, answer),
        }
    }

    fn join(&mut self, rank: usize, process: Process, patience: u8, answer: Answer) -> Verdict {
        if let Some((_, surely)) = self.over.iter().find(|(it, _)| *it == process) {
            let refused = !matches!(answer, Answer::Joined { .. } | Answer::Waiting);
            if *surely {
                return if refused {
                    Ok(())
                } else {
                    Err(format!("process {process} is over, and was answered {answer:?}"))
                };
            }
            // If its end was forgotten, it is a new process.
            let mut forgotten = self.clone();
            forgotten.over.retain(|(it, _)| *it != process);
            return match forgotten.join(rank, process, patience, answer) {
                Err(_) if refused => Ok(()),
                outcome => {
                    *self = forgotten;
                    outcome
                }
            };
        }
        let member = self.members.get(rank).filter(|member| self.phase != Phase::Forming && member.process == process);
        match member {
            Some(member) if member.left => return expect("who has left does not come back", Answer::Fenced, answer),
            Some(_) => {
                self.members[rank].patience = self.members[rank].patience.max(self.lease);
                let joined = Answer::Joined { generation: self.generation, after: self.base };
                return expect("a member is told again what it joined", joined, answer);
            }
            None => {}
        }
        match self.phase {
            Phase::Running => self.end(),
            Phase::Ended => {
                // A new run, from the beginning. The members of the last one may be forgotten.
                self.over.extend(self.members.iter().map(|member| (member.process, false)));
                self.over.sort_unstable();
                self.departed.extend(self.members.iter().map(|member| (member.process, self.generation, true)));
                self.departed.sort_unstable();
                (self.phase, self.committed, self.plan) = (Phase::Forming, 0, None);
            }
            Phase::Forming => {}
        }
        let lease = self.lease;
        let asking = self.asking[rank].get_or_insert(Asking { process, patience, silence: lease });
        if asking.process != process {
            return expect("a rank joins once", Answer::Refused, answer);
        }
        (asking.patience, asking.silence) = (asking.patience.min(patience), lease);
        if let (true, Answer::Joined { generation, after }) = (self.asking.iter().all(Option::is_some), answer) {
            if generation <= self.generation {
                return Err(format!("generation {generation} began, and generation {} was before", self.generation));
            }
            if after != self.committed {
                return Err(format!(
                    "generation {generation} began after step {after}, all had done {}",
                    self.committed
                ));
            }
            if after == 0 {
                self.plan = None;
            }
            (self.phase, self.generation, self.base) = (Phase::Running, generation, after);
            (self.opened, self.arrived, self.broken) = (0, 0, false);
            let member = |it: Asking| Member { process: it.process, patience: lease, acked: None, left: false };
            self.members = self.asking.iter_mut().filter_map(Option::take).map(member).collect();
            return Ok(());
        }
        if self.asking.iter().all(Option::is_some) {
            return Err(format!("all ranks have joined, and the last was answered {answer:?}"));
        }
        if self.asking.iter().flatten().any(|it| it.patience == 0) {
            self.end_asking();
            return expect("the first whose time is over ends the wait of all", Answer::TimedOut, answer);
        }
        expect("nothing begins before all are there", Answer::Waiting, answer)
    }

    fn ack(&mut self, rank: usize, step: u64, answer: Answer) -> Verdict {
        let member = &mut self.members[rank];
        if member.acked.map_or(step <= self.base, |acked| step < acked) {
            return expect("no step is acknowledged twice, or after a later one", Answer::Refused, answer);
        }
        member.acked = Some(step);
        let least = self.members.iter().map(|member| member.acked).min().flatten();
        self.committed = self.committed.max(least.unwrap_or(0));
        expect("what all have acknowledged is told", Answer::Done { all: Some(self.committed) }, answer)
    }

    fn meet(&mut self, rank: usize, round: u64, patience: u8, answer: Answer) -> Verdict {
        if round == self.opened && round > 0 {
            return expect("a round that opened is open for all", Answer::Done { all: None }, answer);
        }
        if self.broken || self.members.iter().any(|member| member.left) {
            return expect("nobody waits for whom nobody can meet any more", Answer::Refused, answer);
        }
        if round != self.opened + 1 {
            self.broken = round > self.opened;
            if self.broken {
                self.arrived = 0;
            }
            return expect("rounds are met in their order", Answer::Refused, answer);
        }
        self.arrived |= 1 << rank;
        if self.arrived.count_ones() as usize == self.members.len() {
            (self.opened, self.arrived) = (round, 0);
            return expect("a round opens when all are there", Answer::Done { all: None }, answer);
        }
        if patience == 0 {
            self.arrived &= !(1 << rank);
            return expect("who waits no longer is told so", Answer::TimedOut, answer);
        }
        expect("a round opens when all are there, and not before", Answer::Waiting, answer)
    }

    fn leave(&mut self, rank: usize, process: Process, generation: u64, failed: bool, answer: Answer) -> Verdict {
        let departed = self.departed.iter().find(|it| !failed && (it.0, it.1) == (process, generation));
        if let Some((.., surely)) = departed {
            let is_told_so = !surely && answer == Answer::Fenced;
            return if is_told_so {
                Ok(())
            } else {
                expect("who has left may say so again", Answer::Done { all: None }, answer)
            };
        }
        let known = self.phase != Phase::Forming && generation == self.generation;
        if !known || self.members.get(rank).is_none_or(|member| member.process != process) {
            return expect("no member of the generation that runs is fenced", Answer::Fenced, answer);
        }
        if failed && self.phase == Phase::Running {
            self.end();
        } else if !failed && !self.members[rank].left {
            self.members[rank].left = true;
            self.broken |= self.arrived != 0;
            self.arrived = 0;
            if self.members.iter().all(|member| member.left) {
                self.phase = Phase::Ended;
            }
        }
        expect("a member may leave", Answer::Done { all: None }, answer)
    }
}

fn expect(promise: &str, expected: Answer, answer: Answer) -> Verdict {
    if answer == expected {
        return Ok(());
    }
    Err(format!("{promise}: expected {expected:?}, was {answer:?}"))
}
