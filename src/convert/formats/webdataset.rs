//! WebDataset: consecutive members of a tar file whose names are equal up to the first dot are one sample.
//!
//! The part after the dot, in lower case, names the column; `__key__` is the part before it. Text, numbers and JSON are read as text,
//! integers and text; everything else as bytes.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, RecordBatch, StringBuilder};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use serde_json::Value;

use super::images::ends_so;
use super::members::Members;
use super::{jsonl, tar};
use crate::codec::image::probe;
use crate::convert::budget::Budget;
use crate::convert::errors::{refused, refused_value, unexpected};
use crate::convert::format::Format;
use crate::convert::limits::{BATCH_BYTES, BATCH_ROWS, Limits};
use crate::convert::options::{ConvertOptions, Packing};
use crate::convert::read::files::{self, Found};
use crate::convert::read::listing::Listing;
use crate::convert::rolling::{self, Output, RollingWriter, Rows, prefix};
use crate::convert::sink::{Part, Sink, Writer};
use crate::convert::source::{Batches, Nothing, Opening, Shard, Source, shards_of};
use crate::convert::types::{is_binary, is_number, is_text, item};
use crate::convert::values::cells::as_type_of;
use crate::convert::values::objects::Values;
use crate::convert::values::sample::is_image;
use crate::convert::values::scalar::{self, growing, shown};
use crate::convert::values::unheld::{Unheld, unheld};
use crate::error::{Error, Place, Result};
use crate::schema::cast;

const KEY: &str = "__key__";

/// Extensions of integers.
const INTEGERS: [&str; 5] = ["cls", "cls2", "index", "inx", "id"];

/// Extensions of text.
const TEXTS: [&str; 4] = ["txt", "text", "transcript", "json"];

/// Extensions of bytes.
const BYTES: [&str; 28] = [
    "jpg", "jpeg", "png", "ppm", "pgm", "pbm", "pnm", "webp", "gif", "bmp", "tif", "tiff", "npy", "npz", "bin", "pyd",
    "pth", "ten", "tb", "mp", "msg", "mp4", "avi", "mov", "mp3", "wav", "flac", "ogg",
];

/// Samples of each file that types are inferred from.
const SAMPLES: usize = 500;

/// Bytes of each file that types are inferred from.
const SAMPLE_BYTES: u64 = 4 << 20;

/// Files that types are inferred from.
const SAMPLE_FILES: usize = 16;

/// Returns the extension after the last dot.
fn ending(column: &str) -> &str {
    column.rsplit('.').next().unwrap_or(column)
}

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

/// Extensions of image files by format; others use `bmp`, or `bin` for bytes that are no image.
const IMAGES: [(&str, &str); 4] = [("JPEG", "jpg"), ("PNG", "png"), ("WebP", "webp"), ("GIF", "gif")];

/// Mapping of a column to members.
#[derive(Debug, Clone)]
enum Member {
    /// The key of the sample.
    Key,
    /// A text under this name.
    Text(String),
    /// An integer under this name.
    Integer(String),
    /// Bytes under this name.
    Bytes(String),
    /// Image files under this name plus the extension of their format.
    Image(String),
    /// Re-encoded image files under this name, which ends in the extension of a format; images of another format get that one's
    /// extension.
    Anew(String),
    /// JSON under this name.
    Json(String),
}

impl Member {
    /// Returns the name after the key; for an image without the extension of its format.
    fn file(&self) -> &str {
        match self {
            Self::Key => KEY,
            Self::Text(name) | Self::Integer(name) | Self::Bytes(name) | Self::Json(name) => name,
            Self::Image(name) | Self::Anew(name) => name,
        }
    }
}

#[derive(Debug)]
struct TarSink {
    members: Vec<Member>,
    packing: Packing,
    target: u64,
}

