//! One step: waits for its row groups and gathers its rows into a batch.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::cause::Cause;
use super::groups::Slot;
use super::job::{Job, closed};
use super::reader_state::Work;
use super::trail::Trail;
use super::window::ByName;
use crate::codec::{RowGroupBlock, Rows};
use crate::error::{Error, Result};
use crate::memory::Reservation;
use crate::plan::{Order, RowRef, Share, random};
use crate::tensor::Batch;

/// A row group that is a larger part of the budget is not lent to batches.
const LENT_PART: usize = 8;

/// A batch with its way, or the reason that there is none.
pub(super) type Made = Result<(Batch, Trail), Failure>;

/// An error, or the row group that has it: a row group serves several steps, but its error is reported once.
#[derive(Debug)]
pub(super) enum Failure {
    Step(Error),
    Group(Arc<Slot>),
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Step(error) => error,
            Failure::Group(slot) => slot.error(),
        }
    }
}

pub(super) async fn assemble(
    job: &Arc<Job>,
    plan: Arc<dyn Order>,
    share: Share,
    work: Work,
    reservation: Reservation,
) -> Made {
    let started = Instant::now();
    let mut last = None;
    for window in &*work.windows {
        let way = window.ready().await.map_err(Failure::Group)?;
        last = [last, way].into_iter().flatten().max_by_key(|way| way.loaded);
    }
    job.counters.batch.waited(started.elapsed());
    let ready = Instant::now();
    // `work` moves along: the row groups stay in memory until the batch is made.
    job.on_cpu(move |job| {
        let images = AtomicU64::new(0);
        let batch = gather(job, &*plan, share, &work, reservation, &images);
        drop(work);
        let transform = Duration::from_nanos(images.into_inner());
        Ok((batch?, Trail { before: Cause::Queue, last, ready, transform, made: Instant::now() }))
    })
    .await
    .map_err(Failure::Step)
}

fn gather(
    job: &Job,
    plan: &dyn Order,
    share: Share,
    work: &Work,
    reservation: Reservation,
    images: &AtomicU64,
) -> Result<Batch> {
    let started = Instant::now();
    let step = plan.step(work.step, share);
    let Picked { rows, cells, names, lent } = pick(job, &step.rows, &ByName::new(&work.windows))?;
    let source = |pick: (u32, u32)| {
        let (source, group) = names[pick.0 as usize];
        (&job.sources[source as usize], group as usize, u64::from(pick.1))
    };
    let row_id = |pick| {
        let (source, group, row) = source(pick);
        source.row_base + source.dataset.row_id(group, row)
    };
    let stored_row = |pick| {
        let (source, group, row) = source(pick);
        source.dataset.stored_row(group, row)
    };
    let (seed, epoch) = (plan.seed(), plan.epoch());
    // A delivered batch keeps its row group, which no budget counts then.
    let most_lent = job.groups.budget() / LENT_PART;
    let request = Rows {
        epoch,
        step: step.step,
        cells: &cells,
        rows: &rows,
        size: step.size,
        masked: plan.masked() || job.sources[0].masked,
        random: &|pick| random(seed, epoch, row_id(pick)),
        row_ids: &row_id,
        stored_rows: &stored_row,
        bad_rows: job.bad_rows,
        max_bytes: job.groups.budget().saturating_add(job.batches.budget()),
        lent: Some(&*lent).filter(|_| job.lends && cells.iter().all(|cell| cell.memory() <= most_lent)),
        images: Some(images),
    };
    let (batch, bad) = job.sources[0].maker.assemble(&request, reservation)?;
    if !bad.is_empty() {
        job.ledger.record((batch.epoch, batch.step), bad);
    }
    job.counters.copied.fetch_add(job.sources[0].maker.copied_bytes(&batch) as u64, Ordering::Relaxed);
    job.counters.batch.done(batch.bytes() as u64, started.elapsed());
    Ok(batch)
}

/// Rows and their row groups.
struct Picked {
    /// Index into the row groups, and row within.
    rows: Vec<(u32, u32)>,
    cells: Vec<Arc<RowGroupBlock>>,
    names: Vec<(u32, u32)>,
    /// The memory of the row groups.
    lent: Vec<Arc<Reservation>>,
}

/// Finds `rows` in the row groups of a step's windows, and leaves out the other row groups, which may be thousands.
fn pick(job: &Job, rows: &[RowRef], found: &ByName<'_>) -> Result<Picked> {
    // The new number of each row group, counted from 1, and the old numbers of those that are needed.
    let (mut numbers, mut needed) = (vec![0_u32; found.len()], Vec::new());
    let mut picked = Vec::with_capacity(rows.len());
    // Rows of one row group mostly come together.
    for rows in rows.chunk_by(|before, row| (before.source, before.group) == (row.source, row.group)) {
        let (source, group) = (rows[0].source, rows[0].group);
        let at = found.find((source, group)).ok_or_else(closed)?;
        if numbers[at] == 0 {
            needed.push(at);
            numbers[at] = needed.len() as u32;
        }
        let (number, dataset) = (numbers[at] - 1, &job.sources[source as usize].dataset);
        picked.extend(rows.iter().map(|row| (number, dataset.first_row(group as usize, row.row))));
    }
    if rows.is_empty() {
        // They still define the columns.
        needed.extend(0..found.len());
    }
    let (mut cells, mut names) = (Vec::with_capacity(needed.len()), Vec::with_capacity(needed.len()));
    let mut lent = Vec::new();
    for number in needed {
        let slot = found.slot(number).ok_or_else(closed)?;
        cells.push(Arc::clone(slot.cells().ok_or_else(closed)?));
        if job.lends {
            lent.push(Arc::clone(slot.reservation().ok_or_else(closed)?));
        }
        names.push(slot.name());
    }
    Ok(Picked { rows: picked, cells, names, lent })
}
