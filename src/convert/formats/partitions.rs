//! Columns of `key=value` directories, after the columns of the files: for formats whose readers know nothing of directories.
//!
//! Names, escapes, nulls and types are those of Parquet's directories. Unlike there, a file without a key that others have is an error,
//! and so is a column of the files with the name of a key: text is often written by hand, and one of the two would be lost.

use std::path::PathBuf;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow::compute::take;
use arrow::datatypes::{Field, Schema, SchemaRef};

use crate::convert::budget::Budget;
use crate::convert::errors::{refused, unexpected};
use crate::convert::format::Format;
use crate::convert::source::{Batches, Opening, Shard, Source, Text};
use crate::convert::types::type_text;
use crate::convert::values::scalar::{growing, shown};
use crate::dataset::hive::{self, Values};
use crate::error::{Error, Place, Result};

#[derive(Debug)]
struct Partitioned {
    files: Box<dyn Source>,
    schema: SchemaRef,
    /// The values of each shard, in the order of the columns.
    values: Vec<Values>,
    /// For each key, whether its type was given.
    given: Vec<bool>,
}

/// Adds the columns of the directories that `files` lie in, if these are `key=value`. Those of images are classes, those of arrays are in
/// `path`, and an index of MDS names its directories.
///
/// # Errors
/// `Mismatch` for files with different keys, `Unsupported` for a key that is there twice or is a column of the files too, and for a given
/// type that no text has.
pub(super) fn partitioned(files: Box<dyn Source>, opening: &Opening) -> Result<Box<dyn Source>> {
    match files.format() {
        Format::Arrow | Format::Csv | Format::Tsv | Format::Jsonl | Format::Tfrecord | Format::Webdataset => {}
        _ => return Ok(files),
    }
    let values: Vec<Values> = files.shards().iter().map(|shard| hive::values(&shard.id)).collect();
    if values.iter().all(Vec::is_empty) {
        return Ok(files);
    }
    check(&*files, &values)?;
    let mut given = Vec::new();
    let mut fields: Vec<Arc<Field>> = files.schema().fields().iter().cloned().collect();
    for field in hive::fields(values.iter(), false) {
        let wanted = opening.wanted(field.name());
        given.push(wanted.is_some());
        let field = wanted.map_or_else(|| field.clone(), |wanted| field.clone().with_data_type(wanted.clone()));
        if wanted.is_some() && growing(field.data_type(), true).is_none() {
            return Err(refused(files.format(), &field, "give a type that a text can be read as"));
        }
        fields.push(Arc::new(field));
    }
    let schema = Arc::new(Schema::new_with_metadata(fields, files.schema().metadata().clone()));
    Ok(Box::new(Partitioned { files, schema, values, given }))
}

/// Checks that all files have the same keys, each once, and none of them as a column.
fn check(files: &dyn Source, values: &[Values]) -> Result<()> {
    const HINT: &str = "convert the directories one by one, or rename them";
    let keys = |values: &Values| values.iter().map(|(key, _)| &**key).collect::<Vec<_>>().join(", ");
    let shown = |values: &Values| if values.is_empty() { "none".to_owned() } else { keys(values) };
    let (Some(first), Some(shard)) = (values.first(), files.shards().first()) else { return Ok(()) };
    for (other, values) in files.shards().iter().zip(values) {
        if keys(first) != keys(values) {
            return Err(Error::Mismatch {
                what: format!("keys of the directories of {} and {}", file(shard), file(other)),
                expected: shown(first),
                found: shown(values),
                hint: HINT.to_owned(),
            });
        }
    }
    for (number, (key, _)) in first.iter().enumerate() {
        if first[..number].iter().any(|(earlier, _)| earlier == key) {
            let what = format!("two directories of {key:?}, one in the other,");
            return Err(Error::unsupported(what, HINT).at(Place::file(file(shard))));
        }
        if files.schema().field_with_name(key).is_ok() {
            let what = format!("a column {key:?} in the files of {} and in their directories", files.format());
            return Err(Error::unsupported(what, HINT).at(Place::file(file(shard))));
        }
    }
    Ok(())
}

/// The name of the file of a shard, without the number of a piece.
fn file(shard: &Shard) -> &str {
    match shard.id.rsplit_once('@') {
        Some((name, piece)) if piece.parse::<usize>().is_ok() => name,
        _ => &shard.id,
    }
}

impl Partitioned {
    /// The value of key number `key` in shard `shard`, as an array of one.
    fn value(&self, shard: usize, key: usize) -> Result<ArrayRef> {
        let field = self.schema.field(self.files.schema().fields().len() + key);
        let value = self.values.get(shard).and_then(|values| values.get(key)).and_then(|(_, value)| value.as_deref());
        if !self.given.get(key).copied().unwrap_or(false) {
            return hive::constant(value, field.data_type(), 1).map_err(unexpected);
        }
        let hint = "give a type that a text can be read as";
        let mut array = growing(field.data_type(), true).ok_or_else(|| refused(self.format(), field, hint))?;
        match value {
            Some(text) => array.push(text).map_err(|why| {
                let place = self.files.shards().get(shard).map(|shard| Place::file(file(shard))).unwrap_or_default();
                let (text, kind) = (shown(text), type_text(field.data_type()));
                let what =
                    format!("its directory's {text} is not a valid {kind}: {why}; give another type with --schema");
                Error::corrupt(place.column(field.name().as_str()), what)
            })?,
            None => array.null(),
        }
        Ok(array.finish())
    }
}

impl Source for Partitioned {
    fn format(&self) -> Format {
        self.files.format()
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn shards(&self) -> &[Shard] {
        self.files.shards()
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.files.paths()
    }

    fn read<'a>(&'a self, shard: usize, columns: &[usize], budget: &'a Budget) -> Result<Box<dyn Batches + 'a>> {
        let width = self.files.schema().fields().len();
        let (own, keys) = columns.split_at(columns.partition_point(|number| *number < width));
        // Something has to tell the number of rows.
        let read = if own.is_empty() && width > 0 { &[0] } else { own };
        let values = keys.iter().map(|number| self.value(shard, number - width)).collect::<Result<_>>()?;
        let schema = Arc::new(self.schema.project(columns).map_err(unexpected)?);
        let batches = self.files.read(shard, read, budget)?;
        Ok(Box::new(Rows { batches, schema, own: own.len(), values }))
    }

    fn place(&self, shard: usize, row: u64) -> Place {
        self.files.place(shard, row)
    }

    fn texts(&self) -> Vec<Text> {
        let mut texts = self.files.texts();
        for text in &mut texts {
            text.directories = self.values.get(text.shards.start).cloned().unwrap_or_default();
        }
        texts
    }
}

/// Batches of files, each with the same values added.
struct Rows<'a> {
    batches: Box<dyn Batches + 'a>,
    schema: SchemaRef,
    /// Columns of the batches that were asked for.
    own: usize,
    /// Arrays of one value.
    values: Vec<ArrayRef>,
}

impl Batches for Rows<'_> {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let Some(batch) = self.batches.next()? else { return Ok(None) };
        let rows = batch.num_rows();
        let each = UInt32Array::from_value(0, rows);
        let mut arrays: Vec<ArrayRef> = batch.columns().iter().take(self.own).cloned().collect();
        for value in &self.values {
            arrays.push(take(value, &each, None).map_err(unexpected)?);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options).map(Some).map_err(unexpected)
    }

    fn consumed(&self) -> u64 {
        self.batches.consumed()
    }
}
