//! gRPC messages of Flight without copies: a batch is sent from its slab, and received into its final place.
//!
//! ```text
//!   message  │ 0 │ length, 4 bytes │ FlightData as protobuf │
//!   FlightData   2: header   3: app_metadata   1000: body, to the end
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::{Error, Result};

/// Bytes before each gRPC message.
const PREFIX: usize = 5;
/// Wire type of protobuf's length-delimited fields.
const DELIMITED: u64 = 2;
const DESCRIPTOR: u64 = 1;
const HEADER: u64 = 2;
const METADATA: u64 = 3;
const BODY: u64 = 1000;
/// Most bytes of a protobuf varint.
const MAX_VARINT: usize = 10;

/// Encodes a gRPC message up to its body: the prefix, the header, the metadata, and the body's key and length.
///
/// # Errors
/// [`Error::Limit`] for a message of 4 GiB or more, which gRPC cannot carry.
pub(super) fn head(header: &[u8], metadata: &[u8], body: usize) -> Result<Bytes> {
    let mut fields = BytesMut::with_capacity(header.len() + metadata.len() + 64);
    for (number, bytes) in [(HEADER, header), (METADATA, metadata)] {
        if !bytes.is_empty() {
            varint(&mut fields, number << 3 | DELIMITED);
            varint(&mut fields, bytes.len() as u64);
            fields.extend_from_slice(bytes);
        }
    }
    if body > 0 {
        varint(&mut fields, BODY << 3 | DELIMITED);
        varint(&mut fields, body as u64);
    }
    let length = fields.len() + body;
    let length = u32::try_from(length)
        .map_err(|_| Error::limit("a batch as one message", length as u64, u64::from(u32::MAX), "batch_size"))?;
    let mut message = BytesMut::with_capacity(PREFIX + fields.len());
    message.put_u8(0);
    message.put_u32(length);
    message.extend_from_slice(&fields);
    Ok(message.freeze())
}

fn varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Limits on received messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Bytes of a header, and of metadata.
    pub(super) header: usize,
    /// Bytes of a body.
    pub(super) body: usize,
}

/// The part of a message before its body.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) header: Vec<u8>,
    pub(super) metadata: Vec<u8>,
    /// Descriptor of a stream that is put, in its first message.
    pub(super) descriptor: Vec<u8>,
    /// Bytes of the body.
    pub(super) body: usize,
}

/// Reads messages from pieces of any size. Bodies are not kept here: the caller decides where they go.
#[derive(Debug)]
pub(super) struct Reader {
    limits: Limits,
    state: State,
    /// Unread bytes of the current message.
    left: usize,
    head: Head,
    /// Bytes of a prefix, key or length that came in two pieces.
    partial: Vec<u8>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Prefix,
    Key,
    Length(u64),
    Field(u64, usize),
    Body(usize),
}

/// Result of [`Reader::read`].
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Everything before the body; the body follows as [`Event::Body`], unless it is empty.
    Head(Head),
    /// Number of next bytes that belong to the body: the caller takes them from the piece.
    Body(usize),
    /// The message is complete.
    End,
    /// The piece is used up.
    More,
}

impl Reader {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, state: State::Prefix, left: 0, head: Head::default(), partial: Vec::new() }
    }

    /// Returns true between two messages.
    pub(super) fn is_idle(&self) -> bool {
        self.state == State::Prefix && self.partial.is_empty()
    }

    /// Returns the next event in `piece`, consuming its bytes, except those of bodies.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for data that are not a message; [`Error::Limit`] for a message that is too long.
    pub(super) fn read(&mut self, piece: &mut Bytes) -> Result<Event> {
        loop {
            match self.state {
                State::Prefix => {
                    if !self.fill(piece, PREFIX) {
                        return Ok(Event::More);
                    }
                    let length = match *self.partial.as_slice() {
                        [0, a, b, c, d] => u32::from_be_bytes([a, b, c, d]) as usize,
                        _ => return Err(malformed("a compressed message")),
                    };
                    self.partial.clear();
                    let limit = self.limits.body.saturating_add(2 * self.limits.header);
                    if length > limit {
                        return Err(too_long("a message", length, limit));
                    }
                    (self.left, self.head) = (length, Head::default());
                    self.state = State::Key;
                }
                State::Key if self.left == 0 => {
                    // A message without a body.
                    self.state = State::Body(0);
                    return Ok(Event::Head(std::mem::take(&mut self.head)));
                }
                State::Key => match self.varint(piece)? {
                    None => return Ok(Event::More),
                    Some(key) if key & 7 == DELIMITED => self.state = State::Length(key >> 3),
                    Some(_) => return Err(malformed("an unknown kind of field")),
                },
                State::Length(number) => {
                    let Some(length) = self.varint(piece)? else { return Ok(Event::More) };
                    let length = usize::try_from(length).ok().filter(|length| *length <= self.left);
                    let length = length.ok_or_else(|| malformed("a field longer than its message"))?;
                    if number == BODY {
                        if length != self.left {
                            return Err(malformed("fields after the body"));
                        }
                        if length > self.limits.body {
                            return Err(too_long("a batch", length, self.limits.body));
                        }
                        self.head.body = length;
                        self.state = State::Body(length);
                        return Ok(Event::Head(std::mem::take(&mut self.head)));
                    }
                    if length > self.limits.header {
                        return Err(too_long("a header", length, self.limits.header));
                    }
                    self.state = State::Field(number, length);
                }
                State::Field(number, length) => {
                    if !self.fill(piece, length) {
                        return Ok(Event::More);
                    }
                    self.left -= length;
                    let bytes = std::mem::take(&mut self.partial);
                    match number {
                        HEADER => self.head.header = bytes,
                        METADATA => self.head.metadata = bytes,
                        DESCRIPTOR => self.head.descriptor = bytes,
                        // Ignored: a later version may send more.
                        _ => {}
                    }
                    self.state = State::Key;
                }
                State::Body(0) => {
                    self.state = State::Prefix;
                    return Ok(Event::End);
                }
                State::Body(left) => {
                    let some = left.min(piece.len());
                    if some == 0 {
                        return Ok(Event::More);
                    }
                    self.state = State::Body(left - some);
                    return Ok(Event::Body(some));
                }
            }
        }
    }

    /// Collects bytes until there are `wanted`.
    fn fill(&mut self, piece: &mut Bytes, wanted: usize) -> bool {
        let some = (wanted - self.partial.len()).min(piece.len());
        self.partial.extend_from_slice(&piece[..some]);
        piece.advance(some);
        self.partial.len() == wanted
    }

    fn varint(&mut self, piece: &mut Bytes) -> Result<Option<u64>> {
        while let Some(byte) = piece.first().copied() {
            piece.advance(1);
            self.left = self.left.checked_sub(1).ok_or_else(|| malformed("a message that ends within a field"))?;
            self.partial.push(byte);
            if byte < 0x80 {
                let value =
                    self.partial.iter().rev().try_fold(0_u64, |value, byte| {
                        value.checked_mul(128).map(|value| value | u64::from(byte & 0x7f))
                    });
                self.partial.clear();
                return value.map(Some).ok_or_else(|| malformed("a number beyond 64 bits"));
            }
            if self.partial.len() >= MAX_VARINT {
                return Err(malformed("an endless number"));
            }
        }
        Ok(None)
    }
}

