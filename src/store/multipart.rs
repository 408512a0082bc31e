//! The parts in which a large object comes to a store: all of it appears at once, when the last of them is there, or nothing does.
//!
//! Stores of clouds know an upload by a number, so that another process can take it up or end it; others are known only to the process
//! that began it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{MultipartUpload, ObjectStore, ObjectStoreExt, PutResult, Result};

use super::condition::Condition;
use crate::error::Error;

/// A store, and the same if its uploads have numbers.
pub(super) type Opened = (Arc<dyn ObjectStore>, Option<PartStore>);

/// Parts that are on their way at once, unless that is more than [`MOST`] bytes.
pub(super) const AT_ONCE: usize = 8;

/// Most bytes on their way at once: of larger parts there is one.
pub(super) const MOST: u64 = 128 << 20;

/// Numbers of parts and the bytes of each, in order. Stores take 10,000 parts of one object, of at least 5 MiB.
const STEPS: [(u64, u64); 3] = [(2000, 16 << 20), (4000, 64 << 20), (3999, 512 << 20)];

/// The bytes of an object that are its part `index`, unless it ends before; none if stores take no more.
pub(super) fn part(index: usize) -> Option<Range<u64>> {
    let (mut left, mut start) = (index as u64, 0);
    for (count, bytes) in STEPS {
        if left < count {
            return Some(start + left * bytes..start + (left + 1) * bytes);
        }
        (left, start) = (left - count, start + count * bytes);
    }
    None
}

/// The error for an object that has more parts than stores take.
pub(super) fn too_large(url: &str) -> Error {
    let most: u64 = STEPS.iter().map(|(count, bytes)| count * bytes).sum();
    Error::unsupported(format!("{url}, of more than {most} bytes,"), "split it; stores take 10,000 parts of one object")
}

/// A store whose uploads have numbers.
#[derive(Clone)]
pub(super) struct PartStore {
    store: Arc<dyn MultipartStore>,
    conditions: Arc<Conditions>,
}

/// What is known of the conditions that a store takes.
#[derive(Debug, Default)]
struct Conditions {
    /// True if the last request of an upload may have one.
    at_the_end: bool,
    /// True once it was seen to know none.
    none: AtomicBool,
}

impl PartStore {
    #[cfg_attr(not(any(feature = "cloud", test)), allow(dead_code, reason = "only clouds have such stores"))]
    pub(super) fn new(store: Arc<dyn MultipartStore>) -> Self {
        Self { store, conditions: Arc::default() }
    }

    /// The same; with `takes_conditions` the last request of an upload has them as S3 knows them.
    #[cfg(feature = "cloud")]
    pub(super) fn with_conditions(self, takes_conditions: bool) -> Self {
        let conditions = Conditions { at_the_end: takes_conditions, ..Conditions::default() };
        Self { conditions: Arc::new(conditions), ..self }
    }

    /// Returns true unless the store was seen to know no conditional writes.
    pub(super) fn may_be_conditional(&self) -> bool {
        !self.conditions.none.load(Ordering::Relaxed)
    }

    /// Notes that the store knows no conditional writes.
    pub(super) fn give_up_conditions(&self) {
        self.conditions.none.store(true, Ordering::Relaxed);
    }
}

impl fmt::Debug for PartStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PartStore").finish()
    }
}

/// An upload in parts.
#[derive(Debug)]
pub(super) enum Multipart {
    /// With a number.
    Known { store: PartStore, path: Path, id: String },
    /// Of this process alone.
    Own(Box<dyn MultipartUpload>),
}

