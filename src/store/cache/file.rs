//! A block as a file: its identity, checksums, and its bytes. None of it is trusted before its checksums agree.
//!
//! ```text
//!   magic, version, bytes per checksum, object, start, end, checksum of all this and of the list │ checksums │ bytes
//! ```
//! A file is written once and then never changed. It is not flushed to the disk: checksums detect the damage of a power cut, and the block
//! is only a copy.

use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;

use bytes::Bytes;
use twox_hash::XxHash3_64;

use super::block::Block;

const MAGIC: [u8; 8] = *b"BOWBLOCK";
const VERSION: u32 = 1;

/// Bytes per checksum, which is also the least that is read.
pub(super) const PIECE: u64 = 64 << 10;

/// Bytes that are read, and then checked while they are in the processor's cache: whole pieces.
const STEP: usize = 4 * PIECE as usize;

/// Bytes before the list of checksums.
pub(super) const HEAD: usize = 56;

/// Why a file does not give its bytes.
#[derive(Debug)]
pub(super) enum Bad {
    /// There is none.
    Gone,
    /// It is another block than its name says, or damaged.
    Damaged(&'static str),
    /// The disk fails.
    Failed(io::Error),
}

impl From<io::Error> for Bad {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::NotFound => Self::Gone,
            io::ErrorKind::UnexpectedEof => Self::Damaged("it is cut off"),
            _ => Self::Failed(error),
        }
    }
}

pub(super) fn pieces(length: u64) -> u64 {
    length.div_ceil(PIECE)
}

/// The checksums of `bytes`, piece by piece.
pub(super) fn sums(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(PIECE as usize).flat_map(|piece| XxHash3_64::oneshot(piece).to_le_bytes()).collect()
}

/// The checksums of bytes that come in order.
#[derive(Default)]
pub(super) struct Sums {
    done: Vec<u8>,
    piece: XxHash3_64,
    /// Bytes of the last piece.
    filled: u64,
}

impl std::fmt::Debug for Sums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sums").field("done", &self.done.len()).field("filled", &self.filled).finish_non_exhaustive()
    }
}

impl Sums {
    /// Adds the next bytes.
    pub(super) fn add(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min((PIECE - self.filled) as usize));
            self.piece.write(now);
            self.filled += now.len() as u64;
            if self.filled == PIECE {
                self.done.extend(self.piece.finish().to_le_bytes());
                (self.piece, self.filled) = (XxHash3_64::default(), 0);
            }
            bytes = later;
        }
    }

    /// Those of all that was added.
    pub(super) fn finish(&self) -> Vec<u8> {
        let mut all = self.done.clone();
        if self.filled > 0 {
            all.extend(self.piece.finish().to_le_bytes());
        }
        all
    }
}

/// Bytes of the file of a block of `length` bytes, or of a whole object and its checksums.
pub(super) fn size(length: u64) -> u64 {
    length.saturating_add(HEAD as u64).saturating_add(pieces(length).saturating_mul(8))
}

fn head(block: &Block, sums: &[u8]) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD + sums.len());
    head.extend_from_slice(&MAGIC);
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&(PIECE as u32).to_le_bytes());
    head.extend_from_slice(&block.object.0);
    head.extend_from_slice(&block.start.to_le_bytes());
    head.extend_from_slice(&block.end.to_le_bytes());
    let sum = XxHash3_64::oneshot(&[&head, sums].concat());
    head.extend_from_slice(&sum.to_le_bytes());
    head.extend_from_slice(sums);
    head
}

/// What precedes the bytes of `block`, on a disk and on the way to another host: its identity and the checksums.
#[cfg(feature = "flight")]
pub(super) fn headed(block: &Block, bytes: &[u8]) -> Vec<u8> {
    head(block, &sums(bytes))
}

/// Returns true if `found` is a whole head of `block`.
#[cfg(feature = "flight")]
pub(super) fn is_head(block: &Block, found: &[u8]) -> bool {
    let sums = found.get(HEAD..).unwrap_or_default();
    sums.len() as u64 == 8 * pieces(block.len()) && found == head(block, sums)
}

/// Returns true if `piece` is the piece of this number, by its checksum in `head`.
#[cfg(feature = "flight")]
pub(super) fn is_piece(head: &[u8], number: u64, piece: &[u8]) -> bool {
    let from = usize::try_from(number).ok().and_then(|number| number.checked_mul(8)?.checked_add(HEAD));
    let expected = from.and_then(|from| head.get(from..from.checked_add(8)?));
    expected.is_some_and(|expected| expected == XxHash3_64::oneshot(piece).to_le_bytes())
}

/// Writes `block` of these bytes into a file that is empty.
pub(super) fn write(file: &mut impl Write, block: &Block, bytes: &[u8]) -> io::Result<()> {
    if bytes.len() as u64 != block.len() {
        return Err(io::Error::other("it has another length than its name says"));
    }
    file.write_all(&head(block, &sums(bytes)))?;
    file.write_all(bytes)
}

