//! Lists of varying length into ragged or padded tensors.

use std::ops::Range;

use super::number::fill;
use super::offsets::Offsets;
use super::options::Truncate;
use super::output::{Limit, Padding};
use crate::page::PagedRows;

/// The lists of one row group.
#[derive(Debug)]
pub(super) enum ListCell<'a> {
    /// Of any length, their items one after another.
    Together { offsets: &'a [Offsets], values: &'a [u8] },
    /// One level of lists of `length` items, left in pages.
    Pages { length: usize, pages: &'a PagedRows },
}

impl ListCell<'_> {
    /// The items of these lists of `level`.
    #[inline]
    fn below(&self, level: usize, lists: Range<usize>) -> Range<usize> {
        match self {
            Self::Together { offsets, .. } => {
                let offsets = &offsets[level];
                offsets.at(lists.start)..offsets.at(lists.end)
            }
            Self::Pages { length, .. } => lists.start * length..lists.end * length,
        }
    }

    /// The innermost items of these rows.
    fn innermost(&self, rows: Range<usize>) -> Range<usize> {
        match self {
            Self::Together { offsets, .. } => (0..offsets.len()).fold(rows, |range, level| self.below(level, range)),
            Self::Pages { .. } => self.below(0, rows),
        }
    }

    /// Copies innermost items of `width` bytes; `output` is as long as they are.
    #[inline]
    fn copy(&self, mut output: &mut [u8], items: Range<usize>, width: usize) {
        match self {
            Self::Together { values, .. } => output.copy_from_slice(&values[items.start * width..items.end * width]),
            Self::Pages { length, pages } => {
                let mut at = items.start;
                while !output.is_empty() {
                    let row = at / length;
                    let rest = &pages.from(row)[(at - row * length) * width..];
                    let (now, later) = output.split_at_mut(rest.len().min(output.len()));
                    now.copy_from_slice(&rest[..now.len()]);
                    at += now.len() / width;
                    output = later;
                }
            }
        }
    }
}

