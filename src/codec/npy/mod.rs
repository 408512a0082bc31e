//! NumPy's arrays in the cells of a binary column: `.npy` and `.npz`, straight into their rows of a batch.
//!
//! ```text
//!   .npy ──────────────── header ── checks ── copy ─────────────► row of the batch: C order, little endian
//!   .npz ── entry ── inflate its header ──┘    └─ inflate ──────►
//!                                              └─ Fortran order: by tiles ─►
//! ```
//! | file | content |
//! |---|---|
//! | `element` | the type of an element: `<f8`, `>M8[ms]`, `<U12` |
//! | `header` | the Python literal at the start, by a parser for only that |
//! | `zip` | the one entry of an `.npz` |
//! | `order` | Fortran order and big endian to a tensor's order |
//! | `write` | arrays to cells |
//!
//! Nothing here runs the content of a cell, opens anything that it names, or allocates a claimed size before comparing
//! it with the actual one.

mod element;
mod header;
mod limits;
mod order;
mod write;
mod zip;

use std::cell::Cell;

pub use element::{Kind, Npy, Unit};
pub use header::{Header, header};
pub use limits::Limits;
pub use write::{write_npy, write_npz};

use crate::error::{Error, Place, Result};
use crate::schema::{Codec, Element, Stored};
use zip::{Entry, Unpack};

/// Reads the header of the array in an `.npz`, whatever its elements and axes.
///
/// # Errors
/// As [`header`](fn@header), and `Limit` if it would unpack to too much.
pub fn npz_header(cell: &[u8]) -> Result<Header> {
    unzip(cell, &Limits::default()).map(|(header, _)| header)
}

/// The header of an `.npz`, and the rest to unpack.
fn unzip<'a>(cell: &'a [u8], limits: &Limits) -> Result<(Header, Unpack<'a>)> {
    let entry = Entry::find(cell, limits)?;
    let mut unpack = Unpack::new(&entry);
    let mut head = vec![0; header::START];
    unpack.fill(&mut head)?;
    head.resize(header::extent(&head)?, 0);
    unpack.fill(&mut head[header::START..])?;
    Ok((header::parse(&head, entry.size)?, unpack))
}

/// Decodes the arrays of one column.
///
/// ```
/// use bowstring::codec::npy::{Npy, NpyDecoder, write_npz};
/// use bowstring::schema::{Codec, DType, Element, Stored};
///
/// let mut cell = Vec::new();
/// write_npz(&Npy::number(DType::Uint8), &[2, 3], &[1, 2, 3, 4, 5, 6], &mut cell)?;
/// let stored = Stored { codec: Codec::Npz, element: Element::Number(DType::Uint8), shape: vec![None, Some(3)] };
/// let decoder = NpyDecoder::new(&stored)?;
/// assert_eq!(decoder.shape(&cell)?, [2, 3]);
/// let mut row = [0; 6];
/// decoder.decode_into(&cell, &mut row)?;
/// assert_eq!(row, [1, 2, 3, 4, 5, 6]);
/// # Ok::<(), bowstring::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct NpyDecoder {
    zipped: bool,
    element: Element,
    shape: Vec<Option<usize>>,
    unit: Option<Unit>,
    limits: Limits,
}

impl NpyDecoder {
    /// A decoder of cells with this storage.
    ///
    /// # Errors
    /// `Config` if the cells are not arrays, or have an impossible shape.
    pub fn new(stored: &Stored) -> Result<Self> {
        let zipped = match stored.codec {
            Codec::Npy => false,
            Codec::Npz => true,
            other => return Err(Error::config("stored.codec", format!("{other:?} is not an array of NumPy"))),
        };
        let lens: Vec<usize> = stored.shape.iter().flatten().copied().collect();
        let size = Npy { size: 8, ..Npy::number(crate::schema::DType::Uint8) };
        if stored.shape.len() > header::MAX_AXES || header::bytes(&size, &lens).is_none() {
            return Err(Error::config("stored.shape", format!("{:?} is not the shape of an array", stored.shape)));
        }
        let (element, shape) = (stored.element.clone(), stored.shape.clone());
        Ok(Self { zipped, element, shape, unit: None, limits: Limits::default() })
    }

    /// The same decoder with other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The same decoder with times in `unit`: cells in other units are converted if that is exact, and refused
    /// otherwise.
    #[must_use]
    pub fn with_unit(mut self, unit: Unit) -> Self {
        self.unit = Some(unit);
        self
    }

    /// The shape of the cell's value, from its header alone: no more of an `.npz` is unpacked.
    ///
    /// # Errors
    /// `Corrupt` if the header is damaged, claims more than the cell has, or differs from the declaration;
    /// `Unsupported` for elements without a tensor; `Limit` if an `.npz` would unpack to too much.
    pub fn shape(&self, cell: &[u8]) -> Result<Vec<usize>> {
        self.header(cell).map(|header| header.shape)
    }

