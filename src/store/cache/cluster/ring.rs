//! The homes of a block by rendezvous hashing: pure arithmetic, the same on every host and in every version.
//!
//! Each member has a score for each block, and the highest is its home. A member that joins takes blocks from the others and moves none
//! between them; one that leaves gives up its own and no others. So nothing is agreed upon, and nothing is copied when members change.

use twox_hash::XxHash3_64;

use super::super::block::Block;

/// A member or a block, as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Point(u64);

impl Point {
    /// The member that is known by this name everywhere.
    pub(super) fn of_member(name: &str) -> Self {
        Self(XxHash3_64::oneshot(name.as_bytes()))
    }

    /// The block.
    pub(super) fn of_block(block: &Block) -> Self {
        let mut bytes = [0; 32];
        let (object, range) = bytes.split_at_mut(16);
        object.copy_from_slice(&block.object.0);
        let (start, end) = range.split_at_mut(8);
        start.copy_from_slice(&block.start.to_le_bytes());
        end.copy_from_slice(&block.end.to_le_bytes());
        Self(XxHash3_64::oneshot(&bytes))
    }
}

fn score(member: Point, block: Point) -> u64 {
    let mut bytes = [0; 16];
    let (first, second) = bytes.split_at_mut(8);
    first.copy_from_slice(&member.0.to_le_bytes());
    second.copy_from_slice(&block.0.to_le_bytes());
    XxHash3_64::oneshot(&bytes)
}

/// The numbers of `members`, the home of `block` first, then whoever takes its place if it is gone, and so on.
pub(super) fn homes(members: impl Iterator<Item = Point>, block: Point) -> Vec<usize> {
    let mut ranked: Vec<_> = members.enumerate().map(|(at, member)| (score(member, block), member.0, at)).collect();
    ranked.sort_unstable_by(|one, other| other.cmp(one));
    ranked.into_iter().map(|(_, _, at)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::block::ObjectKey;
    use super::*;

    const BLOCKS: u64 = 20_000;

    fn block(number: u64) -> Block {
        let mut object = [0; 16];
        object[..8].copy_from_slice(&(number / 8).to_le_bytes());
        Block::new(ObjectKey(object), &(number % 8 * 100..number % 8 * 100 + 100)).unwrap()
    }

    fn members(count: usize) -> Vec<Point> {
        (0..count).map(|at| Point::of_member(&format!("10.0.0.{at}:8816"))).collect()
    }

    /// The home of each block, as a member.
    fn placed(members: &[Point]) -> Vec<Point> {
        let home = |number| members[homes(members.iter().copied(), Point::of_block(&block(number)))[0]];
        (0..BLOCKS).map(home).collect()
    }

    #[test]
    fn who_joins_takes_its_part_and_who_leaves_gives_up_its_own() {
        for count in [1, 2, 4, 9] {
            let (before, all) = (placed(&members(count)), members(count + 1));
            let after = placed(&all);
            let moved: Vec<_> = before.iter().zip(&after).filter(|(before, after)| before != after).collect();
            assert!(moved.iter().all(|(_, after)| **after == all[count]), "no block moves between those that stay");
            // The expected part is 1 / (n + 1); four standard deviations of a binomial beside it.
            let part = 1.0 / (count + 1) as f64;
            let spread = 4.0 * (BLOCKS as f64 * part * (1.0 - part)).sqrt();
            let off = (moved.len() as f64 - BLOCKS as f64 * part).abs();
            assert!(off < spread, "{} of {BLOCKS} moved, {count} members", moved.len());
            // Leaving is the same in reverse, whoever leaves.
            let without: Vec<_> = all.iter().copied().skip(1).collect();
            for (before, after) in after.iter().zip(placed(&without)) {
                assert!(*before == after || *before == all[0]);
            }
        }
    }

    #[test]
    fn each_member_is_home_to_as_many_whatever_the_order_of_the_list() {
        let members = members(7);
        let homes = placed(&members);
        for member in &members {
            let count = homes.iter().filter(|home| *home == member).count() as f64;
            let even = BLOCKS as f64 / 7.0;
            assert!((count - even).abs() < 4.0 * even.sqrt(), "{count} of {even}");
        }
        let turned: Vec<_> = members.iter().rev().copied().collect();
        assert_eq!(placed(&turned), homes);
    }

    #[test]
    fn if_the_home_is_gone_the_next_one_is_the_home_of_the_others() {
        let members = members(5);
        for number in 0..1000 {
            let point = Point::of_block(&block(number));
            let ranked = homes(members.iter().copied(), point);
            let left: Vec<_> = members.iter().copied().filter(|member| *member != members[ranked[0]]).collect();
            assert_eq!(left[homes(left.iter().copied(), point)[0]], members[ranked[1]]);
        }
    }

    #[test]
    fn the_homes_are_those_of_every_version() {
        let members = members(8);
        let found: Vec<_> =
            (0..12).map(|number| homes(members.iter().copied(), Point::of_block(&block(number)))[0]).collect();
        assert_eq!(found, GOLDEN, "blocks would be read again after an update");
    }

    const GOLDEN: [usize; 12] = [1, 3, 5, 5, 0, 0, 1, 6, 6, 7, 5, 6];
}
