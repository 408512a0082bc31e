//! Directories of `.npy` or `.npz` files: a row per file, with its `path` and its `array` as stored.
//!
//! In the other direction a column of arrays or of lists of numbers becomes the files, and `path` names them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, RecordBatch, StringBuilder};
use arrow::datatypes::{DataType, Field, Metadata, Schema, SchemaRef};
use serde_json::Value;

use crate::convert::budget::Budget;
use crate::convert::errors::{differs, refused, refused_value, unexpected};
use crate::convert::format::Format;
use crate::convert::limits::Limits;
use crate::convert::options::ConvertOptions;
use crate::convert::read::files::{self, Found};
use crate::convert::read::folder::Folder;
use crate::convert::read::listing::Listing;
use crate::convert::sink::{Part, Sink, Writer};
use crate::convert::source::{Batches, Opening, Shard, Source};
use crate::convert::types::{dtype, is_binary, is_text, item};
use crate::convert::values::cells::{as_type, as_type_of, from_npy, npy_cell, npy_read};
use crate::error::{Error, Place, Result};
use crate::schema::{Codec, Element, Stored};

/// Files of a shard.
const SHARD_FILES: usize = 512;

#[derive(Debug)]
struct ArraySource {
    folder: Folder,
    codec: Codec,
    /// Name of the column with the file names.
    path: Option<String>,
    schema: SchemaRef,
    shards: Vec<Shard>,
    limits: Limits,
}

/// Returns the kind of a file of an array by the ending of its name, in small or capital letters; `None` for other files.
pub(crate) fn codec(name: &str) -> Option<Codec> {
    let (_, ending) = name.rsplit_once('.')?;
    if ending.eq_ignore_ascii_case("npy") {
        Some(Codec::Npy)
    } else {
        ending.eq_ignore_ascii_case("npz").then_some(Codec::Npz)
    }
}

pub(crate) fn open(tree: &Listing, opening: &Opening) -> Result<Box<dyn Source>> {
    let files = tree.list(&opening.limits, &|name| codec(name).is_some())?;
    let Some(first) = files.first() else {
        return Err(Error::NotFound { what: "a file of NumPy".into(), hint: "names end in .npy or .npz".into() });
    };
    let zipped = codec(&first.name) == Some(Codec::Npz);
    if let Some(other) = files.iter().find(|file| (codec(&file.name) == Some(Codec::Npz)) != zipped) {
        let (expected, found) = if zipped { (".npz", ".npy") } else { (".npy", ".npz") };
        let what = format!("its kind and that of {}", first.name);
        return Err(differs(Place::file(&*other.name), &what, expected, found, "convert them one by one"));
    }
    let codec = if zipped { Codec::Npz } else { Codec::Npy };
    // Columns keep the names that they were written from.
    let written = || opening.written.iter().flat_map(|schema| schema.fields());
    let name = written().find(|field| !is_path(field)).map_or("array", |field| field.name().as_str());
    let path = match &opening.written {
        Some(_) => written().find(|field| is_path(field)).map(|field| field.name().clone()),
        None => Some("path".to_owned()),
    };
    let array = match opening.wanted(name) {
        Some(wanted) => Field::new(name, wanted.clone(), false).with_metadata(opening.metadata(name)),
        None => {
            // The first one determines element type and number of axes; lengths of others may differ.
            let cell = first.content(opening.limits.max_record_bytes)?;
            let (found, shape, _) = npy_read(codec, &cell, || Place::file(Arc::clone(&first.name)))?;
            let stored = Stored { codec, element: Element::Number(found), shape: vec![None; shape.len()] };
            Field::new(name, DataType::Binary, false)
                .with_metadata(std::iter::once(stored.metadata()).collect::<Metadata>())
        }
    };
    if !is_binary(array.data_type()) && item(array.data_type()).and_then(dtype).is_none() {
        return Err(refused(Format::Numpy, &array, "a file holds an array, or a list of numbers"));
    }
    let mut fields = Vec::new();
    fields.extend(path.as_ref().map(|path| Field::new(path, DataType::Utf8, false)));
    fields.push(array);
    let (mut ranges, mut shards) = (Vec::new(), Vec::new());
    for start in (0..files.len()).step_by(SHARD_FILES) {
        let range = start..files.len().min(start + SHARD_FILES);
        let own = files.get(range.clone()).unwrap_or_default();
        let stamps: String = own.iter().map(|file| file.stamp.as_str()).collect();
        shards.push(Shard {
            id: format!(
                "{}..{}",
                own.first().map_or("", |file| &*file.name),
                own.last().map_or("", |file| &*file.name)
            ),
            bytes: own.iter().map(|file| file.bytes).sum(),
            rows: Some(own.len() as u64),
            stamp: format!("{:016x}", twox_hash::XxHash3_64::oneshot(stamps.as_bytes())),
        });
        ranges.push(range);
    }
    let (schema, limits) = (Arc::new(Schema::new(fields)), opening.limits.clone());
    Ok(Box::new(ArraySource { folder: Folder { files, ranges }, codec, path, schema, shards, limits }))
}

