//! The placement of a batch's parts in a slot: arithmetic only.
//!
//! ```text
//!   slot │ slab as it is on the host ............ │ another slab ... │ what conversions make │
//!          one copy                                 (windows: one)     kernels, after the copies
//! ```
//!
//! A slab takes the room of its whole memory, of which only the used part is copied: with cut lists, batches differ in
//! size, but their slots do not.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::address::Address;
use super::conversion::{Conversion, Lists};
use super::decoding::{Decoding, Photos};
use super::traits::DEVICE_ALIGNMENT;
use crate::error::{Error, Result};
use crate::memory::HostBuffer;
use crate::schema::{DType, part_name};
use crate::tensor::{Batch, Tensor, Value};

/// The conversions of a device for tensors on their way into place.
#[derive(Debug, Clone, Default)]
pub struct Recipes {
    /// Normalisation of columns of photos, u8 `[B, height, width, channels]`.
    pub photos: BTreeMap<Arc<str>, Normalisation>,
    /// Decoding of columns of photos that are not decoded, u8 `[B, bytes]`.
    pub decoded: BTreeMap<Arc<str>, Developing>,
    /// Padding of columns of lists: `name__values` and `name__offsets` become `name` and `name__lengths`.
    pub lists: BTreeMap<Arc<str>, Padding>,
    /// The column that marks padding rows, if there is one.
    pub mask: Option<Arc<str>>,
}

/// Normalisation of a column's photos: see [`Conversion::Normalise`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalisation {
    /// `float16`, `bfloat16` or `float32`.
    pub to: DType,
    /// A factor for each channel.
    pub scale: [f32; 4],
    /// A summand for each channel.
    pub bias: [f32; 4],
}

/// Decoding of a column's photos: see [`Decoding`].
#[derive(Debug, Clone)]
pub struct Developing {
    /// Reads the rows.
    pub photos: Arc<dyn Photos>,
    /// Bytes of one row.
    pub row_bytes: usize,
    /// Height, width and channels.
    pub shape: [usize; 3],
    /// Set if one channel comes after the other.
    pub planes: bool,
    /// The type, a factor and a summand for each channel.
    pub values: Normalisation,
}

impl Developing {
    /// The axes of one delivered photo.
    pub fn axes(&self) -> [usize; 3] {
        let [height, width, channels] = self.shape;
        if self.planes { [channels, height, width] } else { [height, width, channels] }
    }
}

/// Padding of a column's lists: see [`Conversion::Pad`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Padding {
    /// Items of every list.
    pub length: usize,
    /// The bits of the padding element.
    pub fill: u64,
    /// Set if the padding comes before the values.
    pub left: bool,
}

/// The places of everything in one batch, in bytes from the slot's start.
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
    /// The column of the batch that it is delivered as.
    pub(super) name: Arc<str>,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    /// Place of the tensor as it was on the host.
    pub(super) from: Spot,
    /// The work that makes it and its place, if it is not delivered as it is.
    pub(super) becomes: Option<(Work, usize)>,
    /// Further input of the conversion: the mask of its rows, or its offsets.
    pub(super) beside: Option<Spot>,
    /// Bytes delivered to the consumer.
    pub(super) bytes: usize,
}

/// The work that makes a tensor.
#[derive(Debug, Clone)]
pub(super) enum Work {
    Convert(Conversion),
    Decode(Decoding),
}

impl Work {
    /// Bytes that it writes; `None` if they exceed any memory.
    fn to_bytes(&self) -> Option<usize> {
        match self {
            Self::Convert(what) => what.to_bytes(),
            Self::Decode(what) => what.to_bytes(),
        }
    }
}

/// A place in a slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    slab: usize,
    offset: usize,
}

