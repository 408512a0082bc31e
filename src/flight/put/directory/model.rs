//! Commits on a disk that is killed, fails or loses its power at each step: a dataset is then the old one or the new one, whole.
//!
//! The directory is the real code. The model reads the readers' view from the disk by other means, and compares it with a list of rows.

use std::collections::BTreeSet;
use std::fmt;
use std::hash::DefaultHasher;

use super::*;
use crate::flight::explore::{Broken, Explored, System, explore, tell};
use crate::store::crashing::{CrashingFiles, Fate, Quirks, Tree};

/// A defect that must not go unnoticed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Planted {
    #[default]
    Nothing,
    /// The name leads to the new version before its files are there.
    ShownFirst,
    /// The old version goes before the name leads to the new one.
    OldGoesFirst,
    /// Commits are not remembered.
    Unremembered,
}

/// An operation of the driver, repeated until it is done.
#[derive(Debug, Clone, Copy)]
enum Op {
    /// Commits a write, remembered as `once`, of tasks with a row each.
    Commit {
        id: &'static str,
        once: &'static str,
        mode: Mode,
        rows: &'static [u8],
    },
    Drop,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Commit { id, once, mode, .. } if id == once => write!(f, "commit {id} ({mode:?})"),
            Self::Commit { id, once, mode, .. } => write!(f, "commit {id} as {once} ({mode:?})"),
            Self::Drop => write!(f, "drop"),
        }
    }
}

const fn commit(id: &'static str, once: &'static str, mode: Mode, rows: &'static [u8]) -> Op {
    Op::Commit { id, once, mode, rows }
}

/// Every mode, two writers of one name, a dataset that is dropped and made anew.
const PLAN: &[Op] = &[
    commit("a", "a", Mode::Create, &[1]),
    commit("b", "x", Mode::Append, &[2, 3]),
    commit("c", "x", Mode::Append, &[4]),
    commit("d", "d", Mode::Replace, &[5]),
    commit("e", "e", Mode::Create, &[6]),
    Op::Drop,
    commit("f", "f", Mode::Create, &[7]),
];

/// The promised state: the rows that readers see, and the commits that are remembered.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Promise {
    rows: Option<Vec<u8>>,
    commits: BTreeSet<&'static str>,
}

impl Promise {
    /// The state after `op`, and true if `op` is refused.
    fn after(&self, op: Op) -> (Self, bool) {
        let mut after = self.clone();
        match op {
            Op::Drop => (after.rows, after.commits) = (None, BTreeSet::new()),
            Op::Commit { once, .. } if self.commits.contains(once) => {}
            Op::Commit { mode: Mode::Create, .. } if self.rows.is_some() => return (after, true),
            Op::Commit { once, mode, rows, .. } => {
                let kept = if mode == Mode::Append { after.rows.unwrap_or_default() } else { Vec::new() };
                after.rows = Some([kept, rows.to_vec()].concat());
                after.commits.insert(once);
            }
        }
        (after, false)
    }
}

/// One moment.
#[derive(Debug, Clone)]
struct Moment {
    files: Arc<CrashingFiles>,
    /// True if a process has the directory open.
    is_open: bool,
    /// The next operation of the plan.
    at: usize,
    promise: Promise,
    /// The alternative state after a power cut, if the last operation ended with an error or a warning.
    perhaps: Option<Promise>,
    faults: u8,
}

/// An event and its outcome.
#[derive(Debug)]
struct Event {
    words: String,
    after: Result<Moment, String>,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

#[derive(Debug)]
struct Put {
    plan: &'static [Op],
    faults: u8,
    quirks: Quirks,
    planted: Planted,
    lock: Arc<Lock>,
    _home: tempfile::TempDir,
}

impl Put {
    fn new(plan: &'static [Op], faults: u8) -> Self {
        let home = tempfile::tempdir().unwrap();
        let lock = Arc::new(Lock::take(&home.path().join("lock"), "test").unwrap());
        Self { plan, faults, quirks: Quirks::default(), planted: Planted::Nothing, lock, _home: home }
    }

    fn directory(&self, files: &Arc<CrashingFiles>) -> Directory {
        Directory {
            leases: Leases::default(),
            root: PathBuf::from("/"),
            hidden: Path::new("/").join(HIDDEN),
            pins: Default::default(),
            options: WriterOptions::default(),
            disk: Disk::new(DiskQuotas::default()),
            files: Arc::clone(files) as Arc<dyn Files>,
            planted: self.planted,
            _lock: Arc::clone(&self.lock),
        }
    }

