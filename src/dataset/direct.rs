//! Columns that need no Arrow reader: plain numbers of a row group, and lists of them. Where a filter or a table leaves some rows out,
//! they are read and left out.
//!
//! Nothing here is an error. What cannot be read this way, or is damaged, is `None` and goes the usual way, which says why.

use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, FixedSizeListArray, ListArray, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::{ArrowNativeType, DataType};
use parquet::basic::Compression;
use parquet::schema::types::ColumnDescPtr;

use super::aligned::{lead, line};
use super::project::{Projection, Source};
use super::read::Fetched;
use super::{Chunk, Dataset, pages, run, unpack};
use crate::page::{Element, Holes, PagedRows, SPARE, Source as Pages, width};

/// At least one row in this many is wanted where all are read: with fewer, the Arrow reader skips more than is saved.
pub(super) const LEAST_KEPT: u64 = 4;

impl Dataset {
    /// The wanted rows in the pages of root column number `root`, if it is one flat column of plain numbers and most rows are wanted.
    /// Rows that turn out to be null or damaged are found when they are read.
    pub(crate) fn numbers(&self, fetched: &Fetched, projection: &Projection, root: usize) -> Option<Pages> {
        let width = width(projection.roots().get(root)?.field().data_type())?;
        let chunk = self.full(fetched.group, &fetched.columns, projection, root)?;
        self.flat_pages(fetched, &chunk, width)
    }

    /// Root column number `root` as an array, if its pages hold nothing but numbers.
    pub(super) fn decode_numbers(&self, fetched: &Fetched, projection: &Projection, root: usize) -> Option<ArrayRef> {
        let data_type = projection.roots().get(root)?.field().data_type();
        match data_type {
            DataType::List(item) | DataType::FixedSizeList(item, _) => match width(item.data_type())? {
                4 => self.lists::<u32>(fetched, projection, root, data_type, item.data_type()),
                _ => self.lists::<u64>(fetched, projection, root, data_type, item.data_type()),
            },
            _ => match width(data_type)? {
                4 => self.flat::<u32>(fetched, projection, root, data_type),
                _ => self.flat::<u64>(fetched, projection, root, data_type),
            },
        }
    }

    /// The rows of root column number `root` where they lie in its pages, if those hold nothing but lists of numbers, all of one
    /// length in this row group, or binary of one size. No page is read unless rows of so many bytes are `wanted`.
    pub(crate) fn paged(
        &self,
        fetched: &Fetched,
        projection: &Projection,
        root: usize,
        wanted: &dyn Fn(usize) -> bool,
    ) -> Option<PagedRows> {
        let Even { chunk, each, width } = self.even(fetched.group, &fetched.columns, projection, root, wanted)?;
        let holds = |address| fetched.holds(address);
        // A packed chunk may have single pages stored as they are: they would keep all that was fetched with them.
        let lent = |address| !chunk.is_plain() && holds(address);
        let cut = self.cut(fetched, &chunk)?;
        let of = self.pages(fetched, &chunk, width)?.paged(cut.held, each, lent)?;
        PagedRows::new(cut.held, each * width, of, holds)?.within(cut.skip, cut.rows)
    }

    /// Returns true if [`paged`](Self::paged) may find rows of root column number `root` of row group `group` that are parts of the
    /// fetched bytes, as far as its metadata tell: its chunks.
    pub(crate) fn in_place(
        &self,
        group: usize,
        chunks: &[Chunk],
        projection: &Projection,
        root: usize,
        wanted: &dyn Fn(usize) -> bool,
    ) -> bool {
        self.even(group, chunks, projection, root, wanted).is_some_and(|even| even.chunk.is_plain())
    }

