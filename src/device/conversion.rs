//! What a device may do to a tensor on its way into place, and the definition of the result, bit by bit.
//!
//! Photos cross the bus as u8, a quarter of the bytes of f32. The arithmetic is that of the host's own normalisation: one fused
//! multiply-add for each value, `fma(x, scale, bias)`, then one rounding to the nearest, ties to even. [`Conversion::on_host`] is
//! what a device's kernel is compared with.

use half::{bf16, f16};

use super::port::Address;
use crate::schema::DType;

/// What becomes of the elements of one tensor.
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
        /// One byte for each image: where it is 0 the image becomes zeros. None: all images count.
        mask: Option<Address>,
    },
    /// Every element becomes one of another type; see [`Conversion::casts`].
    Cast {
        /// The type of the elements as they are.
        from: DType,
        /// The type that they become.
        to: DType,
        /// How many there are.
        elements: u64,
    },
}

impl Conversion {
    /// Whether a cast from `from` to `to` is one that a device may do: no value is refused, and the result has one definition.
    ///
    /// These are: booleans to any type; integers to wider integers that hold all of them; integers to `float32` and `float64`;
    /// integers of up to 16 bits and the smaller floats to any float; `float64` to `float32`; every type to itself.
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

    /// Bytes that it reads, without a mask; `None` if they are more than any memory has.
    pub fn from_bytes(&self) -> Option<usize> {
        match self {
            Self::Normalise { .. } => self.elements(),
            Self::Cast { from, .. } => self.elements()?.checked_mul(from.size()),
        }
    }

    /// Bytes that it writes; `None` if they are more than any memory has.
    pub fn to_bytes(&self) -> Option<usize> {
        match self {
            Self::Normalise { to, .. } | Self::Cast { to, .. } => self.elements()?.checked_mul(to.size()),
        }
    }

    fn elements(&self) -> Option<usize> {
        let elements = match self {
            Self::Normalise { images, height, width, channels, .. } => {
                let image = u64::from(*height).checked_mul(u64::from(*width))?.checked_mul(u64::from(*channels))?;
                images.checked_mul(image)?
            }
            Self::Cast { elements, .. } => *elements,
        };
        usize::try_from(elements).ok()
    }

    /// Does it on the host: `from` becomes `to`, which have [`from_bytes`](Self::from_bytes) and [`to_bytes`](Self::to_bytes).
    /// `mask` is what lies at the mask's address. What a device does not do is left as it was.
    pub fn on_host(&self, from: &[u8], to: &mut [u8], mask: Option<&[u8]>) {
        match *self {
            Self::Normalise { height, width, channels, to: dtype, scale, bias, .. } => {
                let image = height as usize * width as usize * usize::from(channels);
                if image == 0 {
                    return;
                }
                let rows = from.chunks_exact(image).zip(to.chunks_exact_mut(image * dtype.size()));
                for (number, (pixels, row)) in rows.enumerate() {
                    if mask.is_some_and(|mask| mask.get(number) == Some(&0)) {
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
        }
    }
}

fn normalise(pixels: &[u8], row: &mut [u8], channels: usize, dtype: DType, scale: &[f32; 4], bias: &[f32; 4]) {
    let plane = pixels.len() / channels;
    for channel in 0..channels {
        // 256 values, as the host's own normalisation has them.
        let table: [f32; 256] = std::array::from_fn(|x| f32::from(x as u8).mul_add(scale[channel], bias[channel]));
        let out = &mut row[channel * plane * dtype.size()..][..plane * dtype.size()];
        let values = pixels[channel..].iter().step_by(channels).map(|pixel| table[usize::from(*pixel)]);
        values.zip(out.chunks_exact_mut(dtype.size())).for_each(|(value, out)| put(Number::Single(value), dtype, out));
    }
}

/// A value of any type, without a loss.
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

/// The element in `bytes`, which are as many as the type has.
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

/// Writes `value` to `bytes`, which are as many as the type has.
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
    fn sizes_that_overflow_are_none() {
        let cast = Conversion::Cast { from: DType::Uint8, to: DType::Float64, elements: u64::MAX };
        assert_eq!(cast.to_bytes(), None);
    }
}
