//! One rank's share of anything countable.

use std::ops::Range;

use crate::error::{Error, Result};

/// One rank of a world of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Share {
    /// This rank, from 0.
    pub rank: u32,
    /// The number of ranks.
    pub world: u32,
}

impl Share {
    /// The share of rank `rank` of `world`.
    ///
    /// # Errors
    /// [`Error::Config`] unless `rank` is below `world`.
    pub fn new(rank: u32, world: u32) -> Result<Self> {
        if world == 0 {
            return Err(Error::config("world_size", "there is at least one rank"));
        }
        if rank >= world {
            return Err(Error::config("rank", format!("{rank} of {world}: ranks count from 0 to {}", world - 1)));
        }
        Ok(Self { rank, world })
    }

    /// The rank, and the number of ranks.
    pub(crate) fn numbers(self) -> (u32, u32) {
        (self.rank, self.world)
    }

    /// Everything: the only rank of a world of one.
    pub fn whole() -> Self {
        Self { rank: 0, world: 1 }
    }

    /// This rank's part of `0..n`: all ranks get n / world, the first n % world of them one more.
    ///
    /// With this rule a smaller n never gives a rank more, so the real rows of an incomplete step always fit in the
    /// batch.
    pub fn part(&self, n: u64) -> Range<u64> {
        let (each, more) = (n / u64::from(self.world), n % u64::from(self.world));
        let start = |rank: u64| rank * each + rank.min(more);
        start(u64::from(self.rank))..start(u64::from(self.rank) + 1)
    }
}

/// Length of a range that is not reversed.
pub(super) fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_tile_and_nest() {
        for world in 1..12 {
            for n in 0..60 {
                let mut end = 0;
                for rank in 0..world {
                    let share = Share::new(rank, world).unwrap();
                    let part = share.part(n);
                    assert_eq!(part.start, end);
                    end = part.end;
                    let more = share.part(n + 1);
                    assert!(part.end - part.start <= more.end - more.start, "rank {rank} of {world}, n {n}");
                }
                assert_eq!(end, n);
            }
        }
        assert!(Share::new(0, 0).is_err());
        assert!(Share::new(3, 3).is_err());
    }
}
