//! From decoded pixels (u8, rows of interleaved channels) to their place in the batch: flip, scale, type, layout, in
//! one pass.
//!
//! A u8 has 256 values, so the result of every channel is a table, filled once with `fma(x, 1 / (255 std), -mean /
//! std)`. On processors with AVX2, FMA and F16C the same arithmetic runs in registers (`simd`), three times as fast,
//! with the same bits.

use half::{bf16, f16};

use super::options::{Decoder, ImageOptions, Layout};
use super::simd;
use crate::error::Result;
use crate::schema::DType;

/// Writes pixels to a row of the batch.
#[derive(Debug)]
pub(super) struct Writer {
    channels: usize,
    layout: Layout,
    dtype: DType,
    /// One factor and one summand for each channel.
    scale: [f32; 4],
    bias: [f32; 4],
    table: Table,
}

/// For each channel and each u8, the bytes of the result.
#[derive(Debug)]
enum Table {
    /// u8 stays.
    One,
    Two(Vec<[[u8; 2]; 256]>),
    Four(Vec<[[u8; 4]; 256]>),
}

impl Writer {
    /// A writer for checked options.
    pub(super) fn new(options: &ImageOptions) -> Self {
        let (scale, bias) = factors(options);
        let channels = usize::from(options.channels);
        let value = |channel: usize, x: u8| f32::from(x).mul_add(scale[channel], bias[channel]);
        let two = |bits: &dyn Fn(f32) -> u16| {
            Table::Two((0..channels).map(|c| std::array::from_fn(|x| bits(value(c, x as u8)).to_le_bytes())).collect())
        };
        let table = match options.dtype {
            DType::Float16 => two(&|v| f16::from_f32(v).to_bits()),
            DType::Bfloat16 => two(&|v| bf16::from_f32(v).to_bits()),
            DType::Float32 => {
                Table::Four((0..channels).map(|c| std::array::from_fn(|x| value(c, x as u8).to_le_bytes())).collect())
            }
            _ => Table::One,
        };
        Self { channels, layout: options.layout, dtype: options.dtype, scale, bias, table }
    }

    /// Returns true if the row holds pixels exactly as decoded, so that a decoder may write there.
    pub(super) fn is_plain(&self) -> bool {
        self.dtype == DType::Uint8 && (self.layout == Layout::Hwc || self.channels == 1)
    }

    /// Writes `pixels` (`[height, width, channels]`) to `row`, mirrored from left to right if `flip`. Both are exactly
    /// one image.
    pub(super) fn write(&self, pixels: &[u8], width: usize, flip: bool, row: &mut [u8]) {
        if self.channels == 3 && self.layout == Layout::Chw {
            let scale = [self.scale[0], self.scale[1], self.scale[2]];
            let bias = [self.bias[0], self.bias[1], self.bias[2]];
            if simd::planes(pixels, width, flip, scale, bias, self.dtype, row) {
                return;
            }
        }
        self.write_by_table(pixels, width, flip, row);
    }

    fn write_by_table(&self, pixels: &[u8], width: usize, flip: bool, row: &mut [u8]) {
        match &self.table {
            Table::One if self.is_plain() => {
                row.copy_from_slice(pixels);
                if flip {
                    mirror(row, width, self.channels);
                }
            }
            Table::One => spread(pixels, width, self.channels, flip, row, Layout::Chw, |_, x| [x]),
            Table::Two(table) => {
                spread(pixels, width, self.channels, flip, row, self.layout, |c, x| table[c][usize::from(x)]);
            }
            Table::Four(table) => {
                spread(pixels, width, self.channels, flip, row, self.layout, |c, x| table[c][usize::from(x)]);
            }
        }
    }
}

