//! JSON Lines: an object per line. Types are those given, those a conversion wrote, or the common types of a sample of lines.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Fields, Schema, SchemaRef};
use arrow::json::writer::{LineDelimited, WriterBuilder};
use serde_json::Value;

use crate::convert::budget::Budget;
use crate::convert::errors::{refused, refused_value, unexpected};
use crate::convert::format::Format;
use crate::convert::limits::{BATCH_BYTES, BATCH_ROWS, Limits};
use crate::convert::options::{ConvertOptions, Packing};
use crate::convert::read::files::{self, Found};
use crate::convert::read::input::Input;
use crate::convert::read::listing::Listing;
use crate::convert::rolling::{Output, RollingWriter, Rows, ending};
use crate::convert::sink::{Part, Sink, Writer};
use crate::convert::source::{Batches, Nothing, Opening, Shard, Source, Text};
use crate::convert::types::{is_text, item};
use crate::convert::values::json::{Broken, Lexer, Token};
use crate::convert::values::objects::{Objects, Wrong};
use crate::convert::values::unheld::{Unheld, unheld};
use crate::convert::values::{scalar, timezone};
use crate::error::{Error, Place, Result};

/// Lines of each file that types are inferred from.
const SAMPLE_LINES: usize = 1000;

/// Files that types are inferred from.
const SAMPLE_FILES: usize = 16;

/// Bytes of a file that one task reads; larger ones are split between lines.
const PIECE: u64 = 64 << 20;

#[derive(Debug)]
struct JsonSource {
    files: Vec<Found>,
    /// File and range of each shard.
    pieces: Vec<(usize, u64, u64)>,
    schema: SchemaRef,
    /// For each column, whether its type was given.
    given: Vec<bool>,
    shards: Vec<Shard>,
    limits: Limits,
}

