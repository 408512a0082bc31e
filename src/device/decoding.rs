//! Photos that a device decodes on their way into place: the parameters, and the definition of the result.
//!
//! ```text
//!   row of the batch ── JPEG ──► decoder of the device ──► whole image ─┐
//!                    └─ pixels of the final size ───────────────────────┴─► box, resize, turn, normalise, layout: one kernel
//! ```
//! The exact bits depend on the decoder: [`Decoding::on_host`] has those of the CPU, which a device may differ from.
//! The kernel's own arithmetic is [`View::resample`], bit by bit: bilinear with antialiasing, as on the CPU, with one
//! rounding where the CPU has two.

use std::fmt;
use std::sync::Arc;

use super::conversion::finish;
use crate::error::{Error, Place, Result};
use crate::schema::DType;

/// Reads rows of photos that are not decoded yet, in a format private to their writer.
pub trait Photos: fmt::Debug + Send + Sync + 'static {
    /// Reads the content of `row`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is not such a row.
    fn read<'a>(&self, row: &'a [u8]) -> Result<Photo<'a>>;

    /// Decodes the pixels of `row` on the CPU, of the final size, `[height, width, channels]`.
    ///
    /// # Errors
    /// The fault of the photo.
    fn pixels(&self, row: &[u8], out: &mut [u8]) -> Result<()>;
}

/// The content of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Photo<'a> {
    /// No photo: it becomes zeros, as padding rows do.
    Nothing,
    /// Pixels of the final size, `[height, width, channels]`.
    Pixels(&'a [u8]),
    /// A baseline JPEG, and the requested part of it.
    Jpeg(&'a [u8], View),
}

/// The requested part of a whole image, and its orientation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct View {
    /// Pixels of a row of the whole image.
    pub width: u32,
    /// Its rows.
    pub height: u32,
    /// The box: x, y, width, height; may lie between pixels.
    pub rect: [f64; 4],
    /// Set if no pixel outside of the box counts.
    pub sealed: bool,
    /// Columns and rows of the resized box are exchanged.
    pub transpose: bool,
    /// Columns of the resized box, before they are exchanged, are read from right to left.
    pub flip_x: bool,
    /// Rows, from bottom to top.
    pub flip_y: bool,
}

/// The decoding of a column of photos by a device.
#[derive(Debug, Clone)]
pub struct Decoding {
    /// Reads its rows.
    pub photos: Arc<dyn Photos>,
    /// Number of rows.
    pub rows: usize,
    /// Bytes of one row.
    pub row_bytes: usize,
    /// Rows of pixels of a photo once resized.
    pub height: u32,
    /// Pixels of a row.
    pub width: u32,
    /// 1 or 3.
    pub channels: u8,
    /// Set if one channel comes after the other, as `[channels, height, width]`.
    pub planes: bool,
    /// `uint8`, `float16`, `bfloat16` or `float32`.
    pub to: DType,
    /// For a float: a factor for each channel.
    pub scale: [f32; 4],
    /// For a float: a summand for each channel.
    pub bias: [f32; 4],
}

impl Decoding {
    /// Bytes that it reads; `None` if they exceed any memory.
    pub fn from_bytes(&self) -> Option<usize> {
        self.rows.checked_mul(self.row_bytes)
    }

    /// Bytes that it writes; `None` if they exceed any memory.
    pub fn to_bytes(&self) -> Option<usize> {
        let values = (self.height as usize).checked_mul(self.width as usize)?.checked_mul(self.channels.into())?;
        values.checked_mul(self.to.size())?.checked_mul(self.rows)
    }

    /// Bytes of one photo's pixels.
    pub(crate) fn pixel_bytes(&self) -> usize {
        self.height as usize * self.width as usize * usize::from(self.channels)
    }

