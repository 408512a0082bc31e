//! Bytes that were not here, and from where they came.

use bytes::Bytes;

use super::counts::Event;

/// See the module.
#[derive(Debug)]
pub(crate) struct Fetched {
    pub(super) bytes: Bytes,
    source: Source,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Origin,
    /// The origin; the cache of another host, their home, has them now.
    #[cfg(feature = "flight")]
    Given,
    /// The cache of another host.
    #[cfg(feature = "flight")]
    Peer,
}

impl Fetched {
    #[cfg(feature = "flight")]
    pub(super) fn of_peer(bytes: Bytes) -> Self {
        Self { bytes, source: Source::Peer }
    }

    #[cfg(feature = "flight")]
    pub(super) fn given(bytes: Bytes) -> Self {
        Self { bytes, source: Source::Given }
    }

    /// Returns true if another host keeps them.
    pub(super) fn is_kept_elsewhere(&self) -> bool {
        self.source != Source::Origin
    }

    pub(super) fn event(&self) -> Event {
        let length = self.bytes.len() as u64;
        match self.source {
            #[cfg(feature = "flight")]
            Source::Peer => Event::PeerHit(length),
            _ => Event::Miss(length),
        }
    }
}

impl From<Bytes> for Fetched {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, source: Source::Origin }
    }
}
