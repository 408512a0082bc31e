//! The last word of a save, after which it is there: the last one that is said counts.
//!
//! ```text
//!   look what is there ─► put, or complete, if that is still there ─► done
//!           ▲                              │ something else is there now
//!           └──────────────────────────────┘
//! ```
//! Two that save at once both look, and the later one looks once more: it replaces the other, as a whole. A request that a killed process has
//! sent before somebody else's save is refused when the store handles it: what it was to replace is no longer there.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _, PutOptions, PutPayload, PutResult};

use super::super::condition::{Condition, Refusal};
use super::super::multipart::{Multipart, PartStore};
use super::super::place::Place;
use super::super::unavailable;
use crate::error::{Error, Result};
use crate::per_process::PerProcess;

/// How often a save may be overtaken by others until it fails; each time, another one has succeeded.
pub(super) const MOST_OVERTAKEN: usize = 100;
/// How often a store may refuse a new object where it shows none, in a row: somebody may have made one there and removed it again.
const MOST_UNSHOWN: usize = 20;
/// Pause after such a refusal: others may be changing what is there.
const UNSHOWN_PAUSE: Duration = Duration::from_millis(100);
/// Most stores that are remembered as told of in the log.
const MOST_TOLD: usize = 64;

/// An object of which the store has everything but the last word.
#[derive(Debug)]
pub(super) enum Ready {
    /// One so small that it takes one request.
    Whole(Bytes),
    /// What the store calls its parts.
    Parts(Vec<String>),
}

impl Ready {
    async fn put(
        &self,
        place: &Place,
        path: &Path,
        multipart: Option<&mut Multipart>,
        condition: &Condition,
    ) -> object_store::Result<PutResult> {
        match (self, multipart) {
            (Self::Whole(bytes), _) => {
                let options = PutOptions { mode: condition.mode(), ..PutOptions::default() };
                place.store.put_opts(path, PutPayload::from_bytes(bytes.clone()), options).await
            }
            (Self::Parts(parts), Some(multipart)) => multipart.complete(parts.clone(), condition).await,
            (Self::Parts(_), None) => {
                Err(object_store::Error::Generic { store: "upload", source: "it was not begun".into() })
            }
        }
    }
}

/// Makes `ready`, whose parts are those of `multipart`, appear at `path`, in place of what is there, or of what is `expected` there alone. A
/// store that is unavailable is waited for. `operation` is what errors say was tried.
///
/// # Errors
/// [`Error::Mismatch`] if something else than `expected` is there; [`Error::Store`]; whether the object has appeared is then not known.
pub(super) async fn complete(
    place: &Place,
    path: &Path,
    operation: &str,
    ready: &Ready,
    mut multipart: Option<&mut Multipart>,
    expected: Option<&Condition>,
) -> Result<PutResult> {
    let began = Instant::now();
    let (mut overtaken, mut unshown, mut is_refused) = (0, 0, false);
    loop {
        let takes_conditions = match (ready, &multipart) {
            (Ready::Parts(_), Some(multipart)) => multipart.takes_conditions(),
            _ => true,
        };
        let may_be = place.numbered.as_ref().is_none_or(PartStore::may_be_conditional);
        let condition = match (takes_conditions && may_be && !is_refused, expected) {
            (true, Some(expected)) => Ok(expected.clone()),
            (true, None) => Condition::now(&*place.store, &place.prefix, path).await,
            (false, _) => Ok(Condition::Whatever),
        };
        let (put, is_new) = match condition {
            Ok(condition) => {
                let put = ready.put(place, path, multipart.as_deref_mut(), &condition).await;
                let put = put.map_err(|error| {
                    (if condition == Condition::Whatever { Refusal::Other } else { Refusal::of(&error) }, error)
                });
                (put, condition == Condition::Nothing)
            }
            Err(error) => (Err((Refusal::Other, error)), false),
        };
        let (refusal, error) = match put {
            Ok(put) => return Ok(put),
            Err(failed) => failed,
        };
        let is_unshown = is_new
            && refusal == Refusal::Overtaken
            && matches!(place.store.head(path).await, Err(object_store::Error::NotFound { .. }));
        unshown = if is_unshown { unshown + 1 } else { 0 };
        match refusal {
            Refusal::Overtaken if is_unshown && unshown < MOST_UNSHOWN => tokio::time::sleep(UNSHOWN_PAUSE).await,
            Refusal::Overtaken if is_unshown => {
                let why = "the store refuses a new object there, and shows none: it may have a directory of that name, as SeaweedFS makes them for \
                           names below; save under another name";
                return Err(Error::Store { operation: operation.to_owned(), url: place.url(path), source: why.into() });
            }
            Refusal::Overtaken if expected.is_some() => {
                return Err(Error::Mismatch {
                    what: format!("{} was changed while it was saved", place.url(path)),
                    expected: "what was there when it was looked up".to_owned(),
                    found: "something else".to_owned(),
                    hint: "save under an address of your own, or when others are done".to_owned(),
                });
            }
            Refusal::Overtaken if overtaken < MOST_OVERTAKEN => overtaken += 1,
            Refusal::Overtaken => {
                let why = format!(
                    "others have saved under this address {overtaken} times meanwhile; save under an address of your own, or when they are done"
                );
                return Err(Error::Store { operation: operation.to_owned(), url: place.url(path), source: why.into() });
            }
            Refusal::Unknown => {
                is_refused = true;
                without_conditions(place);
            }
            Refusal::Other => {
                let error = place.failed(operation, path, error);
                if !unavailable::is_unavailable(&error) || began.elapsed() >= unavailable::PATIENCE {
                    return Err(error);
                }
                unavailable::waiting(&error);
                tokio::time::sleep(unavailable::PAUSE).await;
            }
        }
    }
}

/// The store of `place` knows no conditions, which is said once of each.
fn without_conditions(place: &Place) {
    static TOLD: PerProcess<Mutex<BTreeSet<String>>> = PerProcess::new();
    if let Some(store) = &place.numbered {
        store.give_up_conditions();
    }
    let mut told = TOLD.get().lock().unwrap_or_else(PoisonError::into_inner);
    if told.len() < MOST_TOLD && told.insert(place.prefix.to_string()) {
        tracing::warn!(
            "{} knows no conditional writes: what a killed process has sent may replace what is saved after it",
            place.prefix
        );
    }
}
