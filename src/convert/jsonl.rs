//! JSON Lines: an object per line. Types are those given, those a conversion wrote, or what a sample of the lines has in common.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields, Float64Type, Schema, SchemaRef};
use arrow::json::ReaderBuilder;
use arrow::json::reader::Decoder;
use arrow::json::writer::{LineDelimited, WriterBuilder};
use serde_json::Value;

use super::chain::unexpected;
use super::csv::ending;
use super::files::{Found, Limits};
use super::format::Format;
use super::gate::Gate;
use super::input::Input;
use super::options::{ConvertOptions, Packing};
use super::roll::{Output, Rolling, Rows};
use super::sink::{Part, Sink, Writer, is_text, item, refused, refused_value};
use super::source::{BATCH_BYTES, BATCH_ROWS, Batches, Opening, Shard, Source};
use super::tree::Tree;
use super::zone;
use crate::error::{Error, Place, Result};

/// Lines of each file that types are inferred from.
const SAMPLE_LINES: usize = 1000;

/// Files that types are inferred from.
const SAMPLE_FILES: usize = 16;

/// Bytes of a file that is read by one task; larger ones are cut between lines.
const PIECE: u64 = 64 << 20;

#[derive(Debug)]
struct JsonSource {
    files: Vec<Found>,
    /// File and range of each shard.
    pieces: Vec<(usize, u64, u64)>,
    schema: SchemaRef,
    shards: Vec<Shard>,
    limits: Limits,
}

