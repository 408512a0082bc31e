//! From a batch to the parts of a message, without copying any tensor.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{Field as ArrowField, Schema as ArrowSchema};
use arrow::error::ArrowError;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use arrow::ipc::{
    Buffer, FieldNode, Message, MessageArgs, MessageHeader, MetadataVersion, RecordBatch as IpcBatch, RecordBatchArgs,
    root_as_message,
};
use bytes::Bytes;
use flatbuffers::FlatBufferBuilder;

use super::columns::{Column, Columns, Kind};
use super::position::Position;
use crate::error::{Error, Result};
use crate::memory::HostBuffer;
use crate::tensor::{Batch, Tensor, Value};

/// Alignment of the data after the slabs, in bytes.
const ALIGNMENT: usize = 64;

/// A batch as the parts of one message.
#[derive(Debug, Clone)]
pub struct Encoded {
    /// The Arrow IPC message with the locations of the buffers.
    pub header: Bytes,
    /// The [`Position`] as JSON.
    pub metadata: Bytes,
    /// The slabs of the batch, in place: they are the beginning of the message's body.
    pub slabs: Vec<Arc<HostBuffer>>,
    /// The data after them in the body.
    pub tail: Bytes,
    /// Position of the batch.
    pub position: Position,
}

impl Encoded {
    /// Returns the bytes of the body.
    pub(crate) fn body_len(&self) -> usize {
        self.slabs.iter().map(|slab| slab.len()).sum::<usize>() + self.tail.len()
    }

    /// Returns the body in parts, which keep the slabs alive.
    pub fn body(&self) -> impl Iterator<Item = Bytes> + '_ {
        let slabs = self.slabs.iter().map(|slab| Bytes::from_owner(Shared(Arc::clone(slab))));
        slabs.chain(std::iter::once(self.tail.clone())).filter(|part| !part.is_empty())
    }
}

/// A slab as the owner of bytes.
struct Shared(Arc<HostBuffer>);

impl AsRef<[u8]> for Shared {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Encodes the schema of a stream as an Arrow IPC message.
pub(crate) fn schema_message(columns: &Columns) -> Bytes {
    let mut tracker = DictionaryTracker::new(true);
    let generator = IpcDataGenerator::default();
    let options = IpcWriteOptions::default();
    generator.schema_to_bytes_with_dictionary_tracker(columns.arrow(), &mut tracker, &options).ipc_message.into()
}

/// Encodes `batch`, which has the columns `columns`.
///
/// # Errors
/// [`Error::Mismatch`] if it does not; [`Error::Unsupported`] for a tensor too wide for Arrow or an Arrow column that cannot be
/// written.
pub fn encode(batch: &Batch, columns: &Columns, generation: Option<u64>) -> Result<Encoded> {
    let rows = batch.rows as u64;
    let position = Position { epoch: batch.epoch, step: batch.step, rows, generation };
    let mut writer = Writer::new(batch);
    for (_, value) in batch.columns() {
        if let Value::Tensor(tensor) = value {
            writer.place(tensor.slab());
        }
    }
    for column in &columns.columns {
        writer.column(column)?;
    }
    let Writer { slabs, nodes, buffers, variadic, tail, body, .. } = writer;
    let body = body + tail.len();
    let mut builder = FlatBufferBuilder::new();
    let nodes = builder.create_vector(&nodes);
    let buffers = builder.create_vector(&buffers);
    let variadic = (!variadic.is_empty()).then(|| builder.create_vector(&variadic));
    let arguments = RecordBatchArgs {
        length: batch.rows as i64,
        nodes: Some(nodes),
        buffers: Some(buffers),
        compression: None,
        variadicBufferCounts: variadic,
    };
    let header = IpcBatch::create(&mut builder, &arguments);
    let arguments = MessageArgs {
        version: MetadataVersion::V5,
        header_type: MessageHeader::RecordBatch,
        header: Some(header.as_union_value()),
        bodyLength: body as i64,
        custom_metadata: None,
    };
    let message = Message::create(&mut builder, &arguments);
    builder.finish(message, None);
    Ok(Encoded {
        header: Bytes::copy_from_slice(builder.finished_data()),
        metadata: position.to_json().into(),
        slabs,
        tail: tail.into(),
        position,
    })
}

/// Builds the parts of a message.
struct Writer<'a> {
    batch: &'a Batch,
    slabs: Vec<Arc<HostBuffer>>,
    /// Offset of each slab in the body, by its address.
    bases: HashMap<usize, usize>,
    /// Bytes of the slabs.
    body: usize,
    tail: Vec<u8>,
    nodes: Vec<FieldNode>,
    buffers: Vec<Buffer>,
    variadic: Vec<i64>,
}

