//! Units hold the rows of their row groups, whatever the columns, pages, codecs and filters.

#![expect(clippy::print_stdout, reason = "a random test prints its seed")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{
    Array, ArrayRef, BooleanArray, FixedSizeBinaryArray, FixedSizeListArray, Float32Array, Float64Array, Int32Array,
    Int64Array, ListArray, RecordBatch, StringArray, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Fields, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};

use super::direct::LEAST_KEPT;
use super::{Dataset, OpenOptions, Sizes, filter};

/// Units of a few rows.
const SMALL: Sizes = Sizes { bytes: [1, 1 << 12], count: 1 << 30, column: 0, whole: 0, dictionary: 0 };

struct Made(u64, u64);

impl Made {
    fn below(&mut self, end: u64) -> u64 {
        self.1 += 1;
        // Splitmix.
        let mut mixed = (self.0 << 32 | self.1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(factor);
        }
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn nulls(&mut self, rows: usize) -> NullBuffer {
        let percent = if self.chance(50) { 20 } else { 0 };
        (0..rows).map(|_| !self.chance(percent)).collect()
    }

    fn numbers(&mut self, rows: usize) -> ArrayRef {
        let distinct = if self.chance(50) { 20 } else { 1 << 30 };
        let values: Vec<i32> = (0..rows).map(|_| self.below(distinct) as i32).collect();
        let nulls = self.nulls(rows);
        Arc::new(Int32Array::new(values.into(), Some(nulls)))
    }

    fn words(&mut self, rows: usize) -> ArrayRef {
        let (distinct, most) = if self.chance(50) { (9, 30) } else { (1 << 20, 90) };
        let cell = |made: &mut Self| {
            let word = made.below(distinct).to_string();
            (!made.chance(10)).then(|| word.repeat(1 + made.below(most) as usize / 8))
        };
        Arc::new((0..rows).map(|_| cell(self)).collect::<StringArray>())
    }

    /// Lists of these values, some of them empty or null if there may be `holes`.
    fn listed(&mut self, rows: usize, holes: bool, values: fn(&mut Self, usize) -> ArrayRef) -> ArrayRef {
        let nulls = holes.then(|| self.nulls(rows));
        let length = |made: &mut Self, row: usize| match &nulls {
            Some(nulls) if nulls.is_null(row) => 0,
            Some(_) => made.below(5) as usize,
            None => 1 + made.below(4) as usize,
        };
        let lengths: Vec<usize> = (0..rows).map(|row| length(self, row)).collect();
        let values = values(self, lengths.iter().sum());
        let field = Arc::new(Field::new("item", values.data_type().clone(), holes));
        Arc::new(ListArray::new(field, OffsetBuffer::from_lengths(lengths), values, nulls))
    }

    fn batch(&mut self, first: i64, rows: usize) -> RecordBatch {
        let structs = |made: &mut Self, rows: usize| -> ArrayRef {
            let columns = vec![made.numbers(rows), made.words(rows)];
            let fields =
                Fields::from(vec![Field::new("p", DataType::Int32, true), Field::new("q", DataType::Utf8, true)]);
            let nulls = made.nulls(rows);
            Arc::new(StructArray::new(fields, columns, Some(nulls)))
        };
        let full = |made: &mut Self, rows: usize| -> ArrayRef {
            Arc::new(Float32Array::from_iter_values((0..rows).map(|_| made.below(1000) as f32)))
        };
        let fixed = full(self, rows * 4);
        let item = Arc::new(Field::new("item", DataType::Float32, false));
        let bytes: Vec<[u8; 7]> = (0..rows).map(|_| [self.below(9) as u8; 7]).collect();
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", Arc::new(Int64Array::from_iter_values(first..first + rows as i64))),
            ("n", self.numbers(rows)),
            ("f", Arc::new(Float64Array::from_iter_values((0..rows).map(|_| self.below(1 << 40) as f64)))),
            ("w", self.words(rows)),
            ("b", Arc::new((0..rows).map(|_| Some(self.chance(50))).collect::<BooleanArray>())),
            ("even", Arc::new(FixedSizeListArray::new(item, 4, fixed, None))),
            ("blob", Arc::new(FixedSizeBinaryArray::try_from_iter(bytes.into_iter()).unwrap())),
            ("full", self.listed(rows, false, full)),
            ("holes", self.listed(rows, true, Self::numbers)),
            ("structs", self.listed(rows, true, structs)),
            ("struct", structs(self, rows)),
        ];
        let required = ["id", "f", "even", "blob", "full"];
        let field =
            |(name, array): &(&str, ArrayRef)| Field::new(*name, array.data_type().clone(), !required.contains(name));
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
        RecordBatch::try_new(schema, columns.into_iter().map(|(_, array)| array).collect()).unwrap()
    }

