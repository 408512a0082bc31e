//! The streams of batches that are open now, for operators: the step of each, and what its time went to.
//!
//! A stream's time has two kinds of moments. Either it makes or waits for the next batch, and the [`Trail`] of that batch says what for;
//! or its last batch is on its way out, and the connection says for how long the network took no more bytes: the rest of that time the
//! client had batches enough. So every moment has one [`Cause`], at the price of two looks at the clock for each batch.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::hangup::Hangup;
use crate::flight::server::access::auth::Tenant;
use crate::flight::server::catalog::open_dataset::OpenDataset;
use crate::pipeline::{CAUSES, Cause, Probe, Spent, Trail};
use crate::plan::{Plan, Share};
use crate::recent::Recent;

/// Amounts that are counted beside the nanoseconds of each cause.
const ROWS: usize = CAUSES;
const BYTES: usize = CAUSES + 1;
const AMOUNTS: usize = CAUSES + 2;

/// All open streams of a server. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct LiveStreams(Arc<Mutex<All>>);

#[derive(Debug, Default)]
struct All {
    next: u64,
    streams: BTreeMap<u64, Arc<LiveStream>>,
    /// Nanoseconds by cause of the streams that are over.
    over: [u64; CAUSES],
}

/// What a stream is.
#[derive(Debug, Clone)]
pub(crate) struct About {
    /// Whose it is.
    pub(crate) tenant: Tenant,
    /// Name of the dataset, as operators may see it.
    pub(crate) dataset: String,
    /// Name and generation of its gang.
    pub(crate) gang: Option<(String, u64)>,
    pub(crate) plan: Arc<Plan>,
    /// The dataset that the plan is of; streams of one plan have the same one.
    pub(crate) offer: Weak<OpenDataset>,
    pub(crate) share: Share,
    /// True if batches go through shared memory.
    pub(crate) local: bool,
    /// Its connection.
    pub(crate) hangup: Option<Hangup>,
}

/// One open stream.
#[derive(Debug)]
pub(crate) struct LiveStream {
    pub(crate) about: About,
    born: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Next step to send.
    step: u64,
    amounts: Recent<AMOUNTS>,
    /// True if the last batch is on its way out; else the next one is being made.
    is_out: bool,
    /// Since when.
    since: Instant,
    /// Time for which the connection had been stuck by then.
    stuck: Duration,
    probe: Option<Probe>,
}

/// A stream as it is seen at one moment.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Seen {
    pub(crate) step: u64,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// Seconds by cause, of the last half minute or so.
    pub(crate) spent: [f64; CAUSES],
    pub(crate) rows_per_second: f64,
    pub(crate) bytes_per_second: f64,
    /// What its time goes to now, and for how many seconds already.
    pub(crate) doing: (Cause, f64),
    /// Seconds since it was opened.
    pub(crate) age: f64,
}

impl LiveStreams {
    fn lock(&self) -> MutexGuard<'_, All> {
        // Consistent between any two statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a stream that begins at `step`, until the returned value is dropped.
    pub(crate) fn open(&self, about: About, step: u64) -> Watched {
        let now = Instant::now();
        let stuck = about.hangup.as_ref().map_or(Duration::ZERO, Hangup::stuck);
        let amounts = Recent::new(Duration::ZERO);
        let state = Mutex::new(State { step, amounts, is_out: true, since: now, stuck, probe: None });
        let stream = Arc::new(LiveStream { about, born: now, state });
        let mut all = self.lock();
        let number = all.next;
        all.next += 1;
        all.streams.insert(number, Arc::clone(&stream));
        drop(all);
        Watched { all: self.clone(), number, stream }
    }

    /// Seconds by cause of all streams since the start, those that are over among them. A wait is counted when it ends.
    pub(crate) fn spent(&self) -> [f64; CAUSES] {
        let all = self.lock();
        let mut sums = all.over;
        all.streams.values().for_each(|stream| stream.add_to(&mut sums));
        sums.map(|nanos| nanos as f64 / 1e9)
    }

    /// The streams that are open now, in the order of their opening.
    pub(crate) fn all(&self) -> Vec<Arc<LiveStream>> {
        self.lock().streams.values().cloned().collect()
    }
}

