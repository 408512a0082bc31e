//! The data in an image's header: format, size, orientation. Reads no pixels and allocates nothing.
//!
//! Limits are checked on these numbers before a decoder sees the bytes, and a decoder that finds other numbers is not
//! trusted.

use super::exif::Orientation;
use crate::error::{Error, Place, Result};

/// The supported formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// Baseline, extended and progressive JPEG of 8 bits; grey, YCbCr, RGB, CMYK, YCCK.
    Jpeg,
    /// PNG of 1 to 16 bits; an APNG's default image.
    Png,
    /// Lossy and lossless WebP; an animation's first frame.
    Webp,
    /// GIF's first frame.
    Gif,
    /// Windows bitmap.
    Bmp,
}

impl Format {
    /// The format's usual name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::Webp => "WebP",
            Self::Gif => "GIF",
            Self::Bmp => "BMP",
        }
    }
}

/// The data in an image's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Info {
    /// The format, from the first bytes.
    pub format: Format,
    /// Pixels of a stored row.
    pub width: u32,
    /// Stored rows.
    pub height: u32,
    /// Values of a stored pixel: 1 grey, 2 grey and alpha, 3 colour (also a palette), 4 colour and alpha, or CMYK in a JPEG.
    pub channels: u8,
    /// Bits of a value.
    pub bits: u8,
    /// Orientation of the stored image.
    pub orientation: Orientation,
}

impl Info {
    /// Width and height of the image as displayed, after its orientation.
    pub fn oriented(&self) -> (u32, u32) {
        self.orientation.apply(self.width, self.height)
    }
}

/// Reads the header of `bytes`; the pixels may be missing.
///
/// # Errors
/// `Corrupt` if this is not an image or its header is damaged, `Unsupported` if it is of another format.
pub fn probe(bytes: &[u8]) -> Result<Info> {
    header(bytes).map(|(info, _)| info)
}

/// Further data of a JPEG's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Jpeg {
    /// Start of the entropy-coded data, if the header is whole.
    pub(super) scan: Option<usize>,
    pub(super) progressive: bool,
    /// Set for a JPEG that all decoders read alike: baseline, one scan, grey or YCbCr with colours at full or half
    /// resolution.
    pub(super) plain: bool,
}

pub(super) fn header(bytes: &[u8]) -> Result<(Info, Option<Jpeg>)> {
    match bytes {
        [0xff, 0xd8, 0xff, ..] => jpeg(bytes).map(|(info, jpeg)| (info, Some(jpeg))),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => png(bytes).map(|info| (info, None)),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => webp(bytes).map(|info| (info, None)),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => gif(bytes).map(|info| (info, None)),
        [b'B', b'M', ..] => bmp(bytes).map(|info| (info, None)),
        [] => Err(corrupt("the image is empty: 0 bytes")),
        _ => Err(other(bytes)),
    }
}

fn corrupt(what: impl Into<String>) -> Error {
    Error::corrupt(Place::default(), what)
}

fn cut(format: &str) -> Error {
    corrupt(format!("{format} header is cut short or damaged"))
}

/// The error for bytes in none of the decoded formats: an image of another kind is named.
fn other(bytes: &[u8]) -> Error {
    let name = match bytes {
        [b'I', b'I', b'*', 0, ..] | [b'M', b'M', 0, b'*', ..] => "TIFF",
        [_, _, _, _, b'f', b't', b'y', b'p', b'a', b'v', b'i', b'f' | b's', ..] => "AVIF",
        [_, _, _, _, b'f', b't', b'y', b'p', b'h' | b'm', b'e' | b'i', ..] => "HEIF",
        [0xff, 0x0a, ..] | [0, 0, 0, 12, b'J', b'X', b'L', b' ', ..] => "JPEG XL",
        [0, 0, 0, 12, b'j', b'P', ..] | [0xff, 0x4f, 0xff, 0x51, ..] => "JPEG 2000",
        [b'8', b'B', b'P', b'S', ..] => "Photoshop",
        [b'P', b'1'..=b'7', b'\n' | b' ' | b'\r', ..] => "PNM",
        _ => {
            let start = bytes.get(..8).unwrap_or(bytes).escape_ascii();
            return corrupt(format!("not an image: {} bytes that start with \"{start}\"", bytes.len()));
        }
    };
    Error::unsupported(format!("image format {name}"), "store JPEG, PNG, WebP, GIF or BMP, or read the column as bytes")
}

fn u16_be(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at.checked_add(2)?)?.try_into().ok()?))
}

