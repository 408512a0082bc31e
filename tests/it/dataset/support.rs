//! Opening and reading whole datasets, and writing small ones.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::Schema;
use bowstring::Result;
use bowstring::dataset::{Dataset, OpenOptions, Projection};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use tokio::runtime::Runtime;

/// A runtime of few threads: some tests run in little address space.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().max_blocking_threads(4).enable_all().build().unwrap()
}

pub(crate) fn open(urls: &[&str], options: OpenOptions) -> Result<Dataset> {
    let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
    runtime().block_on(Dataset::open(&urls, options))
}

/// The selected rows of one row group. Cost and sizes are checked on the way.
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

/// The columns `paths` of all row groups, in order.
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

/// All columns of all row groups.
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
