//! Arrow IPC: files, streams and Feather version 2, read message by message.
//!
//! `frames` handles the framing of messages and the completeness of files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use serde_json::Value;

use super::frames::Frames;
use crate::convert::budget::{Budget, Permit};
use crate::convert::errors::{differs, unexpected};
use crate::convert::format::Format;
use crate::convert::options::{ConvertOptions, Packing};
use crate::convert::read::files::{self, Found};
use crate::convert::read::listing::Listing;
use crate::convert::rolling::{Output, RollingWriter, Rows};
use crate::convert::sink::{Part, Sink, Writer};
use crate::convert::source::{Batches, Nothing, Opening, Shard, Source, slices};
use crate::convert::types::schema_json;
use crate::convert::values::cells::as_type_of;
use crate::error::{Error, Place, Result};
use crate::store::pinned::shown;

#[derive(Debug)]
pub(crate) struct IpcSource {
    format: Format,
    files: Vec<Found>,
    schema: SchemaRef,
    shards: Vec<Shard>,
}

pub(crate) fn open(tree: &Listing, opening: &Opening) -> Result<Box<dyn Source>> {
    let files = tree.list(&opening.limits, &|name| Format::of_name(name) == Some(Format::Arrow))?;
    Ok(Box::new(IpcSource::new(Format::Arrow, files, opening)?))
}

impl IpcSource {
    /// Reads the schema of each file; all must be equal.
    pub(crate) fn new(format: Format, files: Vec<Found>, opening: &Opening) -> Result<Self> {
        let mut schema: Option<SchemaRef> = None;
        for file in &files {
            let found = Frames::open(file)?.schema()?;
            opening.limits.columns(&file.name, || "its schema".to_owned(), found.fields().len())?;
            match &schema {
                None => schema = Some(found),
                Some(first) if first.fields() == found.fields() => {}
                Some(first) => {
                    let (expected, found) = (format!("{:?}", schema_json(first)), format!("{:?}", schema_json(&found)));
                    let what = "its columns and those of the first file";
                    return Err(differs(Place::file(&*file.name), what, expected, found, "convert them one by one"));
                }
            }
        }
        let Some(schema) = schema else {
            return Err(Error::NotFound {
                what: "an Arrow file".into(),
                hint: "names end in .arrow or .feather".into(),
            });
        };
        let shard = |found: &Found| Shard {
            id: found.name.to_string(),
            bytes: found.bytes,
            rows: None,
            stamp: found.stamp.clone(),
        };
        let shards = files.iter().map(shard).collect();
        Ok(Self { format, files, schema, shards })
    }
}

impl Source for IpcSource {
    fn format(&self) -> Format {
        self.format
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn shards(&self) -> &[Shard] {
        &self.shards
    }

    fn paths(&self) -> Vec<PathBuf> {
        files::paths(&self.files)
    }

    fn read<'a>(&'a self, shard: usize, columns: &[usize], budget: &'a Budget) -> Result<Box<dyn Batches + 'a>> {
        let Some(found) = self.files.get(shard) else { return Ok(Box::new(Nothing)) };
        let mut frames = Frames::open(found)?;
        frames.schema()?;
        Ok(Box::new(Reader { frames, columns: columns.to_vec(), budget, permit: None, ready: Vec::new() }))
    }
}

struct Reader<'a> {
    frames: Frames,
    columns: Vec<usize>,
    budget: &'a Budget,
    /// Memory of the batch being returned.
    permit: Option<Permit>,
    ready: Vec<RecordBatch>,
}

impl Batches for Reader<'_> {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.ready.pop() {
                return Ok(Some(batch));
            }
            if let Some(batch) = self.frames.came.pop_front() {
                let batch = batch.project(&self.columns).map_err(unexpected)?;
                self.ready = slices(&batch).collect();
                self.ready.reverse();
                continue;
            }
            self.permit = None;
            if self.frames.ended {
                return Ok(None);
            }
            match self.frames.header()? {
                Some((header, body)) => {
                    let name = || format!("file {}: a batch", self.frames.input.name());
                    self.permit = Some(self.budget.reserve(body, name)?);
                    let (budget, permit) = (self.budget, &mut self.permit);
                    let file = Arc::clone(self.frames.input.name());
                    self.frames.message(header, |unpacked| {
                        // One permit at a time, so that a reader never waits for itself.
                        *permit = None;
                        let whole = body.saturating_add(unpacked);
                        *permit = Some(budget.reserve(whole, || format!("file {file}: a batch, unpacked,"))?);
                        Ok(())
                    })?;
                }
                None => self.frames.end()?,
            }
        }
    }

    fn consumed(&self) -> u64 {
        self.frames.input.consumed()
    }
}

#[derive(Debug)]
struct IpcSink {
    schema: SchemaRef,
    compression: Option<CompressionType>,
    target: u64,
}

pub(crate) fn compression(options: &ConvertOptions, format: Format) -> Result<Option<CompressionType>> {
    match Packing::parse(options.compression.as_deref(), format, &["none", "lz4", "zstd"], Packing::None)? {
        Packing::Lz4 => Ok(Some(CompressionType::LZ4_FRAME)),
        Packing::Zstd(_) => Ok(Some(CompressionType::ZSTD)),
        _ => Ok(None),
    }
}

pub(crate) fn sink(schema: &SchemaRef, options: &ConvertOptions) -> Result<Box<dyn Sink>> {
    let compression = compression(options, Format::Arrow)?;
    let target = if options.shards.is_some() { u64::MAX } else { options.target_file_size };
    Ok(Box::new(IpcSink { schema: Arc::new(plain_schema(schema)), compression, target }))
}

