//! One source in one epoch: row groups in permuted order, lanes, windows. Prefix sums and binary search, nothing per row.

use std::ops::Range;
use std::sync::Arc;

use super::permute::{GROUPS, Permutation, WINDOW, key};
use crate::error::{Error, Result};
use crate::manifest::Manifest;

/// Where the rows of one source are, in the order of one epoch.
#[derive(Debug)]
pub(super) struct Layout {
    /// Row groups that have selected rows, permuted; indexes into the manifest.
    order: Vec<u32>,
    /// First row of each of them in the permuted sequence, and the end of the last.
    starts: Vec<u64>,
    lanes: u64,
    /// First row of each window, counted along its lane; lane after lane.
    windows: Vec<u64>,
    /// Lane l has the windows `first[l]..first[l + 1]`.
    first: Vec<u32>,
    /// Seed, epoch and source, if rows are shuffled.
    shuffled: Option<[u64; 3]>,
}

/// One window: a run of rows of a lane that are permuted among themselves.
#[derive(Debug, Clone)]
pub(super) struct Window {
    /// Number within the lane.
    pub(super) number: u32,
    /// Rows counted along the lane.
    pub(super) rows: Range<u64>,
    /// First of these rows in the permuted sequence; the others follow it.
    low: u64,
    /// The row groups it takes rows from, as indexes into the permuted order.
    pub(super) groups: Range<usize>,
}

impl Layout {
    /// Lays out the selected rows of `manifest` for `[seed, epoch, source]`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for more row groups or rows than a plan can number.
    pub(super) fn new(
        manifest: &Manifest,
        keys: [u64; 3],
        shuffle: bool,
        lanes: u32,
        window_rows: u64,
    ) -> Result<Self> {
        let unsupported =
            |what: String| Error::Unsupported { what, hint: "write smaller row groups or datasets".to_owned() };
        if manifest.groups.len() > 1 << 31 {
            return Err(unsupported(format!("a dataset of {} row groups", manifest.groups.len())));
        }
        let used = manifest.groups.iter().filter(|group| group.selected > 0).count();
        let mut order = Vec::with_capacity(used);
        order.extend((0_u32..).zip(&manifest.groups).filter(|(_, group)| group.selected > 0).map(|(index, _)| index));
        let [seed, epoch, source] = keys;
        if shuffle {
            let file_order = order.clone();
            let permutation = Permutation::new(used as u64, key(&[GROUPS, seed, epoch, source]));
            for (at, slot) in (0..).zip(&mut order) {
                *slot = file_order[permutation.forward(at) as usize];
            }
        }
        let mut starts = Vec::with_capacity(used + 1);
        let mut rows = 0_u64;
        starts.push(0);
        for index in &order {
            let group = &manifest.groups[*index as usize];
            if group.selected > u64::from(u32::MAX) {
                return Err(unsupported(format!("row group {index} with {} selected rows", group.selected)));
            }
            rows += group.selected;
            starts.push(rows);
        }
        if rows > 1 << 62 {
            return Err(unsupported(format!("a dataset of {rows} rows")));
        }
        let mut layout = Self {
            order,
            starts,
            lanes: u64::from(lanes),
            windows: Vec::new(),
            first: Vec::with_capacity(lanes as usize + 1),
            shuffled: shuffle.then_some(keys),
        };
        layout.first.push(0);
        for lane in 0..u64::from(lanes) {
            layout.cut(lane, window_rows);
            layout.first.push(layout.windows.len() as u32);
        }
        layout.windows.shrink_to_fit();
        Ok(layout)
    }

    /// Cuts a lane where row groups meet, into windows of nearly equal size, none below `window_rows` if the lane is not.
    fn cut(&mut self, lane: u64, window_rows: u64) {
        let span = self.span(lane);
        let len = span.end - span.start;
        if len == 0 {
            return;
        }
        let target = len / (len / window_rows).max(1);
        let inner = self.starts.partition_point(|start| *start <= span.start)
            ..self.starts.partition_point(|start| *start < span.end);
        let mut open = 0;
        self.windows.push(0);
        for nth in 0..inner.len() {
            let at = if backwards(lane) {
                span.end - self.starts[inner.end - 1 - nth]
            } else {
                self.starts[inner.start + nth] - span.start
            };
            if at - open >= target && len - at >= window_rows {
                self.windows.push(at);
                open = at;
            }
        }
    }

