//! Names of blocks: a range of bytes of one pinned version of one object, or all of it as a file.
//!
//! The version is part of the name, so a name never means other bytes: a replaced object has other blocks, and those of the old version are
//! no longer used.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::super::stamp::{Stamp, is_weak};
use crate::hex;

/// One version of one object: a digest of its address and of the data that distinguish the version from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ObjectKey(pub(super) [u8; 16]);

impl ObjectKey {
    /// The version `stamp` of the object at `address` of the store `origin`; `None` if only the size distinguishes versions.
    pub(super) fn of(origin: &str, address: &str, stamp: &Stamp) -> Option<Self> {
        let strong = stamp.etag.as_deref().filter(|etag| !is_weak(etag));
        // A strong tag is the version; the time that a listing gives may be finer than that of an answer.
        let modified = if strong.is_some() { None } else { Some(stamp.modified?) };
        let mut digest = Sha256::new();
        let mut part = |bytes: &[u8]| {
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        };
        part(b"bowstring cache 1");
        part(origin.as_bytes());
        part(address.as_bytes());
        part(&stamp.size.to_le_bytes());
        part(stamp.etag.as_deref().unwrap_or_default().as_bytes());
        part(&modified.unwrap_or_default().to_le_bytes());
        let mut key = [0; 16];
        for (byte, digest) in key.iter_mut().zip(digest.finalize()) {
            *byte = digest;
        }
        Some(Self(key))
    }

    pub(super) fn hex(self) -> String {
        hex::of(self.0)
    }

    /// The reverse of [`hex`](Self::hex); none for a foreign name.
    pub(super) fn parse(text: &str) -> Option<Self> {
        // Another spelling of it would be another file.
        hex::parse(text).map(Self).filter(|key| key.hex() == text)
    }
}

/// The form in which a block lies on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Form {
    /// Checksums, then a range of bytes.
    Range,
    /// All bytes of the object and nothing else, for programs that open the file themselves; the checksums lie beside it.
    Whole,
}

/// A range of bytes of one version of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Block {
    pub(super) object: ObjectKey,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) form: Form,
}

impl Block {
    /// `range` of `object`; none for an empty one.
    pub(super) fn new(object: ObjectKey, range: &Range<u64>) -> Option<Self> {
        (range.start < range.end).then_some(Self { object, start: range.start, end: range.end, form: Form::Range })
    }

    /// All `size` bytes of `object`, as a file.
    pub(super) fn whole(object: ObjectKey, size: u64) -> Self {
        Self { object, start: 0, end: size, form: Form::Whole }
    }

    /// Returns true for the whole object as a file.
    pub(super) fn is_whole(&self) -> bool {
        self.form == Form::Whole
    }

    /// Returns true if there can be such a block: only a whole object may be empty.
    pub(super) fn is_possible(&self) -> bool {
        match self.form {
            Form::Range => self.start < self.end,
            Form::Whole => self.start == 0,
        }
    }

    /// Its bytes.
    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns true if all of `range` is in it.
    pub(super) fn covers(&self, range: &Range<u64>) -> bool {
        self.start <= range.start && range.end <= self.end
    }

    /// The name of its file, and of the directory of that.
    pub(super) fn name(&self) -> (String, String) {
        let hex = self.object.hex();
        let directory = hex.get(..2).unwrap_or_default().to_owned();
        let name = match self.form {
            Form::Range => format!("{hex}-{:x}-{:x}", self.start, self.end),
            Form::Whole => format!("{hex}-{:x}", self.end),
        };
        (directory, name)
    }

    /// The block whose file has this name; `None` for a foreign name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let mut parts = name.split('-');
        let (hex, first, second) = (parts.next()?, parts.next()?, parts.next());
        if parts.next().is_some() {
            return None;
        }
        let object = ObjectKey::parse(hex)?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let block = match second {
            Some(end) => Self { object, start: number(first)?, end: number(end)?, form: Form::Range },
            None => Self::whole(object, number(first)?),
        };
        // Another spelling of it would be another file.
        (block.is_possible() && block.name().1 == name).then_some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(etag: Option<&str>, size: u64, modified: Option<i64>) -> Stamp {
        Stamp { etag: etag.map(str::to_owned), size, modified }
    }

    #[test]
    fn what_tells_versions_apart_is_in_the_name() {
        let key = |origin: &str, address: &str, stamp: &Stamp| ObjectKey::of(origin, address, stamp);
        let first = stamp(Some("\"a\""), 9, Some(1));
        let same = key("s", "x", &first).unwrap();
        assert_eq!(key("s", "x", &stamp(Some("\"a\""), 9, Some(1_000))), Some(same), "a listing gives another time");
        for other in [
            key("t", "x", &first),
            key("s", "y", &first),
            key("s", "x", &stamp(Some("\"b\""), 9, Some(1))),
            key("s", "x", &stamp(Some("\"a\""), 8, Some(1))),
            key("s", "x", &stamp(None, 9, Some(1))),
            key("s", "x", &stamp(Some("W/\"a\""), 9, Some(1))),
        ] {
            assert!(other.is_some() && other != Some(same));
        }
        assert_ne!(key("s", "x", &stamp(None, 9, Some(1))), key("s", "x", &stamp(None, 9, Some(2))));
        assert_eq!(key("s", "x", &stamp(None, 9, None)), None);
        assert_eq!(key("s", "x", &stamp(Some("W/\"a\""), 9, None)), None, "a weak tag alone is no version");
    }

    #[test]
    fn names_are_read_as_they_are_written_and_no_others() {
        let object = ObjectKey::of("s", "x", &stamp(Some("a"), 9, None)).unwrap();
        let block = Block::new(object, &(4..300)).unwrap();
        let (directory, name) = block.name();
        assert_eq!((Block::parse(&name), name.starts_with(&directory)), (Some(block), true));
        for size in [0, 300] {
            let whole = Block::whole(object, size);
            assert_eq!(Block::parse(&whole.name().1), Some(whole));
        }
        for wrong in [
            "",
            "x",
            "LOCK",
            &name.to_uppercase(),
            &format!("{name}-1"),
            &format!("{name}0-"),
            &format!("{}-012c", &name[..32]),
            &format!("{}-04-12c", &name[..32]),
        ] {
            assert_eq!(Block::parse(wrong), None, "{wrong}");
        }
        assert_eq!(Block::new(object, &(5..5)), None);
        assert!(
            block.covers(&(4..300)) && block.covers(&(9..10)) && !block.covers(&(3..10)) && !block.covers(&(9..301))
        );
    }
}
