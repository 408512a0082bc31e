//! A position in an epoch: small, and the same on every rank.

use serde::{Deserialize, Serialize};

use super::cuts::Cuts;
use super::share::length;
use super::spec::{PlanSpec, Shuffle};
use super::steps::Plan;
use super::version::OrderVersion;
use crate::document::words;
use crate::error::{Error, Result};
use crate::manifest::Fingerprint;

/// The number of steps yielded in an epoch of a plan.
///
/// It is independent of the world size: any rank of any world may continue from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Version of this document: 1 for the first version of the order, which it does not name, 2 for the later
    /// versions, which it names.
    pub version: u32,
    /// The data.
    pub fingerprint: Fingerprint,
    /// The resolved spec.
    pub spec: PlanSpec,
    /// The epoch.
    pub epoch: u64,
    /// Steps already yielded, from 0 to [`Plan::steps`]: the first step to yield after resuming. The end of an epoch is
    /// the same number for all worlds, that of a world of one rank, even for one that [has a step
    /// fewer](super::Tail::Even).
    pub step: u64,
    /// Passes left before their end, as the epoch and the step that would have come next: the last
    /// [`MAX_LEFT`](Self::MAX_LEFT). Informative only; resuming does not depend on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<(u64, u64)>,
}

/// The part of a state that all versions share.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
    #[serde(default)]
    spec: Named,
}

/// The part of a spec that all versions of the order share from the second on.
#[derive(Default, Deserialize)]
struct Named {
    order_version: Option<u32>,
}

impl State {
    /// Maximum bytes of a state's JSON.
    pub const MAX_BYTES: usize = 4096;
    /// Maximum passes that a state records as left early.
    pub const MAX_LEFT: usize = 16;

    /// The position before `step` of `plan`.
    pub fn new(plan: &Plan, step: u64) -> Self {
        Self::in_world(plan.fingerprint(), plan.spec().clone(), (plan.steps(), plan.rows()), (plan.epoch(), step))
    }

    /// The position before `step` of `epoch`, counted by ranks whose epochs have `steps` steps and `rows` rows: the end
    /// of an epoch is written as one rank counts it.
    pub(crate) fn in_world(
        fingerprint: Fingerprint,
        spec: PlanSpec,
        (steps, rows): (u64, u64),
        (epoch, step): (u64, u64),
    ) -> Self {
        let step = if step == steps { spec.steps(rows) } else { step };
        Self::at(fingerprint, spec, epoch, step)
    }

    /// The position before `step`, counted as in a world of one rank, of `epoch` of the plan that `spec` resolved to over the data of
    /// `fingerprint`.
    pub fn at(fingerprint: Fingerprint, spec: PlanSpec, epoch: u64, step: u64) -> Self {
        Self { version: spec.order_version.of_state(), fingerprint, spec, epoch, step, left: Vec::new() }
    }

