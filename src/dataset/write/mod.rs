//! The native writer: Arrow batches to plain Parquet with a JSON schema in every footer, published at once or not at all.
//!
//! ```text
//!   batches ─► plain types ─► pieces ─► row groups ─► files ─┐ hidden directory
//!                                                                     └─ flush ─ _SUCCESS ─ rename ─► destination
//! ```
//! Cells of fields that carry [`Stored`](crate::schema::Stored) are encoded already, and stay as they are. With
//! [`WriterOptions::petastorm`] the dataset is one of Petastorm too.

mod alike;
mod decoded;
mod file;
mod options;
mod shrinking;
mod staging;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, FieldRef, IntervalUnit, Schema, SchemaRef, TimeUnit};
use arrow::error::ArrowError;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;

pub(crate) use file::FileWriter;
#[cfg(feature = "flight")]
pub(crate) use file::Sink;
pub use options::{Compression, WriterOptions};
#[cfg(feature = "flight")]
pub(crate) use shrinking::{CellForm, cell_form, long_cells};

use super::petastorm::{ROW_GROUP_COUNTS_KEY, UNISCHEMA_KEY, Unischema, row_group_counts_to_json};
use crate::error::{Error, Place, Result};
use crate::schema::extension::type_text;
use crate::schema::{STORED_KEY, cast};
use crate::store::directory::{Replace, failed, flush_file};
use crate::store::pinned::shown;
use alike::alike;
use staging::Staging;

/// Key of a footer's metadata: `{"fields": [{"name", "stored", "nullable"}]}` as JSON, where `stored` is a
/// [`Stored`](crate::schema::Stored) or null.
pub const SCHEMA_KEY: &str = "bowstring.schema.v1";

/// Bytes that go to the encoder at once, at most: pages, row groups and files can be ended between two pieces only.
const PIECE: usize = 4 << 20;
/// Pieces of a row group and of a file, at least, so that they are larger than they should be by a part of that at most.
const PIECES: usize = 8;

/// Size of the dataset that was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Written {
    /// Parquet files.
    pub files: usize,
    /// Rows.
    pub rows: u64,
    /// Row groups.
    pub row_groups: u64,
    /// Bytes of the files.
    pub bytes: u64,
}

/// Writes a dataset. Nothing of it can be seen before [`finish`](Self::finish); dropped before that, nothing stays.
///
/// ```
/// use std::sync::Arc;
/// use arrow::array::{Int64Array, RecordBatch};
/// use arrow::datatypes::{DataType, Field, Schema};
/// use bowstring::dataset::{DatasetWriter, WriterOptions};
///
/// # let directory = std::env::temp_dir().join(format!("bowstring-doc-{}", std::process::id()));
/// # let path = directory.join("numbers");
/// let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
/// let mut writer = DatasetWriter::create(&path, Arc::clone(&schema), WriterOptions::default())?;
/// let ids = Int64Array::from_iter_values(0..1000);
/// writer.write(&RecordBatch::try_new(schema, vec![Arc::new(ids)]).unwrap())?;
/// assert!(!path.exists());
/// let written = writer.finish()?;
/// assert_eq!((written.files, written.rows), (1, 1000));
/// assert!(path.join("part-00000.parquet").is_file());
/// # std::fs::remove_dir_all(&directory).unwrap();
/// # Ok::<(), bowstring::Error>(())
/// ```
#[derive(Debug)]
pub struct DatasetWriter {
    options: WriterOptions,
    properties: WriterProperties,
    /// With plain types.
    schema: SchemaRef,
    /// Before `staging`: a file is closed before its directory is removed.
    open: Option<Open>,
    staging: Staging,
    /// The files that are closed.
    files: Vec<Finished>,
    failed: bool,
}

/// A file that is closed.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) name: String,
    pub(crate) rows: u64,
    pub(crate) row_groups: u64,
    pub(crate) bytes: u64,
}

