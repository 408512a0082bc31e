//! The numbers by which the kernel knows files and directories: of each version of a file another one, so that pages that it has kept of one
//! are never of another.

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
    /// True once it was opened: the kernel may have pages of it.
    was_opened: bool,
    /// Programs that have it open: to them it stays what it was.
    open: u64,
    /// What was in the directory when it was last listed.
    listed: Option<(HashMap<String, Entry>, Instant)>,
}

/// What is known of a name in a directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Known {
    /// It is there, as the store said then.
    There(Entry, Instant),
    /// A recent list of the directory does not have it.
    Missing,
    /// The store has to be asked.
    Ask,
}

impl Nodes {
    pub(super) fn new(root: Entry, trusted: Duration, now: Instant) -> Self {
        let root = Node {
            parent: ROOT,
            name: String::new(),
            entry: root,
            since: now,
            lookups: 1,
            was_opened: false,
            open: 0,
            listed: None,
        };
        Self { known: HashMap::from([(ROOT, root)]), numbers: HashMap::new(), next: ROOT + 1, trusted }
    }

    /// The address behind a number.
    pub(super) fn url(&self, number: u64) -> Option<&str> {
        self.known.get(&number).map(|node| node.entry.url.as_str())
    }

    /// What is behind a number, if the store said so recently. The directory that is mounted stays, and a file as long as it is open: the kernel
    /// does not say by which of its programs it asks.
    pub(super) fn recent(&self, number: u64, now: Instant) -> Option<&Entry> {
        let node = self.known.get(&number)?;
        (number == ROOT || node.open > 0 || self.is_trusted(node.since, now)).then_some(&node.entry)
    }

    /// What is known of `name` in the directory `parent`.
    pub(super) fn find(&self, parent: u64, name: &str, now: Instant) -> Known {
        let listed = self.known.get(&parent).and_then(|node| node.listed.as_ref());
        if let Some((listed, since)) = listed
            && self.is_trusted(*since, now)
        {
            return listed.get(name).map_or(Known::Missing, |entry| Known::There(entry.clone(), *since));
        }
        let node = self.numbers.get(&(parent, name.to_owned())).and_then(|number| self.known.get(number));
        let recent = node.filter(|node| self.is_trusted(node.since, now));
        recent.map_or(Known::Ask, |node| Known::There(node.entry.clone(), node.since))
    }

    /// What a directory has, if the store said so recently.
    pub(super) fn listed(&self, number: u64, now: Instant) -> Option<&HashMap<String, Entry>> {
        let (listed, since) = self.known.get(&number)?.listed.as_ref()?;
        self.is_trusted(*since, now).then_some(listed)
    }

    /// Returns true if the directory `parent` had a directory `name` when it was last listed, however long ago that is.
    pub(super) fn was_directory(&self, parent: u64, name: &str) -> bool {
        let listed = self.known.get(&parent).and_then(|node| node.listed.as_ref());
        listed.and_then(|(listed, _)| listed.get(name)).is_some_and(Entry::is_directory)
    }

    /// The directory that a number is in, and the name there.
    pub(super) fn place(&self, number: u64) -> Option<(u64, &str)> {
        self.known.get(&number).map(|node| (node.parent, node.name.as_str()))
    }

    /// Notes what a directory has.
    pub(super) fn list(&mut self, number: u64, listed: HashMap<String, Entry>, now: Instant) {
        if let Some(node) = self.known.get_mut(&number) {
            node.listed = Some((listed, now));
        }
    }

    /// Notes that `entry` is behind a number. Returns false if it is another version: that has another number, which the kernel gets with its
    /// next look at the name.
    pub(super) fn update(&mut self, number: u64, entry: Entry, now: Instant) -> bool {
        let Some(node) = self.known.get_mut(&number) else { return false };
        if is_same(&node.entry, &entry) {
            (node.entry, node.since) = (entry, now);
            return true;
        }
        let place = (node.parent, node.name.clone());
        if self.numbers.get(&place) == Some(&number) {
            self.numbers.remove(&place);
        }
        let listed = self.known.get_mut(&place.0).and_then(|parent| parent.listed.as_mut());
        if let Some(known) = listed.and_then(|(listed, _)| listed.get_mut(&place.1)) {
            *known = entry;
        }
        false
    }

    /// The number of `name` in `parent`, which the kernel now has once more; the store said `entry` then.
    pub(super) fn look_up(&mut self, parent: u64, name: &str, entry: Entry, then: Instant) -> u64 {
        let place = (parent, name.to_owned());
        if let Some(number) = self.numbers.get(&place).copied()
            && let Some(node) = self.known.get_mut(&number)
            && is_same(&node.entry, &entry)
        {
            node.lookups += 1;
            node.since = node.since.max(then);
            return number;
        }
        let number = self.next;
        self.next += 1;
        self.numbers.insert(place, number);
        let name = name.to_owned();
        let node = Node { parent, name, entry, since: then, lookups: 1, was_opened: false, open: 0, listed: None };
        self.known.insert(number, node);
        number
    }

    /// Notes that a file is opened, until it is [closed](Self::closed); returns true if it was before, so that pages that the kernel has kept of it are good. Without a tag
    /// of its version nobody knows.
    pub(super) fn opened(&mut self, number: u64) -> bool {
        let Some(node) = self.known.get_mut(&number) else { return false };
        node.open += 1;
        let is_told = node.entry.stamp.as_ref().is_some_and(|stamp| stamp.condition().is_some());
        std::mem::replace(&mut node.was_opened, true) && is_told
    }

