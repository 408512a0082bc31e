//! The shuffle quality of a plan, as one number to compare lanes and windows by.

use std::collections::HashMap;
use std::ops::Range;

use super::recent::Recent;
use super::share::{Share, length};
use super::steps::{Plan, RowRef};
use crate::manifest::RowGroup;

/// Bins of the file order.
const BINS: u64 = 64;
/// Minimum rows of a sample, in whole batches.
const SAMPLE_ROWS: u64 = 64;
/// Maximum rows of a sample that are examined.
const MOST_ROWS: u64 = 4096;
/// Samples, evenly spaced over the epoch.
const SAMPLES: u64 = 32;

impl Plan {
    /// Shuffle quality from 0 (file order) to 1 (as a uniform draw).
    ///
    /// A sample is one global batch, or as many consecutive ones as make 64 rows. Each of its rows falls into one of 64
    /// equal bins (fewer if there are fewer rows) of its dataset's selected rows in file order. The entropy of the
    /// sample over the bins, divided by the expected entropy of the same number of independent uniform draws and capped
    /// at 1, is the sample's quality. The result is the mean over 32 samples evenly spaced over the epoch, weighted by
    /// rows; in a mixture each source counts as a sample of its own. Of a sample above 4096 rows, only every second,
    /// third, ... row is examined.
    pub fn quality(&self) -> f64 {
        // Selected rows before each row group, in file order.
        let before: Vec<Vec<u64>> = self
            .manifests
            .iter()
            .map(|manifest| {
                let mut rows = 0;
                let first = |group: &RowGroup| {
                    rows += group.selected;
                    rows - group.selected
                };
                manifest.groups.iter().map(first).collect()
            })
            .collect();
        let steps_each = SAMPLE_ROWS.div_ceil(self.spec().global_batch).min(self.steps().max(1));
        let samples = (self.steps() / steps_each).clamp(1, SAMPLES);
        let (mut sum, mut weight) = (0.0, 0.0);
        let (mut expected, recent) = (HashMap::new(), Recent::default());
        for sample in 0..samples {
            let first = (u128::from(self.steps() - steps_each.min(self.steps())) * u128::from(sample)
                / u128::from(samples.max(2) - 1)) as u64;
            let steps = first..first + steps_each;
            let real: u64 = steps.clone().map(|step| self.real_rows(step, Share::whole())).sum();
            let mut rows: Vec<RowRef> = Vec::new();
            self.each_nth(steps, real.div_ceil(MOST_ROWS).max(1), &recent, |row| rows.push(row));
            for (source, before) in (0..).zip(&before) {
                let total = self.sources[source as usize].rows();
                let bins = total.min(BINS);
                let mut counts = vec![0_u64; bins as usize];
                let mut n = 0_u64;
                for row in rows.iter().filter(|row| row.source == source) {
                    let at = before[row.group as usize] + u64::from(row.row);
                    counts[(u128::from(at) * u128::from(bins) / u128::from(total)) as usize] += 1;
                    n += 1;
                }
                if n < 2 || bins < 2 {
                    continue;
                }
                let uniform = *expected.entry((n, bins)).or_insert_with(|| expected_entropy(n, bins));
                sum += n as f64 * (entropy(&counts, n) / uniform).min(1.0);
                weight += n as f64;
            }
        }
        if weight > 0.0 { sum / weight } else { 1.0 }
    }

    /// Calls `visit` with the first of every `stride` rows that all ranks deliver for the first time in `steps`, in order. The others are
    /// not even listed: a batch may have billions.
    fn each_nth(&self, steps: Range<u64>, stride: u64, recent: &Recent, mut visit: impl FnMut(RowRef)) {
        let mut before = 0;
        for step in steps {
            self.runs(step, Share::whole(), |run| {
                let source = &self.sources[run.source];
                self.each_window(&run, |pass, window, range| {
                    let mut row_of = |group, row| visit(RowRef { source: run.source as u32, group, row });
                    let first = range.start + (stride - before % stride) % stride;
                    before += length(&range);
                    if stride == 1 {
                        source.each_row(recent, pass, run.lane, &window, range, row_of);
                        return;
                    }
                    for at in (first..range.end).step_by(stride as usize) {
                        source.each_row(recent, pass, run.lane, &window, at..at + 1, &mut row_of);
                    }
                });
            });
        }
    }
}