/// The file that is being written.
struct Open {
    name: String,
    rows: usize,
    writer: FileWriter<File>,
}

impl std::fmt::Debug for Open {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Open({}, {} rows)", self.name, self.rows)
    }
}

impl DatasetWriter {
    /// A writer of a dataset with fields `schema`, to be a directory at `path`. String and byte views, and large strings and bytes,
    /// are written as plain ones, which every reader knows. Parquet has no times of seconds and no dates of 64 bits: they are
    /// written as milliseconds and as dates of 32 bits, and a value that is none of them, such as a date with a time of day, is refused.
    ///
    /// The data is gathered in a hidden directory beside `path`, whose parents are made. A process that is killed leaves it there,
    /// where no reader takes it for data; the next writer to `path` removes it, where the file system has locks.
    ///
    /// # Errors
    /// `Config` names the option that is impossible, `overwrite` if something is at `path`, `overwrite_foreign` if that is no dataset of
    /// bowstring; `Unsupported` for types that Parquet does
    /// not have; `Store` if the directory cannot be made.
    pub fn create(path: &Path, schema: SchemaRef, options: WriterOptions) -> Result<Self> {
        let mut fields: Vec<Field> = schema.fields().iter().map(plain_field).collect();
        if let Some(unischema) = &options.petastorm {
            describe(&mut fields, unischema)?;
        }
        let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
        let properties = options.check(&schema)?;
        // Types that Parquet does not have are found before anything is on the disk.
        for field in schema.fields() {
            if let Some(Lacking { why, instead }) = lacking(field.data_type()) {
                let what = format!("writing column {:?} of type {} as Parquet", field.name(), field.data_type());
                return Err(Error::unsupported(what, format!("{why}; {instead}")));
            }
        }
        FileWriter::new(io::sink(), Arc::clone(&schema), properties.clone()).map_err(|error| refused(path, error))?;
        let replace = Replace { overwrite: options.overwrite, foreign: options.overwrite_foreign };
        let staging = Staging::create(path, replace)?;
        Ok(Self { options, properties, schema, open: None, staging, files: Vec::new(), failed: false })
    }

