//! One step: its rows gathered from the cells of many row groups into one slab.
//!
//! Decoding comes first, because it may find bad rows and so change the rows that are delivered; then everything else,
//! in pieces that run in parallel. Each piece writes its own part of one tensor.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use arrow::array::ArrayRef;
use rayon::prelude::*;

use super::block::{self, RowGroupBlock};
use super::bytes;
use super::gather::{self, Picks, Wide};
use super::layout::{Layout, MASK, ROW_ID, Rows, Shapes, Table};
use super::lists::{self, ListCell};
use super::options::BadRows;
use super::output::{Form, Output};
use super::parts::Data;
use super::row_errors::{self, BadRow};
use super::rows::{Blocks, RowLayout};
use super::shaped;
use super::streams::Streams;
use super::strided::Strided;
use super::tensors::fill_tensors;
use crate::error::{Error, Place, Result};
use crate::memory::{HostBuffer, Reservation};
use crate::schema::{DType, part_name};
use crate::tensor::{Batch, BatchBuilder, TENSOR_ALIGNMENT, Tensor, TensorSpec};

/// A batch that is a smaller part of its row group is copied: whoever keeps a tensor of it would keep many times its bytes.
const SMALLEST_PART: usize = 64;

pub(super) fn assemble(
    outputs: &[Output],
    small: Option<&Arc<RowLayout>>,
    row_id: bool,
    rows: &Rows<'_>,
    mut reservation: Reservation,
) -> Result<(Batch, Vec<BadRow>)> {
    check(rows)?;
    let bytes = small.and_then(|layout| block::blocks(layout, rows.cells));
    let small = small.zip(bytes.as_deref()).map(|(layout, bytes)| Blocks { layout, bytes });
    let in_order = rows.cells.iter().any(|cell| cell.places.is_some());
    let table = |(at, output): (usize, &Output)| match small.and_then(|blocks| blocks.layout.offset(at)) {
        Some(offset) if output.is_fixed() => Ok(Table::Small(offset)),
        _ => table(output, at, rows.cells),
    };
    let mut tables = outputs.iter().enumerate().map(table).collect::<Result<Vec<_>>>()?;
    let mut row_errors = row_errors::known(outputs, rows);
    // Nothing after the first fault matters if it ends the batch anyway.
    let limit =
        row_errors.first().filter(|_| rows.bad_rows == BadRows::Error).map_or(rows.rows.len(), |fault| fault.index);
    let mut picked = Cow::Borrowed(rows.rows);
    let shapes = shaped::shapes(outputs, &tables, rows, &picked, limit, Some(&mut row_errors));
    let mut layout = lay_out(outputs, &tables, &picked, rows, row_id, shapes)?;
    within(&layout, rows)?;
    let spare = reservation.split(0);
    let placed = if row_errors.is_empty() { placed(outputs, rows, &layout, &mut tables) } else { Vec::new() };
    let elsewhere = placed.iter().flatten().map(|tensor| tensor.bytes().len().next_multiple_of(TENSOR_ALIGNMENT));
    let room = layout.room.saturating_sub(elsewhere.sum());
    let mut builder = BatchBuilder::around(placed, layout.specs.clone(), room, reservation)?;
    let began = Instant::now();
    row_errors::decode(outputs, &tables, rows, limit, &layout, &mut builder, &mut row_errors);
    shaped::decode(outputs, &tables, rows, (&picked, limit), &layout, &mut builder, &mut row_errors);
    if let Some(images) = rows.images {
        images.fetch_add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
    row_errors.sort_by_key(|fault| (fault.index, fault.output));

    let mut is_bad = vec![false; rows.rows.len()];
    row_errors.iter().for_each(|fault| is_bad[fault.index] = true);
    let substitute =
        |index: usize| row_errors::substitute(outputs, &tables, rows, index, &is_bad, &layout, &mut builder);
    let bad = if row_errors.is_empty() {
        Vec::new()
    } else {
        row_errors::resolve(row_errors, rows, picked.to_mut(), substitute)?
    };
    if bad.iter().any(|bad| bad.replaced_by.is_some()) {
        let shapes = shaped::shapes(outputs, &tables, rows, &picked, picked.len(), None);
        let decoded = std::mem::replace(&mut layout, lay_out(outputs, &tables, &picked, rows, row_id, shapes)?);
        within(&layout, rows)?;
        builder = with_decoded(outputs, builder, &decoded, &layout, spare)?;
        let all = (&*picked, picked.len());
        shaped::decode(outputs, &tables, rows, all, &layout, &mut builder, &mut Vec::new());
    }
    let runs = gather::runs(&picked);
    let picks = Picks { rows: &picked, size: rows.size, runs: &runs, streams: None };
    let places: Vec<(u32, u32)> = if in_order { places(rows.cells, &picked) } else { Vec::new() };
    let taken_runs = gather::runs(&places);
    let streams = if taken_runs.is_empty() { Streams::of(&places, rows.cells.len()) } else { None };
    let taken = Picks { rows: &places, size: rows.size, runs: &taken_runs, streams: streams.as_ref() };
    fill_tensors(outputs, (&tables, small), [&picks, &taken], &layout, rows, row_id, &mut builder)?;
    let arrow = outputs.par_iter().zip(&tables).filter(|(output, _)| output.is_arrow());
    let arrow = arrow.map(|(output, table)| {
        let array = arrow_column(output, table, &picks);
        let array = array.map_err(|what| Error::corrupt(Place::default().column(Arc::clone(&output.name)), what))?;
        Ok((Arc::clone(&output.name), array))
    });
    // A column comes before the tensors of its own output, which are those of its mask, and of the outputs after it.
    let before =
        outputs.iter().zip(&layout.outputs).filter(|(output, _)| output.is_arrow()).map(|(_, (first, _))| *first);
    let arrow = before.zip(arrow.collect::<Result<Vec<_>>>()?).collect();
    Ok((builder.finish(rows.epoch, rows.step, rows.size, arrow), bad))
}

/// Checks that the batch does not exceed its limit, before memory is allocated for it.
fn within(layout: &Layout, rows: &Rows<'_>) -> Result<()> {
    let asked = layout.room;
    if asked <= rows.max_bytes {
        return Ok(());
    }
    let (what, limit) = (format!("the values of step {}", rows.step), rows.max_bytes as u64);
    Err(Error::limit(what, asked as u64, limit, "memory_budget (or lower batch_size)"))
}

/// The places of these rows of `cells` in the order in which batches take them: mostly one after another in each cell.
fn places(cells: &[Arc<RowGroupBlock>], picked: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut next = vec![0_u32; cells.len()];
    let place = |(cell, row): &(u32, u32)| {
        let next = &mut next[*cell as usize];
        let place = cells[*cell as usize].places.as_ref().map_or(*row, |places| places.of(*row, *next));
        *next = place.saturating_add(1);
        (*cell, place)
    };
    picked.iter().map(place).collect()
}

/// Checks that all rows exist, so that nothing below can be out of range.
fn check(rows: &Rows<'_>) -> Result<()> {
    let exists = |(cell, row): &(u32, u32)| rows.cells.get(*cell as usize).is_some_and(|of| (*row as usize) < of.rows);
    if let Some((cell, row)) = rows.rows.iter().find(|pick| !exists(pick)) {
        let found = rows
            .cells
            .get(*cell as usize)
            .map_or_else(|| "no such row group".to_owned(), |of| format!("{} rows in {}", of.rows, of.place));
        return Err(Error::Mismatch {
            what: format!("rows of step {}", rows.step),
            expected: format!("row {row} of row group {cell} of the step"),
            found,
            hint: "the plan is not one of this dataset".to_owned(),
        });
    }
    if rows.size < rows.rows.len() {
        return Err(Error::config("batch_size", format!("{} rows in a batch of {}", rows.rows.len(), rows.size)));
    }
    Ok(())
}

/// The values of output `at` in all row groups, which share one form.
fn table<'a>(output: &Output, at: usize, cells: &'a [Arc<RowGroupBlock>]) -> Result<Table<'a>> {
    let paged =
        |cell: &Arc<RowGroupBlock>| matches!(cell.parts.get(at), Some(part) if matches!(part.data, Data::Pages(_)));
    let taken = |cell: &Arc<RowGroupBlock>| cell.parts.get(at).is_some_and(|part| part.in_take_order);
    let mut table = match output.form {
        Form::Fixed if cells.iter().any(taken) => Table::Taken(Vec::new()),
        Form::Fixed if cells.iter().any(paged) => Table::Wide(Vec::new()),
        Form::Fixed | Form::Pack => Table::Fixed(Vec::new()),
        Form::Ragged(..) | Form::Padded(_) | Form::Sparse | Form::Indices => Table::Lists(Vec::new()),
        Form::Decoded(_) | Form::Shaped(_) | Form::Bytes(..) => Table::Bytes(Vec::new()),
        Form::Nested(..) | Form::Arrow(_) => Table::Nested(Vec::new()),
        Form::Absent => return Ok(Table::Absent),
    };
    let levels = match &output.form {
        Form::Ragged(levels, _) => *levels,
        Form::Padded(padding) => padding.limit.lengths.len(),
        Form::Sparse | Form::Indices => 1,
        _ => 0,
    };
    for cell in cells {
        let part = cell.parts.get(at);
        let fits = match (&mut table, part.map(|part| &part.data)) {
            (Table::Fixed(of), Some(Data::Fixed { bytes, width, stride })) if *width == output.width() => {
                of.push(Strided { bytes, stride: *stride });
                true
            }
            (Table::Taken(of), Some(Data::Fixed { bytes, width, stride })) if *width == output.width() => {
                of.push(Strided { bytes, stride: *stride });
                // The rows of a row group without an order stay in place.
                taken(cell) == cell.places.is_some()
            }
            (Table::Wide(of), Some(Data::Fixed { bytes, width, stride })) if *width == output.width() => {
                of.push(Wide::Block(Strided { bytes, stride: *stride }));
                true
            }
            (Table::Wide(of), Some(Data::Pages(pages))) if pages.width() == output.width() => {
                of.push(Wide::Pages(pages));
                true
            }
            (Table::Lists(of), Some(Data::Lists { offsets, values, width }))
                if *width == output.width() && offsets.len() == levels =>
            {
                of.push(ListCell::Together { offsets, values });
                true
            }
            (Table::Lists(of), Some(Data::Pages(pages)))
                if levels == 1 && pages.width().is_multiple_of(output.width()) =>
            {
                of.push(ListCell::Pages { length: pages.width() / output.width(), pages });
                true
            }
            (Table::Bytes(of), Some(Data::Bytes(array))) => {
                of.push(array);
                true
            }
            (Table::Nested(of), Some(Data::Nested(array))) => {
                of.push(array);
                true
            }
            _ => false,
        };
        let masked = part.is_some_and(|part| part.valid.is_some());
        if !fits || masked != output.valid.is_some() {
            return Err(Error::Mismatch {
                what: format!("column {} of {}", output.name, cell.place),
                expected: output.field().to_string(),
                found: "cells made by other options".to_owned(),
                hint: "datasets of a mixture need the same fields".to_owned(),
            });
        }
    }
    Ok(table)
}

