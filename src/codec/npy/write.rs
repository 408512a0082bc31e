//! Arrays to cells: `.npy` of version 1, and `.npz` with one deflated array, as `numpy.save` and `numpy.savez_compressed` write them.

use flate2::{Compress, Compression, FlushCompress, Status};

use super::Npy;
use super::header::{self, MAX_AXES};
use crate::error::{Error, Place, Result};

/// The name of the array in an `.npz`; Petastorm requests it by this name.
const NAME: &[u8] = b"arr.npy";

/// 1 January 1980, the first day of zip: the same array gives the same bytes whenever it is written.
const DATE: u16 = 1 << 5 | 1;

/// Appends a `.npy` of the array `data`, which is in C order and little endian, to `out`.
///
/// # Errors
/// `Mismatch` if `data` does not have the bytes that `shape` needs; `Unsupported` for more than 32 axes or big endian.
pub fn write_npy(element: &Npy, shape: &[usize], data: &[u8], out: &mut Vec<u8>) -> Result<()> {
    if shape.len() > MAX_AXES || element.big {
        let what = format!("writing an array {shape:?} of {element}");
        return Err(Error::unsupported(what, "at most 32 axes, little endian"));
    }
    if header::bytes(element, shape) != Some(data.len()) {
        return Err(Error::Mismatch {
            what: format!("bytes of an array {shape:?} of {element}"),
            expected: header::bytes(element, shape).map_or("fewer axes".into(), |bytes| bytes.to_string()),
            found: data.len().to_string(),
            hint: String::new(),
        });
    }
    header::write(element, shape, out);
    out.extend_from_slice(data);
    Ok(())
}

/// Appends an `.npz` of the array `data`, which is in C order and little endian, to `out`.
///
/// # Errors
/// As [`write_npy`]; `Unsupported` for arrays of 4 GiB and more.
pub fn write_npz(element: &Npy, shape: &[usize], data: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut array = Vec::with_capacity(256 + data.len());
    write_npy(element, shape, data, &mut array)?;
    let start = out.len();
    // Everything but the two sizes, which are known at the end.
    let mut fixed = vec![20, 0, 0, 0, 8, 0, 0, 0];
    fixed.extend_from_slice(&DATE.to_le_bytes());
    fixed.extend_from_slice(&crc32fast::hash(&array).to_le_bytes());
    let lengths = [NAME.len() as u16, 0].map(u16::to_le_bytes).concat();

    out.extend_from_slice(b"PK\x03\x04");
    out.extend_from_slice(&fixed);
    let sizes_at = out.len();
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&lengths);
    out.extend_from_slice(NAME);
    let data_at = out.len();
    deflate(&array, out)?;

    let small = |len: usize| {
        u32::try_from(len).ok().filter(|len| *len < u32::MAX).ok_or_else(|| {
            Error::unsupported(format!("an .npz of {} bytes", array.len()), "store it as .npy, or in parts")
        })
    };
    let sizes = [small(out.len() - data_at)?, small(array.len())?].map(u32::to_le_bytes).concat();
    out[sizes_at..][..8].copy_from_slice(&sizes);

    let directory = out.len();
    out.extend_from_slice(b"PK\x01\x02\x14\0");
    out.extend_from_slice(&fixed);
    out.extend_from_slice(&sizes);
    out.extend_from_slice(&lengths);
    // No comment, disk 0, no attributes, and the entry at the start.
    out.extend_from_slice(&[0; 14]);
    out.extend_from_slice(NAME);
    let len = small(out.len() - directory)?;
    out.extend_from_slice(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(&small(directory - start)?.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    Ok(())
}

fn deflate(bytes: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let mut state = Compress::new(Compression::default(), false);
    loop {
        let read = usize::try_from(state.total_in()).unwrap_or(usize::MAX);
        out.reserve((bytes.len() / 2).max(256));
        let rest = bytes.get(read..).unwrap_or_default();
        match state.compress_vec(rest, out, FlushCompress::Finish) {
            Ok(Status::StreamEnd) => return Ok(()),
            Ok(Status::Ok | Status::BufError) => {}
            Err(error) => return Err(Error::corrupt_by(Place::default(), "the array cannot be deflated", error)),
        }
    }
}
