//! One rank's membership in a gang: joins, keeps its lease alive, meets the others, and knows when it is out.
//!
//! A member fences itself: it counts its lease from the moment it *sent* the last heartbeat that was answered, less a
//! twentieth for clocks that run at different rates ([`OwnLease`]), and so considers itself dead no later than the server does.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::{Either, select};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::call::{Call, is_trouble};
use super::limits::FAILURE;
use super::own_lease::OwnLease;
use super::transport::Wire;
use super::wire::{
    AckRequest, Acked, Alive, Caller, CallerRequest, JoinRequest, Joined, LeaveRequest, MeetRequest, MemberInfo,
    Members, Met, Position, Reading, Refusal, Share, Token, from_hex, read, to_hex, write,
};
use crate::error::{Error, Result};
use crate::manifest::Fingerprint;

/// The identity of a joining rank.
#[derive(Debug, Clone)]
pub struct JoinOptions {
    /// The gang's name.
    pub gang: String,
    /// This rank, below `world_size`.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// The share of the data, for ranks that get the same batches; `None` is share `rank` of `world_size`.
    pub share: Option<Share>,
    /// Address, device and host, for the other ranks.
    pub info: MemberInfo,
    /// The token of the checkpoint that was loaded. All ranks give the same, or none does.
    pub token: Option<Token>,
    /// Longest wait for the other ranks. Default 10 minutes.
    pub timeout: Duration,
    /// The number of this process, new for each join. Default random; set it only to make a test repeatable.
    pub attempt: u128,
}

impl JoinOptions {
    /// Rank `rank` of the `world_size` ranks of `gang`, with a random attempt.
    pub fn new(gang: impl Into<String>, rank: u32, world_size: u32) -> Self {
        Self {
            gang: gang.into(),
            rank,
            world_size,
            share: None,
            info: MemberInfo::default(),
            token: None,
            timeout: Duration::from_secs(600),
            attempt: random(),
        }
    }
}

/// A random number: the keys of the standard library's hashers come from the operating system.
fn random() -> u128 {
    use std::hash::BuildHasher;
    let half = || std::hash::RandomState::new().hash_one(std::process::id());
    u128::from(half()) << 64 | u128::from(half())
}

struct Shared {
    wire: Arc<dyn Wire>,
    caller: Caller,
    world: u32,
    lease: Duration,
    /// Time until which this process may act.
    own_lease: Mutex<OwnLease>,
    acknowledged: Mutex<Option<Position>>,
    /// The plan of the rows that this rank has read; named by its acknowledgements, if the server knows plans.
    read: Mutex<Option<Fingerprint>>,
    names_plans: bool,
    ended: watch::Sender<Option<Refusal>>,
    /// True while this rank leaves: a heartbeat beside that is refused once the server knows.
    leaving: AtomicBool,
    /// Why the last heartbeat had no answer; empty if it had one.
    trouble: Mutex<String>,
}

/// A rank that has joined. Dropping it without [`leave`](Self::leave) tells the gang that the rank failed.
pub struct Member {
    shared: Arc<Shared>,
    resume: Option<Position>,
    reads: Option<Reading>,
    /// The next round; locked while a barrier or an all-gather runs.
    round: tokio::sync::Mutex<u64>,
    heartbeats: AbortHandle,
    runtime: Handle,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Caller { gang, generation, rank, .. } = &self.shared.caller;
        f.debug_struct("Member").field("gang", gang).field("generation", generation).field("rank", rank).finish()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.heartbeats.abort();
        if self.shared.ended.borrow().is_none() {
            let shared = Arc::clone(&self.shared);
            shared.end(shared.fenced("the member was dropped"));
            self.runtime.spawn(async move {
                let failure = Some("it was dropped without leaving".into());
                let request = LeaveRequest { caller: shared.caller.clone(), failure };
                if let Ok(body) = write(&request) {
                    let _ =
                        tokio::time::timeout(shared.lease, shared.wire.call("gang.leave", body, shared.lease)).await;
                }
            });
        }
    }
}

