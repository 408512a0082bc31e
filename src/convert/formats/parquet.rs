//! Parquet: read one row group at a time through [`dataset`](crate::dataset), and written by its writer, one per task.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Metadata, Schema, SchemaRef};
use serde_json::json;
use tokio::runtime::Runtime;

use super::petastorm::Described;
use crate::convert::budget::{Budget, Permit};
use crate::convert::errors::{refused, unexpected};
use crate::convert::format::Format;
use crate::convert::options::{ConvertOptions, Packing};
use crate::convert::read::{files, listing};
use crate::convert::sink::{Part, Sink, Writer};
use crate::convert::source::{Batches, Opening, Shard, Source, slices};
use crate::convert::types::{is_binary, item};
use crate::convert::values::{cells, sample};
use crate::dataset::{
    Compression, Dataset, DatasetWriter, Finished, HUGGING_FACE, OpenOptions, WriterOptions, lacking,
};
use crate::error::{Error, Place, Result};
use crate::schema::Codec;

#[derive(Debug)]
struct ParquetSource {
    runtime: Runtime,
    dataset: Dataset,
    schema: SchemaRef,
    /// Columns of arrays that a conversion wrote from lists, to be read as lists.
    lists: Vec<String>,
    shards: Vec<Shard>,
}

pub(crate) fn open(src: &str, opening: &Opening) -> Result<Box<dyn Source>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| Error::Closed { why: format!("no runtime can be started: {error}") })?;
    let options = OpenOptions {
        storage_options: opening.storage_options.clone(),
        limits: opening.limits.dataset(),
        ..OpenOptions::default()
    };
    let dataset = runtime.block_on(Dataset::open(&[src.to_owned()], options))?;
    let manifest = Arc::clone(dataset.manifest());
    let names = dataset.schema().fields().iter().map(|field| field.name());
    // The others may be left out.
    let names: Vec<String> = names.filter(|name| dataset.check_type(name).is_ok()).cloned().collect();
    let all = dataset.project(&names)?;
    let touched: Vec<String> = (0..manifest.files.len()).map(|file| touched(&dataset, file)).collect();
    let mut shards = Vec::with_capacity(manifest.groups.len());
    for (number, group) in manifest.groups.iter().enumerate() {
        let at = group.file as usize;
        let (Some(file), Some(touched)) = (manifest.files.get(at), touched.get(at)) else { continue };
        shards.push(Shard {
            id: format!("{}#{}", file.path, group.ordinal),
            bytes: dataset.cost(number, &all).fetched,
            rows: Some(group.selected),
            // What a table says of the file's rows is not in the file.
            stamp: match dataset.version_of(number) {
                Some(version) => format!("{:?}{touched} {version}", file.version),
                None => format!("{:?}{touched}", file.version),
            },
        });
    }
    let mut lists = Vec::new();
    let field = |field: &Arc<Field>| {
        let written = opening.written.as_ref().and_then(|schema| schema.field_with_name(field.name()).ok());
        let list = written.filter(|written| item(written.data_type()).is_some() && is_binary(field.data_type()));
        match list {
            Some(written) => {
                lists.push(field.name().clone());
                Arc::new(Field::new(field.name(), written.data_type().clone(), field.is_nullable()))
            }
            None => Arc::clone(field),
        }
    };
    let fields: Vec<Arc<Field>> = dataset.schema().fields().iter().map(field).collect();
    // The loader has it apart; here it goes where it goes from the other formats of Arrow.
    let features = dataset.hugging_face().map(|features| (HUGGING_FACE.to_owned(), features));
    let metadata: Metadata = features.into_iter().collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    Ok(Box::new(ParquetSource { runtime, dataset, schema, lists, shards }))
}

/// When a file of this machine was last touched, by the time that no program sets: its version has numbers that its disk may give again.
/// Nothing for an object of a store.
fn touched(dataset: &Dataset, file: usize) -> String {
    let path = dataset.url(file).and_then(|url| match listing::local_start(&url)? {
        (path, true) => Some(path),
        // A name that looks like a pattern.
        (_, false) => Some(PathBuf::from(url)),
    });
    let touched = path.and_then(|path| files::last_touched(&path));
    touched.map_or_else(String::new, |touched| format!(" {touched}"))
}

