//! The gangs of one server: the state machine with a clock, a journal, and calls that wait.
//!
//! ```text
//!  call ─► parse ─► lock { machine decides ─► journal writes } ─► wake whom it concerns ─► answer
//!             ▲                                    │ not yet
//!             └──── woken, or time is up ◄─────────┘
//! ```
//!
//! The lock is held while the journal is written, and fsynced where a generation begins or ends: no answer may overtake
//! the record it follows from. After a failed write nothing is answered any more; a restart continues from the disk's content.

mod options;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::bells::Bells;
use super::collectives::CollectiveKind;
use super::journal::{Journal, Record};
use super::limits;
use super::machine::{Machine, Meeting};
use super::overview::Overview;
use super::refusal::millis;
use super::wire::{
    ACTIONS, AckRequest, Caller, CallerRequest, Gathered, JoinRequest, Joined, LeaveRequest, MeetRequest, Polled,
    Position, Reading, Refusal, Share, StateRequest, read, write,
};
use crate::error::{Error, Result};
use crate::manifest::Fingerprint;
use crate::store::lock::Lock;

pub use options::RegistryOptions;

/// Longest wait, whatever is requested: 30 days.
const LONGEST: Duration = Duration::from_secs(30 * 24 * 3600);

/// Answers up to this are made without asking for room, in bytes.
const SHORT: usize = 64 << 10;

