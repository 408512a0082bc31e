//! One order, exactly once, equal steps: the promises of a plan, over random datasets, worlds, mixtures and resumptions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bowstring::manifest::{Manifest, RowGroup};
use bowstring::plan::{Mix, OrderVersion, Plan, PlanSpec, RowRef, Share, Shuffle, State, Stop, Tail, random};
use proptest::prelude::*;
use sha2::{Digest, Sha256};

/// 200 cases, 2000 with `BOWSTRING_SOAK=1`.
fn config() -> ProptestConfig {
    let soak = std::env::var_os("BOWSTRING_SOAK").is_some_and(|value| value == "1");
    ProptestConfig { cases: if soak { 2000 } else { 200 }, ..ProptestConfig::default() }
}

/// The inputs of a plan.
#[derive(Debug, Clone)]
struct Case {
    /// Rows and selected rows of the row groups of each source.
    sources: Vec<Vec<(u64, u64)>>,
    spec: PlanSpec,
    epoch: u64,
}

impl Case {
    fn manifests(&self) -> Vec<Arc<Manifest>> {
        self.sources.iter().map(|groups| manifest(groups)).collect()
    }

    fn plan(&self) -> Plan {
        let manifests = self.manifests();
        let spec = self.spec.resolve(&manifests).unwrap();
        Plan::new(&manifests, spec, self.epoch).unwrap()
    }

    fn worlds(&self) -> impl Iterator<Item = u32> + use<> {
        1..=self.spec.global_batch.min(8) as u32
    }

    /// Returns every selected row of a source.
    fn selected(&self, source: usize) -> BTreeSet<RowRef> {
        let rows = |(group, (_, selected)): (u32, &(u64, u64))| {
            (0..*selected as u32).map(move |row| RowRef { source: source as u32, group, row })
        };
        (0..).zip(&self.sources[source]).flat_map(rows).collect()
    }
}

fn manifest(groups: &[(u64, u64)]) -> Arc<Manifest> {
    let files = Manifest::imaginary(&[], 0).files;
    let group = |(ordinal, (rows, selected)): (u32, &(u64, u64))| RowGroup {
        file: 0,
        ordinal,
        rows: *rows,
        selected: *selected,
        bytes: rows * 100,
    };
    Arc::new(Manifest::new(files, (0..).zip(groups).map(group).collect(), "", "x > 1"))
}

fn share(rank: u32, world: u32) -> Share {
    Share::new(rank, world).unwrap()
}

/// Generates row groups of at most `rows` rows: many small ones or few large ones; some empty, some filtered in part or whole.
fn groups(rows: u64, least: usize) -> impl Strategy<Value = Vec<(u64, u64)>> {
    prop_oneof![Just(1_usize), Just(7), Just(60)].prop_flat_map(move |most| {
        let each = rows / most as u64;
        let group = (0..=each, 0_u8..8, any::<prop::sample::Index>()).prop_map(|(rows, kind, some)| match kind {
            0 => (0, 0),
            1 => (rows, 0),
            2 | 3 => (rows, some.index(rows as usize + 1) as u64),
            _ => (rows, rows),
        });
        prop::collection::vec(group, least..=most)
    })
}

