//! Values separated by commas, or tabs, with a header line.
//!
//! An empty cell is null; an empty text is quoted. Types are those given, those a conversion wrote, or the narrowest that fits all
//! cells of a sample: integers, floats, booleans, dates, timestamps, text. A later cell that does not fit is an error.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde_json::Value;

use crate::convert::budget::Budget;
use crate::convert::errors::{differs, refused, refused_value, unexpected};
use crate::convert::format::Format;
use crate::convert::limits::{BATCH_BYTES, BATCH_ROWS, Limits};
use crate::convert::options::{ConvertOptions, Packing};
use crate::convert::read::files::{self, Found};
use crate::convert::read::listing::Listing;
use crate::convert::read::records::Records;
use crate::convert::rolling::{Output, RollingWriter, Rows, ending};
use crate::convert::sink::{Part, Sink, Writer};
use crate::convert::source::{Batches, Nothing, Opening, Shard, Source, Text, shards_of};
use crate::convert::types::{is_text, type_text};
use crate::convert::values::clock::{self, Instant};
use crate::convert::values::scalar::{self, Growing, growing};
use crate::convert::values::timezone;
use crate::convert::values::unheld::Unheld;
use crate::error::{Error, Place, Result};

/// Rows of each file that types are inferred from.
const SAMPLE_ROWS: usize = 1000;

/// Files that types are inferred from.
const SAMPLE_FILES: usize = 16;

#[derive(Debug)]
struct CsvSource {
    format: Format,
    separator: u8,
    files: Vec<Found>,
    schema: SchemaRef,
    /// For each column, whether its type was given.
    given: Vec<bool>,
    shards: Vec<Shard>,
    limits: Limits,
}

pub(crate) fn open(tree: &Listing, opening: &Opening) -> Result<Box<dyn Source>> {
    separated(Format::Csv, b',', tree, opening)
}

pub(crate) fn open_tabs(tree: &Listing, opening: &Opening) -> Result<Box<dyn Source>> {
    separated(Format::Tsv, b'\t', tree, opening)
}

fn separated(format: Format, separator: u8, tree: &Listing, opening: &Opening) -> Result<Box<dyn Source>> {
    let files = tree.list(&opening.limits, &|name| Format::of_name(name) == Some(format))?;
    let mut names: Option<Vec<String>> = None;
    let mut guesses: Vec<Guess> = Vec::new();
    for (number, found) in files.iter().enumerate() {
        let mut records = Records::open(found, &opening.limits, separator)?;
        let header = records.header()?;
        match &names {
            Some(first) if *first == header => {}
            Some(first) => {
                let (expected, header) = (first.join(", "), header.join(", "));
                let what = "its header and that of the first file";
                return Err(differs(Place::file(&*found.name), what, expected, header, "convert them one by one"));
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
        return Err(Error::NotFound { what: format!("a file of {format}"), hint: format!("names end in .{format}") });
    };
    let field = |(name, guess): (&String, &Guess)| {
        let data_type = opening.wanted(name).cloned().unwrap_or_else(|| guess.data_type());
        let field = Field::new(name, data_type, true).with_metadata(opening.metadata(name));
        match holds(field.data_type()) {
            true => Ok(field),
            false => Err(refused(format, &field, "give a type that a text can be read as")),
        }
    };
    let fields: Vec<Field> = names.iter().zip(&guesses).map(field).collect::<Result<_>>()?;
    let shards = shards_of(&files);
    let given = fields.iter().map(|field| opening.wanted(field.name()).is_some()).collect();
    let (schema, limits) = (Arc::new(Schema::new(fields)), opening.limits.clone());
    Ok(Box::new(CsvSource { format, separator, files, schema, given, shards, limits }))
}

/// The types that fit all cells of a sample, by the same rules that later apply to all cells.
#[derive(Debug, Clone)]
struct Guess {
    seen: bool,
    signed: bool,
    unsigned: bool,
    float: bool,
    boolean: bool,
    date: bool,
    /// Offset of all instants in seconds east of Greenwich, if they have one.
    offset: Option<Option<i32>>,
    instant: bool,
    /// True if an instant is finer than microseconds.
    fine: bool,
    /// True if an instant overflows nanoseconds since 1970.
    far: bool,
}

impl Default for Guess {
    fn default() -> Self {
        let (offset, yes, no) = (None, true, false);
        let (signed, unsigned, float, boolean, date, instant) = (yes, yes, yes, yes, yes, yes);
        Self { seen: no, signed, unsigned, float, boolean, date, offset, instant, fine: no, far: no }
    }
}

impl Guess {
    fn see(&mut self, cell: &[u8], quoted: bool) {
        if cell.is_empty() && !quoted {
            return;
        }
        self.seen = true;
        let text = std::str::from_utf8(cell).unwrap_or("");
        // A quoted number is a name, and so is 007.
        let integer = if quoted || !(self.signed || self.unsigned) { None } else { scalar::integer(text, false).ok() };
        self.signed &= integer.is_some_and(|number| i64::try_from(number).is_ok());
        self.unsigned &= integer.is_some_and(|number| u64::try_from(number).is_ok());
        // A float that is an integer beyond 64 bits would be shown with other digits.
        let whole = text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
        let beyond = whole && text.parse::<i64>().is_err() && text.parse::<u64>().is_err();
        self.float &= !quoted && !beyond && scalar::float64(text, false).is_ok();
        self.boolean &= scalar::boolean(text, false).is_ok();
        self.date &= clock::days(text).is_ok();
        match Instant::parse(text) {
            Ok(instant) if self.instant => {
                self.instant = *self.offset.get_or_insert(instant.offset) == instant.offset;
                self.fine |= instant.count(TimeUnit::Microsecond).is_err();
                self.far |= instant.count(TimeUnit::Nanosecond).is_err();
            }
            _ => self.instant = false,
        }
    }

    fn data_type(&self) -> DataType {
        match self {
            Self { seen: false, .. } => DataType::Utf8,
            Self { signed: true, .. } => DataType::Int64,
            Self { unsigned: true, .. } => DataType::UInt64,
            Self { float: true, .. } => DataType::Float64,
            Self { boolean: true, .. } => DataType::Boolean,
            Self { date: true, .. } => DataType::Date32,
            // An instant that fits no unit stays text.
            Self { instant: true, fine, far, .. } if !(*fine && *far) => {
                let unit = if *fine { TimeUnit::Nanosecond } else { TimeUnit::Microsecond };
                DataType::Timestamp(unit, self.offset.flatten().map(timezone::of_seconds))
            }
            _ => DataType::Utf8,
        }
    }
}

/// Returns true if a cell of text can have this type.
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
        ) && timezone::is_plain(data_type)
        || data_type.is_decimal()
}

