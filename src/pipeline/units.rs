//! Epochs over units: every row once, on any number of ranks, from any step on, with its values.

#![expect(clippy::print_stdout, reason = "a random test prints its seed")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use futures::StreamExt;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use super::job::Workers;
use super::options::LoaderOptions;
use super::prepared::{PreparedPlan, Run};
use crate::dataset::Sizes;
use crate::dataset::filter::Filter;
use crate::memory::SystemAllocator;
use crate::plan::{OrderVersion, Plan, Share, Tail, random};

/// Units of a few rows.
const SMALL: Sizes = Sizes { bytes: [1, 1 << 11], count: 1 << 30, column: 0, whole: 0, dictionary: 0 };

const BUDGET: usize = 256 << 20;

fn value(id: i64) -> i32 {
    (id * 7919 % 10) as i32
}

/// Writes row groups of these sizes in small pages.
fn write(path: &Path, groups: &[usize], page_rows: usize) {
    let fields = vec![Field::new("id", DataType::Int64, false), Field::new("v", DataType::Int32, false)];
    let schema = Arc::new(Schema::new(fields));
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(page_rows.is_multiple_of(2))
        // Its dictionary would be as large as the data.
        .set_column_dictionary_enabled("id".into(), false)
        .set_data_page_row_count_limit(page_rows)
        .set_write_batch_size(page_rows)
        .build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties)).unwrap();
    let mut first = 0;
    for rows in groups {
        let ids = first..first + *rows as i64;
        first = ids.end;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from_iter_values(ids.clone())),
            Arc::new(Int32Array::from_iter_values(ids.map(value))),
        ];
        writer.write(&RecordBatch::try_new(Arc::clone(&schema), columns).unwrap()).unwrap();
        writer.flush().unwrap();
    }
    writer.close().unwrap();
}

/// The real rows of steps `steps` on all of `world` ranks.
async fn rows(
    prepared: &PreparedPlan,
    plan: &Arc<Plan>,
    world: u32,
    steps: std::ops::Range<u64>,
) -> (Vec<i64>, (u64, u64)) {
    let workers = Workers::new(2).unwrap();
    let mut found = Vec::new();
    for rank in 0..world {
        let run = Run {
            share: Share::new(rank, world).unwrap(),
            from: steps.start,
            workers: Arc::clone(&workers),
            allocator: Arc::new(SystemAllocator),
            budget: BUDGET,
            keep: 0,
            pool: None,
            prefetch: 1,
        };
        let mut batches = prepared.batches(Arc::clone(plan), run).unwrap();
        for step in steps.clone() {
            let batch = batches.next().await.unwrap().unwrap();
            assert_eq!(batch.step, step);
            let ids = batch.tensor("id").unwrap().as_slice::<i64>().unwrap().to_vec();
            let values = batch.tensor("v").unwrap().as_slice::<i32>().unwrap().to_vec();
            let row_ids = batch.tensor("_row_id").unwrap().as_slice::<i64>().unwrap().to_vec();
            let mask = batch.tensor("_mask").unwrap().bytes().to_vec();
            for at in (0..ids.len()).filter(|at| mask[*at] == 1) {
                assert_eq!((values[at], row_ids[at]), (value(ids[at]), ids[at]));
                found.push(ids[at]);
            }
        }
    }
    (found, workers.decoded())
}

fn prepare(runtime: &tokio::runtime::Runtime, options: &LoaderOptions) -> PreparedPlan {
    let settings = options.settings().unwrap();
    runtime.block_on(PreparedPlan::in_units(options, &settings, SMALL)).unwrap()
}

#[test]
fn every_row_comes_once_whoever_reads_and_resumes() {
    let cases = if std::env::var_os("BOWSTRING_SOAK").is_some() { 60 } else { 6 };
    let base: u64 = std::env::var("BOWSTRING_SEED").map_or(5, |seed| seed.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for seed in base..base + cases {
        println!("repeat with BOWSTRING_SEED={seed} and every_row_comes_once_whoever_reads_and_resumes");
        let draw = |what: u64, end: u64| random(seed, what, 3) % end;
        let groups: Vec<usize> = (0..1 + draw(0, 4)).map(|at| 200 + draw(10 + at, 1500) as usize).collect();
        let directory = tempfile::tempdir().unwrap();
        write(&directory.path().join("data.parquet"), &groups, 5 + draw(1, 60) as usize);
        let total = groups.iter().sum::<usize>() as i64;
        let filter = (draw(2, 3) == 0).then(|| Filter::Text("v < 3".to_owned()));
        let mut options = LoaderOptions {
            urls: vec![directory.path().to_str().unwrap().to_owned()],
            global_batch_size: Some(16 + draw(3, 100)),
            shuffle: draw(4, 4) > 0,
            filter,
            rank: Some(0),
            world_size: Some(1),
            memory_budget: Some(BUDGET as u64),
            threads: Some(2),
            tail: Some(Tail::Pad),
            ..LoaderOptions::default()
        };
        options.columns.row_id = true;
        let prepared = prepare(&runtime, &options);
        let version = prepared.spec().order_version;
        let (units, whole) = (prepared.manifests_in(version), prepared.manifests_in(OrderVersion::V2));
        assert!(units[0].groups.len() > whole[0].groups.len());
        let plan = Arc::new(prepared.plan(draw(5, 3)).unwrap());
        let wanted: Vec<i64> = (0..total).filter(|id| options.filter.is_none() || value(*id) < 3).collect();
        // Some ranks go up to the middle, others continue from there.
        let middle = draw(6, plan.steps() + 1);
        let worlds = [1 + draw(7, 8) as u32, 1 + draw(8, 8) as u32];
        let (mut found, _) = runtime.block_on(rows(&prepared, &plan, worlds[0], 0..middle));
        let (more, _) = runtime.block_on(rows(&prepared, &plan, worlds[1], middle..plan.steps()));
        found.extend(more);
        if !options.shuffle && worlds == [1, 1] {
            assert!(found.is_sorted());
        }
        found.sort_unstable();
        assert_eq!(found, wanted, "worlds {worlds:?}");
    }
}

#[test]
fn one_rank_decodes_each_unit_once_and_older_versions_whole_row_groups() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    write(&directory.path().join("data.parquet"), &[1000, 700], 20);
    let mut options = LoaderOptions {
        urls: vec![directory.path().to_str().unwrap().to_owned()],
        batch_size: Some(64),
        rank: Some(0),
        world_size: Some(1),
        tail: Some(Tail::Pad),
        ..LoaderOptions::default()
    };
    options.columns.row_id = true;
    let mut found = BTreeMap::new();
    for version in OrderVersion::ALL {
        options.order_version = Some(version);
        let prepared = prepare(&runtime, &options);
        let plan = Arc::new(prepared.plan(0).unwrap());
        let need = prepared.need(&plan, Share::whole(), 1).row_groups;
        let (_, (decoded, rows)) = runtime.block_on(rows(&prepared, &plan, 1, 0..plan.steps()));
        assert_eq!((decoded, rows), (prepared.manifests_in(version)[0].groups.len() as u64, 1700), "{version:?}");
        found.insert(version, (decoded, need, prepared.plan(0).unwrap().fingerprint()));
    }
    assert_eq!((found[&OrderVersion::V1].0, found[&OrderVersion::V2].0), (2, 2));
    assert!(found[&OrderVersion::V3].0 > 4);
    assert_eq!(found[&OrderVersion::V1].2, found[&OrderVersion::V3].2, "units are the same data");
}