pub(super) fn open(tree: &Tree, opening: &Opening) -> Result<Box<dyn Source>> {
    let files = tree.list(&opening.limits, &|name| Format::of_name(name) == Some(Format::Jsonl))?;
    if files.is_empty() {
        let hint = "names end in .jsonl, .ndjson or .json".to_owned();
        return Err(Error::NotFound { what: "a file of JSON Lines".into(), hint });
    }
    let mut kinds = Members::default();
    for found in files.iter().take(SAMPLE_FILES) {
        let mut input = Input::open(found, false)?;
        let mut line = Vec::new();
        for _ in 0..SAMPLE_LINES {
            line.clear();
            let at = input.offset();
            if !input.line(&opening.limits, &mut line)? {
                break;
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let place = || Place::file(Arc::clone(&found.name));
            let value: Value = serde_json::from_slice(&line)
                .map_err(|error| Error::corrupt_by(place(), format!("byte {at}: the line is no JSON"), error))?;
            let Value::Object(object) = value else {
                let what = format!("byte {at}: the line is no object; JSON Lines has one object per line");
                return Err(Error::corrupt(place(), what));
            };
            for (name, value) in &object {
                kinds.see(name, value);
            }
            opening.limits.columns(|| format!("file {}: its objects", found.name), kinds.0.len())?;
        }
    }
    let mut fields = Vec::new();
    let mut add = |name: &str, inferred: Option<Result<DataType>>| -> Result<()> {
        let data_type = match (opening.wanted(name), inferred) {
            (Some(wanted), _) => wanted.clone(),
            (None, Some(inferred)) => inferred?,
            (None, None) => return Ok(()),
        };
        let field = Field::new(name, data_type, true).with_metadata(opening.metadata(name));
        if !holds(field.data_type()) {
            return Err(refused(Format::Jsonl, &field, "JSON has no such values"));
        }
        fields.push(field);
        Ok(())
    };
    let given = opening.types.0.iter().map(|(name, _)| name.as_str());
    let written = opening.written.iter().flat_map(|schema| schema.fields()).map(|field| field.name().as_str());
    let mut first: Vec<&str> = Vec::new();
    for name in written.chain(given) {
        if !first.contains(&name) {
            first.push(name);
            add(name, kinds.0.get(name).map(|kind| kind.data_type(name)))?;
        }
    }
    // Objects have no order; names do.
    for (name, kind) in kinds.0.iter().filter(|(name, _)| !first.contains(&name.as_str())) {
        add(name, Some(kind.data_type(name)))?;
    }
    let mut pieces = Vec::new();
    let mut shards = Vec::new();
    for (number, found) in files.iter().enumerate() {
        let packed = !matches!(found.name.rsplit('.').next(), Some("jsonl" | "ndjson" | "json"));
        let count = if packed { 1 } else { found.bytes.div_ceil(PIECE).max(1) };
        for piece in 0..count {
            let end = if piece + 1 == count { u64::MAX } else { (piece + 1) * PIECE };
            pieces.push((number, piece * PIECE, end));
            let bytes = found.bytes.min(end) - piece * PIECE;
            shards.push(Shard { id: format!("{}@{piece}", found.name), bytes, rows: None, stamp: found.stamp.clone() });
        }
    }
    let (schema, limits) = (Arc::new(Schema::new(fields)), opening.limits.clone());
    Ok(Box::new(JsonSource { files, pieces, schema, shards, limits }))
}

/// What the values of one name have been.
#[derive(Debug, Default)]
struct Seen {
    boolean: bool,
    integer: bool,
    /// Beyond what int64 holds.
    large: bool,
    negative: bool,
    float: bool,
    text: bool,
    list: Option<Box<Seen>>,
    object: Option<Members>,
}

#[derive(Debug, Default)]
struct Members(BTreeMap<String, Seen>);

impl Members {
    fn see(&mut self, name: &str, value: &Value) {
        if !self.0.contains_key(name) {
            self.0.insert(name.to_owned(), Seen::default());
        }
        if let Some(seen) = self.0.get_mut(name) {
            seen.see(value);
        }
    }
}

impl Seen {
    fn see(&mut self, value: &Value) {
        match value {
            Value::Null => {}
            Value::Bool(_) => self.boolean = true,
            Value::Number(number) => match (number.as_i64(), number.as_u64()) {
                (Some(number), _) => {
                    self.integer = true;
                    self.negative |= number < 0;
                }
                (None, Some(_)) => self.large = true,
                _ => self.float = true,
            },
            Value::String(_) => self.text = true,
            Value::Array(items) => {
                let list = self.list.get_or_insert_default();
                items.iter().for_each(|item| list.see(item));
            }
            Value::Object(object) => {
                let members = self.object.get_or_insert_default();
                object.iter().for_each(|(name, value)| members.see(name, value));
            }
        }
    }

    fn data_type(&self, name: &str) -> Result<DataType> {
        let number = self.integer || self.large || self.float;
        let kinds = [self.boolean, number, self.text, self.list.is_some(), self.object.is_some()];
        if kinds.iter().filter(|kind| **kind).count() > 1 {
            let what = ["booleans", "numbers", "texts", "lists", "objects"];
            let found: Vec<&str> = what.iter().zip(kinds).filter(|(_, kind)| *kind).map(|(what, _)| *what).collect();
            return Err(Error::Unsupported {
                what: format!("column {name:?} of {} in one", found.join(" and ")),
                hint: "give its type with --schema, or leave it out".into(),
            });
        }
        Ok(match self {
            Self { boolean: true, .. } => DataType::Boolean,
            Self { float: true, .. } | Self { large: true, negative: true, .. } => DataType::Float64,
            Self { large: true, .. } => DataType::UInt64,
            Self { integer: true, .. } => DataType::Int64,
            Self { list: Some(items), .. } => DataType::new_list(items.data_type(name)?, true),
            Self { object: Some(members), .. } if !members.0.is_empty() => {
                let member = |(own, seen): (&String, &Self)| {
                    Ok(Field::new(own, seen.data_type(&format!("{name}.{own}"))?, true))
                };
                DataType::Struct(members.0.iter().map(member).collect::<Result<Fields>>()?)
            }
            Self { object: Some(_), .. } => {
                return Err(Error::Unsupported {
                    what: format!("column {name:?} of objects without members"),
                    hint: "give its type with --schema, or leave it out".into(),
                });
            }
            _ => DataType::Utf8,
        })
    }
}

/// Whether JSON has values of this type that are read back the same.
fn holds(data_type: &DataType) -> bool {
    match data_type {
        DataType::Boolean
        | DataType::Float16
        | DataType::Float32
        | DataType::Float64
        | DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Decimal128(..)
        | DataType::Decimal256(..) => true,
        DataType::Timestamp(..) => zone::is_plain(data_type),
        DataType::Struct(members) => !members.is_empty() && members.iter().all(|member| holds(member.data_type())),
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(pair) => {
                pair.first().is_some_and(|key| is_text(key.data_type()))
                    && pair.get(1).is_some_and(|value| holds(value.data_type()))
            }
            _ => false,
        },
        other => other.is_integer() || is_text(other) || item(other).is_some_and(holds),
    }
}

