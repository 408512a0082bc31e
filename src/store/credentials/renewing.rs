//! A store that tries once more with new credentials where the ones that it has are refused.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt, TryChunksError, TryStreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::source::{CredentialSource, Given, store_error};
use crate::store::answer::{answers, is_refusal, is_unexplained};
use crate::store::tentative::Tentative;

/// S3's codes for an expired token, in an answer that is neither 401 nor 403.
const OVER: [&str; 3] = ["<Code>ExpiredToken</Code>", "<Code>TokenRefreshRequired</Code>", "<Code>InvalidToken</Code>"];

/// Paths that are removed by one request, where a store has such.
const AT_ONCE: usize = 1000;

/// See the module.
#[derive(Debug)]
pub(super) struct Renewing {
    store: Arc<dyn ObjectStore>,
    source: CredentialSource,
}

impl Renewing {
    pub(super) fn new(store: Arc<dyn ObjectStore>, source: CredentialSource) -> Self {
        Self { store, source }
    }

    async fn twice<T, F: Future<Output = Result<T>>>(&self, work: impl Fn() -> F) -> Result<T> {
        twice(&self.source, work).await
    }
}

/// The same for uploads with numbers.
#[derive(Debug)]
pub(super) struct RenewingParts<T> {
    store: Arc<T>,
    source: CredentialSource,
}

impl<T> RenewingParts<T> {
    pub(super) fn new(store: Arc<T>, source: CredentialSource) -> Self {
        Self { store, source }
    }
}

/// Returns the result of `work`, or, if its credentials were refused, its result with others.
async fn twice<T, F: Future<Output = Result<T>>>(source: &CredentialSource, work: impl Fn() -> F) -> Result<T> {
    let given = known(source).await?;
    match work().await {
        Err(error) if may_be_renewed(&error) => {
            source.refused(&given);
            known(source).await?;
            work().await
        }
        done => done,
    }
}

#[async_trait]
impl<T: MultipartStore> MultipartStore for RenewingParts<T> {
    async fn create_multipart(&self, path: &Path) -> Result<MultipartId> {
        twice(&self.source, || self.store.create_multipart(path)).await
    }

    async fn put_part(&self, path: &Path, id: &MultipartId, index: usize, data: PutPayload) -> Result<PartId> {
        twice(&self.source, || self.store.put_part(path, id, index, data.clone())).await
    }

    async fn complete_multipart(&self, path: &Path, id: &MultipartId, parts: Vec<PartId>) -> Result<PutResult> {
        twice(&self.source, || self.store.complete_multipart(path, id, parts.clone())).await
    }

    async fn abort_multipart(&self, path: &Path, id: &MultipartId) -> Result<()> {
        twice(&self.source, || self.store.abort_multipart(path, id)).await
    }
}

/// The credentials that a request will have.
async fn known(source: &CredentialSource) -> Result<Arc<Given>> {
    source.get().await.map_err(store_error)
}

/// Returns true if other credentials may help.
fn may_be_renewed(error: &StoreError) -> bool {
    let is_over = |answer: String| OVER.iter().any(|code| answer.contains(code));
    is_refusal(error)
        || is_unexplained(error)
        || matches!(error, StoreError::Generic { source, .. } if answers(&**source).any(is_over))
}

/// Removes `paths`; those that are left where credentials were refused once more, with others.
async fn remove(store: &Arc<dyn ObjectStore>, source: &CredentialSource, paths: Vec<Path>) -> Vec<Result<Path>> {
    let given = match known(source).await {
        Ok(given) => given,
        Err(error) => return vec![Err(error)],
    };
    let all = |paths: &[Path]| {
        let paths: Vec<_> = paths.iter().cloned().map(Ok).collect();
        store.delete_stream(stream::iter(paths).boxed()).collect::<Vec<_>>()
    };
    let removed = all(&paths).await;
    if !removed.iter().any(|removed| removed.as_ref().is_err_and(may_be_renewed)) {
        return removed;
    }
    source.refused(&given);
    if let Err(error) = known(source).await {
        return vec![Err(error)];
    }
    // Some stores have an error for what is gone already.
    let gone: HashSet<Path> = removed.into_iter().flatten().collect();
    let left: Vec<Path> = paths.into_iter().filter(|path| !gone.contains(path)).collect();
    let again = all(&left).await;
    gone.into_iter().map(Ok).chain(again).collect()
}

