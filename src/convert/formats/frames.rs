//! Framing of Arrow IPC messages, read sequentially: their positions, the sizes they declare, and the end of a file.
//!
//! A file is a stream between two magics, with a footer that lists its batches. Each message is framed and checked here, its declared
//! decompressed size is counted, and only then is it passed to Arrow, which checks the buffers. A file without its end mark, its
//! footer, or batches that the footer lists, was truncated. A stream may end with a mark or, as the format permits, after any message.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::reader::StreamDecoder;
use arrow::ipc::{MessageHeader, root_as_footer, root_as_message};

use crate::convert::budget::Progress;
use crate::convert::read::files::Found;
use crate::convert::read::input::{Input, Packed};
use crate::error::{Error, Place, Result};

/// Bytes of the metadata of one message: columns and buffers, no values.
const MAX_METADATA: usize = 64 << 20;

/// First and last bytes of a file.
const MAGIC: &[u8; 6] = b"ARROW1";

/// A stream of messages.
pub(crate) struct Frames {
    pub(crate) input: Input,
    decoder: StreamDecoder,
    size: u64,
    packed: bool,
    /// The header read ahead for the schema: Arrow completes a message without a body only when the next one begins.
    next: Option<(Header, u64)>,
    /// Decoded batches not taken yet. For the same reason one message may yield two batches, one of them empty.
    pub(crate) came: VecDeque<RecordBatch>,
    pub(crate) ended: bool,
    /// True for a file, false for a stream.
    file: bool,
    /// Messages of batches begun so far.
    batches: u64,
}

/// Error text for a truncated file.
const CUT: &str =
    "it begins as an Arrow file, but its end is missing (the mark, the footer and the magic); it was cut short";

/// Counts the rows of a file from the headers of its batches, without decoding columns.
pub(crate) fn count(found: &Found, progress: &Progress) -> Result<u64> {
    let mut frames = Frames::open(found)?;
    let mut rows = 0_u64;
    while let Some((header, body)) = frames.header()? {
        progress.go_on()?;
        let start = if header.bytes.starts_with(&[0xff; 4]) { 8 } else { 4 };
        let message = header.bytes.get(start..).and_then(|bytes| root_as_message(bytes).ok());
        let batch = message.as_ref().and_then(|message| message.header_as_record_batch());
        rows += batch.and_then(|batch| u64::try_from(batch.length()).ok()).unwrap_or(0);
        if frames.input.skip(body)? < body {
            return Err(frames.input.corrupt(header.at, "it ends within a message"));
        }
    }
    Ok(rows)
}

/// Length of the first bytes of any message.
const MARK: usize = 4;

/// The start of a message: prefix and metadata, and the length of the rest.
pub(crate) struct Header {
    bytes: Vec<u8>,
    /// Number of them already passed to the decoder.
    given: usize,
    body: usize,
    at: u64,
}

impl Frames {
    pub(crate) fn open(found: &Found) -> Result<Self> {
        let mut input = Input::open(found, false)?;
        let mut file = false;
        // Declared sizes cannot be compared with the size of a compressed file.
        let packed = !matches!(files_packed(found), Packed::Plain);
        match input.peek()? {
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => {
                file = true;
                if !packed {
                    // Cheapest check first: a truncated file is reported before any work.
                    let mut end = [0; MAGIC.len()];
                    Input::range(found, found.bytes.saturating_sub(end.len() as u64))?.fill(&mut end)?;
                    if found.bytes < 2 * end.len() as u64 || end != *MAGIC {
                        return Err(input.corrupt(found.bytes, CUT));
                    }
                }
                input.skip(8)?;
                // Writers pad up to their alignment, at most 64 bytes.
                for _ in 0..14 {
                    if !input.peek()?.starts_with(&[0; 4]) {
                        break;
                    }
                    input.skip(4)?;
                }
            }
            [b'F', b'E', b'A', b'1', ..] => {
                return Err(Error::unsupported(
                    "Feather version 1",
                    "write it again with pyarrow.feather.write_feather, which writes version 2",
                )
                .at(Place::file(Arc::clone(&found.name))));
            }
            _ => {}
        }
        let (decoder, size) = (StreamDecoder::new(), found.bytes);
        Ok(Self { input, decoder, size, packed, next: None, came: VecDeque::new(), ended: false, file, batches: 0 })
    }

