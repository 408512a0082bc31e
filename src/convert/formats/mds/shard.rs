//! The samples of one shard, in order.

use std::sync::Arc;

use serde_json::{Value, json};

use super::hash::Hashing;
use super::index::{Entry, MAX_CONFIG};
use crate::convert::budget::{Budget, Permit};
use crate::convert::limits::Limits;
use crate::convert::read::files::Found;
use crate::convert::read::input::{Input, Packed};
use crate::error::{Error, Place, Result};

/// The samples of one shard.
pub(super) struct Samples<'a> {
    pub(super) input: Unpacked,
    entry: &'a Entry,
    limits: Limits,
    offsets: Vec<u32>,
    next: usize,
    /// The current sample, and the ranges of its columns.
    pub(super) sample: Vec<u8>,
    pub(super) cells: Vec<std::ops::Range<usize>>,
    hashing: Option<(Hashing, String)>,
    _permit: Permit,
}

/// A shard's raw bytes: decompressed on the fly, or at once if the compression does not stream.
pub(super) enum Unpacked {
    Stream(Input),
    Whole { bytes: Vec<u8>, at: usize, packed: u64 },
}

impl Unpacked {
    fn append(&mut self, count: u64, out: &mut Vec<u8>) -> Result<u64> {
        match self {
            Self::Stream(input) => input.append(count, out),
            Self::Whole { bytes, at, .. } => {
                let rest = bytes.get(*at..).unwrap_or_default();
                let taken = rest.get(..usize::try_from(count).unwrap_or(usize::MAX)).unwrap_or(rest);
                out.extend_from_slice(taken);
                *at += taken.len();
                Ok(taken.len() as u64)
            }
        }
    }

    pub(super) fn consumed(&self) -> u64 {
        match self {
            Self::Stream(input) => input.consumed(),
            Self::Whole { packed, .. } => *packed,
        }
    }
}

/// Greatest ratio of snappy: a copy of 64 bytes takes two.
const SNAPPY_RATIO: u64 = 64;

impl<'a> Samples<'a> {
    pub(super) fn open(entry: &'a Entry, found: &Found, budget: &'a Budget, limits: &Limits) -> Result<Self> {
        let raw = entry.raw_data.bytes;
        let offsets = entry.samples.saturating_add(1).saturating_mul(4);
        let packing = entry.compression.as_deref().map(|name| name.split(':').next().unwrap_or(name));
        let snappy = packing == Some("snappy");
        if offsets > limits.max_index_bytes {
            let (what, limit) = (format!("file {}: its offsets", found.name), limits.max_index_bytes);
            return Err(Error::limit(what, offsets, limit, "limits.max_index_bytes"));
        }
        if snappy && raw / SNAPPY_RATIO > found.bytes {
            let what = format!("{} bytes of snappy cannot be the {raw} of its index", found.bytes);
            return Err(Error::corrupt(Place::file(Arc::clone(&found.name)), what));
        }
        let whole = if snappy { raw.saturating_add(found.bytes) } else { 0 };
        let needed = offsets.saturating_mul(2).saturating_add(whole);
        let permit = budget.reserve(needed, || format!("file {}: its offsets", found.name))?;
        let input = match packing {
            None => Unpacked::Stream(Input::open_as(found, Packed::Plain)?),
            Some("zstd") => Unpacked::Stream(Input::open_as(found, Packed::Zstd)?),
            Some("gz") => Unpacked::Stream(Input::open_as(found, Packed::Gzip)?),
            Some("bz2") => Unpacked::Stream(Input::open_as(found, Packed::Bzip2)?),
            Some("br") => Unpacked::Stream(Input::open_as(found, Packed::Brotli)?),
            Some("snappy") => {
                let packed = found.content(found.bytes)?;
                let place = || Place::file(Arc::clone(&found.name));
                let damaged = |error| Error::corrupt_by(place(), "its compression is damaged", error);
                let len = snap::raw::decompress_len(&packed).map_err(damaged)?;
                if len as u64 != raw {
                    return Err(Error::corrupt(place(), format!("it unpacks to {len} bytes, {raw} are claimed")));
                }
                let bytes = snap::raw::Decoder::new().decompress_vec(&packed).map_err(damaged)?;
                Unpacked::Whole { bytes, at: 0, packed: found.bytes }
            }
            Some(other) => {
                return Err(Error::unsupported(
                    format!("the compression {other:?} of MDS"),
                    "br, bz2, gz, snappy, zstd and none are supported",
                )
                .at(Place::file(Arc::clone(&found.name))));
            }
        };
        let hashing = Hashing::choose(&entry.raw_data.hashes);
        let mut samples = Self {
            input,
            entry,
            limits: limits.clone(),
            offsets: Vec::new(),
            next: 0,
            sample: Vec::new(),
            cells: Vec::new(),
            hashing,
            _permit: permit,
        };
        samples.start()?;
        Ok(samples)
    }

