//! Row groups read by the ranks of a gang: none twice, wherever the data allow it. By arithmetic, and for real.

use std::collections::BTreeMap;
use std::sync::Arc;

use bowstring::dataset::Ngram;
use bowstring::manifest::{Manifest, RowGroup};
use bowstring::pipeline::LocalSource;
use bowstring::plan::{Mix, OrderVersion, Plan, PlanSpec, Reads, Share, Shuffle, Stop};
use bowstring::{Loader, LoaderOptions};

use crate::support::{self, options};

fn plan(spec: PlanSpec, manifests: &[Arc<Manifest>]) -> Plan {
    Plan::new(manifests, spec.resolve(manifests).unwrap(), 0).unwrap()
}

fn reads(plan: &Plan, manifests: &[Arc<Manifest>], world: u32) -> Reads {
    plan.reads(world, &|source, group| manifests[source as usize].groups[group as usize].bytes)
}

/// Makes `groups` row groups of about `rows` rows: up to a tenth more or less, as writers do.
fn uneven(groups: usize, rows: u64, row_bytes: u64) -> Arc<Manifest> {
    let size = |at: usize| rows - rows / 10 + at as u64 * 7919 % (rows / 5 + 1);
    Arc::new(Manifest::imaginary(&(0..groups).map(size).collect::<Vec<_>>(), row_bytes))
}

#[test]
fn thousands_of_ranks_read_a_hundred_thousand_row_groups_once() {
    let manifests = [uneven(100_000, 100_000, 80)];
    let plan = plan(PlanSpec::new(1, 4096 * 512), &manifests);
    assert_eq!(plan.lanes(), 4096);
    let reads = reads(&plan, &manifests, 4096);
    println!("read {:.3} x, the busiest rank has {:.3} x the mean", reads.times(), reads.imbalance());
    assert!(reads.times() <= 1.1, "{} x", reads.times());
    let (least, most) =
        reads.ranks.iter().fold((u64::MAX, 0), |(least, most), rank| (least.min(rank.bytes), most.max(rank.bytes)));
    let mean = reads.bytes() as f64 / 4096.0;
    println!("the idlest {:.3} x", least as f64 / mean);
    // Whole row groups are distributed, about 24 to each rank: one more or less is 4 %.
    assert!(most as f64 <= 1.05 * mean && least as f64 >= 0.95 * mean, "{least} to {most}, mean {mean}");
}

#[test]
fn the_default_lanes_keep_ranks_from_sharing_row_groups() {
    println!("ranks  row groups  bytes each  lanes  read (version 2)");
    for (groups, row_bytes) in [(64, 80), (1000, 12), (1000, 80), (1000, 200)] {
        let manifests = [Arc::new(Manifest::imaginary(&vec![1_000_000; groups], row_bytes))];
        for world in [1_u32, 8, 64, 256, 1024] {
            let spec = PlanSpec::new(1, u64::from(world) * 512);
            let old = plan(PlanSpec { order_version: OrderVersion::V2, ..spec.clone() }, &manifests);
            let new = plan(spec, &manifests);
            let lanes = new.lanes();
            let (before, now) = (reads(&old, &manifests, world).times(), reads(&new, &manifests, world).times());
            println!("{world:>5}  {groups:>10}  {row_bytes:>7} MB  {:>5}  {now:.2} x ({before:.2} x)", new.lanes());
            // A rank takes at least a whole row group, and ranks share some where all lanes together would need too much memory.
            let least = f64::from(world) / groups as f64;
            let lanes = f64::from(lanes);
            let shared = (f64::from(world) / lanes).max(least * 2.05).max(1.1);
            assert!(
                now <= shared * 1.15 + least && now <= before * 1.001,
                "{world} ranks, {groups} row groups: {now} x, was {before} x"
            );
            // Users with enough memory request a lane for each rank.
            let asked = PlanSpec { lanes: Some(world), ..PlanSpec::new(1, u64::from(world) * 512) };
            let times = reads(&plan(asked, &manifests), &manifests, world).times();
            assert!(world > 64 || times <= 1.07, "{world} ranks, {groups} row groups, as many lanes: {times} x");
            // Row groups of 12 MB: a lane for each of 64 ranks.
            assert!(row_bytes > 12 || world > 64 || now <= 1.1, "{world} ranks: {now} x");
        }
    }
}

