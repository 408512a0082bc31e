//! The cost of a row for a rank of a gang: some ranks of W are actually run, one after another, over the same files;
//! the plan counts the reads of all ranks together, and the reads of the ranks that run are compared with it.
//!
//! `cargo bench --bench ranks`. From the environment: `RANKS_ROWS` rows of a row group (20,000), `RANKS_GROUPS` row groups
//! ("8,64,1000"), `RANKS_WORLDS` ("1,8,64,256,1024"), `RANKS_BATCH` rows per rank and step (512), `RANKS_COLUMNS` (20),
//! `RANKS_LANES` lanes and `RANKS_WINDOW` rows of a window instead of the default, `RANKS_SHUFFLE` (true), `RANKS_VERSION` of the order
//! (the latest), `RANKS_SPARK` (false): columns as Spark writes them. A million rows of 20 columns are 53 MiB of zstd.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch};
use arrow::datatypes::{Field, Schema};
use bowstring::pipeline::LocalSource;
use bowstring::plan::{OrderVersion, State, Tail};
use bowstring::{Loader, LoaderOptions};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

/// Row groups of a file.
const GROUPS_PER_FILE: usize = 8;

fn variable<T: std::str::FromStr>(name: &str, usual: T) -> T {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn list(name: &str, usual: &str) -> Vec<usize> {
    let text = std::env::var(name).unwrap_or_else(|_| usual.to_owned());
    text.split(',').filter_map(|part| part.trim().parse().ok()).collect()
}

/// CPU seconds of this process so far, if the system reports them.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    // User and system time, in hundredths.
    let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// Row groups of the bench.
#[derive(Clone, Copy)]
struct Shape {
    groups: usize,
    rows: usize,
    columns: usize,
    /// Snappy, pages of 20,000 rows, nullable columns without nulls: every other one integers in a dictionary, a
    /// quarter doubles. Otherwise zstd and floats.
    spark: bool,
}

/// Writes them, with about 10 random bits in each value.
fn write(directory: &Path, shape: Shape) {
    let Shape { groups, rows, columns, spark } = shape;
    let mut state = 1_u64;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state >> 40
    };
    let mut column = |at: usize| -> ArrayRef {
        let values = (0..rows).map(|_| next());
        match at % 4 {
            1 | 3 if spark => Arc::new(values.map(|value| (value % 1000) as i64).collect::<Int64Array>()),
            2 if spark => Arc::new(values.map(|value| value as f64 / 64.0).collect::<Float64Array>()),
            _ => Arc::new(values.map(|value| value as f32 / 64.0).collect::<Float32Array>()),
        }
    };
    // The same cells in each row group: they are packed once and cost the same.
    let cells: Vec<_> = (0..columns).map(&mut column).collect();
    let field = |(at, cells): (usize, &ArrayRef)| Field::new(format!("x{at}"), cells.data_type().clone(), spark);
    let schema = Arc::new(Schema::new(cells.iter().enumerate().map(field).collect::<Vec<_>>()));
    let batch = RecordBatch::try_new(schema, cells).expect("columns are alike");
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(rows));
    let properties = if spark {
        let mut properties = properties.set_compression(Compression::SNAPPY).set_data_page_row_count_limit(20_000);
        // parquet-mr abandons dictionaries after the first page if they save nothing.
        for field in batch.schema().fields().iter().filter(|field| field.data_type().is_floating()) {
            properties = properties.set_column_dictionary_enabled(field.name().as_str().into(), false);
        }
        properties
    } else {
        properties.set_compression(Compression::ZSTD(ZstdLevel::default())).set_dictionary_enabled(false)
    };
    let properties = properties.build();
    for (number, first) in (0..groups).step_by(GROUPS_PER_FILE).enumerate() {
        let file = File::create(directory.join(format!("{number:05}.parquet"))).expect("a file can be made");
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.clone())).expect("a schema");
        for _ in first..groups.min(first + GROUPS_PER_FILE) {
            writer.write(&batch).expect("a row group is written");
        }
        writer.close().expect("a footer is written");
    }
}

/// Percents of an epoch at which a rank resumes.
const RESUMES: [u64; 3] = [1, 50, 99];