impl Source for ArraySource {
    fn format(&self) -> Format {
        Format::Numpy
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn shards(&self) -> &[Shard] {
        &self.shards
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.folder.paths()
    }

    fn place(&self, shard: usize, row: u64) -> Place {
        self.folder.place(shard, row)
    }

    fn read<'a>(&'a self, shard: usize, columns: &[usize], _: &'a Budget) -> Result<Box<dyn Batches + 'a>> {
        let schema = Arc::new(self.schema.project(columns).map_err(unexpected)?);
        Ok(Box::new(Reader { files: self.folder.of(shard), source: self, schema, consumed: 0 }))
    }
}

struct Reader<'a> {
    files: &'a [Found],
    source: &'a ArraySource,
    schema: SchemaRef,
    consumed: u64,
}

impl Batches for Reader<'_> {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let (mut arrays, mut paths) = (BinaryBuilder::new(), StringBuilder::new());
        let (files, rest) = self.files.split_at(files::batch(self.files));
        self.files = rest;
        let cells = Found::contents(files, &self.source.limits)?;
        for (file, cell) in files.iter().zip(cells) {
            // An invalid array is an error, even if its values are not requested.
            npy_read(self.source.codec, &cell, || Place::file(Arc::clone(&file.name)))?;
            arrays.append_value(&cell);
            let bare = file.name.rsplit_once('.').filter(|_| codec(&file.name).is_some());
            paths.append_value(bare.map_or(&*file.name, |(bare, _)| bare));
        }
        if files.is_empty() {
            return Ok(None);
        }
        self.consumed += files.iter().map(|file| file.bytes).sum::<u64>();
        let cells = arrays.finish();
        let paths: ArrayRef = Arc::new(paths.finish());
        let mut columns = Vec::with_capacity(2);
        for field in self.schema.fields() {
            columns.push(if self.source.path.as_ref() == Some(field.name()) {
                Arc::clone(&paths)
            } else {
                from_npy(&cells, self.source.codec, field)?
            });
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(files.len()));
        let batch = RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options);
        batch.map(Some).map_err(unexpected)
    }

    fn consumed(&self) -> u64 {
        self.consumed
    }
}

/// Returns true if a column names the rows' files.
fn is_path(field: &Field) -> bool {
    is_text(field.data_type()) && matches!(field.name().as_str(), "path" | "__key__")
}

#[derive(Debug, Clone)]
struct ArraySink {
    array: String,
    codec: Codec,
    path: Option<String>,
}

pub(crate) fn sink(schema: &SchemaRef, _: &ConvertOptions) -> Result<Box<dyn Sink>> {
    let (mut array, mut path) = (None, None);
    for field in schema.fields() {
        let stored = Stored::of(field.metadata()).and_then(Result::ok).map(|stored| stored.codec);
        let codec = match stored {
            Some(codec @ (Codec::Npy | Codec::Npz)) => Some(codec),
            _ => item(field.data_type()).and_then(dtype).map(|_| Codec::Npy),
        };
        if let (Some(codec), None) = (codec, &array) {
            array = Some((field.name().clone(), codec));
        } else if is_path(field) && path.is_none() {
            path = Some(field.name().clone());
        } else {
            let hint = "files hold one column of arrays or of lists of numbers, named by `path`; choose with --columns";
            return Err(refused(Format::Numpy, field, hint));
        }
    }
    let Some((array, codec)) = array else {
        return Err(Error::config("columns", "no column holds arrays or lists of numbers"));
    };
    Ok(Box::new(ArraySink { array, codec, path }))
}

impl Sink for ArraySink {
    fn format(&self) -> Format {
        Format::Numpy
    }

    fn flushes(&self) -> bool {
        false
    }

    fn writer(&self, directory: &Path, unit: &str) -> Result<Box<dyn Writer>> {
        Ok(Box::new(ArrayWriter {
            sink: self.clone(),
            directory: directory.to_owned(),
            prefix: unit.to_owned(),
            rows: 0,
            parts: Vec::new(),
        }))
    }