/// For each level, the start of each row's items among those of the batch, and the end: `rows + 1` numbers. Only plain
/// lists have a `limit`.
pub(super) fn starts(
    cells: &[ListCell<'_>],
    rows: &[(u32, u32)],
    levels: usize,
    limit: Option<&Limit>,
) -> Vec<Vec<usize>> {
    let mut starts: Vec<Vec<usize>> = (0..levels).map(|_| Vec::with_capacity(rows.len() + 1)).collect();
    let mut sums = vec![0usize; levels];
    starts.iter_mut().for_each(|starts| starts.push(0));
    for (cell, row) in rows {
        let mut range = *row as usize..*row as usize + 1;
        for (level, (starts, sum)) in starts.iter_mut().zip(&mut sums).enumerate() {
            range = kept(limit, level, cells[*cell as usize].below(level, range));
            // A sum beyond memory is refused when the tensor is laid out.
            *sum = sum.saturating_add(range.len());
            starts.push(*sum);
        }
    }
    starts
}

/// Writes `__offsets`: the starts, then the end again for each padding row.
pub(super) fn offsets(output: &mut [i64], starts: &[usize]) {
    let end = starts.last().copied().unwrap_or(0);
    let (real, padding) = output.split_at_mut(starts.len().min(output.len()));
    real.iter_mut().zip(starts).for_each(|(to, from)| *to = *from as i64);
    padding.fill(end as i64);
}

/// Writes `__offsets_1` and deeper ones: the offsets of the lists of `level`, row after row.
pub(super) fn inner_offsets(output: &mut [i64], cells: &[ListCell<'_>], rows: &[(u32, u32)], level: usize) {
    let (mut at, mut end) = (0, 0i64);
    output.fill(0);
    for (cell, row) in rows {
        let cell = &cells[*cell as usize];
        let lists = (0..level).fold(*row as usize..*row as usize + 1, |range, level| cell.below(level, range));
        for list in lists {
            end += cell.below(level, list..list + 1).len() as i64;
            at += 1;
            output[at] = end;
        }
    }
}

/// Copies the items of these rows one after another; `output` is as long as they are.
pub(super) fn ragged(
    mut output: &mut [u8],
    cells: &[ListCell<'_>],
    rows: &[(u32, u32)],
    limit: Option<&Limit>,
    width: usize,
) {
    let mut at = 0;
    while let Some((cell, row)) = rows.get(at) {
        let follows = |pair: &&[(u32, u32)]| pair[0].0 == pair[1].0 && pair[0].1.checked_add(1) == Some(pair[1].1);
        // The cut items lie between the rows.
        let run = 1 + rows[at..].windows(2).take_while(|pair| limit.is_none() && follows(pair)).count();
        let cell = &cells[*cell as usize];
        let items = kept(limit, 0, cell.innermost(*row as usize..*row as usize + run));
        let (now, later) = output.split_at_mut(items.len() * width);
        cell.copy(now, items, width);
        output = later;
        at += run;
    }
}

/// The part of a list of `level` that is delivered.
#[inline]
fn kept(limit: Option<&Limit>, level: usize, items: Range<usize>) -> Range<usize> {
    match limit {
        Some(limit) => limit.keep(level, items),
        None => items,
    }
}

impl Limit {
    /// The part of a list that is delivered. A list that is too long under `error` only gets here as a bad row set to
    /// zero.
    #[inline]
    fn keep(&self, level: usize, items: Range<usize>) -> Range<usize> {
        let limit = self.lengths[level];
        if items.len() <= limit {
            return items;
        }
        match self.truncate {
            Truncate::Right => items.start..items.start + limit,
            Truncate::Left => items.end - limit..items.end,
            Truncate::Error => items.start..items.start,
        }
    }
}

impl Padding {
    /// The place of the first of `kept` items among the padded ones.
    #[inline]
    fn shift(&self, level: usize, kept: usize) -> usize {
        if self.left { self.limit.lengths[level] - kept } else { 0 }
    }
}

/// Writes padded rows; `output` is as long as they are.
pub(super) fn padded(output: &mut [u8], cells: &[ListCell<'_>], rows: &[(u32, u32)], padding: &Padding, width: usize) {
    let lengths = &padding.limit.lengths;
    let row_bytes = lengths.iter().product::<usize>() * width;
    if row_bytes == 0 {
        return;
    }
    let flat = lengths.len() == 1;
    for (output, (cell, row)) in output.chunks_exact_mut(row_bytes).zip(rows) {
        let cell = &cells[*cell as usize];
        let items = cell.below(0, *row as usize..*row as usize + 1);
        if flat {
            let kept = padding.limit.keep(0, items);
            let start = padding.shift(0, kept.len()) * width;
            let end = start + kept.len() * width;
            fill(&mut output[..start], &padding.fill);
            cell.copy(&mut output[start..end], kept, width);
            fill(&mut output[end..], &padding.fill);
        } else {
            fill(output, &padding.fill);
            visit(cell, padding, 0, items, 0, &mut |level, at, kept| {
                if level + 1 == lengths.len() {
                    let start = (at * lengths[level] + padding.shift(level, kept.len())) * width;
                    let end = start + kept.len() * width;
                    cell.copy(&mut output[start..end], kept, width);
                }
            });
        }
    }
}

/// Writes `__lengths` of `level` for rows; `output` is as long as they are. Lists that do not exist have length 0.
pub(super) fn lengths(
    output: &mut [i64],
    cells: &[ListCell<'_>],
    rows: &[(u32, u32)],
    padding: &Padding,
    level: usize,
) {
    let per_row = padding.limit.lengths[..level].iter().product::<usize>();
    output.fill(0);
    for (output, (cell, row)) in output.chunks_exact_mut(per_row).zip(rows) {
        let cell = &cells[*cell as usize];
        let items = cell.below(0, *row as usize..*row as usize + 1);
        if level == 0 {
            output[0] = padding.limit.keep(0, items).len() as i64;
            continue;
        }
        visit(cell, padding, 0, items, 0, &mut |at_level, at, kept| {
            if at_level == level {
                output[at] = kept.len() as i64;
            }
        });
    }
}

/// Calls `each` with level, place among the padded lists of the row and level, and delivered items, from the outside in.
fn visit(
    cell: &ListCell<'_>,
    padding: &Padding,
    level: usize,
    items: Range<usize>,
    at: usize,
    each: &mut dyn FnMut(usize, usize, Range<usize>),
) {
    let kept = padding.limit.keep(level, items);
    each(level, at, kept.clone());
    if level + 1 < padding.limit.lengths.len() {
        let shift = padding.shift(level, kept.len());
        for (index, list) in kept.enumerate() {
            let items = cell.below(level + 1, list..list + 1);
            visit(cell, padding, level + 1, items, at * padding.limit.lengths[level] + shift + index, each);
        }
    }
}
