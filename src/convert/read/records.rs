//! Records of values separated by commas or tabs, one at a time, as in RFC 4180: cells may be quoted, and then contain line ends.
//! `csv-core` accepts any bytes in cells: errors that are reported here with their place (a quote within a cell, a lone carriage
//! return, a text that ends in quotes) it passes as data, and it does not report which cells were quoted, which distinguishes an empty
//! text from a null.

use std::sync::Arc;

use super::files::Found;
use super::input::Input;
use crate::convert::limits::Limits;
use crate::error::{Error, Place, Result};

const RETURN: &str = "a carriage return stands alone outside of quotes; lines end in \\n or \\r\\n";

/// Ends a cell of `text`, and the line if it is its `last` one.
fn end(text: &mut Vec<u8>, ends: &mut Vec<(usize, bool)>, quoted: bool, last: bool) -> Result<(), &'static str> {
    let start = ends.last().map_or(0, |(end, _)| *end);
    if !quoted && last && text.len() > start && text.last() == Some(&b'\r') {
        text.pop();
    }
    ends.push((text.len(), quoted));
    // Lines that end in a lone carriage return would silently become a single record.
    let alone = !quoted && text.get(start..).unwrap_or_default().contains(&b'\r');
    if alone { Err(RETURN) } else { Ok(()) }
}

/// Returns true if a line has nothing in it, not even a cell in quotes.
fn is_blank(text: &[u8], ends: &[(usize, bool)], quoted: bool) -> bool {
    ends.is_empty() && !quoted && matches!(text, b"" | b"\r")
}

/// Reads the records of one file.
pub(crate) struct Records {
    pub(crate) input: Input,
    limits: Limits,
    separator: u8,
    /// The cells' text without quotes, concatenated.
    text: Vec<u8>,
    /// End of each in `text`, and whether it was quoted.
    ends: Vec<(usize, bool)>,
    /// Number of the line where the last record ended.
    line: u64,
    /// Number of the line where the last record began.
    pub(crate) started: u64,
    /// The byte of that.
    at: u64,
    /// Number of records read, without the header.
    pub(crate) rows: u64,
}

impl Records {
    pub(crate) fn open(found: &Found, limits: &Limits, separator: u8) -> Result<Self> {
        let mut input = Input::open(found, false)?;
        input.skip_mark()?;
        let limits = limits.clone();
        Ok(Self { input, limits, separator, text: Vec::new(), ends: Vec::new(), line: 1, started: 1, at: 0, rows: 0 })
    }

    /// Reports a fault of the last record.
    pub(crate) fn corrupt(&self, what: impl std::fmt::Display) -> Error {
        let place = Place::file(Arc::clone(self.input.name()));
        Error::corrupt(place, format!("line {} (byte {}): {what}", self.started, self.at))
    }

