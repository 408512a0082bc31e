//! Small columns of a row group side by side, so that all values of a row lie in a few cache lines.
//!
//! A shuffled batch takes its rows from random places. Column by column that is a cache miss per value; with the
//! columns side by side it is one or two per row, for one more pass over the row group.

use std::sync::Arc;

use arrow::buffer::Buffer;
use rayon::prelude::*;

use super::output::{Form, Output};
use super::parts::{Data, Part};

/// Widest value that is moved; wider ones fill cache lines of their own.
const WIDEST: usize = 16;
/// Minimum number of columns; fewer gain little.
const FEWEST: usize = 4;
/// Every stride is a multiple of this, which divides the width of all words that are moved.
const WORD: usize = 8;
/// Rows written at a time, column after column: few enough for the first-level cache.
const TILE: usize = 64;
/// Rows per piece of work for one thread.
const PIECE: usize = 64 * TILE;

/// The outputs that are moved: width and number.
pub(super) fn chosen(outputs: &[Output]) -> Vec<(usize, usize)> {
    let small = |(at, output): (usize, &Output)| {
        let width = Some(output.width()).filter(|width| matches!(*width, 1 | 2 | 4 | 8 | WIDEST))?;
        matches!(output.form, Form::Fixed).then_some((width, at))
    };
    let chosen: Vec<(usize, usize)> = outputs.iter().enumerate().filter_map(small).collect();
    if chosen.len() < FEWEST { Vec::new() } else { chosen }
}

/// Placement of small columns in a row that has them side by side.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RowLayout {
    stride: usize,
    /// Width, output and first byte of each. Widest first, so that every value is aligned.
    columns: Vec<(usize, usize, usize)>,
}

impl RowLayout {
    /// The layout of the small columns among `outputs`, if there are enough of them.
    pub(super) fn of(outputs: &[Output]) -> Option<Self> {
        let mut chosen = chosen(outputs);
        chosen.sort_by_key(|(width, at)| (std::cmp::Reverse(*width), *at));
        let widest = chosen.first()?.0.max(WORD);
        let mut end = 0;
        let place = |(width, at)| {
            end += width;
            (width, at, end - width)
        };
        let columns = chosen.into_iter().map(place).collect();
        Some(Self { stride: end.next_multiple_of(widest), columns })
    }

    /// First byte of output `at` in a row.
    pub(super) fn offset(&self, at: usize) -> Option<usize> {
        self.columns.iter().find(|(_, of, _)| *of == at).map(|(.., offset)| *offset)
    }
}

/// The small columns of a row group, row after row.
#[derive(Debug)]
pub(super) struct Rows {
    pub(super) layout: Arc<RowLayout>,
    pub(super) bytes: Buffer,
}

/// Moves the small fixed columns among `parts`, one per output, into one row-major block.
pub(super) fn side_by_side(
    layout: &Arc<RowLayout>,
    outputs: &[Output],
    parts: &mut [Part],
    rows: usize,
) -> Option<Rows> {
    let RowLayout { stride, columns } = &**layout;
    let whole = |width: usize, part: &Part| match &part.data {
        Data::Fixed { bytes, width: of, stride } => *of == width && *stride == width && bytes.len() / width >= rows,
        _ => false,
    };
    if !columns.iter().all(|(width, at, _)| whole(*width, &parts[*at])) {
        return None;
    }
    let mut block = vec![0_u64; rows.checked_mul(stride / WORD)?];
    let pieces = block.par_chunks_mut((PIECE * stride / WORD).max(1)).enumerate();
    pieces.for_each(|(at, piece)| {
        for (tile, bytes) in bytemuck::cast_slice_mut(piece).chunks_mut(TILE * stride).enumerate() {
            let first = at * PIECE + tile * TILE;
            for (width, at, offset) in columns {
                if let Data::Fixed { bytes: from, .. } = &parts[*at].data {
                    let from = &from[first * width..];
                    match width {
                        1 => scatter::<1>(from, bytes, *stride, *offset),
                        2 => scatter::<2>(from, bytes, *stride, *offset),
                        4 => scatter::<4>(from, bytes, *stride, *offset),
                        8 => scatter::<8>(from, bytes, *stride, *offset),
                        _ => scatter::<WIDEST>(from, bytes, *stride, *offset),
                    }
                }
            }
        }
    });
    let bytes = Buffer::from_vec(block);
    for (width, at, offset) in columns {
        parts[*at].data = Data::Fixed { bytes: bytes.slice(*offset), width: *width, stride: *stride };
    }
    let masked = columns.iter().all(|(_, at, _)| parts[*at].valid.is_some() == outputs[*at].valid.is_some());
    masked.then(|| Rows { layout: Arc::clone(layout), bytes })
}

/// Writes one value into each row of `to`.
fn scatter<const WIDTH: usize>(from: &[u8], to: &mut [u8], stride: usize, offset: usize) {
    for (row, value) in to.chunks_exact_mut(stride).zip(from.as_chunks::<WIDTH>().0) {
        row[offset..offset + WIDTH].copy_from_slice(value);
    }
}

/// The rows of several row groups, all side by side in one layout.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks<'a> {
    pub(super) layout: &'a RowLayout,
    pub(super) bytes: &'a [&'a [u8]],
}

/// A tensor of small values, their start in a row, and the bytes of one.
pub(super) type Small<'a> = (&'a mut [u8], usize, usize);

/// Maximum rows whose small values are taken at once. Two cache lines of each fit into the nearest cache.
pub(super) const AT_ONCE: usize = 128;

/// Fills tensors with the small values of `picked`, at most [`AT_ONCE`] rows: each row is looked up once for all of
/// them.
pub(super) fn gather(columns: Vec<Small<'_>>, picked: &[(u32, u32)], blocks: Blocks<'_>) {
    let stride = blocks.layout.stride;
    let mut rows: [&[u8]; AT_ONCE] = [&[]; AT_ONCE];
    for (found, (cell, row)) in rows.iter_mut().zip(picked) {
        let start = *row as usize * stride;
        *found = &blocks.bytes[*cell as usize][start..start + stride];
    }
    let rows = &rows[..picked.len()];
    for (to, offset, width) in columns {
        match width {
            1 => take::<1>(to, rows, offset),
            2 => take::<2>(to, rows, offset),
            4 => take::<4>(to, rows, offset),
            8 => take::<8>(to, rows, offset),
            _ => take::<WIDEST>(to, rows, offset),
        }
    }
}

/// Takes one value out of each of `rows`.
fn take<const WIDTH: usize>(to: &mut [u8], rows: &[&[u8]], offset: usize) {
    for (to, row) in to.as_chunks_mut::<WIDTH>().0.iter_mut().zip(rows) {
        to.copy_from_slice(&row[offset..offset + WIDTH]);
    }
}
