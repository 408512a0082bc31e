//! Columns into one row-major matrix, with a cast, in one tiled pass.
//!
//! Done once per row group rather than once per batch: gathering a row is then one copy of a few cache lines, whereas
//! gathering from columns would touch a cache line per value. For 39 columns that is nine times faster per batch, and
//! still six times with the cost of this pass (`benches/columns.rs`).

use std::sync::Arc;

use arrow::buffer::{Buffer, MutableBuffer};
use arrow::datatypes::ArrowNativeType;
use bytemuck::Pod;
use rayon::prelude::*;

use super::leaf::Kind;
use super::number::{convert, misfits};
use super::output::{Member, Output};
use super::parts::{Bad, Cause, Data, Part, RowSet};
use crate::error::{Error, Place, Result};
use crate::page::{self, Chunk};
use crate::schema::DType;

/// Rows converted and transposed at a time: a tile of 40 float columns stays within the first-level cache.
const TILE: usize = 64;

/// Rows taken from pages at a time: enough to amortise switching between columns, few enough for the second-level
/// cache.
const PAGE_TILE: usize = 512;

/// Rows per piece of work for one thread.
const PIECE: usize = 64 * TILE;

/// One column: rows of `elements` elements.
#[derive(Debug, Clone, Copy)]
struct Source<'a> {
    bytes: &'a [u8],
    dtype: DType,
    elements: usize,
}

/// Packs the parts of `output`'s members.
pub(super) fn pack(output: &Output, members: &[Member], parts: Vec<Part>, rows: usize, place: &Place) -> Result<Part> {
    let columns = output.dims.iter().product::<usize>();
    let wrong = |what: &str| Error::corrupt(place.clone().column(Arc::clone(&output.name)), what);
    let mut sources = Vec::with_capacity(parts.len());
    for part in &parts {
        let Data::Fixed { bytes, width, .. } = &part.data else { return Err(wrong("a packed column is a list")) };
        let elements = width / part.dtype.size();
        sources.push(Source { bytes: &bytes[..rows * width], dtype: part.dtype, elements });
    }
    let (bytes, fits) = matrix(&sources, rows, columns, output.dtype).ok_or_else(|| wrong("too large to pack"))?;
    let mut bad: Vec<Bad> = Vec::new();
    if !fits {
        for ((part, source), at) in parts.iter().zip(&sources).zip(&output.members) {
            let mut wrong = RowSet::new(rows);
            for element in misfits(source.dtype, source.bytes, output.dtype) {
                wrong.insert(element / source.elements);
            }
            if !wrong.is_empty() {
                let (column, array) = (Arc::clone(&members[*at].name), part.root.clone());
                bad.push(Bad { column, rows: wrong, cause: Cause::Misfit(output.dtype), array });
            }
        }
    }
    if !fits && bad.is_empty() {
        return Err(wrong("values that are not aligned"));
    }
    let valid = match output.valid {
        None => None,
        Some(columns) => {
            let ones: Vec<u8> = if parts.iter().any(|part| part.valid.is_none()) { vec![1; rows] } else { Vec::new() };
            // A fixed-size list has one bit of validity, repeated for each of its columns.
            let masks = parts.iter().zip(&sources).flat_map(|(part, source)| {
                let bytes = part.valid.as_deref().unwrap_or(&ones);
                std::iter::repeat_n(Source { bytes, dtype: DType::Bool, elements: 1 }, source.elements)
            });
            let masks: Vec<Source<'_>> = masks.collect();
            let matrix = matrix(&masks, rows, columns, DType::Bool).ok_or_else(|| wrong("too large to pack"))?;
            Some(matrix.0)
        }
    };
    bad.extend(parts.into_iter().flat_map(|part| part.bad));
    let width = columns * output.dtype.size();
    let data = Data::Fixed { bytes, width, stride: width };
    Ok(Part { data, dtype: output.dtype, valid, bad, root: None, in_take_order: false })
}

/// The pack of `rows` rows straight from the pages of its columns, whose root numbers are `roots`: side by side, so
/// that no column is ever materialised as a whole.
///
/// `None` if `pages` has none for some column, or if a value is null, does not fit, or cannot be read: the caller then packs
/// decoded columns, which reports the problem.
pub(super) fn from_pages(
    output: &Output,
    members: &[Member],
    rows: usize,
    roots: &[usize],
    pages: &dyn Fn(usize) -> Option<page::Source>,
) -> Option<Part> {
    let to = output.dtype;
    let mut columns = Vec::with_capacity(roots.len());
    for (at, root) in output.members.iter().zip(roots) {
        let Kind::Number(from) = members[*at].leaf.kind else { return None };
        if output.valid.is_some() || !members[*at].leaf.steps.is_empty() {
            return None;
        }
        let cast: page::Convert = Box::new(move |input, output| convert(from, input, to, output));
        columns.push((pages(*root)?, Some(cast).filter(|_| from != to)));
    }
    let width = columns.len() * to.size();
    let bytes = match to.size() {
        1 => stream::<u8>(columns, rows),
        2 => stream::<u16>(columns, rows),
        4 => stream::<u32>(columns, rows),
        _ => stream::<u64>(columns, rows),
    }?;
    let data = Data::Fixed { bytes, width, stride: width };
    Some(Part { data, dtype: to, valid: None, bad: Vec::new(), root: None, in_take_order: false })
}