fn cases() -> impl Strategy<Value = Case> {
    let one = groups(20_000, 0).prop_map(|groups| (vec![groups], None));
    // A mixture needs a row of each source.
    let some = |mut groups: Vec<(u64, u64)>| {
        groups.push((3, 3));
        groups
    };
    let source = (groups(1500, 0).prop_map(some), 1_u32..9);
    let stop = prop_oneof![Just(Stop::FirstExhausted), Just(Stop::AllExhausted)];
    let mixed = (prop::collection::vec(source, 1..4), stop).prop_map(|(sources, stop)| {
        let (groups, weights) = sources.into_iter().unzip();
        (groups, Some(Mix { weights, stop }))
    });
    let batch = prop_oneof![
        1_u64..=8,
        (1_u64..=97, 1_u64..=8).prop_map(|(batch, world)| batch * world),
        Just(64_u64),
        Just(320_u64)
    ];
    let tail = prop::sample::select(vec![Tail::Short, Tail::Even, Tail::Pad, Tail::Repeat, Tail::Drop]);
    let lanes = prop::option::of(1_u32..=40);
    let window_rows = prop::option::of(1_u64..=3000);
    let version = prop::sample::select(OrderVersion::ALL.to_vec());
    let order = (any::<u64>(), 0_u64..5, prop::bool::weighted(0.8), lanes, window_rows, version);
    (prop_oneof![3 => one, 2 => mixed], batch, tail, order).prop_map(|((sources, mix), global_batch, tail, order)| {
        let (seed, epoch, shuffled, lanes, window_rows, order_version) = order;
        let (shuffle, lanes, window_rows) = if shuffled {
            (Shuffle::Windows, lanes.map(|lanes| lanes.min(global_batch as u32)), window_rows)
        } else {
            // Several lanes in file order need the third version.
            let lanes = lanes.filter(|_| order_version >= OrderVersion::V3);
            (Shuffle::None, lanes.map(|lanes| lanes.min(global_batch as u32)), None)
        };
        Case {
            sources,
            spec: PlanSpec { seed, shuffle, global_batch, lanes, window_rows, tail, mix, order_version },
            epoch,
        }
    })
}

