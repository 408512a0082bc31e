//! The uploads of what was saved to be uploaded later: one after another, in the order in which the files were closed, and taken up by the
//! next process where one was killed.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use object_store::path::Path;
use tokio::sync::Semaphore;

use super::super::cache::{ObjectKey, Save, Saves, Turn, is_of_the_disk};
use super::super::place::Place;
use super::origins::{At, Origins, blocking, saves};
use super::upload::{End, Upload, give_up, now, there};
use crate::error::{Error, Result};
use crate::per_process::PerProcess;

/// Pause between two looks at another process's upload.
const PAUSE: Duration = Duration::from_millis(20);

/// The longest wait for a store that is asked what it has, when a save is closed.
const LOOK: Duration = Duration::from_secs(1);
/// After a store has not said that, so long it is not asked.
const REST: Duration = Duration::from_secs(30);

/// Uploads in the background of a process to one store at once: each file system has one at a time, and there may be one for each file.
const AT_ONCE: usize = 8;

/// What each store that has some may have.
static PERMITS: PerProcess<Mutex<HashMap<Arc<str>, Arc<Semaphore>>>> = PerProcess::new();

/// Those of the store that `place` is in: one that does not answer holds up no other.
fn permits(place: &Place) -> Arc<Semaphore> {
    let mut all = PERMITS.get().lock().unwrap_or_else(PoisonError::into_inner);
    all.retain(|_, permits| Arc::strong_count(permits) > 1);
    Arc::clone(all.entry(place.origin()).or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE))))
}

/// Uploads of this process that are under way or wait.
static GOING: PerProcess<(Mutex<Tally>, Condvar)> = PerProcess::new();

#[derive(Debug, Default)]
struct Tally {
    all: usize,
    /// The saves among them; others take up what killed processes have left.
    saves: HashSet<ObjectKey>,
}

fn going() -> MutexGuard<'static, Tally> {
    GOING.get().0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of them.
#[derive(Debug)]
struct Going(Option<ObjectKey>);

impl Going {
    fn new(save: Option<&Save>) -> Self {
        let (name, mut going) = (save.map(Save::name), going());
        going.all += 1;
        going.saves.extend(name);
        Self(name)
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        let mut going = going();
        going.all = going.all.saturating_sub(1);
        if let Some(name) = &self.0 {
            going.saves.remove(name);
        }
        GOING.get().1.notify_all();
    }
}

/// Waits until no upload of this process is under way, for `wait` at most; returns true if so. Those that failed are in the journal of
/// their cache.
pub fn uploads_done(wait: Duration) -> bool {
    let waited = GOING.get().1.wait_timeout_while(going(), wait, |going| going.all > 0);
    waited.unwrap_or_else(PoisonError::into_inner).0.all == 0
}

/// See the module.
#[derive(Debug)]
pub(super) struct Uploads {
    origins: Arc<Origins>,
    /// Held by the upload that is under way.
    turn: tokio::sync::Mutex<()>,
    /// The last time that a store did not say in time what it has.
    unanswered: Mutex<Option<Instant>>,
}

impl Uploads {
    pub(super) fn new(origins: Arc<Origins>) -> Self {
        Self { origins, turn: tokio::sync::Mutex::new(()), unanswered: Mutex::default() }
    }

    /// What the store has at `path`, for a save that is being closed; none if it does not say. A store that fails holds up one save of many.
    pub(super) async fn found(&self, place: &Place, path: &Path) -> Option<String> {
        let unanswered = || self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        if unanswered().is_some_and(|since| since.elapsed() < REST) {
            return None;
        }
        match tokio::time::timeout(LOOK, there(place, path)).await {
            Ok(Ok(found)) => Some(found),
            _ => {
                *unanswered() = Some(Instant::now());
                None
            }
        }
    }

    /// Uploads `save`, which this process may upload, when it is its turn.
    pub(super) fn begin(self: &Arc<Self>, save: Save, turn: Turn) -> Result<()> {
        let (uploads, going) = (Arc::clone(self), Going::new(Some(&save)));
        self.origins.means.runtime()?.spawn(async move {
            let url = save.record.target.url.clone();
            if let Err(error) = uploads.upload(save, turn).await {
                tracing::warn!("{url} is saved, and not uploaded: {}; flush() tries again", error.chain());
            }
            drop(going);
        });
        Ok(())
    }

    /// Takes up what killed processes have left in the cache, if there is anything.
    pub(super) fn resume(self: &Arc<Self>) -> Result<()> {
        let Some(all) = self.saves() else { return Ok(()) };
        // There may be many of this process, which opens a file system for each file.
        let is_left = |save: &Save| !going().saves.contains(&save.name());
        match all.all() {
            Ok(found) if !found.iter().any(is_left) => return Ok(()),
            Ok(_) => {}
            Err(error) => {
                tracing::warn!("what was saved before is not uploaded: {}", error.chain());
                return Ok(());
            }
        }
        let (uploads, going) = (Arc::clone(self), Going::new(None));
        self.origins.means.runtime()?.spawn(async move {
            if let Err(error) = uploads.flush_if(is_left, false).await {
                tracing::warn!("what was saved before is not uploaded: {}", error.chain());
            }
            drop(going);
        });
        Ok(())
    }

    fn saves(&self) -> Option<Saves> {
        Saves::of(self.origins.means.cache.as_ref()?.cache())
    }

