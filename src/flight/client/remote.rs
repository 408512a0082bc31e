//! Batches made by a server.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::address::Address;
use super::connection::Tcp;
use super::gang::Gang;
use super::receive::{Receiver, Source, StreamInfo};
use crate::codec::MASK;
use crate::device::AnyBatch;
use crate::error::{Error, Result};
use crate::flight::gang::{Member, Reading};
use crate::flight::request::StreamRequest;
use crate::flight::wire::Columns;
use crate::manifest::Fingerprint;
use crate::memory::Pool;
use crate::pipeline::{
    BatchMemory, BatchSource, Cause, ColumnKinds, ConsumerTime, Ledger, LoaderOptions, Memory, PlanInfo, Stage, Stats,
    Trail, machine, rank,
};
use crate::plan::{Share, State};
use crate::schema::Schema;
use crate::store::cache::CacheStats;
use crate::store::caller::Credentials;
use crate::tensor::{Batch, Next};
use crate::trace::Root;

/// Batches of one rank, epoch after epoch, from a server: the same as a local source of the same options yields.
#[derive(Debug)]
pub(crate) struct RemoteSource {
    // Declared first, dropped first: the task is aborted before its runtime goes.
    receiving: Option<Receiving>,
    runtime: Option<Runtime>,
    source: Arc<Source>,
    /// The membership that must last for this to continue.
    member: Option<Arc<Member>>,
    asked: StreamRequest,
    announced: StreamInfo,
    info: PlanInfo,
    /// Fingerprint of the plan that the servers described.
    plan: Fingerprint,
    columns: Columns,
    pool: Arc<Pool>,
    prefetch: usize,
    timeout: Duration,
    /// True if the options name the version of the order.
    names_version: bool,
    epoch: u64,
    step: u64,
    counters: Counters,
    root: Option<Root>,
}

#[derive(Debug)]
struct Receiving {
    receiver: mpsc::Receiver<Result<Batch>>,
    task: JoinHandle<()>,
}

impl Drop for Receiving {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Debug)]
struct Counters {
    batches: u64,
    rows: u64,
    bytes: u64,
    first: Option<Duration>,
    born: Instant,
    time: ConsumerTime,
    /// When the last batch came.
    came: Option<Instant>,
}

impl RemoteSource {
    /// Opens the dataset at the servers that `options.urls` name; several addresses are replicas of one dataset, which divide the ranks
    /// among them and replace one another. A member of a `gang` gets its share of the data, and nothing after its generation is over.
    /// Batches are received into `memory`; those that come through shared memory stay there.
    ///
    /// # Errors
    /// [`Error::Config`] for options that contradict each other; [`Error::Timeout`] if no server answers; [`Error::Fenced`]; and the
    /// server's errors.
    pub(crate) fn open(options: &LoaderOptions, gang: Option<&Gang>, memory: &BatchMemory) -> Result<Self> {
        let began = Instant::now();
        let mut addresses = options.urls.iter().map(|url| Address::parse(url)).collect::<Result<Vec<_>>>()?;
        let Some(first) = addresses.first() else { return Err(Error::config("urls", "no dataset is given")) };
        let share = share(options, gang)?;
        let mut asked = StreamRequest::new(&first.dataset, options, share)?;
        asked.gang = gang.map(|gang| gang.caller().clone());
        let (timeout, prefetch) = (options.deadline()?, options.ahead()?);
        let budget = options.memory_budget.unwrap_or_else(machine::default_budget);
        let budget = usize::try_from(budget).map_err(|_| Error::config("memory_budget", "does not fit in memory"))?;
        if gang.is_none() {
            // Replicas divide the ranks among them, neighbours together, which may take rows of the same row group. A gang's server
            // serves all of its ranks.
            let at = u64::from(share.rank) * addresses.len() as u64 / u64::from(share.world);
            addresses.rotate_left(at as usize);
        }
        let source = Arc::new(Source {
            addresses,
            credentials: Credentials::new(&options.storage_options)?,
            dial: Arc::new(Tcp),
            timeout,
            waiting: std::sync::Mutex::default(),
            failure: std::sync::Mutex::default(),
            retries: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("bowstring-net")
            .enable_all()
            .build()
            .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
        let opened = runtime.block_on(source.announced(&asked, false));
        let (announced, columns) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                runtime.shutdown_background();
                return Err(error);
            }
        };
        let kinds = Arc::new(ColumnKinds::of(&options.columns, columns.schema()));
        let info = info(&announced, share, &columns, &kinds);
        if gang.is_some() && info.steps != info.spec.steps(info.rows) {
            // Members acknowledge its step numbers, and a generation of fewer ranks continues from them.
            runtime.shutdown_background();
            let problem = "even: in a gang a step needs two rows for each rank; use a larger batch_size, or tail=short";
            return Err(Error::config("tail", problem));
        }
        Ok(Self {
            receiving: None,
            runtime: Some(runtime),
            source,
            member: gang.and_then(Gang::member),
            asked,
            plan: Reading::fingerprint(announced.fingerprint, &announced.spec),
            info,
            announced,
            columns,
            pool: Pool::with_spare(memory.spare(prefetch.saturating_add(1)), Arc::clone(&memory.allocator), budget),
            prefetch,
            timeout,
            names_version: options.order_version.is_some(),
            epoch: 0,
            step: 0,
            counters: Counters {
                batches: 0,
                rows: 0,
                bytes: 0,
                first: None,
                born: Instant::now(),
                time: ConsumerTime::default(),
                came: None,
            },
            root: Root::open(began, share.numbers(), &options.urls, options.caller.as_ref()),
        })
    }
}

