//! Opening many small files, and taking their first batch: CPU seconds, and memory that stays.
//!
//! `cargo bench --bench opening -- 10000` makes that many hard links of one file of 40 columns and 100 rows, opens
//! them, and takes a batch; and once more from an index. CPU times are those of all threads; memory is the increase of
//! the process's memory.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Float64Array, RecordBatch};
use bowstring::dataset::{Dataset, OpenOptions};
use bowstring::{Loader, LoaderOptions};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

const COLUMNS: usize = 40;
const ROWS: usize = 100;

#[global_allocator]
static ALLOCATOR: bowstring::memory::CachingAllocator = bowstring::memory::CachingAllocator;

/// Makes hard links of one file, a limited number per directory.
fn make(root: &Path, files: usize) {
    let column = |at: usize| {
        let values: Vec<f64> = (0..ROWS).map(|row| (row * 31 + at) as f64 / 7.0).collect();
        (format!("column_{at}"), Arc::new(Float64Array::from(values)) as ArrayRef)
    };
    let batch = RecordBatch::try_from_iter((0..COLUMNS).map(column)).unwrap();
    let first = root.join("part-000000.parquet");
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let file = std::fs::File::create(&first).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    // A file has at most 65,000 names on ext4.
    let mut source = first;
    for number in 1..files {
        let path = root.join(format!("part-{number:06}.parquet"));
        if number % 50_000 == 0 {
            std::fs::copy(&source, &path).unwrap();
            source = path;
        } else {
            std::fs::hard_link(&source, &path).unwrap();
        }
    }
}

/// CPU seconds of this process so far, and its current and peak memory in MiB.
fn used() -> (f64, f64, f64) {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kib = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or("0");
        line.split_whitespace().next().unwrap().parse::<f64>().unwrap()
    };
    (ticks / 100.0, kib("VmRSS:") / 1024.0, kib("VmHWM:") / 1024.0)
}

fn main() {
    let files = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(10_000);
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), files);
    let url = folder.path().display().to_string();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();

    let ((cpu, memory, _), started) = (used(), Instant::now());
    let open = || runtime.block_on(Dataset::open(std::slice::from_ref(&url), OpenOptions::default())).unwrap();
    let dataset = open();
    let wall = started.elapsed().as_secs_f64();
    let (after, held, most) = used();
    println!(
        "{files} files of {COLUMNS} columns: opened in {wall:.2} s, {:.2} s of CPU; {:.0} MiB held, {most:.0} MiB at most; {}",
        after - cpu,
        held - memory,
        dataset.manifest().fingerprint()
    );
    runtime.block_on(dataset.write_index(None, &OpenOptions::default())).unwrap();
    drop(dataset);
    let ((cpu, ..), started) = (used(), Instant::now());
    let dataset = open();
    let (wall, size) = (started.elapsed().as_secs_f64(), dataset.index().unwrap().len());
    let indexed = used().0 - cpu;
    println!("from an index of {:.1} MB: opened in {wall:.2} s, {indexed:.2} s of CPU", size as f64 / 1e6);
    drop(dataset);

    for shuffle in [false, true] {
        let (cpu, ..) = used();
        let started = Instant::now();
        let options = LoaderOptions { shuffle, rank: Some(0), world_size: Some(1), ..LoaderOptions::new(&url, 512) };
        let mut loader = Loader::open(options).unwrap();
        let opened = started.elapsed().as_secs_f64();
        let mut epoch = loader.iter();
        let batch = epoch.next();
        assert!(batch.is_some_and(|batch| batch.is_ok()));
        let (after, ..) = used();
        let first = started.elapsed().as_secs_f64() - opened;
        println!(
            "shuffle {shuffle}: loader in {opened:.2} s, first batch {first:.3} s later; {:.2} s of CPU",
            after - cpu
        );
    }
}