    /// [`flush_if`](Self::flush_if) of all, those of other processes too.
    ///
    /// # Errors
    /// As there; and [`Error::Store`] for a cache whose disk failed when it was opened, and for a record of a save that cannot be read, once
    /// all others were tried.
    pub(super) async fn flush(&self) -> Result<()> {
        if let Some(cache) = &self.origins.means.cache {
            cache.cache().check_open()?;
        }
        let flushed = self.flush_if(|_| true, true).await;
        let Some(all) = self.saves() else { return flushed };
        flushed.and(blocking(move || all.check()).await)
    }

    /// Waits until all saves of the cache, of stores that are reached here, are in their stores; uploads those that nobody else does. With
    /// `waits` also those of other processes.
    ///
    /// # Errors
    /// The first of those of the uploads, all of which are tried; [`Error::Timeout`] if another process has one and gets nowhere.
    pub(super) async fn flush_if(&self, is_meant: impl Fn(&Save) -> bool, waits: bool) -> Result<()> {
        let Some(all) = self.saves() else { return Ok(()) };
        let mut outcome = Ok(());
        for save in blocking({
            let all = all.clone();
            move || all.all()
        })
        .await?
        {
            if is_meant(&save) {
                let done = if save.record.is_there {
                    self.finish(&all, save, waits).await
                } else {
                    self.end(&all, save).await
                };
                outcome = outcome.and(done);
            }
        }
        let reaped = blocking(move || all.reap()).await;
        match reaped {
            // What is left over takes space, and nothing else.
            Err(error) if is_of_the_disk(&error) => tracing::warn!("what saves left stays: {}", error.chain()),
            reaped => outcome = outcome.and(reaped),
        }
        outcome
    }

    /// Waits until `save` is in its store.
    async fn finish(&self, all: &Saves, save: Save, waits: bool) -> Result<()> {
        let (mut seen, mut since) = (None, Instant::now());
        loop {
            let Some(now) = now(all, &save).await?.filter(|now| now.record.is_there) else { return Ok(()) };
            if !self.is_ours(&now) {
                if waits {
                    let url = &now.record.target.url;
                    tracing::warn!("{url} is not uploaded: these options do not reach its store as it was saved");
                }
                return Ok(());
            }
            if let Some(turn) = all.turn(&now)? {
                return self.upload(now, turn).await;
            }
            if !waits {
                return Ok(());
            }
            if seen.as_ref() != Some(&now.record) {
                (seen, since) = (Some(now.record), Instant::now());
            }
            if since.elapsed() > self.origins.means.timeout {
                let culprit = format!("another process that uploads {}", save.record.target.url);
                return Err(Error::Timeout { stage: "flush", culprit, waited: since.elapsed() });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn is_ours(&self, save: &Save) -> bool {
        self.way(save).is_some()
    }

    /// The place of `save`, if it is of a store that is reached here as it was by whoever saved it.
    fn way(&self, save: &Save) -> Option<(Place, Path)> {
        let At::Store(place, path) = self.origins.at(&save.record.target.url).ok()? else { return None };
        let (_, target) = saves(&place, &path)?;
        (target == save.record.target).then_some((place, path))
    }

    /// Ends the upload of a save that is over, unless its process lives.
    async fn end(&self, all: &Saves, save: Save) -> Result<()> {
        if all.is_written(&save) {
            return Ok(());
        }
        let (Some(_turn), true) = (all.turn(&save)?, self.is_ours(&save)) else { return Ok(()) };
        self.end_unlocked(all, save).await
    }

    /// Uploads `save`, and notes a failure.
    async fn upload(&self, save: Save, _own: Turn) -> Result<()> {
        let _turn = self.turn.lock().await;
        let permits = self.way(&save).map(|(place, _)| permits(&place));
        let _permit = match &permits {
            // They are never closed.
            Some(permits) => permits.acquire().await.ok(),
            None => None,
        };
        let Some(all) = self.saves() else { return Ok(()) };
        loop {
            // It may have another address now, also since the last round, or be over.
            let Some(save) = now(&all, &save).await? else { return Ok(()) };
            if !save.record.is_there {
                return self.end_unlocked(&all, save).await;
            }
            let Some((place, path)) = self.way(&save) else {
                let source = "the store is reached with other options than when it was saved".into();
                return Err(Error::Store { operation: "upload".to_owned(), url: save.record.target.url, source });
            };
            let mut upload = Upload { saves: all.clone(), save, place, path };
            if upload.until_done().await? == End::Done {
                return Ok(());
            }
        }
    }

    async fn end_unlocked(&self, all: &Saves, save: Save) -> Result<()> {
        if let Some((place, path)) = self.way(&save) {
            give_up(&place, &path, &save).await?;
        }
        let all = all.clone();
        blocking(move || all.forget(&save)).await
    }
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[test]
    fn each_store_has_permits_of_its_own() {
        let of = |prefix: &str| permits(&Place::new(Arc::new(InMemory::new()), prefix));
        let (first, other) = (of("s3://permits-a/"), of("s3://permits-b/"));
        assert!(Arc::ptr_eq(&first, &of("s3://permits-a/")) && !Arc::ptr_eq(&first, &other));
        assert_eq!(first.available_permits(), AT_ONCE);
    }
}
