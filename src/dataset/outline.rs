//! A footer's outline, drawn before a parser sees it: how much there is of everything, and whether what is said twice agrees.
//!
//! The parser believes the schema alone. A column chunk names its type and its path again, and a writer that means two things
//! has written neither: such a file is damaged, and its numbers would be other numbers.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use super::limits::Limits;
use super::shape::{FOOTER, Untyped, conforms};
use super::thrift::{Broken, Reader, kind};
use crate::error::{Error, Place, Result};

/// Lists of structs other than columns, row groups or schema elements are short.
const OTHER_STRUCTS: usize = 100_000;

/// Physical types by their number.
const TYPES: [&str; 8] =
    ["BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"];

/// Repetition of a node by its number: 0 is required.
const OPTIONAL: i64 = 1;
const REPEATED: i64 = 2;

/// A list, by its converted and its logical type; the two converted types of a map, and its logical one.
const LIST: (i64, i16) = (3, 3);
const MAPS: [i64; 2] = [1, 2];
const MAP: i16 = 2;

/// Numbers of row groups and leaf columns whose bytes are encrypted, ascending.
pub(super) type Sealed = Vec<(usize, usize)>;

/// The number of the physical type of 64-bit integers.
const INT64: i64 = 2;

/// First row groups whose statistics tell of an integer of a leaf column that 32 bits do not hold, by number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Wide {
    pub(super) leaf: usize,
    /// If its numbers have a sign.
    pub(super) signed: Option<usize>,
    /// If they have none.
    pub(super) unsigned: Option<usize>,
}

/// Statistics of a column chunk.
#[derive(Debug, Clone, Copy, Default)]
struct Told {
    nulls: Option<u64>,
    /// True if a bound of 64-bit integers is beyond 32 bits: with a sign, and without one.
    wide: [bool; 2],
}

/// Parts of a footer that are known before it is parsed.
#[derive(Debug)]
pub(super) struct Outline<'a> {
    /// The schema's bytes.
    pub(super) schema: &'a [u8],
    /// SHA-256 of these.
    pub(super) digest: [u8; 32],
    pub(super) sealed: Sealed,
    /// Nulls of the column chunks, where their statistics tell, one row group after the other.
    pub(super) nulls: Vec<Option<u64>>,
    /// Ascending by leaf.
    pub(super) wide: Vec<Wide>,
    leaves: Vec<Leaf<'a>>,
    untyped: Vec<Untyped>,
}

/// A leaf column of the schema.
#[derive(Debug)]
struct Leaf<'a> {
    kind: i64,
    path: Vec<&'a [u8]>,
    /// The greatest repetition and definition level.
    most: [usize; 2],
}

/// Fault of a row group: in the bytes, or in what they say of a column.
enum Fault {
    Bytes(Broken),
    Column(usize, String),
}

impl From<Broken> for Fault {
    fn from(what: Broken) -> Self {
        Self::Bytes(what)
    }
}