    /// The schema as it is written: with plain strings and bytes.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Adds the rows of `batch`, whose columns have the names of the schema in its order.
    ///
    /// # Errors
    /// `Mismatch` if the columns are not those of the schema, are of other extension types or have nulls where there must be none; members of
    /// structs may be in another order. `Store` if the disk fails, `Unsupported` for a cell of more than 2 GiB: after these two, nothing more can be written, and `Closed` says so.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.usable()?;
        self.agree(batch)?;
        let rows = batch.num_rows();
        let bytes: usize = batch.columns().iter().map(bytes).sum();
        let step = (self.piece_bytes() / (bytes / rows.max(1)).max(1)).max(1);
        let mut at = 0;
        while at < rows {
            let mut len = step.min(rows - at);
            if let Some(most) = self.options.rows_per_file {
                len = len.min(most - self.open.as_ref().map_or(0, |open| open.rows));
            }
            let outcome = self.piece(&batch.slice(at, len));
            self.failed |= outcome.is_err();
            outcome?;
            at += len;
        }
        Ok(())
    }

    /// Adds the rows of all of `batches`, which belong together: if they end in an error after some rows are written, nothing more can
    /// be written and nothing is published, so that whoever gives them once more does not write the first ones twice.
    ///
    /// # Errors
    /// As [`write`](Self::write), and the errors of `batches`. `Closed` from then on, unless nothing was written of them.
    pub fn write_all(&mut self, batches: impl IntoIterator<Item = Result<RecordBatch>>) -> Result<()> {
        let mut begun = false;
        for batch in batches {
            let rows = batch.and_then(|batch| self.write(&batch).map(|()| batch.num_rows()));
            self.failed |= begun && rows.is_err();
            begun |= rows? > 0;
        }
        Ok(())
    }

    /// Closes the files, brings them to the disk, and makes the dataset appear.
    ///
    /// # Errors
    /// `Store` if the disk fails; `Config` if something is at the destination by now. The dataset is then not there. An old dataset
    /// that is replaced is taken away a moment before the new one appears; `Store` of operation `remove` means that it could not be
    /// deleted, while the new one is there.
    pub fn finish(mut self) -> Result<Written> {
        self.end()?;
        self.files.iter().try_for_each(|file| flush_file(&self.staging.path(&file.name)))?;
        if let Some(petastorm) = self.options.petastorm.take() {
            self.common_metadata(&petastorm)?;
        }
        self.staging.publish()?;
        let sum = |of: fn(&Finished) -> u64| self.files.iter().map(of).sum();
        Ok(Written {
            files: self.files.len(),
            rows: sum(|file| file.rows),
            row_groups: sum(|file| file.row_groups),
            bytes: sum(|file| file.bytes),
        })
    }

    /// Ends the open file if the kept part of its finished row groups takes more than `most` bytes.
    ///
    /// # Errors
    /// [`Error::Store`] if the disk fails.
    #[cfg(feature = "flight")]
    pub(crate) fn end_beyond(&mut self, most: usize) -> Result<()> {
        if self.open.as_ref().is_none_or(|open| open.writer.footer_size() <= most) {
            return Ok(());
        }
        let outcome = self.close();
        self.failed |= outcome.is_err();
        outcome
    }

    /// Approximate bytes of memory of the open file: the row group that is gathered, and what is kept of finished ones.
    #[cfg(feature = "flight")]
    pub(crate) fn memory_size(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.writer.memory_size())
    }

    /// Approximate bytes of the files, and of the row group that is gathered.
    #[cfg(feature = "flight")]
    pub(crate) fn stored_bytes(&self) -> u64 {
        let open = self.open.as_ref().map_or(0, |open| open.writer.bytes_written() + open.writer.gathered_bytes());
        self.files.iter().map(|file| file.bytes).sum::<u64>() + open as u64
    }

    /// Ends the row group that is gathered.
    ///
    /// # Errors
    /// `Store` if the disk fails.
    #[cfg(feature = "flight")]
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.usable()?;
        let Some(open) = &mut self.open else { return Ok(()) };
        let outcome = open.writer.flush().map_err(|error| refused(&self.staging.path(&open.name), error));
        self.failed |= outcome.is_err();
        outcome
    }

    /// Closes the files and moves them into `directory` on the same disk. They are no dataset then, and need not be on the disk.
    #[cfg(feature = "convert")]
    pub(crate) fn finish_into(mut self, directory: &Path) -> Result<Vec<Finished>> {
        self.end()?;
        for file in &self.files {
            let from = self.staging.path(&file.name);
            std::fs::rename(&from, directory.join(&file.name)).map_err(|error| failed("rename", &from, error))?;
        }
        Ok(self.files)
    }

    /// Closes all files; there is at least one.
    fn end(&mut self) -> Result<()> {
        self.usable()?;
        if self.open.is_none() && self.files.is_empty() {
            // Without rows there is still a schema.
            self.open()?;
        }
        self.close()
    }

    fn usable(&self) -> Result<()> {
        if self.failed {
            let why = "writing failed before, when part of the rows was written; start again with a new writer";
            return Err(Error::Closed { why: why.into() });
        }
        Ok(())
    }

    /// Checks that the batch has the columns of the schema.
    fn agree(&self, batch: &RecordBatch) -> Result<()> {
        let mismatch = |what: String, expected: String, found: String| Error::Mismatch {
            what,
            expected,
            found,
            hint: "every batch has the columns that the writer was made with, in their order".into(),
        };
        let (own, given) = (self.schema.fields(), batch.schema_ref().fields());
        if own.len() != given.len() {
            return Err(mismatch("columns of a batch".into(), own.len().to_string(), given.len().to_string()));
        }
        for ((own, given), column) in own.iter().zip(given).zip(batch.columns()) {
            let what = || format!("column {:?} of a batch", own.name());
            if own.name() != given.name() {
                return Err(mismatch(what(), own.name().clone(), given.name().clone()));
            }
            if !alike(own, &plain_field(given)) {
                return Err(mismatch(what(), type_text(own), type_text(given)));
            }
            if !own.is_nullable() && column.logical_null_count() > 0 {
                let nulls = format!("{} nulls", column.logical_null_count());
                return Err(mismatch(what(), "no nulls".into(), nulls));
            }
        }
        Ok(())
    }

    /// Bytes of a piece, however the rows are given.
    fn piece_bytes(&self) -> usize {
        let file = match self.options.rows_per_file {
            Some(_) => usize::MAX,
            None => usize::try_from(self.options.file_bytes).unwrap_or(usize::MAX),
        };
        PIECE.min(self.options.group_bytes.min(file) / PIECES)
    }

    /// Writes a piece of at most a few megabytes that fits the open file.
    fn piece(&mut self, piece: &RecordBatch) -> Result<()> {
        let mut columns = Vec::with_capacity(piece.num_columns());
        for (column, field) in piece.columns().iter().zip(self.schema.fields()) {
            let cast = |column: &ArrayRef, to| cast(column, to).map_err(|misfit| unwritable(field, &misfit.into()));
            columns.push(match (column.data_type(), field.data_type()) {
                // Of a large dictionary only the values of these rows are cast; the others need not fit either.
                (DataType::Dictionary(_, given), to @ DataType::Dictionary(_, values))
                    if given != values && column.as_any_dictionary().values().len() > column.len() =>
                {
                    cast(&cast(column, given)?, to)?
                }
                (_, to) => cast(column, to)?,
            });
        }
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns);
        let batch = batch.map_err(|error| {
            Error::unsupported(
                format!("writing a batch ({error})"),
                "nulls are only for nullable fields, in lists and structs too",
            )
        })?;
        let rows = batch.num_rows();
        let (name, stored, total) = {
            let open = self.open()?;
            let outcome = open.writer.write(&batch);
            open.rows += rows;
            let stored = open.writer.bytes_written() + open.writer.gathered_bytes();
            (open.name.clone(), outcome.map(|()| stored), open.rows)
        };
        let stored = stored.map_err(|error| refused(&self.staging.path(&name), error))?;
        if self.options.rows_per_file.map_or(stored as u64 >= self.options.file_bytes, |most| total >= most) {
            self.close()?;
        }
        Ok(())
    }

    /// The open file; a new one if none is open.
    fn open(&mut self) -> Result<&mut Open> {
        let open = match self.open.take() {
            Some(open) => open,
            None => {
                let name = format!("part-{:05}.parquet", self.files.len());
                let file = self.staging.file(&name)?;
                let (schema, properties) = (Arc::clone(&self.schema), self.properties.clone());
                let writer = FileWriter::new(file, schema, properties);
                let writer = writer.map_err(|error| refused(&self.staging.path(&name), error))?;
                Open { name, rows: 0, writer }
            }
        };
        Ok(self.open.insert(open))
    }

    /// Ends the open file, if there is one.
    fn close(&mut self) -> Result<()> {
        let Some(Open { name, rows, writer }) = self.open.take() else { return Ok(()) };
        let (row_groups, bytes) = end(writer, &self.staging.path(&name))?;
        self.files.push(Finished { name, rows: rows as u64, row_groups, bytes });
        Ok(())
    }

    /// Writes `_common_metadata`: a footer with the schema and Petastorm's keys, and no rows.
    fn common_metadata(&self, petastorm: &Unischema) -> Result<()> {
        let name = "_common_metadata";
        let path = self.staging.path(name);
        let file = self.staging.file(name)?;
        let writer = FileWriter::new(file, Arc::clone(&self.schema), self.properties.clone());
        let mut writer = writer.map_err(|error| refused(&path, error))?;
        let counts = self.files.iter().map(|file| (file.name.clone(), file.row_groups as usize)).collect();
        let counts = row_group_counts_to_json(&counts);
        // The pickle is ASCII, as all metadata of footers are text.
        let pickle = String::from_utf8(petastorm.to_pickle()?)
            .map_err(|error| Error::corrupt_by(Place::file(name), "the schema's pickle is not text", error))?;
        writer.append_key_value_metadata(KeyValue::new(UNISCHEMA_KEY.to_owned(), pickle));
        writer.append_key_value_metadata(KeyValue::new(ROW_GROUP_COUNTS_KEY.to_owned(), counts));
        end(writer, &path)?;
        flush_file(&path)
    }
}

