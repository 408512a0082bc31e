//! Arrow IPC: files, streams and Feather version 2, read message by message.
//!
//! A file is a stream between two magics: both are read from front to back. A message is framed and checked here, what it claims
//! to unpack to is counted, and only then does Arrow see it; Arrow's own checks of the buffers follow.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::buffer::Buffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow::ipc::{CompressionType, MessageHeader, root_as_message};
use serde_json::Value;

use super::chain::unexpected;
use super::files::Found;
use super::format::Format;
use super::gate::{Gate, Permit};
use super::input::{Input, Packed};
use super::options::{ConvertOptions, Packing};
use super::roll::{Output, Rolling, Rows};
use super::sink::{Part, Sink, Writer};
use super::source::slices;
use super::source::{Batches, Opening, Shard, Source};
use super::tree::Tree;
use crate::error::{Error, Place, Result};

/// Bytes of the metadata of one message: columns and buffers, no values.
const MAX_METADATA: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct IpcSource {
    format: Format,
    files: Vec<Found>,
    schema: SchemaRef,
    shards: Vec<Shard>,
}

pub(super) fn open(tree: &Tree, opening: &Opening) -> Result<Box<dyn Source>> {
    let files = tree.list(&opening.limits, &|name| Format::of_name(name) == Some(Format::Arrow))?;
    Ok(Box::new(IpcSource::new(Format::Arrow, files, opening)?))
}

impl IpcSource {
    /// Reads the schema of each file; all must be the same.
    pub(super) fn new(format: Format, files: Vec<Found>, opening: &Opening) -> Result<Self> {
        let mut schema: Option<SchemaRef> = None;
        for file in &files {
            let found = Frames::open(file)?.schema()?;
            opening.limits.columns(|| format!("file {}: its schema", file.name), found.fields().len())?;
            match &schema {
                None => schema = Some(found),
                Some(first) if first.fields() == found.fields() => {}
                Some(first) => {
                    return Err(Error::Mismatch {
                        what: format!("the columns of file {} and of the first one", file.name),
                        expected: format!("{:?}", super::types::schema_json(first)),
                        found: format!("{:?}", super::types::schema_json(&found)),
                        hint: "convert them one by one".into(),
                    });
                }
            }
        }
        let Some(schema) = schema else {
            return Err(Error::NotFound {
                what: "an Arrow file".into(),
                hint: "names end in .arrow or .feather".into(),
            });
        };
        let shard = |found: &Found| Shard {
            id: found.name.to_string(),
            bytes: found.bytes,
            rows: None,
            stamp: found.stamp.clone(),
        };
        let shards = files.iter().map(shard).collect();
        Ok(Self { format, files, schema, shards })
    }
}

impl Source for IpcSource {
    fn format(&self) -> Format {
        self.format
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn shards(&self) -> &[Shard] {
        &self.shards
    }

    fn read<'a>(&'a self, shard: usize, columns: &[usize], gate: &'a Gate) -> Result<Box<dyn Batches + 'a>> {
        let Some(found) = self.files.get(shard) else { return Ok(Box::new(super::source::Nothing)) };
        let mut frames = Frames::open(found)?;
        frames.schema()?;
        Ok(Box::new(Reader { frames, columns: columns.to_vec(), gate, permit: None, ready: Vec::new() }))
    }
}

struct Reader<'a> {
    frames: Frames,
    columns: Vec<usize>,
    gate: &'a Gate,
    /// The bytes of the batch that is being given out.
    permit: Option<Permit<'a>>,
    ready: Vec<RecordBatch>,
}

impl Batches for Reader<'_> {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.ready.pop() {
                return Ok(Some(batch));
            }
            self.permit = None;
            let batch = match self.frames.early.take() {
                Some(batch) => Some(batch),
                None if self.frames.ended => return Ok(None),
                None => match self.frames.header()? {
                    Some((header, body)) => {
                        let name = || format!("file {}: a batch", self.frames.input.name());
                        self.permit = Some(self.gate.reserve(body, name)?);
                        self.frames.message(header)?
                    }
                    None => self.frames.end()?,
                },
            };
            if let Some(batch) = batch {
                let batch = batch.project(&self.columns).map_err(unexpected)?;
                self.ready = slices(&batch).collect();
                self.ready.reverse();
            }
        }
    }

    fn consumed(&self) -> u64 {
        self.frames.input.consumed()
    }
}

