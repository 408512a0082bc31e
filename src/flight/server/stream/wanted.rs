//! What a client subscribes to, and how much of it a server keeps.

use std::sync::Arc;

use crate::flight::server::access::auth::Tenant;
use crate::flight::server::catalog::dataset_cache::OpenDataset;
use crate::plan::{Plan, Share};

/// Batches that a line remembers at least, and at most if nothing is said.
pub(crate) const RING: std::ops::RangeInclusive<u64> = 4..=256;

/// Most memory for reading ahead that a line asks for beyond its need.
pub(crate) const AHEAD: u64 = 256 << 20;

/// Who subscribes to what, from where on.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) tenant: Tenant,
    pub(crate) offer: Arc<OpenDataset>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) share: Share,
    /// Batches that may be on their way out at once.
    pub(crate) outgoing: u64,
}

impl Wanted {
    /// What its streams are found by: the dataset, the epoch, the rank and the world.
    pub(crate) fn key(&self) -> (usize, u64, u32, u32) {
        (Arc::as_ptr(&self.offer) as usize, self.plan.epoch(), self.share.rank, self.share.world)
    }
}
