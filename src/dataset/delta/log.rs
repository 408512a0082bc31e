//! The files of a log that make a version: the latest checkpoint that is whole, and every commit after it.
//!
//! ```text
//!   00..07.json                               commit 7
//!   00..05.checkpoint.parquet                 all of version 5 in one file
//!   00..05.checkpoint.00..01.00..03.parquet   the first of three parts of it
//!   00..05.checkpoint.<uuid>.json|parquet     version 5 of a table with checkpoints of the second kind, and the names of its sidecars
//! ```
//!
//! Everything else is left alone: checksums, compacted commits, which repeat what the commits say, and `_last_checkpoint`, which only
//! says what a listing says anyway.

use std::collections::BTreeMap;

/// Kind of a file of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Commit(u64),
    /// A part of a checkpoint, and how many there are; one of one by itself.
    Checkpoint {
        version: u64,
        part: u32,
        of: u32,
    },
}

impl Name {
    fn of(name: &str) -> Option<Self> {
        let (version, rest) = name.split_once('.')?;
        let version = number::<u64>(version, 20)?;
        let one = Self::Checkpoint { version, part: 1, of: 1 };
        match rest.split('.').collect::<Vec<_>>().as_slice() {
            ["json"] => Some(Self::Commit(version)),
            ["checkpoint", "parquet"] => Some(one),
            ["checkpoint", part, of, "parquet"] => {
                let (part, of) = (number::<u32>(part, 10)?, number::<u32>(of, 10)?);
                (1..=of).contains(&part).then_some(Self::Checkpoint { version, part, of })
            }
            ["checkpoint", id, "json" | "parquet"] if id.len() == 36 => Some(one),
            _ => None,
        }
    }
}

fn number<T: std::str::FromStr>(text: &str, digits: usize) -> Option<T> {
    (text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().ok()).flatten()
}

/// The versions that a listing tells of. Numbers are those of the listed names.
#[derive(Debug, Default)]
pub(super) struct Log {
    commits: BTreeMap<u64, usize>,
    /// The parts of whole checkpoints.
    checkpoints: BTreeMap<u64, Vec<usize>>,
    /// The latest version by the table's catalog.
    ratified: Option<u64>,
}

/// The files that make one version.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) version: u64,
    /// The parts of the checkpoint that it begins with.
    pub(super) checkpoint: Vec<usize>,
    /// The commits after that, the newest first.
    pub(super) commits: Vec<(u64, usize)>,
}

/// Reason why there is no such version.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Gone {
    /// There is none at all.
    Empty,
    /// It is later than the latest.
    Later { latest: u64 },
    /// Its commits were cleaned away, and no checkpoint stands for them; the earliest version that is left, if there is one.
    Cleaned { first: Option<u64> },
    /// A commit between others is missing.
    Missing { commit: u64 },
}