    /// The start of a process: it removes leftovers of another one.
    fn open(&self, files: &Arc<CrashingFiles>) -> Result<Directory> {
        let (options, disk) = (WriterOptions::default(), DiskQuotas::default());
        // As a process does before it takes the lock.
        let hidden = Path::new("/").join(HIDDEN);
        files.create_directories(&hidden).map_err(|error| failed("create", &hidden, error))?;
        let files = Arc::clone(files) as Arc<dyn Files>;
        Directory::open_on(files, Path::new("/"), options, disk, Arc::clone(&self.lock))
    }

    /// An attempt that is staged, whole and on the disk.
    fn piece(files: &Arc<CrashingFiles>, number: usize, row: u8) -> Arc<Piece> {
        let staged = Path::new("/").join(HIDDEN).join(STAGED);
        let directory = staged.join(number.to_string());
        if files.is_directory(&directory) {
            files.remove_directory(&directory).unwrap();
        }
        files.create_directory(&directory).unwrap();
        files.put_file(&directory.join("part-00000.parquet"), &[row]).unwrap();
        files.put_file(&directory.join("_SUCCESS"), &[]).unwrap();
        files.flush(&directory).unwrap();
        files.flush(&staged).unwrap();
        let written = Written { files: 1, rows: 1, row_groups: 1, bytes: 1 };
        let disk = Mutex::new(Disk::new(DiskQuotas::default()).claim(None));
        let files = Arc::clone(files) as Arc<dyn Files>;
        let columns = vec!["id".to_owned()];
        Arc::new(Piece { files, _pins: Default::default(), directory, written, columns, disk })
    }

    /// Does the next step of the plan on a disk with this fate.
    fn run(&self, moment: &Moment, fate: Fate) -> (Arc<CrashingFiles>, Result<()>) {
        let files = moment.files.again(Fate::Well);
        if moment.perhaps.is_none() {
            files.settle();
        }
        let staging = Arc::new(files);
        let directory = self.directory(&staging);
        match self.plan[moment.at] {
            Op::Drop => {
                staging.meet(fate);
                let outcome = directory.drop_dataset("d").map(drop);
                (staging, outcome)
            }
            Op::Commit { id, once, mode, rows } => {
                let pieces: Vec<Arc<Piece>> =
                    rows.iter().map(|row| Self::piece(&staging, usize::from(*row), *row)).collect();
                staging.meet(fate);
                let (write, remembered) = (WriteId::new("d", id).unwrap(), WriteId::new("d", once).unwrap());
                let outcome = match directory.repeated(&remembered) {
                    Ok(Some(_)) => Ok(()),
                    Ok(None) => directory.publish(&write, once, mode, &pieces).map(drop),
                    Err(error) => Err(error),
                };
                drop(pieces);
                (staging, outcome)
            }
        }
    }

    /// The moment after a crash, which leaves `tree`: one of the promises must hold.
    fn crashed(&self, moment: &Moment, tree: Tree, allowed: &[Promise]) -> Result<Moment, String> {
        let rows = seen(&tree)?;
        let Some(promise) = allowed.iter().find(|promise| promise.rows == rows) else {
            let allowed: Vec<_> = allowed.iter().map(|it| &it.rows).collect();
            return Err(format!("readers see {rows:?}, promised was one of {allowed:?}"));
        };
        let files = Arc::new(CrashingFiles::new(tree, Fate::Well, self.quirks));
        let (promise, perhaps) = (promise.clone(), None);
        Ok(Moment { files, is_open: false, promise, perhaps, faults: moment.faults - 1, ..moment.clone() })
    }

    /// The moment after the step went through, or failed, while the process lives on.
    fn done(
        &self,
        moment: &Moment,
        files: Arc<CrashingFiles>,
        outcome: Result<()>,
        fate: Fate,
    ) -> Result<Moment, String> {
        let (after, is_refused) = moment.promise.after(self.plan[moment.at]);
        let rows = seen(&files.now())?;
        let mut next = Moment { files, perhaps: None, ..moment.clone() };
        next.faults -= u8::from(fate != Fate::Well);
        match outcome {
            Ok(()) if is_refused => return Err("what must be refused was done".into()),
            Err(error) if fate == Fate::Well && !is_refused => {
                return Err(format!("it failed by itself: {}", error.chain()));
            }
            Ok(()) => {
                // On a disk that fails for good, a warning says that a power cut may undo it.
                next.perhaps = matches!(fate, Fate::FailsForGood(_)).then(|| moment.promise.clone());
                (next.promise, next.at) = (after, moment.at + 1);
            }
            Err(_) if is_refused => next.at += 1,
            Err(_) => {
                let is_drop = matches!(self.plan[moment.at], Op::Drop);
                next.perhaps = Some(after.clone());
                if is_drop && rows == after.rows {
                    // Then it is as it was, or gone.
                    next.promise = after;
                    next.perhaps = Some(moment.promise.clone());
                }
            }
        }
        if rows != next.promise.rows {
            return Err(format!("readers see {rows:?}, promised was {:?}", next.promise.rows));
        }
        Ok(next)
    }

