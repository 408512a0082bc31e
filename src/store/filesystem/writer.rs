//! One file that is saved: written once from start to end, and there as a whole at its end, or not at all.
//!
//! ```text
//!   of this machine      written beside its name ─► flushed ─► renamed
//!   Upload::Wait         parts to the store as they come, and to the cache ─► complete ─► a block of the cache
//!   Upload::Background   to the cache ─► flushed, and there for readers of this machine ─► uploaded
//! ```

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use object_store::path::Path;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::super::cache::{Saves, Staged, Target};
use super::super::multipart::{part, too_large};
use super::super::origins::with_refusal;
use super::super::place::Place;
use super::aside::Aside;
use super::options::Upload;
use super::origins::{At, Origins, blocking, saves};
use super::sending::{Fed, Sending};
use super::upload::{after_failure, before_later, end_until, version};
use super::uploads::Uploads;
use crate::error::{Error, Result};

/// Bytes of a file of this machine, or of the cache, that are written at once.
const WRITE: usize = 4 << 20;

/// The longest wait for a store that is told that an upload is given up.
const ENDING: Duration = Duration::from_secs(30);

/// The copy in the cache of what is sent; none if there is none, or its disk failed.
type Kept = Arc<Mutex<Option<Staged>>>;

/// A file that is being saved; see [`FileSystem::create`](super::FileSystem::create). Dropped before its end, it was never there: what was
/// there before is there still. Its calls block, and must not be made from within an async runtime.
#[derive(Debug)]
pub struct Writer {
    url: String,
    origins: Arc<Origins>,
    written: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    Here(Aside),
    Stream(Stream),
    Later(Box<Later>),
    Ending(JoinHandle<Result<()>>, Option<oneshot::Sender<()>>),
    Over,
}

/// A save that is uploaded later.
#[derive(Debug)]
struct Later {
    staged: Staged,
    saves: Saves,
    target: Target,
    place: Place,
    path: Path,
    uploads: Arc<Uploads>,
}

impl Later {
    /// Ends it: it is on the disk, and its upload begins.
    async fn commit(self: Box<Self>) -> Result<()> {
        let Self { staged, saves, target, place, path, uploads } = *self;
        let at = target.clone();
        // Whoever has the turn is about to change what is there.
        let turn = blocking(move || saves.turn_at_once(&at)).await.unwrap_or_default();
        let found = if turn.is_some() { uploads.found(&place, &path).await } else { None };
        let commit = move || {
            let (save, own) = staged.commit(target, found)?;
            drop(turn);
            uploads.begin(save, own)
        };
        blocking(commit).await
    }
}

/// An upload under way.
#[derive(Debug)]
struct Stream {
    feed: Sender<Fed>,
    task: JoinHandle<Result<()>>,
    /// Dropped to give it up.
    cancel: oneshot::Sender<()>,
    copy: Kept,
    /// The part that grows, and its number.
    buffer: Vec<u8>,
    index: usize,
}

fn over() -> Error {
    Error::Closed { why: "the file is closed".to_owned() }
}

fn given_up(url: &str) -> Error {
    Error::Closed { why: format!("saving {url} was given up") }
}

impl Writer {
    /// Begins to save what is to be at `url`, which is `at`.
    ///
    /// # Errors
    /// [`Error::Config`] for an upload in the background without a cache on a disk; [`Error::NotFound`]; [`Error::Store`], also for one in
    /// the background if the cache's disk failed when it was opened.
    pub(super) fn begin(
        origins: &Arc<Origins>,
        uploads: &Arc<Uploads>,
        at: At,
        upload: Upload,
        url: &str,
    ) -> Result<Self> {
        let (url, state) = match at {
            At::Here(path, _) => (path.display().to_string(), State::Here(Aside::begin(&path)?)),
            At::Store(place, path) => {
                if path.as_ref().is_empty() || url.ends_with('/') {
                    return Err(Error::config("urls", format!("{} is no address of a file", place.url(&path))));
                }
                let (url, saves) = (place.url(&path), saves(&place, &path));
                let state = match (upload, saves) {
                    (Upload::Background, Some((saves, target))) => {
                        let (staged, uploads) = (Staged::begin(&saves)?, Arc::clone(uploads));
                        State::Later(Box::new(Later { staged, saves, target, place, path, uploads }))
                    }
                    (Upload::Background, None) => {
                        if let Some(cache) = &origins.means.cache {
                            cache.cache().check_open()?;
                        }
                        let problem = "background keeps what is saved on a disk of this machine until it is uploaded: set cache, \
                                       e.g. /nvme/bowstring, or BOWSTRING_CACHE; or leave upload out";
                        return Err(Error::config("upload", problem));
                    }
                    (Upload::Wait, saves) => State::Stream(stream(origins, place, path, saves)?),
                };
                (url, state)
            }
        };
        Ok(Self { url, origins: Arc::clone(origins), written: 0, state })
    }

