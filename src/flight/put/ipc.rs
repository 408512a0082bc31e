//! Arrow IPC messages that a writer puts, checked before Arrow decodes them.
//!
//! Arrow trusts the lengths, counts and sizes of a message: it allocates the size that a compressed buffer announces, and asserts that
//! buffers lie within the body. So all of them are checked against the body here, first: a message that passes takes no more memory than
//! its own size, and decodes or fails without a panic. The memory that the Parquet writer will need for it is bounded too.

mod bounds;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, downcast_dictionary_array};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, SchemaRef};
use arrow::ipc::convert::try_fb_to_schema;
use arrow::ipc::reader::{read_dictionary, read_record_batch};
use arrow::ipc::{Message, MessageHeader, MetadataVersion, root_as_message_with_opts};
use flatbuffers::VerifierOptions;

use self::bounds::malformed;
use crate::error::{Error, Result};

/// Longest header of a message: some ten thousand columns.
pub(crate) const MAX_HEADER: usize = 1 << 20;

/// Most columns of a stream, counted as Parquet stores them.
const MAX_COLUMNS: usize = 10_000;

/// Memory for writing a batch, as a multiple of the longest message: enough for lists of single bytes.
const WRITTEN: u64 = 16;

/// Most entries that a header may unfold to: a flatbuffer may point to one string or table from many places.
const OPTIONS: VerifierOptions = VerifierOptions {
    max_depth: 64,
    max_tables: 100_000,
    max_apparent_size: 4 * MAX_HEADER,
    ignore_missing_null_terminator: false,
};

/// The claim that pays for a kept dictionary.
pub(crate) type Paid = Box<dyn Send>;

/// Decodes the messages of one stream.
pub(crate) struct Decoder {
    schema: SchemaRef,
    dictionaries: HashMap<i64, ArrayRef>,
    /// Bytes of the bodies of kept dictionaries, and the claim that pays for them: they outlive their messages.
    held: HashMap<i64, (usize, Paid)>,
    /// Claims `bytes` for a kept dictionary.
    keep: Box<dyn Fn(usize) -> Result<Paid> + Send>,
    /// Bytes that the cells of a batch may take, and dictionaries together.
    limit: usize,
}

impl std::fmt::Debug for Decoder {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Decoder").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Decoder {
    /// Makes a decoder for the messages after the schema in `header`; the cells of a batch may take `limit` bytes. `keep` pays for the
    /// bytes of a dictionary, which stays until the stream ends or another takes its place.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for anything but a schema; [`Error::Unsupported`] for columns of types that cannot be written, and for too many.
    pub(crate) fn new(
        header: &[u8],
        limit: usize,
        keep: impl Fn(usize) -> Result<Paid> + Send + 'static,
    ) -> Result<Self> {
        let message = message(header)?;
        let schema = message.header_as_schema().ok_or_else(|| {
            malformed("a schema as the first message", message.header_type().variant_name().unwrap_or("another kind"))
        })?;
        let schema = try_fb_to_schema(schema).map_err(|error| malformed("a schema", error))?;
        schema.fields().iter().try_for_each(|field| bounds::admit(field.name(), field.data_type()))?;
        let columns: usize = schema.fields().iter().map(|field| bounds::leaves(field.data_type())).sum();
        if columns > MAX_COLUMNS {
            return Err(Error::unsupported(
                format!("putting {columns} columns, those within others counted"),
                format!("put at most {MAX_COLUMNS}: the Parquet writer takes memory for each"),
            ));
        }
        let (schema, keep) = (Arc::new(schema), Box::new(keep));
        Ok(Self { schema, dictionaries: HashMap::new(), held: HashMap::new(), keep, limit })
    }

    /// The columns.
    pub(crate) fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Decodes the batch in a message; `None` if the message is a dictionary, or metadata alone.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for anything but a batch of the schema; [`Error::Unsupported`] for compressed bodies and delta dictionaries;
    /// [`Error::Limit`] for a batch whose cells take more than the message could hold, and for a dictionary without room.
    pub(crate) fn decode(&mut self, header: &[u8], body: &Buffer) -> Result<Option<RecordBatch>> {
        if header.is_empty() && body.is_empty() {
            return Ok(None);
        }
        let message = message(header)?;
        match message.header_type() {
            MessageHeader::NONE => Ok(None),
            MessageHeader::RecordBatch => {
                let batch = message.header_as_record_batch().ok_or_else(|| malformed("a batch", "none"))?;
                let types = self.schema.fields().iter().map(|field| field.data_type());
                bounds::check(batch, types, body.len())?;
                let batch = read_record_batch(
                    body,
                    batch,
                    Arc::clone(&self.schema),
                    &self.dictionaries,
                    None,
                    &message.version(),
                );
                let batch = batch.map_err(|error| malformed("a batch of the schema", error))?;
                let cells = batch.columns().iter().fold(0_u64, |sum, column| sum.saturating_add(repeated(column)));
                if cells > self.limit as u64 {
                    return Err(self.too_large("the cells of a batch, whose dictionaries or views repeat them,", cells));
                }
                let levels = super::levels::all(&batch) / WRITTEN;
                if levels > self.limit as u64 {
                    return Err(
                        self.too_large("a batch with so many values in lists, structs or columns of nulls", levels)
                    );
                }
                Ok(Some(batch))
            }
            MessageHeader::DictionaryBatch => self.dictionary(&message, body).map(|()| None),
            MessageHeader::Schema => Err(malformed("one schema", "another one")),
            other => Err(malformed("a batch", other.variant_name().unwrap_or("another kind"))),
        }
    }