/// Entropy of the counts, in nats.
fn entropy(counts: &[u64], n: u64) -> f64 {
    let sum: f64 = counts.iter().filter(|count| **count > 1).map(|count| *count as f64 * (*count as f64).ln()).sum();
    (n as f64).ln() - sum / n as f64
}

/// The mean of [`entropy`] over `n` independent uniform draws from `bins`: each count is binomial.
fn expected_entropy(n: u64, bins: u64) -> f64 {
    let odds = 1.0 / (bins as f64 - 1.0);
    // Logarithms, since the probability of no draw at all may be below the smallest double.
    let mut log_probability = n as f64 * (1.0 - 1.0 / bins as f64).ln();
    let mut sum = 0.0;
    for count in 1..=n {
        log_probability += ((n - count + 1) as f64 / count as f64 * odds).ln();
        sum += log_probability.exp() * count as f64 * (count as f64).ln();
    }
    (n as f64).ln() - bins as f64 * sum / n as f64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::manifest::Manifest;
    use crate::plan::{PlanSpec, Shuffle, Tail};

    #[test]
    fn expected_entropy_is_that_of_enumeration() {
        // Two draws from two bins: the same one with probability 1/2.
        assert!((expected_entropy(2, 2) - 0.5 * 2_f64.ln()).abs() < 1e-12);
        // Three draws from two bins: all in one with probability 1/4, otherwise split 1 and 2.
        let split = 3_f64.ln() - 2.0 / 3.0 * 2_f64.ln();
        assert!((expected_entropy(3, 2) - 0.75 * split).abs() < 1e-12);
        assert!((expected_entropy(4096, 64) - 64_f64.ln()).abs() < 0.01);
    }

    #[test]
    fn a_batch_beyond_memory_costs_what_its_real_rows_cost() {
        let manifests = [Arc::new(Manifest::imaginary(&[100; 10], 100))];
        let quality = |tail| {
            let spec = PlanSpec { lanes: Some(4), window_rows: Some(100), tail, ..PlanSpec::new(3, 1 << 31) };
            Plan::new(&manifests, spec.resolve(&manifests).unwrap(), 0).unwrap().quality()
        };
        // Nearly all of this batch are rows that are repeated.
        assert_eq!(quality(Tail::Repeat).to_bits(), quality(Tail::Pad).to_bits());
    }

    #[test]
    fn every_nth_row_is_that_of_the_steps() {
        let manifests = [Arc::new(Manifest::imaginary(&[100; 640], 100))];
        for (lanes, window_rows, shuffle) in
            [(1, None, Shuffle::None), (1, Some(400), Shuffle::Windows), (8, Some(1 << 40), Shuffle::Windows)]
        {
            let spec = PlanSpec { lanes: Some(lanes), window_rows, shuffle, ..PlanSpec::new(3, 10_000) };
            let plan = Plan::new(&manifests, spec.resolve(&manifests).unwrap(), 0).unwrap();
            let steps = 4..plan.steps();
            let all: Vec<RowRef> = steps
                .clone()
                .flat_map(|step| {
                    let step = plan.step(step, Share::whole());
                    step.rows.into_iter().take(step.real)
                })
                .collect();
            for stride in [1, 2, 7, 5000, 1 << 40] {
                let mut found = Vec::new();
                plan.each_nth(steps.clone(), stride, &Recent::default(), |row| found.push(row));
                let expected: Vec<RowRef> = all.iter().step_by(stride as usize).copied().collect();
                assert_eq!(found, expected, "{lanes} lanes, every {stride}");
            }
        }
    }

    #[test]
    fn order_is_0_and_shuffle_is_near_1() {
        let manifests = [Arc::new(Manifest::imaginary(&[100; 640], 100))];
        let quality = |spec: PlanSpec| {
            let spec = spec.resolve(&manifests).unwrap();
            Plan::new(&manifests, spec, 0).unwrap().quality()
        };
        let spec = PlanSpec::new(3, 256);
        let none = quality(PlanSpec { shuffle: Shuffle::None, ..spec.clone() });
        let one = quality(PlanSpec { lanes: Some(1), window_rows: Some(1), ..spec.clone() });
        let some = quality(PlanSpec { lanes: Some(8), window_rows: Some(400), ..spec.clone() });
        let all = quality(PlanSpec { lanes: Some(8), window_rows: Some(1 << 40), ..spec });
        assert!(none < 0.05 && none < one && one < some && some < all, "{none:.3} {one:.3} {some:.3} {all:.3}");
        assert!(some > 0.75 && all > 0.98, "{some:.3} {all:.3}");
    }
}
