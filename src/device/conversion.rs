//! Conversions that a device may apply to a tensor on its way into place, and the definition of the result, bit by bit.
//!
//! Padded lists cross the bus as values and offsets, without their padding.
//!
//! Photos cross the bus as u8, a quarter of the bytes of f32. The arithmetic is that of the host's own normalisation:
//! one fused multiply-add for each value, `fma(x, scale, bias)`, then one rounding to the nearest, ties to even.
//! [`Conversion::on_host`] is the reference for a device's kernel.

use half::{bf16, f16};

use super::address::Address;
use crate::schema::DType;

/// A conversion of the elements of one tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Conversion {
    /// u8 pixels `[images, height, width, channels]` become `[images, channels, height, width]` of `to`.
    Normalise {
        /// Number of images.
        images: u64,
        /// Rows of pixels of one image.
        height: u32,
        /// Pixels of a row.
        width: u32,
        /// 1, 3 or 4.
        channels: u8,
        /// `float16`, `bfloat16` or `float32`.
        to: DType,
        /// A factor for each channel.
        scale: [f32; 4],
        /// A summand for each channel.
        bias: [f32; 4],
        /// One byte for each image: if it is 0, the image becomes zeros. `None`: all images count.
        mask: Option<Address>,
    },
    /// Every element is converted to another type; see [`Conversion::casts`].
    Cast {
        /// Type of the input elements.
        from: DType,
        /// Type of the output elements.
        to: DType,
        /// Number of elements.
        elements: u64,
    },
    /// Values of lists, one list after another, become `[lists, length]` items: the first `length` of each list, and
    /// padding.
    Pad {
        /// The lists.
        lists: Lists,
        /// Elements of one item.
        item: u64,
        /// Bytes of one element: 1, 2, 4 or 8.
        width: u8,
        /// The bits of the padding element, in the lower bytes.
        fill: u64,
        /// Set if the padding comes before the values instead of after them.
        left: bool,
        /// Address of the offsets.
        offsets: Address,
    },
    /// Offsets of lists, int64 `[lists + 1]`, become the number of items that [`Pad`](Self::Pad) keeps of each, int64
    /// `[lists]`.
    Lengths(Lists),
}

/// Lists padded to one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lists {
    /// Number of lists; there is one more offset, int64, ascending from 0.
    pub count: u64,
    /// Items of all lists. Larger offsets are clamped to it.
    pub items: u64,
    /// Items of one list once padded.
    pub length: u64,
}

impl Lists {
    /// Start of list `number` among the items, and the number of items kept. `offsets` are the bytes of the offsets.
    fn kept(&self, offsets: &[u8], number: u64) -> (u64, u64) {
        let offset = |at: u64| {
            let found = usize::try_from(at).ok().and_then(|at| offsets.chunks_exact(8).nth(at)?.try_into().ok());
            u64::from_le_bytes(found.unwrap_or_default()).min(self.items)
        };
        let (first, end) = (offset(number), offset(number + 1));
        (first, end.saturating_sub(first).min(self.length))
    }
}

impl Conversion {
    /// Returns true if a device may do a cast from `from` to `to`: no value is refused, and the result has one
    /// definition.
    ///
    /// These are: booleans to any type; integers to wider integers that hold all of them; integers to `float32` and
    /// `float64`; integers of up to 16 bits and the smaller floats to any float; `float64` to `float32`; every type to
    /// itself.
    pub fn casts(from: DType, to: DType) -> bool {
        use DType::{Bfloat16, Bool, Float16, Float32, Float64, Int8, Int16, Int32, Int64};
        use DType::{Uint8, Uint16, Uint32, Uint64};
        let float = matches!(to, Float16 | Bfloat16 | Float32 | Float64);
        from == to
            || match from {
                Bool => true,
                Uint8 => float || matches!(to, Uint16 | Uint32 | Uint64 | Int16 | Int32 | Int64),
                Int8 => float || matches!(to, Int16 | Int32 | Int64),
                Uint16 => float || matches!(to, Uint32 | Uint64 | Int32 | Int64),
                Int16 => float || matches!(to, Int32 | Int64),
                Uint32 => matches!(to, Float32 | Float64 | Uint64 | Int64),
                Int32 => matches!(to, Float32 | Float64 | Int64),
                Uint64 | Int64 => matches!(to, Float32 | Float64),
                Float16 | Bfloat16 | Float32 => float,
                Float64 => to == Float32,
            }
    }