    fn steps(&self, moment: &Moment, all: &mut Vec<(Event, bool)>) {
        let op = self.plan[moment.at];
        let (after, _) = moment.promise.after(op);
        let (files, outcome) = self.run(moment, Fate::Well);
        let count = files.count();
        all.push((Event { words: op.to_string(), after: self.done(moment, files, outcome, Fate::Well) }, false));
        if moment.faults == 0 {
            return;
        }
        let mut allowed = vec![moment.promise.clone(), after];
        allowed.extend(moment.perhaps.clone());
        for at in 1..=count {
            let (files, _) = self.run(moment, Fate::Killed(at));
            let words = format!("{op}, killed before step {at} of {count}");
            all.push((Event { words, after: self.crashed(moment, files.now(), &allowed) }, true));
            for (tree, lost) in files.after_power_cut() {
                let words = format!("{op}, power cut before step {at} of {count}, which takes: {lost}");
                all.push((Event { words, after: self.crashed(moment, tree, &allowed) }, true));
            }
            for fate in [Fate::Fails(at), Fate::FailsForGood(at)] {
                let (files, outcome) = self.run(moment, fate);
                let words = format!("{op}, {fate:?} of {count} steps");
                all.push((Event { words, after: self.done(moment, files, outcome, fate) }, true));
            }
        }
    }

    fn starts(&self, moment: &Moment, all: &mut Vec<(Event, bool)>) {
        let start = |fate| {
            let files = Arc::new(moment.files.again(fate));
            let outcome = self.open(&files);
            (files, outcome)
        };
        let (files, outcome) = start(Fate::Well);
        let count = files.count();
        let clean = || {
            outcome.map_err(|error| format!("nothing starts: {}", error.chain()))?;
            litter(&files.now(), moment.promise.rows.is_some())?;
            Ok(Moment { files, is_open: true, ..moment.clone() })
        };
        all.push((Event { words: "a process starts".into(), after: clean() }, false));
        for at in (1..=count).filter(|_| moment.faults > 0) {
            let (files, _) = start(Fate::Killed(at));
            let allowed = [moment.promise.clone()];
            let words = format!("a process starts, and is killed before step {at} of {count}");
            all.push((Event { words, after: self.crashed(moment, files.now(), &allowed) }, true));
            for (tree, lost) in files.after_power_cut() {
                let words = format!("a process starts, power cut before step {at} of {count}, which takes: {lost}");
                all.push((Event { words, after: self.crashed(moment, tree, &allowed) }, true));
            }
        }
    }
}

/// The rows that readers find, by other means than the directory's.
fn seen(tree: &Tree) -> Result<Option<Vec<u8>>, String> {
    let name = Path::new("/d");
    if !tree.has(name) {
        return Ok(None);
    }
    let files = tree.files(name).ok_or("the dataset's name leads nowhere")?;
    let record = files.get(RECORD).ok_or("the dataset has no record")?;
    serde_json::from_slice::<serde_json::Value>(record).map_err(|error| format!("the record is torn: {error}"))?;
    files.get("_SUCCESS").ok_or("the dataset is not marked as whole")?;
    let rows = files.iter().filter(|(name, _)| name.ends_with(".parquet"));
    let row = |(name, content): (&String, &Vec<u8>)| content.first().copied().ok_or_else(|| format!("{name} is torn"));
    rows.map(row).collect::<Result<Vec<u8>, String>>().map(Some)
}

/// Checks that a start leaves only the visible version.
fn litter(tree: &Tree, is_there: bool) -> Result<(), String> {
    let files = CrashingFiles::new(tree.clone(), Fate::Well, Quirks::default());
    let hidden = Path::new("/").join(HIDDEN);
    let names = |name: &str| files.names(&hidden.join(name)).unwrap_or_default();
    let (versions, staged) = (names("d"), names(STAGED));
    if versions.len() != usize::from(is_there) || !staged.is_empty() {
        return Err(format!("a start leaves versions {versions:?} and attempts {staged:?}"));
    }
    Ok(())
}

impl System for Put {
    type State = Moment;
    type Action = Event;

