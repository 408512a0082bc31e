//! One step: its row groups are waited for, its rows gathered into a batch.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::feed::{Failure, Made};
use super::groups::Slot;
use super::job::{Job, closed};
use super::ledger::Entry;
use super::reader::Work;
use crate::codec::{BadRow, Cells, Rows};
use crate::error::Result;
use crate::memory::Reservation;
use crate::plan::{Order, Share, random};
use crate::tensor::Batch;

pub(super) async fn assemble(
    job: &Arc<Job>,
    plan: Arc<dyn Order>,
    share: Share,
    work: Work,
    reservation: Reservation,
) -> Made {
    let started = Instant::now();
    // Sorted by name, to find the cells of a row: its position here is their number.
    let mut slots: Vec<&Arc<Slot>> = work.windows.iter().flat_map(|window| &window.slots).collect();
    // Each window is sorted, which this sort makes use of.
    slots.sort_by_key(|slot| slot.name());
    slots.dedup_by_key(|slot| slot.name());
    let mut cells = Vec::with_capacity(slots.len());
    for slot in &slots {
        cells.push(slot.cells().await.ok_or_else(|| Failure::Group(Arc::clone(slot)))?);
    }
    let names: Vec<(u32, u32)> = slots.iter().map(|slot| slot.name()).collect();
    job.counters.batch.waited(started.elapsed());
    // `work` moves along: the row groups stay in memory until the batch is made.
    job.on_cpu(move |job| {
        let batch = gather(job, &*plan, share, work.step, &cells, &names, reservation);
        drop(work);
        batch
    })
    .await
    .map_err(Failure::Step)
}

fn gather(
    job: &Job,
    plan: &dyn Order,
    share: Share,
    step: u64,
    cells: &[Arc<Cells>],
    names: &[(u32, u32)],
    reservation: Reservation,
) -> Result<Batch> {
    let started = Instant::now();
    let step = plan.step(step, share);
    let mut rows = Vec::with_capacity(step.rows.len());
    // Rows come in runs of one row group when nothing is shuffled, so the last answer is asked first.
    let mut last = ((u32::MAX, u32::MAX), 0);
    for row in &step.rows {
        let key = (row.source, row.group);
        if last.0 != key {
            last = (key, names.binary_search(&key).map_err(|_| closed())? as u32);
        }
        let source = &job.sources[row.source as usize];
        rows.push((last.1, source.dataset.first_row(row.group as usize, row.row)));
    }
    let (cells, names) = needed(&mut rows, cells, names);
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
    let request = Rows {
        epoch,
        step: step.step,
        cells: &cells,
        rows: &rows,
        size: step.size,
        masked: plan.masked(),
        random: &|pick| random(seed, epoch, row_id(pick)),
        row_ids: &row_id,
        stored_rows: &stored_row,
        bad_rows: job.bad_rows,
        max_bytes: job.groups.budget().saturating_add(job.batches.budget()),
    };
    let (batch, bad) = job.sources[0].maker.assemble(&request, reservation)?;
    if !bad.is_empty() {
        job.ledger.record(bad.into_iter().map(|bad| entry(&batch, bad)));
    }
    job.counters.copied.fetch_add(job.sources[0].maker.copied_bytes(&batch) as u64, Ordering::Relaxed);
    job.counters.batch.done(batch.tensor_bytes() as u64, started.elapsed());
    Ok(batch)
}

/// The cells that `rows` are taken from, and their names, without the others of the same windows, which may be thousands; rows name
/// them by their new numbers.
fn needed(rows: &mut [(u32, u32)], cells: &[Arc<Cells>], names: &[(u32, u32)]) -> (Vec<Arc<Cells>>, Vec<(u32, u32)>) {
    if rows.is_empty() {
        return (cells.to_vec(), names.to_vec());
    }
    let mut numbers: Vec<u32> = rows.iter().map(|(cell, _)| *cell).collect();
    numbers.sort_unstable();
    numbers.dedup();
    for (cell, _) in rows {
        *cell = numbers.binary_search(cell).unwrap_or_default() as u32;
    }
    let kept = || numbers.iter().map(|number| *number as usize);
    (kept().map(|number| Arc::clone(&cells[number])).collect(), kept().map(|number| names[number]).collect())
}

fn entry(batch: &Batch, bad: BadRow) -> Entry {
    Entry {
        epoch: batch.epoch,
        step: batch.step,
        row_id: bad.row_id,
        column: bad.column.to_string(),
        error: bad.error.chain(),
        replaced_by: bad.replaced_by,
    }
}
