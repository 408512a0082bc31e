//! Incoming messages: each is paid for by its tenant before it is in memory, and must arrive in time.
//!
//! These are semaphores rather than a `memory::Pool`: each wait takes from two at once, the tenant's share and the whole, in that
//! order.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::buffer::{Buffer, MutableBuffer};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout, timeout_at};
use tonic::Status;
use tonic::body::Body;

use crate::error::{Error, Result};
use crate::flight::grpc_codec::{Event, Head, Limits as FrameLimits, Reader};
use crate::flight::put::ipc::MAX_HEADER;
use crate::flight::server::access::auth::Tenant;
use crate::flight::server::ops::limits::Limits;
use crate::flight::status::{from_status, to_status};

/// Bytes that one permit stands for: a semaphore counts to 2^32.
const UNIT: usize = 4096;
/// Least bytes for all incoming messages.
const LEAST: u64 = 32 << 20;
/// Least bytes for all outgoing answers: room for a few of the longest.
const LEAST_OUT: u64 = 128 << 20;
/// Larger requests are paid for; the number of smaller ones is limited by the number of calls.
const SMALL: usize = 64 << 10;
/// Longest wait for room that other messages take.
const LONGEST: Duration = Duration::from_secs(300);

/// Kind of work that a tenant has in progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A call with one request.
    Call,
    /// A stream of batches, until its ticket has arrived.
    Ticket,
    /// An attempt that is put.
    Write,
}

#[derive(Debug)]
struct Account {
    calls: u32,
    /// Calls that wait for other ranks of their gangs.
    waits: u32,
    tickets: u32,
    writes: u32,
    room: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    dictionaries: Arc<Semaphore>,
}

/// Everything on its way in, and answers that are not read yet.
#[derive(Debug)]
pub(crate) struct Incoming {
    limits: Limits,
    whole: Arc<Semaphore>,
    /// Units of the whole that one tenant may have, so that it cannot keep the others out.
    share: usize,
    /// Separate from the requests: a call that holds memory for one never waits for the other.
    answers: Arc<Semaphore>,
    share_of_answers: usize,
    /// For what writes keep from message to message, separate from their messages: a write that waits for one holds none that another
    /// needs.
    dictionaries: Arc<Semaphore>,
    accounts: Mutex<HashMap<Tenant, Account>>,
}

impl Incoming {
    /// Reserves a quarter of the memory budget for incoming messages, as much for answers to calls, and half as much for dictionaries.
    pub(crate) fn new(limits: Limits, memory_budget: u64) -> Arc<Self> {
        let room = |least: u64| {
            let bytes = usize::try_from((memory_budget / 4).max(least)).unwrap_or(usize::MAX);
            let units = (bytes / UNIT).min(1 << 28);
            (Arc::new(Semaphore::new(units)), units - units / 4)
        };
        let ((whole, share), (answers, share_of_answers)) = (room(LEAST), room(LEAST_OUT));
        let dictionaries = Arc::new(Semaphore::new(whole.available_permits() / 2));
        Arc::new(Self { limits, whole, share, answers, share_of_answers, dictionaries, accounts: Mutex::default() })
    }

    fn accounts(&self) -> MutexGuard<'_, HashMap<Tenant, Account>> {
        // Counters are changed one at a time.
        self.accounts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for one more call of `tenant`.
    ///
    /// # Errors
    /// [`Error::Limit`] if it has too many.
    pub(crate) fn enter(self: &Arc<Self>, tenant: &Tenant, kind: Kind) -> Result<Place> {
        let mut accounts = self.accounts();
        let account = accounts.entry(tenant.clone()).or_insert_with(|| Account {
            calls: 0,
            waits: 0,
            tickets: 0,
            writes: 0,
            room: Arc::new(Semaphore::new(self.share)),
            answers: Arc::new(Semaphore::new(self.share_of_answers)),
            dictionaries: Arc::new(Semaphore::new(self.share / 2)),
        });
        let (count, most, what, option) = match kind {
            Kind::Call => (&mut account.calls, self.limits.calls_per_tenant, "call", "calls_per_tenant"),
            Kind::Ticket => (&mut account.tickets, self.limits.calls_per_tenant, "ticket", "calls_per_tenant"),
            Kind::Write => (&mut account.writes, self.limits.writes_per_tenant, "write", "writes_per_tenant"),
        };
        if *count >= most {
            let (what, asked) = (format!("another {what} at once for tenant {tenant}"), u64::from(*count) + 1);
            return Err(Error::limit(what, asked, most.into(), option));
        }
        *count += 1;
        let (room, answers) = (Arc::clone(&account.room), Arc::clone(&account.answers));
        let dictionaries = Arc::clone(&account.dictionaries);
        let waits = AtomicBool::new(false);
        Ok(Place { incoming: Arc::clone(self), tenant: tenant.clone(), kind, waits, room, answers, dictionaries })
    }
}