impl Source for CsvSource {
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
        let mut records = Records::open(found, &self.limits, self.separator)?;
        records.header()?;
        let schema = Arc::new(self.schema.project(columns).map_err(unexpected)?);
        // The text, and the arrays it is parsed into.
        let permit = budget.reserve(2 * BATCH_BYTES as u64, || format!("file {}: a batch", found.name))?;
        drop(permit);
        let mut grown = Vec::with_capacity(columns.len());
        for (field, number) in schema.fields().iter().zip(columns) {
            let given = self.given.get(*number).copied().unwrap_or(false);
            let kind = field.data_type();
            let bare = !given && (kind.is_integer() || kind.is_floating());
            let hint = "give a type that a text can be read as";
            grown.push((growing(kind, given).ok_or_else(|| refused(self.format, field, hint))?, bare));
        }
        let (columns, width) = (columns.to_vec(), self.schema.fields().len());
        Ok(Box::new(Reader { records, schema, columns, growing: grown, width }))
    }

    fn texts(&self) -> Vec<Text> {
        let text = |(number, found): (usize, &Found)| {
            Text::new(found, &self.limits, self.format, &self.given, number..number + 1)
        };
        self.files.iter().enumerate().map(text).collect()
    }
}

struct Reader {
    records: Records,
    schema: SchemaRef,
    columns: Vec<usize>,
    /// The arrays under construction, and whether they reject quoted cells.
    growing: Vec<(Box<dyn Growing>, bool)>,
    width: usize,
}

impl Reader {
    /// Returns the error for a cell of the current record.
    fn wrong(&self, number: usize, cell: &str, quoted: bool, why: &str) -> Error {
        let field = self.schema.field(number);
        let place = Place::file(Arc::clone(self.records.input.name())).column(field.name().as_str());
        let quotes = if quoted { " in quotes" } else { "" };
        let what = format!(
            "line {}: {}{quotes} is not a valid {}: {why}; give another type with --schema",
            self.records.started,
            scalar::shown(cell),
            type_text(field.data_type())
        );
        Error::corrupt(place.row(self.records.rows - 1), what)
    }
}

impl Batches for Reader {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let (mut rows, mut bytes) = (0, 0);
        while rows < BATCH_ROWS && bytes < BATCH_BYTES && self.records.next(self.width)? {
            let mut cells = self.records.cells();
            let mut at = 0;
            for (place, ((growing, bare), number)) in self.growing.iter_mut().zip(&self.columns).enumerate() {
                let (cell, quoted) = cells.nth(number - at).unwrap_or((b"", false));
                at = number + 1;
                if cell.is_empty() && !quoted {
                    growing.null();
                    continue;
                }
                bytes += cell.len();
                let pushed = match std::str::from_utf8(cell) {
                    Ok(_) if quoted && *bare => Err("texts stand in quotes, numbers do not"),
                    Ok(text) => growing.push(text),
                    Err(_) => Err("it is not UTF-8"),
                };
                if let Err(why) = pushed {
                    let cell = String::from_utf8_lossy(cell).into_owned();
                    drop(cells);
                    return Err(self.wrong(place, &cell, quoted, why));
                }
            }
            rows += 1;
        }
        if rows == 0 {
            return Ok(None);
        }
        let arrays = self.growing.iter_mut().map(|(growing, _)| growing.finish()).collect();
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options).map(Some).map_err(unexpected)
    }

    fn consumed(&self) -> u64 {
        self.records.input.consumed()
    }
}

