//! An object on its way to its store while it is made: whole parts are sent as they come, and it appears when the last one is there.

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};
use object_store::path::Path;
use object_store::{PutResult, Result};
use tokio::sync::mpsc::Receiver;
use tokio::task::{JoinError, JoinHandle};

use super::super::multipart::{AT_ONCE, MOST, Multipart};
use super::super::place::Place;
use super::completion::{self, Ready};

/// The next bytes of an object.
#[derive(Debug)]
pub(super) enum Fed {
    /// A whole part, and not the last one.
    Part(Bytes),
    /// The rest.
    Last(Bytes),
}

/// See the module.
#[derive(Debug)]
pub(super) struct Sending {
    place: Place,
    path: Path,
    multipart: Option<Multipart>,
    /// One that the store is asked for: it may have it already.
    asked: Option<JoinHandle<Result<Multipart>>>,
}

impl Sending {
    pub(super) fn new(place: Place, path: Path) -> Self {
        Self { place, path, multipart: None, asked: None }
    }

    /// Sends what comes, up to the end; none if that never comes. `begun` is told the number of the upload, if it has one.
    ///
    /// # Errors
    /// Those of the store.
    pub(super) async fn send(&mut self, fed: &mut Receiver<Fed>, begun: impl Fn(&str)) -> Result<Option<Ready>> {
        let mut going = FuturesUnordered::new();
        let (mut parts, mut bytes_going) = (Vec::new(), 0_u64);
        loop {
            let is_full = going.len() >= AT_ONCE || bytes_going >= MOST;
            let next = tokio::select! {
                Some(done) = going.next(), if !going.is_empty() => {
                    let (index, length, put): (usize, u64, Result<String>) = done;
                    bytes_going = bytes_going.saturating_sub(length);
                    set(&mut parts, index, put?);
                    continue;
                }
                next = fed.recv(), if !is_full => next,
            };
            let (bytes, is_last) = match next {
                None => return Ok(None),
                Some(Fed::Part(bytes)) => (bytes, false),
                Some(Fed::Last(bytes)) if parts.is_empty() => return Ok(Some(Ready::Whole(bytes))),
                Some(Fed::Last(bytes)) => (bytes, true),
            };
            if self.multipart.is_none() {
                let (place, path) = (self.place.clone(), self.path.clone());
                let begin = async move { Multipart::begin(&place.store, place.numbered.as_ref(), &path).await };
                let asked = self.asked.insert(tokio::spawn(begin)).await;
                self.asked = None;
                let multipart = asked.map_err(ended)??;
                multipart.id().inspect(|id| begun(id));
                self.multipart = Some(multipart);
            }
            if let Some(multipart) = &mut self.multipart {
                let (index, length) = (parts.len(), bytes.len() as u64);
                parts.push(None);
                bytes_going = bytes_going.saturating_add(length);
                let put = multipart.put(index, bytes);
                going.push(async move { (index, length, put.await) });
            }
            if is_last {
                break;
            }
        }
        while let Some((index, _, put)) = going.next().await {
            set(&mut parts, index, put?);
        }
        Ok(Some(Ready::Parts(parts.into_iter().flatten().collect())))
    }

    /// Makes the object appear.
    ///
    /// # Errors
    /// As [`completion::complete`].
    pub(super) async fn complete(&mut self, ready: &Ready) -> crate::error::Result<PutResult> {
        let put = completion::complete(&self.place, &self.path, "write", ready, self.multipart.as_mut(), None).await?;
        self.multipart = None;
        Ok(put)
    }

    /// Gives up what was sent; returns false if the store could not be told.
    pub(super) async fn give_up(&mut self) -> bool {
        if let Some(asked) = self.asked.take()
            && let Ok(Ok(multipart)) = asked.await
        {
            self.multipart = Some(multipart);
        }
        match self.multipart.take() {
            Some(mut multipart) => {
                multipart.abort().await.inspect_err(|error| tracing::warn!("an upload is not ended: {error}")).is_ok()
            }
            None => true,
        }
    }
}

fn ended(error: JoinError) -> object_store::Error {
    object_store::Error::Generic { store: "upload", source: error.into() }
}

fn set(parts: &mut [Option<String>], index: usize, id: String) {
    if let Some(part) = parts.get_mut(index) {
        *part = Some(id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use object_store::memory::InMemory;
    use object_store::{ObjectStore, ObjectStoreExt};
    use tokio::sync::mpsc::channel;

    use super::super::super::multipart::PartStore;
    use super::*;

    fn sending(is_numbered: bool) -> (Sending, Arc<dyn ObjectStore>) {
        let memory = Arc::new(InMemory::new());
        let store = Arc::clone(&memory) as Arc<dyn ObjectStore>;
        let numbered = is_numbered.then(|| PartStore::new(memory));
        let place = Place { numbered, ..Place::new(Arc::clone(&store), "s3://b/") };
        (Sending::new(place, Path::from("x")), store)
    }

    #[tokio::test]
    async fn an_object_appears_when_it_is_complete_and_has_its_bytes_in_order() {
        for (is_numbered, count) in [(false, 0), (true, 0), (false, 1), (true, 40), (false, 40)] {
            let (mut sending, store) = sending(is_numbered);
            let (feed, mut fed) = channel(1);
            let feeding = tokio::spawn(async move {
                for number in 0..count {
                    feed.send(Fed::Part(Bytes::from(vec![number as u8; 1000]))).await.unwrap();
                }
                feed.send(Fed::Last(Bytes::from_static(b"end"))).await.unwrap();
            });
            let told = Mutex::new(0);
            let ready = sending.send(&mut fed, |_| *told.lock().unwrap() += 1).await.unwrap().unwrap();
            feeding.await.unwrap();
            assert_eq!(*told.lock().unwrap(), u32::from(is_numbered && count > 0));
            assert!(store.head(&Path::from("x")).await.is_err());
            sending.complete(&ready).await.unwrap();
            let mut expected: Vec<u8> = (0..count).flat_map(|number| vec![number as u8; 1000]).collect();
            expected.extend(b"end");
            assert_eq!(store.get(&Path::from("x")).await.unwrap().bytes().await.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn what_never_ends_is_given_up() {
        let (mut sending, store) = sending(true);
        let (feed, mut fed) = channel(2);
        feed.send(Fed::Part(Bytes::from_static(b"begin"))).await.unwrap();
        drop(feed);
        assert!(sending.send(&mut fed, |_| ()).await.unwrap().is_none());
        assert!(sending.multipart.is_some() && sending.give_up().await);
        assert!(store.head(&Path::from("x")).await.is_err());
    }
}
