//! Defaults for what a spec leaves open: lanes and windows. They follow the global batch and the data, never the
//! machine or the world size, so that every rank of every world finds the same.

use std::sync::Arc;

use super::version::OrderVersion;
use crate::manifest::Manifest;

/// Maximum lanes that can be requested.
pub(crate) const MAX_LANES: u32 = 1 << 16;
/// Maximum lanes of a plan regardless of its batch: beyond this, more lanes mix little better and read more row groups
/// at once.
const MIXING_LANES: u64 = 32;
/// Bytes of row groups that the lanes for mixing may need at once.
const LANE_BYTES: u64 = 1 << 30;
/// As many lanes as a common machine has ranks, if their row groups fit in `LANE_BYTES`.
const GANG_LANES: u64 = 8;
/// Bytes of row groups that a larger number of lanes may need before the first batch.
const FIRST_BATCH_BYTES: u64 = 256 << 20;
/// Bytes of rows that the windows of all lanes hold together.
const WINDOW_BYTES: u64 = 256 << 20;
/// A window outlasts this many steps, so that a step seldom needs two windows of a lane.
const STEPS_PER_WINDOW: u64 = 4;

/// Rows of the global batch attributed to one rank, if these are no more bytes than `RANK_BATCH_BYTES`.
const RANK_ROWS: u64 = 512;
/// Minimum of these rows.
const LEAST_RANK_ROWS: u64 = 32;
/// Wide rows train in small batches.
const RANK_BATCH_BYTES: u64 = 4 << 20;
/// Bytes of row groups that each of these ranks may hold.
const RANK_BYTES: u64 = FIRST_BATCH_BYTES;
/// For rows so wide that the batches in flight are the larger part: bytes of row groups per byte of a batch. Six
/// batches are in flight, so row groups take about four times as much.
const BATCHES: u64 = 24;
/// Bytes of row groups that the lanes of all ranks may need together: a server holds them all, and so does a rank that
/// is left alone or has the batch of many. Twice as many are held while lanes change windows, which the default budget
/// of 4 GiB allows.
const WHOLE_BYTES: u64 = 3 << 29;
/// The same for each row beyond `SERVED_ROWS`: larger batches are for more ranks than one server has.
const WHOLE_BYTES_PER_ROW: u64 = 16 << 10;
/// Rows of the global batch of 256 ranks.
const SERVED_ROWS: u64 = 256 * RANK_ROWS;
/// Maximum lanes by default: each step queries all of them.
const MOST_LANES: u64 = MAX_LANES as u64 / 8;

/// Default lanes of a plan with `batch` rows per step.
pub(super) fn lanes(version: OrderVersion, batch: u64, manifests: &[Arc<Manifest>]) -> u32 {
    let sources: Vec<_> = manifests.iter().map(|manifest| Groups::of(manifest)).collect();
    let mixing = for_mixing(batch, &sources);
    if !version.lanes_follow_the_batch() {
        return mixing;
    }
    let row_bytes = manifests.iter().fold(0, |sum: u64, manifest| sum.saturating_add(manifest.row_bytes()));
    mixing.max(for_ranks(batch, row_bytes, &sources))
}

/// Default rows of a window in each of `lanes` lanes.
pub(super) fn window_rows(batch: u64, lanes: u32, manifests: &[Arc<Manifest>]) -> u64 {
    let row: u64 = manifests.iter().fold(0, |sum, manifest| sum.saturating_add(manifest.row_bytes()));
    let lanes = u64::from(lanes.max(1));
    let steps = steps_rows(batch, lanes);
    let bytes = WINDOW_BYTES / lanes;
    let median = manifests.iter().map(|manifest| Groups::of(manifest).median).fold(0, u64::saturating_add);
    // The first batch would wait for a second row group, and the lanes mix more than it would.
    let is_one = lanes > 1 && bytes / 2 < median;
    if is_one { steps } else { (bytes / row.max(1)).max(steps) }
}

/// Minimum rows of a window in each of `lanes` lanes.
pub(super) fn steps_rows(batch: u64, lanes: u64) -> u64 {
    batch.saturating_mul(STEPS_PER_WINDOW).div_ceil(lanes.max(1))
}

/// The row groups of one dataset that have rows.
#[derive(Debug, Clone, Copy)]
struct Groups {
    count: u64,
    median: u64,
    bytes: u64,
}