/// Returns the real rows of each step, of all ranks together.
fn batches(plan: &Plan) -> Vec<Vec<RowRef>> {
    (0..plan.steps())
        .map(|step| {
            let mut step = plan.step(step, Share::whole());
            step.rows.truncate(step.real);
            step.rows
        })
        .collect()
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_selected_row_is_delivered_once(case in cases()) {
        let plan = case.plan();
        let batch = case.spec.global_batch;
        let all = batches(&plan);
        let mut times: HashMap<RowRef, u64> = HashMap::new();
        all.iter().flatten().for_each(|row| *times.entry(*row).or_default() += 1);
        let delivered: u64 = times.values().sum();
        prop_assert_eq!(delivered, plan.rows());
        let others = if case.spec.tail == Tail::Even { 2 } else { 1 };
        let full = all.iter().rev().skip(others).all(|rows| rows.len() as u64 == batch);
        prop_assert!(full, "only the last step may be incomplete, and of `even` the last two");
        if case.spec.tail == Tail::Drop {
            prop_assert_eq!(delivered % batch, 0);
        }
        let mut ended = 0;
        for source in 0..case.sources.len() {
            let selected = case.selected(source);
            let counts: Vec<_> = times.iter().filter(|(row, _)| row.source as usize == source).collect();
            prop_assert!(counts.iter().all(|(row, _)| selected.contains(row)), "a row that is not selected");
            let drawn: u64 = counts.iter().map(|(_, times)| **times).sum();
            let passes = if selected.is_empty() { 0 } else { drawn / selected.len() as u64 };
            let uneven = selected.iter().find(|row| !(passes..=passes + 1).contains(times.get(row).unwrap_or(&0)));
            prop_assert!(uneven.is_none(), "source {} went {} times, but not {:?}", source, passes, uneven);
            ended += usize::from(drawn >= selected.len() as u64);
            match &case.spec.mix {
                None => {
                    let left = selected.len() as u64 - drawn;
                    prop_assert!(left < if case.spec.tail == Tail::Drop { batch } else { 1 }, "{} rows left", left);
                }
                Some(Mix { stop: Stop::FirstExhausted, .. }) => prop_assert!(drawn <= selected.len() as u64),
                Some(mix) => {
                    let sum: u64 = mix.weights.iter().map(|weight| u64::from(*weight)).sum();
                    let ideal = delivered as f64 * f64::from(mix.weights[source]) / sum as f64;
                    let rounds = case.spec.order_version >= OrderVersion::V3 && batch.is_multiple_of(plan.lanes().into());
                    let together = if rounds && batch / u64::from(plan.lanes()) >= 32 { plan.lanes() } else { 1 };
                    prop_assert!((drawn as f64 - ideal).abs() < 4.0 * f64::from(together), "{} of source {}, {} by weight", drawn, source, ideal);
                }
            }
        }
        if let (Some(mix), false) = (&case.spec.mix, case.spec.tail == Tail::Drop) {
            let needed = if mix.stop == Stop::AllExhausted { case.sources.len() } else { 1 };
            prop_assert!(ended >= needed, "{} sources ended", ended);
        }
    }

    #[test]
    fn every_world_sees_the_same_batches(case in cases()) {
        let plan = case.plan();
        let (batch, tail) = (case.spec.global_batch, case.spec.tail);
        let plain: Vec<_> = (0..plan.steps()).map(|step| plan.step(step, Share::whole())).collect();
        for world in case.worlds() {
            let of = plan.for_world(world);
            // For ranks of one row each, the last two steps may be joined.
            let is_joined = of.steps() < plan.steps();
            prop_assert!(!is_joined || tail == Tail::Even && of.steps() + 1 == plan.steps() && 2 * u64::from(world) > batch);
            for step in 0..of.steps() {
                let is_last = step + 1 == of.steps();
                let whole = if is_last { of.step(step, Share::whole()) } else { plain[step as usize].clone() };
                let (mut real, mut repeated, mut size) = (Vec::<RowRef>::new(), Vec::<RowRef>::new(), 0);
                for rank in 0..world {
                    let share = share(rank, world);
                    let part = of.step(step, share);
                    prop_assert!(part.size as u64 <= of.batch_rows(share));
                    prop_assert_eq!(part.real as u64, of.real_rows(step, share));
                    let filled = if tail == Tail::Pad { part.real } else { part.size };
                    prop_assert_eq!(part.rows.len(), filled);
                    let each = if is_last { whole.size as u64 } else { whole.real as u64 };
                    prop_assert!(matches!(tail, Tail::Pad | Tail::Repeat) || part.size.abs_diff((each / u64::from(world)) as usize) <= 1);
                    if matches!(tail, Tail::Pad | Tail::Repeat | Tail::Drop) {
                        prop_assert_eq!(part.size as u64, of.batch_rows(share));
                        prop_assert!(part.size.abs_diff((batch / u64::from(world)) as usize) <= 1);
                    }
                    real.extend(&part.rows[..part.real]);
                    repeated.extend(&part.rows[part.real..]);
                    size += part.size;
                }
                prop_assert_eq!(&real, &whole.rows[..whole.real], "step {} of a world of {}", step, world);
                prop_assert_eq!(&repeated, &whole.rows[whole.real..], "step {} of a world of {}", step, world);
                prop_assert_eq!(size, whole.size);
                if is_joined && is_last {
                    // A list goes lane by lane, so that of the joined step orders the rows differently.
                    let mut expected: Vec<_> = plain[step as usize..].iter().flat_map(|step| &step.rows).copied().collect();
                    expected.sort_unstable();
                    real.sort_unstable();
                    prop_assert_eq!(&real, &expected, "step {} of a world of {}", step, world);
                } else {
                    let plain = &plain[step as usize];
                    prop_assert_eq!(&real, &plain.rows[..plain.real], "step {} of a world of {}", step, world);
                }
                if is_last {
                    // Repeated rows come from the start of the epoch, each once as far as the epoch has enough rows.
                    let repeated = &whole.rows[whole.real..];
                    let last = (repeated.len() as u64 / batch + 1).min(plan.steps()) as usize;
                    let from: BTreeSet<_> = plain[..last].iter().flat_map(|step| &step.rows).collect();
                    prop_assert!(repeated.iter().all(|row| from.contains(row)));
                    if case.spec.mix.is_none() && repeated.len() as u64 <= plan.rows() {
                        prop_assert_eq!(repeated.iter().collect::<BTreeSet<_>>().len(), repeated.len());
                    }
                }
            }
        }
        let beyond = plan.step(plan.steps(), Share::whole());
        prop_assert!(beyond.rows.is_empty() && plan.windows(plan.steps(), Share::whole()).is_empty());
    }

    #[test]
    fn windows_hold_what_steps_need_for_as_long_as_they_need_it(case in cases(), rank: u32, world: prop::sample::Index) {
        let world = world.index(case.worlds().count()) as u32 + 1;
        let share = share(rank % world, world);
        let plan = case.plan().for_world(world);
        // Without repeated rows, whose windows appear again at the end.
        let tail = if matches!(case.spec.tail, Tail::Repeat | Tail::Short) { Tail::Pad } else { case.spec.tail };
        let natural = Case { spec: PlanSpec { tail, ..case.spec.clone() }, ..case.clone() }.plan().for_world(world);
        let (mut last_use, mut before) = (HashMap::new(), HashMap::new());
        for step in 0..natural.steps() {
            let is_last = step + 1 == natural.steps();
            // Under `short` the last step is distributed differently. Ranks that repeat rows in it have windows there that do not
            // count before.
            let of = if is_last && case.spec.tail == Tail::Short { &plan } else { &natural };
            for window in of.windows(step, share) {
                let name = (window.source, window.source_epoch, window.lane, window.window);
                if let (true, Some(step)) = (is_last, last_use.insert(name, step)) {
                    before.insert(name, step);
                }
            }
        }
        let end = plan.step(plan.steps().saturating_sub(1), share);
        let repeats = case.spec.tail == Tail::Short && end.real < end.rows.len();
        let mut held: BTreeMap<_, (u64, Vec<(u32, u32)>)> = BTreeMap::new();
        let mut most = 0;
        for step in 0..plan.steps() {
            held.retain(|_, (last, _)| *last >= step);
            let windows = plan.windows(step, share);
            let rows = plan.step(step, share).rows;
            let taken: BTreeSet<_> = rows.iter().map(|row| (row.source, row.group)).collect();
            let mut offered = BTreeSet::new();
            let mut names = BTreeSet::new();
            for window in windows {
                let name = (window.source, window.source_epoch, window.lane, window.window);
                prop_assert!(names.insert(name), "step {} lists window {:?} twice", step, name);
                let expected = if step + 1 == plan.steps() { step } else { last_use[&name] };
                let is_repeated = repeats && before.get(&name) == Some(&window.last_step);
                prop_assert!(is_repeated || window.last_step == expected, "step {}, window {:?}, not {}", step, window, expected);
                let groups: Vec<_> = window.groups.iter().map(|group| (window.source, *group)).collect();
                prop_assert!(groups.iter().any(|group| taken.contains(group)), "step {} does not need {:?}", step, name);
                offered.extend(groups.iter().copied());
                held.insert(name, (window.last_step, groups));
            }
            prop_assert!(taken.is_subset(&offered), "step {} lacks {:?}", step, taken.difference(&offered).collect::<Vec<_>>());
            let live: BTreeSet<_> = held.values().flat_map(|(_, groups)| groups).collect();
            most = most.max(live.into_iter().map(|(source, group)| cost(*source, *group)).sum());
        }
        let bound = plan.live_bytes(share, &cost);
        prop_assert!(most <= bound, "{} bytes needed, {} promised", most, bound);
        let all: u64 = (0..).zip(&case.sources).map(|(source, groups)| (0..groups.len() as u32).map(|group| cost(source, group)).sum::<u64>()).sum();
        prop_assert!(bound <= all);
        let lanes = u64::from(plan.lanes());
        if case.sources.len() == 1 && case.spec.mix.is_none() && case.spec.global_batch % lanes == 0 && plan.lanes() % world == 0 && tail != Tail::Even {
            prop_assert_eq!(bound, most, "exact where lanes, ranks and batch divide");
        }
    }

    #[test]
    fn aligned_ranks_read_their_own_row_groups(groups in groups(20_000, 0), seed: u64, world in 0_u32..4, lanes in 0_u32..3, rows in 1_u64..9) {
        let (world, lanes) = (1 << world, 1 << (world + lanes));
        let spec = PlanSpec { lanes: Some(lanes), window_rows: Some(500), ..PlanSpec::new(seed, u64::from(lanes) * rows) };
        let case = Case { sources: vec![groups], spec, epoch: 0 };
        let plan = case.plan();
        let mut readers = BTreeSet::new();
        let mut read = BTreeSet::new();
        for step in 0..plan.rows() / case.spec.global_batch {
            for rank in 0..world {
                for window in plan.windows(step, share(rank, world)) {
                    readers.extend(window.groups.iter().map(|group| (*group, rank)));
                    read.extend(window.groups);
                }
            }
        }
        // Only the row groups at the cuts between ranks have two readers.
        prop_assert!(readers.len() < read.len() + world as usize, "{} reads of {} row groups", readers.len(), read.len());
    }

    #[test]
    fn any_step_can_be_asked_for_first(case in cases(), at: prop::sample::Index) {
        let sequential = batches(&case.plan());
        if !sequential.is_empty() {
            let at = at.index(sequential.len());
            let fresh = case.plan().step(at as u64, Share::whole());
            prop_assert_eq!(&fresh.rows[..fresh.real], &sequential[at]);
        }
    }

    #[test]
    fn histories_of_kills_and_resumes_change_nothing(case in cases(), events in prop::collection::vec((1_u32..=8, 0_u64..40, 0_u64..6), 1..20)) {
        let mut case = case;
        let first_epoch = case.epoch;
        // The result of a run without interruptions, for as many epochs as the history covers.
        let mut expected: Vec<Vec<RowRef>> = Vec::new();
        let mut delivered: Vec<Vec<RowRef>> = Vec::new();
        let mut saved = State::new(&case.plan(), 0).to_json();
        for (world, advance, lost) in events {
            // A new gang of another size loads the last state; every rank does so twice.
            let state = State::from_json(&saved).unwrap();
            case.epoch = state.epoch;
            let plan = case.plan();
            let mut step = state.step_in(&plan).unwrap();
            prop_assert_eq!(State::from_json(&saved).unwrap().step_in(&plan).unwrap(), step);
            let world = world.min(case.spec.global_batch as u32);
            if step == plan.steps() {
                // Resumed at the end: nothing remains, and the next epoch begins.
                prop_assert!(plan.step(step, Share::whole()).rows.is_empty());
                case.epoch += 1;
                saved = State::new(&case.plan(), 0).to_json();
                continue;
            }
            let end = (step + advance).min(plan.steps());
            while step < end {
                let rows = (0..world).flat_map(|rank| {
                    let part = plan.step(step, share(rank, world));
                    part.rows.into_iter().take(part.real)
                });
                delivered.push(rows.collect());
                step += 1;
            }
            saved = State::new(&plan, step).to_json();
            prop_assert!(saved.len() <= State::MAX_BYTES);
            // Steps after the save are lost with the gang, and repeated from the state.
            for step in step..(step + lost).min(plan.steps()) {
                prop_assert!(!plan.step(step, Share::whole()).rows.is_empty());
            }
        }
        for epoch in first_epoch..=case.epoch {
            expected.extend(batches(&Case { epoch, ..case.clone() }.plan()));
        }
        prop_assert!(expected.starts_with(&delivered));
    }

    #[test]
    fn states_from_anywhere_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..5000), at: prop::sample::Index, byte: u8) {
        let _ = State::from_json(&bytes);
        let plan = Case { sources: vec![vec![(9, 9)]], spec: PlanSpec::new(1, 2), epoch: 0 }.plan();
        let mut json = State::new(&plan, 1).to_json().into_bytes();
        let at = at.index(json.len());
        json[at] = byte;
        if let Ok(state) = State::from_json(&json) {
            // Anything that still parses as a state is this plan's or refused; any spec makes a plan or an error.
            let _ = state.step_in(&plan);
            let _ = Plan::new(&[manifest(&[(9, 9)])], state.spec, state.epoch).map(|plan| plan.step(state.step, Share::whole()).real);
        }
    }

    #[test]
    fn specs_from_anywhere_never_panic(seed: u64, batch in 0_u64..1 << 20, lanes in prop::option::of(0_u32..1 << 10), window_rows in prop::option::of(any::<u64>()), weights in prop::option::of(prop::collection::vec(any::<u32>(), 0..4)), all: bool) {
        let mix = weights.map(|weights| Mix { weights, stop: if all { Stop::AllExhausted } else { Stop::FirstExhausted } });
        let spec = PlanSpec { lanes, window_rows, mix, ..PlanSpec::new(seed, batch) };
        let manifests = [manifest(&[(9, 9), (5, 2)]), manifest(&[(1, 1)])];
        for count in 0..=2 {
            if let Ok(plan) = spec.resolve(&manifests[..count]).and_then(|spec| Plan::new(&manifests[..count], spec, 0)) {
                let last = plan.steps().saturating_sub(1);
                prop_assert!(plan.step(last, Share::whole()).rows.len() as u64 <= batch);
                plan.windows(0, Share::whole());
            }
        }
    }
}

