//! Gathering rows of shuffled row groups: rows and bytes per second, by form.
//!
//! `recsys` compares making matrices row-major once per row group (`packed`: prepare + gather), the same 39 columns on
//! their own (`loose`), and the same if they were not side by side in memory (`apart`). 16 row groups of 65,536 rows,
//! batches of 4,096 rows drawn from all of them.

use std::hint::black_box;
use std::sync::Arc;

use arrow::array::{ArrayRef, FixedSizeListArray, Float32Array, Int32Array, Int64Array, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bowstring::Place;
use bowstring::codec::{BadRows, ColumnOptions, Columns, RowGroupBlock, Rows};
use bowstring::memory::{Pool, SystemAllocator};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

const GROUPS: usize = 16;
const BATCH: usize = 4096;

/// A fixed pseudo-random sequence; the same picks in every run.
struct Picks(u64);

impl Picks {
    fn next(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) % below as u64) as usize
    }
}

struct Job {
    columns: Columns,
    arrays: Vec<ArrayRef>,
    cells: Vec<Arc<RowGroupBlock>>,
    /// Batches of picks, shuffled over all groups; then one in file order.
    shuffled: Vec<Vec<(u32, u32)>>,
    in_order: Vec<(u32, u32)>,
    pool: Arc<Pool>,
}

impl Job {
    fn new(arrays: Vec<(String, ArrayRef)>, options: &str, batch: usize, groups: usize, apart: bool) -> Self {
        let fields: Vec<Field> =
            arrays.iter().map(|(name, array)| Field::new(name, array.data_type().clone(), true)).collect();
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        let options: ColumnOptions = serde_json::from_str(options).unwrap();
        let columns = Columns::new(&schema, &options).unwrap().shuffled(!apart);
        let rows = arrays[0].1.len();
        let arrays: Vec<ArrayRef> = arrays.into_iter().map(|(_, array)| array).collect();
        // Every group has its own memory, as if read from a file.
        let cells = (0..groups)
            .map(|_| {
                let copies: Vec<ArrayRef> = arrays.iter().map(copy).collect();
                Arc::new(cells(&columns, &copies))
            })
            .collect();
        let mut picks = Picks(1);
        let shuffled = (0..16)
            .map(|_| (0..batch).map(|_| (picks.next(groups) as u32, picks.next(rows) as u32)).collect())
            .collect();
        let in_order = (0..batch as u32).map(|row| (0, row)).collect();
        Self { columns, arrays, cells, shuffled, in_order, pool: Pool::new(Arc::new(SystemAllocator), 4 << 30) }
    }

    fn assemble(&self, picks: &[(u32, u32)]) {
        let request = Rows {
            epoch: 0,
            step: 0,
            cells: &self.cells,
            rows: picks,
            size: picks.len(),
            masked: false,
            random: &|pick| u64::from(pick.1),
            row_ids: &|pick| u64::from(pick.1),
            stored_rows: &|pick| u64::from(pick.1),
            bad_rows: BadRows::Error,
            max_bytes: usize::MAX,
            lent: None,
            images: None,
        };
        let reservation = self.pool.try_reserve(self.columns.batch_bytes(picks.len(), 0)).unwrap();
        black_box(self.columns.assemble(&request, reservation).unwrap());
    }
}

fn copy(array: &ArrayRef) -> ArrayRef {
    let data = array.to_data();
    let mut copied = arrow::array::MutableArrayData::new(vec![&data], false, data.len());
    copied.try_extend(0, 0, data.len()).unwrap();
    arrow::array::make_array(copied.freeze())
}

fn cells(columns: &Columns, arrays: &[ArrayRef]) -> RowGroupBlock {
    let prepared = arrays
        .iter()
        .enumerate()
        .map(|(root, array)| columns.prepare(root, Arc::clone(array), &Place::default()).unwrap());
    columns.cells(prepared.collect(), Place::default()).unwrap()
}

fn batches(criterion: &mut Criterion, name: &str, job: &Job, throughput: Throughput) {
    let mut group = criterion.benchmark_group(name);
    group.throughput(throughput);
    let mut at = 0;
    group.bench_function("shuffled", |bencher| {
        bencher.iter(|| {
            at += 1;
            job.assemble(&job.shuffled[at % job.shuffled.len()]);
        });
    });
    group.bench_function("in_order", |bencher| bencher.iter(|| job.assemble(&job.in_order)));
    group.finish();
}

/// 40 columns: a label, 13 integers, 26 floats.
fn table(rows: usize) -> Vec<(String, ArrayRef)> {
    let mut columns: Vec<(String, ArrayRef)> =
        vec![("label".to_owned(), Arc::new(Int32Array::from_iter_values((0..rows as i32).map(|row| row & 1))))];
    for c in 0..39 {
        let array: ArrayRef = if c < 13 {
            Arc::new(Int32Array::from_iter_values((0..rows as i32).map(|row| row ^ c)))
        } else {
            Arc::new(Float32Array::from_iter_values((0..rows).map(|row| row as f32 + c as f32)))
        };
        columns.push((format!("f{c:02}"), array));
    }
    columns
}

fn recsys(criterion: &mut Criterion) {
    let rows = 65_536;
    let packed = r#"{"pack": [{"name": "x", "columns": ["f*"]}]}"#;
    let loose = r#"{"cast": {"f*": "float32"}}"#;
    for (name, options, apart) in [("packed", packed, false), ("loose", loose, false), ("apart", loose, true)] {
        let job = Job::new(table(rows), options, BATCH, GROUPS, apart);
        batches(criterion, &format!("recsys_{name}"), &job, Throughput::Elements(BATCH as u64));
        let mut group = criterion.benchmark_group("recsys_prepare");
        group.throughput(Throughput::Elements(rows as u64));
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| black_box(cells(&job.columns, &job.arrays)));
        });
        group.finish();
    }
}

fn vectors(criterion: &mut Criterion) {
    let (rows, length) = (2048, 1024i32);
    let flat = Float32Array::from_iter_values((0..rows * length).map(|i| i as f32));
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let array: ArrayRef = Arc::new(FixedSizeListArray::new(item, length, Arc::new(flat), None));
    let job = Job::new(vec![("x".to_owned(), array)], "{}", 1024, GROUPS, false);
    batches(criterion, "vectors_1024", &job, Throughput::Bytes(1024 * 1024 * 4));
}

fn tokens(criterion: &mut Criterion) {
    let rows = 16_384;
    let mut picks = Picks(7);
    let lengths: Vec<usize> = (0..rows).map(|_| 64 + picks.next(448)).collect();
    let total: usize = lengths.iter().sum();
    let values = Int64Array::from_iter_values((0..total as i64).map(|i| i & 0x7fff));
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let lists = ListArray::new(item, OffsetBuffer::from_lengths(lengths), Arc::new(values), None);
    let columns = vec![("x".to_owned(), Arc::new(lists) as ArrayRef)];
    let mean = total as u64 / rows as u64;
    for (name, options) in [("ragged", "{}"), ("padded", r#"{"lists": {"padded": {"length": 512}}}"#)] {
        let job = Job::new(columns.clone(), options, 1024, 4, false);
        batches(criterion, &format!("tokens_{name}"), &job, Throughput::Elements(1024 * mean));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).measurement_time(std::time::Duration::from_secs(2));
    targets = recsys, vectors, tokens
}
criterion_main!(benches);