impl Sink for IpcSink {
    fn format(&self) -> Format {
        Format::Arrow
    }

    fn writer(&self, directory: &Path, _: &str) -> Result<Box<dyn Writer>> {
        let (schema, compression) = (Arc::clone(&self.schema), self.compression);
        Ok(RollingWriter::writer(
            directory,
            "arrow",
            self.target,
            Arc::new(move |path| {
                let output = Output::create(path, Packing::None)?;
                let writer = FileWriter::try_new_with_options(output, &schema, write_options(compression)?);
                let writer = writer.map_err(|error| broken(path, error))?;
                Ok(Box::new(FileRows { writer, path: path.to_owned(), schema: Arc::clone(&schema) }))
            }),
        ))
    }

    fn name(&self, _: &Part, number: usize, _: usize) -> String {
        format!("part-{number:05}.arrow")
    }
}

fn write_options(compression: Option<CompressionType>) -> Result<IpcWriteOptions> {
    IpcWriteOptions::default().try_with_compression(compression).map_err(unexpected)
}

/// Converts Arrow's error about writing: the disk failed, or the data cannot be written.
pub(crate) fn broken(path: &Path, error: ArrowError) -> Error {
    match error {
        ArrowError::IoError(_, error) => crate::store::directory::failed("write", path, error),
        other => Error::unsupported(format!("writing {} ({other})", shown(path).display()), ""),
    }
}

/// Returns the type with strings and bytes that every Arrow reader supports: views are newer than many readers.
fn plain(data_type: &DataType) -> DataType {
    let inner = |field: &FieldRef| Arc::new(Field::clone(field).with_data_type(plain(field.data_type())));
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(field) | DataType::ListView(field) => DataType::List(inner(field)),
        DataType::LargeList(field) | DataType::LargeListView(field) => DataType::LargeList(inner(field)),
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(inner(field), *size),
        DataType::Struct(members) => DataType::Struct(members.iter().map(inner).collect()),
        DataType::Map(field, sorted) => DataType::Map(inner(field), *sorted),
        other => other.clone(),
    }
}

/// Returns the schema with plain strings and bytes.
pub(crate) fn plain_schema(schema: &Schema) -> Schema {
    let plain = |field: &FieldRef| Field::clone(field).with_data_type(plain(field.data_type()));
    Schema::new_with_metadata(schema.fields().iter().map(plain).collect::<Vec<_>>(), schema.metadata().clone())
}

/// Returns the batch with plain strings and bytes; a slice is written without the data around it.
pub(crate) fn compact(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let column = |(column, field): (&ArrayRef, &FieldRef)| as_type_of(field.name(), column, field.data_type());
    let columns = batch.columns().iter().zip(schema.fields()).map(column).collect::<Result<_>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(unexpected)
}

struct FileRows {
    writer: FileWriter<Output>,
    path: std::path::PathBuf,
    schema: SchemaRef,
}

impl Rows for FileRows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.writer.write(&compact(batch, &self.schema)?).map_err(|error| broken(&self.path, error))
    }

    fn bytes(&self) -> u64 {
        self.writer.get_ref().bytes()
    }

    fn finish(mut self: Box<Self>) -> Result<(u64, Value)> {
        self.writer.finish().map_err(|error| broken(&self.path, error))?;
        let output = self.writer.into_inner().map_err(|error| broken(&self.path, error))?;
        Ok((output.close()?, Value::Null))
    }
}

/// A file in the stream format.
pub(crate) struct StreamRows {
    writer: StreamWriter<Output>,
    path: std::path::PathBuf,
    schema: SchemaRef,
}

impl StreamRows {
    pub(crate) fn create(
        path: &Path,
        schema: &SchemaRef,
        compression: Option<CompressionType>,
    ) -> Result<Box<dyn Rows>> {
        let output = Output::create(path, Packing::None)?;
        let writer = StreamWriter::try_new_with_options(output, schema, write_options(compression)?);
        let writer = writer.map_err(|error| broken(path, error))?;
        Ok(Box::new(Self { writer, path: path.to_owned(), schema: Arc::clone(schema) }))
    }
}

impl Rows for StreamRows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.writer.write(&compact(batch, &self.schema)?).map_err(|error| broken(&self.path, error))
    }

    fn bytes(&self) -> u64 {
        self.writer.get_ref().bytes()
    }

    fn finish(mut self: Box<Self>) -> Result<(u64, Value)> {
        self.writer.finish().map_err(|error| broken(&self.path, error))?;
        let output = self.writer.into_inner().map_err(|error| broken(&self.path, error))?;
        Ok((output.close()?, Value::Null))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::Int64Array;
    use arrow::ipc::writer::{FileWriter, IpcWriteOptions};

    use super::*;
    use crate::convert::{Progress, verify};
    use crate::error::Error;

    #[test]
    fn what_unpacks_to_more_than_the_budget_is_refused_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("zeros.arrow");
        let zeros: ArrayRef = Arc::new(Int64Array::from(vec![0; 4 << 20]));
        let batch = RecordBatch::try_from_iter([("x", zeros)]).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = FileWriter::try_new_with_options(file, &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.finish().unwrap();
        assert!(std::fs::metadata(&path).unwrap().len() < 1 << 20);
        let text = path.to_str().unwrap();
        let with = |memory_budget| {
            let options = ConvertOptions { memory_budget, ..ConvertOptions::default() };
            verify(text, text, &options, &Progress::default())
        };
        let error = with(32 << 20).unwrap_err();
        assert!(matches!(error, Error::Limit { option: "memory_budget", .. }), "{error}");
        assert!(with(256 << 20).unwrap().equal);
    }
}
