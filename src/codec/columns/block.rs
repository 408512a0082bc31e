//! The rows of one row group in the form from which batches are gathered.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayData};
use arrow::buffer::Buffer;

use super::output::{Form, Member, Output};
use super::pack;
use super::parts::{Data, Part, RowSet};
use super::rows::{self, RowLayout};
use super::take_order::{Places, TakeOrder};
use crate::error::{Error, Place, Result};

/// One prepared root column of a row group, or a pack of several.
#[derive(Debug)]
pub struct PreparedColumn {
    /// The name of the root column or pack.
    pub(super) name: Arc<str>,
    pub(super) rows: usize,
    pub(super) made: Made,
}

/// The result of preparation.
#[derive(Debug)]
pub(super) enum Made {
    /// Members, by number.
    Members(Vec<(usize, Part)>),
    /// A whole output, by number.
    Output(usize, Part),
}

/// The rows of one row group, from which batches are gathered. Immutable and shared.
#[derive(Debug)]
pub struct RowGroupBlock {
    pub(super) rows: usize,
    pub(super) place: Place,
    /// By output.
    pub(super) parts: Vec<Part>,
    /// The small ones among them, again as rows, if they are stored side by side.
    pub(super) small: Option<rows::Rows>,
    /// Where the rows of the small ones are instead, if the order of batches was known.
    pub(super) places: Option<Places>,
    /// Rows that are bad in any column, if there are any.
    pub(super) bad: Option<RowSet>,
    memory: usize,
}

impl RowGroupBlock {
    /// Bytes held, including those shared with the fetched column chunks unless those stay as a whole; memory shared by
    /// several columns counts once.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// The bytes of [`memory`](Self::memory) at addresses that `holds` accepts: parts of the fetched bytes that views
    /// point into.
    pub(crate) fn shared(&self, holds: impl Fn(*const u8) -> bool) -> usize {
        distinct(&self.parts, |buffer| holds(buffer.data_ptr().as_ptr()))
    }

    /// Returns true if rows were left in the fetched column chunks, which then stay as long as the cells do.
    pub(crate) fn in_fetched(&self) -> bool {
        self.parts.iter().any(|part| matches!(&part.data, Data::Pages(pages) if pages.in_place()))
    }

    /// Rows; `usize::MAX` if no column was read.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

pub(super) fn cells(
    members: &[Member],
    outputs: &[Output],
    prepared: Vec<PreparedColumn>,
    layout: Option<&Arc<RowLayout>>,
    order: Option<TakeOrder>,
    place: Place,
) -> Result<RowGroupBlock> {
    let rows = prepared.first().map_or(usize::MAX, |first| first.rows);
    if let Some(other) = prepared.iter().find(|other| other.rows != rows) {
        let what = format!("{} rows, where column {} has {rows}", other.rows, prepared[0].name);
        return Err(Error::corrupt(place.column(Arc::clone(&other.name)), what));
    }
    let mut parts: Vec<Option<Part>> = vec![None; members.len()];
    let mut whole: Vec<Option<Part>> = vec![None; outputs.len()];
    for prepared in prepared {
        match prepared.made {
            Made::Members(of) => of.into_iter().for_each(|(at, part)| parts[at] = Some(part)),
            Made::Output(at, part) => whole[at] = Some(part),
        }
    }
    let mut take = |at: usize| {
        parts[at].take().ok_or_else(|| Error::corrupt(place.clone().column(Arc::clone(&members[at].name)), "not read"))
    };
    let mut made = Vec::with_capacity(outputs.len());
    for (output, whole) in outputs.iter().zip(whole) {
        if let Some(part) = whole {
            made.push(part);
            continue;
        }
        let mut of = output.members.iter().map(|at| take(*at)).collect::<Result<Vec<Part>>>()?;
        let part = match output.form {
            Form::Pack => pack::pack(output, members, of, rows, &place)?,
            // Every other output has one member.
            _ => of.swap_remove(0),
        };
        made.push(part);
    }
    let places = order.filter(|_| made.iter().any(|part| part.in_take_order)).map(TakeOrder::into_places);
    let moved = layout.filter(|_| places.is_none());
    let small = moved.and_then(|layout| rows::side_by_side(layout, outputs, &mut made, rows));
    let mut bad: Option<RowSet> = None;
    for entry in made.iter().flat_map(|part| &part.bad) {
        bad.get_or_insert_default().add(&entry.rows);
    }
    let memory = distinct(&made, |_| true) + beside(&made) + places.as_ref().map_or(0, Places::memory);
    Ok(RowGroupBlock { rows, place, parts: made, small, places, bad, memory })
}

/// The rows of each of `cells`, if all have `layout`.
pub(super) fn blocks<'a>(layout: &Arc<RowLayout>, cells: &'a [Arc<RowGroupBlock>]) -> Option<Vec<&'a [u8]>> {
    let rows = |cell: &'a Arc<RowGroupBlock>| {
        // The blocks of other datasets of a mixture have their own layout object, which is equal.
        let same = |rows: &&rows::Rows| Arc::ptr_eq(&rows.layout, layout) || rows.layout == *layout;
        cell.small.as_ref().filter(same).map(|rows| rows.bytes.as_slice())
    };
    cells.iter().map(rows).collect()
}

/// Bytes of the buffers of `parts` that `counts` accepts, each counted once.
fn distinct(parts: &[Part], counts: impl Fn(&Buffer) -> bool) -> usize {
    let mut seen = HashSet::new();
    let mut sum = 0;
    let mut visit = |buffer: &Buffer| {
        if seen.insert(buffer.data_ptr()) && counts(buffer) {
            sum += buffer.capacity();
        }
    };
    for part in parts {
        part.valid.iter().for_each(&mut visit);
        match &part.data {
            Data::Fixed { bytes, .. } => visit(bytes),
            Data::Pages(_) => {}
            Data::Lists { offsets, values, .. } => {
                visit(values);
                offsets.iter().for_each(|offsets| visit(offsets.buffer()));
            }
            Data::Bytes(array) => {
                visit(array.views().inner());
                array.data_buffers().iter().for_each(&mut visit);
            }
            Data::Nested(array) => buffers(&array.to_data(), &mut visit),
        }
        part.bad.iter().flat_map(|bad| &bad.array).for_each(|array| buffers(&array.to_data(), &mut visit));
    }
    sum
}

/// Visits every buffer of an array, including its children's.
fn buffers(data: &ArrayData, visit: &mut impl FnMut(&Buffer)) {
    data.buffers().iter().for_each(&mut *visit);
    data.nulls().iter().for_each(|nulls| visit(nulls.buffer()));
    data.child_data().iter().for_each(|child| buffers(child, visit));
}

/// Bytes outside of buffers: copies of pages, and sets of bad rows.
fn beside(parts: &[Part]) -> usize {
    let sizes = parts.iter().map(|part| {
        let pages = match &part.data {
            // Pages within the fetched bytes belong to those, see `in_fetched`.
            Data::Pages(pages) => pages.copied(),
            _ => 0,
        };
        pages + part.bad.iter().map(|bad| bad.rows.bytes()).sum::<usize>()
    });
    sizes.sum()
}