/// A registered stream, as its sender sees it.
#[derive(Debug)]
pub(crate) struct Watched {
    all: LiveStreams,
    number: u64,
    stream: Arc<LiveStream>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        let gone = all.streams.remove(&self.number);
        self.stream.add_to(&mut all.over);
        drop(all);
        // Its plan may be the last one, and is dropped outside the lock.
        drop(gone);
    }
}

impl Watched {
    /// Says that the next batch is asked for.
    pub(crate) fn asked(&self) {
        self.stream.asked(Instant::now());
    }

    /// Says where its batches come from, from here on.
    pub(crate) fn reads(&self, probe: Probe) {
        self.stream.lock().probe = Some(probe);
    }

    /// Says that the batch of `step` was there at `found`, and goes out now.
    pub(crate) fn sent(&self, (step, rows, bytes): (u64, u64, u64), trail: &Trail, found: Instant) {
        let since = self.stream.lock().since;
        self.stream.sent((step, rows, bytes), &trail.waits(since, found), Instant::now());
    }
}

impl LiveStream {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Consistent between any two statements.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the nanoseconds of each cause since it was opened.
    fn add_to(&self, sums: &mut [u64; CAUSES]) {
        let totals = self.lock().amounts.totals();
        sums.iter_mut().zip(totals).for_each(|(sum, nanos)| *sum = sum.saturating_add(nanos));
    }

    fn stuck(&self) -> Duration {
        self.about.hangup.as_ref().map_or(Duration::ZERO, Hangup::stuck)
    }

    fn asked(&self, now: Instant) {
        let stuck = self.stuck();
        let mut state = self.lock();
        if !state.is_out {
            return;
        }
        let at = now.saturating_duration_since(self.born);
        for (cause, time) in state.out(now, stuck) {
            state.amounts.add(at, cause as usize, nanos(time));
        }
        (state.is_out, state.since) = (false, now);
    }

    /// `spent` is what the time until the batch was there went to; what is left went by in a queue.
    fn sent(&self, (step, rows, bytes): (u64, u64, u64), spent: &Spent, now: Instant) {
        let stuck = self.stuck();
        let mut state = self.lock();
        let at = now.saturating_duration_since(self.born);
        let mut left = now.saturating_duration_since(state.since);
        for (cause, time) in spent.iter().enumerate() {
            let time = (*time).min(left);
            left -= time;
            state.amounts.add(at, cause, nanos(time));
        }
        state.amounts.add(at, Cause::Queue as usize, nanos(left));
        state.amounts.add(at, ROWS, rows);
        state.amounts.add(at, BYTES, bytes);
        (state.step, state.is_out, state.since, state.stuck) = (step.saturating_add(1), true, now, stuck);
    }

    /// The stream as it is now.
    pub(crate) fn seen(&self) -> Seen {
        self.seen_at(Instant::now())
    }

    fn seen_at(&self, now: Instant) -> Seen {
        let stuck = self.stuck();
        let age = now.saturating_duration_since(self.born);
        let (probe, since, mut running) = {
            let state = self.lock();
            (state.probe.clone(), state.since, if state.is_out { state.out(now, stuck).to_vec() } else { Vec::new() })
        };
        if running.is_empty() {
            // Asked outside the lock: it takes others.
            let cause = probe.and_then(|probe| probe.cause()).unwrap_or(Cause::Queue);
            running.push((cause, now.saturating_duration_since(since)));
        }
        let mut state = self.lock();
        let totals = state.amounts.totals();
        let (lately, span) = state.amounts.lately(age);
        let mut spent = [0.0; CAUSES];
        spent.iter_mut().zip(lately).for_each(|(spent, nanos)| *spent = nanos as f64 / 1e9);
        for (cause, time) in &running {
            spent[*cause as usize] += time.min(&span).as_secs_f64();
        }
        // A wait that began before is counted when it ends.
        let (all, most) = (spent.iter().sum::<f64>(), span.as_secs_f64());
        if all > most {
            spent.iter_mut().for_each(|spent| *spent *= most / all);
        }
        let (doing, _) = running.iter().max_by_key(|(_, time)| *time).copied().unwrap_or((Cause::Consumer, span));
        let per_second = |amount: u64| if span.is_zero() { 0.0 } else { amount as f64 / span.as_secs_f64() };
        Seen {
            step: state.step,
            rows: totals[ROWS],
            bytes: totals[BYTES],
            spent,
            rows_per_second: per_second(lately[ROWS]),
            bytes_per_second: per_second(lately[BYTES]),
            doing: (doing, now.saturating_duration_since(since).as_secs_f64()),
            age: age.as_secs_f64(),
        }
    }
}

