//! One Parquet file that is being written: batches in, row groups out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};

use arrow::array::{Array, RecordBatch};
use arrow::datatypes::{DataType, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_writer::{ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves};
use parquet::basic::{Compression, Encoding};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{KeyValue, ParquetMetaData};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::ColumnDescPtr;

use super::bytes;
use super::decoded::{MOST_DECODED, SHRINKS, decoded_bytes};
use super::shrinking::{CellForm, SHORT, cell_form, long_cells};
use crate::page::{PlainChunk, Values};

/// Bytes that are kept of a finished column chunk until its file ends, about: what the footer and the page index say of it.
const FINISHED_CHUNK: usize = 1 << 10;

/// Destination of a file.
pub(crate) trait Sink: Write + Send {
    /// About so many bytes come next.
    fn expect(&mut self, _bytes: usize) {}
}

impl Sink for File {}
impl Sink for io::Sink {}

/// Writes batches of one schema as row groups within the limits of the properties.
///
/// Columns that the properties want plain, and nothing else, go to the file as they lie in memory; the Arrow writer encodes the others.
/// A row group is written when it is whole: until then, plain columns hold the arrays that they were given, and with them the batches,
/// whose memory is often one piece. If plain columns are the smaller part of a batch, they are copied instead. A column that had a null or
/// an empty list is encoded in the rest of the file. A row with a cell that readers might refuse beside others is a row group of its own, and
/// one that they would refuse even there has its values as they are.
pub(crate) struct FileWriter<W: Sink> {
    file: SerializedFileWriter<W>,
    encoders: ArrowRowGroupWriterFactory,
    schema: SchemaRef,
    columns: Vec<Column>,
    group: Option<Group>,
}

/// Facts about a column of the schema before any row.
struct Column {
    /// Columns that Parquet makes of it.
    leaves: usize,
    /// The one that is plain. `None` once it had a null, which a plain chunk cannot have.
    plain: Option<ColumnDescPtr>,
    /// True if its values are compressed, or have a dictionary.
    packed: bool,
}

/// The row group that is gathered.
struct Group {
    rows: usize,
    /// Bytes of the batches that plain columns hold, or of their copies.
    held: usize,
    /// Bytes that it takes when it is read.
    decoded: u64,
    chunks: Vec<Gathered>,
}

/// A column of it.
enum Gathered {
    Encoded(Vec<ArrowColumnWriter>),
    Plain(PlainChunk),
}

impl<W: Sink> std::fmt::Debug for FileWriter<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FileWriter({} bytes and {} to come)", self.bytes_written(), self.gathered_bytes())
    }
}

impl<W: Sink> FileWriter<W> {
    /// A file of `schema` in `sink`.
    ///
    /// # Errors
    /// Those of the Parquet crate: a type that Parquet does not have, and those of the sink.
    pub(crate) fn new(sink: W, schema: SchemaRef, properties: WriterProperties) -> Result<Self> {
        let writer = ArrowWriter::try_new(sink, SchemaRef::clone(&schema), Some(properties))?;
        let (file, encoders) = writer.into_serialized_writer()?;
        let described = file.schema_descr();
        let mut columns: Vec<Column> =
            schema.fields().iter().map(|_| Column { leaves: 0, plain: None, packed: false }).collect();
        for (leaf, stored) in described.columns().iter().enumerate() {
            let root = described.get_column_root_idx(leaf);
            let only = columns[root].leaves == 0;
            columns[root].leaves += 1;
            let (properties, path) = (file.properties(), stored.path());
            columns[root].packed |= properties.compression(path) != Compression::UNCOMPRESSED;
            columns[root].packed |= properties.dictionary_enabled(path);
            let plain = only && is_plain(properties, stored);
            columns[root].plain = plain.then(|| ColumnDescPtr::clone(stored));
        }
        for (column, field) in columns.iter_mut().zip(schema.fields()) {
            let made = |stored: &ColumnDescPtr| chunk(file.properties(), stored, field.data_type()).is_some();
            column.plain = column.plain.take().filter(made);
        }
        Ok(Self { file, encoders, schema, columns, group: None })
    }

