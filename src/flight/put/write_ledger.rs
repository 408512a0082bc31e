//! The ledger of staged attempts by write, and the decisions about them: pure, with the clock as an argument.

#[cfg(test)]
mod model;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash as _, Hasher as _};
use std::time::Duration;

use tokio::time::Instant;

use super::{Committed, Staged, Token, WriteId};
use crate::error::{Error, Result};

/// Ratio of the most writes in all spaces to those in one.
const SPACES: usize = 16;

/// All writes. `P` is a staged attempt; dropping it removes it.
#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
pub(super) struct WriteLedger<P> {
    writes: HashMap<WriteId, Write<P>>,
    numbers: u64,
    /// Most writes of one space.
    max_writes: usize,
    max_attempts: usize,
}

#[derive(Debug)]
#[cfg_attr(test, derive(Clone))]
struct Write<P> {
    attempts: BTreeMap<Token, (Staged, P)>,
    /// Attempts that are being written.
    busy: usize,
    touched: Instant,
    phase: Phase,
    /// A hash of the attempts of its commit, if it was made here.
    chosen: Option<u64>,
}

impl<P> Write<P> {
    fn new(phase: Phase, now: Instant) -> Self {
        Self { attempts: BTreeMap::new(), busy: 0, touched: now, phase, chosen: None }
    }

    /// Returns true if nothing can come of it any more, and nothing is under way.
    fn is_over(&self) -> bool {
        self.busy == 0 && matches!(self.phase, Phase::Committed(_) | Phase::Aborted)
    }
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    Open,
    Committing,
    Committed(Committed),
    Aborted,
}

/// A hash of the set of `tokens`.
fn hash_of(tokens: &[Token]) -> u64 {
    let set: BTreeSet<&Token> = tokens.iter().collect();
    let mut hasher = std::hash::DefaultHasher::new();
    set.hash(&mut hasher);
    hasher.finish()
}

/// The work of a commit.
#[derive(Debug)]
pub(super) enum Commit<P> {
    /// It was made before, with this answer.
    Done(Committed),
    /// To be published, in the order of tasks.
    Publish(Vec<(Staged, P)>),
}

impl<P: Clone> WriteLedger<P> {
    /// A book whose tokens count from `first`: tokens of another life must be unknown here.
    pub(super) fn new(first: u64, max_writes: usize, max_attempts: usize) -> Self {
        Self { writes: HashMap::new(), numbers: first, max_writes, max_attempts }
    }

    /// Returns true if a call named the write before, and it was not forgotten since.
    pub(super) fn knows(&self, write: &WriteId) -> bool {
        self.writes.contains_key(write)
    }

    /// An attempt begins: its token.
    ///
    /// # Errors
    /// [`Error::Over`] if the write is over; [`Error::Closed`] while it is being committed; [`Error::Limit`] for too many writes or attempts.
    pub(super) fn begin(&mut self, write: &WriteId, task: u32, attempt: u32, now: Instant) -> Result<Token> {
        if !self.has_room(write) {
            return Err(limit("the number of writes", self.max_writes, "max_writes"));
        }
        let known = self.writes.entry(write.clone()).or_insert_with(|| Write::new(Phase::Open, now));
        open(write, known.phase)?;
        if known.attempts.len() + known.busy >= self.max_attempts {
            return Err(limit("the number of attempts of a write", self.max_attempts, "max_attempts"));
        }
        known.busy += 1;
        known.touched = now;
        self.numbers += 1;
        Ok(Token { task, attempt, number: self.numbers })
    }

    /// Returns true if `write` is known or there is room for it: among the writes of its space, so that none keeps the others out, and
    /// among all. Finished writes make room, the oldest first: their answers are repeated from the dataset's record. That another space's
    /// write was aborted is on no record, and is forgotten last.
    fn has_room(&mut self, write: &WriteId) -> bool {
        if self.writes.contains_key(write) {
            return true;
        }
        let own = self.writes.keys().filter(|known| known.space() == write.space()).count();
        let full = own >= self.max_writes;
        if !full && self.writes.len() < self.max_writes.saturating_mul(SPACES) {
            return true;
        }
        let over = self.writes.iter().filter(|(known, it)| it.is_over() && (!full || known.space() == write.space()));
        let is_on_no_record =
            |known: &WriteId, it: &Write<P>| matches!(it.phase, Phase::Aborted) && known.space() != write.space();
        let oldest =
            over.min_by_key(|(known, it)| (is_on_no_record(known, it), it.touched)).map(|(known, _)| known.clone());
        oldest.is_some_and(|oldest| self.writes.remove(&oldest).is_some())
    }

