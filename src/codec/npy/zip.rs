//! The one array of an `.npz`: a zip archive with a `.npy` in it, stored or deflated.
//!
//! Names are checked only for their ending; nothing is ever opened by them. Sizes come from the central directory, and
//! its claims are checked against the maximum ratio of deflate, and against a limit, before anything is allocated. The
//! crate `zip` first makes a list of all entries, with their names, for each cell; this allocates nothing and finds the
//! one that counts.

use std::cell::Cell;

use crc32fast::Hasher;
use flate2::{Decompress, FlushDecompress, Status};

use super::limits::Limits;
use crate::error::{Error, Place, Result};

/// Deflate yields at most 258 bytes for 2 bits.
const MAX_RATIO: usize = 1032;

const END: &[u8] = b"PK\x05\x06";
const END64: &[u8] = b"PK\x06\x06";
const LOCATOR64: &[u8] = b"PK\x06\x07";
const CENTRAL: &[u8] = b"PK\x01\x02";
const LOCAL: &[u8] = b"PK\x03\x04";

/// The array's entry.
#[derive(Debug)]
pub(super) struct Entry<'a> {
    /// The bytes as stored in the archive.
    packed: &'a [u8],
    deflated: bool,
    /// Bytes when unpacked, as the archive claims.
    pub(super) size: usize,
    crc: u32,
}

impl<'a> Entry<'a> {
    /// Finds the only `.npy` of `archive`.
    pub(super) fn find(archive: &'a [u8], limits: &Limits) -> Result<Self> {
        let (directory, entries) = directory(archive).ok_or_else(|| corrupt("no .npz: its directory is damaged"))?;
        let mut rest = directory;
        let mut found = None;
        for _ in 0..entries {
            let (central, after) = Central::split(rest).ok_or_else(|| corrupt("the .npz has a damaged directory"))?;
            rest = after;
            if central.name.ends_with(b".npy") && found.replace(central).is_some() {
                return Err(Error::unsupported("an .npz of several arrays", "store each array in a column of its own"));
            }
        }
        let central = found.ok_or_else(|| corrupt("the .npz has no array in it"))?;
        central.entry(archive, limits)
    }
}

/// The central directory and its number of entries; `None` if there is none.
fn directory(archive: &[u8]) -> Option<(&[u8], u64)> {
    // The end record is the last thing except for a comment of at most 2^16 bytes, which NumPy does not write.
    let earliest = archive.len().saturating_sub(22 + usize::from(u16::MAX));
    let end = (earliest..archive.len().checked_sub(21)?).rev().find(|at| {
        let comment = u16_at(archive, at + 20).map(usize::from);
        archive[*at..].starts_with(END) && comment.is_some_and(|comment| at + 22 + comment == archive.len())
    })?;
    let mut entries = u64::from(u16_at(archive, end + 10)?);
    let mut len = u64::from(u32_at(archive, end + 12)?);
    let mut start = u64::from(u32_at(archive, end + 16)?);
    if entries == u64::from(u16::MAX) || len == u64::from(u32::MAX) || start == u64::from(u32::MAX) {
        let locator = end.checked_sub(20)?;
        let end64 = usize::try_from(u64_at(archive, locator + 8)?).ok()?;
        if !archive[locator..].starts_with(LOCATOR64) || !archive.get(end64..)?.starts_with(END64) {
            return None;
        }
        entries = u64_at(archive, end64.checked_add(32)?)?;
        len = u64_at(archive, end64.checked_add(40)?)?;
        start = u64_at(archive, end64.checked_add(48)?)?;
    }
    let (start, len) = (usize::try_from(start).ok()?, usize::try_from(len).ok()?);
    Some((archive.get(start..end)?.get(..len)?, entries))
}

/// One record of the central directory.
struct Central<'a> {
    name: &'a [u8],
    flags: u16,
    method: u16,
    crc: u32,
    packed: u64,
    size: u64,
    local: u64,
}