/// Makes room for an answer of `bytes` bytes, which its caller may never read.
pub(crate) type Room<'a> = &'a (dyn Fn(usize) -> BoxFuture<'a, Result<()>> + Send + Sync);

#[derive(Debug)]
struct Inner {
    machine: Machine,
    journal: Option<Journal>,
    /// Reason why nothing is answered any more.
    broken: Option<(String, String)>,
    bells: Bells,
    /// Generations that began since the registry was opened.
    generations: u64,
}

/// All gangs of one server.
#[derive(Debug)]
pub struct Registry {
    options: RegistryOptions,
    start: Instant,
    inner: Mutex<Inner>,
    sweeper: OnceLock<AbortHandle>,
}

impl Drop for Registry {
    fn drop(&mut self) {
        if let Some(sweeper) = self.sweeper.get() {
            sweeper.abort();
        }
    }
}

impl Registry {
    /// Opens the gangs of the journal at `journal`, or none without a journal: then a restart of the server forgets all.
    ///
    /// Must be called within a tokio runtime, where a task watches the leases. One registry at a time has a journal open, on any host that
    /// shares the file system's locks.
    ///
    /// # Errors
    /// [`Error::Config`] for a lease below 10 ms or no runtime; [`Error::Closed`] naming the process that has the journal open;
    /// [`Error::Store`], [`Error::Corrupt`] and [`Error::Unsupported`] for the journal, which is then left as it is.
    pub fn open(journal: Option<PathBuf>, options: RegistryOptions) -> Result<Arc<Self>> {
        let lock = journal.as_deref().map(Journal::lock_now).transpose()?;
        Self::locked(journal.zip(lock), options)
    }

    /// As [`open`](Self::open), but waits up to `patience` for another process to release the journal: one that drains while this one
    /// takes its place.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) async fn open_within(
        journal: Option<PathBuf>,
        options: RegistryOptions,
        patience: Duration,
    ) -> Result<Arc<Self>> {
        let lock = match &journal {
            Some(path) => Some(Journal::lock(path, patience).await?),
            None => None,
        };
        Self::locked(journal.zip(lock), options)
    }

    fn locked(journal: Option<(PathBuf, Lock)>, options: RegistryOptions) -> Result<Arc<Self>> {
        if options.lease < Duration::from_millis(10) || options.lease > LONGEST || options.grace > LONGEST {
            return Err(Error::config("lease", format!("{:?}; from 10 ms to 30 days", options.lease)));
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return Err(Error::config("gang call", "a registry is opened within a tokio runtime"));
        };
        let (mut journal, records) = match journal {
            Some((path, lock)) => {
                let (journal, records) = Journal::open(&path, lock)?;
                (Some(journal), records)
            }
            None => (None, Vec::new()),
        };
        let machine = Machine::restore(options.clone(), &records);
        // A server that is often restarted would let it grow for ever.
        if let Some(journal) = &mut journal {
            journal.compact_if_large(|| machine.snapshot());
        }
        let inner = Mutex::new(Inner { machine, journal, broken: None, bells: Bells::default(), generations: 0 });
        let registry = Arc::new(Self { options, start: Instant::now(), inner, sweeper: OnceLock::new() });
        let task = runtime.spawn(sweep(Arc::downgrade(&registry)));
        let _ = registry.sweeper.set(task.abort_handle());
        Ok(registry)
    }

    /// Answers one call: `action` is one of [`ACTIONS`], `body` the JSON of its request in [`wire`](super::wire).
    ///
    /// A call that waits is held for its `poll_ms` at most and then answers `waiting`. Dropping the future takes an arrival
    /// back, unless the wait was over before.
    ///
    /// # Errors
    /// [`Error::NotFound`] for an unknown action or gang, [`Error::Config`] and [`Error::Limit`] for a bad request, [`Error::Fenced`] for a
    /// caller whose generation is over, [`Error::Mismatch`] if ranks contradict each other, [`Error::Timeout`] if a rank did not come,
    /// [`Error::Store`] if the journal cannot be written.
    pub async fn call(&self, action: &str, body: &[u8]) -> Result<Vec<u8>> {
        self.call_as(action, body, |gang| Ok(gang.to_owned()), &|_| Box::pin(std::future::ready(Ok(())))).await
    }

    /// As [`call`](Self::call) from a caller whose gangs have other names here: `known` turns the caller's names into ours; answers keep
    /// the caller's. Before a long answer is made, `room` is asked for its bytes.
    ///
    /// # Errors
    /// As there, and those of `known` and `room`.
    pub(crate) async fn call_as(
        &self,
        action: &str,
        body: &[u8],
        known: impl Fn(&str) -> Result<String>,
        room: Room<'_>,
    ) -> Result<Vec<u8>> {
        let of = |caller: Caller| Ok::<_, Error>(Caller { gang: known(&caller.gang)?, ..caller });
        let limit = limits::request(action, self.options.max_message);
        if body.len() as u64 > limit {
            let what = format!("the request {}", action.chars().take(64).collect::<String>());
            return Err(Error::limit(what, body.len() as u64, limit, "max_message"));
        }
        match action {
            "gang.join" => {
                let mut request: JoinRequest = read(action, body)?;
                request.gang = known(&request.gang)?;
                if let Some(token) = &mut request.token
                    && token.is_intact()
                {
                    *token = token.of_gang(known(&token.gang)?);
                }
                request.poll_ms = request.poll_ms.min(millis(self.options.max_poll));
                let times = (request.timeout_ms, request.poll_ms);
                let name = request.gang.clone();
                write(&self.wait(&name, times, request, join, Machine::hold_join).await?)
            }
            "gang.barrier" | "gang.all_gather" => {
                let mut request: MeetRequest = read(action, body)?;
                request.caller = of(request.caller)?;
                let times = (request.timeout_ms, request.poll_ms);
                let name = request.caller.gang.clone();
                let kind = if action == "gang.barrier" { CollectiveKind::Barrier } else { CollectiveKind::AllGather };
                let meeting = Meeting::new(kind, request, self.options.max_message)
                    .map_err(|refusal| refusal.into_error("gang server"))?;
                let polled = self.wait(&name, times, meeting, arrive, Machine::hold_round).await?;
                match &polled {
                    Polled::Done(met) if met.bytes() > SHORT => room(met.bytes()).await?,
                    _ => return write(&polled),
                }
                // Nor does a long one hold up the calls of others.
                let written = tokio::task::spawn_blocking(move || write(&polled)).await;
                written.unwrap_or_else(|error| Err(Error::Closed { why: format!("writing an answer ended: {error}") }))
            }
            "gang.heartbeat" => {
                let CallerRequest { caller } = read(action, body)?;
                let caller = of(caller)?;
                write(&self.act(|machine, now| machine.heartbeat(now, &caller))?)
            }
            "gang.members" => {
                let CallerRequest { caller } = read(action, body)?;
                let caller = of(caller)?;
                self.make_room(&caller.gang, room).await?;
                write(&self.act(|machine, now| machine.members(now, &caller))?)
            }
            "gang.ack" => {
                let mut request: AckRequest = read(action, body)?;
                let own = request.caller.gang.clone();
                request.caller = of(request.caller)?;
                let mut acked = self.act(|machine, now| machine.ack(now, &request))?;
                acked.token = acked.token.of_gang(own);
                write(&acked)
            }
            "gang.leave" => {
                let mut request: LeaveRequest = read(action, body)?;
                request.caller = of(request.caller)?;
                self.act(|machine, now| machine.leave(now, &request))?;
                Ok(b"{}".to_vec())
            }
            "gang.state" => {
                let StateRequest { gang } = read(action, body)?;
                let inner = known(&gang)?;
                self.make_room(&inner, room).await?;
                let mut state = self.act(|machine, now| machine.state(now, &inner))?;
                state.gang = gang;
                write(&state)
            }
            other => Err(Error::NotFound {
                what: format!("action {:?}", other.chars().take(64).collect::<String>()),
                hint: format!("the actions are {}", ACTIONS.join(", ")),
            }),
        }
    }

    /// Makes room for an answer that lists all ranks of `gang`.
    async fn make_room(&self, gang: &str, room: Room<'_>) -> Result<()> {
        let bytes = self.lock().machine.ranks(gang).saturating_mul(limits::ENTRY);
        if bytes > SHORT { room(bytes).await } else { Ok(()) }
    }

    /// The leash of one stream of one process: it says whether the generation still runs, and when it ends.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the process is not a member of the running generation.
    pub fn fence(self: &Arc<Self>, gang: &str, rank: u32, attempt: u128, generation: u64) -> Result<Fence> {
        let caller = Caller { gang: gang.to_owned(), generation, rank, attempt };
        let mut bell = None;
        let (share, base) = self.decide(
            |machine, now| machine.part(now, &caller),
            // Under the same lock, so that an end after the answer is heard.
            |bells, answer| bell = answer.is_ok().then(|| bells.of(gang)),
        )?;
        let bell =
            bell.ok_or_else(|| Error::Closed { why: "a fence without a bell; this is a bug in bowstring".into() })?;
        Ok(Fence { registry: Arc::clone(self), caller, share, base, bell })
    }

    /// The data that `caller` continues with: those of the position that its generation resumes from. `None` if it begins anew, or
    /// if only the plan is known.
    pub fn resumed(&self, caller: &Caller) -> Option<Fingerprint> {
        let reads = self.act(|machine, now| machine.reads(now, caller)).ok().flatten();
        reads.filter(|(_, resumed)| *resumed).and_then(|(reads, _)| reads.data)
    }

    /// The fingerprint of the plan that the generation of `caller` reads, if it is settled.
    pub(crate) fn reads(&self, caller: &Caller) -> Option<Fingerprint> {
        let reads = self.act(|machine, now| machine.reads(now, caller)).ok().flatten();
        reads.map(|(reads, _)| reads.plan)
    }

    /// Checks that `caller` may read `reading`, as far as that is settled. Membership is checked by its stream.
    ///
    /// # Errors
    /// [`Error::Mismatch`] naming both plans if its generation reads another one.
    pub(crate) fn may_read(&self, caller: &Caller, reading: &Reading) -> Result<()> {
        match self.act(|machine, now| machine.reads(now, caller)) {
            // Refused as it will be when the stream begins.
            Ok(Some((reads, _))) if reads.plan != reading.plan => self.read(caller, reading),
            _ => Ok(()),
        }
    }

    /// Binds the generation of `caller` to the plan of its stream, before the first row is sent.
    ///
    /// # Errors
    /// [`Error::Mismatch`] naming both plans if the generation reads another one; [`Error::Fenced`] if `caller` is no member of it;
    /// [`Error::Store`] if the registry has stopped.
    pub fn read(&self, caller: &Caller, reading: &Reading) -> Result<()> {
        self.act(|machine, now| machine.read(now, caller, reading))
    }

    /// As [`read`](Self::read), of a plan whose epochs have `steps` steps: no later one is acknowledged from here on.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_to(&self, caller: &Caller, reading: &Reading, steps: u64) -> Result<()> {
        self.act(|machine, now| {
            machine.read(now, caller, reading)?;
            machine.ends(now, caller, (reading.plan, steps))
        })
    }

    /// Number of running gangs.
    pub fn running(&self) -> usize {
        self.lock().machine.running(|_| true)
    }

    /// Generations that began since the registry was opened, and members that are there now, over all gangs.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let inner = self.lock();
        let gangs = inner.machine.overview(|_| true, usize::MAX);
        // Ranks that still wait for others are no members.
        let members = gangs.iter().filter(|gang| gang.phase == "running").map(|gang| gang.present).sum();
        (inner.generations, members)
    }

    /// At most `most` gangs as operators see them, those that were called last: of all spaces, or of one. Names are those within their
    /// space; the second of each pair is the space.
    pub(crate) fn overview(&self, of: Option<Option<&str>>, most: usize) -> Vec<(Overview, Option<String>)> {
        let asked = |name: &str| of.is_none_or(|space| limits::space(name) == space);
        let named = |mut gang: Overview| {
            let space = limits::space(&gang.gang).map(str::to_owned);
            if let Some(space) = &space {
                gang.gang = gang.gang.get(space.len() + 1..).unwrap_or_default().to_owned();
            }
            (gang, space)
        };
        self.lock().machine.overview(asked, most).into_iter().map(named).collect()
    }

    /// Number of running gangs in a space; without a name, of those in no space.
    pub(crate) fn running_in(&self, space: Option<&str>) -> usize {
        self.lock().machine.running(|name| limits::space(name) == space)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        match self.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(inner)) => inner.into_inner(),
            Err(TryLockError::WouldBlock) => aside(|| self.inner.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Lets the machine decide, makes its decision durable, and wakes the waiting calls that it concerns.
    fn act<T>(&self, decide: impl FnOnce(&mut Machine, Duration) -> Result<T, Refusal>) -> Result<T> {
        self.decide(decide, |_, _| {})
    }

    /// As `act`; `hear` may take a bell that rings for everything that happens after the answer.
    fn decide<T>(
        &self,
        decide: impl FnOnce(&mut Machine, Duration) -> Result<T, Refusal>,
        hear: impl FnOnce(&mut Bells, &Result<T, Refusal>),
    ) -> Result<T> {
        let mut inner = self.lock();
        let inner = &mut *inner;
        if let Some((url, text)) = &inner.broken {
            let source = std::io::Error::other(text.clone()).into();
            return Err(Error::Store { operation: "write".into(), url: url.clone(), source });
        }
        let answer = decide(&mut inner.machine, self.now());
        let happened = inner.machine.take_happened();
        if let Some(journal) = &mut inner.journal
            && !happened.records.is_empty()
        {
            let machine = &inner.machine;
            let long = happened.records.iter().any(Record::is_long) || journal.is_large();
            let mut append = || -> Result<()> {
                journal.append(&happened.records)?;
                journal.compact_if_large(|| machine.snapshot());
                Ok(())
            };
            let written = if long { aside(append) } else { append() };
            if let Err(error) = written {
                tracing::error!(error = error.chain(), "the gang journal cannot be written; gangs are not served");
                let url = if let Error::Store { url, .. } = &error { url.clone() } else { String::new() };
                inner.broken = Some((url, error.chain()));
                inner.bells.ring_all();
                return Err(error);
            }
        }
        inner.generations += happened.records.iter().filter(|it| matches!(it, Record::Formed { .. })).count() as u64;
        for name in &happened.woken {
            inner.bells.ring(name);
        }
        hear(&mut inner.bells, &answer);
        answer.map_err(|refusal| refusal.into_error("gang server"))
    }

    /// Asks until there is an answer, the call has been held long enough, or the caller's time is up.
    async fn wait<R, T>(
        &self,
        gang: &str,
        (timeout_ms, poll_ms): (u64, u64),
        request: R,
        ask: Ask<R, T>,
        hold: fn(&mut Machine, &R, Option<bool>),
    ) -> Result<Polled<T>> {
        let begin = Instant::now();
        let deadline = begin + Duration::from_millis(timeout_ms).min(LONGEST);
        let until = (begin + Duration::from_millis(poll_ms).min(self.options.max_poll)).min(deadline);
        let mut bell = None;
        let mut held = Held { registry: self, request, hold, holding: false, dropped: true };
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let decide = |machine: &mut Machine, now| {
                let polled = ask(machine, now, &mut held.request, millis(left));
                if !held.holding && matches!(polled, Ok(Polled::Waiting { .. })) {
                    held.holding = true;
                    hold(machine, &held.request, None);
                }
                polled
            };
            let polled = self.decide(decide, |bells, polled| {
                if matches!(polled, Ok(Polled::Waiting { .. })) {
                    // Rings from here on are heard below.
                    bell.get_or_insert_with(|| bells.of(gang)).mark_unchanged();
                }
            });
            if !matches!(polled, Ok(Polled::Waiting { .. })) || Instant::now() >= until {
                held.dropped = false;
                return polled;
            }
            let ringing = async {
                match &mut bell {
                    Some(bell) => rung(bell).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = ringing => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }
}

/// Runs work that waits for the disk; other tasks of this thread continue on another one meanwhile.
fn aside<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        // There is no other thread.
        _ => work(),
    }
}

