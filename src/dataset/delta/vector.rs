//! The deleted rows of a file: a roaring bitmap, in the log itself or in a file that many of them share.
//!
//! ```text
//!   i  z85 of: magic · bitmap
//!   u  z85 of a UUID, behind the name of a directory if there is one ─► deletion_vector_<uuid>.bin
//!   p  the address of such a file, which has at `offset`: length · magic · bitmap · CRC-32 of these two
//! ```

use std::ops::Range;

use roaring::RoaringTreemap;

use super::action::Vector;
use crate::dataset::table::{Broken, bitmap};
use crate::hex;

/// Characters of a UUID in z85.
const UUID: usize = 20;

/// Bytes around a bitmap in a file: its length before it, its checksum after it.
const LENGTH: u64 = 4;
const CHECKSUM: u64 = 4;

/// Location of a bitmap.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Source {
    Inline(Vec<u8>),
    File {
        path: Path,
        /// The bytes of its length, itself and its checksum.
        range: Range<u64>,
    },
}

/// The name of a file of bitmaps.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Path {
    /// Below the table, as it is.
    Below(String),
    /// As a log has it.
    Encoded(String),
}

impl Vector {
    /// Its location.
    pub(super) fn source(&self) -> Result<Source, Broken> {
        let size = u64::try_from(self.size_in_bytes).map_err(|_| "its size is negative")?;
        let text = self.path_or_inline_dv.as_str();
        let path = match self.storage_type.as_str() {
            "i" => {
                let mut bytes = z85(text).ok_or("it is not in z85")?;
                let size = usize::try_from(size).ok().filter(|size| *size <= bytes.len());
                bytes.truncate(size.ok_or("it is shorter than its size")?);
                return Ok(Source::Inline(bytes));
            }
            "u" => {
                let at = text.len().checked_sub(UUID).ok_or("its name is too short")?;
                let (directory, id) = text.split_at_checked(at).ok_or("its name is not in z85")?;
                let id = z85(id).ok_or("its name is not in z85")?;
                let part = |range: Range<usize>| hex::of(id.get(range).unwrap_or_default());
                let id = [part(0..4), part(4..6), part(6..8), part(8..10), part(10..16)].join("-");
                let slash = if directory.is_empty() { "" } else { "/" };
                Path::Below(format!("{directory}{slash}deletion_vector_{id}.bin"))
            }
            "p" => Path::Encoded(text.to_owned()),
            _ => return Err("its kind of storage is unknown"),
        };
        // Old writers have one bitmap in a file, right after the byte that tells its version.
        let start = u64::try_from(self.offset.unwrap_or(1)).map_err(|_| "its offset is negative")?;
        let end = start.checked_add(size).and_then(|end| end.checked_add(LENGTH + CHECKSUM));
        Ok(Source::File { path, range: start..end.ok_or("its range overflows")? })
    }

    /// The rows in `bitmap`, if there are as many as the log says.
    pub(super) fn rows(&self, bitmap: &[u8]) -> Result<RoaringTreemap, Broken> {
        bitmap::rows(bitmap, self.cardinality)
    }
}

/// The bytes of a text in z85, four for five characters.
fn z85(text: &str) -> Option<Vec<u8>> {
    const DIGITS: &[u8; 85] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#";
    let (fives, rest) = text.as_bytes().as_chunks::<5>();
    if !rest.is_empty() {
        return None;
    }
    let mut bytes = Vec::with_capacity(fives.len() * 4);
    for five in fives {
        let mut number = 0_u64;
        for character in five {
            number = number * 85 + DIGITS.iter().position(|digit| digit == character)? as u64;
        }
        bytes.extend_from_slice(&u32::try_from(number).ok()?.to_be_bytes());
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(storage: &str, text: &str, offset: Option<i64>, size: i64, cardinality: i64) -> Vector {
        Vector {
            storage_type: storage.to_owned(),
            path_or_inline_dv: text.to_owned(),
            offset,
            size_in_bytes: size,
            cardinality,
        }
    }

    /// Rows 3, 4, 7, 11, 18 and 29.
    const ROWS: &str = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L";

    #[test]
    fn the_examples_of_the_protocol_are_read() {
        let inline = vector("i", ROWS, None, 44, 6);
        let Source::Inline(bytes) = inline.source().unwrap() else { panic!("not inline") };
        let rows = inline.rows(&bytes).unwrap();
        assert_eq!(rows.iter().collect::<Vec<_>>(), [3, 4, 7, 11, 18, 29]);
        assert!(vector("i", ROWS, None, 44, 5).rows(&bytes).is_err());
        let file = vector("u", "ab^-aqEH.-t@S}K{vb[*k^", Some(4), 40, 6).source().unwrap();
        let name = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin".to_owned();
        assert_eq!(file, Source::File { path: Path::Below(name), range: 4..52 });
    }

    #[test]
    fn what_is_damaged_is_told() {
        for (storage, text, size) in
            [("i", "wi5b", 3), ("i", "wi5b~", 4), ("i", "wi5b=", 5), ("u", "short", 1), ("x", "", 1), ("i", "#####", 4)]
        {
            assert!(vector(storage, text, None, size, 0).source().is_err(), "{storage} {text}");
        }
        assert!(
            vector("p", "x", Some(-1), 1, 0).source().is_err()
                && vector("p", "x", Some(i64::MAX), i64::MAX, 0).source().is_err()
        );
    }
}