    fn starts(&self) -> Vec<Moment> {
        let files = Arc::new(CrashingFiles::new(Tree::default(), Fate::Well, self.quirks));
        let promise = Promise { rows: None, commits: BTreeSet::new() };
        vec![Moment { files, is_open: false, at: 0, promise, perhaps: None, faults: self.faults }]
    }

    fn actions(&self, moment: &Moment) -> Vec<(Event, bool)> {
        let mut all = Vec::new();
        if !moment.is_open {
            self.starts(moment, &mut all);
        } else if moment.at < self.plan.len() {
            self.steps(moment, &mut all);
        }
        if moment.is_open && moment.faults > 0 && !moment.files.is_settled() {
            let mut allowed = vec![moment.promise.clone()];
            allowed.extend(moment.perhaps.clone());
            for (tree, lost) in moment.files.after_power_cut() {
                let words = format!("a power cut takes: {lost}");
                all.push((Event { words, after: self.crashed(moment, tree, &allowed) }, true));
            }
        }
        all
    }

    fn act(&self, _: &Moment, event: &Event) -> Result<Moment, String> {
        event.after.clone()
    }

    /// Checks that every process answers a commit as it was made.
    fn check(&self, moment: &Moment) -> Result<(), String> {
        if !moment.is_open {
            return Ok(());
        }
        let directory = self.directory(&moment.files);
        for op in self.plan {
            let Op::Commit { once, .. } = op else { continue };
            let answer = directory.answer(&WriteId::new("d", once).unwrap()).map_err(|error| error.chain())?;
            if answer.is_some() != moment.promise.commits.contains(once) {
                return Err(format!("commit {once} is answered {answer:?}, of {:?}", moment.promise.commits));
            }
        }
        Ok(())
    }

    fn identify(&self, moment: &Moment, to: &mut DefaultHasher) {
        moment.files.identify(to);
        tell(to, &(moment.is_open, moment.at, &moment.promise, &moment.perhaps, moment.faults));
    }

    fn is_over(&self, moment: &Moment) -> bool {
        moment.is_open && moment.at == self.plan.len()
    }
}

#[expect(clippy::print_stdout, reason = "the figures of the test")]
fn holds(name: &str, put: &Put) -> Explored {
    let explored = explore(put, 5_000_000).unwrap_or_else(|broken| panic!("{name}:\n{broken}"));
    println!("{name}, {} faults at most: {explored}", put.faults);
    explored
}

#[expect(clippy::print_stdout, reason = "traces are to be read")]
fn caught(name: &str, put: &Put) -> Broken {
    match explore(put, 5_000_000) {
        Ok(explored) => panic!("{name} was not noticed: {explored}"),
        Err(broken) => {
            println!("{name}:\n{broken}\n");
            *broken
        }
    }
}

#[test]
fn whatever_happens_to_the_disk_a_dataset_is_the_old_one_or_the_new_one() {
    holds("7 steps of a driver", &Put::new(PLAN, 1));
    if std::env::var_os("BOWSTRING_SOAK").is_some() {
        holds("3 steps of a driver", &Put::new(&PLAN[..3], 2));
    }
}

#[test]
fn planted_defects_are_caught_by_short_traces() {
    let put = || Put::new(PLAN, 1);
    let quirks = |quirks| Put { quirks, ..put() };
    let planted = |planted| Put { planted, ..put() };
    let none = Quirks::default();
    let defects = [
        ("shown before all parts are there", planted(Planted::ShownFirst), "leads nowhere"),
        ("the old version goes first", planted(Planted::OldGoesFirst), ""),
        ("commits are not remembered", planted(Planted::Unremembered), "is answered None"),
        ("a disk without flushes", quirks(Quirks { no_flush: true, ..none }), ""),
        ("a name that is free for a moment", quirks(Quirks { slow_rename: true, ..none }), "readers see None"),
    ];
    for (name, put, promise) in defects {
        let broken = caught(name, &put);
        assert!(broken.promise.contains(promise), "{name} broke another promise: {broken}");
        assert!(broken.trace.len() <= 6, "{name}: {} steps are long to read", broken.trace.len());
    }
}
