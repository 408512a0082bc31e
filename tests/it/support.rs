//! Synthetic datasets, and helpers of tests.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use bowstring::plan::Tail;
use bowstring::tensor::Batch;
use bowstring::{Loader, LoaderOptions};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;

/// Time after which an operation of milliseconds counts as hanging: far above the needs of a busy machine.
pub(crate) const HANG: std::time::Duration = std::time::Duration::from_secs(60);

/// Waits until `is_so`, looking again now and then; a wait that takes too long fails with `what`.
pub(crate) fn until(what: &str, is_so: impl FnMut() -> bool) {
    until_told(|| what.to_owned(), is_so);
}

/// As [`until`], with a text that is made when it fails, such as of a log.
pub(crate) fn until_told(what: impl Fn() -> String, mut is_so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < 2 * HANG, "hang: {}", what());
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Sends `signal`, such as `-TERM`, to a process.
pub(crate) fn signal(process: u32, signal: &str) {
    assert!(std::process::Command::new("kill").args([signal, &process.to_string()]).status().unwrap().success());
}

/// True if the full counts run (`make soak`), otherwise about a tenth.
pub(crate) fn soak() -> bool {
    std::env::var_os("BOWSTRING_SOAK").is_some()
}

/// The seed of a random test, which prints how to run it again: the one of `BOWSTRING_TEST_SEED`, or a new one.
pub(crate) fn seed(test: &str) -> u64 {
    let given = variable("BOWSTRING_TEST_SEED").and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| std::time::UNIX_EPOCH.elapsed().map_or(1, |now| u64::from(now.subsec_nanos())));
    println!("repeat with: BOWSTRING_TEST_SEED={seed} cargo test --test it {test}");
    seed
}

/// Random numbers that are the same for the same seed (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// Returns an index below `end`.
    pub(crate) fn index(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.index(from.len())].clone()
    }
}

/// Returns a cell of a synthetic dataset, which has `id` and float32 columns `f0..`, each cell a function of its row.
pub(crate) fn cell(id: i64, column: usize) -> f32 {
    ((id * 31 + column as i64 * 7) % 1000) as f32
}

/// Writes one file per element of `files`; each holds row groups with these row counts. `id` counts rows through all files.
pub(crate) fn write(directory: &Path, files: &[Vec<usize>], floats: usize) {
    let mut fields = vec![Field::new("id", DataType::Int64, false)];
    fields.extend((0..floats).map(|column| Field::new(format!("f{column}"), DataType::Float32, false)));
    let schema = Arc::new(Schema::new(fields));
    let mut first = 0_i64;
    for (number, groups) in files.iter().enumerate() {
        let file = File::create(directory.join(format!("part-{number:03}.parquet"))).unwrap();
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_dictionary_enabled(false)
            .set_max_row_group_row_count(None)
            .build();
        let mut writer = ArrowWriter::try_new(file, Arc::clone(&schema), Some(properties)).unwrap();
        for rows in groups {
            let ids = first..first + *rows as i64;
            let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(ids.clone()))];
            for column in 0..floats {
                columns.push(Arc::new(Float32Array::from_iter_values(ids.clone().map(|id| cell(id, column)))));
            }
            writer.write(&RecordBatch::try_new(Arc::clone(&schema), columns).unwrap()).unwrap();
            writer.flush().unwrap();
            first = ids.end;
        }
        writer.close().unwrap();
    }
}

/// Options over `directory` for rank `rank` of `world`, with a global batch that is the same for every world; padded.
pub(crate) fn options(directory: &Path, global: u64, rank: u32, world: u32) -> LoaderOptions {
    LoaderOptions {
        urls: vec![directory.to_str().unwrap().to_owned()],
        global_batch_size: Some(global),
        rank: Some(rank),
        world_size: Some(world),
        memory_budget: Some(256 << 20),
        threads: Some(2),
        // `_mask` marks the rows that count.
        tail: Some(Tail::Pad),
        ..LoaderOptions::default()
    }
}

/// Returns the `id`s of the batch's real rows.
pub(crate) fn ids(batch: &Batch) -> Vec<i64> {
    let ids = batch.tensor("id").unwrap().as_slice::<i64>().unwrap().to_vec();
    match batch.tensor("_mask") {
        Some(mask) => ids.into_iter().zip(mask.bytes()).filter(|(_, real)| **real == 1).map(|(id, _)| id).collect(),
        None => ids,
    }
}

/// Reads the rest of the epoch, as ids per step.
pub(crate) fn drain(loader: &mut Loader) -> Vec<Vec<i64>> {
    std::iter::from_fn(|| loader.next().unwrap()).map(|batch| ids(&batch)).collect()
}

/// Returns an environment variable, for example one that a child was given.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The repository's fixture `name`.
pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

/// Compiles `source` of the repository with these options to a library called `name`, in the directory for build outputs.
#[cfg(target_os = "linux")]
pub(crate) fn compile(source: &str, name: &str, options: &[String], others: &[PathBuf]) -> PathBuf {
    use std::hash::{Hash, Hasher};

    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(source);
    let mut hasher = std::hash::DefaultHasher::new();
    let files = std::iter::once(&source).chain(others).map(|path| std::fs::read(path).unwrap());
    (files.collect::<Vec<_>>(), options).hash(&mut hasher);
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("built-{name}-{:016x}", hasher.finish()));
    let library = directory.join(name);
    if !library.exists() {
        std::fs::create_dir_all(&directory).unwrap();
        let made = tempfile::Builder::new().tempfile_in(&directory).unwrap().into_temp_path();
        let mut cc = std::process::Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        cc.args(["-std=gnu11", "-O2", "-ffp-contract=off", "-fvisibility=hidden", "-shared", "-fPIC"]);
        cc.args(options).arg("-o").arg(&*made).arg(&source).args(["-lpthread", "-lm", "-ldl"]);
        let done = cc.output().unwrap_or_else(|error| panic!("the C compiler that links Rust: {error}"));
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        // Several tests may build it at once; each puts a complete file in place.
        made.persist(&library).unwrap();
    }
    library
}