/// The tensors that stay in their row group, by tensor, if the rows may and lie in one, one after another; their tables say so then.
fn placed(outputs: &[Output], rows: &Rows<'_>, layout: &Layout, tables: &mut [Table<'_>]) -> Vec<Option<Tensor>> {
    // What a decoder finds may change the rows, and padding is in no row group.
    let is_whole = rows.rows.len() == rows.size && !outputs.iter().any(|output| output.form.is_decoded());
    let run = rows.lent.filter(|_| is_whole).and_then(|lent| {
        let (cell, first) = gather::one_run(rows.rows)?;
        let of = &rows.cells[cell];
        // The next good row stands in for a bad one, so it may be in two batches.
        let is_taken_once = rows.bad_rows != BadRows::Skip || of.bad.is_none();
        let is_much = rows.size.saturating_mul(SMALLEST_PART) >= of.rows;
        (is_taken_once && is_much).then_some((lent.get(cell)?, cell, first))
    });
    let Some((lent, cell, first)) = run else { return Vec::new() };
    let mut found = vec![None; layout.specs.len()];
    for (at, (table, (number, _))) in tables.iter_mut().zip(&layout.outputs).enumerate() {
        let (Table::Fixed(_), Data::Fixed { bytes, width, stride }) = (&*table, &rows.cells[cell].parts[at].data)
        else {
            continue;
        };
        let (start, len) = (first * width, rows.size * width);
        if stride != width || bytes.len() < start + len {
            continue;
        }
        let spec = &layout.specs[*number];
        let values = bytes.slice_with_length(start, len);
        let slab = HostBuffer::part_of(values, Arc::clone(lent));
        found[*number] = slab.and_then(|slab| Tensor::within(&slab, 0, spec.dtype, spec.shape.clone()));
        if found[*number].is_some() {
            *table = Table::Placed;
        }
    }
    found
}