impl<'a> Outline<'a> {
    /// Looks at the footer's Thrift before it is parsed: counts, nesting, types, paths and encryption.
    pub(super) fn read(bytes: &'a [u8], limits: &Limits, place: &Place) -> Result<Self> {
        let corrupt = |what: &str| Error::corrupt(place.clone(), format!("the footer is damaged: {what}"));
        let too_many = |what: &str, asked: usize, limit: usize, option: &'static str| {
            Error::limit(what, asked as u64, limit as u64, option).at(place.clone())
        };
        let mut outline = Self {
            schema: &[],
            digest: [0; 32],
            sealed: Vec::new(),
            nulls: Vec::new(),
            wide: Vec::new(),
            leaves: Vec::new(),
            untyped: Vec::new(),
        };
        let mut reader = Reader::new(bytes);
        let mut last = 0;
        while let Some(field) = reader.field(&mut last).map_err(corrupt)? {
            match (field.id, field.kind) {
                (2, kind::LIST) if !outline.schema.is_empty() => return Err(corrupt("it has two schemas")),
                (2, kind::LIST) => {
                    let begin = reader.position();
                    let (count, element) = reader.list().map_err(corrupt)?;
                    // Lists of lists take three elements per leaf; anything beyond four is no schema.
                    if count > limits.max_columns.saturating_mul(4) {
                        return Err(too_many("the number of columns", count, limits.max_columns, "limits.max_columns"));
                    }
                    if element != kind::STRUCT {
                        return Err(corrupt("the schema is not a list of structs"));
                    }
                    let depth = outline.shape(&mut reader, count, limits.max_depth).map_err(corrupt)?;
                    let leaves = outline.leaves.len();
                    if leaves > limits.max_columns {
                        let limit = limits.max_columns;
                        return Err(too_many("the number of columns", leaves, limit, "limits.max_columns"));
                    }
                    if depth > limits.max_depth {
                        return Err(too_many("the nesting of the schema", depth, limits.max_depth, "limits.max_depth"));
                    }
                    outline.schema = bytes.get(begin..reader.position()).unwrap_or_default();
                    outline.digest = Sha256::digest(outline.schema).into();
                }
                (4, kind::LIST) => {
                    let (count, element) = reader.list().map_err(corrupt)?;
                    if count > limits.max_row_groups {
                        let limit = limits.max_row_groups;
                        return Err(too_many("the number of row groups", count, limit, "limits.max_row_groups"));
                    }
                    if element != kind::STRUCT && count > 0 {
                        return Err(corrupt("the row groups are not structs"));
                    }
                    for number in 0..count {
                        outline.row_group(&mut reader, number).map_err(|fault| match fault {
                            Fault::Bytes(what) => corrupt(what),
                            Fault::Column(leaf, what) => {
                                let place = place.clone().row_group(number);
                                Error::corrupt(place.column(outline.name(leaf)), what)
                            }
                        })?;
                    }
                }
                _ => reader.skip(field, OTHER_STRUCTS).map_err(corrupt)?,
            }
        }
        conforms(&mut Reader::new(bytes), &FOOTER, &mut outline.untyped).map_err(corrupt)?;
        Ok(outline)
    }

    /// The footer, whose `bytes` this outlines, for the parser: that takes an empty list only with the type of its elements.
    pub(super) fn typed<'b>(&self, bytes: &'b [u8]) -> Cow<'b, [u8]> {
        let mut bytes = Cow::Borrowed(bytes);
        for (begin, kind) in &self.untyped {
            if let Some(header) = bytes.to_mut().get_mut(*begin) {
                *header = (*header & 0xf0) | *kind;
            }
        }
        bytes
    }

    /// The leaf's path, with dots.
    fn name(&self, leaf: usize) -> String {
        let path = self.leaves.get(leaf).map(|leaf| leaf.path.join(&b'.')).unwrap_or_default();
        String::from_utf8_lossy(&path).into_owned()
    }

    /// Notes the leaves of the tree that the flattened schema elements stand for, and tells its depth; reading ends soon after `max`.
    fn shape(&mut self, reader: &mut Reader<'a>, count: usize, max: usize) -> Result<usize, Broken> {
        // Children still to come at each level, and the names of the levels below the root.
        let mut open: Vec<i64> = Vec::new();
        let mut path: Vec<&[u8]> = Vec::new();
        // Repetition of each node of the path: it may be missing, or there may be many.
        let mut repetitions: Vec<i64> = Vec::new();
        let mut deepest = 0;
        for number in 0..count {
            let (mut children, mut stored, mut name, mut repetition) = (0, None, &[][..], 0);
            let (mut converted, mut logical) = (None, None);
            let mut last = 0;
            while let Some(field) = reader.field(&mut last)? {
                match (field.id, field.kind) {
                    (1, kind::I32) => stored = Some(reader.int()?),
                    (3, kind::I32) => repetition = reader.int()?,
                    (4, kind::BINARY) => name = reader.binary()?,
                    (5, kind::I32) => children = reader.int()?,
                    (6, kind::I32) => converted = Some(reader.int()?),
                    (10, kind::STRUCT) => logical = union(reader)?,
                    _ => reader.skip(field, OTHER_STRUCTS)?,
                }
            }
            // Readers believe one or the other, and see other columns.
            if let (Some(converted), Some(logical)) = (converted, logical)
                && ((converted == LIST.0) != (logical == LIST.1) || (MAPS.contains(&converted)) != (logical == MAP))
            {
                return Err("a list or a map is described as something else, too");
            }
            if let Some(waiting) = open.last_mut() {
                *waiting -= 1;
            }
            if number > 0 {
                path.push(name);
                repetitions.push(repetition);
            }
            if children > 0 {
                open.push(children);
                // The parser makes room for as many before it reads them.
                let missing = open.iter().fold(0, |sum: i64, waiting| sum.saturating_add(*waiting));
                if missing > (count - number - 1) as i64 {
                    return Err("a group of the schema has more members than follow");
                }
                deepest = deepest.max(open.len());
                if deepest > max {
                    return Ok(deepest);
                }
            } else {
                if let Some(kind) = stored {
                    let many = |least: i64| repetitions.iter().filter(|repetition| **repetition >= least).count();
                    self.leaves.push(Leaf { kind, path: path.clone(), most: [many(REPEATED), many(OPTIONAL)] });
                }
                path.pop();
                repetitions.pop();
            }
            while open.last() == Some(&0) {
                open.pop();
                path.pop();
                repetitions.pop();
            }
        }
        Ok(deepest)
    }

    fn row_group(&mut self, reader: &mut Reader<'a>, number: usize) -> Result<(), Fault> {
        let begin = reader.position();
        let mut columns = 0;
        let mut last = 0;
        while let Some(field) = reader.field(&mut last)? {
            if (field.id, field.kind) == (1, kind::LIST) {
                let (count, element) = reader.list()?;
                if count > self.leaves.len() {
                    return Err("a row group has more columns than the schema".into());
                }
                if element != kind::STRUCT && count > 0 {
                    return Err("the columns of a row group are not structs".into());
                }
                columns = count;
                for leaf in 0..count {
                    let (sealed, told) = self.chunk(reader, leaf)?;
                    if sealed {
                        self.sealed.push((number, leaf));
                    }
                    self.nulls.push(told.nulls);
                    self.note(leaf, number, told.wide);
                }
            } else {
                reader.skip(field, OTHER_STRUCTS)?;
            }
        }
        // No row group and no column is described in fewer bytes; a parser makes hundreds of each.
        let taken = reader.position() - begin;
        if taken < 4 + columns.saturating_mul(16) {
            return Err("a row group's description is too short".into());
        }
        Ok(())
    }

    /// Remembers the first row group in which leaf `leaf` has a wide integer.
    fn note(&mut self, leaf: usize, group: usize, wide: [bool; 2]) {
        if wide == [false; 2] {
            return;
        }
        let at = self.wide.binary_search_by_key(&leaf, |wide| wide.leaf).unwrap_or_else(|at| {
            self.wide.insert(at, Wide { leaf, ..Wide::default() });
            at
        });
        let Some(known) = self.wide.get_mut(at) else { return };
        let [signed, unsigned] = wide.map(|wide| wide.then_some(group));
        (known.signed, known.unsigned) = (known.signed.or(signed), known.unsigned.or(unsigned));
    }

    /// Checks what a column chunk says against leaf `leaf` of the schema. Returns whether it is encrypted, and what its statistics
    /// tell.
    fn chunk(&self, reader: &mut Reader<'a>, leaf: usize) -> Result<(bool, Told), Fault> {
        let (mut sealed, mut told) = (false, Told::default());
        let mut last = 0;
        while let Some(field) = reader.field(&mut last)? {
            match (field.id, field.kind) {
                (3, kind::STRUCT) => told = self.column(reader, leaf)?,
                (8, _) => {
                    sealed = true;
                    reader.skip(field, OTHER_STRUCTS)?;
                }
                _ => reader.skip(field, OTHER_STRUCTS)?,
            }
        }
        Ok((sealed, told))
    }

    fn column(&self, reader: &mut Reader<'a>, leaf: usize) -> Result<Told, Fault> {
        let Some(Leaf { kind: stored, path, most }) = self.leaves.get(leaf) else {
            return Err("a column is unknown".into());
        };
        let mut told = Told::default();
        let mut last = 0;
        while let Some(field) = reader.field(&mut last)? {
            match (field.id, field.kind) {
                (1, kind::I32) => {
                    let said = reader.int()?;
                    if said != *stored {
                        let name = |kind: i64| {
                            let known = usize::try_from(kind).ok().and_then(|kind| TYPES.get(kind));
                            known.map_or_else(|| format!("type {kind}"), |name| (*name).to_owned())
                        };
                        let what =
                            format!("its type is {} in the row group and {} in the schema", name(said), name(*stored));
                        return Err(Fault::Column(leaf, what));
                    }
                }
                (3, kind::LIST) => {
                    let (count, element) = reader.list()?;
                    if element != kind::BINARY && count > 0 {
                        return Err("a column's path is not a list of names".into());
                    }
                    let mut same = count == path.len();
                    for at in 0..count {
                        same &= path.get(at) == Some(&reader.binary()?);
                    }
                    // Newer writers may leave the path out.
                    if !same && count > 0 {
                        let what = "its path in the row group is not the one in the schema".to_owned();
                        return Err(Fault::Column(leaf, what));
                    }
                }
                (12, kind::STRUCT) => told = statistics(reader, *stored == INT64)?,
                (16, kind::STRUCT) => histograms(reader, *most).map_err(|fault| match fault {
                    Fault::Column(_, what) => Fault::Column(leaf, what),
                    bytes => bytes,
                })?,
                _ => reader.skip(field, OTHER_STRUCTS)?,
            }
        }
        Ok(told)
    }
}

