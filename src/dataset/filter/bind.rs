//! A filter bound to a schema: columns found, literals converted once, one kind of test per kind of column.

use arrow::datatypes::{DataType, Field, Fields, SchemaRef};

use super::digits::Place;
use super::literal::{Point, Spot, Wrong};
use super::members::{Member, Members};
use super::node::{Literal, Name, Node, OPTION, Op};
use super::split::Split;
use crate::error::{Error, Result};
use crate::nearest::distance;

/// A filter whose columns are resolved and whose literals have the columns' types: what is evaluated and pruned with.
#[derive(Debug, Clone)]
pub struct Bound {
    pub(super) root: Part,
    pub(super) columns: Vec<Column>,
}

/// A column that the filter tests.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Column {
    /// As written in the filter.
    pub(super) name: Name,
    /// The names of the fields from the top.
    pub(super) path: Vec<String>,
    /// The type of the values: that of the dictionary's values for a dictionary.
    pub(super) kind: DataType,
    /// True if it is a list of such values.
    pub(super) list: bool,
}

/// The bound tree; `column` indexes [`Bound::columns`].
#[derive(Debug, Clone)]
pub(super) enum Part {
    Test {
        column: usize,
        test: Test,
    },
    IsNull {
        column: usize,
    },
    /// True if any item of a list passes.
    AnyItem {
        column: usize,
        test: Test,
    },
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
}

/// Test of one value that is not null.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Test {
    Constant(bool),
    Whole(Match<i128>),
    Float(Match<f64>),
    Bytes(Match<Vec<u8>>),
    Split(Split),
}

/// A comparison, or membership in a list. Floats compare as IEEE 754 says: nothing equals NaN, and -0 equals 0.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Match<V> {
    Compare(Op, V),
    In(Members<V>),
}

impl Bound {
    pub(super) fn new(node: &Node, schema: &SchemaRef) -> Result<Self> {
        let mut binder = Binder { schema, columns: Vec::new() };
        let root = binder.part(node)?;
        Ok(Self { root, columns: binder.columns })
    }

    /// The columns that the filter tests, each once: the names of the fields from the top, e.g. `["a", "b"]` for `a.b`.
    pub fn paths(&self) -> impl Iterator<Item = &[String]> {
        self.columns.iter().map(|column| column.path.as_slice())
    }
}

struct Binder<'a> {
    schema: &'a SchemaRef,
    columns: Vec<Column>,
}