    /// The chunk of root column number `root` if every row is wanted and it may hold nothing but lists of one length in plain pages.
    fn even<'a>(
        &'a self,
        group: usize,
        chunks: &'a [Chunk],
        projection: &Projection,
        root: usize,
        wanted: &dyn Fn(usize) -> bool,
    ) -> Option<Even<'a>> {
        let (fixed, width) = match projection.roots().get(root)?.field().data_type() {
            DataType::FixedSizeList(item, length) => (Some(usize::try_from(*length).ok()?), width(item.data_type())?),
            DataType::FixedSizeBinary(length) => (Some(1), usize::try_from(*length).ok()?),
            DataType::List(item) | DataType::LargeList(item) => (None, width(item.data_type())?),
            _ => return None,
        };
        // Rows that are not wanted would stay in memory between the others.
        if self.decoded_rows(group) < self.group(group).ok()?.0.rows {
            return None;
        }
        let chunk = self.full(group, chunks, projection, root)?;
        let each = match fixed {
            Some(each) => each,
            None => chunk.values.checked_div(chunk.rows).filter(|each| each * chunk.rows == chunk.values)?,
        };
        // With a dictionary, some page is not plain.
        let fits = !chunk.known.dictionary && wanted(each.checked_mul(width)?);
        fits.then_some(Even { chunk, each, width })
    }

    fn flat<T: Element + ArrowNativeType>(
        &self,
        fetched: &Fetched,
        projection: &Projection,
        root: usize,
        data_type: &DataType,
    ) -> Option<ArrayRef> {
        let whole = self.whole(fetched.group, &fetched.columns, projection, root)?;
        let read = self.cut(fetched, &whole)?.rows;
        let mut chunk = self.flat_pages(fetched, &whole, size_of::<T>())?.chunk::<T>(None)?.nullable();
        let (rows, spare) = whole.kept.as_ref().map_or((read, 0), |kept| (kept.count_set_bits(), SPARE));
        let mut found = Vec::with_capacity(rows + spare + line::<T>());
        let before = lead(&found, self.begin(fetched.group));
        found.resize(before, T::default());
        chunk.read(rows, &mut found)?;
        chunk.end()?;
        let holes = chunk.holes();
        let nulls = holes.as_ref().map_or(0, Holes::nulls) as u64;
        // For a unit the metadata tell no number.
        let agree = fetched.run(whole.leaf).is_some() || whole.known.nulls.is_none_or(|known| known == nulls);
        let nulls = holes.and_then(Holes::finish);
        (agree && whole.rows == whole.values).then(|| array(data_type, found, before, nulls))?
    }

    fn lists<T: Element + ArrowNativeType>(
        &self,
        fetched: &Fetched,
        projection: &Projection,
        root: usize,
        data_type: &DataType,
        item: &DataType,
    ) -> Option<ArrayRef> {
        let whole = self.full(fetched.group, &fetched.columns, projection, root)?;
        let cut = self.cut(fetched, &whole)?;
        let values = match fetched.run(whole.leaf) {
            Some(run) => pages::values(&fetched.chunks.range(&run.pages).ok()?)?,
            None => whole.values,
        };
        let found = self.pages(fetched, &whole, size_of::<T>())?.chunk::<T>(None)?.lists(cut.held, values)?;
        let mut found = found.within(cut.skip, cut.rows)?;
        if let Some(kept) = &whole.kept {
            found = found.keeping(kept)?;
        }
        let items = array(item, found.values, 0, None)?;
        match data_type {
            DataType::List(field) => {
                let offsets = OffsetBuffer::new(found.offsets.into());
                Some(Arc::new(ListArray::try_new(Arc::clone(field), offsets, items, None).ok()?))
            }
            DataType::FixedSizeList(field, length) => {
                let even = found.offsets.windows(2).all(|pair| pair[1] - pair[0] == *length);
                let array = || FixedSizeListArray::try_new(Arc::clone(field), *length, items, None).ok();
                Some(Arc::new(even.then(array)??))
            }
            _ => None,
        }
    }

    /// As [`whole`](Self::whole), if the metadata tell of no null.
    fn full<'a>(
        &'a self,
        group: usize,
        chunks: &'a [Chunk],
        projection: &Projection,
        root: usize,
    ) -> Option<Whole<'a>> {
        self.whole(group, chunks, projection, root).filter(|whole| whole.known.nulls.is_none_or(|nulls| nulls == 0))
    }

    /// The column chunk of root column number `root`; only if most rows of row group `group` are wanted, and the file stores the one leaf
    /// in the schema's type.
    fn whole<'a>(
        &'a self,
        group: usize,
        chunks: &'a [Chunk],
        projection: &Projection,
        root: usize,
    ) -> Option<Whole<'a>> {
        let (row_group, file, layout) = self.group(group).ok()?;
        let selected = self.decoded_rows(group);
        let is_most = selected.saturating_mul(LEAST_KEPT) >= row_group.rows;
        let wanted = projection.roots().get(root)?;
        let Source::Leaves(leaves) = projection.sources.get(file.layout)?.get(root)? else { return None };
        let &[leaf] = leaves.numbers.as_slice() else { return None };
        let stored = layout.schema.fields().get(leaves.field)?;
        if !is_most || stored.data_type() != wanted.field().data_type() {
            return None;
        }
        let (known, column) = (chunks.get(leaf)?, layout.descriptor().columns().get(leaf)?);
        let all = self.whole_group(self.number(group)).ok()?.0.rows;
        let kept = match self.selection(group).filter(|_| selected < row_group.rows) {
            Some(selection) => Some(selection.bits_of(all, &self.range(group))?),
            None => None,
        };
        // Rows are the selected ones, or something else is counted.
        let is_counted = kept.as_ref().is_none_or(|kept: &BooleanBuffer| kept.count_set_bits() as u64 == selected);
        let rows = usize::try_from(all).ok().filter(|_| is_counted)?;
        let values = usize::try_from(known.values).ok()?;
        Some(Whole { known, column, leaf, rows, values, kept })
    }

    /// Wanted rows of the pages that were read.
    fn cut(&self, fetched: &Fetched, chunk: &Whole<'_>) -> Option<Cut> {
        let Some(run) = fetched.run(chunk.leaf) else {
            return Some(Cut { held: chunk.rows, skip: 0, rows: chunk.rows });
        };
        let (held, wanted) = (&run.rows, self.range(fetched.group));
        let narrow = |from: u64, to: u64| usize::try_from(to.checked_sub(from)?).ok();
        let cut = Cut {
            held: narrow(held.start, held.end)?,
            skip: narrow(held.start, wanted.start)?,
            rows: narrow(wanted.start, wanted.end)?,
        };
        (cut.skip.checked_add(cut.rows)? <= cut.held).then_some(cut)
    }

    /// As [`pages`](Self::pages), where each row is one value: of a unit, its rows only.
    fn flat_pages(&self, fetched: &Fetched, chunk: &Whole<'_>, width: usize) -> Option<Pages> {
        let Cut { held, skip, rows } = self.cut(fetched, chunk)?;
        let pages = self.pages(fetched, chunk, width)?.within(skip, held - skip - rows);
        Some(match &chunk.kept {
            Some(kept) => pages.keeping(kept.clone()),
            None => pages,
        })
    }

    /// All its pages that were read, if they hold values of `width` bytes.
    fn pages(&self, fetched: &Fetched, chunk: &Whole<'_>, width: usize) -> Option<Pages> {
        if !fetched.pages.is_empty() {
            return None;
        }
        self.check_pages(fetched, chunk.leaf).ok()?;
        if let Some(run) = fetched.run(chunk.leaf) {
            let pages =
                run::pages(&fetched.chunks, chunk.known, chunk.column, run, fetched.dictionary(chunk.leaf)).ok()?;
            return Pages::new(Box::new(pages), chunk.column, width);
        }
        let pages = unpack::pages(&fetched.chunks, chunk.known, chunk.column, chunk.rows).ok()?;
        Pages::new(Box::new(pages), chunk.column, width)
    }
}

