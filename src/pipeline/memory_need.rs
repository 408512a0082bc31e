//! The memory that a plan needs, and whether a budget holds it.

use super::job::Source;
use crate::error::{Error, Result};
use crate::plan::Plan;

/// The minimum memory in which a loader runs, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Row groups that are live at once, fetched and decoded, and the lists of rows taken from them.
    pub row_groups: u64,
    /// Batches not yet delivered.
    pub batches: u64,
}

impl MemoryNeed {
    /// Total bytes.
    pub fn total(&self) -> u64 {
        self.row_groups.saturating_add(self.batches)
    }
}

/// Bytes of row groups.
#[derive(Debug)]
pub(super) struct Weights {
    /// Of each one of each source, while its rows are kept.
    held: Vec<Vec<u64>>,
    largest: u64,
}

impl Weights {
    pub(super) fn of(sources: &[Source]) -> Self {
        let mut largest = 0;
        let of_source = |source: &Source| {
            let groups = source.dataset.manifest().groups.iter().enumerate();
            let weigh = groups.map(|(number, group)| {
                let cost = source.cost(number);
                largest = if group.selected > 0 { cost.total().max(largest) } else { largest };
                cost.held
            });
            weigh.collect()
        };
        let held = sources.iter().map(of_source).collect();
        Self { held, largest }
    }

    /// Bytes of a row group while its rows are kept.
    pub(super) fn held(&self, source: u32, group: u32) -> u64 {
        self.held[source as usize][group as usize]
    }

    /// Bytes of the largest selected row group on its way in.
    pub(super) fn largest(&self) -> u64 {
        self.largest
    }
}

/// Refuses a budget that does not hold `need`, that of `plan`.
pub(super) fn within_budget(need: MemoryNeed, plan: &Plan, budget: usize) -> Result<MemoryNeed> {
    let asked = need.total();
    if asked <= budget as u64 {
        return Ok(need);
    }
    Err(Error::limit(
        format!(
            "one step of epoch {}: {} MB of row groups over {} lanes and {} MB of batches,",
            plan.epoch(),
            need.row_groups >> 20,
            plan.lanes(),
            need.batches >> 20
        ),
        asked,
        budget as u64,
        "memory_budget (or lower lanes, window_rows, batch_size or prefetch)",
    ))
}
