//! A running server at one moment, as the page, `bowstring top` and anybody who reads the JSON see it. Pure: it is made of plain facts.
//!
//! Names of datasets and gangs are in it, addresses of stores without credentials too; tokens, tickets, options, names of tenants and of
//! files never are.

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::errors::RecentError;
use crate::flight::gang::Overview;
use crate::pipeline::{Bottleneck, CAUSES, Cause, Who, per_mille};
use crate::plan::UseSpan;
use crate::store::OriginStats;
use crate::store::cache::CacheStats;

/// The version of the form. It rises when a field changes its meaning or goes; new fields do not raise it.
pub const SCHEMA: u32 = 1;

/// Most ranks in a snapshot.
pub(crate) const MOST_RANKS: usize = 4096;
/// Most plans, and most gangs.
pub(crate) const MOST_PLANS: usize = 16;
pub(crate) const MOST_GANGS: usize = 64;
/// Most bytes as JSON: of a stream, its rank and its dataset; of a dataset, beside its name; of all else, plans, gangs and errors above all.
const OF_STREAM: usize = 2 << 10;
const OF_DATASET: usize = 256;
const BASE: usize = 1 << 20;
/// Cells of a strip.
const CELLS: usize = 240;
/// Steps by which a rank may be behind the first without being named.
const BEHIND: u64 = 8;

/// A server at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// See [`SCHEMA`].
    pub schema: u32,
    /// Version of the server.
    pub version: String,
    /// `starting`, `ready` or `draining`.
    pub phase: String,
    /// The moment, in seconds since 1970.
    pub time: f64,
    /// Seconds since the server started.
    pub uptime_seconds: f64,
    /// False if names were replaced by numbers, for the port can be reached from elsewhere without a token.
    pub named: bool,
    /// The names of what time goes to, in the order of all shares here.
    pub causes: Vec<String>,
    /// What limits the ranks; nothing without streams.
    pub bottleneck: Option<Bottleneck>,
    /// Shares of the time of all streams of the last half minute or so, in percent; they sum to 100, or are all 0.
    pub shares: Vec<f64>,
    /// Every dataset of the catalogue, and others that were read.
    pub datasets: Vec<DatasetView>,
    /// The plans that are read now.
    pub plans: Vec<PlanView>,
    /// Every open stream, by plan and rank.
    pub ranks: Vec<RankView>,
    /// Streams that are not in `ranks`, for there are too many.
    pub ranks_left_off: u64,
    /// The gangs that were called last.
    pub gangs: Vec<Overview>,
    /// Counters of the caches of the process; nothing if the reader may not see them.
    pub cache: Option<CacheStats>,
    /// Memory against its budget, in bytes.
    pub memory: Option<MemoryView>,
    /// Origins of bytes.
    pub origins: Vec<OriginStats>,
    /// The last errors, the latest first.
    pub errors: Vec<RecentError>,
    /// Row groups decoded since the start, and their rows.
    pub row_groups_decoded: u64,
    /// See [`row_groups_decoded`](Self::row_groups_decoded).
    pub rows_decoded: u64,
}

/// A dataset.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatasetView {
    /// Its name.
    pub name: String,
    /// Streams that are open now.
    pub streams: u64,
    /// Rows per second over all of them.
    pub rows_per_second: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
}

/// A plan: the order of an epoch for a number of ranks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanView {
    /// Name of the dataset.
    pub dataset: String,
    /// The epoch.
    pub epoch: u64,
    /// Number of ranks.
    pub world: u32,
    /// Steps of the epoch.
    pub steps: u64,
    /// Rows of the epoch.
    pub rows: u64,
    /// Lanes.
    pub lanes: u32,
    /// The step of the first rank, of those that are here, and of the last.
    pub ahead: u64,
    /// See [`ahead`](Self::ahead).
    pub behind: u64,
    /// Its row groups.
    pub strip: Strip,
}