impl Binder<'_> {
    fn part(&mut self, node: &Node) -> Result<Part> {
        Ok(match node {
            Node::Compare { column, op, value } => {
                let column = self.column(column)?;
                Part::Test { column, test: self.test(column, *op, value)? }
            }
            Node::Between { column, low, high, negated } => {
                let column = self.column(column)?;
                let low = Part::Test { column, test: self.test(column, Op::Ge, low)? };
                let high = Part::Test { column, test: self.test(column, Op::Le, high)? };
                negate(Part::All(vec![low, high]), *negated)
            }
            Node::In { column, values, negated } => {
                let column = self.column(column)?;
                let points = values.iter().map(|value| self.point(column, value)).collect::<Result<Vec<_>>>()?;
                negate(Part::Test { column, test: Test::member(points, self.range(column)) }, *negated)
            }
            Node::Overlaps { column, values } => {
                let column = self.list(column)?;
                let points = values.iter().map(|value| self.point(column, value)).collect::<Result<Vec<_>>>()?;
                Part::AnyItem { column, test: Test::member(points, self.range(column)) }
            }
            Node::Split { column, low, high } => {
                let column = self.column(column)?;
                self.check_split(column)?;
                Part::Test { column, test: Test::Split(Split::new(*low, *high)) }
            }
            Node::IsNull { column, negated } => negate(Part::IsNull { column: self.column(column)? }, *negated),
            Node::All(nodes) => Part::All(nodes.iter().map(|node| self.part(node)).collect::<Result<_>>()?),
            Node::Any(nodes) => Part::Any(nodes.iter().map(|node| self.part(node)).collect::<Result<_>>()?),
            Node::Not(node) => Part::Not(Box::new(self.part(node)?)),
        })
    }

    /// The index of the column called `name`, looked up on first use.
    fn column(&mut self, name: &Name) -> Result<usize> {
        if let Some(index) = self.columns.iter().position(|column| column.name == *name && !column.list) {
            return Ok(index);
        }
        let Some((field, path)) = named(self.schema.fields(), name) else {
            let name = name.dotted();
            let hint = nearest(&name, self.schema.fields());
            return Err(Error::NotFound { what: format!("column {name:?} of the filter"), hint });
        };
        let kind = match field.data_type() {
            DataType::Dictionary(_, values) => values.as_ref().clone(),
            other => other.clone(),
        };
        self.columns.push(Column { name: name.clone(), path, kind, list: false });
        Ok(self.columns.len() - 1)
    }

    /// The index of the column of lists called `name`; its kind is that of the items.
    fn list(&mut self, name: &Name) -> Result<usize> {
        let plain = self.column(name)?;
        let Some(Column { path, kind, .. }) = self.columns.get(plain).cloned() else { return Ok(plain) };
        let kind = match &kind {
            DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => item.data_type(),
            _ => {
                return Err(Error::unsupported(
                    format!("'overlaps' on column {:?} of type {kind}", name.dotted()),
                    "it compares lists; for single values write 'in'",
                ));
            }
        };
        let kind = if let DataType::Dictionary(_, values) = kind { values.as_ref().clone() } else { kind.clone() };
        self.columns.push(Column { name: name.clone(), path, kind, list: true });
        Ok(self.columns.len() - 1)
    }

    fn check_split(&self, column: usize) -> Result<()> {
        use DataType as D;
        match self.columns.get(column) {
            Some(Column { kind, .. }) if kind.is_integer() || matches!(kind, D::Utf8 | D::LargeUtf8 | D::Utf8View) => {
                Ok(())
            }
            Some(Column { name, kind, .. }) => Err(Error::unsupported(
                format!("'split' on column {:?} of type {kind}", name.dotted()),
                "it hashes strings and integers",
            )),
            None => Ok(()),
        }
    }

    fn test(&self, column: usize, op: Op, value: &Literal) -> Result<Test> {
        Ok(match self.point(column, value)? {
            Point::Null => Test::Constant(false),
            Point::Bytes(bytes) => Test::Bytes(Match::Compare(op, bytes)),
            Point::Float(spot) => Test::float(op, spot),
            Point::Whole(place) => Test::whole(op, place, self.range(column)),
        })
    }

    fn range(&self, column: usize) -> (i128, i128) {
        range(self.columns.get(column).map_or(&DataType::Null, |column| &column.kind))
    }

    fn point(&self, column: usize, literal: &Literal) -> Result<Point> {
        let Some(Column { name, kind, .. }) = self.columns.get(column) else { return Ok(Point::Null) };
        let name = name.dotted();
        Point::of(literal, kind).map_err(|wrong| match wrong {
            Wrong::Column => Error::unsupported(
                format!("comparing column {name:?} of type {kind} in a filter"),
                if matches!(kind, DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)) {
                    "only 'overlaps', 'is null' and 'is not null' work on lists"
                } else {
                    "only 'is null' and 'is not null' work on it"
                },
            ),
            Wrong::Literal(right) => {
                let problem =
                    format!("column {name:?} of type {kind} cannot be compared with {literal}; write {right}");
                Error::config(OPTION, problem)
            }
        })
    }
}

fn negate(part: Part, negated: bool) -> Part {
    if negated { Part::Not(Box::new(part)) } else { part }
}

impl Test {
    /// The comparison of whole numbers within `range` with a literal.
    fn whole(op: Op, place: Place, (least, most): (i128, i128)) -> Self {
        match place {
            Place::At(value) if value < least => Self::whole(op, Place::Below, (least, most)),
            Place::At(value) if value > most => Self::whole(op, Place::Above, (least, most)),
            Place::At(value) => Self::Whole(Match::Compare(op, value)),
            Place::Below => Self::Constant(matches!(op, Op::Gt | Op::Ge | Op::Ne)),
            Place::Above => Self::Constant(matches!(op, Op::Lt | Op::Le | Op::Ne)),
            Place::After(before) => match op {
                Op::Eq => Self::Constant(false),
                Op::Ne => Self::Constant(true),
                Op::Lt | Op::Le => Self::whole(Op::Le, Place::At(before), (least, most)),
                Op::Gt | Op::Ge => {
                    Self::whole(Op::Ge, before.checked_add(1).map_or(Place::Above, Place::At), (least, most))
                }
            },
        }
    }

