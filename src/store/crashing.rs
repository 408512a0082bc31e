//! A disk in memory for tests: it can be killed or fail at any step, and lists the possible contents after a power cut.
//!
//! Processes see all their steps. A crash of the machine may leave less: of all steps whose directory or file was not flushed since, each
//! may be there or not, in their order. A rename is atomic.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::files::Files;

type Inode = u32;
const ROOT: Inode = 0;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Node {
    Directory(BTreeMap<String, Inode>),
    File(Vec<u8>),
    Link(PathBuf),
}

/// The content of a disk.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    nodes: BTreeMap<Inode, Node>,
    next: Inode,
}

impl Default for Tree {
    fn default() -> Self {
        Self { nodes: BTreeMap::from([(ROOT, Node::Directory(BTreeMap::new()))]), next: 1 }
    }
}

/// One step that changes a disk; it may be lost before it is flushed.
#[derive(Debug, Clone)]
enum Step {
    /// Something new has a name.
    Make {
        directory: Inode,
        name: String,
        inode: Inode,
        node: Node,
    },
    Link {
        directory: Inode,
        name: String,
        inode: Inode,
    },
    /// `node` is there under the new name, though its content may be lost.
    Rename {
        from: (Inode, String),
        to: (Inode, String),
        inode: Inode,
        node: Node,
    },
    Remove {
        directory: Inode,
        name: String,
    },
    Write {
        inode: Inode,
        content: Vec<u8>,
    },
}

impl Step {
    /// Returns true if a flush of `flushed` brings it to the disk.
    fn is_of(&self, flushed: Inode) -> bool {
        match self {
            Self::Make { directory, .. } | Self::Link { directory, .. } | Self::Remove { directory, .. } => {
                *directory == flushed
            }
            Self::Rename { from, to, .. } => from.0 == flushed || to.0 == flushed,
            Self::Write { inode, .. } => *inode == flushed,
        }
    }
}

impl Tree {
    fn entries(&mut self, directory: Inode) -> Option<&mut BTreeMap<String, Inode>> {
        match self.nodes.get_mut(&directory) {
            Some(Node::Directory(entries)) => Some(entries),
            _ => None,
        }
    }

    fn apply(&mut self, step: &Step) {
        match step.clone() {
            Step::Make { directory, name, inode, node } => {
                self.nodes.insert(inode, node);
                self.enter(directory, name, inode);
            }
            Step::Link { directory, name, inode } => {
                self.nodes.entry(inode).or_insert(Node::File(Vec::new()));
                self.enter(directory, name, inode);
            }
            Step::Rename { from, to, inode, node } => {
                // The name may mean something else where an earlier step was lost.
                if let Some(entries) = self.entries(from.0)
                    && entries.get(&from.1) == Some(&inode)
                {
                    entries.remove(&from.1);
                }
                self.nodes.entry(inode).or_insert(node);
                self.enter(to.0, to.1, inode);
            }
            Step::Remove { directory, name } => {
                self.entries(directory).map(|entries| entries.remove(&name));
            }
            Step::Write { inode, content } => {
                if let Some(Node::File(there)) = self.nodes.get_mut(&inode) {
                    *there = content;
                }
            }
        }
    }

    fn enter(&mut self, directory: Inode, name: String, inode: Inode) {
        self.entries(directory).map(|entries| entries.insert(name, inode));
    }

    fn walk(&self, at: Inode, to: &mut impl FnMut(Inode)) {
        to(at);
        if let Some(Node::Directory(entries)) = self.nodes.get(&at) {
            entries.values().for_each(|inode| self.walk(*inode, to));
        }
    }

    /// Forgets nodes without a name.
    fn collect(&mut self) {
        let mut named = BTreeSet::new();
        self.walk(ROOT, &mut |inode| _ = named.insert(inode));
        self.nodes.retain(|inode, _| named.contains(inode));
        self.next = self.nodes.keys().next_back().map_or(1, |last| last + 1);
    }

    /// Hashes the content, regardless of inode numbers.
    pub(crate) fn identify(&self, to: &mut DefaultHasher) {
        fn tell(tree: &Tree, inode: Inode, to: &mut DefaultHasher) {
            match tree.nodes.get(&inode) {
                Some(Node::Directory(entries)) => {
                    entries.len().hash(to);
                    for (name, inode) in entries {
                        name.hash(to);
                        tell(tree, *inode, to);
                    }
                }
                other => other.hash(to),
            }
        }
        tell(self, ROOT, to);
    }