    /// Its address, without credentials; of a file of this machine the path.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Bytes that were written.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The longest wait for the store to take some bytes.
    pub fn timeout(&self) -> Duration {
        self.origins.options.timeout
    }

    /// The error for a wait of `waited`.
    pub fn timed_out(&self, waited: Duration) -> Error {
        Error::Timeout { stage: "write", culprit: with_refusal(&self.url, waited), waited }
    }

    /// Writes the first of `bytes`, and returns how many. `None` if the store takes no more within `wait`.
    ///
    /// # Errors
    /// [`Error::Store`], [`Error::Limit`]; the file is given up then.
    pub fn write_within(&mut self, bytes: &[u8], wait: Duration) -> Result<Option<usize>> {
        let some = bytes.get(..bytes.len().min(WRITE)).unwrap_or_default();
        let taken = match &mut self.state {
            State::Here(aside) => aside.write(some).map(|()| Some(some.len())),
            State::Later(later) => later.staged.write(some).map(|()| Some(some.len())),
            State::Stream(stream) => stream.write(&self.origins, some, wait),
            State::Ending(..) | State::Over => return Err(over()),
        };
        match taken {
            Ok(taken) => {
                self.written = self.written.saturating_add(taken.unwrap_or_default() as u64);
                Ok(taken)
            }
            Err(error) => {
                let error = self.cause(error);
                self.abort();
                Err(error)
            }
        }
    }

    /// Why the upload ended, if it did.
    fn cause(&mut self, error: Error) -> Error {
        let State::Stream(stream) = &mut self.state else { return error };
        if !stream.feed.is_closed() {
            return error;
        }
        let ended = self.origins.means.run(async { Ok((&mut stream.task).await) });
        self.state = State::Over;
        match ended {
            Ok(Ok(Err(cause))) => cause,
            _ => error,
        }
    }

    /// Ends the file: it is there when this returns, whole, in place of what was there. With [`Upload::Wait`] the store has it; with
    /// [`Upload::Background`] it is on the disk of this machine.
    ///
    /// # Errors
    /// [`Error::Store`]; what was there before is there still, unless the store did not tell whether it has completed the new one.
    pub fn finish(&mut self) -> Result<()> {
        while !self.finish_within(self.timeout())? {}
        Ok(())
    }

    /// As [`finish`](Self::finish). False if it is not over within `wait`: it goes on, and a later call waits for it.
    ///
    /// # Errors
    /// As there.
    pub fn finish_within(&mut self, wait: Duration) -> Result<bool> {
        let runtime = self.origins.means.runtime()?;
        let (task, cancel) = match std::mem::replace(&mut self.state, State::Over) {
            State::Here(aside) => (runtime.spawn(blocking(move || aside.publish())), None),
            State::Later(later) => (runtime.spawn(later.commit()), None),
            State::Stream(Stream { feed, task, cancel, buffer, .. }) => {
                // If nobody takes it, the task has ended, and says why.
                runtime.spawn(async move { drop(feed.send(Fed::Last(buffer.into())).await) });
                (task, Some(cancel))
            }
            State::Ending(task, cancel) => (task, cancel),
            State::Over => return Err(over()),
        };
        let mut task = task;
        match runtime.block_on(async { tokio::time::timeout(wait, &mut task).await }) {
            Err(_) => {
                self.state = State::Ending(task, cancel);
                Ok(false)
            }
            Ok(done) => {
                done.unwrap_or_else(|error| Err(Error::Closed { why: format!("saving was not ended: {error}") }))?;
                Ok(true)
            }
        }
    }