    /// A file of some row groups of small pages.
    fn write(&mut self, path: &Path) {
        let groups: Vec<usize> = (0..1 + self.below(3)).map(|_| 1 + self.below(1200) as usize).collect();
        let mut first = 0;
        let batches: Vec<_> = groups
            .iter()
            .map(|rows| {
                let batch = self.batch(first, *rows);
                first += *rows as i64;
                batch
            })
            .collect();
        let page_rows = 1 + self.below(150) as usize;
        let codecs = [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(ZstdLevel::default())];
        let versions = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];
        let properties = WriterProperties::builder()
            .set_writer_version(versions[self.below(2) as usize])
            .set_compression(codecs[self.below(3) as usize])
            .set_dictionary_enabled(self.chance(50))
            .set_dictionary_page_size_limit(if self.chance(50) { 1 << 20 } else { 200 })
            .set_data_page_row_count_limit(page_rows)
            .set_data_page_size_limit(if self.chance(50) { 1 << 20 } else { 300 })
            .set_write_batch_size(page_rows.min(64))
            .build();
        let file = std::fs::File::create(path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batches[0].schema(), Some(properties)).unwrap();
        for batch in batches {
            writer.write(&batch).unwrap();
            writer.flush().unwrap();
        }
        writer.close().unwrap();
    }
}

fn open(path: &Path, filter: Option<&str>) -> (tokio::runtime::Runtime, Dataset) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let filter = filter.map(|filter| filter::Expr::parse(filter).unwrap());
    let options = OpenOptions { filter, ..OpenOptions::default() };
    let urls = [path.to_str().unwrap().to_owned()];
    let dataset = runtime.block_on(Dataset::open(&urls, options)).unwrap();
    (runtime, dataset)
}

const MINUTE: Duration = Duration::from_secs(60);

/// Asserts that `units` have the rows of the row groups of `whole`; how many columns were left in their pages.
fn same(runtime: &tokio::runtime::Runtime, whole: &Dataset, units: &Dataset) -> usize {
    let mut wide = 0;
    let names: Vec<String> = whole.schema().fields().iter().map(|field| field.name().clone()).collect();
    let projection = whole.project(&names).unwrap();
    let (mut unit, mut stored) = (0, 0);
    for group in 0..whole.manifest().groups.len() {
        let fetched = runtime.block_on(whole.fetch(group, &projection)).unwrap();
        let arrays: Vec<ArrayRef> =
            (0..names.len()).map(|root| whole.decode(&fetched, &projection, root).unwrap()).collect();
        let mut before = 0;
        while before < whole.decoded_rows(group) as usize || units.number(unit) == group {
            assert_eq!(units.number(unit), group);
            assert_eq!(units.place(unit), whole.place(group));
            let rows = units.decoded_rows(unit) as usize;
            assert_eq!(rows as u64, units.manifest().groups[unit].selected);
            for row in 0..rows as u64 {
                assert_eq!(units.row_id(unit, row), whole.row_id(group, before as u64 + row));
                assert_eq!(units.stored_row(unit, row), whole.stored_row(group, before as u64 + row));
            }
            let part = runtime.block_on(units.fetch(unit, &projection)).unwrap();
            let cost = units.cost(unit, &projection);
            assert!(cost.total() > 0 || rows == 0, "{cost:?}");
            for (root, name) in names.iter().enumerate() {
                let found = units.decode(&part, &projection, root).unwrap();
                assert_eq!(&found, &arrays[root].slice(before, rows), "{name} of unit {unit}");
                // A column that needs no Arrow reader as a whole needs none in parts of which enough is wanted.
                let (direct, all) =
                    (units.decode_numbers(&part, &projection, root), whole.decode_numbers(&fetched, &projection, root));
                let is_little = rows == 0 || rows as u64 * LEAST_KEPT < units.manifest().groups[unit].rows;
                assert!(direct.is_some() || all.is_none() || is_little, "{name} of unit {unit}");
                let paged = units.paged(&part, &projection, root, &|_| true);
                // Pages may share other rows.
                if let Some((pages, all)) = paged.zip(whole.paged(&fetched, &projection, root, &|_| true)) {
                    wide += 1;
                    assert_eq!(pages.rows(), rows);
                    let row = |at: usize| &pages.from(at)[..pages.width()];
                    assert!((0..rows).all(|at| row(at) == &all.from(before + at)[..pages.width()]), "{name}");
                }
            }
            stored += units.manifest().groups[unit].rows;
            before += rows;
            unit += 1;
            if unit == units.manifest().groups.len() {
                break;
            }
        }
        assert_eq!(before as u64, whole.decoded_rows(group));
    }
    assert_eq!((unit, stored), (units.manifest().groups.len(), whole.stored_rows()));
    wide
}

