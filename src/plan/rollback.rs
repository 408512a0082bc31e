//! Rollbacks by resumes: a loader that continues from a state replaces what earlier loaders consumed from there on. That
//! includes steps that it never reaches itself: the model that learnt from them is gone.
//!
//! ```text
//!   position ──►        40          60     70
//!   loader A   ├────────┼───────────┼──────┤      killed at 70
//!   loader B            ├───────────┤             resumed at 40, ended at 60: of A only what is before 40 counts
//! ```

use std::collections::BTreeMap;

/// A span of one certificate, and the rank and loader that consumed it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// The first position, and the one after the last; both are equal for a loader that resumed and consumed nothing.
    pub(super) from: u128,
    pub(super) to: u128,
    pub(super) rank: u32,
    pub(super) world: u32,
    pub(super) loader: usize,
    /// Index among the loader's spans.
    pub(super) number: usize,
    pub(super) resumed: bool,
    pub(super) opened: u64,
    pub(super) written: u64,
}

/// Time of opening, and the loader: the order in which loaders follow each other.
type Start = (u64, usize);

impl Piece {
    fn start(&self) -> Start {
        (self.opened, self.loader)
    }
}

/// Cuts each piece at the first position that a later loader of its rank, or of another number of ranks, resumed at, and that its
/// own loader resumed at later. Returns what is left, and the steps that were cut.
///
/// A loader is later if it was opened after the last certificate of the other one. `pieces` are in the order of loaders and numbers.
pub(super) fn roll_back(pieces: &[Piece]) -> (Vec<Piece>, u128) {
    let mut starts: Vec<&Piece> = pieces.iter().filter(|piece| piece.resumed).collect();
    starts.sort_by_key(|piece| piece.start());
    let mut of_rank: BTreeMap<(u32, u32), Vec<(Start, u128)>> = BTreeMap::new();
    let mut of_all: Vec<(Start, Least)> = Vec::new();
    // From the last one back, so that each entry has the least position of all that follow.
    for piece in starts.iter().rev() {
        let own = of_rank.entry((piece.world, piece.rank)).or_default();
        let least = own.last().map_or(piece.from, |(_, least)| piece.from.min(*least));
        own.push((piece.start(), least));
        let mut least = of_all.last().map(|(_, least)| *least).unwrap_or_default();
        least.add(piece.from, piece.world);
        of_all.push((piece.start(), least));
    }
    let mut kept = Vec::new();
    let mut cut = 0;
    let mut own: Option<(usize, u128)> = None;
    for piece in pieces.iter().rev() {
        let within = own.filter(|(loader, _)| *loader == piece.loader).map(|(_, at)| at);
        let rank = of_rank.get(&(piece.world, piece.rank)).and_then(|starts| after(piece, starts));
        let other = after(piece, &of_all).and_then(|least| least.except(piece.world));
        let at = [within, rank, other].into_iter().flatten().min().unwrap_or(piece.to);
        let to = piece.to.min(at.max(piece.from));
        cut += piece.to - to;
        if piece.from < to {
            kept.push(Piece { to, ..*piece });
        }
        let from = within.unwrap_or(u128::MAX).min(if piece.resumed { piece.from } else { u128::MAX });
        own = (from < u128::MAX).then_some((piece.loader, from));
    }
    kept.reverse();
    (kept, cut)
}

/// Returns what `starts`, the last one first, have for those that are later than `piece`.
fn after<T: Copy>(piece: &Piece, starts: &[(Start, T)]) -> Option<T> {
    let later = starts.partition_point(|(start, _)| start.0 >= piece.written && *start > piece.start());
    later.checked_sub(1).map(|last| starts[last].1)
}

/// The least position, and the least one of another number of ranks.
#[derive(Debug, Clone, Copy, Default)]
struct Least {
    first: Option<(u128, u32)>,
    second: Option<(u128, u32)>,
}

impl Least {
    fn add(&mut self, at: u128, world: u32) {
        let all = [self.first, self.second, Some((at, world))];
        self.first = all.into_iter().flatten().min();
        let is_other = |(_, world): &(u128, u32)| self.first.is_some_and(|(_, first)| first != *world);
        self.second = all.into_iter().flatten().filter(is_other).min();
    }

    /// The least position of any number of ranks but `world`.
    fn except(self, world: u32) -> Option<u128> {
        let is_other = |(_, other): &(u128, u32)| *other != world;
        self.first.filter(is_other).or(self.second).map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(loader: usize, (rank, world): (u32, u32), (from, to): (u128, u128), resumed: bool) -> Piece {
        let opened = 10 * loader as u64;
        Piece { from, to, rank, world, loader, number: 0, resumed, opened, written: opened + 9 }
    }

    fn spans(pieces: &[Piece]) -> Vec<(usize, u128, u128)> {
        pieces.iter().map(|piece| (piece.loader, piece.from, piece.to)).collect()
    }

    #[test]
    fn what_follows_the_state_is_gone_whether_or_not_it_is_reached_again() {
        let run = [
            piece(0, (0, 1), (0, 70), false),
            piece(1, (0, 1), (40, 60), true),
            piece(2, (0, 1), (50, 50), true),
            piece(3, (0, 1), (90, 95), false),
        ];
        let (kept, cut) = roll_back(&run);
        assert_eq!((spans(&kept), cut), (vec![(0, 0, 40), (1, 40, 50), (3, 90, 95)], 30 + 10));
    }

    #[test]
    fn ranks_that_go_on_and_other_ranks_keep_what_they_have() {
        // Rank 1 is still at work when rank 0 continues; the resume of rank 0 says nothing of it.
        let run = [
            piece(0, (0, 2), (0, 70), false),
            piece(1, (1, 2), (0, 70), false),
            Piece { written: 40, ..piece(2, (0, 2), (0, 50), false) },
            piece(3, (0, 2), (30, 60), true),
        ];
        assert_eq!(spans(&roll_back(&run).0), [(0, 0, 30), (1, 0, 70), (2, 0, 50), (3, 30, 60)]);
        // Another number of ranks replaces all of them.
        let run = [run[0], run[1], piece(4, (2, 3), (20, 30), true), piece(5, (0, 3), (25, 30), true)];
        assert_eq!(spans(&roll_back(&run).0), [(0, 0, 20), (1, 0, 20), (4, 20, 30), (5, 25, 30)]);
    }

    #[test]
    fn a_loader_rolls_its_own_spans_back_too() {
        let numbered = |number, span, resumed| Piece { number, ..piece(0, (0, 1), span, resumed) };
        let run = [
            numbered(0, (0, 50), false),
            numbered(1, (60, 70), false),
            numbered(2, (40, 45), true),
            numbered(3, (80, 81), false),
        ];
        assert_eq!(spans(&roll_back(&run).0), [(0, 0, 40), (0, 40, 45), (0, 80, 81)]);
        // Opened and written within a millisecond: it is not later than itself.
        let quick = Piece { written: 0, ..piece(0, (0, 1), (3, 9), true) };
        assert_eq!(spans(&roll_back(&[quick]).0), [(0, 3, 9)]);
    }
}