impl Placement {
    /// Places the parts of `batch`. `in_place`: slabs stay where they are, and the slot holds only converted tensors.
    ///
    /// # Errors
    /// [`Error::Limit`] if the batch overflows memory.
    pub(super) fn new(batch: &Batch, recipes: &Recipes, in_place: bool) -> Result<Self> {
        let overflow = || Error::limit("a batch on a device", u64::MAX, isize::MAX as u64, "batch_size");
        let mut placement = Self { slabs: Vec::new(), tensors: Vec::new(), total: 0 };
        let tensors: Vec<(&Arc<str>, &Tensor)> = batch.columns().iter().filter_map(named).collect();
        for (_, tensor) in &tensors {
            if placement.slab(tensor).is_none() {
                let at = placement.total;
                placement.slabs.push((Arc::clone(tensor.slab()), at));
                if !in_place {
                    placement.total = after(at, tensor.slab().capacity()).ok_or_else(overflow)?;
                }
            }
        }
        for (name, tensor) in tensors {
            let Some(from) = placement.spot(tensor) else { continue };
            let mut part = Part {
                name: Arc::clone(name),
                dtype: tensor.dtype(),
                shape: tensor.shape().to_vec(),
                from,
                becomes: None,
                beside: None,
                bytes: tensor.bytes().len(),
            };
            if let Some(made) = recipes.made(name, tensor, batch) {
                part.bytes = made.work.to_bytes().ok_or_else(overflow)?;
                part.becomes = Some((made.work, placement.total));
                part.beside = made.beside.and_then(|beside| placement.spot(beside));
                (part.name, part.dtype, part.shape) = (made.name, made.dtype, made.shape);
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

    /// Address of `spot` on the host.
    pub(super) fn on_host(&self, spot: Spot) -> *const u8 {
        // A spot is that of a tensor within the slab.
        self.slabs[spot.slab].0.as_ptr().wrapping_add(spot.offset)
    }
}

impl Part {
    /// The work that makes this part and its place, if it is not delivered as it is; `beside` is the address of its
    /// further input.
    pub(super) fn work(&self, beside: Option<Address>) -> Option<(Work, usize)> {
        let (work, at) = self.becomes.clone()?;
        Some(match (work, beside) {
            (Work::Convert(what), Some(beside)) => (Work::Convert(what.with_beside(beside)), at),
            (work, _) => (work, at),
        })
    }
}

/// The result of a recipe for a tensor.
struct Made<'a> {
    name: Arc<str>,
    dtype: DType,
    shape: Vec<usize>,
    /// Without the address of the further input.
    work: Work,
    beside: Option<&'a Tensor>,
}

impl Recipes {
    /// The result for the column `name`; `None` if it is delivered as it is.
    fn made<'a>(&self, name: &Arc<str>, tensor: &Tensor, batch: &'a Batch) -> Option<Made<'a>> {
        let lists = |suffix: &str| name.strip_suffix(suffix).and_then(|column| self.lists.get_key_value(column));
        if let Some(recipe) = self.photos.get(name) {
            self.normalised(name, *recipe, tensor, batch)
        } else if let Some(recipe) = self.decoded.get(name) {
            decoded(name, recipe, tensor)
        } else if let Some((column, recipe)) = lists("__values") {
            padded(column, *recipe, tensor, batch.tensor(&part_name(column, "offsets", 0))?)
        } else if let Some((column, recipe)) = lists("__offsets") {
            let lists = lists_of(*recipe, batch.tensor(&part_name(column, "values", 0))?, tensor)?;
            let (name, shape) = (part_name(column, "lengths", 0), vec![usize::try_from(lists.count).ok()?]);
            Some(Made {
                name,
                dtype: DType::Int64,
                shape,
                work: Work::Convert(Conversion::Lengths(lists)),
                beside: None,
            })
        } else {
            None
        }
    }

    fn normalised<'a>(
        &self,
        name: &Arc<str>,
        Normalisation { to, scale, bias }: Normalisation,
        tensor: &Tensor,
        batch: &'a Batch,
    ) -> Option<Made<'a>> {
        let (DType::Uint8, &[rows, height, width, channels]) = (tensor.dtype(), tensor.shape()) else { return None };
        let mask = self.mask.as_ref().and_then(|name| batch.tensor(name));
        let what = Conversion::Normalise {
            images: rows as u64,
            height: u32::try_from(height).ok()?,
            width: u32::try_from(width).ok()?,
            channels: u8::try_from(channels).ok()?,
            to,
            scale,
            bias,
            mask: None,
        };
        let beside = mask.filter(|mask| mask.bytes().len() == rows);
        let (name, shape) = (Arc::clone(name), vec![rows, channels, height, width]);
        Some(Made { name, dtype: to, shape, work: Work::Convert(what), beside })
    }
}

/// Rows of photos that are not decoded, `[rows, bytes]`, as photos.
fn decoded<'a>(name: &Arc<str>, recipe: &Developing, tensor: &Tensor) -> Option<Made<'a>> {
    let (DType::Uint8, &[rows, row_bytes]) = (tensor.dtype(), tensor.shape()) else { return None };
    if row_bytes != recipe.row_bytes {
        return None;
    }
    let [height, width, channels] = recipe.shape;
    let Normalisation { to, scale, bias } = recipe.values;
    let what = Decoding {
        photos: Arc::clone(&recipe.photos),
        rows,
        row_bytes,
        height: u32::try_from(height).ok()?,
        width: u32::try_from(width).ok()?,
        channels: u8::try_from(channels).ok()?,
        planes: recipe.planes,
        to,
        scale,
        bias,
    };
    let shape = std::iter::once(rows).chain(recipe.axes()).collect();
    Some(Made { name: Arc::clone(name), dtype: to, shape, work: Work::Decode(what), beside: None })
}

