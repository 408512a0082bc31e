//! The tails `short` and `even` over random rows, ranks, batches, epochs, filters and resumes on another number of ranks: of plans
//! alone, and of loaders of files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use bowstring::dataset::filter::Filter;
use bowstring::manifest::{Manifest, RowGroup};
use bowstring::plan::{Plan, PlanSpec, Share, Shuffle, State, Tail};
use bowstring::{Error, Loader, Result};

use crate::support::{self, Random, soak};

/// All ranks of a world, in lockstep.
trait World<Row> {
    fn steps(&self) -> u64;
    /// Returns the rows of each rank in the next step; none at the end of the epoch.
    fn next(&mut self) -> Option<Vec<Vec<Row>>>;
    fn state(&self) -> State;
}

/// The random parameters of a case.
#[derive(Debug)]
struct Case {
    tail: Tail,
    global: u64,
    /// World size before the resume and after it.
    worlds: [u32; 2],
    epoch: u64,
    shuffle: bool,
    seed: u64,
    lanes: Option<u32>,
}

impl Case {
    fn new(tail: Tail, random: &mut Random) -> Self {
        let most = random.pick(&[3, 12, 50]);
        let global = 1 + random.below(most);
        let world = |random: &mut Random| 1 + random.below(global.min(6)) as u32;
        Self {
            tail,
            global,
            worlds: [world(random), world(random)],
            epoch: random.below(3),
            shuffle: random.chance(70),
            seed: random.next(),
            lanes: random.chance(30).then(|| 1 + random.below(global.min(5)) as u32),
        }
    }

    fn spec(&self) -> PlanSpec {
        let shuffle = if self.shuffle { Shuffle::Windows } else { Shuffle::None };
        PlanSpec { shuffle, lanes: self.lanes, tail: self.tail, ..PlanSpec::new(self.seed, self.global) }
    }
}

type Opened<Row> = Box<dyn World<Row>>;
/// Opens this many ranks, at a state if there is one.
type Open<'a, Row> = &'a dyn Fn(u32, Option<&State>) -> Result<Opened<Row>>;

