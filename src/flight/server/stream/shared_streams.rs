//! Decode once, many consumers: streams of the same share of the same plan take their batches from one line.
//!
//! ```text
//!   line   Batches ─► encode ─► ring of the last batches ─► every stream that is within the ring
//! ```
//!
//! The first stream at the end of the ring makes the next batch; the others wait for it. A stream that falls behind the ring continues
//! with a line of its own, so that none waits for the slowest. All memory is claimed when a stream begins (see
//! [`budget`](crate::flight::server::stream::budget)): for the line, its ring, and the batches that each stream may have on their way
//! out.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::budget::{ByteBudget, Claim};
use super::shared_plan::{Footing, SharedPlan, SharedPlans, check};
use super::shared_stream::{Ring, SharedStream, Subscriber};
use super::wanted::{AHEAD, RING, Wanted};
use crate::error::{Error, Result};
use crate::flight::server::catalog::open_dataset::PREFETCH;
use crate::flight::server::catalog::turns::Turns;
use crate::memory::{HostAllocator, Pool, SharedAllocator, SlabPool, SystemAllocator};
use crate::pipeline::{Batches, MemoryNeed, Run, Workers};
use crate::plan::Share;

/// Default bytes of batches that all lines of a plan with many ranks remember together: enough for jobs that begin a moment apart.
/// Touching memory for the first time costs more than writing to it.
const RING_BYTES: u64 = 64 << 20;

/// Most batches that a line remembers if its bytes are configured.
const MAX_RING: u64 = 1024;

/// Most batches that a stream has on their way out if the receiver keeps none.
pub(crate) const OUTGOING: u64 = 2;

type Key = (usize, u64, u32, u32);

/// Terms of a subscription.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Terms {
    /// True if it has memory for batches on their way out.
    pub(crate) paid: bool,
    /// True if its row groups are read for it alone: the other ranks of its plan went on without it.
    pub(crate) alone: bool,
}

/// State shared by all streams of a server.
#[derive(Debug)]
pub(crate) struct SharedStreams {
    lines: Mutex<HashMap<Key, Vec<Weak<SharedStream>>>>,
    plans: SharedPlans,
    planning: Turns,
    workers: Arc<Workers>,
    /// Allocator of batches; `None` for memory that no other process sees.
    shared: Option<Arc<SharedAllocator>>,
    claims: Arc<ByteBudget>,
    /// Bytes of batches that each line remembers, if configured.
    share: Option<u64>,
}

impl SharedStreams {
    /// Makes streams that share `budget`. Each line remembers `share` bytes of batches if given.
    pub(crate) fn new(
        workers: Arc<Workers>,
        shared: Option<Arc<SharedAllocator>>,
        budget: u64,
        share: Option<u64>,
    ) -> Self {
        Self {
            lines: Mutex::default(),
            plans: SharedPlans::default(),
            planning: Turns::new("plans for others", workers.threads()),
            workers,
            shared,
            claims: Arc::new(ByteBudget::new(budget)),
            share,
        }
    }

    /// Sets the time for which clients may leave messages unread while others wait for memory.
    pub(crate) fn unread_for(mut self, unread: Duration) -> Self {
        self.claims = Arc::new(ByteBudget::new(self.claims.budget()).unread_for(unread));
        self
    }

    /// Returns the budget of the streams' memory.
    pub(crate) fn claims(&self) -> &Arc<ByteBudget> {
        &self.claims
    }

    /// Returns the threads that decode.
    pub(crate) fn workers(&self) -> &Arc<Workers> {
        &self.workers
    }

    /// Returns the turns at planning and at computing the needs of plans.
    pub(crate) fn planning(&self) -> &Turns {
        &self.planning
    }

    /// Checks that all ranks of the plan of `wanted` can be served at once.
    ///
    /// # Errors
    /// [`Error::Limit`] if they need more than the budget.
    pub(crate) async fn check(&self, wanted: &Wanted) -> Result<()> {
        check(wanted, &self.claims, &self.planning).await
    }