    /// The comparison of floats with a literal; a NaN is only ever unequal.
    fn float(op: Op, spot: Spot) -> Self {
        match (spot, op) {
            (Spot::At(value), _) => Self::Float(Match::Compare(op, value)),
            (Spot::Between(..), Op::Eq) => Self::Constant(false),
            (Spot::Between(..), Op::Ne) => Self::Constant(true),
            (Spot::Between(below, _), Op::Lt | Op::Le) => Self::Float(Match::Compare(Op::Le, below)),
            (Spot::Between(_, above), Op::Gt | Op::Ge) => Self::Float(Match::Compare(Op::Ge, above)),
        }
    }

    /// Membership; the points are of one column, so all of one kind.
    fn member(points: Vec<Point>, (least, most): (i128, i128)) -> Self {
        let (mut wholes, mut floats, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for point in points {
            match point {
                Point::Whole(Place::At(value)) if (least..=most).contains(&value) => wholes.push(value),
                Point::Float(Spot::At(value)) => floats.push(value),
                Point::Bytes(value) => bytes.push(value),
                // Equal to no value of the column.
                Point::Whole(_) | Point::Float(_) | Point::Null => {}
            }
        }
        if !wholes.is_empty() {
            Self::Whole(Match::In(Members::new(wholes)))
        } else if !floats.is_empty() {
            Self::Float(Match::In(Members::new(floats)))
        } else if !bytes.is_empty() {
            Self::Bytes(Match::In(Members::new(bytes)))
        } else {
            Self::Constant(false)
        }
    }
}

impl<V: Member> Match<V> {
    /// Returns true if `value` passes.
    pub(super) fn holds(&self, value: &V) -> bool {
        match self {
            Self::Compare(Op::Eq, literal) => value == literal,
            Self::Compare(Op::Ne, literal) => value != literal,
            Self::Compare(Op::Lt, literal) => value < literal,
            Self::Compare(Op::Le, literal) => value <= literal,
            Self::Compare(Op::Gt, literal) => value > literal,
            Self::Compare(Op::Ge, literal) => value >= literal,
            Self::In(members) => members.contains(value),
        }
    }
}

/// The least and the greatest whole number that a column of this type can hold.
fn range(kind: &DataType) -> (i128, i128) {
    match kind {
        DataType::Boolean => (0, 1),
        DataType::Int8 => (i8::MIN.into(), i8::MAX.into()),
        DataType::Int16 => (i16::MIN.into(), i16::MAX.into()),
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) | DataType::Decimal32(..) => {
            (i32::MIN.into(), i32::MAX.into())
        }
        DataType::UInt8 => (0, u8::MAX.into()),
        DataType::UInt16 => (0, u16::MAX.into()),
        DataType::UInt32 => (0, u32::MAX.into()),
        DataType::UInt64 => (0, u64::MAX.into()),
        DataType::Decimal128(..) => (i128::MIN, i128::MAX),
        // Larger values count as the outermost of this range, which no literal reaches.
        DataType::Decimal256(..) => (i128::MIN, i128::MAX),
        _ => (i64::MIN.into(), i64::MAX.into()),
    }
}

/// The field that a name means, and the names of the fields from the top.
fn named<'a>(fields: &'a Fields, name: &Name) -> Option<(&'a Field, Vec<String>)> {
    match name {
        Name::Dotted(name) => {
            let mut path = Vec::new();
            find(fields, name, &mut path).map(|field| (field, path))
        }
        Name::Members(names) => match member(fields, names) {
            Some(field) => Some((field, names.clone())),
            // A column whose own name has dots, each part of it in quotes.
            None => {
                let whole = name.dotted().into_owned();
                fields.find(&whole).map(|(_, field)| (&**field, vec![whole]))
            }
        },
    }
}