    /// Selected rows.
    pub(super) fn rows(&self) -> u64 {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The rows of a lane in the permuted sequence.
    pub(super) fn span(&self, lane: u64) -> Range<u64> {
        let (each, more) = (self.rows() / self.lanes, self.rows() % self.lanes);
        let start = |lane: u64| lane * each + lane.min(more);
        start(lane)..start(lane + 1)
    }

    /// Rows of a lane.
    pub(super) fn lane_rows(&self, lane: u64) -> u64 {
        self.along(self.rows(), lane)
    }

    /// How many of the rows `0..end` of the interleaved lanes belong to `lane`.
    pub(super) fn along(&self, end: u64, lane: u64) -> u64 {
        (end + (self.lanes - 1 - lane)) / self.lanes
    }

    /// How many of the rows `0..end` of the interleaved lanes belong to lanes below `lane`.
    pub(super) fn below(&self, end: u64, lane: u64) -> u64 {
        end / self.lanes * lane + (end % self.lanes).min(lane)
    }

    /// Number of windows of a lane.
    pub(super) fn windows(&self, lane: u64) -> u32 {
        self.first[lane as usize + 1] - self.first[lane as usize]
    }

    /// The window of `lane` that holds row `at` of it; `at` is below [`lane_rows`](Self::lane_rows).
    pub(super) fn window_at(&self, lane: u64, at: u64) -> Window {
        let all = self.first[lane as usize] as usize..self.first[lane as usize + 1] as usize;
        let number = self.windows[all].partition_point(|start| *start <= at) - 1;
        self.window(lane, number as u32)
    }

    /// Window `number` of `lane`.
    pub(super) fn window(&self, lane: u64, number: u32) -> Window {
        let (first, end) = (self.first[lane as usize] as usize, self.first[lane as usize + 1] as usize);
        let span = self.span(lane);
        let index = first + number as usize;
        let next = if index + 1 < end { self.windows[index + 1] } else { span.end - span.start };
        let rows = self.windows[index]..next;
        let (low, high) = if backwards(lane) {
            (span.end - rows.end, span.end - rows.start)
        } else {
            (span.start + rows.start, span.start + rows.end)
        };
        let groups =
            self.starts.partition_point(|start| *start <= low) - 1..self.starts.partition_point(|start| *start < high);
        Window { number, rows, low, groups }
    }

    /// The row groups of a window, as indexes into the manifest.
    pub(super) fn groups(&self, window: &Window) -> &[u32] {
        &self.order[window.groups.clone()]
    }

    /// All row groups that have rows, as indexes into the manifest, in permuted order.
    pub(super) fn order(&self) -> &[u32] {
        &self.order
    }

    /// Whether all rows of row group `at` of the permuted order lie in `lane`.
    pub(super) fn inside(&self, at: usize, lane: u64) -> bool {
        let span = self.span(lane);
        self.starts[at] >= span.start && self.starts[at + 1] <= span.end
    }

    /// Calls `visit` with row group and row for the rows `range` of a window, counted along the lane, in order.
    pub(super) fn each_row(
        &self,
        pass: u64,
        lane: u64,
        window: &Window,
        range: Range<u64>,
        mut visit: impl FnMut(u32, u32),
    ) {
        let starts = &self.starts[window.groups.clone()];
        let order = &self.order[window.groups.clone()];
        let mut place = |offset: u64| {
            let row = window.low + offset;
            let at = starts.partition_point(|start| *start <= row) - 1;
            // A row group has at most u32::MAX selected rows, checked above.
            visit(order[at], (row - starts[at]) as u32);
        };
        let offsets = range.start - window.rows.start..range.end - window.rows.start;
        match self.shuffled {
            Some([seed, epoch, source]) => {
                let key = key(&[WINDOW, seed, epoch, source, pass, lane, u64::from(window.number)]);
                let permutation = Permutation::new(window.rows.end - window.rows.start, key);
                offsets.for_each(|offset| place(permutation.forward(offset)));
            }
            None => offsets.for_each(place),
        }
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        let Self { order, starts, windows, first, .. } = self;
        size_of::<Self>() + 4 * (order.capacity() + first.capacity()) + 8 * (starts.capacity() + windows.capacity())
    }
}

/// Odd lanes run backwards. Lane k's end or start is then where lane k + 1 has its own, so the row group cut between them is
/// needed by both at about the same time and read once.
fn backwards(lane: u64) -> bool {
    lane % 2 == 1
}

/// The layouts of all sources.
pub(super) fn layouts(
    manifests: &[Arc<Manifest>],
    seed: u64,
    epoch: u64,
    shuffle: bool,
    lanes: u32,
    window_rows: u64,
) -> Result<Vec<Layout>> {
    (0..)
        .zip(manifests)
        .map(|(source, manifest)| Layout::new(manifest, [seed, epoch, source], shuffle, lanes, window_rows))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_tile_lanes_and_are_large_enough() {
        let rows: Vec<u64> = (0..97).map(|at| at * 31 % 40).collect();
        for lanes in [1, 2, 3, 8, 64] {
            for window_rows in [1, 10, 100, 10_000] {
                let layout = Layout::new(&Manifest::imaginary(&rows, 1), [1, 2, 3], true, lanes, window_rows).unwrap();
                let mut total = 0;
                for lane in 0..u64::from(lanes) {
                    let len = layout.lane_rows(lane);
                    assert_eq!(len, layout.span(lane).end - layout.span(lane).start);
                    let mut end = 0;
                    for number in 0..layout.windows(lane) {
                        let window = layout.window(lane, number);
                        assert_eq!(window.rows.start, end);
                        end = window.rows.end;
                        assert!(end - window.rows.start >= window_rows.min(len), "lane {lane}: {window:?}");
                        assert!(layout.window_at(lane, window.rows.start).number == number);
                        assert!(layout.window_at(lane, end - 1).number == number);
                    }
                    assert_eq!(end, len);
                    total += len;
                }
                assert_eq!(total, layout.rows());
            }
        }
    }

    #[test]
    fn lanes_that_share_a_row_group_need_it_at_the_same_end() {
        let layout = Layout::new(&Manifest::imaginary(&[10; 7], 1), [0; 3], true, 4, 1).unwrap();
        for lane in 0..3 {
            // 17 or 18 rows per lane: each cut goes through a row group.
            let last = |lane| layout.window(lane, layout.windows(lane) - 1);
            let (mine, other) = if lane % 2 == 0 {
                (last(lane), last(lane + 1))
            } else {
                (layout.window(lane, 0), layout.window(lane + 1, 0))
            };
            let shared = layout.groups(&mine).iter().filter(|group| layout.groups(&other).contains(group)).count();
            assert_eq!(shared, 1, "lanes {lane} and {}", lane + 1);
        }
    }

    #[test]
    fn too_large_a_row_group_is_refused() {
        let manifest = Manifest::imaginary(&[1 << 33], 1);
        assert!(matches!(Layout::new(&manifest, [0; 3], true, 1, 1), Err(Error::Unsupported { .. })));
    }
}
