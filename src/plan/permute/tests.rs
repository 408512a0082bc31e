//! Uniformity of shuffles. Every test counts the results of fixed keys, so it gives the same on every machine; the
//! thresholds are six standard deviations of a uniform shuffle.

use super::super::method::Method;
use super::super::recent::Recent;
use super::super::version::OrderVersion;
use super::*;

/// The latest version's order of `n` row groups in `epoch` of `seed`.
fn groups(n: usize, seed: u64, epoch: u64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..n as u32).collect();
    OrderVersion::LATEST.method(1).order(&mut order, key(&[GROUPS, seed, epoch, 0]));
    order
}

/// The permutation of `n` rows by the network for many rows.
fn network(n: usize, seed: u64, epoch: u64) -> Vec<u32> {
    let network = Strong::new(n as u64, key(&[WINDOW, seed, epoch]));
    (0..n as u64).map(|at| network.forward(at) as u32).collect()
}

type Shuffled = fn(usize, u64, u64) -> Vec<u32>;

/// Pearson's statistic of counts that should be equal, in standard deviations above its mean.
fn excess(counts: &[u32]) -> f64 {
    let expected = counts.iter().map(|count| f64::from(*count)).sum::<f64>() / counts.len() as f64;
    let chi: f64 = counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
    let freedom = counts.len() as f64 - 1.0;
    (chi - freedom) / (2.0 * freedom).sqrt()
}

/// The index of a permutation among all in lexical order.
fn rank(order: &[u32]) -> usize {
    (0..order.len()).fold(0, |rank, at| {
        let smaller = order[at + 1..].iter().filter(|later| **later < order[at]).count();
        rank * (order.len() - at) + smaller
    })
}

#[test]
fn xoshiro_and_splitmix_draw_what_their_authors_do() {
    let mut generator = Generator([1, 2, 3, 4]);
    let drawn: Vec<u64> = (0..5).map(|_| generator.draw()).collect();
    assert_eq!(drawn, [41943041, 58720359, 3588806011781223, 3591011842654386, 9228616714210784205]);
    let seeded = Generator::new(1234567).0;
    assert_eq!(seeded, [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]);
    assert!((0..1000).all(|_| generator.below(1) == 0));
    // Two of three draws of this size are drawn again.
    let n = (1 << 63) + (1 << 62) + 1;
    assert!((0..1000).all(|_| generator.below(n) < n));
}

#[test]
fn every_order_of_few_items_is_equally_likely() {
    for n in 2..=7_usize {
        let orders: usize = (1..=n).product();
        let mut counts = vec![0_u32; orders];
        for epoch in 0..40 * orders as u64 {
            counts[rank(&groups(n, 1, epoch))] += 1;
        }
        assert!(counts.iter().all(|count| *count > 0), "{n} items: an order never occurs");
        let excess = excess(&counts);
        assert!(excess < 6.0, "{n} items: {excess:.1} standard deviations");
    }
    // The former shuffle must be distinguishable from an even one, or this test shows nothing.
    let mut counts = vec![0_u32; 5040];
    for epoch in 0..40 * 5040 {
        let mut order: Vec<u32> = (0..7).collect();
        Method::Cheap.order(&mut order, key(&[GROUPS, 1, epoch, 0]));
        counts[rank(&order)] += 1;
    }
    assert!(excess(&counts) > 6.0, "the first version is as even as the latest");
}

#[test]
fn every_place_is_equally_likely() {
    for (shuffled, n) in [(groups as Shuffled, 3_usize), (groups, 12), (groups, 64), (network, 17), (network, 64)] {
        let mut counts = vec![0_u32; n * n];
        for epoch in 0..8000 {
            for (at, to) in shuffled(n, 2, epoch).into_iter().enumerate() {
                counts[at * n + to as usize] += 1;
            }
        }
        // Each row and each column adds up, so there is less freedom than cells.
        let freedom = ((n - 1) * (n - 1)) as f64;
        let expected = 8000.0 / n as f64;
        let chi: f64 = counts.iter().map(|count| (f64::from(*count) - expected).powi(2) / expected).sum();
        let spread = (2.0 * freedom).sqrt();
        // The statistic of a permutation matrix is n/(n-1) of that of free cells.
        let chi = chi * (n as f64 - 1.0) / n as f64;
        assert!(
            (chi - freedom).abs() < 6.0 * spread,
            "{n}: chi-squared {chi:.0}, expected {freedom:.0} +- {spread:.0}"
        );
    }
}

