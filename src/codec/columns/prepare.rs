//! From an Arrow array of a row group to the single form of its column.
//!
//! Walks from the root down to the leaf, carrying the nulls of structs and fixed-size lists along, and records which
//! rows hold a null anywhere. Then the leaf's values become bytes of the element type. Without nulls, casts and lists
//! to repair, nothing is copied: the bytes are those that the Parquet decoder wrote.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, StructArray, UInt64Array};
use arrow::buffer::{BooleanBuffer, Buffer, MutableBuffer, NullBuffer, OffsetBuffer};
use arrow::compute::take;
use arrow::datatypes::DataType;

use super::bytes;
use super::items::{Checked, items, unexpected};
use super::leaf::{Kind, Step, kind};
use super::number::{self, Scalar, convert, misfits};
use super::offsets::Offsets;
use super::output::{Held, Limit, Member, NullPlan};
use super::parts::{Bad, Cause, Data, Part, RowSet, mask};
use super::strings::Lists;
use super::{decimals, stand_in, vector};
use crate::schema::{DType, cast};

/// A step down from rows towards elements, for mapping back.
#[derive(Debug)]
enum Level {
    Items(Offsets),
    Fixed(usize),
}

/// The rows that hold a null, as far as they are known, if requested.
#[derive(Debug)]
struct Walk {
    rows: usize,
    levels: Vec<Level>,
    noted: bool,
    nulls: Option<RowSet>,
}

impl Walk {
    /// The row that `element` of the current level belongs to; `None` for items outside any list.
    fn row_of(&self, element: usize) -> Option<usize> {
        self.levels.iter().rev().try_fold(element, |at, level| match level {
            Level::Items(offsets) => offsets.owner(at),
            Level::Fixed(length) => at.checked_div(*length),
        })
    }

    /// Records the rows of null elements of the current level.
    fn note(&mut self, nulls: Option<&NullBuffer>) {
        let Some(nulls) = nulls.filter(|_| self.noted) else { return };
        let mut rows = self.nulls.take().unwrap_or_else(|| RowSet::new(self.rows));
        for element in absent(nulls).set_indices() {
            if let Some(row) = self.row_of(element) {
                rows.insert(row);
            }
        }
        self.nulls = Some(rows).filter(|rows| !rows.is_empty());
    }

    fn offsets(&self) -> Vec<Offsets> {
        let items = self.levels.iter().filter_map(|level| match level {
            Level::Items(offsets) => Some(offsets.clone()),
            Level::Fixed(_) => None,
        });
        items.collect()
    }
}

/// The null elements, as set bits.
fn absent(nulls: &NullBuffer) -> BooleanBuffer {
    !nulls.inner()
}

fn union(first: Option<NullBuffer>, second: Option<&NullBuffer>) -> Option<NullBuffer> {
    NullBuffer::union(first.as_ref(), second).filter(|nulls| nulls.null_count() > 0)
}

/// The first row of the root column `root` that is null in one leaf, in which nulls are not filled; copies no values.
pub(super) fn first_null(member: &Member, root: &ArrayRef) -> Checked<Option<usize>> {
    if member.held.is_vector() {
        return vector::first_null(root);
    }
    let (walk, ..) = walked(member, root)?;
    Ok(walk.nulls.and_then(|rows| rows.first()))
}

/// The path from the root column `root` to one leaf, the leaf, and its nulls.
fn walked(member: &Member, root: &ArrayRef) -> Checked<(Walk, ArrayRef, Option<NullBuffer>)> {
    let noted = !matches!(member.nulls, NullPlan::Fill(_));
    let mut walk = Walk { rows: root.len(), levels: Vec::new(), noted, nulls: None };
    let mut array = Arc::clone(root);
    let mut nulls: Option<NullBuffer> = None;
    for step in &member.leaf.steps {
        match step {
            Step::Child(name) => {
                let of = array.as_any().downcast_ref::<StructArray>().ok_or_else(|| unexpected(&array, "a struct"))?;
                let child = of.column_by_name(name).ok_or_else(|| format!("the struct has no field {name}"))?;
                nulls = union(nulls, of.nulls());
                array = Arc::clone(child);
            }
            Step::Items => {
                nulls = union(nulls, array.nulls());
                let (mut offsets, mut items) = items(&array)?;
                walk.note(nulls.as_ref());
                if let Some(nulls) = nulls.take() {
                    (offsets, items) = emptied(offsets, items, &nulls)?;
                }
                walk.levels.push(Level::Items(offsets));
                array = items;
            }
            Step::Fixed(length) => {
                let of = array.as_fixed_size_list_opt().ok_or_else(|| unexpected(&array, "a fixed-size list"))?;
                if usize::try_from(of.value_length()).ok() != Some(*length) {
                    return Err(format!("lists of {} items instead of {length}", of.value_length()));
                }
                nulls = union(nulls, of.nulls());
                walk.note(nulls.as_ref());
                nulls = nulls.map(|nulls| nulls.expand(*length));
                walk.levels.push(Level::Fixed(*length));
                array = Arc::clone(of.values());
            }
        }
    }
    if kind(array.data_type()).0 != member.leaf.kind {
        return Err(format!("type {} where the schema says otherwise", array.data_type()));
    }
    let nulls = union(nulls, array.logical_nulls().as_ref());
    walk.note(nulls.as_ref());
    Ok((walk, array, nulls))
}