/// `range` of the object, which `block` covers, from its file.
pub(super) fn read(file: &mut File, block: &Block, range: &Range<u64>) -> Result<Bytes, Bad> {
    if !block.covers(range) || range.start >= range.end {
        return Err(Bad::Damaged("it has other bytes"));
    }
    if file.metadata()?.len() != size(block.len()) {
        return Err(Bad::Damaged("it has another length"));
    }
    let count = usize::try_from(pieces(block.len())).map_err(|_| Bad::Damaged("it is too large"))?;
    let mut start = vec![0; HEAD + 8 * count];
    file.seek(SeekFrom::Start(0))?;
    file.read_exact(&mut start)?;
    let sums = start.get(HEAD..).unwrap_or_default();
    if start.get(..HEAD) != head(block, sums).get(..HEAD) {
        return Err(Bad::Damaged("it is another block, or its head is damaged"));
    }
    // Whole pieces, of which the ends are cut off.
    let (from, to) = (range.start - block.start, range.end - block.start);
    let (first, last) = (from / PIECE, (to - 1) / PIECE);
    let (begin, end) = (first * PIECE, ((last + 1) * PIECE).min(block.len()));
    let length = usize::try_from(end - begin).map_err(|_| Bad::Damaged("it is too large"))?;
    let mut bytes = Vec::with_capacity(length);
    file.seek(SeekFrom::Start(start.len() as u64 + begin))?;
    let mut expected = sums.chunks_exact(8).skip(first as usize);
    while bytes.len() < length {
        let came = bytes.len();
        let step = (length - came).min(STEP);
        Read::by_ref(file).take(step as u64).read_to_end(&mut bytes)?;
        let new = bytes.get(came..).unwrap_or_default();
        if new.len() != step {
            return Err(Bad::Damaged("it is cut off"));
        }
        for piece in new.chunks(PIECE as usize) {
            if expected.next() != Some(&XxHash3_64::oneshot(piece).to_le_bytes()[..]) {
                return Err(Bad::Damaged("a checksum does not agree"));
            }
        }
    }
    let cut = (from - begin) as usize..(to - begin) as usize;
    Ok(Bytes::from(bytes).slice(cut))
}

#[cfg(test)]
mod tests {
    use super::super::super::stamp::Stamp;
    use super::super::block::ObjectKey;
    use super::*;

    fn block(range: Range<u64>) -> Block {
        let stamp = Stamp { etag: Some("a".to_owned()), size: 1 << 40, modified: None };
        Block::new(ObjectKey::of("s", "x", &stamp).unwrap(), &range).unwrap()
    }

    fn bytes(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    fn written(block: &Block, bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        write(&mut file, block, bytes).unwrap();
        assert_eq!(file.metadata().unwrap().len(), size(block.len()));
        file
    }

    #[test]
    fn checksums_do_not_depend_on_how_the_bytes_come() {
        for length in [0, 1, PIECE, PIECE + 1, 3 * PIECE, 5 * PIECE + 17] {
            let all = bytes(length as usize);
            for step in [1000, PIECE as usize, 100_000] {
                let mut added = Sums::default();
                all.chunks(step).for_each(|bytes| added.add(bytes));
                assert_eq!(added.finish(), sums(&all), "{length} bytes by {step}");
            }
        }
    }

    #[test]
    fn any_part_of_a_block_is_read() {
        for length in [1, 100, PIECE, PIECE + 1, 5 * PIECE + 17] {
            let (block, all) = (block(1000..1000 + length), bytes(length as usize));
            let mut file = written(&block, &all);
            for (from, to) in [(0, length), (0, 1), (length - 1, length), (length / 3, length / 3 + length.div_ceil(3))]
            {
                let found = read(&mut file, &block, &(1000 + from..1000 + to)).unwrap();
                assert_eq!(found, all[from as usize..to as usize], "{from}..{to} of {length}");
            }
            assert!(read(&mut file, &block, &(999..1001)).is_err());
        }
    }

    #[test]
    fn damage_anywhere_is_seen_and_so_is_another_block() {
        let (block, all) = (block(0..3 * PIECE), bytes(3 * PIECE as usize));
        let total = size(block.len());
        for at in (0..total).step_by(997).chain([0, 8, 55, 56, 79, 80, total - 1]) {
            let mut file = written(&block, &all);
            let mut byte = [0];
            file.seek(SeekFrom::Start(at)).unwrap();
            file.read_exact(&mut byte).unwrap();
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&[byte[0] ^ 0x10]).unwrap();
            let found = read(&mut file, &block, &(0..block.len()));
            assert!(matches!(found, Err(Bad::Damaged(_))), "byte {at}: {found:?}");
        }
        for length in [0, 10, 60, 100, total - 1] {
            let mut file = written(&block, &all);
            file.set_len(length).unwrap();
            assert!(matches!(read(&mut file, &block, &(0..10)), Err(Bad::Damaged(_))), "{length} bytes");
        }
        let other = Block { start: 1, end: 3 * PIECE + 1, ..block };
        let mut file = written(&block, &all);
        assert!(matches!(read(&mut file, &other, &(1..9)), Err(Bad::Damaged(_))));
    }
}