pub(super) fn u16_le(bytes: &[u8], at: usize) -> Option<u16> {
    u16_be(bytes, at).map(u16::swap_bytes)
}

pub(super) fn u32_be(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

pub(super) fn u32_le(bytes: &[u8], at: usize) -> Option<u32> {
    u32_be(bytes, at).map(u32::swap_bytes)
}

/// Checks that there are any pixels.
fn info(format: Format, width: u32, height: u32, channels: u8, bits: u8, orientation: Orientation) -> Result<Info> {
    if width == 0 || height == 0 {
        return Err(corrupt(format!("{} of {width} x {height} pixels has none", format.name())));
    }
    Ok(Info { format, width, height, channels, bits, orientation })
}

fn jpeg(bytes: &[u8]) -> Result<(Info, Jpeg)> {
    let mut at = 2;
    let mut frame = None;
    let mut orientation = None;
    let mut scan = None;
    let (mut plain, mut adobe) = (false, None);
    // Markers until the first scan; bytes that are not a marker are skipped, as by libjpeg.
    while let Some(offset) = bytes.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == 0xff)) {
        let Some(fill) = bytes.get(at + offset..).and_then(|rest| rest.iter().position(|byte| *byte != 0xff)) else {
            break;
        };
        let code_at = at + offset + fill;
        let Some(&code) = bytes.get(code_at) else { break };
        at = code_at + 1;
        // Without a segment: a stuffed zero, RSTn, SOI, TEM; EOI ends the image.
        match code {
            0 | 0x01 | 0xd0..=0xd8 => continue,
            0xd9 => break,
            _ => {}
        }
        let Some(len) = u16_be(bytes, at) else { break };
        let Some(body) = bytes.get(at + 2..at + usize::from(len).max(2)) else { break };
        at += usize::from(len).max(2);
        match code {
            // SOFn; C4, C8, CC are DHT, JPG and DAC.
            0xc0..=0xcf if !matches!(code, 0xc4 | 0xc8 | 0xcc) => {
                let (Some(&[bits, h0, h1, w0, w1, channels]), None) = (body.first_chunk::<6>(), frame) else {
                    return Err(cut("JPEG"));
                };
                if code > 0xc2 && !matches!(code, 0xc9 | 0xca) {
                    return Err(unsupported_jpeg("lossless or hierarchical JPEG"));
                }
                if bits != 8 {
                    return Err(unsupported_jpeg(&format!("JPEG of {bits} bits")));
                }
                plain = code == 0xc0 && is_plain_frame(body);
                frame = Some((code, u16::from_be_bytes([w0, w1]), u16::from_be_bytes([h0, h1]), channels, bits));
            }
            0xe1 if orientation.is_none() => {
                orientation = body.strip_prefix(b"Exif\0\0").map(Orientation::from_tiff);
            }
            // Its last byte is the colour transform.
            0xee => adobe = body.strip_prefix(b"Adobe").and_then(|body| body.get(6)).or(adobe),
            0xda => {
                let all = frame.is_some_and(|(.., channels, _)| body.first() == Some(&channels));
                // Adobe's 1 is YCbCr.
                plain &= all && adobe.is_none_or(|transform| *transform == 1);
                scan = Some(at);
                break;
            }
            _ => {}
        }
    }
    let Some((code, width, height, channels, bits)) = frame else { return Err(cut("JPEG")) };
    if !matches!(channels, 1 | 3 | 4) {
        return Err(unsupported_jpeg(&format!("JPEG of {channels} channels")));
    }
    let orientation = orientation.unwrap_or_default();
    let info = info(Format::Jpeg, width.into(), height.into(), channels, bits, orientation)?;
    Ok((info, Jpeg { scan, progressive: matches!(code, 0xc2 | 0xca), plain: plain && scan.is_some() }))
}

/// Returns true if the body of a frame header is of one component, or of YCbCr with 4:4:4, 4:2:2, 4:2:0 or 4:4:0.
fn is_plain_frame(body: &[u8]) -> bool {
    let components = body.get(6..).map(|rest| rest.as_chunks::<3>().0);
    match components {
        Some([_]) => body.get(5) == Some(&1),
        // Without further information, components called R, G, B are RGB.
        Some([[y, luma, _], [_, 0x11, _], [_, 0x11, _]]) => {
            body.get(5) == Some(&3) && matches!(luma, 0x11 | 0x12 | 0x21 | 0x22) && *y != b'R'
        }
        _ => false,
    }
}