/// A call in progress.
#[derive(Debug)]
pub(crate) struct Place {
    incoming: Arc<Incoming>,
    tenant: Tenant,
    kind: Kind,
    /// True if it is counted among those that wait. Changed while the accounts are locked.
    waits: AtomicBool,
    room: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    dictionaries: Arc<Semaphore>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut accounts = self.incoming.accounts();
        if let Some(account) = accounts.get_mut(&self.tenant) {
            match self.kind {
                Kind::Call if self.waits.load(Ordering::Relaxed) => account.waits -= 1,
                Kind::Call => account.calls -= 1,
                Kind::Ticket => account.tickets -= 1,
                Kind::Write => account.writes -= 1,
            }
            if account.calls == 0 && account.waits == 0 && account.tickets == 0 && account.writes == 0 {
                accounts.remove(&self.tenant);
            }
        }
    }
}

/// Takes `units` from a tenant's share and from the whole.
async fn acquire(
    (share, whole): (&Arc<Semaphore>, &Arc<Semaphore>),
    units: usize,
    culprit: &'static str,
) -> Result<Claim> {
    let units = u32::try_from(units).unwrap_or(u32::MAX);
    let acquire = async {
        let share = Arc::clone(share).acquire_many_owned(units).await;
        let whole = Arc::clone(whole).acquire_many_owned(units).await;
        share.and_then(|share| Ok(Claim { share, whole: whole? }))
    };
    let late = |_| Error::Timeout { stage: "receive", culprit: culprit.to_owned(), waited: LONGEST };
    // The semaphores are never closed.
    timeout(LONGEST, acquire).await.map_err(late)?.map_err(|error| Error::Closed { why: error.to_string() })
}

/// Memory for data that a write keeps between messages.
#[derive(Debug)]
pub(crate) struct Keeper {
    share: Arc<Semaphore>,
    whole: Arc<Semaphore>,
    /// Bytes of it that one tenant may have.
    most: u64,
}

impl Keeper {
    /// Takes memory for `bytes` bytes if it is free now: other writes may keep theirs for hours.
    ///
    /// # Errors
    /// [`Error::Limit`] if it is not.
    pub(crate) fn keep(&self, bytes: usize) -> Result<Claim> {
        let units = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX);
        let share = Arc::clone(&self.share).try_acquire_many_owned(units);
        let whole = Arc::clone(&self.whole).try_acquire_many_owned(units);
        match (share, whole) {
            (Ok(share), Ok(whole)) => Ok(Claim { share, whole }),
            _ => {
                let what = "a dictionary, beside those that open writes keep, of which one tenant's";
                Err(Error::limit(what, bytes as u64, self.most, "memory_budget"))
            }
        }
    }
}

/// Memory for a message; given back on drop.
#[derive(Debug)]
pub(crate) struct Claim {
    share: OwnedSemaphorePermit,
    whole: OwnedSemaphorePermit,
}

impl Claim {
    /// Gives back all but the memory for `bytes` bytes.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        for permit in [&mut self.share, &mut self.whole] {
            let spare = permit.num_permits().saturating_sub(bytes.div_ceil(UNIT));
            drop(permit.split(spare));
        }
    }
}

impl Place {
    /// Marks the call as one that may wait for other ranks of a gang. It then leaves its place among the calls to others, heartbeats
    /// above all, unless as many calls wait already as a tenant may have ranks; each further one counts as an ordinary call.
    pub(crate) fn wait(&self) {
        let mut accounts = self.incoming.accounts();
        let most = self.incoming.limits.gang_ranks_per_tenant;
        let account = accounts.get_mut(&self.tenant).filter(|account| account.waits < most && self.kind == Kind::Call);
        if let Some(account) = account
            && !self.waits.swap(true, Ordering::Relaxed)
        {
            account.calls -= 1;
            account.waits += 1;
        }
    }