    /// Resolves a path; a link in its last part is not followed.
    fn find(&self, path: &Path) -> Option<Inode> {
        let (mut at, mut walked) = (ROOT, PathBuf::from("/"));
        for name in parts(path) {
            if let Node::Link(target) = self.nodes.get(&at)? {
                walked = beside(&walked, target);
                at = self.find(&walked)?;
            }
            let Node::Directory(entries) = self.nodes.get(&at)? else { return None };
            at = *entries.get(name)?;
            walked.push(name);
        }
        Some(at)
    }

    fn follow(&self, path: &Path) -> Option<&Node> {
        match self.nodes.get(&self.find(path)?)? {
            Node::Link(target) => self.follow(&beside(path, target)),
            node => Some(node),
        }
    }

    /// The content of each file in the directory that `path` leads to, by name.
    pub(crate) fn files(&self, path: &Path) -> Option<BTreeMap<String, Vec<u8>>> {
        let Node::Directory(entries) = self.follow(path)? else { return None };
        let content = |(name, inode): (&String, &Inode)| match self.nodes.get(inode) {
            Some(Node::File(content)) => Some((name.clone(), content.clone())),
            _ => None,
        };
        Some(entries.iter().filter_map(content).collect())
    }

    /// Returns true if the name exists, though it may lead nowhere.
    pub(crate) fn has(&self, path: &Path) -> bool {
        self.find(path).is_some()
    }
}

/// The target of a link at `path`.
fn beside(path: &Path, target: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new("/")).join(target)
}

fn parts(path: &Path) -> impl Iterator<Item = &str> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str(),
        _ => None,
    })
}

/// The step at which a disk goes wrong, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Fate {
    Well,
    /// The process is killed before the step: nothing more happens.
    Killed(usize),
    /// The step fails.
    Fails(usize),
    /// This step and all later ones fail.
    FailsForGood(usize),
}

/// Defects of a disk, for tests of the tests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Quirks {
    /// Flushes say that they are done, and do nothing.
    pub(crate) no_flush: bool,
    /// A rename in place of something first removes that.
    pub(crate) slow_rename: bool,
}

#[derive(Debug, Clone)]
struct Inner {
    /// The content that is certainly on the disk, and the one that processes see.
    disk: Tree,
    now: Tree,
    /// Steps since then, and whether each was flushed.
    steps: Vec<(Step, bool)>,
    fate: Fate,
    count: usize,
    quirks: Quirks,
}

/// The disk.
#[derive(Debug)]
pub(crate) struct CrashingFiles(Mutex<Inner>);

fn error(kind: io::ErrorKind) -> io::Error {
    kind.into()
}

impl CrashingFiles {
    pub(crate) fn new(tree: Tree, fate: Fate, quirks: Quirks) -> Self {
        Self(Mutex::new(Inner { disk: tree.clone(), now: tree, steps: Vec::new(), fate, count: 0, quirks }))
    }

