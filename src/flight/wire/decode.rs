//! From a message to a batch whose tensors stay in the received body.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::buffer::Buffer;
use arrow::ipc::reader::read_record_batch;
use arrow::ipc::{MessageHeader, MetadataVersion, RecordBatch as IpcBatch, root_as_message};
use bytes::Bytes;

use super::columns::{Column, Columns, Kind};
use super::position::Position;
use crate::error::{Error, Result};
use crate::memory::HostBuffer;
use crate::schema::DType;
use crate::tensor::{Batch, Tensor, Value};

/// Decodes a message from its `header`, its `metadata`, and its `body`, without copying the body.
///
/// # Errors
/// [`Error::Mismatch`] if they do not fit `columns` or each other.
pub fn decode(columns: &Columns, header: &[u8], metadata: &[u8], body: &Arc<HostBuffer>) -> Result<Batch> {
    let position = Position::from_json(metadata)?;
    let message = root_as_message(header).map_err(|error| wrong("its header", &error.to_string()))?;
    let batch = message
        .header_as_record_batch()
        .filter(|_| message.header_type() == MessageHeader::RecordBatch)
        .ok_or_else(|| wrong("its header", &format!("{:?}", message.header_type())))?;
    if batch.compression().is_some() {
        return Err(wrong("its body", "compressed"));
    }
    let rows = usize::try_from(batch.length()).ok().filter(|rows| *rows as u64 == position.rows);
    let rows = rows.ok_or_else(|| wrong("its rows", &format!("{} and {}", batch.length(), position.rows)))?;
    let mut reader = Reader::new(&batch, body)?;
    let mut found: Vec<Option<Vec<Part>>> = Vec::with_capacity(columns.columns.len());
    let mut arrays = Vec::new();
    for (at, column) in columns.columns.iter().enumerate() {
        // Columns for Arrow's own reader are read below, all at once.
        if matches!(column.kind, Kind::Arrow(_)) {
            reader.skip(columns.arrow().field(at).data_type())?;
            arrays.push(at);
            found.push(None);
        } else {
            found.push(Some(reader.column(column, rows)?));
        }
    }
    if !arrays.is_empty() {
        let whole = Buffer::from(Bytes::from_owner(Body(Arc::clone(body))));
        let none = HashMap::new();
        let schema = Arc::clone(columns.arrow());
        // Arrow's reader asserts some numbers of a header instead of checking them; anything it leaves behind is dropped with it.
        let read =
            crate::page::quiet(|| read_record_batch(&whole, batch, schema, &none, Some(&arrays), &MetadataVersion::V5))
                .map_err(|_| wrong("an Arrow column", "a buffer that the reader gave up at"))?
                .map_err(|error| wrong("an Arrow column", &error.to_string()))?;
        for (at, array) in arrays.iter().zip(read.columns()) {
            let column = &columns.columns[*at];
            let array = match column.frames {
                None => Arc::clone(array),
                // All values are within the first list; the others are empty.
                Some(_) => arrow::array::AsArray::as_list_opt::<i64>(array)
                    .map(|list| Arc::clone(list.values()))
                    .ok_or_else(|| wrong(&column.name, "no list"))?,
            };
            found[*at] = Some(vec![(Arc::clone(&column.name), Value::Arrow(array))]);
        }
    }
    let found = found.into_iter().flatten().flatten().collect();
    Ok(Batch::of((position.epoch, position.step), rows, found, body))
}

/// A column of a batch.
type Part = (Arc<str>, Value);

/// A slab as the owner of bytes.
struct Body(Arc<HostBuffer>);

impl AsRef<[u8]> for Body {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The nodes and buffers of a message, taken in order.
struct Reader<'a> {
    nodes: Vec<i64>,
    buffers: Vec<(i64, i64)>,
    node: usize,
    buffer: usize,
    variadic: std::collections::VecDeque<i64>,
    body: &'a Arc<HostBuffer>,
}

impl<'a> Reader<'a> {
    fn new(batch: &IpcBatch<'_>, body: &'a Arc<HostBuffer>) -> Result<Self> {
        let buffers: Vec<(i64, i64)> =
            batch.buffers().into_iter().flatten().map(|buffer| (buffer.offset(), buffer.length())).collect();
        let inside = |(offset, length): &(i64, i64)| {
            let end = offset.checked_add(*length).and_then(|end| usize::try_from(end).ok());
            *offset >= 0 && *length >= 0 && end.is_some_and(|end| end <= body.len())
        };
        if let Some((offset, length)) = buffers.iter().find(|buffer| !inside(buffer)) {
            return Err(wrong("a buffer", &format!("{length} bytes at {offset} of a body of {}", body.len())));
        }
        // Arrow's reader assumes that, and panics otherwise.
        if let Some((offset, _)) = buffers.iter().find(|(offset, length)| *length > 0 && offset % 8 != 0) {
            return Err(wrong("a buffer", &format!("begins at {offset}, which is no multiple of 8")));
        }
        Ok(Self {
            nodes: batch.nodes().into_iter().flatten().map(|node| node.length()).collect(),
            buffers,
            node: 0,
            buffer: 0,
            variadic: batch.variadicBufferCounts().into_iter().flatten().collect(),
            body,
        })
    }