    fn dictionary(&mut self, message: &Message<'_>, body: &Buffer) -> Result<()> {
        let none = || malformed("a dictionary", "none");
        let dictionary = message.header_as_dictionary_batch().ok_or_else(none)?;
        if dictionary.isDelta() {
            return Err(Error::unsupported(
                "a dictionary that grows from batch to batch",
                "send whole dictionaries, or plain columns",
            ));
        }
        #[expect(deprecated, reason = "Arrow has no other way from a dictionary's number to its type")]
        let fields = self.schema.fields_with_dict_id(dictionary.id());
        let Some(DataType::Dictionary(_, values)) = fields.first().map(|field| field.data_type()) else {
            return Err(malformed("a dictionary of a column", format!("one of number {}", dictionary.id())));
        };
        bounds::check(dictionary.data().ok_or_else(none)?, std::iter::once(values.as_ref()), body.len())?;
        // The one that it takes the place of makes room.
        self.dictionaries.remove(&dictionary.id());
        self.held.remove(&dictionary.id());
        let others: usize = self.held.values().map(|(bytes, _)| bytes).sum();
        if others.saturating_add(body.len()) > self.limit {
            return Err(self.too_large("the dictionaries of a stream", others.saturating_add(body.len()) as u64));
        }
        let paid = (self.keep)(body.len())?;
        let read = read_dictionary(body, dictionary, &self.schema, &mut self.dictionaries, &message.version());
        read.map_err(|error| malformed("a dictionary of the schema", error))?;
        self.held.insert(dictionary.id(), (body.len(), paid));
        Ok(())
    }

    fn too_large(&self, what: &str, asked: u64) -> Error {
        Error::limit(what.to_owned(), asked, self.limit as u64, "message_bytes")
    }
}

/// The message of a header, verified.
fn message(header: &[u8]) -> Result<Message<'_>> {
    let message = root_as_message_with_opts(&OPTIONS, header).map_err(|error| malformed("an Arrow message", error))?;
    match message.version() {
        MetadataVersion::V4 | MetadataVersion::V5 => Ok(message),
        other => Err(malformed("version 4 or 5 of Arrow's format", format!("{other:?}"))),
    }
}

/// Bytes that the cells of `array` take if it points to them: every row may point to one of them.
fn repeated(array: &dyn Array) -> u64 {
    let views = |views: &[u128]| views.iter().fold(0_u64, |sum, view| sum.saturating_add(u64::from(*view as u32)));
    match array.data_type() {
        DataType::Utf8View => views(array.as_string_view().views()),
        DataType::BinaryView => views(array.as_binary_view().views()),
        DataType::List(_) => repeated(array.as_list::<i32>().values()),
        DataType::LargeList(_) => repeated(array.as_list::<i64>().values()),
        DataType::FixedSizeList(..) => repeated(array.as_fixed_size_list().values()),
        DataType::Map(..) => repeated(array.as_map().entries()),
        DataType::Struct(_) => {
            array.as_struct().columns().iter().fold(0, |sum: u64, column| sum.saturating_add(repeated(column)))
        }
        DataType::Dictionary(..) => {
            let sizes = sizes(array.as_any_dictionary().values());
            downcast_dictionary_array!(
                array => array.keys_iter().flatten().fold(0_u64, |sum, key| sum.saturating_add(sizes(key))),
                _ => 0
            )
        }
        _ => 0,
    }
}

/// The bytes of a dictionary's value by its number.
fn sizes(values: &ArrayRef) -> Box<dyn Fn(usize) -> u64 + '_> {
    let width = values.data_type().primitive_width().unwrap_or(1) as u64;
    match values.data_type() {
        DataType::Utf8 => Box::new(|at| values.as_string::<i32>().value_length(at).unsigned_abs().into()),
        DataType::Binary => Box::new(|at| values.as_binary::<i32>().value_length(at).unsigned_abs().into()),
        DataType::LargeUtf8 => Box::new(|at| values.as_string::<i64>().value_length(at).unsigned_abs()),
        DataType::LargeBinary => Box::new(|at| values.as_binary::<i64>().value_length(at).unsigned_abs()),
        DataType::Utf8View => Box::new(|at| u64::from(values.as_string_view().views()[at] as u32)),
        DataType::BinaryView => Box::new(|at| u64::from(values.as_binary_view().views()[at] as u32)),
        DataType::FixedSizeBinary(bytes) => Box::new(|_| bytes.unsigned_abs().into()),
        _ => Box::new(move |_| width),
    }
}

#[cfg(test)]
mod tests;