    /// The same disk at the same moment, with another fate from here on.
    pub(crate) fn again(&self, fate: Fate) -> Self {
        Self(Mutex::new(Inner { fate, count: 0, ..self.lock().clone() }))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps so far.
    pub(crate) fn count(&self) -> usize {
        self.lock().count
    }

    /// From here on, counted anew, it has this fate.
    pub(crate) fn meet(&self, fate: Fate) {
        let mut inner = self.lock();
        (inner.fate, inner.count) = (fate, 0);
    }

    /// Hashes everything that distinguishes it from others.
    pub(crate) fn identify(&self, to: &mut DefaultHasher) {
        let inner = self.lock();
        inner.now.identify(to);
        for (step, flushed) in &inner.steps {
            (short(step), flushed).hash(to);
        }
    }

    /// The content that processes see.
    pub(crate) fn now(&self) -> Tree {
        self.lock().now.clone()
    }

    /// All that was done comes to the disk, as it does in time.
    pub(crate) fn settle(&self) {
        let mut inner = self.lock();
        inner.now.collect();
        inner.disk = inner.now.clone();
        inner.steps.clear();
    }

    /// Returns true if no step waits to come to the disk.
    pub(crate) fn is_settled(&self) -> bool {
        self.lock().steps.is_empty()
    }

    /// Every tree that may be there after a power cut, each once, with the lost steps. Of more than twelve steps that are not flushed,
    /// it takes those trees of which at most two steps are lost, at most two are kept, or the last ones are lost.
    pub(crate) fn after_power_cut(&self) -> Vec<(Tree, String)> {
        let inner = self.lock();
        let loose: Vec<usize> = (0..inner.steps.len()).filter(|at| !inner.steps[*at].1).collect();
        assert!(loose.len() < 64, "{} steps are not flushed: too many to number their parts", loose.len());
        let mut seen = BTreeSet::new();
        let mut all = Vec::new();
        // Trees that keep the most come first: the descriptions of the losses are then short.
        for kept in kept(loose.len()) {
            let is_lost = |at: usize| loose.iter().position(|it| *it == at).is_some_and(|bit| kept >> bit & 1 == 0);
            let mut tree = inner.disk.clone();
            let here = (0..inner.steps.len()).filter(|at| !is_lost(*at));
            here.for_each(|at| tree.apply(&inner.steps[at].0));
            tree.collect();
            let mut key = DefaultHasher::new();
            tree.identify(&mut key);
            if seen.insert(key.finish()) {
                let lost: Vec<String> =
                    loose.iter().filter(|at| is_lost(**at)).map(|at| short(&inner.steps[*at].0)).collect();
                all.push((tree, lost.join(", ")));
            }
        }
        all
    }

    /// Runs a step that changes the disk, unless its fate is to fail.
    fn step(&self, make: impl FnOnce(&mut Inner) -> io::Result<Vec<Step>>) -> io::Result<()> {
        let mut inner = self.lock();
        inner.count += 1;
        match inner.fate {
            Fate::Killed(at) if inner.count >= at => return Err(error(io::ErrorKind::Interrupted)),
            Fate::Fails(at) if inner.count == at => return Err(error(io::ErrorKind::StorageFull)),
            Fate::FailsForGood(at) if inner.count >= at => return Err(error(io::ErrorKind::StorageFull)),
            _ => {}
        }
        for step in make(&mut inner)? {
            inner.now.apply(&step);
            inner.steps.push((step, false));
        }
        Ok(())
    }

    fn make(&self, path: &Path, node: Node) -> io::Result<()> {
        self.step(|inner| {
            let (directory, name) = place(&inner.now, path)?;
            if inner.now.has(path) {
                return Err(error(io::ErrorKind::AlreadyExists));
            }
            let inode = inner.now.next;
            inner.now.next += 1;
            Ok(vec![Step::Make { directory, name, inode, node }])
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(|inner| {
            let (directory, name) = place(&inner.now, path)?;
            let there = inner.now.has(path);
            if there { Ok(vec![Step::Remove { directory, name }]) } else { Err(error(io::ErrorKind::NotFound)) }
        })
    }
}

/// Parts of `steps` steps that may have come to the disk, as bits; those that keep the most come first.
fn kept(steps: usize) -> Vec<u64> {
    let all = (1_u64 << steps) - 1;
    if steps <= 12 {
        return (0..=all).rev().collect();
    }
    let one = |step: usize| 1_u64 << step;
    let few = || std::iter::once(0).chain((0..steps).flat_map(move |a| (0..=a).map(move |b| one(a) | one(b))));
    let first = (0..steps).map(|step| one(step) - 1);
    let mut parts: Vec<u64> = few().chain(few().map(|lost| all & !lost)).chain(first).collect();
    parts.sort_unstable_by_key(|kept| (std::cmp::Reverse(kept.count_ones()), *kept));
    parts.dedup();
    parts
}

/// A step in few words.
fn short(step: &Step) -> String {
    match step {
        Step::Make { name, .. } => format!("make {name}"),
        Step::Link { name, .. } => format!("link {name}"),
        Step::Rename { to, .. } => format!("rename to {}", to.1),
        Step::Remove { name, .. } => format!("remove {name}"),
        Step::Write { .. } => "write".into(),
    }
}

/// The directory of a path, and its name there.
fn place(tree: &Tree, path: &Path) -> io::Result<(Inode, String)> {
    let missing = || error(io::ErrorKind::NotFound);
    let directory = tree.find(path.parent().unwrap_or(Path::new("/"))).ok_or_else(missing)?;
    if !matches!(tree.nodes.get(&directory), Some(Node::Directory(_))) {
        return Err(error(io::ErrorKind::NotADirectory));
    }
    Ok((directory, parts(path).last().ok_or_else(missing)?.to_owned()))
}

impl Files for CrashingFiles {
    fn canonical(&self, path: &Path) -> io::Result<PathBuf> {
        Ok(path.to_owned())
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<String>> {
        match self.lock().now.follow(directory) {
            Some(Node::Directory(entries)) => Ok(entries.keys().cloned().collect()),
            Some(_) => Err(error(io::ErrorKind::NotADirectory)),
            None => Err(error(io::ErrorKind::NotFound)),
        }
    }

    fn is_directory(&self, path: &Path) -> bool {
        matches!(self.lock().now.follow(path), Some(Node::Directory(_)))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        match self.lock().now.follow(path) {
            Some(Node::File(content)) => Ok(content.clone()),
            _ => Err(error(io::ErrorKind::NotFound)),
        }
    }

    fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let inner = self.lock();
        let inode = inner.now.find(path).ok_or_else(|| error(io::ErrorKind::NotFound))?;
        match inner.now.nodes.get(&inode) {
            Some(Node::Link(target)) => Ok(target.clone()),
            _ => Err(error(io::ErrorKind::InvalidInput)),
        }
    }

    fn create_directory(&self, path: &Path) -> io::Result<()> {
        self.make(path, Node::Directory(BTreeMap::new()))
    }

    fn create_directories(&self, path: &Path) -> io::Result<()> {
        for above in path.ancestors().collect::<Vec<_>>().into_iter().rev() {
            if parts(above).next().is_some() && !self.is_directory(above) {
                self.create_directory(above)?;
            }
        }
        Ok(())
    }

    fn put_file(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.make(path, Node::File(Vec::new()))?;
        let find = |inner: &Inner| inner.now.find(path).ok_or_else(|| error(io::ErrorKind::NotFound));
        self.step(|inner| Ok(vec![Step::Write { inode: find(inner)?, content: content.to_vec() }]))?;
        self.flush(path)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|inner| {
            let inode = inner.now.find(from).ok_or_else(|| error(io::ErrorKind::NotFound))?;
            let (directory, name) = place(&inner.now, to)?;
            let there = inner.now.has(to);
            if there {
                Err(error(io::ErrorKind::AlreadyExists))
            } else {
                Ok(vec![Step::Link { directory, name, inode }])
            }
        })
    }

    fn symlink(&self, target: &Path, at: &Path) -> io::Result<()> {
        self.make(at, Node::Link(target.to_owned()))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let is_in_the_way = {
            let inner = self.lock();
            inner.quirks.slow_rename && inner.now.has(to)
        };
        if is_in_the_way {
            self.remove(to)?;
        }
        self.step(|inner| {
            let inode = inner.now.find(from).ok_or_else(|| error(io::ErrorKind::NotFound))?;
            let (from, to) = (place(&inner.now, from)?, place(&inner.now, to)?);
            let node = match inner.now.nodes.get(&inode) {
                Some(Node::Link(target)) => Node::Link(target.clone()),
                Some(Node::Directory(_)) => Node::Directory(BTreeMap::new()),
                _ => Node::File(Vec::new()),
            };
            Ok(vec![Step::Rename { from, to, inode, node }])
        })
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let is_directory = {
            let tree = &self.lock().now;
            tree.find(path).is_some_and(|inode| matches!(tree.nodes.get(&inode), Some(Node::Directory(_))))
        };
        if is_directory { Err(error(io::ErrorKind::IsADirectory)) } else { self.remove(path) }
    }

    fn remove_directory(&self, path: &Path) -> io::Result<()> {
        for name in self.names(path)? {
            let below = path.join(name);
            if self.is_directory(&below) { self.remove_directory(&below)? } else { self.remove_file(&below)? }
        }
        self.remove(path)
    }

    fn flush(&self, directory: &Path) -> io::Result<()> {
        self.step(|inner| {
            let flushed = inner.now.find(directory).ok_or_else(|| error(io::ErrorKind::NotFound))?;
            if !inner.quirks.no_flush {
                inner.steps.iter_mut().filter(|(step, _)| step.is_of(flushed)).for_each(|(_, done)| *done = true);
            }
            Ok(Vec::new())
        })
    }
}