impl BatchSource for RemoteSource {
    fn next(&mut self, wait: Duration) -> Result<Next<AnyBatch>> {
        self.check()?;
        let Some(runtime) = &self.runtime else { return Err(closed()) };
        if self.step >= self.info.steps {
            self.seek(self.epoch.wrapping_add(1), 0)?;
            return Ok(Next::End);
        }
        self.counters.time.asks(Instant::now());
        let receiving = match &mut self.receiving {
            Some(receiving) => receiving,
            None => {
                let (sender, receiver) = mpsc::channel(self.prefetch);
                let fingerprint = Some(self.announced.fingerprint);
                let asked = StreamRequest { epoch: self.epoch, step: self.step, fingerprint, ..self.asked.clone() };
                let work = Receiver {
                    source: Arc::clone(&self.source),
                    asked,
                    announced: self.announced.clone(),
                    columns: self.columns.clone(),
                    pool: Arc::clone(&self.pool),
                    over_tcp: false,
                    root: self.root,
                };
                self.receiving.insert(Receiving { receiver, task: runtime.spawn(work.run(sender)) })
            }
        };
        let next = runtime.block_on(async { tokio::time::timeout(wait, receiving.receiver.recv()).await });
        match next {
            Err(_) => {
                self.counters.time.gives_up(Instant::now());
                Ok(Next::Pending)
            }
            Ok(Some(Ok(batch))) => {
                batch.deliver();
                if let Some(member) = &self.member {
                    // The rank's next acknowledgement refers to this plan.
                    member.has_read(self.plan);
                }
                self.step = batch.step + 1;
                self.counters.delivered(&batch, self.info.masked);
                Ok(Next::Item(batch.into()))
            }
            Ok(Some(Err(error))) => {
                self.close();
                Err(error)
            }
            Ok(None) => {
                self.close();
                Err(Error::Closed { why: "the receiver ended without a word; this is a bug in bowstring".to_owned() })
            }
        }
    }

    /// Sets the position. The server reports an invalid epoch when its first batch is requested.
    fn seek(&mut self, epoch: u64, step: u64) -> Result<()> {
        self.receiving = None;
        (self.epoch, self.step) = (epoch, step);
        self.counters.time.leaves();
        Ok(())
    }

    /// Requests the plan from the server again if the state has another version of the order.
    fn resume(&mut self, state: &State) -> Result<u64> {
        let PlanInfo { fingerprint, spec, share, kinds, .. } = &self.info;
        let version = state.spec.order_version;
        let is_other = self.info.fingerprint_as(state.fingerprint) != state.fingerprint;
        let other = if version == spec.order_version || self.names_version || is_other {
            None
        } else {
            let Some(runtime) = &self.runtime else { return Err(closed()) };
            let asked = self.asked.clone().in_version(version);
            let same = StreamRequest { fingerprint: Some(*fingerprint), ..asked.clone() };
            let (announced, columns) = runtime.block_on(self.source.announced(&same, true))?;
            Some((info(&announced, *share, &columns, kinds), asked, announced, columns))
        };
        let followed = other.as_ref().map_or(&self.info, |(info, ..)| info);
        let step = followed.step_of(state)?;
        if let Some(other) = other {
            (self.info, self.asked, self.announced, self.columns) = other;
            self.plan = Reading::fingerprint(self.announced.fingerprint, &self.announced.spec);
        }
        self.seek(state.epoch, step)?;
        Ok(step)
    }

