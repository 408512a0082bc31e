//! The tier in the memory of this process: for machines without a disk, or for small data.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::block::Block;
use super::keeper::{Due, Keeper};

/// See the module.
#[derive(Debug)]
pub(super) struct Memory {
    limit: AtomicU64,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) keeper: Keeper,
    blocks: HashMap<Block, Bytes>,
}

impl Memory {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit: AtomicU64::new(limit), kept: Mutex::default() }
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, limit: u64) {
        self.limit.store(limit, Ordering::Relaxed);
    }

    /// Evicts what is beyond the limit, whenever it is needed. Returns how many blocks went.
    pub(super) fn shrink(&self) -> u64 {
        let mut kept = self.kept();
        let going = kept.keeper.make_room(0, self.limit(), Due::SOONEST, |_| false).unwrap_or_default();
        for block in &going {
            kept.blocks.remove(block);
        }
        going.len() as u64
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of `wanted`, and the block that they are of.
    pub(super) fn look(&self, wanted: &Block) -> Option<(Bytes, Block)> {
        let kept = self.kept();
        let range = wanted.start..wanted.end;
        let block =
            if kept.blocks.contains_key(wanted) { *wanted } else { kept.keeper.covering(&wanted.object, &range)? };
        let offset = usize::try_from(range.start - block.start).ok()?;
        let length = usize::try_from(wanted.len()).ok()?;
        let bytes = kept.blocks.get(&block)?;
        Some((bytes.slice(offset..offset.checked_add(length)?), block))
    }

    /// Keeps `block`, due at `due`, if there is room or others are needed later. Returns the number of evicted ones.
    pub(super) fn store(&self, block: &Block, bytes: Bytes, due: Due) -> Option<u64> {
        let mut kept = self.kept();
        let going = kept.keeper.make_room(block.len(), self.limit(), due, |_| false)?;
        for block in &going {
            kept.blocks.remove(block);
        }
        kept.keeper.insert(*block, block.len(), due, true);
        kept.blocks.insert(*block, bytes);
        Some(going.len() as u64)
    }
}