impl Member {
    /// Joins and waits until all ranks are there.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the missing ranks, or a server that does not answer; [`Error::Config`] if the gang is full,
    /// of another size, or the rank is taken; [`Error::Mismatch`] if the tokens or shares of the ranks differ.
    pub async fn join(wire: Arc<dyn Wire>, options: JoinOptions) -> Result<Self> {
        let runtime = Handle::try_current().map_err(|_| Error::config("gang call", "join within a tokio runtime"))?;
        let mut request = JoinRequest {
            gang: options.gang,
            rank: options.rank,
            world_size: options.world_size,
            attempt: options.attempt,
            share: options.share,
            info: options.info,
            token: options.token,
            timeout_ms: 0,
            poll_ms: 0,
        };
        let who = request.gang.clone();
        let call = Call { wire: &*wire, action: "gang.join", stage: "gang join", gang: &who, is_first: true };
        let (joined, sent): (Joined, Instant) = call
            .poll(options.timeout, Duration::from_secs(1), |timeout_ms, poll_ms| {
                (request.timeout_ms, request.poll_ms) = (timeout_ms, poll_ms);
                write(&request)
            })
            .await?;
        let (generation, lease) = (joined.generation, Duration::from_millis(joined.lease_ms));
        let JoinRequest { gang, rank, attempt, world_size, .. } = request;
        let shared = Arc::new(Shared {
            wire,
            caller: Caller { gang, generation, rank, attempt },
            world: world_size,
            lease,
            own_lease: Mutex::new(OwnLease::new(lease, sent)),
            acknowledged: Mutex::new(joined.resume),
            read: Mutex::default(),
            names_plans: joined.plans,
            ended: watch::Sender::new(None),
            leaving: AtomicBool::new(false),
            trouble: Mutex::default(),
        });
        let heartbeats = runtime.spawn(heartbeats(Arc::clone(&shared))).abort_handle();
        let (resume, reads) = (joined.resume, joined.reads);
        Ok(Self { shared, resume, reads, round: tokio::sync::Mutex::new(1), heartbeats, runtime })
    }

    /// The generation that was joined.
    pub fn generation(&self) -> u64 {
        self.shared.caller.generation
    }

    /// The rank.
    pub fn rank(&self) -> u32 {
        self.shared.caller.rank
    }

    /// The number of this process, for tickets that are bound to it.
    pub fn attempt(&self) -> u128 {
        self.shared.caller.attempt
    }

    /// The lease: the time for which the server waits for a heartbeat.
    pub fn lease(&self) -> Duration {
        self.shared.lease
    }

    /// The `(epoch, step)` after which to continue; `None` at the very start.
    pub fn resume(&self) -> Option<(u64, u64)> {
        self.resume.map(|at| (at.epoch, at.step))
    }

    /// The plan of the position [`resume`](Self::resume); `None` if nothing was settled when this rank joined.
    pub fn reads(&self) -> Option<&Reading> {
        self.reads.as_ref()
    }

    /// Records that this rank reads the plan with this fingerprint ([`Reading::fingerprint`]): its acknowledgements from now on belong to
    /// that plan.
    pub fn has_read(&self, plan: Fingerprint) {
        *lock(&self.shared.read) = Some(plan);
    }

    /// The `(epoch, step)` that all ranks have acknowledged, as far as this rank has heard.
    pub fn acknowledged(&self) -> Option<(u64, u64)> {
        lock(&self.shared.acknowledged).map(|at| (at.epoch, at.step))
    }

    /// Checks that this process may still act as its rank. Call it before any action that others see.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the generation is over, or the server did not answer for the length of the lease.
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// Waits until this process may no longer act as its rank, and says why. Cancel-safe.
    pub async fn ended(&self) -> Error {
        self.shared.wait_ended().await
    }

    /// Waits until all ranks are at this barrier.
    ///
    /// If the future is dropped, the rank may stay arrived; its next `barrier` is then the same one.
    ///
    /// # Errors
    /// [`Error::Timeout`] names the ranks that did not come; [`Error::Mismatch`] if another rank is at something else or
    /// has left; [`Error::Fenced`] as soon as the generation is over.
    pub async fn barrier(&self, timeout: Duration) -> Result<()> {
        self.meet("gang.barrier", "gang barrier", &[], timeout).await.map(drop)
    }

    /// Gives `message` to all ranks and returns the messages of all, in rank order. At most 1 MiB each by default.
    ///
    /// If the future is dropped, the rank may stay arrived; its next `all_gather` must bring the same message.
    ///
    /// # Errors
    /// As for [`barrier`](Self::barrier), and [`Error::Limit`].
    pub async fn all_gather(&self, message: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let met = self.meet("gang.all_gather", "gang all_gather", message, timeout).await?;
        let messages: Option<Vec<Vec<u8>>> = met.messages.iter().map(|message| from_hex(message)).collect();
        messages.filter(|all| all.len() == self.shared.world as usize).ok_or_else(|| Error::Mismatch {
            what: format!("all_gather of gang {}", self.shared.caller.gang),
            expected: format!("{} messages", self.shared.world),
            found: format!("{}", met.messages.len()),
            hint: "a barrier that was cancelled is repeated as a barrier".into(),
        })
    }