    /// Returns the memory for a write's dictionaries, which outlive their messages.
    pub(crate) fn keeper(&self) -> Keeper {
        let most = (self.incoming.share / 2 * UNIT) as u64;
        Keeper { share: Arc::clone(&self.dictionaries), whole: Arc::clone(&self.incoming.dictionaries), most }
    }

    /// Waits for memory for `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Limit`] if it is more than a tenant may have; [`Error::Timeout`].
    async fn claim(&self, bytes: usize) -> Result<Claim> {
        let units = bytes.div_ceil(UNIT);
        if units > self.incoming.share {
            return Err(Error::limit(
                "a message on its way in",
                bytes as u64,
                (self.incoming.share * UNIT) as u64,
                "memory_budget",
            ));
        }
        acquire((&self.room, &self.incoming.whole), units, "room for a message: others are on their way in").await
    }

    /// Waits for memory for an answer of `bytes` bytes; the longest take all that one tenant may have.
    ///
    /// # Errors
    /// [`Error::Timeout`].
    pub(crate) async fn answer(&self, bytes: usize) -> Result<Claim> {
        let units = bytes.div_ceil(UNIT).min(self.incoming.share_of_answers);
        let others = "room for an answer: others are not read yet";
        acquire((&self.answers, &self.incoming.answers), units, others).await
    }

    /// Reads the body of a call with one request, and returns it with the memory that it is charged to.
    ///
    /// # Errors
    /// A status for a body that is too long, too late or cut off.
    pub(crate) async fn request(&self, mut body: Body) -> Result<(Bytes, Option<Claim>), Status> {
        let limits = &self.incoming.limits;
        let patience = limits.handshake();
        let deadline = Instant::now() + patience;
        let (mut whole, mut claim) = (BytesMut::new(), None);
        loop {
            let late = |_| Status::deadline_exceeded(format!("the request did not come within {patience:?}"));
            let Some(frame) = timeout_at(deadline, body.frame()).await.map_err(late)? else { break };
            let Ok(data) = frame?.into_data() else { continue };
            let length = whole.len() + data.len();
            limits.admit_call(length).map_err(|error| to_status(&error))?;
            if length > SMALL && claim.is_none() {
                let room = timeout_at(deadline, self.claim(limits.call_bytes())).await;
                let room = room.map_err(|_| Status::unavailable("there is no room for the request; try again"))?;
                claim = Some(room.map_err(|error| to_status(&error))?);
            }
            whole.extend_from_slice(&data);
        }
        Ok((whole.freeze(), claim))
    }

    /// Returns the messages of a stream that is put.
    pub(crate) fn messages(self, body: Body) -> Arrivals {
        let limits = FrameLimits { header: MAX_HEADER, body: self.incoming.limits.message_bytes };
        Arrivals { body, piece: Bytes::new(), reader: Reader::new(limits), place: self }
    }
}

/// A message that is put, and the memory that it is charged to.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) head: Head,
    pub(crate) body: Buffer,
    _claim: Claim,
}

/// Messages in order of arrival.
#[derive(Debug)]
pub(crate) struct Arrivals {
    body: Body,
    piece: Bytes,
    reader: Reader,
    place: Place,
}

impl Arrivals {
    /// As [`Place::keeper`].
    pub(crate) fn keeper(&self) -> Keeper {
        self.place.keeper()
    }

