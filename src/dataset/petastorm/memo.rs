//! The memo of a pickle: values by number. Picklers number them one after the other, hostile ones in any way.

use std::collections::HashMap;

use super::arena::Id;

/// Numbers up to this far beyond those known so far are kept in a vector.
const GAP: usize = 256;

/// No value.
const NONE: Id = Id::MAX;

/// Bytes that an entry takes: in the vector, and beyond it.
const DENSE: u64 = 8;
const SPARSE: u64 = 128;

#[derive(Debug, Default)]
pub(super) struct Memo {
    dense: Vec<Id>,
    sparse: HashMap<u32, Id>,
    count: u32,
}

impl Memo {
    /// Numbers that have a value.
    pub(super) fn len(&self) -> u32 {
        self.count
    }

    pub(super) fn get(&self, number: u32) -> Option<Id> {
        let dense = self.dense.get(number as usize).copied().filter(|&id| id != NONE);
        dense.or_else(|| self.sparse.get(&number).copied())
    }

    /// Cost of [`put`](Self::put) with this number.
    pub(super) fn cost(&self, number: u32) -> u64 {
        match (number as usize).checked_sub(self.dense.len()) {
            None => 0,
            Some(gap) if gap < GAP => (gap as u64 + 1) * DENSE,
            Some(_) => SPARSE,
        }
    }

    pub(super) fn put(&mut self, number: u32, id: Id) {
        if self.get(number).is_none() {
            self.count += 1;
        }
        let index = number as usize;
        if index >= self.dense.len() + GAP {
            self.sparse.insert(number, id);
            return;
        }
        if index >= self.dense.len() {
            self.dense.resize(index + 1, NONE);
        }
        if let Some(entry) = self.dense.get_mut(index) {
            *entry = id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_value_of_a_number_counts() {
        let mut memo = Memo::default();
        memo.put(1000, 1);
        memo.put(3, 2);
        assert_eq!((memo.len(), memo.get(1000), memo.get(3), memo.get(2)), (2, Some(1), Some(2), None));
        for number in 0..1000 {
            memo.put(number, number + 10);
        }
        assert_eq!((memo.len(), memo.get(1000), memo.get(3)), (1001, Some(1), Some(13)));
        memo.put(1000, 7);
        assert_eq!((memo.len(), memo.get(1000)), (1001, Some(7)));
        memo.put(u32::MAX, 8);
        assert_eq!((memo.len(), memo.get(u32::MAX)), (1002, Some(8)));
    }
}