impl Source for JsonSource {
    fn format(&self) -> Format {
        Format::Jsonl
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn shards(&self) -> &[Shard] {
        &self.shards
    }

    fn read<'a>(&'a self, shard: usize, columns: &[usize], _: &'a Gate) -> Result<Box<dyn Batches + 'a>> {
        let piece = self.pieces.get(shard).and_then(|(file, start, end)| Some((self.files.get(*file)?, *start, *end)));
        let Some((found, start, end)) = piece else { return Ok(Box::new(super::source::Nothing)) };
        let mut input = if start == 0 { Input::open(found, false)? } else { Input::range(found, start - 1)? };
        let mut line = Vec::new();
        if start > 0 {
            // The line that the range starts in belongs to the one before.
            input.line(&self.limits, &mut line)?;
        }
        Ok(Box::new(Reader { input, end, source: self, columns: columns.to_vec(), lines: Vec::new() }))
    }
}

struct Reader<'a> {
    input: Input,
    end: u64,
    source: &'a JsonSource,
    columns: Vec<usize>,
    lines: Vec<u8>,
}

/// A decoder of whole objects: a name that the schema lacks is an error, not a loss.
pub(super) fn decoder(schema: &SchemaRef) -> Result<Decoder> {
    let builder = ReaderBuilder::new(Arc::clone(schema)).with_strict_mode(true).with_batch_size(BATCH_ROWS);
    builder.build_decoder().map_err(unexpected)
}

/// Decodes lines, each one object.
pub(super) fn decode(schema: &SchemaRef, lines: &[u8]) -> Result<RecordBatch, arrow::error::ArrowError> {
    let external = |error: Error| arrow::error::ArrowError::ExternalError(Box::new(error));
    let offset = |field: &Arc<Field>| Field::clone(field).with_data_type(zone::offset_type(field.data_type()));
    let shown: SchemaRef = Arc::new(Schema::new(schema.fields().iter().map(offset).collect::<Vec<_>>()));
    let mut decoder = decoder(&shown).map_err(external)?;
    let used = decoder.decode(lines)?;
    if used < lines.len() {
        return Err(arrow::error::ArrowError::JsonError("more than a batch".to_owned()));
    }
    let Some(batch) = decoder.flush()? else { return Ok(RecordBatch::new_empty(Arc::clone(schema))) };
    let columns = batch.columns().iter().zip(schema.fields());
    let columns = columns.map(|(column, field)| zone::relabel(column, field.data_type()).map_err(external));
    RecordBatch::try_new(Arc::clone(schema), columns.collect::<Result<_, _>>()?)
}

impl Batches for Reader<'_> {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        self.lines.clear();
        let first = self.input.offset();
        let mut starts = Vec::new();
        while starts.len() < BATCH_ROWS && self.lines.len() < BATCH_BYTES && self.input.offset() < self.end {
            let start = self.lines.len();
            if !self.input.line(&self.source.limits, &mut self.lines)? {
                break;
            }
            if self.lines.get(start..).unwrap_or_default().trim_ascii().is_empty() {
                self.lines.truncate(start);
                continue;
            }
            starts.push((start, self.input.offset()));
        }
        if starts.is_empty() {
            return Ok(None);
        }
        let schema = &self.source.schema;
        let batch = decode(schema, &self.lines).and_then(|batch| match batch.num_rows() == starts.len() {
            true => Ok(batch),
            false => Err(arrow::error::ArrowError::JsonError("a line is more or less than one object".to_owned())),
        });
        let batch = batch.map_err(|error| {
            // Which line it is.
            let ends = starts.iter().skip(1).map(|(start, _)| *start).chain([self.lines.len()]);
            let mut culprit = (first, error);
            for ((start, after), end) in starts.iter().zip(ends) {
                let line = self.lines.get(*start..end).unwrap_or_default();
                if let Err(error) = decode(schema, line) {
                    culprit = (after - (end - start) as u64, error);
                    break;
                }
            }
            let place = Place::file(Arc::clone(self.input.name()));
            let what = format!("byte {}: the line is not as the columns say; give types with --schema", culprit.0);
            Error::corrupt_by(place, what, culprit.1)
        })?;
        batch.project(&self.columns).map(Some).map_err(unexpected)
    }

    fn consumed(&self) -> u64 {
        self.input.consumed()
    }
}

#[derive(Debug)]
struct JsonSink {
    packing: Packing,
    target: u64,
}

