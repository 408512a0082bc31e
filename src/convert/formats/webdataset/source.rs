//! Samples of tar files, as rows.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, RecordBatch, StringBuilder};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::super::members::Members;
use super::{INTEGERS, KEY, TEXTS, ending};
use crate::convert::budget::Budget;
use crate::convert::errors::unexpected;
use crate::convert::format::Format;
use crate::convert::limits::{BATCH_BYTES, BATCH_ROWS, Limits};
use crate::convert::read::files::{self, Found};
use crate::convert::read::listing::Listing;
use crate::convert::source::{Batches, Nothing, Opening, Shard, Source, shards_of};
use crate::convert::types::{is_binary, is_text};
use crate::convert::values::objects::Values;
use crate::convert::values::scalar::{self, growing, shown};
use crate::error::{Error, Place, Result};
use crate::schema::cast;

/// Samples of each file that types are inferred from.
const SAMPLES: usize = 500;

/// Bytes of each file that types are inferred from.
const SAMPLE_BYTES: u64 = 4 << 20;

/// Files that types are inferred from.
const SAMPLE_FILES: usize = 16;

/// The values of one column, concatenated.
#[derive(Default)]
struct Cells {
    values: Vec<u8>,
    /// End of each; `None` for a null.
    ends: Vec<Option<usize>>,
}

impl Cells {
    /// Adds nulls for rows missing before `row`; false if `row` has a value already.
    fn is_free(&mut self, row: usize) -> bool {
        let free = self.ends.len() <= row;
        self.ends.resize(row.max(self.ends.len()), None);
        free
    }

    /// Ends the value that was appended.
    fn end(&mut self) {
        self.ends.push(Some(self.values.len()));
    }

    fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let mut start = 0;
        self.ends.iter().map(move |end| {
            let end = (*end)?;
            self.values.get(std::mem::replace(&mut start, end)..end)
        })
    }
}

#[derive(Debug)]
struct TarSource {
    files: Vec<Found>,
    schema: SchemaRef,
    shards: Vec<Shard>,
    limits: Limits,
    /// True if a conversion wrote the columns, so that the extensions it added are stripped.
    written: bool,
    /// Columns whose type was given, or written by a conversion.
    given: Vec<String>,
}

/// Types that fit the values of one extension.
#[derive(Debug, Clone)]
struct Guess {
    integer: bool,
    text: bool,
}

pub(crate) fn open(tree: &Listing, opening: &Opening) -> Result<Box<dyn Source>> {
    let files = tree.list(&opening.limits, &|name| Format::of_name(name) == Some(Format::Webdataset))?;
    if files.is_empty() {
        return Err(Error::NotFound { what: "a tar file".into(), hint: "names end in .tar, .tar.gz or .tgz".into() });
    }
    let schema = match &opening.written {
        Some(schema) => Arc::clone(schema),
        None => infer(&files, opening)?,
    };
    let shards = shards_of(&files);
    let (limits, written) = (opening.limits.clone(), opening.written.is_some());
    let given = schema.fields().iter().map(|field| field.name()).filter(|name| opening.wanted(name).is_some());
    let given = given.cloned().collect();
    Ok(Box::new(TarSource { files, schema, shards, limits, written, given }))
}

fn infer(files: &[Found], opening: &Opening) -> Result<SchemaRef> {
    let mut guesses: BTreeMap<String, Guess> = BTreeMap::new();
    for found in files.iter().step_by(files.len().div_ceil(SAMPLE_FILES)) {
        let mut members = Members::open(found, &opening.limits)?;
        let mut content = Vec::new();
        for _ in 0..SAMPLES {
            if members.input().offset() > SAMPLE_BYTES || !members.sample()? {
                break;
            }
            while let Some(column) = members.member()? {
                let column = column.to_ascii_lowercase();
                let end = ending(&column);
                let (integer, text) = (INTEGERS.contains(&end), TEXTS.contains(&end));
                let guess = guesses.entry(column).or_insert(Guess { integer, text: integer || text });
                if !guess.text {
                    continue;
                }
                content.clear();
                members.read(&mut content)?;
                let content = std::str::from_utf8(&content);
                guess.text &= content.is_ok();
                let number = content.map_or(None, |text| scalar::integer(text.trim(), false).ok());
                guess.integer &= number.is_some_and(|number| i64::try_from(number).is_ok());
            }
            opening.limits.columns(&found.name, || "its members".to_owned(), guesses.len())?;
        }
    }
    let mut fields = vec![Field::new(KEY, DataType::Utf8, false)];
    for (name, _) in &opening.types.0 {
        if name != KEY && !guesses.contains_key(name) {
            guesses.insert(name.clone(), Guess { integer: false, text: false });
        }
    }
    for (name, guess) in &guesses {
        let inferred = match guess {
            Guess { integer: true, .. } => DataType::Int64,
            Guess { text: true, .. } => DataType::Utf8,
            _ => DataType::Binary,
        };
        let data_type = opening.types.get(name).cloned().unwrap_or(inferred);
        fields.push(Field::new(name, data_type, true));
    }
    Ok(Arc::new(Schema::new(fields)))
}

impl Source for TarSource {
    fn format(&self) -> Format {
        Format::Webdataset
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
        let Some(found) = self.files.get(shard) else { return Ok(Box::new(Nothing)) };
        let members = Members::open(found, &self.limits)?;
        let schema = Arc::new(self.schema.project(columns).map_err(unexpected)?);
        Ok(Box::new(Reader { members, schema, source: self }))
    }
}

