//! Helpers that open and read whole datasets, and write small ones.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayData, ArrayRef, RecordBatch, make_array};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use bowstring::Result;
use bowstring::dataset::{Dataset, OpenOptions, Projection};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use tokio::runtime::Runtime;

/// A runtime with few threads: some tests run in a small address space.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().max_blocking_threads(4).enable_all().build().unwrap()
}

pub(crate) fn open(urls: &[&str], options: OpenOptions) -> Result<Dataset> {
    let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
    runtime().block_on(Dataset::open(&urls, options))
}

/// Reads the selected rows of one row group. Checks cost and sizes on the way.
pub(crate) async fn read_group(dataset: &Dataset, projection: &Projection, group: usize) -> Result<RecordBatch> {
    let cost = dataset.cost(group, projection);
    let fetched = dataset.fetch(group, projection).await?;
    assert_eq!(fetched.bytes() as u64, cost.fetched, "cost() must say what fetch() takes");
    let arrays = (0..projection.roots().len()).map(|root| dataset.decode(&fetched, projection, root));
    let arrays = arrays.collect::<Result<Vec<ArrayRef>>>()?;
    let fields: Vec<_> = projection.roots().iter().map(|root| Arc::clone(root.field())).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
    assert_eq!(batch.num_rows() as u64, dataset.manifest().groups[group].selected);
    Ok(batch)
}

/// Reads the columns `paths` of all row groups, in order.
pub(crate) fn read(dataset: &Dataset, paths: &[&str]) -> Result<RecordBatch> {
    let runtime = runtime();
    let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
    let projection = dataset.project(&paths)?;
    let groups = dataset.manifest().groups.iter().enumerate().filter(|(_, group)| group.selected > 0);
    let batches = groups.map(|(group, _)| runtime.block_on(read_group(dataset, &projection, group)));
    let batches = batches.collect::<Result<Vec<_>>>()?;
    let fields: Vec<_> = projection.roots().iter().map(|root| Arc::clone(root.field())).collect();
    Ok(concat_batches(&Arc::new(Schema::new(fields)), &batches).unwrap())
}

/// Reads all columns of all row groups.
pub(crate) fn read_all(dataset: &Dataset) -> Result<RecordBatch> {
    let names: Vec<&str> = dataset.schema().fields().iter().map(|field| field.name().as_str()).collect();
    read(dataset, &names)
}

/// Writes one file.
pub(crate) fn write(path: &Path, batch: &RecordBatch, properties: WriterProperties) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.close().unwrap();
}

/// Returns `ty` without zones: Spark writes instants as times of 96 bits, which files do not mark as instants.
fn without_zone(ty: &DataType) -> DataType {
    let inner = |field: &Arc<Field>| Arc::new(Field::clone(field).with_data_type(without_zone(field.data_type())));
    match ty {
        DataType::Timestamp(unit, _) => DataType::Timestamp(*unit, None),
        DataType::List(item) => DataType::List(inner(item)),
        DataType::Map(entries, sorted) => DataType::Map(inner(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        other => other.clone(),
    }
}

fn plain(data: &ArrayData) -> ArrayData {
    let children = data.child_data().iter().map(plain).collect();
    data.clone().into_builder().data_type(without_zone(data.data_type())).child_data(children).build().unwrap()
}

/// Returns every row of a dataset as text, by the names of columns, sorted.
pub(crate) fn rows(dataset: &Dataset) -> Result<Vec<String>> {
    let batch = read_all(dataset)?;
    let options = FormatOptions::default().with_null("null");
    let (schema, arrays) = (batch.schema(), batch.columns().iter().map(|column| make_array(plain(&column.to_data()))));
    let arrays: Vec<ArrayRef> = arrays.collect();
    let mut columns: Vec<(String, ArrayFormatter<'_>)> = Vec::new();
    for (field, column) in schema.fields().iter().zip(&arrays) {
        columns.push((field.name().clone(), ArrayFormatter::try_new(column.as_ref(), &options).unwrap()));
    }
    columns.sort_by(|a, b| a.0.cmp(&b.0));
    let row = |row: usize| {
        let cells = columns.iter().map(|(name, column)| format!("{name}={}", column.value(row)));
        cells.collect::<Vec<_>>().join(" ")
    };
    let mut rows: Vec<String> = (0..batch.num_rows()).map(row).collect();
    rows.sort();
    Ok(rows)
}

/// A path as text.
pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
