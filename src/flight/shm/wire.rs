//! The frames on the socket between a listener and a receiver, as bytes. No I/O.
//!
//! ```text
//!   length u32 │ kind u8 │ payload          length counts what follows it; all numbers little-endian
//!   1 Hello      magic u32, version u16, window u16, ticket
//!   2 Batch      number u64, slab u64, slab length u64, offset u64, length u64, flags u8, header length u32, header, extra
//!   3 End
//!   4 Failed     code u32, message (UTF-8)
//!   5 Release    number u64
//!   6 Heartbeat
//!   7 Forget     slab u64
//! ```
//! Flag 1 of a batch: the slab is new, and its descriptor is attached to the frame's first byte. Flag 2: no other receiver gets it. A
//! batch without tensors has slab 0 and neither lengths nor flags. Several batches may be in one slab, but no two unreleased ones share
//! a page.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::Error;

/// First bytes of a conversation.
pub(crate) const MAGIC: u32 = u32::from_le_bytes(*b"BWsm");
/// Version of these frames. Both sides must have the same.
pub const VERSION: u16 = 2;
/// Bytes of a frame's length.
pub(crate) const PREFIX: usize = 4;
/// Longest ticket accepted, in bytes.
pub(crate) const MAX_TICKET: usize = 1 << 20;
/// Longest failure message kept, in bytes.
const MAX_MESSAGE: usize = 64 << 10;

const NEW: u8 = 1;
const EXCLUSIVE: u8 = 2;

/// Location of a batch's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Body {
    /// The slab, never 0.
    pub slab: u64,
    /// Bytes of the whole slab.
    pub slab_len: u64,
    /// First byte within the slab.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// True if the slab's descriptor comes with this frame.
    pub new: bool,
    /// True if no other receiver gets anything in the slab, so that this one may write to it.
    pub exclusive: bool,
}

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The receiver's first frame.
    Hello {
        /// Its version of the frames.
        version: u16,
        /// Most unreleased batches that it wants to hold.
        window: u16,
        /// The request, for the server to check.
        ticket: Bytes,
    },
    /// One batch.
    Batch {
        /// Number of the batch, counting those with a body on this connection from 0; identifies it in its release.
        number: u64,
        /// Its tensors; `None` if it has none.
        body: Option<Body>,
        /// Description of the batch, opaque here.
        header: Bytes,
        /// Values outside of the slab, one piece after another, opaque here.
        extra: Vec<Bytes>,
    },
    /// End of the batches.
    End,
    /// End of the batches because of an error.
    Failed(Refusal),
    /// The receiver has released batch `number`.
    Release(u64),
    /// A heartbeat without content.
    Heartbeat,
    /// The slab is freed, and its number is not reused.
    Forget(u64),
}

/// A server's reason for sending no further batch: a code and a text, defined by the source and the reader.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Code for programs. From an [`Error`]: the exit code of its kind.
    pub code: u32,
    /// Text for people.
    pub message: String,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { code: error.kind().exit_code().into(), message: error.chain() }
    }
}

/// The reason that bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Malformed(pub String);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sent a malformed frame: {}", self.0)
    }
}

