//! Quotas of a tenant: streams, bytes per second, bytes in flight.
//!
//! ```text
//!   open_stream ─► StreamPermit ─ acquire(bytes) ─► waits for room in flight ─► waits for its turn ─► InFlight
//! ```
//!
//! Excess streams are refused, and so is a message that could never fit; everything else waits, which is back-pressure. A wait ends
//! with the stream: dropping the future returns what it had taken. `governor` limits rates alone; streams and bytes in flight are most
//! of this file.
//!
//! Ranks of a job wait for each other: if all room in flight were held by streams that are not read until another rank has its batch,
//! that rank would wait for ever. So a stream that waits while no room is returned exceeds it by one message. That rules out a
//! `memory::Pool`, which grants only what is free.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::error::{Error, Result};
use crate::flight::put::DiskQuotas;
use crate::flight::server::access::auth::Tenant;
use crate::flight::server::access::space::is_member;

/// Default limit of a tenant's streams.
const STREAMS: u32 = 256;
/// Bytes that one permit of room in flight stands for: a semaphore counts to 2^32.
const UNIT: u64 = 4096;
/// Time without any room returned after which waiting messages exceed it. Each stream has one message in flight.
const STALLED: Duration = Duration::from_secs(5);
/// Time by which a tenant that was quiet may run ahead of its rate.
const BURST: Duration = Duration::from_millis(250);
/// Longest wait for a turn; a message that would wait longer is refused, because its client has given up by then.
const LONGEST: Duration = Duration::from_secs(300);
/// Most tenants remembered; beyond them those without streams are forgotten.
const TENANTS: usize = 10_000;

/// Quotas of one tenant; a missing one has the default's value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Quota {
    /// Streams at once; 256 by default.
    pub streams: Option<u32>,
    /// Bytes per second over all its streams; unlimited by default.
    pub bytes_per_second: Option<u64>,
    /// Bytes of batches that wait for the network, over all its streams; by default only the server's budget counts. If none of them
    /// goes out for 5 s, each stream that waits exceeds them by one batch.
    pub in_flight_bytes: Option<u64>,
    /// Bytes on disk of the datasets written in the space of this name, which is a tenant's unless `spaces` says otherwise; unlimited
    /// by default.
    pub written_bytes: Option<u64>,
}

/// The quotas of all tenants.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct QuotaOptions {
    /// For every tenant that is not named.
    pub default: Quota,
    /// For tenants by name.
    pub tenants: BTreeMap<String, Quota>,
}

impl QuotaOptions {
    fn of(&self, tenant: &Tenant) -> Quota {
        self.completed(self.tenants.get(tenant.name()).unwrap_or(&Quota::default()))
    }

    /// The same with every default filled in.
    pub(crate) fn with_defaults(&self) -> Self {
        let completed = |(name, quota): (&String, &Quota)| (name.clone(), self.completed(quota));
        Self { default: self.completed(&self.default), tenants: self.tenants.iter().map(completed).collect() }
    }

    fn completed(&self, own: &Quota) -> Quota {
        Quota {
            streams: own.streams.or(self.default.streams).or(Some(STREAMS)),
            bytes_per_second: own.bytes_per_second.or(self.default.bytes_per_second),
            in_flight_bytes: own.in_flight_bytes.or(self.default.in_flight_bytes),
            written_bytes: own.written_bytes.or(self.default.written_bytes),
        }
    }

    /// Returns the disk quotas of spaces.
    pub(crate) fn written(&self) -> DiskQuotas {
        let named = self.tenants.iter().filter_map(|(name, quota)| Some((name.clone(), quota.written_bytes?)));
        DiskQuotas { default: self.default.written_bytes, spaces: named.collect() }
    }