impl ImageOptions {
    /// The same, decoded to the form that is cheapest to move, u8 `[height, width, channels]`, with the work left: for
    /// each channel a factor and a summand, then the layout [`Layout::Chw`] and [`dtype`](Self::dtype). `None` if the
    /// requested output is not of that kind.
    pub(crate) fn undone(&self) -> Option<(Self, [f32; 4], [f32; 4])> {
        let float = matches!(self.dtype, DType::Float16 | DType::Bfloat16 | DType::Float32);
        if !float || self.layout != Layout::Chw || self.decoder != Decoder::Cpu || self.check().is_err() {
            return None;
        }
        let (scale, bias) = factors(self);
        let pixels = Self { dtype: DType::Uint8, layout: Layout::Hwc, normalize: None, ..self.clone() };
        Some((pixels, scale, bias))
    }

    /// The same with the decoding of JPEG left to a device, and the work left after that: for each channel a factor and
    /// a summand, which apply if the type is a float.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config) for an option that is impossible, or that a device does not support.
    pub(crate) fn deferred(&self) -> Result<(Self, [f32; 4], [f32; 4])> {
        let deferred = Self { decoder: Decoder::Deferred, ..self.clone() };
        deferred.check()?;
        let (scale, bias) = factors(self);
        Ok((deferred, scale, bias))
    }
}

/// The factor and the summand of each channel, for checked options.
fn factors(options: &ImageOptions) -> ([f32; 4], [f32; 4]) {
    let (mut scale, mut bias) = ([1.0 / 255.0_f32; 4], [0.0_f32; 4]);
    if let Some(normalize) = &options.normalize {
        let of = |values: &[f32], channel: usize| -> f64 {
            values.get(channel).or(values.first()).copied().unwrap_or_default().into()
        };
        for channel in 0..4 {
            let (mean, std) = (of(&normalize.mean, channel), of(&normalize.std, channel));
            scale[channel] = (1.0 / (255.0 * std)) as f32;
            bias[channel] = (-mean / std) as f32;
        }
    }
    (scale, bias)
}

/// Mirrors every row of interleaved pixels from left to right, in place.
pub(super) fn mirror(pixels: &mut [u8], width: usize, channels: usize) {
    for line in pixels.chunks_exact_mut(width * channels) {
        line.reverse();
        if channels > 1 {
            line.chunks_exact_mut(channels).for_each(<[u8]>::reverse);
        }
    }
}