/// Adds to fields what `unischema` says of their cells, and checks that it has them all.
fn describe(fields: &mut [Field], unischema: &Unischema) -> Result<()> {
    let known = |name: &String| unischema.fields.iter().find(|field| field.name == *name);
    for field in &mut *fields {
        let Some(known) = known(field.name()) else {
            let problem = format!("column {:?} is not in the schema {:?}", field.name(), unischema.name);
            return Err(Error::config("petastorm", problem));
        };
        let Some(stored) = known.stored()? else { continue };
        if !matches!(field.data_type(), DataType::Binary) {
            let problem =
                format!("column {:?} holds encoded cells, so it is binary, not {}", field.name(), field.data_type());
            return Err(Error::config("petastorm", problem));
        }
        if !field.metadata().contains_key(STORED_KEY) {
            let mut metadata = field.metadata().clone();
            let (key, value) = stored.metadata();
            metadata.insert(key, value);
            *field = field.clone().with_metadata(metadata);
        }
    }
    match unischema.fields.iter().find(|known| fields.iter().all(|field| *field.name() != known.name)) {
        None => Ok(()),
        Some(missing) => {
            let problem = format!("field {:?} of schema {:?} is not a column", missing.name, unischema.name);
            Err(Error::config("petastorm", problem))
        }
    }
}