impl Groups {
    fn of(manifest: &Manifest) -> Self {
        let mut sizes: Vec<u64> =
            manifest.groups.iter().filter(|group| group.selected > 0).map(|group| group.bytes).collect();
        let (count, bytes) = (sizes.len() as u64, sizes.iter().copied().fold(0, u64::saturating_add));
        let middle = sizes.len() / 2;
        let median = if middle < sizes.len() { *sizes.select_nth_unstable(middle).1 } else { 0 };
        Self { count, median, bytes }
    }
}

/// Lanes for a single rank, so that its batches are mixed.
fn for_mixing(batch: u64, sources: &[Groups]) -> u32 {
    let most = sources.iter().map(|source| source.count).fold(MIXING_LANES.min(batch), u64::min);
    let bytes = sources.iter().fold(0, |sum: u64, source| sum.saturating_add(source.median));
    // The first batch waits for a row group of every lane, so large row groups get few lanes. But a gang of more ranks
    // than lanes reads row groups several times, so up to 8 lanes may take more.
    let quick = FIRST_BATCH_BYTES / bytes.max(1);
    let most = most.min(quick.max(GANG_LANES.min(LANE_BYTES / bytes.max(1)))).max(1);
    // At most MIXING_LANES, so it fits.
    power_of_two(batch, most) as u32
}

/// The largest power of two up to `most`, or one that divides the batch if that leaves at least 4.
fn power_of_two(batch: u64, most: u64) -> u64 {
    let lanes = 1 << most.max(1).ilog2();
    let divisor = (1 << batch.trailing_zeros().min(63)).min(lanes);
    if divisor >= 4 { divisor } else { lanes }
}

/// Lanes for a gang, so that no two of its ranks read the same row groups: the number of ranks is unknown, but a larger
/// batch is for more of them. Each holds the row groups of its own lanes alone. There may be more lanes than row
/// groups: several are then cut out of one, and a rank still reads less than if it shared a lane.
fn for_ranks(batch: u64, row_bytes: u64, sources: &[Groups]) -> u32 {
    let rows = (RANK_BATCH_BYTES / row_bytes.max(1)).clamp(LEAST_RANK_ROWS, RANK_ROWS);
    // A power of two, as batches are.
    let rows = 1 << rows.ilog2();
    let ranks = batch / rows;
    let each = (RANK_BYTES / RANK_ROWS).max(BATCHES.saturating_mul(row_bytes));
    let together = WHOLE_BYTES.saturating_add(batch.saturating_sub(SERVED_ROWS).saturating_mul(WHOLE_BYTES_PER_ROW));
    let may_hold = (u128::from(batch) * u128::from(each)).min(together.into());
    let hold = |lanes: u64| -> u128 {
        let of = |source: &Groups| (u128::from(lanes) * u128::from(source.median)).min(source.bytes.into());
        sources.iter().map(of).sum()
    };
    let (mut most, mut beyond) = (0, ranks.min(MOST_LANES) + 1);
    while most + 1 < beyond {
        let lanes = most.midpoint(beyond);
        if hold(lanes) <= may_hold { most = lanes } else { beyond = lanes }
    }
    // A divisor of the number of ranks gives all of them equally many.
    let whole = if batch.is_multiple_of(rows) { ranks } else { batch };
    let even = (most / 2 + 1..=most).rev().find(|lanes| whole.is_multiple_of(*lanes));
    // At most MOST_LANES, so it fits.
    even.unwrap_or_else(|| power_of_two(batch, most)) as u32
}

/// Ratio of a full window's rows to the first window's.
const FIRST_WINDOW: u64 = 16;

