//! A loader whose batches come from a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::address::Address;
use super::connection::{Dial, Tcp};
use super::credentials::Credentials;
use super::gang::Gang;
use super::receive::{Announced, Receiver, Source};
use crate::error::{Error, Result};
use crate::flight::asked::Asked;
use crate::flight::gang::{Member, Reading};
use crate::flight::wire::Columns;
use crate::manifest::Fingerprint;
use crate::memory::{HostAllocator, Pool, SystemAllocator};
use crate::pipeline::{Again, Ledger, LoaderOptions, Memory, Next, Returned, Stage, Stats, machine, rank};
use crate::plan::{Share, State};
use crate::schema::Schema;
use crate::tensor::Batch;

/// Batches of one rank, epoch after epoch, from a server. It is at a position as a local loader is, and its states are the same.
#[derive(Debug)]
pub struct Remote {
    // Declared first, dropped first: the task is aborted before its runtime goes.
    receiving: Option<Receiving>,
    runtime: Option<Runtime>,
    source: Arc<Source>,
    /// Who must still be a member for this to go on.
    member: Option<Arc<Member>>,
    asked: Asked,
    announced: Announced,
    /// Fingerprint of the plan that the servers announced.
    plan: Fingerprint,
    columns: Columns,
    pool: Arc<Pool>,
    share: Share,
    prefetch: usize,
    timeout: Duration,
    /// Whether the options name the version of the order.
    names_version: bool,
    epoch: u64,
    step: u64,
    returned: Returned<Batch>,
    counters: Counters,
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
    batches: AtomicU64,
    rows: AtomicU64,
    bytes: AtomicU64,
    waited: AtomicU64,
    outside: AtomicU64,
    first: AtomicU64,
    born: Instant,
    last: Option<Instant>,
}

impl Remote {
    /// Asks the servers that `options.urls` name for the dataset; more than one address are replicas of one dataset, which divide the
    /// ranks among them and stand in for one another.
    ///
    /// # Errors
    /// [`Error::Config`] for options that contradict each other; [`Error::Timeout`] if no server answers; and what the server
    /// says.
    pub fn open(options: &LoaderOptions) -> Result<Self> {
        Self::open_with(options, Arc::new(Tcp), None)
    }

    /// As [`open`](Self::open), or as [`open_in`](Self::open_in) with a gang, with batches received into memory of `allocator`. What
    /// comes through shared memory stays there.
    ///
    /// # Errors
    /// As these.
    pub fn open_to(options: &LoaderOptions, gang: Option<&Gang>, allocator: Arc<dyn HostAllocator>) -> Result<Self> {
        let mut remote = match gang {
            Some(gang) => Self::open_in(options, gang)?,
            None => Self::open(options)?,
        };
        // Nothing was received yet.
        remote.pool = Pool::new(allocator, remote.pool.budget());
        Ok(remote)
    }

