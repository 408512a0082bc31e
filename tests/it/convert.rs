//! Conversions through the library and through the binary.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use bowstring::convert::{Budget, Comparison, ConvertOptions, Format, Progress, Report, convert, open, verify};
use bowstring::{Error, Result};

/// Folders of images: their labels, and images with faults.
mod folders;
/// Files of other libraries.
mod foreign;
/// Damaged and hostile files.
mod hostile;
/// Every format in both directions, and the refusals of each.
mod pairs;
/// `key=value` directories of formats other than Parquet.
mod partitions;
/// Sources in stores.
mod remote;
/// Conversions that are stopped or killed, and go on.
mod stopped;
/// Tokens of text: the exact value, or an error that names the token.
mod text;
/// Atomic publication: failing disks, existing destinations, sources that change.
mod whole;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(name)
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

fn to(format: Format) -> ConvertOptions {
    ConvertOptions { to: Some(format), ..ConvertOptions::default() }
}

fn run(src: &Path, dst: &Path, options: &ConvertOptions) -> Result<Report> {
    convert(&text(src), dst, options, &Progress::default())
}

/// Returns all rows of a dataset of any format, in order.
fn rows(path: &Path, options: &ConvertOptions) -> Result<RecordBatch> {
    let source = open(&text(path), options)?;
    let columns: Vec<usize> = (0..source.schema().fields().len()).collect();
    let budget = Budget::new(1 << 30);
    let mut batches = Vec::new();
    for shard in 0..source.shards().len() {
        let mut reader = source.read(shard, &columns, &budget)?;
        while let Some(batch) = reader.next()? {
            batches.push(batch);
        }
    }
    Ok(concat_batches(source.schema(), &batches).unwrap())
}

/// Compares two datasets, at paths or addresses.
fn compared(a: &Path, b: &Path, options: &ConvertOptions) -> Result<Comparison> {
    verify(&text(a), &text(b), options, &Progress::default())
}

/// Compares two datasets whose formats follow from their paths.
fn same(a: &Path, b: &Path) -> Comparison {
    let found = compared(a, b, &ConvertOptions::default()).unwrap();
    assert!(found.equal, "{found:#?}");
    found
}

/// Writes a batch as one Parquet file.
fn parquet(path: &Path, batch: &RecordBatch) {
    use parquet::arrow::ArrowWriter;
    use parquet::file::properties::WriterProperties;
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(100)).build();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// Returns the names in a directory, including hidden ones.
fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn kind(outcome: Result<Report>) -> (Error, String) {
    let error = outcome.unwrap_err();
    let text = error.chain();
    (error, text)
}

fn batch(columns: Vec<(&str, arrow::array::ArrayRef)>) -> RecordBatch {
    let fields: Vec<arrow::datatypes::Field> = columns
        .iter()
        .map(|(name, array)| arrow::datatypes::Field::new(*name, array.data_type().clone(), true))
        .collect();
    let schema = Arc::new(arrow::datatypes::Schema::new(fields));
    RecordBatch::try_new(schema, columns.into_iter().map(|(_, array)| array).collect()).unwrap()
}
