//! One source in one epoch: row groups in permuted order, lanes, windows. Prefix sums and binary search, nothing per
//! row.

use std::ops::Range;
use std::sync::Arc;

use super::method::Method;
use super::permute::{GROUPS, WINDOW, key};
use super::recent::{Recent, TakenRows};
use super::spec::{PlanSpec, Shuffle};
use crate::error::{Error, Result};
use crate::manifest::Manifest;

/// Maximum row groups of a window whose rows are sorted for batches: each is found among all rows of the window.
const MOST_SORTED: usize = 16;

/// The placement of one source's rows in the order of one epoch.
#[derive(Debug)]
pub(super) struct Layout {
    /// Row groups that have selected rows, permuted; indexes into the manifest.
    order: Vec<u32>,
    /// First row of each of them in the permuted sequence, and the end of the last.
    starts: Vec<u64>,
    lanes: u64,
    /// First row of each window, counted along its lane; lane after lane.
    windows: Vec<u64>,
    /// Start of each window in the permuted order of row groups, as a boundary between two of them: the first row group
    /// of the window, or in a lane that runs backwards the one after it. The first window of a lane begins with the
    /// lane.
    bounds: Vec<u32>,
    /// Row groups of each lane, as indexes into the permuted order.
    edges: Vec<Range<u32>>,
    /// Lane l has the windows `first[l]..first[l + 1]`.
    first: Vec<u32>,
    /// The method, and seed, epoch and source, if rows are shuffled.
    shuffled: Option<(Method, [u64; 3])>,
}

