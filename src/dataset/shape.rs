//! The structures of Parquet's Thrift, as far as they are read: which field has which type, and which must be there.
//!
//! A reader that skips a field of another type than its own reads a default in its place, and one that ignores the type reads another
//! number. Either is a value that nobody wrote.

use super::thrift::{Broken, Reader, kind};

/// Content of a field.
#[derive(Debug, Clone, Copy)]
pub(super) enum Type {
    /// Of this type number of the compact protocol.
    Is(u8),
    /// True or false.
    Bool,
    List(&'static Type),
    Struct(&'static Shape),
}

/// A structure: its fields, by number, and whether they must be there. Others are of a later version and skipped.
#[derive(Debug)]
pub(super) struct Shape {
    fields: &'static [(i16, Type, bool)],
    /// Most structures in a list that is not described.
    lists: usize,
}

const I32: Type = Type::Is(kind::I32);
const I64: Type = Type::Is(kind::I64);
const BINARY: Type = Type::Is(kind::BINARY);

/// Lists of structures other than columns, row groups or schema elements are short.
const OTHER_STRUCTS: usize = 100_000;

const fn shape(fields: &'static [(i16, Type, bool)]) -> Shape {
    Shape { fields, lists: OTHER_STRUCTS }
}

/// An element of the schema. The parser checks logical types.
static ELEMENT: Shape = shape(&[
    (1, I32, false),
    (2, I32, false),
    (3, I32, false),
    (4, BINARY, true),
    (5, I32, false),
    (6, I32, false),
    (7, I32, false),
    (8, I32, false),
    (9, I32, false),
    (10, Type::Is(kind::STRUCT), false),
]);

static PAIR: Shape = shape(&[(1, BINARY, true), (2, BINARY, false)]);

static STATISTICS: Shape = shape(&[
    (1, BINARY, false),
    (2, BINARY, false),
    (3, I64, false),
    (4, I64, false),
    (5, BINARY, false),
    (6, BINARY, false),
    (7, Type::Bool, false),
    (8, Type::Bool, false),
    (9, I64, false),
]);

static PAGES: Shape = shape(&[(1, I32, true), (2, I32, true), (3, I32, true)]);

static SIZES: Shape = shape(&[(1, I64, false), (2, Type::List(&I64), false), (3, Type::List(&I64), false)]);

static COLUMN: Shape = shape(&[
    (1, I32, true),
    (2, Type::List(&I32), true),
    (3, Type::List(&BINARY), false),
    (4, I32, true),
    (5, I64, true),
    (6, I64, true),
    (7, I64, true),
    (8, Type::List(&Type::Struct(&PAIR)), false),
    (9, I64, true),
    (10, I64, false),
    (11, I64, false),
    (12, Type::Struct(&STATISTICS), false),
    (13, Type::List(&Type::Struct(&PAGES)), false),
    (14, I64, false),
    (15, I32, false),
    (16, Type::Struct(&SIZES), false),
]);

static CHUNK: Shape = shape(&[
    (1, BINARY, false),
    (2, I64, true),
    (3, Type::Struct(&COLUMN), false),
    (4, I64, false),
    (5, I32, false),
    (6, I64, false),
    (7, I32, false),
    (9, BINARY, false),
]);

static SORTING: Shape = shape(&[(1, I32, true), (2, Type::Bool, true), (3, Type::Bool, true)]);

static GROUP: Shape = shape(&[
    (1, Type::List(&Type::Struct(&CHUNK)), true),
    (2, I64, true),
    (3, I64, true),
    (4, Type::List(&Type::Struct(&SORTING)), false),
    (5, I64, false),
    (6, I64, false),
    (7, Type::Is(kind::I16), false),
]);

/// A whole footer.
pub(super) static FOOTER: Shape = shape(&[
    (1, I32, true),
    (2, Type::List(&Type::Struct(&ELEMENT)), true),
    (3, I64, true),
    (4, Type::List(&Type::Struct(&GROUP)), true),
    (5, Type::List(&Type::Struct(&PAIR)), false),
    (6, BINARY, false),
    (7, Type::List(&Type::Is(kind::STRUCT)), false),
    (8, Type::Is(kind::STRUCT), false),
    (9, BINARY, false),
]);

static DATA: Shape = Shape {
    fields: &[(1, I32, true), (2, I32, true), (3, I32, true), (4, I32, true), (5, Type::Struct(&STATISTICS), false)],
    lists: 0,
};

static DICTIONARY: Shape = Shape { fields: &[(1, I32, true), (2, I32, true), (3, Type::Bool, false)], lists: 0 };

static DATA_V2: Shape = Shape {
    fields: &[
        (1, I32, true),
        (2, I32, true),
        (3, I32, true),
        (4, I32, true),
        (5, I32, true),
        (6, I32, true),
        (7, Type::Bool, false),
        (8, Type::Struct(&STATISTICS), false),
    ],
    lists: 0,
};

/// The header of a page.
pub(super) static PAGE: Shape = Shape {
    fields: &[
        (1, I32, true),
        (2, I32, true),
        (3, I32, true),
        (4, I32, false),
        (5, Type::Struct(&DATA), false),
        (6, Type::Is(kind::STRUCT), false),
        (7, Type::Struct(&DICTIONARY), false),
        (8, Type::Struct(&DATA_V2), false),
    ],
    lists: 0,
};

/// An empty list that names another type than its own: where it begins, and its own type.
pub(super) type Untyped = (usize, u8);

/// Reads past one structure, which must have this shape, and notes empty lists of another type.
pub(super) fn conforms(reader: &mut Reader<'_>, shape: &Shape, untyped: &mut Vec<Untyped>) -> Result<(), Broken> {
    let (mut last, mut met) = (0, 0_u32);
    while let Some(field) = reader.field(&mut last)? {
        let Some((id, wanted, _)) = shape.fields.iter().find(|(id, ..)| *id == field.id) else {
            reader.skip(field, shape.lists)?;
            continue;
        };
        met |= 1 << id;
        match wanted {
            Type::Bool if matches!(field.kind, kind::TRUE | kind::FALSE) => {}
            Type::Is(_) if field.kind == kind_of(wanted) => reader.skip(field, shape.lists)?,
            _ if field.kind == kind_of(wanted) => value(reader, wanted, shape.lists, untyped)?,
            _ => return Err("a field has another type than its own"),
        }
    }
    let missing = shape.fields.iter().any(|(id, _, required)| *required && met & 1 << id == 0);
    if missing { Err("a field is missing") } else { Ok(()) }
}

fn kind_of(wanted: &Type) -> u8 {
    match wanted {
        Type::Is(kind) => *kind,
        Type::Bool => kind::TRUE,
        Type::List(_) => kind::LIST,
        Type::Struct(_) => kind::STRUCT,
    }
}

fn value(reader: &mut Reader<'_>, wanted: &Type, lists: usize, untyped: &mut Vec<Untyped>) -> Result<(), Broken> {
    match wanted {
        Type::Struct(shape) => conforms(reader, shape, untyped),
        Type::List(of) => {
            let begin = reader.position();
            let (count, element) = reader.list()?;
            if element != kind_of(of) {
                // Writers give an empty list any type.
                if count > 0 {
                    return Err("a list has elements of another type than its own");
                }
                untyped.push((begin, kind_of(of)));
            }
            (0..count).try_for_each(|_| value(reader, of, lists, untyped))
        }
        Type::Is(kind) => reader.skip(super::thrift::Field { id: 0, kind: *kind }, lists),
        Type::Bool => reader.skip_bytes(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_of_another_type_or_none_is_seen() {
        let conforms = |bytes: &[u8]| conforms(&mut Reader::new(bytes), &PAIR, &mut Vec::new());
        // A key and a value.
        let pair = [0x18, 1, b'k', 0x18, 1, b'v', 0];
        assert_eq!(conforms(&pair), Ok(()));
        assert_eq!(conforms(&[0x18, 1, b'k', 0]), Ok(()), "the value may be missing");
        assert!(conforms(&[0x28, 1, b'v', 0]).is_err(), "the key may not");
        assert!(conforms(&[0x15, 2, 0]).is_err(), "a number is not a key");
        let later = [0x18, 1, b'k', 0x85, 2, 0];
        assert_eq!(conforms(&later), Ok(()), "fields of later versions are skipped");
    }

    #[test]
    fn an_empty_list_of_another_type_is_noted() {
        let sizes = |list: &[u8]| [&[0x29][..], list, &[0]].concat();
        let noted = |bytes: &[u8]| {
            let mut untyped = Vec::new();
            conforms(&mut Reader::new(bytes), &SIZES, &mut untyped).map(|()| untyped)
        };
        assert_eq!(noted(&sizes(&[kind::I64])), Ok(vec![]));
        assert_eq!(noted(&sizes(&[0])), Ok(vec![(1, kind::I64)]));
        assert_eq!(noted(&sizes(&[0xf0, 0])), Ok(vec![(1, kind::I64)]), "the count is a number of its own");
        assert!(noted(&sizes(&[0x10, 0])).is_err(), "one element of no type");
    }
}