fn unsupported_jpeg(what: &str) -> Error {
    Error::unsupported(what.to_owned(), "store it as baseline or progressive JPEG of 8 bits")
}

fn png(bytes: &[u8]) -> Result<Info> {
    let read = || {
        let is_header = bytes.get(12..16)? == b"IHDR";
        is_header.then_some(())?;
        let channels = match bytes.get(25)? {
            0 => 1,
            2 | 3 => 3,
            4 => 2,
            6 => 4,
            _ => return None,
        };
        Some((u32_be(bytes, 16)?, u32_be(bytes, 20)?, channels, *bytes.get(24)?))
    };
    let (width, height, channels, bits) = read().ok_or_else(|| cut("PNG"))?;
    // Chunks before the pixels: the last place where a streaming reader can learn the orientation.
    let mut orientation = Orientation::default();
    let mut at = 8;
    while let Some(len) = u32_be(bytes, at).and_then(|len| usize::try_from(len).ok()) {
        let (Some(kind), Some(body)) =
            (bytes.get(at + 4..at + 8), bytes.get(at + 8..).and_then(|rest| rest.get(..len)))
        else {
            break;
        };
        match kind {
            b"IDAT" | b"IEND" => break,
            b"eXIf" => orientation = Orientation::from_tiff(body),
            _ => {}
        }
        at += len + 12;
    }
    info(Format::Png, width, height, channels, bits, orientation)
}

fn webp(bytes: &[u8]) -> Result<Info> {
    let u24 = |at: usize| Some(u32::from(u16_le(bytes, at)?) | u32::from(*bytes.get(at + 2)?) << 16);
    let read = || match bytes.get(12..16)? {
        b"VP8 " => {
            (bytes.get(23..26)? == [0x9d, 0x01, 0x2a]).then_some(())?;
            Some((u32::from(u16_le(bytes, 26)? & 0x3fff), u32::from(u16_le(bytes, 28)? & 0x3fff), 3))
        }
        b"VP8L" => {
            (*bytes.get(20)? == 0x2f).then_some(())?;
            let packed = u32_le(bytes, 21)?;
            Some(((packed & 0x3fff) + 1, (packed >> 14 & 0x3fff) + 1, if packed >> 28 & 1 == 1 { 4 } else { 3 }))
        }
        b"VP8X" => Some((u24(24)? + 1, u24(27)? + 1, if bytes.get(20)? & 0x10 != 0 { 4 } else { 3 })),
        _ => None,
    };
    let (width, height, channels) = read().ok_or_else(|| cut("WebP"))?;
    let mut orientation = Orientation::default();
    if bytes.get(12..16) == Some(b"VP8X") && bytes.get(20).is_some_and(|flags| flags & 0x08 != 0) {
        let mut at = 12;
        while let Some(len) = u32_le(bytes, at + 4).and_then(|len| usize::try_from(len).ok()) {
            let (Some(kind), Some(body)) =
                (bytes.get(at..at + 4), bytes.get(at + 8..).and_then(|rest| rest.get(..len)))
            else {
                break;
            };
            if kind == b"EXIF" {
                // Some writers keep the prefix that JPEG requires.
                orientation = Orientation::from_tiff(body.strip_prefix(b"Exif\0\0").unwrap_or(body));
                break;
            }
            at += 8 + len + len % 2;
        }
    }
    info(Format::Webp, width, height, channels, 8, orientation)
}

fn gif(bytes: &[u8]) -> Result<Info> {
    let read = || Some((u16_le(bytes, 6)?, u16_le(bytes, 8)?));
    let (width, height) = read().ok_or_else(|| cut("GIF"))?;
    info(Format::Gif, width.into(), height.into(), 3, 8, Orientation::default())
}

