//! Everything that determines an order besides the data: a few numbers, saved in every state.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cuts::Cuts;
use super::defaults::{self, MAX_LANES};
use super::interleave::gcd;
use super::share::Share;
use super::tail::Tail;
use super::version::OrderVersion;
use crate::error::{Error, Result};
use crate::manifest::Manifest;

/// Largest global batch, in rows.
pub(crate) const MAX_GLOBAL_BATCH: u64 = 1 << 31;
/// Maximum rows of a window that can be requested: no dataset of a plan has more.
pub(crate) const MAX_WINDOW_ROWS: u64 = 1 << 62;
/// Maximum sources of a mixture: the weights are part of the state, which is at most 4 KiB.
const MAX_SOURCES: usize = 256;
/// Largest sum of weights.
const MAX_WEIGHT: u64 = 1 << 31;

/// The shuffle of rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Shuffle {
    /// File order. With several lanes each is a part of the file order, and a step takes the next rows of every part.
    None,
    /// Row groups in random order over several lanes, rows in random order within windows of each lane.
    #[default]
    Windows,
}

/// The end of a mixture's epoch.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    /// With the last row of the source that ends first. The rest of the other sources is not delivered in this epoch.
    #[default]
    FirstExhausted,
    /// When every source has been delivered at least once. A source that ends earlier starts again, with its rows in a
    /// new order.
    AllExhausted,
}

/// A mixture of datasets in fixed proportions.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mix {
    /// Rows of each source in every `sum(weights)` rows. Integers, so that the order is exact on every machine.
    pub weights: Vec<u32>,
    /// When the epoch ends.
    #[serde(default)]
    pub stop: Stop,
}

impl Mix {
    /// A mixture in the proportions `weights`: whole numbers are used as they are, others to six digits of their sum.
    ///
    /// ```
    /// use bowstring::plan::{Mix, Stop};
    /// # fn main() -> bowstring::Result<()> {
    /// assert_eq!(Mix::new(&[0.7, 0.3], Stop::FirstExhausted)?.weights, [7, 3]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Config`] for a weight that is not positive, or less than a millionth of the whole.
    pub fn new(weights: &[f64], stop: Stop) -> Result<Self> {
        let sum: f64 = weights.iter().sum();
        if let Some(wrong) = weights.iter().find(|weight| !weight.is_finite() || **weight <= 0.0) {
            return Err(Error::config(
                "weights",
                format!("{wrong} is not a positive number; leave the dataset out instead"),
            ));
        }
        let whole = weights.iter().all(|weight| weight.fract() == 0.0) && sum <= MAX_WEIGHT as f64;
        let scale = if whole { 1.0 } else { 1e6 / sum };
        let rounded = |weight: &f64| match (weight * scale).round() {
            parts if parts >= 1.0 => Ok(parts as u32),
            _ => Err(Error::config(
                "weights",
                format!("{weight} of {sum} is less than a millionth; leave the dataset out"),
            )),
        };
        let mut mix = Self { weights: weights.iter().map(rounded).collect::<Result<_>>()?, stop };
        mix.reduce();
        mix.validate(weights.len())?;
        Ok(mix)
    }

    /// Divides by the common divisor, so that equal proportions have equal weights.
    fn reduce(&mut self) {
        let divisor = self.weights.iter().fold(0, |divisor, weight| gcd(divisor, u64::from(*weight)));
        if let Some(divisor) = u32::try_from(divisor).ok().filter(|divisor| *divisor > 1) {
            self.weights.iter_mut().for_each(|weight| *weight /= divisor);
        }
    }

    fn validate(&self, sources: usize) -> Result<()> {
        let sum: u64 = self.weights.iter().map(|weight| u64::from(*weight)).sum();
        let problem = if self.weights.len() != sources {
            format!("{} weights for {sources} datasets; give one for each", self.weights.len())
        } else if sources == 0 || sources > MAX_SOURCES {
            format!("{sources} datasets; a mixture has 1 to {MAX_SOURCES}")
        } else if self.weights.contains(&0) {
            "a weight of 0; leave the dataset out instead".to_owned()
        } else if sum > MAX_WEIGHT {
            format!("weights add up to {sum}; at most {MAX_WEIGHT}")
        } else {
            return Ok(());
        };
        Err(Error::config("weights", problem))
    }
}