impl<'a> Writer<'a> {
    fn new(batch: &'a Batch) -> Self {
        Self {
            batch,
            slabs: Vec::new(),
            bases: HashMap::new(),
            body: 0,
            tail: Vec::new(),
            nodes: Vec::new(),
            buffers: Vec::new(),
            variadic: Vec::new(),
        }
    }

    /// Assigns the slab its offset in the body.
    fn place(&mut self, slab: &Arc<HostBuffer>) {
        let address = Arc::as_ptr(slab) as usize;
        if !self.bases.contains_key(&address) {
            self.bases.insert(address, self.body);
            // Slabs consist of tensors padded to more than Arrow's alignment.
            self.body += slab.len();
            self.slabs.push(Arc::clone(slab));
        }
    }

    fn column(&mut self, column: &Column) -> Result<()> {
        let rows = self.batch.rows;
        // Lists in this column at its outermost level: rows, or all rows of all windows within the first value of a list.
        let outer = match column.frames {
            None => rows,
            Some(frames) => {
                let inner = rows * frames;
                self.node(rows);
                self.nothing();
                let offsets: Vec<u8> =
                    (0..=rows).flat_map(|row| (if row == 0 { 0 } else { inner as i64 }).to_le_bytes()).collect();
                self.append(&offsets);
                inner
            }
        };
        match &column.kind {
            Kind::Tensor(dtype, shape) => {
                let tensor = self.tensor(&column.name)?;
                let count = shape.iter().product::<usize>();
                if tensor.dtype() != *dtype || tensor.bytes().len() != outer * count * dtype.size() {
                    return Err(unlike(&column.name, &format!("{tensor:?}")));
                }
                self.values(column, &tensor, outer, shape)
            }
            Kind::Ragged(_, shape, _) => {
                let parts = column.parts();
                let (values, offsets) = parts.split_first().ok_or_else(|| unlike(&column.name, "no parts"))?;
                let mut lists = outer;
                for name in offsets {
                    let tensor = self.tensor(name)?;
                    let found = tensor.as_slice::<i64>().filter(|offsets| offsets.len() == lists + 1);
                    let Some(last) = found.and_then(<[i64]>::last).and_then(|last| usize::try_from(*last).ok()) else {
                        return Err(unlike(name, &format!("{tensor:?} over {lists} lists")));
                    };
                    self.node(lists);
                    self.nothing();
                    self.buffer(&tensor);
                    lists = last;
                }
                let tensor = self.tensor(values)?;
                if tensor.shape().first() != Some(&lists) {
                    return Err(unlike(values, &format!("{tensor:?} in {lists} lists")));
                }
                self.values(column, &tensor, lists, shape)
            }
            Kind::Arrow(ty) => {
                let Some(Value::Arrow(array)) = self.batch.get(&column.name) else {
                    return Err(unlike(&column.name, "no Arrow array"));
                };
                if array.len() != outer || array.data_type() != ty {
                    return Err(unlike(&column.name, &format!("{} of {}", array.len(), array.data_type())));
                }
                let array = Arc::clone(array);
                self.arrow(column, &array).map_err(|error| {
                    Error::unsupported(
                        format!("column {} of type {ty} over Flight ({error})", column.name),
                        "exclude it, or cast it when the dataset is written",
                    )
                })
            }
        }
    }