pub(crate) fn open(tree: &Listing, opening: &Opening) -> Result<Box<dyn Source>> {
    let files = tree.list(&opening.limits, &|name| Format::of_name(name) == Some(Format::Jsonl))?;
    if files.is_empty() {
        let hint = "names end in .jsonl, .ndjson, .jsonlines, .ldjson or .json".to_owned();
        return Err(Error::NotFound { what: "a file of JSON Lines".into(), hint });
    }
    let mut kinds = Members::default();
    for found in files.iter().take(SAMPLE_FILES) {
        let mut input = Input::open(found, false)?;
        input.skip_mark()?;
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
            kinds.object(&line).map_err(|why| {
                let line = number_of(found, at).map_or_else(String::new, |(line, _)| format!("line {line}, "));
                Error::corrupt(Place::file(Arc::clone(&found.name)), format!("{line}byte {at}: {why}"))
            })?;
            opening.limits.columns(&found.name, || "its objects".to_owned(), kinds.0.len())?;
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
    // Objects are unordered; sorting by name makes the order stable.
    for (name, kind) in kinds.0.iter().filter(|(name, _)| !first.contains(&name.as_str())) {
        add(name, Some(kind.data_type(name)))?;
    }
    let mut pieces = Vec::new();
    let mut shards = Vec::new();
    for (number, found) in files.iter().enumerate() {
        // A compressed file is never split, whatever its name.
        let plain = ["jsonl", "ndjson", "json", "jsonlines", "ldjson"];
        let named = found.name.rsplit('.').next().is_some_and(|ending| plain.contains(&ending));
        let whole = !named || found.bytes <= PIECE || Input::is_packed(found)?;
        let count = if whole { 1 } else { found.bytes.div_ceil(PIECE) };
        for piece in 0..count {
            let end = if piece + 1 == count { u64::MAX } else { (piece + 1) * PIECE };
            pieces.push((number, piece * PIECE, end));
            let bytes = found.bytes.min(end) - piece * PIECE;
            shards.push(Shard { id: format!("{}@{piece}", found.name), bytes, rows: None, stamp: found.stamp.clone() });
        }
    }
    let given = fields.iter().map(|field| opening.wanted(field.name()).is_some()).collect();
    let (schema, limits) = (Arc::new(Schema::new(fields)), opening.limits.clone());
    Ok(Box::new(JsonSource { files, pieces, schema, given, shards, limits }))
}

/// Returns the number of the line that begins at byte `at`, from one, and the number of rows before it.
fn number_of(found: &Found, at: u64) -> Option<(u64, u64)> {
    let mut input = Input::open(found, false).ok()?;
    input.skip_mark().ok()?;
    let (mut lines, mut rows, mut blank) = (1, 0, true);
    while input.offset() < at {
        let left = usize::try_from(at - input.offset()).unwrap_or(usize::MAX);
        let buffer = input.peek().ok()?;
        let take = left.min(buffer.len());
        if take == 0 {
            return None;
        }
        for byte in buffer.get(..take).unwrap_or_default() {
            if *byte == b'\n' {
                (lines, rows) = (lines + 1, rows + u64::from(!blank));
                blank = true;
            } else {
                blank &= byte.is_ascii_whitespace();
            }
        }
        input.consume(take);
    }
    Some((lines, rows))
}

/// Kinds of values seen under one name.
#[derive(Debug, Default)]
struct Seen {
    boolean: bool,
    integer: bool,
    /// An integer beyond int64.
    large: bool,
    /// An integer beyond any type.
    huge: bool,
    negative: bool,
    float: bool,
    text: bool,
    list: Option<Box<Seen>>,
    object: Option<Members>,
}

#[derive(Debug, Default)]
struct Members(BTreeMap<String, Seen>);

impl Members {
    /// Adds a line, which must be one object.
    fn object(&mut self, line: &[u8]) -> Result<(), String> {
        let broken = |why: &str| format!("the line is not JSON: {why}");
        let mut lexer = Lexer::new(line);
        if lexer.value().map_err(broken)? != Token::Object {
            return Err("the line is not an object; JSON Lines has one object per line".to_owned());
        }
        self.see(&mut lexer).and_then(|()| lexer.end()).map_err(broken)
    }

    fn see(&mut self, lexer: &mut Lexer<'_>) -> Result<(), Broken> {
        let mut first = true;
        while let Some(name) = lexer.member(first)? {
            first = false;
            match self.0.get_mut(&*name) {
                Some(seen) => seen.see(lexer)?,
                None => self.0.entry(name.into_owned()).or_default().see(lexer)?,
            }
        }
        Ok(())
    }
}

impl Seen {
    fn see(&mut self, lexer: &mut Lexer<'_>) -> Result<(), Broken> {
        match lexer.value()? {
            Token::Null => {}
            Token::Boolean(_) => self.boolean = true,
            Token::Number(text) => match scalar::integer(text, false) {
                Ok(number) => {
                    self.integer |= i64::try_from(number).is_ok();
                    self.large |= i64::try_from(number).is_err() && u64::try_from(number).is_ok();
                    self.huge |= i64::try_from(number).is_err() && u64::try_from(number).is_err();
                    self.negative |= number < 0;
                }
                Err(_) => self.float = true,
            },
            Token::Text(_) => self.text = true,
            Token::List => {
                let list = self.list.get_or_insert_default();
                let mut first = true;
                while lexer.item(first)? {
                    first = false;
                    list.see(lexer)?;
                }
            }
            Token::Object => self.object.get_or_insert_default().see(lexer)?,
        }
        Ok(())
    }

    fn data_type(&self, name: &str) -> Result<DataType> {
        let number = self.integer || self.large || self.huge || self.float;
        let kinds = [self.boolean, number, self.text, self.list.is_some(), self.object.is_some()];
        if kinds.iter().filter(|kind| **kind).count() > 1 {
            let what = ["booleans", "numbers", "texts", "lists", "objects"];
            let found: Vec<&str> = what.iter().zip(kinds).filter(|(_, kind)| *kind).map(|(what, _)| *what).collect();
            return Err(Error::unsupported(
                format!("column {name:?} of {} in one", found.join(" and ")),
                "give its type with --schema, or leave it out",
            ));
        }
        Ok(match self {
            Self { boolean: true, .. } => DataType::Boolean,
            // Integers that it cannot represent exactly are refused at their line.
            Self { float: true, .. } | Self { huge: true, .. } | Self { large: true, negative: true, .. } => {
                DataType::Float64
            }
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
                return Err(Error::unsupported(
                    format!("column {name:?} of objects without members"),
                    "give its type with --schema, or leave it out",
                ));
            }
            _ => DataType::Utf8,
        })
    }
}