    /// As [`open`](Self::open), as a member of `gang`: its share of the data, and nothing after its generation is over.
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`Error::Fenced`].
    pub fn open_in(options: &LoaderOptions, gang: &Gang) -> Result<Self> {
        let mut options = options.clone();
        let share = gang.share();
        for (name, given, found) in [("rank", options.rank, share.rank), ("world_size", options.world_size, share.of)] {
            if given.is_some_and(|given| given != found) {
                return Err(Error::config(name, format!("in this gang it is {found}; leave the option out")));
            }
        }
        (options.rank, options.world_size) = (Some(share.rank), Some(share.of));
        Self::open_with(&options, Arc::new(Tcp), Some(gang))
    }

    /// As [`open`](Self::open), over connections that `dial` makes.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(options: &LoaderOptions, dial: Arc<dyn Dial>, gang: Option<&Gang>) -> Result<Self> {
        let mut addresses = options.urls.iter().map(|url| Address::parse(url)).collect::<Result<Vec<_>>>()?;
        let Some(first) = addresses.first() else { return Err(Error::config("urls", "no dataset is given")) };
        let found = rank::resolve(options.rank, options.world_size)?;
        let share = Share::new(found.rank, found.world_size)?;
        let mut asked = Asked::new(&first.dataset, options, share)?;
        asked.gang = gang.map(|gang| gang.caller().clone());
        let (timeout, prefetch) = (options.deadline()?, options.ahead()?);
        let budget = options.memory_budget.unwrap_or_else(machine::default_budget);
        let budget = usize::try_from(budget).map_err(|_| Error::config("memory_budget", "does not fit in memory"))?;
        if gang.is_none() {
            // Replicas divide the ranks among them, neighbours together: those may take rows of one row group. A gang's server has all.
            let at = u64::from(share.rank) * addresses.len() as u64 / u64::from(share.world);
            addresses.rotate_left(at as usize);
        }
        let source = Arc::new(Source {
            addresses,
            credentials: Credentials::new(&options.storage_options)?,
            dial,
            timeout,
            waiting: std::sync::Mutex::default(),
            retries: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("bowstring-net")
            .enable_all()
            .build()
            .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
        let opened = runtime.block_on(source.announced(&asked));
        let (announced, columns) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                runtime.shutdown_background();
                return Err(error);
            }
        };
        Ok(Self {
            receiving: None,
            runtime: Some(runtime),
            source,
            member: gang.and_then(Gang::member),
            asked,
            plan: Reading::fingerprint(announced.fingerprint, &announced.spec),
            announced,
            columns,
            pool: Pool::new(Arc::new(SystemAllocator), budget),
            share,
            prefetch,
            timeout,
            names_version: options.order_version.is_some(),
            epoch: 0,
            step: 0,
            returned: Returned::default(),
            counters: Counters {
                batches: AtomicU64::new(0),
                rows: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                waited: AtomicU64::new(0),
                outside: AtomicU64::new(0),
                first: AtomicU64::new(0),
                born: Instant::now(),
                last: None,
            },
        })
    }

    /// Steps of one epoch: the same on every rank, exact.
    pub fn steps(&self) -> u64 {
        self.announced.steps
    }

    /// Rows of one epoch over all ranks.
    pub fn rows(&self) -> u64 {
        self.announced.rows
    }

    /// The current epoch.
    pub fn epoch(&self) -> u64 {
        self.returned.position((self.epoch, self.step)).0
    }

    /// Steps of the current epoch already yielded, up to the first that was given back.
    pub fn step(&self) -> u64 {
        self.returned.position((self.epoch, self.step)).1
    }

    /// This rank and the world size.
    pub fn share(&self) -> Share {
        self.share
    }

    /// What comes out: one field per column, before suffixes.
    pub fn schema(&self) -> &Schema {
        self.columns.schema()
    }

    /// The longest wait for a batch, as set by the options.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The next batch within `wait`; nothing is lost by giving up.
    ///
    /// # Errors
    /// As [`Loader::next_within`](crate::pipeline::Loader::next_within), and what the server says.
    pub fn next_within(&mut self, wait: Duration) -> Result<Next> {
        let Some(runtime) = &self.runtime else { return Err(closed()) };
        if let Some(member) = &self.member {
            // The server cannot tell a process that it no longer reaches.
            member.check()?;
        }
        match self.returned.take((self.epoch, self.step)) {
            Some(Again::Item(batch)) => return Ok(Next::Batch(batch)),
            Some(Again::End) => return Ok(Next::End),
            None => {}
        }
        if self.step >= self.announced.steps {
            (self.receiving, self.counters.last) = (None, None);
            (self.epoch, self.step) = (self.epoch.wrapping_add(1), 0);
            return Ok(Next::End);
        }
        let started = Instant::now();
        if let Some(last) = self.counters.last.take() {
            add(&self.counters.outside, started - last);
        }
        let receiving = match &mut self.receiving {
            Some(receiving) => receiving,
            None => {
                let (sender, receiver) = mpsc::channel(self.prefetch);
                let fingerprint = Some(self.announced.fingerprint);
                let asked = Asked { epoch: self.epoch, step: self.step, fingerprint, ..self.asked.clone() };
                let work = Receiver {
                    source: Arc::clone(&self.source),
                    asked,
                    announced: self.announced.clone(),
                    columns: self.columns.clone(),
                    pool: Arc::clone(&self.pool),
                    over_tcp: false,
                };
                self.receiving.insert(Receiving { receiver, task: runtime.spawn(work.run(sender)) })
            }
        };
        let next = runtime.block_on(async { tokio::time::timeout(wait, receiving.receiver.recv()).await });
        add(&self.counters.waited, started.elapsed());
        match next {
            Err(_) => Ok(Next::Pending),
            Ok(Some(Ok(batch))) => {
                batch.deliver();
                if let Some(member) = &self.member {
                    // What the rank acknowledges next is of this plan.
                    member.has_read(self.plan);
                }
                self.step = batch.step + 1;
                self.counters.delivered(&batch);
                Ok(Next::Batch(batch))
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

    /// Takes back a batch because it reached nobody, as [`Loader::put_back`](crate::pipeline::Loader::put_back) does.
    pub fn put_back(&mut self, batch: Batch) {
        self.returned.put((batch.epoch, batch.step), batch, (self.epoch, self.step));
    }

    /// The error for a wait of `waited` that brought nothing.
    pub fn timed_out(&self, waited: Duration) -> Error {
        let Share { rank, world } = self.share;
        let culprit = self.source.culprit();
        let culprit = format!("{culprit}; rank {rank} of {world}, epoch {}, step {}", self.epoch, self.step);
        Error::Timeout { stage: "receive", culprit, waited }
    }

    /// Goes to the start of `epoch`; stays where it is if that is the current one.
    ///
    /// # Errors
    /// None: what is wrong with an epoch the server says when its first batch is asked for.
    pub fn set_epoch(&mut self, epoch: u64) -> Result<()> {
        if epoch != self.epoch() {
            self.go(epoch, 0);
        }
        Ok(())
    }

    /// The position after the last batch yielded, as a local loader of the same plan gives it.
    pub fn state(&self) -> State {
        let Announced { fingerprint, spec, .. } = &self.announced;
        let (epoch, step) = self.returned.position((self.epoch, self.step));
        State::at(*fingerprint, spec.clone(), epoch, step)
    }

    /// Goes to a position that any loader of the same plan gave. Unless the options name the version of the order, the state's is
    /// followed from here on; the server is asked what that is.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the state belongs to another dataset or plan, and what the server says.
    pub fn load_state(&mut self, state: &State) -> Result<()> {
        let Announced { fingerprint, spec, .. } = &self.announced;
        let version = state.spec.order_version;
        let other = if version == spec.order_version || self.names_version || state.fingerprint != *fingerprint {
            None
        } else {
            let Some(runtime) = &self.runtime else { return Err(closed()) };
            let asked = self.asked.clone().in_version(version);
            let same = Asked { fingerprint: Some(*fingerprint), ..asked.clone() };
            let (announced, columns) = runtime.block_on(self.source.announced(&same))?;
            Some((asked, announced, columns))
        };
        let Announced { fingerprint, spec, steps, .. } =
            other.as_ref().map_or(&self.announced, |(_, announced, _)| announced);
        state.check(fingerprint, spec)?;
        state.check_step(*steps)?;
        if let Some(other) = other {
            (self.asked, self.announced, self.columns) = other;
        }
        self.go(state.epoch, state.step);
        Ok(())
    }

    fn go(&mut self, epoch: u64, step: u64) {
        self.receiving = None;
        self.returned.restart((epoch, step));
        (self.epoch, self.step) = (epoch, step);
        self.counters.last = None;
    }

    /// Counters since the loader was opened. `read` is what came from servers; decoding happens there.
    pub fn stats(&self) -> Stats {
        let counters = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let seconds = |counter: &AtomicU64| get(counter) as f64 / 1e9;
        let (items, bytes) = (get(&counters.batches), get(&counters.bytes));
        let waited = seconds(&counters.waited);
        Stats {
            read: Stage { items, bytes, worked_seconds: waited, waited_seconds: 0.0 },
            decode: Stage::default(),
            batch: Stage::default(),
            consumer: Stage { items, bytes, worked_seconds: seconds(&counters.outside), waited_seconds: waited },
            rows: get(&counters.rows),
            // From the socket's buffers into the batch.
            copied_per_delivered: if bytes == 0 { 0.0 } else { 1.0 },
            seconds: counters.born.elapsed().as_secs_f64(),
            seconds_to_first_batch: Some(seconds(&counters.first)).filter(|seconds| *seconds > 0.0),
            memory: Memory {
                budget: self.pool.budget() as u64,
                used: self.pool.used() as u64,
                peak: self.pool.peak() as u64,
            },
        }
    }

    /// Bad rows are the server's affair: its log and its metrics tell of them.
    pub fn ledger(&self) -> Ledger {
        Ledger::default()
    }

    /// Stops everything at once. Batches already yielded stay valid.
    pub fn close(&mut self) {
        self.receiving = None;
        self.returned.close();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        self.close();
    }
}

impl Counters {
    fn delivered(&mut self, batch: &Batch) {
        let real = batch
            .tensor("_mask")
            .map_or(batch.rows as u64, |mask| mask.bytes().iter().map(|real| u64::from(*real != 0)).sum());
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.rows.fetch_add(real, Ordering::Relaxed);
        self.bytes.fetch_add(batch.tensor_bytes() as u64, Ordering::Relaxed);
        if self.first.load(Ordering::Relaxed) == 0 {
            add(&self.first, self.born.elapsed());
        }
        self.last = Some(Instant::now());
    }
}

fn add(counter: &AtomicU64, time: Duration) {
    counter.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
}

fn closed() -> Error {
    Error::Closed { why: "the loader was closed".to_owned() }
}
