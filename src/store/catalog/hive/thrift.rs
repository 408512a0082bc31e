//! Just enough of Thrift's binary protocol: strings out, structs in. It reads forward, within a budget of bytes, and keeps nothing.

use std::io::{self, Read};

/// Type numbers of the binary protocol.
pub(super) mod kind {
    pub(crate) const STOP: u8 = 0;
    pub(crate) const BOOL: u8 = 2;
    pub(crate) const BYTE: u8 = 3;
    pub(crate) const DOUBLE: u8 = 4;
    pub(crate) const I16: u8 = 6;
    pub(crate) const I32: u8 = 8;
    pub(crate) const I64: u8 = 10;
    pub(crate) const STRING: u8 = 11;
    pub(crate) const STRUCT: u8 = 12;
    pub(crate) const MAP: u8 = 13;
    pub(crate) const SET: u8 = 14;
    pub(crate) const LIST: u8 = 15;
}

/// Version and type of a message, in one number.
const VERSION: u32 = 0x8001_0000;
const CALL: u32 = 1;

/// Nesting of values that are skipped. A metastore's structures nest 8 deep.
const MAX_DEPTH: usize = 32;

/// Bytes that are read of a string at once, so that its length alone takes no memory.
const CHUNK: usize = 64 << 10;

/// Why nothing was read.
#[derive(Debug)]
pub(super) enum Fault {
    Io(io::Error),
    /// What is wrong with the bytes.
    Odd(&'static str),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// A message that calls a method.
#[derive(Debug)]
pub(super) struct Writer(Vec<u8>);

impl Writer {
    /// Begins the call of `method`; its arguments follow, as fields of a struct.
    pub(super) fn call(method: &str) -> Self {
        let mut writer = Self((VERSION | CALL).to_be_bytes().to_vec());
        writer.text(method);
        writer.0.extend(1_i32.to_be_bytes());
        writer
    }

    fn text(&mut self, text: &str) {
        // Names in an address are short, and those of partitions came in as few bytes.
        self.0.extend((text.len() as u32).to_be_bytes());
        self.0.extend(text.as_bytes());
    }

    fn field(&mut self, kind: u8, id: i16) {
        self.0.push(kind);
        self.0.extend(id.to_be_bytes());
    }

    /// Writes field `id`, a string.
    pub(super) fn string(&mut self, id: i16, text: &str) {
        self.field(kind::STRING, id);
        self.text(text);
    }

    /// Writes field `id`, a number.
    pub(super) fn i16(&mut self, id: i16, number: i16) {
        self.field(kind::I16, id);
        self.0.extend(number.to_be_bytes());
    }

    /// Writes field `id`, a list of strings.
    pub(super) fn strings(&mut self, id: i16, texts: &[String]) {
        self.field(kind::LIST, id);
        self.0.push(kind::STRING);
        self.0.extend((texts.len() as u32).to_be_bytes());
        texts.iter().for_each(|text| self.text(text));
    }

    /// Begins field `id`, a struct.
    pub(super) fn begin(&mut self, id: i16) {
        self.field(kind::STRUCT, id);
    }

    /// Ends a struct.
    pub(super) fn end(&mut self) {
        self.0.push(kind::STOP);
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.0
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Reader<R> {
    input: R,
    /// Bytes that may still be read.
    left: usize,
}

impl<R: Read> Reader<R> {
    /// Reads at most `most` bytes of `input`.
    pub(super) fn new(input: R, most: usize) -> Self {
        Self { input, left: most }
    }

    fn take(&mut self, count: usize) -> Result<(), Fault> {
        self.left = self.left.checked_sub(count).ok_or(Fault::Odd("it answers with too many bytes"))?;
        Ok(())
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        self.take(N)?;
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        Ok(u8::from_be_bytes(self.fixed()?))
    }

    pub(super) fn i32(&mut self) -> Result<i32, Fault> {
        Ok(i32::from_be_bytes(self.fixed()?))
    }

    fn count(&mut self) -> Result<usize, Fault> {
        usize::try_from(self.i32()?).map_err(|_| Fault::Odd("a length is negative"))
    }

    /// The type of a message, of a call that was answered.
    pub(super) fn message(&mut self) -> Result<u32, Fault> {
        let head = u32::from_be_bytes(self.fixed()?);
        if head & 0xffff_0000 != VERSION {
            return Err(Fault::Odd("it does not speak Thrift's binary protocol without Kerberos, TLS and frames"));
        }
        self.skip_bytes()?;
        self.i32()?;
        Ok(head & 0xff)
    }

    /// The number and type of the next field of a struct; none at its end.
    pub(super) fn field(&mut self) -> Result<Option<(i16, u8)>, Fault> {
        let kind = self.byte()?;
        if kind == kind::STOP {
            return Ok(None);
        }
        Ok(Some((i16::from_be_bytes(self.fixed()?), kind)))
    }

    pub(super) fn string(&mut self) -> Result<String, Fault> {
        let mut left = self.count()?;
        self.take(left)?;
        let mut bytes = Vec::new();
        while left > 0 {
            let (start, some) = (bytes.len(), left.min(CHUNK));
            bytes.resize(start + some, 0);
            self.input.read_exact(bytes.get_mut(start..).unwrap_or_default())?;
            left -= some;
        }
        String::from_utf8(bytes).map_err(|_| Fault::Odd("a text is not UTF-8"))
    }

    fn skip_bytes(&mut self) -> Result<(), Fault> {
        let count = self.count()?;
        self.skip_some(count)
    }

    fn skip_some(&mut self, count: usize) -> Result<(), Fault> {
        self.take(count)?;
        let skipped = io::copy(&mut self.input.by_ref().take(count as u64), &mut io::sink())?;
        if skipped < count as u64 { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) } else { Ok(()) }
    }

    /// Calls `each` for each item of a list of `kind`.
    pub(super) fn list(&mut self, kind: u8, mut each: impl FnMut(&mut Self) -> Result<(), Fault>) -> Result<(), Fault> {
        let found = self.byte()?;
        let count = self.count()?;
        if count > 0 && found != kind {
            return Err(Fault::Odd("a list has items of another type"));
        }
        for _ in 0..count {
            each(self)?;
        }
        Ok(())
    }

    /// Calls `each` with each key and value of a map of strings.
    pub(super) fn map(&mut self, mut each: impl FnMut(String, String)) -> Result<(), Fault> {
        let kinds = (self.byte()?, self.byte()?);
        let count = self.count()?;
        if count > 0 && kinds != (kind::STRING, kind::STRING) {
            return Err(Fault::Odd("a map is not of strings"));
        }
        for _ in 0..count {
            let key = self.string()?;
            each(key, self.string()?);
        }
        Ok(())
    }

    /// Passes over a value of `kind`.
    pub(super) fn skip(&mut self, kind: u8) -> Result<(), Fault> {
        self.skip_within(kind, MAX_DEPTH)
    }

    fn skip_within(&mut self, kind: u8, depth: usize) -> Result<(), Fault> {
        let depth = depth.checked_sub(1).ok_or(Fault::Odd("values nest too deeply"))?;
        match kind {
            kind::BOOL | kind::BYTE => self.skip_some(1),
            kind::I16 => self.skip_some(2),
            kind::I32 => self.skip_some(4),
            kind::I64 | kind::DOUBLE => self.skip_some(8),
            kind::STRING => self.skip_bytes(),
            kind::STRUCT => {
                while let Some((_, kind)) = self.field()? {
                    self.skip_within(kind, depth)?;
                }
                Ok(())
            }
            kind::LIST | kind::SET => {
                let of = self.byte()?;
                // Each item takes a byte at least, so that the budget ends this.
                for _ in 0..self.count()? {
                    self.skip_within(of, depth)?;
                }
                Ok(())
            }
            kind::MAP => {
                let (key, value) = (self.byte()?, self.byte()?);
                for _ in 0..self.count()? {
                    self.skip_within(key, depth)?;
                    self.skip_within(value, depth)?;
                }
                Ok(())
            }
            _ => Err(Fault::Odd("a value has an unknown type")),
        }
    }
}