/// Returns true if JSON has values of this type that are read back the same.
fn holds(data_type: &DataType) -> bool {
    match data_type {
        DataType::Boolean
        | DataType::Float16
        | DataType::Float32
        | DataType::Float64
        | DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_) => true,
        DataType::Timestamp(..) => timezone::is_plain(data_type),
        DataType::Struct(members) => !members.is_empty() && members.iter().all(|member| holds(member.data_type())),
        DataType::Map(entries, _) => match entries.data_type() {
            DataType::Struct(pair) => {
                pair.first().is_some_and(|key| is_text(key.data_type()))
                    && pair.get(1).is_some_and(|value| holds(value.data_type()))
            }
            _ => false,
        },
        other => other.is_integer() || other.is_decimal() || is_text(other) || item(other).is_some_and(holds),
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

    fn paths(&self) -> Vec<PathBuf> {
        files::paths(&self.files)
    }

    fn read<'a>(&'a self, shard: usize, columns: &[usize], _: &'a Budget) -> Result<Box<dyn Batches + 'a>> {
        let piece = self.pieces.get(shard).and_then(|(file, start, end)| Some((self.files.get(*file)?, *start, *end)));
        let Some((found, start, end)) = piece else { return Ok(Box::new(Nothing)) };
        let mut input = if start == 0 { Input::open(found, false)? } else { Input::range(found, start - 1)? };
        let mut line = Vec::new();
        if start == 0 {
            input.skip_mark()?;
        } else {
            // The line that the range begins in belongs to the range before.
            input.line(&self.limits, &mut line)?;
        }
        let schema = Arc::new(self.schema.project(columns).map_err(unexpected)?);
        let objects = Objects::new(self.schema.fields(), &self.given, |number| columns.contains(&number))?;
        Ok(Box::new(Reader { input, found, end, source: self, schema, objects, line }))
    }

    fn texts(&self) -> Vec<Text> {
        let text = |(number, found): (usize, &Found)| {
            let start = self.pieces.partition_point(|(file, ..)| *file < number);
            let end = self.pieces.partition_point(|(file, ..)| *file <= number);
            Text::new(found, &self.limits, Format::Jsonl, &self.given, start..end)
        };
        self.files.iter().enumerate().map(text).collect()
    }
}

struct Reader<'a> {
    input: Input,
    found: &'a Found,
    end: u64,
    source: &'a JsonSource,
    schema: SchemaRef,
    objects: Objects,
    line: Vec<u8>,
}

impl Reader<'_> {
    /// Returns the error for the line that begins at byte `at`.
    fn wrong(&self, at: u64, wrong: Wrong) -> Error {
        let mut place = Place::file(Arc::clone(&self.found.name));
        if !wrong.path.is_empty() {
            place = place.column(wrong.path.join("."));
        }
        let mut line = String::new();
        if let Some((number, rows)) = number_of(self.found, at) {
            place = place.row(rows);
            line = format!("line {number}, ");
        }
        let what = format!("{line}byte {at}: {}; give types with --schema", wrong.what);
        Error::corrupt(place, what)
    }
}