/// A whole column chunk.
struct Whole<'a> {
    known: &'a Chunk,
    column: &'a ColumnDescPtr,
    leaf: usize,
    /// Rows and values of the chunk; a unit has some of them.
    rows: usize,
    values: usize,
    /// Which of the row group's or unit's rows are wanted, if not all.
    kept: Option<BooleanBuffer>,
}

impl Whole<'_> {
    /// Returns true if its pages are parts of the fetched bytes.
    fn is_plain(&self) -> bool {
        self.known.compression() == Compression::UNCOMPRESSED
    }
}

/// Rows of the pages that were read.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// All that they hold.
    held: usize,
    /// Those before the wanted ones.
    skip: usize,
    /// Those that are wanted.
    rows: usize,
}

/// A chunk of lists of `each` values of `width` bytes.
struct Even<'a> {
    chunk: Whole<'a>,
    each: usize,
    width: usize,
}

/// The array of these bits, without the first `before`.
fn array<T: ArrowNativeType>(
    data_type: &DataType,
    values: Vec<T>,
    before: usize,
    nulls: Option<NullBuffer>,
) -> Option<ArrayRef> {
    let len = values.len().checked_sub(before)?;
    let values = Buffer::from_vec(values).slice(before * size_of::<T>());
    let data = ArrayData::builder(data_type.clone()).len(len).add_buffer(values).nulls(nulls);
    data.build().ok().map(make_array)
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, BooleanArray, FixedSizeBinaryArray, Int64Array, RecordBatch};
    use arrow::compute::cast;
    use arrow::datatypes::{Field, Int64Type, Schema};
    use parquet::arrow::ArrowWriter;
    use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
    use parquet::file::properties::{WriterProperties, WriterVersion};
    use proptest::prelude::*;

    use super::*;
    use crate::dataset::{OpenOptions, filter};

    /// Parameters of a file.
    #[derive(Debug, Clone)]
    struct Made {
        rows: usize,
        seed: u64,
        distinct: u64,
        nullable: bool,
        nulls: bool,
        empty: bool,
        even: bool,
        dictionary: bool,
        page_rows: usize,
        version: WriterVersion,
        compression: Compression,
    }

    fn made() -> impl Strategy<Value = Made> {
        let codecs = vec![
            Compression::UNCOMPRESSED,
            Compression::SNAPPY,
            Compression::ZSTD(ZstdLevel::default()),
            Compression::LZ4_RAW,
            Compression::GZIP(GzipLevel::default()),
            Compression::BROTLI(BrotliLevel::default()),
        ];
        let versions = prop_oneof![Just(WriterVersion::PARQUET_1_0), Just(WriterVersion::PARQUET_2_0)];
        let content = (1..3000_usize, any::<u64>(), prop_oneof![Just(1_u64), 2..300_u64, Just(u64::MAX)]);
        let holes = (any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.2), any::<bool>());
        let form = (any::<bool>(), 1..900_usize, versions, prop::sample::select(codecs));
        (content, holes, form).prop_map(|((rows, seed, distinct), (nullable, nulls, empty, even), form)| {
            let (dictionary, page_rows, version, compression) = form;
            let nulls = nulls && nullable;
            Made { rows, seed, distinct, nullable, nulls, empty, even, dictionary, page_rows, version, compression }
        })
    }

    const NUMBERS: [DataType; 6] =
        [DataType::Int32, DataType::UInt32, DataType::Int64, DataType::UInt64, DataType::Float32, DataType::Float64];

    impl Made {
        fn next(&self, state: &mut u64) -> u64 {
            *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            *state >> 33
        }

        fn numbers(&self, count: usize, data_type: &DataType, state: &mut u64) -> ArrayRef {
            let mut one = || {
                let null = self.next(state).is_multiple_of(50) && self.nulls;
                let value = self.next(state) % self.distinct;
                (!null).then_some(value as u32)
            };
            let values: Vec<Option<u32>> = (0..count).map(|_| one()).collect();
            // Small enough for all of the types.
            let values =
                arrow::array::UInt32Array::from_iter(values.into_iter().map(|value| Some(value? % 10_000_000)));
            cast(&values, data_type).unwrap()
        }

        fn column(&self, data_type: &DataType, state: &mut u64) -> ArrayRef {
            match data_type {
                DataType::List(item) => {
                    let mut lengths = Vec::new();
                    for _ in 0..self.rows {
                        let length = self.next(state) % 7 + u64::from(!self.empty);
                        lengths.push(if self.even { 3 } else { length as usize });
                    }
                    let offsets = OffsetBuffer::<i32>::from_lengths(lengths.iter().copied());
                    let items = self.numbers(lengths.iter().sum(), item.data_type(), state);
                    Arc::new(ListArray::new(Arc::clone(item), offsets, items, None))
                }
                DataType::FixedSizeList(item, length) => {
                    let items = self.numbers(self.rows * *length as usize, item.data_type(), state);
                    Arc::new(FixedSizeListArray::new(Arc::clone(item), *length, items, None))
                }
                DataType::FixedSizeBinary(width) => {
                    let numbers = self.numbers(self.rows, &DataType::Int64, state);
                    let cells = numbers.as_primitive::<Int64Type>().iter();
                    let cells = cells.map(|value| value.map(|value| value.to_le_bytes()[..*width as usize].to_vec()));
                    Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(cells, *width).unwrap())
                }
                _ => self.numbers(self.rows, data_type, state),
            }
        }

        fn batch(&self) -> RecordBatch {
            let item = |data_type: &DataType| Arc::new(Field::new("item", data_type.clone(), self.nullable));
            let lists = NUMBERS.iter().map(|data_type| DataType::List(item(data_type)));
            let fixed = NUMBERS.iter().map(|data_type| DataType::FixedSizeList(item(data_type), 3));
            let blob = std::iter::once(DataType::FixedSizeBinary(5));
            let types: Vec<DataType> = NUMBERS.iter().cloned().chain(lists).chain(fixed).chain(blob).collect();
            let mut state = self.seed;
            let columns = types.iter().map(|data_type| self.column(data_type, &mut state)).collect();
            let fields = types.iter().enumerate();
            let fields = fields.map(|(at, data_type)| Field::new(format!("c{at}"), data_type.clone(), self.nullable));
            let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            RecordBatch::try_new(schema, columns).unwrap()
        }

        fn write(&self, batch: &RecordBatch, path: &std::path::Path) {
            let properties = WriterProperties::builder()
                .set_writer_version(self.version)
                .set_compression(self.compression)
                .set_dictionary_enabled(self.dictionary)
                .set_data_page_row_count_limit(self.page_rows)
                .set_write_batch_size(self.page_rows.min(64))
                .build();
            let file = std::fs::File::create(path).unwrap();
            let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
            writer.write(batch).unwrap();
            writer.close().unwrap();
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("BOWSTRING_SOAK").is_some() { 600 } else { 60 }))]

        #[test]
        fn pages_give_the_rows_that_a_filter_keeps(made in made(), share in 1..100_i64, run in 1..70_usize) {
            let batch = made.batch();
            let mut state = made.seed;
            // The same key for each row of a run.
            let keys: Vec<i64> = (0..made.rows.div_ceil(run)).map(|_| (made.next(&mut state) % 100) as i64).collect();
            let keys = Int64Array::from_iter_values((0..made.rows).map(|row| keys[row / run]));
            let mask = BooleanArray::from_unary(&keys, |key| key < share);
            let kept = mask.true_count();
            prop_assume!(kept > 0);
            let key = Arc::new(Field::new("key", DataType::Int64, false));
            let fields = batch.schema().fields().iter().cloned().chain([key]).collect::<Vec<_>>();
            let columns = batch.columns().iter().cloned().chain([Arc::new(keys) as ArrayRef]).collect();
            let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("numbers.parquet");
            made.write(&batch, &path);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let urls = [path.to_str().unwrap().to_owned()];
            let filter = Some(filter::Expr::parse(&format!("key < {share}")).unwrap());
            let options = OpenOptions { filter, ..OpenOptions::default() };
            let dataset = runtime.block_on(Dataset::open(&urls, options)).unwrap();
            let names: Vec<String> = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
            let projection = dataset.project(&names).unwrap();
            let fetched = runtime.block_on(dataset.fetch(0, &projection)).unwrap();
            for (root, written) in batch.columns().iter().enumerate() {
                let expected = arrow::compute::filter(written, &mask).unwrap();
                let direct = dataset.decode_numbers(&fetched, &projection, root);
                let read = dataset.decode(&fetched, &projection, root).unwrap();
                prop_assert_eq!(&read, &expected);
                let flat = crate::page::width(written.data_type()).is_some();
                let is_most = kept as u64 * LEAST_KEPT >= made.rows as u64;
                if flat && is_most && made.version == WriterVersion::PARQUET_1_0 {
                    prop_assert!(direct.is_some(), "{} did not come from its pages", written.data_type());
                }
                prop_assert!(is_most || direct.is_none(), "{} came from its pages", written.data_type());
                if let Some(direct) = direct {
                    prop_assert_eq!(&direct, &expected);
                }
                // Matrices read a few hundred rows of each column at a time.
                if let Some(pages) = dataset.numbers(&fetched, &projection, root).filter(|_| expected.null_count() == 0) {
                    let width = crate::page::width(written.data_type()).unwrap();
                    let mut chunk = pages.chunk::<u64>(Some(Box::new(move |from, to| {
                        let numbers = from.chunks_exact(width).zip(to.chunks_exact_mut(8));
                        numbers.for_each(|(from, to)| to[..width].copy_from_slice(from));
                        true
                    }))).unwrap();
                    let mut found = Vec::new();
                    while found.len() < kept {
                        let step = (kept - found.len()).min(100);
                        prop_assume!(chunk.read(step, &mut found).is_some());
                    }
                    prop_assert_eq!((found.len(), chunk.end()), (kept, Some(())));
                    let data = expected.to_data();
                    let bits = data.buffers()[0].as_slice()[data.offset() * width..].chunks_exact(width);
                    prop_assert!(bits.zip(&found).all(|(bits, found)| found.to_le_bytes()[..width] == *bits));
                }
                prop_assert!(kept == made.rows || dataset.paged(&fetched, &projection, root, &|_| true).is_none());
            }
        }

        #[test]
        fn pages_give_what_was_written(made in made()) {
            let batch = made.batch();
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("numbers.parquet");
            made.write(&batch, &path);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let urls = [path.to_str().unwrap().to_owned()];
            let dataset = runtime.block_on(Dataset::open(&urls, OpenOptions::default())).unwrap();
            let names: Vec<String> = batch.schema().fields().iter().map(|field| field.name().clone()).collect();
            let projection = dataset.project(&names).unwrap();
            let fetched = runtime.block_on(dataset.fetch(0, &projection)).unwrap();
            for (root, written) in batch.columns().iter().enumerate() {
                let direct = dataset.decode_numbers(&fetched, &projection, root);
                let read = dataset.decode(&fetched, &projection, root).unwrap();
                prop_assert_eq!(read.to_data(), written.to_data());
                let list = matches!(written.data_type(), DataType::List(_));
                let flat = crate::page::width(written.data_type()).is_some();
                let holes = (made.nulls && !flat) || (made.empty && !made.even && list);
                // Version 2 has encodings of its own for integers.
                let blob = written.as_fixed_size_binary_opt();
                if !holes && made.version == WriterVersion::PARQUET_1_0 && blob.is_none() {
                    prop_assert!(direct.is_some(), "{} did not come from its pages", written.data_type());
                }
                if let Some(direct) = direct {
                    prop_assert_eq!(direct.to_data(), written.to_data());
                }
                prop_assert!(dataset.paged(&fetched, &projection, root, &|_| false).is_none());
                let paged = dataset.paged(&fetched, &projection, root, &|_| true);
                let list = written.as_fixed_size_list_opt().map(|list| list.values().to_data());
                let one_length = |list: &&ListArray| {
                    let length = list.value_length(0);
                    length > 0 && list.offsets().windows(2).all(|ends| ends[1] - ends[0] == length)
                };
                let even = written.as_list_opt::<i32>().filter(one_length).map(|list| list.values().to_data());
                let fixed = list.or(even).or_else(|| blob.map(|blob| blob.to_data()));
                // A null is rare where there may be one.
                let holes = fixed.as_ref().is_some_and(|fixed| fixed.null_count() > 0);
                prop_assert!(paged.is_none() || (fixed.is_some() && !holes), "rows of {}", written.data_type());
                if !made.dictionary && !holes && made.version == WriterVersion::PARQUET_1_0 {
                    prop_assert_eq!(paged.is_some(), fixed.is_some(), "rows of {}", written.data_type());
                }
                if let (Some(paged), Some(fixed)) = (paged, fixed) {
                    let mut bytes = Vec::new();
                    while bytes.len() < fixed.buffers()[0].len() {
                        bytes.extend_from_slice(paged.from(bytes.len() / paged.width()));
                    }
                    prop_assert_eq!(paged.rows(), made.rows);
                    prop_assert_eq!(&bytes[..], fixed.buffers()[0].as_slice());
                    let in_place = (0..made.rows).any(|row| fetched.holds(paged.from(row).as_ptr()));
                    prop_assert_eq!(paged.in_place(), in_place);
                    let plain = made.compression == Compression::UNCOMPRESSED;
                    prop_assert!(plain || !in_place, "pages that are stored as they are keep all that was fetched");
                    prop_assert!(!in_place || dataset.in_place(0, &fetched.columns, &projection, root, &|_| true));
                    prop_assert!(plain || paged.copied() >= bytes.len());
                }
            }
        }
    }
}