    /// Adds the rows of `batch`.
    ///
    /// # Errors
    /// Those of the Parquet crate: a batch that does not fit the schema, and those of the sink.
    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let decoded = decoded_bytes(batch);
        if decoded <= SHORT {
            return self.write_packed(batch, decoded);
        }
        let mut first = 0;
        for (row, form) in self.alone(batch)? {
            let before = batch.slice(first, row - first);
            self.write_packed(&before, decoded_bytes(&before))?;
            self.flush()?;
            let row_alone = batch.slice(row, 1);
            match form {
                CellForm::AsItIs(..) => self.write_as_it_is(&row_alone)?,
                CellForm::Alone | CellForm::Packed => self.gather(&row_alone, decoded_bytes(&row_alone))?,
            }
            self.flush()?;
            first = row + 1;
        }
        let rest = batch.slice(first, batch.num_rows() - first);
        self.write_packed(&rest, decoded_bytes(&rest))
    }

    /// Rows with a cell that readers might refuse beside others, as the properties want it.
    fn alone(&self, batch: &RecordBatch) -> Result<BTreeMap<usize, CellForm>> {
        let mut rows = BTreeMap::new();
        let columns = self.columns.iter().zip(self.schema.fields()).zip(batch.columns());
        for ((_, field), array) in columns.filter(|((column, _), _)| column.packed) {
            long_cells(array, 0, &mut |row, cell| {
                if matches!(rows.get(&row), Some(CellForm::AsItIs(..))) {
                    return Ok(());
                }
                let form = cell_form(field, cell, self.file.properties().as_ref().clone())?;
                if form != CellForm::Packed {
                    rows.insert(row, form);
                }
                Ok::<_, ParquetError>(())
            })?;
        }
        Ok(rows)
    }

    /// Gathers `row` for a row group of its own, with nothing compressed and no dictionaries.
    fn write_as_it_is(&mut self, row: &RecordBatch) -> Result<()> {
        let mut properties = self.file.properties().as_ref().clone().into_builder();
        for leaf in self.file.schema_descr().columns() {
            properties = properties
                .set_column_compression(leaf.path().clone(), Compression::UNCOMPRESSED)
                .set_column_dictionary_enabled(leaf.path().clone(), false);
        }
        let writer = ArrowWriter::try_new(io::sink(), SchemaRef::clone(&self.schema), Some(properties.build()))?;
        let (_, encoders) = writer.into_serialized_writer()?;
        let packing = std::mem::replace(&mut self.encoders, encoders);
        let outcome = self.gather(row, decoded_bytes(row)).and_then(|()| self.flush());
        self.encoders = packing;
        outcome
    }

    /// Writes a batch that has so many bytes when decoded, and no cell that readers might refuse beside others.
    fn write_packed(&mut self, batch: &RecordBatch, decoded: u64) -> Result<()> {
        let each = decoded.div_ceil(batch.num_rows().max(1) as u64).max(1);
        let mut at = 0;
        while at < batch.num_rows() {
            let rows = self.room(each).min(batch.num_rows() - at);
            if rows == 0 {
                self.flush()?;
                continue;
            }
            if rows == batch.num_rows() {
                self.gather(batch, decoded)?;
            } else {
                // Rows may be unlike each other, so a part is counted for itself.
                let part = batch.slice(at, rows);
                self.gather(&part, decoded_bytes(&part))?;
            }
            at += rows;
            if self.room(each) == 0 {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Rows that the row group can take, if they are of `each` bytes when decoded, before it is asked again; at least one if it is empty.
    fn room(&self, each: u64) -> usize {
        let limits = self.file.properties();
        let most = limits.max_row_group_row_count().unwrap_or(usize::MAX);
        let rows = |decoded: u64| usize::try_from(decoded / each).unwrap_or(usize::MAX);
        let Some(group) = &self.group else { return most.min(rows(MOST_DECODED).max(1)) };
        let bytes = self.gathered_bytes();
        let left = rows(MOST_DECODED.saturating_sub(group.decoded));
        let shrinks = (bytes as u64).saturating_mul(SHRINKS) < group.decoded;
        let fit = if left > 0 || shrinks { left } else { rows(MOST_DECODED).max(1) };
        let room = fit.min(most - group.rows);
        let Some(limit) = limits.max_row_group_bytes() else { return room };
        // As many as fit if they are like those before; at least one.
        room.min(limit.saturating_sub(bytes) / (bytes / group.rows).max(1))
    }

    /// Adds rows to the row group, which have room there and take `decoded` bytes when they are read.
    fn gather(&mut self, batch: &RecordBatch, decoded: u64) -> Result<()> {
        let mut values: Vec<Option<Values>> = Vec::with_capacity(self.columns.len());
        let mut turned = false;
        for ((column, field), array) in self.columns.iter_mut().zip(self.schema.fields()).zip(batch.columns()) {
            let plain = column.plain.is_some() && array.data_type().equals_datatype(field.data_type());
            let found = if plain { Values::of(array) } else { None };
            if found.is_none() {
                turned |= column.plain.take().is_some();
            }
            values.push(found);
        }
        if turned {
            // Values that were gathered plain stay so.
            self.flush()?;
        }
        let mut group = match self.group.take() {
            Some(group) => group,
            None => self.begin()?,
        };
        let plain: usize = values.iter().flatten().map(Values::bytes).sum();
        let all: usize = batch.columns().iter().map(bytes).sum();
        let kept = plain >= all / 2;
        group.held += if kept { all } else { plain };
        group.decoded = group.decoded.saturating_add(decoded);
        for (index, chunk) in group.chunks.iter_mut().enumerate() {
            match (chunk, &values[index]) {
                (Gathered::Plain(chunk), Some(values)) => chunk.push(values, kept),
                (Gathered::Plain(_), None) => {
                    return Err(ParquetError::General("a plain chunk was given no plain values".to_owned()));
                }
                (Gathered::Encoded(writers), _) => {
                    let leaves = compute_leaves(self.schema.field(index), batch.column(index))?;
                    writers.iter_mut().zip(&leaves).try_for_each(|(writer, leaf)| writer.write(leaf))?;
                }
            }
        }
        group.rows += batch.num_rows();
        self.group = Some(group);
        Ok(())
    }

    /// An empty row group.
    fn begin(&self) -> Result<Group> {
        let mut writers = self.encoders.create_column_writers(self.file.flushed_row_groups().len())?.into_iter();
        let mut chunks = Vec::with_capacity(self.columns.len());
        for (column, field) in self.columns.iter().zip(self.schema.fields()) {
            let encoders: Vec<_> = writers.by_ref().take(column.leaves).collect();
            let plain =
                column.plain.as_ref().and_then(|stored| chunk(self.file.properties(), stored, field.data_type()));
            chunks.push(plain.map_or(Gathered::Encoded(encoders), Gathered::Plain));
        }
        Ok(Group { rows: 0, held: 0, decoded: 0, chunks })
    }

    /// Ends the row group, if one has begun.
    ///
    /// # Errors
    /// Those of the Parquet crate and of the sink.
    pub(crate) fn flush(&mut self) -> Result<()> {
        let bytes = self.gathered_bytes();
        let Some(group) = self.group.take() else { return Ok(()) };
        self.file.inner_mut().expect(bytes);
        let mut file = self.file.next_row_group()?;
        for chunk in group.chunks {
            match chunk {
                Gathered::Encoded(writers) => {
                    for writer in writers {
                        writer.close()?.append_to_row_group(&mut file)?;
                    }
                }
                Gathered::Plain(chunk) => {
                    let (bytes, about) = chunk.finish()?;
                    file.append_column(&bytes, about)?;
                }
            }
        }
        file.close()?;
        Ok(())
    }

    /// Approximate bytes of the gathered row group in the file.
    pub(crate) fn gathered_bytes(&self) -> usize {
        self.gathered(ArrowColumnWriter::get_estimated_total_bytes, PlainChunk::bytes)
    }

    /// Approximate bytes of memory of the gathered row group, and of what is kept of finished ones for the footer.
    pub(crate) fn memory_size(&self) -> usize {
        let held = self.group.as_ref().map_or(0, |group| group.held);
        held + self.gathered(ArrowColumnWriter::memory_size, |_| 0) + self.footer_size()
    }

    /// Approximate bytes of memory that finished row groups keep until the file ends.
    pub(crate) fn footer_size(&self) -> usize {
        let leaves: usize = self.columns.iter().map(|column| column.leaves).sum();
        self.file.flushed_row_groups().len().saturating_mul(leaves).saturating_mul(FINISHED_CHUNK)
    }

    fn gathered(&self, encoded: fn(&ArrowColumnWriter) -> usize, plain: fn(&PlainChunk) -> usize) -> usize {
        let chunks = self.group.iter().flat_map(|group| &group.chunks);
        let sizes = chunks.map(|chunk| match chunk {
            Gathered::Encoded(writers) => writers.iter().map(encoded).sum(),
            Gathered::Plain(chunk) => plain(chunk),
        });
        sizes.sum()
    }

    /// Bytes that are in the file.
    pub(crate) fn bytes_written(&self) -> usize {
        self.file.bytes_written()
    }

    /// Adds to the footer's metadata.
    pub(crate) fn append_key_value_metadata(&mut self, pair: KeyValue) {
        self.file.append_key_value_metadata(pair);
    }

    /// Destination of the file.
    pub(crate) fn inner(&self) -> &W {
        self.file.inner()
    }

    /// Writes the footer. Nothing can be written after it.
    ///
    /// # Errors
    /// Those of the Parquet crate and of the sink.
    pub(crate) fn finish(&mut self) -> Result<ParquetMetaData> {
        self.flush()?;
        self.file.finish()
    }

    /// The sink with the whole file in it.
    ///
    /// # Errors
    /// Those of the Parquet crate and of the sink.
    pub(crate) fn into_inner(mut self) -> Result<W> {
        self.flush()?;
        self.file.into_inner()
    }
}

/// Returns true if nothing is asked of a column but its values one after another.
fn is_plain(properties: &WriterProperties, column: &ColumnDescPtr) -> bool {
    let path = column.path();
    properties.compression(path) == Compression::UNCOMPRESSED
        && !properties.dictionary_enabled(path)
        && properties.encoding(path).is_none_or(|encoding| encoding == Encoding::PLAIN)
        && properties.statistics_enabled(path) == EnabledStatistics::None
        && properties.bloom_filter_properties(path).is_none()
        && properties.offset_index_disabled()
        && properties.writer_version() == WriterVersion::PARQUET_1_0
}

/// An empty plain chunk.
fn chunk(properties: &WriterProperties, column: &ColumnDescPtr, data_type: &DataType) -> Option<PlainChunk> {
    PlainChunk::new(column, data_type, properties.column_data_page_size_limit(column.path()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{
        ArrayRef, BinaryArray, FixedSizeListArray, Float32Array, Float64Array, Int64Array, LargeListArray, ListArray,
        StringArray,
    };
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::compute::concat_batches;
    use arrow::datatypes::{Field, Schema};
    use bytes::Bytes;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
    use parquet::basic::ZstdLevel;
    use parquet::schema::types::ColumnPath;
    use proptest::prelude::*;

    use super::*;
    use crate::dataset::WriterOptions;

    impl Sink for Vec<u8> {}

    /// Parameters of generated batches.
    #[derive(Debug, Clone)]
    struct Made {
        /// Rows of each batch, and whether it may have nulls and empty lists.
        batches: Vec<(usize, bool)>,
        longest: usize,
        nullable: bool,
        rows_per_group: usize,
        group_bytes: usize,
        page_bytes: usize,
        seed: u64,
    }

    fn made() -> impl Strategy<Value = Made> {
        let batches = prop::collection::vec((0..600_usize, prop::bool::weighted(0.1)), 1..12);
        let limits = (1..3000_usize, 1000..200_000_usize, 1..50_000_usize);
        (batches, prop_oneof![1..9_usize, 4000..6000_usize], any::<bool>(), limits, any::<u64>()).prop_map(
            |(batches, longest, nullable, (rows_per_group, group_bytes, page_bytes), seed)| Made {
                batches,
                longest,
                nullable,
                rows_per_group,
                group_bytes,
                page_bytes,
                seed,
            },
        )
    }

    /// Numbers that repeat from run to run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, end: usize) -> usize {
            self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (self.0 >> 33) as usize % end
        }

        fn nulls(&mut self, rows: usize, holes: bool) -> Option<NullBuffer> {
            holes.then(|| (0..rows).map(|_| self.below(5) > 0).collect())
        }

        fn floats(&mut self, count: usize, holes: bool) -> ArrayRef {
            let values: Vec<f32> = (0..count).map(|_| self.below(1 << 30) as f32).collect();
            Arc::new(Float32Array::new(values.into(), self.nulls(count, holes)))
        }
    }

    impl Made {
        fn schema(&self) -> SchemaRef {
            let item = Arc::new(Field::new("item", DataType::Float32, self.nullable));
            let kinds = [
                DataType::Float64,
                DataType::List(Arc::clone(&item)),
                DataType::Utf8,
                DataType::FixedSizeList(Arc::clone(&item), 3),
                DataType::LargeList(item),
                DataType::Int64,
                DataType::Struct(vec![Field::new("a", DataType::Float32, self.nullable)].into()),
            ];
            let fields = kinds.into_iter().enumerate();
            let fields: Vec<_> = fields.map(|(at, kind)| Field::new(format!("c{at}"), kind, self.nullable)).collect();
            Arc::new(Schema::new(fields))
        }

        /// Batches that are slices of larger ones, as those of other engines are.
        fn batches(&self) -> Vec<RecordBatch> {
            let (schema, mut numbers) = (self.schema(), Numbers(self.seed));
            let item = |at: usize| match schema.field(at).data_type() {
                DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => Arc::clone(item),
                other => panic!("{other}"),
            };
            let mut batches = Vec::new();
            for (rows, holes) in &self.batches {
                let (before, holes) = (numbers.below(7), *holes && self.nullable);
                let all = before + rows + numbers.below(7);
                let shortest = usize::from(!holes);
                let longest = self.longest.min(1 + 40_000 / all.max(1));
                let mut lengths =
                    || -> Vec<usize> { (0..all).map(|_| shortest + numbers.below(longest + 1 - shortest)).collect() };
                let (small, large) = (lengths(), lengths());
                let count = |lengths: &[usize]| lengths.iter().sum::<usize>();
                let doubles: Vec<f64> = (0..all).map(|_| numbers.below(1 << 30) as f64).collect();
                let words: Vec<String> = (0..all).map(|_| format!("word {}", numbers.below(9))).collect();
                let ids: Vec<i64> = (0..all).map(|_| numbers.below(1 << 30) as i64).collect();
                let lists = numbers.floats(count(&small), holes);
                let lists =
                    ListArray::new(item(1), OffsetBuffer::from_lengths(small), lists, numbers.nulls(all, holes));
                let fixed = numbers.floats(3 * all, holes);
                let larges = numbers.floats(count(&large), holes);
                let larges =
                    LargeListArray::new(item(4), OffsetBuffer::from_lengths(large), larges, numbers.nulls(all, holes));
                let member: (Arc<Field>, ArrayRef) =
                    (Arc::new(Field::new("a", DataType::Float32, self.nullable)), numbers.floats(all, holes));
                let columns: Vec<ArrayRef> = vec![
                    Arc::new(Float64Array::new(doubles.into(), numbers.nulls(all, holes))),
                    Arc::new(lists),
                    Arc::new(StringArray::from(words)),
                    Arc::new(FixedSizeListArray::new(item(3), 3, fixed, numbers.nulls(all, holes))),
                    Arc::new(larges),
                    Arc::new(Int64Array::new(ids.into(), numbers.nulls(all, holes))),
                    Arc::new(arrow::array::StructArray::from(vec![member])),
                ];
                batches.push(RecordBatch::try_new(Arc::clone(&schema), columns).unwrap().slice(before, *rows));
            }
            batches
        }
    }

    fn read(bytes: Vec<u8>) -> (ParquetMetaData, Vec<RecordBatch>) {
        let file = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(bytes)).unwrap();
        let about = file.metadata().as_ref().clone();
        (about, file.build().unwrap().map(|batch| batch.unwrap()).collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if std::env::var_os("BOWSTRING_SOAK").is_some() { 1000 } else { 100 }))]

        #[test]
        fn a_file_gives_back_what_it_was_given(made in made()) {
            let (schema, batches) = (made.schema(), made.batches());
            let options = WriterOptions {
                rows_per_group: made.rows_per_group,
                group_bytes: made.group_bytes,
                ..WriterOptions::fleeting()
            };
            let properties = options.check(&schema).unwrap().into_builder();
            let properties = properties.set_data_page_size_limit(made.page_bytes).build();
            let mut writer = FileWriter::new(Vec::new(), Arc::clone(&schema), properties).unwrap();
            for batch in &batches {
                writer.write(batch).unwrap();
                // The memory kept for the footer grows with each row group, which may have a single row.
                let gathered = writer.memory_size() - writer.footer_size();
                prop_assert!(gathered <= 4 * made.group_bytes + (8 << 20));
            }
            let plain: Vec<bool> = writer.columns.iter().map(|column| column.plain.is_some()).collect();
            let holes = made.nullable && made.batches.iter().any(|(rows, holes)| *holes && *rows > 0);
            prop_assert!(holes || plain == [true, true, false, true, true, false, false], "{:?}", plain);
            let (about, found) = read(writer.into_inner().unwrap());
            let expected = concat_batches(&schema, &batches).unwrap();
            prop_assert_eq!(concat_batches(&schema, &found).unwrap(), expected);
            prop_assert!(about.row_groups().iter().all(|group| group.num_rows() as usize <= made.rows_per_group));
        }
    }

    fn floats() -> (SchemaRef, RecordBatch) {
        let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Float32, true)]));
        let column = Arc::new(Float32Array::from_iter_values((0..10_000).map(|x| x as f32)));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![column]).unwrap();
        (schema, batch)
    }

    #[test]
    fn plain_columns_are_those_that_ask_for_nothing_else() {
        let (schema, batch) = floats();
        let path = || ColumnPath::new(vec!["x".to_owned()]);
        let fleeting = || WriterOptions::fleeting().check(&schema).unwrap().into_builder();
        for (properties, plain) in [
            (fleeting(), true),
            (fleeting().set_column_compression(path(), Compression::ZSTD(ZstdLevel::default())), false),
            (fleeting().set_column_dictionary_enabled(path(), true), false),
            (fleeting().set_column_encoding(path(), Encoding::BYTE_STREAM_SPLIT), false),
            (fleeting().set_column_statistics_enabled(path(), EnabledStatistics::Chunk), false),
            (fleeting().set_column_bloom_filter_enabled(path(), true), false),
            (fleeting().set_offset_index_disabled(false), false),
            (fleeting().set_writer_version(WriterVersion::PARQUET_2_0), false),
        ] {
            let properties = properties.build();
            let writer = FileWriter::new(Vec::new(), Arc::clone(&schema), properties.clone()).unwrap();
            assert_eq!(writer.columns[0].plain.is_some(), plain, "{properties:?}");
            let mut writer = writer;
            writer.write(&batch).unwrap();
            assert_eq!(read(writer.into_inner().unwrap()).1.iter().map(RecordBatch::num_rows).sum::<usize>(), 10_000);
        }
    }

    #[test]
    fn plain_values_are_kept_where_they_are() {
        let (schema, batch) = floats();
        let properties = WriterOptions::fleeting().check(&schema).unwrap();
        let mut writer = FileWriter::new(Vec::new(), Arc::clone(&schema), properties).unwrap();
        let before = Arc::strong_count(batch.column(0));
        writer.write(&batch).unwrap();
        assert_eq!(writer.memory_size(), 40_000);
        // The array is gone, the memory of its values is not.
        let buffer = batch.column(0).to_data().buffers()[0].clone();
        assert_eq!(Arc::strong_count(batch.column(0)), before);
        drop(batch);
        assert!(buffer.strong_count() > 1);
        writer.flush().unwrap();
        assert_eq!(buffer.strong_count(), 1);
        assert_eq!(writer.memory_size(), FINISHED_CHUNK, "what the footer will say of it");
    }

    #[test]
    fn the_lesser_part_of_a_batch_does_not_hold_it() {
        let fields = [("x", DataType::Float32), ("blob", DataType::Binary)];
        let fields: Vec<_> = fields.map(|(name, kind)| Field::new(name, kind, false)).to_vec();
        let schema = Arc::new(Schema::new(fields));
        let blobs = BinaryArray::from_iter_values((0..10_000).map(|_| [0_u8; 100]));
        let columns: Vec<ArrayRef> = vec![Arc::clone(floats().1.column(0)), Arc::new(blobs)];
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        let properties = WriterOptions::fleeting().check(&schema).unwrap();
        let mut writer = FileWriter::new(Vec::new(), schema, properties).unwrap();
        writer.write(&batch).unwrap();
        let buffer = batch.column(0).to_data().buffers()[0].clone();
        drop(batch);
        assert_eq!(buffer.strong_count(), 1);
        assert!(writer.memory_size() >= 40_000);
    }

    #[test]
    fn a_batch_of_another_type_is_an_error() {
        let (schema, _) = floats();
        let properties = WriterOptions::fleeting().check(&schema).unwrap();
        let mut writer = FileWriter::new(Vec::new(), schema, properties).unwrap();
        let other = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]));
        let batch = RecordBatch::try_new(other, vec![Arc::new(Int64Array::from(vec![1]))]).unwrap();
        assert!(writer.write(&batch).is_err());
    }
}