/// Runs an epoch of the `selected` rows, with a resume somewhere, and checks the promises.
fn check<Row: Ord + Copy + Debug>(case: &Case, selected: &[Row], random: &mut Random, open: Open<'_, Row>) {
    let (rows, global) = (selected.len() as u64, case.global);
    let whole = rows.div_ceil(global);
    let mut delivered: Vec<Vec<Vec<Row>>> = Vec::new();
    let mut state: Option<State> = None;
    for (at, world) in case.worlds.into_iter().enumerate() {
        let count = u64::from(world);
        let had: u64 = delivered.iter().flatten().map(|rows| rows.len() as u64).sum();
        let opened = open(world, state.as_ref());
        if case.tail == Tail::Even && rows > 0 && (rows < count || had < rows && rows - had < count) {
            // There are fewer rows than ranks: at all, or after the last step but one, which leaves half a global batch.
            let Err(Error::Config { option: "tail", problem }) = opened.map(|_| ()) else { panic!("{case:?}") };
            let left = if rows < count { rows } else { rows - had };
            assert!(
                problem.contains(&format!("{left} rows")) && problem.contains(&format!("{world} ranks")),
                "{problem}"
            );
            assert!(rows < count || 2 * count > global, "{case:?}: {rows} rows, {had} had");
            return;
        }
        let mut ranks = opened.unwrap_or_else(|error| panic!("{case:?}: {}", error.chain()));
        let joined = case.tail == Tail::Even && ranks.steps() + 1 == whole && 2 * count > global;
        assert!(ranks.steps() == whole || joined, "{case:?}: {} steps of {rows} rows", ranks.steps());
        let stop = if at == 0 { random.below(ranks.steps() + 1) } else { u64::MAX };
        let mut saved = ranks.state();
        while (delivered.len() as u64) < stop {
            let Some(step) = ranks.next() else { break };
            saved = ranks.state();
            let sizes: Vec<u64> = step.iter().map(|rows| rows.len() as u64).collect();
            let (least, most) = (*sizes.iter().min().unwrap(), *sizes.iter().max().unwrap());
            assert!(least > 0 && most - least <= 1, "{case:?}: {sizes:?}");
            let before = delivered.len() as u64;
            let left = rows.saturating_sub(before * global);
            let is_last = before + 1 == ranks.steps();
            if case.tail == Tail::Short {
                let expected = if is_last && left < global { left.div_ceil(count) * count } else { global };
                assert_eq!(sizes.iter().sum::<u64>(), expected, "{case:?}: step {before} of {rows} rows");
                assert!(!is_last || left == global || least == most, "{case:?}: {sizes:?}");
                // Repeated rows come, in one lane, after the rows of all ranks, where joining the batches cuts them off.
                let one_lane = case.lanes == Some(1) || !case.shuffle && case.lanes.is_none();
                let before: BTreeSet<Row> = delivered.iter().flatten().flatten().copied().collect();
                let new: BTreeSet<Row> = step.iter().flatten().take(left.min(global) as usize).copied().collect();
                let is_behind = new.len() as u64 == left.min(global) && new.is_disjoint(&before);
                assert!(is_behind || !one_lane, "{case:?}: {step:?}");
            }
            delivered.push(step);
        }
        if at == 1 || delivered.len() as u64 == ranks.steps() {
            // The end is the same number in all worlds.
            assert_eq!((saved.epoch, saved.step), (case.epoch, whole), "{case:?}");
        }
        state = Some(saved);
    }
    let mut times: BTreeMap<Row, u64> = selected.iter().map(|row| (*row, 0)).collect();
    for row in delivered.iter().flatten().flatten() {
        *times.get_mut(row).unwrap_or_else(|| panic!("{case:?}: {row:?} is not selected")) += 1;
    }
    assert!(times.values().all(|times| *times >= 1), "{case:?}: {times:?}");
    let again = times.values().sum::<u64>() - rows;
    match case.tail {
        Tail::Even => assert_eq!(again, 0, "{case:?}"),
        _ => assert!(again < u64::from(case.worlds[0].max(case.worlds[1])), "{case:?}: {again} rows again"),
    }
    let but_last = delivered.len().saturating_sub(1);
    let mut early: Vec<Row> = delivered[..but_last].iter().flatten().flatten().copied().collect();
    let count = early.len();
    early.sort_unstable();
    early.dedup();
    assert_eq!(early.len(), count, "{case:?}: rows come again before the last step");
}

/// 2,000 seeds with `BOWSTRING_SOAK`, else a tenth; of loaders a tenth of those.
fn seeds(name: &str, part: u64) -> Range<u64> {
    println!("repeat with: BOWSTRING_TEST_SEED=<seed> cargo test --test it tails::{name}");
    match support::variable("BOWSTRING_TEST_SEED").and_then(|seed| seed.parse::<u64>().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..(if soak() { 2000 } else { 200 }) / part,
    }
}

struct Planned {
    plan: Plan,
    at: u64,
}

impl World<(u32, u32)> for Planned {
    fn steps(&self) -> u64 {
        self.plan.steps()
    }

    fn next(&mut self) -> Option<Vec<Vec<(u32, u32)>>> {
        let (plan, at, world) = (&self.plan, self.at, self.plan.world());
        if at == plan.steps() {
            return None;
        }
        self.at += 1;
        let of = |rank| {
            let share = Share::new(rank, world).unwrap();
            let step = plan.step(at, share);
            assert_eq!(step.rows.len(), step.size);
            assert!(step.size as u64 <= plan.batch_rows(share));
            assert_eq!(step.real as u64, plan.real_rows(at, share));
            step.rows.iter().map(|row| (row.group, row.row)).collect()
        };
        Some((0..world).map(of).collect())
    }

    fn state(&self) -> State {
        State::from_json(State::new(&self.plan, self.at).to_json()).unwrap()
    }
}