    /// Bytes that it reads, without those [`beside`](Self::beside); `None` if they exceed any memory.
    pub fn from_bytes(&self) -> Option<usize> {
        match self {
            Self::Normalise { images, height, width, channels, .. } => pixels(*images, *height, *width, *channels),
            Self::Cast { from, elements, .. } => product(&[*elements, from.size() as u64]),
            Self::Pad { lists, item, width, .. } => product(&[lists.items, *item, u64::from(*width)]),
            Self::Lengths(lists) => product(&[lists.count.checked_add(1)?, 8]),
        }
    }

    /// Bytes that it writes; `None` if they exceed any memory.
    pub fn to_bytes(&self) -> Option<usize> {
        match self {
            Self::Normalise { images, height, width, channels, to, .. } => {
                pixels(*images, *height, *width, *channels)?.checked_mul(to.size())
            }
            Self::Cast { to, elements, .. } => product(&[*elements, to.size() as u64]),
            Self::Pad { lists, item, width, .. } => product(&[lists.count, lists.length, *item, u64::from(*width)]),
            Self::Lengths(lists) => product(&[lists.count, 8]),
        }
    }

    /// Further input, if any: the address of the mask or the offsets, and their bytes.
    pub fn beside(&self) -> Option<(Address, usize)> {
        match self {
            Self::Normalise { mask, images, .. } => Some(((*mask)?, product(&[*images])?)),
            Self::Pad { offsets, lists, .. } => Some((*offsets, Self::Lengths(*lists).from_bytes()?)),
            Self::Cast { .. } | Self::Lengths(_) => None,
        }
    }

    /// The same with its mask or its offsets at another address.
    #[must_use]
    pub(crate) fn with_beside(mut self, at: Address) -> Self {
        match &mut self {
            Self::Normalise { mask, .. } => *mask = Some(at),
            Self::Pad { offsets, .. } => *offsets = at,
            Self::Cast { .. } | Self::Lengths(_) => {}
        }
        self
    }

    /// Runs it on the host: `from` to `to`, which have [`from_bytes`](Self::from_bytes) and
    /// [`to_bytes`](Self::to_bytes). `beside` holds the bytes [`beside`](Self::beside) it. Conversions that a device
    /// does not do leave `to` unchanged.
    pub fn on_host(&self, from: &[u8], to: &mut [u8], beside: Option<&[u8]>) {
        match *self {
            Self::Normalise { height, width, channels, to: dtype, scale, bias, .. } => {
                let image = height as usize * width as usize * usize::from(channels);
                if image == 0 {
                    return;
                }
                let rows = from.chunks_exact(image).zip(to.chunks_exact_mut(image * dtype.size()));
                for (number, (pixels, row)) in rows.enumerate() {
                    if beside.is_some_and(|mask| mask.get(number) == Some(&0)) {
                        row.fill(0);
                        continue;
                    }
                    normalise(pixels, row, usize::from(channels), dtype, &scale, &bias);
                }
            }
            Self::Cast { from: old, to: new, .. } => {
                if Self::casts(old, new) {
                    let pairs = from.chunks_exact(old.size()).zip(to.chunks_exact_mut(new.size()));
                    pairs.for_each(|(from, to)| put(get(old, from), new, to));
                }
            }
            Self::Pad { lists, item, width, fill, left, .. } => {
                let (width, item) = (usize::from(width), item as usize * usize::from(width));
                let row = lists.length as usize * item;
                let (Some(offsets), 1..) = (beside, row) else { return };
                let fill = &fill.to_le_bytes()[..width];
                for (number, out) in (0..).zip(to.chunks_exact_mut(row)) {
                    let (first, kept) = lists.kept(offsets, number);
                    let (first, kept) = (first as usize * item, kept as usize * item);
                    let start = if left { row - kept } else { 0 };
                    out.chunks_exact_mut(width).for_each(|element| element.copy_from_slice(fill));
                    out[start..start + kept].copy_from_slice(&from[first..first + kept]);
                }
            }
            Self::Lengths(lists) => {
                for (number, out) in (0..).zip(to.chunks_exact_mut(8)) {
                    out.copy_from_slice(&lists.kept(from, number).1.to_le_bytes());
                }
            }
        }
    }
}

fn product(factors: &[u64]) -> Option<usize> {
    // A factor of 0 makes the product 0 at any position.
    if factors.contains(&0) {
        return Some(0);
    }
    usize::try_from(factors.iter().try_fold(1_u64, |product, factor| product.checked_mul(*factor))?).ok()
}

