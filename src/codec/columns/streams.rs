//! Rows of a batch by row group: those that follow each other in it, whatever comes between them in the batch.
//!
//! The rows of a window of several row groups come from them by chance, and each row group gives its rows in the order in which
//! batches take them. So nearly every row of the batch is of another row group than the one before, which processors cannot
//! predict; but each row group is read from one place on. The places in the batch are found once for all columns.

use std::ops::Range;

use super::strided::Strided;
use crate::memory::prefetch;

/// Fewest rows of a stream on average.
const FEWEST: usize = 4;
/// Streams that are fetched into the cache while one is copied.
const AHEAD: usize = 4;

/// Rows that follow each other in a row group.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stream {
    cell: u32,
    /// The first of the rows.
    row: u32,
    /// Their numbers in the batch, which ascend: a range of [`Streams::to`].
    to: Range<usize>,
}

/// All rows of a batch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    to: Vec<u32>,
}

impl Streams {
    /// The streams of `rows`, of row groups below `cells`; `None` if they are too short to pay off.
    pub(super) fn of(rows: &[(u32, u32)], cells: usize) -> Option<Self> {
        // The last stream of each row group, and the row with which it goes on.
        let mut open = vec![(0_u32, None); cells];
        let (mut streams, mut counts, mut of) = (Vec::new(), Vec::new(), Vec::with_capacity(rows.len()));
        for (cell, row) in rows {
            let (stream, next) = open.get_mut(*cell as usize)?;
            if *next != Some(*row) {
                if (streams.len() + 1) * FEWEST > rows.len() {
                    return None;
                }
                *stream = streams.len() as u32;
                streams.push(Stream { cell: *cell, row: *row, to: 0..0 });
                counts.push(0_usize);
            }
            *next = row.checked_add(1);
            counts[*stream as usize] += 1;
            of.push(*stream);
        }
        let mut end = 0;
        for (stream, count) in streams.iter_mut().zip(counts) {
            stream.to = end..end;
            end += count;
        }
        let mut to = vec![0; rows.len()];
        for (number, stream) in (0_u32..).zip(of) {
            let range = &mut streams[stream as usize].to;
            to[range.end] = number;
            range.end += 1;
        }
        Some(Self { streams, to })
    }

    /// Copies the rows `range` of the batch, of `width` bytes, one after another in each of `cells`; `output` is as long as they are.
    /// Returns false for widths that are not small.
    pub(super) fn copy(&self, output: &mut [u8], range: Range<usize>, cells: &[Strided<'_>], width: usize) -> bool {
        match width {
            1 => self.sized::<1>(output, range, cells),
            2 => self.sized::<2>(output, range, cells),
            4 => self.sized::<4>(output, range, cells),
            8 => self.sized::<8>(output, range, cells),
            16 => self.sized::<16>(output, range, cells),
            _ => return false,
        }
        true
    }

    fn sized<const WIDTH: usize>(&self, output: &mut [u8], range: Range<usize>, cells: &[Strided<'_>]) {
        let output = output.as_chunks_mut::<WIDTH>().0;
        let is_all = range == (0..self.to.len());
        for (at, Stream { cell, row, to }) in self.streams.iter().enumerate() {
            // Rows of a stream are few and nowhere near those of the next one: a processor does not guess where they are.
            if let Some(next) = self.streams.get(at + AHEAD) {
                let rows = next.row as usize..next.row as usize + next.to.len();
                prefetch(&cells[next.cell as usize].bytes[rows.start * WIDTH..rows.end * WIDTH]);
            }
            let (mut to, mut row) = (&self.to[to.clone()], *row as usize);
            if !is_all {
                let skipped = to.partition_point(|at| (*at as usize) < range.start);
                let end = to.partition_point(|at| (*at as usize) < range.end);
                (to, row) = (&to[skipped..end], row + skipped);
            }
            let bytes = &cells[*cell as usize].bytes[row * WIDTH..(row + to.len()) * WIDTH];
            for (at, value) in to.iter().zip(bytes.as_chunks::<WIDTH>().0) {
                output[*at as usize - range.start] = *value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_row_group() {
        let rows = [(0, 3), (1, 0), (1, 1), (0, 4), (0, 5), (1, 2), (1, 3), (0, 6)];
        let found = Streams::of(&rows, 2).unwrap();
        let stream = |cell, row, to| Stream { cell, row, to };
        assert_eq!(found.streams, [stream(0, 3, 0..4), stream(1, 0, 4..8)]);
        assert_eq!(found.to, [0, 3, 4, 7, 1, 2, 5, 6]);
        assert_eq!(Streams::of(&[(0, 1), (0, 3), (0, 5), (0, 7)], 1), None, "too short");
        assert_eq!(Streams::of(&rows, 1), None, "no such row group");
        assert!(Streams::of(&[], 0).is_some());
    }

    #[test]
    fn streams_and_single_rows_give_the_same() {
        let bytes: Vec<u8> = (0..=255).cycle().take(16 * 100).collect();
        for width in [1, 2, 4, 8, 16] {
            let cell = |first: usize| Strided { bytes: &bytes[first * width..], stride: width };
            let cells = [cell(0), cell(7), cell(20)];
            // A stream that ends and begins again elsewhere, and one that is alone in the end.
            let (mut next, mut rows) = ([0_u32, 5, 9], Vec::new());
            for number in 0..100_usize {
                let of = if number > 90 { 0 } else { number * number % 7 % 3 };
                if number == 50 {
                    next[1] = 1;
                }
                rows.push((of as u32, next[of]));
                next[of] += 1;
            }
            let found = Streams::of(&rows, 3).unwrap();
            for range in [0..100, 0..50, 50..100, 13..14, 40..60, 7..7] {
                let mut by_stream = vec![0; range.len() * width];
                assert!(found.copy(&mut by_stream, range.clone(), &cells, width));
                let value = |(cell, row): &(u32, u32)| &cells[*cell as usize].bytes[*row as usize * width..][..width];
                let single: Vec<u8> = rows[range.clone()].iter().flat_map(value).copied().collect();
                assert_eq!(by_stream, single, "{width} bytes, rows {range:?}");
            }
            assert!(!found.copy(&mut [0; 3], 0..1, &cells, 3));
        }
    }
}