/// Prepares one leaf of the root column `root`.
pub(super) fn part(member: &Member, root: &ArrayRef, limit: Option<&Limit>) -> Checked<Part> {
    if member.held.is_vector() {
        return vector::part(member, root);
    }
    let (mut walk, array, nulls) = walked(member, root)?;
    let mut part = match member.leaf.kind {
        _ if !matches!(member.held, Held::Values) => held(member, &array, nulls, root)?,
        Kind::Text | Kind::Binary => text(member, &walk, &array, nulls)?,
        _ => numbers(member, &mut walk, &array, nulls, root)?,
    };
    let null_rows = walk.nulls.take();
    match member.nulls {
        NullPlan::Fill(_) => {}
        NullPlan::Mask => part.valid = Some(mask(walk.rows, null_rows.as_ref())),
        NullPlan::Error => part.bad.extend(null_rows.map(|rows| bad(member, rows, Cause::Null, root))),
    }
    if let (Some(limit), Data::Lists { offsets, .. }) = (limit, &part.data) {
        part.bad.extend(long(member, &walk, offsets, limit, root));
    }
    Ok(part)
}

fn bad(member: &Member, rows: RowSet, cause: Cause, root: &ArrayRef) -> Bad {
    Bad { column: Arc::clone(&member.name), rows, cause, array: Some(Arc::clone(root)) }
}

/// The same lists with null ones emptied. Arrow allows them to have items; Parquet never makes such lists.
fn emptied(offsets: Offsets, items: ArrayRef, nulls: &NullBuffer) -> Checked<(Offsets, ArrayRef)> {
    if absent(nulls).set_indices().all(|at| offsets.at(at) == offsets.at(at + 1)) {
        return Ok((offsets, items));
    }
    let range = |at: usize| offsets.at(at)..offsets.at(at + 1);
    let kept: UInt64Array =
        (0..offsets.lists()).filter(|at| nulls.is_valid(*at)).flat_map(range).map(|item| item as u64).collect();
    let lengths = (0..offsets.lists()).map(|at| if nulls.is_valid(at) { range(at).len() } else { 0 });
    let items = take(&items, &kept, None).map_err(|error| error.to_string())?;
    Ok((Offsets::Large(OffsetBuffer::from_lengths(lengths)), items))
}

/// Rows with a list longer than `limit` allows, by level.
fn long(member: &Member, walk: &Walk, offsets: &[Offsets], limit: &Limit, root: &ArrayRef) -> Vec<Bad> {
    if limit.truncate != super::options::Truncate::Error {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (level, (lists, most)) in offsets.iter().zip(&limit.lengths).enumerate() {
        let mut rows = RowSet::new(walk.rows);
        for list in 0..lists.lists() {
            if lists.at(list + 1) - lists.at(list) > *most
                && let Some(row) = offsets[..level].iter().rev().try_fold(list, |at, outer| outer.owner(at))
            {
                rows.insert(row);
            }
        }
        if !rows.is_empty() {
            found.push(bad(member, rows, Cause::Long(*most), root));
        }
    }
    found
}

/// Prepares columns that are kept as Arrow arrays: of their own type, or lists of the strings in them.
fn held(member: &Member, array: &ArrayRef, nulls: Option<NullBuffer>, root: &ArrayRef) -> Checked<Part> {
    let part = |array, bad| Part {
        data: Data::Nested(array),
        dtype: DType::Uint8,
        valid: None,
        bad,
        root: None,
        in_take_order: false,
    };
    match &member.held {
        Held::Arrow(ty) => {
            let array = cast(array, ty).map_err(|error| error.to_string())?;
            let value = match &member.nulls {
                NullPlan::Fill(value) => Some(value.clone()),
                // Of a bad row that is still delivered.
                NullPlan::Error => stand_in::of(&Scalar::Int(0), ty),
                NullPlan::Mask => None,
            };
            let array = match (nulls, value) {
                (Some(nulls), Some(value)) => stand_in::filled(&array, &nulls, &value)?,
                _ => array,
            };
            Ok(part(array, Vec::new()))
        }
        Held::Strings(decoder, axes, text) => {
            let cells = bytes::views(array, false)?;
            let mut lists = Lists::new(decoder, *axes);
            let mut damaged = RowSet::new(cells.len());
            for row in 0..cells.len() {
                let cell = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)).then(|| cells.value(row));
                if lists.push(cell).is_err() {
                    damaged.insert(row);
                    lists.push(None).map_err(|error| error.to_string())?;
                }
            }
            let damaged = Some(damaged).filter(|rows| !rows.is_empty());
            let bad: Option<Bad> = damaged.map(|rows| bad(member, rows, Cause::Strings(Arc::clone(decoder)), root));
            let lists = lists.finish(*text)?;
            Ok(part(lists, bad.into_iter().collect()))
        }
        Held::Values | Held::Dense(_) | Held::Sparse | Held::Indices => Err("not held as Arrow".to_owned()),
    }
}