    /// The state as JSON of at most [`MAX_BYTES`](Self::MAX_BYTES).
    pub fn to_json(&self) -> String {
        // Numbers, strings and one list of numbers: nothing can fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// [`Error::Config`] if it is longer than [`MAX_BYTES`](Self::MAX_BYTES) or not a state; [`Error::Mismatch`] if it is
    /// of a later version, or of a later version of the order.
    pub fn from_json(json: impl AsRef<[u8]>) -> Result<Self> {
        let json = json.as_ref();
        if json.len() > Self::MAX_BYTES {
            let problem = format!("{} bytes; a state has at most {}", json.len(), Self::MAX_BYTES);
            return Err(Error::config("state", problem));
        }
        let wrong =
            |error: serde_json::Error| Error::config("state", format!("not a state: {}", words(&error.to_string())));
        let Versioned { version, spec: Named { order_version } } = serde_json::from_slice(json).map_err(wrong)?;
        let hint = "resume with the version of bowstring that wrote it, or start the epoch again";
        let latest = OrderVersion::LATEST;
        if !(1..=latest.of_state()).contains(&version) {
            return Err(mismatch("version", format!("1 to {}", latest.of_state()), version, hint));
        }
        if let Some(number) = order_version
            && OrderVersion::try_from(number).is_err()
        {
            return Err(mismatch("order_version", format!("1 to {}", latest.number()), number, hint));
        }
        let state: Self = serde_json::from_slice(json).map_err(wrong)?;
        if state.left.len() > Self::MAX_LEFT {
            let problem =
                format!("not a state: {} passes left early, and at most {}", state.left.len(), Self::MAX_LEFT);
            return Err(Error::config("state", problem));
        }
        if state.version != state.spec.order_version.of_state() {
            let order = state.spec.order_version.number();
            let problem = format!("not a state: version {version} of the document, version {order} of the order");
            return Err(Error::config("state", problem));
        }
        Ok(state)
    }

    /// Checks that the state belongs to the data of `fingerprint` and to the resolved `spec`.
    ///
    /// # Errors
    /// [`Error::Mismatch`] naming the first field that differs.
    pub fn check(&self, fingerprint: &Fingerprint, spec: &PlanSpec) -> Result<()> {
        let version = self.spec.order_version.of_state();
        if self.version != version {
            return Err(mismatch("version", version, self.version, ""));
        }
        if self.fingerprint != *fingerprint {
            let hint = "the files, the columns' schema or the filter changed; resume over the same data, of a table with its version";
            return Err(mismatch("fingerprint", fingerprint, self.fingerprint, hint));
        }
        let PlanSpec { seed, shuffle, global_batch, lanes, window_rows, tail, mix, order_version } = &self.spec;
        // By the names and values that are given when opening a loader.
        let option = |name: &'static str, differs: bool, ours: String, theirs: String| {
            if !differs {
                return Ok(());
            }
            let given = match name {
                "global_batch_size" => {
                    format!("global_batch_size={theirs}, or a batch_size that makes it over all ranks")
                }
                "weights" => "the weights and stop that it was made with".to_owned(),
                _ => format!("{name}={theirs}"),
            };
            Err(Error::Mismatch {
                what: format!("option {name}, of this loader and of the state"),
                expected: ours,
                found: format!("{theirs} in the state"),
                hint: format!("open the loader with {given}"),
            })
        };
        macro_rules! same {
            ($name:literal, $field:ident) => {
                option($name, spec.$field != *$field, show(&spec.$field), show($field))?
            };
        }
        // Before the options whose defaults it determines.
        same!("order_version", order_version);
        same!("seed", seed);
        let shuffled = |shuffle: &Shuffle| show(&(*shuffle != Shuffle::None));
        option("shuffle", spec.shuffle != *shuffle, shuffled(&spec.shuffle), shuffled(shuffle))?;
        same!("global_batch_size", global_batch);
        same!("lanes", lanes);
        same!("window_rows", window_rows);
        same!("tail", tail);
        same!("weights", mix);
        Ok(())
    }

    /// Returns the first step to yield, if the state is a position in `plan`.
    ///
    /// # Errors
    /// As [`check`](Self::check) and `step_of`, and [`Error::Mismatch`] for another epoch. The end itself is
    /// a position: nothing of the epoch remains.
    pub fn step_in(&self, plan: &Plan) -> Result<u64> {
        self.check(&plan.fingerprint_as(self.fingerprint), plan.spec())?;
        if self.epoch != plan.epoch() {
            return Err(mismatch("epoch", plan.epoch(), self.epoch, "make the plan for the state's epoch"));
        }
        self.step_of(plan.rows(), plan.world())
    }

