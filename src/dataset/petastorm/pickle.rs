//! The stack machine of pickles, protocols 0 to 5, without import and call.
//!
//! It goes over the input once. What it builds is charged against one budget before it is built, by what it takes in memory.

use super::arena::{Arena, Cell, Id, Object, Span};
use super::globals::Global;
use super::memo::Memo;
use crate::dataset::Limits;
use crate::error::{Error, Place, Result};

/// Levels that values and marks may nest. What Petastorm writes nests about ten deep.
const MAX_DEPTH: u8 = 64;

/// Bytes of memory, rounded up for growing vectors: of a cell, an element of a list, a list, an object.
const CELL: u64 = 32;
pub(super) const ELEMENT: u64 = 8;
const LIST: u64 = 64;
const OBJECT: u64 = 24;

/// The fields of a UnischemaField, in the order that every version has had.
const FIELD_NAMES: [&str; 5] = ["name", "numpy_dtype", "shape", "codec", "nullable"];

/// A pickle that was read to its STOP.
#[derive(Debug)]
pub(super) struct Pickle<'a> {
    pub(super) arena: Arena<'a>,
    pub(super) root: Id,
    /// How much of the limit is left for whatever is made of it.
    pub(super) budget: Budget,
}

/// Bytes that may still be built.
#[derive(Debug)]
pub(super) struct Budget {
    limit: u64,
    left: u64,
    place: Place,
    /// What is being read, for messages.
    noun: &'static str,
}

impl Budget {
    /// Takes `bytes` off, before they are allocated.
    pub(super) fn charge(&mut self, bytes: u64) -> Result<()> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(self.exceeded((self.limit - self.left).saturating_add(bytes))),
        }
    }

    fn exceeded(&self, asked: u64) -> Error {
        let what = format!("{}: {}", self.place, self.noun);
        Error::Limit { what, asked, limit: self.limit, option: "limits.max_pickle_bytes" }
    }

    /// An error about what was read.
    pub(super) fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        Error::corrupt(self.place.clone(), format!("{}: {what}", self.noun))
    }

    /// An error about what is valid, but beyond this reader.
    pub(super) fn unsupported(&self, what: impl std::fmt::Display, hint: &str) -> Error {
        Error::Unsupported { what: format!("{}: {}: {what}", self.place, self.noun), hint: hint.to_owned() }
    }

    /// An error about a count, with the option that limits it.
    pub(super) fn too_many(&self, what: &str, asked: usize, limit: usize, option: &'static str) -> Error {
        let what = format!("{}: {}: {what}", self.place, self.noun);
        Error::Limit { what, asked: asked as u64, limit: limit as u64, option }
    }
}

/// Builds what the pickle `input` describes. `noun` says what it is, for messages.
///
/// # Errors
/// [`Error::Corrupt`] and [`Error::Unsupported`] with the byte of the instruction; [`Error::Limit`] beyond
/// `limits.max_pickle_bytes`, which both the input and what it builds must keep.
pub(super) fn read<'a>(input: &'a [u8], noun: &'static str, limits: &Limits, place: &Place) -> Result<Pickle<'a>> {
    // Positions are kept in 32 bits, of which half are for decoded strings.
    let limit = limits.max_pickle_bytes.min(1 << 31);
    let budget = Budget { limit, left: limit, place: place.clone(), noun };
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

struct Machine<'a> {
    arena: Arena<'a>,
    position: usize,
    /// Where the current instruction begins.
    operation: usize,
    frame_end: Option<usize>,
    stack: Vec<Id>,
    /// Heights of the stack at each mark.
    marks: Vec<usize>,
    memo: Memo,
    budget: Budget,
}

