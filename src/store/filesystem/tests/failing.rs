//! A store in memory that fails, waits, or takes only so many parts, and counts.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::{BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

/// See the module.
#[derive(Debug)]
pub(super) struct Failing {
    pub(super) inner: Arc<InMemory>,
    fails: AtomicBool,
    refuses: AtomicBool,
    holds: AtomicBool,
    held: AtomicBool,
    keeps: AtomicBool,
    pauses: Arc<AtomicBool>,
    paused: Arc<AtomicBool>,
    takes: AtomicUsize,
    reads: AtomicUsize,
    listed: Arc<AtomicUsize>,
    has_nameless: AtomicBool,
    parts: AtomicUsize,
    puts: Mutex<Vec<(Path, PutPayload, PutOptions)>>,
    loses: AtomicBool,
    unended: Mutex<BTreeSet<String>>,
}

impl Failing {
    pub(super) fn new(inner: Arc<InMemory>) -> Self {
        Self {
            inner,
            fails: AtomicBool::new(false),
            refuses: AtomicBool::new(false),
            holds: AtomicBool::new(false),
            held: AtomicBool::new(false),
            keeps: AtomicBool::new(false),
            pauses: Arc::default(),
            paused: Arc::default(),
            takes: AtomicUsize::new(usize::MAX),
            reads: AtomicUsize::new(0),
            listed: Arc::default(),
            has_nameless: AtomicBool::new(false),
            parts: AtomicUsize::new(0),
            puts: Mutex::default(),
            loses: AtomicBool::new(false),
            unended: Mutex::default(),
        }
    }

    /// From here on, has a key that begins with a slash, which a store in memory cannot hold: its directory has an empty name.
    pub(super) fn be_nameless(&self) {
        self.has_nameless.store(true, Ordering::SeqCst);
    }

    /// Objects that it has listed so far.
    pub(super) fn listed(&self) -> usize {
        self.listed.load(Ordering::SeqCst)
    }

    /// Whether each write fails.
    pub(super) fn fail(&self, fails: bool) {
        self.fails.store(fails, Ordering::SeqCst);
    }

