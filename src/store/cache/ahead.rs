//! Fetching ahead of use, into room that nothing else stays in.

use std::sync::Arc;

use tokio::sync::SemaphorePermit;

use super::block::Block;
use super::claim::Claimed;
use super::coming::Coming;
use super::counts::Event;
use super::fetched::Fetched;
use super::keeper::Due;
use super::readers::Reader;
use super::shared::{Cache, Fresh, Tier};
use crate::error::Result;

impl Cache {
    /// Fetches `block` ahead of its use, unless it is here or on its way. Returns the fetched bytes, or `None` if it would take the room of
    /// blocks that stay until the next epoch: see [`Foreseen::filled`](super::foresight::Foreseen::filled). Nothing is fetched then. A
    /// block that another host may keep takes free room alone.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub(crate) async fn fetch_ahead(
        self: &Arc<Self>,
        reader: &Arc<Reader>,
        block: Block,
        may_be_kept_elsewhere: bool,
        fetch: impl Future<Output = Result<Fetched>>,
    ) -> Result<Option<u64>> {
        if self.may_have(&block) || self.size(&block) > self.limit() {
            return Ok(Some(0));
        }
        let foresight = self.readers.foresee();
        let (Some(due), Some(spare)) = (foresight.due(&block, None), foresight.spare_from()) else { return Ok(None) };
        let room = if may_be_kept_elsewhere { Due::Spare } else { Due::At(due.max(spare)) };
        let Some(coming) = self.coming(&block, room) else { return Ok(None) };
        let flight = self.flight(block);
        // Somebody else is fetching it.
        let Ok(mut slot) = flight.0.try_lock() else { return Ok(Some(0)) };
        if slot.is_some() {
            return Ok(Some(0));
        }
        let claim = match self.tier() {
            Tier::Memory(_) => None,
            Tier::Disk(disk) => {
                // Its room is taken before it is fetched: other processes and saves take some as well.
                let disk = Arc::clone(disk);
                let claimed = self.blocking(move || match disk.claim(&block) {
                    Claimed::Mine(claim) => {
                        let evicted = disk.reserve(&block, room).unwrap_or_else(|error| {
                            disk.fail("write", &error);
                            None
                        });
                        evicted.map_or(Err(None), |evicted| Ok((claim, evicted)))
                    }
                    Claimed::There | Claimed::Busy => Err(Some(0)),
                    Claimed::Failed => Err(None),
                });
                match claimed.await.unwrap_or(Err(None)) {
                    Ok((claim, evicted)) => {
                        self.count(reader, Event::Evicted(evicted));
                        Some(claim)
                    }
                    Err(outcome) => return Ok(outcome),
                }
            }
        };
        let fetched = match fetch.await {
            Ok(fetched) => fetched,
            Err(error) => {
                if let (Tier::Disk(disk), Some(claim)) = (self.tier(), claim) {
                    let disk = Arc::clone(disk);
                    self.blocking(move || disk.give_back(&claim, &block)).await;
                }
                return Err(error);
            }
        };
        let (bytes, length) = (fetched.bytes.clone(), fetched.bytes.len() as u64);
        *slot = Some(bytes.clone());
        drop(slot);
        self.count(reader, fetched.event());
        self.count(reader, Event::Ahead(length));
        let (due, room) = match (fetched.is_kept_elsewhere(), may_be_kept_elsewhere) {
            (true, _) => (Due::Spare, Due::Spare),
            // Its home did not take it, so this is the one copy.
            (false, true) => (Due::At(due), Due::At(due)),
            (false, false) => (Due::At(due), room),
        };
        self.keep(reader, flight, claim, Fresh { block, bytes, due, room, coming: Some(coming) }).await;
        Ok(Some(length))
    }

    /// Waits until `bytes` more may be fetched ahead of their use, for all readers of this process.
    pub(crate) async fn may_fetch_ahead(&self, bytes: u64) -> Option<SemaphorePermit<'_>> {
        self.ahead.may_begin(bytes).await
    }

    /// The right to bring `block` here with the rank `room`, if there is room for it: in memory beside all others that are coming, while a disk
    /// has its ledger for that.
    fn coming(&self, block: &Block, room: Due) -> Option<Coming> {
        let bytes = match self.tier() {
            Tier::Memory(_) => block.len(),
            Tier::Disk(_) => 0,
        };
        let (before, coming) = self.ahead.begin(bytes);
        let limit = self.limit();
        let wanted = before.saturating_add(self.size(block));
        self.kept(|keeper| keeper.has_room(wanted, limit, room)).then_some(coming)
    }
}