fn pixels(images: u64, height: u32, width: u32, channels: u8) -> Option<usize> {
    product(&[images, height.into(), width.into(), channels.into()])
}

fn normalise(pixels: &[u8], row: &mut [u8], channels: usize, dtype: DType, scale: &[f32; 4], bias: &[f32; 4]) {
    finish(pixels, row, channels, true, dtype, scale, bias);
}

/// Writes the pixels of one image, `[height, width, channels]`, as values of `dtype` to `row`: bytes are unchanged,
/// floats are normalised. `planes`: one channel after the other.
pub(super) fn finish(
    pixels: &[u8],
    row: &mut [u8],
    channels: usize,
    planes: bool,
    dtype: DType,
    scale: &[f32; 4],
    bias: &[f32; 4],
) {
    let (plane, size) = (pixels.len() / channels, dtype.size());
    for channel in 0..channels {
        // 256 values, as in the host's own normalisation.
        let table: [f32; 256] = std::array::from_fn(|x| f32::from(x as u8).mul_add(scale[channel], bias[channel]));
        let (first, step) = if planes { (channel * plane, 1) } else { (channel, channels) };
        let values = pixels[channel..].iter().step_by(channels);
        for (value, out) in values.zip(row.chunks_exact_mut(size).skip(first).step_by(step)) {
            if dtype == DType::Uint8 {
                out[0] = *value;
            } else {
                put(Number::Single(table[usize::from(*value)]), dtype, out);
            }
        }
    }
}

/// A value of any type, held exactly.
#[derive(Debug, Clone, Copy)]
enum Number {
    Unsigned(u64),
    Signed(i64),
    Single(f32),
    Double(f64),
}

impl Number {
    fn single(self) -> f32 {
        match self {
            Self::Unsigned(value) => value as f32,
            Self::Signed(value) => value as f32,
            Self::Single(value) => value,
            Self::Double(value) => value as f32,
        }
    }

    fn double(self) -> f64 {
        match self {
            Self::Unsigned(value) => value as f64,
            Self::Signed(value) => value as f64,
            Self::Single(value) => value.into(),
            Self::Double(value) => value,
        }
    }

    /// The bits of an integer. Only integers become integers.
    fn bits(self) -> u64 {
        match self {
            Self::Unsigned(value) => value,
            Self::Signed(value) => value as u64,
            Self::Single(value) => value as u64,
            Self::Double(value) => value as u64,
        }
    }
}