struct Reader<'a> {
    members: Members,
    schema: SchemaRef,
    source: &'a TarSource,
}

impl TarSource {
    /// Returns the column that a member belongs to.
    fn column(&self, member: &str) -> Option<&str> {
        let known = |name: &str| {
            self.schema.fields().iter().find(|field| field.name() == name).map(|field| field.name().as_str())
        };
        if !self.written {
            return known(&member.to_ascii_lowercase());
        }
        known(member).or_else(|| known(member.rsplit_once('.')?.0))
    }
}

impl Reader<'_> {
    /// Returns an error about the current sample.
    fn wrong(&self, what: &str) -> Error {
        let what = format!("the sample {:?} {what}; give its type with --schema", self.members.key);
        self.members.input().corrupt(self.members.at, what)
    }
}

impl Batches for Reader<'_> {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let fields = Arc::clone(&self.schema);
        let mut columns: Vec<Cells> = fields.fields().iter().map(|_| Cells::default()).collect();
        let (mut rows, mut bytes) = (0, 0);
        while rows < BATCH_ROWS && bytes < BATCH_BYTES && self.members.sample()? {
            if let Ok(number) = fields.index_of(KEY) {
                let cells = &mut columns[number];
                cells.is_free(rows);
                cells.values.extend_from_slice(self.members.key.as_bytes());
                bytes += self.members.key.len();
                cells.end();
            }
            while let Some(member) = self.members.member()? {
                let Some(name) = self.source.column(&member) else {
                    let what = format!("has a member {member:?}, which the sample of the first ones does not have");
                    return Err(self.wrong(&what));
                };
                // Members of other columns are skipped.
                let Ok(number) = fields.index_of(name) else { continue };
                let cells = &mut columns[number];
                if !cells.is_free(rows) {
                    return Err(self.wrong(&format!("has two members for the column {name:?}")));
                }
                let before = cells.values.len();
                if before == 0 && is_binary(fields.field(number).data_type()) {
                    // A batch of files: room for all of them, in a size that the allocator reuses for the next.
                    cells.values.reserve_exact(BATCH_BYTES + BATCH_BYTES / 4);
                }
                self.members.read(&mut cells.values)?;
                bytes += cells.values.len() - before;
                cells.end();
            }
            rows += 1;
        }
        if rows == 0 {
            return Ok(None);
        }
        let mut arrays = Vec::with_capacity(columns.len());
        for (field, mut cells) in fields.fields().iter().zip(columns) {
            cells.is_free(rows);
            let given = self.source.given.contains(field.name());
            arrays.push(column(field, given, cells).map_err(|what| {
                let input = self.members.input();
                let place = Place::file(Arc::clone(input.name())).column(field.name().as_str());
                Error::corrupt(place, format!("in the samples before byte {}: {what}", input.offset()))
            })?);
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(fields, arrays, &options).map(Some).map_err(unexpected)
    }

    fn consumed(&self) -> u64 {
        self.members.input().consumed()
    }
}

/// Builds the array of a column's members in the field's type, which may be a given one.
fn column(field: &Field, given: bool, cells: Cells) -> Result<ArrayRef, String> {
    let text =
        |cell: &[u8]| std::str::from_utf8(cell).map(str::to_owned).map_err(|_| "a member is not UTF-8".to_owned());
    let array: ArrayRef = match field.data_type() {
        kind if is_binary(kind) => {
            let Cells { values, ends } = cells;
            let nulls: NullBuffer = ends.iter().map(Option::is_some).collect();
            let mut offsets = Vec::with_capacity(ends.len() + 1);
            offsets.push(0);
            for end in ends {
                let end = end.map_or(Ok(offsets[offsets.len() - 1]), i32::try_from);
                offsets.push(end.map_err(|_| "members of more than 2 GiB in one batch".to_owned())?);
            }
            let offsets = OffsetBuffer::new(offsets.into());
            let nulls = Some(nulls).filter(|nulls| nulls.null_count() > 0);
            Arc::new(BinaryArray::try_new(offsets, values.into(), nulls).map_err(|error| error.to_string())?)
        }
        kind if is_text(kind) => {
            let mut builder = StringBuilder::new();
            for cell in cells.iter() {
                builder.append_option(cell.map(text).transpose()?);
            }
            Arc::new(builder.finish())
        }
        kind if kind.is_integer() && *kind != DataType::UInt64 || *kind == DataType::Boolean => {
            let mut numbers = growing(kind, given).ok_or("its type is not one of integers")?;
            for cell in cells.iter() {
                let Some(cell) = cell else {
                    numbers.null();
                    continue;
                };
                let text = text(cell)?;
                let number = text.trim();
                // Boolean classes become 1 and 0.
                numbers
                    .push(number)
                    .map_err(|why| format!("the member {} is not a valid {kind}: {why}", shown(number)))?;
            }
            numbers.finish()
        }
        kind => {
            let mut values = Values::new(kind).map_err(|error| error.to_string())?;
            for cell in cells.iter() {
                match cell {
                    Some(cell) => {
                        values.push(cell).map_err(|wrong| format!("a member is not a valid {kind}: {}", wrong.what))?;
                    }
                    None => values.null(),
                }
            }
            values.finish().map_err(|error| error.to_string())?
        }
    };
    cast(&array, field.data_type()).map_err(|misfit| misfit.to_string())
}