    /// Subscribes to the stream of `wanted` from `step` on. Claims memory for its batches on their way out as well, unless the terms
    /// say that they are paid: see [`Subscriber::outgoing`].
    pub(crate) async fn subscribe(&self, wanted: &Wanted, step: u64, terms: Terms) -> Result<Subscriber> {
        wanted.plan.check_share(wanted.share)?;
        if wanted.share.world > 1 && !terms.alone {
            let plan = self.plans.get(wanted, &self.claims, (&self.workers, &self.planning)).await?;
            if let Some(subscriber) = self.beside_others(wanted, step, terms, &plan).await? {
                return Ok(subscriber);
            }
        }
        self.alone(wanted, step, terms).await
    }

    /// As [`subscribe`](Self::subscribe), with row groups that are read for other ranks too; `None` if `step` is far from theirs.
    async fn beside_others(
        &self,
        wanted: &Wanted,
        step: u64,
        terms: Terms,
        plan: &Arc<SharedPlan>,
    ) -> Result<Option<Subscriber>> {
        let Wanted { tenant, share, outgoing, .. } = wanted;
        let footing = plan.footing;
        let ((batches, batch), least) = (footing.batches(wanted), footing.line(wanted));
        let out = if terms.paid { 0 } else { outgoing.saturating_mul(batch) };
        if self.find(wanted, step).is_some() {
            let claim = self.claims.claim(tenant, out).await?;
            if let Some(line) = self.find(wanted, step) {
                return Ok(Some(Subscriber::new(line, step, tenant, claim)));
            }
        }
        let mut memory = match plan.line(least) {
            Some(memory) => memory,
            None => self.claims.claim(tenant, least).await?,
        };
        let claim = memory.split(out).ok_or_else(|| Error::Closed { why: "a claim is too small".to_owned() })?;
        // Another stream may have begun the same line while this one waited.
        if let Some(line) = self.find(wanted, step) {
            return Ok(Some(Subscriber::new(line, step, tenant, claim)));
        }
        let need = MemoryNeed { row_groups: 0, batches };
        let place = self.place(wanted, need, footing, &mut memory);
        let run = place.run(self, *share, step, batches);
        let Some(batches) = plan.reader.batches(run, need)? else { return Ok(None) };
        let line = self.line(wanted, step, place, batches, memory, Some(Arc::clone(plan)));
        Ok(Some(Subscriber::new(line, step, tenant, claim)))
    }

    /// As [`subscribe`](Self::subscribe), with row groups that are read for this share alone.
    async fn alone(&self, wanted: &Wanted, step: u64, terms: Terms) -> Result<Subscriber> {
        let Wanted { tenant, offer, plan, share, outgoing } = wanted;
        let budget = self.claims.budget();
        let need = offer.need(plan, (*share, PREFETCH), budget, (&self.planning, tenant)).await?;
        let batch = need.batches / (PREFETCH as u64 + 2);
        let out = if terms.paid { 0 } else { outgoing.saturating_mul(batch) };
        if self.find(wanted, step).is_some() {
            let claim = self.claims.claim(tenant, out).await?;
            if let Some(line) = self.find(wanted, step) {
                return Ok(Subscriber::new(line, step, tenant, claim));
            }
        }
        // The least need is claimed in one piece: two streams that each held a part would wait for each other.
        let least = need.total().saturating_add(RING.start().saturating_mul(batch));
        let mut memory = self.claims.claim(tenant, out.saturating_add(least)).await?;
        let claim = memory.split(out).ok_or_else(|| Error::Closed { why: "a claim is too small".to_owned() })?;
        // Another stream may have begun the same line while this one waited.
        if let Some(line) = self.find(wanted, step) {
            return Ok(Subscriber::new(line, step, tenant, claim));
        }
        let place = self.place(wanted, need, Footing::FULL, &mut memory);
        let mut ahead = AHEAD.min(self.spare());
        match self.claims.try_spare(tenant, ahead) {
            Some(more) => memory.add(more),
            None => ahead = 0,
        }
        let run = place.run(self, *share, step, need.total().saturating_add(ahead));
        let batches = offer.prepared.batches_in(Arc::clone(plan), run, need)?;
        let line = self.line(wanted, step, place, batches, memory, None);
        Ok(Subscriber::new(line, step, tenant, claim))
    }