/// A stream of messages.
struct Frames {
    input: Input,
    decoder: StreamDecoder,
    size: u64,
    packed: bool,
    /// A batch that came when the schema was asked for: Arrow ends a message without a body only when the next one begins.
    early: Option<RecordBatch>,
    ended: bool,
}

/// The start of a message: prefix and metadata, and how many bytes follow.
struct Header {
    bytes: Vec<u8>,
    body: usize,
    at: u64,
}

impl Frames {
    fn open(found: &Found) -> Result<Self> {
        let mut input = Input::open(found, false)?;
        match input.peek()? {
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => {
                input.skip(8)?;
                // Writers fill up to their alignment, of 64 bytes at most.
                for _ in 0..14 {
                    if !input.peek()?.starts_with(&[0; 4]) {
                        break;
                    }
                    input.skip(4)?;
                }
            }
            [b'F', b'E', b'A', b'1', ..] => {
                return Err(Error::Unsupported {
                    what: format!("file {}: Feather version 1", found.name),
                    hint: "write it again with pyarrow.feather.write_feather, which writes version 2".into(),
                });
            }
            _ => {}
        }
        // What unpacks has no size to hold claims against.
        let packed = !matches!(files_packed(found), Packed::Plain);
        let (decoder, size) = (StreamDecoder::new(), found.bytes);
        Ok(Self { input, decoder, size, packed, early: None, ended: false })
    }

    /// The schema, which is the first message.
    fn schema(&mut self) -> Result<SchemaRef> {
        loop {
            if let Some(schema) = self.decoder.schema() {
                return Ok(schema);
            }
            let batch = match self.header()? {
                Some((header, _)) => self.message(header)?,
                None if self.ended => return Err(self.input.corrupt(0, "it has no schema")),
                None => self.end()?,
            };
            self.early = batch;
        }
    }

    /// Tells the decoder that there is nothing more, which ends a message without a body.
    fn end(&mut self) -> Result<Option<RecordBatch>> {
        self.ended = true;
        let at = self.input.offset();
        self.decode(Buffer::from_vec(vec![0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]), at)
    }

    /// The next message's start, and the bytes that it will take in memory.
    fn header(&mut self) -> Result<Option<(Header, u64)>> {
        let at = self.input.offset();
        let mut prefix = [0; 4];
        let read = self.input.fill(&mut prefix)?;
        if read == 0 {
            return Ok(None);
        }
        if read < 4 {
            return Err(self.input.corrupt(at, "it ends within a message"));
        }
        let mut bytes = prefix.to_vec();
        let mut len = u32::from_le_bytes(prefix);
        if len == u32::MAX {
            if self.input.fill(&mut prefix)? < 4 {
                return Err(self.input.corrupt(at, "it ends within a message"));
            }
            bytes.extend_from_slice(&prefix);
            len = u32::from_le_bytes(prefix);
        }
        if len == 0 {
            return Ok(None);
        }
        let len = len as usize;
        if len > MAX_METADATA {
            return Err(self.input.corrupt(at, format!("a message claims {len} bytes of metadata")));
        }
        let start = bytes.len();
        if self.input.append(len as u64, &mut bytes)? < len as u64 {
            return Err(self.input.corrupt(at, "it ends within a message"));
        }
        let message = root_as_message(bytes.get(start..).unwrap_or_default());
        let message = message
            .map_err(|error| self.input.corrupt(at, format!("the metadata of a message is damaged ({error})")))?;
        let left = self.size.saturating_sub(self.input.offset());
        let claimed = message.bodyLength();
        let body = usize::try_from(claimed).ok().filter(|body| self.packed || *body as u64 <= left);
        let Some(body) = body else {
            return Err(self.input.corrupt(at, format!("a message claims {claimed} bytes, {left} are left")));
        };
        Ok(Some((Header { bytes, body, at }, body as u64)))
    }

