//! Values of a pickle: cells that refer to each other by number. Nothing nests in memory, so nothing recurses when it is made,
//! looked at or dropped, and a value that is mentioned a million times is there once.

use std::borrow::Cow;

use super::globals::Global;

/// Bytes of the longest name of an attribute or a dtype.
const LONGEST_NAME: u32 = 256;

/// The number of a cell.
pub(super) type Id = u32;

/// A run of bytes: of the input, or behind its end of the decoded strings.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) start: u32,
    pub(super) length: u32,
}

/// One value. Small and plain, so that a pickle cannot build much more than it is long.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cell {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Unicode; checked to be UTF-8.
    Text(Span),
    /// Bytes of Python 3.
    Bytes(Span),
    /// `str` of Python 2: text or bytes, depending on the reader.
    Str2(Span),
    /// Elements within [`Arena::items`].
    Tuple(Span),
    /// Index into [`Arena::lists`]; so are set and dict, the latter with keys and values by turns.
    List(u32),
    Set(u32),
    Dict(u32),
    Class(Global),
    /// Index into [`Arena::objects`].
    Object(u32),
}

/// An instance of a class of the closed list: what its constructor would have been given, and its state.
#[derive(Debug, Clone, Copy)]
pub(super) struct Object {
    pub(super) class: Global,
    /// A tuple.
    pub(super) arguments: Id,
    /// A dict, or the tuple of a dtype.
    pub(super) state: Option<Id>,
}

/// All cells of one pickle.
#[derive(Debug, Default)]
pub(super) struct Arena<'a> {
    pub(super) input: &'a [u8],
    /// Strings that are not in the input as they are.
    pub(super) decoded: Vec<u8>,
    pub(super) cells: Vec<Cell>,
    /// Levels below each cell, as of when it was made.
    pub(super) depths: Vec<u8>,
    pub(super) items: Vec<Id>,
    pub(super) lists: Vec<Vec<Id>>,
    pub(super) objects: Vec<Object>,
}

impl<'a> Arena<'a> {
    pub(super) fn cell(&self, id: Id) -> Cell {
        self.cells.get(id as usize).copied().unwrap_or(Cell::None)
    }

    pub(super) fn depth(&self, id: Id) -> u8 {
        self.depths.get(id as usize).copied().unwrap_or(0)
    }

    pub(super) fn span(&self, span: Span) -> &[u8] {
        let (start, length) = (span.start as usize, span.length as usize);
        let (bytes, start) = match start.checked_sub(self.input.len()) {
            Some(start) => (self.decoded.as_slice(), start),
            None => (self.input, start),
        };
        bytes.get(start..).and_then(|rest| rest.get(..length)).unwrap_or_default()
    }

    /// Text, or a `str` of Python 2 that is UTF-8 or else Latin-1.
    pub(super) fn text(&self, id: Id) -> Option<Cow<'_, str>> {
        match self.cell(id) {
            Cell::Text(span) => std::str::from_utf8(self.span(span)).ok().map(Cow::Borrowed),
            Cell::Str2(span) => {
                let bytes = self.span(span);
                Some(match std::str::from_utf8(bytes) {
                    Ok(text) => Cow::Borrowed(text),
                    Err(_) => Cow::Owned(bytes.iter().map(|&byte| char::from(byte)).collect()),
                })
            }
            _ => None,
        }
    }

    /// As [`text`](Self::text), but nothing if it is longer than any name: repeated looks at a value decode no more
    /// than a few bytes each time.
    pub(super) fn name(&self, id: Id) -> Option<Cow<'_, str>> {
        match self.cell(id) {
            Cell::Text(span) | Cell::Str2(span) if span.length > LONGEST_NAME => None,
            _ => self.text(id),
        }
    }

    /// Bytes, or a `str` of Python 2.
    pub(super) fn bytes(&self, id: Id) -> Option<&[u8]> {
        match self.cell(id) {
            Cell::Bytes(span) | Cell::Str2(span) => Some(self.span(span)),
            _ => None,
        }
    }

    /// The elements of a tuple.
    pub(super) fn tuple(&self, id: Id) -> Option<&[Id]> {
        match self.cell(id) {
            Cell::Tuple(Span { start, length }) => self.items.get(start as usize..)?.get(..length as usize),
            _ => None,
        }
    }

    /// The elements of a tuple, list or set.
    pub(super) fn elements(&self, id: Id) -> Option<&[Id]> {
        match self.cell(id) {
            Cell::List(list) | Cell::Set(list) => self.lists.get(list as usize).map(Vec::as_slice),
            _ => self.tuple(id),
        }
    }

    /// Keys and values of a dict, in the order they were set; if a key comes twice, the last one counts.
    pub(super) fn pairs(&self, id: Id) -> Option<impl DoubleEndedIterator<Item = (Id, Id)> + ExactSizeIterator> {
        let Cell::Dict(list) = self.cell(id) else { return None };
        let flat = self.lists.get(list as usize)?;
        Some(flat.chunks_exact(2).map(|pair| (pair.first().copied().unwrap_or(0), pair.get(1).copied().unwrap_or(0))))
    }

    pub(super) fn object(&self, id: Id) -> Option<Object> {
        match self.cell(id) {
            Cell::Object(object) => self.objects.get(object as usize).copied(),
            _ => None,
        }
    }

    /// The value of attribute `name` of `object`.
    pub(super) fn attribute(&self, object: Object, name: &str) -> Option<Id> {
        let mut pairs = self.pairs(object.state?)?;
        pairs.rfind(|&(key, _)| self.name(key).is_some_and(|key| key == name)).map(|(_, value)| value)
    }

    /// Name of this value in messages; short, whatever it is.
    pub(super) fn describe(&self, id: Id) -> String {
        match self.cell(id) {
            Cell::None => "None".to_owned(),
            Cell::Bool(value) => if value { "True" } else { "False" }.to_owned(),
            Cell::Int(value) => value.to_string(),
            Cell::Float(value) => value.to_string(),
            Cell::Text(span) | Cell::Bytes(span) | Cell::Str2(span) => {
                let bytes = self.span(span);
                let mut text = String::from_utf8_lossy(bytes.get(..40).unwrap_or(bytes)).into_owned();
                if bytes.len() > 40 {
                    text.push_str("...");
                }
                format!("{text:?}")
            }
            Cell::Tuple(_) => "a tuple".to_owned(),
            Cell::List(_) => "a list".to_owned(),
            Cell::Set(_) => "a set".to_owned(),
            Cell::Dict(_) => "a dict".to_owned(),
            Cell::Class(class) => format!("the name {}", class.name()),
            Cell::Object(_) => {
                self.object(id).map_or_else(String::new, |object| format!("an object of {}", object.class.name()))
            }
        }
    }
}