    /// Returns the next message; `None` after the last.
    ///
    /// # Errors
    /// [`Error::Mismatch`] and [`Error::Limit`] for data that are no message or too long; [`Error::Timeout`] for a message that does
    /// not come in time; the connection's error.
    pub(crate) async fn next(&mut self) -> Result<Option<Arrived>> {
        let limits = &self.place.incoming.limits;
        let silence = Duration::from_secs(limits.put_silence_seconds);
        if self.piece.is_empty() && !self.more(Instant::now() + silence, silence).await? {
            return Ok(None);
        }
        let patience = Duration::from_secs(self.place.incoming.limits.put_message_seconds);
        let mut claim = self.place.claim(MAX_HEADER).await?;
        // The writer is not to blame for the wait for this server's memory.
        let mut deadline = Instant::now() + patience;
        let (mut head, mut body) = (Head::default(), MutableBuffer::new(0));
        loop {
            match self.reader.read(&mut self.piece).map_err(named)? {
                Event::Head(found) => {
                    // Never holds both at once: calls that wait for more must not block each other.
                    drop(claim);
                    let waited = Instant::now();
                    claim = self.place.claim(found.body + MAX_HEADER).await?;
                    deadline += waited.elapsed();
                    body = MutableBuffer::with_capacity(found.body);
                    head = found;
                    self.place.incoming.limits.admit_metadata(head.metadata.len())?;
                }
                Event::Body(some) => body.extend_from_slice(&self.piece.split_to(some)),
                Event::End => return Ok(Some(Arrived { head, body: body.into(), _claim: claim })),
                Event::More => {
                    if !self.more(deadline, patience).await? {
                        return Err(Error::Closed { why: "the writer left in the middle of a message".to_owned() });
                    }
                }
            }
        }
    }

    /// Waits for more bytes; false if there are no more.
    async fn more(&mut self, deadline: Instant, patience: Duration) -> Result<bool> {
        let late =
            |_| Error::Timeout { stage: "receive", culprit: "the writer's next bytes".to_owned(), waited: patience };
        while self.piece.is_empty() {
            let Some(frame) = timeout_at(deadline, self.body.frame()).await.map_err(late)? else { return Ok(false) };
            let frame = frame.map_err(|status| from_status("the writer", &status))?;
            self.piece = frame.into_data().unwrap_or_default();
        }
        Ok(true)
    }
}