/// The input of a plan besides the data and the epoch.
///
/// `lanes` and `window_rows` may be left open; [`resolve`](Self::resolve) computes them from the data alone, never from
/// the machine or the world size, and a state saves the result.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlanSpec {
    /// Seed of the order.
    pub seed: u64,
    /// The shuffle of rows.
    #[serde(default)]
    pub shuffle: Shuffle,
    /// Rows of all ranks together per step.
    pub global_batch: u64,
    /// Lanes read at once; at most `global_batch`.
    #[serde(default)]
    pub lanes: Option<u32>,
    /// Minimum rows of a window of a lane, unless the lane itself has fewer.
    #[serde(default)]
    pub window_rows: Option<u64>,
    /// Treatment of the last, incomplete step. A document that does not name it pads.
    #[serde(default = "Tail::unnamed")]
    pub tail: Tail,
    /// Proportions, if the plan is over several datasets.
    #[serde(default)]
    pub mix: Option<Mix>,
    /// Version of the meaning of this spec. A document that does not name it is of the first version.
    #[serde(default = "OrderVersion::unnamed", skip_serializing_if = "OrderVersion::is_unnamed")]
    pub order_version: OrderVersion,
}

impl PlanSpec {
    /// A shuffled plan of `global_batch` rows per step over one dataset, with defaults for everything else, in the
    /// latest version of the order.
    pub fn new(seed: u64, global_batch: u64) -> Self {
        Self {
            seed,
            shuffle: Shuffle::Windows,
            global_batch,
            lanes: None,
            window_rows: None,
            tail: Tail::USUAL,
            mix: None,
            order_version: OrderVersion::LATEST,
        }
    }

    /// Returns true if no rank gets a row twice in one epoch, as far as these values tell: in file order in one lane. (Bad rows
    /// may have others in their place.) The rows from
    /// the start of the epoch that fill its last step go to other ranks than the first time, except with [`Tail::Repeat`].
    pub(crate) fn gives_once(&self) -> bool {
        self.shuffle == Shuffle::None && self.lanes == Some(1) && self.mix.is_none() && self.tail != Tail::Repeat
    }

    /// The same spec with all open values filled in. Resolving again changes nothing.
    ///
    /// Lanes: enough for [a rank of its own](OrderVersion::V3) per few hundred rows of the global batch, but never
    /// fewer than in the second version: the largest power of two that is at most 32, the global batch and the number
    /// of row groups, and keeps a row group of median size per lane and dataset within 256 MiB, or for up to 8 lanes
    /// within 1 GiB. A divisor of the global batch if that leaves at least 4. In file order, one. Window rows: enough
    /// to make the windows of all lanes 256 MiB, but at least four steps' worth; no more than four steps' worth, so
    /// that each row group is a window, if there are several lanes and fewer than two row groups of median size make up
    /// a window.
    ///
    /// # Errors
    /// [`Error::Config`] for values that no plan can have.
    pub fn resolve(&self, manifests: &[Arc<Manifest>]) -> Result<Self> {
        let mut spec = self.clone();
        if let Some(mix) = &mut spec.mix {
            mix.reduce();
        }
        match spec.shuffle {
            // One window per row group: nothing is held longer than its rows last.
            Shuffle::None => {
                spec.lanes.get_or_insert(1);
                spec.window_rows.get_or_insert(1);
            }
            Shuffle::Windows => {
                let batch = spec.global_batch.max(1);
                let lanes = *spec.lanes.get_or_insert_with(|| defaults::lanes(spec.order_version, batch, manifests));
                spec.window_rows.get_or_insert_with(|| defaults::window_rows(batch, lanes, manifests));
            }
        }
        spec.validate(manifests)?;
        Ok(spec)
    }

    /// Steps of an epoch that delivers `rows` rows, for one rank or any number of ranks of two rows each.
    pub(crate) fn steps(&self, rows: u64) -> u64 {
        Cuts::new(self.tail, self.global_batch.max(1), rows, 1).steps()
    }

