//! The consumer's own memory that a batch is copied into, e.g. the static inputs of a CUDA graph.
//!
//! ```text
//!   slot of the ring ──► copy on the consumer's stream ──► target        after the batch's own copy, before the consumer's next work;
//!   slab on the host ──► copy, once, here ───────────────► target        the slot comes back after it
//! ```
//!
//! All targets are checked against the batch before the first byte is written.

#![expect(unsafe_code, reason = "the consumer's memory is written; its contract is stated where a target is made")]

use std::sync::Arc;

use super::address::Address;
use super::batch::{DeviceBatch, DeviceValue};
use super::lease::Consumer;
use super::traits::{Device, Kind};
use crate::error::{Error, Result};
use crate::schema::DType;
use crate::tensor::{Batch, Value};

/// The side on which a target lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Host,
    On(Kind, u32),
}

/// A row-major tensor of the consumer's, to be filled with one column of a batch.
#[derive(Debug)]
pub struct Target {
    column: Arc<str>,
    dtype: DType,
    shape: Vec<usize>,
    bytes: usize,
    at: Address,
    side: Side,
}

/// The targets that one batch fills.
#[derive(Debug)]
pub struct Targets(Vec<Target>);

impl Target {
    /// Memory of the host at `at`, for the column `column`.
    ///
    /// # Errors
    /// [`Error::Limit`] if the shape overflows memory.
    ///
    /// # Safety
    /// For as long as the target lives, `at` is writable for the bytes that `dtype` and `shape` give, and
    /// while a batch is copied there nothing else reads or writes them.
    pub unsafe fn on_host(column: impl Into<Arc<str>>, dtype: DType, shape: Vec<usize>, at: *mut u8) -> Result<Self> {
        Self::new(column.into(), dtype, shape, at.expose_provenance() as Address, Side::Host)
    }

    /// Memory of the device `ordinal` of its `kind`, for the column `column`.
    ///
    /// # Errors
    /// [`Error::Limit`] if the shape overflows memory.
    ///
    /// # Safety
    /// For as long as the target lives, and until the streams on which it was filled have done so, `at` is
    /// memory of that device with the bytes that `dtype` and `shape` give; any other use of it is ordered with those
    /// streams.
    pub unsafe fn on_device(
        column: impl Into<Arc<str>>,
        dtype: DType,
        shape: Vec<usize>,
        (kind, ordinal): (Kind, u32),
        at: Address,
    ) -> Result<Self> {
        Self::new(
            column.into(),
            dtype,
            shape,
            at,
            if kind == Kind::Host { Side::Host } else { Side::On(kind, ordinal) },
        )
    }

    fn new(column: Arc<str>, dtype: DType, shape: Vec<usize>, at: Address, side: Side) -> Result<Self> {
        let bytes = shape.iter().try_fold(dtype.size(), |product, dim| product.checked_mul(*dim));
        let bytes = bytes.filter(|bytes| at.checked_add(*bytes as u64).is_some()).ok_or_else(|| {
            Error::limit(
                format!("the tensor for column {column}, of shape {shape:?},"),
                u64::MAX,
                isize::MAX as u64,
                "batch_size",
            )
        })?;
        Ok(Self { column, dtype, shape, bytes, at, side })
    }

    /// The column that fills it.
    pub fn column(&self) -> &str {
        &self.column
    }

    fn is_over(&self, other: &Self) -> bool {
        let end = |target: &Self| target.at + target.bytes as u64;
        self.side == other.side && self.bytes.min(other.bytes) > 0 && self.at < end(other) && other.at < end(self)
    }

    /// Checks that a column of this type and shape, on `side`, can be copied here as it is.
    fn check(&self, dtype: DType, shape: &[usize], side: Side) -> Result<()> {
        if self.dtype == dtype && self.shape == shape && self.side == side {
            return Ok(());
        }
        let hint = match (self.side, side) {
            (found, wanted) if found == wanted && self.dtype == dtype && has_fewer_rows(shape, &self.shape) => {
                "where the last batch of an epoch has fewer rows, open the loader with tail=\"pad\", \"repeat\" or \"drop\""
            }
            (found, wanted) if found == wanted => "",
            (Side::Host, Side::On(..)) => "give tensors on that device, or open the loader with device=\"cpu\"",
            _ => "open the loader with that device",
        };
        Err(Error::Mismatch {
            what: format!("the tensor for column {}", self.column),
            expected: described(dtype, shape, side),
            found: described(self.dtype, &self.shape, self.side),
            hint: hint.to_owned(),
        })
    }
}

