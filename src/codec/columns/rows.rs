//! Small columns of a row group side by side, so that all values of a row lie in a few cache lines.
//!
//! A shuffled batch takes its rows from anywhere. Column by column that is a cache miss per value; with the columns side by side
//! it is one or two per row, for one more pass over the row group.

use arrow::buffer::Buffer;
use rayon::prelude::*;

use super::cells::{Data, Part};
use super::output::{Form, Output};

/// Widest value that is moved; wider ones fill cache lines of their own.
const WIDEST: usize = 16;
/// With fewer columns there is little to win.
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

/// Moves the small fixed columns among `parts`, one per output, into one row-major block.
pub(super) fn side_by_side(outputs: &[Output], parts: &mut [Part], rows: usize) {
    let mut chosen = chosen(outputs);
    let whole = |width: usize, part: &Part| match &part.data {
        Data::Fixed { bytes, width: of, stride } => *of == width && *stride == width && bytes.len() / width >= rows,
        _ => false,
    };
    if chosen.is_empty() || !chosen.iter().all(|(width, at)| whole(*width, &parts[*at])) {
        return;
    }
    // Widest first, so that every value is aligned.
    chosen.sort_by_key(|(width, at)| (std::cmp::Reverse(*width), *at));
    let widest = chosen[0].0.max(WORD);
    let stride = chosen.iter().map(|(width, _)| width).sum::<usize>().next_multiple_of(widest);
    let Some(words) = rows.checked_mul(stride / WORD) else { return };
    let mut block = vec![0_u64; words];
    let pieces = block.par_chunks_mut((PIECE * stride / WORD).max(1)).enumerate();
    pieces.for_each(|(at, piece)| {
        for (tile, bytes) in bytemuck::cast_slice_mut(piece).chunks_mut(TILE * stride).enumerate() {
            let first = at * PIECE + tile * TILE;
            let mut offset = 0;
            for (width, at) in &chosen {
                if let Data::Fixed { bytes: from, .. } = &parts[*at].data {
                    let from = &from[first * width..];
                    match width {
                        1 => scatter::<1>(from, bytes, stride, offset),
                        2 => scatter::<2>(from, bytes, stride, offset),
                        4 => scatter::<4>(from, bytes, stride, offset),
                        8 => scatter::<8>(from, bytes, stride, offset),
                        _ => scatter::<WIDEST>(from, bytes, stride, offset),
                    }
                }
                offset += width;
            }
        }
    });
    let block = Buffer::from_vec(block);
    let mut offset = 0;
    for (width, at) in chosen {
        parts[at].data = Data::Fixed { bytes: block.slice(offset), width, stride };
        offset += width;
    }
}

/// Writes one value into each row of `to`.
fn scatter<const WIDTH: usize>(from: &[u8], to: &mut [u8], stride: usize, offset: usize) {
    for (row, value) in to.chunks_exact_mut(stride).zip(from.as_chunks::<WIDTH>().0) {
        row[offset..offset + WIDTH].copy_from_slice(value);
    }
}