    /// The unit of the cell's times (`datetime64`, `timedelta64`), as delivered; `None` for other elements.
    ///
    /// # Errors
    /// As [`shape`](Self::shape).
    pub fn unit(&self, cell: &[u8]) -> Result<Option<Unit>> {
        let stored = self.header(cell)?.element.unit;
        Ok(stored.map(|stored| self.unit.unwrap_or(stored)))
    }

    /// The content of the cell's header, checked against the declaration. For an `.npz`, `data` is the range of the
    /// elements once unpacked.
    ///
    /// # Errors
    /// As [`shape`](Self::shape).
    pub fn header(&self, cell: &[u8]) -> Result<Header> {
        let header = if self.zipped { self.open(cell)?.0 } else { header::header(cell)? };
        self.check(&header)?;
        Ok(header)
    }

    /// Writes the value to `row`, in C order and little endian. The length of `row` is the product of
    /// [`shape`](Self::shape) times the size of an element.
    ///
    /// # Errors
    /// As [`shape`](Self::shape), and `Corrupt` if an `.npz` does not unpack to what it claims, with the sum it claims;
    /// `Mismatch` if `row` has another length; `Config` if the elements are strings, see [`strings`](Self::strings).
    pub fn decode_into(&self, cell: &[u8], row: &mut [u8]) -> Result<()> {
        if matches!(self.element, Element::Text | Element::Bytes) {
            return Err(Error::config("stored.element", "strings have no tensor form"));
        }
        let header = if self.zipped {
            let (header, mut unpack) = self.open(cell)?;
            self.check(&header)?;
            fits(&header, row)?;
            if header.fortran && order::differs(&header.shape) {
                let mut scratch = SCRATCH.take();
                let array = grow(&mut scratch, row.len());
                let unpacked = unpack.fill(array).and_then(|()| unpack.finish());
                if unpacked.is_ok() {
                    order::transpose(array, row, &header.shape, header.element.size);
                }
                if scratch.capacity() <= KEEP {
                    SCRATCH.set(scratch);
                }
                unpacked?;
            } else {
                unpack.fill(row)?;
                unpack.finish()?;
            }
            if header.element.big {
                order::swap(row, header.element.size);
            }
            header
        } else {
            let header = header::header(cell)?;
            self.check(&header)?;
            fits(&header, row)?;
            let array = cell.get(header.data.clone()).unwrap_or_default();
            if header.fortran && order::differs(&header.shape) {
                order::transpose(array, row, &header.shape, header.element.size);
                if header.element.big {
                    order::swap(row, header.element.size);
                }
            } else if header.element.big {
                order::copy_swapped(array, row, header.element.size);
            } else {
                row.copy_from_slice(array);
            }
            header
        };
        self.polish(&header, row)
    }

    /// The strings of an array, in C order.
    ///
    /// # Errors
    /// As [`decode_into`](Self::decode_into), and `Corrupt` for text that is not Unicode; `Config` if the elements are
    /// not strings.
    pub fn strings(&self, cell: &[u8]) -> Result<Strings> {
        self.strings_within(cell, usize::MAX)
    }

    /// The bytes of a cell, times `packed` if they are packed.
    pub(crate) fn packed_by(&self, cell: &[u8], packed: usize) -> usize {
        cell.len().saturating_mul(if self.zipped { packed } else { 1 })
    }

    /// As [`strings`](Self::strings), but an error, before any string is made, if there are more than `most`.
    pub(crate) fn strings_within(&self, cell: &[u8], most: usize) -> Result<Strings> {
        if !matches!(self.element, Element::Text | Element::Bytes) {
            return Err(Error::config("stored.element", "numbers are not strings"));
        }
        if !self.zipped {
            let header = self.header(cell)?;
            let array = cell.get(header.data.clone()).unwrap_or_default();
            at_most(&header, most)?;
            return self.split(&header, array);
        }
        let (header, mut unpack) = self.open(cell)?;
        self.check(&header)?;
        at_most(&header, most)?;
        let mut array = vec![0; header.data.len()];
        unpack.fill(&mut array)?;
        unpack.finish()?;
        self.split(&header, &array)
    }

