//! The memory of a server's streams: one budget, claimed in full before a stream begins; lines that ended keep part of it for new
//! streams.
//!
//! No stream waits for memory that is not needed: while any waits, nothing is kept, and a stream whose batches are not taken gives up
//! its memory. Tenants take turns: one that holds more than its share yields part of it to another that waits. A stream that gave up
//! its memory continues at the same step once it has some again, so its client notices nothing but the wait. A `memory::Pool` serves
//! first come, first served; here claims are revoked and divided among tenants. Claimed memory is spent through pools of that size.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::hangup::Hangup;
use super::revocable::{Held, Revocable};
use crate::error::{Error, Result};
use crate::flight::server::access::auth::Tenant;
use crate::manifest::Fingerprint;
use crate::memory::{Pool, SlabPool};

/// Unit of the memory budget, in bytes: permits are 32 bits wide.
const UNIT: u64 = 4096;

/// Longest wait of a stream for memory.
const PATIENCE: Duration = Duration::from_secs(30);

/// Time between a waiting stream's requests to release memory.
const ASKS: Duration = Duration::from_secs(1);

/// Time after which a stream whose batches are not taken gives up its memory while others wait.
const STALLED: Duration = Duration::from_secs(10);

/// Longest wait before a tenant with more than its share gives up some of it.
const TURN: Duration = Duration::from_secs(10);

/// Default time for which a client may leave its messages unread while others wait for memory.
const UNREAD: Duration = Duration::from_secs(300);

/// Most pools that are kept.
const IDLE: usize = 16;

/// Messages that are not read.
struct Unread<'a> {
    /// Of this tenant, on connections on which it reads nothing; else of any.
    of: Option<&'a Tenant>,
    longer_than: Duration,
}

/// The budget.
#[derive(Debug)]
pub(crate) struct ByteBudget {
    free: Arc<Semaphore>,
    budget: u64,
    kept: Mutex<Kept>,
    accounts: Arc<Accounts>,
    /// Streams that hold memory, or may.
    holdings: Mutex<Vec<Weak<dyn Held>>>,
    /// See [`UNREAD`].
    unread: Duration,
    /// Time when a connection was last ended to free memory.
    ended: Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Kept {
    /// Memory of lines that ended, oldest first, each with its claim: fresh pages cost more than a batch.
    pools: VecDeque<Idle>,
    /// Streams that wait for memory.
    waiting: usize,
}

/// An unused pool. It is reused only by streams of the same tenant and the same data: a process that received its batches through
/// shared memory can read what is written there next, and one that reads the next line with this tenant what was written there before.
#[derive(Debug)]
struct Idle {
    pool: Arc<Pool>,
    data: Fingerprint,
    /// Bytes of each of its batches if they share slabs; else 0.
    together: usize,
    claim: Claim,
}

/// Memory held and waiting streams by tenant.
#[derive(Debug, Default)]
struct Accounts(Mutex<HashMap<Tenant, Account>>);

#[derive(Debug, Default)]
struct Account {
    permits: usize,
    waiting: usize,
    /// Held by the tenant's one claim that is in the queue, so that tenants take turns there.
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Accounts {
    fn change<T>(&self, tenant: &Tenant, change: impl FnOnce(&mut Account) -> T) -> T {
        // Numbers are consistent between any two statements.
        let mut accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let account = accounts.entry(tenant.clone()).or_default();
        let changed = change(account);
        if account.permits == 0 && account.waiting == 0 {
            accounts.remove(tenant);
        }
        changed
    }

    /// Returns the permits of each tenant that holds memory or waits for it.
    fn all(&self) -> HashMap<Tenant, usize> {
        let accounts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        accounts.iter().map(|(tenant, account)| (tenant.clone(), account.permits)).collect()
    }
}

/// A part of the budget, returned on drop.
#[derive(Debug)]
pub(crate) struct Claim {
    permit: OwnedSemaphorePermit,
    tenant: Tenant,
    accounts: Arc<Accounts>,
}

impl Claim {
    fn new(permit: OwnedSemaphorePermit, tenant: &Tenant, accounts: &Arc<Accounts>) -> Self {
        accounts.change(tenant, |account| account.permits += permit.num_permits());
        Self { permit, tenant: tenant.clone(), accounts: Arc::clone(accounts) }
    }