/// The row groups of a plan in the order in which it needs them, in cells of as many each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Strip {
    /// Row groups, or units of them.
    pub row_groups: u64,
    /// The first step that needs each cell.
    pub first: Vec<u64>,
    /// The last step that needs it.
    pub last: Vec<u64>,
}

/// A rank: one open stream.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankView {
    /// Index into `plans`; nothing if there are too many plans.
    pub plan: Option<u32>,
    /// Name of the dataset.
    pub dataset: String,
    /// The epoch.
    pub epoch: u64,
    /// Number of the rank.
    pub rank: u32,
    /// Its next step.
    pub step: u64,
    /// Steps by which it is behind the first rank of its plan.
    pub lag: u64,
    /// Name of its gang.
    pub gang: Option<String>,
    /// Generation of the gang.
    pub generation: Option<u64>,
    /// True if batches go through shared memory.
    pub local: bool,
    /// What its time goes to now.
    pub doing: String,
    /// For how many seconds already.
    pub seconds: f64,
    /// Shares of its time of the last half minute or so, in percent; they sum to 100, or are all 0.
    pub shares: Vec<f64>,
    /// Rows per second.
    pub rows_per_second: f64,
    /// Rows sent since the stream was opened.
    pub rows: u64,
}

/// Memory in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryView {
    /// In flight.
    pub used: u64,
    /// That may be.
    pub budget: u64,
    /// Of datasets that clients wrote.
    pub written: u64,
}

/// A plan: the address of its dataset, the epoch, the number of ranks.
pub(crate) type PlanKey = (usize, u64, u32);

/// One open stream, from which ranks, plans and datasets are made.
#[derive(Debug, Clone)]
pub(crate) struct StreamFacts {
    /// The plan: equal for streams of one plan.
    pub(crate) plan: PlanKey,
    /// The job: equal for ranks that read the plan together.
    pub(crate) job: u64,
    pub(crate) dataset: String,
    pub(crate) steps: u64,
    pub(crate) rows_of_epoch: u64,
    pub(crate) lanes: u32,
    pub(crate) rank: u32,
    pub(crate) step: u64,
    pub(crate) gang: Option<(String, u64)>,
    pub(crate) local: bool,
    pub(crate) doing: (Cause, f64),
    pub(crate) spent: [f64; CAUSES],
    pub(crate) rows_per_second: f64,
    pub(crate) bytes_per_second: f64,
    pub(crate) rows: u64,
}

impl Strip {
    /// The strip of a plan with these spans, in the order of first steps.
    pub(crate) fn of(spans: &[UseSpan]) -> Self {
        let each = spans.len().div_ceil(CELLS).max(1);
        let (first, last) = spans
            .chunks(each)
            .map(|cell| {
                let first = cell.iter().map(|span| span.first).min().unwrap_or(0);
                (first, cell.iter().map(|span| span.last).max().unwrap_or(first))
            })
            .unzip();
        Self { row_groups: spans.len() as u64, first, last }
    }
}