impl OrderVersion {
    /// Rows of the first window of a lane, in a plan with `batch` rows per step and `lanes` lanes. Windows of
    /// `window_rows` rows follow, at once if the first is no smaller.
    pub(super) fn first_window(self, batch: u64, lanes: u64, window_rows: u64) -> u64 {
        match self {
            Self::V1 | Self::V2 => window_rows,
            Self::V3 => (window_rows / FIRST_WINDOW).max(steps_rows(batch, lanes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spec::{Mix, PlanSpec, Stop};
    use super::*;

    fn resolved(spec: PlanSpec, groups: usize, row_bytes: u64) -> (u32, u64) {
        let manifest = Arc::new(Manifest::imaginary(&vec![1000; groups], row_bytes));
        let spec = spec.resolve(&[Arc::clone(&manifest)]).unwrap();
        assert_eq!(spec.resolve(&[manifest]).unwrap(), spec);
        (spec.lanes.unwrap(), spec.window_rows.unwrap())
    }

    #[test]
    fn defaults_follow_the_data() {
        // The same in all versions: none of these batches is for many ranks.
        for order_version in OrderVersion::ALL {
            let lanes = |batch, groups, row_bytes| {
                resolved(PlanSpec { order_version, ..PlanSpec::new(0, batch) }, groups, row_bytes)
            };
            assert_eq!(lanes(1024, 1000, 1024), (32, 8192));
            assert_eq!(lanes(1, 1000, 200 << 10), (1, 1310), "one lane mixes row groups in its windows only");
            assert_eq!(lanes(1024, 1000, 4 << 10), (32, 2048), "two row groups of 4 MiB to a window");
            assert_eq!(lanes(1024, 1000, 5 << 10), (32, 128), "each row group of 5 MiB is a window");
            assert_eq!(lanes(256, 1000, 128 << 10), (8, 128), "row groups of 128 MiB");
            assert_eq!(lanes(1024, 3, 1), (2, 128 << 20), "three row groups");
            assert_eq!(lanes(24, 1000, 1024).0, 8, "24 is divided by 8");
            assert_eq!(lanes(26, 1000, 1024).0, 16, "26 is divided by 2 only, which is too few");
            assert_eq!(lanes(7, 1000, 0), (4, 64 << 20));
            assert_eq!(lanes(7, 0, 0).0, 1, "no rows at all");
        }
    }

    /// Default lanes for `ranks` ranks of `batch` rows each, over row groups of a million rows.
    fn of(version: OrderVersion, ranks: u64, batch: u64, groups: usize, row_bytes: u64) -> u32 {
        let manifest = Arc::new(Manifest::imaginary(&vec![1_000_000; groups], row_bytes));
        lanes(version, ranks * batch, &[manifest])
    }

    #[test]
    fn lanes_follow_the_batch() {
        let v3 = |ranks, batch, groups, row_bytes| of(OrderVersion::V3, ranks, batch, groups, row_bytes);
        // 80 MB each.
        assert_eq!(of(OrderVersion::V2, 64, 512, 1000, 80), 8);
        assert_eq!([1, 8, 64, 96, 256, 1024].map(|ranks| v3(ranks, 512, 1024, 80)), [8, 8, 16, 16, 16, 64]);
        assert_eq!([1, 8, 64, 96, 256, 1024].map(|ranks| v3(ranks, 512, 1024, 8)), [32, 32, 64, 96, 128, 512]);
        assert_eq!([64, 256].map(|ranks| v3(ranks, 512, 16, 80)), [64, 256], "several in a row group");
        assert_eq!(v3(64, 512, 5, 80), 64);
        assert_eq!(v3(64, 512, 1000, 260), 4, "1.5 GiB for all ranks");
        assert_eq!(v3(1024, 512, 1000, 260), 16, "16 KiB for each row of large batches");
        assert_eq!(v3(1 << 20, 512, 100_000, 1), 8192, "every step asks all of them");
        // Pictures of 100 KB in row groups of 32 MiB, in batches of 32 to 256.
        let pictures = |ranks: u64, batch| {
            let manifest = Arc::new(Manifest::imaginary(&[320; 40_000], 100 << 10));
            lanes(OrderVersion::V3, ranks * batch, &[manifest])
        };
        assert_eq!((pictures(1, 32), pictures(1, 256), pictures(8, 64)), (8, 8, 16));
        assert_eq!((pictures(64, 32), pictures(96, 64), pictures(256, 64)), (32, 48, 32));
        // A batch without a suitable divisor.
        assert_eq!(v3(1, 99_991, 1000, 80), 16);
    }

    #[test]
    fn a_small_dataset_of_a_mixture_does_not_narrow_the_others() {
        let manifests = [vec![1_000_000; 1000], vec![1000; 2]].map(|rows| Arc::new(Manifest::imaginary(&rows, 80)));
        let mix = Some(Mix { weights: vec![9, 1], stop: Stop::AllExhausted });
        let lanes = |order_version| {
            let spec = PlanSpec { mix: mix.clone(), order_version, ..PlanSpec::new(0, 64 * 512) };
            spec.resolve(&manifests).unwrap().lanes
        };
        assert_eq!((lanes(OrderVersion::V2), lanes(OrderVersion::V3)), (Some(2), Some(16)));
    }
}
