//! The methods by which versions of the order shuffle row groups and the rows of a window.

use super::feistel::{Cheap, Strong};
use super::permute::{Permutation, shuffle};
use super::recent::{KeptOrder, Recent};
use super::version::OrderVersion;

/// Maximum rows of a window that is shuffled by drawing: its order is kept for as long as steps take from it.
const MOST_DRAWN: u64 = 1 << 14;
/// Windows of up to this many rows are drawn at any number of lanes. It costs less than a microsecond, so nothing is
/// lost if the order is not kept.
const FEWEST_DRAWN: u64 = 256;
/// Rows of the drawn windows of all lanes together, two bytes each.
const DRAWN_ROWS: u64 = 1 << 19;

impl OrderVersion {
    /// The shuffle method of a plan with `lanes` lanes in all its sources together.
    pub(super) fn method(self, lanes: u64) -> Method {
        match self {
            Self::V1 => Method::Cheap,
            Self::V2 | Self::V3 => Method::Drawn { most: (DRAWN_ROWS / lanes.max(1)).clamp(FEWEST_DRAWN, MOST_DRAWN) },
        }
    }
}

/// The shuffle method of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// See [`OrderVersion::V1`].
    Cheap,
    /// See [`OrderVersion::V2`].
    Drawn {
        /// Maximum rows of a window that is drawn.
        most: u64,
    },
}

impl Method {
    /// Permutes row groups, given in file order, by `key`.
    pub(super) fn order(self, groups: &mut [u32], key: u64) {
        match self {
            Self::Cheap => {
                let file_order = groups.to_vec();
                let permutation = Cheap::new(groups.len() as u64, key);
                for (at, slot) in (0..).zip(groups) {
                    *slot = file_order[permutation.forward(at) as usize];
                }
            }
            Self::Drawn { .. } => shuffle(groups, key),
        }
    }

    /// The order of the `n` rows of the window of `key`.
    pub(super) fn window(self, n: u64, key: u64, recent: &Recent) -> Permutation {
        match self {
            Self::Cheap => Permutation::Cheap(Cheap::new(n, key)),
            Self::Drawn { most } if n <= most => Permutation::Drawn(recent.order(n, key)),
            Self::Drawn { .. } => match recent.large(n, key) {
                Some(order) => Permutation::Kept(order),
                None => Permutation::Strong(Strong::new(n, key)),
            },
        }
    }

    /// Keeps the order of all `n` rows of the window of `key`, of which parts will be wanted again. `None` if it is not worth keeping.
    pub(super) fn keep(self, n: u64, key: u64, recent: &Recent) -> Option<KeptOrder> {
        if !matches!(self, Self::Drawn { most } if n > most) {
            return None;
        }
        recent.keep_large(n, key, || {
            let mut order = Vec::with_capacity(n as usize);
            // A window of at most 2^32 rows.
            Strong::new(n, key).each(0..n, |row| order.push(row as u32));
            order
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_hangs_on_lanes_only_and_fits() {
        let most = |lanes| match OrderVersion::V2.method(lanes) {
            Method::Drawn { most } => most,
            Method::Cheap => 0,
        };
        assert_eq!([1, 32, 64, 128, 1024, 1 << 24].map(most), [16384, 16384, 8192, 4096, 512, 256]);
        assert!(MOST_DRAWN <= u64::from(u16::MAX));
    }
}
