//! TFRecord: records with checksums, of `tf.train.Example` or `tf.train.SequenceExample`, plain or compressed with gzip or zlib.
//!
//! ```text
//!   length u64 ─ masked crc32c of the length ─ bytes ─ masked crc32c of the bytes
//! ```
//! Features become columns: a single value is a scalar, several are a list, the steps of a sequence are a list of lists; a missing
//! feature is null.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use prost::Message;
use serde_json::Value;

use super::example::{self, Column, Encoder, Example, Guess};
use crate::convert::budget::{Budget, Progress};
use crate::convert::errors::unexpected;
use crate::convert::format::Format;
use crate::convert::limits::{BATCH_BYTES, BATCH_ROWS, Limits};
use crate::convert::options::{ConvertOptions, Packing};
use crate::convert::read::files::{self, Found};
use crate::convert::read::input::Input;
use crate::convert::read::listing::Listing;
use crate::convert::rolling::{Output, RollingWriter, Rows, ending};
use crate::convert::sink::{Part, Sink, Writer};
use crate::convert::source::{Batches, Nothing, Opening, Shard, Source, shards_of};
use crate::error::{Error, Place, Result};

/// Records of each file that types are inferred from.
const SAMPLE_RECORDS: usize = 1000;

/// Bytes of each file that types are inferred from.
const SAMPLE_BYTES: u64 = 16 << 20;

/// Files that types are inferred from.
const SAMPLE_FILES: usize = 16;

/// Computes the checksum of `bytes` in the masked form of records.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Appends `record` with its length and checksums to `out`.
pub fn write_record(record: &[u8], out: &mut Vec<u8>) {
    let len = (record.len() as u64).to_le_bytes();
    out.extend_from_slice(&len);
    out.extend_from_slice(&masked(&len).to_le_bytes());
    out.extend_from_slice(record);
    out.extend_from_slice(&masked(record).to_le_bytes());
}

/// Reads the records of one file, checking each.
#[derive(Debug)]
pub struct RecordReader {
    input: Input,
    limits: Limits,
    buffer: Vec<u8>,
}

impl RecordReader {
    /// Opens the file at `path`; compression is detected from its first bytes.
    ///
    /// # Errors
    /// `NotFound`, `Store`.
    pub fn open(path: &Path, limits: &Limits) -> Result<Self> {
        Self::of(&Found::of(path)?, limits)
    }

    fn of(found: &Found, limits: &Limits) -> Result<Self> {
        // A plain file begins with a length. One that looks like zlib's mark belongs to a record of 376 bytes or a few other sizes, and
        // has a checksum.
        let mut input = Input::open(found, false)?;
        let plain = match input.peek()?.first_chunk::<12>() {
            Some(start) => masked(&start[..8]).to_le_bytes() == start[8..],
            None => false,
        };
        if !plain {
            input = Input::open(found, true)?;
        }
        Ok(Self { input, limits: limits.clone(), buffer: Vec::new() })
    }

    /// Returns the next record; `None` at the end of the file.
    ///
    /// # Errors
    /// `Corrupt` with the offset for a wrong checksum or a truncated record; `Limit` for one that is too long, before it is read.
    #[expect(clippy::should_implement_trait, reason = "an iterator cannot lend")]
    pub fn next(&mut self) -> Result<Option<&[u8]>> {
        let at = self.input.offset();
        let mut head = [0; 12];
        match self.input.fill(&mut head)? {
            0 => return Ok(None),
            12 => {}
            read => return Err(self.input.corrupt(at, format!("it ends {read} bytes into the head of a record"))),
        }
        let (len, sum) = head.split_at(8);
        if masked(len).to_le_bytes() != sum {
            return Err(self.input.corrupt(at, "the checksum of a record's length is wrong"));
        }
        let len = len.first_chunk().map_or(0, |len| u64::from_le_bytes(*len));
        self.limits.record(self.input.name(), || format!("byte {at}: a record"), len)?;
        self.buffer.clear();
        let read = self.input.append(len, &mut self.buffer)?;
        let mut sum = [0; 4];
        if read < len || self.input.fill(&mut sum)? < 4 {
            return Err(self.input.corrupt(at, format!("it ends within a record of {len} bytes")));
        }
        if masked(&self.buffer).to_le_bytes() != sum {
            return Err(self.input.corrupt(at, "the checksum of a record is wrong"));
        }
        Ok(Some(&self.buffer))
    }

    /// Returns the next record as an example, with its offset.
    fn example(&mut self) -> Result<Option<(u64, Example)>> {
        let at = self.input.offset();
        let decoded = match self.next()? {
            Some(record) => Example::decode(record),
            None => return Ok(None),
        };
        let name = self.input.name();
        decoded.map(|example| Some((at, example))).map_err(|error| {
            let place = Place::file(Arc::clone(name));
            Error::corrupt_by(place, format!("byte {at}: a record is not a tf.train.Example"), error)
        })
    }
}