#[test]
fn units_are_the_rows_of_their_row_groups() {
    let cases = if std::env::var_os("BOWSTRING_SOAK").is_some() { 300 } else { 24 };
    let base: u64 = std::env::var("BOWSTRING_SEED").map_or(31, |seed| seed.parse().unwrap());
    let (mut cut, mut wide) = (0, 0);
    for seed in base..base + cases {
        println!("repeat with BOWSTRING_SEED={seed} and units_are_the_rows_of_their_row_groups");
        let mut made = Made(seed, 0);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data.parquet");
        made.write(&path);
        let filters = [None, None, Some("n > 7"), Some("id > 100 and id < 700"), Some("b")];
        let (runtime, whole) = open(&path, filters[made.below(5) as usize]);
        let units = runtime.block_on(whole.in_units_of(SMALL, MINUTE)).unwrap();
        cut += usize::from(units.manifest().groups.len() > whole.manifest().groups.len());
        assert_eq!(units.manifest().fingerprint(), whole.manifest().fingerprint());
        wide += same(&runtime, &whole, &units);
    }
    assert!(2 * cut >= cases as usize && wide > 0, "{cut} of {cases} files were cut, {wide} columns left in pages");
}

#[test]
fn damage_is_an_error_or_nothing() {
    for seed in 0..if std::env::var_os("BOWSTRING_SOAK").is_some() { 400 } else { 40 } {
        println!("seed {seed}");
        let mut made = Made(seed, 0);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("data.parquet");
        made.write(&path);
        let mut bytes = std::fs::read(&path).unwrap();
        let footer = u32::from_le_bytes(bytes[bytes.len() - 8..][..4].try_into().unwrap()) as usize;
        // The page index lies before the footer.
        let end = bytes.len() - 8 - footer;
        let start = end - end.min(3000);
        for _ in 0..1 + made.below(3) {
            bytes[start + made.below((end - start) as u64) as usize] ^= 1 << made.below(8);
        }
        std::fs::write(&path, bytes).unwrap();
        let (runtime, whole) = open(&path, None);
        let Ok(units) = runtime.block_on(whole.in_units_of(SMALL, MINUTE)) else { continue };
        let names: Vec<String> = whole.schema().fields().iter().map(|field| field.name().clone()).collect();
        let projection = whole.project(&names).unwrap();
        for unit in 0..units.manifest().groups.len() {
            let Ok(part) = runtime.block_on(units.fetch(unit, &projection)) else { continue };
            for root in 0..names.len() {
                if let Ok(array) = units.decode(&part, &projection, root) {
                    assert_eq!(array.len() as u64, units.decoded_rows(unit));
                }
            }
        }
    }
}

/// The numbers of a thrift field of 64 bits with this value: zigzag, seven bits a byte.
fn varint(value: i64) -> Vec<u8> {
    let (mut rest, mut bytes) = ((value << 1).cast_unsigned(), Vec::new());
    while rest > 0x7f {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

/// Moves the first row of page `page` of column `leaf` of the only row group by one, in the offset index.
fn off_by_one(path: &Path, leaf: usize, page: usize) {
    use parquet::file::metadata::{PageIndexPolicy, ParquetMetaDataReader};
    let mut file = std::fs::read(path).unwrap();
    let input = bytes::Bytes::from(file.clone());
    let metadata = ParquetMetaDataReader::new()
        .with_page_index_policy(PageIndexPolicy::Required)
        .parse_and_finish(&input)
        .unwrap();
    let locations = metadata.page_index().unwrap().offset_index(0, leaf).unwrap().page_locations().clone();
    let chunk = metadata.row_group(0).column(leaf);
    let start = chunk.offset_index_offset().unwrap() as usize;
    let index = &mut file[start..][..chunk.offset_index_length().unwrap() as usize];
    // The three fields of one location: where it begins, its bytes and its first row.
    let of = |row: i64| {
        let location = &locations[page];
        let parts = [location.offset, location.compressed_page_size.into(), row].map(varint);
        [&[0x16][..], &parts[0], &[0x15], &parts[1], &[0x16], &parts[2]].concat()
    };
    let row = locations[page].first_row_index;
    let (old, new) = (of(row), of(row + 1));
    assert_eq!(old.len(), new.len());
    let at = index.windows(old.len()).position(|found| found == old).unwrap();
    index[at..at + new.len()].copy_from_slice(&new);
    std::fs::write(path, file).unwrap();
}

/// 1200 rows in pages of 100 without statistics of rows.
fn silent_pages(path: &Path) {
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1200));
    let items: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1200));
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    // Lists of one item, so that their pages begin at the same rows.
    let lengths = OffsetBuffer::from_lengths(std::iter::repeat_n(1, 1200));
    let lists: ArrayRef = Arc::new(ListArray::new(item, lengths, items, None));
    let batch = RecordBatch::try_from_iter([("n", numbers), ("list", lists)]).unwrap();
    let properties = WriterProperties::builder()
        .set_writer_version(WriterVersion::PARQUET_1_0)
        .set_dictionary_enabled(false)
        .set_data_page_row_count_limit(100)
        .set_write_batch_size(100)
        .build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn a_page_index_that_counts_other_rows_than_the_pages_of_lists_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.parquet");
    for page in 1..12 {
        silent_pages(&path);
        off_by_one(&path, 1, page);
        let (runtime, whole) = open(&path, None);
        let units = runtime.block_on(whole.in_units_of(SMALL, MINUTE)).unwrap();
        assert!(units.manifest().groups.len() > 1);
        let projection = units.project(&["n".to_owned(), "list".to_owned()]).unwrap();
        let (mut first, mut errors) = (0, 0);
        for unit in 0..units.manifest().groups.len() {
            let rows = units.decoded_rows(unit) as i64;
            let part = runtime.block_on(units.fetch(unit, &projection)).unwrap();
            match units.decode(&part, &projection, 1) {
                Ok(lists) => {
                    use arrow::array::AsArray;
                    for (row, list) in (first..first + rows).zip(lists.as_list::<i32>().iter()) {
                        let list = list.unwrap();
                        let found = list.as_primitive::<arrow::datatypes::Int64Type>().values().to_vec();
                        assert_eq!(found, [row], "page {page}, row {row}");
                    }
                }
                Err(error) => {
                    let text = error.chain();
                    assert!(text.contains("rows") && text.contains("page index"), "{text}");
                    errors += 1;
                }
            }
            first += rows;
        }
        assert!(errors > 0, "page {page}: no error");
    }
}