    /// Returns its size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.permit.num_permits() as u64 * UNIT
    }

    /// Splits off `bytes` of it as a claim of their own; `None` if it has fewer.
    pub(crate) fn split(&mut self, bytes: u64) -> Option<Self> {
        let permit = self.permit.split(usize::try_from(bytes.div_ceil(UNIT)).ok()?)?;
        Some(Self { permit, tenant: self.tenant.clone(), accounts: Arc::clone(&self.accounts) })
    }

    /// Adds `more`, of the same budget.
    pub(crate) fn add(&mut self, mut more: Self) {
        let count = more.permit.num_permits();
        if let Some(permit) = more.permit.split(count) {
            self.accounts.change(&more.tenant, |account| account.permits -= count);
            self.accounts.change(&self.tenant, |account| account.permits += count);
            self.permit.merge(permit);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let count = self.permit.num_permits();
        self.accounts.change(&self.tenant, |account| account.permits -= count);
    }
}

/// A waiting stream: while there is any, nothing is kept.
struct Waiting<'a>(&'a ByteBudget, Tenant);

impl<'a> Waiting<'a> {
    fn new(claims: &'a ByteBudget, tenant: &Tenant) -> Self {
        claims.accounts.change(tenant, |account| account.waiting += 1);
        let mut kept = claims.kept();
        kept.waiting += 1;
        let given_up = std::mem::take(&mut kept.pools);
        drop(kept);
        drop(given_up);
        Self(claims, tenant.clone())
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.kept().waiting -= 1;
        self.0.accounts.change(&self.1, |account| account.waiting -= 1);
    }
}

impl ByteBudget {
    pub(crate) fn new(budget: u64) -> Self {
        let permits = usize::try_from(budget / UNIT).unwrap_or(usize::MAX).min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(permits)),
            budget,
            kept: Mutex::default(),
            accounts: Arc::default(),
            holdings: Mutex::default(),
            unread: UNREAD,
            ended: Mutex::default(),
        }
    }

    /// Sets the time for which clients may leave messages unread while others wait for memory.
    pub(crate) fn unread_for(self, unread: Duration) -> Self {
        Self { unread, ..self }
    }

    /// Returns the size of the budget in bytes.
    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    /// Returns the bytes that streams have claimed.
    pub(crate) fn used(&self) -> u64 {
        let kept: usize = self.kept().pools.iter().map(|idle| idle.claim.permit.num_permits()).sum();
        let free = (self.free.available_permits() + kept) as u64;
        self.budget.saturating_sub(free.saturating_mul(UNIT))
    }

    /// Makes a holding for a stream of `tenant`: streams that wait for memory may revoke its content, and end its connection by `hangup`
    /// if its client does not read its messages.
    pub(crate) fn holding<T: std::fmt::Debug + Send + 'static>(
        &self,
        tenant: &Tenant,
        hangup: Option<Hangup>,
    ) -> Revocable<T> {
        let holding = Revocable::new(tenant, hangup);
        let mut holdings = self.holdings.lock().unwrap_or_else(PoisonError::into_inner);
        holdings.retain(|holding| holding.strong_count() > 0);
        holdings.push(Arc::downgrade(&holding.held()));
        holding
    }

    /// Claims `bytes` for `tenant`, waiting for others to release memory.
    ///
    /// # Errors
    /// [`Error::Limit`] for more than the budget; [`Error::Remote`], to be retried, if none was released in time.
    pub(crate) async fn claim(&self, tenant: &Tenant, bytes: u64) -> Result<Claim> {
        let permits = u32::try_from(bytes.div_ceil(UNIT)).ok().filter(|_| bytes <= self.budget);
        let permits = permits.ok_or_else(|| Error::limit("one stream", bytes, self.budget, "memory_budget"))?;
        if let Some(claim) = self.try_claim(tenant, bytes) {
            return Ok(claim);
        }
        let _waiting = Waiting::new(self, tenant);
        let (free, started) = (Arc::clone(&self.free), Instant::now());
        let turn = self.accounts.change(tenant, |account| Arc::clone(&account.turn));
        let acquired = async {
            let _turn = turn.lock().await;
            free.acquire_many_owned(permits).await
        };
        let mut acquired = std::pin::pin!(acquired);
        loop {
            match tokio::time::timeout(ASKS, &mut acquired).await {
                Ok(Ok(permit)) => return Ok(Claim::new(permit, tenant, &self.accounts)),
                Ok(Err(_)) => return Err(Error::Closed { why: "the server is closed".to_owned() }),
                Err(_) if started.elapsed() < PATIENCE => self.press(tenant, permits as usize, started.elapsed()),
                // To be retried: other streams will end, and another replica may have room.
                Err(_) => {
                    let own = self.accounts.all().get(tenant).copied().unwrap_or(0) as u64 * UNIT;
                    // The amount that others hold is for the operator only.
                    let (used, budget) = (self.used(), self.budget);
                    tracing::warn!(waits = %tenant, bytes, own, used, budget, "no memory for another stream");
                    return Err(Error::Remote {
                        peer: "the server".to_owned(),
                        what: format!(
                            "has no memory for another stream: {bytes} bytes beside {own} that this tenant holds of its \
                             memory_budget; nobody gave any back within {} s",
                            PATIENCE.as_secs()
                        ),
                        source: None,
                    });
                }
            }
        }
    }

    /// Makes one stream give up its memory for `tenant`, which has waited for `waited`: a stream whose batches are not taken, or one of
    /// a tenant with more than its share if `tenant` stays within its own share with this request or holds nothing. None gives up
    /// anything for a request that would not fit even if all others kept only their shares.
    fn press(&self, tenant: &Tenant, asked: usize, waited: Duration) {
        let holdings: Vec<Arc<dyn Held>> = {
            let holdings = self.holdings.lock().unwrap_or_else(PoisonError::into_inner);
            holdings.iter().filter_map(Weak::upgrade).collect()
        };
        let idle = |holding: &&Arc<dyn Held>| holding.idle().filter(|idle| *idle >= STALLED);
        if let Some(holding) =
            holdings.iter().filter(|holding| idle(holding).is_some()).max_by_key(|holding| idle(holding))
        {
            tracing::warn!(holder = %holding.tenant(), waits = %tenant, "memory of a stream that nobody reads is given to another");
            holding.give_up();
            return;
        }
        if self.hang_up(&holdings, tenant, &Unread { of: None, longer_than: self.unread }) {
            return;
        }
        if waited < TURN {
            return;
        }
        let accounts = self.accounts.all();
        let share = usize::try_from(self.budget / UNIT).unwrap_or(usize::MAX) / accounts.len().max(1);
        let own = accounts.get(tenant).copied().unwrap_or(0);
        if own > 0 && own.saturating_add(asked) > share {
            return;
        }
        let kept: usize =
            accounts.iter().filter(|(other, _)| *other != tenant).map(|(_, held)| (*held).min(share)).sum();
        let all = usize::try_from(self.budget / UNIT).unwrap_or(usize::MAX);
        if own.saturating_add(asked) > all.saturating_sub(kept) {
            return;
        }
        let others = accounts.iter().filter(|(other, held)| *other != tenant && **held > share);
        let Some((most, _)) = others.max_by_key(|(_, held)| **held) else { return };
        // Last come, first revoked.
        if holdings.iter().rev().filter(|holding| holding.tenant() == most).any(|holding| holding.give_up()) {
            tracing::warn!(holder = %most, waits = %tenant, "memory beyond a tenant's share is given to another");
            return;
        }
        // All of it is in messages on their way out. Who has more than its share has less time to read them.
        self.hang_up(&holdings, tenant, &Unread { of: Some(most), longer_than: STALLED });
    }

    /// Ends, for `tenant`, a connection whose client has long left messages unread, which take memory until then. Returns true if there
    /// was one. Connections on which no stream is read go first, and among them the one that was read longest ago.
    fn hang_up(&self, holdings: &[Arc<dyn Held>], tenant: &Tenant, which: &Unread<'_>) -> bool {
        let mut last = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        // One at a time, for any waiting stream: the memory takes a moment to come back.
        if last.is_some_and(|at| at.elapsed() < 2 * ASKS) {
            return true;
        }
        let unread = |holding: &dyn Held| holding.unread().filter(|unread| *unread >= which.longer_than);
        let reads_others = |hangup: &Hangup| {
            let mut streams =
                holdings.iter().filter(|holding| holding.hangup().is_some_and(|other| other.same(hangup)));
            streams.any(|holding| unread(&**holding).is_none())
        };
        let candidates = holdings.iter().filter_map(|holding| Some((holding, holding.hangup()?, unread(&**holding)?)));
        let mut candidates: Vec<_> = candidates.map(|found| (reads_others(found.1), found)).collect();
        // A large batch over a slow link is one long message. If another stream of the connection is read, bytes tell nothing about
        // this one.
        candidates.retain(|(reads_others, (_, hangup, _))| *reads_others || hangup.still() >= which.longer_than);
        if let Some(holder) = which.of {
            candidates.retain(|(reads_others, (holding, ..))| !reads_others && holding.tenant() == holder);
        }
        candidates.sort_by_key(|(reads_others, (.., unread))| (*reads_others, std::cmp::Reverse(*unread)));
        let ended = candidates.iter().find(|(_, (_, hangup, _))| hangup.ask());
        if let Some((_, (holding, _, unread))) = ended {
            let seconds = unread.as_secs();
            tracing::warn!(holder = %holding.tenant(), waits = %tenant, seconds, "a connection ends whose client does not read");
            *last = Some(Instant::now());
        }
        ended.is_some()
    }

    /// Claims `bytes` if they are free now. Memory kept by ended lines is released for it, oldest first.
    pub(crate) fn try_claim(&self, tenant: &Tenant, bytes: u64) -> Option<Claim> {
        let permits = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        loop {
            if let Ok(permit) = Arc::clone(&self.free).try_acquire_many_owned(permits) {
                return Some(Claim::new(permit, tenant, &self.accounts));
            }
            let given_up = self.kept().pools.pop_front();
            drop(given_up?);
        }
    }

    /// As [`try_claim`](Self::try_claim), but leaves alone the memory that ended lines keep or others wait for: for optional uses.
    pub(crate) fn try_spare(&self, tenant: &Tenant, bytes: u64) -> Option<Claim> {
        let permits = u32::try_from(bytes.div_ceil(UNIT)).ok()?;
        if self.kept().waiting > 0 {
            return None;
        }
        let permit = Arc::clone(&self.free).try_acquire_many_owned(permits).ok()?;
        Some(Claim::new(permit, tenant, &self.accounts))
    }

    /// Keeps the pool of a line that ended, with as much of the line's claim as the pool holds at most; the rest is free at once.
    /// `together` is the size in bytes of each of its batches if they share slabs. Nothing is kept that the claim does not pay for, or
    /// while a stream waits for memory.
    pub(crate) fn keep(&self, pool: Arc<Pool>, data: Fingerprint, mut claim: Claim, together: usize) {
        // The rest was for reading.
        let paid = claim.split(SlabPool::bytes(pool.budget(), together) as u64);
        let mut kept = self.kept();
        let Some(part) = paid.filter(|_| kept.waiting == 0) else {
            drop(kept);
            // The pool's memory goes first.
            drop(pool);
            drop(claim);
            return;
        };
        kept.pools.push_back(Idle { pool, data, together, claim: part });
        let given_up = if kept.pools.len() > IDLE { kept.pools.pop_front() } else { None };
        drop(kept);
        drop(given_up);
    }

    /// Returns the pool of an ended line of `tenant` over the same `data`, with batches of the same size.
    pub(crate) fn reuse(
        &self,
        (tenant, data): (&Tenant, Fingerprint),
        budget: usize,
        together: usize,
    ) -> Option<Arc<Pool>> {
        let mut kept = self.kept();
        let own = |idle: &Idle| idle.claim.tenant == *tenant && idle.data == data;
        let alike = |idle: &Idle| own(idle) && idle.pool.budget() == budget && idle.together == together;
        let at = kept.pools.iter().rposition(alike)?;
        let found = kept.pools.remove(at);
        drop(kept);
        found.map(|idle| idle.pool)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Numbers and queues are consistent between any two statements.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