impl Frame {
    /// Encodes the frame in pieces: the header and the extra pieces of a batch are shared, not copied. `None` if its length, 4 GiB or
    /// more, cannot be encoded.
    pub fn encode(&self) -> Option<Vec<Bytes>> {
        let mut head = BytesMut::with_capacity(96);
        head.put_u32_le(0);
        let mut pieces = Vec::new();
        match self {
            Self::Hello { version, window, ticket } => {
                head.put_u8(1);
                head.put_u32_le(MAGIC);
                head.put_u16_le(*version);
                head.put_u16_le(*window);
                pieces.push(ticket.clone());
            }
            Self::Batch { number, body, header, extra } => {
                head.put_u8(2);
                head.put_u64_le(*number);
                let (numbers, flags) = match body {
                    None => ([0; 4], 0),
                    Some(body) => {
                        let flags = if body.new { NEW } else { 0 } | if body.exclusive { EXCLUSIVE } else { 0 };
                        ([body.slab, body.slab_len, body.offset, body.len], flags)
                    }
                };
                numbers.into_iter().for_each(|number| head.put_u64_le(number));
                head.put_u8(flags);
                head.put_u32_le(u32::try_from(header.len()).ok()?);
                pieces.push(header.clone());
                pieces.extend(extra.iter().cloned());
            }
            Self::End => head.put_u8(3),
            Self::Failed(Refusal { code, message }) => {
                head.put_u8(4);
                head.put_u32_le(*code);
                head.extend(message.bytes().take(MAX_MESSAGE));
            }
            Self::Release(number) => {
                head.put_u8(5);
                head.put_u64_le(*number);
            }
            Self::Heartbeat => head.put_u8(6),
            Self::Forget(slab) => {
                head.put_u8(7);
                head.put_u64_le(*slab);
            }
        }
        let rest = pieces.iter().try_fold(head.len() - PREFIX, |sum, piece| sum.checked_add(piece.len()))?;
        let length = u32::try_from(rest).ok()?.to_le_bytes();
        head.iter_mut().zip(length).for_each(|(byte, digit)| *byte = digit);
        pieces.retain(|piece| !piece.is_empty());
        pieces.insert(0, head.freeze());
        Some(pieces)
    }

    /// Returns the length of the frame that begins with `prefix`, without the prefix.
    ///
    /// # Errors
    /// `Malformed` if it is 0 or more than `most`.
    pub fn length(prefix: [u8; PREFIX], most: usize) -> Result<usize, Malformed> {
        let length = u32::from_le_bytes(prefix) as usize;
        if length == 0 || length > most {
            return Err(Malformed(format!("it has {length} bytes, and 1 to {most} are accepted")));
        }
        Ok(length)
    }

    /// Decodes the frame in `bytes`, which hold exactly its kind and payload.
    ///
    /// # Errors
    /// `Malformed` for an unknown kind, missing or surplus bytes, or numbers that contradict each other.
    pub fn decode(bytes: Bytes) -> Result<Self, Malformed> {
        let mut rest = Rest(bytes);
        let frame = match rest.u8()? {
            1 => {
                if rest.u32()? != MAGIC {
                    return Err(Malformed("it has not the magic number of bowstring's shared memory".to_owned()));
                }
                let (version, window, ticket) = (rest.u16()?, rest.u16()?, rest.all());
                if ticket.len() > MAX_TICKET {
                    return Err(Malformed(format!("a ticket has {} bytes, the limit is {MAX_TICKET}", ticket.len())));
                }
                Self::Hello { version, window, ticket }
            }
            2 => {
                let number = rest.u64()?;
                let (slab, slab_len, offset, len) = (rest.u64()?, rest.u64()?, rest.u64()?, rest.u64()?);
                let flags = rest.u8()?;
                let body = match slab {
                    0 if slab_len == 0 && offset == 0 && len == 0 && flags == 0 => None,
                    0 => return Err(Malformed("a body without a slab".to_owned())),
                    _ if flags & !(NEW | EXCLUSIVE) != 0 => return Err(Malformed(format!("unknown flags {flags}"))),
                    _ if offset.checked_add(len).is_none_or(|end| end > slab_len) => {
                        return Err(Malformed(format!("{len} bytes at {offset} of a slab of {slab_len}")));
                    }
                    _ => {
                        let (new, exclusive) = (flags & NEW != 0, flags & EXCLUSIVE != 0);
                        Some(Body { slab, slab_len, offset, len, new, exclusive })
                    }
                };
                let header = rest.u32()? as usize;
                let header = rest.take(header)?;
                let extra = rest.all();
                Self::Batch { number, body, header, extra: if extra.is_empty() { Vec::new() } else { vec![extra] } }
            }
            3 => Self::End,
            4 => {
                let code = rest.u32()?;
                let mut text = rest.all();
                text.truncate(MAX_MESSAGE);
                Self::Failed(Refusal { code, message: String::from_utf8_lossy(&text).into_owned() })
            }
            5 => Self::Release(rest.u64()?),
            6 => Self::Heartbeat,
            7 => Self::Forget(rest.u64()?),
            kind => return Err(Malformed(format!("unknown kind {kind}"))),
        };
        if !rest.0.is_empty() {
            return Err(Malformed(format!("{} surplus bytes", rest.0.len())));
        }
        Ok(frame)
    }
}