#[test]
fn a_filter_holds_the_page_index_against_the_pages_that_it_reads() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data.parquet");
    silent_pages(&path);
    off_by_one(&path, 0, 5);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let options =
        |text: &str| OpenOptions { filter: Some(filter::Expr::parse(text).unwrap()), ..OpenOptions::default() };
    let open = |text| runtime.block_on(Dataset::open(&[path.to_str().unwrap().to_owned()], options(text)));
    let error = open("n between 520 and 530").unwrap_err().chain();
    assert!(error.contains("its pages have 100 rows, the page index states 99"), "{error}");
    // For other pages it is right.
    assert_eq!(open("n between 720 and 730").unwrap().manifest().rows(), 11);
    // Pages of lists do not say how many rows they have.
    silent_pages(&path);
    off_by_one(&path, 1, 5);
    let error = open("n between 520 and 530 and list overlaps (525)").unwrap_err().chain();
    assert!(error.contains("they have 100 rows, the page index states 101"), "{error}");
    assert_eq!(open("n between 720 and 730 and list overlaps (725)").unwrap().manifest().rows(), 1);
}

#[test]
fn units_of_other_writers_are_the_rows_of_their_row_groups() {
    // All have the same rows.
    let mut all: Option<Vec<ArrayRef>> = None;
    for writer in ["pyarrow", "parquet_mr_v1", "parquet_mr_v2"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fixtures/units/{writer}.parquet"));
        for filter in [None, Some("n > 300 and id < 1200")] {
            let (runtime, whole) = open(&path, filter);
            let units = runtime.block_on(whole.in_units_of(SMALL, MINUTE)).unwrap();
            assert!(units.manifest().groups.len() > 4, "{writer}: {} units", units.manifest().groups.len());
            same(&runtime, &whole, &units);
            if filter.is_some() {
                continue;
            }
            let names: Vec<String> = whole.schema().fields().iter().map(|field| field.name().clone()).collect();
            let projection = units.project(&names).unwrap();
            let fetched =
                (0..units.manifest().groups.len()).map(|unit| runtime.block_on(units.fetch(unit, &projection)));
            let fetched: Vec<_> = fetched.collect::<Result<_, _>>().unwrap();
            let column = |root| {
                let parts: Vec<_> = fetched.iter().map(|part| units.decode(part, &projection, root).unwrap()).collect();
                arrow::compute::concat(&parts.iter().map(AsRef::as_ref).collect::<Vec<&dyn Array>>()).unwrap()
            };
            let columns: Vec<ArrayRef> = (0..names.len()).map(column).collect();
            for (root, column) in columns.iter().enumerate() {
                let text = |array: &ArrayRef, row| arrow::util::display::array_value_to_string(array, row).unwrap();
                let Some(first) = all.as_ref().map(|all| &all[root]) else { continue };
                assert_eq!(first.len(), column.len());
                assert!(
                    (0..column.len()).all(|row| text(first, row) == text(column, row)),
                    "{} of {writer}",
                    names[root]
                );
            }
            all.get_or_insert(columns);
        }
    }
}