    /// Checks every quota.
    ///
    /// # Errors
    /// [`Error::Config`]: a quota of zero would let nothing through, and one of a name that no tenant has would count for none.
    pub(crate) fn validate(&self) -> Result<()> {
        if let Some(name) = self.tenants.keys().find(|name| !is_member(name)) {
            let rule = "1 to 128 letters, digits, `-`, `_` and `.`, after `certificate:` for one of a certificate";
            return Err(Error::config("tenants", format!("{name:?} is no name of a tenant: {rule}")));
        }
        for (name, quota) in
            self.tenants.iter().map(|(name, quota)| (name.as_str(), quota)).chain([("default", &self.default)])
        {
            let zero = |option: &'static str| Err(Error::config(option, format!("the quota of {name} is zero")));
            match quota {
                Quota { streams: Some(0), .. } => return zero("streams"),
                Quota { bytes_per_second: Some(0), .. } => return zero("bytes_per_second"),
                Quota { in_flight_bytes: Some(0), .. } => return zero("in_flight_bytes"),
                Quota { written_bytes: Some(0), .. } => return zero("written_bytes"),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Evens out a flow of bytes to a rate. Pure: the caller passes the time since the start.
#[derive(Debug)]
struct Pace {
    /// Bytes per second, at least 1.
    rate: u64,
    /// Time at which all bytes admitted so far would be through at the rate.
    through: Duration,
}

impl Pace {
    fn cost(&self, bytes: u64) -> Duration {
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate.max(1));
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    /// Takes a turn for `bytes` bytes. Returns the time to wait for it, or, as an error, a wait that is too long to take.
    fn reserve(&mut self, bytes: u64, now: Duration) -> Result<Duration, Duration> {
        let wait = self.through.saturating_sub(now);
        if wait > LONGEST {
            return Err(wait);
        }
        let start = self.through.max(now.saturating_sub(BURST));
        self.through = start.saturating_add(self.cost(bytes));
        Ok(wait)
    }

    /// Returns a turn that was not used.
    fn give_back(&mut self, bytes: u64) {
        self.through = self.through.saturating_sub(self.cost(bytes));
    }
}

/// Room for the bytes of a tenant that are in flight.
#[derive(Debug)]
struct Room {
    free: Arc<Semaphore>,
    /// Total units.
    all: u32,
    /// Time when room was last returned.
    given_back: Mutex<Instant>,
}

impl Room {
    fn new(bytes: u64) -> Arc<Self> {
        let all = u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX).min(1 << 28);
        let free = Arc::new(Semaphore::new(all as usize));
        Arc::new(Self { free, all, given_back: Mutex::new(Instant::now()) })
    }

    fn given_back(&self) -> MutexGuard<'_, Instant> {
        self.given_back.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for `units` for a message of `tenant`, as long as other messages return some.
    async fn take(self: &Arc<Self>, units: u32, tenant: &Tenant) -> Result<Part> {
        let asked = Instant::now();
        let mut taking = std::pin::pin!(Arc::clone(&self.free).acquire_many_owned(units));
        loop {
            let last = asked.max(*self.given_back());
            tokio::select! {
                biased;
                taken = &mut taking => {
                    let permit = taken.map_err(|_| Error::Closed { why: "the server ends".to_owned() })?;
                    return Ok(Part { room: Arc::clone(self), permit: Some(permit) });
                }
                () = tokio::time::sleep_until(last + STALLED) => {}
            }
            if *self.given_back() <= last {
                let limit = u64::from(self.all) * UNIT;
                tracing::warn!(
                    %tenant,
                    in_flight_bytes = limit,
                    "streams whose clients read nothing hold all bytes in flight; another one goes beyond them"
                );
                return Ok(Part { room: Arc::clone(self), permit: None });
            }
        }
    }
}

/// Room held by a message; none if it exceeds the limit.
#[derive(Debug)]
struct Part {
    room: Arc<Room>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Part {
    fn drop(&mut self) {
        if self.permit.is_some() {
            *self.room.given_back() = Instant::now();
        }
    }
}

/// Usage of one tenant.
#[derive(Debug)]
struct Account {
    streams: u32,
    most: u32,
    pace: Option<Pace>,
    room: Option<Arc<Room>>,
}

impl Account {
    fn new(quota: &Quota) -> Self {
        Self {
            streams: 0,
            most: quota.streams.unwrap_or(STREAMS),
            pace: quota.bytes_per_second.map(|rate| Pace { rate, through: Duration::ZERO }),
            room: quota.in_flight_bytes.map(Room::new),
        }
    }

    /// Returns true if forgetting the account changes nothing.
    fn is_quiet(&self, now: Duration) -> bool {
        self.streams == 0 && self.pace.as_ref().is_none_or(|pace| pace.through <= now)
    }
}

/// All accounts.
#[derive(Debug)]
struct Books {
    options: QuotaOptions,
    most_streams: u32,
    streams: u32,
    accounts: HashMap<Tenant, Account>,
}

impl Books {
    fn open(&mut self, tenant: &Tenant, now: Duration) -> Result<Option<Arc<Room>>> {
        if self.streams >= self.most_streams {
            return Err(Error::limit(
                format!("another stream for tenant {tenant}, on the whole server,"),
                u64::from(self.streams) + 1,
                self.most_streams.into(),
                "max_streams",
            ));
        }
        if self.accounts.len() >= TENANTS && !self.accounts.contains_key(tenant) {
            self.accounts.retain(|_, account| !account.is_quiet(now));
        }
        let options = &self.options;
        let account = self.accounts.entry(tenant.clone()).or_insert_with(|| Account::new(&options.of(tenant)));
        if account.streams >= account.most {
            return Err(Error::limit(
                format!("another stream for tenant {tenant}"),
                u64::from(account.streams) + 1,
                account.most.into(),
                "streams",
            ));
        }
        account.streams += 1;
        self.streams += 1;
        Ok(account.room.clone())
    }

    fn close(&mut self, tenant: &Tenant) {
        self.streams = self.streams.saturating_sub(1);
        if let Some(account) = self.accounts.get_mut(tenant) {
            account.streams = account.streams.saturating_sub(1);
        }
    }

    fn pace(&mut self, tenant: &Tenant) -> Option<&mut Pace> {
        self.accounts.get_mut(tenant).and_then(|account| account.pace.as_mut())
    }
}

/// The quotas of a server, and their usage. Clones share one account per tenant.
#[derive(Debug, Clone)]
pub struct Quotas {
    books: Arc<Mutex<Books>>,
    start: Instant,
}

impl Quotas {
    /// Makes quotas from `options`, with at most `max_streams` streams over all tenants.
    ///
    /// # Errors
    /// As `QuotaOptions::validate`.
    pub fn new(options: QuotaOptions, max_streams: u32) -> Result<Self> {
        options.validate()?;
        let books = Books { options, most_streams: max_streams, streams: 0, accounts: HashMap::new() };
        Ok(Self { books: Arc::new(Mutex::new(books)), start: Instant::now() })
    }

    /// Returns the disk quotas of spaces.
    pub(crate) fn written(&self) -> DiskQuotas {
        self.books().options.written()
    }

    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a stream of `tenant` until the permit is dropped.
    ///
    /// # Errors
    /// [`Error::Limit`] naming the tenant and the option, if the tenant or the server has reached its limit.
    pub(crate) fn open_stream(&self, tenant: &Tenant) -> Result<StreamPermit> {
        let room = self.books().open(tenant, self.start.elapsed())?;
        Ok(StreamPermit { quotas: self.clone(), tenant: tenant.clone(), room })
    }
}

/// One stream of a tenant.
#[derive(Debug)]
pub(crate) struct StreamPermit {
    quotas: Quotas,
    tenant: Tenant,
    room: Option<Arc<Room>>,
}

impl StreamPermit {
    /// Returns the tenant of the stream.
    pub(crate) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// Waits until `bytes` bytes may be sent. The returned value holds their room in flight until it is dropped; if all room is held by
    /// streams that are not read, these bytes exceed it.
    ///
    /// # Errors
    /// [`Error::Limit`] naming the tenant and the option, if the bytes never fit, or their turn is more than five minutes away.
    pub(crate) async fn acquire(&self, bytes: u64) -> Result<InFlight> {
        let refused = |asked: u64, limit: u64, option: &'static str| {
            Error::limit(format!("a message for tenant {}", self.tenant), asked, limit, option)
        };
        let room = match &self.room {
            None => None,
            Some(room) => {
                let units = u32::try_from(bytes.div_ceil(UNIT)).ok().filter(|units| *units <= room.all);
                let units = units.ok_or_else(|| refused(bytes, u64::from(room.all) * UNIT, "in_flight_bytes"))?;
                Some(room.take(units, &self.tenant).await?)
            }
        };
        let now = self.quotas.start.elapsed();
        let reserved = match self.quotas.books().pace(&self.tenant) {
            None => Ok(Duration::ZERO),
            Some(pace) => pace.reserve(bytes, now).map_err(|wait| {
                let most = pace.rate.saturating_mul(LONGEST.as_secs());
                (wait.as_secs().saturating_mul(pace.rate), most)
            }),
        };
        let wait = reserved.map_err(|(asked, limit)| refused(asked, limit, "bytes_per_second"))?;
        if !wait.is_zero() {
            let mut turn = Turn { permit: self, bytes, used: false };
            tokio::time::sleep(wait).await;
            turn.used = true;
        }
        Ok(InFlight { _room: room })
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.quotas.books().close(&self.tenant);
    }
}

/// A turn being waited for; one that is given up does not delay those after it.
struct Turn<'a> {
    permit: &'a StreamPermit,
    bytes: u64,
    used: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.used
            && let Some(pace) = self.permit.quotas.books().pace(&self.permit.tenant)
        {
            pace.give_back(self.bytes);
        }
    }
}

/// Bytes on their way; dropped once the network has taken them.
#[derive(Debug)]
pub(crate) struct InFlight {
    _room: Option<Part>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quotas(default: Quota, max_streams: u32) -> Quotas {
        let anna = Quota { streams: Some(3), ..Quota::default() };
        let options = QuotaOptions { default, tenants: BTreeMap::from([("anna".to_owned(), anna)]) };
        Quotas::new(options, max_streams).unwrap()
    }

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    #[test]
    fn a_quota_of_nobody_is_refused() {
        let of = |name: &str| {
            let tenants = BTreeMap::from([(name.to_owned(), Quota { streams: Some(1), ..Quota::default() })]);
            QuotaOptions { tenants, ..QuotaOptions::default() }.validate()
        };
        for name in ["anna", "anonymous", "a.b-c_1", "certificate:bert.example"] {
            of(name).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        for name in ["anna ", "a b", "", "ä", ".anna", "certificate:", "other:anna"] {
            let error = of(name).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")) && error.contains("letters, digits"), "{error}");
        }
    }

    #[test]
    fn a_pace_is_smooth_and_forgets_no_byte() {
        let ms = Duration::from_millis;
        let mut pace = Pace { rate: 1000, through: Duration::ZERO };
        // Ten seconds in, it may run 250 ms ahead, then every 100 bytes take 100 ms.
        let waits: Vec<_> = (0..6).map(|_| pace.reserve(100, ms(10_000)).unwrap()).collect();
        assert_eq!(waits, [ms(0), ms(0), ms(0), ms(50), ms(150), ms(250)]);
        pace.give_back(100);
        assert_eq!(pace.reserve(100, ms(10_000)), Ok(ms(250)));
        // A message of any size goes if nothing is owed, and those after it pay for it.
        assert_eq!(pace.reserve(100_000, ms(20_000)), Ok(ms(0)));
        assert_eq!(pace.reserve(1, ms(20_000)), Ok(ms(99_750)));
        pace.reserve(u64::MAX, ms(20_000)).unwrap();
        assert!(pace.reserve(1, ms(20_000)).is_err());
        // The rate holds over the whole, at any times and sizes.
        let mut pace = Pace { rate: 1 << 20, through: Duration::ZERO };
        let (mut now, mut sent, mut random) = (Duration::ZERO, 0, 7_u64);
        for _ in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let bytes = random >> 48;
            now += pace.reserve(bytes, now).unwrap() + Duration::from_micros(random >> 32 & 1023);
            sent += bytes;
        }
        let allowed = (now + BURST).as_secs_f64() * f64::from(1 << 20) + f64::from(1 << 16);
        assert!(sent as f64 <= allowed, "{sent} bytes in {now:?}");
        assert!(sent as f64 >= 0.95 * allowed, "{sent} bytes in {now:?}");
    }

