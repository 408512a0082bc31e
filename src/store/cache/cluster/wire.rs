//! What hosts say to each other about blocks, over Arrow Flight.
//!
//! ```text
//!   DoGet, ticket Ask       ─►  Waiting.. ─► Block with its head, then its bytes            it is here
//!                           └►  Waiting.. ─► Lease, and nothing while the asker fetches     it is not: whoever is asked first fetches it
//!   DoPut, Given and bytes  ─►  Kept                                                        the asker gives it to its home
//! ```
//! A block travels as it lies on a disk: its head, which names it and has the checksums, and its bytes. The receiver checks all of it. A
//! lease ends with the stream that gave it, so a reader that dies gives it back.

use bytes::Bytes;
use prost::Message;

use super::super::block::Block;
use super::super::file::{self, PIECE};

/// Version of these messages; other versions are refused.
pub(crate) const VERSION: u32 = 1;
/// Bytes of a block in one message; whole pieces.
pub(crate) const CHUNK: usize = 256 << 10;
/// Largest block that is asked for or given: larger ones are for their reader alone.
pub(crate) const LARGEST: u64 = 256 << 20;
/// Least bytes per second of a block on its way, beside the longest silence.
pub(crate) const PACE: u64 = 4 << 20;
/// The action that asks for the bytes that a home may take: [`Room`].
pub(crate) const ROOM: &str = "room";
/// Most bytes of a message either way.
pub(crate) const MESSAGE: usize = 4 << 20;

/// A reader asks for a block.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Ask {
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    /// As [`Block::name`] has it.
    #[prost(string, tag = "2")]
    pub(crate) block: String,
    /// Milliseconds until the plan of whoever asks needs it again; 0 if that is not known, as by readers of former versions.
    #[prost(uint64, tag = "3")]
    pub(crate) again: u64,
    /// The same for all that follow this plan.
    #[prost(fixed64, tag = "4")]
    pub(crate) job: u64,
}

/// The kind of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum Kind {
    /// Somebody fetches it; a word now and then tells that the home is alive.
    Waiting = 0,
    /// The bytes follow.
    Block = 1,
    /// It is not here: fetch it, and give it.
    Lease = 2,
    /// It is not here and will not be kept.
    Declined = 3,
}

/// The metadata of the first messages of an answer.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Answer {
    #[prost(enumeration = "Kind", tag = "1")]
    pub(crate) kind: i32,
    /// Number of the lease.
    #[prost(uint64, tag = "2")]
    pub(crate) lease: u64,
    /// The head of the block.
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) head: Bytes,
}

/// The metadata of the first message of a given block.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Given {
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    #[prost(string, tag = "2")]
    pub(crate) block: String,
    #[prost(uint64, tag = "3")]
    pub(crate) lease: u64,
    #[prost(bytes = "bytes", tag = "4")]
    pub(crate) head: Bytes,
    /// As in [`Ask`].
    #[prost(uint64, tag = "5")]
    pub(crate) again: u64,
    #[prost(fixed64, tag = "6")]
    pub(crate) job: u64,
}

/// Bytes that a home may take.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Room {
    #[prost(uint64, tag = "1")]
    pub(crate) bytes: u64,
}

/// The answer to a given block.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Kept {
    #[prost(bool, tag = "1")]
    pub(crate) kept: bool,
}

/// The block of this name, if it may travel.
pub(crate) fn travelling(name: &str) -> Option<Block> {
    Block::parse(name).filter(may_travel)
}

/// Returns true for blocks that may be asked for and given.
pub(crate) fn may_travel(block: &Block) -> bool {
    !block.is_whole() && block.len() <= LARGEST
}

/// The head of `block` of these bytes. It takes a moment for large ones.
pub(crate) fn head(block: &Block, bytes: &[u8]) -> Bytes {
    file::headed(block, bytes).into()
}

/// The parts of a block, one for each message.
pub(crate) fn parts(bytes: Bytes) -> impl Iterator<Item = Bytes> {
    (0..bytes.len()).step_by(CHUNK).map(move |from| bytes.slice(from..(from + CHUNK).min(bytes.len())))
}

/// A block on its way in: each part is checked when it comes.
#[derive(Debug)]
pub(crate) struct Arriving {
    block: Block,
    head: Bytes,
    bytes: Vec<u8>,
    /// Bytes whose checksums agree.
    checked: usize,
}