impl Snapshot {
    /// Returns the most bytes that it takes as JSON with this number of streams and these datasets.
    pub(crate) fn most_bytes<'a>(streams: usize, catalogue: impl Iterator<Item = &'a str>) -> usize {
        catalogue.fold(BASE + streams * OF_STREAM, |sum, name| sum + name.len() + OF_DATASET)
    }

    /// A server of which nothing is known yet.
    pub(crate) fn new(phase: &str) -> Self {
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            phase: phase.to_owned(),
            named: true,
            causes: Cause::OF_A_STREAM.map(|cause| cause.name().to_owned()).to_vec(),
            shares: percent(&[0.0; CAUSES]),
            ..Self::default()
        }
    }

    /// Adds the open streams; `strip` makes the strip of a plan by the index of one of its streams.
    pub(crate) fn with_streams(
        mut self,
        mut streams: Vec<StreamFacts>,
        catalogue: impl IntoIterator<Item = String>,
        strip: impl Fn(PlanKey) -> Strip,
    ) -> Self {
        streams.sort_by(|one, other| {
            let key = |stream: &StreamFacts| (stream.plan.1, stream.plan.2, stream.plan.0, stream.rank);
            one.dataset.cmp(&other.dataset).then_with(|| key(one).cmp(&key(other)))
        });
        let mut all = [0.0; CAUSES];
        let mut datasets: BTreeMap<String, DatasetView> =
            catalogue.into_iter().map(|name| (name.clone(), DatasetView { name, ..DatasetView::default() })).collect();
        // Jobs that read one plan are not compared with each other.
        let mut reach: HashMap<(PlanKey, u64), (u64, u64)> = HashMap::new();
        for stream in &streams {
            all.iter_mut().zip(stream.spent).for_each(|(all, one)| *all += one);
            let dataset = datasets
                .entry(stream.dataset.clone())
                .or_insert_with(|| DatasetView { name: stream.dataset.clone(), ..DatasetView::default() });
            dataset.streams += 1;
            dataset.rows_per_second += stream.rows_per_second;
            dataset.bytes_per_second += stream.bytes_per_second;
            let reach = reach.entry((stream.plan, stream.job)).or_insert((stream.step, stream.step));
            *reach = (reach.0.min(stream.step), reach.1.max(stream.step));
        }
        self.datasets = datasets.into_values().collect();
        let mut numbers: HashMap<PlanKey, u32> = HashMap::new();
        for stream in &streams {
            let (_, first) = reach.get(&(stream.plan, stream.job)).copied().unwrap_or_default();
            if !numbers.contains_key(&stream.plan) && self.plans.len() < MOST_PLANS {
                numbers.insert(stream.plan, self.plans.len() as u32);
                let (_, epoch, world) = stream.plan;
                let jobs = reach.iter().filter(|((plan, _), _)| *plan == stream.plan).map(|(_, reach)| *reach);
                let (behind, ahead) =
                    jobs.fold((u64::MAX, 0), |all, (behind, ahead)| (all.0.min(behind), all.1.max(ahead)));
                self.plans.push(PlanView {
                    dataset: stream.dataset.clone(),
                    epoch,
                    world,
                    steps: stream.steps,
                    rows: stream.rows_of_epoch,
                    lanes: stream.lanes,
                    ahead,
                    behind,
                    strip: strip(stream.plan),
                });
            }
            if self.ranks.len() >= MOST_RANKS {
                self.ranks_left_off += 1;
                continue;
            }
            self.ranks.push(RankView {
                plan: numbers.get(&stream.plan).copied(),
                dataset: stream.dataset.clone(),
                epoch: stream.plan.1,
                rank: stream.rank,
                step: stream.step,
                lag: first.saturating_sub(stream.step),
                gang: stream.gang.as_ref().map(|(name, _)| name.clone()),
                generation: stream.gang.as_ref().map(|(_, generation)| *generation),
                local: stream.local,
                doing: stream.doing.0.name().to_owned(),
                seconds: stream.doing.1,
                shares: percent(&stream.spent),
                rows_per_second: stream.rows_per_second,
                rows: stream.rows,
            });
        }
        self.shares = percent(&all);
        self.bottleneck = bottleneck(&all, &self.ranks);
        self
    }

    /// The same without names: datasets, gangs and origins are numbers. For readers who showed no token.
    #[must_use]
    pub fn nameless(mut self) -> Self {
        let mut datasets = Numbers::new("dataset");
        self.datasets.iter_mut().for_each(|one| datasets.replace(&mut one.name));
        self.plans.iter_mut().for_each(|one| datasets.replace(&mut one.dataset));
        self.ranks.iter_mut().for_each(|one| datasets.replace(&mut one.dataset));
        self.errors.iter_mut().filter_map(|one| one.dataset.as_mut()).for_each(|name| datasets.replace(name));
        let mut gangs = Numbers::new("gang");
        self.gangs.iter_mut().for_each(|one| {
            gangs.replace(&mut one.gang);
            one.why.clear();
        });
        self.ranks.iter_mut().filter_map(|one| one.gang.as_mut()).for_each(|name| gangs.replace(name));
        let mut origins = Numbers::new("origin");
        self.origins.iter_mut().for_each(|one| origins.replace(&mut one.address));
        // Callers choose these names.
        self.errors.iter_mut().filter(|one| one.call != "DoGet").for_each(|one| one.call = "call".to_owned());
        self.named = false;
        self
    }
}

