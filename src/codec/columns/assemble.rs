//! One step: its rows gathered from the cells of many row groups into one slab.
//!
//! Decoding comes first, because it may find bad rows and so change the rows that are delivered; then everything else,
//! in pieces that run in parallel. Each piece writes its own part of one tensor.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use arrow::array::ArrayRef;
use rayon::prelude::*;

use super::block::{self, RowGroupBlock};
use super::bytes;
use super::gather::{self, Picks, Strided, Wide};
use super::layout::{Layout, MASK, ROW_ID, Rows, Shapes, Table};
use super::lists::{self, ListCell};
use super::number::fill;
use super::options::BadRows;
use super::output::{Form, Output, Padding};
use super::parts::Data;
use super::row_errors::{self, BadRow};
use super::rows::{self, AT_ONCE, Blocks, RowLayout, Small};
use super::shaped;
use super::take_order::TakeOrder;
use crate::error::{Error, Place, Result};
use crate::memory::Reservation;
use crate::schema::{DType, part_name};
use crate::tensor::{Batch, BatchBuilder, TensorSpec};

/// Bytes of a tensor that one piece of work fills.
const PIECE: usize = 128 << 10;

/// Maximum rows of a small column that one piece of work fills.
const ROWS: usize = 2048;
/// Widest value of which many fit into a cache line.
const NARROW: usize = 16;

/// Batches smaller than this are filled by the calling thread alone.
const SERIAL: usize = 64 << 10;

/// A piece of work, and the first row of the batch that it fills.
type Job<'a> = (usize, Box<dyn FnOnce() + Send + 'a>);

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
    let in_order = rows.cells.iter().any(|cell| cell.order.is_some());
    let table = |(at, output): (usize, &Output)| match small.and_then(|blocks| blocks.layout.offset(at)) {
        Some(offset) if output.is_fixed() => Ok(Table::Small(offset)),
        _ => table(output, at, rows.cells),
    };
    let tables = outputs.iter().enumerate().map(table).collect::<Result<Vec<_>>>()?;
    let mut row_errors = row_errors::known(outputs, rows);
    // Nothing after the first fault matters if it ends the batch anyway.
    let limit =
        row_errors.first().filter(|_| rows.bad_rows == BadRows::Error).map_or(rows.rows.len(), |fault| fault.index);
    let mut picked = Cow::Borrowed(rows.rows);
    let shapes = shaped::shapes(outputs, &tables, rows, &picked, limit, Some(&mut row_errors));
    let mut layout = lay_out(outputs, &tables, &picked, rows, row_id, shapes)?;
    within(&layout, rows)?;
    let spare = reservation.split(0);
    let mut builder = BatchBuilder::with_room(layout.specs.clone(), layout.room, reservation)?;
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
        row_errors::settle(row_errors, rows, picked.to_mut(), substitute)?
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
    let picks = Picks { rows: &picked, size: rows.size, runs: &runs };
    let places: Vec<(u32, u32)> = if in_order { places(rows.cells, &picked) } else { Vec::new() };
    let taken_runs = gather::runs(&places);
    let taken = Picks { rows: &places, size: rows.size, runs: &taken_runs };
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
    let order = |cell: u32| cells[cell as usize].order.as_ref();
    let mut expected: Vec<u32> = cells.iter().map(|cell| cell.order.as_ref().map_or(0, TakeOrder::expected)).collect();
    let place = |(cell, row): &(u32, u32)| {
        let Some(order) = order(*cell) else { return (*cell, *row) };
        let place = order.place(*row, expected[*cell as usize]);
        expected[*cell as usize] = place + 1;
        (*cell, place)
    };
    let found = picked.iter().map(place).collect();
    for (cell, expected) in cells.iter().zip(expected) {
        cell.order.iter().for_each(|order| order.expect(expected));
    }
    found
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
                taken(cell) == cell.order.is_some()
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