/// A listing whose credentials may be refused at any of its pages.
struct Listing {
    store: Arc<dyn ObjectStore>,
    source: CredentialSource,
    prefix: Option<Path>,
    /// What the store answers, once it was asked.
    answers: Option<BoxStream<'static, Result<ObjectMeta>>>,
    /// The last object that was handed on.
    last: Option<Path>,
    /// True until a listing that was begun again comes to that.
    is_behind: bool,
    /// True if it was begun again, and nothing was handed on since.
    is_renewed: bool,
}

impl Listing {
    /// The next object. After a refusal the listing begins again and passes over what was handed on: not all stores list in the order of
    /// names, or from a name.
    async fn next(&mut self) -> Result<Option<ObjectMeta>> {
        loop {
            let given = known(&self.source).await?;
            let answers = self.answers.get_or_insert_with(|| self.store.list(self.prefix.as_ref()));
            match answers.next().await {
                Some(Ok(meta)) if self.is_behind => self.is_behind = self.last.as_ref() != Some(&meta.location),
                Some(Ok(meta)) => {
                    self.last = Some(meta.location.clone());
                    self.is_renewed = false;
                    return Ok(Some(meta));
                }
                Some(Err(error)) if may_be_renewed(&error) && !self.is_renewed => {
                    self.source.refused(&given);
                    self.answers = None;
                    self.is_behind = self.last.is_some();
                    self.is_renewed = true;
                }
                Some(Err(error)) => return Err(error),
                None if self.is_behind => {
                    let source = "the object that was listed last before credentials were renewed is gone".into();
                    return Err(StoreError::Generic { store: "credentials", source });
                }
                None => return Ok(None),
            }
        }
    }
}

impl fmt::Display for Renewing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.store)
    }
}

#[async_trait]
impl ObjectStore for Renewing {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.twice(|| self.store.put_opts(location, payload.clone(), options.clone())).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.twice(|| self.store.put_multipart_opts(location, options.clone())).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        if options.extensions.get::<Tentative>().is_some() {
            return self.store.get_opts(location, options).await;
        }
        self.twice(|| self.store.get_opts(location, options.clone())).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (store, source) = (Arc::clone(&self.store), self.source.clone());
        let removed = locations.try_chunks(AT_ONCE).then(move |some| {
            let (store, source) = (Arc::clone(&store), source.clone());
            async move {
                let (paths, error) = match some {
                    Ok(paths) => (paths, None),
                    Err(TryChunksError(paths, error)) => (paths, Some(Err(error))),
                };
                let mut removed = remove(&store, &source, paths).await;
                removed.extend(error);
                stream::iter(removed)
            }
        });
        removed.flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listing = Listing {
            store: Arc::clone(&self.store),
            source: self.source.clone(),
            prefix: prefix.cloned(),
            answers: None,
            last: None,
            is_behind: false,
            is_renewed: false,
        };
        let next = |mut listing: Listing| async move {
            let next = listing.next().await?;
            Ok::<_, StoreError>(next.map(|meta| (meta, listing)))
        };
        stream::try_unfold(listing, next).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.twice(|| self.store.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.twice(|| self.store.copy_opts(from, to, options.clone())).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::super::Credentials;
    use super::*;
    use crate::store::tentative::beside;

    /// Refuses so many listings, each after two objects, and removals.
    #[derive(Debug, Default)]
    struct Refusing {
        store: InMemory,
        refusals: AtomicU64,
    }

    impl Refusing {
        fn is_refused(&self) -> bool {
            self.refusals.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
        }
    }

    fn refusal() -> StoreError {
        StoreError::PermissionDenied { path: String::new(), source: "ExpiredToken".into() }
    }

    impl fmt::Display for Refusing {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("refusing")
        }
    }

    #[async_trait]
    impl ObjectStore for Refusing {
        async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
            self.store.put_opts(location, payload, options).await
        }

        async fn put_multipart_opts(
            &self,
            location: &Path,
            options: PutMultipartOptions,
        ) -> Result<Box<dyn MultipartUpload>> {
            self.store.put_multipart_opts(location, options).await
        }

