//! Tensors, and the batch that holds them in one slab.
//!
//! ```text
//!   slab  │ image [B,3,224,224] u8 ....│pad│ label [B] i64 │pad│ _mask [B] bool │      one HostBuffer, one copy to a device
//!           ▲ offsets are multiples of TENSOR_ALIGNMENT, so every framework can use each tensor in place
//! ```
//!
//! A [`BatchBuilder`] hands out each tensor's bytes for writing; decoders write there and nowhere else. [`BatchBuilder::finish`]
//! freezes the slab. Tensors share it by reference count, so a consumer may keep any of them for ever. A tensor whose values
//! already lie in a decoded row group, in order and used by no other batch, stays there and takes no room in the slab.

use std::fmt;
use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef};

use crate::error::{Error, Result};
use crate::memory::{HostBuffer, Pool, Reservation, SystemAllocator};
use crate::schema::DType;

/// Alignment of each tensor within its slab, in bytes. The slab itself is aligned to [`crate::memory::ALIGNMENT`].
pub const TENSOR_ALIGNMENT: usize = 256;

/// Name, element type and full shape (batch axis first) of a tensor to be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Column name in the batch.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: DType,
    /// Shape, the batch axis first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Bytes of the tensor.
    ///
    /// # Errors
    /// [`Error::Limit`] if the shape's product overflows.
    pub fn bytes(&self) -> Result<usize> {
        self.shape.iter().try_fold(self.dtype.size(), |product, dim| product.checked_mul(*dim)).ok_or_else(|| {
            Error::limit(
                format!("tensor {} of shape {:?}", self.name, self.shape),
                u64::MAX,
                isize::MAX as u64,
                "batch_size",
            )
        })
    }
}

/// A row-major tensor in host memory that shares its slab with the other tensors of its batch.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    slab: Arc<HostBuffer>,
    offset: usize,
    len: usize,
}

impl Tensor {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape, the batch axis first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The elements' bytes, row-major, little-endian.
    pub fn bytes(&self) -> &[u8] {
        &self.slab[self.offset..self.offset + self.len]
    }

    /// Address of the first element: aligned to 64 bytes.
    pub fn as_ptr(&self) -> *const u8 {
        self.bytes().as_ptr()
    }

    /// The elements as a slice of `T`; `None` if the size of `T` is not the element's size.
    pub fn as_slice<T: bytemuck::Pod>(&self) -> Option<&[T]> {
        if size_of::<T>() != self.dtype.size() { None } else { bytemuck::try_cast_slice(self.bytes()).ok() }
    }

    /// The slab that holds this tensor; it may hold this one alone.
    pub fn slab(&self) -> &Arc<HostBuffer> {
        &self.slab
    }
}

impl Tensor {
    /// The bytes of `slab` from `offset` on as a tensor; `None` if they are too few, or not aligned for the element type.
    pub(crate) fn within(slab: &Arc<HostBuffer>, offset: usize, dtype: DType, shape: Vec<usize>) -> Option<Self> {
        let len = shape.iter().try_fold(dtype.size(), |product, dim| product.checked_mul(*dim))?;
        let end = offset.checked_add(len)?;
        let aligned = (slab.as_ptr() as usize).checked_add(offset)?.is_multiple_of(dtype.size());
        (end <= slab.len() && aligned).then(|| Self { dtype, shape, slab: Arc::clone(slab), offset, len })
    }

    /// Returns true if it lies where its values were decoded, with those of other batches around it.
    pub(crate) fn is_placed(&self) -> bool {
        self.slab.is_part()
    }

    /// Offset in the slab, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?})", self.dtype, self.shape)
    }
}

/// One column of a batch.
#[derive(Debug, Clone)]
pub enum Value {
    /// A tensor; the first axis is the batch, except for the values of a ragged column.
    Tensor(Tensor),
    /// A column without a tensor form: strings, binary, lists of them.
    Arrow(ArrayRef),
}

impl Value {
    /// The tensor, if it is one.
    pub fn tensor(&self) -> Option<&Tensor> {
        match self {
            Self::Tensor(tensor) => Some(tensor),
            Self::Arrow(_) => None,
        }
    }
}

/// One rank's rows of one global step, as named columns in a fixed order.
///
/// Parts of one source column carry its name and a suffix: `x__values` and `x__offsets` (ragged; `x__offsets_1` for the next
/// level of nesting), `x` and `x__lengths` (padded), `x__valid` (null mask). `_mask` is false on rows added by tail policy
/// `pad`; `_row_id` is the row's number in the dataset.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Global step within the epoch, from 0.
    pub step: u64,
    /// Rows, padding included: the length of the batch axis.
    pub rows: usize,
    columns: Vec<(Arc<str>, Value)>,
    foreign: bool,
}

