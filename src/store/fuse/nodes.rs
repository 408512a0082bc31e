//! The numbers by which the kernel knows files and directories.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::super::filesystem::Entry;

/// The number of the directory that is mounted.
pub(super) const ROOT: u64 = 1;

/// What the kernel was told of, until it forgets it.
#[derive(Debug)]
pub(super) struct Nodes {
    known: HashMap<u64, Node>,
    numbers: HashMap<(u64, String), u64>,
    next: u64,
    /// How long an answer of the store is believed.
    trusted: Duration,
}

#[derive(Debug)]
struct Node {
    parent: u64,
    name: String,
    entry: Entry,
    since: Instant,
    /// Lookups that the kernel has not taken back.
    lookups: u64,
    /// What was in the directory when it was last listed.
    listed: Option<(HashMap<String, Entry>, Instant)>,
}

/// What is known of a name in a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It is there.
    There(Entry),
    /// A recent list of the directory does not have it.
    Missing,
    /// The store has to be asked.
    Ask,
}

impl Nodes {
    pub(super) fn new(root: Entry, trusted: Duration, now: Instant) -> Self {
        let root = Node { parent: ROOT, name: String::new(), entry: root, since: now, lookups: 1, listed: None };
        Self { known: HashMap::from([(ROOT, root)]), numbers: HashMap::new(), next: ROOT + 1, trusted }
    }

    /// The address behind a number.
    pub(super) fn url(&self, number: u64) -> Option<&str> {
        self.known.get(&number).map(|node| node.entry.url.as_str())
    }

    /// What is behind a number, if the store said so recently. The directory that is mounted stays.
    pub(super) fn recent(&self, number: u64, now: Instant) -> Option<&Entry> {
        let node = self.known.get(&number)?;
        (number == ROOT || self.is_trusted(node.since, now)).then_some(&node.entry)
    }

    /// What is known of `name` in the directory `parent`.
    pub(super) fn find(&self, parent: u64, name: &str, now: Instant) -> Known {
        let listed = self.known.get(&parent).and_then(|node| node.listed.as_ref());
        if let Some((listed, since)) = listed
            && self.is_trusted(*since, now)
        {
            return listed.get(name).map_or(Known::Missing, |entry| Known::There(entry.clone()));
        }
        let number = self.numbers.get(&(parent, name.to_owned()));
        number.and_then(|number| self.recent(*number, now)).map_or(Known::Ask, |entry| Known::There(entry.clone()))
    }

    /// Notes what a directory has.
    pub(super) fn list(&mut self, number: u64, listed: HashMap<String, Entry>, now: Instant) {
        if let Some(node) = self.known.get_mut(&number) {
            node.listed = Some((listed, now));
        }
    }

    /// Notes what is behind a number.
    pub(super) fn update(&mut self, number: u64, entry: Entry, now: Instant) {
        if let Some(node) = self.known.get_mut(&number) {
            (node.entry, node.since) = (entry, now);
        }
    }

    /// The number of `name` in `parent`, which the kernel now has once more.
    pub(super) fn look_up(&mut self, parent: u64, name: &str, entry: Entry, now: Instant) -> u64 {
        let place = (parent, name.to_owned());
        if let Some(number) = self.numbers.get(&place).copied()
            && let Some(node) = self.known.get_mut(&number)
        {
            node.lookups += 1;
            self.update(number, entry, now);
            return number;
        }
        let number = self.next;
        self.next += 1;
        self.numbers.insert(place, number);
        let node = Node { parent, name: name.to_owned(), entry, since: now, lookups: 1, listed: None };
        self.known.insert(number, node);
        number
    }

    /// The kernel takes back `lookups` of a number, and no longer uses one of which it has none.
    pub(super) fn forget(&mut self, number: u64, lookups: u64) {
        let Some(node) = self.known.get_mut(&number).filter(|_| number != ROOT) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0
            && let Some(node) = self.known.remove(&number)
        {
            self.numbers.remove(&(node.parent, node.name));
        }
    }

    fn is_trusted(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) < self.trusted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(url: &str) -> Entry {
        Entry { url: url.to_owned(), stamp: None }
    }

    #[test]
    fn a_number_stays_until_the_kernel_forgets_it_as_often_as_it_got_it() {
        let now = Instant::now();
        let mut nodes = Nodes::new(entry("s3://b"), Duration::from_secs(10), now);
        let a = nodes.look_up(ROOT, "a", entry("s3://b/a"), now);
        assert_eq!(nodes.look_up(ROOT, "a", entry("s3://b/a"), now), a);
        let below = nodes.look_up(a, "a", entry("s3://b/a/a"), now);
        assert_ne!(below, a, "the same name in another directory");
        nodes.forget(a, 1);
        assert_eq!(nodes.url(a), Some("s3://b/a"));
        nodes.forget(a, 1);
        assert_eq!(nodes.url(a), None);
        assert_ne!(nodes.look_up(ROOT, "a", entry("s3://b/a"), now), a, "a number is never used again");
        nodes.forget(ROOT, 9);
        assert_eq!(nodes.url(ROOT), Some("s3://b"));
        nodes.forget(99, 1);
    }

    #[test]
    fn answers_are_believed_for_a_time_and_lists_say_what_is_missing() {
        let (now, trusted) = (Instant::now(), Duration::from_secs(10));
        let mut nodes = Nodes::new(entry("d"), trusted, now);
        assert_eq!(nodes.find(ROOT, "a", now), Known::Ask);
        let a = nodes.look_up(ROOT, "a", entry("d/a"), now);
        assert_eq!(nodes.find(ROOT, "a", now), Known::There(entry("d/a")));
        assert_eq!(nodes.find(ROOT, "b", now), Known::Ask);
        nodes.list(ROOT, HashMap::from([("b".to_owned(), entry("d/b"))]), now);
        assert_eq!(nodes.find(ROOT, "b", now), Known::There(entry("d/b")));
        assert_eq!(nodes.find(ROOT, "a", now), Known::Missing, "it went meanwhile");
        let later = now + trusted;
        assert_eq!((nodes.find(ROOT, "b", later), nodes.recent(a, later)), (Known::Ask, None));
        assert!(nodes.recent(ROOT, later).is_some());
        nodes.update(a, entry("d/a"), later);
        assert!(nodes.recent(a, later).is_some());
    }
}