/// Writes every value of `pixels` through `value`, N bytes each, to its place in `row`.
fn spread<const N: usize>(
    pixels: &[u8],
    width: usize,
    channels: usize,
    flip: bool,
    row: &mut [u8],
    layout: Layout,
    value: impl Fn(usize, u8) -> [u8; N],
) {
    let lines = pixels.chunks_exact(width * channels);
    let plane = lines.len() * width;
    let (row, _) = row.as_chunks_mut::<N>();
    for (y, line) in lines.enumerate() {
        for channel in 0..channels {
            let values = line[channel..].iter().step_by(channels);
            // The destination of this channel of this line, and the distance between its values.
            let (at, stride) = match layout {
                Layout::Chw => (channel * plane + y * width, 1),
                Layout::Hwc => (y * width * channels + channel, channels),
            };
            let out = row[at..].iter_mut().step_by(stride).take(width);
            if flip {
                out.zip(values.rev()).for_each(|(out, x)| *out = value(channel, *x));
            } else {
                out.zip(values).for_each(|(out, x)| *out = value(channel, *x));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::image::Normalize;

    fn pixels(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
    }

    fn writers() -> impl Iterator<Item = Writer> {
        let dtypes = [DType::Uint8, DType::Float16, DType::Bfloat16, DType::Float32];
        let layouts = [Layout::Chw, Layout::Hwc];
        let all = dtypes.into_iter().flat_map(move |d| layouts.map(|l| (d, l)));
        all.flat_map(|(d, l)| [1, 3, 4].map(|c| (d, l, c))).flat_map(|(dtype, layout, channels)| {
            let normalize = (dtype != DType::Uint8 && channels != 4).then(|| Normalize {
                mean: if channels == 1 { vec![0.4] } else { Normalize::imagenet().mean },
                std: if channels == 1 { vec![0.3] } else { Normalize::imagenet().std },
            });
            let options = ImageOptions { dtype, layout, channels, normalize, ..ImageOptions::default() };
            [Writer::new(&options)]
        })
    }

    /// The definition, value by value.
    fn expected(writer: &Writer, pixels: &[u8], width: usize, flip: bool) -> Vec<u8> {
        let c = writer.channels;
        let height = pixels.len() / width / c;
        let mut out = vec![0; pixels.len() * writer.dtype.size()];
        for (y, x, channel) in (0..height).flat_map(|y| (0..width).flat_map(move |x| (0..c).map(move |k| (y, x, k)))) {
            let from = if flip { width - 1 - x } else { x };
            let pixel = pixels[(y * width + from) * c + channel];
            let value = f32::from(pixel).mul_add(writer.scale[channel], writer.bias[channel]);
            let to = match writer.layout {
                Layout::Chw => channel * width * height + y * width + x,
                Layout::Hwc => (y * width + x) * c + channel,
            };
            let bytes = match writer.dtype {
                DType::Float16 => f16::from_f32(value).to_le_bytes().to_vec(),
                DType::Bfloat16 => bf16::from_f32(value).to_le_bytes().to_vec(),
                DType::Float32 => value.to_le_bytes().to_vec(),
                _ => vec![pixel],
            };
            out[to * bytes.len()..][..bytes.len()].copy_from_slice(&bytes);
        }
        out
    }

    #[test]
    fn every_path_gives_the_bits_of_the_definition() {
        let mut vectors = 0;
        for writer in writers() {
            for (width, height) in [(1, 1), (5, 3), (15, 2), (16, 3), (17, 2), (33, 5), (64, 2), (224, 3)] {
                let pixels = pixels(width * height * writer.channels);
                for flip in [false, true] {
                    let expected = expected(&writer, &pixels, width, flip);
                    let mut row = vec![0xAA; expected.len()];
                    writer.write(&pixels, width, flip, &mut row);
                    assert!(row == expected, "{writer:?} {width} {flip}");
                    row.fill(0xAA);
                    writer.write_by_table(&pixels, width, flip, &mut row);
                    assert!(row == expected, "table {writer:?} {width} {flip}");
                    row.fill(0xAA);
                    if writer.channels == 3 && writer.layout == Layout::Chw {
                        let (scale, bias) = (writer.scale, writer.bias);
                        let (scale, bias) = ([scale[0], scale[1], scale[2]], [bias[0], bias[1], bias[2]]);
                        if simd::planes(&pixels, width, flip, scale, bias, writer.dtype, &mut row) {
                            assert!(row == expected, "simd {writer:?} {width} {flip}");
                            vectors += 1;
                        }
                    }
                }
            }
        }
        assert_eq!(vectors > 0, simd::available());
    }

    #[test]
    fn normalising_is_torchs_within_a_bit_or_two() {
        let options = ImageOptions {
            dtype: DType::Float32,
            normalize: Some(Normalize::imagenet()),
            layout: Layout::Hwc,
            ..ImageOptions::default()
        };
        let pixels: Vec<u8> = (0..=255).flat_map(|x| [x; 3]).collect();
        let mut row = vec![0; pixels.len() * 4];
        Writer::new(&options).write(&pixels, 256, false, &mut row);
        for (i, value) in row.chunks_exact(4).enumerate() {
            let value = f32::from_le_bytes(value.try_into().unwrap());
            let Normalize { mean, std } = Normalize::imagenet();
            let torch = (pixels[i] as f32 / 255.0 - mean[i % 3]) / std[i % 3];
            assert!((value - torch).abs() < 5e-7, "{i}: {value} {torch}");
        }
    }

    #[test]
    fn mirroring_keeps_pixels_whole() {
        let mut pixels: Vec<u8> = (0..12).collect();
        mirror(&mut pixels, 2, 3);
        assert_eq!(pixels, [3, 4, 5, 0, 1, 2, 9, 10, 11, 6, 7, 8]);
    }
}
