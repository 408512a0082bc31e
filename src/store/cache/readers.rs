//! The readers of a cache in this process, and the times at which their plans need a block.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use super::block::Block;
use super::counts::{CacheStats, Counts, Event};
use super::foresight::{Foreseen, OpenPlan, ReadBy, due};

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
    counts: Counts,
}

#[derive(Debug, Clone)]
struct Active {
    foreseen: Arc<Foreseen>,
    began: Instant,
    from: u64,
    base: u64,
    pace: f64,
}

impl Reader {
    /// Follows a plan from step `from` on, or none.
    pub(super) fn follow(&self, foreseen: Option<Arc<Foreseen>>, from: u64) {
        self.position.store(from, Ordering::Relaxed);
        let active = |foreseen| Active { foreseen, began: Instant::now(), from, base: from, pace: UNKNOWN_PACE };
        *self.plan.lock().unwrap_or_else(PoisonError::into_inner) = foreseen.map(active);
    }

    /// Says that all steps before `step` are over.
    pub(crate) fn reached(&self, step: u64) {
        self.position.fetch_max(step, Ordering::Relaxed);
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
        Some(OpenPlan { foreseen: active.foreseen, position, base: active.base, pace: active.pace })
    }

    /// Microseconds of a step, once some are over.
    fn measured(&self) -> Option<f64> {
        let plan = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        let active = plan.as_ref()?;
        let steps = self.position.load(Ordering::Relaxed).saturating_sub(active.from);
        (steps >= KNOWN_AFTER).then(|| active.began.elapsed().as_micros() as f64 / steps as f64)
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
}