/// Returns a cost that no two row groups share.
fn cost(source: u32, group: u32) -> u64 {
    1000 + 61 * u64::from(group) + 17 * u64::from(source)
}

#[test]
fn two_epochs_and_two_seeds_differ() {
    let case = Case { sources: vec![vec![(50, 50); 20]], spec: PlanSpec::new(1, 10), epoch: 0 };
    let first = batches(&case.plan());
    assert_ne!(first, batches(&Case { epoch: 1, ..case.clone() }.plan()));
    assert_ne!(first, batches(&Case { spec: PlanSpec::new(2, 10), ..case.clone() }.plan()));
    assert_eq!(first, batches(&case.plan()));
}

#[test]
fn without_shuffle_ranks_together_read_file_order() {
    let spec = PlanSpec { shuffle: Shuffle::None, ..PlanSpec::new(1, 8) };
    let case = Case { sources: vec![vec![(5, 5), (7, 0), (9, 3), (6, 6)]], spec, epoch: 3 };
    let rows: Vec<_> = batches(&case.plan()).concat().iter().map(|row| (row.group, row.row)).collect();
    let file: Vec<_> = case.selected(0).iter().map(|row| (row.group, row.row)).collect();
    assert_eq!(rows, file);
}

/// Plans whose order is fixed in every version: a state saved by one release is resumed by the next.
fn golden_cases() -> Vec<(String, Case)> {
    let in_version = |version: OrderVersion| {
        // The first suffix is from before there were versions.
        let suffix =
            if version == OrderVersion::V1 { String::new() } else { format!(", version {}", version.number()) };
        golden_cases_of().into_iter().map(move |(name, case)| {
            let spec = PlanSpec { order_version: version, ..case.spec };
            (format!("{name}{suffix}"), Case { spec, ..case })
        })
    };
    let mut cases: Vec<_> = OrderVersion::ALL.into_iter().flat_map(in_version).collect();
    let parts = PlanSpec { shuffle: Shuffle::None, lanes: Some(5), tail: Tail::Pad, ..PlanSpec::new(42, 64) };
    cases.push((
        "file order in parts".to_owned(),
        Case { sources: vec![vec![(70, 70), (9, 3), (100, 100)]], spec: parts, epoch: 2 },
    ));
    cases
}