impl Log {
    pub(super) fn new<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let mut log = Self::default();
        // By version and number of parts: which of the parts are there.
        let mut parts: BTreeMap<(u64, u32), BTreeMap<u32, usize>> = BTreeMap::new();
        for (at, name) in names.enumerate() {
            match Name::of(name) {
                Some(Name::Commit(version)) => drop(log.commits.insert(version, at)),
                Some(Name::Checkpoint { version, part, of }) => {
                    // Of several whole ones any will do.
                    parts.entry((version, of)).or_default().insert(part, at);
                }
                None => {}
            }
        }
        for ((version, of), parts) in parts {
            if parts.len() == of as usize {
                log.checkpoints.entry(version).or_insert_with(|| parts.into_values().collect());
            }
        }
        log
    }

    /// Replaces the latest commits by those of a catalog, whose files have the numbers in `staged`, and forgets what is later than `latest`.
    pub(super) fn ratify(&mut self, latest: u64, staged: BTreeMap<u64, usize>) {
        self.commits.extend(staged);
        self.commits.retain(|version, _| *version <= latest);
        self.checkpoints.retain(|version, _| *version <= latest);
        self.ratified = Some(latest);
    }

    /// The latest version.
    pub(super) fn latest(&self) -> Option<u64> {
        let last = self.commits.last_key_value().map(|(version, _)| *version);
        self.ratified.or_else(|| last.max(self.last_checkpoint(u64::MAX).map(|(at, _)| at)))
    }

    fn last_checkpoint(&self, most: u64) -> Option<(u64, &Vec<usize>)> {
        self.checkpoints.range(..=most).next_back().map(|(version, parts)| (*version, parts))
    }

    /// Segment that makes `version`, or the latest one.
    pub(super) fn segment(&self, version: Option<u64>) -> Result<Segment, Gone> {
        let latest = self.latest().ok_or(Gone::Empty)?;
        let version = version.unwrap_or(latest);
        if version > latest {
            return Err(Gone::Later { latest });
        }
        let checkpoint = self.last_checkpoint(version);
        let mut first = checkpoint.map_or(0, |(at, _)| at.saturating_add(1));
        let mut commits = Vec::new();
        // After a checkpoint of the version itself there is nothing.
        let behind = if first <= version { self.commits.range(first..=version) } else { self.commits.range(..0) };
        for (commit, at) in behind {
            if *commit != first {
                break;
            }
            commits.push((*commit, *at));
            first = first.saturating_add(1);
        }
        if first <= version {
            let earliest = self.commits.keys().next().into_iter().chain(self.checkpoints.keys().next()).min();
            return Err(match (checkpoint, earliest) {
                (None, Some(earliest)) if *earliest > 0 => Gone::Cleaned { first: self.earliest() },
                _ => Gone::Missing { commit: first },
            });
        }
        commits.reverse();
        Ok(Segment { version, checkpoint: checkpoint.map(|(_, parts)| parts.clone()).unwrap_or_default(), commits })
    }

    /// The earliest version that is left.
    pub(super) fn earliest(&self) -> Option<u64> {
        if self.commits.contains_key(&0) { Some(0) } else { self.checkpoints.keys().next().copied() }
    }

    /// The commits from the earliest version that is left.
    pub(super) fn commits(&self) -> Vec<(u64, usize)> {
        let from = self.earliest().unwrap_or(u64::MAX);
        self.commits.range(from..).map(|(version, at)| (*version, *at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(names: &[&str]) -> Log {
        let full = |name: &&str| {
            let (version, rest) = name.split_once('.').unwrap();
            format!("{:020}.{rest}", version.parse::<u64>().unwrap())
        };
        let names: Vec<String> = names.iter().map(full).collect();
        Log::new(names.iter().map(String::as_str))
    }

    #[test]
    fn a_version_begins_with_the_last_whole_checkpoint() {
        let two = |part: u32| format!("2.checkpoint.{part:010}.{:010}.parquet", 2);
        let (first, second) = (two(1), two(2));
        let names = ["0.json", "1.json", "2.json", "3.json", "1.checkpoint.parquet", &first];
        let found = log(&names).segment(None).unwrap();
        assert_eq!(found, Segment { version: 3, checkpoint: vec![4], commits: vec![(3, 3), (2, 2)] });
        // The other part makes the later one whole.
        let whole = [&names[..], &[&second]].concat();
        let found = log(&whole).segment(None).unwrap();
        assert_eq!(found, Segment { version: 3, checkpoint: vec![5, 6], commits: vec![(3, 3)] });
        let found = log(&whole).segment(Some(2)).unwrap();
        assert_eq!(found, Segment { version: 2, checkpoint: vec![5, 6], commits: vec![] });
        let found = log(&whole).segment(Some(0)).unwrap();
        assert_eq!(found, Segment { version: 0, checkpoint: vec![], commits: vec![(0, 0)] });
        assert_eq!(log(&whole).segment(Some(4)), Err(Gone::Later { latest: 3 }));
    }

    #[test]
    fn the_commits_of_a_catalog_count_and_no_later_ones() {
        let of = |latest, staged: &[(u64, usize)]| {
            let mut log = log(&["0.json", "1.json", "2.json", "3.json", "3.checkpoint.parquet"]);
            log.ratify(latest, staged.iter().copied().collect());
            log.segment(None)
        };
        // Commit 2 is also published; the catalog's file is the one to read.
        let found = Segment { version: 2, checkpoint: vec![], commits: vec![(2, 8), (1, 1), (0, 0)] };
        assert_eq!(of(2, &[(2, 8)]), Ok(found));
        let found = Segment { version: 5, checkpoint: vec![4], commits: vec![(5, 9), (4, 8)] };
        assert_eq!(of(5, &[(4, 8), (5, 9)]), Ok(found));
        // A commit that neither has is not read over.
        assert_eq!(of(5, &[(5, 9)]), Err(Gone::Missing { commit: 4 }));
        assert_eq!(of(4, &[]), Err(Gone::Missing { commit: 4 }));
        let mut empty = Log::default();
        empty.ratify(0, BTreeMap::new());
        assert_eq!(empty.segment(None), Err(Gone::Missing { commit: 0 }));
    }

    #[test]
    fn what_is_missing_is_told() {
        assert_eq!(log(&[]).segment(None), Err(Gone::Empty));
        assert_eq!(log(&["0.json", "2.json"]).segment(None), Err(Gone::Missing { commit: 1 }));
        assert_eq!(log(&["0.json", "2.json"]).segment(Some(1)), Err(Gone::Missing { commit: 1 }));
        let cleaned = ["4.json", "5.json", "5.checkpoint.parquet", "6.json"];
        assert_eq!(log(&cleaned).segment(Some(4)), Err(Gone::Cleaned { first: Some(5) }));
        assert_eq!(log(&cleaned).segment(None).unwrap().commits, [(6, 3)]);
        assert_eq!((log(&cleaned).earliest(), log(&cleaned).commits()), (Some(5), vec![(5, 1), (6, 3)]));
        assert_eq!(log(&["1.checkpoint.parquet"]).segment(None).unwrap().version, 1, "a checkpoint is enough");
    }

    #[test]
    fn other_files_are_no_part_of_it() {
        for other in [
            "00000000000000000001.crc",
            "00000000000000000000.00000000000000000005.compacted.json",
            "_last_checkpoint",
            "1.json",
            "0000000000000000000x.json",
            "00000000000000000001.checkpoint.0000000003.0000000002.parquet",
            "00000000000000000001.checkpoint.short.parquet",
            "00000000000000000001.json.tmp",
            "99999999999999999999.json",
        ] {
            assert_eq!(Name::of(other), None, "{other}");
        }
        let id = "956ea395-e95c-4292-a67e-37b8b282af28";
        for name in [format!("{:020}.checkpoint.{id}.json", 7), format!("{:020}.checkpoint.{id}.parquet", 7)] {
            assert_eq!(Name::of(&name), Some(Name::Checkpoint { version: 7, part: 1, of: 1 }), "{name}");
        }
    }
}
