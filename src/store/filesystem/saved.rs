//! What was saved and is not in its store yet, as part of what a file system has.

use std::collections::BTreeMap;

use object_store::path::Path;

use super::super::cache::Save;
use super::super::place::Place;
use super::super::stamp::Stamp;
use super::entry::Entry;
use super::origins::saves;
use crate::error::Result;

/// The saves that are at an address, or below it.
#[derive(Debug)]
pub(super) struct Saved {
    url: String,
    /// By address.
    found: BTreeMap<String, Stamp>,
}

/// The version of a save.
pub(super) fn stamp(save: &Save) -> Stamp {
    Stamp { etag: None, size: save.record.size, modified: Some(save.record.saved_at) }
}

impl Saved {
    /// Those of the cache of `place`, at `path` and below.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store) if the disk of the cache fails.
    pub(super) fn of(place: &Place, path: &Path) -> Result<Self> {
        let Some((saves, target)) = saves(place, path) else {
            return Ok(Self { url: String::new(), found: BTreeMap::new() });
        };
        // In the order in which they were closed: the last one of an address counts.
        let all = saves.there()?.into_iter().filter(|save| save.record.target.origin == target.origin);
        let found = all.map(|save| (save.record.target.url.clone(), stamp(&save))).collect();
        Ok(Self { url: target.url, found })
    }

    /// The file right at the address.
    pub(super) fn file(&self) -> Option<Entry> {
        let stamp = self.found.get(&self.url)?;
        Some(Entry { url: self.url.clone(), stamp: Some(stamp.clone()) })
    }

    /// The names below the address: what follows it.
    fn below(&self) -> impl Iterator<Item = (&str, &Stamp)> {
        let start =
            if self.url.is_empty() || self.url.ends_with('/') { self.url.clone() } else { format!("{}/", self.url) };
        let below = self.found.iter().filter(move |(url, _)| url.starts_with(&start) && url.len() > start.len());
        below.map(|(url, stamp)| (url.as_str(), stamp))
    }

    /// `found`, right below the address in the store, together with these.
    pub(super) fn beside(&self, found: Vec<Entry>) -> Vec<Entry> {
        let start = self.url.trim_end_matches('/').len() + 1;
        // A file and a directory may have one address.
        let mut all: BTreeMap<(String, bool), Option<Stamp>> = found
            .into_iter()
            .map(|entry| {
                let is_directory = entry.is_directory();
                ((entry.url, is_directory), entry.stamp)
            })
            .collect();
        for (url, stamp) in self.below() {
            match url.get(start..).and_then(|name| name.find('/')) {
                Some(end) => all.insert((url.get(..start + end).unwrap_or(url).to_owned(), true), None),
                None => all.insert((url.to_owned(), false), Some(stamp.clone())),
            };
        }
        all.into_iter().map(|((url, _), stamp)| Entry { url, stamp }).collect()
    }

    /// `found`, at any depth below the address in the store, together with these.
    pub(super) fn among(&self, found: Vec<Entry>) -> Vec<Entry> {
        let mut all: BTreeMap<String, Option<Stamp>> =
            found.into_iter().map(|entry| (entry.url, entry.stamp)).collect();
        all.extend(self.below().map(|(url, stamp)| (url.to_owned(), Some(stamp.clone()))));
        all.into_iter().map(|(url, stamp)| Entry { url, stamp }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(size: u64) -> Stamp {
        Stamp { etag: None, size, modified: Some(1) }
    }

    #[test]
    fn saves_are_among_what_the_store_has() {
        let saves = [("s3://b/d/x", 1), ("s3://b/d/e/y", 2), ("s3://b/d/e/z", 3), ("s3://b/dd/w", 4)];
        let found: BTreeMap<_, _> = saves.iter().map(|(url, size)| ((*url).to_owned(), stamp(*size))).collect();
        let saved = Saved { url: "s3://b/d".to_owned(), found };
        let entry = |url: &str, size: Option<u64>| Entry { url: url.to_owned(), stamp: size.map(stamp) };
        let there = vec![entry("s3://b/d/a", Some(9)), entry("s3://b/d/x", Some(8)), entry("s3://b/d/e", None)];
        let expected = [entry("s3://b/d/a", Some(9)), entry("s3://b/d/e", None), entry("s3://b/d/x", Some(1))];
        assert_eq!(saved.beside(there), expected);
        let deep = saved.among(vec![entry("s3://b/d/e/y", Some(7))]);
        let expected = [entry("s3://b/d/e/y", Some(2)), entry("s3://b/d/e/z", Some(3)), entry("s3://b/d/x", Some(1))];
        assert_eq!((deep, saved.file()), (expected.to_vec(), None));
        let file = Saved { url: "s3://b/dd/w".to_owned(), ..saved };
        assert_eq!((file.file(), file.beside(Vec::new())), (Some(entry("s3://b/dd/w", Some(4))), Vec::new()));
        let root = Saved { url: "s3://b/".to_owned(), ..file };
        assert_eq!(root.beside(Vec::new()), [entry("s3://b/d", None), entry("s3://b/dd", None)]);
    }

    #[test]
    fn a_file_and_a_directory_of_one_name_are_both_there() {
        let found = BTreeMap::from([("s3://b/t".to_owned(), stamp(1)), ("s3://b/u/x".to_owned(), stamp(2))]);
        let saved = Saved { url: "s3://b".to_owned(), found };
        let entry = |url: &str, size: Option<u64>| Entry { url: url.to_owned(), stamp: size.map(stamp) };
        let there = vec![entry("s3://b/t", None), entry("s3://b/u", Some(8)), entry("s3://b/u", None)];
        let expected =
            [entry("s3://b/t", Some(1)), entry("s3://b/t", None), entry("s3://b/u", Some(8)), entry("s3://b/u", None)];
        assert_eq!(saved.beside(there), expected);
    }
}