/// The unread rest of a frame.
struct Rest(Bytes);

impl Rest {
    fn take(&mut self, count: usize) -> Result<Bytes, Malformed> {
        if count > self.0.len() {
            return Err(Malformed(format!("{count} bytes are announced, {} are left", self.0.len())));
        }
        Ok(self.0.split_to(count))
    }

    fn all(&mut self) -> Bytes {
        std::mem::take(&mut self.0)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let bytes = self.take(N)?;
        bytes.as_ref().try_into().map_err(|_| Malformed("it ends early".to_owned()))
    }

    fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<Frame> {
        let body = Body { slab: 7, slab_len: 4096, offset: 64, len: 4032, new: true, exclusive: false };
        let header = Bytes::from_static(b"header");
        vec![
            Frame::Hello { version: VERSION, window: 3, ticket: Bytes::from_static(b"ticket") },
            Frame::Batch { number: 1, body: Some(body), header: header.clone(), extra: vec![Bytes::from_static(b"x")] },
            Frame::Batch { number: 0, body: None, header, extra: Vec::new() },
            Frame::End,
            Frame::Failed(Refusal { code: 5, message: "file a changed".to_owned() }),
            Frame::Release(u64::MAX),
            Frame::Heartbeat,
            Frame::Forget(7),
        ]
    }

    fn bytes(frame: &Frame) -> Vec<u8> {
        frame.encode().unwrap().concat()
    }

    #[test]
    fn frames_come_back() {
        for frame in frames() {
            let bytes = bytes(&frame);
            let (prefix, rest) = bytes.split_first_chunk().unwrap();
            assert_eq!(Frame::length(*prefix, 1 << 20).unwrap(), rest.len());
            assert_eq!(Frame::decode(Bytes::copy_from_slice(rest)).unwrap(), frame);
        }
    }

    #[test]
    fn a_batch_is_these_bytes() {
        let golden = "35000000 02 0100000000000000 0700000000000000 0010000000000000 4000000000000000 c00f000000000000 01 \
                      06000000 686561646572 78";
        assert_eq!(crate::hex::of(bytes(&frames()[1])), golden.replace(' ', ""));
    }

    #[test]
    fn cut_grown_and_flipped_frames_are_refused_or_read_but_never_panic() {
        for frame in frames() {
            let bytes = bytes(&frame)[PREFIX..].to_vec();
            for end in 0..bytes.len() {
                let cut = Frame::decode(Bytes::copy_from_slice(&bytes[..end]));
                // Opaque tails may be shorter.
                assert!(cut.as_ref().is_err() || cut.as_ref() != Ok(&frame), "{frame:?} cut to {end}");
            }
            for bit in 0..bytes.len() * 8 {
                let mut flipped = bytes.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(Frame::decode(flipped.into()), Ok(frame.clone()), "bit {bit}");
            }
        }
        for (hostile, why) in [
            (&b"\x03x"[..], "1 surplus"),
            (&b"\x09"[..], "unknown kind 9"),
            (&b""[..], "1 bytes are announced, 0"),
            (&b"\x01BWsn\x01\0\x01\0"[..], "magic"),
        ] {
            let error = Frame::decode(Bytes::copy_from_slice(hostile)).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        assert!(Frame::length([0; 4], 10).is_err());
        assert!(Frame::length([11, 0, 0, 0], 10).is_err());
        let body = Body { slab: 1, slab_len: 10, offset: u64::MAX, len: 2, new: false, exclusive: false };
        let frame = Frame::Batch { number: 0, body: Some(body), header: Bytes::new(), extra: Vec::new() };
        assert!(Frame::decode(bytes(&frame)[PREFIX..].to_vec().into()).is_err());
    }
}
