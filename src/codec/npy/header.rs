//! The header of `.npy`: a Python literal of one known form, read by a parser for that form. Nothing is evaluated.

use std::fmt::Write as _;
use std::ops::Range;

use super::Npy;
use crate::error::{Error, Place, Result};

/// The first bytes of every file.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// Maximum bytes of a header, its magic included. NumPy's own are 128 unless there are structures.
const MAX_HEADER: usize = 64 << 10;

/// Maximum axes of an array, as in NumPy before version 2.
pub(super) const MAX_AXES: usize = 32;

/// Bytes from which [`extent`] learns the length of the header.
pub(super) const START: usize = 12;

/// The content of the header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The type of the elements.
    pub element: Npy,
    /// The shape, at most 32 axes. Its product, zeros left out, times the element's size fits in `isize`.
    pub shape: Vec<usize>,
    /// Set if the first axis varies fastest (Fortran order).
    pub fortran: bool,
    /// The exact range of the elements' bytes.
    pub data: Range<usize>,
}

impl Header {
    /// Number of elements.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }
}

/// Reads the header of a `.npy`. Bytes after the array are ignored, as by NumPy.
///
/// # Errors
/// `Corrupt` describes the fault; `Unsupported` names a type of elements without a tensor.
pub fn header(cell: &[u8]) -> Result<Header> {
    parse(cell, cell.len())
}

/// Bytes of the header: magic, version, length and literal. Reads the first [`START`] bytes.
pub(super) fn extent(start: &[u8]) -> Result<usize> {
    if start.len() < START || !start.starts_with(MAGIC) {
        return Err(corrupt("no .npy: the first bytes are not NumPy's"));
    }
    let (prefix, len) = match start[6..START] {
        [1, 0, a, b, _, _] => (10, u32::from(u16::from_le_bytes([a, b]))),
        [2 | 3, 0, a, b, c, d] => (12, u32::from_le_bytes([a, b, c, d])),
        [major, minor, ..] => {
            return Err(Error::unsupported(format!(".npy of version {major}.{minor}"), ""));
        }
        _ => return Err(corrupt("no .npy: too short")),
    };
    let extent = prefix + len as usize;
    if extent > MAX_HEADER {
        return Err(corrupt(format!("a .npy header of {extent} bytes; at most {MAX_HEADER} are read")));
    }
    // The shortest literal is longer than this, so reading can continue without stepping back.
    if extent < START {
        return Err(corrupt("an empty .npy header"));
    }
    Ok(extent)
}

/// Reads the header at the start of `head`; the whole file has `total` bytes.
pub(super) fn parse(head: &[u8], total: usize) -> Result<Header> {
    let extent = extent(head)?;
    let prefix = if head[6] == 1 { 10 } else { 12 };
    let literal = head.get(prefix..extent).ok_or_else(|| corrupt("the .npy ends within its header"))?;
    let (element, fortran, shape) = Literal { bytes: literal, at: 0 }.dict()?;
    let bytes = bytes(&element, &shape).ok_or_else(|| corrupt(format!("shape {shape:?} of {element} overflows")))?;
    if total.saturating_sub(extent) < bytes {
        let found = total.saturating_sub(extent);
        return Err(corrupt(format!("{found} bytes of data, shape {shape:?} of {element} needs {bytes}")));
    }
    Ok(Header { element, shape, fortran, data: extent..extent + bytes })
}

/// Bytes of the elements. `None` if the product overflows, even if an axis of length 0 makes it 0.
pub(super) fn bytes(element: &Npy, shape: &[usize]) -> Option<usize> {
    let product =
        shape.iter().filter(|axis| **axis > 0).try_fold(element.size.max(1), |all, axis| all.checked_mul(*axis));
    product.filter(|all| isize::try_from(*all).is_ok())?;
    Some(shape.iter().product::<usize>() * element.size)
}

