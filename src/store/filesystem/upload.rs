//! The upload of one save to its store, from where the last attempt ended: waited for where the store is unavailable, and begun anew where the
//! store has forgotten it.

use std::sync::Arc;
use std::time::Instant;

use futures::stream::{FuturesUnordered, StreamExt};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt, PutResult};

use super::super::cache::{Begun, ObjectKey, Save, Saves, Source, Target, is_of_the_disk};
use super::super::condition::Condition;
use super::super::multipart::{AT_ONCE, MOST, Multipart, part, too_large};
use super::super::place::Place;
use super::super::stamp::Stamp;
use super::super::unavailable;
use super::completion::{self, MOST_OVERTAKEN, Ready};
use super::origins::blocking;
use crate::error::{Error, Result};

/// Bytes of the store that are compared with a save at once.
const COMPARED: usize = 16 << 20;

/// What came of an attempt to upload a save.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// It is in its store, or over.
    Done,
    /// It has another address now, and is not there yet.
    Moved,
}

/// What a store has at the address of a save.
#[derive(Debug)]
enum There {
    /// This very save.
    Arrived,
    /// What it is to replace, and nothing else, if it is known what that is.
    Older(Option<Condition>),
}

/// A save, and the way to its store.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) saves: Saves,
    pub(super) save: Save,
    pub(super) place: Place,
    pub(super) path: Path,
}

/// `save` as it is now; see [`Saves::left`].
pub(super) async fn now(all: &Saves, save: &Save) -> Result<Option<Save>> {
    let (all, save) = (all.clone(), save.clone());
    blocking(move || all.left(&save)).await
}

/// Returns true if the store does not know the upload, or its parts, any more.
fn is_forgotten(error: &Error) -> bool {
    let Some(cause) = std::error::Error::source(error) else { return false };
    let is_missing = std::iter::successors(Some(cause), |error| (**error).source())
        .any(|error| matches!(error.downcast_ref(), Some(object_store::Error::NotFound { .. })));
    #[cfg(feature = "cloud")]
    let is_refused = super::super::answer::answers(cause).any(|answer| answer.contains("<Code>InvalidPart"));
    #[cfg(not(feature = "cloud"))]
    let is_refused = false;
    is_missing || is_refused
}

/// Ends the upload that was begun of `save`.
pub(super) async fn give_up(place: &Place, path: &Path, save: &Save) -> Result<()> {
    if let (Some(begun), Some(numbered)) = (&save.record.upload, &place.numbered) {
        match Multipart::known(numbered, path, &begun.id).abort().await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(place.failed("end the upload", path, error)),
        }
    }
    Ok(())
}

impl Upload {
    /// Uploads it. A store that is unavailable is waited for, and an upload that it has forgotten is begun anew.
    pub(super) async fn until_done(&mut self) -> Result<End> {
        let began = Instant::now();
        let mut may_begin_anew = self.save.record.upload.is_some();
        loop {
            match self.once().await {
                Ok(end) => return Ok(end),
                Err(error) if unavailable::is_unavailable(&error) && began.elapsed() < unavailable::PATIENCE => {
                    unavailable::waiting(&error);
                    tokio::time::sleep(unavailable::PAUSE).await;
                }
                Err(error) if may_begin_anew && is_forgotten(&error) => {
                    tracing::debug!("{} is uploaded anew: {}", self.save.record.target.url, error.chain());
                    may_begin_anew = false;
                    drop(give_up(&self.place, &self.path, &self.save).await);
                    self.save.record.upload = None;
                    self.note().await?;
                }
                Err(error) => {
                    self.save.record.failure = Some(error.chain());
                    drop(self.note().await);
                    return Err(error);
                }
            }
        }
    }

    async fn note(&self) -> Result<bool> {
        let (saves, save) = (self.saves.clone(), self.save.clone());
        blocking(move || saves.note(&save)).await
    }

    /// [`note`](Self::note) of what was sent, so that another process need not send it again. A disk that takes no note, because it is full
    /// for example, does not keep the bytes from the store.
    async fn note_progress(&self) -> Result<bool> {
        match self.note().await {
            Err(error) if is_of_the_disk(&error) => {
                let url = &self.save.record.target.url;
                tracing::warn!(
                    "nobody resumes or ends the upload of {url} if this process is killed: {}",
                    error.chain()
                );
                Ok(true)
            }
            noted => noted,
        }
    }