/// `values`, `[items, ...]`, and `offsets` as `[lists, length, ...]`.
fn padded<'a>(column: &Arc<str>, recipe: Padding, values: &Tensor, offsets: &'a Tensor) -> Option<Made<'a>> {
    let lists = lists_of(recipe, values, offsets)?;
    let rest = values.shape().get(1..)?;
    let what = Conversion::Pad {
        lists,
        item: rest.iter().map(|axis| *axis as u64).product(),
        width: u8::try_from(values.dtype().size()).ok()?,
        fill: recipe.fill,
        left: recipe.left,
        offsets: 0,
    };
    let shape = [usize::try_from(lists.count).ok()?, recipe.length].iter().chain(rest).copied().collect();
    Some(Made {
        name: Arc::clone(column),
        dtype: values.dtype(),
        shape,
        work: Work::Convert(what),
        beside: Some(offsets),
    })
}

/// The lists of these tensors.
fn lists_of(recipe: Padding, values: &Tensor, offsets: &Tensor) -> Option<Lists> {
    let (DType::Int64, &[ends]) = (offsets.dtype(), offsets.shape()) else { return None };
    let (count, items) = (ends.checked_sub(1)? as u64, *values.shape().first()? as u64);
    Some(Lists { count, items, length: recipe.length as u64 })
}

fn named((name, value): &(Arc<str>, Value)) -> Option<(&Arc<str>, &Tensor)> {
    value.tensor().map(|tensor| (name, tensor))
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
        let lists = BTreeMap::from([("words".into(), Padding { length: 3, fill: 7, left: true })]);
        let recipes = Recipes { photos, lists, mask: Some("_mask".into()), ..Recipes::default() };
        let mut batch = batch(&[
            ("image", DType::Uint8, &[2, 5, 3, 3]),
            ("label", DType::Int64, &[2]),
            ("_mask", DType::Bool, &[2]),
        ]);
        let more: [(&str, DType, &[usize]); 3] = [
            ("x", DType::Float16, &[7]),
            ("words__values", DType::Float16, &[5, 2]),
            ("words__offsets", DType::Int64, &[3]),
        ];
        batch.add_frames(self::batch(&more), 1, &more.map(|(name, ..)| name.into()));
        let placement = Placement::new(&batch, &recipes, false).unwrap();
        assert_eq!(placement.slabs.len(), 2);
        let image = &placement.tensors[0];
        assert_eq!((image.dtype, &*image.shape, image.bytes), (DType::Float32, &[2, 3, 5, 3][..], 360));
        let (work, at) = image.work(image.beside.map(|mask| placement.address(mask, 1 << 20, false))).unwrap();
        let Work::Convert(Conversion::Normalise { images, height, width, channels, mask, .. }) = work else {
            panic!("{work:?}")
        };
        assert_eq!((images, height, width, channels), (2, 5, 3, 3));
        assert_eq!(mask, Some((1 << 20) + 512), "image and label take 256 bytes each");
        let slabs = placement.slabs.iter().map(|(slab, at)| (*at, slab.len()));
        let [words, lengths] = &placement.tensors[placement.tensors.len() - 2..] else { panic!() };
        assert_eq!((&*words.name, &*words.shape, words.bytes), ("words", &[2, 3, 2][..], 24));
        assert_eq!((&*lengths.name, &*lengths.shape, lengths.dtype), ("words__lengths", &[2][..], DType::Int64));
        let beside = words.beside.map(|beside| placement.address(beside, 0, false));
        assert_eq!(beside, Some(placement.address(lengths.from, 0, false)), "the offsets");
        let made = |part: &Part| (part.work(beside).unwrap().1, part.bytes);
        let mut parts: Vec<(usize, usize)> = slabs.chain([(at, image.bytes), made(words), made(lengths)]).collect();
        parts.sort_unstable();
        assert!(parts.iter().all(|(at, _)| at % DEVICE_ALIGNMENT == 0));
        assert!(parts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
        assert!(parts.last().is_some_and(|(at, len)| at + len <= placement.total));
        assert!(placement.tensors[1].becomes.is_none() && placement.tensors[1].beside.is_none());

        let in_place = Placement::new(&batch, &recipes, true).unwrap();
        assert_eq!(in_place.total, 512 + 256 + 256, "only what is made");
        let label = batch.tensor("label").unwrap();
        assert_eq!(in_place.address(in_place.tensors[1].from, 0, true), label.as_ptr() as Address);
    }
}