/// Sizes of windows, in rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// The first window of a lane.
    pub(super) first: u64,
    /// The windows after the first ones.
    pub(super) full: u64,
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
    /// Row groups that it takes rows from, as indexes into the permuted order.
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
        shuffle: Option<Method>,
        lanes: u32,
        sizes: Sizes,
    ) -> Result<Self> {
        let unsupported = |what: String| Error::unsupported(what, "write smaller row groups or datasets");
        if manifest.groups.len() > 1 << 31 {
            return Err(unsupported(format!("a dataset of {} row groups", manifest.groups.len())));
        }
        let used = manifest.groups.iter().filter(|group| group.selected > 0).count();
        let mut order = Vec::with_capacity(used);
        order.extend((0_u32..).zip(&manifest.groups).filter(|(_, group)| group.selected > 0).map(|(index, _)| index));
        let [seed, epoch, source] = keys;
        if let Some(method) = shuffle {
            method.order(&mut order, key(&[GROUPS, seed, epoch, source]));
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
            bounds: Vec::new(),
            edges: Vec::with_capacity(lanes as usize),
            first: Vec::with_capacity(lanes as usize + 1),
            shuffled: shuffle.map(|method| (method, keys)),
        };
        layout.first.push(0);
        for lane in 0..u64::from(lanes) {
            layout.cut(lane, sizes);
            layout.first.push(layout.windows.len() as u32);
        }
        layout.windows.shrink_to_fit();
        layout.bounds.shrink_to_fit();
        Ok(layout)
    }

    /// Cuts a lane at boundaries of row groups: into windows that double in size from the first to a full one, and full
    /// ones of nearly equal size. None is below its size unless the lane is.
    fn cut(&mut self, lane: u64, sizes: Sizes) {
        let span = self.span(lane);
        let len = span.end - span.start;
        if len == 0 {
            self.edges.push(0..0);
            return;
        }
        let even = |rows: u64| rows / (rows / sizes.full).max(1);
        let mut target = if sizes.first < sizes.full { sizes.first } else { even(len) };
        let backwards = self.backwards(lane);
        let first = self.starts.partition_point(|start| *start <= span.start) - 1;
        let end = self.starts.partition_point(|start| *start < span.end);
        self.edges.push(first as u32..end as u32);
        self.windows.push(0);
        self.bounds.push(if backwards { end } else { first } as u32);
        let mut open = 0;
        // The boundaries within the lane, in the lane's direction.
        for nth in 1..end - first {
            let bound = if backwards { end - nth } else { first + nth };
            let at = if backwards { span.end - self.starts[bound] } else { self.starts[bound] - span.start };
            let next = target.saturating_mul(2).min(sizes.full);
            if at - open >= target && len - at >= next {
                self.windows.push(at);
                self.bounds.push(bound as u32);
                open = at;
                if target < sizes.full {
                    target = if next < sizes.full { next } else { even(len - at) };
                }
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

    /// Counts the rows `0..end` of the interleaved lanes that belong to `lane`.
    pub(super) fn along(&self, end: u64, lane: u64) -> u64 {
        (end + (self.lanes - 1 - lane)) / self.lanes
    }

    /// Counts the rows `0..end` of the interleaved lanes that belong to lanes below `lane`.
    pub(super) fn below(&self, end: u64, lane: u64) -> u64 {
        end / self.lanes * lane + (end % self.lanes).min(lane)
    }

    /// Number of windows of a lane.
    pub(super) fn windows(&self, lane: u64) -> u32 {
        self.first[lane as usize + 1] - self.first[lane as usize]
    }

    /// The window of `lane` that holds the lane's row `at`, which is below [`lane_rows`](Self::lane_rows).
    pub(super) fn window_at(&self, lane: u64, at: u64) -> Window {
        let all = &self.windows[self.first[lane as usize] as usize..self.first[lane as usize + 1] as usize];
        // Windows are nearly equal, so the guess is close, and the search stays within a few cache lines.
        let guess = u128::from(at) * all.len() as u128 / u128::from(self.lane_rows(lane).max(1));
        let number = count_up_to(all, at, guess as usize) - 1;
        self.window(lane, number as u32)
    }

    /// Window `number` of `lane`.
    pub(super) fn window(&self, lane: u64, number: u32) -> Window {
        let index = (self.first[lane as usize] + number) as usize;
        let span = self.span(lane);
        let edges = &self.edges[lane as usize];
        let is_last = number + 1 == self.windows(lane);
        let next = if is_last { span.end - span.start } else { self.windows[index + 1] };
        let rows = self.windows[index]..next;
        let bound = self.bounds[index];
        let (low, groups) = if self.backwards(lane) {
            (span.end - rows.end, if is_last { edges.start } else { self.bounds[index + 1] }..bound)
        } else {
            (span.start + rows.start, bound..if is_last { edges.end } else { self.bounds[index + 1] })
        };
        Window { number, rows, low, groups: groups.start as usize..groups.end as usize }
    }

    /// The row groups of a window, as indexes into the manifest.
    pub(super) fn groups(&self, window: &Window) -> &[u32] {
        &self.order[window.groups.clone()]
    }

    /// All row groups that have rows, as indexes into the manifest, in permuted order.
    pub(super) fn order(&self) -> &[u32] {
        &self.order
    }

    /// Returns true if all rows of row group `at` of the permuted order lie in `lane`.
    pub(super) fn inside(&self, at: usize, lane: u64) -> bool {
        let span = self.span(lane);
        self.starts[at] >= span.start && self.starts[at + 1] <= span.end
    }

    /// Calls `visit` with row group and row for the rows `range` of a window, counted along the lane, in order.
    pub(super) fn each_row(
        &self,
        recent: &Recent,
        pass: u64,
        lane: u64,
        window: &Window,
        range: Range<u64>,
        mut visit: impl FnMut(u32, u32),
    ) {
        let starts = &self.starts[window.groups.clone()];
        let order = &self.order[window.groups.clone()];
        let offsets = range.start - window.rows.start..range.end - window.rows.start;
        // A row group has at most u32::MAX selected rows, checked above.
        match self.shuffled {
            Some((method, keys)) => {
                let place = |offset: u64| {
                    let row = window.low + offset;
                    let at = starts.partition_point(|start| *start <= row) - 1;
                    visit(order[at], (row - starts[at]) as u32);
                };
                let key = window_key(keys, pass, lane, window);
                method.window(window.rows.end - window.rows.start, key, recent).each(offsets, place);
            }
            None => {
                let (mut row, end) = (window.low + offsets.start, window.low + offsets.end);
                let mut at = starts.partition_point(|start| *start <= row).saturating_sub(1);
                while row < end {
                    let next = starts.get(at + 1).map_or(end, |next| end.min(*next));
                    (row..next).for_each(|row| visit(order[at], (row - starts[at]) as u32));
                    (row, at) = (next, at + 1);
                }
            }
        }
    }

    /// The rows of row group `group`, from which the named window takes rows, in the order in which the epoch takes
    /// them: lane by lane if lanes share it. `None` if they are not shuffled, and for windows of many row groups, which
    /// would have to be scanned.
    pub(super) fn take_order(
        &self,
        recent: &Recent,
        pass: u64,
        (lane, number): (u64, u32),
        group: u32,
    ) -> Option<TakenRows> {
        let (method, keys) = self.shuffled?;
        if lane >= self.lanes || number >= self.windows(lane) {
            return None;
        }
        let groups = self.window(lane, number).groups;
        if groups.len() > MOST_SORTED {
            return None;
        }
        let at = groups.start + self.order.get(groups.clone())?.iter().position(|of| *of == group)?;
        let (mut row, end) = (self.starts[at], self.starts[at + 1]);
        let mut rows = Vec::with_capacity(usize::try_from(end - row).ok()?.checked_add(1)?);
        let mut kept = Vec::new();
        for lane in self.lane_of(row)..self.lanes {
            let span = self.span(lane);
            let part = row.max(span.start)..end.min(span.end);
            if part.is_empty() {
                break;
            }
            // Windows are cut at boundaries of row groups, so one has all rows of the part.
            let along = if self.backwards(lane) { span.end - part.end } else { part.start - span.start };
            let window = self.window_at(lane, along);
            if window.groups.len() > MOST_SORTED {
                return None;
            }
            let key = window_key(keys, pass, lane, &window);
            let len = window.rows.end - window.rows.start;
            // Steps take the same rows later.
            kept.extend(method.keep(len, key, recent));
            let (first, count, before) = (part.start - window.low, part.end - part.start, part.start - self.starts[at]);
            // Chance decides which rows of the window are in the part, so a branch would be mispredicted: all are written, the others
            // to a place that is written again.
            let mut end = rows.len();
            rows.resize(end + count as usize + 1, 0);
            method.window(len, key, recent).each(0..len, |offset| {
                let nth = offset.wrapping_sub(first);
                rows[end] = before.wrapping_add(nth) as u32;
                end += usize::from(nth < count);
            });
            rows.truncate(end);
            row = part.end;
        }
        Some(TakenRows { rows, kept })
    }

    /// The lane of row `row` of the permuted sequence.
    fn lane_of(&self, row: u64) -> u64 {
        let (each, more) = (self.rows() / self.lanes, self.rows() % self.lanes);
        let longer = more * (each + 1);
        if row < longer { row / (each + 1) } else { more + (row - longer) / each.max(1) }
    }

    /// Odd lanes of a shuffle run backwards. The end or start of lane k is then that of lane k + 1, so both need the
    /// row group cut between them at about the same time, and it is read once.
    fn backwards(&self, lane: u64) -> bool {
        self.shuffled.is_some() && lane % 2 == 1
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        let Self { order, starts, windows, bounds, edges, first, .. } = self;
        let narrow = order.capacity() + bounds.capacity() + first.capacity();
        size_of::<Self>() + 4 * narrow + 8 * (starts.capacity() + windows.capacity() + edges.capacity())
    }
}

/// The key of the order of a window's rows.
fn window_key([seed, epoch, source]: [u64; 3], pass: u64, lane: u64, window: &Window) -> u64 {
    key(&[WINDOW, seed, epoch, source, pass, lane, u64::from(window.number)])
}

/// Counts the entries of `sorted` that are at most `value`: a binary search between bounds that start at `guess` and
/// double.
fn count_up_to(sorted: &[u64], value: u64, guess: usize) -> usize {
    let (mut low, mut high) = (guess.min(sorted.len()), guess.min(sorted.len()));
    let mut reach = 1;
    while low > 0 && sorted[low - 1] > value {
        high = low - 1;
        low = low.saturating_sub(reach);
        reach *= 2;
    }
    reach = 1;
    while high < sorted.len() && sorted[high] <= value {
        low = high + 1;
        high = (high + reach).min(sorted.len());
        reach *= 2;
    }
    low + sorted[low..high].partition_point(|item| *item <= value)
}

/// The layouts of all sources.
pub(super) fn layouts(
    manifests: &[Arc<Manifest>],
    spec: &PlanSpec,
    epoch: u64,
    lanes: u32,
    window_rows: u64,
) -> Result<Vec<Layout>> {
    let first = spec.order_version.first_window(spec.global_batch, u64::from(lanes), window_rows);
    let sizes = Sizes { first, full: window_rows };
    let method = spec.order_version.method(u64::from(lanes) * manifests.len() as u64);
    let shuffle = (spec.shuffle == Shuffle::Windows).then_some(method);
    (0..)
        .zip(manifests)
        .map(|(source, manifest)| Layout::new(manifest, [spec.seed, epoch, source], shuffle, lanes, sizes))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::version::OrderVersion;
    use super::*;

    fn shuffle() -> Option<Method> {
        Some(OrderVersion::LATEST.method(8))
    }

    fn sizes(first: u64, full: u64) -> Sizes {
        Sizes { first, full }
    }

    #[test]
    fn windows_tile_lanes_and_are_large_enough() {
        let rows: Vec<u64> = (0..97).map(|at| at * 31 % 40).collect();
        for lanes in [1, 2, 3, 8, 64] {
            for (first, full) in [(1, 1), (10, 10), (100, 100), (10_000, 10_000), (5, 100), (30, 100), (1, 10_000)] {
                let sizes = sizes(first, full);
                let layout = Layout::new(&Manifest::imaginary(&rows, 1), [1, 2, 3], shuffle(), lanes, sizes).unwrap();
                let mut total = 0;
                for lane in 0..u64::from(lanes) {
                    let len = layout.lane_rows(lane);
                    assert_eq!(len, layout.span(lane).end - layout.span(lane).start);
                    let mut end = 0;
                    for number in 0..layout.windows(lane) {
                        let window = layout.window(lane, number);
                        assert_eq!(window.rows.start, end);
                        end = window.rows.end;
                        let least = first.saturating_mul(1 << number.min(20)).min(full);
                        assert!(end - window.rows.start >= least.min(len), "lane {lane}: {window:?}");
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
    fn row_groups_are_taken_in_the_order_of_lanes_and_windows() {
        let rows: Vec<u64> = (0..29).map(|at| at * 31 % 40).collect();
        for (lanes, full) in [(1, 1), (3, 50), (4, 100), (8, 20)] {
            let layout =
                Layout::new(&Manifest::imaginary(&rows, 1), [1, 2, 3], shuffle(), lanes, sizes(1, full)).unwrap();
            let recent = Recent::default();
            let (mut taken, mut sorted) = (vec![Vec::new(); rows.len()], 0);
            for lane in 0..u64::from(lanes) {
                for number in 0..layout.windows(lane) {
                    let window = layout.window(lane, number);
                    layout.each_row(&recent, 5, lane, &window, window.rows.clone(), |group, row| {
                        taken[group as usize].push(row);
                    });
                }
            }
            for lane in 0..u64::from(lanes) {
                for number in 0..layout.windows(lane) {
                    let window = layout.window(lane, number);
                    for group in layout.groups(&window) {
                        let found = layout.take_order(&recent, 5, (lane, number), *group);
                        assert!(found.is_some() || full > 1, "windows of one row group");
                        if let Some(found) = found {
                            assert_eq!(found.rows, taken[*group as usize], "{lanes} lanes, row group {group}");
                            sorted += 1;
                        }
                    }
                }
            }
            assert!(sorted > 0, "{lanes} lanes, windows of {full} rows");
        }
        let plain = Layout::new(&Manifest::imaginary(&[3], 1), [0; 3], None, 1, sizes(1, 1)).unwrap();
        assert!(plain.take_order(&Recent::default(), 0, (0, 0), 0).is_none(), "file order");
    }

    #[test]
    fn lanes_that_share_a_row_group_need_it_at_the_same_end() {
        let layout = Layout::new(&Manifest::imaginary(&[10; 7], 1), [0; 3], shuffle(), 4, sizes(1, 1)).unwrap();
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
    fn windows_grow_from_a_small_one_to_full_ones() {
        let layout = Layout::new(&Manifest::imaginary(&[1; 10_000], 1), [0; 3], shuffle(), 2, sizes(64, 1024)).unwrap();
        for lane in 0..2 {
            let rows = |number| {
                let window = layout.window(lane, number);
                window.rows.end - window.rows.start
            };
            let all: Vec<u64> = (0..layout.windows(lane)).map(rows).collect();
            assert_eq!(all, [64, 128, 256, 512, 1346, 1346, 1348], "lane {lane}");
        }
    }

    #[test]
    fn a_guess_changes_no_search() {
        let sorted: Vec<u64> = (0..40).map(|at| at * at / 7).collect();
        for value in 0..250 {
            for guess in 0..50 {
                let found = count_up_to(&sorted, value, guess);
                assert_eq!(found, sorted.partition_point(|item| *item <= value), "value {value}, guess {guess}");
            }
        }
    }

    #[test]
    fn too_large_a_row_group_is_refused() {
        let manifest = Manifest::imaginary(&[1 << 33], 1);
        assert!(matches!(Layout::new(&manifest, [0; 3], shuffle(), 1, sizes(1, 1)), Err(Error::Unsupported { .. })));
    }
}
