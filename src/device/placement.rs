//! Where the parts of a batch lie in a slot: arithmetic only.
//!
//! ```text
//!   slot │ slab as it is on the host ............ │ another slab ... │ what conversions make │
//!          one copy                                 (windows: one)     kernels, after the copies
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use super::conversion::Conversion;
use super::port::{Address, DEVICE_ALIGNMENT};
use crate::error::{Error, Result};
use crate::memory::HostBuffer;
use crate::schema::DType;
use crate::tensor::{Batch, Tensor, Value};

/// What a device does to tensors on their way into place.
#[derive(Debug, Clone, Default)]
pub struct Recipes {
    /// For columns of photos, u8 `[B, height, width, channels]`: how they are normalised.
    pub photos: BTreeMap<Arc<str>, Normalisation>,
    /// The column that says which rows are padding, if there is one.
    pub mask: Option<Arc<str>>,
}

/// How the photos of a column are normalised: see [`Conversion::Normalise`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalisation {
    /// `float16`, `bfloat16` or `float32`.
    pub to: DType,
    /// A factor for each channel.
    pub scale: [f32; 4],
    /// A summand for each channel.
    pub bias: [f32; 4],
}

/// Where everything of one batch lies, in bytes from the slot's beginning.
#[derive(Debug)]
pub(super) struct Placement {
    /// The slabs, each once.
    pub(super) slabs: Vec<(Arc<HostBuffer>, usize)>,
    /// For each column that is a tensor, in order.
    pub(super) tensors: Vec<Part>,
    /// Bytes of the slot.
    pub(super) total: usize,
}

/// One tensor in a slot.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    /// Where it lies as it was on the host.
    pub(super) from: Spot,
    /// What it becomes, and where, if it does not stay.
    pub(super) becomes: Option<(Normalisation, usize)>,
    /// The mask of its rows, if it has one and becomes something.
    pub(super) mask: Option<Spot>,
    /// Bytes that the consumer gets.
    pub(super) bytes: usize,
}

/// A place in a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    slab: usize,
    offset: usize,
}

impl Placement {
    /// Where the parts of `batch` go. `in_place`: slabs stay where they are, the slot holds only what is made.
    ///
    /// # Errors
    /// [`Error::Limit`] if the batch overflows memory.
    pub(super) fn new(batch: &Batch, recipes: &Recipes, in_place: bool) -> Result<Self> {
        let overflow = || Error::Limit {
            what: "a batch on a device".to_owned(),
            asked: u64::MAX,
            limit: isize::MAX as u64,
            option: "batch_size",
        };
        let mut placement = Self { slabs: Vec::new(), tensors: Vec::new(), total: 0 };
        let tensors: Vec<(&str, &Tensor)> = batch.columns().iter().filter_map(named).collect();
        for (_, tensor) in &tensors {
            if placement.slab(tensor).is_none() {
                let at = placement.total;
                placement.slabs.push((Arc::clone(tensor.slab()), at));
                if !in_place {
                    placement.total = after(at, tensor.slab().len()).ok_or_else(overflow)?;
                }
            }
        }
        let mask = recipes.mask.as_ref().and_then(|name| batch.tensor(name));
        for (name, tensor) in tensors {
            let Some(from) = placement.spot(tensor) else { continue };
            let mut part = Part {
                dtype: tensor.dtype(),
                shape: tensor.shape().to_vec(),
                from,
                becomes: None,
                mask: None,
                bytes: tensor.bytes().len(),
            };
            if let (Some(recipe), DType::Uint8, &[rows, height, width, channels]) =
                (recipes.photos.get(name), tensor.dtype(), tensor.shape())
            {
                part.dtype = recipe.to;
                part.shape = vec![rows, channels, height, width];
                part.bytes = part.bytes.checked_mul(recipe.to.size()).ok_or_else(overflow)?;
                part.becomes = Some((*recipe, placement.total));
                part.mask = mask.filter(|mask| mask.bytes().len() == rows).and_then(|mask| placement.spot(mask));
                placement.total = after(placement.total, part.bytes).ok_or_else(overflow)?;
            }
            placement.tensors.push(part);
        }
        Ok(placement)
    }

    fn slab(&self, tensor: &Tensor) -> Option<usize> {
        self.slabs.iter().position(|(slab, _)| Arc::ptr_eq(slab, tensor.slab()))
    }

