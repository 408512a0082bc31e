//! Comma-separated values with a header line.
//!
//! A cell that is empty is null; an empty text stands in quotes. Types are those given, those a conversion wrote, or the narrowest
//! that all cells of a sample have: integers, floats, booleans, dates, timestamps, text.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringBuilder};
use arrow::compute::{CastOptions, cast, cast_with_options};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde_json::Value;

use super::chain::unexpected;
use super::files::{Found, Limits};
use super::format::Format;
use super::gate::Gate;
use super::input::Input;
use super::options::{ConvertOptions, Packing};
use super::roll::{Output, Rolling, Rows};
use super::sink::{Part, Sink, Writer, is_text, refused};
use super::source::{BATCH_BYTES, BATCH_ROWS, Batches, Opening, Shard, Source, shards_of};
use super::tree::Tree;
use super::zone;
use crate::error::{Error, Place, Result};

/// Rows of each file that types are inferred from.
const SAMPLE_ROWS: usize = 1000;

/// Files that types are inferred from.
const SAMPLE_FILES: usize = 16;

#[derive(Debug)]
struct CsvSource {
    files: Vec<Found>,
    schema: SchemaRef,
    shards: Vec<Shard>,
    limits: Limits,
}

pub(super) fn open(tree: &Tree, opening: &Opening) -> Result<Box<dyn Source>> {
    let files = tree.list(&opening.limits, &|name| Format::of_name(name) == Some(Format::Csv))?;
    let mut names: Option<Vec<String>> = None;
    let mut guesses: Vec<Guess> = Vec::new();
    for (number, found) in files.iter().enumerate() {
        let mut records = Records::open(found, &opening.limits)?;
        let header = records.header()?;
        match &names {
            Some(first) if *first == header => {}
            Some(first) => {
                return Err(Error::Mismatch {
                    what: format!("the header of file {} and of the first one", found.name),
                    expected: first.join(", "),
                    found: header.join(", "),
                    hint: "convert them one by one".into(),
                });
            }
            None => {
                guesses = vec![Guess::default(); header.len()];
                names = Some(header);
            }
        }
        let mut rows = 0;
        while number < SAMPLE_FILES && rows < SAMPLE_ROWS && records.next(guesses.len())? {
            for (guess, (cell, quoted)) in guesses.iter_mut().zip(records.cells()) {
                guess.see(cell, quoted);
            }
            rows += 1;
        }
    }
    let Some(names) = names else {
        return Err(Error::NotFound { what: "a CSV file".into(), hint: "names end in .csv or .tsv".into() });
    };
    let field = |(name, guess): (&String, &Guess)| {
        let data_type = opening.wanted(name).cloned().unwrap_or_else(|| guess.data_type());
        let field = Field::new(name, data_type, true).with_metadata(opening.metadata(name));
        match holds(field.data_type()) {
            true => Ok(field),
            false => Err(refused(Format::Csv, &field, "give a type that a text can be read as")),
        }
    };
    let fields: Vec<Field> = names.iter().zip(&guesses).map(field).collect::<Result<_>>()?;
    let shards = shards_of(&files);
    let (schema, limits) = (Arc::new(Schema::new(fields)), opening.limits.clone());
    Ok(Box::new(CsvSource { files, schema, shards, limits }))
}

/// What the cells of a sample can all be read as.
#[derive(Debug, Clone)]
struct Guess {
    seen: bool,
    integer: bool,
    float: bool,
    boolean: bool,
    date: bool,
    timestamp: bool,
}

impl Default for Guess {
    fn default() -> Self {
        Self { seen: false, integer: true, float: true, boolean: true, date: true, timestamp: true }
    }
}

