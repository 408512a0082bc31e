//! The stack machine of pickles, protocols 0 to 5, without import and call.
//!
//! It goes over the input once. What it builds is charged against one budget before it is built, by what it takes in memory.

use super::arena::{Arena, Cell, Id, Span};
use super::budget::Budget;
use super::escape::{unescape, unescape_unicode};
use super::memo::Memo;
use crate::dataset::Limits;
use crate::error::{Error, Place, Result};

/// Levels that values and marks may nest. What Petastorm writes nests about ten deep.
pub(super) const MAX_DEPTH: u8 = 64;

/// Bytes of memory, rounded up for growing vectors: of a cell, an element of a list, a list, an object.
const CELL: u64 = 32;
pub(super) const ELEMENT: u64 = 8;
const LIST: u64 = 80;
pub(super) const OBJECT: u64 = 24;

/// A pickle that was read to its STOP.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    pub(super) arena: Arena<'a>,
    pub(super) root: Id,
    /// Rest of the limit, for everything that is made of it.
    pub(super) budget: Budget,
}

/// Builds what the pickle `input` describes. `noun` says what it is, for messages.
///
/// # Errors
/// [`Error::Corrupt`] and [`Error::Unsupported`] with the byte of the instruction; [`Error::Limit`] beyond
/// `limits.max_pickle_bytes`, which both the input and what it builds must keep.
pub(super) fn read<'a>(input: &'a [u8], noun: &'static str, limits: &Limits, place: &Place) -> Result<Pickle<'a>> {
    // Positions are kept in 32 bits, half of which are for decoded strings.
    let limit = limits.max_pickle_bytes.min(1 << 31);
    let budget = Budget::new(limit, noun, place);
    if input.len() as u64 > limit {
        return Err(budget.exceeded(input.len() as u64));
    }
    let mut machine = Machine {
        arena: Arena { input, ..Arena::default() },
        position: 0,
        operation: 0,
        frame_end: None,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: Memo::default(),
        budget,
    };
    let root = machine.run()?;
    Ok(Pickle { arena: machine.arena, root, budget: machine.budget })
}

pub(super) struct Machine<'a> {
    pub(super) arena: Arena<'a>,
    position: usize,
    /// Start of the current instruction.
    operation: usize,
    frame_end: Option<usize>,
    stack: Vec<Id>,
    /// Heights of the stack at each mark.
    marks: Vec<usize>,
    memo: Memo,
    pub(super) budget: Budget,
}

