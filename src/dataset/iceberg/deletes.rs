//! Deletes, and the data files they belong to.
//!
//! | delete | of a data file that is | and |
//! |---|---|---|
//! | vector | no newer, in the partition of the vector, and the one it names | then no positions count |
//! | positions | no newer, in the partition of the delete, or the one it names | rows by the file's path |
//! | equality | older, in the partition of the delete, or in any if the delete's spec has none | rows by values |
//!
//! Newer and older by sequence numbers. Partitions are one if spec and values are the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::avro::Value;
use super::manifest::{Content, Entry};

/// A partition: the number of its spec, and what stands for its values.
pub(super) type Partition = (i32, Arc<[u8]>);

/// The partition of `entry`.
pub(super) fn partition(entry: &Entry) -> Partition {
    let mut key = Vec::new();
    entry.partition.iter().for_each(|value| put(&mut key, value));
    (entry.spec, key.into())
}

fn put(key: &mut Vec<u8>, value: &Value) {
    let mut bytes = |tag: u8, bytes: &[u8]| {
        key.push(tag);
        key.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        key.extend_from_slice(bytes);
    };
    match value {
        Value::Null => bytes(0, &[]),
        Value::Bool(value) => bytes(1, &[u8::from(*value)]),
        // Some writers do not say that days are a date.
        Value::Int(value) | Value::Date(value) => bytes(2, &value.to_le_bytes()),
        // All NaNs are one partition.
        Value::Float(value) if value.is_nan() => bytes(3, &f64::NAN.to_bits().to_le_bytes()),
        Value::Float(value) => bytes(3, &value.to_bits().to_le_bytes()),
        Value::Bytes(value) => bytes(4, value),
        Value::Text(value) => bytes(5, value.as_bytes()),
        // No partition has any.
        Value::List(values) => {
            bytes(6, &(values.len() as u64).to_le_bytes());
            values.iter().for_each(|value| put(key, value));
        }
        Value::Record(record) => {
            bytes(7, &(record.0.len() as u64).to_le_bytes());
            record.0.iter().for_each(|(_, value)| put(key, value));
        }
    }
}

/// Values that delete rows: those of one set of columns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scope {
    /// The numbers of the columns, ascending.
    pub(super) ids: Vec<i32>,
    /// The partition whose rows they delete; none for all.
    pub(super) partition: Option<Partition>,
}

/// Deletes to read. Numbers of data files are those of `data`, of deletes those of `deletes`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Applied {
    /// By the data file, its vector.
    pub(super) vectors: BTreeMap<usize, usize>,
    /// The files of positions that may have rows of some data file; [`by_positions`](Self::by_positions) says of which.
    pub(super) positions: BTreeSet<usize>,
    /// By scope, the files of values.
    pub(super) values: BTreeMap<Scope, Vec<usize>>,
    /// By the data file, the scopes whose values are newer than it.
    pub(super) scopes: BTreeMap<usize, Vec<Scope>>,
}

impl Applied {
    /// Returns true if positions in `delete` delete rows of `file`, data file number `at`.
    pub(super) fn by_positions(&self, delete: &Entry, at: usize, file: &Entry) -> bool {
        let meant = match &delete.referenced {
            Some(path) => *path == file.path,
            None => delete.spec == file.spec && partition(delete) == partition(file),
        };
        meant && file.sequence <= delete.sequence && !self.vectors.contains_key(&at)
    }
}

