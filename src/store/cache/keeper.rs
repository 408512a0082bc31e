//! The decision which blocks are kept and which are evicted, by arithmetic: no disk, no clock.
//!
//! Every block has a time at which it is needed next, on a scale that all plans of the process share. The block that is needed last is
//! evicted first (Belady), and a block that is needed later than everything kept is not stored. Within one job no policy can have more hits
//! than the share of the data that fits; this one avoids the loss of blocks that are about to be read, which least recently used suffers.
//! Among several jobs it has more hits.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap};
use std::ops::Range;

use super::asked::{Again, Asked};
use super::block::{Block, ObjectKey};

/// Blocks of one object that are looked at for one that covers a range.
const LOOKS: usize = 64;

/// The time at which a block is needed: the greatest is evicted first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Due {
    /// The end of a file, which each opening reads: small, and the last to go.
    Opening(Reverse<u64>),
    /// An open plan needs it then.
    At(u64),
    /// Other hosts ask for it here, its home, and the plan of one of them needs it then, in milliseconds of this process.
    HomeAt(u64),
    /// Other hosts ask for it here, its home: the one asked for longest ago goes first.
    Home(Reverse<u64>),
    /// No open plan is known to need it: the one used longest ago goes first.
    Unknown(Reverse<u64>),
    /// Another host keeps it: the first to go, and taken in only where there is room.
    Spare,
}

impl Due {
    /// Before any block is needed: whatever is in the way goes.
    pub(super) const SOONEST: Self = Self::Opening(Reverse(u64::MAX));
}

#[derive(Debug, Clone, Copy)]
struct Held {
    /// Bytes of its file.
    bytes: u64,
    due: Due,
    /// True if it is there; false if only room is taken for it.
    is_there: bool,
}

/// The blocks of one cache.
#[derive(Debug, Default)]
pub(super) struct Keeper {
    blocks: HashMap<Block, Held>,
    objects: HashMap<ObjectKey, BTreeSet<(u64, u64)>>,
    /// Blocks that only have room.
    awaited: BTreeSet<Block>,
    /// By due time, the greatest first; with entries that are out of date.
    heap: BinaryHeap<(Due, Block)>,
    used: u64,
    /// Counts uses, so that the last one is known.
    uses: u64,
    /// What other hosts have said when they asked for blocks.
    asked: Asked,
}

impl Keeper {
    /// Bytes of all blocks, those that room is taken for included.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Number of blocks.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// All blocks, true for those that are there, and the bytes of their files.
    pub(super) fn blocks(&self) -> impl Iterator<Item = (&Block, bool, u64)> {
        self.blocks.iter().map(|(block, held)| (block, held.is_there, held.bytes))
    }

    /// Bytes of the blocks that stay, for `others` or as the ends of files.
    pub(super) fn taken(&self, others: impl Fn(&Block) -> bool) -> u64 {
        let stays = |block: &Block, due: Due| match due {
            Due::Opening(_) | Due::HomeAt(_) | Due::Home(_) => true,
            Due::At(_) => others(block),
            Due::Unknown(_) | Due::Spare => false,
        };
        let taken = self.blocks.iter().filter(|(block, held)| stays(block, held.due));
        taken.map(|(_, held)| held.bytes).fold(0, u64::saturating_add)
    }

    /// Blocks that only have room.
    pub(super) fn awaited(&self) -> Vec<Block> {
        self.awaited.iter().copied().collect()
    }

    /// Returns true if `block` is here, or has room.
    pub(super) fn has(&self, block: &Block) -> bool {
        self.blocks.contains_key(block)
    }

    /// Time at which `block` is needed.
    pub(super) fn due(&self, block: &Block) -> Option<Due> {
        self.blocks.get(block).map(|held| held.due)
    }

    /// The time at which `block`, of which this host is the home, is needed after a reader has asked for it `now`.
    pub(super) fn asked(&mut self, block: &Block, now: u64, again: Again) -> Due {
        self.asked.note(block, now, again);
        self.asked.soonest(block, now).map_or_else(|| Due::Home(self.tick()), Due::HomeAt)
    }

    /// Empties it, and returns what it had. What other hosts have asked for is still known.
    pub(super) fn emptied(&mut self) -> Self {
        let (asked, uses) = (std::mem::take(&mut self.asked), self.uses);
        std::mem::replace(self, Self { asked, uses, ..Self::default() })
    }

    /// A number that grows with each use.
    pub(super) fn tick(&mut self) -> Reverse<u64> {
        self.uses += 1;
        Reverse(self.uses)
    }

