//! The ledgers that ranks wrote while training, and a checker that knows only the promises.
//!
//! One file per process, one write per line: a time in nanoseconds, then `J generation [epoch step]` for a join after that position,
//! `B generation epoch step ids` for a received batch, `A generation epoch step` for an accepted acknowledgement, `E generation text`
//! for an error. A step is committed by generation g if it lies after the position at which g began, up to the one at which the next
//! generation began: later work is forgotten together with its weights.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Event {
    Joined(Option<(u64, u64)>),
    Batch(u64, u64, Vec<i64>),
    Acked(u64, u64),
    Error(String),
}

/// One line of one process.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    /// Nanoseconds since 1970; all processes are on one machine.
    pub(super) at: u64,
    pub(super) rank: u32,
    pub(super) process: u32,
    /// 0 before the first generation is joined.
    pub(super) generation: u64,
    pub(super) event: Event,
}

pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// A process's own file.
pub(super) struct Writer(File);

impl Writer {
    pub(super) fn open(path: &Path) -> Self {
        Self(OpenOptions::new().create(true).append(true).open(path).unwrap())
    }

    pub(super) fn write(&mut self, generation: u64, event: &Event) {
        let event = match event {
            Event::Joined(None) => format!("J {generation}"),
            Event::Joined(Some((epoch, step))) => format!("J {generation} {epoch} {step}"),
            Event::Batch(epoch, step, ids) => {
                let ids: String = ids.iter().map(|id| format!(" {id}")).collect();
                format!("B {generation} {epoch} {step}{ids}")
            }
            Event::Acked(epoch, step) => format!("A {generation} {epoch} {step}"),
            Event::Error(text) => format!("E {generation} {}", text.replace('\n', " ")),
        };
        // One write, so that a line is complete or missing.
        self.0.write_all(format!("{} {event}\n", now()).as_bytes()).unwrap();
    }
}

/// Follows the file of one process.
pub(super) struct Tail {
    pub(super) path: PathBuf,
    pub(super) rank: u32,
    pub(super) process: u32,
    read: u64,
}

impl Tail {
    pub(super) fn new(path: PathBuf, rank: u32, process: u32) -> Self {
        Self { path, rank, process, read: 0 }
    }

    /// Returns the new lines.
    pub(super) fn more(&mut self) -> Vec<Entry> {
        let Ok(mut file) = File::open(&self.path) else { return Vec::new() };
        file.seek(SeekFrom::Start(self.read)).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        let complete = text.rfind('\n').map_or("", |end| &text[..=end]);
        self.read += complete.len() as u64;
        complete.lines().map(|line| self.entry(line)).collect()
    }

    fn entry(&self, line: &str) -> Entry {
        let mut parts = line.splitn(4, ' ');
        let mut part = || parts.next().unwrap_or("");
        let (at, kind, generation, rest) = (part().parse().unwrap(), part(), part().parse().unwrap(), part());
        let numbers: Vec<i64> = rest.split(' ').filter_map(|number| number.parse().ok()).collect();
        let position = || (numbers[0] as u64, numbers[1] as u64);
        let event = match kind {
            "J" if numbers.is_empty() => Event::Joined(None),
            "J" => Event::Joined(Some(position())),
            "B" => Event::Batch(position().0, position().1, numbers[2..].to_vec()),
            "A" => Event::Acked(position().0, position().1),
            _ => Event::Error(rest.to_owned()),
        };
        Entry { at, rank: self.rank, process: self.process, generation, event }
    }
}

/// The promises of a run.
pub(super) struct Promised {
    pub(super) world: u32,
    /// Steps of an epoch.
    pub(super) steps: u64,
    /// Rows of an epoch.
    pub(super) rows: i64,
    /// Completed epochs.
    pub(super) epochs: u64,
    /// Acknowledgements removed from the journal on purpose, after they had been answered.
    pub(super) taken: usize,
}

#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    pub(super) violations: Vec<String>,
    pub(super) generations: usize,
    pub(super) committed: u64,
    /// Batches received although a newer generation had begun; they could not be committed.
    pub(super) stale: usize,
}