/// Renames the option of a limit to the server's limit on the length of a message.
fn named(error: Error) -> Error {
    match error {
        Error::Limit { what, asked, limit, .. } => Error::limit(what, asked, limit, "message_bytes"),
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{Full, StreamBody};

    use super::*;

    fn incoming(limits: Limits) -> Arc<Incoming> {
        Incoming::new(limits, 0)
    }

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    /// A body of these bytes, after which nothing comes.
    fn mute(bytes: &[u8]) -> Body {
        let first = futures::stream::iter([Ok::<_, Status>(http_body::Frame::data(Bytes::copy_from_slice(bytes)))]);
        Body::new(StreamBody::new(futures::StreamExt::chain(first, futures::stream::pending())))
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_come_is_not_waited_for() {
        let incoming = incoming(Limits::default());
        let call = || incoming.enter(&tenant("a"), Kind::Call).unwrap();
        let start = Instant::now();
        let status = call().request(mute(b"abc")).await.unwrap_err();
        assert_eq!((status.code(), start.elapsed().as_secs()), (tonic::Code::DeadlineExceeded, 10));
        let write = |bytes: &[u8]| incoming.enter(&tenant("a"), Kind::Write).unwrap().messages(mute(bytes));
        for (bytes, seconds) in [(&[][..], 600), (&[0, 0, 0][..], 120), (&[0, 0, 0, 0, 9, 0x12, 3, 1][..], 120)] {
            let start = Instant::now();
            let error = write(bytes).next().await.unwrap_err();
            assert!(matches!(error, Error::Timeout { .. }), "{error}");
            assert_eq!(start.elapsed().as_secs(), seconds, "{bytes:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_announced_is_paid_for_by_its_tenant() {
        let incoming = incoming(Limits::default());
        let large = crate::flight::grpc_codec::head(b"", b"", 20 << 20).unwrap();
        let write = |name: &str| incoming.enter(&tenant(name), Kind::Write).unwrap().messages(mute(&large));
        let (mut first, mut second, mut small) = (write("a"), write("a"), write("b"));
        small.body = Body::new(Full::new(crate::flight::grpc_codec::head(b"h", b"", 0).unwrap()));
        // Two of 20 MiB exceed the share of 24 MiB, and leave room for another tenant.
        let waits = futures::future::join(first.next(), second.next());
        tokio::select! {
            biased;
            _ = waits => panic!("neither has come"),
            found = small.next() => assert_eq!(found.unwrap().unwrap().head.header, b"h"),
        }
        drop((first, second, small));
        assert!(incoming.accounts().is_empty());
        assert_eq!(incoming.whole.available_permits() * UNIT, LEAST as usize);
        let huge = crate::flight::grpc_codec::head(b"", b"", 60 << 20).unwrap();
        let error = incoming.enter(&tenant("a"), Kind::Write).unwrap().messages(mute(&huge)).next().await.unwrap_err();
        assert!(matches!(error, Error::Limit { option: "memory_budget", .. }), "{error}");
        let huge = crate::flight::grpc_codec::head(b"", b"", 100 << 20).unwrap();
        let error = incoming.enter(&tenant("a"), Kind::Write).unwrap().messages(mute(&huge)).next().await.unwrap_err();
        assert!(matches!(error, Error::Limit { option: "message_bytes", .. }), "{error}");
    }

    #[test]
    fn what_writes_keep_is_paid_for_apart_from_messages() {
        let incoming = incoming(Limits::default());
        let keeper = |name: &str| incoming.enter(&tenant(name), Kind::Write).unwrap().keeper();
        // Three quarters of the 16 MiB for all are for one.
        let (anna, carl) = (keeper("a"), keeper("c"));
        let kept = [anna.keep(8 << 20).unwrap(), anna.keep(4 << 20).unwrap()];
        let error = anna.keep(1).unwrap_err();
        assert!(matches!(error, Error::Limit { option: "memory_budget", .. }), "{error}");
        let other = carl.keep(4 << 20).unwrap();
        assert!(carl.keep(1).is_err(), "nothing is left");
        assert_eq!(incoming.whole.available_permits() * UNIT, LEAST as usize, "messages have their own");
        drop(kept);
        let _more = carl.keep(8 << 20).unwrap();
        drop(other);
        assert!(incoming.accounts().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn answers_that_nobody_reads_are_a_tenants_own_affair() {
        let incoming = incoming(Limits::default());
        let enter = |name: &str| incoming.enter(&tenant(name), Kind::Call).unwrap();
        let (first, second) = (enter("a"), enter("a"));
        let unread = first.answer(90 << 20).await.unwrap();
        let error = second.answer(10 << 20).await.unwrap_err();
        assert!(matches!(&error, Error::Timeout { culprit, .. } if culprit.contains("not read")), "{error}");
        second.claim(20 << 20).await.unwrap();
        enter("b").answer(20 << 20).await.unwrap();
        drop(unread);
        let mut most = second.answer(1 << 30).await.unwrap();
        assert_eq!(incoming.answers.available_permits() * UNIT, LEAST_OUT as usize / 4);
        most.shrink(UNIT + 1);
        assert_eq!(incoming.answers.available_permits() * UNIT, LEAST_OUT as usize - 2 * UNIT, "the rest is free");
        first.answer(90 << 20).await.unwrap();
        most.shrink(1 << 30);
        drop(most);
        assert_eq!(incoming.answers.available_permits() * UNIT, LEAST_OUT as usize);
    }

    #[tokio::test]
    async fn calls_and_writes_of_a_tenant_are_counted_apart() {
        let limits =
            Limits { calls_per_tenant: 2, writes_per_tenant: 1, gang_ranks_per_tenant: 1, ..Limits::default() };
        let incoming = incoming(limits);
        let kinds = [Kind::Call, Kind::Call, Kind::Ticket, Kind::Ticket, Kind::Write];
        let held = kinds.map(|kind| incoming.enter(&tenant("a"), kind).unwrap());
        for (kind, name) in
            [(Kind::Call, "calls_per_tenant"), (Kind::Ticket, "calls_per_tenant"), (Kind::Write, "writes_per_tenant")]
        {
            let error = incoming.enter(&tenant("a"), kind).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            incoming.enter(&tenant("b"), kind).unwrap();
        }
        // Calls that wait for other ranks leave room for heartbeats.
        held[0].wait();
        held[0].wait();
        let heartbeat = incoming.enter(&tenant("a"), Kind::Call).unwrap();
        held[1].wait();
        assert!(incoming.enter(&tenant("a"), Kind::Call).is_err(), "one may wait, and two may be calls");
        drop((held, heartbeat));
        assert!(incoming.accounts().is_empty());
        incoming.enter(&tenant("a"), Kind::Write).unwrap();
        let long = Body::new(Full::new(Bytes::from(vec![0; Limits::default().call_bytes() + 1])));
        let status = incoming.enter(&tenant("a"), Kind::Call).unwrap().request(long).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::OutOfRange);
    }
}