    /// Ends an attempt, with its staged result or without. Each [`begin`](Self::begin) has one end.
    ///
    /// # Errors
    /// [`Error::Over`] if the write was ended meanwhile, [`Error::Closed`] while it is being committed: the attempt does not count.
    pub(super) fn end(&mut self, write: &WriteId, staged: Option<(Staged, P)>, now: Instant) -> Result<()> {
        let Some(known) = self.writes.get_mut(write) else { return Err(over(write, "gone")) };
        known.busy = known.busy.saturating_sub(1);
        known.touched = now;
        open(write, known.phase)?;
        if let Some(staged) = staged {
            known.attempts.insert(staged.0.token, staged);
        }
        Ok(())
    }

    /// Checks that a commit of `tokens` is the first of `write`, or repeats the one that was made here.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if other attempts were committed: another writer has this write too.
    pub(super) fn check_repeated(&self, write: &WriteId, tokens: &[Token]) -> Result<()> {
        let committed = self.writes.get(write).filter(|known| matches!(known.phase, Phase::Committed(_)));
        if committed.and_then(|known| known.chosen).is_none_or(|chosen| chosen == hash_of(tokens)) {
            return Ok(());
        }
        Err(Error::Mismatch {
            what: format!("attempts of write {:?} of dataset {:?}, which is committed", write.id(), write.dataset()),
            expected: "those that it was committed with".to_owned(),
            found: "others".to_owned(),
            hint: "give each writer a write of its own".to_owned(),
        })
    }

    /// A commit begins. Until its end, nothing else may be done with the write.
    ///
    /// # Errors
    /// [`Error::NotFound`] names a token that is not staged; [`Error::Config`] without any; [`Error::Mismatch`] names two attempts of one
    /// task; [`Error::Over`] if the write was aborted; [`Error::Closed`] if it is being committed by another call.
    pub(super) fn begin_commit(&mut self, write: &WriteId, tokens: &[Token], now: Instant) -> Result<Commit<P>> {
        let missing = |token: &Token| Error::NotFound {
            what: format!("attempt {} of task {} of write {:?}", token.attempt, token.task, write.id()),
            hint: "it was not staged here, or its time was over; stage the write again".to_owned(),
        };
        let Some(known) = self.writes.get_mut(write) else {
            return Err(tokens.first().map_or_else(|| none_given(write), missing));
        };
        if let Phase::Committed(committed) = known.phase {
            return Ok(Commit::Done(committed));
        }
        open(write, known.phase)?;
        let mut chosen = BTreeMap::new();
        for token in tokens {
            let staged = known.attempts.get(token).ok_or_else(|| missing(token))?;
            if let Some((other, _)) = chosen.insert(token.task, staged.clone())
                && other.token != *token
            {
                return Err(Error::Mismatch {
                    what: format!("attempts of task {} of write {:?}", token.task, write.id()),
                    expected: "one".to_owned(),
                    found: format!("attempts {} and {}", other.token.attempt, token.attempt),
                    hint: "commit the attempt that the task's result came from".to_owned(),
                });
            }
        }
        if chosen.is_empty() {
            return Err(none_given(write));
        }
        (known.phase, known.chosen) = (Phase::Committing, Some(hash_of(tokens)));
        known.touched = now;
        Ok(Commit::Publish(chosen.into_values().collect()))
    }

    /// Ends a commit: `committed` if it was made. Returns attempts that are no longer needed. An unknown write that was committed, by a
    /// server before this one, is remembered: it cannot be aborted any more.
    pub(super) fn end_commit(&mut self, write: &WriteId, committed: Option<Committed>, now: Instant) -> Vec<P> {
        let Some(committed) = committed else {
            if let Some(known) = self.writes.get_mut(write) {
                (known.phase, known.touched) = (Phase::Open, now);
            }
            return Vec::new();
        };
        if !self.has_room(write) {
            return Vec::new();
        }
        let phase = Phase::Committed(committed);
        let known = self.writes.entry(write.clone()).or_insert_with(|| Write::new(phase, now));
        (known.phase, known.touched) = (phase, now);
        std::mem::take(&mut known.attempts).into_values().map(|(_, piece)| piece).collect()
    }