#[test]
fn more_lanes_shuffle_no_worse_in_as_much_memory() {
    for (world, groups, rows, row_bytes) in [
        (1, 64, 100_000, 800),
        (8, 64, 100_000, 800),
        (64, 1000, 20_000, 400),
        (64, 4000, 1000, 1000),
        (16, 300, 320, 100 << 10),
    ] {
        let manifests = [Arc::new(Manifest::imaginary(&vec![rows; groups], row_bytes))];
        let batch = u64::from(world) * if row_bytes > 10_000 { 64 } else { 512 };
        let of = |order_version| plan(PlanSpec { order_version, ..PlanSpec::new(1, batch) }, &manifests);
        let (old, new) = (of(OrderVersion::V2), of(OrderVersion::V3));
        let memory = |plan: &Plan| {
            let share = Share::new(world / 2, world).unwrap();
            plan.live_bytes(share, &|_, group| manifests[0].groups[group as usize].bytes)
        };
        let found = [&old, &new].map(|plan| (plan.lanes(), plan.quality(), memory(plan)));
        println!("{world} ranks: lanes, quality, bytes of a rank: {found:?}");
        let [(_, before, held), (_, now, holds)] = found;
        assert!(now >= before - 0.005, "quality {now}, was {before}");
        assert!(holds <= held.max(256 << 20), "{holds} bytes of a rank, {held} before");
    }
}

#[test]
fn mixtures_and_filters_are_read_once_too() {
    // A large dataset and a small one, and one of which a filter left scattered rows.
    let small = Arc::new(Manifest::imaginary(&[9000; 200], 80));
    let manifests = [uneven(2000, 100_000, 80), small];
    let mix = Some(Mix { weights: vec![99, 1], stop: Stop::FirstExhausted });
    let spec = PlanSpec { mix, ..PlanSpec::new(1, 64 * 512) };
    let before = plan(PlanSpec { order_version: OrderVersion::V2, ..spec.clone() }, &manifests);
    let mixed = plan(spec, &manifests);
    let (before, mixed) = (reads(&before, &manifests, 64), reads(&mixed, &manifests, 64));
    println!("mixture: {:.2} x, {:.2} x in version 2", mixed.times(), before.times());
    assert!(mixed.times() <= 1.1 && before.times() > 4.0);

    let group = |ordinal: u32| {
        let selected = if ordinal.is_multiple_of(3) { 0 } else { 1 + u64::from(ordinal) * 31 % 500 };
        RowGroup { file: 0, ordinal, rows: 100_000, selected, bytes: 8_000_000 }
    };
    let files = Manifest::imaginary(&[], 0).files;
    let filtered = [Arc::new(Manifest::new(files, (0..6000).map(group).collect(), "", "x > 1"))];
    let reads = reads(&plan(PlanSpec::new(1, 64 * 512), &filtered), &filtered, 64);
    println!("filtered: {:.2} x", reads.times());
    assert!(reads.times() <= 1.1, "{} x", reads.times());
}

#[test]
fn parts_of_the_file_order_are_read_once() {
    let manifests = [uneven(2560, 20_000, 80)];
    for world in [64, 256] {
        let spec = PlanSpec { shuffle: Shuffle::None, ..PlanSpec::new(1, u64::from(world) * 128) };
        let together = plan(spec.clone(), &manifests);
        let parts = plan(PlanSpec { lanes: Some(world), ..spec }, &manifests);
        let times = [&together, &parts].map(|plan| reads(plan, &manifests, world).times());
        println!("{world} ranks in file order: {:.1} x, in parts {:.2} x", times[0], times[1]);
        // Each step is of one or two row groups, and all ranks take their part of it.
        assert!(times[0] > 0.6 * f64::from(world), "{times:?}");
        assert!(times[1] <= 1.0 + f64::from(world) / 2560.0 + 0.005, "{times:?}");
        // Each rank goes through its part in file order.
        let share = Share::new(world / 3, world).unwrap();
        let rows: Vec<_> = (0..parts.steps() - 1).flat_map(|step| parts.step(step, share).rows).collect();
        assert!(rows.is_sorted());
    }
}

/// Counts the row groups that some ranks really read, and checks that the plan predicts them.
fn read_for_real(options: impl Fn(u32) -> LoaderOptions, ranks: &[u32], world: u32) -> (u64, f64) {
    let mut real = 0;
    let mut counted = None;
    for rank in ranks {
        let source = LocalSource::open(options(*rank)).unwrap();
        let reads = counted.get_or_insert_with(|| source.plan().reads(world, &|_, _| 1));
        let mut loader = Loader::of(Box::new(source));
        let expected = reads.ranks[*rank as usize].groups;
        while loader.next().unwrap().is_some() {}
        let read = loader.stats().read.items;
        assert_eq!(read, expected, "rank {rank} of {world}");
        real += read;
    }
    (real, counted.unwrap().times())
}

#[test]
fn ranks_read_the_planned_row_groups() {
    let directory = tempfile::tempdir().unwrap();
    // 96 row groups of 400 to 600 rows. In the last step, of fewer than 128 rows, ranks take rows of each other's lanes too.
    let files: Vec<Vec<usize>> =
        (0..8).map(|file| (0..12).map(|at| 400 + (file * 12 + at) * 53 % 200).collect()).collect();
    support::write(directory.path(), &files, 1);
    let sampled = [0, 5, 7];
    for (what, shuffle, lanes, filter, times) in [
        ("shuffled", true, Some(8), None, 1.1),
        ("filtered", true, Some(8), Some("split(id, 0, 0.2)"), 1.1),
        ("shuffled in more lanes than ranks", true, None, None, 1.4),
        ("file order", false, None, None, 8.0),
        ("parts of the file order", false, Some(8), None, 1.1),
    ] {
        let of = |rank| LoaderOptions {
            shuffle,
            lanes,
            filter: filter.map(|text: &str| bowstring::dataset::filter::Filter::Text(text.to_owned())),
            ..options(directory.path(), 8 * 16, rank, 8)
        };
        let (real, counted) = read_for_real(of, &sampled, 8);
        println!("{what}: 3 of 8 ranks read {real} of 96 row groups, all together {counted:.2} x");
        assert!(counted <= times, "{what}: {counted} x");
    }
}