impl<'a> Central<'a> {
    fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        if !bytes.starts_with(CENTRAL) {
            return None;
        }
        let [name, extra, comment] = [u16_at(bytes, 28)?, u16_at(bytes, 30)?, u16_at(bytes, 32)?].map(usize::from);
        let (own, after) = bytes.split_at_checked(46 + name + extra + comment)?;
        let (name, extra) = own[46..46 + name + extra].split_at(name);
        let mut central = Self {
            name,
            flags: u16_at(own, 8)?,
            method: u16_at(own, 10)?,
            crc: u32_at(own, 16)?,
            packed: u32_at(own, 20)?.into(),
            size: u32_at(own, 24)?.into(),
            local: u32_at(own, 42)?.into(),
        };
        let mut wide = wide(extra);
        for field in [&mut central.size, &mut central.packed, &mut central.local] {
            if *field == u64::from(u32::MAX) {
                *field = u64_at(wide, 0)?;
                wide = &wide[8..];
            }
        }
        Some((central, after))
    }

    fn entry(self, archive: &'a [u8], limits: &Limits) -> Result<Entry<'a>> {
        if self.flags & 1 != 0 {
            return Err(Error::unsupported("an encrypted .npz", ""));
        }
        let deflated = match self.method {
            0 => false,
            8 => true,
            method => {
                let what = format!("an .npz with compression method {method}");
                return Err(Error::unsupported(what, "numpy.savez_compressed writes deflate"));
            }
        };
        let packed = self.packed(archive).ok_or_else(|| corrupt("the .npz has no data where its directory says"))?;
        // An impossible claim is damage; a possible one may still be too much.
        let most = if deflated { packed.len().saturating_mul(MAX_RATIO) } else { packed.len() } as u64;
        if self.size > most || (!deflated && self.size < most) {
            return Err(corrupt(format!("the .npz claims {} bytes, its {} cannot give them", self.size, packed.len())));
        }
        if self.size > limits.max_bytes {
            return Err(Error::limit("unpacking an .npz", self.size, limits.max_bytes, "limits.max_bytes"));
        }
        let size = usize::try_from(self.size).map_err(|_| corrupt("the .npz is larger than memory"))?;
        Ok(Entry { packed, deflated, size, crc: self.crc })
    }

    fn packed(&self, archive: &'a [u8]) -> Option<&'a [u8]> {
        let local = archive.get(usize::try_from(self.local).ok()?..)?;
        if !local.starts_with(LOCAL) || u16_at(local, 8)? != self.method {
            return None;
        }
        let [name, extra] = [u16_at(local, 26)?, u16_at(local, 28)?].map(usize::from);
        if local.get(30..30 + name)? != self.name {
            return None;
        }
        local.get(30 + name + extra..)?.get(..usize::try_from(self.packed).ok()?)
    }
}

/// The field of zip64 among the extra fields; empty if there is none.
fn wide(mut extra: &[u8]) -> &[u8] {
    while let (Some(id), Some(len)) = (u16_at(extra, 0), u16_at(extra, 2)) {
        let Some((field, after)) = extra[4..].split_at_checked(len.into()) else { break };
        if id == 1 {
            return field;
        }
        extra = after;
    }
    &[]
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().map(|bytes| u16::from_le_bytes(*bytes))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

fn corrupt(what: impl Into<String>) -> Error {
    Error::corrupt(Place::default(), what)
}

/// Unpacks an entry piece by piece, each straight to its destination.
pub(super) struct Unpack<'a> {
    packed: &'a [u8],
    inflate: Option<Inflate>,
    /// Bytes still to come.
    left: usize,
    expected: u32,
    crc: Hasher,
}

impl<'a> Unpack<'a> {
    pub(super) fn new(entry: &Entry<'a>) -> Self {
        let inflate = entry.deflated.then(Inflate::take);
        Self { packed: entry.packed, inflate, left: entry.size, expected: entry.crc, crc: Hasher::new() }
    }

    /// Fills `out` with the next bytes.
    pub(super) fn fill(&mut self, out: &mut [u8]) -> Result<()> {
        self.left = self.left.checked_sub(out.len()).ok_or_else(|| corrupt("the array in the .npz is too short"))?;
        match &mut self.inflate {
            None => {
                let (piece, rest) = self.packed.split_at_checked(out.len()).ok_or_else(|| corrupt("short .npz"))?;
                out.copy_from_slice(piece);
                self.packed = rest;
            }
            Some(inflate) => {
                let mut filled = 0;
                while filled < out.len() {
                    let written = inflate.step(&mut self.packed, &mut out[filled..])?;
                    if written == 0 {
                        return Err(corrupt("the .npz holds less than it claims"));
                    }
                    filled += written;
                }
            }
        }
        self.crc.update(out);
        Ok(())
    }

    /// Reads any bytes after the array, and checks the sum of all of it.
    pub(super) fn finish(mut self) -> Result<()> {
        let mut rest = [0; 4096];
        while self.left > 0 {
            let piece = self.left.min(rest.len());
            self.fill(&mut rest[..piece])?;
        }
        if let Some(inflate) = &mut self.inflate {
            if inflate.step(&mut self.packed, &mut rest)? > 0 {
                return Err(corrupt("the .npz holds more than it claims"));
            }
            if !inflate.ended {
                return Err(corrupt("the .npz ends before its data does"));
            }
        }
        if !self.packed.is_empty() {
            return Err(corrupt("the .npz has bytes after its data"));
        }
        if self.crc.finalize() != self.expected {
            return Err(corrupt("the .npz is damaged: its checksum differs"));
        }
        Ok(())
    }
}

thread_local! {
    /// Its tables and window take about 40 KB, which each thread keeps from cell to cell.
    static INFLATE: Cell<Option<Box<Decompress>>> = const { Cell::new(None) };
}

/// Inflation in progress.
struct Inflate {
    state: Option<Box<Decompress>>,
    ended: bool,
}

impl Inflate {
    fn take() -> Self {
        let state = match INFLATE.take() {
            Some(mut kept) => {
                kept.reset(false);
                kept
            }
            None => Box::new(Decompress::new(false)),
        };
        Self { state: Some(state), ended: false }
    }

    /// Writes some of `out` from some of `packed`; 0 bytes at the end, or if `packed` is cut off.
    fn step(&mut self, packed: &mut &[u8], out: &mut [u8]) -> Result<usize> {
        let Some(state) = self.state.as_mut().filter(|_| !self.ended) else { return Ok(0) };
        let (read, written) = (state.total_in(), state.total_out());
        let status = state
            .decompress(packed, out, FlushDecompress::Finish)
            .map_err(|error| Error::corrupt_by(Place::default(), "damaged .npz", error))?;
        self.ended = status == Status::StreamEnd;
        let (read, written) = (state.total_in() - read, state.total_out() - written);
        *packed = packed.get(usize::try_from(read).unwrap_or(usize::MAX)..).unwrap_or_default();
        Ok(usize::try_from(written).unwrap_or(usize::MAX).min(out.len()))
    }
}

impl Drop for Inflate {
    fn drop(&mut self) {
        // After a panic its state is unknown.
        if !std::thread::panicking() {
            INFLATE.set(self.state.take());
        }
    }
}
