//! The hot loop: rows from random places in many row groups, side by side in a tensor.

use std::ops::Range;

use super::streams::Streams;
use super::strided::Strided;
use crate::page::PagedRows;

/// The rows of a batch: cell and row of each, in range, then padding up to `size`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Picks<'a> {
    pub(super) rows: &'a [(u32, u32)],
    pub(super) size: usize,
    /// The [`runs`] of the rows, if they are long.
    pub(super) runs: &'a [Run],
    /// The streams of the rows, if those are long and the runs are not.
    pub(super) streams: Option<&'a Streams>,
}

impl Picks<'_> {
    /// Returns true if columns are copied one after another, not row by row.
    pub(super) fn by_column(&self) -> bool {
        !self.runs.is_empty() || self.streams.is_some()
    }
}

/// Consecutive rows of a batch that are also consecutive in a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    /// The number in the batch of the first row. The run ends where the next one begins.
    first: usize,
    cell: u32,
    row: u32,
}

/// The runs of `rows`; none if they are too short on average for copying run by run to pay off.
pub(super) fn runs(rows: &[(u32, u32)]) -> Vec<Run> {
    let mut breaks = 0;
    for pair in rows.windows(2) {
        breaks += usize::from(!follows(pair[0], pair[1]));
        if breaks * 8 >= rows.len() {
            return Vec::new();
        }
    }
    let mut found = Vec::with_capacity(breaks + 1);
    let mut before = None;
    for (first, (cell, row)) in rows.iter().copied().enumerate() {
        if before.is_none_or(|before| !follows(before, (cell, row))) {
            found.push(Run { first, cell, row });
        }
        before = Some((cell, row));
    }
    found
}

/// The cell in which all `rows` follow each other, and the first of them.
pub(super) fn one_run(rows: &[(u32, u32)]) -> Option<(usize, usize)> {
    match runs(rows)[..] {
        [Run { cell, row, .. }] => Some((cell as usize, row as usize)),
        _ => None,
    }
}

fn follows(first: (u32, u32), second: (u32, u32)) -> bool {
    first.0 == second.0 && first.1.checked_add(1) == Some(second.1)
}

/// The rows of one row group, in one block or left in its pages.
#[derive(Debug, Clone, Copy)]
pub(super) enum Wide<'a> {
    Block(Strided<'a>),
    Pages(&'a PagedRows),
}

impl Wide<'_> {
    /// Row `row`, and those that follow it without a gap.
    #[inline]
    fn from(&self, row: usize, width: usize) -> &[u8] {
        match self {
            Self::Block(Strided { bytes, stride }) if *stride == width => &bytes[row * width..],
            Self::Block(Strided { bytes, stride }) => &bytes[row * stride..row * stride + width],
            Self::Pages(pages) => pages.from(row),
        }
    }
}

/// Copies row after row of `width` bytes; `output` is as long as the rows.
///
/// Rows are wide, so finding one costs little compared with copying it.
pub(super) fn wide(mut output: &mut [u8], rows: &[(u32, u32)], cells: &[Wide<'_>], width: usize) {
    let mut at = 0;
    while let Some((cell, row)) = rows.get(at) {
        let rest = cells[*cell as usize].from(*row as usize, width);
        // As many rows as follow each other there.
        let most = rest.len() / width;
        let follow = rows[at..].windows(2).take_while(|pair| follows(pair[0], pair[1])).take(most - 1).count();
        let (now, later) = output.split_at_mut((1 + follow) * width);
        now.copy_from_slice(&rest[..now.len()]);
        output = later;
        at += 1 + follow;
    }
}

/// Copies the rows `range` of a batch, of `width` bytes; `output` is as long as they are.
///
/// `cells` holds each row group's rows; every pick lies within them.
pub(super) fn fixed(output: &mut [u8], picks: Picks<'_>, range: Range<usize>, cells: &[Strided<'_>], width: usize) {
    let is_dense = picks.by_column() && cells.iter().all(|cell| cell.stride == width);
    if is_dense && !picks.runs.is_empty() {
        return by_run(output, picks, range, cells, width);
    }
    let streams = picks.streams.filter(|_| is_dense);
    if !streams.is_some_and(|streams| streams.copy(output, range.clone(), cells, width)) {
        each(output, &picks.rows[range], cells, width);
    }
}

