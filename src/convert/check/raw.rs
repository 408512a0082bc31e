//! Rows of a text as raw tokens: a second reading for verification that shares only the file with the first.
//!
//! It is short rather than fast, and does not interpret types.

use std::sync::Arc;

use crate::convert::format::Format;
use crate::convert::limits::Limits;
use crate::convert::read::files::Found;
use crate::convert::read::input::Input;
use crate::error::{Error, Place, Result};

/// Deepest nesting of JSON.
const MAX_DEPTH: usize = 128;

/// A token, or a container of tokens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Raw {
    Null,
    Bare(String),
    Quoted(String),
    List(Vec<Self>),
    Object(Vec<(String, Self)>),
}

/// The values of one row by the names of their columns.
pub(crate) type Row = Vec<(Arc<str>, Raw)>;

/// The rows of one file.
#[derive(Debug)]
pub(crate) struct RawRows {
    input: Input,
    limits: Limits,
    /// For a CSV file, the separator of cells; else `None`.
    separator: Option<u8>,
    names: Vec<Arc<str>>,
    /// Number of the last line read.
    lines: u64,
    line: Vec<u8>,
}

impl RawRows {
    pub(crate) fn open(found: &Found, limits: &Limits, format: Format) -> Result<Self> {
        let mut input = Input::open(found, false)?;
        let separator = format.separator();
        if input.peek()?.starts_with(b"\xef\xbb\xbf") {
            input.consume(3);
        }
        let limits = limits.clone();
        let mut rows = Self { input, limits, separator, names: Vec::new(), lines: 0, line: Vec::new() };
        if let Some(separator) = separator {
            let names = rows.record(separator)?.unwrap_or_default().into_iter().enumerate();
            let name = |(number, cell): (usize, Raw)| match cell {
                Raw::Bare(name) | Raw::Quoted(name) if !name.is_empty() => name.into(),
                _ => format!("column_{number}").into(),
            };
            rows.names = names.map(name).collect();
        }
        Ok(rows)
    }

    /// Returns an error about the row just read, or a column of it.
    pub(crate) fn wrong(&self, column: Option<&str>, what: &str) -> Error {
        let mut place = Place::file(Arc::clone(self.input.name()));
        place.column = column.map(Into::into);
        Error::corrupt(place, format!("up to line {}: {what}", self.lines))
    }

    /// Returns the next row: values by column name.
    pub(crate) fn next(&mut self) -> Result<Option<Row>> {
        if let Some(separator) = self.separator {
            let Some(cells) = self.record(separator)? else { return Ok(None) };
            if cells.len() != self.names.len() {
                return Err(self.wrong(None, &format!("{} cells, {} names", cells.len(), self.names.len())));
            }
            return Ok(Some(self.names.iter().cloned().zip(cells).collect()));
        }
        loop {
            if !self.take()? {
                return Ok(None);
            }
            if self.line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let mut at = 0;
            let value = json(&self.line, &mut at, 0).map_err(|what| self.wrong(None, &what))?;
            let rest = self.line.get(at..).unwrap_or_default();
            return match value {
                Raw::Object(members) if rest.iter().all(u8::is_ascii_whitespace) => {
                    Ok(Some(members.into_iter().map(|(name, value)| (name.into(), value)).collect()))
                }
                _ => Err(self.wrong(None, "no object, or more than one")),
            };
        }
    }

    fn take(&mut self) -> Result<bool> {
        self.line.clear();
        self.lines += 1;
        self.input.line(&self.limits, &mut self.line)
    }

    /// Reads the cells of the next record.
    fn record(&mut self, separator: u8) -> Result<Option<Vec<Raw>>> {
        let (mut cells, mut cell, mut inside, mut quoted, mut bytes) = (Vec::new(), Vec::new(), false, false, 0);
        loop {
            if !self.take()? {
                return if inside { Err(self.wrong(None, "it ends within quotes")) } else { Ok(None) };
            }
            bytes += self.line.len() as u64;
            self.limits.record(self.input.name(), || format!("line {}: a record", self.lines), bytes)?;
            if !inside && matches!(&*self.line, b"\n" | b"\r\n" | b"\r") {
                continue;
            }
            let mut rest = self.line.iter().copied().peekable();
            while let Some(byte) = rest.next() {
                match byte {
                    b'"' if inside && rest.peek() == Some(&b'"') => {
                        rest.next();
                        cell.push(byte);
                    }
                    b'"' if inside => inside = false,
                    _ if inside => cell.push(byte),
                    b'"' if cell.is_empty() && !quoted => (inside, quoted) = (true, true),
                    b'\n' => {}
                    b'\r' if matches!(rest.peek(), None | Some(b'\n')) => {}
                    byte if byte == separator => cells.push(token(&mut cell, &mut quoted)),
                    byte => cell.push(byte),
                }
            }
            if !inside {
                cells.push(token(&mut cell, &mut quoted));
                let cells: Option<Vec<Raw>> = cells.into_iter().collect();
                return cells.map(Some).ok_or_else(|| self.wrong(None, "a cell is not UTF-8"));
            }
        }
    }
}