    /// Rows of `step` on `world` ranks together, including padded and repeated ones, in an epoch that delivers `rows`
    /// rows.
    pub(crate) fn step_rows(&self, rows: u64, world: u32, step: u64) -> u64 {
        Cuts::new(self.tail, self.global_batch.max(1), rows, world).places(step, Share { rank: 0, world })
    }

    /// Refuses numbers that are impossible for any dataset; open numbers are accepted.
    ///
    /// # Errors
    /// [`Error::Config`] naming the option.
    pub(crate) fn check_numbers(&self) -> Result<()> {
        let batch = self.global_batch;
        if batch == 0 || batch > MAX_GLOBAL_BATCH {
            return Err(Error::config("global_batch_size", format!("{batch} rows; from 1 to {MAX_GLOBAL_BATCH}")));
        }
        let most = batch.min(u64::from(MAX_LANES));
        if let Some(lanes) = self.lanes.filter(|lanes| !(1..=most).contains(&u64::from(*lanes))) {
            let problem = format!("{lanes} lanes for a global batch of {batch} rows; from 1 to {most}");
            return Err(Error::config("lanes", problem));
        }
        if self.window_rows == Some(0) {
            return Err(Error::config("window_rows", "a window has at least one row"));
        }
        if let Some(rows) = self.window_rows.filter(|rows| *rows > MAX_WINDOW_ROWS) {
            return Err(Error::config("window_rows", format!("{rows}; at most {MAX_WINDOW_ROWS}")));
        }
        Ok(())
    }