/// Fills every tensor except the decoded ones.
fn fill_tensors(
    outputs: &[Output],
    (tables, blocks): (&[Table<'_>], Option<Blocks<'_>>),
    [picks, taken]: [&Picks<'_>; 2],
    layout: &Layout,
    rows: &Rows<'_>,
    row_id: bool,
    builder: &mut BatchBuilder,
) -> Result<()> {
    let mask = |at: usize, output: &Output| {
        // There may be very many row groups, and most outputs have no mask.
        let Some(stride) = output.valid else { return Vec::new() };
        let of = rows.cells.iter().map(|cell| cell.parts[at].valid.as_deref().unwrap_or_default());
        of.map(|bytes| Strided { bytes, stride }).collect()
    };
    let masks: Vec<Vec<Strided<'_>>> = outputs.iter().enumerate().map(|(at, output)| mask(at, output)).collect();
    let mut jobs: Vec<Job<'_>> = Vec::new();
    let (mut narrow, mut small): (Vec<Narrow<'_>>, Vec<Small<'_>>) = (Vec::new(), Vec::new());
    let mut total = 0;
    let mut tensors = builder.tensors().into_iter();
    let mut next = || {
        let tensor = tensors.next().unwrap_or_default();
        total += tensor.len();
        tensor
    };
    for (at, output) in outputs.iter().enumerate() {
        let width = output.width();
        match (&output.form, &tables[at]) {
            (Form::Fixed, Table::Small(offset)) => small.push((next(), *offset, width)),
            (Form::Fixed, Table::Taken(cells)) => {
                by_rows(&mut jobs, next(), *taken, width, &[0], move |to, range| {
                    gather::fixed(to, *taken, range, cells, width);
                });
            }
            (Form::Fixed | Form::Pack, Table::Fixed(cells))
                if (1..=NARROW).contains(&width) && picks.runs.is_empty() =>
            {
                narrow.push((next(), cells, width));
            }
            (Form::Fixed | Form::Pack, Table::Fixed(cells)) => {
                by_rows(&mut jobs, next(), *picks, width, &[0], move |to, range| {
                    gather::fixed(to, *picks, range, cells, width);
                })
            }
            (Form::Fixed, Table::Wide(cells)) => {
                by_rows(&mut jobs, next(), *picks, width, &[0], move |to, range| {
                    gather::wide(to, &picks.rows[range], cells, width);
                });
            }
            (Form::Ragged(levels, limit), Table::Lists(cells)) => {
                let starts = &layout.outputs[at].1;
                let copy =
                    move |to: &mut [u8], rows: &[(u32, u32)]| lists::ragged(to, cells, rows, limit.as_ref(), width);
                ragged_values(&mut jobs, next(), picks.rows, &starts[levels - 1], width, copy);
                let offsets = integers(next())?;
                jobs.push((0, Box::new(move || lists::offsets(offsets, &starts[0]))));
                for level in 1..*levels {
                    let offsets = integers(next())?;
                    jobs.push((0, Box::new(move || lists::inner_offsets(offsets, cells, picks.rows, level))));
                }
            }
            (Form::Sparse | Form::Indices, Table::Lists(cells)) => {
                let starts = &layout.outputs[at].1[0];
                let copy = move |to: &mut [u8], rows: &[(u32, u32)]| lists::ragged(to, cells, rows, None, width);
                ragged_values(&mut jobs, next(), picks.rows, starts, width, copy);
                if matches!(output.form, Form::Sparse) {
                    let offsets = integers(next())?;
                    jobs.push((0, Box::new(move || lists::offsets(offsets, starts))));
                }
            }
            (Form::Padded(padding), Table::Lists(cells)) => {
                padded(&mut jobs, &mut next, cells, *picks, padding, width)?;
            }
            (Form::Decoded(_), _) => {
                // Filled already.
                next();
            }
            (Form::Shaped(shaped), _) => {
                next();
                let starts = &layout.outputs[at].1[0];
                let offsets = integers(next())?;
                jobs.push((0, Box::new(move || lists::offsets(offsets, starts))));
                if !shaped.list {
                    let (to, axes) = (integers(next())?, &layout.shapes[at].axes);
                    let fill_shapes = move || {
                        let (real, padding) = to.split_at_mut(axes.len());
                        real.iter_mut().zip(axes).for_each(|(to, axis)| *to = *axis as i64);
                        padding.fill(0);
                    };
                    jobs.push((0, Box::new(fill_shapes)));
                }
            }
            _ => {}
        }
        if let Some(columns) = output.valid {
            let picks = if matches!(tables[at], Table::Taken(_)) { taken } else { picks };
            let cells = &masks[at];
            by_rows(&mut jobs, next(), *picks, columns, &[0], move |to, range| {
                gather::fixed(to, *picks, range, cells, columns);
            });
        }
    }
    if row_id {
        let ids = integers(next())?;
        let fill_ids = move || {
            let (real, padding) = ids.split_at_mut(picks.rows.len());
            real.iter_mut().zip(picks.rows).for_each(|(id, pick)| *id = (rows.row_ids)(*pick) as i64);
            padding.fill(0);
        };
        jobs.push((0, Box::new(fill_ids)));
    }
    if rows.masked {
        let mask = next();
        let fill_mask = move || {
            let (real, padding) = mask.split_at_mut(picks.rows.len());
            real.fill(1);
            padding.fill(0);
        };
        jobs.push((0, Box::new(fill_mask)));
    }
    tiles(&mut jobs, narrow, picks, move |tile, rows| {
        tile.into_iter().for_each(|(to, cells, width)| gather::each(to, rows, cells, width));
    });
    if let Some(blocks) = blocks {
        tiles(&mut jobs, small, picks, move |tile, picked| rows::gather(tile, picked, blocks));
    }
    // All columns of some rows, then all columns of the next rows.
    jobs.sort_by_key(|(row, _)| *row);
    if total < SERIAL {
        jobs.into_iter().for_each(|(_, job)| job());
    } else {
        jobs.into_par_iter().for_each(|(_, job)| job());
    }
    Ok(())
}

/// Cuts a tensor of `width` bytes per row into pieces for `work`; padding rows get `pad`, repeated.
fn by_rows<'a>(
    jobs: &mut Vec<Job<'a>>,
    tensor: &'a mut [u8],
    picks: Picks<'a>,
    width: usize,
    pad: &'a [u8],
    work: impl Fn(&mut [u8], Range<usize>) + Clone + Send + 'a,
) {
    let (real, padding) = tensor.split_at_mut(picks.rows.len() * width);
    if !padding.is_empty() {
        jobs.push((picks.rows.len(), Box::new(move || fill(padding, pad))));
    }
    if real.is_empty() {
        return;
    }
    let rows = (PIECE / width).clamp(1, ROWS);
    for (at, tensor) in real.chunks_mut(rows * width).enumerate() {
        let (work, first) = (work.clone(), at * rows);
        let range = first..first + tensor.len() / width;
        jobs.push((first, Box::new(move || work(tensor, range))));
    }
}

/// A tensor of small values, their place in each row group, and the bytes of one value.
type Narrow<'a> = (&'a mut [u8], &'a [Strided<'a>], usize);