/// Looks for every broken promise.
pub(super) fn check(entries: &[Entry], promised: &Promised) -> Found {
    let Promised { world, steps, rows, epochs, taken } = *promised;
    // Positions as numbers: step `step` of epoch `epoch` ends at this one, and 0 is the start.
    let position = |epoch: u64, step: u64| epoch * steps + step + 1;
    let mut found = Found::default();
    let mut began: BTreeMap<u64, u64> = BTreeMap::new();
    let mut first_seen: BTreeMap<u64, u64> = BTreeMap::new();
    let mut processes: BTreeMap<(u64, u32), u32> = BTreeMap::new();
    let mut batches: BTreeMap<(u64, u64, u32), (u64, &[i64])> = BTreeMap::new();
    let mut acked: BTreeMap<(u64, u64), BTreeSet<u32>> = BTreeMap::new();
    let mut wrong = |text: String| found.violations.push(text);
    for entry in entries {
        let (generation, rank) = (entry.generation, entry.rank);
        if matches!(entry.event, Event::Error(_)) {
            continue;
        }
        let process = *processes.entry((generation, rank)).or_insert(entry.process);
        if process != entry.process {
            wrong(format!("processes {process} and {} were rank {rank} of generation {generation}", entry.process));
        }
        match &entry.event {
            Event::Joined(resume) => {
                let at = resume.map_or(0, |(epoch, step)| position(epoch, step));
                let first = *began.entry(generation).or_insert(at);
                if first != at {
                    wrong(format!("generation {generation} began after position {first} and after {at}"));
                }
                let seen = first_seen.entry(generation).or_insert(entry.at);
                *seen = entry.at.min(*seen);
            }
            Event::Batch(epoch, step, ids) => {
                let at = position(*epoch, *step);
                if batches.insert((generation, at, rank), (entry.at, ids)).is_some() {
                    wrong(format!("rank {rank} got position {at} twice in generation {generation}"));
                }
            }
            Event::Acked(epoch, step) => {
                acked.entry((generation, position(*epoch, *step))).or_default().insert(rank);
            }
            Event::Error(_) => {}
        }
    }
    let newer = |generation: u64| first_seen.range(generation + 1..).map(|(_, at)| *at).min().unwrap_or(u64::MAX);
    for ((generation, at, rank), (time, _)) in &batches {
        let stale = *time > newer(*generation);
        found.stale += usize::from(stale);
        if stale && acked.get(&(*generation, *at)).is_some_and(|ranks| ranks.contains(rank)) {
            wrong(format!(
                "rank {rank} of generation {generation} committed position {at} after a newer one had begun"
            ));
        }
    }
    let end = epochs * steps;
    let order: Vec<(u64, u64)> = began.into_iter().collect();
    let mut counted: BTreeMap<u64, Vec<i64>> = BTreeMap::new();
    let mut forgotten = 0;
    for (index, (generation, from)) in order.iter().enumerate() {
        let to = order.get(index + 1).map_or(end, |(_, next)| *next);
        if to < *from || (index == 0 && *from != 0) {
            wrong(format!("generation {generation} began after position {from}, the next one after {to}"));
        }
        let last = order.len() == index + 1;
        let of_all = acked.range((*generation, 0)..(generation + 1, 0)).filter(|(_, by)| by.len() == world as usize);
        forgotten += of_all.filter(|((_, at), _)| !last && *at > to).count();
        for at in from + 1..=to {
            found.committed += 1;
            for rank in 0..world {
                match batches.get(&(*generation, at, rank)) {
                    Some((_, ids)) => counted.entry((at - 1) / steps).or_default().extend(*ids),
                    None => {
                        wrong(format!("generation {generation} committed position {at}, which rank {rank} never got"))
                    }
                }
            }
        }
    }
    if forgotten > taken {
        wrong(format!("{forgotten} steps that all ranks had acknowledged were done again; {taken} were taken away"));
    }
    for epoch in 0..epochs {
        let mut ids = counted.remove(&epoch).unwrap_or_default();
        ids.sort_unstable();
        let all = ids.len();
        ids.dedup();
        let there = ids.iter().filter(|id| (0..rows).contains(id)).count();
        let (duplicates, missing, strange) = (all - ids.len(), rows as usize - there, ids.len() - there);
        if (duplicates, missing, strange) != (0, 0, 0) {
            wrong(format!("epoch {epoch}: {duplicates} rows twice, {missing} missing, {strange} of no dataset"));
        }
    }
    found.generations = order.len();
    found
}

/// A correct run of two ranks: one generation of three steps, and one for the rest of two epochs.
fn good() -> (Vec<Entry>, Promised) {
    let mut entries = Vec::new();
    let mut time = 0;
    for (generation, from, upto, resume) in [(1, 0, 3, None), (2, 2, 8, Some((0, 1)))] {
        let mut push = |rank, event| {
            time += 1;
            entries.push(Entry { at: time, rank, process: rank, generation, event });
        };
        (0..2).for_each(|rank| push(rank, Event::Joined(resume)));
        for at in from..upto {
            let (epoch, step) = (at / 4, at % 4);
            for rank in 0..2 {
                push(rank, Event::Batch(epoch, step, vec![(step * 2) as i64 + i64::from(rank)]));
                // In the first generation, rank 1 does not acknowledge the last step.
                if (generation, at, rank) != (1, 2, 1) {
                    push(rank, Event::Acked(epoch, step));
                }
            }
        }
    }
    (entries, Promised { world: 2, steps: 4, rows: 8, epochs: 2, taken: 0 })
}

#[test]
fn the_checker_finds_every_broken_promise() {
    let (entries, promised) = good();
    let found = check(&entries, &promised);
    assert_eq!((found.violations.as_slice(), found.generations, found.committed), (&[][..], 2, 8));
    let broken = |what: &str, change: &dyn Fn(&mut Vec<Entry>)| {
        let mut entries = entries.clone();
        change(&mut entries);
        let found = check(&entries, &promised).violations;
        assert!(found.iter().any(|found| found.contains(what)), "{what}: {found:?}");
    };
    let batch = |entry: &Entry, generation, epoch, step| {
        entry.generation == generation && matches!(&entry.event, Event::Batch(e, s, _) if (*e, *s) == (epoch, step))
    };
    broken("missing", &|entries| entries.retain(|entry| !batch(entry, 2, 1, 2)));
    broken("never got", &|entries| entries.retain(|entry| !batch(entry, 1, 0, 1)));
    broken("rows twice", &|entries| {
        let at = entries.iter().position(|entry| batch(entry, 2, 0, 3)).unwrap();
        entries[at].event = Event::Batch(0, 3, vec![0]);
    });
    broken("twice in generation", &|entries| entries.push(entries[2].clone()));
    broken("done again", &|entries| {
        entries.push(Entry { rank: 1, process: 1, event: Event::Acked(0, 2), ..entries[0].clone() });
    });
    broken("after a newer one", &|entries| {
        let late: Vec<usize> = (0..entries.len()).filter(|at| batch(&entries[*at], 1, 0, 1)).collect();
        late.iter().for_each(|at| entries[*at].at = 1_000);
    });
    broken("began after position", &|entries| entries[1].event = Event::Joined(Some((0, 0))));
    broken("processes 0 and 7", &|entries| entries.push(Entry { process: 7, ..entries[0].clone() }));
}