fn golden_cases_of() -> Vec<(&'static str, Case)> {
    let uneven: Vec<_> =
        (0..80).map(|at| (at * 37 % 101, if at % 9 == 4 { at * 37 % 101 / 2 } else { at * 37 % 101 })).collect();
    let spec = PlanSpec { tail: Tail::Pad, ..PlanSpec::new(42, 64) };
    let mix = |stop| Some(Mix { weights: vec![7, 3], stop });
    let case = |sources: &[&[(u64, u64)]], spec: PlanSpec| Case {
        sources: sources.iter().map(|groups| groups.to_vec()).collect(),
        spec,
        epoch: 2,
    };
    let small = [(40, 40), (25, 25), (11, 10)];
    vec![
        ("shuffled", case(&[&uneven], spec.clone())),
        (
            "shuffled, 7 lanes, repeat",
            case(&[&uneven], PlanSpec { lanes: Some(7), window_rows: Some(100), tail: Tail::Repeat, ..spec.clone() }),
        ),
        ("shuffled, drop, batch 97", case(&[&uneven], PlanSpec { global_batch: 97, tail: Tail::Drop, ..spec.clone() })),
        ("file order", case(&[&uneven], PlanSpec { shuffle: Shuffle::None, ..spec.clone() })),
        (
            "large windows",
            case(&[&[(30_000, 30_000); 3]], PlanSpec { lanes: Some(2), window_rows: Some(20_000), ..spec.clone() }),
        ),
        ("one large row group", case(&[&[(10_000, 10_000)]], PlanSpec { lanes: Some(8), ..spec.clone() })),
        (
            "mixture, first exhausted",
            case(&[&uneven, &small], PlanSpec { mix: mix(Stop::FirstExhausted), ..spec.clone() }),
        ),
        (
            "mixture, all exhausted",
            case(&[&uneven, &small], PlanSpec { mix: mix(Stop::AllExhausted), lanes: Some(4), ..spec.clone() }),
        ),
        ("many ranks", case(&[&[(20_000_000, 2000); 80]], PlanSpec { global_batch: 48 * 512, ..spec })),
    ]
}