pub(super) fn sink(schema: &SchemaRef, options: &ConvertOptions) -> Result<Box<dyn Sink>> {
    for field in schema.fields() {
        let data_type = match field.data_type() {
            DataType::Dictionary(_, values) => values,
            other => other,
        };
        if !holds(data_type) {
            let hint = "choose columns with --columns, or another type with --schema";
            return Err(refused(Format::Jsonl, field, hint));
        }
    }
    let allowed = ["none", "gzip", "zstd"];
    let packing = Packing::parse(options.compression.as_deref(), Format::Jsonl, &allowed, Packing::None)?;
    let target = if options.shards.is_some() { u64::MAX } else { options.target_file_size };
    Ok(Box::new(JsonSink { packing, target }))
}

impl Sink for JsonSink {
    fn format(&self) -> Format {
        Format::Jsonl
    }

    fn writer(&self, directory: &Path) -> Result<Box<dyn Writer>> {
        let packing = self.packing;
        let make = move |path: &Path| -> Result<Box<dyn Rows>> {
            Ok(Box::new(JsonRows { output: Output::create(path, packing)?, rows: 0 }))
        };
        Ok(Rolling::writer(directory, &ending("jsonl", self.packing), self.target, Arc::new(make)))
    }

    fn name(&self, _: &Part, number: usize, _: usize) -> String {
        format!("part-{number:05}.{}", ending("jsonl", self.packing))
    }
}

struct JsonRows {
    output: Output,
    rows: u64,
}

impl Rows for JsonRows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            if let Some(row) = not_finite(column)? {
                let hint = "JSON has no NaN and no infinity";
                return Err(refused_value(
                    Format::Jsonl,
                    field.name(),
                    self.rows + row as u64,
                    "a NaN or infinity",
                    hint,
                ));
            }
        }
        let names = batch.schema_ref().fields().iter().map(|field| field.name().clone());
        let shown = batch.columns().iter().map(zone::offset).collect::<Result<Vec<_>>>()?;
        let shown =
            RecordBatch::try_from_iter_with_nullable(names.zip(shown).map(|(name, column)| (name, column, true)));
        let shown = shown.map_err(unexpected)?;
        let mut text = Vec::new();
        let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut text);
        writer.write(&shown).and_then(|()| writer.finish()).map_err(unexpected)?;
        drop(writer);
        self.rows += batch.num_rows() as u64;
        self.output.put(&text)
    }

    fn bytes(&self) -> u64 {
        self.output.bytes()
    }

    fn finish(self: Box<Self>) -> Result<(u64, Value)> {
        Ok((self.output.close()?, Value::Null))
    }
}

/// A row with a float in it, at any depth, that is not finite.
pub(super) fn not_finite(column: &ArrayRef) -> Result<Option<usize>> {
    let deep = |data_type: &DataType| data_type.is_floating() || data_type.is_nested();
    match column.data_type() {
        kind if kind.is_floating() => {
            let wide = cast(column, &DataType::Float64).map_err(unexpected)?;
            let wide = wide.as_primitive::<Float64Type>();
            Ok(wide.iter().position(|value| value.is_some_and(|value| !value.is_finite())))
        }
        DataType::Struct(_) => {
            for inner in column.as_struct().columns().iter().filter(|inner| deep(inner.data_type())) {
                if let Some(row) = not_finite(inner)? {
                    return Ok(Some(row));
                }
            }
            Ok(None)
        }
        kind => {
            let Some(item) = item(kind).filter(|item| deep(item)) else { return Ok(None) };
            let large = DataType::LargeList(Arc::new(Field::new("item", item.clone(), true)));
            let lists = cast(column, &large).map_err(unexpected)?;
            let lists = lists.as_list::<i64>();
            for row in (0..lists.len()).filter(|row| lists.is_valid(*row)) {
                if not_finite(&lists.value(row))?.is_some() {
                    return Ok(Some(row));
                }
            }
            Ok(None)
        }
    }
}

/// Each value of a column as JSON; null for null.
pub(super) fn texts(column: &ArrayRef) -> Result<arrow::array::StringArray> {
    let field = Field::new("c", column.data_type().clone(), true);
    let batch =
        RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![Arc::clone(column)]).map_err(unexpected)?;
    let mut text = Vec::new();
    let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut text);
    writer.write(&batch).and_then(|()| writer.finish()).map_err(unexpected)?;
    drop(writer);
    let lines = text.split(|byte| *byte == b'\n').take(column.len());
    let value = |(row, line): (usize, &[u8])| {
        let value = line.strip_prefix(b"{\"c\":").and_then(|line| line.strip_suffix(b"}"));
        let value = value.and_then(|value| std::str::from_utf8(value).ok())?;
        column.is_valid(row).then(|| value.to_owned())
    };
    Ok(lines.enumerate().map(value).collect())
}