    async fn meet(&self, action: &'static str, stage: &'static str, message: &[u8], timeout: Duration) -> Result<Met> {
        let shared = &self.shared;
        shared
            .guard(async {
                let mut round = self.round.lock().await;
                let (caller, message) = (shared.caller.clone(), to_hex(message));
                let mut request = MeetRequest { caller, round: *round, message, timeout_ms: 0, poll_ms: 0 };
                let call = Call { wire: &*shared.wire, action, stage, gang: &shared.caller.gang, is_first: false };
                let (met, _): (Met, Instant) = call
                    .poll(timeout, shared.lease / 2, |timeout_ms, poll_ms| {
                        (request.timeout_ms, request.poll_ms) = (timeout_ms, poll_ms);
                        write(&request)
                    })
                    .await?;
                *round += 1;
                Ok(met)
            })
            .await
    }

    /// All members of the generation in rank order, with their addresses, devices and hosts.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the generation is over; [`Error::Timeout`] if the server does not answer.
    pub async fn members(&self) -> Result<Members> {
        self.shared.guard(self.shared.once("gang.members", &CallerRequest { caller: self.shared.caller.clone() })).await
    }

    /// Acknowledges that this rank has finished everything up to and including step `step` of epoch `epoch`.
    ///
    /// The token belongs into the checkpoint that holds this position, and is the same for all ranks.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the generation is over: the position is then not acknowledged by this process;
    /// [`Error::Mismatch`] for a position before the one this rank acknowledged, or at or before the one it resumed from, or of another
    /// plan than the generation reads;
    /// [`Error::Timeout`] if the server does not answer.
    pub async fn ack(&self, epoch: u64, step: u64) -> Result<Token> {
        let plan = lock(&self.shared.read).filter(|_| self.shared.names_plans);
        let request = AckRequest { caller: self.shared.caller.clone(), position: Position { epoch, step }, plan };
        let acked: Acked = self.shared.guard(self.shared.once("gang.ack", &request)).await?;
        let mut known = lock(&self.shared.acknowledged);
        *known = (*known).max(acked.acknowledged);
        Ok(acked.token)
    }

    /// Leaves at the end of the work. When all ranks have left, the gang has ended.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the generation was over before; [`Error::Timeout`] if the server does not answer.
    pub async fn leave(&self) -> Result<()> {
        self.part(None).await
    }

    /// Leaves because of `why`: the generation ends at once for all ranks.
    ///
    /// # Errors
    /// As for [`leave`](Self::leave).
    pub async fn fail(&self, why: &str) -> Result<()> {
        self.part(Some(why.to_owned())).await
    }

    async fn part(&self, failure: Option<String>) -> Result<()> {
        let shared = &self.shared;
        // The server keeps no more, and refuses requests that are much longer.
        let failure = failure.map(|text| text.chars().take(FAILURE).collect());
        let request = LeaveRequest { caller: shared.caller.clone(), failure };
        // Longer waits are useless: by then the lease has told the others.
        let longest = if request.failure.is_some() { shared.lease / 2 } else { shared.lease * 2 };
        shared.check()?;
        shared.leaving.store(true, Ordering::Relaxed);
        let call = shared.within::<serde_json::Value>("gang.leave", &request, longest);
        // Heartbeats are refused once the server knows, so the lease runs out if the answers are lost. A rank that leaves acts no more: the
        // server alone says whether it was in time.
        let left = if request.failure.is_none() { call.await } else { shared.guard(call).await };
        shared.leaving.store(false, Ordering::Relaxed);
        if let Err(error @ Error::Fenced { .. }) = &left {
            shared.end(Refusal::of(error));
        }
        left?;
        self.heartbeats.abort();
        shared.end(shared.fenced("this rank has left"));
        Ok(())
    }
}

impl Shared {
    fn fenced(&self, why: &str) -> Refusal {
        let Caller { gang, generation, .. } = &self.caller;
        Refusal::Fenced { gang: gang.clone(), generation: *generation, why: why.to_owned() }
    }

    /// The server did not answer for the length of the lease.
    fn silent(&self) -> Refusal {
        let (peer, lease, trouble) = (self.wire.peer(), self.lease, lock(&self.trouble).clone());
        self.fenced(&format!("{peer} answered no heartbeat within the lease of {lease:?}{trouble}"))
    }