    /// Reads the rest of a message and decodes it.
    fn message(&mut self, header: Header) -> Result<Option<RecordBatch>> {
        let Header { mut bytes, body, at } = header;
        let metadata = bytes.len();
        if self.input.append(body as u64, &mut bytes)? < body as u64 {
            return Err(self.input.corrupt(at, "it ends within a message"));
        }
        let start = if bytes.starts_with(&[0xff; 4]) { 8 } else { 4 };
        let unpacked = unpacked(&bytes, start, metadata)
            .ok_or_else(|| self.input.corrupt(at, "the buffers of a message lie outside of it"))?;
        let most = (body as u64).saturating_mul(1000).max(64 << 20);
        if unpacked > most.min(8 << 30) {
            let what = format!("file {}, byte {at}: unpacking a batch of {body} bytes", self.input.name());
            return Err(Error::Limit {
                what,
                asked: unpacked,
                limit: most.min(8 << 30),
                option: "limits.max_record_bytes",
            });
        }
        self.decode(Buffer::from_vec(bytes), at)
    }

    fn decode(&mut self, mut buffer: Buffer, at: u64) -> Result<Option<RecordBatch>> {
        let decoder = &mut self.decoder;
        // Arrow checks what it reads, but has panicked on damaged files before.
        let decoded = catch_unwind(AssertUnwindSafe(|| {
            let mut batch = None;
            while !buffer.is_empty() && batch.is_none() {
                batch = decoder.decode(&mut buffer)?;
            }
            Ok::<_, ArrowError>(batch)
        }));
        let place = Place::file(Arc::clone(self.input.name()));
        match decoded {
            Ok(Ok(batch)) => Ok(batch),
            Ok(Err(error)) => Err(Error::corrupt_by(place, format!("byte {at}: a message is damaged"), error)),
            Err(_) => Err(Error::corrupt(place, format!("byte {at}: a message is damaged so that Arrow gives up"))),
        }
    }
}

fn files_packed(found: &Found) -> Packed {
    let lower = found.name.to_ascii_lowercase();
    if lower.ends_with(".gz") {
        Packed::Gzip
    } else if lower.ends_with(".zst") || lower.ends_with(".zstd") {
        Packed::Zstd
    } else {
        Packed::Plain
    }
}

/// Bytes that the compressed buffers of a message claim to unpack to; 0 if none are. `None` if a buffer lies outside.
fn unpacked(bytes: &[u8], start: usize, metadata: usize) -> Option<u64> {
    let message = root_as_message(bytes.get(start..metadata)?).ok()?;
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch()?,
        MessageHeader::DictionaryBatch => message.header_as_dictionary_batch()?.data()?,
        _ => return Some(0),
    };
    let body = bytes.get(metadata..)?;
    let mut total = 0_u64;
    for buffer in batch.buffers().iter().flatten() {
        let (offset, length) = (usize::try_from(buffer.offset()).ok()?, usize::try_from(buffer.length()).ok()?);
        let buffer = body.get(offset..offset.checked_add(length)?)?;
        if batch.compression().is_some() && !buffer.is_empty() {
            let claimed = i64::from_le_bytes(*buffer.first_chunk::<8>()?);
            // -1 marks a buffer that was left as it is.
            total = total.saturating_add(if claimed < 0 { length as u64 } else { claimed as u64 });
        }
    }
    Some(total)
}

#[derive(Debug)]
struct IpcSink {
    schema: SchemaRef,
    compression: Option<CompressionType>,
    target: u64,
}

pub(super) fn compression(options: &ConvertOptions, format: Format) -> Result<Option<CompressionType>> {
    match Packing::parse(options.compression.as_deref(), format, &["none", "lz4", "zstd"], Packing::None)? {
        Packing::Lz4 => Ok(Some(CompressionType::LZ4_FRAME)),
        Packing::Zstd(_) => Ok(Some(CompressionType::ZSTD)),
        _ => Ok(None),
    }
}

pub(super) fn sink(schema: &SchemaRef, options: &ConvertOptions) -> Result<Box<dyn Sink>> {
    let compression = compression(options, Format::Arrow)?;
    let target = if options.shards.is_some() { u64::MAX } else { options.target_file_size };
    Ok(Box::new(IpcSink { schema: Arc::new(plain_schema(schema)), compression, target }))
}

impl Sink for IpcSink {
    fn format(&self) -> Format {
        Format::Arrow
    }

    fn writer(&self, directory: &Path) -> Result<Box<dyn Writer>> {
        let (schema, compression) = (Arc::clone(&self.schema), self.compression);
        Ok(Rolling::writer(
            directory,
            "arrow",
            self.target,
            Arc::new(move |path| {
                let output = Output::create(path, Packing::None)?;
                let writer = FileWriter::try_new_with_options(output, &schema, write_options(compression)?);
                let writer = writer.map_err(|error| broken(path, error))?;
                Ok(Box::new(FileRows { writer, path: path.to_owned(), schema: Arc::clone(&schema) }))
            }),
        ))
    }