    /// Takes in `block`.
    pub(super) fn insert(&mut self, block: Block, bytes: u64, due: Due, is_there: bool) {
        if let Some(before) = self.blocks.insert(block, Held { bytes, due, is_there }) {
            self.used = self.used.saturating_sub(before.bytes);
        }
        self.used = self.used.saturating_add(bytes);
        if is_there {
            self.awaited.remove(&block);
        } else {
            self.awaited.insert(block);
        }
        // Programs open whole objects as files; ranges are not read of them.
        if !block.is_whole() {
            self.objects.entry(block.object).or_default().insert((block.start, block.end));
        }
        self.push(due, block);
    }

    /// Says that `block`, which had room, is there.
    pub(super) fn arrived(&mut self, block: &Block) {
        self.awaited.remove(block);
        if let Some(held) = self.blocks.get_mut(block) {
            held.is_there = true;
            let due = held.due;
            // A search for room meanwhile has dropped its entry.
            self.push(due, *block);
        }
    }

    /// Says that `block` is on its way out: it has room, and is not there.
    pub(super) fn leaves(&mut self, block: &Block) {
        if let Some(held) = self.blocks.get_mut(block) {
            held.is_there = false;
            self.awaited.insert(*block);
        }
    }

    /// Forgets `block`.
    pub(super) fn remove(&mut self, block: &Block) {
        let Some(held) = self.blocks.remove(block) else { return };
        self.awaited.remove(block);
        self.used = self.used.saturating_sub(held.bytes);
        if block.is_whole() {
            return;
        }
        if let Some(ranges) = self.objects.get_mut(&block.object) {
            ranges.remove(&(block.start, block.end));
            if ranges.is_empty() {
                self.objects.remove(&block.object);
            }
        }
    }

    /// Says when `block` is needed next, if it is here.
    pub(super) fn touch(&mut self, block: &Block, due: Due) {
        if let Some(held) = self.blocks.get_mut(block)
            && held.due != due
        {
            // A copy of what another host keeps stays one, however soon it is needed here: it would push out what this host is home to.
            if held.due == Due::Spare && !matches!(due, Due::HomeAt(_) | Due::Home(_) | Due::Opening(_)) {
                return;
            }
            held.due = due;
            self.push(due, *block);
        }
    }

    /// Asks anew when each block is needed, now in milliseconds of this process.
    pub(super) fn reorder(&mut self, now: u64, mut due: impl FnMut(&Block) -> Option<Due>) {
        for (block, held) in &mut self.blocks {
            if matches!(held.due, Due::Opening(_) | Due::Spare) {
                continue;
            }
            // A block that no plan needs any more ranks by its last use.
            let last = match held.due {
                Due::HomeAt(_) => self.asked.soonest(block, now).map_or(Due::Home(Reverse(0)), Due::HomeAt),
                Due::Unknown(_) | Due::Opening(_) | Due::Home(_) | Due::Spare => held.due,
                Due::At(_) => Due::Unknown(Reverse(self.uses)),
            };
            held.due = due(block).unwrap_or(last);
        }
        self.rebuild();
    }

    fn push(&mut self, due: Due, block: Block) {
        self.heap.push((due, block));
        if self.heap.len() > 4 * self.blocks.len() + 1024 {
            self.rebuild();
        }
    }

    fn rebuild(&mut self) {
        self.heap = self.blocks.iter().map(|(block, held)| (held.due, *block)).collect();
    }

    /// The block that covers `range` of `object`, if one does that is there.
    pub(super) fn covering(&self, object: &ObjectKey, range: &Range<u64>) -> Option<Block> {
        let ranges = self.objects.get(object)?;
        let before = ranges.range(..=(range.start, u64::MAX)).rev().take(LOOKS);
        let mut blocks = before.filter_map(|(start, end)| Block::new(*object, &(*start..*end)));
        blocks.find(|block| block.covers(range) && self.blocks.get(block).is_some_and(|held| held.is_there))
    }

    /// Makes room for `bytes` within `limit`, for a block that is due at `due`: which blocks go. None if it is needed later than what
    /// would have to go for it; nothing has changed then. Blocks that are `held` stay.
    pub(super) fn make_room(
        &mut self,
        bytes: u64,
        limit: u64,
        due: Due,
        held: impl FnMut(&Block) -> bool,
    ) -> Option<Vec<Block>> {
        let going = self.choose(bytes, limit, due, held)?;
        going.iter().for_each(|block| self.remove(block));
        Some(going)
    }

    /// Returns true if [`make_room`](Self::make_room) would make it, unless blocks are held.
    pub(super) fn has_room(&mut self, bytes: u64, limit: u64, due: Due) -> bool {
        let going = self.choose(bytes, limit, due, |_| false);
        let has_room = going.is_some();
        for block in going.unwrap_or_default() {
            self.arrived(&block);
        }
        has_room
    }