/// Writes the footer: row groups and bytes.
fn end(mut writer: FileWriter<File>, path: &Path) -> Result<(u64, u64)> {
    let metadata = writer.finish().map_err(|error| refused(path, error))?;
    let bytes = writer.inner().metadata().map_err(|error| failed("look up", path, error))?.len();
    Ok((metadata.num_row_groups() as u64, bytes))
}

/// Bytes of the values of `array`; of views only those that it shows.
fn bytes(array: &ArrayRef) -> usize {
    let views = match array.data_type() {
        DataType::Utf8View => Some(array.as_string_view().views()),
        DataType::BinaryView => Some(array.as_binary_view().views()),
        _ => None,
    };
    match views {
        // The low half of a view is the length.
        Some(views) => views.iter().map(|view| 4 + (*view as u32) as usize).sum(),
        None => array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_array_memory_size()),
    }
}

/// Values that Parquet does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lacking {
    pub(crate) why: &'static str,
    /// What its user may do.
    instead: &'static str,
}

/// What of `data_type`, at any depth, Parquet does not have. Of intervals, its writer says so with the first rows only; of empty structs, without
/// the name of a column; and unions make it panic.
pub(crate) fn lacking(data_type: &DataType) -> Option<Lacking> {
    let (why, instead) = match data_type {
        DataType::Interval(IntervalUnit::MonthDayNano) => {
            ("its intervals have no nanoseconds", "store them as a duration, a text, or three columns of integers")
        }
        DataType::Union(..) => ("it has no unions", "store a column for each of their types, or a text"),
        DataType::Struct(fields) if fields.is_empty() => {
            ("it has no structs without fields", "leave the column out, or give the struct a field")
        }
        DataType::Struct(fields) => return fields.iter().find_map(|field| lacking(field.data_type())),
        DataType::List(field)
        | DataType::LargeList(field)
        | DataType::ListView(field)
        | DataType::LargeListView(field)
        | DataType::FixedSizeList(field, _)
        | DataType::RunEndEncoded(_, field)
        | DataType::Map(field, _) => return lacking(field.data_type()),
        DataType::Dictionary(_, values) => return lacking(values),
        _ => return None,
    };
    Some(Lacking { why, instead })
}

