//! A client's subscription, and the limits on what a server keeps of it.

use std::sync::Arc;

use crate::flight::server::access::auth::Tenant;
use crate::flight::server::catalog::open_dataset::OpenDataset;
use crate::plan::{Plan, Share};

/// Least and, by default, most batches that a line remembers.
pub(crate) const RING: std::ops::RangeInclusive<u64> = 4..=256;

/// Most memory for reading ahead that a line requests beyond its need.
pub(crate) const AHEAD: u64 = 256 << 20;

/// A request to subscribe: the tenant, the dataset, the plan and the share.
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
    /// Returns the key of its streams: the dataset, the epoch, the rank and the world.
    pub(crate) fn key(&self) -> (usize, u64, u32, u32) {
        (Arc::as_ptr(&self.offer) as usize, self.plan.epoch(), self.share.rank, self.share.world)
    }
}
