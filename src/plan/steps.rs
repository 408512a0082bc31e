//! The plan: steps, slices of ranks, and the windows that a step needs.
//!
//! A lane of a source is an endless sequence of its rows, pass after pass (only a mixture takes more than one pass). A step
//! takes a range of it. All ranges are found by counting: the interleave counts a source's rows before a position, a layout
//! counts a lane's rows among them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use super::cuts::Cuts;
use super::interleave::Interleave;
use super::layout::{Layout, Window, layouts};
use super::mixture::{fingerprints, mixed_rows};
use super::recent::{Recent, TakenRows};
use super::share::{Share, length};
use super::spec::PlanSpec;
use super::tail::Tail;
use crate::error::{Error, Result};
use crate::manifest::{Fingerprint, Manifest, RowGroup};

/// One row of a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowRef {
    /// The dataset, in the order of the manifests.
    pub source: u32,
    /// Index into [`Manifest::groups`].
    pub group: u32,
    /// Row among the selected rows of the row group.
    pub row: u32,
}

/// The rows that one rank delivers in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Number of the step in its epoch.
    pub step: u64,
    /// Rows in order: first the real ones, then with [`Tail::Repeat`] and [`Tail::Short`] repeated ones. Padding is not listed.
    pub rows: Vec<RowRef>,
    /// Number of `rows` delivered for the first time, which are all but the repeated ones.
    pub real: usize,
    /// Rows of the batch with padding.
    pub size: usize,
}

/// A window that a rank needs in a step, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WindowUse {
    /// The dataset, in the order of the manifests.
    pub source: u32,
    /// Pass over the source within this epoch; above 0 only with [`Stop::AllExhausted`](super::Stop::AllExhausted).
    pub source_epoch: u64,
    /// Lane of the source.
    pub lane: u32,
    /// Number within the lane.
    pub window: u32,
    /// Its row groups, as indexes into [`Manifest::groups`].
    pub groups: Vec<u32>,
    /// The last step in which this rank needs the window. Rows that the last step repeats do not count before that
    /// step.
    pub last_step: u64,
}

/// The order of one epoch. Any step of any rank is found directly, in any order.
///
/// ```
/// use std::sync::Arc;
/// use bowstring::manifest::Manifest;
/// use bowstring::plan::{Plan, PlanSpec, Share};
/// # fn main() -> bowstring::Result<()> {
/// let manifests = [Arc::new(Manifest::imaginary(&[100, 50, 70], 1000))];
/// let spec = PlanSpec::new(42, 32).resolve(&manifests)?;
/// let plan = Plan::new(&manifests, spec, 0)?;
/// assert_eq!((plan.rows(), plan.steps()), (220, 7));
/// let whole = plan.step(3, Share::whole());
/// let halves = [plan.step(3, Share::new(0, 2)?), plan.step(3, Share::new(1, 2)?)];
/// assert_eq!(whole.rows, [&halves[0].rows[..], &halves[1].rows[..]].concat());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Plan {
    pub(super) manifests: Vec<Arc<Manifest>>,
    pub(super) sources: Arc<[Layout]>,
    pub(super) interleave: Interleave,
    recent: Arc<Recent>,
    spec: PlanSpec,
    epoch: u64,
    fingerprint: Fingerprint,
    former: Option<Fingerprint>,
    pub(super) lanes: u64,
    pub(super) cuts: Cuts,
}

/// Rows that a step takes from one lane of one source.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) source: usize,
    pub(super) lane: u64,
    /// Counted along the lane over all passes.
    pub(super) rows: Range<u64>,
}

/// Identity of a window.
type Name = (usize, u64, u64, u32);