    /// Returns the schema, which is the first message.
    pub(crate) fn schema(&mut self) -> Result<SchemaRef> {
        if let Some((header, _)) = self.header()? {
            self.message(header, |_| Ok(()))?;
            if self.decoder.schema().is_none() {
                // The decoder completes a message without a body on seeing the next one, whose first bytes suffice: the rest
                // waits for a caller with memory for it.
                match self.header()? {
                    Some((header, body)) => {
                        let mark: Vec<u8> = header.bytes.iter().take(MARK).copied().collect();
                        let (given, at) = (mark.len(), header.at);
                        self.decode(Buffer::from_vec(mark), at)?;
                        self.next = Some((Header { given, ..header }, body));
                    }
                    None => self.end()?,
                }
            }
        }
        self.decoder.schema().ok_or_else(|| self.input.corrupt(0, "it has no schema"))
    }

    /// Signals the end to the decoder, which completes a message without a body.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.ended = true;
        let at = self.input.offset();
        self.decode(Buffer::from_vec(vec![0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0]), at)
    }

    /// Returns the next message's start, and the memory that the message will take.
    pub(crate) fn header(&mut self) -> Result<Option<(Header, u64)>> {
        if let Some(next) = self.next.take() {
            return Ok(Some(next));
        }
        let at = self.input.offset();
        let mut prefix = [0; 4];
        let read = self.input.fill(&mut prefix)?;
        if read == 0 && !self.file {
            // A stream ends with a mark, or by being closed after a message: the format permits both.
            return Ok(None);
        }
        if read == 0 {
            return Err(self.input.corrupt(at, CUT));
        }
        if read < 4 {
            return Err(self.input.corrupt(at, "it ends within a message"));
        }
        let mut bytes = prefix.to_vec();
        let mut len = u32::from_le_bytes(prefix);
        if len == u32::MAX {
            if self.input.fill(&mut prefix)? < 4 {
                return Err(self.input.corrupt(at, "it ends within a message"));
            }
            bytes.extend_from_slice(&prefix);
            len = u32::from_le_bytes(prefix);
        }
        if len == 0 {
            self.tail()?;
            return Ok(None);
        }
        let len = len as usize;
        if len > MAX_METADATA {
            return Err(self.input.corrupt(at, format!("a message claims {len} bytes of metadata")));
        }
        let start = bytes.len();
        if self.input.append(len as u64, &mut bytes)? < len as u64 {
            return Err(self.input.corrupt(at, "it ends within a message"));
        }
        let message = root_as_message(bytes.get(start..).unwrap_or_default());
        let message = message
            .map_err(|error| self.input.corrupt(at, format!("the metadata of a message is damaged ({error})")))?;
        self.batches += u64::from(message.header_type() == MessageHeader::RecordBatch);
        let left = self.size.saturating_sub(self.input.offset());
        let claimed = message.bodyLength();
        let body = usize::try_from(claimed).ok().filter(|body| self.packed || *body as u64 <= left);
        let Some(body) = body else {
            return Err(self.input.corrupt(at, format!("a message claims {claimed} bytes, {left} are left")));
        };
        Ok(Some((Header { bytes, given: 0, body, at }, body as u64)))
    }

    /// Checks what follows the end mark: nothing in a stream; in a file a footer that lists as many batches as there were.
    fn tail(&mut self) -> Result<()> {
        let at = self.input.offset();
        if !self.file {
            return match self.input.peek()?.is_empty() {
                true => Ok(()),
                false => Err(self
                    .input
                    .corrupt(at, "bytes follow the end mark of a stream; write streams to files of their own")),
            };
        }
        let mut rest = Vec::new();
        self.input.append(MAX_METADATA as u64 + 1, &mut rest)?;
        let wrong = |what: &str| Err(self.input.corrupt(at, what));
        if rest.len() > MAX_METADATA {
            return wrong("its footer is longer than any can be");
        }
        let Some((rest, len)) = rest.strip_suffix(MAGIC).and_then(<[u8]>::split_last_chunk::<4>) else {
            return wrong(CUT);
        };
        let start = usize::try_from(i32::from_le_bytes(*len)).ok().and_then(|len| rest.len().checked_sub(len));
        let Some(footer) = start.and_then(|start| rest.get(start..)).and_then(|footer| root_as_footer(footer).ok())
        else {
            return wrong("its footer is damaged");
        };
        let listed = footer.recordBatches().map_or(0, |blocks| blocks.len() as u64);
        match listed == self.batches {
            true => Ok(()),
            false => wrong(&format!("its footer lists {listed} batches, {} are there", self.batches)),
        }
    }

    /// Reads the rest of a message and decodes it. `reserve` is called with the bytes that it will decompress to, in addition to its
    /// own.
    pub(crate) fn message(&mut self, header: Header, reserve: impl FnOnce(u64) -> Result<()>) -> Result<()> {
        let Header { mut bytes, given, body, at } = header;
        let metadata = bytes.len();
        if self.input.append(body as u64, &mut bytes)? < body as u64 {
            return Err(self.input.corrupt(at, "it ends within a message"));
        }
        let start = if bytes.starts_with(&[0xff; 4]) { 8 } else { 4 };
        let unpacked = unpacked(&bytes, start, metadata)
            .ok_or_else(|| self.input.corrupt(at, "the buffers of a message lie outside of it"))?;
        let most = (body as u64).saturating_mul(1000).max(64 << 20);
        if unpacked > most.min(8 << 30) {
            let what = format!("byte {at}: unpacking a batch of {body} bytes");
            return Err(Error::limit(what, unpacked, most.min(8 << 30), "limits.max_record_bytes")
                .at(Place::file(Arc::clone(self.input.name()))));
        }
        if unpacked > 0 {
            reserve(unpacked)?;
        }
        self.decode(Buffer::from_vec(bytes).slice(given), at)
    }

    fn decode(&mut self, mut buffer: Buffer, at: u64) -> Result<()> {
        let (decoder, came) = (&mut self.decoder, &mut self.came);
        // Arrow checks its input, but has panicked on damaged files before.
        let decoded = crate::page::quiet(|| {
            while !buffer.is_empty() {
                came.extend(decoder.decode(&mut buffer)?);
            }
            Ok::<_, ArrowError>(())
        });
        let place = Place::file(Arc::clone(self.input.name()));
        match decoded {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Error::corrupt_by(place, format!("byte {at}: a message is damaged"), error)),
            Err(_) => Err(Error::corrupt(place, format!("byte {at}: a message is damaged so that Arrow gives up"))),
        }
    }
}