    /// The blocks that go for it, taken from the heap.
    fn choose(&mut self, bytes: u64, limit: u64, due: Due, mut held: impl FnMut(&Block) -> bool) -> Option<Vec<Block>> {
        if bytes > limit {
            return None;
        }
        let (mut going, mut staying, mut free) = (Vec::new(), Vec::new(), 0_u64);
        let over = self.used.saturating_add(bytes).saturating_sub(limit);
        let mut refused = false;
        while free < over {
            let Some((at, block)) = self.heap.pop() else {
                refused = true;
                break;
            };
            let Some(kept) = self.blocks.get_mut(&block).filter(|kept| kept.due == at && kept.is_there) else {
                continue;
            };
            if at <= due {
                self.heap.push((at, block));
                refused = true;
                break;
            }
            if held(&block) {
                staying.push((at, block));
                continue;
            }
            // The same entry may be there twice.
            kept.is_there = false;
            free = free.saturating_add(kept.bytes);
            going.push(block);
        }
        self.heap.extend(staying);
        if refused {
            for block in going {
                self.arrived(&block);
            }
            return None;
        }
        Some(going)
    }
}

#[cfg(test)]
mod tests {
    use super::super::asked;
    use super::*;

    fn block(object: u8, start: u64, end: u64) -> Block {
        Block::new(ObjectKey([object; 16]), &(start..end)).unwrap()
    }

    #[test]
    fn what_is_needed_last_goes_and_what_is_needed_later_is_not_taken_in() {
        let mut keeper = Keeper::default();
        for (at, due) in [(0_u8, 50), (1, 10), (2, 90), (3, 30)] {
            keeper.insert(block(at, 0, 10), 10, Due::At(due), true);
        }
        assert_eq!(keeper.make_room(10, 40, Due::At(95), |_| false), None);
        assert_eq!(keeper.make_room(10, 40, Due::At(60), |_| false), Some(vec![block(2, 0, 10)]));
        keeper.insert(block(4, 0, 10), 10, Due::At(60), false);
        assert_eq!(keeper.used(), 40);
        let fits = |keeper: &mut Keeper, bytes, due| keeper.has_room(bytes, 40, Due::At(due));
        assert!(fits(&mut keeper, 10, 49) && !fits(&mut keeper, 10, 50) && !fits(&mut keeper, 20, 49));
        assert_eq!((keeper.len(), keeper.taken(|other| *other == block(0, 0, 10))), (4, 10), "nothing has gone");
        // A block without bytes yet is not evicted.
        assert_eq!(keeper.make_room(10, 40, Due::At(55), |_| false), None);
        keeper.arrived(&block(4, 0, 10));
        keeper.touch(&block(1, 0, 10), Due::At(70));
        assert_eq!(keeper.make_room(15, 40, Due::At(40), |_| false), Some(vec![block(1, 0, 10), block(4, 0, 10)]));
        assert_eq!((keeper.used(), keeper.len()), (20, 2));
        assert_eq!(keeper.make_room(41, 40, Due::At(0), |_| false), None);
    }

    #[test]
    fn what_is_held_stays_and_the_next_goes() {
        let mut keeper = Keeper::default();
        for number in 0..3 {
            let used = keeper.tick();
            keeper.insert(Block::whole(ObjectKey([number; 16]), 10), 10, Due::Unknown(used), true);
        }
        let whole = |number| Block::whole(ObjectKey([number; 16]), 10);
        assert_eq!(keeper.make_room(30, 30, Due::At(0), |block| *block == whole(0)), None);
        assert_eq!(keeper.make_room(10, 30, Due::At(0), |block| *block == whole(0)), Some(vec![whole(1)]));
        assert_eq!(keeper.covering(&ObjectKey([2; 16]), &(1..2)), None, "ranges are not read of files");
        assert_eq!(keeper.make_room(10, 20, Due::At(0), |_| false), Some(vec![whole(0)]));
    }