    /// Returns lanes and window rows of a spec, which must be resolved, and checks that every other value is possible.
    pub(super) fn validate(&self, manifests: &[Arc<Manifest>]) -> Result<(u32, u64)> {
        let unresolved = |option| Error::config(option, "not filled in; resolve the spec over the manifests first");
        let lanes = self.lanes.ok_or_else(|| unresolved("lanes"))?;
        let window_rows = self.window_rows.ok_or_else(|| unresolved("window_rows"))?;
        self.check_numbers()?;
        if self.shuffle == Shuffle::None {
            if window_rows != 1 {
                return Err(Error::config("window_rows", "without shuffle there are no windows; leave the option out"));
            }
            if lanes != 1 && !self.order_version.has_lanes_in_file_order() {
                let problem = "without shuffle there is one lane in file order before version 3 of the order; leave the option out";
                return Err(Error::config("lanes", problem));
            }
        }
        match &self.mix {
            Some(mix) => mix.validate(manifests.len())?,
            None if manifests.len() == 1 => {}
            None => {
                let problem = format!("none for {} datasets; a mixture needs one for each", manifests.len());
                return Err(Error::config("weights", problem));
            }
        }
        Ok((lanes, window_rows))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::plan::{Plan, Share};

    #[test]
    fn impossible_values_are_named() {
        let one = [Arc::new(Manifest::imaginary(&[10], 1))];
        let option = |spec: PlanSpec, manifests: &[Arc<Manifest>]| match spec.resolve(manifests) {
            Err(Error::Config { option, .. }) => option,
            other => panic!("{other:?}"),
        };
        let spec = PlanSpec::new(0, 8);
        assert_eq!(option(PlanSpec::new(0, 0), &one), "global_batch_size");
        assert_eq!(option(PlanSpec::new(0, u64::MAX), &one), "global_batch_size");
        assert_eq!(option(PlanSpec { lanes: Some(9), ..spec.clone() }, &one), "lanes");
        assert_eq!(option(PlanSpec { lanes: Some(0), ..spec.clone() }, &one), "lanes");
        assert_eq!(option(PlanSpec { window_rows: Some(0), ..spec.clone() }, &one), "window_rows");
        let second = PlanSpec { order_version: OrderVersion::V2, ..spec.clone() };
        assert_eq!(option(PlanSpec { shuffle: Shuffle::None, lanes: Some(2), ..second }, &one), "lanes");
        let parts = PlanSpec { shuffle: Shuffle::None, lanes: Some(2), ..spec.clone() }.resolve(&one).unwrap();
        assert_eq!((parts.lanes, parts.window_rows), (Some(2), Some(1)));
        assert_eq!(
            option(PlanSpec { shuffle: Shuffle::None, window_rows: Some(9), ..spec.clone() }, &one),
            "window_rows"
        );
        assert_eq!(option(spec.clone(), &[]), "weights");
        for weights in [vec![], vec![0], vec![1, 1], vec![1; 257]] {
            let mix = Some(Mix { weights, stop: Stop::default() });
            assert_eq!(option(PlanSpec { mix, ..spec.clone() }, &one), "weights");
        }
        for weights in
            [[1.0, 0.0], [1.0, -1.0], [f64::NAN, 1.0], [1e9, 1e-9], [f64::MAX, f64::MAX], [f64::INFINITY, 1.0]]
        {
            assert!(Mix::new(&weights, Stop::default()).is_err(), "{weights:?}");
        }
        assert_eq!(Mix::new(&[1.0 / 3.0; 3], Stop::default()).unwrap().weights, [1, 1, 1]);
        assert_eq!(Mix::new(&[20.0, 10.0], Stop::default()).unwrap().weights, [2, 1]);
    }

    #[test]
    fn a_plan_that_gives_once_gives_no_rank_a_row_twice() {
        let tails = [Tail::Short, Tail::Even, Tail::Pad, Tail::Drop, Tail::Repeat];
        let mut repeated = 0;
        for (rows, world, each, tail) in (1..30)
            .flat_map(|rows| (1..7).flat_map(move |world| (1..5).map(move |each| (rows, world, each))))
            .flat_map(|(rows, world, each)| tails.map(|tail| (rows, world, each, tail)))
        {
            let manifests = [Arc::new(Manifest::imaginary(&[rows / 3, rows - rows / 3], 1))];
            let global = u64::from(world) * each;
            let spec = PlanSpec { shuffle: Shuffle::None, tail, ..PlanSpec::new(0, global) }.resolve(&manifests);
            let plan = Plan::new(&manifests, spec.unwrap(), 0).unwrap().for_world(world);
            for share in (0..world).map(|rank| Share::new(rank, world).unwrap()) {
                if plan.check_share(share).is_err() {
                    continue;
                }
                let mut seen = HashSet::new();
                let all = (0..plan.steps()).flat_map(|step| plan.step(step, share).rows);
                let is_once = all.map(|row| (row.group, row.row)).all(|row| seen.insert(row));
                assert!(is_once || !plan.spec().gives_once(), "{rows} rows, {share:?}, batches of {each}, {tail:?}");
                repeated += u32::from(!is_once);
            }
        }
        assert!(repeated > 0, "Repeat repeats");
        let manifests = [Arc::new(Manifest::imaginary(&[9; 4], 1))];
        for spec in [PlanSpec::new(0, 2), PlanSpec { shuffle: Shuffle::None, lanes: Some(2), ..PlanSpec::new(0, 2) }] {
            assert!(!spec.resolve(&manifests).unwrap().gives_once());
        }
    }

    #[test]
    fn json_is_strict() {
        let spec: PlanSpec = serde_json::from_str(r#"{"seed":1,"global_batch":8}"#).unwrap();
        assert_eq!(spec, PlanSpec { order_version: OrderVersion::V1, tail: Tail::Pad, ..PlanSpec::new(1, 8) });
        assert!(!serde_json::to_string(&spec).unwrap().contains("order_version"));
        let json = serde_json::to_string(&PlanSpec::new(1, 8)).unwrap();
        assert!(json.ends_with(r#","order_version":3}"#), "{json}");
        assert_eq!(serde_json::from_str::<PlanSpec>(&json).unwrap(), PlanSpec::new(1, 8));
        assert!(serde_json::from_str::<PlanSpec>(&json.replace("version\":3", "version\":0")).is_err());
        assert!(serde_json::from_str::<PlanSpec>(r#"{"seed":1,"global_batch":8,"world":2}"#).is_err());
    }
}