/// Returns true if `shape` is `full` with fewer rows.
fn has_fewer_rows(shape: &[usize], full: &[usize]) -> bool {
    matches!((shape, full), ([rows, inner @ ..], [all, others @ ..]) if rows < all && inner == others)
}

fn described(dtype: DType, shape: &[usize], side: Side) -> String {
    match side {
        Side::Host => format!("{dtype} {shape:?} on the host"),
        Side::On(kind, ordinal) => format!("{dtype} {shape:?} on {kind}:{ordinal}"),
    }
}

impl Targets {
    /// These targets.
    ///
    /// # Errors
    /// [`Error::Config`] if two of them overlap, or are for one column.
    pub fn new(targets: Vec<Target>) -> Result<Self> {
        for (at, one) in targets.iter().enumerate() {
            for other in &targets[..at] {
                let problem = if one.column == other.column {
                    format!("two tensors are given for column {}", one.column)
                } else if one.is_over(other) {
                    format!("the tensors for columns {} and {} lie over each other", other.column, one.column)
                } else {
                    continue;
                };
                return Err(Error::config("buffers", problem));
            }
        }
        Ok(Self(targets))
    }

    /// The targets.
    pub fn iter(&self) -> impl Iterator<Item = &Target> {
        self.0.iter()
    }

    /// Copies `batch` into them, before returning.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Unsupported`], [`Error::Mismatch`] for a target that `batch` has no column for, or
    /// not a fitting one; nothing was written then.
    pub fn fill(&self, batch: &Batch) -> Result<()> {
        let mut pairs = Vec::with_capacity(self.0.len());
        for target in &self.0 {
            let tensor = match batch.get(&target.column) {
                Some(Value::Tensor(tensor)) => tensor,
                Some(Value::Arrow(_)) => return Err(no_tensor(&target.column)),
                None => return Err(no_column(&target.column, batch.columns().iter().map(|(name, _)| name))),
            };
            target.check(tensor.dtype(), tensor.shape(), Side::Host)?;
            pairs.push((target, tensor));
        }
        for (target, tensor) in pairs {
            let (from, to) = (tensor.bytes(), std::ptr::with_exposed_provenance_mut::<u8>(target.at as usize));
            // SAFETY: the target has as many bytes as the tensor, of the same type and shape, and its creator promised
            // that they can be written and that nothing else uses them now. A tensor's memory is never a target's: it
            // belongs to a batch that nobody had.
            unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) }
        }
        Ok(())
    }

    /// Appends copies of `batch` to the stream of `consumer`, after the work that fills `batch`; `batch` may be
    /// dropped at once. For [`Consumer::Unordered`] it waits until they are done.
    ///
    /// # Errors
    /// As [`fill`](Self::fill); [`Error::Device`] if the device refuses, in particular while the stream is capturing a
    /// graph: the written content is then undefined.
    pub fn fill_on_device(&self, batch: &DeviceBatch, consumer: Consumer) -> Result<()> {
        let mut pairs = Vec::with_capacity(self.0.len());
        for target in &self.0 {
            let tensor = match batch.get(&target.column) {
                Some(DeviceValue::Tensor(tensor)) => tensor,
                Some(DeviceValue::Arrow(_)) => return Err(no_tensor(&target.column)),
                None => return Err(no_column(&target.column, batch.columns().iter().map(|(name, _)| name))),
            };
            target.check(tensor.dtype(), tensor.shape(), side_of(&**tensor.device()))?;
            pairs.push((target, tensor));
        }
        let Some(lease) = batch.lease().filter(|_| !pairs.is_empty()) else { return Ok(()) };
        let on = lease.read_on(consumer)?;
        for (target, tensor) in pairs.into_iter().filter(|(target, _)| target.bytes > 0) {
            // SAFETY: `from` is the tensor's memory, which its lease keeps until the work queued on this stream is
            // done; `to` has that many bytes, and the target's creator promised that they are ordered with the stream.
            // The two are never the same.
            unsafe { lease.device().copy_within(on, target.at, tensor.address(), target.bytes)? }
        }
        Ok(())
    }
}

fn side_of(device: &dyn Device) -> Side {
    if device.kind() == Kind::Host { Side::Host } else { Side::On(device.kind(), device.ordinal()) }
}

fn no_tensor(column: &str) -> Error {
    Error::unsupported(
        format!("filling a tensor with column {column}, which is not a tensor"),
        "text and binary come as Arrow arrays: leave it out of the tensors to fill",
    )
}

fn no_column<'a>(column: &str, there: impl Iterator<Item = &'a Arc<str>>) -> Error {
    let there: Vec<&str> = there.map(|name| &**name).collect();
    Error::NotFound { what: format!("column {column} of the batch"), hint: format!("it has {}", there.join(", ")) }
}