    /// Returns the bytes that one stream may take beyond its need: streams that begin together see the same memory free.
    fn spare(&self) -> u64 {
        self.claims.budget().saturating_sub(self.claims.used()) / 4
    }

    /// Chooses the memory for the batches of a line that needs `need`, and the number of batches that it remembers.
    fn place(&self, wanted: &Wanted, need: MemoryNeed, footing: Footing, memory: &mut Claim) -> Place {
        // Each takes what it can get, the ring first.
        let batch = need.batches / (footing.prefetch as u64 + 2);
        let least = footing.ring;
        let (bytes, most) = match self.share {
            Some(bytes) => (bytes, MAX_RING),
            None => (RING_BYTES / u64::from(wanted.share.world.max(1)), *RING.end()),
        };
        let mut ring = (bytes.min(self.spare()) / batch.max(1)).clamp(least, most);
        while ring > least {
            if let Some(more) = self.claims.try_spare(&wanted.tenant, (ring - least).saturating_mul(batch)) {
                memory.add(more);
                break;
            }
            ring = (ring / 2).max(least);
        }
        let kept = ring.saturating_add(wanted.outgoing).saturating_mul(batch);
        let keep = usize::try_from(kept).unwrap_or(usize::MAX);
        let batches = usize::try_from(need.batches).unwrap_or(usize::MAX).saturating_add(keep);
        let even = wanted.offer.prepared.even_batch(&wanted.plan, wanted.share).unwrap_or(0);
        Place { home: self.home(wanted, batches, even, memory), ring, keep, prefetch: footing.prefetch }
    }

    /// Makes a line of `batches` from `step` on, for all streams of the same request.
    fn line(
        &self,
        wanted: &Wanted,
        step: u64,
        place: Place,
        batches: Batches,
        memory: Claim,
        plan: Option<Arc<SharedPlan>>,
    ) -> Arc<SharedStream> {
        let line = Arc::new(SharedStream {
            offer: Arc::clone(&wanted.offer),
            steps: wanted.plan.steps(),
            ring: Mutex::new(Ring {
                batches: VecDeque::new(),
                most: place.ring as usize,
                next: step,
                failed: None,
                left: false,
            }),
            probe: batches.probe(),
            source: tokio::sync::Mutex::new(batches),
            memory: Some(memory),
            together: place.home.together,
            claims: Arc::clone(&self.claims),
            tenant: wanted.tenant.clone(),
            mixed: AtomicBool::new(false),
            _plan: plan,
        });
        let mut lines = self.lock();
        lines.retain(|_, lines| {
            lines.retain(|line| line.strong_count() > 0);
            !lines.is_empty()
        });
        lines.entry(wanted.key()).or_default().push(Arc::downgrade(&line));
        line
    }

    /// Returns the memory for the batches of a line for `wanted`, `bytes` at once, each of `len` bytes if that is not 0. The excess of
    /// slabs that several batches share is added to `memory`; if the budget has no room for it, each batch has a slab of its own.
    fn home(&self, wanted: &Wanted, bytes: usize, len: usize, memory: &mut Claim) -> BatchArena {
        let (tenant, whose) = (&wanted.tenant, (&wanted.tenant, wanted.offer.fingerprint));
        let home =
            |allocator, together| BatchArena { allocator, pool: self.claims.reuse(whose, bytes, together), together };
        let Some(shared) = &self.shared else { return home(Arc::new(SystemAllocator), 0) };
        let alone = || home(Arc::<SharedAllocator>::clone(shared), 0);
        let held = SlabPool::bytes(bytes, len);
        let Some(slab_pool) = SlabPool::new(Arc::clone(shared), len, held) else { return alone() };
        // The memory kept by an earlier line is released first: its claim may be what is missing.
        let side_by_side = home(Arc::new(slab_pool), len);
        if held > bytes {
            let Some(more) = self.claims.try_spare(tenant, (held - bytes) as u64) else { return alone() };
            memory.add(more);
        }
        side_by_side
    }