impl Source for ParquetSource {
    fn format(&self) -> Format {
        if self.dataset.petastorm().is_some() { Format::Petastorm } else { Format::Parquet }
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn shards(&self) -> &[Shard] {
        &self.shards
    }

    fn place(&self, shard: usize, row: u64) -> Place {
        self.dataset.place(shard).row(row)
    }

    fn paths(&self) -> Vec<PathBuf> {
        // Of several mounts some may be of this machine.
        let urls = (0..self.dataset.manifest().files.len()).filter_map(|file| self.dataset.url(file));
        urls.filter_map(|url| listing::local_start(&url)).map(|(path, _)| path).collect()
    }

    fn agree(&self, columns: &[usize]) -> Result<()> {
        let fields = self.schema.fields();
        let names: Vec<&str> = columns.iter().filter_map(|number| Some(fields.get(*number)?.name().as_str())).collect();
        names.iter().try_for_each(|name| self.dataset.check_type(name))?;
        self.dataset.check_classes_below(&names)
    }

    fn read<'a>(&'a self, shard: usize, columns: &[usize], budget: &'a Budget) -> Result<Box<dyn Batches + 'a>> {
        let schema = Arc::new(self.schema.project(columns).map_err(unexpected)?);
        let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let projection = self.dataset.project(&names)?;
        let cost = self.dataset.cost(shard, &projection).total();
        let permit = budget.reserve(cost, || format!("{}: its decoded columns", self.dataset.place(shard)))?;
        let fetched = self.runtime.block_on(self.dataset.fetch(shard, &projection))?;
        let mut arrays = Vec::with_capacity(projection.roots().len());
        for (root, field) in schema.fields().iter().enumerate() {
            let array = self.dataset.decode(&fetched, &projection, root)?;
            arrays.push(if self.lists.contains(field.name()) {
                let cells = cells::as_type(&array, &DataType::Binary)?;
                cells::from_npy(cells.as_binary(), Codec::Npy, field)?
            } else {
                array
            });
        }
        let rows = usize::try_from(self.dataset.decoded_rows(shard)).unwrap_or(usize::MAX);
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(schema, arrays, &options).map_err(|error| {
            Error::corrupt_by(self.dataset.place(shard), "its columns do not fit the schema", error)
        })?;
        let bytes = self.shards.get(shard).map_or(0, |shard| shard.bytes);
        let left: Vec<RecordBatch> = slices(&batch).collect();
        let count = left.len().max(1) as u64;
        Ok(Box::new(RowGroup { left: left.into_iter(), given: 0, count, bytes, _permit: permit }))
    }
}

/// The slices of a decoded row group; its memory is held until all are gone.
struct RowGroup {
    left: std::vec::IntoIter<RecordBatch>,
    given: u64,
    count: u64,
    bytes: u64,
    _permit: Permit,
}

impl Batches for RowGroup {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let batch = self.left.next();
        self.given += u64::from(batch.is_some());
        Ok(batch)
    }

    fn consumed(&self) -> u64 {
        self.bytes / self.count * self.given.min(self.count)
    }
}

#[derive(Debug)]
struct ParquetSink {
    schema: SchemaRef,
    options: WriterOptions,
    described: Option<Described>,
}

pub(crate) fn sink(
    schema: &SchemaRef,
    options: &ConvertOptions,
    sample: &RecordBatch,
    petastorm: bool,
) -> Result<Box<dyn Sink>> {
    let format = if petastorm { Format::Petastorm } else { Format::Parquet };
    let default = WriterOptions::default();
    let allowed = ["none", "snappy", "lz4", "zstd"];
    let packing = Packing::parse(options.compression.as_deref(), format, &allowed, Packing::Zstd(1))?;
    let compression = match packing {
        Packing::None | Packing::Gzip => Compression::None,
        Packing::Snappy => Compression::Snappy,
        Packing::Lz4 => Compression::Lz4,
        Packing::Zstd(level) => Compression::Zstd(level),
    };
    let described = if petastorm { Some(Described::new(schema)?) } else { None };
    let mut writer = WriterOptions {
        rows_per_group: options.rows_per_group.unwrap_or(default.rows_per_group),
        group_bytes: usize::try_from(options.sink_bytes()).unwrap_or(usize::MAX).min(default.group_bytes),
        file_bytes: if options.shards.is_some() { u64::MAX } else { options.target_file_size },
        compression,
        plain: sample::hardly_repeat(sample),
        ..default
    };
    for field in schema.fields() {
        if field.data_type() == &DataType::Null {
            return Err(refused(
                format,
                field,
                "it has no values; leave it out with --columns or give a type with --schema",
            ));
        }
        if is_binary(field.data_type()) && sample::is_image(field) {
            writer.uncompressed.push(field.name().clone());
        }
        // Images of Hugging Face are structs of bytes and path.
        if let DataType::Struct(members) = field.data_type() {
            let images = members.iter().filter(|member| is_binary(member.data_type()) && member.name() == "bytes");
            writer.uncompressed.extend(images.map(|member| format!("{}.{}", field.name(), member.name())));
        }
    }
    let known = |name: &String| schema.field_with_name(name).is_ok();
    writer.plain.retain(known);
    let written = described.as_ref().map_or(schema, |described| &described.schema);
    check(written)?;
    Ok(Box::new(ParquetSink { schema: Arc::clone(written), options: writer, described }))
}

