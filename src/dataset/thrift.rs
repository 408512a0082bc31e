//! Just enough of Thrift's compact protocol to look at footers and page headers before anybody allocates by their numbers.
//!
//! It reads forward over a slice, keeps nothing, and every length is checked against the bytes that are left.

/// Fault in the bytes.
pub(super) type Broken = &'static str;

/// Type numbers of the compact protocol.
pub(super) mod kind {
    pub(crate) const TRUE: u8 = 1;
    pub(crate) const FALSE: u8 = 2;
    pub(crate) const BYTE: u8 = 3;
    pub(crate) const I16: u8 = 4;
    pub(crate) const I32: u8 = 5;
    pub(crate) const I64: u8 = 6;
    pub(crate) const DOUBLE: u8 = 7;
    pub(crate) const BINARY: u8 = 8;
    pub(crate) const LIST: u8 = 9;
    pub(crate) const SET: u8 = 10;
    pub(crate) const MAP: u8 = 11;
    pub(crate) const STRUCT: u8 = 12;
    pub(crate) const UUID: u8 = 13;
}

/// Nesting of values that are skipped. Parquet's own structures nest 6 deep.
const MAX_DEPTH: usize = 32;

/// A position in Thrift bytes.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    length: usize,
}

/// One field of a struct: its number and the type of what follows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) id: i16,
    pub(super) kind: u8,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, length: bytes.len() }
    }

    /// Bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.length - self.rest.len()
    }

    pub(super) fn byte(&mut self) -> Result<u8, Broken> {
        let (first, rest) = self.rest.split_first().ok_or("it ends within a value")?;
        self.rest = rest;
        Ok(*first)
    }

    pub(super) fn skip_bytes(&mut self, count: u64) -> Result<(), Broken> {
        let count = usize::try_from(count).map_err(|_| "a length is beyond the end")?;
        self.rest = self.rest.get(count..).ok_or("a length is beyond the end")?;
        Ok(())
    }

    /// A string or bytes behind their length.
    pub(super) fn binary(&mut self) -> Result<&'a [u8], Broken> {
        let length = usize::try_from(self.varint()?).map_err(|_| "a length is beyond the end")?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or("a length is beyond the end")?;
        self.rest = rest;
        Ok(bytes)
    }

    fn varint(&mut self) -> Result<u64, Broken> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("a number is longer than 64 bits")
    }

    pub(super) fn int(&mut self) -> Result<i64, Broken> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// The next field of a struct; `None` at its end. `last` is the number of the field before, 0 at first.
    pub(super) fn field(&mut self, last: &mut i16) -> Result<Option<Field>, Broken> {
        let header = self.byte()?;
        let kind = header & 0x0f;
        if kind == 0 {
            return Ok(None);
        }
        let id = match i16::from(header >> 4) {
            0 => i16::try_from(self.int()?).map_err(|_| "a field number is out of range")?,
            delta => last.checked_add(delta).ok_or("a field number is out of range")?,
        };
        *last = id;
        Ok(Some(Field { id, kind }))
    }

    /// The number and type of a list's elements. Each takes at least one byte, so the number is at most what is left.
    pub(super) fn list(&mut self) -> Result<(usize, u8), Broken> {
        let header = self.byte()?;
        let count = match header >> 4 {
            15 => self.varint()?,
            short => u64::from(short),
        };
        let count = usize::try_from(count).ok().filter(|&count| count <= self.rest.len());
        Ok((count.ok_or("a list has more elements than bytes")?, header & 0x0f))
    }

    /// Skips the value of `field`.
    pub(super) fn skip(&mut self, field: Field, max_structs: usize) -> Result<(), Broken> {
        // A boolean field has its value in its header.
        if matches!(field.kind, kind::TRUE | kind::FALSE) {
            Ok(())
        } else {
            self.skip_value(field.kind, max_structs, MAX_DEPTH)
        }
    }

    /// Skips one value. Lists of more than `max_structs` structs are refused: a reader that reserves room for them needs a
    /// multiple of the bytes they take here.
    fn skip_value(&mut self, kind: u8, max_structs: usize, depth: usize) -> Result<(), Broken> {
        let depth = depth.checked_sub(1).ok_or("it nests too deep")?;
        match kind {
            kind::TRUE | kind::FALSE | kind::BYTE => self.skip_bytes(1),
            kind::I16 | kind::I32 | kind::I64 => self.varint().map(drop),
            kind::DOUBLE => self.skip_bytes(8),
            kind::UUID => self.skip_bytes(16),
            kind::BINARY => {
                let length = self.varint()?;
                self.skip_bytes(length)
            }
            kind::LIST | kind::SET => {
                let (count, element) = self.list()?;
                if element == kind::STRUCT && count > max_structs {
                    return Err("a list has absurdly many elements");
                }
                (0..count).try_for_each(|_| self.skip_value(element, max_structs, depth))
            }
            kind::MAP => {
                let count = self.varint()?;
                if count == 0 {
                    return Ok(());
                }
                if count > self.rest.len() as u64 {
                    return Err("a map has more entries than bytes");
                }
                let kinds = self.byte()?;
                (0..count).try_for_each(|_| {
                    self.skip_value(kinds >> 4, max_structs, depth)?;
                    self.skip_value(kinds & 0x0f, max_structs, depth)
                })
            }
            kind::STRUCT => {
                let mut last = 0;
                while let Some(field) = self.field(&mut last)? {
                    if !matches!(field.kind, kind::TRUE | kind::FALSE) {
                        self.skip_value(field.kind, max_structs, depth)?;
                    }
                }
                Ok(())
            }
            _ => Err("a type is unknown"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fields_and_bounds() {
        // field 1 i32 = -3; field 20 (long form) binary of 2; stop.
        let bytes = [0x15, 0x05, 0x08, 0x28, 0x02, b'h', b'i', 0x00];
        let mut reader = Reader::new(&bytes);
        let mut last = 0;
        assert_eq!(reader.field(&mut last).unwrap().map(|field| (field.id, field.kind)), Some((1, kind::I32)));
        assert_eq!(reader.int().unwrap(), -3);
        let field = reader.field(&mut last).unwrap().unwrap();
        assert_eq!((field.id, field.kind), (20, kind::BINARY));
        reader.skip(field, 10).unwrap();
        assert!(reader.field(&mut last).unwrap().is_none());
        assert_eq!(reader.position(), bytes.len());
    }

    #[test]
    fn absurd_numbers_end_at_once() {
        let list = Field { id: 1, kind: kind::LIST };
        let huge = [0xfc, 0xff, 0xff, 0xff, 0xff, 0x07];
        assert!(Reader::new(&huge).skip(list, 10).is_err(), "2^31 elements in no bytes");
        let many = [&[0xfc, 0x64][..], &[0; 100]].concat();
        assert!(Reader::new(&many).skip(list, 10).is_err(), "100 empty structs");
        assert!(Reader::new(&many).skip(list, 100).is_ok());
        let deep = [0x19; 100_000];
        assert!(Reader::new(&deep).skip(list, 10).is_err(), "lists of lists of lists");
        assert!(Reader::new(&[0x80; 20]).int().is_err());
    }
}