#[test]
fn windows_of_rows_and_few_rows_are_read_as_planned() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &vec![vec![500; 8]; 8], 1);
    let ngram = Ngram {
        fields: BTreeMap::from([(0, vec!["id".to_owned()]), (1, vec!["id".to_owned()])]),
        timestamp_field: "id".to_owned(),
        delta_threshold: 10.0,
        timestamp_overlap: true,
    };
    let pairs = |rank| LoaderOptions {
        ngram: Some(ngram.clone()),
        lanes: Some(8),
        ..options(directory.path(), 8 * 16, rank, 8)
    };
    let (real, counted) = read_for_real(pairs, &[0, 3, 7], 8);
    println!("windows of two rows: 3 of 8 ranks read {real} of 64 row groups, all together {counted:.2} x");
    assert!(counted <= 1.15, "{counted} x");
    // An evaluation of three row groups: no rank can read less than one of them.
    let few = tempfile::tempdir().unwrap();
    support::write(few.path(), &[vec![500; 3]], 1);
    for (lanes, most) in [(None, 8.0), (Some(8), 3.4)] {
        let of = |rank| LoaderOptions { shuffle: false, lanes, ..options(few.path(), 8 * 16, rank, 8) };
        let (_, counted) = read_for_real(of, &[0, 3, 7], 8);
        println!("three row groups in file order, lanes {lanes:?}: {counted:.2} x");
        assert!(counted <= most, "{counted} x");
    }
}

#[test]
fn the_error_of_a_rank_without_enough_memory_says_how_many_lanes_fit() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &vec![vec![1000; 16]; 4], 16);
    // The batch of 64 ranks; each row group is a window.
    let alone = || LoaderOptions { window_rows: Some(1), prefetch: 1, ..options(directory.path(), 64 * 512, 0, 1) };
    let source = LocalSource::open(alone()).unwrap();
    assert_eq!(source.plan().lanes(), 64);
    let need = source.memory_need();
    let budget = need.total() - need.row_groups / 4;
    let tight = |lanes| LoaderOptions { memory_budget: Some(budget), lanes, ..alone() };
    let error = Loader::open(tight(None)).unwrap_err().to_string();
    let told = error.split("it fits with lanes=").nth(1).and_then(|rest| rest.split(')').next());
    let lanes: u32 = told.unwrap_or_else(|| panic!("{error}")).parse().unwrap();
    println!("{error}");
    assert!(lanes < 64);
    Loader::open(tight(Some(lanes))).unwrap();
    // A rank of the gang holds only its own lane.
    let gang = LoaderOptions { window_rows: Some(1), prefetch: 1, ..options(directory.path(), 64 * 512, 5, 64) };
    let rank = LocalSource::open(gang).unwrap().memory_need();
    assert!(rank.row_groups * 8 < need.row_groups, "{rank:?}, alone {need:?}");
}

/// 256 ranks, then 4, then 64; each world resumes from the state of the previous one.
#[test]
fn a_gang_shrinks_and_grows_in_an_epoch_within_the_memory_of_each_rank() {
    let (groups, rows) = (64, 2048);
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &vec![vec![rows; groups / 4]; 4], 20);
    let batch = 256 * 32;
    let steps = (groups * rows) as u64 / batch;
    let budget = 64 << 20;
    let mut seen = vec![0_u8; groups * rows];
    let (mut state, mut at, mut peak) = (None, 0, 0);
    for (world, until) in [(256, steps / 3), (4, steps * 2 / 3), (64, steps)] {
        let mut after = None;
        for rank in 0..world {
            let options =
                LoaderOptions { memory_budget: Some(budget), ..options(directory.path(), batch, rank, world) };
            let mut loader = Loader::open(options).unwrap();
            if let Some(state) = &state {
                loader.load_state(state).unwrap();
            }
            for _ in at..until {
                for id in support::ids(&loader.next().unwrap().unwrap()) {
                    seen[id as usize] += 1;
                }
            }
            let now = loader.state();
            assert_eq!(*after.get_or_insert_with(|| now.clone()), now, "rank {rank} of {world}");
            peak = peak.max(loader.stats().memory.peak);
        }
        (state, at) = (after, until);
    }
    println!("{steps} steps, {} MiB at most on a rank", peak >> 20);
    assert!(seen.iter().all(|times| *times == 1), "each row once");
    assert!(peak <= budget);
}