    /// Returns a line that has `step` in its ring, or makes it next.
    fn find(&self, wanted: &Wanted, step: u64) -> Option<Arc<SharedStream>> {
        let lines = self.lock();
        let lines = lines.get(&wanted.key())?.iter().filter_map(Weak::upgrade);
        lines.into_iter().find(|line| line.lock().has(step))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Vec<Weak<SharedStream>>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory and sizes that a line is built with.
#[derive(Debug)]
struct Place {
    home: BatchArena,
    /// Batches that it remembers.
    ring: u64,
    /// Bytes of batches that are in use after delivery.
    keep: usize,
    /// Batches made ahead.
    prefetch: usize,
}

impl Place {
    fn run(&self, streams: &SharedStreams, share: Share, from: u64, budget: u64) -> Run {
        Run {
            share,
            from,
            workers: Arc::clone(&streams.workers),
            allocator: Arc::clone(&self.home.allocator),
            budget: usize::try_from(budget).unwrap_or(usize::MAX),
            keep: self.keep,
            pool: self.home.pool.clone(),
            prefetch: self.prefetch,
        }
    }
}

/// Memory that a line builds its batches in.
#[derive(Debug)]
struct BatchArena {
    allocator: Arc<dyn HostAllocator>,
    /// Pool kept by an earlier line.
    pool: Option<Arc<Pool>>,
    /// Bytes of each batch if they share slabs; else 0.
    together: usize,
}

#[cfg(test)]
mod tests {
    use arrow::array::{FixedSizeListArray, Float32Array, RecordBatch};
    use arrow::datatypes::{DataType, Field as ArrowField};
    use tokio::time::Instant;

    use super::*;
    use crate::flight::server::access::auth::Tenant;
    use crate::flight::server::catalog::open_dataset::OpenDataset;
    use crate::flight::server::stream::shared_stream::Found;
    use crate::pipeline::{HiddenColumns, LoaderOptions};
    use crate::plan::Tail;

    const WIDTH: usize = 1024;
    /// Bytes of a batch: 25 rows of 4 KiB, and the mask.
    const BATCH: usize = 25 * WIDTH * 4 + 256;

    /// A file of 40 batches of vectors.
    fn write(path: &std::path::Path) {
        let values = Float32Array::from_iter_values((0..1000 * WIDTH).map(|at| at as f32));
        let field = Arc::new(ArrowField::new("item", DataType::Float32, false));
        let rows = FixedSizeListArray::new(field, WIDTH as i32, Arc::new(values), None);
        let rows = RecordBatch::try_from_iter_with_nullable([("x", Arc::new(rows) as _, false)]).unwrap();
        let file = std::fs::File::create(path).unwrap();
        let mut writer = parquet::arrow::ArrowWriter::try_new(file, rows.schema(), None).unwrap();
        writer.write(&rows).unwrap();
        writer.close().unwrap();
    }

    async fn offer(path: &std::path::Path, tail: Tail) -> Arc<OpenDataset> {
        offer_of(path, 25, tail).await
    }

    async fn offer_of(path: &std::path::Path, batch: u64, tail: Tail) -> Arc<OpenDataset> {
        let options =
            LoaderOptions { shuffle: false, tail: Some(tail), ..LoaderOptions::new(path.to_str().unwrap(), batch) };
        Arc::new(OpenDataset::open(options, HiddenColumns::default(), 1 << 30).await.unwrap())
    }

    fn wanted(tenant: &str, offer: &Arc<OpenDataset>) -> Wanted {
        Wanted {
            tenant: Tenant::new(tenant).unwrap(),
            offer: Arc::clone(offer),
            plan: Arc::clone(&offer.plan),
            share: Share { rank: 0, world: 1 },
            outgoing: 8,
        }
    }

    /// Returns the slabs that hold the batches of a stream, from `step` to its end.
    async fn slabs(stream: &mut Subscriber, shared: &SharedAllocator) -> Vec<u64> {
        let mut found = Vec::new();
        while let Found::Batch(batch, _) = stream.next().await.unwrap() {
            found.extend(batch.slabs.iter().map(|slab| shared.locate(slab).unwrap().0.id()));
        }
        found
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn pages_of_one_tenant_are_never_anothers() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data.parquet");
        write(&path);
        let offer = offer(&path, Tail::Pad).await;
        let shared = Arc::new(SharedAllocator::new());
        let streams = SharedStreams::new(Workers::new(2).unwrap(), Some(Arc::clone(&shared)), 1 << 30, None);
        let open = async |tenant: &str| streams.subscribe(&wanted(tenant, &offer), 0, Terms::default()).await.unwrap();
        let of_anna = slabs(&mut open("anna").await, &shared).await;
        let again = slabs(&mut open("anna").await, &shared).await;
        assert!(again.iter().any(|slab| of_anna.contains(slab)), "her own memory comes again");
        let of_bert = slabs(&mut open("bert").await, &shared).await;
        assert!(of_bert.iter().all(|slab| !of_anna.contains(slab) && !again.contains(slab)), "{of_bert:?}");
        // Memory of a line that two tenants read is not reused.
        let (mut first, mut second) = (open("carl").await, open("dora").await);
        let seen = [slabs(&mut first, &shared).await, slabs(&mut second, &shared).await].concat();
        drop((first, second));
        for tenant in ["carl", "dora"] {
            let next = slabs(&mut open(tenant).await, &shared).await;
            assert!(next.iter().all(|slab| !seen.contains(slab)), "{tenant}: {next:?}");
        }
    }

    #[tokio::test]
    async fn nobody_waits_for_a_plan_behind_another_tenant_or_is_told_what_that_holds() {
        const BUDGET: u64 = 64 << 20;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data.parquet");
        write(&path);
        let offer = offer(&path, Tail::Pad).await;
        let streams = SharedStreams::new(Workers::new(2).unwrap(), None, BUDGET, None);
        tokio::time::pause();
        let (anna, carl) = (Tenant::new("anna").unwrap(), Tenant::new("carl").unwrap());
        let start = Instant::now();
        let ask = async |tenant: &str, after: u64| {
            tokio::time::sleep(Duration::from_secs(after)).await;
            let wanted = Wanted { share: Share { rank: 0, world: 2 }, ..wanted(tenant, &offer) };
            let plan = streams.plans.get(&wanted, &streams.claims, (&streams.workers, &streams.planning)).await;
            (plan.map_err(|error| error.to_string()), start.elapsed().as_secs())
        };
        // Others have the memory.
        let of_anna = streams.claims.claim(&anna, 3 << 20).await.unwrap();
        let others = streams.claims.claim(&carl, BUDGET - (3 << 20)).await.unwrap();
        let many = async {
            for _ in 0..3 {
                futures::future::join_all((0..8).map(|_| ask("anna", 0))).await;
            }
        };
        let (_, (error, came)) = tokio::join!(many, ask("bert", 1));
        let error = error.unwrap_err();
        assert!(error.contains("beside 0 that this tenant holds"), "{error}");
        assert!((31..=32).contains(&came), "after {came} s");
        // Some of it comes back: whoever has it makes the plan, for all.
        let begun = start.elapsed().as_secs();
        let back = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            drop(others);
        };
        let (first, (second, came), third, ()) = tokio::join!(ask("anna", 0), ask("bert", 1), ask("anna", 2), back);
        let (first, second, third) = (first.0.unwrap(), second.unwrap(), third.0.unwrap());
        assert!(Arc::ptr_eq(&first, &second) && Arc::ptr_eq(&first, &third));
        assert!(came - begun <= 6, "{} s", came - begun);
        drop((first, second, third, of_anna));
        assert_eq!(streams.claims.used(), 0);
    }

    /// Reads all of the share. Returns the most slabs there were, and those that were divided in the end.
    async fn read(streams: &SharedStreams, offer: &Arc<OpenDataset>, shared: &SharedAllocator) -> (usize, Vec<u64>) {
        let mut stream = streams.subscribe(&wanted("anna", offer), 0, Terms::default()).await.unwrap();
        let (mut most, mut divided, mut batches) = (0, Vec::new(), 0_usize);
        while let Found::Batch(batch, _) = stream.next().await.unwrap() {
            let [slab] = batch.slabs.as_slice() else { panic!("{} slabs", batch.slabs.len()) };
            let values = &slab[..8];
            assert_eq!(
                values,
                [(batches * 25 * WIDTH) as f32, (batches * 25 * WIDTH + 1) as f32].map(f32::to_le_bytes).concat()
            );
            let (found, _) = shared.locate(slab).unwrap();
            if found.is_divided() && !divided.contains(&found.id()) {
                divided.push(found.id());
            }
            most = most.max(shared.slabs_held());
            batches += 1;
        }
        assert_eq!(batches, 40);
        (most, divided)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn ranks_of_a_plan_remember_so_many_bytes_together() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data.parquet");
        write(&path);
        // Steps of 1 MB.
        let offer = offer_of(&path, 250, Tail::Pad).await;
        for (world, share, least) in [(1, None, 50), (5, None, 50), (50, None, 50), (5, Some(8 << 20), 35)] {
            let streams = SharedStreams::new(Workers::new(2).unwrap(), None, 8 << 30, share);
            let mut remembered = 0;
            for rank in 0..world {
                let wanted = Wanted { share: Share { rank, world }, ..wanted("anna", &offer) };
                let stream = streams.subscribe(&wanted, 0, Terms::default()).await.unwrap();
                let lines = streams.lock();
                let line = lines[&wanted.key()][0].upgrade().unwrap();
                remembered += line.lock().most as u64 * (1 << 20) / u64::from(world);
                drop((lines, stream));
            }
            let steps = remembered >> 20;
            // A step is a little less than 1 MiB.
            assert!((least..=66).contains(&steps), "{world} ranks remember {steps} steps");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn small_batches_share_slabs_where_there_is_memory_for_whole_ones() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data.parquet");
        write(&path);
        let without_mask = offer(&path, Tail::Drop).await;
        let offer = offer(&path, Tail::Pad).await;
        let shared = Arc::new(SharedAllocator::new());
        let streams = SharedStreams::new(Workers::new(2).unwrap(), Some(Arc::clone(&shared)), 1 << 30, None);
        let (most, divided) = read(&streams, &offer, &shared).await;
        // 19 in each slab of 2 MiB.
        assert!(!divided.is_empty() && most <= 3, "{most} slabs, {divided:?}");
        assert_eq!(streams.claims.used(), 0);
        let kept = shared.slabs_held();
        let (most, again) = read(&streams, &offer, &shared).await;
        assert!(most == kept && again.iter().all(|slab| divided.contains(slab)), "{again:?} after {divided:?}");
        // The estimate is the same for as many batches, but each is a page shorter.
        let (_, others) = read(&streams, &without_mask, &shared).await;
        assert!(!others.is_empty() && others.iter().all(|slab| !divided.contains(slab)), "{others:?}");

        // Slightly more than the least that a stream takes.
        let share = Share { rank: 0, world: 1 };
        let need = offer.prepared.need(&offer.plan, share, PREFETCH);
        let batch = need.batches / (PREFETCH as u64 + 2);
        assert_eq!(offer.prepared.even_batch(&offer.plan, share), Some(BATCH));
        let least = need.total() + (RING.start() + 8) * batch + (64 << 10);
        for (budget, together) in [(least, false), (least + (1 << 20), true)] {
            let shared = Arc::new(SharedAllocator::new());
            let streams = SharedStreams::new(Workers::new(2).unwrap(), Some(Arc::clone(&shared)), budget, Some(0));
            for _ in 0..2 {
                let (most, divided) = read(&streams, &offer, &shared).await;
                assert_eq!(!divided.is_empty(), together, "{budget}");
                assert!(if together { most <= 3 } else { most > 3 }, "{most} slabs");
                let held: usize = shared.bytes_held();
                assert!(held as u64 <= budget, "{held} bytes kept");
            }
        }
    }
}
