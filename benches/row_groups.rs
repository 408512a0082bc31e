//! Many small row groups: the cost of one that holds hardly any rows.
//!
//! `cargo bench --bench row_groups -- 30000` writes a file with that many row groups of one row and three columns, and
//! takes an epoch of it, in file order and shuffled. The best of three counts.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures")]

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray};
use bowstring::{Loader, LoaderOptions};
use parquet::arrow::ArrowWriter;

#[global_allocator]
static ALLOCATOR: bowstring::memory::CachingAllocator = bowstring::memory::CachingAllocator;

fn row(number: usize) -> RecordBatch {
    RecordBatch::try_from_iter([
        ("id", Arc::new(Int64Array::from(vec![number as i64])) as ArrayRef),
        ("x", Arc::new(Float64Array::from(vec![number as f64 / 4.0]))),
        ("name", Arc::new(StringArray::from(vec![format!("row {number}")]))),
    ])
    .unwrap()
}

fn make(path: &Path, groups: usize) {
    let mut writer = ArrowWriter::try_new(std::fs::File::create(path).unwrap(), row(0).schema(), None).unwrap();
    for number in 0..groups {
        writer.write(&row(number)).unwrap();
        writer.flush().unwrap();
    }
    writer.close().unwrap();
}

fn main() {
    let groups = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(30_000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("groups.parquet");
    make(&path, groups);
    for shuffle in [false, true] {
        let seconds = (0..3).map(|_| {
            let started = Instant::now();
            let url = path.display().to_string();
            let options = LoaderOptions { shuffle, rank: Some(0), world_size: Some(1), ..LoaderOptions::new(url, 256) };
            let mut loader = Loader::open(options).unwrap();
            let opened = started.elapsed().as_secs_f64();
            let batches = loader.iter().map(Result::unwrap).count();
            assert_eq!(batches, groups.div_ceil(256));
            (started.elapsed().as_secs_f64(), opened)
        });
        let (all, opened) = seconds.min_by(|one, other| one.0.total_cmp(&other.0)).unwrap();
        let each = (all - opened) / groups as f64 * 1e6;
        println!(
            "{groups} row groups of one row, shuffle {shuffle}: {all:.2} s, of which {opened:.2} s to open; {each:.0} µs a row group"
        );
    }
}