/// Returns the builder for `new`: the same one if the sizes are equal, otherwise another with the decoded values of one
/// shape moved over.
fn with_decoded(
    outputs: &[Output],
    mut builder: BatchBuilder,
    old: &Layout,
    new: &Layout,
    spare: Reservation,
) -> Result<BatchBuilder> {
    if old.specs == new.specs {
        return Ok(builder);
    }
    let mut bigger = BatchBuilder::with_room(new.specs.clone(), new.room, spare)?;
    for (at, _) in outputs.iter().enumerate().filter(|(_, output)| matches!(output.form, Form::Decoded(_))) {
        bigger.tensor(new.outputs[at].0).copy_from_slice(builder.tensor(old.outputs[at].0));
    }
    Ok(bigger)
}

fn lay_out(
    outputs: &[Output],
    tables: &[Table<'_>],
    picked: &[(u32, u32)],
    rows: &Rows<'_>,
    row_id: bool,
    mut shapes: Vec<Shapes>,
) -> Result<Layout> {
    let size = rows.size;
    let mut starts = |at: usize, output: &Output| match (&output.form, &tables[at]) {
        (Form::Ragged(levels, limit), Table::Lists(cells)) => lists::starts(cells, picked, *levels, limit.as_ref()),
        (Form::Sparse | Form::Indices, Table::Lists(cells)) => lists::starts(cells, picked, 1, None),
        (Form::Shaped(_), _) => vec![std::mem::take(&mut shapes[at].starts)],
        _ => Vec::new(),
    };
    let starts: Vec<_> = outputs.iter().enumerate().map(|(at, output)| starts(at, output)).collect();
    let mut layout = Layout { specs: Vec::new(), room: 0, outputs: Vec::with_capacity(outputs.len()), shapes };
    for (output, starts) in outputs.iter().zip(starts) {
        let totals: Vec<usize> = starts.iter().map(|starts| starts.last().copied().unwrap_or(0)).collect();
        let first = layout.specs.len();
        specs(output, size, &totals, &mut layout.specs);
        layout.outputs.push((first, starts));
    }
    own_specs(size, row_id, rows.masked, &mut layout.specs);
    layout.room = BatchBuilder::slab_bytes(&layout.specs)?;
    if outputs.iter().any(|output| most(output, size).is_some()) {
        let mut longest = layout.specs.clone();
        for (output, (first, _)) in outputs.iter().zip(&layout.outputs) {
            // The values come first.
            if let (Some(most), Some(items)) =
                (most(output, size), longest.get_mut(*first).and_then(|spec| spec.shape.first_mut()))
            {
                *items = most;
            }
        }
        layout.room = BatchBuilder::slab_bytes(&longest)?;
    }
    Ok(layout)
}

/// Maximum items of a ragged output in a batch of `size` rows, if its lists are cut.
pub(super) fn most(output: &Output, size: usize) -> Option<usize> {
    match &output.form {
        Form::Ragged(_, Some(limit)) => {
            Some(limit.lengths.iter().fold(size, |most, length| most.saturating_mul(*length)))
        }
        _ => None,
    }
}

/// The tensors of one output; `totals` are the items of each ragged level.
pub(super) fn specs(output: &Output, size: usize, totals: &[usize], specs: &mut Vec<TensorSpec>) {
    let mut add = |name: Arc<str>, dtype: DType, shape: Vec<usize>| specs.push(TensorSpec { name, dtype, shape });
    let shape = |axes: &[usize]| axes.iter().chain(&output.dims).copied().collect::<Vec<usize>>();
    let name = &output.name;
    match &output.form {
        Form::Fixed | Form::Pack | Form::Decoded(_) => add(Arc::clone(name), output.dtype, shape(&[size])),
        Form::Ragged(levels, _) => {
            let total = |level: usize| totals.get(level).copied().unwrap_or(0);
            add(part_name(name, "values", 0), output.dtype, shape(&[total(levels - 1)]));
            add(part_name(name, "offsets", 0), DType::Int64, vec![size.saturating_add(1)]);
            for level in 1..*levels {
                add(part_name(name, "offsets", level), DType::Int64, vec![total(level - 1).saturating_add(1)]);
            }
        }
        Form::Sparse => {
            let total = totals.first().copied().unwrap_or(0);
            add(part_name(name, "values", 0), output.dtype, vec![total]);
            add(part_name(name, "offsets", 0), DType::Int64, vec![size.saturating_add(1)]);
        }
        Form::Indices => {
            add(part_name(name, "indices", 0), output.dtype, vec![totals.first().copied().unwrap_or(0)]);
        }
        Form::Padded(padding) => {
            let axes: Vec<usize> = std::iter::once(size).chain(padding.limit.lengths.iter().copied()).collect();
            add(Arc::clone(name), output.dtype, shape(&axes));
            for level in 0..padding.limit.lengths.len() {
                add(part_name(name, "lengths", level), DType::Int64, axes[..=level].to_vec());
            }
        }
        Form::Shaped(shaped) => {
            add(part_name(name, "values", 0), output.dtype, shape(&[totals.first().copied().unwrap_or(0)]));
            add(part_name(name, "offsets", 0), DType::Int64, vec![size.saturating_add(1)]);
            if !shaped.list {
                add(part_name(name, "shape", 0), DType::Int64, vec![size, shaped.axes]);
            }
        }
        Form::Bytes(..) | Form::Nested(..) | Form::Arrow(_) | Form::Absent => {}
    }
    if let Some(columns) = output.valid {
        let shape = if matches!(output.form, Form::Pack) { vec![size, columns] } else { vec![size] };
        add(part_name(name, "valid", 0), DType::Bool, shape);
    }
}

pub(super) fn own_specs(size: usize, row_id: bool, masked: bool, specs: &mut Vec<TensorSpec>) {
    if row_id {
        specs.push(TensorSpec { name: ROW_ID.into(), dtype: DType::Int64, shape: vec![size] });
    }
    if masked {
        specs.push(TensorSpec { name: MASK.into(), dtype: DType::Bool, shape: vec![size] });
    }
}

fn arrow_column(output: &Output, table: &Table<'_>, picks: &Picks<'_>) -> Result<ArrayRef, String> {
    match (&output.form, table) {
        (Form::Bytes(text, fill), Table::Bytes(cells)) => bytes::gather(*text, fill.as_deref(), cells, picks),
        (Form::Nested(text, levels), Table::Nested(cells)) => {
            bytes::gather_nested(&bytes::delivered(*text, *levels), cells, picks)
        }
        (Form::Arrow(ty), Table::Nested(cells)) => bytes::gather_any(ty, cells, picks),
        _ => Err("no Arrow column".to_owned()),
    }
}
