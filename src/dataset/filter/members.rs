//! The members of a list as a filter tests them: sorted, for bounds of values; by hash, for the rows of a long list.

use std::borrow::Borrow;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::Arc;

/// Members of a list that is searched by halves; in a longer one each step waits for memory.
const SHORT: usize = 16;

/// The members of a list: ascending, each once.
#[derive(Debug, Clone)]
pub(super) struct Members<V> {
    sorted: Vec<V>,
    /// Of a long list.
    table: Option<Arc<Table>>,
}

/// A member, or a value that may be one.
pub(super) trait Member: PartialOrd {
    /// A hash that is the same for equal values. It has a key of its own for each list, since a filter may come from somebody else.
    fn hashed(&self, state: &RandomState) -> u64;
}

impl Member for i128 {
    fn hashed(&self, state: &RandomState) -> u64 {
        // Nearly all are of a column of 64 bits or fewer.
        match i64::try_from(*self) {
            Ok(value) => state.hash_one(value),
            Err(_) => state.hash_one(self),
        }
    }
}

impl Member for f64 {
    fn hashed(&self, state: &RandomState) -> u64 {
        // Both zeros are equal; a NaN equals nothing, whatever its hash is.
        let value = if *self == 0.0 { 0.0 } else { *self };
        state.hash_one(value.to_bits())
    }
}

impl Member for [u8] {
    fn hashed(&self, state: &RandomState) -> u64 {
        state.hash_one(self)
    }
}

impl Member for Vec<u8> {
    fn hashed(&self, state: &RandomState) -> u64 {
        self.as_slice().hashed(state)
    }
}

impl<V: Member> Members<V> {
    /// Literals are never NaN, so they have an order.
    pub(super) fn new(mut values: Vec<V>) -> Self {
        values.sort_unstable_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
        values.dedup_by(|a, b| a == b);
        let table = (values.len() > SHORT).then(|| Table::new(&values)).flatten();
        Self { sorted: values, table: table.map(Arc::new) }
    }

    /// Returns true if `value` is a member.
    pub(super) fn contains<Q: Member + ?Sized>(&self, value: &Q) -> bool
    where
        V: Borrow<Q>,
    {
        match &self.table {
            Some(table) => table.finds(value.hashed(&table.state), |member| self.sorted[member].borrow() == value),
            None => {
                let at = self.sorted.partition_point(|member| member.borrow() < value);
                self.sorted.get(at).is_some_and(|member| member.borrow() == value)
            }
        }
    }
}

impl<V> Deref for Members<V> {
    type Target = [V];

    fn deref(&self) -> &[V] {
        &self.sorted
    }
}

impl<V: PartialEq> PartialEq for Members<V> {
    fn eq(&self, other: &Self) -> bool {
        self.sorted == other.sorted
    }
}

/// The numbers of members by hash: open addressing, at most half full.
#[derive(Debug)]
struct Table {
    state: RandomState,
    slots: Vec<Slot>,
}

/// A part of a hash, so that few values are compared, and the number of its member, counted from 1; 0 is free.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    hash: u32,
    member: u32,
}

impl Table {
    /// `None` for more members than a slot can number.
    fn new<V: Member>(members: &[V]) -> Option<Self> {
        u32::try_from(members.len()).ok()?;
        let mut table =
            Self { state: RandomState::new(), slots: vec![Slot::default(); 2 * members.len().next_power_of_two()] };
        for (number, member) in (1..).zip(members) {
            let hash = member.hashed(&table.state);
            if let Some(free) = table.from(hash).find(|at| table.slots[*at].member == 0) {
                table.slots[free] = Slot { hash: upper(hash), member: number };
            }
        }
        Some(table)
    }

    /// The slots in which a member of this hash may be, in order.
    fn from(&self, hash: u64) -> impl Iterator<Item = usize> + use<> {
        let mask = self.slots.len() - 1;
        // The lower bits choose the slot, the upper ones are kept in it.
        let first = hash as usize;
        (0..=mask).map(move |step| first.wrapping_add(step) & mask)
    }

    fn finds(&self, hash: u64, is: impl Fn(usize) -> bool) -> bool {
        let slots = self.from(hash).map(|at| self.slots[at]).take_while(|slot| slot.member != 0);
        slots.filter(|slot| slot.hash == upper(hash)).any(|slot| is(slot.member as usize - 1))
    }
}

fn upper(hash: u64) -> u32 {
    (hash >> 32) as u32
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::cmp::Ordering;

    use super::*;

    #[test]
    fn long_lists_have_the_members_of_the_sorted_list() {
        for count in [0, 1, 16, 17, 18, 1000] {
            let wholes: Vec<i128> =
                (0..count).map(|value| (value * 37) % 1009 - 500).chain([i128::MIN, i128::MAX]).collect();
            let members = Members::new(wholes.iter().copied().chain(wholes.iter().copied()).collect());
            assert_eq!((members.len(), members.table.is_some()), (wholes.len(), wholes.len() > SHORT));
            assert!(members.is_sorted() && wholes.iter().all(|value| members.contains(value)));
            for value in -600..600_i128 {
                assert_eq!(members.contains(&value), wholes.contains(&value), "{value} of {count}");
            }
            let texts = Members::new(wholes.iter().map(|value| value.to_string().into_bytes()).collect());
            assert!(wholes.iter().all(|value| texts.contains(value.to_string().as_bytes())));
            assert!(!texts.contains(b"".as_slice()) && !texts.contains(b"x".as_slice()));
        }
    }

    #[test]
    fn floats_are_members_as_ieee_754_compares_them() {
        for count in [1, 100] {
            let members = Members::new((0..count).map(f64::from).chain([-0.0, 0.1, f64::INFINITY]).collect());
            assert!([0.0, -0.0, 0.1, f64::INFINITY].iter().all(|value| members.contains(value)));
            assert!([f64::NAN, -f64::NAN, f64::NEG_INFINITY, 0.5].iter().all(|value| !members.contains(value)));
        }
    }

    /// A number that counts comparisons.
    #[derive(Debug)]
    struct Counted<'a>(u32, &'a Cell<usize>);

    impl Counted<'_> {
        fn counts(&self) {
            self.1.set(self.1.get() + 1);
        }
    }

    impl PartialEq for Counted<'_> {
        fn eq(&self, other: &Self) -> bool {
            self.counts();
            self.0 == other.0
        }
    }

    impl PartialOrd for Counted<'_> {
        fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
            self.counts();
            self.0.partial_cmp(&other.0)
        }
    }

    impl Member for Counted<'_> {
        fn hashed(&self, state: &RandomState) -> u64 {
            state.hash_one(self.0)
        }
    }

    #[test]
    fn of_a_long_list_a_value_is_compared_with_one_member() {
        let comparisons = Cell::new(0);
        let members = Members::new((0..10_000).map(|value| Counted(3 * value, &comparisons)).collect());
        comparisons.set(0);
        let found = (0..30_000).filter(|value| members.contains(&Counted(*value, &comparisons))).count();
        assert_eq!(found, 10_000);
        // Those of other values with the same part of their hash are rare.
        assert!(comparisons.get() < 10_100, "{}", comparisons.get());
    }
}
