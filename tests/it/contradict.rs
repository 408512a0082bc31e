//! Files that say the same thing twice and mean two: refused, with the place. And what only looks like that.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, RecordBatch};
use bowstring::dataset::{Dataset, OpenOptions};
use bowstring::{Error, Result};
use parquet::arrow::ArrowWriter;
use parquet::file::metadata::{
    ColumnChunkMetaData, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::properties::WriterProperties;

use crate::dataset::{read_group, runtime};

/// Two columns in two row groups, without a dictionary.
fn whole() -> (RecordBatch, Vec<u8>) {
    let column = |from: i32| Arc::new(Int32Array::from_iter_values(from..from + 100)) as ArrayRef;
    let batch = RecordBatch::try_from_iter([("first", column(0)), ("second", column(7))]).unwrap();
    let properties = WriterProperties::builder().set_dictionary_enabled(false).set_max_row_group_row_count(Some(50));
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
    writer.write(&batch).unwrap();
    (batch, writer.into_inner().unwrap())
}

/// The file with the column chunks that `change` makes of its own.
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

/// That the file is refused at row group 1, column `second`, with these words.
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

/// `file` with `new` instead of the last `old` in it.
fn replaced(file: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let at = file.windows(old.len()).rposition(|bytes| bytes == old).expect("the bytes are there");
    [&file[..at], new, &file[at + old.len()..]].concat()
}

#[test]
fn another_type_or_path_in_the_row_group_is_refused() {
    let (_, file) = whole();
    // The beginning of a column chunk's metadata: its type, INT32, and then its encodings. 0x0a is DOUBLE.
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
fn places_that_overlap_or_lie_backwards_are_refused() {
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
fn a_dictionary_at_byte_zero_is_none() {
    let (batch, file) = whole();
    let zeros =
        changed(&file, |_, _, column| column.into_builder().set_dictionary_page_offset(Some(0)).build().unwrap());
    let found = read_bytes(&zeros).unwrap();
    assert_eq!(found.len(), 2);
    assert_eq!(arrow::compute::concat_batches(&found[0].schema(), &found).unwrap().columns(), batch.columns());
}