impl Guess {
    fn see(&mut self, cell: &[u8], quoted: bool) {
        if cell.is_empty() && !quoted {
            return;
        }
        self.seen = true;
        let text = std::str::from_utf8(cell).unwrap_or("");
        // 007 is a name, not a number.
        let digits = text.trim_start_matches(['-', '+']);
        let name = quoted || (digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0."));
        self.integer &= !name && text.parse::<i64>().is_ok();
        self.float &= !name && text.bytes().any(|byte| byte.is_ascii_digit()) && text.parse::<f64>().is_ok()
            || matches!(text, "NaN" | "nan" | "inf" | "-inf") && !quoted && self.float;
        self.boolean &= matches!(text, "true" | "false" | "True" | "False" | "TRUE" | "FALSE");
        let bytes = text.as_bytes();
        let dashes = bytes.get(4) == Some(&b'-') && bytes.get(7) == Some(&b'-');
        self.date &= dashes && bytes.len() == 10;
        self.timestamp &= dashes && bytes.len() > 10 && matches!(bytes.get(10), Some(b'T' | b' '));
    }

    fn data_type(&self) -> DataType {
        match self {
            Self { seen: false, .. } => DataType::Utf8,
            Self { integer: true, .. } => DataType::Int64,
            Self { float: true, .. } => DataType::Float64,
            Self { boolean: true, .. } => DataType::Boolean,
            Self { date: true, .. } => DataType::Date32,
            Self { timestamp: true, .. } => DataType::Timestamp(TimeUnit::Microsecond, None),
            _ => DataType::Utf8,
        }
    }
}

/// Whether a cell of text can be of this type.
fn holds(data_type: &DataType) -> bool {
    is_text(data_type)
        || data_type.is_integer()
        || matches!(
            data_type,
            DataType::Boolean
                | DataType::Float16
                | DataType::Float32
                | DataType::Float64
                | DataType::Date32
                | DataType::Timestamp(..)
                | DataType::Time32(_)
                | DataType::Time64(_)
                | DataType::Decimal128(..)
                | DataType::Decimal256(..)
        ) && zone::is_plain(data_type)
}

impl Source for CsvSource {
    fn format(&self) -> Format {
        Format::Csv
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn shards(&self) -> &[Shard] {
        &self.shards
    }

    fn read<'a>(&'a self, shard: usize, columns: &[usize], gate: &'a Gate) -> Result<Box<dyn Batches + 'a>> {
        let Some(found) = self.files.get(shard) else { return Ok(Box::new(super::source::Nothing)) };
        let mut records = Records::open(found, &self.limits)?;
        records.header()?;
        let schema = Arc::new(self.schema.project(columns).map_err(unexpected)?);
        // Text, and what it is cast to.
        let permit = gate.reserve(2 * BATCH_BYTES as u64, || format!("file {}: a batch", found.name))?;
        drop(permit);
        Ok(Box::new(Reader { records, schema, columns: columns.to_vec(), width: self.schema.fields().len() }))
    }
}

struct Reader {
    records: Records,
    schema: SchemaRef,
    columns: Vec<usize>,
    width: usize,
}

impl Batches for Reader {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let mut texts: Vec<StringBuilder> = self.columns.iter().map(|_| StringBuilder::new()).collect();
        let (mut rows, mut bytes) = (0, 0);
        let first = self.records.line;
        while rows < BATCH_ROWS && bytes < BATCH_BYTES && self.records.next(self.width)? {
            let mut cells = self.records.cells();
            let mut at = 0;
            for (text, number) in texts.iter_mut().zip(&self.columns) {
                let (cell, quoted) = cells.nth(number - at).unwrap_or((b"", false));
                at = number + 1;
                if cell.is_empty() && !quoted {
                    text.append_null();
                    continue;
                }
                let cell = std::str::from_utf8(cell).map_err(|_| self.records.corrupt("a cell is not UTF-8"))?;
                text.append_value(cell);
                bytes += cell.len();
            }
            rows += 1;
        }
        if rows == 0 {
            return Ok(None);
        }
        let mut arrays = Vec::with_capacity(texts.len());
        for (text, field) in texts.iter_mut().zip(self.schema.fields()) {
            let text: ArrayRef = Arc::new(text.finish());
            let options = CastOptions { safe: false, ..CastOptions::default() };
            let kind = zone::offset_type(field.data_type());
            let array = cast_with_options(&text, &kind, &options).map_err(|error| {
                let place = Place::file(Arc::clone(self.records.input.name())).column(field.name().as_str());
                let what = format!(
                    "a cell in the records after line {first} is no {}; give another type with --schema",
                    super::types::type_text(field.data_type())
                );
                Error::corrupt_by(place, what, error)
            })?;
            arrays.push(zone::relabel(&array, field.data_type())?);
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options).map(Some).map_err(unexpected)
    }

    fn consumed(&self) -> u64 {
        self.records.input.consumed()
    }
}

/// Records, one at a time: cells may be in quotes, and hold line ends there.
struct Records {
    input: Input,
    limits: Limits,
    separator: u8,
    /// The cells' text, without quotes, one after another.
    text: Vec<u8>,
    /// Where each ends in `text`, and whether it was in quotes.
    ends: Vec<(usize, bool)>,
    /// Number of the line where the last record ended.
    line: u64,
}

impl Records {
    fn open(found: &Found, limits: &Limits) -> Result<Self> {
        let separator = if found.name.to_ascii_lowercase().contains(".tsv") { b'\t' } else { b',' };
        let mut input = Input::open(found, false)?;
        if input.peek()?.starts_with(&[0xef, 0xbb, 0xbf]) {
            input.skip(3)?;
        }
        let limits = limits.clone();
        Ok(Self { input, limits, separator, text: Vec::new(), ends: Vec::new(), line: 1 })
    }

    fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        let place = Place::file(Arc::clone(self.input.name()));
        Error::corrupt(place, format!("line {} (byte {}): {what}", self.line, self.input.offset()))
    }

    /// The names in the first record.
    fn header(&mut self) -> Result<Vec<String>> {
        if !self.read(0)? {
            return Err(self.corrupt("it is empty; the first line names the columns"));
        }
        let mut names = Vec::with_capacity(self.ends.len());
        for (number, (cell, _)) in self.cells().enumerate() {
            let name = std::str::from_utf8(cell).map_err(|_| self.corrupt("the header is not UTF-8"))?;
            names.push(if name.is_empty() { format!("column_{number}") } else { name.to_owned() });
        }
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(self.corrupt(format!("the header names {:?} twice", twice[0])));
        }
        Ok(names)
    }

    /// Reads the next record of `width` cells; false at the end.
    fn next(&mut self, width: usize) -> Result<bool> {
        if !self.read(width)? {
            return Ok(false);
        }
        if self.ends.len() != width {
            return Err(self.corrupt(format!("a record has {} cells, the header has {width}", self.ends.len())));
        }
        Ok(true)
    }

    fn cells(&self) -> impl Iterator<Item = (&[u8], bool)> {
        let mut start = 0;
        self.ends.iter().map(move |(end, quoted)| {
            let cell = self.text.get(start..*end).unwrap_or_default();
            start = *end;
            (cell, *quoted)
        })
    }

    /// Reads a record of any width.
    fn read(&mut self, width: usize) -> Result<bool> {
        self.text.clear();
        self.ends.clear();
        let started = self.input.offset();
        // Outside of quotes, in them, or after the quote that may end them.
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            Start,
            Plain,
            Quoted,
            Closed,
        }
        let mut state = State::Start;
        let mut quoted = false;
        loop {
            let (separator, most) = (self.separator, self.limits.max_record_bytes);
            let buffer = self.input.peek()?;
            if buffer.is_empty() {
                if state == State::Quoted {
                    return Err(self.corrupt("it ends within quotes"));
                }
                if state == State::Start && self.ends.is_empty() {
                    return Ok(false);
                }
                self.ends.push((self.text.len(), quoted));
                return Ok(true);
            }
            let (mut used, mut ended) = (0, false);
            let mut wrong = false;
            while let Some(byte) = buffer.get(used) {
                used += 1;
                match (state, *byte) {
                    (State::Quoted, b'"') => state = State::Closed,
                    (State::Quoted, byte) => {
                        self.line += u64::from(byte == b'\n');
                        // To the next quote at once.
                        self.text.push(byte);
                        let rest = buffer.get(used..).unwrap_or_default();
                        let run = rest.iter().position(|byte| matches!(byte, b'"' | b'\n')).unwrap_or(rest.len());
                        self.text.extend_from_slice(rest.get(..run).unwrap_or_default());
                        used += run;
                    }
                    (State::Closed, b'"') => {
                        self.text.push(b'"');
                        state = State::Quoted;
                    }
                    (State::Start, b'"') => {
                        quoted = true;
                        state = State::Quoted;
                    }
                    (_, b'\n') => {
                        self.line += 1;
                        let end = self.text.len();
                        let start = self.ends.last().map_or(0, |(end, _)| *end);
                        if !quoted && end > start && self.text.last() == Some(&b'\r') {
                            self.text.pop();
                        }
                        // A blank line is nothing, unless there is one column, of which it is a null.
                        if self.ends.is_empty() && self.text.is_empty() && !quoted && width != 1 {
                            state = State::Start;
                            continue;
                        }
                        self.ends.push((self.text.len(), quoted));
                        ended = true;
                        break;
                    }
                    (_, byte) if byte == separator => {
                        self.ends.push((self.text.len(), quoted));
                        quoted = false;
                        state = State::Start;
                        if self.ends.len() > self.limits.max_columns {
                            break;
                        }
                    }
                    (State::Closed, b'\r') => {}
                    (State::Closed, _) => {
                        wrong = true;
                        break;
                    }
                    (_, byte) => {
                        state = State::Plain;
                        self.text.push(byte);
                        let rest = buffer.get(used..).unwrap_or_default();
                        let run =
                            rest.iter().position(|byte| *byte == separator || *byte == b'\n').unwrap_or(rest.len());
                        self.text.extend_from_slice(rest.get(..run).unwrap_or_default());
                        used += run;
                    }
                }
                if self.text.len() as u64 > most {
                    break;
                }
            }
            self.input.consume(used);
            if wrong {
                return Err(self.corrupt("text follows the end of quotes"));
            }
            let name = Arc::clone(self.input.name());
            self.limits.columns(|| format!("file {name}, line {}: a record", self.line), self.ends.len())?;
            let bytes = self.text.len() as u64;
            self.limits.record(|| format!("file {name}, byte {started}: a record"), bytes)?;
            if ended {
                return Ok(true);
            }
        }
    }
}

