//! The hot loop: rows from anywhere in many row groups, side by side in a tensor.

use bytemuck::Pod;

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

/// Copies row after row of `width` bytes; `output` is as long as the rows.
///
/// `cells` holds each row group's rows; every pick lies within them.
pub(super) fn fixed(output: &mut [u8], rows: &[(u32, u32)], cells: &[&[u8]], width: usize, runs: bool) {
    if width == 0 {
        return;
    }
    if runs {
        return by_run(output, rows, cells, width);
    }
    let done = match width {
        1 => typed::<u8>(output, rows, cells),
        2 => typed::<u16>(output, rows, cells),
        4 => typed::<u32>(output, rows, cells),
        8 => typed::<u64>(output, rows, cells),
        _ => false,
    };
    if !done {
        for (output, (cell, row)) in output.chunks_exact_mut(width).zip(rows) {
            let start = *row as usize * width;
            output.copy_from_slice(&cells[*cell as usize][start..start + width]);
        }
    }
}

/// One load and one store per row. False if a slice is not aligned, which happens for short fixed-size lists.
fn typed<T: Pod>(output: &mut [u8], rows: &[(u32, u32)], cells: &[&[u8]]) -> bool {
    let Ok(cells) = cells.iter().map(|cell| bytemuck::try_cast_slice::<u8, T>(cell)).collect::<Result<Vec<_>, _>>()
    else {
        return false;
    };
    let Ok(output) = bytemuck::try_cast_slice_mut::<u8, T>(output) else { return false };
    for (output, (cell, row)) in output.iter_mut().zip(rows) {
        *output = cells[*cell as usize][*row as usize];
    }
    true
}

/// One copy per run of consecutive rows.
fn by_run(mut output: &mut [u8], rows: &[(u32, u32)], cells: &[&[u8]], width: usize) {
    let mut at = 0;
    while let Some((cell, row)) = rows.get(at) {
        let len = 1 + rows[at..].windows(2).take_while(|pair| follows(pair[0], pair[1])).count();
        let start = *row as usize * width;
        let (now, later) = output.split_at_mut(len * width);
        now.copy_from_slice(&cells[*cell as usize][start..start + len * width]);
        output = later;
        at += len;
    }
}