/// Assigns `deletes` to `data`; `unpartitioned` tells whether the spec of a number has no partitions.
///
/// # Errors
/// The path of a data file that has two vectors.
pub(super) fn applied(
    data: &[Entry],
    deletes: &[Entry],
    unpartitioned: &dyn Fn(i32) -> bool,
) -> Result<Applied, String> {
    let mut applied = Applied::default();
    if deletes.is_empty() {
        return Ok(applied);
    }
    let partitions: Vec<Partition> = data.iter().map(partition).collect();
    let paths: HashMap<&str, usize> = data.iter().enumerate().map(|(at, file)| (file.path.as_str(), at)).collect();
    let mut within: HashMap<&Partition, Vec<usize>> = HashMap::new();
    for (at, partition) in partitions.iter().enumerate() {
        within.entry(partition).or_default().push(at);
    }
    let (vectors, others): (Vec<_>, Vec<_>) =
        deletes.iter().enumerate().partition(|(_, delete)| matches!(delete.content, Content::Vector { .. }));
    for (number, vector) in vectors {
        let at = vector.referenced.as_deref().and_then(|path| paths.get(path)).copied();
        let is_of = |at: &usize| {
            let file = data.get(*at).zip(partitions.get(*at));
            file.is_some_and(|(file, of)| file.sequence <= vector.sequence && *of == partition(vector))
        };
        if let Some(at) = at.filter(is_of)
            && applied.vectors.insert(at, number).is_some()
        {
            return Err(vector.referenced.clone().unwrap_or_default());
        }
    }
    for (number, delete) in others {
        let own = partition(delete);
        let same = || within.get(&own).into_iter().flatten().copied();
        match &delete.content {
            Content::Equality(ids) => {
                let mut ids = ids.clone();
                ids.sort_unstable();
                ids.dedup();
                let global = unpartitioned(delete.spec);
                let scope = Scope { ids, partition: (!global).then(|| own.clone()) };
                applied.values.entry(scope.clone()).or_default().push(number);
                let older = |at: &usize| data.get(*at).is_some_and(|file| file.sequence < delete.sequence);
                let files: Vec<usize> =
                    if global { (0..data.len()).filter(older).collect() } else { same().filter(older).collect() };
                for at in files {
                    let scopes = applied.scopes.entry(at).or_default();
                    if !scopes.contains(&scope) {
                        scopes.push(scope.clone());
                    }
                }
            }
            _ => {
                let counts = |at: &usize| {
                    let old = data.get(*at).is_some_and(|file| file.sequence <= delete.sequence);
                    old && !applied.vectors.contains_key(at)
                };
                let any = match &delete.referenced {
                    Some(path) => paths.get(path.as_str()).copied().iter().any(counts),
                    None => same().any(|at| counts(&at)),
                };
                if any {
                    applied.positions.insert(number);
                }
            }
        }
    }
    // Values that delete nothing are not read.
    let needed: BTreeSet<&Scope> = applied.scopes.values().flatten().collect();
    let needed: BTreeSet<Scope> = needed.into_iter().cloned().collect();
    applied.values.retain(|scope, _| needed.contains(scope));
    Ok(applied)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(path: &str, content: Content, spec: i32, value: i64, sequence: i64) -> Entry {
        let partition = if spec == 0 { Vec::new() } else { vec![Value::Int(value)] };
        let path = path.to_owned();
        Entry { content, path, size: 1, rows: 1, spec, partition, sequence, referenced: None, columns: Vec::new() }
    }

    fn data(path: &str, spec: i32, value: i64, sequence: i64) -> Entry {
        entry(path, Content::Data, spec, value, sequence)
    }

    fn of(path: &str, entry: Entry) -> Entry {
        Entry { referenced: Some(path.to_owned()), ..entry }
    }

    fn vector(path: &str, value: i64, sequence: i64) -> Entry {
        of(path, entry("p", Content::Vector { offset: 4, size: 9 }, 1, value, sequence))
    }

    fn positions(value: i64, sequence: i64) -> Entry {
        entry("d", Content::Positions, 1, value, sequence)
    }

    fn equality(spec: i32, value: i64, sequence: i64) -> Entry {
        entry("e", Content::Equality(vec![2, 1, 2]), spec, value, sequence)
    }

    /// Spec 0 has no partitions.
    fn found(data: &[Entry], deletes: &[Entry]) -> Applied {
        applied(data, deletes, &|spec| spec == 0).unwrap()
    }

    #[test]
    fn a_vector_is_of_the_file_it_names_that_is_no_newer_and_in_its_partition() {
        let files = [data("a", 1, 5, 3), data("b", 1, 5, 3)];
        let is = |delete: Entry| found(&files, &[delete]).vectors == BTreeMap::from([(0, 0)]);
        assert!(is(vector("a", 5, 3)) && is(vector("a", 5, 4)));
        assert!(!is(vector("a", 5, 2)) && !is(vector("a", 6, 3)) && !is(vector("c", 5, 3)));
        assert!(!is(Entry { spec: 2, ..vector("a", 5, 3) }), "another spec with the same values");
        assert!(!is(Entry { referenced: None, ..vector("a", 5, 3) }));
        assert_eq!(applied(&files, &[vector("a", 5, 3), vector("a", 5, 4)], &|_| false), Err("a".to_owned()));
    }

    #[test]
    fn no_positions_count_where_there_is_a_vector() {
        let files = [data("a", 1, 5, 3), data("b", 1, 5, 3)];
        // The order of the files does not matter.
        for deletes in [[positions(5, 9), vector("a", 5, 4)], [vector("a", 5, 4), positions(5, 9)]] {
            let found = found(&files, &deletes);
            assert_eq!(found.vectors.len(), 1);
            assert_eq!(found.positions.len(), 1);
            assert!(!found.by_positions(&positions(5, 9), 0, &files[0]));
            assert!(found.by_positions(&positions(5, 9), 1, &files[1]));
        }
        let alone = found(&files, &[of("a", positions(5, 9)), vector("a", 5, 4)]);
        assert!(alone.positions.is_empty());
    }

    #[test]
    fn positions_are_of_files_that_are_no_newer_in_their_partition_or_of_the_one_they_name() {
        let files = [data("a", 1, 5, 3), data("b", 1, 5, 4), data("c", 1, 6, 3), data("d", 2, 5, 3)];
        let of_files = |delete: Entry| {
            let found = found(&files, std::slice::from_ref(&delete));
            let of = files.iter().enumerate().filter(|(at, file)| found.by_positions(&delete, *at, file));
            let of: BTreeSet<usize> = of.map(|(at, _)| at).collect();
            assert_eq!(found.positions.is_empty(), of.is_empty(), "what deletes nothing is not read");
            of
        };
        assert_eq!(of_files(positions(5, 3)), BTreeSet::from([0]), "of the same commit too");
        assert_eq!(of_files(positions(5, 4)), BTreeSet::from([0, 1]));
        assert_eq!(of_files(positions(5, 2)), BTreeSet::new());
        assert_eq!(of_files(of("c", positions(5, 3))), BTreeSet::from([2]), "by its path, wherever it is");
        assert_eq!(of_files(of("b", positions(5, 3))), BTreeSet::new());
    }

    #[test]
    fn values_are_of_files_that_are_older_in_their_partition_or_in_any() {
        let files =
            [data("a", 1, 5, 3), data("b", 1, 5, 4), data("c", 1, 6, 3), data("d", 2, 5, 3), data("e", 0, 0, 3)];
        let of_files = |delete| found(&files, &[delete]).scopes.into_keys().collect::<Vec<_>>();
        assert_eq!(of_files(equality(1, 5, 3)), [0; 0], "not of the same commit");
        assert_eq!(of_files(equality(1, 5, 4)), [0]);
        assert_eq!(of_files(equality(1, 5, 5)), [0, 1]);
        assert_eq!(of_files(equality(0, 0, 4)), [0, 2, 3, 4], "of every partition");
        let both = found(&files, &[equality(1, 5, 4), equality(1, 5, 9), equality(1, 7, 9)]);
        let scope = Scope { ids: vec![1, 2], partition: Some(partition(&files[0])) };
        assert_eq!(both.values, BTreeMap::from([(scope.clone(), vec![0, 1])]));
        assert_eq!(both.scopes, BTreeMap::from([(0, vec![scope.clone()]), (1, vec![scope])]));
    }

    #[test]
    fn null_is_a_value_of_a_partition() {
        let null = |mut entry: Entry| {
            entry.partition = vec![Value::Null];
            entry
        };
        let files = [null(data("a", 1, 0, 1)), data("b", 1, 0, 1)];
        let found = found(&files, &[null(positions(0, 2))]);
        assert_eq!(found.positions, BTreeSet::from([0]));
        let of = |at: usize| found.by_positions(&null(positions(0, 2)), at, &files[at]);
        assert_eq!((of(0), of(1)), (true, false));
        assert_ne!(partition(&files[0]), partition(&files[1]));
        let float =
            |bits| partition(&Entry { partition: vec![Value::Float(f64::from_bits(bits))], ..files[1].clone() });
        assert_eq!(float(0xfff8 << 48), float(0x7ff8 << 48), "NaN is one");
        assert_ne!(float(0), float(0x8000 << 48));
    }
}