/// Writes a header of version 1 for an array in C order, as NumPy does: the data starts at a multiple of 64 bytes.
pub(super) fn write(element: &Npy, shape: &[usize], out: &mut Vec<u8>) {
    let mut text = format!("{{'descr': '{element}', 'fortran_order': False, 'shape': (");
    for (at, axis) in shape.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(text, "{}{axis}", if at > 0 { ", " } else { "" });
    }
    text.push_str(if shape.len() == 1 { ",), }" } else { "), }" });
    let prefix = MAGIC.len() + 4;
    while !(prefix + text.len() + 1).is_multiple_of(64) {
        text.push(' ');
    }
    text.push('\n');
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0]);
    // 32 axes of 20 digits are far below 2^16.
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn corrupt(what: impl Into<String>) -> Error {
    Error::corrupt(Place::default(), what)
}

/// `{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4), }` with any order of keys and any spaces.
struct Literal<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Literal<'a> {
    fn dict(mut self) -> Result<(Npy, bool, Vec<usize>)> {
        let (mut element, mut fortran, mut shape) = (None, None, None);
        self.expect(b'{')?;
        while !self.accept(b'}') {
            let key = self.string()?;
            self.expect(b':')?;
            let new = match key {
                "descr" => element.replace(self.descr()?).is_none(),
                "fortran_order" => fortran.replace(self.boolean()?).is_none(),
                "shape" => shape.replace(self.shape()?).is_none(),
                _ => return Err(corrupt(format!("the .npy header has a key {key:?}"))),
            };
            if !new {
                return Err(corrupt(format!("the .npy header has {key:?} twice")));
            }
            if !self.accept(b',') {
                self.expect(b'}')?;
                break;
            }
        }
        self.space();
        if self.at != self.bytes.len() {
            return Err(self.unexpected("the end"));
        }
        match (element, fortran, shape) {
            (Some(element), Some(fortran), Some(shape)) => Ok((element, fortran, shape)),
            _ => Err(corrupt("the .npy header lacks descr, fortran_order or shape")),
        }
    }

    fn descr(&mut self) -> Result<Npy> {
        if matches!(self.peek(), Some(b'[' | b'(')) {
            return Err(Error::unsupported("an array of structures", "store each field in a column of its own"));
        }
        Npy::parse(self.string()?)
    }

    fn boolean(&mut self) -> Result<bool> {
        self.space();
        for (word, value) in [(&b"False"[..], false), (b"True", true)] {
            if self.bytes[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.unexpected("True or False"))
    }

    fn shape(&mut self) -> Result<Vec<usize>> {
        let mut shape = Vec::new();
        self.expect(b'(')?;
        while !self.accept(b')') {
            if shape.len() == MAX_AXES {
                return Err(corrupt(format!("an array of more than {MAX_AXES} axes")));
            }
            shape.push(self.number()?);
            if !self.accept(b',') {
                // `(3)` is a number, not a tuple.
                if shape.len() == 1 {
                    return Err(self.unexpected("a comma"));
                }
                self.expect(b')')?;
                break;
            }
        }
        Ok(shape)
    }

    fn number(&mut self) -> Result<usize> {
        self.space();
        let rest = &self.bytes[self.at..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let text = str::from_utf8(&rest[..digits]).unwrap_or_default();
        if digits == 0 {
            return Err(self.unexpected("the length of an axis"));
        }
        let number = text.parse().map_err(|_| corrupt("an axis of the .npy is longer than memory"))?;
        self.at += digits;
        // Python 2 writes `3L`.
        self.at += usize::from(self.bytes.get(self.at) == Some(&b'L'));
        Ok(number)
    }

    /// Parses a string without escapes, at most 64 bytes: all known ones are shorter.
    fn string(&mut self) -> Result<&'a str> {
        // Python 2 may write `u'descr'`, Python 3 `b'descr'`.
        let prefixed = matches!(self.peek(), Some(b'u' | b'b'));
        self.at += usize::from(prefixed);
        let quote = match self.bytes.get(self.at) {
            Some(quote @ (b'\'' | b'"')) => *quote,
            _ => return Err(self.unexpected("a string")),
        };
        let rest = &self.bytes[self.at + 1..];
        let len = rest.iter().take(65).position(|byte| *byte == quote || *byte == b'\\');
        let Some(len) = len.filter(|len| rest.get(*len) == Some(&quote)) else {
            return Err(self.unexpected("a short string"));
        };
        self.at += len + 2;
        str::from_utf8(&rest[..len]).map_err(|_| corrupt("a string of the .npy header is not text"))
    }

    fn space(&mut self) {
        let rest = &self.bytes[self.at..];
        self.at += rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0c)).count();
    }

    fn peek(&mut self) -> Option<u8> {
        self.space();
        self.bytes.get(self.at).copied()
    }

    fn accept(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.accept(byte) { Ok(()) } else { Err(self.unexpected(&format!("{:?}", char::from(byte)))) }
    }

    fn unexpected(&self, wanted: &str) -> Error {
        let end = self.bytes.len().min(self.at + 16);
        let found = self.bytes[self.at.min(end)..end].escape_ascii();
        corrupt(format!("the .npy header has \"{found}\" at {} instead of {wanted}", self.at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::DType;

    fn file(literal: &str, data: usize) -> Vec<u8> {
        let mut file = b"\x93NUMPY\x01\0".to_vec();
        file.extend_from_slice(&(literal.len() as u16).to_le_bytes());
        file.extend_from_slice(literal.as_bytes());
        file.extend(std::iter::repeat_n(7, data));
        file
    }

    #[test]
    fn every_spelling_of_one_header() {
        for literal in [
            "{'descr': '<f8', 'fortran_order': True, 'shape': (3, 2), }   \n",
            "{'shape':(3L,2L),'fortran_order':True,'descr':'<f8'}",
            "  {\n\"shape\" : ( 3 , 2 , ) , u'descr' : b'f8', 'fortran_order' : True , }\r\n\t",
        ] {
            let file = file(literal, 50);
            let header = header(&file).unwrap();
            assert_eq!((header.element, header.fortran), (Npy::number(DType::Float64), true));
            assert_eq!((header.shape, header.data), (vec![3, 2], literal.len() + 10..literal.len() + 58));
        }
        for (shape, expected) in [("()", vec![]), ("(0,)", vec![0]), ("(1, 0, 5)", vec![1, 0, 5])] {
            let file = file(&format!("{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}"), 1);
            assert_eq!(header(&file).unwrap().shape, expected);
        }
    }

    #[test]
    fn whatever_else_is_refused() {
        for literal in [
            "",
            "{}",
            "{'descr': '<f8', 'fortran_order': False}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (,)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1,,)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': 1}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': [1]}",
            "{'descr': '<f8', 'fortran_order': 0, 'shape': (1,)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)} x",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), 'x': 1}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1,), 'shape': (1,)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1,)",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (1,) 'x'}",
            "{'descr': '<f\\x38', 'fortran_order': False, 'shape': (1,)}",
            "{'descr': __import__('os').system('id'), 'fortran_order': False, 'shape': (1,)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807, 2)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (0, 9223372036854775807)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999999999999,)}",
            "{'descr': '<f8', 'fortran_order': False, 'shape': (2,)}",
        ] {
            let error = header(&file(literal, 8)).unwrap_err();
            assert!(matches!(error, Error::Corrupt { .. }), "{literal}: {error}");
        }
        let axes = "1,".repeat(MAX_AXES);
        let literal = |axes: &str| format!("{{'descr': '|u1', 'fortran_order': False, 'shape': ({axes})}}");
        assert_eq!(header(&file(&literal(&axes), 1)).unwrap().shape.len(), MAX_AXES);
        assert!(header(&file(&literal(&format!("{axes}1")), 1)).is_err());
    }
}
