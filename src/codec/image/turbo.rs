//! JPEG by libjpeg-turbo (feature `turbo`): decodes only the requested rectangle, and only at the requested scale.
//!
//! A handle lives for one image. libjpeg keeps the tables of the last image for "abbreviated" streams, so with a reused
//! handle a damaged file without tables would decode with those of whatever image came before it on that thread.
#![expect(unsafe_code, reason = "calls into C")]

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use turbojpeg_sys as tj;

use super::colour;
use super::jpeg::{Part, failed};
use super::options::Limits;
use crate::error::{Error, Result};

/// For `doctor` and `bench`.
pub(super) const NAME: &str = "libjpeg-turbo 3.1 (decodes only the crop, at 1/1 to 1/8)";

/// The warnings of libjpeg that lose no pixel: stray bytes, version numbers, profiles. All others mean that some of the
/// picture is made up. The texts are those of jerror.h; libjpeg's API exposes no codes.
const HARMLESS: [&str; 4] =
    ["extraneous bytes before marker", "unknown JFIF revision", "Unknown Adobe color transform", "bad ICC marker"];

/// A JPEG whose header libjpeg has read.
pub(super) struct Decoder<'a> {
    handle: Handle,
    jpeg: &'a [u8],
    width: u32,
    height: u32,
    /// Pixels between the columns where a crop may start, at scale 1; `None` if it cannot be cropped.
    block_width: Option<u32>,
    /// CMYK or YCCK.
    inks: bool,
    /// Set if missing parts are filled up.
    fill: bool,
}

struct Handle(NonNull<c_void>);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is from tj3Init and is destroyed once.
        unsafe { tj::tj3Destroy(self.0.as_ptr()) }
    }
}

impl Handle {
    fn new() -> Result<Self> {
        // SAFETY: no preconditions.
        let handle = unsafe { tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int) };
        NonNull::new(handle).map(Self).ok_or_else(|| failed("libjpeg-turbo could not start: out of memory"))
    }

    fn set(&self, parameter: tj::TJPARAM, value: c_int) -> Result<()> {
        // SAFETY: the handle is live; any value is checked by the callee.
        let code = unsafe { tj::tj3Set(self.0.as_ptr(), parameter as c_int, value) };
        if code == 0 { Ok(()) } else { Err(failed(self.message())) }
    }

    fn get(&self, parameter: tj::TJPARAM) -> c_int {
        // SAFETY: the handle is live.
        unsafe { tj::tj3Get(self.0.as_ptr(), parameter as c_int) }
    }

    /// The last error or warning.
    fn message(&self) -> String {
        // SAFETY: the handle is live; the string is NUL-terminated and stays until the next call on this thread.
        let text = unsafe { CStr::from_ptr(tj::tj3GetErrorStr(self.0.as_ptr())) };
        text.to_string_lossy().into_owned()
    }

    /// Returns true if the last call, which failed, nevertheless ran to its end.
    fn is_warning(&self) -> bool {
        // SAFETY: the handle is live.
        unsafe { tj::tj3GetErrorCode(self.0.as_ptr()) == tj::TJERR_TJERR_WARNING as c_int }
    }

    /// Returns true if the last call, which failed, reported only warnings that lose no pixel, or if lost pixels are
    /// filled up. A fatal error after a warning leaves its own text.
    fn is_harmless(&self, fill: bool) -> bool {
        self.is_warning() && (fill || HARMLESS.iter().any(|text| self.message().contains(text)))
    }
}

impl<'a> Decoder<'a> {
    /// Reads the header.
    pub(super) fn open(jpeg: &'a [u8], limits: &Limits, fill: bool) -> Result<Self> {
        let handle = Handle::new()?;
        let clamp = |value: u64| c_int::try_from(value).unwrap_or(c_int::MAX);
        handle.set(tj::TJPARAM_TJPARAM_SCANLIMIT, clamp(limits.max_scans.max(1).into()))?;
        handle.set(tj::TJPARAM_TJPARAM_MAXPIXELS, clamp(limits.max_pixels.max(1)))?;
        handle.set(tj::TJPARAM_TJPARAM_MAXMEMORY, clamp(limits.max_bytes.div_ceil(1 << 20).max(1)))?;
        handle.set(tj::TJPARAM_TJPARAM_SAVEMARKERS, 0)?;
        // SAFETY: the handle is live; jpeg is valid for jpeg.len() bytes and only read.
        let code = unsafe { tj::tj3DecompressHeader(handle.0.as_ptr(), jpeg.as_ptr(), jpeg.len() as tj::size_t) };
        if code != 0 && !handle.is_harmless(fill) {
            return Err(failed(handle.message()));
        }
        let size = |parameter| u32::try_from(handle.get(parameter)).ok().filter(|size| *size > 0);
        let (Some(width), Some(height)) = (size(tj::TJPARAM_TJPARAM_JPEGWIDTH), size(tj::TJPARAM_TJPARAM_JPEGHEIGHT))
        else {
            return Err(failed("no picture between the header and the end"));
        };
        // Distance between column starts of blocks; tjMCUWidth of the subsampling.
        let block_width = match handle.get(tj::TJPARAM_TJPARAM_SUBSAMP) {
            tj::TJSAMP_TJSAMP_444 | tj::TJSAMP_TJSAMP_GRAY | tj::TJSAMP_TJSAMP_440 | tj::TJSAMP_TJSAMP_441 => Some(8),
            tj::TJSAMP_TJSAMP_422 | tj::TJSAMP_TJSAMP_420 => Some(16),
            tj::TJSAMP_TJSAMP_411 => Some(32),
            _ => None,
        };
        let colorspace = handle.get(tj::TJPARAM_TJPARAM_COLORSPACE);
        let inks = colorspace == tj::TJCS_TJCS_CMYK as c_int || colorspace == tj::TJCS_TJCS_YCCK as c_int;
        Ok(Self { handle, jpeg, width, height, block_width, inks, fill })
    }