/// Asks the machine at a time, with the milliseconds that the caller still has.
type Ask<R, T> = fn(&mut Machine, Duration, &mut R, u64) -> Result<Polled<T>, Refusal>;

fn join(machine: &mut Machine, now: Duration, request: &mut JoinRequest, left: u64) -> Result<Polled<Joined>, Refusal> {
    request.timeout_ms = left;
    machine.join(now, request)
}

fn arrive(machine: &mut Machine, now: Duration, meeting: &mut Meeting, left: u64) -> Result<Polled<Gathered>, Refusal> {
    machine.arrive(now, meeting, left)
}

/// A waiting call: dropping it withdraws its arrival or join.
struct Held<'a, R> {
    registry: &'a Registry,
    request: R,
    hold: fn(&mut Machine, &R, Option<bool>),
    holding: bool,
    /// Set unless the call has been answered.
    dropped: bool,
}

impl<R> Drop for Held<'_, R> {
    fn drop(&mut self) {
        if self.holding {
            (self.hold)(&mut self.registry.lock().machine, &self.request, Some(self.dropped));
        }
    }
}

/// Wakes when a lease or a deadline ends, so that waiting calls learn of it.
async fn sweep(registry: Weak<Registry>) {
    loop {
        let next = {
            let Some(registry) = registry.upgrade() else { return };
            let now = registry.now();
            // A new lease ends no sooner than a whole lease from now.
            let latest = now + registry.options.lease;
            match registry.act(|machine, now| Ok(machine.tick(now))) {
                Ok(due) => registry.start + due.unwrap_or(latest).clamp(now + Duration::from_millis(1), latest),
                Err(_) => return,
            }
        };
        tokio::time::sleep_until(next).await;
    }
}