    fn info(&self) -> &PlanInfo {
        &self.info
    }

    fn schema(&self) -> &Schema {
        self.columns.schema()
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn culprit(&self) -> (&'static str, String) {
        ("receive", self.source.culprit())
    }

    /// The server cannot notify a process that it no longer reaches.
    fn check(&self) -> Result<()> {
        if self.runtime.is_none() {
            return Err(closed());
        }
        self.member.as_ref().map_or(Ok(()), |member| member.check())
    }

    fn trail(&self) -> Option<Trail> {
        self.counters.came.map(Trail::served)
    }

    fn root(&self) -> Option<Root> {
        self.root
    }

    /// `read` counts data received from servers, which do the decoding.
    fn stats(&self) -> Stats {
        let counters = &self.counters;
        let (items, bytes) = (counters.batches, counters.bytes);
        let spent = counters.time.spent(Cause::Server);
        Stats {
            read: Stage { items, bytes, worked_seconds: spent.of(Cause::Server), waited_seconds: 0.0 },
            decode: Stage::default(),
            batch: Stage::default(),
            consumer: Stage { items, bytes, ..Stage::default() },
            rows: counters.rows,
            // The server has caches of its own.
            cache: CacheStats::default(),
            // Copied from the socket's buffers into the batch.
            copied_per_delivered: if bytes == 0 { 0.0 } else { 1.0 },
            seconds: counters.born.elapsed().as_secs_f64(),
            seconds_to_first_batch: counters.first.map(|first| first.as_secs_f64()),
            memory: Memory {
                budget: self.pool.budget() as u64,
                used: self.pool.used() as u64,
                peak: self.pool.peak() as u64,
            },
            spent,
        }
        .taken_by(spent)
    }

    /// Returns an empty ledger: bad rows are in the server's log and metrics.
    fn ledger(&self) -> Ledger {
        Ledger::default()
    }

    fn generation(&self) -> Option<u64> {
        self.asked.gang.as_ref().map(|caller| caller.generation)
    }

    fn close(&mut self) {
        self.receiving = None;
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for RemoteSource {
    fn drop(&mut self) {
        self.close();
    }
}

impl Counters {
    fn delivered(&mut self, batch: &Batch, masked: bool) {
        let real = |mask: &[u8]| mask.iter().map(|real| u64::from(*real != 0)).sum();
        let mask = batch.tensor(MASK).filter(|_| masked);
        self.batches += 1;
        self.rows += mask.map_or(batch.rows as u64, |mask| real(mask.bytes()));
        self.bytes += batch.bytes() as u64;
        self.first.get_or_insert_with(|| self.born.elapsed());
        let now = Instant::now();
        self.time.takes(now, |from, to| Trail::served(now).waits(from, to));
        self.came = Some(now);
    }
}

/// Returns the share of the options, or that of the gang, which the options must not contradict.
fn share(options: &LoaderOptions, gang: Option<&Gang>) -> Result<Share> {
    let Some(gang) = gang else {
        let found = rank::resolve(options.rank, options.world_size)?;
        return Share::new(found.rank, found.world_size);
    };
    let share = gang.share();
    for (name, given, found) in [("rank", options.rank, share.rank), ("world_size", options.world_size, share.of)] {
        if given.is_some_and(|given| given != found) {
            return Err(Error::config(name, format!("in this gang it is {found}; leave the option out")));
        }
    }
    Share::new(share.rank, share.of)
}

/// The plan that a server announced; `kinds` are those of the columns if it does not say them.
fn info(announced: &StreamInfo, share: Share, columns: &Columns, kinds: &Arc<ColumnKinds>) -> PlanInfo {
    let StreamInfo { fingerprint, former, spec, steps, rows, .. } = announced;
    // The catalogue may request a mask too; a column of the data has a field of its own.
    let masked = columns.arrow().field_with_name(MASK).is_ok() && columns.schema().get(MASK).is_none();
    PlanInfo {
        fingerprint: *fingerprint,
        former: *former,
        spec: spec.clone(),
        steps: *steps,
        rows: *rows,
        share,
        masked,
        table_version: None,
        kinds: Arc::clone(announced.kinds.as_ref().unwrap_or(kinds)),
    }
}

fn closed() -> Error {
    Error::Closed { why: "the loader was closed".to_owned() }
}
