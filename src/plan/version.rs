//! Versions of the order: what a spec means. Whatever differs between two versions is decided here.
//!
//! A version never changes once it is released: states, tickets and descriptors name it, and continue in it. One that names none is
//! of the first version.

use serde::{Deserialize, Serialize};

/// Which arithmetic makes an order of a spec.
///
/// New plans take [`LATEST`](Self::LATEST); a loader that continues from a state takes the version that the state names.
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

    /// Whether file order may have several lanes.
    pub(super) fn has_lanes_in_file_order(self) -> bool {
        self >= Self::V3
    }

    /// Whether row groups that are large are cut into units.
    pub(crate) fn has_units(self) -> bool {
        self >= Self::V3
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

/// A step has at least so many rounds over all lanes where each is of one dataset: its proportions are off by one or two of them.
const FEWEST_ROUNDS: u64 = 32;

#[cfg(test)]
mod tests {
    use super::*;

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