fn text(member: &Member, walk: &Walk, array: &ArrayRef, nulls: Option<NullBuffer>) -> Checked<Part> {
    let is_text = member.leaf.kind == Kind::Text;
    let (views, buffers, _) = bytes::views(array, is_text)?.into_parts();
    let array = BinaryViewArray::try_new(views, buffers, nulls).map_err(|error| error.to_string())?;
    let data = if member.leaf.levels == 0 {
        Data::Bytes(array)
    } else {
        Data::Nested(bytes::nested(&array, is_text, member.nulls.text(), &walk.offsets())?)
    };
    Ok(Part { data, dtype: DType::Uint8, valid: None, bad: Vec::new(), root: None, in_take_order: false })
}

fn numbers(
    member: &Member,
    walk: &mut Walk,
    array: &ArrayRef,
    mut nulls: Option<NullBuffer>,
    root: &ArrayRef,
) -> Checked<Part> {
    let (mut bytes, mut dtype, mut odd) = stored(array, &member.leaf.kind, member.dtype)?;
    if let Kind::Blob(length) = member.leaf.kind {
        nulls = nulls.map(|nulls| nulls.expand(length));
        walk.levels.push(Level::Fixed(length));
    }
    let zero = vec![0; member.dtype.size()];
    let value = if let NullPlan::Fill(value) = &member.nulls { value } else { &zero };
    // Usually a null is to be zero, and is zero already.
    let settled = |nulls: &NullBuffer| {
        dtype == member.dtype
            && absent(nulls).set_indices().all(|at| bytes.get(at * value.len()..(at + 1) * value.len()) == Some(value))
    };
    // A pack converts and copies its columns in its own pass; only nulls need handling here.
    if (dtype != member.dtype && !member.packed) || nulls.as_ref().is_some_and(|nulls| !settled(nulls)) {
        let elements = bytes.len() / dtype.size();
        let mut output = MutableBuffer::from_len_zeroed(elements * member.dtype.size());
        if !convert(dtype, &bytes, member.dtype, &mut output) {
            let misfits = misfits(dtype, &bytes, member.dtype);
            if misfits.is_empty() {
                return Err("values that are not aligned".to_owned());
            }
            odd.extend(misfits);
        }
        if let Some(nulls) = &nulls {
            for element in absent(nulls).set_indices() {
                let at = element * value.len();
                number::fill(&mut output[at..at + value.len()], value);
            }
        }
        (bytes, dtype) = (output.into(), member.dtype);
    }
    let mut misfit = None;
    if !odd.is_empty() {
        let mut rows = RowSet::new(walk.rows);
        for element in odd {
            // Values under a null have no meaning.
            if nulls.as_ref().is_none_or(|nulls| nulls.is_valid(element))
                && let Some(row) = walk.row_of(element)
            {
                rows.insert(row);
            }
        }
        misfit = Some(rows).filter(|rows| !rows.is_empty());
    }
    let width = member.leaf.elements() * dtype.size();
    let offsets = walk.offsets();
    let items = offsets.last().map_or(walk.rows, |offsets| offsets.at(offsets.lists()));
    if items.checked_mul(width).is_none_or(|needed| needed > bytes.len()) {
        return Err("fewer values than rows".to_owned());
    }
    let data = if offsets.is_empty() {
        Data::Fixed { bytes, width, stride: width }
    } else {
        Data::Lists { offsets, values: bytes, width }
    };
    let bad = misfit.map(|rows| bad(member, rows, Cause::Misfit(member.dtype), root));
    let root = member.packed.then(|| Arc::clone(root));
    Ok(Part { data, dtype, valid: None, bad: bad.into_iter().collect(), root, in_take_order: false })
}

