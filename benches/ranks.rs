//! What a row costs a rank of a gang: ranks of W are run for real, some of them, one after another, over the same files; what all of
//! them read together is counted by the plan, and what those that run read is held against it.
//!
//! `cargo bench --bench ranks`. From the environment: `RANKS_ROWS` rows of a row group (20,000), `RANKS_GROUPS` row groups
//! ("8,64,1000"), `RANKS_WORLDS` ("1,8,64,256,1024"), `RANKS_BATCH` rows per rank and step (512), `RANKS_COLUMNS` (20),
//! `RANKS_LANES` lanes instead of the default, `RANKS_SHUFFLE` (true). A million rows of 20 columns are 53 MiB of zstd.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Float32Array, RecordBatch};
use bowstring::pipeline::LocalSource;
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

/// CPU seconds of this process so far, where the system tells them.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default();
    // User and system time, in hundredths.
    let ticks: u64 = after.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// Writes `groups` row groups of `rows` rows: floats of 10 random bits, which zstd packs to two thirds.
fn write(directory: &Path, groups: usize, rows: usize, columns: usize) {
    let mut state = 1_u64;
    let mut column = || -> ArrayRef {
        let next = |_| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 40) as f32 / 64.0
        };
        Arc::new((0..rows).map(next).collect::<Float32Array>())
    };
    // The same cells in each row group: they are packed once and cost as much.
    let cells: Vec<_> = (0..columns).map(|at| (format!("x{at}"), column())).collect();
    let batch = RecordBatch::try_from_iter(cells).expect("columns are alike");
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(rows))
        .build();
    for (number, first) in (0..groups).step_by(GROUPS_PER_FILE).enumerate() {
        let file = File::create(directory.join(format!("{number:05}.parquet"))).expect("a file can be made");
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties.clone())).expect("a schema");
        for _ in first..groups.min(first + GROUPS_PER_FILE) {
            writer.write(&batch).expect("a row group is written");
        }
        writer.close().expect("a footer is written");
    }
}

fn main() {
    let (rows, columns) = (variable("RANKS_ROWS", 20_000), variable("RANKS_COLUMNS", 20));
    let batch = variable("RANKS_BATCH", 512_u64);
    let lanes: u32 = variable("RANKS_LANES", 0);
    println!("{rows} rows of {columns} columns in a row group, {batch} rows per rank and step");
    println!(
        "row groups  ranks  lanes  read by all  rows per CPU s  row groups of a rank  first batch  peak of its memory"
    );
    for groups in list("RANKS_GROUPS", "8,64,1000") {
        let directory = tempfile::tempdir().expect("a directory can be made");
        write(directory.path(), groups, rows, columns);
        for world in list("RANKS_WORLDS", "1,8,64,256,1024") {
            let world = world as u32;
            let options = |rank| LoaderOptions {
                rank: Some(rank),
                world_size: Some(world),
                lanes: Some(lanes).filter(|lanes| *lanes > 0),
                shuffle: variable("RANKS_SHUFFLE", true),
                ..LoaderOptions::new(directory.path().to_string_lossy(), batch)
            };
            let (mut delivered, mut spent, mut read, mut first, mut peak) = (0_u64, 0.0, Vec::new(), 0.0_f64, 0);
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
                assert_eq!(stats.read.items, expected, "rank {rank} of {world} reads what the plan says");
                read.push(expected);
                first = first.max(waited.unwrap_or(0.0));
                peak = peak.max(stats.memory.peak);
            }
            let Some((lanes, reads)) = plan else { continue };
            let speed = delivered as f64 / spent.max(0.01) / 1e6;
            println!(
                "{groups:>10}  {world:>5}  {lanes:>5}  {:>9.2} x  {speed:>12.2} M  {:>20}  {:>8.0} ms  {:>14} MiB",
                reads.times(),
                format!("{read:?}"),
                first * 1e3,
                peak >> 20
            );
        }
    }
}