    fn end(&self, refusal: Refusal) {
        self.ended.send_if_modified(|ended| {
            let first = ended.is_none();
            if first {
                *ended = Some(refusal);
            }
            first
        });
    }

    fn error(&self, refusal: Refusal) -> Error {
        refusal.into_error("gang server")
    }

    /// The clock is asked too: a process that was stopped must not act before its heartbeat task has run.
    fn check(&self) -> Result<()> {
        if let Some(refusal) = self.ended.borrow().clone() {
            return Err(self.error(refusal));
        }
        if lock(&self.own_lease).is_over(Instant::now()) {
            self.end(self.silent());
            return self.check_ended();
        }
        Ok(())
    }

    fn check_ended(&self) -> Result<()> {
        self.ended.borrow().clone().map_or(Ok(()), |refusal| Err(self.error(refusal)))
    }

    async fn wait_ended(&self) -> Error {
        let mut ended = self.ended.subscribe();
        loop {
            if let Err(error) = self.check() {
                return error;
            }
            let dead_at = lock(&self.own_lease).ends();
            tokio::select! {
                biased;
                _ = ended.changed() => {}
                () = tokio::time::sleep_until(dead_at) => {}
            }
        }
    }

    /// Runs `work` unless and until the membership ends; an answer that it has ended ends it.
    async fn guard<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.check()?;
        let result = match select(pin!(self.wait_ended()), pin!(work)).await {
            Either::Left((error, _)) => return Err(error),
            Either::Right((result, _)) => result,
        };
        match result {
            // An answer that came to a process while it was stopped is no longer for it.
            Ok(value) => self.check().map(|()| value),
            Err(error) => {
                if matches!(error, Error::Fenced { .. }) {
                    self.end(Refusal::of(&error));
                }
                Err(error)
            }
        }
    }

    /// One call that does not wait for other ranks.
    async fn once<T: DeserializeOwned>(&self, action: &'static str, request: &(impl Serialize + Sync)) -> Result<T> {
        self.within(action, request, self.lease * 2).await
    }

    /// As `once`, tried for `longest`.
    async fn within<T: DeserializeOwned>(
        &self,
        action: &'static str,
        request: &(impl Serialize + Sync),
        longest: Duration,
    ) -> Result<T> {
        let call = Call { wire: &*self.wire, action, stage: "gang call", gang: &self.caller.gang, is_first: false };
        let deadline = Instant::now() + longest;
        let mut make = |_| write(request);
        let (answer, _) = call.exchange(deadline, self.lease / 2, &mut make).await?;
        call.read(&answer)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Renews the lease four times in its length, until the membership ends.
async fn heartbeats(shared: Arc<Shared>) {
    let every = shared.lease / 4;
    let action = "gang.heartbeat";
    let Ok(body) = write(&CallerRequest { caller: shared.caller.clone() }) else { return };
    let mut pause = every;
    while shared.ended.borrow().is_none() {
        tokio::time::sleep(pause).await;
        let sent = Instant::now();
        let (dead_at, is_over) = {
            let own = lock(&shared.own_lease);
            (own.ends(), own.is_over(sent))
        };
        if is_over {
            // Of a rank that leaves, the answer to that is awaited; if none comes, the next check sees the same.
            if !shared.leaving.load(Ordering::Relaxed) {
                shared.end(shared.silent());
            }
            return;
        }
        // A lost answer is requested again soon: the lease leaves time for that.
        pause = (every / 4).min(dead_at - sent);
        let patience = (every * 2).min(dead_at - sent);
        let call = shared.wire.call(action, body.clone(), patience);
        match tokio::time::timeout(patience, call).await {
            Ok(Ok(answer)) => {
                match read::<Alive>(action, &answer) {
                    Ok(alive) => {
                        lock(&shared.trouble).clear();
                        lock(&shared.own_lease).renew(sent);
                        let mut known = lock(&shared.acknowledged);
                        *known = (*known).max(alive.acknowledged);
                        pause = every.saturating_sub(sent.elapsed());
                    }
                    // Of a server of another version.
                    Err(error) => *lock(&shared.trouble) = format!(" ({})", error.chain()),
                }
            }
            Ok(Err(failed)) if is_trouble(&failed) => *lock(&shared.trouble) = format!(" ({})", failed.error().chain()),
            // The answer to the leave itself says how it went.
            Ok(Err(_)) if shared.leaving.load(Ordering::Relaxed) => {}
            Ok(Err(failed)) => return shared.end(Refusal::of(failed.error())),
            Err(_) => *lock(&shared.trouble) = " (it does not answer)".into(),
        }
    }
}