/// The element in `bytes`, which have the type's size.
fn get(dtype: DType, bytes: &[u8]) -> Number {
    let mut raw = [0; 8];
    raw[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(raw);
    match dtype {
        DType::Bool => Number::Unsigned(u64::from(bits != 0)),
        DType::Uint8 | DType::Uint16 | DType::Uint32 | DType::Uint64 => Number::Unsigned(bits),
        DType::Int8 => Number::Signed((bits as u8 as i8).into()),
        DType::Int16 => Number::Signed((bits as u16 as i16).into()),
        DType::Int32 => Number::Signed((bits as u32 as i32).into()),
        DType::Int64 => Number::Signed(bits as i64),
        DType::Float16 => Number::Single(f16::from_bits(bits as u16).to_f32()),
        DType::Bfloat16 => Number::Single(bf16::from_bits(bits as u16).to_f32()),
        DType::Float32 => Number::Single(f32::from_bits(bits as u32)),
        DType::Float64 => Number::Double(f64::from_bits(bits)),
    }
}

/// Writes `value` to `bytes`, which have the type's size.
fn put(value: Number, dtype: DType, bytes: &mut [u8]) {
    let bits = match dtype {
        DType::Float16 => f16::from_f32(value.single()).to_bits().into(),
        DType::Bfloat16 => bf16::from_f32(value.single()).to_bits().into(),
        DType::Float32 => value.single().to_bits().into(),
        DType::Float64 => value.double().to_bits(),
        _ => value.bits(),
    };
    bytes.copy_from_slice(&bits.to_le_bytes()[..bytes.len()]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_become_planes_and_masked_images_zeros() {
        let what = Conversion::Normalise {
            images: 2,
            height: 1,
            width: 2,
            channels: 3,
            to: DType::Float32,
            scale: [1.0, 2.0, 0.5, 9.0],
            bias: [0.0, 1.0, -1.0, 9.0],
            mask: Some(0),
        };
        let from: Vec<u8> = [[10, 20, 30, 40, 50, 60], [1; 6]].concat();
        let mut to = vec![0xAA; what.to_bytes().unwrap()];
        what.on_host(&from, &mut to, Some(&[1, 0]));
        let values: Vec<f32> = to.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
        assert_eq!(values, [[10.0, 40.0, 41.0, 101.0, 14.0, 29.0], [0.0; 6]].concat());
        assert_eq!((what.from_bytes(), what.to_bytes()), (Some(12), Some(48)));
    }

    #[test]
    fn casts_round_once_and_keep_every_integer() {
        let cast = |from: DType, to: DType, bytes: &[u8]| {
            let what = Conversion::Cast { from, to, elements: (bytes.len() / from.size()) as u64 };
            let mut out = vec![0; what.to_bytes().unwrap()];
            what.on_host(bytes, &mut out, None);
            out
        };
        assert_eq!(cast(DType::Int8, DType::Int64, &[0xFF]), (-1_i64).to_le_bytes());
        assert_eq!(cast(DType::Uint16, DType::Int32, &[0xFF, 0xFF]), 65535_i32.to_le_bytes());
        // 2^24 + 1 lies between two floats; so does 2^62 + 2^38 + 1, just above the middle.
        assert_eq!(cast(DType::Int32, DType::Float32, &16_777_217_i32.to_le_bytes()), 16_777_216_f32.to_le_bytes());
        let above = (1_u64 << 62) + (1 << 38) + 1;
        assert_eq!(cast(DType::Uint64, DType::Float32, &above.to_le_bytes()), (above as f32).to_le_bytes());
        assert_eq!(cast(DType::Float32, DType::Float16, &1.000_488_3_f32.to_le_bytes()), [0, 0x3C]);
        assert_eq!(cast(DType::Bool, DType::Bfloat16, &[1]), bf16::ONE.to_le_bytes());
        assert_eq!(cast(DType::Float64, DType::Int8, &0_f64.to_le_bytes()), [0], "not a cast: left as it was");
    }

    #[test]
    fn lists_are_filled_up_or_cut_and_offsets_beyond_the_items_are_their_end() {
        let pad = |length: u64, left: bool, offsets: &[u64]| {
            let lists = Lists { count: offsets.len() as u64 - 1, items: 5, length };
            let what = Conversion::Pad { lists, item: 2, width: 2, fill: 0xABCD_0107, left, offsets: 0 };
            let offsets: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
            assert_eq!(what.beside(), Some((0, offsets.len())));
            let values: Vec<u8> = (1..=10_u16).flat_map(u16::to_le_bytes).collect();
            assert_eq!(what.from_bytes(), Some(values.len()));
            let (mut to, mut lengths) = (vec![0xAA; what.to_bytes().unwrap()], vec![0xAA; 8 * lists.count as usize]);
            what.on_host(&values, &mut to, Some(&offsets));
            Conversion::Lengths(lists).on_host(&offsets, &mut lengths, None);
            let elements: Vec<u16> = to.chunks_exact(2).map(|x| u16::from_le_bytes(x.try_into().unwrap())).collect();
            let lengths: Vec<u8> = lengths.chunks_exact(8).map(|x| x[0]).collect();
            (elements, lengths)
        };
        const F: u16 = 0x0107;
        assert_eq!(pad(2, false, &[0, 1, 1, 4]), (vec![1, 2, F, F, F, F, F, F, 3, 4, 5, 6], vec![1, 0, 2]));
        assert_eq!(pad(2, true, &[0, 1, 1, 3]), (vec![F, F, 1, 2, F, F, F, F, 3, 4, 5, 6], vec![1, 0, 2]));
        assert_eq!(pad(1, false, &[4, 9, u64::MAX, 2]), (vec![9, 10, F, F, F, F], vec![1, 0, 0]));
        let nothing = Conversion::Pad {
            lists: Lists { count: 2, items: 0, length: 1 },
            item: 1,
            width: 8,
            fill: u64::MAX,
            left: false,
            offsets: 0,
        };
        let mut to = [0; 16];
        nothing.on_host(&[], &mut to, Some(&[0; 24]));
        assert_eq!((nothing.from_bytes(), to), (Some(0), [0xFF; 16]));
    }

    #[test]
    fn sizes_that_overflow_are_none() {
        let cast = Conversion::Cast { from: DType::Uint8, to: DType::Float64, elements: u64::MAX };
        assert_eq!(cast.to_bytes(), None);
    }
}