    /// Gives the file up: what was there before stays. After [`finish_within`](Self::finish_within) has begun, it may be the new one.
    pub fn abort(&mut self) {
        let (task, cancel) = match std::mem::replace(&mut self.state, State::Over) {
            State::Stream(Stream { task, cancel, .. }) => (task, Some(cancel)),
            State::Ending(task, cancel) => (task, cancel),
            State::Here(_) | State::Later(_) | State::Over => return,
        };
        drop(cancel);
        if tokio::runtime::Handle::try_current().is_err() {
            // The store is told.
            let told = async { Ok(tokio::time::timeout(ENDING, task).await.is_ok()) };
            drop(self.origins.means.run(told));
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.abort();
    }
}

impl io::Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let wait = self.timeout();
        match self.write_within(bytes, wait).map_err(io::Error::other)? {
            Some(taken) => Ok(taken),
            None => Err(io::Error::other(self.timed_out(wait))),
        }
    }

    /// Does nothing: the file is there at its [end](Writer::finish).
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Stream {
    fn write(&mut self, origins: &Origins, bytes: &[u8], wait: Duration) -> Result<Option<usize>> {
        let whole = part(self.index).ok_or_else(|| too_large("a file"))?;
        let whole = usize::try_from(whole.end - whole.start).unwrap_or(usize::MAX);
        if self.buffer.len() >= whole {
            let feed = &self.feed;
            let reserved =
                origins.means.runtime()?.block_on(async { tokio::time::timeout(wait, feed.reserve()).await });
            match reserved {
                Err(_) => return Ok(None),
                Ok(Err(_)) => return Err(over()),
                Ok(Ok(place)) => place.send(Fed::Part(Bytes::from(std::mem::take(&mut self.buffer)))),
            }
            self.index += 1;
        }
        let some = bytes.get(..bytes.len().min(whole - self.buffer.len())).unwrap_or_default();
        let mut copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(staged) = copy.as_mut()
            && let Err(error) = staged.write(some)
        {
            tracing::warn!("what is saved is not kept in the cache: {}", error.chain());
            staged.spoil();
        }
        self.buffer.extend_from_slice(some);
        Ok(Some(some.len()))
    }
}

/// Begins an upload that is under way while the file is written.
fn stream(origins: &Arc<Origins>, place: Place, path: Path, saves: Option<(Saves, Target)>) -> Result<Stream> {
    let staged = saves.as_ref().and_then(|(saves, _)| {
        let staged = Staged::begin(saves);
        staged.inspect_err(|error| tracing::warn!("what is saved is not kept in the cache: {}", error.chain())).ok()
    });
    let copy: Kept = Arc::new(Mutex::new(staged));
    let (feed, fed) = mpsc::channel(1);
    let (cancel, cancelled) = oneshot::channel::<()>();
    let saving = Saving { place, path, saves, copy: Arc::clone(&copy) };
    let task = origins.means.runtime()?.spawn(saving.run(fed, cancelled));
    Ok(Stream { feed, task, cancel, copy, buffer: Vec::new(), index: 0 })
}

/// The part of an upload that runs beside its writer.
#[derive(Debug)]
struct Saving {
    place: Place,
    path: Path,
    saves: Option<(Saves, Target)>,
    copy: Kept,
}

impl Saving {
    fn staged(&self) -> Option<Staged> {
        self.copy.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn run(self, mut fed: Receiver<Fed>, cancelled: oneshot::Receiver<()>) -> Result<()> {
        let mut sending = Sending::new(self.place.clone(), self.path.clone());
        let outcome = tokio::select! {
            biased;
            _ = cancelled => Err(given_up(&self.place.url(&self.path))),
            done = self.save(&mut sending, &mut fed) => done,
        };
        if outcome.is_err() {
            let is_ended = sending.give_up().await;
            match self.staged() {
                Some(staged) if is_ended => staged.discard(),
                // The note of the upload stays, for whoever comes next.
                staged => drop(staged),
            }
        }
        outcome
    }

    async fn save(&self, sending: &mut Sending, fed: &mut Receiver<Fed>) -> Result<()> {
        let failed = |error| self.place.failed("write", &self.path, error);
        let begun = |id: &str| {
            let copy = self.copy.lock().unwrap_or_else(PoisonError::into_inner);
            if let (Some(staged), Some((_, target))) = (copy.as_ref(), &self.saves)
                && let Err(error) = staged.note(target, id)
            {
                tracing::warn!("nobody ends the upload if this process is killed: {}", error.chain());
            }
        };
        let ready = sending.send(fed, begun).await.map_err(failed)?;
        let ready = ready.ok_or_else(|| given_up(&self.place.url(&self.path)))?;
        let Some((saves, target)) = &self.saves else {
            return sending.complete(&ready).await.map(drop);
        };
        let _turn = saves.turn_if_any(target).await?;
        let last = before_later(saves, target, &self.place, &self.path).await?;
        let put = match sending.complete(&ready).await {
            Ok(put) => put,
            Err(error) => {
                after_failure(saves, last).await;
                return Err(error);
            }
        };
        // What was saved before must not come after it.
        end_until(saves, last).await?;
        let Some(staged) = self.staged() else { return Ok(()) };
        let key = version(&self.place, &self.path, &put, staged.size()).await;
        let adopt = move || {
            match key {
                Some(key) => staged.adopt(key),
                None => staged.discard(),
            }
            Ok(())
        };
        blocking(adopt).await
    }
}
