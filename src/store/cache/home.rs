//! A cache as the home of blocks for other hosts.

use std::sync::Arc;

use bytes::Bytes;

use super::asked::Again;
use super::block::Block;
use super::disk::Stored;
use super::readers::Reader;
use super::shared::{Cache, Tier, Wanted};

/// Another host asks, or gives.
fn wanted(again: Again) -> Wanted {
    Wanted { group: None, opening: false, ahead: false, home: Some(again) }
}

impl Cache {
    /// The bytes of `block`, which another host asks for, if they are here.
    pub(crate) async fn have(self: &Arc<Self>, reader: &Arc<Reader>, block: Block, again: Again) -> Option<Bytes> {
        self.look(reader, block, wanted(again)).await
    }

    /// Notes when the plan of another host, which has got `block`, needs it again.
    pub(crate) fn asked(&self, block: &Block, again: Again) {
        let now = self.now();
        self.kept(|keeper| {
            let due = keeper.asked(block, now, again);
            keeper.touch(block, due);
        });
    }

    /// Keeps `block`, which another host gives to this one, its home. Returns true if it is kept.
    pub(crate) async fn take(self: &Arc<Self>, reader: &Arc<Reader>, block: Block, bytes: Bytes, again: Again) -> bool {
        let wanted = wanted(again);
        let claim = match self.tier() {
            Tier::Memory(_) => None,
            Tier::Disk(_) => match self.claim(reader, block, wanted).await {
                // A process of this machine has kept it meanwhile.
                Err(_) => return true,
                Ok(None) => return false,
                Ok(claim) => claim,
            },
        };
        let due = self.due(reader, &block, wanted);
        let cache = Arc::clone(self);
        let stored = self.blocking(move || match (cache.tier(), claim) {
            (Tier::Memory(memory), _) => memory.store(&block, bytes, due).map_or(Stored::Refused, Stored::Kept),
            (Tier::Disk(disk), Some(claim)) => disk.store(claim, &block, &bytes, due),
            (Tier::Disk(_), None) => Stored::Failed,
        });
        let stored = stored.await.unwrap_or(Stored::Failed);
        let is_kept = matches!(stored, Stored::Kept(_));
        self.stored(reader, stored, due);
        self.reorder_now_and_then();
        is_kept
    }
}