    /// Returns the first step that `world` ranks yield, if the state is a position in an epoch of `rows` rows.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for a step beyond the end; [`Error::Config`] for a position of fewer ranks whose last rows
    /// are too few for these, see [`Tail::Even`](super::Tail::Even).
    pub(crate) fn step_of(&self, rows: u64, world: u32) -> Result<u64> {
        let one = Cuts::new(self.spec.tail, self.spec.global_batch.max(1), rows, 1);
        let (end, steps) = (one.steps(), one.of_world(world).steps());
        if self.step > end {
            let hint = "the state was not made by this plan; start the epoch again";
            return Err(mismatch("step", format!("at most {end}"), self.step, hint));
        }
        if self.step < end && self.step >= steps {
            let left = length(&one.positions(self.step));
            let problem = format!(
                "even: {left} rows are left of epoch {} for {world} ranks, of which some would get none; end the epoch on at most {left} \
                 ranks, or begin the next one",
                self.epoch
            );
            return Err(Error::config("tail", problem));
        }
        Ok(if self.step == end { steps } else { self.step })
    }
}

fn mismatch(field: &str, expected: impl ToString, found: impl ToString, hint: &str) -> Error {
    Error::Mismatch {
        what: format!("{field} of the state"),
        expected: expected.to_string(),
        found: found.to_string(),
        hint: hint.to_owned(),
    }
}