    fn failed(&self, error: object_store::Error) -> Error {
        self.place.failed("upload", &self.path, error)
    }

    async fn once(&mut self) -> Result<End> {
        let (saves, save) = (self.saves.clone(), self.save.clone());
        let Some(source) = blocking(move || saves.source(&save)).await? else { return self.over().await };
        let source = Arc::new(source);
        let is_small = part(0).is_some_and(|first| self.save.record.size <= first.end);
        let mut multipart = None;
        let mut parts = Vec::new();
        if !is_small {
            let begun = self.multipart().await?;
            let multipart = multipart.insert(begun);
            let Some(sent) = self.parts(multipart, &source).await? else {
                // What somebody has open stays on the disk.
                drop(source);
                return self.over().await;
            };
            parts = sent;
        }
        let _turn = self.saves.turn_at(&self.save.record.target).await?;
        let (saves, target) = (self.saves.clone(), self.save.record.target.clone());
        blocking(move || saves.end_replaced(&target)).await?;
        let found = now(&self.saves, &self.save).await?.filter(|now| now.record.is_there);
        let Some(found) = found.filter(|now| now.record.target == self.save.record.target) else {
            drop(source);
            return self.over().await;
        };
        let put = match is_replaced(&self.place, &self.path, &found).await? {
            true => None,
            false => self.complete(&found, &source, &parts, multipart.as_mut()).await?,
        };
        let Some(put) = put else {
            drop(source);
            let saves = self.saves.clone();
            blocking(move || saves.end_one(&found)).await?;
            return self.over().await;
        };
        let key = version(&self.place, &self.path, &put, self.save.record.size).await;
        let (saves, save) = (self.saves.clone(), self.save.clone());
        blocking(move || {
            // The store has it: no record may tell of bytes that are elsewhere. They stay, since they are open.
            saves.forget(&save)?;
            match (key, Arc::into_inner(source)) {
                (Some(key), Some(source)) => saves.adopt(&save, source, key),
                (_, source) => drop(source),
            }
            saves.forget(&save)
        })
        .await?;
        Ok(End::Done)
    }

    /// Makes it appear in place of what it found when it was closed, if that is known. None if the store has this very save already: its
    /// answer was lost, or the process killed before it was noted.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if the store has what somebody else has saved there since this was closed; and those of the store.
    async fn complete(
        &self,
        save: &Save,
        source: &Arc<Source>,
        parts: &[String],
        mut multipart: Option<&mut Multipart>,
    ) -> Result<Option<PutResult>> {
        let mut overtaken = 0;
        loop {
            let There::Older(expected) = self.look(save, source).await? else { return Ok(None) };
            let ready = if multipart.is_none() {
                let (read, size) = (Arc::clone(source), save.record.size);
                Ready::Whole(blocking(move || read.read(0, size)).await?)
            } else {
                Ready::Parts(parts.to_vec())
            };
            let (multipart, expected) = (multipart.as_deref_mut(), expected.as_ref());
            match completion::complete(&self.place, &self.path, "upload", &ready, multipart, expected).await {
                // It may be this very save, or that of somebody else.
                Err(Error::Mismatch { .. }) if overtaken < MOST_OVERTAKEN => overtaken += 1,
                put => return put.map(Some),
            }
        }
    }

    /// What the store has at the address of `save`.
    ///
    /// # Errors
    /// As [`complete`](Self::complete).
    async fn look(&self, save: &Save, source: &Arc<Source>) -> Result<There> {
        let Some(found) = &save.record.found else { return Ok(There::Older(None)) };
        let there = head(&self.place, &self.path).await?;
        match there.as_ref().map(Stamp::of).filter(|there| there.to_string() != *found) {
            None => Ok(There::Older(Some(Condition::of(&self.place.prefix, there)))),
            Some(later) if is_it(&self.place, &self.path, save, &later, source).await? => Ok(There::Arrived),
            Some(later) => Err(overtaken(save, &later)),
        }
    }