impl<'a> Machine<'a> {
    pub(super) fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        self.budget.corrupt(format_args!("at byte {}: {what}", self.operation))
    }

    pub(super) fn refuse(&self, what: impl std::fmt::Display) -> Error {
        let hint = "it was refused and nothing was run: only Petastorm's own classes are read";
        self.budget.unsupported(format_args!("{what} at byte {}", self.operation), hint)
    }

    fn run(&mut self) -> Result<Id> {
        loop {
            if self.frame_end == Some(self.position) {
                self.frame_end = None;
            }
            self.operation = self.position;
            let opcode = self.byte()?;
            if opcode == b'.' {
                return self.pop();
            }
            self.step(opcode)?;
            if self.frame_end.is_some_and(|end| self.position > end) {
                return Err(self.corrupt("an instruction crosses the end of its frame"));
            }
        }
    }

    fn step(&mut self, opcode: u8) -> Result<()> {
        match opcode {
            // Protocol and frames.
            0x80 => match self.byte()? {
                0..=5 => Ok(()),
                version => Err(self.refuse(format_args!("protocol {version}"))),
            },
            0x95 => {
                let length = self.length(8)?;
                if self.frame_end.is_some() {
                    return Err(self.corrupt("a frame begins within a frame"));
                }
                if length > self.rest().len() {
                    return Err(self.corrupt(format_args!("a frame of {length} bytes is cut off")));
                }
                self.frame_end = Some(self.position + length);
                Ok(())
            }
            // Constants and numbers.
            b'N' => self.push(Cell::None, 0),
            0x88 => self.push(Cell::Bool(true), 0),
            0x89 => self.push(Cell::Bool(false), 0),
            b'K' => self.little(1),
            b'M' => self.little(2),
            b'J' => {
                let value = i32::from_le_bytes(self.array()?);
                self.push(Cell::Int(value.into()), 0)
            }
            b'I' => match self.line()? {
                b"00" => self.push(Cell::Bool(false), 0),
                b"01" => self.push(Cell::Bool(true), 0),
                digits => self.decimal(digits),
            },
            b'L' => {
                let line = self.line()?;
                self.decimal(line.strip_suffix(b"L").unwrap_or(line))
            }
            0x8a => {
                let length = self.length(1)?;
                self.long(length)
            }
            0x8b => {
                let length = i32::from_le_bytes(self.array()?);
                let length = usize::try_from(length).map_err(|_| self.corrupt("a negative length"))?;
                self.long(length)
            }
            b'F' => {
                let line = self.line()?;
                let value = std::str::from_utf8(line).ok().filter(|line| line.len() <= 400);
                let value = value.and_then(|line| line.trim().parse().ok());
                let value = value.ok_or_else(|| self.corrupt("no number where one must be"))?;
                self.push(Cell::Float(value), 0)
            }
            b'G' => {
                let value = f64::from_be_bytes(self.array()?);
                self.push(Cell::Float(value), 0)
            }
            // Strings.
            b'U' => self.string(1, Cell::Str2),
            b'T' => self.string(4, Cell::Str2),
            b'C' => self.string(1, Cell::Bytes),
            b'B' => self.string(4, Cell::Bytes),
            0x8e => self.string(8, Cell::Bytes),
            0x8c => self.string(1, Cell::Text),
            b'X' => self.string(4, Cell::Text),
            0x8d => self.string(8, Cell::Text),
            b'S' => self.quoted(),
            b'V' => self.escaped_unicode(),
            // Containers.
            b')' => self.tuple(0),
            0x85 => self.tuple(1),
            0x86 => self.tuple(2),
            0x87 => self.tuple(3),
            b't' => {
                let count = self.above_mark()?;
                self.tuple(count)
            }
            b']' => self.list(Cell::List, 0),
            b'}' => self.list(Cell::Dict, 0),
            0x8f => self.list(Cell::Set, 0),
            b'l' => {
                let count = self.above_mark()?;
                self.list(Cell::List, count)
            }
            b'd' => {
                let count = self.above_mark()?;
                self.even(count)?;
                self.list(Cell::Dict, count)
            }
            0x91 => {
                let count = self.above_mark()?;
                self.list(Cell::Set, count)
            }
            b'a' => self.extend(1, "APPEND"),
            b's' => self.extend(2, "SETITEM"),
            b'e' => {
                let count = self.above_mark()?;
                self.extend(count, "APPENDS")
            }
            b'u' => {
                let count = self.above_mark()?;
                self.even(count)?;
                self.extend(count, "SETITEMS")
            }
            0x90 => {
                let count = self.above_mark()?;
                self.extend(count, "ADDITEMS")
            }
            // The stack and the memo.
            b'(' => {
                if self.marks.len() >= usize::from(MAX_DEPTH) {
                    return Err(self.too_deep());
                }
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'0' => {
                // As in Python: with nothing above the mark, the mark itself goes.
                if self.marks.last() == Some(&self.stack.len()) {
                    self.marks.pop();
                } else {
                    self.pop()?;
                }
                Ok(())
            }
            b'1' => {
                let count = self.above_mark()?;
                self.stack.truncate(self.stack.len() - count);
                Ok(())
            }
            b'2' => {
                let top = self.top()?;
                self.push_id(top)
            }
            b'g' => {
                let index = self.memo_line()?;
                self.get(index)
            }
            b'h' => {
                let index = self.byte()?;
                self.get(index.into())
            }
            b'j' => {
                let index = u32::from_le_bytes(self.array()?);
                self.get(index)
            }
            b'p' => {
                let index = self.memo_line()?;
                self.put(index)
            }
            b'q' => {
                let index = self.byte()?;
                self.put(index.into())
            }
            b'r' => {
                let index = u32::from_le_bytes(self.array()?);
                self.put(index)
            }
            0x94 => self.put(self.memo.len()),
            // Names and what is made of them.
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                let (module, name) = (String::from_utf8_lossy(module), String::from_utf8_lossy(name));
                self.global(&module, &name)
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (module, name) = match (self.arena.text(module), self.arena.text(name)) {
                    (Some(module), Some(name)) => (module.into_owned(), name.into_owned()),
                    _ => return Err(self.corrupt("a global is named by something that is not text")),
                };
                self.global(&module, &name)
            }
            b'R' => self.reduce(),
            0x81 => self.new_object(),
            b'b' => self.build(),
            _ => Err(match refused(opcode) {
                Some(name) => self.refuse(format_args!("the instruction {name}")),
                None => self.corrupt(format_args!("0x{opcode:02x} is not an instruction")),
            }),
        }
    }

    // ---- the input ----------------------------------------------------------------------------------------------------

    fn rest(&self) -> &'a [u8] {
        self.arena.input.get(self.position..).unwrap_or_default()
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let bytes = self.rest().get(..count).ok_or_else(|| self.corrupt("it is cut off"))?;
        self.position += count;
        Ok(bytes)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| self.corrupt("it is cut off"))
    }

    /// A little-endian unsigned number of `width` bytes, at most 8.
    fn length(&mut self, width: usize) -> Result<usize> {
        let value = self.take(width)?.iter().rev().fold(0_u64, |value, &byte| value << 8 | u64::from(byte));
        usize::try_from(value).map_err(|_| self.corrupt("a length is beyond the end"))
    }

    /// The bytes up to the next newline, which is taken too.
    fn line(&mut self) -> Result<&'a [u8]> {
        let length = self.rest().iter().position(|&byte| byte == b'\n');
        let line = self.take(length.ok_or_else(|| self.corrupt("a line is cut off"))?)?;
        self.position += 1;
        Ok(line)
    }

    fn memo_line(&mut self) -> Result<u32> {
        let line = self.line()?;
        let index = std::str::from_utf8(line).ok().and_then(|line| line.parse().ok());
        index.ok_or_else(|| self.corrupt("no number of the memo where one must be"))
    }

    // ---- numbers and strings ------------------------------------------------------------------------------------------

    fn little(&mut self, width: usize) -> Result<()> {
        let value = self.length(width)? as i64;
        self.push(Cell::Int(value), 0)
    }

    fn decimal(&mut self, digits: &[u8]) -> Result<()> {
        let value = std::str::from_utf8(digits).ok().and_then(|digits| digits.trim().parse().ok());
        let value = value.ok_or_else(|| self.corrupt("no number of 64 bits where one must be"))?;
        self.push(Cell::Int(value), 0)
    }

    /// A signed number of `length` bytes.
    fn long(&mut self, length: usize) -> Result<()> {
        let bytes = self.take(length)?;
        if length > 8 {
            return Err(self.corrupt(format_args!("a number of {length} bytes, where 64 bits are enough")));
        }
        let sign = if bytes.last().is_some_and(|&last| last >= 0x80) { -1_i64 } else { 0 };
        let value = bytes.iter().rev().fold(sign, |value, &byte| value << 8 | i64::from(byte));
        self.push(Cell::Int(value), 0)
    }

    /// A string behind its length of `width` bytes; it stays where it is.
    fn string(&mut self, width: usize, cell: fn(Span) -> Cell) -> Result<()> {
        let length = self.length(width)?;
        let start = self.position as u32;
        let bytes = self.take(length)?;
        let cell = cell(Span { start, length: length as u32 });
        if matches!(cell, Cell::Text(_)) && std::str::from_utf8(bytes).is_err() {
            return Err(self.corrupt("a text is not UTF-8"));
        }
        self.push(cell, 0)
    }

    /// Keeps a string that is not in the input.
    pub(super) fn keep(&mut self, bytes: &[u8]) -> Result<Span> {
        self.budget.charge(bytes.len() as u64 * 2)?;
        let start = (self.arena.input.len() + self.arena.decoded.len()) as u32;
        self.arena.decoded.extend_from_slice(bytes);
        Ok(Span { start, length: bytes.len() as u32 })
    }

    /// A Python 2 string literal.
    fn quoted(&mut self) -> Result<()> {
        let line = self.line()?;
        let start = self.position - line.len();
        let inner = match line {
            [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
            _ => return Err(self.corrupt("a string without its quotes")),
        };
        let span = if inner.contains(&b'\\') {
            let decoded = unescape(inner).ok_or_else(|| self.corrupt("a string has a damaged escape"))?;
            self.keep(&decoded)?
        } else {
            Span { start: start as u32, length: inner.len() as u32 }
        };
        self.push(Cell::Str2(span), 0)
    }

    /// Python's `raw-unicode-escape`: Latin-1 with `\uXXXX` and `\UXXXXXXXX`.
    fn escaped_unicode(&mut self) -> Result<()> {
        let decoded = unescape_unicode(self.line()?).ok_or_else(|| self.corrupt("a text has a damaged escape"))?;
        let span = self.keep(decoded.as_bytes())?;
        self.push(Cell::Text(span), 0)
    }

    // ---- the stack ----------------------------------------------------------------------------------------------------

    pub(super) fn too_deep(&self) -> Error {
        self.corrupt(format_args!("it nests deeper than {MAX_DEPTH} levels"))
    }

    fn push_id(&mut self, id: Id) -> Result<()> {
        // Four bytes each, of a stack that is gone in the end.
        if self.stack.len() as u64 >= self.budget.limit / 16 {
            return Err(self.budget.exceeded(self.stack.len() as u64 * 16));
        }
        self.stack.push(id);
        Ok(())
    }

    /// A new cell with `depth` levels below it.
    pub(super) fn make(&mut self, cell: Cell, depth: u8) -> Result<Id> {
        if depth > MAX_DEPTH {
            return Err(self.too_deep());
        }
        self.budget.charge(CELL)?;
        let id = self.arena.cells.len() as Id;
        self.arena.cells.push(cell);
        self.arena.depths.push(depth);
        Ok(id)
    }

    pub(super) fn push(&mut self, cell: Cell, depth: u8) -> Result<()> {
        let id = self.make(cell, depth)?;
        self.push_id(id)
    }

    /// The top of the stack, not below the last mark.
    pub(super) fn top(&self) -> Result<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let top = self.stack.get(floor..).and_then(<[Id]>::last).copied();
        top.ok_or_else(|| self.corrupt("the stack is empty"))
    }

    pub(super) fn pop(&mut self) -> Result<Id> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// Number of values above the last mark, which goes.
    fn above_mark(&mut self) -> Result<usize> {
        let mark = self.marks.pop().ok_or_else(|| self.corrupt("there is no mark"))?;
        Ok(self.stack.len() - mark)
    }

    fn even(&self, count: usize) -> Result<()> {
        if count.is_multiple_of(2) { Ok(()) } else { Err(self.corrupt("a key has no value")) }
    }

    /// The `count` topmost values, none of which lies below the last mark.
    fn topmost(&self, count: usize) -> Result<&[Id]> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let start = self.stack.len().checked_sub(count).filter(|&start| start >= floor);
        start.and_then(|start| self.stack.get(start..)).ok_or_else(|| self.corrupt("the stack is empty"))
    }

    fn depth_over(&self, ids: &[Id]) -> u8 {
        ids.iter().map(|&id| self.arena.depth(id)).max().map_or(0, |depth| depth + 1)
    }

    fn tuple(&mut self, count: usize) -> Result<()> {
        self.budget.charge(count as u64 * ELEMENT)?;
        let ids = self.topmost(count)?.to_vec();
        self.stack.truncate(self.stack.len() - count);
        let cell = self.tuple_of(&ids);
        let depth = self.depth_over(&ids);
        self.push(cell, depth)
    }

    pub(super) fn tuple_of(&mut self, ids: &[Id]) -> Cell {
        let start = self.arena.items.len() as u32;
        self.arena.items.extend_from_slice(ids);
        Cell::Tuple(Span { start, length: ids.len() as u32 })
    }

    /// A list, set or dict of the `count` topmost values.
    fn list(&mut self, cell: fn(u32) -> Cell, count: usize) -> Result<()> {
        let start = self.stack.len() - self.topmost(count)?.len();
        let ids = self.stack.split_off(start);
        self.list_of(cell, ids)
    }

    pub(super) fn list_of(&mut self, cell: fn(u32) -> Cell, ids: Vec<Id>) -> Result<()> {
        self.budget.charge(LIST + ids.len() as u64 * ELEMENT)?;
        let depth = self.depth_over(&ids);
        let list = self.arena.lists.len() as u32;
        self.arena.lists.push(ids);
        self.push(cell(list), depth)
    }

    /// Moves the `count` topmost values into the list, set or dict below them.
    fn extend(&mut self, count: usize, instruction: &str) -> Result<()> {
        self.budget.charge(count as u64 * ELEMENT)?;
        let added = self.topmost(count)?;
        let (start, depth) = (self.stack.len() - added.len(), self.depth_over(added));
        // The target is not above the added ones, nor below the last mark.
        let target = self.topmost(count + 1)?.first().copied().unwrap_or(0);
        let depth = depth.max(self.arena.depth(target));
        let list = match (self.arena.cell(target), instruction) {
            (Cell::List(list), "APPEND" | "APPENDS")
            | (Cell::Dict(list), "SETITEM" | "SETITEMS")
            | (Cell::Set(list), "ADDITEMS") => list,
            _ => {
                let what = self.arena.describe(target);
                return Err(self.refuse(format_args!("the instruction {instruction} on {what}")));
            }
        };
        if depth > MAX_DEPTH {
            return Err(self.too_deep());
        }
        if let Some(list) = self.arena.lists.get_mut(list as usize) {
            list.extend(self.stack.drain(start..));
        }
        if let Some(known) = self.arena.depths.get_mut(target as usize) {
            *known = depth;
        }
        Ok(())
    }

    fn get(&mut self, index: u32) -> Result<()> {
        let id = self.memo.get(index);
        let id = id.ok_or_else(|| self.corrupt(format_args!("the memo has no entry {index}")))?;
        self.push_id(id)
    }

    fn put(&mut self, index: u32) -> Result<()> {
        let top = self.top()?;
        self.budget.charge(self.memo.cost(index))?;
        self.memo.put(index, top);
        Ok(())
    }
}