    /// Decodes `from` to `to`, which have [`from_bytes`](Self::from_bytes) and [`to_bytes`](Self::to_bytes), with the bits of the CPU.
    ///
    /// # Errors
    /// The fault of a photo, and its number.
    pub fn on_host(&self, from: &[u8], to: &mut [u8]) -> Result<()> {
        let mut pixels = vec![0; self.pixel_bytes()];
        let rows = from.chunks_exact(self.row_bytes.max(1));
        for (number, (row, out)) in rows.zip(to.chunks_exact_mut((pixels.len() * self.to.size()).max(1))).enumerate() {
            if self.photos.read(row).map_err(|error| in_row(error, number))? == Photo::Nothing {
                out.fill(0);
                continue;
            }
            self.photos.pixels(row, &mut pixels).map_err(|error| in_row(error, number))?;
            let channels = usize::from(self.channels);
            finish(&pixels, out, channels, self.planes, self.to, &self.scale, &self.bias);
        }
        Ok(())
    }
}

/// `error` with the number of the row in its batch.
pub(super) fn in_row(error: Error, number: usize) -> Error {
    match error {
        Error::Corrupt { place, what, source } => {
            Error::Corrupt { place, what: format!("{what}, in row {number} of the batch"), source }
        }
        other => other,
    }
}

/// `error` with the column, if it has a place.
pub(super) fn in_column(error: Error, column: &Arc<str>) -> Error {
    match error {
        Error::Corrupt { place: Place { column: None, file, row_group, row }, what, source } => {
            Error::Corrupt { place: Place { column: Some(Arc::clone(column)), file, row_group, row }, what, source }
        }
        other => other,
    }
}

/// One axis of the box: the centre of pixel `at` of `size`, and the width of the filter.
struct Axis {
    start: f64,
    scale: f64,
    support: f64,
    low: u32,
    high: u32,
}

/// The pixels that contribute to one, from `first`: their distances from its centre begin with `distance`.
struct Taps {
    first: u32,
    end: u32,
    distance: f32,
    shrink: f32,
}

impl Axis {
    fn new(start: f64, length: f64, size: u32, whole: u32, sealed: bool) -> Self {
        let scale = length / f64::from(size);
        let (low, high) = if sealed {
            (start.floor().max(0.0) as u32, ((start + length).ceil() as u32).min(whole))
        } else {
            (0, whole)
        };
        Self { start, scale, support: scale.max(1.0), low, high }
    }

    fn taps(&self, at: u32) -> Taps {
        let middle = self.start + (f64::from(at) + 0.5) * self.scale;
        // Casts turn numbers below 0 into 0.
        let bounded = |x: f64, low: u32, high: u32| (x as u32).max(low).min(high);
        let first = bounded(middle - self.support + 0.5, self.low, self.high.saturating_sub(1));
        let end = bounded(middle + self.support + 0.5, first + 1, self.high);
        let distance = (f64::from(first) + 0.5 - middle) as f32;
        Taps { first, end, distance, shrink: (1.0 / self.support) as f32 }
    }
}

impl Taps {
    /// The weight of the pixel `at`, which is at least `first`.
    fn weight(&self, at: u32) -> f32 {
        let distance = self.distance + (at - self.first) as f32;
        (1.0 - distance.abs() * self.shrink).max(0.0)
    }
}

