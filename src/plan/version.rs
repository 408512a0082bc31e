//! Versions of the order: what a spec means. Whatever differs between two versions is decided here.
//!
//! A version never changes once it is released: states, tickets and descriptors name it, and go on in it. One that names none is
//! of the first version.

use serde::{Deserialize, Serialize};

use super::defaults::steps_rows;
use super::feistel::Feistel;
use super::permute::{Permutation, shuffle};
use super::recent::Recent;

/// Which arithmetic makes an order of a spec.
///
/// New plans take [`LATEST`](Self::LATEST); a loader that goes on from a state takes the version that the state names.
///
/// ```
/// use bowstring::plan::OrderVersion;
/// assert_eq!(OrderVersion::try_from(1), Ok(OrderVersion::V1));
/// assert_eq!(OrderVersion::LATEST.number(), 3);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
#[non_exhaustive]
pub enum OrderVersion {
    /// Everything is permuted by a Feistel network of six cheap rounds. Few items are not shuffled evenly: of 8 row groups some
    /// orders never occur.
    V1,
    /// Row groups and windows of up to 16,384 rows are shuffled by Fisher and Yates' method, larger windows by a Feistel network
    /// of eight strong rounds. With more than 32 lanes in all sources together it is fewer rows, but 256 at least.
    V2,
    /// Shuffles as the second. What it does otherwise is the default number of lanes, which follows the global batch: a gang shares
    /// row groups less, the larger it is. A lane for every 512 rows of the global batch, or for fewer if rows are wide: as many, at
    /// least 32, as are 4 MiB; as long as a rank of 512 rows holds 256 MiB of row groups, or 24 times the bytes of its rows if that is
    /// more.
    ///
    /// The first windows of a lane are smaller: the first has a sixteenth of the rows, but enough for four steps, and each has twice as
    /// many as the one before until they are full, so that the first batch waits for few row groups.
    ///
    /// Mixtures draw a row of every lane from one dataset before they go to the next, if a step takes the same number of rows of each
    /// lane, and 32 at least; so ranks keep to their lanes there too. And there may be several lanes in file order.
    ///
    /// Large row groups are shuffled in units of about 1 to 4 MiB where files have a page index, see
    /// `Dataset::in_units`: what this module calls a row group is then one of these.
    V3,
}

impl OrderVersion {
    /// What new plans take.
    pub const LATEST: Self = Self::V3;
    /// All that there are, the oldest first.
    pub const ALL: [Self; 3] = [Self::V1, Self::V2, Self::V3];

    /// The version as a number.
    pub const fn number(self) -> u32 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }

    /// What documents mean that name no version.
    pub(super) fn unnamed() -> Self {
        Self::V1
    }

    /// Whether documents leave it out: they are the same to the byte as before there were versions.
    pub(super) fn is_unnamed(&self) -> bool {
        *self == Self::unnamed()
    }

    /// Version of the document of a [`State`](super::State) of this order.
    pub(super) fn of_state(self) -> u32 {
        match self {
            Self::V1 => 1,
            Self::V2 | Self::V3 => 2,
        }
    }

    /// Whether lanes that are left open follow the global batch.
    pub(super) fn lanes_follow_the_batch(self) -> bool {
        self >= Self::V3
    }

    /// Positions of a mixture that draw from one dataset, in a plan of `batch` rows a step and `lanes` lanes.
    pub(super) fn round(self, batch: u64, lanes: u64) -> u64 {
        let lanes = lanes.max(1);
        let rounds = self >= Self::V3 && batch.is_multiple_of(lanes) && batch / lanes >= FEWEST_ROUNDS;
        if rounds { lanes } else { 1 }
    }

    /// Rows of the first window of a lane, in a plan of `batch` rows a step and `lanes` lanes. Windows of `window_rows` rows follow, at
    /// once if the first is no smaller.
    pub(super) fn first_window(self, batch: u64, lanes: u64, window_rows: u64) -> u64 {
        match self {
            Self::V1 | Self::V2 => window_rows,
            Self::V3 => (window_rows / FIRST_WINDOW).max(steps_rows(batch, lanes)),
        }
    }

    /// Whether file order may have several lanes.
    pub(super) fn has_lanes_in_file_order(self) -> bool {
        self >= Self::V3
    }

    /// Whether row groups that are large are cut into units.
    pub(crate) fn has_units(self) -> bool {
        self >= Self::V3
    }

    /// How the plan shuffles that has `lanes` lanes in all its sources together.
    pub(super) fn method(self, lanes: u64) -> Method {
        match self {
            Self::V1 => Method::Cheap,
            Self::V2 | Self::V3 => Method::Drawn { most: (DRAWN_ROWS / lanes.max(1)).clamp(FEWEST_DRAWN, MOST_DRAWN) },
        }
    }
}

impl From<OrderVersion> for u32 {
    fn from(version: OrderVersion) -> Self {
        version.number()
    }
}

impl TryFrom<u32> for OrderVersion {
    type Error = String;

    fn try_from(number: u32) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|version| version.number() == number);
        known.ok_or_else(|| {
            format!("{number} is not a version of the order; this release knows 1 to {}", Self::LATEST.number())
        })
    }
}

/// Full windows have so many times the rows of the first.
const FIRST_WINDOW: u64 = 16;

/// A step has at least so many rounds over all lanes where each is of one dataset: its proportions are off by one or two of them.
const FEWEST_ROUNDS: u64 = 32;

/// Most rows of a window that is shuffled by drawing: its order is kept for as long as steps take from it.
const MOST_DRAWN: u64 = 1 << 14;
/// What is drawn at any number of lanes. It costs less than a microsecond, so that nothing is lost if it is not kept.
const FEWEST_DRAWN: u64 = 256;
/// Rows of drawn windows of all lanes together, two bytes each.
const DRAWN_ROWS: u64 = 1 << 19;

/// Rounds of the network of [`OrderVersion::V1`].
const CHEAP_ROUNDS: usize = 6;
/// Rounds of the network of [`OrderVersion::V2`].
const STRONG_ROUNDS: usize = 8;

/// The network of [`OrderVersion::V1`].
pub(super) type Cheap = Feistel<CHEAP_ROUNDS, false>;
/// The network of [`OrderVersion::V2`].
pub(super) type Strong = Feistel<STRONG_ROUNDS, true>;

/// How a plan shuffles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// See [`OrderVersion::V1`].
    Cheap,
    /// See [`OrderVersion::V2`].
    Drawn {
        /// Most rows of a window that is drawn.
        most: u64,
    },
}

impl Method {
    /// Puts row groups, which are in file order, into that of `key`.
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
            Self::Drawn { .. } => Permutation::Strong(Strong::new(n, key)),
        }
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

    #[test]
    fn numbers_come_back() {
        for version in OrderVersion::ALL {
            assert_eq!(OrderVersion::try_from(version.number()), Ok(version));
            assert_eq!(serde_json::to_string(&version).unwrap(), version.number().to_string());
        }
        assert_eq!(OrderVersion::ALL.last(), Some(&OrderVersion::LATEST));
        let error = serde_json::from_str::<OrderVersion>("9").unwrap_err().to_string();
        assert!(error.contains("9 is not a version"), "{error}");
    }
}
