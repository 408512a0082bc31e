//! The tensors of a step, filled from the tables of its columns, in pieces that run in parallel.

use std::ops::Range;

use rayon::prelude::*;

use super::gather::{self, Picks};
use super::layout::{Layout, Rows, Table};
use super::lists::{self, ListCell};
use super::number::fill;
use super::output::{Form, Output, Padding};
use super::rows::{self, AT_ONCE, Blocks, Small};
use super::strided::Strided;
use crate::error::{Error, Result};
use crate::tensor::BatchBuilder;

/// Bytes of a tensor that one piece of work fills.
const PIECE: usize = 128 << 10;

/// Maximum rows of a small column that one piece of work fills, unless it copies runs or streams.
const ROWS: usize = 2048;
/// Widest value that fits into a cache line many times.
const NARROW: usize = 16;

/// Batches smaller than this are filled by the calling thread alone.
const SERIAL: usize = 64 << 10;

/// A piece of work, and the first row of the batch that it fills.
type Job<'a> = (usize, Box<dyn FnOnce() + Send + 'a>);

/// Fills every tensor except the decoded ones.
pub(super) fn fill_tensors(
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
            (Form::Decoded(_), _) | (_, Table::Placed) => {
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
    let rows = (PIECE / width).max(1);
    // What is copied in runs and streams shares no cache lines with other columns.
    let rows = if picks.by_column() { rows } else { rows.min(ROWS) };
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
