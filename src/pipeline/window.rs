//! The row groups of one window of a lane, and those of all windows of a step by name.
//!
//! A step of few rows has windows of hundreds of row groups, from which it takes next to nothing: work for each of them
//! would cost more than its rows. So a window is waited for once, and a step touches only those that it takes rows
//! from.

use std::sync::{Arc, OnceLock};

use super::groups::Slot;
use super::trail::Way;

/// The row groups of one window.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) slots: Vec<Arc<Slot>>,
    /// Their names, stored contiguously.
    names: Vec<(u32, u32)>,
    /// The way of the one that was there last; set once all of them are there.
    last: OnceLock<Option<Way>>,
}

impl Window {
    pub(super) fn new(slots: Vec<Arc<Slot>>) -> Self {
        let names = slots.iter().map(|slot| slot.name()).collect();
        Self { slots, names, last: OnceLock::new() }
    }

    /// Returns true if a row group failed, so that no step gets all of its rows from it.
    pub(super) fn has_failed(&self) -> bool {
        self.slots.iter().any(|slot| slot.has_failed())
    }

    /// Waits until all row groups are there; returns the way of the last, or the first that failed.
    pub(super) async fn ready(&self) -> Result<Option<Way>, Arc<Slot>> {
        // A thread that sees it set sees the row groups too.
        if let Some(last) = self.last.get() {
            return Ok(last.clone());
        }
        for slot in &self.slots {
            if !slot.is_loaded().await {
                return Err(Arc::clone(slot));
            }
        }
        let ways = || self.slots.iter().filter_map(|slot| slot.way());
        Ok(self.last.get_or_init(|| ways().max_by_key(|way| way.loaded)).clone())
    }
}

/// The row groups of some windows by name.
#[derive(Debug)]
pub(super) struct ByName<'a> {
    /// By number; one that two windows share appears twice.
    names: Vec<(u32, u32)>,
    windows: &'a [Arc<Window>],
    /// The number after the last one of each window.
    ends: Vec<usize>,
    /// A hash table of numbers counted from 1; 0 for an empty entry.
    table: Vec<u32>,
}

impl<'a> ByName<'a> {
    pub(super) fn new(windows: &'a [Arc<Window>]) -> Self {
        let mut names = Vec::with_capacity(windows.iter().map(|window| window.names.len()).sum());
        let add = |window: &Arc<Window>| {
            names.extend_from_slice(&window.names);
            names.len()
        };
        let ends = windows.iter().map(add).collect();
        let mut found = Self { table: vec![0; (2 * names.len()).next_power_of_two()], names, windows, ends };
        for at in 0..found.names.len() {
            let mut place = found.home(found.names[at]);
            while found.table[place] > 0 {
                place = found.after(place);
            }
            found.table[place] = at as u32 + 1;
        }
        found
    }

    /// The count of numbers.
    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    /// Start of the search for a name.
    fn home(&self, (source, group): (u32, u32)) -> usize {
        let mixed = (u64::from(source) << 32 | u64::from(group)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as usize & (self.table.len() - 1)
    }

    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.table.len() - 1)
    }

    /// The number of a row group: the same for equal names.
    pub(super) fn find(&self, name: (u32, u32)) -> Option<usize> {
        let mut place = self.home(name);
        loop {
            let number = (self.table[place] as usize).checked_sub(1)?;
            if self.names[number] == name {
                return Some(number);
            }
            place = self.after(place);
        }
    }

    /// The row group with a number.
    pub(super) fn slot(&self, number: usize) -> Option<&'a Arc<Slot>> {
        let window = self.ends.partition_point(|end| *end <= number);
        let first = window.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.windows.get(window)?.slots.get(number - first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_groups_are_found_by_name() {
        let slots = |groups: std::ops::Range<u32>| groups.map(|group| Slot::new(group % 3, group)).collect();
        let windows = [slots(0..100), slots(0..0), slots(90..300)].map(|slots| Arc::new(Window::new(slots)));
        let found = ByName::new(&windows);
        assert_eq!(found.len(), 310);
        for group in 0..300 {
            let name = (group % 3, group);
            let number = found.find(name).unwrap();
            assert_eq!(found.slot(number).unwrap().name(), name);
        }
        assert_eq!((found.find((1, 0)), found.find((0, 300))), (None, None));
        assert!(found.slot(310).is_none());
        assert_eq!(ByName::new(&[]).find((0, 0)), None);
    }

    #[tokio::test]
    async fn a_window_with_a_failed_row_group_says_which() {
        let window = Window::new(vec![Slot::new(0, 1), Slot::new(0, 2)]);
        for slot in &window.slots {
            slot.finish(Err(super::super::job::closed()));
        }
        assert_eq!(window.ready().await.unwrap_err().name(), (0, 1));
        assert_eq!(window.ready().await.unwrap_err().name(), (0, 1));
    }
}