    /// Whether each new object is refused, as where the store has a directory of its name.
    pub(super) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }

    /// Whether each write waits.
    pub(super) fn hold(&self, holds: bool) {
        self.held.store(false, Ordering::SeqCst);
        self.holds.store(holds, Ordering::SeqCst);
    }

    /// Returns true once one waits.
    pub(super) fn held(&self) -> bool {
        self.held.load(Ordering::SeqCst)
    }

    /// Whether each removal fails.
    pub(super) fn keep(&self, keeps: bool) {
        self.keeps.store(keeps, Ordering::SeqCst);
    }

    /// Whether each copy and each removal waits before it begins.
    pub(super) fn pause(&self, pauses: bool) {
        self.paused.store(false, Ordering::SeqCst);
        self.pauses.store(pauses, Ordering::SeqCst);
    }

    /// Returns true once one waits.
    pub(super) fn paused(&self) -> bool {
        self.paused.load(Ordering::SeqCst)
    }

    /// Whether each object that comes whole is late: nobody gets an answer, until the store has [handled](Self::handle) it.
    pub(super) fn lose(&self, loses: bool) {
        self.loses.store(loses, Ordering::SeqCst);
    }

    /// Handles the object that came number `at`, as it came.
    pub(super) async fn handle(&self, at: usize) -> Result<PutResult> {
        let (path, payload, options) = self.puts.lock().unwrap()[at].clone();
        self.inner.put_opts(&path, payload, options).await
    }

    /// Objects that came whole so far.
    pub(super) fn puts(&self) -> usize {
        self.puts.lock().unwrap().len()
    }

    /// Takes so many parts more.
    pub(super) fn take(&self, parts: usize) {
        self.takes.store(parts, Ordering::SeqCst);
    }

    /// Forgets all uploads.
    pub(super) fn forget(&self) {
        self.unended.lock().unwrap().clear();
    }

    /// Reads of bytes so far.
    pub(super) fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    /// Parts that were taken so far.
    pub(super) fn parts(&self) -> usize {
        self.parts.load(Ordering::SeqCst)
    }

    /// Uploads that were begun and neither completed nor given up.
    pub(super) fn unended(&self) -> usize {
        self.unended.lock().unwrap().len()
    }

    async fn may_write(&self) -> Result<()> {
        while self.holds.load(Ordering::SeqCst) {
            self.held.store(true, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if self.fails.load(Ordering::SeqCst) { failed() } else { Ok(()) }
    }

    fn check(&self, id: &str) -> Result<()> {
        if self.unended.lock().unwrap().contains(id) {
            return Ok(());
        }
        Err(Error::NotFound { path: id.to_owned(), source: "no such upload".into() })
    }
}

fn failed<T>() -> Result<T> {
    Err(Error::Generic { store: "test", source: "told to fail".into() })
}

/// Waits as long as it `pauses`, and says so.
async fn wait(pauses: &AtomicBool, paused: &AtomicBool) {
    while pauses.load(Ordering::SeqCst) {
        paused.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Failing")
    }
}

#[async_trait]
impl ObjectStore for Failing {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.may_write().await?;
        self.puts.lock().unwrap().push((location.clone(), payload.clone(), options.clone()));
        if self.loses.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        if self.refuses.load(Ordering::SeqCst) && options.mode == PutMode::Create {
            return Err(Error::AlreadyExists { path: location.to_string(), source: "told to refuse".into() });
        }
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        failed()
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if !options.head {
            self.reads.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        if self.keeps.load(Ordering::SeqCst) {
            return futures::stream::once(async { failed() }).boxed();
        }
        let (inner, pauses, paused) = (Arc::clone(&self.inner), Arc::clone(&self.pauses), Arc::clone(&self.paused));
        let removed = async move {
            wait(&pauses, &paused).await;
            inner.delete_stream(paths)
        };
        futures::stream::once(removed).flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listed = Arc::clone(&self.listed);
        let count = move |_: &Result<ObjectMeta>| {
            listed.fetch_add(1, Ordering::SeqCst);
        };
        self.inner.list(prefix).inspect(count).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut found = self.inner.list_with_delimiter(prefix).await?;
        self.listed.fetch_add(found.objects.len() + found.common_prefixes.len(), Ordering::SeqCst);
        if prefix.is_none() && self.has_nameless.load(Ordering::SeqCst) {
            found.common_prefixes.push(Path::default());
        }
        Ok(found)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        wait(&self.pauses, &self.paused).await;
        self.inner.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for Failing {
    async fn create_multipart(&self, path: &Path) -> Result<String> {
        self.may_write().await?;
        let id = self.inner.create_multipart(path).await?;
        self.unended.lock().unwrap().insert(id.clone());
        Ok(id)
    }

    async fn put_part(&self, path: &Path, id: &String, index: usize, data: PutPayload) -> Result<PartId> {
        self.may_write().await?;
        self.check(id)?;
        let fewer = |left: usize| left.checked_sub(1);
        if self.takes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fewer).is_err() {
            return failed();
        }
        self.parts.fetch_add(1, Ordering::SeqCst);
        self.inner.put_part(path, id, index, data).await
    }

    async fn complete_multipart(&self, path: &Path, id: &String, parts: Vec<PartId>) -> Result<PutResult> {
        self.may_write().await?;
        self.check(id)?;
        let put = self.inner.complete_multipart(path, id, parts).await?;
        self.unended.lock().unwrap().remove(id);
        Ok(put)
    }

    async fn abort_multipart(&self, path: &Path, id: &String) -> Result<()> {
        self.check(id)?;
        self.unended.lock().unwrap().remove(id);
        self.inner.abort_multipart(path, id).await
    }
}