    /// Ends a write. Returns attempts that are no longer needed. An unknown write is remembered as aborted, so that its stragglers are
    /// refused.
    ///
    /// # Errors
    /// [`Error::Over`] if it is committed; [`Error::Closed`] while it is being committed.
    pub(super) fn abort(&mut self, write: &WriteId, now: Instant) -> Result<Vec<P>> {
        if !self.has_room(write) {
            return Ok(Vec::new());
        }
        let known = self.writes.entry(write.clone()).or_insert_with(|| Write::new(Phase::Aborted, now));
        match known.phase {
            Phase::Committed(_) => return Err(over(write, "committed")),
            Phase::Committing => return Err(committing(write)),
            Phase::Open | Phase::Aborted => known.phase = Phase::Aborted,
        }
        known.touched = now;
        Ok(std::mem::take(&mut known.attempts).into_values().map(|(_, piece)| piece).collect())
    }

    /// Ends all known open writes to `dataset` whose ids begin with `prefix`; ids not seen before can still begin. Returns their number,
    /// and attempts that are no longer needed.
    pub(super) fn abort_all(&mut self, dataset: &str, prefix: &str, now: Instant) -> (usize, Vec<P>) {
        let (mut count, mut gone) = (0, Vec::new());
        for (write, known) in &mut self.writes {
            if write.dataset() == dataset && write.id().starts_with(prefix) && matches!(known.phase, Phase::Open) {
                known.phase = Phase::Aborted;
                known.touched = now;
                count += 1;
                gone.extend(std::mem::take(&mut known.attempts).into_values().map(|(_, piece)| piece));
            }
        }
        (count, gone)
    }

    /// Forgets writes without activity for `ttl`. Returns attempts that are no longer needed.
    pub(super) fn expire(&mut self, ttl: Duration, now: Instant) -> Vec<P> {
        let mut gone = Vec::new();
        self.writes.retain(|_, write| {
            let working = write.busy > 0 || matches!(write.phase, Phase::Committing);
            let keep = working || now.saturating_duration_since(write.touched) < ttl;
            if !keep {
                gone.extend(std::mem::take(&mut write.attempts).into_values().map(|(_, piece)| piece));
            }
            keep
        });
        gone
    }

    /// Writes that are remembered.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.writes.len()
    }
}

fn open(write: &WriteId, phase: Phase) -> Result<()> {
    match phase {
        Phase::Open => Ok(()),
        Phase::Committing => Err(committing(write)),
        Phase::Committed(_) => Err(over(write, "committed")),
        Phase::Aborted => Err(over(write, "aborted")),
    }
}

/// The error of a call that comes too late for `write`.
pub(super) fn over(write: &WriteId, how: &str) -> Error {
    Error::Over { why: format!("write {:?} of dataset {:?} is {how}", write.id(), write.dataset()) }
}

/// The error of a call during a commit, which may fail yet: the same call later has a final answer.
fn committing(write: &WriteId) -> Error {
    Error::Closed { why: format!("write {:?} of dataset {:?} is being committed", write.id(), write.dataset()) }
}

/// The error of a commit without attempts.
fn none_given(write: &WriteId) -> Error {
    let problem = format!(
        "none is given for write {:?} of dataset {:?}; stage an attempt, one without rows will do, and name its token",
        write.id(),
        write.dataset()
    );
    Error::config("attempts", problem)
}

