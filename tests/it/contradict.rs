//! Files that state the same thing twice, differently: refused, with the place. Also files that only look like that.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array, ListArray, RecordBatch, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int32Type};
use bowstring::dataset::{Dataset, OpenOptions};
use bowstring::{Error, Result};
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::properties::{WriterProperties, WriterVersion};

use crate::dataset::{read_group, runtime};

/// Writes two columns in two row groups, without a dictionary.
fn whole() -> (RecordBatch, Vec<u8>) {
    let column = |from: i32| Arc::new(Int32Array::from_iter_values(from..from + 100)) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("first", column(0)), ("second", column(7))]).unwrap();
    let properties = WriterProperties::builder().set_dictionary_enabled(false).set_max_row_group_row_count(Some(50));
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
    writer.write(&batch).unwrap();
    (batch, writer.into_inner().unwrap())
}

/// Returns the file with its column chunks replaced by those of `change`.
fn changed(file: &[u8], change: impl Fn(usize, usize, ColumnChunkMetaData) -> ColumnChunkMetaData) -> Vec<u8> {
    let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes::Bytes::copy_from_slice(file)).unwrap();
    let group = |(number, group): (usize, &RowGroupMetaData)| {
        let columns = group.columns().iter().cloned().enumerate();
        let columns = columns.map(|(leaf, column)| change(number, leaf, column)).collect();
        group.clone().into_builder().set_column_metadata(columns).build().unwrap()
    };
    let groups = metadata.row_groups().iter().enumerate().map(group).collect();
    let metadata = ParquetMetaData::new(metadata.file_metadata().clone(), groups);
    let length = u32::from_le_bytes(file[file.len() - 8..file.len() - 4].try_into().unwrap()) as usize;
    let mut made = file[..file.len() - 8 - length].to_vec();
    ParquetMetaDataWriter::new(&mut made, &metadata).finish().unwrap();
    made
}

fn read(path: &Path) -> Result<Vec<RecordBatch>> {
    let runtime = runtime();
    let dataset = runtime.block_on(Dataset::open(&[path.display().to_string()], OpenOptions::default()))?;
    let projection = dataset.project(&["first".to_owned(), "second".to_owned()])?;
    (0..dataset.manifest().groups.len())
        .map(|group| runtime.block_on(read_group(&dataset, &projection, group)))
        .collect()
}

fn read_bytes(file: &[u8]) -> Result<Vec<RecordBatch>> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    fs::write(&path, file).unwrap();
    read(&path)
}

/// Checks that the file is refused at row group 1, column `second`, with these words.
fn refused(file: &[u8], column: &str, words: &str) {
    let error = read_bytes(file).unwrap_err();
    let Error::Corrupt { place, .. } = &error else { panic!("{error}") };
    assert_eq!(
        (place.file.as_deref(), place.row_group, place.column.as_deref()),
        (Some("a.parquet"), Some(1), Some(column)),
        "{error}"
    );
    assert!(error.to_string().contains(words), "{error}");
}

/// Replaces the last `old` in `file` by `new`.
fn replaced(file: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let at = file.windows(old.len()).rposition(|bytes| bytes == old).expect("the bytes are there");
    [&file[..at], new, &file[at + old.len()..]].concat()
}

#[test]
fn another_type_or_path_in_the_row_group_is_refused() {
    let (_, file) = whole();
    // The start of a column chunk's metadata: its type, INT32, then its encodings. 0x0a is DOUBLE.
    refused(
        &replaced(&file, &[0x1c, 0x15, 0x02, 0x19], &[0x1c, 0x15, 0x0a, 0x19]),
        "second",
        "DOUBLE in the row group",
    );
    refused(&replaced(&file, b"\x18\x06second", b"\x18\x06secona"), "second", "its path");
}

#[test]
fn a_field_of_another_type_is_refused() {
    let (_, file) = whole();
    let error = read_bytes(&replaced(&file, &[0x1c, 0x15, 0x02, 0x19], &[0x1c, 0x16, 0x02, 0x19])).unwrap_err();
    assert!(error.to_string().contains("another type than its own"), "{error}");
}

#[test]
fn offsets_that_overlap_or_run_backwards_are_refused() {
    let (_, file) = whole();
    let only = |change: fn(ColumnChunkMetaData) -> ColumnChunkMetaData| {
        changed(&file, |group, leaf, column| if (group, leaf) == (1, 1) { change(column) } else { column })
    };
    let moved = only(|column| {
        let at = column.data_page_offset() - 10;
        column.into_builder().set_data_page_offset(at).build().unwrap()
    });
    refused(&moved, "second", "are another column's too");
    let backwards = only(|column| {
        let at = column.data_page_offset() + 10;
        column.into_builder().set_dictionary_page_offset(Some(at)).build().unwrap()
    });
    refused(&backwards, "second", "behind its data");
    let counted = only(|column| column.into_builder().set_num_values(49).build().unwrap());
    refused(&counted, "second", "49 values do not fit 50 rows");
}

#[test]
fn a_dictionary_offset_of_zero_means_no_dictionary() {
    let (batch, file) = whole();
    let zeros =
        changed(&file, |_, _, column| column.into_builder().set_dictionary_page_offset(Some(0)).build().unwrap());
    let found = read_bytes(&zeros).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(arrow::compute::concat_batches(&found[0].schema(), &found).unwrap().columns(), batch.columns());
}

/// Replaces the only `old` in `file` by `new`.
fn edited(file: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    assert_eq!(file.windows(old.len()).filter(|bytes| *bytes == old).count(), 1, "{old:02x?} is there once");
    replaced(file, old, new)
}

