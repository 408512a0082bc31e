//! Versions of the order, which give a spec its meaning. All differences between versions are decided here.
//!
//! A version never changes once it is released: states, tickets and descriptors name it, and continue in it. One that
//! names none is of the first version.

use serde::{Deserialize, Serialize};

/// The arithmetic that turns a spec into an order.
///
/// New plans use [`LATEST`](Self::LATEST); a loader that continues from a state uses the version that the state names.
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
    /// Everything is permuted by a Feistel network of six cheap rounds. Few items are not shuffled evenly: some orders
    /// of 8 row groups never occur.
    V1,
    /// Row groups and windows of up to 16,384 rows are shuffled by Fisher-Yates, larger windows by a Feistel network of
    /// eight strong rounds. With more than 32 lanes in all sources together that limit is lower, but at least 256 rows.
    V2,
    /// Shuffles as the second version. It differs in the default number of lanes, which follows the global batch: the
    /// larger a gang, the less it shares row groups. One lane for every 512 rows of the global batch, or for fewer if
    /// rows are wide: as many as make 4 MiB, at least 32; as long as a rank of 512 rows holds 256 MiB of row groups, or
    /// 24 times the bytes of its rows if that is more.
    ///
    /// The first windows of a lane are smaller: the first has a sixteenth of the rows, but enough for four steps, and
    /// each has twice as many as the previous one until they are full, so that the first batch waits for few row
    /// groups.
    ///
    /// Mixtures draw a row of every lane from one dataset before they move on to the next, if a step takes the same
    /// number of rows of each lane, and at least 32; so ranks keep to their lanes there too. File order may have
    /// several lanes.
    ///
    /// Large row groups are shuffled in units of about 1 to 4 MiB if files have a page index, see `Dataset::in_units`:
    /// a row group in this module is then one of these units.
    V3,
}

impl OrderVersion {
    /// The default of new plans.
    pub const LATEST: Self = Self::V3;
    /// All versions, the oldest first.
    pub const ALL: [Self; 3] = [Self::V1, Self::V2, Self::V3];

    /// The version as a number.
    pub const fn number(self) -> u32 {
        match self {
            Self::V1 => 1,
            Self::V2 => 2,
            Self::V3 => 3,
        }
    }

    /// The version of documents that name none.
    pub(super) fn unnamed() -> Self {
        Self::V1
    }

    /// Returns true if documents leave it out: they are the same to the byte as before there were versions.
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

    /// Returns true if default lanes follow the global batch.
    pub(super) fn lanes_follow_the_batch(self) -> bool {
        self >= Self::V3
    }

    /// Consecutive positions of a mixture that draw from one dataset, in a plan with `batch` rows per step and `lanes`
    /// lanes.
    pub(super) fn round(self, batch: u64, lanes: u64) -> u64 {
        let lanes = lanes.max(1);
        let rounds = self >= Self::V3 && batch.is_multiple_of(lanes) && batch / lanes >= FEWEST_ROUNDS;
        if rounds { lanes } else { 1 }
    }

    /// Returns true if file order may have several lanes.
    pub(super) fn has_lanes_in_file_order(self) -> bool {
        self >= Self::V3
    }

    /// Returns true if large row groups are cut into units.
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

/// Minimum rounds of a step over all lanes if each is of one dataset: its proportions are off by one or two of them.
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