impl Batches for Reader<'_> {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let mut bytes = 0;
        while self.objects.rows() < BATCH_ROWS && bytes < BATCH_BYTES && self.input.offset() < self.end {
            self.line.clear();
            let at = self.input.offset();
            if !self.input.line(&self.source.limits, &mut self.line)? {
                break;
            }
            if !self.line.trim_ascii().is_empty() {
                bytes += self.line.len();
                self.objects.push(&self.line).map_err(|wrong| self.wrong(at, wrong))?;
            }
        }
        let rows = self.objects.rows();
        if rows == 0 {
            return Ok(None);
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
        let columns = self.objects.finish()?;
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map(Some).map_err(unexpected)
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

pub(crate) fn sink(schema: &SchemaRef, options: &ConvertOptions) -> Result<Box<dyn Sink>> {
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

    fn writer(&self, directory: &Path, _: &str) -> Result<Box<dyn Writer>> {
        let packing = self.packing;
        let make =
            move |path: &Path| -> Result<Box<dyn Rows>> { Ok(Box::new(JsonRows(Output::create(path, packing)?))) };
        Ok(RollingWriter::writer(directory, &ending("jsonl", self.packing), self.target, Arc::new(make)))
    }

    fn name(&self, _: &Part, number: usize, _: usize) -> String {
        format!("part-{number:05}.{}", ending("jsonl", self.packing))
    }
}

struct JsonRows(Output);

impl Rows for JsonRows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        for (field, column) in batch.schema_ref().fields().iter().zip(batch.columns()) {
            if let Some(Unheld { row, what, hint }) = unheld(column)? {
                return Err(refused_value(Format::Jsonl, field.name(), row, what, hint));
            }
        }
        let names = batch.schema_ref().fields().iter().map(|field| field.name().clone());
        let shown = batch.columns().iter().map(timezone::offset).collect::<Result<Vec<_>>>()?;
        let shown =
            RecordBatch::try_from_iter_with_nullable(names.zip(shown).map(|(name, column)| (name, column, true)));
        let shown = shown.map_err(unexpected)?;
        let mut text = Vec::new();
        let mut writer = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut text);
        writer.write(&shown).and_then(|()| writer.finish()).map_err(unexpected)?;
        drop(writer);
        self.0.put(&text)
    }

    fn bytes(&self) -> u64 {
        self.0.bytes()
    }

    fn finish(self: Box<Self>) -> Result<(u64, Value)> {
        Ok((self.0.close()?, Value::Null))
    }
}

/// Formats each value of a column as JSON; null for null.
pub(crate) fn texts(column: &ArrayRef) -> Result<arrow::array::StringArray> {
    let column = &timezone::offset(column)?;
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use std::sync::Arc;

    use arrow::array::{ArrayRef, Date32Array, RecordBatch};

    use super::{Format, PIECE};
    use crate::convert::budget::Progress;
    use crate::convert::{ConvertOptions, convert, open};

    #[test]
    fn the_mark_of_utf8_is_no_part_of_the_first_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.jsonl");
        let options = ConvertOptions { verify: true, ..ConvertOptions::default() };
        let rows = |text: &str, out: &str| {
            std::fs::write(&path, text).unwrap();
            let out = directory.path().join(out);
            convert(path.to_str().unwrap(), &out, &options, &Progress::default()).map(|done| done.rows)
        };
        assert_eq!(rows("\u{feff}{\"x\": 1}\n{\"x\": 2}\n", "a.parquet").unwrap(), 2);
        let said = rows("\u{feff}{\"x\": 1}\n{\"x\" 2}\n", "b.parquet").unwrap_err().chain();
        assert!(said.contains("line 2"), "{said}");
    }

    #[test]
    fn a_date_that_cannot_be_written_is_an_error_with_its_row() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.parquet");
        let days: ArrayRef = Arc::new(Date32Array::from(vec![0, i32::MAX]));
        let batch = RecordBatch::try_from_iter([("day", days)]).unwrap();
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = parquet::arrow::ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        for to in [Format::Jsonl, Format::Csv, Format::Tsv] {
            let options = ConvertOptions { to: Some(to), ..ConvertOptions::default() };
            let out = directory.path().join(to.name());
            let error = convert(path.to_str().unwrap(), &out, &options, &Progress::default()).unwrap_err();
            let said = error.chain();
            for part in ["x.parquet", "column day", "row 1", "beyond the calendar", to.name()] {
                assert!(said.contains(part), "{part}: {said}");
            }
            assert!(!out.exists());
        }
    }

    #[test]
    fn what_is_packed_has_no_pieces_whatever_it_is_called() {
        let directory = tempfile::tempdir().unwrap();
        let line = format!("{{\"x\": \"{}\"}}\n", "a".repeat(1 << 20));
        let shards =
            |path: &std::path::Path| open(path.to_str().unwrap(), &ConvertOptions::default()).unwrap().shards().len();
        let path = directory.path().join("packed.jsonl");
        let mut packed =
            flate2::write::GzEncoder::new(std::fs::File::create(&path).unwrap(), flate2::Compression::none());
        (0..=PIECE >> 20).for_each(|_| packed.write_all(line.as_bytes()).unwrap());
        packed.finish().unwrap();
        assert_eq!(shards(&path), 1);
        let path = directory.path().join("plain.jsonl");
        std::fs::write(&path, line.repeat(1 + (PIECE >> 20) as usize)).unwrap();
        assert_eq!(shards(&path), 2);
    }
}