    fn tensor(&self, name: &str) -> Result<Tensor> {
        self.batch.tensor(name).cloned().ok_or_else(|| unlike(name, "no tensor"))
    }

    /// Writes `count` values with axes of their own.
    fn values(&mut self, column: &Column, tensor: &Tensor, count: usize, shape: &[usize]) -> Result<()> {
        if !shape.is_empty() {
            let width = shape.iter().product::<usize>();
            if i32::try_from(width).is_err() {
                return Err(Error::unsupported(
                    format!("column {} over Flight: {width} elements in one value", column.name),
                    "Arrow's fixed-size lists have at most 2^31 - 1; resize or split the column",
                ));
            }
            self.node(count);
            self.nothing();
            self.node(count * width);
        } else {
            self.node(count);
        }
        self.nothing();
        self.buffer(tensor);
        Ok(())
    }

    /// Writes the nodes and buffers of an Arrow array, as Arrow's own writer lays them out.
    fn arrow(&mut self, column: &Column, array: &ArrayRef) -> Result<(), ArrowError> {
        let field = ArrowField::new(&*column.name, array.data_type().clone(), true);
        let options = RecordBatchOptions::new().with_row_count(Some(array.len()));
        let schema = Arc::new(ArrowSchema::new(vec![field]));
        let batch = RecordBatch::try_new_with_options(schema, vec![Arc::clone(array)], &options)?;
        let (dictionaries, encoded) = IpcDataGenerator::default().encode(
            &batch,
            &mut DictionaryTracker::new(true),
            &IpcWriteOptions::default(),
            &mut IpcWriteContext::default(),
        )?;
        if !dictionaries.is_empty() {
            return Err(ArrowError::IpcError("dictionaries have no place in a batch".to_owned()));
        }
        let wrong = || ArrowError::IpcError("its own message cannot be read".to_owned());
        let message = root_as_message(&encoded.ipc_message).map_err(|_| wrong())?;
        let header = message.header_as_record_batch().ok_or_else(wrong)?;
        let base = self.tail_end();
        self.tail.extend_from_slice(&encoded.arrow_data);
        self.nodes.extend(header.nodes().into_iter().flatten().copied());
        let moved = |buffer: &Buffer| Buffer::new(buffer.offset() + base as i64, buffer.length());
        self.buffers.extend(header.buffers().into_iter().flatten().map(moved));
        self.variadic.extend(header.variadicBufferCounts().into_iter().flatten());
        Ok(())
    }

    fn node(&mut self, length: usize) {
        self.nodes.push(FieldNode::new(length as i64, 0));
    }

    /// Writes the buffer of an absent validity bitmap.
    fn nothing(&mut self) {
        self.buffers.push(Buffer::new(0, 0));
    }

    fn buffer(&mut self, tensor: &Tensor) {
        let base = self.bases.get(&(Arc::as_ptr(tensor.slab()) as usize)).copied().unwrap_or(0);
        self.buffers.push(Buffer::new((base + tensor.offset()) as i64, tensor.bytes().len() as i64));
    }

    fn append(&mut self, bytes: &[u8]) {
        let at = self.tail_end();
        self.tail.extend_from_slice(bytes);
        self.buffers.push(Buffer::new(at as i64, bytes.len() as i64));
    }

    /// Pads the body so far, and returns its aligned end.
    fn tail_end(&mut self) -> usize {
        let end = (self.body + self.tail.len()).next_multiple_of(ALIGNMENT);
        self.tail.resize(end - self.body, 0);
        end
    }
}

fn unlike(column: &str, found: &str) -> Error {
    Error::Mismatch {
        what: format!("column {column} of a batch to be sent"),
        expected: "what the schema announced".to_owned(),
        found: found.to_owned(),
        hint: String::new(),
    }
}