impl View {
    /// The kernel's result for the pixels of the whole image: `height` rows of `width` pixels, turned, `[height, width,
    /// channels]`.
    pub fn resample(&self, whole: &[u8], channels: usize, (height, width): (u32, u32), out: &mut [u8]) {
        let [x, y, box_width, box_height] = self.rect;
        let (across, down) = if self.transpose { (height, width) } else { (width, height) };
        let columns = Axis::new(x, box_width, across, self.width, self.sealed);
        let rows = Axis::new(y, box_height, down, self.height, self.sealed);
        for (pixel, out) in out.chunks_exact_mut(channels).enumerate() {
            let (at_x, at_y) = ((pixel % width as usize) as u32, (pixel / width as usize) as u32);
            let (mut at_x, mut at_y) = if self.transpose { (at_y, at_x) } else { (at_x, at_y) };
            if self.flip_x {
                at_x = across - 1 - at_x;
            }
            if self.flip_y {
                at_y = down - 1 - at_y;
            }
            let (columns, rows) = (columns.taps(at_x), rows.taps(at_y));
            let (mut sums, mut total) = ([0.0_f32; 4], 0.0_f32);
            for row in rows.first..rows.end {
                let (mut line, mut weights) = ([0.0_f32; 4], 0.0_f32);
                for column in columns.first..columns.end {
                    let weight = columns.weight(column);
                    let at = (row as usize * self.width as usize + column as usize) * channels;
                    for channel in 0..channels {
                        line[channel] += weight * f32::from(whole[at + channel]);
                    }
                    weights += weight;
                }
                let weight = rows.weight(row);
                for channel in 0..channels {
                    sums[channel] += weight * line[channel];
                }
                total += weight * weights;
            }
            for (out, sum) in out.iter_mut().zip(sums) {
                // A mean of bytes: it is never below 0, and above 255 by at most a rounding.
                *out = (sum / total + 0.5).min(255.0) as u8;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(width: u32, height: u32, rect: [f64; 4]) -> View {
        View { width, height, rect, sealed: false, transpose: false, flip_x: false, flip_y: false }
    }

    #[test]
    fn a_whole_image_of_the_size_stays_and_is_turned() {
        let whole: Vec<u8> = (0..24).collect();
        let of = |view: View, size: (u32, u32)| {
            let mut out = vec![0xAA; 24];
            view.resample(&whole, 1, size, &mut out);
            out
        };
        let as_it_is = view(6, 4, [0.0, 0.0, 6.0, 4.0]);
        for sealed in [false, true] {
            assert_eq!(of(View { sealed, ..as_it_is }, (4, 6)), whole);
        }
        assert_eq!(of(View { flip_x: true, ..as_it_is }, (4, 6))[..6], [5, 4, 3, 2, 1, 0]);
        assert_eq!(of(View { flip_y: true, ..as_it_is }, (4, 6))[..6], [18, 19, 20, 21, 22, 23]);
        assert_eq!(of(View { transpose: true, ..as_it_is }, (6, 4))[..4], [0, 6, 12, 18]);
        assert_eq!(of(View { transpose: true, flip_y: true, ..as_it_is }, (6, 4))[..4], [18, 12, 6, 0]);
    }

    #[test]
    fn a_sealed_box_sees_nothing_outside_of_it() {
        // Black, with a white box in the middle.
        let whole: Vec<u8> = (0..100)
            .map(|at| if (3..7).contains(&(at % 10)) && (2..8).contains(&(at / 10)) { 255 } else { 0 })
            .collect();
        for size in [(1, 1), (2, 5), (3, 4), (12, 7), (6, 4)] {
            let mut out = vec![0; (size.0 * size.1) as usize];
            let inner = View { sealed: true, ..view(10, 10, [3.0, 2.0, 4.0, 6.0]) };
            inner.resample(&whole, 1, size, &mut out);
            assert!(out.iter().all(|value| *value == 255), "{size:?}: {out:?}");
            View { sealed: false, ..inner }.resample(&whole, 1, size, &mut out);
            assert!(size == (6, 4) || out.iter().any(|value| *value < 255), "{size:?}: {out:?}");
        }
    }

    #[test]
    fn boxes_at_every_edge_are_means_of_what_is_there() {
        for rect in [[-0.001, 0.0, 3.0, 3.0], [9.9, 9.9, 0.1, 0.1], [7.5, 0.25, 2.5, 9.75], [0.0, 0.0, 10.0, 10.0]] {
            for sealed in [false, true] {
                let mut out = vec![0; 3 * 35];
                View { sealed, ..view(10, 10, rect) }.resample(&[77; 300], 3, (5, 7), &mut out);
                assert!(out.iter().all(|value| *value == 77), "{rect:?} {sealed}");
            }
        }
    }

    #[test]
    fn places_are_added_where_there_are_none() {
        let error = in_column(in_row(Error::corrupt(Place::default(), "JPEG: cut"), 7), &"photo".into());
        assert_eq!(error.to_string(), "column photo: JPEG: cut, in row 7 of the batch");
    }
}