    /// Notes that one of those who have a file open has closed it.
    pub(super) fn closed(&mut self, number: u64) {
        if let Some(node) = self.known.get_mut(&number) {
            node.open = node.open.saturating_sub(1);
        }
    }

    /// The kernel takes back `lookups` of a number, and no longer uses one of which it has none.
    pub(super) fn forget(&mut self, number: u64, lookups: u64) {
        let Some(node) = self.known.get_mut(&number).filter(|_| number != ROOT) else { return };
        node.lookups = node.lookups.saturating_sub(lookups);
        if node.lookups == 0
            && let Some(node) = self.known.remove(&number)
        {
            // The name may be of a later version by now.
            let place = (node.parent, node.name);
            if self.numbers.get(&place) == Some(&number) {
                self.numbers.remove(&place);
            }
        }
    }

    fn is_trusted(&self, since: Instant, now: Instant) -> bool {
        now.saturating_duration_since(since) < self.trusted
    }
}

/// Returns true if both are directories, or one version of a file. A list and a look may tell its time with other digits, and both tell its
/// tag.
fn is_same(one: &Entry, other: &Entry) -> bool {
    match (&one.stamp, &other.stamp) {
        (Some(one), Some(other)) => one.same(other),
        (one, other) => one.is_none() && other.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::stamp::Stamp;
    use super::*;

    fn entry(url: &str) -> Entry {
        Entry { url: url.to_owned(), stamp: None }
    }

    fn version(tag: &str) -> Entry {
        Entry { url: "s3://b/a".to_owned(), stamp: Some(Stamp { etag: Some(tag.to_owned()), size: 1, modified: None }) }
    }

    #[test]
    fn each_version_of_a_file_has_a_number_of_its_own() {
        let now = Instant::now();
        let mut nodes = Nodes::new(entry("s3://b"), Duration::from_secs(10), now);
        let first = nodes.look_up(ROOT, "a", version("1"), now);
        assert!(!nodes.opened(first) && nodes.opened(first), "pages of it may be kept");
        assert!(nodes.update(first, version("1"), now));
        nodes.list(ROOT, HashMap::from([("a".to_owned(), version("1"))]), now);
        assert!(!nodes.update(first, version("2"), now), "it is another one");
        assert_eq!(nodes.find(ROOT, "a", now), Known::There(version("2"), now));
        let second = nodes.look_up(ROOT, "a", version("2"), now);
        assert!(second != first && !nodes.opened(second));
        assert_eq!(nodes.url(first), Some("s3://b/a"), "whoever has it open goes on");
        nodes.forget(first, 1);
        assert_eq!(nodes.look_up(ROOT, "a", version("2"), now), second);
        let third = nodes.look_up(ROOT, "a", version("3"), now);
        assert!(third != second);
        let untold = nodes.look_up(
            ROOT,
            "b",
            Entry { stamp: Some(Stamp { etag: None, ..version("1").stamp.unwrap() }), ..version("1") },
            now,
        );
        assert!(!nodes.opened(untold) && !nodes.opened(untold), "nobody knows whether it is the same");
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
        assert_eq!(nodes.find(ROOT, "a", now), Known::There(entry("d/a"), now));
        assert_eq!(nodes.find(ROOT, "b", now), Known::Ask);
        nodes.list(ROOT, HashMap::from([("b".to_owned(), entry("d/b"))]), now);
        assert_eq!(nodes.find(ROOT, "b", now), Known::There(entry("d/b"), now));
        assert_eq!(nodes.find(ROOT, "a", now), Known::Missing, "it went meanwhile");
        let later = now + trusted;
        assert!(nodes.listed(ROOT, now).is_some() && nodes.listed(ROOT, later).is_none());
        assert_eq!((nodes.find(ROOT, "b", later), nodes.recent(a, later)), (Known::Ask, None));
        assert!(nodes.recent(ROOT, later).is_some());
        nodes.update(a, entry("d/a"), later);
        assert!(nodes.recent(a, later).is_some());
    }

    #[test]
    fn an_open_file_is_known_until_it_is_closed_and_its_name_is_asked_for() {
        let (now, trusted) = (Instant::now(), Duration::from_secs(10));
        let (mut nodes, later) = (Nodes::new(entry("s3://b"), trusted, now), now + trusted);
        let number = nodes.look_up(ROOT, "a", version("1"), now);
        nodes.opened(number);
        nodes.opened(number);
        nodes.closed(number);
        assert_eq!(nodes.recent(number, later), Some(&version("1")));
        assert_eq!(nodes.find(ROOT, "a", later), Known::Ask);
        nodes.closed(number);
        assert_eq!(nodes.recent(number, later), None);
    }

    #[test]
    fn directories_of_old_lists_are_remembered_until_the_next_one() {
        let (now, trusted) = (Instant::now(), Duration::from_secs(10));
        let mut nodes = Nodes::new(entry("s3://b"), trusted, now);
        assert!(!nodes.was_directory(ROOT, "d"));
        let listed = [("d", entry("s3://b/d")), ("a", version("1"))].map(|(name, entry)| (name.to_owned(), entry));
        nodes.list(ROOT, HashMap::from(listed), now);
        let number = nodes.look_up(ROOT, "d", entry("s3://b/d"), now);
        assert_eq!(nodes.place(number), Some((ROOT, "d")));
        assert_eq!(nodes.find(ROOT, "d", now + trusted), Known::Ask);
        assert!(nodes.was_directory(ROOT, "d") && !nodes.was_directory(ROOT, "a") && !nodes.was_directory(number, "d"));
        nodes.list(ROOT, HashMap::new(), now + trusted);
        assert!(!nodes.was_directory(ROOT, "d"));
    }
}