fn written(batch: &RecordBatch, dictionary: bool, version: WriterVersion) -> Vec<u8> {
    let properties = WriterProperties::builder().set_dictionary_enabled(dictionary).set_writer_version(version);
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

/// Reads the one column of a file.
fn one(file: &[u8]) -> Result<ArrayRef> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    fs::write(&path, file).unwrap();
    let runtime = runtime();
    let dataset = runtime.block_on(Dataset::open(&[path.display().to_string()], OpenOptions::default()))?;
    let projection = dataset.project(&["c".to_owned()])?;
    Ok(Arc::clone(runtime.block_on(read_group(&dataset, &projection, 0))?.column(0)))
}

fn damaged(file: &[u8], words: &str) {
    let error = one(file).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }) && error.chain().contains(words), "{}", error.chain());
}

#[test]
fn levels_that_the_schema_does_not_have_are_refused() {
    let column = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)])) as ArrayRef;
    let file = written(
        &RecordBatch::try_from_iter_with_nullable([("c", column, true)]).unwrap(),
        false,
        WriterVersion::PARQUET_1_0,
    );
    assert_eq!(one(&file).unwrap().null_count(), 1);
    // The schema element: INT32, optional, "c". If it were required, the levels would be values.
    damaged(
        &edited(&file, &[0x15, 2, 0x25, 2, 0x18, 1, b'c'], &[0x15, 2, 0x25, 0, 0x18, 1, b'c']),
        "definition levels",
    );
}

#[test]
fn levels_of_an_encoding_that_the_footer_does_not_name_are_refused() {
    let column = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)])) as ArrayRef;
    let file = written(
        &RecordBatch::try_from_iter_with_nullable([("c", column, true)]).unwrap(),
        false,
        WriterVersion::PARQUET_1_0,
    );
    // The page header: three values, PLAIN, levels in runs. 4 are the deprecated ones.
    damaged(
        &edited(&file, &[0x2c, 0x15, 6, 0x15, 0, 0x15, 6, 0x15, 6], &[0x2c, 0x15, 6, 0x15, 0, 0x15, 8, 0x15, 6]),
        "of an encoding",
    );
}

#[test]
fn lists_that_continue_after_their_end_are_refused() {
    let lists = vec![Some(vec![Some(1), Some(2)]), Some(vec![]), Some(vec![Some(3)]), None];
    let lists = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists)) as ArrayRef;
    let batch = RecordBatch::try_from_iter_with_nullable([("c", lists, true)]).unwrap();
    let file = written(&batch, false, WriterVersion::PARQUET_2_0);
    assert_eq!(one(&file).unwrap().null_count(), 1);
    // Repetition levels 0 1 0 0 0 and definition levels 3 3 1 3 0, packed into groups.
    let levels = [0x03, 0b0000_0010, 0x03, 0b1101_1111, 0b0000_0000];
    let moved = [0x03, 0b0000_1000, 0x03, 0b1101_1111, 0b0000_0000];
    damaged(&edited(&file, &levels, &moved), "go on with a list");
}

#[test]
fn a_list_with_a_second_type_is_refused() {
    let lists = vec![Some(vec![Some(1), Some(2)]), None];
    let lists = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists)) as ArrayRef;
    let batch = RecordBatch::try_from_iter_with_nullable([("c", lists, true)]).unwrap();
    let file = written(&batch, false, WriterVersion::PARQUET_2_0);
    // The schema element: optional, "c", one child, converted type 3, logical type 3. Another converted type makes it a struct.
    let element = [0x18, 1, b'c', 0x15, 2, 0x15, 6, 0x4c, 0x3c];
    damaged(&edited(&file, &element, &[0x18, 1, b'c', 0x15, 2, 0x15, 0x16, 0x4c, 0x3c]), "described as something else");
}

#[test]
fn members_that_disagree_on_their_lists_are_refused() {
    let members = [Field::new("a", DataType::Int32, false), Field::new("b", DataType::Int32, false)];
    let column = |from: i32| Arc::new(Int32Array::from_iter_values(from..from + 3)) as ArrayRef;
    let items = StructArray::new(members.to_vec().into(), vec![column(0), column(7)], None);
    let item = Arc::new(Field::new("item", items.data_type().clone(), false));
    let lists = ListArray::new(item, OffsetBuffer::from_lengths([2, 1]), Arc::new(items), None);
    let batch = RecordBatch::try_from_iter([("c", Arc::new(lists) as ArrayRef)]).unwrap();
    let file = written(&batch, false, WriterVersion::PARQUET_2_0);
    assert_eq!(one(&file).unwrap().len(), 2);
    // Repetition levels 0 1 0 of `b`, the last in the file: 0 0 1 would move its second value to the second list.
    damaged(&replaced(&file, &[0x03, 0b010], &[0x03, 0b100]), "disagree");
}

#[test]
fn indices_that_are_announced_but_missing_are_refused() {
    let words = ["a", "b", "c"].into_iter().cycle().take(60);
    let words = Arc::new(arrow::array::StringArray::from_iter_values(words)) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("c", words)]).unwrap();
    let file = written(&batch, true, WriterVersion::PARQUET_2_0);
    assert_eq!(one(&file).unwrap().len(), 60);
    // Two bits each, eight groups of eight; the header for 2,000 groups takes one of their bytes.
    let packed = [2, 0x11, 0x24, 0x49];
    damaged(&edited(&file, &packed, &[2, 0xa1, 0x1f, 0x49]), "are not those of its 60 values");
}