impl Plan {
    /// The order of `epoch` over `manifests`, whose spec is [resolved](PlanSpec::resolve), for one rank or any number
    /// of ranks of two rows each: for others see [`for_world`](Self::for_world).
    ///
    /// # Errors
    /// [`Error::Config`] for impossible or open values of the spec, and for a mixture with a dataset that has no rows;
    /// [`Error::Unsupported`] for datasets beyond 2^31 row groups, 2^32 rows in a row group or 2^62 rows.
    pub fn new(manifests: &[Arc<Manifest>], spec: PlanSpec, epoch: u64) -> Result<Self> {
        let (lanes, window_rows) = spec.validate(manifests)?;
        let sources = layouts(manifests, &spec, epoch, lanes, window_rows)?;
        let interleave = match &spec.mix {
            None => Interleave::new(&[1]),
            Some(mix) => {
                let round = spec.order_version.round(spec.global_batch, lanes.into());
                Interleave::new(&mix.weights).in_rounds(round)
            }
        };
        let rows = match &spec.mix {
            None => sources.iter().map(Layout::rows).sum(),
            Some(mix) => mixed_rows(&sources, &interleave, mix.stop)?,
        };
        let cuts = Cuts::new(spec.tail, spec.global_batch, rows, 1).in_one_lane(lanes == 1);
        let (fingerprint, former) = fingerprints(manifests);
        let (manifests, sources) = (manifests.to_vec(), sources.into());
        let (lanes, recent) = (u64::from(lanes), Arc::default());
        Ok(Self { manifests, sources, interleave, recent, spec, epoch, fingerprint, former, lanes, cuts })
    }

    /// The same plan for `world` ranks. Under [`Tail::Even`], more ranks than half a global batch has rows may have a
    /// step fewer; under [`Tail::Short`], [`Share::whole`] then has the repeated rows of all ranks. Everything else is
    /// the same for every world. Takes no time.
    #[must_use]
    pub fn for_world(&self, world: u32) -> Self {
        let world = if matches!(self.spec.tail, Tail::Short | Tail::Even) { world } else { 1 };
        Self { cuts: self.cuts.of_world(world.max(1)), ..self.clone() }
    }

    /// The number of ranks that the plan is [for](Self::for_world); 1 if it is the same for all.
    pub fn world(&self) -> u32 {
        self.cuts.world()
    }

    /// Steps of the epoch, the same on every rank.
    pub fn steps(&self) -> u64 {
        self.cuts.steps()
    }

    /// Rows that all ranks together deliver in the epoch, without repeated ones.
    pub fn rows(&self) -> u64 {
        self.cuts.rows()
    }

    /// The epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The resolved spec.
    pub fn spec(&self) -> &PlanSpec {
        &self.spec
    }

    /// A row group, or unit of one, by dataset and number.
    #[cfg_attr(not(feature = "cli"), allow(dead_code, reason = "only pages of the command line draw them"))]
    pub(crate) fn unit(&self, source: u32, group: u32) -> Option<&RowGroup> {
        self.manifests.get(source as usize)?.groups.get(group as usize)
    }

    /// The fingerprint of the data: that of the manifest, or of all manifests of a mixture.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The fingerprint that a former version of bowstring gave the data, if it was another one.
    pub(crate) fn former(&self) -> Option<Fingerprint> {
        self.former
    }

    /// `given`, if the data have or [had](Self::former) that fingerprint; else the one that they have.
    pub(crate) fn fingerprint_as(&self, given: Fingerprint) -> Fingerprint {
        self.fingerprint.or_former(self.former, given)
    }

    /// Number of lanes of each source.
    pub fn lanes(&self) -> u32 {
        self.lanes as u32
    }

    /// Returns true if batches carry a mask of real rows: with [`Tail::Pad`], in every step, so that all steps look
    /// alike.
    pub fn masked(&self) -> bool {
        self.spec.tail == Tail::Pad
    }