    pub(super) fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    pub(super) fn block_width(&self) -> Option<u32> {
        self.block_width
    }

    pub(super) fn scales(&self) -> bool {
        true
    }

    /// Decodes `part` to `out`, which has `channels` (1, 3 or 4) bytes for each of its pixels.
    pub(super) fn decode(self, part: &Part, channels: usize, out: &mut [u8]) -> Result<()> {
        if !self.inks {
            let format = match channels {
                1 => tj::TJPF_TJPF_GRAY,
                3 => tj::TJPF_TJPF_RGB,
                _ => tj::TJPF_TJPF_RGBA,
            };
            return self.pixels(part, format, channels, out);
        }
        let mut inks = vec![0; part.pixels().saturating_mul(4)];
        self.pixels(part, tj::TJPF_TJPF_CMYK, 4, &mut inks)?;
        colour::inks(&inks, channels, out);
        Ok(())
    }

    fn pixels(&self, part: &Part, format: tj::TJPF, bytes_per_pixel: usize, out: &mut [u8]) -> Result<()> {
        let scale = tj::tjscalingfactor { num: 1, denom: part.denominator as c_int };
        // SAFETY: the handle is live and has read a header.
        if unsafe { tj::tj3SetScalingFactor(self.handle.0.as_ptr(), scale) } != 0 {
            return Err(failed(self.handle.message()));
        }
        let whole = (self.width.div_ceil(part.denominator), self.height.div_ceil(part.denominator));
        let region = if (part.left, part.top, part.width, part.height) == (0, 0, whole.0, whole.1) {
            tj::tjregion { x: 0, y: 0, w: 0, h: 0 }
        } else {
            let [x, y, w, h] = [part.left, part.top, part.width, part.height].map(|side| side as c_int);
            tj::tjregion { x, y, w, h }
        };
        // SAFETY: the handle is live and has read a header.
        if unsafe { tj::tj3SetCroppingRegion(self.handle.0.as_ptr(), region) } != 0 {
            return Err(failed(self.handle.message()));
        }
        let pitch = (part.width as usize).saturating_mul(bytes_per_pixel);
        if out.len() != pitch.saturating_mul(part.height as usize) || out.is_empty() {
            return Err(failed(format!("{} bytes do not hold {part:?}", out.len())));
        }
        let Ok(pitch) = c_int::try_from(pitch) else { return Err(failed("a row is too long")) };
        let mut run = |stop_on_warning| {
            self.handle.set(tj::TJPARAM_TJPARAM_STOPONWARNING, stop_on_warning)?;
            if self.fill {
                // Unwritten pixels are grey, and never those of another image that was here.
                out.fill(128);
            }
            // SAFETY: the handle is live. Decoding reads the same bytes as `open` did, so the image has width x height pixels; it writes
            // part.height rows (the region's, which the callee checked to lie in the scaled image, or all rows of it) of part.width pixels,
            // `pitch` bytes apart: out.len() bytes in all.
            let code = unsafe {
                tj::tj3Decompress8(
                    self.handle.0.as_ptr(),
                    self.jpeg.as_ptr(),
                    self.jpeg.len() as tj::size_t,
                    out.as_mut_ptr(),
                    pitch,
                    format as c_int,
                )
            };
            if code == 0 || (stop_on_warning == 0 && self.handle.is_harmless(self.fill)) {
                return Ok(());
            }
            Err(failed(self.handle.message()))
        };
        match run(1) {
            // libjpeg keeps only the text of the first warning: damage after a harmless warning in the header is not
            // seen.
            Err(Error::Corrupt { .. }) if self.handle.is_harmless(self.fill) => run(0),
            outcome => outcome,
        }
    }
}
