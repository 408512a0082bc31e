//! EXIF orientation: the rotation and mirroring that turn the stored image into the displayed one. `image` finds the
//! number; it can only turn whole images, while decoders here turn pixels on their way into the batch.

/// A transform of pixels: the output pixel `(x, y)` is the stored one at `(x, y)`, transposed first if `transpose`,
/// then mirrored within the stored image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Orientation {
    /// Columns and rows are exchanged.
    pub transpose: bool,
    /// Stored columns are read from right to left.
    pub flip_x: bool,
    /// Stored rows are read from bottom to top.
    pub flip_y: bool,
}

impl Orientation {
    /// The transform for the EXIF value `value` (1 to 8); other values leave the image as it is.
    pub(crate) fn from_exif(value: u16) -> Self {
        let (transpose, flip_x, flip_y) = match value {
            2 => (false, true, false),
            3 => (false, true, true),
            4 => (false, false, true),
            5 => (true, false, false),
            6 => (true, false, true),
            7 => (true, true, true),
            8 => (true, true, false),
            _ => (false, false, false),
        };
        Self { transpose, flip_x, flip_y }
    }

    /// The orientation in the first directory of an EXIF block (a TIFF header and the following data); as stored if
    /// there is none.
    pub(super) fn from_tiff(tiff: &[u8]) -> Self {
        let found = image::metadata::Orientation::from_exif_chunk(tiff);
        found.map(|found| Self::from_exif(found.to_exif().into())).unwrap_or_default()
    }

    /// Width and height after the transform of an image of `width` x `height`, and vice versa.
    pub fn apply(self, width: u32, height: u32) -> (u32, u32) {
        if self.transpose { (height, width) } else { (width, height) }
    }

    /// This transform, with the output flipped horizontally if `flip`.
    pub(super) fn then_flip(self, flip: bool) -> Self {
        // The output's columns are the stored rows if it is transposed.
        Self { flip_x: self.flip_x ^ (flip && !self.transpose), flip_y: self.flip_y ^ (flip && self.transpose), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIENTATION: u16 = 0x0112;
    const SHORT: u16 = 3;

    fn tiff(big: bool, value: u16) -> Vec<u8> {
        let short = |value: u16| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let mut bytes = if big { b"MM\0*\0\0\0\x08".to_vec() } else { b"II*\0\x08\0\0\0".to_vec() };
        bytes.extend(short(2));
        bytes.extend([0; 12]);
        bytes.extend(short(ORIENTATION));
        bytes.extend(short(SHORT));
        bytes.extend(if big { [0, 0, 0, 1] } else { [1, 0, 0, 0] });
        bytes.extend(short(value));
        bytes.extend([0; 6]);
        bytes
    }

    #[test]
    fn both_byte_orders_are_read() {
        for big in [false, true] {
            for value in 0..=9 {
                assert_eq!(Orientation::from_tiff(&tiff(big, value)), Orientation::from_exif(value), "{big} {value}");
            }
        }
        assert_ne!(Orientation::from_exif(6), Orientation::default());
    }

    #[test]
    fn a_cut_block_is_no_orientation() {
        let whole = tiff(true, 6);
        // The value takes four bytes, whatever its type.
        let needed = whole.len() - 4;
        for len in 0..whole.len() {
            let expected = if len < needed { Orientation::default() } else { Orientation::from_exif(6) };
            assert_eq!(Orientation::from_tiff(&whole[..len]), expected, "{len}");
        }
        assert_eq!(Orientation::from_tiff(b"II*\0\xff\xff\xff\xff"), Orientation::default());
    }

    #[test]
    fn flipping_twice_is_nothing() {
        for value in 1..=8 {
            let orientation = Orientation::from_exif(value);
            assert_ne!(orientation.then_flip(true), orientation);
            assert_eq!(orientation.then_flip(true).then_flip(true), orientation);
        }
    }
}