    /// The header of an `.npz`, and the rest to unpack.
    fn open<'a>(&self, cell: &'a [u8]) -> Result<(Header, Unpack<'a>)> {
        unzip(cell, &self.limits)
    }

    /// Checks a cell against the declaration of its column.
    fn check(&self, header: &Header) -> Result<()> {
        let element = &header.element;
        let same = match &self.element {
            Element::Number(dtype) => element.unit.is_none() && element.dtype() == Some(*dtype),
            Element::Time => element.unit.is_some(),
            Element::Timedelta => element.kind == Kind::Timedelta,
            Element::Text => element.kind == Kind::Text,
            Element::Bytes => element.kind == Kind::Bytes,
        };
        if !same {
            let declared = match &self.element {
                Element::Number(dtype) => dtype.name(),
                Element::Time => "datetime64 or timedelta64",
                Element::Timedelta => "timedelta64",
                Element::Text => "str_",
                Element::Bytes => "bytes_",
            };
            return Err(corrupt(format!("an array of {element} where {declared} is declared")));
        }
        let fits = |(own, declared): (&usize, &Option<usize>)| declared.is_none_or(|declared| declared == *own);
        if header.shape.len() != self.shape.len() || !header.shape.iter().zip(&self.shape).all(fits) {
            let declared: Vec<String> =
                self.shape.iter().map(|axis| axis.map_or("None".into(), |len| len.to_string())).collect();
            return Err(corrupt(format!("shape {:?} where [{}] is declared", header.shape, declared.join(", "))));
        }
        if let (Some(unit), Some(stored)) = (self.unit, element.unit)
            && stored.per(unit).is_none()
        {
            return Err(corrupt(format!(
                "times in {stored}, which are not whole numbers of {unit} as other cells have"
            )));
        }
        Ok(())
    }

    /// Normalises values beyond their bits: booleans are 0 or 1, and times have one unit.
    fn polish(&self, header: &Header, row: &mut [u8]) -> Result<()> {
        if header.element.kind == Kind::Bool {
            for value in &mut *row {
                *value = u8::from(*value != 0);
            }
        }
        let factor = self.unit.zip(header.element.unit).and_then(|(unit, stored)| stored.per(unit)).unwrap_or(1);
        if factor != 1 {
            for bytes in row.as_chunks_mut().0 {
                let time = i64::from_le_bytes(*bytes);
                // The smallest number is "not a time" in every unit.
                if time != i64::MIN {
                    let converted = time.checked_mul(factor).filter(|time| *time != i64::MIN);
                    let converted =
                        converted.ok_or_else(|| corrupt(format!("the time {time} overflows another unit")))?;
                    *bytes = converted.to_le_bytes();
                }
            }
        }
        Ok(())
    }

    fn split(&self, header: &Header, array: &[u8]) -> Result<Strings> {
        let (count, size) = (header.count(), header.element.size);
        let asked = (count as u64).saturating_mul(size_of::<usize>() as u64);
        if asked > self.limits.max_bytes.max(array.len() as u64 * 2) {
            let what = format!("an array of {count} strings");
            return Err(Error::limit(what, asked, self.limits.max_bytes, "limits.max_bytes"));
        }
        let mut strings = Strings { shape: header.shape.clone(), ends: Vec::with_capacity(count), bytes: Vec::new() };
        for place in order::places(&header.shape, header.fortran) {
            let element = array.get(place * size..).and_then(|rest| rest.get(..size)).unwrap_or_default();
            match header.element.kind {
                Kind::Text => text(element, header.element.big, &mut strings.bytes)?,
                _ => {
                    let len = element.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                    strings.bytes.extend_from_slice(&element[..len]);
                }
            }
            strings.ends.push(strings.bytes.len());
        }
        Ok(strings)
    }
}

/// The strings of one array, in C order. As in NumPy, zeros at the end of a string are not part of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strings {
    /// The shape of the array.
    pub shape: Vec<usize>,
    ends: Vec<usize>,
    bytes: Vec<u8>,
}

impl Strings {
    /// Number of strings: the product of the shape.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Iterates over the strings: UTF-8 if the array is of `str_`.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        let mut start = 0;
        self.ends.iter().map(move |end| &self.bytes[std::mem::replace(&mut start, *end)..*end])
    }
}

/// Appends UTF-32 without its trailing zeros as UTF-8.
fn text(element: &[u8], big: bool, out: &mut Vec<u8>) -> Result<()> {
    let points = element.as_chunks::<4>().0;
    let len = points.iter().rposition(|point| *point != [0; 4]).map_or(0, |last| last + 1);
    for point in &points[..len] {
        let point = if big { u32::from_be_bytes(*point) } else { u32::from_le_bytes(*point) };
        let letter = char::from_u32(point).ok_or_else(|| corrupt(format!("{point:#x} in a string is not Unicode")))?;
        out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
    }
    Ok(())
}

fn at_most(header: &Header, most: usize) -> Result<()> {
    if header.count() <= most {
        return Ok(());
    }
    Err(corrupt(format!("an array of {} strings, of which {most} may still come", header.count())))
}

fn fits(header: &Header, row: &[u8]) -> Result<()> {
    if header.data.len() == row.len() {
        return Ok(());
    }
    Err(Error::Mismatch {
        what: format!("bytes of a row for an array {:?} of {}", header.shape, header.element),
        expected: header.data.len().to_string(),
        found: row.len().to_string(),
        hint: String::new(),
    })
}

thread_local! {
    /// An unpacked array before it is transposed.
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Maximum bytes that a thread keeps from cell to cell.
const KEEP: usize = 32 << 20;

/// The first `len` bytes of `buffer`, which grows but is not cleared.
fn grow(buffer: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if buffer.len() < len {
        buffer.clear();
        buffer.resize(len, 0);
    }
    &mut buffer[..len]
}

fn corrupt(what: impl Into<String>) -> Error {
    Error::corrupt(Place::default(), what)
}
