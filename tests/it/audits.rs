//! Audits of runs that were killed and continued: by real loaders, and of random histories against a count by hand.

use std::collections::BTreeMap;

use bowstring::manifest::Fingerprint;
use bowstring::plan::{BadRows, Certificate, Fault, PlanSpec, Span, audit};
use bowstring::{Loader, LoaderOptions};

use crate::support::{self, Random};

const WORLD: u32 = 2;

/// A run of ranks that train in step, each of which begins its own next epoch.
struct Run {
    data: tempfile::TempDir,
    certificates: Vec<Certificate>,
}

impl Run {
    fn new() -> Self {
        let data = tempfile::tempdir().unwrap();
        // 20 steps.
        support::write(data.path(), &[vec![80, 80]], 0);
        Self { data, certificates: Vec::new() }
    }

    fn opened(&self, rank: u32) -> Loader {
        let options = support::options(self.data.path(), 8, rank, WORLD);
        Loader::open(LoaderOptions { memory_budget: Some(64 << 20), ..options }).unwrap()
    }

    /// A life of the run: rank `r` resumes at `from`, if there is one, and takes `steps[r]` steps.
    fn life(&mut self, from: Option<(u64, u64)>, steps: [u64; WORLD as usize]) {
        // No two lives begin and end in one millisecond.
        std::thread::sleep(std::time::Duration::from_millis(3));
        for (rank, steps) in (0..WORLD).zip(steps) {
            let mut loader = self.opened(rank);
            if let Some((epoch, step)) = from {
                loader.load_state(&loader.state_at(epoch, step)).unwrap();
            }
            let mut taken = 0;
            while taken < steps {
                taken += u64::from(loader.next().unwrap().is_some());
            }
            self.certificates.push(loader.certificate());
        }
        std::thread::sleep(std::time::Duration::from_millis(3));
    }
}

#[test]
fn a_rank_that_began_the_next_epoch_alone_and_was_rolled_back_leaves_a_complete_run() {
    let mut run = Run::new();
    // Rank 0 has not seen that the run ends with the epoch, waits in vain for rank 1, and all are started once more.
    run.life(None, [22, 20]);
    run.life(Some((0, 18)), [2, 2]);
    let found = audit(&run.certificates).unwrap();
    assert!(found.exact && found.complete && found.findings.is_empty(), "{found:?}");
    assert_eq!((found.until, found.end, found.replaced_steps, found.resumes), ((1, 0), (1, 0), 4 + 2, 2));
}

#[test]
fn steps_that_were_rolled_back_do_not_count_as_consumed() {
    let mut run = Run::new();
    run.life(None, [16, 16]);
    // Of what rank 1 had, steps 13 to 15 went with its process, and it has not got there again.
    run.life(Some((0, 10)), [6, 3]);
    let found = audit(&run.certificates).unwrap();
    assert_eq!((found.exact, found.complete), (true, false));
    assert_eq!((found.until, found.end), ((0, 13), (0, 16)));
    let missing: Vec<_> = found.findings.iter().map(|one| (one.fault, one.from, one.to, one.rank)).collect();
    assert_eq!(missing, [(Fault::NotConsumed, (0, 13), (0, 16), Some(1))]);
    // It ends at the state that was loaded last, even if nothing was taken there.
    run.life(Some((0, 12)), [0, 0]);
    let found = audit(&run.certificates).unwrap();
    assert!(found.exact && found.complete && found.findings.is_empty(), "{found:?}");
    assert_eq!(found.until, (0, 12));
}

#[test]
fn a_loop_that_goes_to_the_next_epoch_by_itself_after_its_state_repeats_nothing() {
    let mut run = Run::new();
    // The checkpoint is of the end of epoch 0; epoch 1 was lost.
    run.life(None, [24, 24]);
    for rank in 0..WORLD {
        let mut loader = run.opened(rank);
        loader.load_state(&loader.state_at(0, 20)).unwrap();
        loader.set_epoch(1).unwrap();
        assert_eq!(support::drain(&mut loader).len(), 20);
        run.certificates.push(loader.certificate());
    }
    let found = audit(&run.certificates).unwrap();
    assert!(found.exact && found.complete && found.findings.is_empty(), "{found:?}");
    assert_eq!((found.until, found.replaced_steps), ((2, 0), 2 * 4));
}

/// Steps of an epoch in random histories.
const STEPS: u64 = 10;

fn at(position: u64) -> (u64, u64) {
    (position / STEPS, position % STEPS)
}

/// For each step the number of ranks, and those that consumed it.
type Learnt = BTreeMap<u64, (u32, Vec<u32>)>;

/// A random run: lives of 1 to 3 ranks, killed anywhere, each from a state of the one before it. Returns its certificates, and for each
/// step that the last model learnt from the number of ranks and those that consumed it.
fn history(random: &mut Random) -> (Vec<Certificate>, Learnt) {
    let mut certificates = Vec::new();
    let mut learnt = Learnt::new();
    let mut clock = 1;
    for life in 0..1 + random.below(6) {
        let end = learnt.last_key_value().map_or(0, |(step, _)| step + 1);
        let begin = if life == 0 { 0 } else { random.below(end + 1) };
        learnt.retain(|step, _| *step < begin);
        let world = 1 + random.below(3) as u32;
        let ahead = begin + random.below(2 * STEPS);
        for rank in 0..world {
            // Ranks are within a few steps of each other.
            let end = ahead + random.below(3);
            for step in begin..end {
                learnt.entry(step).or_insert((world, Vec::new())).1.push(rank);
            }
            certificates.push(Certificate {
                version: Certificate::VERSION,
                loader: format!("{life}-{rank}"),
                opened: clock + random.below(3),
                written: clock + 5 + random.below(3),
                fingerprint: Fingerprint::from_bytes([7; 32]),
                spec: PlanSpec::new(1, 8),
                rows: 8 * STEPS,
                steps: STEPS,
                rank,
                world_size: world,
                generation: None,
                consumed: vec![Span { from: at(begin), to: at(end), resumed: life > 0 }],
                dropped: 0,
                bad_rows: BadRows::default(),
                signature: None,
            });
        }
        clock += 10;
    }
    (certificates, learnt)
}

#[test]
fn random_histories_are_judged_as_by_counting_their_steps() {
    let chosen = support::variable("BOWSTRING_SEED").map(|seed| seed.parse::<u64>().unwrap());
    let seeds = chosen.map_or(0..if support::soak() { 50_000 } else { 2_000 }, |seed| seed..seed + 1);
    let mut complete = 0;
    for seed in seeds.clone() {
        let repeat = format!("BOWSTRING_SEED={seed} cargo test --test it audits::random");
        let (certificates, learnt) = history(&mut Random(seed));
        let whole = |step: &u64| learnt.get(step).is_some_and(|(world, ranks)| ranks.len() == *world as usize);
        let until = learnt.keys().filter(|step| whole(step)).max().map_or(0, |step| step + 1);
        let end = learnt.last_key_value().map_or(0, |(step, _)| step + 1);
        let found = audit(&certificates).unwrap();
        assert_eq!((found.until, found.end), (at(until), at(end.max(until))), "{repeat}\n{found:?}");
        assert_eq!(found.exact, until > 0 && (0..until).all(|step| whole(&step)), "{repeat}\n{found:?}");
        assert_eq!(found.complete, until == end, "{repeat}\n{found:?}");
        complete += u64::from(found.exact && found.complete);
    }
    let count = seeds.end - seeds.start;
    assert!(count == 1 || (count / 20..count).contains(&complete), "{complete} of {count} are complete");
}
