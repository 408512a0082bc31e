//! A batch in the memory of a device.

use std::fmt;
use std::sync::Arc;

use arrow::array::ArrayRef;

use super::address::Address;
use super::lease::{Consumer, Lease};
use super::traits::Device;
use crate::error::Result;
use crate::schema::DType;
use crate::tensor::Batch;

/// A row-major tensor in a device's memory. It keeps its batch's memory alive, and nothing else.
#[derive(Clone)]
pub struct DeviceTensor {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) address: Address,
    pub(super) bytes: usize,
    pub(super) lease: Arc<Lease>,
}

impl DeviceTensor {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Shape, the batch axis first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Address of the first element in the device's memory. A reader must have been admitted by
    /// [`give_to`](Self::give_to), and its work must be queued when the last share of the batch is dropped.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Bytes of all elements.
    pub fn byte_len(&self) -> usize {
        self.bytes
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.lease.device()
    }

    /// Lets `consumer` read: its stream waits for the batch, the calling thread does not. The memory is not written
    /// again until the streams that the batch was given to have finished the work queued before it was dropped.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if the device refuses; [`Error::Closed`](crate::Error::Closed) in a forked child.
    pub fn give_to(&self, consumer: Consumer) -> Result<()> {
        self.lease.give_to(consumer)
    }

    /// A copy in memory of its own on the device, made on the stream of `consumer`, which may read it there; for
    /// [`Consumer::Unordered`] it is complete when this returns. It keeps nothing of the batch.
    ///
    /// # Errors
    /// As [`give_to`](Self::give_to), and [`Error::Device`](crate::Error::Device) if there is not enough memory, or the
    /// stream is capturing a graph.
    pub fn copied(&self, consumer: Consumer) -> Result<Self> {
        let Self { dtype, bytes, .. } = *self;
        let (lease, address) = self.lease.copy(self.address, bytes, consumer)?;
        Ok(Self { dtype, shape: self.shape.clone(), address, bytes, lease })
    }

    /// Waits until the tensor is complete.
    ///
    /// # Errors
    /// As [`give_to`](Self::give_to).
    pub fn synchronize(&self) -> Result<()> {
        self.lease.synchronize()
    }

    /// The elements' bytes, copied to the host.
    ///
    /// # Errors
    /// As [`give_to`](Self::give_to).
    pub fn to_host(&self) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.bytes];
        if !bytes.is_empty() {
            self.lease.read(self.address, &mut bytes)?;
        }
        Ok(bytes)
    }
}

impl fmt::Debug for DeviceTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceTensor({} {:?} on {})", self.dtype, self.shape, self.device().name())
    }
}

/// One column of a batch.
#[derive(Debug, Clone)]
pub enum DeviceValue {
    /// A tensor on the device.
    Tensor(DeviceTensor),
    /// A column without a tensor form, which stays on the host.
    Arrow(ArrayRef),
}

/// As [`Batch`], with the tensors in a device's memory. The copy that fills them may still be in flight:
/// [`DeviceTensor::give_to`] ensures that nobody reads too early.
#[derive(Debug, Clone)]
pub struct DeviceBatch {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Global step within the epoch, from 0.
    pub step: u64,
    /// Rows, padding included: the length of the batch axis.
    pub rows: usize,
    pub(super) columns: Vec<(Arc<str>, DeviceValue)>,
}

impl DeviceBatch {
    /// The columns in their fixed order.
    pub fn columns(&self) -> &[(Arc<str>, DeviceValue)] {
        &self.columns
    }

    /// The column named `name`.
    pub fn get(&self, name: &str) -> Option<&DeviceValue> {
        self.columns.iter().find(|(column, _)| &**column == name).map(|(_, value)| value)
    }

    /// The tensor named `name`; `None` for an Arrow column too.
    pub fn tensor(&self, name: &str) -> Option<&DeviceTensor> {
        match self.get(name) {
            Some(DeviceValue::Tensor(tensor)) => Some(tensor),
            _ => None,
        }
    }

    /// The lease that all its tensors share, if it has any.
    pub(super) fn lease(&self) -> Option<&Arc<Lease>> {
        self.columns.iter().find_map(|(_, value)| match value {
            DeviceValue::Tensor(tensor) => Some(&tensor.lease),
            DeviceValue::Arrow(_) => None,
        })
    }
}

/// A batch at the place that the option `device` names.
#[derive(Debug, Clone)]
pub enum AnyBatch {
    /// In this process's memory.
    Host(Batch),
    /// In the memory of a device.
    Device(DeviceBatch),
}

impl AnyBatch {
    /// Epoch and step.
    pub fn at(&self) -> (u64, u64) {
        match self {
            Self::Host(batch) => (batch.epoch, batch.step),
            Self::Device(batch) => (batch.epoch, batch.step),
        }
    }

    /// A copy whose tensors are in memory of their own, at the same place.
    ///
    /// # Errors
    /// [`Error::Limit`](crate::Error::Limit) or [`Error::Device`](crate::Error::Device) if there is not enough memory.
    pub fn copied(&self) -> Result<Self> {
        let batch = match self {
            Self::Host(batch) => return batch.copied().map(Self::Host),
            Self::Device(batch) => batch,
        };
        let column = |(name, value): &(Arc<str>, DeviceValue)| {
            let value = match value {
                DeviceValue::Tensor(tensor) => DeviceValue::Tensor(tensor.copied(Consumer::Unordered)?),
                DeviceValue::Arrow(array) => DeviceValue::Arrow(Arc::clone(array)),
            };
            Ok((Arc::clone(name), value))
        };
        let columns = batch.columns.iter().map(column).collect::<Result<_>>()?;
        Ok(Self::Device(DeviceBatch { columns, ..*batch }))
    }

    /// The batch, if it is in this process's memory.
    pub(crate) fn into_host(self) -> Option<Batch> {
        match self {
            Self::Host(batch) => Some(batch),
            Self::Device(_) => None,
        }
    }
}

impl From<Batch> for AnyBatch {
    fn from(batch: Batch) -> Self {
        Self::Host(batch)
    }
}

impl From<DeviceBatch> for AnyBatch {
    fn from(batch: DeviceBatch) -> Self {
        Self::Device(batch)
    }
}
