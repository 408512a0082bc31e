//! The readers of a cache in this process, and the times at which their plans need a block.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

#[cfg(feature = "flight")]
use super::asked::Again;
use super::block::Block;
use super::counts::{CacheStats, Counts, Event};
use super::foresight::{Foreseen, OpenPlan, ReadBy, due, spare_from};

/// Steps after which a plan's speed is known.
const KNOWN_AFTER: u64 = 2;
/// Time of a step on the scale of all plans, in microseconds, while no speed is known.
const UNKNOWN_PACE: f64 = 1000.0;

/// One open dataset: its next uses, and its counters.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    plan: Mutex<Option<Active>>,
    /// Steps that are over, over all epochs that are foreseen.
    position: AtomicU64,
    /// The epoch of its plan.
    epoch: AtomicU64,
    moved: Notify,
    /// Row groups that were read since it follows its plan.
    read: Mutex<HashSet<u32>>,
    counts: Counts,
}

#[derive(Debug, Clone)]
struct Active {
    foreseen: Arc<Foreseen>,
    began: Instant,
    from: u64,
    base: u64,
    pace: f64,
    /// Microseconds of a step in the plan before it, which was the epoch before.
    before: Option<f64>,
    filled: u64,
}

impl Reader {
    /// Follows a plan from step `from` on, or none.
    pub(super) fn follow(&self, foreseen: Option<Arc<Foreseen>>, from: u64) {
        let before = self.measured();
        self.read.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.epoch.store(foreseen.as_ref().map_or(0, |foreseen| foreseen.epoch()), Ordering::Relaxed);
        self.position.store(from, Ordering::Relaxed);
        let (began, pace, filled) = (Instant::now(), UNKNOWN_PACE, u64::MAX);
        let active = |foreseen| Active { foreseen, began, from, base: from, pace, before, filled };
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = foreseen.map(active);
    }

    /// Says that all steps of `epoch` before `step` are over. A rank that has not ended the epoch before says nothing of this one.
    pub(crate) fn reached(&self, epoch: u64, step: u64) {
        if epoch != self.epoch.load(Ordering::Relaxed) {
            return;
        }
        self.position.fetch_max(step, Ordering::Relaxed);
        self.moved.notify_waiters();
    }

    /// Says that `group` is read.
    pub(super) fn reads(&self, group: u32) {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).insert(group);
    }

    /// Returns true if `group` was read since it follows its plan.
    pub(super) fn has_read(&self, group: u32) -> bool {
        self.read.lock().unwrap_or_else(PoisonError::into_inner).contains(&group)
    }

    /// Steps that are over.
    pub(super) fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// Ends when a step has ended after this call.
    pub(super) fn moved(&self) -> Notified<'_> {
        self.moved.notified()
    }

    /// Hits and misses of this dataset.
    pub(crate) fn stats(&self) -> CacheStats {
        self.counts.snapshot()
    }

    pub(super) fn count(&self, event: Event) {
        self.counts.add(event);
    }

    fn open_plan(&self) -> Option<OpenPlan> {
        let active = self.plan.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        let position = self.position.load(Ordering::Relaxed);
        let Active { foreseen, base, pace, filled, .. } = active;
        Some(OpenPlan { foreseen, position, base, pace, filled })
    }

    /// When its plan needs `block`, for the home of the block; not known before the plan's speed is. After the present use if it is `read`, for
    /// a row group if that is known.
    #[cfg(feature = "flight")]
    pub(super) fn again(&self, block: &Block, read: Option<Option<u32>>) -> Again {
        let known = || {
            let (plan, pace) = (self.open_plan()?, self.measured()?);
            let read = read.map(|group| ReadBy { plan: 0, group });
            let job = plan.foreseen.job();
            let timed = OpenPlan { base: plan.position, pace, ..plan };
            // One that is needed at once is needed.
            Some(Again { job, after: (due(&[timed], block, read)? / 1000).max(1) })
        };
        known().unwrap_or_default()
    }

    /// Microseconds of a step, once some are over, in this epoch or the one before.
    fn measured(&self) -> Option<f64> {
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let active = plan.as_ref()?;
        let steps = self.position.load(Ordering::Relaxed).saturating_sub(active.from);
        if steps < KNOWN_AFTER {
            return active.before;
        }
        Some(active.began.elapsed().as_micros() as f64 / steps as f64)
    }
}

/// The readers of one cache.
#[derive(Debug, Default)]
pub(super) struct Readers(Mutex<Vec<Weak<Reader>>>);

impl Readers {
    /// One more, until it is dropped.
    pub(super) fn join(&self) -> Arc<Reader> {
        let reader = Arc::new(Reader::default());
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|reader| reader.strong_count() > 0);
        all.push(Arc::downgrade(&reader));
        reader
    }

    fn all(&self) -> Vec<Arc<Reader>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    /// Puts the present steps of all plans at the beginning of the common scale, with the speeds that were measured. Between two calls the scale
    /// stays, so that times can be compared.
    pub(super) fn rebase(&self) {
        let all = self.all();
        let known: Vec<f64> = all.iter().filter_map(|reader| reader.measured()).collect();
        let mean = if known.is_empty() { UNKNOWN_PACE } else { known.iter().sum::<f64>() / known.len() as f64 };
        for reader in all {
            let pace = reader.measured().unwrap_or(mean);
            let position = reader.position.load(Ordering::Relaxed);
            if let Some(active) = reader.plan.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
                (active.base, active.pace) = (position, pace.max(1.0));
            }
        }
    }

    /// Says up to which step of the next epoch each plan's row groups fill the room that `room` tells.
    pub(super) fn fill(&self, room: impl Fn(&Foreseen) -> u64) {
        for reader in self.all() {
            let plan = || reader.plan.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(foreseen) = plan().as_ref().map(|active| Arc::clone(&active.foreseen)) else { continue };
            // It looks at all blocks, and nobody waits for that.
            let filled = foreseen.filled(room(&foreseen));
            if let Some(active) = plan().as_mut().filter(|active| Arc::ptr_eq(&active.foreseen, &foreseen)) {
                active.filled = filled;
            }
        }
    }

    /// Time at which each block is needed, as of now.
    pub(super) fn foresee(&self) -> Foresight {
        let (mut readers, mut plans) = (Vec::new(), Vec::new());
        for reader in self.all() {
            if let Some(plan) = reader.open_plan() {
                readers.push(reader);
                plans.push(plan);
            }
        }
        Foresight { readers, plans }
    }
}

/// The plans that are open.
#[derive(Debug)]
pub(super) struct Foresight {
    readers: Vec<Arc<Reader>>,
    plans: Vec<OpenPlan>,
}

impl Foresight {
    /// Time at which `block` is needed next; after its present use, if one of the readers has just read it, for a row group if that is
    /// known.
    pub(super) fn due(&self, block: &Block, read: Option<(&Arc<Reader>, Option<u32>)>) -> Option<u64> {
        let read = read.and_then(|(reader, group)| {
            let plan = self.readers.iter().position(|found| Arc::ptr_eq(found, reader))?;
            Some(ReadBy { plan, group })
        });
        due(&self.plans, block, read)
    }

    /// See [`spare_from`].
    pub(super) fn spare_from(&self) -> Option<u64> {
        spare_from(&self.plans)
    }
}