/// Fills tensors of small values from rows at random places. The values of a row are adjacent, so a few rows are
/// processed for all columns before the next ones: the other columns find in the nearest cache what the first column
/// loaded.
fn tiles<'a, T: Copy + Send + 'a>(
    jobs: &mut Vec<Job<'a>>,
    tensors: Vec<(&'a mut [u8], T, usize)>,
    picks: &Picks<'a>,
    work: impl Fn(Vec<(&'a mut [u8], T, usize)>, &[(u32, u32)]) + Copy + Send + 'a,
) {
    let mut columns = Vec::with_capacity(tensors.len());
    for (tensor, from, width) in tensors {
        let (real, padding) = tensor.split_at_mut(picks.rows.len() * width);
        if !padding.is_empty() {
            jobs.push((picks.rows.len(), Box::new(move || padding.fill(0))));
        }
        columns.push((real.chunks_mut(AT_ONCE * width), from, width));
    }
    if columns.is_empty() {
        return;
    }
    for (at, rows) in picks.rows.chunks(AT_ONCE).enumerate() {
        let tile = columns.iter_mut().filter_map(|(chunks, from, width)| Some((chunks.next()?, *from, *width)));
        let tile: Vec<_> = tile.collect();
        jobs.push((at * AT_ONCE, Box::new(move || work(tile, rows))));
    }
}

fn ragged_values<'a>(
    jobs: &mut Vec<Job<'a>>,
    mut tensor: &'a mut [u8],
    rows: &'a [(u32, u32)],
    starts: &'a [usize],
    width: usize,
    copy: impl Fn(&mut [u8], &[(u32, u32)]) + Clone + Send + 'a,
) {
    let mut first = 0;
    while first < rows.len() {
        let bytes = |end: usize| (starts[end] - starts[first]) * width;
        let more = (first + 1..=rows.len()).take_while(|end| *end == first + 1 || bytes(*end) <= PIECE).count();
        let (now, later) = tensor.split_at_mut(bytes(first + more));
        let picked = &rows[first..first + more];
        let copy = copy.clone();
        jobs.push((first, Box::new(move || copy(now, picked))));
        (tensor, first) = (later, first + more);
    }
}

fn padded<'a>(
    jobs: &mut Vec<Job<'a>>,
    next: &mut impl FnMut() -> &'a mut [u8],
    cells: &'a [ListCell<'a>],
    picks: Picks<'a>,
    padding: &'a Padding,
    width: usize,
) -> Result<()> {
    let levels = padding.limit.lengths.len();
    let row = padding.limit.lengths.iter().product::<usize>() * width;
    by_rows(jobs, next(), picks, row, &padding.fill, move |to, range| {
        lists::padded(to, cells, &picks.rows[range], padding, width);
    });
    for level in 0..levels {
        let lengths = integers(next())?;
        jobs.push((0, Box::new(move || lists::lengths(lengths, cells, picks.rows, padding, level))));
    }
    Ok(())
}

/// A tensor of int64; tensors are aligned, so this does not fail.
fn integers(tensor: &mut [u8]) -> Result<&mut [i64]> {
    bytemuck::try_cast_slice_mut(tensor).map_err(|_| Error::config("batch_size", "a tensor is not aligned"))
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