    /// Takes the next node, which must have `length` values.
    fn node(&mut self, name: &str, length: usize) -> Result<()> {
        let found = self.nodes.get(self.node).copied();
        self.node += 1;
        if found == i64::try_from(length).ok() && found.is_some() {
            return Ok(());
        }
        Err(wrong(name, &format!("{found:?} values instead of {length}")))
    }

    fn next_buffer(&mut self, name: &str) -> Result<(usize, usize)> {
        let found = self.buffers.get(self.buffer).copied();
        self.buffer += 1;
        // Construction of the reader has checked that it is within the body.
        found.map(|(offset, length)| (offset as usize, length as usize)).ok_or_else(|| wrong(name, "too few buffers"))
    }

    fn no_nulls(&mut self, name: &str) -> Result<()> {
        match self.next_buffer(name)? {
            (_, 0) => Ok(()),
            _ => Err(wrong(name, "nulls in a tensor")),
        }
    }

    fn tensor(&mut self, name: &str, dtype: DType, shape: Vec<usize>) -> Result<Tensor> {
        let (offset, length) = self.next_buffer(name)?;
        let bytes = shape.iter().try_fold(dtype.size(), |product, dim| product.checked_mul(*dim));
        let bytes = bytes
            .filter(|bytes| *bytes <= length)
            .ok_or_else(|| wrong(name, &format!("{length} bytes for {dtype} {shape:?}")))?;
        // An empty tensor may have any offset.
        let offset = if bytes == 0 { 0 } else { offset };
        Tensor::within(self.body, offset, dtype, shape).ok_or_else(|| wrong(name, "a misaligned buffer"))
    }

    fn column(&mut self, column: &Column, rows: usize) -> Result<Vec<Part>> {
        let name = &column.name;
        let mut leading = vec![rows];
        let mut outer = rows;
        if let Some(frames) = column.frames {
            self.node(name, rows)?;
            self.no_nulls(name)?;
            self.next_buffer(name)?;
            outer = rows.checked_mul(frames).ok_or_else(|| wrong(name, "too many rows"))?;
            leading = vec![frames, rows];
        }
        match &column.kind {
            Kind::Arrow(_) => Ok(Vec::new()),
            Kind::Tensor(dtype, shape) => {
                let tensor = self.values(name, *dtype, outer, leading, shape)?;
                Ok(vec![(Arc::clone(name), Value::Tensor(tensor))])
            }
            Kind::Ragged(dtype, shape, _) => {
                let parts = column.parts();
                let mut lists = outer;
                let mut offsets = Vec::new();
                for part in parts.iter().skip(1) {
                    self.node(part, lists)?;
                    self.no_nulls(part)?;
                    let tensor = self.tensor(part, DType::Int64, vec![lists.saturating_add(1)])?;
                    lists = ends_at(&tensor).ok_or_else(|| wrong(part, "offsets that do not ascend from 0"))?;
                    // Shared offsets are delivered with the other column.
                    if column.offsets_of.is_none() {
                        offsets.push((Arc::clone(part), Value::Tensor(tensor)));
                    }
                }
                let values = self.values(name, *dtype, lists, vec![lists], shape)?;
                let values = parts.first().map(|part| (Arc::clone(part), Value::Tensor(values)));
                Ok(values.into_iter().chain(offsets).collect())
            }
        }
    }

    fn values(
        &mut self,
        name: &str,
        dtype: DType,
        count: usize,
        leading: Vec<usize>,
        shape: &[usize],
    ) -> Result<Tensor> {
        self.node(name, count)?;
        self.no_nulls(name)?;
        if !shape.is_empty() {
            let width = shape.iter().try_fold(count, |product, dim| product.checked_mul(*dim));
            self.node(name, width.ok_or_else(|| wrong(name, "too many values"))?)?;
            self.no_nulls(name)?;
        }
        self.tensor(name, dtype, [leading.as_slice(), shape].concat())
    }

    /// Skips the nodes and buffers of an Arrow array.
    fn skip(&mut self, ty: &arrow::datatypes::DataType) -> Result<()> {
        use arrow::datatypes::DataType as D;
        self.node += 1;
        let (buffers, children): (usize, Vec<&D>) = match ty {
            D::Null => (0, vec![]),
            D::Utf8 | D::LargeUtf8 | D::Binary | D::LargeBinary => (3, vec![]),
            D::Utf8View | D::BinaryView => {
                let more = self.variadic.pop_front().and_then(|count| usize::try_from(count).ok());
                (2 + more.ok_or_else(|| wrong("an Arrow column", "no count of its buffers"))?, vec![])
            }
            D::List(item) | D::LargeList(item) | D::Map(item, _) => (2, vec![item.data_type()]),
            D::FixedSizeList(item, _) => (1, vec![item.data_type()]),
            D::Struct(fields) => (1, fields.iter().map(|field| field.data_type()).collect()),
            ty if ty.is_primitive() || matches!(ty, D::Boolean | D::FixedSizeBinary(_)) => (2, vec![]),
            ty => return Err(wrong("an Arrow column", &format!("of type {ty}"))),
        };
        self.buffer = self.buffer.saturating_add(buffers);
        children.into_iter().try_for_each(|child| self.skip(child))
    }
}