impl Batch {
    /// A batch of columns that came from elsewhere and lie in `slab`.
    pub(crate) fn of(
        (epoch, step): (u64, u64),
        rows: usize,
        columns: Vec<(Arc<str>, Value)>,
        slab: &HostBuffer,
    ) -> Self {
        Self { epoch, step, rows, columns, foreign: slab.is_foreign() }
    }

    /// Returns true if columns lie in memory of another process: see [`HostBuffer::is_foreign`].
    pub fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// The columns in their fixed order.
    pub fn columns(&self) -> &[(Arc<str>, Value)] {
        &self.columns
    }

    /// The column named `name`.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.columns.iter().find(|(column, _)| &**column == name).map(|(_, value)| value)
    }

    /// The tensor named `name`; `None` for an Arrow column too.
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.get(name).and_then(Value::tensor)
    }

    /// Bytes of all tensors, padding between them not counted.
    pub fn tensor_bytes(&self) -> usize {
        self.columns.iter().filter_map(|(_, value)| value.tensor()).map(|tensor| tensor.len).sum()
    }

    /// Bytes of all columns: those of [`tensor_bytes`](Self::tensor_bytes), and values and offsets of the Arrow columns.
    pub fn bytes(&self) -> usize {
        let of_arrow = |array: &ArrayRef| {
            // An array of a kind whose rows cannot be told apart counts as a whole.
            array.to_data().get_slice_memory_size().unwrap_or_else(|_| array.get_buffer_memory_size())
        };
        let arrays = self.columns.iter().filter_map(|(_, value)| match value {
            Value::Arrow(array) => Some(of_arrow(array)),
            Value::Tensor(_) => None,
        });
        arrays.fold(self.tensor_bytes(), usize::saturating_add)
    }

    /// A copy whose tensors are in memory of their own, outside any budget. Arrow arrays, which are never written, are
    /// shared.
    ///
    /// # Errors
    /// [`Error::Limit`] if there is not enough memory.
    pub fn copied(&self) -> Result<Self> {
        let tensors = self.columns.iter().filter_map(|(name, value)| Some((name, value.tensor()?)));
        let spec = |(name, tensor): (&Arc<str>, &Tensor)| TensorSpec {
            name: Arc::clone(name),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
        };
        let pool = Pool::new(Arc::new(SystemAllocator), usize::MAX);
        let gone = || Error::Closed { why: "the memory pool is gone".to_owned() };
        let mut builder =
            BatchBuilder::new(tensors.clone().map(spec).collect(), pool.try_reserve(0).ok_or_else(gone)?)?;
        for (bytes, (_, tensor)) in builder.tensors().into_iter().zip(tensors) {
            bytes.copy_from_slice(tensor.bytes());
        }
        let copy = builder.finish(self.epoch, self.step, self.rows, Vec::new());
        copy.deliver();
        let column = |(name, value): &(Arc<str>, Value)| (Arc::clone(name), copy.get(name).unwrap_or(value).clone());
        Ok(Self { columns: self.columns.iter().map(column).collect(), foreign: self.foreign, ..copy })
    }

    /// Adds the columns of `frames`, whose rows are windows of `length` rows, time-major: `[length * B, ...]` becomes
    /// `[length, B, ...]`, but not for tensors in `flat`, which have no batch axis. Rows of Arrow columns stay one
    /// after another.
    pub(crate) fn add_frames(&mut self, frames: Self, length: usize, flat: &[Arc<str>]) {
        for (name, value) in frames.columns {
            let value = match value {
                Value::Tensor(mut tensor) if !flat.contains(&name) => {
                    if let Some(rows) = tensor.shape.first_mut() {
                        *rows /= length.max(1);
                    }
                    tensor.shape.insert(0, length);
                    Value::Tensor(tensor)
                }
                value => value,
            };
            self.columns.push((name, value));
        }
    }

    /// Moves the first `count` columns after all others.
    pub(crate) fn move_behind(&mut self, count: usize) {
        let count = count.min(self.columns.len());
        self.columns.rotate_left(count);
    }

    /// Takes the batch off the byte budget: it is the consumer's now.
    pub fn deliver(&self) {
        for (_, value) in &self.columns {
            if let Value::Tensor(tensor) = value {
                tensor.slab.deliver();
            }
        }
    }
}

