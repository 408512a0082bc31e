//! The census of an epoch: walks its order, counts each row, and makes a digest that two machines can compare.
//!
//! The check that every row came once does not use the code that permutes: the rows are numbered in file order, and the
//! walk must give the same sum of their hashes as counting from the first row to the last. Two independent sums of 64
//! bits miss a row that is replaced by another with a probability of 2^-128.

use std::sync::atomic::{AtomicU64, Ordering};

use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::share::Share;
use super::steps::{Plan, RowRef};
use super::tail::Tail;
use crate::hex;

/// The result of a walk over an epoch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Census {
    /// Rows delivered for the first time.
    pub rows: u64,
    /// Rows that the tail repeats.
    pub repeated: u64,
    /// True if each selected row came exactly once; `None` where the plan does not deliver all of them: mixtures, and
    /// the tail `drop`.
    pub each_row_once: Option<bool>,
    /// SHA-256 over the digests of all steps, each over its rows in order: dataset, row group of the plan, row.
    pub digest: String,
}

/// Two hashes of a row, to be summed.
type Sums = [u64; 2];

fn hashes(row: RowRef) -> Sums {
    let place = u64::from(row.group) << 32 | u64::from(row.row);
    let mix = |mut x: u64| {
        // A permutation of 64 bits that scatters neighbours.
        x ^= x >> 30;
        x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x ^= x >> 27;
        x = x.wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ x >> 31
    };
    let source = u64::from(row.source);
    [mix(place ^ mix(source + 1)), mix(!place ^ mix(source + 0x9e37_79b9_7f4a_7c15))]
}

fn add(left: Sums, right: Sums) -> Sums {
    [left[0].wrapping_add(right[0]), left[1].wrapping_add(right[1])]
}

impl Plan {
    /// Walks the whole epoch, on all threads of the pool that it is called in. Takes memory for a step per thread and
    /// 64 bytes for each step, and time for every row.
    pub fn census(&self) -> Census {
        self.census_counted(&AtomicU64::new(0))
    }

    /// As [`census`](Self::census), and adds each step that was counted to `done`, for those who watch.
    pub(crate) fn census_counted(&self, done: &AtomicU64) -> Census {
        let counted = |step| {
            let counted = self.counted(step);
            done.fetch_add(1, Ordering::Relaxed);
            counted
        };
        let steps: Vec<([u8; 32], u64, u64, Sums)> = (0..self.steps()).into_par_iter().map(counted).collect();
        let mut digest = Sha256::new();
        let (mut rows, mut repeated, mut sums) = (0_u64, 0_u64, Sums::default());
        for (of_step, real, more, of_rows) in steps {
            digest.update(of_step);
            (rows, repeated, sums) = (rows + real, repeated + more, add(sums, of_rows));
        }
        let is_whole = self.spec().mix.is_none() && self.spec().tail != Tail::Drop;
        let each_row_once = is_whole.then(|| self.numbered() == (rows, sums));
        let digest = hex::of(digest.finalize());
        Census { rows, repeated, each_row_once, digest }
    }

    /// The digest of a step, the counts of its first-time and repeated rows, and the sums of the former.
    fn counted(&self, step: u64) -> ([u8; 32], u64, u64, Sums) {
        let found = self.step(step, Share::whole());
        let mut digest = Sha256::new();
        for row in &found.rows {
            let mut bytes = [0; 12];
            bytes[..4].copy_from_slice(&row.source.to_le_bytes());
            bytes[4..8].copy_from_slice(&row.group.to_le_bytes());
            bytes[8..].copy_from_slice(&row.row.to_le_bytes());
            digest.update(bytes);
        }
        let real = &found.rows[..found.real];
        let sums = real.iter().map(|row| hashes(*row)).fold(Sums::default(), add);
        (digest.finalize().into(), real.len() as u64, (found.rows.len() - found.real) as u64, sums)
    }

    /// Counts all selected rows and sums their hashes, from the manifests.
    fn numbered(&self) -> (u64, Sums) {
        let (mut rows, mut sums) = (0, Sums::default());
        for (source, manifest) in (0..).zip(&self.manifests) {
            for (group, found) in (0..).zip(&manifest.groups) {
                rows += found.selected;
                // Plans refuse row groups of more than 2^32 rows.
                for row in 0..found.selected as u32 {
                    sums = add(sums, hashes(RowRef { source, group, row }));
                }
            }
        }
        (rows, sums)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::manifest::Manifest;
    use crate::plan::PlanSpec;

    fn plan(spec: PlanSpec, epoch: u64) -> Plan {
        let manifests = [Arc::new(Manifest::imaginary(&[100, 0, 57, 311], 8))];
        let spec = spec.resolve(&manifests).unwrap();
        Plan::new(&manifests, spec, epoch).unwrap()
    }

    #[test]
    fn an_epoch_has_each_row_once_and_a_digest_of_its_own() {
        let spec = PlanSpec { tail: Tail::Repeat, ..PlanSpec::new(3, 32) };
        let first = plan(spec.clone(), 0).census();
        assert_eq!((first.rows, first.repeated, first.each_row_once), (468, 12, Some(true)));
        assert_eq!(first, plan(spec.clone(), 0).census());
        assert_ne!(first.digest, plan(spec.clone(), 1).census().digest);
        let dropped = plan(PlanSpec { tail: Tail::Drop, ..spec }, 0).census();
        assert_eq!((dropped.rows, dropped.each_row_once), (448, None));
    }

    #[test]
    fn a_row_in_the_place_of_another_changes_the_sums() {
        let row = |group, row| RowRef { source: 0, group, row };
        let right = add(hashes(row(0, 1)), hashes(row(1, 0)));
        for wrong in [[row(0, 0), row(1, 1)], [row(0, 1), row(0, 1)], [row(0, 1), row(1, 1)]] {
            assert_ne!(add(hashes(wrong[0]), hashes(wrong[1])), right);
        }
    }
}