/// Formats a value as it is written in options: words without quotes.
fn show(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    match text.strip_prefix('"').and_then(|text| text.strip_suffix('"')) {
        Some(word) => word.to_owned(),
        None => text.replace("null", "none"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::manifest::Manifest;
    use crate::plan::{Mix, Stop, Tail};

    fn plan(spec: PlanSpec) -> Plan {
        let manifests = [Arc::new(Manifest::imaginary(&[100, 50], 8))];
        let spec = spec.resolve(&manifests).unwrap();
        Plan::new(&manifests, spec, 4).unwrap()
    }

    fn first(spec: &PlanSpec) -> PlanSpec {
        PlanSpec { order_version: OrderVersion::V1, ..spec.clone() }
    }

    #[test]
    fn states_of_the_first_version_are_what_they_were() {
        // As the first release wrote it.
        let json = r#"{"version":1,"fingerprint":"FINGERPRINT","spec":{"seed":1,"shuffle":"windows","global_batch":8,"lanes":2,"window_rows":16777216,"tail":"pad","mix":null},"epoch":4,"step":3}"#;
        let padded = PlanSpec { tail: Tail::Pad, ..PlanSpec::new(1, 8) };
        let old = plan(first(&padded));
        let json = json.replace("FINGERPRINT", &old.fingerprint().to_string());
        assert_eq!(State::new(&old, 3).to_json(), json);
        assert_eq!(State::from_json(&json).unwrap().step_in(&old).unwrap(), 3);
        let new = State::new(&plan(PlanSpec::new(1, 8)), 3).to_json();
        assert!(new.starts_with(r#"{"version":2,"#) && new.contains(r#""order_version":3}"#), "{new}");
        for (what, json) in [
            ("version", new.replace("\"version\":2", "\"version\":3")),
            ("order_version", new.replace("order_version\":3", "order_version\":4")),
        ] {
            let error = State::from_json(json).unwrap_err();
            assert!(matches!(&error, Error::Mismatch { what: field, .. } if field.starts_with(what)), "{error}");
        }
        let mixed = new.replace("\"version\":2,\"f", "\"version\":1,\"f");
        assert!(matches!(State::from_json(mixed), Err(Error::Config { option: "state", .. })));
    }

    #[test]
    fn round_trip_and_the_largest_one() {
        let plan = plan(PlanSpec::new(u64::MAX, 7));
        let state = State::new(&plan, plan.steps());
        let again = State::from_json(state.to_json()).unwrap();
        assert_eq!(again, state);
        assert_eq!(again.step_in(&plan).unwrap(), plan.steps());
        let left = vec![(u64::MAX, u64::MAX); State::MAX_LEFT];
        let mut largest = State { epoch: u64::MAX, step: u64::MAX, left, ..state };
        // Nine digits each, as an upper bound: 256 weights that add up to 2^31 have fewer.
        largest.spec.mix = Some(Mix { weights: vec![999_999_999; 256], stop: Stop::FirstExhausted });
        largest.spec.window_rows = Some(u64::MAX);
        largest.spec.lanes = Some(u32::MAX);
        largest.spec.global_batch = u64::MAX;
        let json = largest.to_json();
        assert!(json.len() <= State::MAX_BYTES, "{} bytes", json.len());
        assert_eq!(State::from_json(json).unwrap(), largest);
    }

    #[test]
    fn a_state_over_the_former_fingerprint_of_a_table_goes_on() {
        let plain = Manifest::imaginary(&[100, 50], 8);
        let plan = |manifests: &[Manifest]| {
            let manifests: Vec<Arc<Manifest>> = manifests.iter().cloned().map(Arc::new).collect();
            let mix = (manifests.len() > 1).then(|| Mix { weights: vec![1; manifests.len()], stop: Stop::default() });
            let spec = PlanSpec { mix, ..PlanSpec::new(1, 8) }.resolve(&manifests).unwrap();
            Plan::new(&manifests, spec, 4).unwrap()
        };
        let tables = ["a", "b"].map(|columns| plain.clone().of_table(Some(columns), |_| Vec::new()));
        for number in 1..=2 {
            let (former, table) = (plan(&vec![plain.clone(); number]), plan(&vec![tables[0].clone(); number]));
            let other = plan(&vec![tables[1].clone(); number]);
            let old = State::new(&former, 3);
            assert_eq!((former.former(), table.former()), (None, Some(old.fingerprint)));
            assert_eq!(old.step_in(&table).unwrap(), 3);
            let new = State::new(&table, 3);
            assert_ne!(new.fingerprint, old.fingerprint);
            assert_eq!(new.step_in(&table).unwrap(), 3);
            assert!(new.step_in(&other).is_err() && new.step_in(&former).is_err());
        }
    }

    #[test]
    fn every_difference_is_named() {
        let plan = plan(PlanSpec::new(1, 8));
        let state = State::new(&plan, 3);
        let field = |change: &dyn Fn(&mut State)| {
            let mut other = state.clone();
            change(&mut other);
            match other.step_in(&plan) {
                Err(Error::Mismatch { what, .. }) => {
                    let what = what.strip_prefix("option ").unwrap_or(&what);
                    what.split([' ', ',']).next().unwrap_or_default().to_owned()
                }
                other => format!("{other:?}"),
            }
        };
        assert_eq!(field(&|state| state.version = 1), "version");
        assert_eq!(field(&|state| *state = State::at(state.fingerprint, first(&state.spec), 4, 3)), "order_version");
        assert_eq!(field(&|state| state.fingerprint = Fingerprint::from_bytes([1; 32])), "fingerprint");
        assert_eq!(field(&|state| state.spec.seed = 2), "seed");
        assert_eq!(field(&|state| state.spec.shuffle = crate::plan::Shuffle::None), "shuffle");
        assert_eq!(field(&|state| state.spec.global_batch = 9), "global_batch_size");
        assert_eq!(field(&|state| state.spec.lanes = None), "lanes");
        assert_eq!(field(&|state| state.spec.window_rows = Some(9)), "window_rows");
        assert_eq!(field(&|state| state.spec.tail = Tail::Drop), "tail");
        assert_eq!(field(&|state| state.spec.mix = Some(Mix { weights: vec![1], stop: Stop::default() })), "weights");
        assert_eq!(field(&|state| state.epoch = 5), "epoch");
        assert_eq!(field(&|state| state.step = plan.steps() + 1), "step");
        assert_eq!(field(&|state| state.step = plan.steps()), format!("{:?}", Ok::<_, Error>(plan.steps())));
    }

    #[test]
    fn bad_json_is_a_typed_error() {
        let json = State::new(&plan(PlanSpec::new(1, 8)), 0).to_json();
        for bad in [
            "",
            "{}",
            "null",
            "{\"version\":1}",
            &json[..json.len() - 1],
            &json.replace("seed", "sead"),
            &" ".repeat(4097),
        ] {
            assert!(matches!(State::from_json(bad), Err(Error::Config { option: "state", .. })), "{bad}");
        }
        let newer = json.replace("\"version\":2", "\"version\":3,\"more\":true");
        assert!(matches!(State::from_json(newer), Err(Error::Mismatch { .. })));
    }
}