#[derive(Debug)]
struct CsvSink {
    schema: SchemaRef,
    packing: Packing,
    target: u64,
}

pub(super) fn sink(schema: &SchemaRef, options: &ConvertOptions) -> Result<Box<dyn Sink>> {
    for field in schema.fields() {
        if !holds(&plain(field.data_type())) {
            let hint = "choose columns with --columns, or another type with --schema";
            return Err(refused(Format::Csv, field, hint));
        }
    }
    let allowed = ["none", "gzip", "zstd"];
    let packing = Packing::parse(options.compression.as_deref(), Format::Csv, &allowed, Packing::None)?;
    let target = if options.shards.is_some() { u64::MAX } else { options.target_file_size };
    Ok(Box::new(CsvSink { schema: Arc::clone(schema), packing, target }))
}

fn plain(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => values.as_ref().clone(),
        DataType::Decimal32(precision, scale) | DataType::Decimal64(precision, scale) => {
            DataType::Decimal128(*precision, *scale)
        }
        other => other.clone(),
    }
}

/// The ending of a packed text file.
pub(super) fn ending(extension: &str, packing: Packing) -> String {
    match packing {
        Packing::Gzip => format!("{extension}.gz"),
        Packing::Zstd(_) => format!("{extension}.zst"),
        _ => extension.to_owned(),
    }
}

impl Sink for CsvSink {
    fn format(&self) -> Format {
        Format::Csv
    }

    fn writer(&self, directory: &Path) -> Result<Box<dyn Writer>> {
        let (schema, packing) = (Arc::clone(&self.schema), self.packing);
        let make = move |path: &Path| -> Result<Box<dyn Rows>> {
            let mut output = Output::create(path, packing)?;
            let mut header = Vec::new();
            for (number, field) in schema.fields().iter().enumerate() {
                if number > 0 {
                    header.push(b',');
                }
                quote(field.name(), &mut header);
            }
            header.push(b'\n');
            output.put(&header)?;
            Ok(Box::new(CsvRows { output }))
        };
        Ok(Rolling::writer(directory, &ending("csv", self.packing), self.target, Arc::new(make)))
    }

    fn name(&self, _: &Part, number: usize, _: usize) -> String {
        format!("part-{number:05}.{}", ending("csv", self.packing))
    }
}

struct CsvRows {
    output: Output,
}

/// Appends text as a cell: in quotes if it is empty, or holds what would end it, or could be taken for something else.
fn quote(text: &str, out: &mut Vec<u8>) {
    let plain = !text.is_empty()
        && !text.bytes().any(|byte| matches!(byte, b',' | b'"' | b'\n' | b'\r'))
        && !text.starts_with(char::is_whitespace)
        && !text.ends_with(char::is_whitespace)
        && !text.starts_with('\u{feff}');
    if plain {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(b'"');
    for byte in text.bytes() {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

impl Rows for CsvRows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let options = FormatOptions::default();
        enum Cells<'a> {
            Text(ArrayRef),
            Shown(ArrayFormatter<'a>, &'a ArrayRef),
        }
        let shown = batch.columns().iter().map(zone::offset).collect::<Result<Vec<_>>>()?;
        let mut columns = Vec::with_capacity(batch.num_columns());
        for column in &shown {
            columns.push(if is_text(&plain(column.data_type())) {
                Cells::Text(cast(column, &DataType::Utf8View).map_err(unexpected)?)
            } else {
                Cells::Shown(ArrayFormatter::try_new(column, &options).map_err(unexpected)?, column)
            });
        }
        let mut line = Vec::new();
        for row in 0..batch.num_rows() {
            for (number, column) in columns.iter().enumerate() {
                if number > 0 {
                    line.push(b',');
                }
                match column {
                    Cells::Text(text) if text.is_valid(row) => quote(text.as_string_view().value(row), &mut line),
                    Cells::Shown(formatter, array) if array.is_valid(row) => {
                        let text = formatter.value(row).try_to_string().map_err(unexpected)?;
                        line.extend_from_slice(text.as_bytes());
                    }
                    _ => {}
                }
            }
            line.push(b'\n');
            if line.len() >= 64 << 10 {
                self.output.put(&line)?;
                line.clear();
            }
        }
        self.output.put(&line)
    }

    fn bytes(&self) -> u64 {
        self.output.bytes()
    }

    fn finish(self: Box<Self>) -> Result<(u64, Value)> {
        Ok((self.output.close()?, Value::Null))
    }
}