/// Checks that the Parquet writer supports the types.
fn check(schema: &SchemaRef) -> Result<()> {
    for field in schema.fields() {
        if let Some(lacking) = lacking(field.data_type()) {
            let hint = format!("{}; choose columns with --columns, or another type with --schema", lacking.why);
            return Err(refused(Format::Parquet, field, &hint));
        }
    }
    parquet::arrow::ArrowSchemaConverter::new().convert(schema).map(drop).map_err(|error| {
        let field = schema.fields().iter().find(|field| {
            let alone = arrow::datatypes::Schema::new(vec![Arc::clone(field)]);
            parquet::arrow::ArrowSchemaConverter::new().convert(&alone).is_err()
        });
        match field {
            Some(field) => refused(Format::Parquet, field, &error.to_string()),
            None => Error::unsupported(format!("the schema in parquet ({error})"), ""),
        }
    })
}

impl Sink for ParquetSink {
    fn format(&self) -> Format {
        if self.described.is_some() { Format::Petastorm } else { Format::Parquet }
    }

    fn writer(&self, directory: &Path, _: &str) -> Result<Box<dyn Writer>> {
        let writer = DatasetWriter::create(&directory.join("files"), Arc::clone(&self.schema), self.options.clone())?;
        let cells = self.described.clone();
        Ok(Box::new(ParquetWriter { directory: directory.to_owned(), writer, cells, written: false }))
    }

    fn name(&self, _: &Part, number: usize, _: usize) -> String {
        format!("part-{number:05}.parquet")
    }

    fn finish(&self, directory: &Path, parts: &[Part]) -> Result<()> {
        let Some(described) = &self.described else { return Ok(()) };
        let groups = |part: &Part| part.extra.get("row_groups").and_then(serde_json::Value::as_u64).unwrap_or(0);
        let counts: BTreeMap<String, usize> =
            parts.iter().map(|part| (part.name.clone(), groups(part) as usize)).collect();
        described.write(directory, &counts)
    }
}

/// A [`DatasetWriter`] whose files are moved out of its directory at the end.
struct ParquetWriter {
    directory: PathBuf,
    writer: DatasetWriter,
    cells: Option<Described>,
    written: bool,
}

impl Writer for ParquetWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.written = true;
        match &self.cells {
            Some(described) => self.writer.write(&described.encode(batch)?),
            None => self.writer.write(batch),
        }
    }

    fn finish(self: Box<Self>) -> Result<Vec<Part>> {
        if !self.written {
            // Without even an empty batch there is no file.
            return Ok(Vec::new());
        }
        let files = self.writer.finish_into(&self.directory)?.into_iter();
        let part = |file: Finished| Part {
            name: file.name,
            rows: file.rows,
            bytes: file.bytes,
            extra: json!({ "row_groups": file.row_groups }),
        };
        Ok(files.map(part).collect())
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::IntervalUnit;

    use super::*;

    #[test]
    fn intervals_that_parquet_does_not_have_are_refused_by_column_and_type() {
        let interval = DataType::Interval;
        let list = |inner| DataType::List(Arc::new(Field::new("item", inner, true)));
        let checked = |data_type: DataType| {
            let fields = vec![Field::new("id", DataType::Int64, false), Field::new("lasts", data_type, true)];
            check(&Arc::new(Schema::new(fields)))
        };
        assert!(checked(interval(IntervalUnit::DayTime)).is_ok() && checked(list(DataType::Int8)).is_ok());
        for data_type in [interval(IntervalUnit::MonthDayNano), list(interval(IntervalUnit::MonthDayNano))] {
            let error = checked(data_type).unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, Error::Unsupported { .. }) && said.contains("column \"lasts\" of type"), "{said}");
        }
    }
}