    /// Something else was saved for the same address, or it has another one now: what was sent is given up.
    async fn over(&mut self) -> Result<End> {
        give_up(&self.place, &self.path, &self.save).await?;
        match now(&self.saves, &self.save).await?.filter(|now| now.record.is_there) {
            Some(now) if now.record.target != self.save.record.target => Ok(End::Moved),
            Some(_) => {
                let why = "its bytes are gone, or another process changes them".to_owned();
                let operation = "read the saved bytes".to_owned();
                Err(Error::Store { operation, url: self.save.record.target.url.clone(), source: why.into() })
            }
            None => {
                let (saves, save) = (self.saves.clone(), self.save.clone());
                blocking(move || saves.forget(&save)).await?;
                Ok(End::Done)
            }
        }
    }

    /// The upload in parts: the one that was begun, or a new one.
    async fn multipart(&mut self) -> Result<Multipart> {
        if let (Some(begun), Some(numbered)) = (&self.save.record.upload, &self.place.numbered) {
            return Ok(Multipart::known(numbered, &self.path, &begun.id));
        }
        let begun = Multipart::begin(&self.place.store, self.place.numbered.as_ref(), &self.path).await;
        let begun = begun.map_err(|error| self.failed(error))?;
        self.save.record.upload = begun.id().map(|id| Begun { id: id.to_owned(), parts: Vec::new() });
        self.note_progress().await?;
        Ok(begun)
    }

    /// Sends the parts that the store does not have; what it calls all of them. None if the save is over.
    async fn parts(&mut self, multipart: &mut Multipart, source: &Arc<Source>) -> Result<Option<Vec<String>>> {
        let size = self.save.record.size;
        let ranges: Vec<_> = (0..).map_while(part).take_while(|part| part.start < size).collect();
        if ranges.last().is_none_or(|last| last.end < size) {
            return Err(too_large(&self.save.record.target.url));
        }
        let mut sent = self.save.record.upload.as_ref().map(|begun| begun.parts.clone()).unwrap_or_default();
        sent.resize(ranges.len(), None);
        let mut going = FuturesUnordered::new();
        let mut bytes_going = 0_u64;
        let missing = |index: &usize| sent.get(*index).is_none_or(Option::is_none);
        let left = ranges.iter().enumerate().rev().filter(|(index, _)| missing(index));
        let mut left: Vec<_> = left.map(|(index, range)| (index, range.start..range.end.min(size))).collect();
        while !left.is_empty() || !going.is_empty() {
            while going.len() < AT_ONCE
                && bytes_going < MOST
                && let Some((index, range)) = left.pop()
            {
                let (source, length) = (Arc::clone(source), range.end - range.start);
                let bytes = blocking(move || source.read(range.start, range.end)).await?;
                bytes_going += length;
                let put = multipart.put(index, bytes);
                going.push(async move { (index, length, put.await) });
            }
            let Some((index, length, put)) = going.next().await else { break };
            bytes_going = bytes_going.saturating_sub(length);
            let id = put.map_err(|error| self.failed(error))?;
            if let Some(sent) = sent.get_mut(index) {
                *sent = Some(id);
            }
            if let Some(begun) = &mut self.save.record.upload {
                begun.parts.clone_from(&sent);
                if !self.note_progress().await? {
                    return Ok(None);
                }
            }
        }
        Ok(Some(sent.into_iter().flatten().collect()))
    }
}

/// What the store has at `path`, if there is something.
async fn head(place: &Place, path: &Path) -> Result<Option<ObjectMeta>> {
    match place.store.head(path).await {
        Ok(found) => Ok(Some(found)),
        Err(object_store::Error::NotFound { .. }) => Ok(None),
        Err(error) => Err(place.failed("look up", path, error)),
    }
}

/// The version that the store has at `path`, in words; see [`Saves::note_before`].
pub(super) async fn there(place: &Place, path: &Path) -> Result<String> {
    Ok(head(place, path).await?.map_or_else(|| "nothing".to_owned(), |found| Stamp::of(&found).to_string()))
}

/// The version of another object that came to `path`, its address, since `save` was closed, if that is known. What was removed there is no
/// such object.
async fn later(place: &Place, path: &Path, save: &Save) -> Result<Option<Stamp>> {
    let Some(found) = &save.record.found else { return Ok(None) };
    Ok(head(place, path).await?.as_ref().map(Stamp::of).filter(|there| there.to_string() != *found))
}