/// As [`fixed`], row after row.
pub(super) fn each(output: &mut [u8], rows: &[(u32, u32)], cells: &[Strided<'_>], width: usize) {
    if width == 0 {
        return;
    }
    match width {
        1 => sized::<1>(output, rows, cells),
        2 => sized::<2>(output, rows, cells),
        4 => sized::<4>(output, rows, cells),
        8 => sized::<8>(output, rows, cells),
        16 => sized::<16>(output, rows, cells),
        _ => {
            for (output, (cell, row)) in output.chunks_exact_mut(width).zip(rows) {
                let cell = &cells[*cell as usize];
                let start = *row as usize * cell.stride;
                output.copy_from_slice(&cell.bytes[start..start + width]);
            }
        }
    }
}

/// One load and one store per row. A lane's rows come together, so if a window is one row group, the row group is
/// mostly the previous one; the remaining work per row is so small that many loads are in flight at once.
fn sized<const WIDTH: usize>(output: &mut [u8], rows: &[(u32, u32)], cells: &[Strided<'_>]) {
    let (mut last, mut of) = (u32::MAX, Strided { bytes: &[], stride: 0 });
    for (output, (cell, row)) in output.as_chunks_mut::<WIDTH>().0.iter_mut().zip(rows) {
        if *cell != last {
            (last, of) = (*cell, cells[*cell as usize]);
        }
        let start = *row as usize * of.stride;
        output.copy_from_slice(&of.bytes[start..start + WIDTH]);
    }
}

/// One copy per run of consecutive rows.
fn by_run(mut output: &mut [u8], picks: Picks<'_>, range: Range<usize>, cells: &[Strided<'_>], width: usize) {
    let mut at = range.start;
    let first = picks.runs.partition_point(|run| run.first <= at).saturating_sub(1);
    let ends = picks.runs[first..].iter().skip(1).map(|next| next.first).chain([picks.rows.len()]);
    for (run, end) in picks.runs[first..].iter().zip(ends) {
        let count = end.min(range.end) - at;
        let start = (run.row as usize + at - run.first) * width;
        let (now, later) = output.split_at_mut(count * width);
        now.copy_from_slice(&cells[run.cell as usize].bytes[start..start + count * width]);
        output = later;
        at += count;
        if at >= range.end {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_cut_where_a_row_does_not_follow() {
        let mut rows: Vec<(u32, u32)> = (0..20).map(|row| (1, 7 + row)).chain((3..40).map(|row| (0, row))).collect();
        let run = |first, cell, row| Run { first, cell, row };
        assert_eq!(runs(&rows), [run(0, 1, 7), run(20, 0, 3)]);
        rows.push((0, 41));
        assert_eq!(runs(&rows), [run(0, 1, 7), run(20, 0, 3), run(57, 0, 41)]);
        assert_eq!(runs(&[(0, 1), (0, 3), (0, 5)]), [], "too short");
        assert!(!follows((0, u32::MAX), (0, 0)));
    }

    #[test]
    fn runs_and_single_rows_give_the_same() {
        let bytes: Vec<u8> = (0..100).collect();
        let cells = [Strided { bytes: &bytes, stride: 1 }, Strided { bytes: &bytes[50..], stride: 1 }];
        let rows: Vec<(u32, u32)> = (0..20).map(|row| (1, 7 + row)).chain((3..40).map(|row| (0, row))).collect();
        let found = runs(&rows);
        let picks = Picks { rows: &rows, size: rows.len(), runs: &found, streams: None };
        for range in [0..57, 0..20, 20..57, 5..19, 19..21, 30..31, 56..57, 4..4] {
            let (mut by_run, mut single) = (vec![0; range.len()], vec![0; range.len()]);
            fixed(&mut by_run, picks, range.clone(), &cells, 1);
            each(&mut single, &rows[range.clone()], &cells, 1);
            assert_eq!(by_run, single, "rows {range:?}");
        }
    }
}