/// What limits `ranks`, with the one that is far behind.
fn bottleneck(spent: &[f64; CAUSES], ranks: &[RankView]) -> Option<Bottleneck> {
    let mut found = Bottleneck::of(spent, Who::Ranks)?;
    if let Some(last) = ranks.iter().max_by_key(|rank| rank.lag).filter(|last| last.lag >= BEHIND) {
        found.sentence.push_str(&format!(" Rank {} is {} steps behind the first.", last.rank, last.lag));
    }
    Some(found)
}

fn percent(spent: &[f64; CAUSES]) -> Vec<f64> {
    let shares = per_mille(spent);
    Cause::OF_A_STREAM.map(|cause| f64::from(shares[cause as usize]) / 10.0).to_vec()
}

/// Names to numbers, the same for equal ones.
struct Numbers {
    noun: &'static str,
    known: HashMap<String, usize>,
}

impl Numbers {
    fn new(noun: &'static str) -> Self {
        Self { noun, known: HashMap::new() }
    }

    fn replace(&mut self, name: &mut String) {
        let next = self.known.len() + 1;
        let number = *self.known.entry(std::mem::take(name)).or_insert(next);
        *name = format!("{} {number}", self.noun);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A stream of rank `rank`, at `step`.
    pub(crate) fn stream(rank: u32, step: u64) -> StreamFacts {
        let mut spent = [0.0; CAUSES];
        (spent[Cause::Store as usize], spent[Cause::Consumer as usize]) = (6.0, 4.0);
        StreamFacts {
            plan: (1, 2, 4),
            job: 7,
            dataset: "photos".to_owned(),
            steps: 100,
            rows_of_epoch: 3200,
            lanes: 4,
            rank,
            step,
            gang: Some(("train".to_owned(), 3)),
            local: rank == 0,
            doing: (Cause::Store, 0.5),
            spent,
            rows_per_second: 10.0,
            bytes_per_second: 1000.0,
            rows: 32 * step,
        }
    }

    fn whole(streams: Vec<StreamFacts>) -> Snapshot {
        let strip = |_| Strip { row_groups: 2, first: vec![0, 50], last: vec![60, 99] };
        Snapshot::new("ready").with_streams(streams, ["photos".to_owned(), "texts".to_owned()], strip)
    }

    #[test]
    fn ranks_have_lags_and_shares_that_sum() {
        let snapshot = whole(vec![stream(2, 40), stream(0, 60), StreamFacts { plan: (1, 3, 4), ..stream(1, 0) }]);
        let ranks: Vec<_> = snapshot.ranks.iter().map(|rank| (rank.plan, rank.rank, rank.step, rank.lag)).collect();
        assert_eq!(ranks, [(Some(0), 0, 60, 0), (Some(0), 2, 40, 20), (Some(1), 1, 0, 0)]);
        let sums = snapshot.ranks.iter().map(|rank| rank.shares.iter().sum::<f64>());
        assert!(sums.chain([snapshot.shares.iter().sum()]).all(|sum| (sum - 100.0).abs() < 1e-9));
        assert_eq!((snapshot.plans[0].ahead, snapshot.plans[0].behind, snapshot.plans.len()), (60, 40, 2));
        let bottleneck = snapshot.bottleneck.unwrap();
        assert_eq!((bottleneck.cause.as_str(), bottleneck.waited), ("store", 60.0));
        let text = "Ranks wait for data 60.0 % of their time, most of it for the store (60.0 %). Rank 2 is 20 steps behind the first.";
        assert_eq!(bottleneck.sentence, text);
        let datasets: Vec<_> = snapshot.datasets.iter().map(|one| (one.name.as_str(), one.streams)).collect();
        assert_eq!(datasets, [("photos", 3), ("texts", 0)]);
        let two =
            whole(vec![stream(0, 90), StreamFacts { job: 8, ..stream(0, 10) }, StreamFacts { job: 8, ..stream(1, 4) }]);
        assert_eq!(two.ranks.iter().map(|rank| rank.lag).collect::<Vec<_>>(), [0, 0, 6], "jobs are not compared");
        assert_eq!((two.plans.len(), two.plans[0].ahead, two.plans[0].behind), (1, 90, 4));
        let empty = whole(Vec::new());
        assert_eq!((empty.bottleneck, empty.shares.iter().sum::<f64>()), (None, 0.0));
    }

    #[test]
    fn there_are_bounds() {
        let many = (0..5000).map(|rank| StreamFacts { plan: (rank as usize / 100, 0, 5000), ..stream(rank, 1) });
        let snapshot = whole(many.collect());
        assert_eq!((snapshot.ranks.len(), snapshot.plans.len()), (MOST_RANKS, MOST_PLANS));
        assert_eq!(snapshot.ranks_left_off, 5000 - MOST_RANKS as u64);
        assert!(snapshot.ranks.iter().any(|rank| rank.plan.is_none()));
        let bytes = serde_json::to_vec(&snapshot).unwrap().len();
        let most = Snapshot::most_bytes(5000, ["photos", "texts"].into_iter());
        assert!(bytes <= most, "{bytes} bytes of {most}");
        assert_eq!(Snapshot::most_bytes(0, ["photos"].into_iter()), BASE + 6 + OF_DATASET);
        let spans: Vec<_> =
            (0..100_000).map(|at| UseSpan { first: at / 10, last: at / 10 + 5, source: 0, group: 1 }).collect();
        let strip = Strip::of(&spans);
        assert!(strip.first.len() <= CELLS && strip.first.len() == strip.last.len() && strip.row_groups == 100_000);
        assert!(strip.first.is_sorted() && strip.last.last() == Some(&(9_999 + 5)));
        assert_eq!(Strip::of(&[]), Strip::default());
    }

    #[test]
    fn the_form_is_read_back_and_tolerates_new_fields() {
        let snapshot = whole(vec![stream(0, 1)]);
        let mut text = serde_json::to_value(&snapshot).unwrap();
        assert_eq!(serde_json::from_value::<Snapshot>(text.clone()).unwrap(), snapshot);
        text["new"] = 1.into();
        text.as_object_mut().unwrap().remove("origins");
        assert_eq!(serde_json::from_value::<Snapshot>(text).unwrap(), snapshot);
    }

    #[test]
    fn without_a_token_there_is_no_name() {
        let mut snapshot = whole(vec![stream(0, 1), stream(1, 1)]);
        snapshot.gangs = vec![Overview { gang: "train".into(), why: "rank 1 of train".into(), ..Overview::default() }];
        snapshot.origins = vec![OriginStats { address: "s3://bucket/".into(), ..OriginStats::default() }];
        let (call, dataset) = ("photos".to_owned(), Some("photos".to_owned()));
        snapshot.errors = vec![RecentError { call, dataset, ..RecentError::default() }];
        let text = serde_json::to_string(&snapshot.nameless()).unwrap();
        for name in ["photos", "texts", "train", "bucket"] {
            assert!(!text.contains(name), "{name}: {text}");
        }
        assert!(text.contains("\"named\":false") && text.contains("dataset 1") && text.contains("gang 1"), "{text}");
    }
}