    #[test]
    fn streams_are_counted_per_tenant_and_in_all() {
        let quotas = quotas(Quota { streams: Some(2), ..Quota::default() }, 4);
        let open = |name: &str| quotas.open_stream(&tenant(name));
        let bert = [open("bert").unwrap(), open("bert").unwrap()];
        let error = open("bert").unwrap_err().to_string();
        assert!(error.contains("tenant bert") && error.contains("raise streams"), "{error}");
        let anna = [open("anna").unwrap(), open("anna").unwrap()];
        let error = open("anna").unwrap_err().to_string();
        assert!(error.contains("tenant anna") && error.contains("max_streams"), "{error}");
        drop(bert);
        let third = open("anna").unwrap();
        assert!(open("anna").is_err(), "anna has a quota of three");
        assert!(open("carl").is_ok());
        drop((anna, third));
        assert_eq!(quotas.books().streams, 0);
        assert!(
            Quotas::new(
                QuotaOptions { default: Quota { streams: Some(0), ..Quota::default() }, ..Default::default() },
                1
            )
            .is_err()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn bytes_wait_for_room_and_for_their_turn() {
        let quota = Quota { bytes_per_second: Some(1 << 20), in_flight_bytes: Some(1 << 20), ..Quota::default() };
        let quotas = quotas(quota, 10);
        let stream = quotas.open_stream(&tenant("bert")).unwrap();
        let error = stream.acquire((1 << 20) + 1).await.unwrap_err().to_string();
        assert!(error.contains("tenant bert") && error.contains("in_flight_bytes"), "{error}");
        let start = Instant::now();
        let first = stream.acquire(1 << 20).await.unwrap();
        assert!(start.elapsed() < Duration::from_millis(1));
        let second = tokio::time::timeout(STALLED / 2, stream.acquire(1)).await;
        assert!(second.is_err(), "no room in flight");
        drop(first);
        let start = Instant::now();
        for _ in 0..8 {
            stream.acquire(1 << 20).await.unwrap();
        }
        let elapsed = start.elapsed().as_secs_f64();
        assert!((6.7..=7.1).contains(&elapsed), "{elapsed} s");
        // A turn that is given up delays no other.
        for _ in 0..100 {
            let _ = tokio::time::timeout(Duration::from_millis(1), stream.acquire(1 << 20)).await;
        }
        let start = Instant::now();
        stream.acquire(1).await.unwrap();
        assert!(start.elapsed().as_secs_f64() < 1.1, "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn streams_that_nobody_reads_stop_no_other_rank_for_ever() {
        let quota = Quota { in_flight_bytes: Some(4 * UNIT), ..Quota::default() };
        let quotas = quotas(quota, 10);
        let open = || quotas.open_stream(&tenant("bert")).unwrap();
        let (streams, late) = ([open(), open(), open(), open()], open());
        let held = futures::future::join_all(streams.iter().map(|stream| stream.acquire(UNIT))).await;
        // Their clients wait for the last one's, in an all-reduce.
        let start = Instant::now();
        let beyond = late.acquire(2 * UNIT).await.unwrap();
        assert!((STALLED..2 * STALLED).contains(&start.elapsed()), "{:?}", start.elapsed());
        drop(beyond);
        // As long as some room is returned, a message waits its turn.
        let mut held: Vec<_> = held.into_iter().map(Result::unwrap).collect();
        let (start, reading) = (Instant::now(), async {
            for _ in 0..2 {
                tokio::time::sleep(STALLED * 4 / 5).await;
                drop(held.pop());
            }
        });
        let (in_turn, ()) = tokio::join!(late.acquire(2 * UNIT), reading);
        assert_eq!(start.elapsed(), STALLED * 8 / 5);
        let again = tokio::time::timeout(STALLED / 2, late.acquire(UNIT)).await;
        assert!(again.is_err(), "all of it is held: {in_turn:?}");
    }
}