impl Multipart {
    /// Begins one, of what is to be at `path`.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn begin(store: &Arc<dyn ObjectStore>, numbered: Option<&PartStore>, path: &Path) -> Result<Self> {
        match numbered {
            Some(numbered) => {
                let id = numbered.store.create_multipart(path).await?;
                Ok(Self::Known { store: numbered.clone(), path: path.clone(), id })
            }
            None => Ok(Self::Own(store.put_multipart(path).await?)),
        }
    }

    /// The one of this number.
    pub(super) fn known(store: &PartStore, path: &Path, id: &str) -> Self {
        Self::Known { store: store.clone(), path: path.clone(), id: id.to_owned() }
    }

    /// Its number.
    pub(super) fn id(&self) -> Option<&str> {
        match self {
            Self::Known { id, .. } => Some(id),
            Self::Own(_) => None,
        }
    }

    /// Sends part `index`; those of an upload without a number go in order. The outcome is what the store calls the part.
    pub(super) fn put(&mut self, index: usize, bytes: Bytes) -> BoxFuture<'static, Result<String>> {
        match self {
            Self::Known { store, path, id } => {
                let (store, path, id) = (store.clone(), path.clone(), id.clone());
                Box::pin(async move { Ok(store.store.put_part(&path, &id, index, bytes.into()).await?.content_id) })
            }
            Self::Own(upload) => {
                let put = upload.put_part(bytes.into());
                Box::pin(async move { put.await.map(|()| String::new()) })
            }
        }
    }

    /// Returns true if its [end](Self::complete) may have a condition. Elsewhere the number of an upload, or its blocks, stand for one: once it
    /// was ended or completed, or on Azure once anything else was put there, it cannot be completed any more.
    pub(super) fn takes_conditions(&self) -> bool {
        matches!(self, Self::Known { store, .. } if store.conditions.at_the_end)
    }

    /// Makes the object appear, of `parts` as the store calls them, under `condition` where it [takes](Self::takes_conditions) one.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn complete(&mut self, parts: Vec<String>, condition: &Condition) -> Result<PutResult> {
        match self {
            Self::Known { store, path, id } => {
                let parts = parts.into_iter().map(|content_id| PartId { content_id }).collect();
                completed(store.store.complete_multipart(path, id, parts), condition).await
            }
            Self::Own(upload) => upload.complete().await,
        }
    }

    /// Gives it up: the store forgets its parts.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn abort(&mut self) -> Result<()> {
        match self {
            Self::Known { store, path, id } => store.store.abort_multipart(path, id).await,
            Self::Own(upload) => upload.abort().await,
        }
    }
}

/// The outcome of `request`, which completes an upload, with a header for `condition`.
#[cfg(feature = "cloud")]
async fn completed(request: impl Future<Output = Result<PutResult>>, condition: &Condition) -> Result<PutResult> {
    super::client::completing(condition.header(), request).await
}

#[cfg(not(feature = "cloud"))]
async fn completed(request: impl Future<Output = Result<PutResult>>, _: &Condition) -> Result<PutResult> {
    request.await
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[test]
    fn parts_follow_each_other_within_the_bounds_of_stores() {
        let (mut end, mut index) = (0, 0);
        while let Some(part) = part(index) {
            assert_eq!(part.start, end);
            assert!((5 << 20..=5 << 30).contains(&(part.end - part.start)));
            (end, index) = (part.end, index + 1);
        }
        assert!(index < 10_000 && end > 2 << 40, "{index} parts, {end} bytes");
    }

    #[tokio::test]
    async fn an_upload_with_a_number_is_taken_up_by_it_and_appears_at_once() {
        let memory = Arc::new(InMemory::new());
        let (store, numbered) = (Arc::clone(&memory) as Arc<dyn ObjectStore>, PartStore::new(memory));
        let path = Path::from("x");
        for numbered in [None, Some(&numbered)] {
            let mut upload = Multipart::begin(&store, numbered, &path).await.unwrap();
            let mut parts = vec![upload.put(0, Bytes::from_static(b"one ")).await.unwrap()];
            assert!(store.head(&path).await.is_err(), "nothing is there before the end");
            if let (Some(numbered), Some(id)) = (numbered, upload.id()) {
                upload = Multipart::known(numbered, &path, id);
            }
            parts.push(upload.put(1, Bytes::from_static(b"two")).await.unwrap());
            upload.complete(parts, &Condition::Whatever).await.unwrap();
            let found = store.get(&path).await.unwrap().bytes().await.unwrap();
            assert_eq!(found, b"one two"[..]);
            store.delete(&path).await.unwrap();
            let mut given_up = Multipart::begin(&store, numbered, &path).await.unwrap();
            given_up.put(0, Bytes::from_static(b"three")).await.unwrap();
            given_up.abort().await.unwrap();
            assert!(store.head(&path).await.is_err());
        }
    }
}