pub(crate) fn sink(schema: &SchemaRef, options: &ConvertOptions) -> Result<Box<dyn Sink>> {
    let mut members = Vec::with_capacity(schema.fields().len());
    let mut names = HashSet::new();
    let anew = options.resize.is_some() || options.image_quality.is_some();
    for field in schema.fields() {
        let name = field.name().as_str();
        let bad = name.is_empty() || name.contains(['/', '\\', '\0']) || name.split('.').any(str::is_empty);
        if bad {
            return Err(refused(Format::Webdataset, field, "its name cannot be the ending of a file's name"));
        }
        let end = ending(name).to_ascii_lowercase();
        let known = |endings: &[&str]| endings.contains(&end.as_str());
        let with = |more: &str| format!("{name}.{more}");
        let kind = field.data_type();
        let member = if name == KEY && is_text(kind) {
            Member::Key
        } else if is_text(kind) {
            Member::Text(if known(&TEXTS) { name.to_owned() } else { with("txt") })
        } else if is_binary(kind) {
            match known(&BYTES) {
                true if anew && is_image(field) => Member::Anew(name.to_owned()),
                true => Member::Bytes(name.to_owned()),
                false if is_image(field) => Member::Image(name.to_owned()),
                false => Member::Bytes(with("bin")),
            }
        } else if kind.is_integer() && *kind != DataType::UInt64 || *kind == DataType::Boolean {
            Member::Integer(if known(&INTEGERS) { name.to_owned() } else { with("cls") })
        } else if is_number(kind) || item(kind).is_some_and(|item| is_number(item) || is_text(item)) {
            Member::Json(with("json"))
        } else {
            let hint = "samples hold text, integers, bytes, and numbers and lists as JSON; choose with --columns";
            return Err(refused(Format::Webdataset, field, hint));
        };
        if !names.insert(member.file().to_owned()) {
            return Err(refused(Format::Webdataset, field, "another column has the same ending"));
        }
        members.push(member);
    }
    for (member, field) in members.iter().zip(schema.fields()) {
        // When read back, that member would be taken for this column.
        if member.file() != field.name() && names.contains(field.name()) {
            let hint = format!("another column's member is {:?}; rename one, or choose with --columns", field.name());
            return Err(refused(Format::Webdataset, field, &hint));
        }
    }
    for (member, field) in members.iter().zip(schema.fields()) {
        let (Member::Image(name) | Member::Anew(name)) = member else { continue };
        let ends = IMAGES.iter().map(|(_, end)| *end).chain(["bmp", "bin"]);
        if let Some(other) = ends
            .map(|end| format!("{name}.{end}"))
            .find(|other| names.contains(other) || schema.field_with_name(other).is_ok())
        {
            let hint =
                format!("its images may be {other:?}, as another column is; rename one, or choose with --columns");
            return Err(refused(Format::Webdataset, field, &hint));
        }
    }
    if members.iter().all(|member| matches!(member, Member::Key)) {
        return Err(Error::config("columns", "a sample needs more than its key"));
    }
    let packing = Packing::parse(options.compression.as_deref(), Format::Webdataset, &["none", "gzip"], Packing::None)?;
    let target = if options.shards.is_some() { u64::MAX } else { options.target_file_size };
    Ok(Box::new(TarSink { members, packing, target }))
}

impl Sink for TarSink {
    fn format(&self) -> Format {
        Format::Webdataset
    }

    fn writer(&self, directory: &Path, unit: &str) -> Result<Box<dyn Writer>> {
        let (members, packing, unit) = (self.members.clone(), self.packing, unit.to_owned());
        let make = move |path: &Path| -> Result<Box<dyn Rows>> {
            let output = Output::create(path, packing)?;
            let prefix = prefix(&unit, path);
            Ok(Box::new(TarRows { output, members: members.clone(), prefix, rows: 0, last: None }))
        };
        Ok(RollingWriter::writer(directory, &rolling::ending("tar", self.packing), self.target, Arc::new(make)))
    }

    fn name(&self, _: &Part, number: usize, _: usize) -> String {
        format!("shard-{number:06}.{}", rolling::ending("tar", self.packing))
    }
}

struct TarRows {
    output: Output,
    members: Vec<Member>,
    prefix: String,
    rows: u64,
    last: Option<String>,
}

impl TarRows {
    fn key(&self, keys: Option<&ArrayRef>, at: usize) -> Result<String> {
        let Some(keys) = keys else { return Ok(format!("{}_{:08}", self.prefix, self.rows)) };
        let wrong = |what: &str| {
            let hint = "a key is a relative path whose last part has no dot; leave the column out for numbers";
            refused_value(Format::Webdataset, KEY, at, what, hint)
        };
        if keys.is_null(at) {
            return Err(wrong("a null"));
        }
        let key = keys.as_string_view().value(at);
        let parts = || key.split('/');
        let bad = key.contains(['\0', '\\'])
            || parts().any(|part| matches!(part, "" | "." | ".."))
            || parts().next_back().is_none_or(|last| last.contains('.'));
        if bad {
            return Err(wrong(&format!("the key {:?}", key.chars().take(60).collect::<String>())));
        }
        if self.last.as_deref() == Some(key) {
            return Err(wrong("a key that comes twice in a row"));
        }
        Ok(key.to_owned())
    }
}