#[test]
fn the_order_does_not_change_between_releases() {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for (name, case) in golden_cases() {
        let plan = case.plan();
        let mut digest = Sha256::new();
        for step in 0..plan.steps() {
            let step = plan.step(step, Share::whole());
            digest.update((step.real as u64).to_le_bytes());
            for row in step.rows {
                digest.update([row.source, row.group, row.row].map(u32::to_le_bytes).concat());
            }
        }
        let spec = serde_json::to_string(plan.spec()).unwrap();
        digest.update(spec);
        found.insert(name, digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
    }
    let numbers: Vec<u64> = (0..4).map(|at| random(1, at / 2, at % 2)).collect();
    found.insert("random".to_owned(), format!("{numbers:x?}"));
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/golden/plan.json");
    if std::env::var_os("BOWSTRING_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, serde_json::to_string_pretty(&found).unwrap() + "\n").unwrap();
    }
    let golden: BTreeMap<String, String> = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(found, golden, "the order changed: saved states would resume wrongly (BOWSTRING_BLESS=1 accepts it)");
}

#[test]
fn a_million_row_groups_take_little_memory() {
    let manifests = [Arc::new(Manifest::imaginary(&vec![1000; 1_000_000], 1000))];
    let spec = PlanSpec::new(1, 1024).resolve(&manifests).unwrap();
    let plan = Plan::new(&manifests, spec, 0).unwrap();
    assert_eq!(plan.rows(), 1_000_000_000);
    // 12 bytes per row group, 8 per window; the promise is 200 MB.
    assert!(plan.memory() < 24 << 20, "{} bytes", plan.memory());
    let windows = plan.windows(plan.steps() / 2, Share::whole());
    let groups: usize = windows.iter().map(|window| window.groups.len()).sum();
    assert!(groups < 32 * 2 * 11, "{groups} row groups in {} windows", windows.len());
}