/// True for parts in quotes if the dotted name of them all means the same column.
pub(super) fn is_dotted(schema: &SchemaRef, name: &Name) -> bool {
    let path = |name: &Name| named(schema.fields(), name).map(|(_, path)| path);
    let dotted = || path(&Name::Dotted(name.dotted().into_owned()));
    matches!(name, Name::Members(_)) && path(name).is_some_and(|path| dotted() == Some(path))
}

/// The field at the end of `names`, of which each is of a member of the one before.
fn member<'a>(fields: &'a Fields, names: &[String]) -> Option<&'a Field> {
    let (first, rest) = names.split_first()?;
    let (_, field) = fields.find(first)?;
    match field.data_type() {
        _ if rest.is_empty() => Some(field),
        DataType::Struct(inner) => member(inner, rest),
        _ => None,
    }
}

/// The field that a dotted name means. A field whose own name has dots is preferred, the longest first.
fn find<'a>(fields: &'a Fields, name: &str, path: &mut Vec<String>) -> Option<&'a Field> {
    let ends = std::iter::once(name.len()).chain(name.rmatch_indices('.').map(|(at, _)| at));
    for end in ends {
        let (first, rest) = name.split_at_checked(end)?;
        let Some((_, field)) = fields.find(first) else { continue };
        path.push(first.to_owned());
        match (rest.strip_prefix('.'), field.data_type()) {
            (None, _) => return Some(field),
            (Some(rest), DataType::Struct(inner)) => {
                if let Some(found) = find(inner, rest, path) {
                    return Some(found);
                }
            }
            _ => {}
        }
        path.pop();
    }
    None
}

/// A hint that names the columns most like `name`.
fn nearest(name: &str, fields: &Fields) -> String {
    const SHOWN: usize = 5;
    let mut names = Vec::new();
    collect(fields, "", &mut names);
    let (wanted, limit) = (name.to_lowercase(), name.chars().count() / 3 + 1);
    let mut close: Vec<_> = names
        .iter()
        .map(|other| (distance(&wanted, &other.to_lowercase()), other))
        .filter(|(d, _)| *d <= limit)
        .collect();
    close.sort();
    let quoted = |names: Vec<&String>| names.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    if !close.is_empty() {
        let close = close.into_iter().map(|(_, name)| name).take(SHOWN).collect();
        return format!("did you mean {}?", quoted(close));
    }
    let more = if names.len() > SHOWN { format!(" and {} more", names.len() - SHOWN) } else { String::new() };
    format!("the columns are {}{more}", quoted(names.iter().take(SHOWN).collect()))
}