    fn spot(&self, tensor: &Tensor) -> Option<Spot> {
        Some(Spot { slab: self.slab(tensor)?, offset: tensor.offset() })
    }

    /// The address of `spot` in the slot at `base`, or in the host's memory if the slabs stay there.
    pub(super) fn address(&self, spot: Spot, base: Address, in_place: bool) -> Address {
        let (slab, at) = &self.slabs[spot.slab];
        let start = if in_place { slab.as_ptr().expose_provenance() as Address } else { base + *at as Address };
        start + spot.offset as Address
    }
}

impl Part {
    /// What makes this part, if it does not stay as it is; `mask` is where its mask lies.
    pub(super) fn conversion(&self, mask: Option<Address>) -> Option<(Conversion, usize)> {
        let (Normalisation { to, scale, bias }, at) = self.becomes?;
        let &[images, channels, height, width] = self.shape.as_slice() else { return None };
        let what = Conversion::Normalise {
            images: images as u64,
            height: u32::try_from(height).ok()?,
            width: u32::try_from(width).ok()?,
            channels: u8::try_from(channels).ok()?,
            to,
            scale,
            bias,
            mask,
        };
        Some((what, at))
    }
}

fn named((name, value): &(Arc<str>, Value)) -> Option<(&str, &Tensor)> {
    value.tensor().map(|tensor| (&**name, tensor))
}

/// The first aligned byte after `len` bytes at `at`.
fn after(at: usize, len: usize) -> Option<usize> {
    at.checked_add(len)?.checked_next_multiple_of(DEVICE_ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Pool, SystemAllocator};
    use crate::tensor::{BatchBuilder, TensorSpec};

    fn batch(specs: &[(&str, DType, &[usize])]) -> Batch {
        let pool = Pool::new(Arc::new(SystemAllocator), 1 << 20);
        let specs = specs.iter().map(|(name, dtype, shape)| TensorSpec {
            name: (*name).into(),
            dtype: *dtype,
            shape: shape.to_vec(),
        });
        let builder = BatchBuilder::new(specs.collect(), pool.try_reserve(0).unwrap()).unwrap();
        builder.finish(0, 0, 2, Vec::new())
    }

    #[test]
    fn parts_are_aligned_and_disjoint_and_each_slab_lies_there_once() {
        let photos =
            BTreeMap::from([("image".into(), Normalisation { to: DType::Float32, scale: [1.0; 4], bias: [0.0; 4] })]);
        let recipes = Recipes { photos, mask: Some("_mask".into()) };
        let mut batch = batch(&[
            ("image", DType::Uint8, &[2, 5, 3, 3]),
            ("label", DType::Int64, &[2]),
            ("_mask", DType::Bool, &[2]),
        ]);
        batch.add_frames(self::batch(&[("x", DType::Float16, &[7])]), 1, &["x".into()]);
        let placement = Placement::new(&batch, &recipes, false).unwrap();
        assert_eq!(placement.slabs.len(), 2);
        let image = &placement.tensors[0];
        assert_eq!((image.dtype, &*image.shape, image.bytes), (DType::Float32, &[2, 3, 5, 3][..], 360));
        let (what, at) = image.conversion(image.mask.map(|mask| placement.address(mask, 1 << 20, false))).unwrap();
        let Conversion::Normalise { images, height, width, channels, mask, .. } = what else { panic!("{what:?}") };
        assert_eq!((images, height, width, channels), (2, 5, 3, 3));
        assert_eq!(mask, Some((1 << 20) + 512), "image and label take 256 bytes each");
        let slabs = placement.slabs.iter().map(|(slab, at)| (*at, slab.len()));
        let mut parts: Vec<(usize, usize)> = slabs.chain([(at, image.bytes)]).collect();
        parts.sort_unstable();
        assert!(parts.iter().all(|(at, _)| at % DEVICE_ALIGNMENT == 0));
        assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(parts.last().is_some_and(|(at, len)| at + len <= placement.total));
        assert!(placement.tensors[1].becomes.is_none() && placement.tensors[1].mask.is_none());

        let in_place = Placement::new(&batch, &recipes, true).unwrap();
        assert_eq!(in_place.total, 512, "only what is made");
        let label = batch.tensor("label").unwrap();
        assert_eq!(in_place.address(in_place.tensors[1].from, 0, true), label.as_ptr() as Address);
    }
}