fn plans(tail: Tail, name: &str) {
    for seed in seeds(name, 1) {
        println!("seed {seed}");
        let mut random = Random(seed);
        let case = Case::new(tail, &mut random);
        let most = random.pick(&[2, 20, 120]);
        let groups: Vec<(u64, u64)> = (0..random.below(5))
            .map(|_| {
                let rows = random.below(most);
                (rows, if random.chance(40) { random.below(rows + 1) } else { rows })
            })
            .collect();
        let files = Manifest::imaginary(&[], 0).files;
        let group = |(ordinal, (rows, selected)): (u32, &(u64, u64))| RowGroup {
            file: 0,
            ordinal,
            rows: *rows,
            selected: *selected,
            bytes: rows * 100,
        };
        let manifest = Manifest::new(files, (0..).zip(&groups).map(group).collect(), "", "x > 1");
        let manifests = [Arc::new(manifest)];
        let selected: Vec<(u32, u32)> = (0..)
            .zip(&groups)
            .flat_map(|(group, (_, selected))| (0..*selected as u32).map(move |row| (group, row)))
            .collect();
        let open = |world: u32, state: Option<&State>| {
            let plan = Plan::new(&manifests, case.spec().resolve(&manifests)?, case.epoch)?.for_world(world);
            // It is of this world even if all worlds have the same steps.
            assert_eq!(plan.world(), world);
            let shares: u64 = (0..world).map(|rank| plan.share_rows(Share::new(rank, world).unwrap())).sum();
            assert_eq!(shares, plan.rows());
            plan.check_share(Share::new(0, world)?)?;
            let at = state.map_or(Ok(0), |state| state.step_in(&plan))?;
            Ok(Box::new(Planned { plan, at }) as Opened<(u32, u32)>)
        };
        check(&case, &selected, &mut random, &open);
    }
}

#[test]
fn short_ends_with_the_rows_that_are_left() {
    plans(Tail::Short, "short_ends_with_the_rows_that_are_left");
}

#[test]
fn even_repeats_nothing_and_leaves_no_batch_empty() {
    plans(Tail::Even, "even_repeats_nothing_and_leaves_no_batch_empty");
}

struct Loaders(Vec<Loader>);

impl World<i64> for Loaders {
    fn steps(&self) -> u64 {
        let steps = self.0[0].steps();
        assert!(self.0.iter().all(|loader| loader.steps() == steps));
        steps
    }

    fn next(&mut self) -> Option<Vec<Vec<i64>>> {
        let found: Vec<_> = self.0.iter_mut().map(|loader| loader.next().unwrap()).collect();
        let ends = found.iter().filter(|batch| batch.is_none()).count();
        assert!(ends == 0 || ends == found.len(), "{ends} of {} ranks are at the end", found.len());
        let of = |batch: bowstring::tensor::Batch| {
            let ids = support::ids(&batch);
            assert!(batch.tensor("_mask").is_none() && ids.len() == batch.rows);
            ids
        };
        found.into_iter().map(|batch| batch.map(of)).collect()
    }

    fn state(&self) -> State {
        let state = self.0[0].state();
        assert!(self.0.iter().all(|loader| loader.state() == state));
        State::from_json(state.to_json()).unwrap()
    }
}

#[test]
fn loaders_of_files_end_as_their_plans_do() {
    let sizes: [&[usize]; 5] = [&[1], &[4, 2], &[30, 7], &[64], &[40, 1, 33]];
    let data = sizes.map(|groups| {
        let directory = tempfile::tempdir().unwrap();
        support::write(directory.path(), &[groups.to_vec()], 1);
        (directory, groups.iter().sum::<usize>() as i64)
    });
    for seed in seeds("loaders_of_files_end_as_their_plans_do", 10) {
        println!("seed {seed}");
        let mut random = Random(seed);
        let case = Case::new([Tail::Short, Tail::Even][(seed % 2) as usize], &mut random);
        let (directory, rows) = &data[random.index(data.len())];
        let first = if random.chance(50) { random.below(*rows as u64) as i64 } else { 0 };
        let selected: Vec<i64> = (first..*rows).collect();
        let open = |world: u32, state: Option<&State>| {
            let rank = |rank| {
                let mut options = support::options(directory.path(), case.global, rank, world);
                (options.tail, options.shuffle, options.seed) = (Some(case.tail), case.shuffle, case.seed);
                (options.lanes, options.threads) = (case.lanes, Some(1));
                options.filter = (first > 0).then(|| Filter::Text(format!("id >= {first}")));
                let mut loader = Loader::open(options)?;
                loader.set_epoch(case.epoch)?;
                state.map_or(Ok(()), |state| loader.load_state(state))?;
                Ok(loader)
            };
            Ok(Box::new(Loaders((0..world).map(rank).collect::<Result<_>>()?)) as Opened<i64>)
        };
        check(&case, &selected, &mut random, &open);
    }
}
