//! The things that a rank's time goes to, and the advice for each. Every moment goes to exactly one of them, so shares sum to 100 %.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a rank's time goes to, in the order of the way of its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Bytes come from the store, or from files of this machine.
    Store,
    /// Bytes come from a cache.
    Cache,
    /// Parquet becomes values, or waits for a thread to.
    Decode,
    /// Images are decoded, cut and resized in their place in the batch.
    Transform,
    /// Rows are gathered into a batch, or wait for a thread to be.
    Batch,
    /// Nothing is under way: it waits for memory, a quota, or other ranks of the plan.
    Queue,
    /// The network takes no more bytes.
    Wire,
    /// A server has not sent the next batch: of that server, its own streams tell more.
    Server,
    /// A batch is copied to a device, or waits for the copies before it.
    Transfer,
    /// The consumer has batches and asks for no more.
    Consumer,
}

/// The number of causes.
pub(crate) const CAUSES: usize = 10;

/// Share of its time for which a consumer may wait and still be the limit itself.
const LITTLE: f64 = 0.05;

impl Cause {
    /// All of them, in order.
    pub const ALL: [Self; CAUSES] = [
        Self::Store,
        Self::Cache,
        Self::Decode,
        Self::Transform,
        Self::Batch,
        Self::Queue,
        Self::Wire,
        Self::Server,
        Self::Transfer,
        Self::Consumer,
    ];

    /// Those of a stream that a server sends.
    #[cfg(feature = "flight")]
    pub(crate) const OF_A_STREAM: [Self; 8] =
        [Self::Store, Self::Cache, Self::Decode, Self::Transform, Self::Batch, Self::Queue, Self::Wire, Self::Consumer];

    /// Its name: `store`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Cache => "cache",
            Self::Decode => "decode",
            Self::Transform => "transform",
            Self::Batch => "batch",
            Self::Queue => "queue",
            Self::Wire => "wire",
            Self::Server => "server",
            Self::Transfer => "transfer",
            Self::Consumer => "consumer",
        }
    }

    /// What ranks wait for: `the store`.
    pub(crate) fn phrase(self) -> &'static str {
        match self {
            Self::Store => "the store",
            Self::Cache => "the cache",
            Self::Decode => "decoding",
            Self::Transform => "images",
            Self::Batch => "batches to be filled",
            Self::Queue => "memory, a quota or one another",
            Self::Wire => "the network",
            Self::Server => "the server",
            Self::Transfer => "copies to the device",
            Self::Consumer => "nothing",
        }
    }

    /// The finding and the remedy, if most of the waiting is for this.
    pub fn advice(self) -> &'static str {
        match self {
            Self::Store => "the store is slower than decoding: a nearer store, fewer columns, or larger row groups",
            Self::Cache => "the cache is slower than decoding: a faster disk, or a cache in memory",
            Self::Decode => {
                "reading Parquet takes the most: fewer columns, lighter compression, no dictionary on floats, or more threads"
            }
            Self::Transform if cfg!(feature = "turbo") => {
                "decoding images takes the most: more threads, or smaller images"
            }
            Self::Transform => {
                "decoding images takes the most: more threads, smaller images, or a build with feature turbo"
            }
            Self::Batch => "filling batches takes the most: more threads, fewer columns, or larger batches",
            Self::Queue => {
                "ranks wait for memory, a quota or one another: more memory_budget, fewer lanes, or look at the slowest rank"
            }
            Self::Wire => "the network takes the most: a nearer server, fewer columns, or ranks on the server's host",
            Self::Server => {
                "the server does not send batches as fast as they are taken: `bowstring top ADDRESS` names the reason there"
            }
            Self::Transfer => {
                "copies to the device take the most: fewer columns, smaller types or images, or more device_slots"
            }
            Self::Consumer => "nothing to gain here: batches were ready before they were asked for",
        }
    }

    /// What limits the throughput, of the time that went to each cause: the consumer if it waits for less than 5 % of it, else what it
    /// waits for most. `None` if no time has passed.
    pub(crate) fn limiting(spent: &[f64; CAUSES]) -> Option<(Self, f64)> {
        let all: f64 = spent.iter().sum();
        if all <= 0.0 {
            return None;
        }
        let waited = 1.0 - spent[Self::Consumer as usize] / all;
        let waits = Self::ALL.into_iter().filter(|cause| *cause != Self::Consumer);
        let most = waits.reduce(|most, next| if spent[next as usize] > spent[most as usize] { next } else { most })?;
        Some((if waited < LITTLE { Self::Consumer } else { most }, waited))
    }
}

/// Time by cause.
pub(crate) type Spent = [Duration; CAUSES];

/// The shares of `spent` in tenths of a percent; they sum to 1000, or are all 0 if nothing was spent. What rounding leaves over goes to
/// the largest remainders.
pub(crate) fn per_mille(spent: &[f64; CAUSES]) -> [u16; CAUSES] {
    let all: f64 = spent.iter().filter(|one| one.is_finite() && **one > 0.0).sum();
    let mut shares = [0_u16; CAUSES];
    if all <= 0.0 || !all.is_finite() {
        return shares;
    }
    let mut rests: Vec<(f64, usize)> = Vec::with_capacity(CAUSES);
    for (at, one) in spent.iter().enumerate() {
        let exact = if one.is_finite() { one.max(0.0) / all * 1000.0 } else { 0.0 };
        shares[at] = exact.floor() as u16;
        rests.push((exact.fract(), at));
    }
    rests.sort_by(|one, other| other.0.total_cmp(&one.0));
    let given: u16 = shares.iter().sum();
    for (_, at) in rests.iter().take(usize::from(1000_u16.saturating_sub(given))) {
        shares[*at] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_sum_to_all() {
        let mut state = 7_u64;
        for case in 0..2000 {
            let spent: [f64; CAUSES] = std::array::from_fn(|_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                if state >> 62 == 0 { 0.0 } else { (state >> 40) as f64 / 3.0 }
            });
            let sum: u16 = per_mille(&spent).iter().sum();
            assert_eq!(sum, if spent.iter().sum::<f64>() > 0.0 { 1000 } else { 0 }, "case {case}: {spent:?}");
        }
        // What is no time counts for nothing.
        assert_eq!(
            per_mille(&[f64::NAN, 1.0, 0.0, -3.0, 0.0, 0.0, 0.0, 0.0, 0.0, f64::INFINITY]),
            [0, 1000, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(per_mille(&[1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0]), [333, 0, 0, 0, 0, 0, 0, 0, 0, 667]);
    }

    #[test]
    fn a_consumer_that_hardly_waits_is_the_limit() {
        let mut spent = [0.0; CAUSES];
        assert_eq!(Cause::limiting(&spent), None);
        (spent[Cause::Store as usize], spent[Cause::Consumer as usize]) = (4.0, 96.0);
        assert_eq!(Cause::limiting(&spent).unwrap().0, Cause::Consumer);
        spent[Cause::Decode as usize] = 50.0;
        let (cause, waited) = Cause::limiting(&spent).unwrap();
        assert!(cause == Cause::Decode && (waited - 0.36).abs() < 1e-9, "{waited}");
        let mut alone = [0.0; CAUSES];
        alone[Cause::Store as usize] = 1.0;
        assert_eq!(Cause::limiting(&alone), Some((Cause::Store, 1.0)));
        for (at, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!((cause as usize, serde_json::to_value(cause).unwrap()), (at, cause.name().into()));
        }
    }
}