/// The row-major matrix of these columns; `None` if one cannot be read.
fn stream<T: page::Element + ArrowNativeType>(
    columns: Vec<(page::Source, Option<page::Convert>)>,
    rows: usize,
) -> Option<Buffer> {
    let chunks = columns.into_iter().map(|(source, cast)| source.chunk(cast));
    let mut chunks: Vec<Chunk<T>> = chunks.collect::<Option<_>>()?;
    let columns = chunks.len();
    let mut matrix: Vec<T> = Vec::with_capacity(rows.checked_mul(columns)?);
    let mut tile: Vec<Vec<T>> = (0..columns).map(|_| Vec::with_capacity(PAGE_TILE)).collect();
    while matrix.len() < rows * columns {
        let start = matrix.len();
        let count = PAGE_TILE.min(rows - start / columns);
        for (chunk, values) in chunks.iter_mut().zip(&mut tile) {
            values.clear();
            chunk.read(count, values)?;
        }
        matrix.resize(start + count * columns, T::default());
        let sources: Vec<(&[T], usize)> = tile.iter().map(|values| (values.as_slice(), 1)).collect();
        transpose(&sources, &mut matrix[start..], columns);
    }
    chunks.iter_mut().try_for_each(Chunk::end)?;
    Some(Buffer::from_vec(matrix))
}

/// The row-major matrix, and true if all values fit. `None` if it overflows memory.
fn matrix(sources: &[Source<'_>], rows: usize, columns: usize, dtype: DType) -> Option<(Buffer, bool)> {
    let width = columns.checked_mul(dtype.size())?;
    let len = rows.checked_mul(width).filter(|len| *len <= isize::MAX as usize / 2)?;
    let mut output = MutableBuffer::from_len_zeroed(len);
    if len == 0 {
        return Some((output.into(), true));
    }
    let pieces = output.par_chunks_mut(PIECE * width).enumerate();
    let fits =
        pieces.map(|(at, piece)| tiles(sources, at * PIECE, piece, columns, dtype)).reduce(|| true, |a, b| a & b);
    Some((output.into(), fits))
}

/// Fills `output`, which holds the rows from `first` on.
fn tiles(sources: &[Source<'_>], first: usize, output: &mut [u8], columns: usize, dtype: DType) -> bool {
    let size = dtype.size();
    // Converted columns of one tile, each at its own place. As u64 for the alignment of every element type.
    let mut scratch: Vec<u64> = vec![0; (columns * TILE * size).div_ceil(8)];
    let mut fits = true;
    for (at, tile) in output.chunks_mut(TILE * columns * size).enumerate() {
        let row = first + at * TILE;
        let rows = tile.len() / (columns * size);
        let mut rest: &mut [u8] = bytemuck::cast_slice_mut(&mut scratch);
        let mut tile_sources: Vec<(&[u8], usize)> = Vec::with_capacity(sources.len());
        for source in sources {
            let width = source.elements * source.dtype.size();
            let input = &source.bytes[row * width..(row + rows) * width];
            if source.dtype == dtype {
                tile_sources.push((input, source.elements));
            } else {
                let (own, tail) = rest.split_at_mut(rows * source.elements * size);
                fits &= convert(source.dtype, input, dtype, own);
                tile_sources.push((own, source.elements));
                rest = tail;
            }
        }
        let done = match size {
            1 => transpose_bytes::<u8>(&tile_sources, tile, columns),
            2 => transpose_bytes::<u16>(&tile_sources, tile, columns),
            4 => transpose_bytes::<u32>(&tile_sources, tile, columns),
            _ => transpose_bytes::<u64>(&tile_sources, tile, columns),
        };
        fits &= done;
    }
    fits
}

/// Writes one tile. Returns false without writing if a slice is not aligned; Arrow's buffers are.
fn transpose_bytes<T: Pod>(sources: &[(&[u8], usize)], tile: &mut [u8], columns: usize) -> bool {
    let Ok(tile) = bytemuck::try_cast_slice_mut::<u8, T>(tile) else { return false };
    let sources = sources.iter().map(|(bytes, elements)| Ok((bytemuck::try_cast_slice::<u8, T>(bytes)?, *elements)));
    let Ok(sources) = sources.collect::<Result<Vec<_>, bytemuck::PodCastError>>() else { return false };
    transpose(&sources, tile, columns);
    true
}

/// Writes the rows of `tile`, of `columns` elements each.
fn transpose<T: Pod>(sources: &[(&[T], usize)], tile: &mut [T], columns: usize) {
    let mut column = 0;
    let mut at = 0;
    while at < sources.len() {
        // Eight columns at a time: every store is then a vector.
        if let Some(group) = sources.get(at..at + 8).filter(|group| group.iter().all(|(_, elements)| *elements == 1)) {
            let [a, b, c, d, e, f, g, h] = std::array::from_fn(|i| group[i].0);
            let values = a.iter().zip(b).zip(c).zip(d).zip(e).zip(f).zip(g).zip(h);
            for (row, (((((((a, b), c), d), e), f), g), h)) in tile.chunks_exact_mut(columns).zip(values) {
                row[column..column + 8].copy_from_slice(&[*a, *b, *c, *d, *e, *f, *g, *h]);
            }
            (at, column) = (at + 8, column + 8);
            continue;
        }
        let (values, elements) = sources[at];
        if elements == 1 {
            for (row, value) in tile.chunks_exact_mut(columns).zip(values) {
                row[column] = *value;
            }
        } else if elements > 1 {
            for (row, values) in tile.chunks_exact_mut(columns).zip(values.chunks_exact(elements)) {
                row[column..column + elements].copy_from_slice(values);
            }
        }
        (at, column) = (at + 1, column + elements);
    }
}