impl Member {
    /// Returns true if preparation rewrites the values even if none is null.
    pub(super) fn converts(&self) -> bool {
        match self.leaf.kind {
            Kind::Number(DType::Bool) => true,
            Kind::Number(dtype) => dtype != self.dtype,
            Kind::Blob(_) => self.dtype != DType::Uint8,
            _ => true,
        }
    }

    /// Returns true if its rows are delivered as stored when none is null: a list of numbers, or binary of one size.
    pub(super) fn stays(&self) -> bool {
        let steps = self.leaf.steps.as_slice();
        let row =
            matches!((&self.leaf.kind, steps), (Kind::Number(_), [Step::Fixed(_) | Step::Items]) | (Kind::Blob(_), []));
        row && !self.packed
            && !self.converts()
            && matches!(self.held, Held::Values)
            && !matches!(self.nulls, NullPlan::Mask)
    }

    /// Bytes per row that preparation adds to the array; none for text, which is copied into batches only.
    pub(super) fn copied_row_bytes(&self) -> u64 {
        let text = matches!(self.leaf.kind, Kind::Text | Kind::Binary);
        let copied = !text && self.leaf.levels == 0 && (self.packed || self.converts());
        let values = if copied { self.leaf.elements().saturating_mul(self.dtype.size()) } else { 0 };
        (values as u64).saturating_add(u64::from(matches!(self.nulls, NullPlan::Mask)))
    }
}

/// The values as bytes of an element type, and the elements that it does not hold. `wanted` is the type of an array without one, and what
/// decimals become.
fn stored(array: &ArrayRef, kind: &Kind, wanted: DType) -> Checked<(Buffer, DType, Vec<usize>)> {
    let to = |ty: &DataType| cast(array, ty).map_err(|error| error.to_string());
    match array.data_type() {
        DataType::Dictionary(_, values) => return stored(&to(values)?, kind, wanted),
        DataType::RunEndEncoded(_, values) => return stored(&to(values.data_type())?, kind, wanted),
        _ => {}
    }
    let (array, dtype) = match kind {
        Kind::Number(DType::Bool) => {
            let bits = array.as_boolean_opt().ok_or_else(|| unexpected(array, "booleans"))?;
            return Ok((bools(bits.values()), DType::Bool, Vec::new()));
        }
        Kind::Null => {
            let zeros = MutableBuffer::from_len_zeroed(array.len() * wanted.size());
            return Ok((zeros.into(), wanted, Vec::new()));
        }
        Kind::Decimal if wanted.arrow().is_some_and(|ty| ty.is_integer()) => return decimals::whole(array, wanted),
        Kind::Decimal => match decimals::floats(array) {
            Some(values) => return Ok((Buffer::from_vec(values), DType::Float64, Vec::new())),
            None => (to(&DataType::Float64)?, DType::Float64),
        },
        Kind::Number(dtype) => (Arc::clone(array), *dtype),
        Kind::Blob(_) => (Arc::clone(array), DType::Uint8),
        _ => return Err(unexpected(array, "numbers")),
    };
    let elements = if let Kind::Blob(length) = kind { *length } else { 1 };
    let data = array.to_data();
    let width = elements * dtype.size();
    let (start, len) = (data.offset() * width, data.len() * width);
    match data.buffers().first() {
        Some(buffer) if start + len <= buffer.len() => Ok((buffer.slice_with_length(start, len), dtype, Vec::new())),
        None if len == 0 => Ok((Buffer::from_vec(Vec::<u64>::new()), dtype, Vec::new())),
        _ => Err("fewer values than rows".to_owned()),
    }
}

/// One byte per bit.
fn bools(bits: &BooleanBuffer) -> Buffer {
    let mut bytes = Vec::with_capacity(bits.len().next_multiple_of(64));
    for word in bits.bit_chunks().iter_padded() {
        bytes.extend((0..64).map(|bit| (word >> bit & 1) as u8));
    }
    bytes.truncate(bits.len());
    Buffer::from_vec(bytes)
}