fn collect(fields: &Fields, prefix: &str, names: &mut Vec<String>) {
    /// More names than this are not looked through for a hint.
    const MOST: usize = 10_000;
    for field in fields {
        if names.len() >= MOST {
            return;
        }
        let name = format!("{prefix}{}", field.name());
        match field.data_type() {
            DataType::Struct(inner) => collect(inner, &format!("{name}."), names),
            _ => names.push(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::{Schema, TimeUnit};

    use super::*;
    use crate::dataset::filter::Expr;

    fn schema() -> SchemaRef {
        let inner =
            Fields::from(vec![Field::new("lat", DataType::Float32, true), Field::new("x.y", DataType::Int8, true)]);
        let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
        Arc::new(Schema::new(vec![
            Field::new("label", DataType::Int32, true),
            Field::new("country", dictionary, true),
            Field::new("gps", DataType::Struct(inner), true),
            Field::new("gps.lat", DataType::Utf8, true),
            Field::new("tags", DataType::new_list(DataType::Utf8, true), true),
            Field::new("taken", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), true),
            Field::new("price", DataType::Decimal128(10, 2), true),
            Field::new("u", DataType::UInt8, true),
        ]))
    }

    fn bind(text: &str) -> Result<Bound> {
        Expr::parse(text).unwrap().bind(&schema())
    }

    #[test]
    fn names_resolve_to_the_longest_field() {
        let bound = bind("gps.lat = 'a' and gps.x.y = 1 and label = 1").unwrap();
        let paths: Vec<_> = bound.paths().map(|path| path.join("/")).collect();
        assert_eq!(paths, ["gps.lat", "gps/x.y", "label"]);
    }

    #[test]
    fn names_in_quotes_of_their_own_are_members() {
        let expr = Expr::parse("\"gps\".\"lat\" = 1 and \"gps\".\"x.y\" = 1 and \"gps.lat\" = 'a'").unwrap();
        let paths: Vec<_> = expr.bind(&schema()).unwrap().paths().map(|path| path.join("/")).collect();
        assert_eq!(paths, ["gps/lat", "gps/x.y", "gps.lat"]);
        // Of the first two only the second is what its dotted name means.
        assert_eq!(expr.text_for(&schema()), "\"gps\".\"lat\" = 1 and gps.x.y = 1 and gps.lat = 'a'");
        for text in ["\"gps\".\"x\".\"y\" = 1", "\"gps.x\".\"y\" = 1", "\"label\".\"x\" = 1", "\"gps\".\"lable\" = 1"] {
            let error = bind(text).unwrap_err();
            assert!(matches!(error, Error::NotFound { .. }), "{text}: {error}");
        }
    }

    #[test]
    fn unknown_columns_come_with_the_nearest() {
        let error = bind("lable = 1").unwrap_err();
        assert!(matches!(error, Error::NotFound { .. }));
        assert_eq!(error.to_string(), "column \"lable\" of the filter not found; did you mean \"label\"?");
        let error = bind("zzzzzz = 1").unwrap_err().to_string();
        assert!(error.contains("the columns are \"label\", \"country\"") && error.contains("more"), "{error}");
        assert!(bind("tags.element = 1").is_err() && bind("label.x is null").is_err());
    }

    #[test]
    fn literals_must_fit_their_columns() {
        for (text, part) in [
            ("label = 'x'", "write a number"),
            ("country = 3", "single quotes"),
            ("taken > 5", "a timestamp in quotes"),
            ("price = true", "a number"),
            ("price = 'abc'", "digits in quotes"),
            ("label in (1, 'x')", "write a number"),
            ("label between 1 and 'x'", "write a number"),
        ] {
            let error = bind(text).unwrap_err();
            assert!(matches!(error, Error::Config { .. }), "{text}: {error:?}");
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        let lists = bind("tags = 'x'").unwrap_err().to_string();
        assert!(lists.contains("only 'overlaps', 'is null' and 'is not null' work on lists"), "{lists}");
        let structs = bind("gps = 1").unwrap_err().to_string();
        assert!(structs.contains("only 'is null' and 'is not null' work on it"), "{structs}");
        assert!(matches!(bind("tags = 'x'").unwrap_err(), Error::Unsupported { .. }));
        assert!(bind("tags is null").is_ok() && bind("gps is not null").is_ok());
    }

    #[test]
    fn literals_beside_the_range_decide_at_once() {
        let test = |text: &str| match bind(text).unwrap().root {
            Part::Test { test, .. } => test,
            other => panic!("{other:?}"),
        };
        assert_eq!(test("u < 300"), Test::Constant(true));
        assert_eq!(test("u >= 256.5"), Test::Constant(false));
        assert_eq!(test("u != -1"), Test::Constant(true));
        assert_eq!(test("u = 2.5"), Test::Constant(false));
        assert_eq!(test("u < 2.5"), Test::Whole(Match::Compare(Op::Le, 2)));
        assert_eq!(test("u > 254.5"), Test::Whole(Match::Compare(Op::Ge, 255)));
        assert_eq!(test("u > 255.5"), Test::Constant(false));
        assert_eq!(test("u in (3, 1, 3.0, 2.5, 1e30)"), Test::Whole(Match::In(Members::new(vec![1, 3]))));
        assert_eq!(test("price <= 0.105"), Test::Whole(Match::Compare(Op::Le, 10)));
        assert_eq!(test("price = '1.10'"), Test::Whole(Match::Compare(Op::Eq, 110)));
    }
}
