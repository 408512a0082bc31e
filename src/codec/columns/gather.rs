//! The hot loop: rows from anywhere in many row groups, side by side in a tensor.

use crate::page::PagedRows;

/// The rows of a batch: cell and row of each, in range, then padding up to `size`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Picks<'a> {
    pub(super) rows: &'a [(u32, u32)],
    pub(super) size: usize,
    /// Rows per run of consecutive ones, on average, is large enough to copy run by run.
    pub(super) runs: bool,
}

impl<'a> Picks<'a> {
    pub(super) fn new(rows: &'a [(u32, u32)], size: usize) -> Self {
        let breaks = rows.windows(2).filter(|pair| !follows(pair[0], pair[1])).count();
        Self { rows, size, runs: breaks * 8 < rows.len() }
    }
}

fn follows(first: (u32, u32), second: (u32, u32)) -> bool {
    first.0 == second.0 && first.1.checked_add(1) == Some(second.1)
}

/// The rows of one row group: row `n` starts at `n * stride`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Strided<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) stride: usize,
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
/// Rows are wide, so that finding one costs little beside copying it.
pub(super) fn wide(mut output: &mut [u8], rows: &[(u32, u32)], cells: &[Wide<'_>], width: usize) {
    let mut at = 0;
    while let Some((cell, row)) = rows.get(at) {
        let rest = cells[*cell as usize].from(*row as usize, width);
        // As many as follow each other there.
        let most = rest.len() / width;
        let follow = rows[at..].windows(2).take_while(|pair| follows(pair[0], pair[1])).take(most - 1).count();
        let (now, later) = output.split_at_mut((1 + follow) * width);
        now.copy_from_slice(&rest[..now.len()]);
        output = later;
        at += 1 + follow;
    }
}

/// Copies row after row of `width` bytes; `output` is as long as the rows.
///
/// `cells` holds each row group's rows; every pick lies within them.
pub(super) fn fixed(output: &mut [u8], rows: &[(u32, u32)], cells: &[Strided<'_>], width: usize, runs: bool) {
    if width == 0 {
        return;
    }
    if runs && cells.iter().all(|cell| cell.stride == width) {
        return by_run(output, rows, cells, width);
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

/// One load and one store per row. A lane's rows come together, so where a window is one row group it is mostly the one before;
/// what is left per row is so little that many loads are under way at once.
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
fn by_run(mut output: &mut [u8], rows: &[(u32, u32)], cells: &[Strided<'_>], width: usize) {
    let mut at = 0;
    while let Some((cell, row)) = rows.get(at) {
        let len = 1 + rows[at..].windows(2).take_while(|pair| follows(pair[0], pair[1])).count();
        let start = *row as usize * width;
        let (now, later) = output.split_at_mut(len * width);
        now.copy_from_slice(&cells[*cell as usize].bytes[start..start + len * width]);
        output = later;
        at += len;
    }
}