/// Waits until the bell rings. A bell whose registry is gone rings no more.
async fn rung(bell: &mut watch::Receiver<()>) {
    if bell.changed().await.is_err() {
        std::future::pending().await
    }
}

/// The leash of a stream: made by [`Registry::fence`].
#[derive(Debug)]
pub struct Fence {
    registry: Arc<Registry>,
    caller: Caller,
    share: Share,
    base: Option<Position>,
    bell: watch::Receiver<()>,
}

impl Fence {
    /// The share of the data that the member joined with.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Checks that a stream from step `step` of `epoch` begins after the position that the generation resumes from: all ranks have trained
    /// on the steps before.
    ///
    /// # Errors
    /// [`Error::Mismatch`] naming both.
    pub(crate) fn continues(&self, epoch: u64, step: u64) -> Result<()> {
        let Some(base) = self.base.filter(|base| (epoch, step) <= (base.epoch, base.step)) else { return Ok(()) };
        Err(Error::Mismatch {
            what: format!("position of rank {} of gang {}", self.caller.rank, self.caller.gang),
            expected: format!("a step after {base}, from which generation {} resumes", self.caller.generation),
            found: format!("epoch {epoch} step {step}"),
            hint: "load the checkpoint of the position in Gang.resume, and continue with the step after it".to_owned(),
        })
    }

    /// Checks that the generation still runs and the process is still its member.
    ///
    /// # Errors
    /// [`Error::Fenced`] if not; [`Error::Store`] if the registry has stopped.
    pub fn check(&self) -> Result<()> {
        self.registry.act(|machine, now| machine.check(now, &self.caller))
    }

    /// Waits until the generation ends, and says why. Cancel-safe. The registry is asked only when something happened to the gang:
    /// while its journal waits for the disk, streams continue.
    pub async fn ended(&mut self) -> Error {
        loop {
            rung(&mut self.bell).await;
            if let Err(error) = self.check() {
                return error;
            }
        }
    }
}
