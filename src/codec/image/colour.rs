//! Pixels of any kind to the requested number of channels, by Pillow's arithmetic.

use image::ColorType;

/// ITU-R 601 luma, Pillow's `convert("L")`.
fn luma(r: u8, g: u8, b: u8) -> u8 {
    ((u32::from(r) * 19_595 + u32::from(g) * 38_470 + u32::from(b) * 7_471 + 0x8000) >> 16) as u8
}

fn put(out: &mut [u8], [r, g, b, a]: [u8; 4]) {
    match out {
        [grey] => *grey = luma(r, g, b),
        [red, green, blue] => (*red, *green, *blue) = (r, g, b),
        [red, green, blue, alpha] => (*red, *green, *blue, *alpha) = (r, g, b, a),
        // `out` may hold another image.
        [grey, alpha] => (*grey, *alpha) = (luma(r, g, b), a),
        other => other.fill(0),
    }
}

/// RGB to `channels` values.
#[cfg_attr(feature = "turbo", allow(dead_code, reason = "libjpeg-turbo converts by itself"))]
pub(super) fn colours(pixels: &[u8], channels: usize, out: &mut [u8]) {
    for (out, pixel) in out.chunks_exact_mut(channels).zip(pixels.as_chunks::<3>().0) {
        let [r, g, b] = *pixel;
        put(out, [r, g, b, 255]);
    }
}

/// CMYK as JPEG stores it (Adobe's way: 255 is no ink) to `channels` values. Pillow inverts it and then converts; so
/// does this.
#[cfg_attr(not(feature = "turbo"), allow(dead_code, reason = "zune-jpeg converts by itself"))]
pub(super) fn inks(pixels: &[u8], channels: usize, out: &mut [u8]) {
    let less = |ink: u8, light: u8| {
        let product = u32::from(255 - ink) * u32::from(light) + 128;
        light.saturating_sub((((product >> 8) + product) >> 8) as u8)
    };
    for (out, pixel) in out.chunks_exact_mut(channels).zip(pixels.as_chunks::<4>().0) {
        let [c, m, y, k] = *pixel;
        put(out, [less(c, k), less(m, k), less(y, k), 255]);
    }
}

/// Bytes of a pixel of `kind`, if [`samples`] reads it.
pub(super) fn bytes_per_pixel(kind: ColorType) -> Option<usize> {
    use ColorType::{L8, L16, La8, La16, Rgb8, Rgb16, Rgba8, Rgba16};
    matches!(kind, L8 | La8 | Rgb8 | Rgba8 | L16 | La16 | Rgb16 | Rgba16).then(|| kind.bytes_per_pixel().into())
}

/// Pixels of `kind`, 8 or 16 bits in native byte order, to `channels` values of 8 bits. 16 bits are rounded: `x * 255 / 65535`.
pub(super) fn samples(pixels: &[u8], kind: ColorType, channels: usize, out: &mut [u8]) {
    use ColorType::{L8, L16, La8, La16, Rgb8, Rgb16, Rgba8, Rgba16};
    let pairs = || pixels.as_chunks::<2>().0.iter().map(|pair| eight(u16::from_ne_bytes(*pair)));
    let bytes = || pixels.iter().copied();
    match kind {
        L8 => pack::<1>(bytes(), channels, out),
        La8 => pack::<2>(bytes(), channels, out),
        Rgb8 => pack::<3>(bytes(), channels, out),
        Rgba8 => pack::<4>(bytes(), channels, out),
        L16 => pack::<1>(pairs(), channels, out),
        La16 => pack::<2>(pairs(), channels, out),
        Rgb16 => pack::<3>(pairs(), channels, out),
        Rgba16 => pack::<4>(pairs(), channels, out),
        // Refused before, by `bytes_per_pixel`.
        _ => out.fill(0),
    }
}

fn eight(x: u16) -> u8 {
    ((u32::from(x) * 255 + 32_767) / 65_535) as u8
}

fn pack<const N: usize>(mut values: impl Iterator<Item = u8>, channels: usize, out: &mut [u8]) {
    let mut next = || values.next().unwrap_or_default();
    for out in out.chunks_exact_mut(channels) {
        let pixel: [u8; N] = std::array::from_fn(|_| next());
        match (pixel.as_slice(), &mut *out) {
            // Grey stays grey, whatever the weights.
            ([grey] | [grey, _], [to]) => *to = *grey,
            ([grey], [to, opaque]) => (*to, *opaque) = (*grey, 255),
            ([grey, alpha], [to, own]) => (*to, *own) = (*grey, *alpha),
            ([grey], _) => put(out, [*grey, *grey, *grey, 255]),
            ([grey, alpha], _) => put(out, [*grey, *grey, *grey, *alpha]),
            ([r, g, b], _) => put(out, [*r, *g, *b, 255]),
            ([r, g, b, a], _) => put(out, [*r, *g, *b, *a]),
            (_, out) => out.fill(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_bits_are_rounded() {
        for x in 0..=u16::MAX {
            assert_eq!(f64::from(eight(x)), (f64::from(x) / 257.0).round(), "{x}");
        }
    }

    #[test]
    fn inks_are_pillows() {
        // PIL.Image.frombytes("CMYK", (1, 1), bytes(255 - x for x in stored)).convert("RGB"), Pillow 13.
        let mut out = [0; 3];
        for (stored, expected) in PILLOW_INKS {
            inks(&stored, 3, &mut out);
            assert_eq!(out, expected, "{stored:?}");
        }
    }

    const PILLOW_INKS: [([u8; 4], [u8; 3]); 7] = [
        ([0, 0, 0, 0], [0, 0, 0]),
        ([255, 255, 255, 255], [255, 255, 255]),
        ([255, 255, 255, 0], [0, 0, 0]),
        ([200, 100, 50, 220], [173, 86, 43]),
        ([13, 250, 128, 127], [6, 125, 64]),
        ([1, 2, 3, 254], [1, 2, 3]),
        ([77, 177, 222, 99], [30, 69, 86]),
    ];

    #[test]
    fn channels_come_and_go() {
        let mut grey = [0; 2];
        samples(&[10, 200, 20, 100], ColorType::La8, 1, &mut grey);
        assert_eq!(grey, [10, 20]);
        let mut rgba = [0; 4];
        samples(&[10, 200, 20, 100], ColorType::La8, 2, &mut rgba);
        assert_eq!(rgba, [10, 200, 20, 100]);
        samples(&[10, 200], ColorType::La8, 4, &mut rgba);
        assert_eq!(rgba, [10, 10, 10, 200]);
        samples(&[1, 2, 3], ColorType::Rgb8, 4, &mut rgba);
        assert_eq!(rgba, [1, 2, 3, 255]);
        colours(&[255, 0, 0, 0, 0, 255], 1, &mut grey);
        assert_eq!(grey, [76, 29]);
    }
}
