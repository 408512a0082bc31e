//! A store that tries once more with new credentials where the ones that it has are refused.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, ListResult, MultipartId, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::source::{CredentialSource, Given, store_error};
use crate::store::answer::{answers, is_refusal};

/// S3's codes for an expired token, in an answer that is neither 401 nor 403.
const OVER: [&str; 3] = ["<Code>ExpiredToken</Code>", "<Code>TokenRefreshRequired</Code>", "<Code>InvalidToken</Code>"];

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
    is_refusal(error) || matches!(error, StoreError::Generic { source, .. } if answers(&**source).any(is_over))
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
        self.twice(|| self.store.get_opts(location, options.clone())).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.store.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, source, prefix) = (Arc::clone(&self.store), self.source.clone(), prefix.cloned());
        let listing = stream::once(async move {
            let given = known(&source).await?;
            let mut listing = store.list(prefix.as_ref());
            let first = match listing.next().await {
                Some(Err(error)) if may_be_renewed(&error) => {
                    source.refused(&given);
                    known(&source).await?;
                    listing = store.list(prefix.as_ref());
                    None
                }
                first => first,
            };
            Ok::<_, StoreError>(stream::iter(first).chain(listing))
        });
        listing.try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.twice(|| self.store.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.twice(|| self.store.copy_opts(from, to, options.clone())).await
    }
}