#[derive(Debug)]
struct CsvSink {
    format: Format,
    separator: u8,
    schema: SchemaRef,
    packing: Packing,
    target: u64,
}

/// Makes the sink of `format`, whose cells are separated by `separator`.
pub(crate) fn sink(
    format: Format,
    separator: u8,
    schema: &SchemaRef,
    options: &ConvertOptions,
) -> Result<Box<dyn Sink>> {
    for field in schema.fields() {
        if field.name().is_empty() {
            let hint =
                "a header without a name is read as the number of its column; rename it, or choose with --columns";
            return Err(refused(format, field, hint));
        }
        if !holds(&plain(field.data_type())) {
            let hint = "choose columns with --columns, or another type with --schema";
            return Err(refused(format, field, hint));
        }
    }
    let allowed = ["none", "gzip", "zstd"];
    let packing = Packing::parse(options.compression.as_deref(), format, &allowed, Packing::None)?;
    let target = if options.shards.is_some() { u64::MAX } else { options.target_file_size };
    Ok(Box::new(CsvSink { format, separator, schema: Arc::clone(schema), packing, target }))
}

fn plain(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Dictionary(_, values) => values.as_ref().clone(),
        other => other.clone(),
    }
}

impl Sink for CsvSink {
    fn format(&self) -> Format {
        self.format
    }

    fn writer(&self, directory: &Path, _: &str) -> Result<Box<dyn Writer>> {
        let (schema, packing, separator) = (Arc::clone(&self.schema), self.packing, self.separator);
        let make = move |path: &Path| -> Result<Box<dyn Rows>> {
            let mut output = Output::create(path, packing)?;
            let mut header = Vec::new();
            for (number, field) in schema.fields().iter().enumerate() {
                if number > 0 {
                    header.push(separator);
                }
                quote(field.name(), separator, &mut header);
            }
            header.push(b'\n');
            output.put(&header)?;
            Ok(Box::new(CsvRows { output, separator }))
        };
        Ok(RollingWriter::writer(
            directory,
            &ending(self.format.extension(), self.packing),
            self.target,
            Arc::new(make),
        ))
    }

    fn name(&self, _: &Part, number: usize, _: usize) -> String {
        format!("part-{number:05}.{}", ending(self.format.extension(), self.packing))
    }
}

struct CsvRows {
    output: Output,
    separator: u8,
}

/// Appends text as a cell, quoted if it is empty, contains a terminator, or could be mistaken for something else.
fn quote(text: &str, separator: u8, out: &mut Vec<u8>) {
    let plain = !text.is_empty()
        && !text.bytes().any(|byte| byte == separator || matches!(byte, b'"' | b'\n' | b'\r'))
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
        let shown = batch.columns().iter().map(timezone::offset).collect::<Result<Vec<_>>>()?;
        let mut columns = Vec::with_capacity(batch.num_columns());
        for column in &shown {
            columns.push(if is_text(&plain(column.data_type())) {
                Cells::Text(cast(column, &DataType::Utf8View).map_err(unexpected)?)
            } else {
                Cells::Shown(ArrayFormatter::try_new(column, &options).map_err(unexpected)?, column)
            });
        }
        let format = if self.separator == b'\t' { Format::Tsv } else { Format::Csv };
        let unheld = |number: usize, row: usize, what: &str, hint: &str| {
            refused_value(format, batch.schema_ref().field(number).name(), row, what, hint)
        };
        let mut line = Vec::new();
        for row in 0..batch.num_rows() {
            for (number, column) in columns.iter().enumerate() {
                if number > 0 {
                    line.push(self.separator);
                }
                match column {
                    Cells::Text(text) if text.is_valid(row) => {
                        quote(text.as_string_view().value(row), self.separator, &mut line)
                    }
                    Cells::Shown(formatter, array) if array.is_valid(row) => {
                        let text = formatter.value(row).try_to_string().map_err(|_| {
                            let Unheld { what, hint, .. } = Unheld::time(row);
                            unheld(number, row, what, hint)
                        })?;
                        line.extend_from_slice(text.as_bytes());
                    }
                    // Nearly all readers skip empty lines.
                    _ if columns.len() == 1 => {
                        let hint = "its line would be empty, and other readers skip such lines; write a second column, or leave the row out \
                                    with a filter";
                        return Err(unheld(number, row, "a null in the only column", hint));
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