fn limit(what: &str, limit: usize, option: &'static str) -> Error {
    Error::limit(what.to_owned(), limit as u64 + 1, limit as u64, option)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged(token: Token) -> (Staged, u64) {
        (Staged { token, rows: 1, bytes: 1 }, token.number)
    }

    fn stage(book: &mut WriteLedger<u64>, write: &WriteId, task: u32, attempt: u32, now: Instant) -> Token {
        let token = book.begin(write, task, attempt, now).unwrap();
        book.end(write, Some(staged(token)), now).unwrap();
        token
    }

    #[test]
    fn a_write_goes_through_its_phases() {
        let now = Instant::now();
        let mut book = WriteLedger::new(0, 10, 10);
        let write = WriteId::new("d", "w").unwrap();
        let first = stage(&mut book, &write, 1, 0, now);
        let again = stage(&mut book, &write, 1, 0, now);
        let other = stage(&mut book, &write, 0, 3, now);
        assert_ne!(first, again, "a repeated call has a token of its own");
        let unknown = Token { number: 99, ..first };
        assert!(matches!(book.begin_commit(&write, &[unknown], now), Err(Error::NotFound { .. })));
        for write in [&write, &WriteId::new("d", "never-begun").unwrap()] {
            let refused = matches!(book.begin_commit(write, &[], now), Err(Error::Config { .. }));
            assert!(refused, "a kind that a client does not try again");
        }
        assert!(matches!(book.begin_commit(&write, &[first, again], now), Err(Error::Mismatch { .. })));
        let Commit::Publish(chosen) = book.begin_commit(&write, &[again, other], now).unwrap() else { panic!() };
        assert_eq!(chosen.iter().map(|(_, piece)| *piece).collect::<Vec<_>>(), [other.number, again.number]);
        assert!(book.begin_commit(&write, &[again], now).is_err(), "one commit at a time");
        assert!(matches!(book.begin(&write, 5, 0, now), Err(Error::Closed { .. })), "the commit may fail yet");
        assert!(matches!(book.abort(&write, now), Err(Error::Closed { .. })));
        assert!(book.end_commit(&write, None, now).is_empty(), "what failed may be tried again");
        assert!(matches!(book.begin_commit(&write, &[again], now), Ok(Commit::Publish(_))));
        let committed = Committed { rows: 1, bytes: 1, files: 1 };
        assert_eq!(book.end_commit(&write, Some(committed), now).len(), 3);
        let Ok(Commit::Done(answer)) = book.begin_commit(&write, &[unknown], now) else { panic!() };
        assert_eq!(answer, committed);
        assert!(book.check_repeated(&write, &[again]).is_ok());
        for others in [&[again, other][..], &[first], &[unknown], &[]] {
            assert!(matches!(book.check_repeated(&write, others), Err(Error::Mismatch { .. })));
        }
        assert!(book.check_repeated(&WriteId::new("d", "x").unwrap(), &[first]).is_ok());
        assert!(matches!(book.abort(&write, now), Err(Error::Over { .. })));
        assert!(matches!(book.begin(&write, 0, 0, now), Err(Error::Over { .. })));
    }

    #[test]
    fn all_tries_of_a_name_are_ended_and_the_next_may_begin() {
        let now = Instant::now();
        let mut book = WriteLedger::new(0, 10, 10);
        let write = |dataset: &str, id: &str| WriteId::new(dataset, id).unwrap();
        let first = stage(&mut book, &write("d", "q-1-a"), 0, 0, now);
        let straggler = book.begin(&write("d", "q-1-a"), 1, 0, now).unwrap();
        let second = stage(&mut book, &write("d", "q-1-b"), 0, 0, now);
        let done = stage(&mut book, &write("d", "q-1-c"), 0, 0, now);
        book.begin_commit(&write("d", "q-1-c"), &[done], now).unwrap();
        stage(&mut book, &write("d", "q-10"), 0, 0, now);
        stage(&mut book, &write("e", "q-1-a"), 0, 0, now);
        let (count, mut gone) = book.abort_all("d", "q-1-", now);
        gone.sort_unstable();
        assert_eq!((count, gone), (2, vec![first.number, second.number]));
        assert!(book.end(&write("d", "q-1-a"), Some(staged(straggler)), now).is_err(), "its attempt does not count");
        assert!(book.begin(&write("d", "q-1-b"), 1, 0, now).is_err());
        assert_eq!(book.abort_all("d", "q-1-", now), (0, Vec::new()));
        for (dataset, id) in [("d", "q-1-d"), ("d", "q-10"), ("e", "q-1-a")] {
            stage(&mut book, &write(dataset, id), 1, 0, now);
        }
        let committed = Committed { rows: 1, bytes: 1, files: 1 };
        assert_eq!(book.end_commit(&write("d", "q-1-c"), Some(committed), now), [done.number]);
    }

    #[test]
    fn writes_that_are_over_and_those_of_others_keep_nobody_out() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut book: WriteLedger<u64> = WriteLedger::new(0, 2, 10);
        let write = |id: &str| WriteId::new("d", id).unwrap().within("anna");
        for (second, id) in ["a", "b", "c"].iter().enumerate() {
            book.abort(&write(id), at(second as u64)).unwrap();
        }
        assert!(book.begin(&write("b"), 0, 0, at(3)).is_err() && book.len() == 2, "the oldest made room");
        let open = stage(&mut book, &write("d"), 0, 0, at(4));
        stage(&mut book, &write("e"), 0, 0, at(5));
        assert!(matches!(book.begin(&write("f"), 0, 0, at(6)), Err(Error::Limit { option: "max_writes", .. })));
        book.abort(&write("f"), at(6)).unwrap();
        assert_eq!(book.len(), 2, "what is open goes on, and nothing more is remembered");
        for space in 0..SPACES {
            stage(&mut book, &WriteId::new("d", "a").unwrap().within(&space.to_string()), 0, 0, at(7));
        }
        stage(&mut book, &WriteId::new("d", "a").unwrap(), 0, 0, at(7));
        let Ok(Commit::Publish(_)) = book.begin_commit(&write("d"), &[open], at(8)) else { panic!() };
        book.end_commit(&write("d"), Some(Committed { rows: 1, bytes: 1, files: 1 }), at(8));
        stage(&mut book, &write("g"), 0, 0, at(9));
        let Err(Error::NotFound { .. }) = book.begin_commit(&write("d"), &[open], at(9)) else { panic!() };
        for space in SPACES..2 * SPACES {
            let write = WriteId::new("d", "a").unwrap().within(&space.to_string());
            let begun = book.begin(&write, 0, 0, at(10));
            assert!(begun.is_ok() || book.len() == 2 * SPACES, "{space}");
        }
        assert_eq!(book.len(), 2 * SPACES, "all together are bounded");
    }

    #[test]
    fn a_full_ledger_forgets_what_is_on_record_before_that_a_write_of_another_space_was_aborted() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut book: WriteLedger<u64> = WriteLedger::new(0, 1, 10);
        let write = |space: usize| WriteId::new("d", "a").unwrap().within(&space.to_string());
        book.abort(&write(0), at(0)).unwrap();
        let token = stage(&mut book, &write(1), 0, 0, at(1));
        book.begin_commit(&write(1), &[token], at(2)).unwrap();
        book.end_commit(&write(1), Some(Committed { rows: 1, bytes: 1, files: 1 }), at(2));
        for space in 2..SPACES {
            stage(&mut book, &write(space), 0, 0, at(3));
        }
        book.begin(&write(SPACES), 0, 0, at(4)).unwrap();
        assert!(book.knows(&write(0)) && !book.knows(&write(1)));
        assert!(book.begin(&write(0), 1, 0, at(4)).is_err(), "a straggler of what was aborted");
        book.begin(&write(SPACES + 1), 0, 0, at(5)).unwrap();
        assert!(!book.knows(&write(0)), "none keeps the others out");
    }

    #[test]
    fn aborted_and_forgotten_writes_take_nothing() {
        let start = Instant::now();
        let ttl = Duration::from_secs(10);
        let mut book = WriteLedger::new(0, 2, 2);
        let (a, b) = (WriteId::new("d", "a").unwrap(), WriteId::new("d", "b").unwrap());
        let token = stage(&mut book, &a, 0, 0, start);
        let straggler = book.begin(&a, 1, 0, start).unwrap();
        assert!(matches!(book.begin(&a, 2, 0, start), Err(Error::Limit { .. })));
        assert_eq!(book.abort(&a, start).unwrap(), [token.number]);
        let kept = stage(&mut book, &b, 0, 0, start);
        let third = book.begin(&WriteId::new("d", "c").unwrap(), 0, 0, start);
        assert!(matches!(third, Err(Error::Limit { .. })), "a is still being written");
        assert!(book.end(&a, Some(staged(straggler)), start).is_err(), "its attempt does not count");
        assert!(book.begin(&a, 0, 1, start).is_err() && book.begin_commit(&a, &[token], start).is_err());
        let busy = book.begin(&b, 1, 0, start).unwrap();
        assert!(book.expire(ttl, start + ttl).is_empty(), "b is being written");
        assert_eq!(book.len(), 1);
        book.end(&b, Some(staged(busy)), start + ttl).unwrap();
        assert_eq!(book.expire(ttl, start + ttl * 2), [kept.number, busy.number]);
        assert_eq!(book.len(), 0);
    }
}