/// The type that every reader of Parquet makes of such values: views and large strings and bytes are plain ones.
fn plain(data_type: &DataType) -> DataType {
    let inner = |field: &FieldRef| Arc::new(plain_field(field));
    match data_type {
        DataType::Utf8View | DataType::LargeUtf8 => DataType::Utf8,
        DataType::BinaryView | DataType::LargeBinary => DataType::Binary,
        DataType::List(field) | DataType::ListView(field) => DataType::List(inner(field)),
        DataType::LargeList(field) | DataType::LargeListView(field) => DataType::LargeList(inner(field)),
        DataType::FixedSizeList(field, length) => DataType::FixedSizeList(inner(field), *length),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        DataType::Map(field, sorted) => DataType::Map(inner(field), *sorted),
        // Readers see only the values, which may be large strings as they are.
        DataType::RunEndEncoded(ends, values) => {
            let time = plain_time(values.data_type());
            DataType::RunEndEncoded(Arc::clone(ends), Arc::new(values.as_ref().clone().with_data_type(time)))
        }
        other => plain_time(other),
    }
}

/// A time as Parquet has it, which has neither seconds nor dates of 64 bits: without a type of its own it is a mere integer for readers. Any
/// other type as it is.
fn plain_time(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Timestamp(TimeUnit::Second, zone) => DataType::Timestamp(TimeUnit::Millisecond, zone.clone()),
        DataType::Time32(TimeUnit::Second) => DataType::Time32(TimeUnit::Millisecond),
        DataType::Date64 => DataType::Date32,
        DataType::Dictionary(keys, values) => DataType::Dictionary(keys.clone(), Box::new(plain_time(values))),
        other => other.clone(),
    }
}

fn plain_field(field: &FieldRef) -> Field {
    field.as_ref().clone().with_data_type(plain(field.data_type()))
}

fn unwritable(field: &Field, error: &ArrowError) -> Error {
    Error::unsupported(format!("writing column {:?} ({error})", field.name()), "")
}

/// Error of the Parquet writer: the disk failed, or it cannot write such data.
fn refused(path: &Path, error: ParquetError) -> Error {
    match error {
        ParquetError::External(source) => {
            let url = shown(path).display().to_string();
            Error::Store { operation: "write".into(), url, source }
        }
        other => Error::unsupported(format!("writing {} ({other})", shown(path).display()), ""),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use arrow::array::Int64Array;

    use super::*;

    #[test]
    fn a_full_disk_is_an_error_of_the_store() {
        let schema = Arc::new(Schema::new(vec![Field::new("id", DataType::Int64, false)]));
        let ids = Arc::new(Int64Array::from_iter_values(0..100_000));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![ids]).unwrap();
        // The device takes opening and refuses each byte.
        let path = Path::new("/dev/full");
        let open = || {
            let file = File::options().write(true).open(path).unwrap();
            FileWriter::new(file, Arc::clone(&schema), WriterProperties::default()).unwrap()
        };
        let (mut flushed, mut ended) = (open(), open());
        let flushed = flushed.write(&batch).and_then(|()| flushed.flush()).map_err(|error| refused(path, error));
        ended.write(&batch).unwrap();
        for error in [flushed.unwrap_err(), end(ended, path).unwrap_err()] {
            let Error::Store { operation, source, .. } = error else { panic!("{error:?}") };
            assert_eq!(operation, "write");
            let source = source.downcast_ref::<io::Error>().unwrap();
            assert_eq!(source.kind(), io::ErrorKind::StorageFull);
        }
    }
}