#[test]
fn every_pair_of_places_is_equally_likely() {
    // The places of two items that were side by side, and of two that were far apart.
    for (shuffled, n) in [(groups as Shuffled, 6_usize), (groups, 10), (groups, 24), (network, 20), (network, 24)] {
        for (one, other) in [(0, 1), (n / 2, n / 2 + 1), (0, n - 1), (1, n / 2)] {
            let mut counts = vec![0_u32; n * n];
            for epoch in 0..(n * n * 60) as u64 {
                let order = shuffled(n, 3, epoch);
                counts[order[one] as usize * n + order[other] as usize] += 1;
            }
            let possible: Vec<u32> = (0..n * n).filter(|cell| cell / n != cell % n).map(|cell| counts[cell]).collect();
            let excess = excess(&possible);
            assert!(excess < 6.0, "{n} items, places {one} and {other}: {excess:.1} standard deviations");
        }
    }
}

#[test]
fn neighbours_stay_neighbours_as_often_as_by_chance() {
    // Ordered neighbours (x, x + 1) in an even shuffle of n: n - 1 pairs, each side by side with probability 1/n; the number of them
    // is nearly Poisson's with mean (n - 1)/n.
    let stayed = |shuffled: &dyn Fn(u64) -> Vec<u32>, rounds: u64| {
        let pairs = |order: Vec<u32>| order.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count() as f64;
        (0..rounds).map(|epoch| pairs(shuffled(epoch))).sum::<f64>()
    };
    let rounds = 10_000;
    for (shuffled, n) in [(groups as Shuffled, 8_usize), (groups, 64), (groups, 100), (network, 257)] {
        let found = stayed(&|epoch| shuffled(n, 4, epoch), rounds);
        let mean = rounds as f64 * (n as f64 - 1.0) / n as f64;
        assert!((found - mean).abs() < 6.0 * mean.sqrt(), "{n} items: {found} pairs stayed, {mean:.0} by chance");
    }
    // The former shuffle kept them together too often.
    let cheap = |epoch| {
        let mut order: Vec<u32> = (0..64).collect();
        Method::Cheap.order(&mut order, key(&[GROUPS, 4, epoch, 0]));
        order
    };
    let mean = rounds as f64 * 63.0 / 64.0;
    assert!((stayed(&cheap, rounds) - mean).abs() > 6.0 * mean.sqrt(), "the first version is as even as the latest");
}

#[test]
fn one_epoch_says_nothing_of_the_next() {
    // An item's places in one epoch and in the next; the same for two seeds side by side.
    for (shuffled, n) in [(groups as Shuffled, 6_usize), (groups, 24), (network, 20)] {
        let (mut epochs, mut seeds) = (vec![0_u32; n * n], vec![0_u32; n * n]);
        for at in 0..(n * n * 60) as u64 {
            let order = shuffled(n, 5, at);
            let (next, other) = (shuffled(n, 5, at + 1), shuffled(n, 6, at));
            epochs[order[0] as usize * n + next[0] as usize] += 1;
            seeds[order[0] as usize * n + other[0] as usize] += 1;
        }
        for (what, counts) in [("epochs", epochs), ("seeds", seeds)] {
            let excess = excess(&counts);
            assert!(excess < 6.0, "{n} items, {what}: {excess:.1} standard deviations");
        }
    }
}

#[test]
fn windows_are_bijections_in_any_range() {
    let recent = Recent::default();
    for version in OrderVersion::ALL {
        for n in [1, 2, 3, 255, 256, 257, 8191, 8192, 8193, 20_000] {
            let permutation = version.method(64).window(n, mix(n), &recent);
            let mut all = Vec::new();
            permutation.each(0..n, |to| all.push(to));
            let mut part = Vec::new();
            permutation.each(n / 3..n - n / 4, |to| part.push(to));
            assert_eq!(part, all[(n / 3) as usize..(n - n / 4) as usize]);
            all.sort_unstable();
            assert_eq!(all, (0..n).collect::<Vec<_>>(), "{version:?}, {n} rows");
        }
    }
}