/// Returns the last of offsets that ascend from 0.
fn ends_at(tensor: &Tensor) -> Option<usize> {
    let offsets = tensor.as_slice::<i64>()?;
    let ascending = offsets.first() == Some(&0) && offsets.is_sorted();
    offsets.last().filter(|_| ascending).and_then(|last| usize::try_from(*last).ok())
}

fn wrong(what: &str, found: &str) -> Error {
    Error::Mismatch {
        what: format!("a batch that was received, {what}"),
        expected: "what the schema announced".to_owned(),
        found: found.to_owned(),
        hint: "the server is not bowstring, or of another version".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, LargeStringArray};
    use arrow::datatypes::DataType;

    use super::*;
    use crate::flight::wire::encode;
    use crate::memory::{Pool, SystemAllocator};
    use crate::schema::{Dim, Field, Schema, Type};
    use crate::tensor::{BatchBuilder, TensorSpec};

    /// Returns a batch with a matrix, a ragged column and text, as columns and as one body.
    fn sent() -> (Columns, Batch, crate::flight::wire::Encoded, Arc<HostBuffer>) {
        let pool = Pool::new(Arc::new(SystemAllocator), 1 << 20);
        let spec = |name: &str, dtype, shape: &[usize]| TensorSpec { name: name.into(), dtype, shape: shape.to_vec() };
        let specs = vec![
            spec("m", DType::Float32, &[4, 3]),
            spec("r__values", DType::Int64, &[5]),
            spec("r__offsets", DType::Int64, &[5]),
            spec("c__values", DType::Uint8, &[3, 2]),
            spec("c__offsets", DType::Int64, &[5]),
        ];
        let mut builder = BatchBuilder::new(specs, pool.try_reserve(4096).unwrap()).unwrap();
        builder.tensor(0).fill(1);
        builder.tensor(1).fill(2);
        builder.tensor(2).copy_from_slice(bytemuck::cast_slice(&[0_i64, 2, 2, 4, 5]));
        builder.tensor(3).fill(4);
        builder.tensor(4).copy_from_slice(bytemuck::cast_slice(&[0_i64, 0, 1, 3, 3]));
        let text: ArrayRef = Arc::new(LargeStringArray::from(vec![Some("a"), None, Some("ccc"), Some("")]));
        let batch = builder.finish(2, 7, 4, vec![(1, ("t".into(), text))]);
        let ty = Type::Arrow(DataType::LargeUtf8);
        let schema = Schema::new(vec![
            Field::tensor("m", DType::Float32, vec![Dim::Batch, Dim::Fixed(3)]),
            Field { name: "t".into(), ty, dims: vec![Dim::Batch], unit: None, valid: false, classes: None },
            Field::tensor("r", DType::Int64, vec![Dim::Batch, Dim::Ragged]),
            Field::tensor("c", DType::Uint8, vec![Dim::Batch, Dim::Cut(2), Dim::Fixed(2)]),
        ]);
        let columns = Columns::of(&schema, &batch);
        let encoded = encode(&batch, &columns, Some(3)).unwrap();
        let mut body = pool.try_reserve(8192).unwrap().allocate(encoded.body_len()).unwrap();
        let whole: Vec<u8> = encoded.body().flat_map(|part| part.to_vec()).collect();
        body.copy_from_slice(&whole);
        (columns, batch, encoded, Arc::new(body))
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let (columns, batch, encoded, body) = sent();
        let announced = Columns::from_arrow(columns.arrow()).unwrap();
        assert_eq!(announced.schema(), columns.schema());
        let found = decode(&announced, &encoded.header, &encoded.metadata, &body).unwrap();
        assert_eq!((found.epoch, found.step, found.rows), (2, 7, 4));
        for ((name, ours), (other, theirs)) in batch.columns().iter().zip(found.columns()) {
            assert_eq!(name, other);
            match (ours, theirs) {
                (Value::Tensor(ours), Value::Tensor(theirs)) => {
                    assert_eq!((ours.shape(), ours.bytes()), (theirs.shape(), theirs.bytes()), "{name}");
                }
                (Value::Arrow(ours), Value::Arrow(theirs)) => assert_eq!(ours, theirs),
                other => panic!("{other:?}"),
            }
        }
    }

    /// Arrow's reader asserts some numbers of a header instead of checking them.
    #[test]
    fn no_flipped_bit_of_a_header_is_more_than_an_error() {
        let (columns, _, encoded, body) = sent();
        let mut refused = 0;
        for bit in 0..encoded.header.len() * 8 {
            let mut header = encoded.header.to_vec();
            header[bit / 8] ^= 1 << (bit % 8);
            let found = crate::page::quiet(|| decode(&columns, &header, &encoded.metadata, &body).is_err());
            refused += usize::from(found.unwrap_or_else(|_| panic!("bit {bit}")));
        }
        assert!(refused > encoded.header.len() * 2, "only {refused} were refused");
    }
}