/// Completes a cell; `None` if it is not UTF-8.
fn token(cell: &mut Vec<u8>, quoted: &mut bool) -> Option<Raw> {
    let text = String::from_utf8(std::mem::take(cell)).ok()?;
    Some(match std::mem::take(quoted) {
        true => Raw::Quoted(text),
        false if text.is_empty() => Raw::Null,
        false => Raw::Bare(text),
    })
}

/// Parses the JSON value at byte `at`, and advances `at` past it.
fn json(bytes: &[u8], at: &mut usize, depth: usize) -> Result<Raw, String> {
    let next = |at: &mut usize| {
        while bytes.get(*at).is_some_and(u8::is_ascii_whitespace) {
            *at += 1;
        }
        bytes.get(*at).copied()
    };
    let text = |at: &mut usize| -> Result<String, String> {
        let start = *at;
        *at += 1;
        while let Some(byte) = bytes.get(*at).filter(|byte| **byte != b'"') {
            *at += if *byte == b'\\' { 2 } else { 1 };
        }
        *at += 1;
        serde_json::from_slice(bytes.get(start..*at).unwrap_or_default()).map_err(|error| error.to_string())
    };
    if depth > MAX_DEPTH {
        return Err("it is nested too deep".to_owned());
    }
    match next(at) {
        Some(b'"') => text(at).map(Raw::Quoted),
        Some(open @ (b'[' | b'{')) => {
            let close = if open == b'[' { b']' } else { b'}' };
            let (mut items, mut members) = (Vec::new(), Vec::new());
            *at += 1;
            while next(at).ok_or("it is cut short")? != close {
                if open == b'{' {
                    let name = text(at)?;
                    if next(at) != Some(b':') {
                        return Err("a colon is missing".to_owned());
                    }
                    *at += 1;
                    members.push((name, json(bytes, at, depth + 1)?));
                } else {
                    items.push(json(bytes, at, depth + 1)?);
                }
                match next(at) {
                    Some(b',') => *at += 1,
                    Some(byte) if byte == close => {}
                    _ => return Err("a comma is missing".to_owned()),
                }
            }
            *at += 1;
            Ok(if open == b'[' { Raw::List(items) } else { Raw::Object(members) })
        }
        _ => {
            let rest = bytes.get(*at..).unwrap_or_default();
            let ends = |byte: &u8| matches!(byte, b',' | b']' | b'}' | b':') || byte.is_ascii_whitespace();
            let word = rest.get(..rest.iter().position(ends).unwrap_or(rest.len())).unwrap_or_default();
            *at += word.len();
            match std::str::from_utf8(word) {
                Ok("null") => Ok(Raw::Null),
                Ok("") | Err(_) => Err("a value is missing".to_owned()),
                Ok(word) => Ok(Raw::Bare(word.to_owned())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, format: Format, text: &str) -> Result<Vec<Row>> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        let mut rows = RawRows::open(&Found::of(&path).unwrap(), &Limits::default(), format)?;
        let mut all = Vec::new();
        while let Some(row) = rows.next()? {
            all.push(row);
        }
        Ok(all)
    }

    #[test]
    fn tokens_of_csv_stay_as_they_are() {
        let text = "\u{feff}a,b,\r\n007,\"x\"\"\ny\",\n\n\"\",5\" pipe,1.50\r\n";
        let (bare, quoted) = (|text: &str| Raw::Bare(text.into()), |text: &str| Raw::Quoted(text.into()));
        let found = read("x.csv", Format::Csv, text).unwrap();
        let names: Vec<&str> = found[0].iter().map(|(name, _)| &**name).collect();
        assert_eq!(names, ["a", "b", "column_2"]);
        let cells: Vec<Vec<Raw>> =
            found.into_iter().map(|row| row.into_iter().map(|(_, cell)| cell).collect()).collect();
        assert_eq!(cells[0], [bare("007"), quoted("x\"\ny"), Raw::Null]);
        assert_eq!(cells[1], [quoted(""), bare("5\" pipe"), bare("1.50")]);
        assert_eq!(cells.len(), 2);
        assert_eq!(read("x.tsv", Format::Tsv, "a\tb\n1\t2").unwrap()[0][1].1, bare("2"));
        assert_eq!(read("x.csv", Format::Csv, "a\n\n1\n\r").unwrap().len(), 1, "blank lines are no rows");
        assert!(read("x.csv", Format::Csv, "a,b\n1,\"2").is_err());
        assert!(read("x.csv", Format::Csv, "a,b\n1\n").is_err());
    }

    #[test]
    fn tokens_of_json_stay_as_they_are() {
        let text = "\n{\"a\": 1.50, \"b\": [\"\\u00e9\", null, {}], \"c\" : {\"d\":1e400}}\n";
        let found = read("x.jsonl", Format::Jsonl, text).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0][0], ("a".into(), Raw::Bare("1.50".into())));
        assert_eq!(found[0][1].1, Raw::List(vec![Raw::Quoted("é".into()), Raw::Null, Raw::Object(Vec::new())]));
        assert_eq!(found[0][2].1, Raw::Object(vec![("d".into(), Raw::Bare("1e400".into()))]));
        for text in ["[1]", "{} {}", "{\"a\"}", "{\"a\": }", "{\"a\": 1", "{\"a\": \"", "{\"a\": [1 2]}"] {
            assert!(read("x.jsonl", Format::Jsonl, text).is_err(), "{text}");
        }
    }
}