    fn name(&self, part: &Part, _: usize, _: usize) -> String {
        part.extra.as_str().unwrap_or(&part.name).to_owned()
    }
}

struct ArrayWriter {
    sink: ArraySink,
    directory: PathBuf,
    prefix: String,
    rows: u64,
    parts: Vec<Part>,
}

impl ArrayWriter {
    fn cell(&self, column: &ArrayRef, at: usize) -> Result<Vec<u8>> {
        let refused = |what: &str, hint: &str| refused_value(Format::Numpy, &self.sink.array, at, what, hint);
        if column.is_null(at) {
            return Err(refused("a null", "a row is a file"));
        }
        match column.as_list_opt::<i64>() {
            None => Ok(column.as_binary_view().value(at).to_vec()),
            Some(lists) => {
                let values = lists.value(at);
                if values.null_count() > 0 {
                    return Err(refused("a null in a list", "an array has no nulls"));
                }
                let found = dtype(values.data_type()).ok_or_else(|| refused("no numbers", ""))?;
                npy_cell(found, &[values.len()], &values)
            }
        }
    }
}

impl Writer for ArrayWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let Some(column) = batch.column_by_name(&self.sink.array) else { return Ok(()) };
        let column = match item(column.data_type()) {
            Some(inner) => {
                let large = DataType::LargeList(Arc::new(Field::new("item", inner.clone(), true)));
                as_type_of(&self.sink.array, column, &large)?
            }
            None => as_type_of(&self.sink.array, column, &DataType::BinaryView)?,
        };
        let paths = self.sink.path.as_ref().and_then(|name| batch.column_by_name(name));
        let paths = paths.map(|paths| as_type(paths, &DataType::Utf8)).transpose()?;
        let ending = if self.sink.codec == Codec::Npz { "npz" } else { "npy" };
        for at in 0..batch.num_rows() {
            let cell = self.cell(&column, at)?;
            let name = match &paths {
                Some(paths) => {
                    let column = self.sink.path.as_deref().unwrap_or("path");
                    let path = if paths.is_null(at) { "" } else { paths.as_string::<i32>().value(at) };
                    let plain = |part: &str| {
                        !part.is_empty()
                            && !part.starts_with(['.', '_'])
                            && !part.contains(['\\', '\0'])
                            && part.len() <= 200
                    };
                    if !path.split('/').all(plain) {
                        let what = format!("the path {:?}", path.chars().take(60).collect::<String>());
                        return Err(refused_value(Format::Numpy, column, at, &what, "it cannot name a file"));
                    }
                    format!("{path}.{ending}")
                }
                None => format!("{}_{:08}.{ending}", self.prefix, self.rows),
            };
            let path = self.directory.join(&name);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)
                    .map_err(|error| crate::store::directory::failed("create", parent, error))?;
            }
            if path.exists() {
                let column = self.sink.path.as_deref().unwrap_or("path");
                return Err(refused_value(Format::Numpy, column, at, &format!("a second file {name:?}"), ""));
            }
            // Not flushed one by one, as in image folders.
            std::fs::write(&path, &cell).map_err(|error| crate::store::directory::failed("write", &path, error))?;
            self.parts.push(Part { extra: Value::String(name.clone()), name, rows: 1, bytes: cell.len() as u64 });
            self.rows += 1;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<Part>> {
        Ok(self.parts)
    }
}

#[cfg(test)]
mod tests {
    use crate::convert::budget::Progress;
    use crate::convert::{ConvertOptions, convert};

    #[test]
    fn endings_in_capital_letters_are_files_of_numpy_too() {
        let directory = tempfile::tempdir().unwrap();
        let (src, out) = (directory.path().join("in"), directory.path().join("out.parquet"));
        std::fs::create_dir(&src).unwrap();
        let cell = super::npy_cell(
            crate::schema::DType::Uint8,
            &[1],
            &(std::sync::Arc::new(arrow::array::UInt8Array::from(vec![7])) as super::ArrayRef),
        );
        for name in ["a.npy", "B.NPY", "c.Npy"] {
            std::fs::write(src.join(name), cell.as_ref().unwrap()).unwrap();
        }
        std::fs::write(src.join("notes.txt"), "x").unwrap();
        let options = ConvertOptions { verify: true, ..ConvertOptions::default() };
        assert_eq!(convert(src.to_str().unwrap(), &out, &options, &Progress::default()).unwrap().rows, 3);
        std::fs::write(src.join("d.NPZ"), "x").unwrap();
        let error = convert(src.to_str().unwrap(), &directory.path().join("b"), &options, &Progress::default());
        assert!(error.unwrap_err().chain().contains("d.NPZ"));
    }
}