        async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
            if options.head && self.is_refused() {
                return Err(refusal());
            }
            self.store.get_opts(location, options).await
        }

        fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
            if self.is_refused() {
                return stream::iter([Err(refusal())]).boxed();
            }
            self.store.delete_stream(locations)
        }

        fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
            let listing = self.store.list(prefix);
            if self.is_refused() {
                return listing.take(2).chain(stream::iter([Err(refusal())])).boxed();
            }
            listing
        }

        async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
            self.store.list_with_delimiter(prefix).await
        }

        async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
            self.store.copy_opts(from, to, options).await
        }
    }

    /// A store over one that refuses, that one, and how often credentials were asked for.
    fn renewing() -> (Renewing, Arc<Refusing>, Arc<AtomicU64>) {
        let (refusing, asked) = (Arc::new(Refusing::default()), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&asked);
        let source = CredentialSource::of_function("of_the_test", move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(Credentials::new([], None))
        });
        (Renewing::new(Arc::clone(&refusing) as _, source), refusing, asked)
    }

    #[test]
    fn an_expired_token_is_known_by_its_code_and_by_an_answer_without_any() {
        let answered = |answer: &str| {
            let source = format!("Server returned non-2xx status code: {answer}").into();
            may_be_renewed(&StoreError::Generic { store: "S3", source })
        };
        assert!(answered("400 Bad Request: <Error><Code>ExpiredToken</Code></Error>"));
        assert!(answered("400 Bad Request: "), "to a HEAD");
        assert!(!answered("400 Bad Request: <Error><Code>InvalidArgument</Code></Error>"));
        assert!(!answered("500 Internal Server Error: "));
    }

    #[tokio::test]
    async fn a_look_that_may_go_unanswered_asks_for_no_credentials() {
        let (store, refusing, asked) = renewing();
        let path = Path::from("x");
        store.put(&path, PutPayload::from_static(b"x")).await.unwrap();
        assert!(beside(async {}, &store, &path).await.1.is_some());
        refusing.refusals.store(1, Ordering::SeqCst);
        assert!(beside(async {}, &store, &path).await.1.is_none());
        assert_eq!((refusing.refusals.load(Ordering::SeqCst), asked.load(Ordering::SeqCst)), (0, 1));
        refusing.refusals.store(1, Ordering::SeqCst);
        store.head(&path).await.unwrap();
        assert_eq!(asked.load(Ordering::SeqCst), 2, "any other one does");
    }

    #[tokio::test]
    async fn credentials_that_are_refused_within_a_listing_or_a_removal_are_renewed() {
        let (store, refusing, asked) = renewing();
        let names: Vec<Path> = (0..5).map(|number| Path::from(format!("t/{number}"))).collect();
        for name in &names {
            store.put(name, PutPayload::from_static(b"x")).await.unwrap();
        }
        let listed = || async {
            let found: Vec<ObjectMeta> = store.list(Some(&Path::from("t"))).try_collect().await?;
            Ok::<_, StoreError>(found.into_iter().map(|meta| meta.location).collect::<Vec<_>>())
        };
        refusing.refusals.store(1, Ordering::SeqCst);
        assert_eq!(listed().await.unwrap(), names, "each once");
        assert_eq!(asked.load(Ordering::SeqCst), 2);
        refusing.refusals.store(9, Ordering::SeqCst);
        assert!(may_be_renewed(&listed().await.unwrap_err()), "who has no right is told so");
        assert_eq!(refusing.refusals.load(Ordering::SeqCst), 7);
        refusing.refusals.store(1, Ordering::SeqCst);
        let (first, rest) = names.split_first().unwrap();
        store.delete(first).await.unwrap();
        assert_eq!(refusing.refusals.load(Ordering::SeqCst), 0);
        assert_eq!(listed().await.unwrap(), rest);
        refusing.refusals.store(1, Ordering::SeqCst);
        let paths: Vec<_> = rest.iter().cloned().map(Ok).collect();
        let mut removed: Vec<Path> = store.delete_stream(stream::iter(paths).boxed()).try_collect().await.unwrap();
        removed.sort();
        assert_eq!(removed, rest);
        assert!(listed().await.unwrap().is_empty());
    }
}