impl Rows for TarRows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut columns = Vec::with_capacity(self.members.len());
        let mut keys = None;
        for ((member, column), field) in self.members.iter().zip(batch.columns()).zip(batch.schema_ref().fields()) {
            let bytes = |column: &ArrayRef| match column.data_type() {
                DataType::FixedSizeBinary(_) => {
                    let plain = as_type_of(field.name(), column, &DataType::Binary)?;
                    as_type_of(field.name(), &plain, &DataType::BinaryView)
                }
                _ => as_type_of(field.name(), column, &DataType::BinaryView),
            };
            let column = match member {
                Member::Key => {
                    keys = Some(as_type_of(field.name(), column, &DataType::Utf8View)?);
                    Arc::clone(column)
                }
                Member::Text(_) | Member::Bytes(_) | Member::Image(_) | Member::Anew(_) => bytes(column)?,
                Member::Integer(_) => as_type_of(field.name(), column, &DataType::Int64)?,
                Member::Json(_) => {
                    if let Some(Unheld { row, what, hint }) = unheld(column)? {
                        return Err(refused_value(Format::Webdataset, field.name(), row, what, hint));
                    }
                    Arc::new(jsonl::texts(column)?)
                }
            };
            columns.push(column);
        }
        let mut out = Vec::new();
        for at in 0..batch.num_rows() {
            let key = self.key(keys.as_ref(), at)?;
            let mut any = false;
            for (member, column) in self.members.iter().zip(&columns) {
                if column.is_null(at) || matches!(member, Member::Key) {
                    continue;
                }
                any = true;
                let mut put =
                    |name: &str, content: &[u8]| tar::write_member(&format!("{key}.{name}"), content, &mut out);
                match member {
                    Member::Key => {}
                    Member::Text(name) | Member::Bytes(name) => put(name, column.as_binary_view().value(at)),
                    Member::Integer(name) => {
                        put(name, column.as_primitive::<Int64Type>().value(at).to_string().as_bytes());
                    }
                    Member::Json(name) => put(name, column.as_string::<i32>().value(at).as_bytes()),
                    Member::Image(name) | Member::Anew(name) => {
                        let cell = column.as_binary_view().value(at);
                        let format = probe(cell).ok().map(|info| info.format.name());
                        let known = IMAGES.iter().find(|(name, _)| Some(*name) == format);
                        let end = known.map_or(if format.is_some() { "bmp" } else { "bin" }, |(_, end)| *end);
                        match member {
                            Member::Anew(name) if ends_so(ending(name), end) => put(name, cell),
                            _ => put(&format!("{name}.{end}"), cell),
                        }
                    }
                }
            }
            if !any {
                let hint = "a sample is its members: without any it is nothing";
                return Err(refused_value(Format::Webdataset, KEY, at, "a row of nulls only", hint));
            }
            self.rows += 1;
            self.last = Some(key);
            if out.len() >= 1 << 20 {
                self.output.put(&out)?;
                out.clear();
            }
        }
        self.output.put(&out)
    }

    fn bytes(&self) -> u64 {
        self.output.bytes()
    }

    fn finish(mut self: Box<Self>) -> Result<(u64, Value)> {
        self.output.put(&tar::END)?;
        Ok((self.output.close()?, Value::Null))
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::Metadata;

    use super::*;
    use crate::convert::values::sample::IMAGE_KEY;

    #[test]
    fn images_never_have_the_name_of_another_column() {
        let sink = |names: &[&str]| {
            let field = |name: &&str| {
                let known = (*name == "image").then(|| (IMAGE_KEY.to_owned(), String::new()));
                Field::new(*name, DataType::Binary, false).with_metadata(known.into_iter().collect::<Metadata>())
            };
            let fields: Vec<Field> = names.iter().map(field).collect();
            sink(&Arc::new(Schema::new(fields)), &ConvertOptions::default())
        };
        for other in ["image.jpg", "image.png", "image.bin"] {
            for names in [["image", other], [other, "image"]] {
                let error = sink(&names).unwrap_err().to_string();
                assert!(error.contains(other), "{error}");
            }
        }
        sink(&["image", "mask.jpg"]).unwrap();
    }

    #[test]
    fn no_column_has_the_name_of_another_ones_member() {
        let sink = |columns: &[(&str, DataType)]| {
            let field = |(name, kind): &(&str, DataType)| Field::new(*name, kind.clone(), true);
            let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
            super::sink(&Arc::new(schema), &ConvertOptions::default())
        };
        for (column, member) in [(DataType::Utf8, "a.txt"), (DataType::Int64, "a.cls"), (DataType::Float32, "a.json")] {
            for columns in [
                [("a", column.clone()), (member, DataType::Binary)],
                [(member, DataType::Binary), ("a", column.clone())],
            ] {
                let error = sink(&columns).unwrap_err().to_string();
                assert!(error.contains(member), "{error}");
            }
        }
        sink(&[("a", DataType::Utf8), ("b.txt", DataType::Binary)]).unwrap();
        sink(&[("a.txt", DataType::Utf8), ("a", DataType::Binary)]).unwrap();
    }
}