fn files_packed(found: &Found) -> Packed {
    let lower = found.name.to_ascii_lowercase();
    if lower.ends_with(".gz") {
        Packed::Gzip
    } else if lower.ends_with(".zst") || lower.ends_with(".zstd") {
        Packed::Zstd
    } else {
        Packed::Plain
    }
}

/// Returns the bytes that a message's compressed buffers declare to decompress to; 0 if none are compressed. `None` if a buffer is out
/// of bounds.
fn unpacked(bytes: &[u8], start: usize, metadata: usize) -> Option<u64> {
    let message = root_as_message(bytes.get(start..metadata)?).ok()?;
    let batch = match message.header_type() {
        MessageHeader::RecordBatch => message.header_as_record_batch()?,
        MessageHeader::DictionaryBatch => message.header_as_dictionary_batch()?.data()?,
        _ => return Some(0),
    };
    let body = bytes.get(metadata..)?;
    let mut total = 0_u64;
    for buffer in batch.buffers().iter().flatten() {
        let (offset, length) = (usize::try_from(buffer.offset()).ok()?, usize::try_from(buffer.length()).ok()?);
        let buffer = body.get(offset..offset.checked_add(length)?)?;
        if batch.compression().is_some() && !buffer.is_empty() {
            let claimed = i64::from_le_bytes(*buffer.first_chunk::<8>()?);
            // -1 marks a buffer stored uncompressed.
            total = total.saturating_add(if claimed < 0 { length as u64 } else { claimed as u64 });
        }
    }
    Some(total)
}