    pub(super) fn wrong(&self, column: Option<&str>, what: &str) -> Error {
        let mut place = Place::file(self.entry.raw_data.basename.as_str());
        place.column = column.map(Into::into);
        let at = self.offsets.get(self.next.saturating_sub(1)).copied().unwrap_or_default();
        Error::corrupt(place, format!("sample {} (byte {at}): {what}", self.next.saturating_sub(1)))
    }

    /// Adds to the error its file, and its row within the file when it counts from sample `before` on.
    pub(super) fn within(&self, before: u64, error: Error) -> Error {
        match error {
            Error::Corrupt { mut place, what, source } => {
                place.file = Some(self.entry.raw_data.basename.as_str().into());
                place.row = place.row.map(|row| row + before);
                Error::Corrupt { place, what, source }
            }
            other => other,
        }
    }

    fn take(&mut self, count: u64, what: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if self.input.append(count, &mut bytes)? < count {
            return Err(self.wrong(None, &format!("it ends within {what}")));
        }
        if let Some((hashing, _)) = &mut self.hashing {
            hashing.update(&bytes);
        }
        Ok(bytes)
    }

    /// Reads everything before the samples.
    fn start(&mut self) -> Result<()> {
        let raw = self.entry.raw_data.bytes;
        let count = self.take(4, "its head")?;
        let count = u64::from(count.first_chunk().map_or(0, |count| u32::from_le_bytes(*count)));
        if count != self.entry.samples {
            return Err(self.wrong(None, &format!("it has {count} samples, the index has {}", self.entry.samples)));
        }
        let offsets = self.take((count + 1) * 4, "its offsets")?;
        self.offsets =
            offsets.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect();
        let head = 4 + (count + 1) * 4;
        let first = u64::from(self.offsets.first().copied().unwrap_or_default());
        let last = u64::from(self.offsets.last().copied().unwrap_or_default());
        let sorted = self.offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if !sorted || first < head || last != raw {
            return Err(self.wrong(None, "its offsets do not fit its size"));
        }
        let config = first - head;
        if config > MAX_CONFIG {
            return Err(self.wrong(None, "its configuration is too long"));
        }
        let config = self.take(config, "its configuration")?;
        let config: Value = serde_json::from_slice(&config)
            .map_err(|error| self.wrong(None, &format!("its configuration is not JSON ({error})")))?;
        let same = |name: &str, own: Value| config.get(name).is_none_or(|found| *found == own);
        if !same("column_names", json!(self.entry.column_names))
            || !same("column_encodings", json!(self.entry.column_encodings))
            || !same("column_sizes", json!(self.entry.column_sizes))
        {
            return Err(self.wrong(None, "its columns are not those of the index"));
        }
        Ok(())
    }

    /// Advances to the next sample; false at the end.
    pub(super) fn advance(&mut self) -> Result<bool> {
        let (Some(start), Some(end)) = (self.offsets.get(self.next), self.offsets.get(self.next + 1)) else {
            self.end()?;
            return Ok(false);
        };
        let len = u64::from(end - start);
        self.next += 1;
        let name = &self.entry.raw_data.basename;
        self.limits.record(name, || format!("sample {}", self.next - 1), len)?;
        self.sample.clear();
        if self.input.append(len, &mut self.sample)? < len {
            return Err(self.wrong(None, "it ends within the sample"));
        }
        if let Some((hashing, _)) = &mut self.hashing {
            hashing.update(&self.sample);
        }
        self.cells.clear();
        let varying = self.entry.column_sizes.iter().filter(|size| size.is_none()).count();
        let mut at = varying * 4;
        let mut size_at = 0;
        for size in &self.entry.column_sizes {
            let size = match size {
                Some(size) => usize::try_from(*size).ok(),
                None => {
                    let four = self.sample.get(size_at..).and_then(|rest| rest.first_chunk());
                    size_at += 4;
                    four.map(|four| u32::from_le_bytes(*four) as usize)
                }
            };
            let end = size.and_then(|size| at.checked_add(size)).filter(|end| *end <= self.sample.len());
            let Some(end) = end else { return Err(self.wrong(None, "its columns are larger than itself")) };
            self.cells.push(at..end);
            at = end;
        }
        if at != self.sample.len() {
            return Err(self.wrong(None, "it is larger than its columns"));
        }
        Ok(true)
    }

    /// Checks after the last sample that nothing follows, and that the hash matches.
    fn end(&mut self) -> Result<()> {
        let mut more = Vec::new();
        if self.input.append(1, &mut more)? > 0 {
            return Err(self.wrong(None, "more follows than the index claims"));
        }
        if let Some((hashing, expected)) = self.hashing.take() {
            let found = hashing.finish();
            if !found.eq_ignore_ascii_case(&expected) {
                return Err(self.wrong(None, &format!("the shard's hash is {found}, the index has {expected}")));
            }
        }
        Ok(())
    }
}