fn malformed(found: &str) -> Error {
    Error::Mismatch {
        what: "a message of a stream".to_owned(),
        expected: "FlightData".to_owned(),
        found: found.to_owned(),
        hint: "the peer does not speak Arrow Flight".to_owned(),
    }
}

fn too_long(what: &str, asked: usize, limit: usize) -> Error {
    Error::limit(format!("{what} that is received"), asked as u64, limit as u64, "memory_budget")
}

#[cfg(test)]
mod tests {
    use arrow_flight::FlightData;
    use prost::Message;

    use super::*;

    const LIMITS: Limits = Limits { header: 100, body: 1000 };

    /// Header, metadata, body.
    type Whole = (Vec<u8>, Vec<u8>, Vec<u8>);

    /// Returns headers, metadata and bodies of all messages in `bytes`, read in pieces of `size`.
    fn read(bytes: &[u8], size: usize) -> Result<Vec<Whole>> {
        let mut reader = Reader::new(LIMITS);
        let mut found = Vec::new();
        for piece in bytes.chunks(size) {
            let mut piece = Bytes::copy_from_slice(piece);
            loop {
                match reader.read(&mut piece)? {
                    Event::Head(head) => found.push((head.header, head.metadata, Vec::new())),
                    Event::Body(some) => found.last_mut().unwrap().2.extend_from_slice(&piece.split_to(some)),
                    Event::End => {}
                    Event::More => break,
                }
            }
        }
        assert!(reader.is_idle());
        Ok(found)
    }

    fn message(header: &[u8], metadata: &[u8], body: &[u8]) -> Vec<u8> {
        [&head(header, metadata, body.len()).unwrap()[..], body].concat()
    }

    #[test]
    fn what_is_written_is_read_in_pieces_of_any_size() {
        let parts: [(&[u8], &[u8], &[u8]); 3] = [(b"schema", b"", b""), (b"h", b"{}", &[7; 500]), (b"", b"x", b"y")];
        let stream: Vec<u8> = parts.iter().flat_map(|(a, b, c)| message(a, b, c)).collect();
        for size in 1..stream.len() {
            let found = read(&stream, size).unwrap();
            assert!(found.iter().zip(parts).all(|(f, p)| (&f.0[..], &f.1[..], &f.2[..]) == p), "pieces of {size}");
            assert_eq!(found.len(), 3);
        }
    }

    #[test]
    fn protobuf_agrees() {
        let bytes = message(b"head", b"meta", &[1; 300]);
        let data = FlightData::decode(&bytes[PREFIX..]).unwrap();
        assert_eq!(
            (&data.data_header[..], &data.app_metadata[..], data.data_body.len()),
            (&b"head"[..], &b"meta"[..], 300)
        );
        let again = data.encode_to_vec();
        let framed = [&[0][..], &(again.len() as u32).to_be_bytes(), &again].concat();
        assert_eq!(read(&framed, 7).unwrap(), [(b"head".to_vec(), b"meta".to_vec(), vec![1; 300])]);
    }

    #[test]
    fn hostile_messages_are_refused() {
        for bytes in [
            [&[1, 0, 0, 0, 0][..]].concat(),
            [&[0, 255, 255, 255, 255][..]].concat(),
            [&[0, 0, 0, 0, 12][..], &[0xff; 12]].concat(),
            [&[0, 0, 0, 0, 3][..], &[0x12, 0x7f, 0]].concat(),
            [&[0, 0, 0, 0, 2][..], &[0x08, 1]].concat(),
            message(&[0; 101], b"", b""),
            message(b"", b"", &[0; 1001]),
        ] {
            assert!(read(&bytes, 3).is_err(), "{bytes:?}");
        }
    }
}