/// Placement of the tensors in a slab.
#[derive(Debug, Clone, Default)]
struct Layout {
    /// (offset, length) in bytes of each tensor.
    places: Vec<(usize, usize)>,
    total: usize,
}

impl Layout {
    /// `placed` are the tensors that lie elsewhere.
    fn new(specs: &[TensorSpec], placed: &[Option<Tensor>]) -> Result<Self> {
        let mut layout = Self::default();
        for (at, spec) in specs.iter().enumerate() {
            let len = if placed.get(at).is_some_and(Option::is_some) { 0 } else { spec.bytes()? };
            layout.places.push((layout.total, len));
            layout.total = len
                .checked_next_multiple_of(TENSOR_ALIGNMENT)
                .and_then(|padded| layout.total.checked_add(padded))
                .ok_or_else(|| Error::config("batch_size", "a batch of this size overflows memory"))?;
        }
        Ok(layout)
    }
}

/// Builds a batch in one slab: sizes first, then the bytes in place, then [`finish`](Self::finish).
#[derive(Debug)]
pub struct BatchBuilder {
    specs: Vec<TensorSpec>,
    /// The tensors that lie elsewhere; empty if none does.
    placed: Vec<Option<Tensor>>,
    layout: Layout,
    slab: HostBuffer,
}

impl BatchBuilder {
    /// Bytes of a slab for `specs`.
    ///
    /// # Errors
    /// [`Error::Limit`] or [`Error::Config`] on overflow.
    pub fn slab_bytes(specs: &[TensorSpec]) -> Result<usize> {
        Layout::new(specs, &[]).map(|layout| layout.total)
    }

    /// Allocates a slab for `specs` from `reservation`, which grows if it must.
    ///
    /// The bytes may be those of an earlier batch: a tensor must be filled as a whole.
    ///
    /// # Errors
    /// [`Error::Limit`] or [`Error::Config`] if the sizes overflow or memory is refused.
    pub fn new(specs: Vec<TensorSpec>, reservation: Reservation) -> Result<Self> {
        Self::with_room(specs, 0, reservation)
    }

    /// As [`new`](Self::new), in memory of at least `room` bytes, so that batches of different sizes can share it.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_room(specs: Vec<TensorSpec>, room: usize, reservation: Reservation) -> Result<Self> {
        Self::around(Vec::new(), specs, room, reservation)
    }

    /// As [`with_room`](Self::with_room), without the tensors in `placed`, one entry for each spec or none at all: they lie elsewhere, and
    /// have no bytes to be filled.
    pub(crate) fn around(
        placed: Vec<Option<Tensor>>,
        specs: Vec<TensorSpec>,
        room: usize,
        reservation: Reservation,
    ) -> Result<Self> {
        let layout = Layout::new(&specs, &placed)?;
        let mut slab = reservation.allocate_in(layout.total, room)?;
        for (offset, len) in &layout.places {
            // A slab is sent as it is: gaps between tensors must not hold bytes of another batch.
            let end = offset + len;
            slab[end..end.next_multiple_of(TENSOR_ALIGNMENT)].fill(0);
        }
        Ok(Self { specs, placed, layout, slab })
    }

    /// The tensors being built.
    pub fn specs(&self) -> &[TensorSpec] {
        &self.specs
    }

    /// The bytes of tensor `index`.
    pub fn tensor(&mut self, index: usize) -> &mut [u8] {
        let (offset, len) = self.layout.places[index];
        &mut self.slab[offset..offset + len]
    }

    /// The bytes of every tensor at once, in order of the specs, for filling them in parallel.
    pub fn tensors(&mut self) -> Vec<&mut [u8]> {
        let mut rest: &mut [u8] = &mut self.slab;
        let mut at = 0;
        let mut tensors = Vec::with_capacity(self.layout.places.len());
        for (offset, len) in &self.layout.places {
            let (tensor, tail) = rest.split_at_mut(offset - at).1.split_at_mut(*len);
            tensors.push(tensor);
            rest = tail;
            at = offset + len;
        }
        tensors
    }

    /// Freezes the slab into a batch whose columns are the tensors in order. Each of `arrow` goes before the tensor
    /// whose number it comes with; these ascend.
    pub fn finish(self, epoch: u64, step: u64, rows: usize, arrow: Vec<(usize, (Arc<str>, ArrayRef))>) -> Batch {
        let slab = Arc::new(self.slab);
        let mut placed = self.placed.into_iter();
        let mut columns = Vec::with_capacity(self.specs.len() + arrow.len());
        let mut arrow = arrow.into_iter().peekable();
        for (at, (spec, (offset, len))) in self.specs.into_iter().zip(&self.layout.places).enumerate() {
            while let Some((_, (name, array))) = arrow.next_if(|(before, _)| *before <= at) {
                columns.push((name, Value::Arrow(array)));
            }
            let inside =
                || Tensor { dtype: spec.dtype, shape: spec.shape, slab: Arc::clone(&slab), offset: *offset, len: *len };
            let tensor = placed.next().flatten().unwrap_or_else(inside);
            columns.push((spec.name, Value::Tensor(tensor)));
        }
        columns.extend(arrow.map(|(_, (name, array))| (name, Value::Arrow(array))));
        Batch { epoch, step, rows, columns, foreign: false }
    }
}