    /// Reads the names in the first record.
    pub(crate) fn header(&mut self) -> Result<Vec<String>> {
        if !self.read()? {
            return Err(self.corrupt("it is empty; the first line names the columns"));
        }
        let mut names = Vec::with_capacity(self.ends.len());
        for (number, (cell, _)) in self.cells().enumerate() {
            let name = std::str::from_utf8(cell).map_err(|_| self.corrupt("the header is not UTF-8"))?;
            names.push(if name.is_empty() { format!("column_{number}") } else { name.to_owned() });
        }
        let mut sorted: Vec<&String> = names.iter().collect();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(self.corrupt(format!("the header names {:?} twice", twice[0])));
        }
        Ok(names)
    }

    /// Reads the next record of `width` cells; false at the end.
    pub(crate) fn next(&mut self, width: usize) -> Result<bool> {
        if !self.read()? {
            return Ok(false);
        }
        if self.ends.len() != width {
            return Err(self.corrupt(format!("a record has {} cells, the header has {width}", self.ends.len())));
        }
        self.rows += 1;
        Ok(true)
    }

    pub(crate) fn cells(&self) -> impl Iterator<Item = (&[u8], bool)> {
        let mut start = 0;
        self.ends.iter().map(move |(end, quoted)| {
            let cell = self.text.get(start..*end).unwrap_or_default();
            start = *end;
            (cell, *quoted)
        })
    }

    /// Reads a record of any width. A blank line is none, as for other readers: a null of a single column has no text.
    fn read(&mut self) -> Result<bool> {
        self.text.clear();
        self.ends.clear();
        self.at = self.input.offset();
        self.started = self.line;
        // Outside of quotes, inside, after a quote that may end them, or between it and the end of the line.
        #[derive(Clone, Copy, PartialEq)]
        enum State {
            Start,
            Plain,
            Quoted,
            Closed,
            Returned,
        }
        let mut state = State::Start;
        let mut quoted = false;
        loop {
            let (separator, most) = (self.separator, self.limits.max_record_bytes);
            let before = self.input.offset();
            let buffer = self.input.peek()?;
            if buffer.is_empty() {
                if state == State::Quoted {
                    return Err(self.corrupt("it ends within quotes"));
                }
                if is_blank(&self.text, &self.ends, quoted) {
                    return Ok(false);
                }
                end(&mut self.text, &mut self.ends, quoted, true).map_err(|why| self.corrupt(why))?;
                return Ok(true);
            }
            let (mut used, mut ended) = (0, false);
            let mut wrong = None;
            while let Some(byte) = buffer.get(used) {
                used += 1;
                match (state, *byte) {
                    (State::Quoted, b'"') => state = State::Closed,
                    (State::Quoted, byte) => {
                        self.line += u64::from(byte == b'\n');
                        // Skips to the next quote.
                        self.text.push(byte);
                        let rest = buffer.get(used..).unwrap_or_default();
                        let run = rest.iter().position(|byte| matches!(byte, b'"' | b'\n')).unwrap_or(rest.len());
                        self.text.extend_from_slice(rest.get(..run).unwrap_or_default());
                        used += run;
                    }
                    (State::Closed, b'"') => {
                        self.text.push(b'"');
                        state = State::Quoted;
                    }
                    (State::Start, b'"') => {
                        quoted = true;
                        state = State::Quoted;
                    }
                    (_, b'\n') => {
                        self.line += 1;
                        if is_blank(&self.text, &self.ends, quoted) {
                            self.text.clear();
                            self.started = self.line;
                            self.at = before + used as u64;
                            state = State::Start;
                            continue;
                        }
                        wrong = end(&mut self.text, &mut self.ends, quoted, true).err();
                        ended = true;
                        break;
                    }
                    (State::Returned, _) => {
                        wrong = Some(RETURN);
                        break;
                    }
                    (_, byte) if byte == separator => {
                        wrong = end(&mut self.text, &mut self.ends, quoted, false).err();
                        quoted = false;
                        state = State::Start;
                        if wrong.is_some() || self.ends.len() > self.limits.max_columns {
                            break;
                        }
                    }
                    (State::Closed, b'\r') => state = State::Returned,
                    (State::Closed, _) => {
                        wrong = Some("text follows the end of quotes");
                        break;
                    }
                    (_, byte) => {
                        state = State::Plain;
                        self.text.push(byte);
                        let rest = buffer.get(used..).unwrap_or_default();
                        let run =
                            rest.iter().position(|byte| *byte == separator || *byte == b'\n').unwrap_or(rest.len());
                        self.text.extend_from_slice(rest.get(..run).unwrap_or_default());
                        used += run;
                    }
                }
                if self.text.len() as u64 > most {
                    break;
                }
            }
            self.input.consume(used);
            if let Some(why) = wrong {
                return Err(self.corrupt(why));
            }
            let name = Arc::clone(self.input.name());
            self.limits.columns(&name, || format!("the record in line {}", self.started), self.ends.len())?;
            let bytes = self.text.len() as u64;
            self.limits.record(&name, || format!("byte {}: a record", self.at), bytes)?;
            if ended {
                return Ok(true);
            }
        }
    }
}