    #[test]
    fn what_no_plan_needs_goes_before_what_one_needs_and_the_ends_of_files_go_last() {
        let mut keeper = Keeper::default();
        let (first, second, opening) = (keeper.tick(), keeper.tick(), keeper.tick());
        keeper.insert(block(0, 0, 9), 10, Due::Unknown(first), true);
        keeper.insert(block(1, 0, 9), 10, Due::Unknown(second), true);
        keeper.insert(block(2, 0, 9), 10, Due::At(u64::MAX), true);
        keeper.insert(block(3, 0, 9), 10, Due::Opening(opening), true);
        let now = keeper.tick();
        keeper.touch(&block(0, 0, 9), Due::Unknown(now));
        let newer = Due::Unknown(keeper.tick());
        assert_eq!(keeper.make_room(10, 40, newer, |_| false), Some(vec![block(1, 0, 9)]), "the one used longest ago");
        assert_eq!(keeper.make_room(25, 40, newer, |_| false), None, "a plan needs the other");
        assert_eq!(keeper.make_room(30, 40, Due::At(7), |_| false), Some(vec![block(0, 0, 9), block(2, 0, 9)]));
        assert_eq!(keeper.make_room(40, 40, Due::At(7), |_| false), None);
        keeper.reorder(0, |_| None);
        assert_eq!((keeper.used(), keeper.make_room(30, 40, Due::At(0), |_| false)), (10, Some(Vec::new())));
    }

    #[test]
    fn copies_of_what_others_keep_take_free_room_alone_and_go_before_what_this_host_is_home_to() {
        let mut keeper = Keeper::default();
        for (number, due) in [(0, Due::Home(keeper.tick())), (1, Due::Spare), (2, Due::Unknown(keeper.tick()))] {
            keeper.insert(block(number, 0, 9), 10, due, true);
        }
        assert_eq!(keeper.make_room(10, 30, Due::Spare, |_| false), None);
        assert_eq!(keeper.make_room(10, 40, Due::Spare, |_| false), Some(Vec::new()), "there is room");
        keeper.touch(&block(1, 0, 9), Due::At(1));
        keeper.reorder(0, |found| (*found == block(1, 0, 9)).then_some(Due::At(1)));
        for gone in [1, 2, 0] {
            let home = Due::Home(keeper.tick());
            assert_eq!(keeper.make_room(10, 30, home, |_| false), Some(vec![block(gone, 0, 9)]));
            keeper.insert(block(10 + gone, 0, 9), 10, home, true);
        }
    }

    #[test]
    fn a_home_keeps_what_the_plans_of_other_hosts_need_soonest() {
        let mut keeper = Keeper::default();
        for (number, after) in [(0, 5), (1, 9), (2, 7)] {
            let due = keeper.asked(&block(number, 0, 9), 0, Again { job: 1, after });
            keeper.insert(block(number, 0, 9), 10, due, true);
        }
        let unknown = Due::Home(keeper.tick());
        keeper.insert(block(3, 0, 9), 10, unknown, true);
        assert_eq!(keeper.make_room(10, 40, Due::HomeAt(8), |_| false), Some(vec![block(3, 0, 9)]), "of no plan");
        assert_eq!(keeper.make_room(10, 30, Due::HomeAt(9), |_| false), None, "it would be the last");
        assert_eq!(keeper.make_room(10, 30, Due::HomeAt(8), |_| false), Some(vec![block(1, 0, 9)]));
        // The job has ended, and another one needs its blocks in three milliseconds.
        keeper.reorder(20, |_| None);
        assert_eq!(keeper.make_room(10, 20, Due::HomeAt(23), |_| false), Some(vec![block(0, 0, 9)]));
        assert_eq!(keeper.emptied().len(), 1);
        assert_eq!(keeper.asked(&block(2, 0, 9), 20, Again::default()), Due::HomeAt(33), "known still");
        keeper.insert(block(2, 0, 9), 10, Due::HomeAt(33), true);
        keeper.reorder(8 + asked::MOST_LATE, |_| None);
        assert_eq!(keeper.due(&block(2, 0, 9)), Some(Due::Home(Reverse(0))), "nobody came for it");
    }

    #[test]
    fn a_range_is_found_in_a_block_that_covers_it() {
        let mut keeper = Keeper::default();
        for (start, end) in [(0, 100), (50, 60), (200, 300)] {
            keeper.insert(block(0, start, end), 1, Due::At(1), true);
        }
        keeper.insert(block(0, 400, 500), 1, Due::At(1), false);
        let key = ObjectKey([0; 16]);
        assert_eq!(keeper.covering(&key, &(55..70)), Some(block(0, 0, 100)));
        assert_eq!(keeper.covering(&key, &(250..300)), Some(block(0, 200, 300)));
        assert_eq!(keeper.covering(&key, &(90..110)), None);
        assert_eq!(keeper.covering(&key, &(410..420)), None, "it is not there yet");
        keeper.remove(&block(0, 0, 100));
        assert_eq!(keeper.covering(&key, &(51..55)), Some(block(0, 50, 60)));
        assert_eq!(keeper.covering(&ObjectKey([1; 16]), &(51..55)), None);
    }
}
