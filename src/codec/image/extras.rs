//! What an image has beside its pixels of three channels and one frame: transparency that its header does not show, and further frames.
//! Who encodes images again asks, so that neither is lost. Reads no pixels and allocates nothing.

use super::probe::{Format, Info, u16_le, u32_be, u32_le};

/// What may be lost of an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Extras {
    /// True if pixels may be transparent although `Info` has no channel of alpha.
    pub(crate) transparent: bool,
    /// True if it has more frames than the one that is decoded.
    pub(crate) animated: bool,
}

/// Finds them in `bytes`, whose header gave `info`. Damage ends the search: the decoder reports it.
pub(crate) fn extras(bytes: &[u8], info: &Info) -> Extras {
    let mut found = Extras::default();
    // Ends at the first block that is cut short.
    let _ = match info.format {
        Format::Png => png(bytes, &mut found),
        Format::Webp => webp(bytes, &mut found),
        Format::Gif => gif(bytes, info, &mut found),
        Format::Jpeg | Format::Bmp => None,
    };
    found
}

fn png(bytes: &[u8], found: &mut Extras) -> Option<()> {
    let mut at = 8_usize;
    loop {
        let len = usize::try_from(u32_be(bytes, at)?).ok()?;
        match bytes.get(at + 4..at + 8)? {
            b"IDAT" | b"IEND" => return Some(()),
            b"tRNS" => found.transparent = true,
            b"acTL" => found.animated = u32_be(bytes, at + 8)? > 1,
            _ => {}
        }
        at = at.checked_add(len)?.checked_add(12)?;
    }
}

fn webp(bytes: &[u8], found: &mut Extras) -> Option<()> {
    let (mut at, mut frames) = (12_usize, 0);
    while frames < 2 {
        frames += usize::from(bytes.get(at..at + 4)? == b"ANMF");
        let len = usize::try_from(u32_le(bytes, at + 4)?).ok()?;
        at = at.checked_add(len)?.checked_add(8 + len % 2)?;
    }
    found.animated = true;
    Some(())
}

fn gif(bytes: &[u8], info: &Info, found: &mut Extras) -> Option<()> {
    let table = |flags: u8| if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) };
    let mut at = 13 + table(*bytes.get(10)?);
    let (mut frames, mut transparent) = (0, false);
    loop {
        match *bytes.get(at)? {
            0x21 => {
                // The control of the next frame: its first bit says that one colour is none.
                if bytes.get(at + 1..at + 3)? == [0xf9, 4] {
                    transparent = bytes.get(at + 3)? & 1 == 1;
                }
                at += 2;
            }
            0x2c => {
                let place = [at + 1, at + 3, at + 5, at + 7].map(|at| u16_le(bytes, at).map(u32::from));
                let [Some(left), Some(top), Some(width), Some(height)] = place else { return None };
                if frames == 0 {
                    // What the frame does not cover is transparent.
                    let covers = (left, top) == (0, 0) && width >= info.width && height >= info.height;
                    found.transparent = transparent || !covers;
                }
                frames += 1;
                found.animated = frames > 1;
                if found.animated {
                    return Some(());
                }
                at += 11 + table(*bytes.get(at + 9)?);
            }
            _ => return Some(()),
        }
        // Blocks up to an empty one.
        loop {
            let len = usize::from(*bytes.get(at)?);
            at += len + 1;
            if len == 0 {
                break;
            }
        }
    }
}