/// Returns true if `later`, which the store has at `path`, has the bytes of `save`, which are those of `source`.
async fn is_it(place: &Place, path: &Path, save: &Save, later: &Stamp, source: &Arc<Source>) -> Result<bool> {
    let size = save.record.size;
    if later.size != size {
        return Ok(false);
    }
    for start in (0..size).step_by(COMPARED) {
        let range = start..(start + COMPARED as u64).min(size);
        let there = place.store.get_range(path, range.clone()).await;
        let there = there.map_err(|error| place.failed("read", path, error))?;
        let source = Arc::clone(source);
        if there != blocking(move || source.read(range.start, range.end)).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks that nobody has saved something else at `path`, its address, since `save` was closed: it may have arrived itself.
///
/// # Errors
/// [`Error::Mismatch`], those of the store, and those of the cache's disk.
pub(super) async fn check_later(saves: &Saves, place: &Place, path: &Path, save: &Save) -> Result<()> {
    let Some(later) = later(place, path, save).await? else { return Ok(()) };
    let (all, again) = (saves.clone(), save.clone());
    match blocking(move || all.source(&again)).await?.map(Arc::new) {
        Some(source) if is_it(place, path, save, &later, &source).await? => Ok(()),
        _ => Err(overtaken(save, &later)),
    }
}

/// Neither of two saves is lost where nobody can say which one is to stay.
fn overtaken(save: &Save, later: &Stamp) -> Error {
    let Save { record, .. } = save;
    Error::Mismatch {
        what: format!("{} was saved elsewhere since it was saved in the background here", record.target.url),
        expected: record.found.clone().unwrap_or_default(),
        found: later.to_string(),
        hint: "both are kept: read the one of the cache and the one of the store, and save through this cache what is to stay".to_owned(),
    }
}

/// Returns true if something that came later than `save` is at `path`, its address.
pub(super) async fn is_replaced(place: &Place, path: &Path, save: &Save) -> Result<bool> {
    match &save.record.before {
        Some(before) => Ok(*before != there(place, path).await?),
        None => Ok(false),
    }
}

/// What was saved for `target`, if it is not in its store yet.
pub(super) async fn at(saves: &Saves, target: &Target) -> Result<Option<Save>> {
    let (all, target) = (saves.clone(), target.clone());
    blocking(move || all.at(&target)).await
}

/// Ends `last` and what was saved for its address before; see [`Saves::end_until`].
pub(super) async fn end_until(saves: &Saves, last: Option<Save>) -> Result<()> {
    let (Some(last), all) = (last, saves.clone()) else { return Ok(()) };
    blocking(move || all.end_until(&last)).await
}

/// Prepares for putting something at `path`, whose address is `target`, in whose turn this is: what was saved for it and is not uploaded yet
/// must not come after that, even if this process is killed before it has ended those saves. Returns the last one of them.
pub(super) async fn before_later(saves: &Saves, target: &Target, place: &Place, path: &Path) -> Result<Option<Save>> {
    let Some(last) = at(saves, target).await? else { return Ok(None) };
    let before = match there(place, path).await {
        Ok(before) => before,
        Err(error) => {
            // Whoever may write there need not be allowed to look.
            tracing::debug!("what waits for its upload to {} is not noted as older: {}", target.url, error.chain());
            return Ok(Some(last));
        }
    };
    let (all, target) = (saves.clone(), target.clone());
    blocking(move || all.note_before(&target, Some(&before))).await?;
    Ok(Some(last))
}

/// What was to be put after `last` has failed, and perhaps is there all the same: what comes there from now on is not that. A save that knows
/// what it found tells all of it from its own.
pub(super) async fn after_failure(saves: &Saves, last: Option<Save>) {
    let Some(last) = last.filter(|last| last.record.found.is_some()) else { return };
    let all = saves.clone();
    if let Err(error) = blocking(move || all.note_before(&last.record.target, None)).await {
        tracing::debug!("what waits for its upload stays noted as older: {}", error.chain());
    }
}

/// The name in the cache of what was `put` at `path`, if that is there and told.
pub(super) async fn version(place: &Place, path: &Path, put: &PutResult, size: u64) -> Option<ObjectKey> {
    let meta = place.store.head(path).await.ok()?;
    // Another one may have replaced it meanwhile.
    let is_it = meta.size == size && put.e_tag.is_some() && put.e_tag == meta.e_tag;
    if is_it { place.cache.as_ref()?.key(&place.url(path), &Stamp::of(&meta)) } else { None }
}