/// Instructions that Python has and this machine does not.
fn refused(opcode: u8) -> Option<&'static str> {
    let name = match opcode {
        b'i' => "INST",
        b'o' => "OBJ",
        b'P' => "PERSID",
        b'Q' => "BINPERSID",
        0x82 => "EXT1",
        0x83 => "EXT2",
        0x84 => "EXT4",
        0x92 => "NEWOBJ_EX",
        0x96 => "BYTEARRAY8",
        0x97 => "NEXT_BUFFER",
        0x98 => "READONLY_BUFFER",
        _ => return None,
    };
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn built(input: &[u8]) -> Result<String> {
        let pickle = read(input, "a test", &Limits::default(), &Place::file("x"))?;
        Ok(pickle.arena.describe(pickle.root))
    }

    #[test]
    fn values_of_every_protocol() {
        for (input, text) in [
            (&b"I01\n."[..], "True"),
            (b"L-5L\n.", "-5"),
            (b"F1.5\n.", "1.5"),
            (b"\x80\x02\x8a\x01\xff.", "-1"),
            (b"\x80\x02\x8b\x02\0\0\0\x00\x01.", "256"),
            (b"S'a\\x41\\n\\101'\n.", "\"aA\\nA\""),
            (b"V\\u00e9\\ud83d\\ude00\n.", "\"\u{e9}\u{1f600}\""),
            (b"\x80\x04\x95\x02\0\0\0\0\0\0\0K\x07.", "7"),
            (b"\x80\x02N0K\x01.", "1"),
            (b"c_codecs\nencode\n(Va\nVlatin1\ntR.", "\"a\""),
            (b"\x80\x02cnumpy\ndtype\nU\x02i8\x85R.", "an object of numpy.dtype"),
        ] {
            assert_eq!(built(input).unwrap(), text, "{}", input.escape_ascii());
        }
    }

    #[test]
    fn a_dtype_has_a_short_name_whatever_is_looked_at() {
        // Each of the calls would decode it.
        let long = [&b"\x80\x02T\x2c\x01\0\0"[..], &[0xff; 300][..], b"q\x000cnumpy\ndtype\nh\0\x85R."].concat();
        let error = built(&long).unwrap_err().to_string();
        assert!(error.contains("REDUCE"), "{error}");
    }

    #[test]
    fn what_is_refused_is_named_with_its_byte() {
        let error = built(b"(S'x'\ncos\nsystem\n.").unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }));
        assert!(
            error.to_string().contains("the global os.system at byte 6 is not supported; it was refused"),
            "{error}"
        );
        let error = built(b"(S'x'\nios\nsystem\n.").unwrap_err().to_string();
        assert!(error.contains("the instruction INST at byte 6"), "{error}");
    }
}