/// Seconds to the first batch of a rank that resumes after so many percent of an epoch.
fn seconds_after(percent: u64, options: LoaderOptions) -> f64 {
    let source = LocalSource::open(options).expect("a dataset");
    let state = State::new(source.plan(), source.plan().steps() * percent / 100);
    let mut loader = Loader::of(Box::new(source));
    loader.load_state(&state).expect("a state of this plan");
    let started = Instant::now();
    loader.next().expect("a batch");
    started.elapsed().as_secs_f64()
}

fn main() {
    let (rows, columns) = (variable("RANKS_ROWS", 20_000), variable("RANKS_COLUMNS", 20));
    let batch = variable("RANKS_BATCH", 512_u64);
    let lanes: u32 = variable("RANKS_LANES", 0);
    println!("{rows} rows of {columns} columns in a row group, {batch} rows per rank and step");
    println!(
        "row groups  ranks  lanes  read by all  rows per CPU s  row groups of a rank  first batch  resumed at 1, 50, 99 %  peak of its memory"
    );
    for groups in list("RANKS_GROUPS", "8,64,1000") {
        let directory = tempfile::tempdir().expect("a directory can be made");
        write(directory.path(), Shape { groups, rows, columns, spark: variable("RANKS_SPARK", false) });
        for world in list("RANKS_WORLDS", "1,8,64,256,1024") {
            let world = world as u32;
            let options = |rank| LoaderOptions {
                rank: Some(rank),
                world_size: Some(world),
                lanes: Some(lanes).filter(|lanes| *lanes > 0),
                window_rows: Some(variable("RANKS_WINDOW", 0)).filter(|rows| *rows > 0),
                shuffle: variable("RANKS_SHUFFLE", true),
                // Ranks of other tails repeat rows, which the plan's counts leave out.
                tail: Some(Tail::Even),
                order_version: OrderVersion::try_from(variable("RANKS_VERSION", OrderVersion::LATEST.number())).ok(),
                ..LoaderOptions::new(directory.path().to_string_lossy(), batch)
            };
            let (mut delivered, mut spent, mut read, mut peak) = (0_u64, 0.0, Vec::new(), 0);
            // Seconds to the first batch of an epoch, and of each resume.
            let (mut first, mut resumed) = (0.0_f64, [0.0_f64; RESUMES.len()]);
            let mut plan = None;
            let mut ranks = vec![0, world / 3, world - 1];
            ranks.dedup();
            for rank in ranks {
                let source = match LocalSource::open(options(rank)) {
                    Ok(source) => source,
                    Err(error) => {
                        println!("{groups:>10}  {world:>5}  {error}");
                        break;
                    }
                };
                let reads = plan.get_or_insert_with(|| (source.plan().lanes(), source.plan().reads(world, &|_, _| 1)));
                let mut loader = Loader::of(Box::new(source));
                let expected = reads.1.ranks[rank as usize].groups;
                let (started, before) = (Instant::now(), cpu());
                let mut waited = None;
                while let Some(batch) = loader.next().expect("a batch") {
                    waited.get_or_insert_with(|| started.elapsed().as_secs_f64());
                    if batch.epoch > 0 {
                        break;
                    }
                }
                let stats = loader.stats();
                spent += cpu() - before;
                delivered += stats.rows;
                // A row group of two lanes is held from one to the other or read again, by `prefetch`; the plan counts it twice.
                assert!(stats.read.items <= expected, "rank {rank} of {world} reads more than the plan says");
                read.push(stats.read.items);
                first = first.max(waited.unwrap_or(0.0));
                peak = peak.max(stats.memory.peak);
                drop(loader);
                for (longest, percent) in resumed.iter_mut().zip(RESUMES) {
                    *longest = longest.max(seconds_after(percent, options(rank)));
                }
            }
            let Some((lanes, reads)) = plan else { continue };
            let speed = delivered as f64 / spent.max(0.01) / 1e6;
            println!(
                "{groups:>10}  {world:>5}  {lanes:>5}  {:>9.2} x  {speed:>12.2} M  {:>20}  {:>8.0} ms  {:>20} ms  {:>14} MiB",
                reads.times(),
                format!("{read:?}"),
                first * 1e3,
                resumed.map(|seconds| format!("{:.0}", seconds * 1e3)).join(", "),
                peak >> 20
            );
        }
    }
}