    fn name(&self, _: &Part, number: usize, _: usize) -> String {
        format!("part-{number:05}.arrow")
    }
}

fn write_options(compression: Option<CompressionType>) -> Result<IpcWriteOptions> {
    IpcWriteOptions::default().try_with_compression(compression).map_err(unexpected)
}

/// What Arrow says of writing: the disk failed, or the data cannot be written.
pub(super) fn broken(path: &Path, error: ArrowError) -> Error {
    match error {
        ArrowError::IoError(_, error) => crate::store::directory::failed("write", path, error),
        other => Error::Unsupported { what: format!("writing {} ({other})", path.display()), hint: String::new() },
    }
}

/// Strings and bytes as every reader of Arrow knows them: views are newer than many.
fn plain(data_type: &DataType) -> DataType {
    let inner = |field: &FieldRef| Arc::new(Field::clone(field).with_data_type(plain(field.data_type())));
    match data_type {
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(field) | DataType::ListView(field) => DataType::List(inner(field)),
        DataType::LargeList(field) | DataType::LargeListView(field) => DataType::LargeList(inner(field)),
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(inner(field), *size),
        DataType::Struct(members) => DataType::Struct(members.iter().map(inner).collect()),
        DataType::Map(field, sorted) => DataType::Map(inner(field), *sorted),
        other => other.clone(),
    }
}

/// The schema with plain strings and bytes.
pub(super) fn plain_schema(schema: &Schema) -> Schema {
    let plain = |field: &FieldRef| Field::clone(field).with_data_type(plain(field.data_type()));
    Schema::new_with_metadata(schema.fields().iter().map(plain).collect::<Vec<_>>(), schema.metadata().clone())
}

/// The batch with plain strings and bytes: what is written of a slice is what it shows.
pub(super) fn compact(batch: &RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    let column = |(column, field): (&ArrayRef, &FieldRef)| match column.data_type() == field.data_type() {
        true => Ok(Arc::clone(column)),
        false => cast(column, field.data_type()).map_err(unexpected),
    };
    let columns = batch.columns().iter().zip(schema.fields()).map(column).collect::<Result<_>>()?;
    RecordBatch::try_new(Arc::clone(schema), columns).map_err(unexpected)
}

struct FileRows {
    writer: FileWriter<Output>,
    path: std::path::PathBuf,
    schema: SchemaRef,
}

impl Rows for FileRows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.writer.write(&compact(batch, &self.schema)?).map_err(|error| broken(&self.path, error))
    }

    fn bytes(&self) -> u64 {
        self.writer.get_ref().bytes()
    }

    fn finish(mut self: Box<Self>) -> Result<(u64, Value)> {
        self.writer.finish().map_err(|error| broken(&self.path, error))?;
        let output = self.writer.into_inner().map_err(|error| broken(&self.path, error))?;
        Ok((output.close()?, Value::Null))
    }
}

/// A file in the format of streams.
pub(super) struct StreamRows {
    writer: StreamWriter<Output>,
    path: std::path::PathBuf,
    schema: SchemaRef,
}

impl StreamRows {
    pub(super) fn create(
        path: &Path,
        schema: &SchemaRef,
        compression: Option<CompressionType>,
    ) -> Result<Box<dyn Rows>> {
        let output = Output::create(path, Packing::None)?;
        let writer = StreamWriter::try_new_with_options(output, schema, write_options(compression)?);
        let writer = writer.map_err(|error| broken(path, error))?;
        Ok(Box::new(Self { writer, path: path.to_owned(), schema: Arc::clone(schema) }))
    }
}

impl Rows for StreamRows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        self.writer.write(&compact(batch, &self.schema)?).map_err(|error| broken(&self.path, error))
    }

    fn bytes(&self) -> u64 {
        self.writer.get_ref().bytes()
    }

    fn finish(mut self: Box<Self>) -> Result<(u64, Value)> {
        self.writer.finish().map_err(|error| broken(&self.path, error))?;
        let output = self.writer.into_inner().map_err(|error| broken(&self.path, error))?;
        Ok((output.close()?, Value::Null))
    }
}