/// Counts the records of a file by their lengths, without decoding any.
pub(crate) fn count(found: &Found, limits: &Limits, progress: &Progress) -> Result<u64> {
    let mut input = RecordReader::of(found, limits)?.input;
    let mut records = 0;
    loop {
        progress.go_on()?;
        let (at, mut head) = (input.offset(), [0; 12]);
        let read = input.fill(&mut head)?;
        let len = head.first_chunk().map_or(0, |len| u64::from_le_bytes(*len)).saturating_add(4);
        if read == 0 {
            return Ok(records);
        }
        if read < head.len() || input.skip(len)? < len {
            return Err(input.corrupt(at, "it ends within a record"));
        }
        records += 1;
    }
}

#[derive(Debug)]
struct RecordSource {
    files: Vec<Found>,
    schema: SchemaRef,
    shards: Vec<Shard>,
    limits: Limits,
}

pub(crate) fn open(tree: &Listing, opening: &Opening) -> Result<Box<dyn Source>> {
    let files = tree.list(&opening.limits, &of_name)?;
    if files.is_empty() {
        let hint = "names hold .tfrecord, end in .tfrec or .tfr, or begin with part-r- as Spark's do".to_owned();
        return Err(Error::NotFound { what: "a TFRecord file".into(), hint });
    }
    let mut guesses: BTreeMap<String, Guess> = BTreeMap::new();
    let step = files.len().div_ceil(SAMPLE_FILES);
    for found in files.iter().step_by(step) {
        let mut reader = RecordReader::of(found, &opening.limits)?;
        for _ in 0..SAMPLE_RECORDS {
            if reader.input.offset() > SAMPLE_BYTES {
                break;
            }
            let Some((_, record)) = reader.example()? else { break };
            example::observe(&record, &mut guesses);
            opening.limits.columns(&found.name, || "its features".to_owned(), guesses.len())?;
        }
    }
    let mut fields: Vec<Field> = Vec::new();
    let given = opening.types.0.iter().map(|(name, _)| name);
    let written = opening.written.iter().flat_map(|schema| schema.fields()).map(|field| field.name());
    for name in written.chain(given).chain(guesses.keys()) {
        if fields.iter().any(|field| field.name() == name) {
            continue;
        }
        let data_type = match (opening.wanted(name), guesses.get(name)) {
            (Some(wanted), _) => wanted.clone(),
            (None, Some(guess)) => guess.data_type(name)?,
            (None, None) => continue,
        };
        let field = Field::new(name, data_type, true).with_metadata(opening.metadata(name));
        example::check(&field)?;
        fields.push(field);
    }
    let shards = shards_of(&files);
    let (schema, limits) = (Arc::new(Schema::new(fields)), opening.limits.clone());
    Ok(Box::new(RecordSource { files, schema, shards, limits }))
}

fn of_name(name: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    Format::of_name(last) == Some(Format::Tfrecord)
}

impl Source for RecordSource {
    fn format(&self) -> Format {
        Format::Tfrecord
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
        let reader = RecordReader::of(found, &self.limits)?;
        let schema = Arc::new(self.schema.project(columns).map_err(unexpected)?);
        let columns = schema.fields().iter().map(|field| Column::new(field)).collect::<Result<_>>()?;
        Ok(Box::new(Reader { reader, schema, whole: Arc::clone(&self.schema), columns, row: 0 }))
    }
}

struct Reader {
    reader: RecordReader,
    schema: SchemaRef,
    /// All columns: a record with any other is an error rather than a loss.
    whole: SchemaRef,
    columns: Vec<Column>,
    /// Records before the next one.
    row: u64,
}

impl Reader {
    fn known(&self, at: u64, example: &Example) -> Result<()> {
        let features = example.features.iter().flat_map(|features| features.feature.iter());
        let features = features.filter(|(_, feature)| feature.kind.is_some()).map(|(name, _)| name);
        let lists = example.feature_lists.iter().flat_map(|lists| lists.feature_list.keys());
        let mut names = features.map(|name| (name, false)).chain(lists.map(|name| (name, true)));
        let odd = names.find(|(name, sequence)| {
            let field = self.whole.field_with_name(name);
            field.is_err() || field.is_ok_and(|field| example::is_sequence(field.data_type()) != *sequence)
        });
        match odd {
            None => Ok(()),
            Some((name, _)) => {
                let what = format!(
                    "a record has the feature {name:?}, which the sample of the first ones does not have, or has in another form; give its type with --schema"
                );
                Err(self.reader.input.corrupt(at, what))
            }
        }
    }
}