impl State {
    /// What the time since the last batch left went to.
    fn out(&self, now: Instant, stuck: Duration) -> [(Cause, Duration); 2] {
        let gap = now.saturating_duration_since(self.since);
        let wire = stuck.saturating_sub(self.stuck).min(gap);
        [(Cause::Wire, wire), (Cause::Consumer, gap - wire)]
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::manifest::Manifest;
    use crate::plan::PlanSpec;

    /// A stream of rank `rank` of `world`, of a plan that nothing serves.
    pub(crate) fn about(rank: u32, world: u32) -> About {
        let manifests = [Arc::new(Manifest::imaginary(&[100; 8], 1))];
        let spec = PlanSpec::new(1, 10).resolve(&manifests).unwrap();
        About {
            tenant: Tenant::anonymous(),
            dataset: "photos".to_owned(),
            gang: None,
            plan: Arc::new(Plan::new(&manifests, spec, 0).unwrap()),
            offer: Weak::new(),
            share: Share { rank, world },
            local: false,
            hangup: None,
        }
    }

    #[test]
    fn every_moment_of_a_stream_goes_to_one_cause() {
        let all = LiveStreams::default();
        let watched = all.open(about(0, 1), 5);
        let stream = Arc::clone(&all.all()[0]);
        let at = |millis: u64| stream.born + Duration::from_millis(millis);
        let mut spent = [Duration::ZERO; CAUSES];
        spent[Cause::Store as usize] = Duration::from_millis(300);
        spent[Cause::Decode as usize] = Duration::from_millis(50);
        stream.asked(at(100));
        stream.asked(at(150));
        stream.sent((5, 32, 1000), &spent, at(500));
        stream.asked(at(900));
        stream.sent((6, 32, 1000), &[Duration::from_secs(9); CAUSES], at(1000));
        let seen = stream.seen_at(at(2000));
        let expected = Cause::ALL.map(|cause| match cause {
            Cause::Store => 0.3 + 0.1,
            Cause::Decode | Cause::Queue => 0.05,
            Cause::Consumer => 0.1 + 0.4 + 1.0,
            _ => 0.0,
        });
        assert!(seen.spent.iter().zip(expected).all(|(one, other)| (one - other).abs() < 1e-6), "{seen:?}");
        assert!((seen.spent.iter().sum::<f64>() - 2.0).abs() < 1e-6);
        assert_eq!((seen.step, seen.rows, seen.bytes), (7, 64, 2000));
        assert!((seen.rows_per_second - 32.0).abs() < 1e-6 && seen.doing.0 == Cause::Consumer, "{seen:?}");
        stream.asked(at(2000));
        let waits = stream.seen_at(at(7000));
        assert_eq!(waits.doing, (Cause::Queue, 5.0), "nothing is known of what it waits for");
        let spent = all.spent();
        assert!((spent[Cause::Store as usize] - 0.4).abs() < 1e-6, "{spent:?}");
        drop(watched);
        assert!(all.all().is_empty() && all.spent() == spent, "those of streams that are over stay");
    }

    #[test]
    fn a_connection_that_takes_no_more_is_the_wires() {
        let all = LiveStreams::default();
        let hangup = Hangup::default();
        let watched = all.open(About { hangup: Some(hangup.clone()), ..about(0, 1) }, 0);
        watched.asked();
        hangup.wrote(None);
        std::thread::sleep(Duration::from_millis(20));
        hangup.wrote(Some(10));
        let stream = &all.all()[0];
        stream.sent((0, 1, 1), &[Duration::ZERO; CAUSES], Instant::now());
        hangup.wrote(None);
        std::thread::sleep(Duration::from_millis(20));
        let seen = stream.seen();
        let [wire, consumer] = [Cause::Wire, Cause::Consumer].map(|cause| seen.spent[cause as usize]);
        assert!(wire >= 0.02 && consumer < wire && seen.doing.0 == Cause::Wire, "{seen:?}");
    }
}