impl Arriving {
    /// The block that was asked for, which may travel, with the head that came.
    ///
    /// # Errors
    /// The fault of the head.
    pub(crate) fn new(block: Block, head: Bytes) -> Result<Self, &'static str> {
        if !file::is_head(&block, &head) {
            return Err("it is another block, or its head is damaged");
        }
        let length = usize::try_from(block.len()).map_err(|_| "it is too large")?;
        Ok(Self { block, head, bytes: Vec::with_capacity(length), checked: 0 })
    }

    /// Adds the next part.
    ///
    /// # Errors
    /// Its fault.
    pub(crate) fn add(&mut self, part: &[u8]) -> Result<(), &'static str> {
        if (self.bytes.len() + part.len()) as u64 > self.block.len() {
            return Err("it has more bytes than its name says");
        }
        self.bytes.extend_from_slice(part);
        let is_all = self.is_all();
        while self.checked < self.bytes.len() {
            let rest = self.bytes.get(self.checked..).unwrap_or_default();
            let piece = rest.get(..(PIECE as usize).min(rest.len())).unwrap_or_default();
            if (piece.len() as u64) < PIECE && !is_all {
                break;
            }
            if !file::is_piece(&self.head, self.checked as u64 / PIECE, piece) {
                return Err("a checksum does not agree");
            }
            self.checked += piece.len();
        }
        Ok(())
    }

    /// Returns true once all bytes are there and checked.
    pub(crate) fn is_all(&self) -> bool {
        self.bytes.len() as u64 == self.block.len()
    }

    /// The bytes.
    ///
    /// # Errors
    /// Some are missing.
    pub(crate) fn done(self) -> Result<Bytes, &'static str> {
        if self.is_all() { Ok(self.bytes.into()) } else { Err("it is cut off") }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::block::ObjectKey;
    use super::*;

    fn sent(length: u64) -> (Block, Vec<u8>) {
        let block = Block::new(ObjectKey([7; 16]), &(5..5 + length)).unwrap();
        (block, (0..length).map(|at| (at * 7 + at / 251) as u8).collect())
    }

    fn receive(block: Block, head: Bytes, parts: impl Iterator<Item = Bytes>) -> Result<Bytes, &'static str> {
        let mut arriving = Arriving::new(block, head)?;
        for part in parts {
            arriving.add(&part)?;
        }
        arriving.done()
    }

    #[test]
    fn a_block_arrives_whole_or_not_at_all() {
        for length in [1, PIECE - 1, PIECE, PIECE + 1, CHUNK as u64 * 2 + 77] {
            let (block, bytes) = sent(length);
            let head = head(&block, &bytes);
            let all = || parts(Bytes::from(bytes.clone()));
            assert_eq!(receive(block, head.clone(), all()).unwrap(), bytes);
            // Parts of any size.
            let small = bytes.chunks(50_001).map(Bytes::copy_from_slice);
            assert_eq!(receive(block, head.clone(), small).unwrap(), bytes);
            for at in [0, bytes.len() / 2, bytes.len() - 1] {
                let mut bad = bytes.clone();
                bad[at] ^= 1;
                assert!(receive(block, head.clone(), parts(bad.into())).is_err(), "byte {at} of {length}");
            }
            for at in 0..head.len() {
                let mut bad = head.to_vec();
                bad[at] ^= 0x20;
                assert!(receive(block, bad.into(), all()).is_err(), "byte {at} of the head of {length}");
            }
            assert!(receive(block, head.slice(1..), all()).is_err());
            assert!(receive(block, head.clone(), all().chain([Bytes::from_static(b"x")])).is_err());
            let cut = Bytes::from(bytes.clone()).slice(..bytes.len() - 1);
            assert!(receive(block, head.clone(), parts(cut)).is_err());
            let other = Block::new(ObjectKey([8; 16]), &(5..5 + length)).unwrap();
            assert!(receive(other, head, all()).is_err(), "another block");
        }
    }

    /// Nodes of both versions are one cluster: a message may get fields, and none may change or go without a new version.
    #[test]
    fn messages_of_version_1_are_these_bytes() {
        let (block, _) = sent(7);
        let name = block.name().1;
        let text = crate::hex::of(&name);
        let head = Bytes::from_static(b"head");
        let ask = Ask { version: VERSION, block: name.clone(), again: 7, job: 1 };
        let given = Given { version: VERSION, block: name, lease: 9, head: head.clone(), again: 8, job: 1 };
        let answer = |kind: Kind, lease, head| Answer { kind: kind.into(), lease, head };
        let bytes = |message: Vec<u8>| crate::hex::of(message);
        assert_eq!(bytes(ask.encode_to_vec()), format!("08011224{text}1807210100000000000000"));
        let without = Ask { again: 0, job: 0, ..ask };
        assert_eq!(bytes(without.encode_to_vec()), format!("08011224{text}"), "as of former versions");
        assert_eq!(bytes(answer(Kind::Waiting, 0, Bytes::new()).encode_to_vec()), "");
        assert_eq!(bytes(answer(Kind::Block, 0, head).encode_to_vec()), "08011a0468656164");
        assert_eq!(bytes(answer(Kind::Lease, 9, Bytes::new()).encode_to_vec()), "08021009");
        assert_eq!(bytes(answer(Kind::Declined, 0, Bytes::new()).encode_to_vec()), "0803");
        assert_eq!(bytes(given.encode_to_vec()), format!("08011224{text}18092204686561642808310100000000000000"));
        assert_eq!(bytes(Kept { kept: true }.encode_to_vec()), "0801");
        assert_eq!(bytes(Room { bytes: 1 << 40 }.encode_to_vec()), "08808080808020");
    }

    #[test]
    fn only_names_of_ranges_that_are_not_too_large_may_travel() {
        let (block, _) = sent(LARGEST);
        assert_eq!(travelling(&block.name().1), Some(block));
        assert_eq!(travelling(&sent(LARGEST + 1).0.name().1), None);
        assert_eq!(travelling(&Block::whole(ObjectKey([7; 16]), 9).name().1), None);
        assert_eq!(travelling("../../etc/passwd"), None);
    }
}
