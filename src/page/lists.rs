//! The lists of a column, and some of them.

use arrow::buffer::BooleanBuffer;

/// The values of a list column, with the start of each list and the end.
#[derive(Debug)]
pub(crate) struct Lists<T> {
    pub(crate) offsets: Vec<i32>,
    pub(crate) values: Vec<T>,
}

impl<T> Lists<T> {
    /// The lists whose bit is set, without spare capacity; `None` unless there is a bit for each.
    pub(crate) fn keeping(mut self, kept: &BooleanBuffer) -> Option<Self>
    where
        T: Copy,
    {
        if kept.len().checked_add(1)? != self.offsets.len() {
            return None;
        }
        let (mut next, mut lists) = (0, 0);
        for (first, end) in kept.set_slices() {
            let from = usize::try_from(*self.offsets.get(first)?).ok()?;
            let to = usize::try_from(*self.offsets.get(end)?).ok()?;
            let moved = i32::try_from(from - next).ok()?;
            self.values.copy_within(from..to, next);
            next += to - from;
            for list in first..end {
                self.offsets[lists] = self.offsets[list] - moved;
                lists += 1;
            }
        }
        self.offsets.truncate(lists);
        self.offsets.push(i32::try_from(next).ok()?);
        self.offsets.shrink_to_fit();
        self.values.truncate(next);
        self.values.shrink_to_fit();
        Some(self)
    }

    /// The `rows` lists from number `skip` on, without spare capacity.
    pub(crate) fn within(mut self, skip: usize, rows: usize) -> Option<Self> {
        let offsets = self.offsets.get(skip..=skip.checked_add(rows)?)?;
        if offsets.len() == self.offsets.len() {
            return Some(self);
        }
        let (first, end) = (*offsets.first()?, *offsets.last()?);
        self.offsets = offsets.iter().map(|offset| offset - first).collect();
        self.values.truncate(usize::try_from(end).ok()?);
        self.values.drain(..usize::try_from(first).ok()?);
        self.values.shrink_to_fit();
        Some(self)
    }
}