fn bmp(bytes: &[u8]) -> Result<Info> {
    let read = || {
        let (width, height, bits) = if u32_le(bytes, 14)? == 12 {
            (u16_le(bytes, 18)?.into(), u16_le(bytes, 20)?.into(), u16_le(bytes, 24)?)
        } else {
            // A negative height means rows from top to bottom.
            let height = u32_le(bytes, 22)?.cast_signed().unsigned_abs();
            (u32_le(bytes, 18)?, height, u16_le(bytes, 28)?)
        };
        Some((width, height, if bits == 32 { 4 } else { 3 }))
    };
    let (width, height, channels) = read().ok_or_else(|| cut("BMP"))?;
    info(Format::Bmp, width, height, channels, 8, Orientation::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jpeg_header_is_read_through_fill_bytes_and_garbage() {
        let mut bytes =
            vec![0xff, 0xd8, 0xff, 0xff, 0xe0, 0, 4, 1, 2, 7, 7, 0xff, 0xc2, 0, 11, 8, 0, 5, 0, 9, 1, 1, 0x11, 0];
        let info = probe(&bytes).unwrap();
        assert_eq!((info.width, info.height, info.channels, info.bits), (9, 5, 1, 8));
        bytes.extend([0xff, 0xda, 0, 4, 0, 0, 1, 2, 3]);
        let (_, jpeg) = header(&bytes).unwrap();
        assert_eq!(jpeg, Some(Jpeg { scan: Some(bytes.len() - 3), progressive: true, plain: false }));
    }

    #[test]
    fn a_plain_jpeg_is_baseline_in_one_scan_of_usual_colours() {
        let plain = |code: u8, components: &[[u8; 3]], adobe: Option<u8>, in_scan: u8| {
            let mut bytes = vec![0xff, 0xd8];
            if let Some(transform) = adobe {
                bytes.extend([0xff, 0xee, 0, 14]);
                bytes.extend(b"Adobe\0\x64\0\0\0\0");
                bytes.push(transform);
            }
            let count = components.len() as u8;
            bytes.extend([0xff, code, 0, 8 + 3 * count, 8, 0, 5, 0, 9, count]);
            bytes.extend(components.as_flattened());
            bytes.extend([0xff, 0xda, 0, 6 + 2 * in_scan, in_scan]);
            bytes.extend(vec![0; usize::from(2 * in_scan) + 3]);
            header(&bytes).unwrap().1.unwrap().plain
        };
        let colours = |luma| [[1, luma, 0], [2, 0x11, 1], [3, 0x11, 1]];
        for luma in [0x11, 0x21, 0x12, 0x22] {
            assert!(plain(0xc0, &colours(luma), None, 3) && plain(0xc0, &colours(luma), Some(1), 3));
        }
        assert!(plain(0xc0, &[[1, 0x11, 0]], None, 1) && plain(0xc0, &[[1, 0x22, 0]], None, 1));
        assert!(!plain(0xc0, &colours(0x41), None, 3), "4:1:1");
        assert!(!plain(0xc0, &colours(0x22), Some(0), 3), "RGB, as Adobe says");
        assert!(!plain(0xc0, &[[b'R', 0x11, 0], [b'G', 0x11, 0], [b'B', 0x11, 0]], None, 3), "RGB by name");
        assert!(!plain(0xc0, &colours(0x22), None, 1), "several scans");
        assert!(!plain(0xc1, &colours(0x22), None, 3) && !plain(0xc2, &colours(0x22), None, 3));
        assert!(!plain(0xc0, &[[1, 0x11, 0]; 4], None, 4), "inks");
    }

    #[test]
    fn every_prefix_is_an_error_or_the_same_answer() {
        let mut png = b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x07\0\0\0\x05\x10\x04\0\0\0crc!".to_vec();
        png.extend(b"\0\0\0\x1aeXIfMM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0crc!");
        let webp = b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0\x06\0\0\x04\0\0".to_vec();
        let gif = b"GIF89a\x07\0\x05\0".to_vec();
        let mut bmp = b"BM".to_vec();
        bmp.extend([0; 12]);
        bmp.extend([40, 0, 0, 0, 7, 0, 0, 0, 0xfb, 0xff, 0xff, 0xff, 1, 0, 32, 0]);
        for bytes in [png, webp, gif, bmp] {
            let whole = probe(&bytes).unwrap();
            assert_eq!((whole.width, whole.height), (7, 5), "{whole:?}");
            for len in 0..bytes.len() {
                if let Ok(info) = probe(&bytes[..len]) {
                    assert_eq!(Info { orientation: whole.orientation, ..info }, whole, "{len}");
                }
            }
        }
    }

    #[test]
    fn other_formats_are_named() {
        for (bytes, name) in [
            (&b"II*\0"[..], "TIFF"),
            (b"\0\0\0\x1cftypavif", "AVIF"),
            (b"\0\0\0\x1cftypheic", "HEIF"),
            (b"\xff\x0a", "JPEG XL"),
        ] {
            let error = probe(bytes).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("not supported"), "{error}");
        }
        assert!(probe(b"hello, this is text").unwrap_err().to_string().contains("start with \"hello, t\""));
        assert!(probe(b"").unwrap_err().to_string().contains("0 bytes"));
    }
}