    /// Refuses a world of more ranks than the global batch, or under [`Tail::Even`] the epoch, has rows: some would get
    /// none.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn check_share(&self, share: Share) -> Result<()> {
        if u64::from(share.world) <= self.spec.global_batch {
            return self.cuts.check(share);
        }
        let problem =
            format!("a global batch of {} rows for {} ranks; each needs one", self.spec.global_batch, share.world);
        Err(Error::config("global_batch_size", problem))
    }

    /// Maximum rows of a batch of this rank, with padding: those of every batch except the last under [`Tail::Short`]
    /// and the last two under [`Tail::Even`].
    pub fn batch_rows(&self, share: Share) -> u64 {
        self.cuts.most(share)
    }

    /// Rows that this rank delivers in `step`, without padding and repeated ones; 0 beyond the last step.
    pub fn real_rows(&self, step: u64, share: Share) -> u64 {
        length(&self.cuts.own(step, share))
    }

    /// Rows that this rank delivers in the epoch, without padding and repeated ones.
    pub fn share_rows(&self, share: Share) -> u64 {
        let full = self.cuts.full();
        let others = (full..self.steps()).map(|step| self.real_rows(step, share));
        full * length(&share.part(self.spec.global_batch)) + others.sum::<u64>()
    }

    /// The rows of `step` on this rank; none beyond the last step. Takes memory for [`batch_rows`](Self::batch_rows),
    /// so limit those first when planning for an untrusted client.
    pub fn step(&self, step: u64, share: Share) -> Step {
        let size = length(&share.part(self.cuts.places(step, share))) as usize;
        let mut rows = Vec::new();
        if step < self.steps() {
            // Padding takes no place in the list.
            rows.reserve_exact(if self.masked() { self.real_rows(step, share) as usize } else { size });
        }
        self.runs(step, share, |run| {
            let source = &self.sources[run.source];
            self.each_window(&run, |pass, window, range| {
                source.each_row(&self.recent, pass, run.lane, &window, range, |group, row| {
                    rows.push(RowRef { source: run.source as u32, group, row });
                });
            });
        });
        let real = rows.len();
        for position in self.repeated(step, share) {
            let (source, pass, lane, at) = self.locate(position);
            let layout = &self.sources[source];
            let window = layout.window_at(lane, at);
            layout.each_row(&self.recent, pass, lane, &window, at..at + 1, |group, row| {
                rows.push(RowRef { source: source as u32, group, row });
            });
        }
        Step { step, rows, real, size }
    }

    /// The windows that this rank needs in `step`, each once, in the order of its rows.
    pub fn windows(&self, step: u64, share: Share) -> Vec<WindowUse> {
        let mut uses = Vec::new();
        let last = self.steps().saturating_sub(1);
        let mut seen: BTreeSet<Name> = BTreeSet::new();
        let repeats = self.repeats(step, share);
        let repeated = repeats.iter().any(|positions| !positions.is_empty());
        self.runs(step, share, |run| {
            self.each_window(&run, |pass, window, _| {
                let last_step = if step == last { last } else { self.last_step(step, share, &run, pass, &window) };
                if repeated {
                    seen.insert((run.source, pass, run.lane, window.number));
                }
                uses.push(self.window_use(run.source, pass, run.lane, &window, last_step));
            });
        });
        for positions in &repeats {
            // A batch may repeat too many rows to walk: the windows are found by counting, and sorted by their first
            // rows.
            let mut found = Vec::new();
            self.runs_of(positions, &mut |run: Run| {
                self.each_window(&run, |pass, window, rows| {
                    let draw = pass * self.sources[run.source].rows() + rows.start * self.lanes + run.lane;
                    // The draw lies within the epoch, so it has a position.
                    let first = self.interleave.position(run.source, draw).unwrap_or(u64::MAX);
                    found.push((first, run.source, pass, run.lane, window));
                });
            });
            found.sort_unstable_by_key(|(first, ..)| *first);
            for (_, source, pass, lane, window) in found {
                if seen.insert((source, pass, lane, window.number)) {
                    uses.push(self.window_use(source, pass, lane, &window, step));
                }
            }
        }
        uses
    }

    /// See [`Order::take_order`](super::Order::take_order).
    pub(super) fn take_order(&self, window: &WindowUse, group: u32) -> Option<TakenRows> {
        let layout = self.sources.get(window.source as usize)?;
        layout.take_order(&self.recent, window.source_epoch, (u64::from(window.lane), window.window), group)
    }

    /// Bytes that the plan holds now, without the manifests: orders of windows are kept as steps are requested, at most
    /// 4 MiB of small ones and 64 MiB of large ones, whose row groups were read.
    pub fn memory(&self) -> usize {
        size_of::<Self>() + self.recent.memory() + self.sources.iter().map(Layout::memory).sum::<usize>()
    }

    fn window_use(&self, source: usize, pass: u64, lane: u64, window: &Window, last_step: u64) -> WindowUse {
        WindowUse {
            source: source as u32,
            source_epoch: pass,
            lane: lane as u32,
            window: window.number,
            groups: self.sources[source].groups(window).to_vec(),
            last_step,
        }
    }

    /// Positions that `step` delivers for the first time.
    pub(super) fn positions(&self, step: u64) -> Range<u64> {
        self.cuts.positions(step)
    }

    /// The rows that this rank delivers again in `step` to fill its batch: their start in the list of all repeated
    /// rows, and their number. The list begins at the start of the epoch, and wraps around to it.
    fn filling(&self, step: u64, share: Share) -> (u64, u64) {
        let real = length(&self.positions(step));
        if real == 0 || !matches!(self.spec.tail, Tail::Repeat | Tail::Short) {
            return (0, 0);
        }
        let (size, part) = (share.part(self.cuts.places(step, share)), self.cuts.own(step, share));
        let start = size.start - part.start;
        (start, size.end - part.end - start)
    }

    /// Positions from the start of the epoch that this rank delivers again, to fill its batch.
    fn repeated(&self, step: u64, share: Share) -> impl ExactSizeIterator<Item = u64> + use<> {
        let ((start, count), rows) = (self.filling(step, share), self.rows().max(1));
        // At most the rows of a batch, which are at most 2^31.
        (0..count as usize).map(move |at| (start + at as u64) % rows)
    }

    /// The positions that this rank delivers [again](Self::repeated), each once, in that order.
    pub(super) fn repeats(&self, step: u64, share: Share) -> [Range<u64>; 2] {
        let ((start, count), rows) = (self.filling(step, share), self.rows());
        if count == 0 {
            return [0..0, 0..0];
        }
        let start = start % rows;
        if count >= rows {
            return [start..rows, 0..start];
        }
        [start..(start + count).min(rows), 0..(start + count).saturating_sub(rows)]
    }

    /// Calls `visit` with the rows that the positions `range` take from each lane and source.
    pub(super) fn runs_of(&self, range: &Range<u64>, visit: &mut impl FnMut(Run)) {
        if range.is_empty() {
            return;
        }
        for source in 0..self.sources.len() {
            let draws = self.interleave.count(source, range.start)..self.interleave.count(source, range.end);
            for lane in 0..self.lanes {
                let rows = self.along(source, draws.start, lane)..self.along(source, draws.end, lane);
                if !rows.is_empty() {
                    visit(Run { source, lane, rows });
                }
            }
        }
    }

    /// Source, pass, lane and row along the lane of a position.
    fn locate(&self, position: u64) -> (usize, u64, u64, u64) {
        let source = self.interleave.source(position);
        let draw = self.interleave.count(source, position);
        let rows = self.sources[source].rows();
        (source, draw / rows, draw % rows % self.lanes, draw % rows / self.lanes)
    }

    /// The draws of `source` that fall into `step`.
    fn draws(&self, source: usize, step: u64) -> Range<u64> {
        let positions = self.positions(step);
        self.interleave.count(source, positions.start)..self.interleave.count(source, positions.end)
    }

    /// Counts a source's draws `0..end` from lanes below `lane`, over all passes.
    fn below(&self, source: usize, end: u64, lane: u64) -> u64 {
        let layout = &self.sources[source];
        let rows = layout.rows().max(1);
        end / rows * layout.below(rows, lane) + layout.below(end % rows, lane)
    }

    /// Counts a source's draws `0..end` from `lane`, over all passes.
    pub(super) fn along(&self, source: usize, end: u64, lane: u64) -> u64 {
        let layout = &self.sources[source];
        let rows = layout.rows().max(1);
        end / rows * layout.along(rows, lane) + layout.along(end % rows, lane)
    }

    /// Calls `visit` with the rows that `step` takes from each lane and source, cut to this rank's slice, in order.
    pub(super) fn runs(&self, step: u64, share: Share, mut visit: impl FnMut(Run)) {
        let slice = self.cuts.own(step, share);
        if slice.is_empty() {
            return;
        }
        let draws: Vec<_> = (0..self.sources.len()).map(|source| self.draws(source, step)).collect();
        // A rank has a few of many lanes: those before it are not walked.
        let (mut first, mut beyond) = (0, self.lanes);
        while first + 1 < beyond {
            let lane = first.midpoint(beyond);
            if self.before(&draws, lane) <= slice.start { first = lane } else { beyond = lane }
        }
        let mut at = self.before(&draws, first);
        for lane in first..self.lanes {
            if at >= slice.end {
                return;
            }
            for (source, draws) in draws.iter().enumerate() {
                let rows = self.along(source, draws.start, lane)..self.along(source, draws.end, lane);
                let cut = slice.start.clamp(at, at + length(&rows))..slice.end.clamp(at, at + length(&rows));
                if !cut.is_empty() {
                    visit(Run { source, lane, rows: rows.start + (cut.start - at)..rows.start + (cut.end - at) });
                }
                at += length(&rows);
            }
        }
    }

    /// Calls `visit` with pass, window and rows along the lane for each window that a run touches.
    pub(super) fn each_window(&self, run: &Run, mut visit: impl FnMut(u64, Window, Range<u64>)) {
        let source = &self.sources[run.source];
        let len = source.lane_rows(run.lane).max(1);
        let mut at = run.rows.start;
        while at < run.rows.end {
            let (pass, row) = (at / len, at % len);
            let window = source.window_at(run.lane, row);
            let end = (row + (run.rows.end - at)).min(window.rows.end);
            at += end - row;
            visit(pass, window, row..end);
        }
    }

    /// The last step in which `share` takes rows of a window from which it takes rows in `step`.
    fn last_step(&self, step: u64, share: Share, run: &Run, pass: u64, window: &Window) -> u64 {
        let layout = &self.sources[run.source];
        let before = pass * layout.lane_rows(run.lane);
        let drawn = self.along(run.source, self.interleave.count(run.source, self.rows()), run.lane);
        let rows = before + window.rows.start..(before + window.rows.end).min(drawn);
        // The last row of the window that is drawn at all: first its draw, then the step of that draw.
        let row = rows.end - 1 - before;
        let draw = pass * layout.rows() + row * self.lanes + run.lane;
        let Ok(position) = self.interleave.position(run.source, draw) else { return step };
        let mut last = self.cuts.step_of(position);
        // A rank whose slice ends within the lane may miss the last rows; stepping back finds its own last ones soon,
        // since the slices shift by only a few rows from step to step.
        while last > step && !self.takes(last, share, run.source, run.lane, &rows) {
            last -= 1;
        }
        last
    }

    /// Returns true if `share` takes any of `rows` of a lane, counted over all passes, in `step`.
    fn takes(&self, step: u64, share: Share, source: usize, lane: u64, rows: &Range<u64>) -> bool {
        let slice = self.cuts.own(step, share);
        let (at, taken) = self.place(step, source, lane);
        let (start, end) = (rows.start.max(taken.start), rows.end.min(taken.end));
        start < end && at + (start - taken.start) < slice.end && at + (end - taken.start) > slice.start
    }

    /// The start of a source's lane in the list of `step`, and its rows, counted over all passes.
    pub(super) fn place(&self, step: u64, source: usize, lane: u64) -> (u64, Range<u64>) {
        let draws: Vec<_> = (0..self.sources.len()).map(|source| self.draws(source, step)).collect();
        let taken =
            |other: usize| self.along(other, draws[other].start, lane)..self.along(other, draws[other].end, lane);
        let at = self.before(&draws, lane) + (0..source).map(|other| length(&taken(other))).sum::<u64>();
        (at, taken(source))
    }

    /// Counts the `draws` of all sources from lanes below `lane`.
    fn before(&self, draws: &[Range<u64>], lane: u64) -> u64 {
        let of = |(source, draws): (usize, &Range<u64>)| {
            self.below(source, draws.end, lane) - self.below(source, draws.start, lane)
        };
        draws.iter().enumerate().map(of).sum()
    }
}