impl<'a> Machine<'a> {
    fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        self.budget.corrupt(format_args!("at byte {}: {what}", self.operation))
    }

    fn refuse(&self, what: impl std::fmt::Display) -> Error {
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
                // As Python has it: with nothing above the mark, the mark itself goes.
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
                let id = match (self.arena.text(module), self.arena.text(name)) {
                    (Some(module), Some(name)) => Global::find(&module, &name).ok_or_else(|| {
                        self.refuse(format_args!("the global {}", clipped(&format!("{module}.{name}"))))
                    }),
                    _ => Err(self.corrupt("a global is named by something that is no text")),
                }?;
                self.push(Cell::Class(id), 0)
            }
            b'R' => self.reduce(),
            0x81 => self.new_object(),
            b'b' => self.build(),
            _ => Err(match refused(opcode) {
                Some(name) => self.refuse(format_args!("the instruction {name}")),
                None => self.corrupt(format_args!("0x{opcode:02x} is no instruction")),
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
    fn keep(&mut self, bytes: &[u8]) -> Result<Span> {
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

    fn too_deep(&self) -> Error {
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
    fn make(&mut self, cell: Cell, depth: u8) -> Result<Id> {
        if depth > MAX_DEPTH {
            return Err(self.too_deep());
        }
        self.budget.charge(CELL)?;
        let id = self.arena.cells.len() as Id;
        self.arena.cells.push(cell);
        self.arena.depths.push(depth);
        Ok(id)
    }

    fn push(&mut self, cell: Cell, depth: u8) -> Result<()> {
        let id = self.make(cell, depth)?;
        self.push_id(id)
    }

    /// The top of the stack, not below the last mark.
    fn top(&self) -> Result<Id> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let top = self.stack.get(floor..).and_then(<[Id]>::last).copied();
        top.ok_or_else(|| self.corrupt("the stack is empty"))
    }

    fn pop(&mut self) -> Result<Id> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    /// How many values are above the last mark, which goes.
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

    fn tuple_of(&mut self, ids: &[Id]) -> Cell {
        let start = self.arena.items.len() as u32;
        self.arena.items.extend_from_slice(ids);
        Cell::Tuple(Span { start, length: ids.len() as u32 })
    }

    /// A list, set or dict of the `count` topmost values.
    fn list(&mut self, cell: fn(u32) -> Cell, count: usize) -> Result<()> {
        let ids = self.topmost(count)?.to_vec();
        self.stack.truncate(self.stack.len() - count);
        self.list_of(cell, ids)
    }

    fn list_of(&mut self, cell: fn(u32) -> Cell, ids: Vec<Id>) -> Result<()> {
        self.budget.charge(LIST + ids.len() as u64 * ELEMENT)?;
        let depth = self.depth_over(&ids);
        let list = self.arena.lists.len() as u32;
        self.arena.lists.push(ids);
        self.push(cell(list), depth)
    }

    /// Moves the `count` topmost values into the list, set or dict below them.
    fn extend(&mut self, count: usize, instruction: &str) -> Result<()> {
        self.budget.charge(count as u64 * ELEMENT)?;
        let added = self.topmost(count)?.to_vec();
        self.stack.truncate(self.stack.len() - count);
        let target = self.top()?;
        let depth = self.depth_over(&added).max(self.arena.depth(target));
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
            list.extend_from_slice(&added);
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

    // ---- names and objects --------------------------------------------------------------------------------------------

    fn global(&mut self, module: &str, name: &str) -> Result<()> {
        let Some(global) = Global::find(module, name) else {
            return Err(self.refuse(format_args!("the global {}", clipped(&format!("{module}.{name}")))));
        };
        self.push(Cell::Class(global), 0)
    }

    fn object(&mut self, class: Global, arguments: Id) -> Result<()> {
        self.budget.charge(OBJECT)?;
        let object = self.arena.objects.len() as u32;
        self.arena.objects.push(Object { class, arguments, state: None });
        self.push(Cell::Object(object), self.arena.depth(arguments) + 1)
    }

    fn class(&self, id: Id) -> Option<Global> {
        match self.arena.cell(id) {
            Cell::Class(class) => Some(class),
            _ => None,
        }
    }

    fn refuse_call(&self, callable: Id, instruction: &str) -> Error {
        let what = self.arena.describe(callable);
        self.refuse(format_args!("the instruction {instruction} on {what} with these arguments"))
    }

    /// REDUCE calls in Python. Here each callable of the list has the few forms of arguments that a pickler writes.
    fn reduce(&mut self) -> Result<()> {
        let (arguments, callable) = (self.pop()?, self.pop()?);
        let refused = || self.refuse_call(callable, "REDUCE");
        let given = self.arena.tuple(arguments).ok_or_else(refused)?;
        let class = self.class(callable).ok_or_else(refused)?;
        match (class, given) {
            (Global::Reconstructor, &[class, base, state]) => {
                let class = self.class(class).ok_or_else(refused)?;
                match (class, self.class(base), self.arena.cell(state)) {
                    (Global::UnischemaField, Some(Global::Tuple), Cell::Tuple(Span { length: 5, .. })) => {
                        self.object(class, state)
                    }
                    (class, Some(Global::Object), Cell::None) if class.is_plain() => {
                        let none = self.tuple_of(&[]);
                        let arguments = self.make(none, 0)?;
                        self.object(class, arguments)
                    }
                    _ => Err(refused()),
                }
            }
            (Global::Restore, &[name, fields, values]) => {
                let named = self.arena.text(name).is_some_and(|name| name == "UnischemaField");
                let fields = self.arena.tuple(fields).filter(|fields| fields.len() == FIELD_NAMES.len());
                let same = fields.is_some_and(|fields| {
                    fields
                        .iter()
                        .zip(FIELD_NAMES)
                        .all(|(&id, name)| self.arena.text(id).is_some_and(|text| text == name))
                });
                let values_fit = self.arena.tuple(values).is_some_and(|values| values.len() == FIELD_NAMES.len());
                if !(named && same && values_fit) {
                    return Err(refused());
                }
                self.object(Global::UnischemaField, values)
            }
            (Global::Encode, &[text, encoding]) => {
                if !self.arena.text(encoding).is_some_and(|name| matches!(&*name, "latin1" | "latin-1")) {
                    return Err(refused());
                }
                let text = self.arena.text(text).ok_or_else(refused)?;
                // Charged before the copy: the same text may be encoded again and again.
                let length = text.len() as u64;
                let bytes: Option<Vec<u8>> = if length * 2 > self.budget.left {
                    return Err(self.budget.exceeded(self.budget.limit.saturating_add(length)));
                } else {
                    text.chars().map(|char| u8::try_from(u32::from(char)).ok()).collect()
                };
                let bytes = bytes.ok_or_else(refused)?;
                let span = self.keep(&bytes)?;
                self.push(Cell::Bytes(span), 0)
            }
            (Global::OrderedDict, &[]) => self.list_of(Cell::Dict, Vec::new()),
            (Global::OrderedDict, &[pairs]) => {
                let pairs = self.arena.elements(pairs).ok_or_else(refused)?.to_vec();
                self.budget.charge(pairs.len() as u64 * ELEMENT)?;
                let mut flat = Vec::with_capacity(pairs.len() * 2);
                for pair in pairs {
                    match self.arena.elements(pair) {
                        Some(&[key, value]) => flat.extend([key, value]),
                        _ => return Err(self.corrupt("an OrderedDict of something that is no pair")),
                    }
                }
                self.list_of(Cell::Dict, flat)
            }
            (Global::DefaultDict, &[]) => self.list_of(Cell::Dict, Vec::new()),
            // The factory makes a set for each new key; nothing here asks for new keys.
            (Global::DefaultDict, &[factory]) if self.class(factory) == Some(Global::Set) => {
                self.list_of(Cell::Dict, Vec::new())
            }
            (Global::Set | Global::FrozenSet, &[]) => self.list_of(Cell::Set, Vec::new()),
            (Global::Set | Global::FrozenSet, &[elements]) => {
                let elements = self.arena.elements(elements).ok_or_else(refused)?;
                // The same list may be named again and again: charged before the copy.
                if elements.len() as u64 * ELEMENT > self.budget.left {
                    return Err(self.budget.exceeded(self.budget.limit.saturating_add(elements.len() as u64)));
                }
                let elements = elements.to_vec();
                self.list_of(Cell::Set, elements)
            }
            (Global::Dtype, &[spec] | &[spec, _, _]) if self.arena.text(spec).is_some() => {
                self.object(class, arguments)
            }
            (Global::NumpyScalar, &[dtype, _])
                if self.arena.object(dtype).is_some_and(|object| object.class == Global::Dtype) =>
            {
                self.object(class, arguments)
            }
            _ => Err(refused()),
        }
    }

    fn new_object(&mut self) -> Result<()> {
        let (arguments, callable) = (self.pop()?, self.pop()?);
        let count = self.arena.tuple(arguments).map(<[Id]>::len);
        match (self.class(callable), count) {
            (Some(class @ Global::UnischemaField), Some(3..=5)) => self.object(class, arguments),
            (Some(class), Some(0)) if class.is_plain() => self.object(class, arguments),
            _ => Err(self.refuse_call(callable, "NEWOBJ")),
        }
    }

    /// BUILD runs `__setstate__` in Python. Here an object keeps its state, once.
    fn build(&mut self) -> Result<()> {
        let state = self.pop()?;
        let target = self.top()?;
        let (Cell::Object(index), Some(object)) = (self.arena.cell(target), self.arena.object(target)) else {
            return Err(self.refuse_call(target, "BUILD"));
        };
        let fits = match (object.class, self.arena.cell(state)) {
            (Global::Dtype, Cell::Tuple(_)) => true,
            (class, Cell::Dict(_)) => class.is_plain(),
            _ => false,
        };
        if !fits || object.state.is_some() {
            return Err(self.refuse_call(target, "BUILD"));
        }
        let depth = self.arena.depth(target).max(self.arena.depth(state) + 1);
        if depth > MAX_DEPTH {
            return Err(self.too_deep());
        }
        if let Some(object) = self.arena.objects.get_mut(index as usize) {
            object.state = Some(state);
        }
        if let Some(known) = self.arena.depths.get_mut(target as usize) {
            *known = depth;
        }
        Ok(())
    }
}

/// Instructions that Python has and this machine has not.
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

fn clipped(name: &str) -> String {
    let mut text: String = name.chars().take(100).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.len() < name.len() {
        text.push_str("...");
    }
    text
}

fn hex(digits: Option<&[u8]>) -> Option<u32> {
    let digits = std::str::from_utf8(digits?).ok().filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

/// The bytes of a Python 2 string literal.
fn unescape(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        rest = tail;
        if first != b'\\' {
            bytes.push(first);
            continue;
        }
        let (&escape, tail) = rest.split_first()?;
        rest = tail;
        match escape {
            b'\\' | b'\'' | b'"' => bytes.push(escape),
            b'n' => bytes.push(b'\n'),
            b'r' => bytes.push(b'\r'),
            b't' => bytes.push(b'\t'),
            b'a' => bytes.push(7),
            b'b' => bytes.push(8),
            b'v' => bytes.push(11),
            b'f' => bytes.push(12),
            b'x' => {
                bytes.push(u8::try_from(hex(rest.get(..2))?).ok()?);
                rest = rest.get(2..)?;
            }
            b'0'..=b'7' => {
                let mut value = u32::from(escape - b'0');
                for _ in 0..2 {
                    let Some((&digit @ b'0'..=b'7', tail)) = rest.split_first() else { break };
                    value = value * 8 + u32::from(digit - b'0');
                    rest = tail;
                }
                bytes.push(u8::try_from(value).ok()?);
            }
            other => bytes.extend([b'\\', other]),
        }
    }
    Some(bytes)
}

fn unescape_unicode(text: &[u8]) -> Option<String> {
    let mut decoded = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, tail)) = rest.split_first() {
        let digits = match (first, tail.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                decoded.push(char::from(first));
                rest = tail;
                continue;
            }
        };
        let mut code = hex(tail.get(1..=digits))?;
        rest = tail.get(1 + digits..)?;
        // A narrow Python 2 writes what is beyond 16 bits as a pair.
        if let (0xd800..0xdc00, Some(tail)) = (code, rest.strip_prefix(b"\\u"))
            && let Some(low @ 0xdc00..0xe000) = hex(tail.get(..4))
        {
            code = 0x1_0000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            rest = tail.get(4..)?;
        }
        decoded.push(char::from_u32(code)?);
    }
    Some(decoded)
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