/// The outcome of a wait for the next item of a sequence, mostly of batches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<T> {
    /// The next item.
    Item(T),
    /// No more items: of an epoch, if there are several, and then the next item is the first of the next epoch.
    End,
    /// Nothing yet.
    Pending,
}

impl<T> Next<T> {
    /// Applies `change` to the item.
    pub fn map<U>(self, change: impl FnOnce(T) -> U) -> Next<U> {
        match self {
            Self::Item(item) => Next::Item(change(item)),
            Self::End => Next::End,
            Self::Pending => Next::Pending,
        }
    }

    /// The item, or `None` at the end; having nothing yet is an error.
    ///
    /// # Errors
    /// The error that `pending` makes.
    pub fn or_error(self, pending: impl FnOnce() -> Error) -> Result<Option<T>> {
        match self {
            Self::Item(item) => Ok(Some(item)),
            Self::End => Ok(None),
            Self::Pending => Err(pending()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{ALIGNMENT, Pool, SystemAllocator};

    #[test]
    fn tensors_are_disjoint_aligned_and_outlive_the_batch() {
        let pool = Pool::new(Arc::new(SystemAllocator), 1 << 20);
        let specs = vec![
            TensorSpec { name: "a".into(), dtype: DType::Float32, shape: vec![3, 5] },
            TensorSpec { name: "empty".into(), dtype: DType::Int64, shape: vec![0] },
            TensorSpec { name: "b".into(), dtype: DType::Uint8, shape: vec![3] },
        ];
        let bytes = BatchBuilder::slab_bytes(&specs).unwrap();
        let mut builder = BatchBuilder::new(specs, pool.try_reserve(bytes).unwrap()).unwrap();
        for (index, tensor) in builder.tensors().into_iter().enumerate() {
            tensor.fill(index as u8 + 1);
        }
        let batch = builder.finish(0, 7, 3, Vec::new());
        assert_eq!(batch.tensor_bytes(), 60 + 3);
        let (a, b) = (batch.tensor("a").unwrap().clone(), batch.tensor("b").unwrap().clone());
        batch.deliver();
        drop(batch);
        assert_eq!(pool.used(), 0);
        assert!(a.bytes().iter().all(|byte| *byte == 1) && b.bytes() == [3, 3, 3]);
        assert_eq!((a.as_ptr() as usize % ALIGNMENT, b.as_ptr() as usize % ALIGNMENT), (0, 0));
        assert_eq!(a.as_slice::<f32>().map(<[f32]>::len), Some(15));
        assert!(a.as_slice::<u8>().is_none());
    }

    #[test]
    fn nothing_of_an_earlier_batch_lies_between_tensors() {
        let pool = Pool::new(Arc::new(SystemAllocator), 1 << 20);
        let mut earlier = pool.try_reserve(4096).unwrap().allocate(4096).unwrap();
        earlier.fill(7);
        drop(earlier);
        let shape = |rows| TensorSpec { name: "x".into(), dtype: DType::Uint8, shape: vec![rows] };
        let specs = vec![shape(3), shape(256), shape(0), shape(300)];
        let mut builder = BatchBuilder::new(specs, pool.try_reserve(4096).unwrap()).unwrap();
        builder.tensors().into_iter().for_each(|tensor| tensor.fill(1));
        let batch = builder.finish(0, 0, 1, Vec::new());
        let slab = batch.tensor("x").unwrap().slab();
        assert!(slab.iter().all(|byte| *byte <= 1) && slab.len() == 256 + 256 + 512);
    }

    #[test]
    fn an_overflowing_shape_is_an_error() {
        let spec = TensorSpec { name: "x".into(), dtype: DType::Float64, shape: vec![usize::MAX, 2] };
        assert!(matches!(spec.bytes(), Err(Error::Limit { .. })));
    }
}