/// Reads past a union. Returns the number of its field.
fn union(reader: &mut Reader<'_>) -> Result<Option<i16>, Broken> {
    let (mut last, mut found) = (0, None);
    while let Some(field) = reader.field(&mut last)? {
        reader.skip(field, OTHER_STRUCTS)?;
        found = Some(field.id);
    }
    Ok(found)
}

/// Checks the levels that a column chunk counts against `most`, the greatest of the schema. Without levels there is mostly no count.
fn histograms(reader: &mut Reader<'_>, most: [usize; 2]) -> Result<(), Fault> {
    let mut last = 0;
    while let Some(field) = reader.field(&mut last)? {
        let (what, most) = match (field.id, field.kind) {
            (2, kind::LIST) => ("repetition", most[0]),
            (3, kind::LIST) => ("definition", most[1]),
            _ => {
                reader.skip(field, OTHER_STRUCTS)?;
                continue;
            }
        };
        let (count, _) = reader.list()?;
        for _ in 0..count {
            reader.int()?;
        }
        if count > 0 && count != most + 1 {
            let what = format!("it counts {count} {what} levels, the schema has {}", most + 1);
            return Err(Fault::Column(0, what));
        }
    }
    Ok(())
}

/// Statistics of a chunk; bounds are those of 64-bit integers if `long`.
fn statistics(reader: &mut Reader<'_>, long: bool) -> Result<Told, Broken> {
    let mut told = Told::default();
    let mut last = 0;
    while let Some(field) = reader.field(&mut last)? {
        match (field.id, field.kind) {
            (3, kind::I64) => told.nulls = u64::try_from(reader.int()?).ok(),
            // The bounds, as old writers name them, and as new ones do.
            (1 | 2 | 5 | 6, kind::BINARY) => {
                let bound = reader.binary()?;
                if let Some(bound) = bound.try_into().ok().map(i64::from_le_bytes).filter(|_| long) {
                    told.wide[0] |= i32::try_from(bound).is_err();
                    told.wide[1] |= u32::try_from(bound.cast_unsigned()).is_err();
                }
            }
            _ => reader.skip(field, OTHER_STRUCTS)?,
        }
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_schemas_are_found_before_anything_recurses() {
        // schema elements with one child each: field 5 i32 = 1, stop.
        let element = [0x55, 0x02, 0x00];
        let bytes = [&[0x29, 0xfc, 0xe8, 0x07][..], &element.repeat(1000), &[0]].concat();
        let error = Outline::read(&bytes, &Limits::default(), &Place::file("x")).unwrap_err();
        assert!(matches!(error, Error::Limit { option: "limits.max_depth", .. }), "{error}");
        let empty = [&[0x49, 0xfc, 0xe8, 0x07][..], &[0; 1001]].concat();
        assert!(Outline::read(&empty, &Limits::default(), &Place::file("x")).is_err(), "empty row groups");
    }

    #[test]
    fn a_group_with_more_members_than_follow_is_found_before_room_is_made_for_them() {
        // A list of two elements: the root with `children`, and one without a type.
        let schema = |children: &[u8]| [&[0x29, 0x2c, 0x55][..], children, &[0x00, 0x00, 0x00]].concat();
        let refused = |children: &[u8]| {
            Outline::read(&schema(children), &Limits::default(), &Place::file("x")).unwrap_err().to_string()
        };
        // The names are missing, too.
        assert!(refused(&[0x02]).contains("a field is missing"));
        for children in [&[0x04][..], &[0xfe, 0xff, 0xff, 0xff, 0x0f]] {
            let error = refused(children);
            assert!(error.contains("more members than follow"), "{error}");
        }
    }
}