impl Batches for Reader {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let start = self.reader.input.offset();
        let (first, mut rows) = (self.row, 0);
        while rows < BATCH_ROWS && self.reader.input.offset() - start < BATCH_BYTES as u64 {
            let Some((at, example)) = self.reader.example()? else { break };
            self.known(at, &example)?;
            for (column, field) in self.columns.iter_mut().zip(self.schema.fields()) {
                column.push(&example).map_err(|what| {
                    let place = Place::file(Arc::clone(self.reader.input.name())).column(field.name().as_str());
                    Error::corrupt(place.row(self.row), format!("byte {at}: {what}"))
                })?;
            }
            rows += 1;
            self.row += 1;
        }
        if rows == 0 {
            return Ok(None);
        }
        let name = self.reader.input.name();
        let arrays = self.columns.iter_mut().map(|column| {
            column.finish().map_err(|error| {
                let told = error.place().cloned().unwrap_or_default();
                let row = told.row.map(|row| first + row);
                error.at(Place { file: Some(Arc::clone(name)), row, ..told })
            })
        });
        let arrays = arrays.collect::<Result<_>>()?;
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options).map(Some).map_err(unexpected)
    }

    fn consumed(&self) -> u64 {
        self.reader.input.consumed()
    }
}

#[derive(Debug)]
struct RecordSink {
    schema: SchemaRef,
    packing: Packing,
    target: u64,
}

pub(crate) fn sink(schema: &SchemaRef, options: &ConvertOptions) -> Result<Box<dyn Sink>> {
    schema.fields().iter().try_for_each(|field| example::check(field))?;
    let allowed = ["none", "gzip"];
    let packing = Packing::parse(options.compression.as_deref(), Format::Tfrecord, &allowed, Packing::None)?;
    let target = if options.shards.is_some() { u64::MAX } else { options.target_file_size };
    Ok(Box::new(RecordSink { schema: Arc::clone(schema), packing, target }))
}

impl Sink for RecordSink {
    fn format(&self) -> Format {
        Format::Tfrecord
    }

    fn writer(&self, directory: &Path, _: &str) -> Result<Box<dyn Writer>> {
        let packing = self.packing;
        // If any column has steps, all records are sequences: TensorFlow parses a file as one of the two.
        let sequence = self.schema.fields().iter().any(|field| example::is_sequence(field.data_type()));
        let make = move |path: &Path| -> Result<Box<dyn Rows>> {
            Ok(Box::new(RecordRows { output: Output::create(path, packing)?, sequence }))
        };
        Ok(RollingWriter::writer(directory, &ending("tfrecord", self.packing), self.target, Arc::new(make)))
    }

    fn name(&self, _: &Part, number: usize, _: usize) -> String {
        format!("part-{number:05}.{}", ending("tfrecord", self.packing))
    }
}

struct RecordRows {
    output: Output,
    sequence: bool,
}

impl Rows for RecordRows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let fields = batch.schema();
        let columns = fields.fields().iter().zip(batch.columns());
        let columns = columns.map(|(field, column)| Encoder::new(field, column)).collect::<Result<Vec<_>>>()?;
        let (mut record, mut out) = (Vec::new(), Vec::new());
        for at in 0..batch.num_rows() {
            let mut example = Example { features: Some(Default::default()), feature_lists: None };
            if self.sequence {
                example.feature_lists = Some(Default::default());
            }
            for column in &columns {
                column.add(at, &mut example)?;
            }
            record.clear();
            example.encode(&mut record).map_err(|error| {
                Error::unsupported(format!("a record ({error})"), "").at(Place::default().row(at as u64))
            })?;
            write_record(&record, &mut out);
            if out.len() >= 256 << 10 {
                self.output.put(&out)?;
                out.clear();
            }
        }
        self.output.put(&out)
    }

    fn bytes(&self) -> u64 {
        self.output.bytes()
    }

    fn finish(self: Box<Self>) -> Result<(u64, Value)> {
        Ok((self.output.close()?, Value::Null))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_tensorflow() {
        // The head of an 8-byte record as TensorFlow writes it is checked against a TensorFlow file in the integration tests; here only
        // the mask is checked: crc32c of nothing is zero.
        assert_eq!(masked(b""), 0xa282_ead8);
        let mut out = Vec::new();
        write_record(b"abc", &mut out);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.tfrecord");
        for cut in 0..out.len() {
            std::fs::write(&path, &out[..cut]).unwrap();
            let outcome = RecordReader::open(&path, &Limits::default()).unwrap().next().map(|record| record.is_some());
            assert_eq!(outcome.is_ok(), cut == 0, "{cut}");
        }
        for flip in 0..out.len() * 8 {
            let mut bytes = out.clone();
            bytes[flip / 8] ^= 1 << (flip % 8);
            std::fs::write(&path, &bytes).unwrap();
            assert!(RecordReader::open(&path, &Limits::default()).unwrap().next().is_err(), "{flip}");
        }
        std::fs::write(&path, &out).unwrap();
        assert_eq!(RecordReader::open(&path, &Limits::default()).unwrap().next().unwrap(), Some(&b"abc"[..]));
        let mut long = Vec::new();
        long.extend_from_slice(&u64::MAX.to_le_bytes());
        long.extend_from_slice(&masked(&u64::MAX.to_le_bytes()).to_le_bytes());
        std::fs::write(&path, &long).unwrap();
        let error = RecordReader::open(&path, &Limits::default()).unwrap().next().map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Limit { asked: u64::MAX, .. }), "{error}");
    }
}
