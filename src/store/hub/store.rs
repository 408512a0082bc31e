//! One commit of a dataset of the Hub as a read-only object store.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error as StoreError, Extensions, GetOptions, GetRange, GetResult, GetResultPayload,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, LINK};
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use tokio::sync::OnceCell;
use url::Url;

use super::client::{Client, ERROR_CODE, broken};
use super::repo::Repo;
use super::settings::Settings;
use super::signed;
use crate::error::Error;
use crate::store::credentials::CredentialSource;
use crate::store::web::Answer;

/// Most bytes of an answer of the Hub's interface; a page of a listing has some hundred kilobytes.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Largest file that is taken whole if a range was asked for.
const MAX_WHOLE_BYTES: u64 = 16 << 20;

/// The version of a file, and the location of its bytes.
#[derive(Debug)]
struct Blob {
    etag: String,
    size: u64,
    at: Url,
    /// True if that is the Hub itself, as for small files.
    own: bool,
    /// Time until which the address is good.
    end: Option<SystemTime>,
}

/// Location of a file, once the Hub was asked for it.
type Slot = Arc<tokio::sync::Mutex<Option<Arc<Blob>>>>;

/// See the module. Copies are the same store.
#[derive(Debug, Clone)]
pub(in crate::store) struct Hub {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    repo: Repo,
    commit: OnceCell<String>,
    blobs: Mutex<HashMap<Path, Slot>>,
}

#[derive(Deserialize)]
struct Revision {
    sha: String,
}

/// An entry of a listing.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Lfs>,
}

/// Identity of a large file: the SHA-256 of its bytes.
#[derive(Deserialize)]
struct Lfs {
    oid: String,
}

impl Hub {
    /// The revision of `repo`, which is pinned to its commit by the first request. A token from `credentials` goes before that of `settings`.
    pub(in crate::store) fn new(
        repo: Repo,
        settings: &Settings,
        credentials: Option<CredentialSource>,
    ) -> Result<Self> {
        let client = Client::new(settings, repo.prefix(), credentials)?;
        let inner = Inner { client, repo, commit: OnceCell::new(), blobs: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }
}

impl Inner {
    /// The commit to read.
    async fn commit(&self) -> Result<&str> {
        if let Some(commit) = self.repo.commit() {
            return Ok(commit);
        }
        let asked = self.commit.get_or_try_init(|| async {
            let mut parts = self.api();
            parts.extend(["revision", &self.repo.revision]);
            let url = self.client.url(parts);
            let answer = self.client.ask(Method::GET, url, None, MAX_ANSWER_BYTES).await?;
            if !answer.status.is_success() {
                return Err(self.refused(&answer));
            }
            let Revision { sha } = parsed(&answer)?;
            if sha.len() != 40 || !sha.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(broken("the Hub names no commit of the revision"));
            }
            tracing::info!("{} is read as of commit {sha}", self.repo.prefix());
            Ok(sha)
        });
        asked.await.map(String::as_str)
    }

    /// The parts of the path of its interface.
    fn api(&self) -> Vec<&str> {
        ["api", "datasets"].into_iter().chain(self.repo.id.split('/')).collect()
    }

    /// The address of the listing of `directory`.
    async fn tree(&self, directory: Option<&Path>, recursive: bool) -> Result<Url> {
        let mut parts = self.api();
        parts.extend(["tree", self.commit().await?]);
        parts.extend(directory.map_or("", Path::as_ref).split('/').filter(|part| !part.is_empty()));
        let mut url = self.client.url(parts);
        url.set_query(recursive.then_some("recursive=true"));
        Ok(url)
    }

    /// A page of a listing, and the address of the next one.
    async fn page(&self, url: Url) -> Result<(Vec<Entry>, Option<Url>)> {
        let answer = self.client.ask(Method::GET, url, None, MAX_ANSWER_BYTES).await?;
        if is_missing_entry(&answer) {
            return Ok((Vec::new(), None));
        }
        if !answer.status.is_success() {
            return Err(self.refused(&answer));
        }
        let next = answer.header(LINK.as_str()).and_then(signed::next).map(|next| answer.url.join(next));
        let next = next.transpose().map_err(|_| broken("the Hub names no address of the next page"))?;
        Ok((parsed(&answer)?, next))
    }

    /// Location of the file at `path`: the known one, unless that is `stale` or expired.
    async fn blob(&self, path: &Path, stale: Option<&Arc<Blob>>) -> Result<Arc<Blob>> {
        let slot = {
            let mut blobs = self.blobs.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(blobs.entry(path.clone()).or_default())
        };
        // Held while one asks, so that all others get the same answer.
        let mut slot = slot.lock().await;
        let good = |blob: &&Arc<Blob>| {
            !stale.is_some_and(|stale| Arc::ptr_eq(stale, blob)) && !signed::is_over(blob.end, SystemTime::now())
        };
        if let Some(blob) = slot.as_ref().filter(good) {
            return Ok(Arc::clone(blob));
        }
        // The known location is no longer valid, even if there is no better one.
        *slot = None;
        let blob = Arc::new(self.resolve(path).await?);
        *slot = Some(Arc::clone(&blob));
        Ok(blob)
    }

    /// Asks for the location of the file at `path`.
    async fn resolve(&self, path: &Path) -> Result<Blob> {
        let commit = self.commit().await?;
        let repo = ["datasets"].into_iter().chain(self.repo.id.split('/'));
        let url = self.client.url(repo.chain(["resolve", commit]).chain(path.as_ref().split('/')));
        let answer = self.client.ask(Method::HEAD, url, None, 0).await?;
        let elsewhere = answer.location();
        if elsewhere.is_none() && !answer.status.is_success() {
            // A commit that is gone has taken its files with it.
            let gone = is_missing_entry(&answer) || code(&answer) == "RevisionNotFound";
            return Err(if gone { missing(path) } else { self.refused(&answer) });
        }
        let etag = answer.header("x-linked-etag").or_else(|| answer.header(ETAG.as_str()));
        let etag = quoted(etag.ok_or_else(|| broken("the Hub does not say which version of the file it has"))?);
        let size = answer.header("x-linked-size").or_else(|| answer.header(CONTENT_LENGTH.as_str()));
        let size = size.and_then(|size| size.parse().ok());
        let size = size.ok_or_else(|| broken("the Hub does not say how large the file is"))?;
        let (at, own) = elsewhere.map_or((answer.url, true), |at| (at, false));
        if !own && self.client.endpoint().starts_with("https:") && at.scheme() != "https" {
            return Err(broken("the Hub sends for bytes to an address without TLS"));
        }
        let end = signed::expires(&at).filter(|_| !own);
        Ok(Blob { etag, size, at, own, end })
    }

    /// The bytes `range` of `blob`, the file at `path`.
    async fn bytes(&self, path: &Path, blob: Arc<Blob>, range: Range<u64>) -> Result<Bytes> {
        let length = range.end.saturating_sub(range.start);
        if length == 0 {
            return Ok(Bytes::new());
        }
        let mut blob = blob;
        let mut renewed = false;
        loop {
            // A server that knows no ranges sends the whole file: that is for small files.
            let most = if blob.size <= MAX_WHOLE_BYTES { blob.size } else { length };
            let answer = if blob.own {
                self.client.ask(Method::GET, blob.at.clone(), Some(&range), most).await?
            } else {
                self.client.fetch(&blob.at, &range, most).await?
            };
            match answer.status {
                StatusCode::PARTIAL_CONTENT => {
                    let told = format!("bytes {}-{}/{}", range.start, range.end - 1, blob.size);
                    if answer.header(CONTENT_RANGE.as_str()) != Some(&told) || answer.body.len() as u64 != length {
                        return Err(other_bytes(path));
                    }
                    return Ok(answer.body);
                }
                StatusCode::OK => {
                    let part = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
                    let part = part.filter(|_| answer.body.len() as u64 == blob.size);
                    let (start, end) = part.ok_or_else(|| other_bytes(path))?;
                    return Ok(answer.body.slice(start..end));
                }
                StatusCode::RANGE_NOT_SATISFIABLE => return Err(other_bytes(path)),
                StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN if !renewed => {
                    // The signature has expired, whatever it said.
                    renewed = true;
                    let fresh = self.blob(path, Some(&blob)).await?;
                    if fresh.etag != blob.etag || fresh.size != blob.size {
                        return Err(other_bytes(path));
                    }
                    blob = fresh;
                }
                _ if blob.own => return Err(self.refused(&answer)),
                status => {
                    let host = blob.at.origin().ascii_serialization();
                    return Err(broken(format!("{host}, where the Hub keeps the file, answers {status}")));
                }
            }
        }
    }

    /// Error with advice, where the Hub refuses to answer.
    fn refused(&self, answer: &Answer) -> StoreError {
        let (id, endpoint) = (&self.repo.id, self.client.endpoint());
        let not_found = |what: String, hint: String| broken(Error::NotFound { what, hint });
        let store = |problem: String| {
            let (operation, url) = ("open".to_owned(), self.repo.prefix().to_owned());
            broken(Error::Store { operation, url, source: problem.into() })
        };
        let token = "storage_options hf_token, HF_TOKEN, or hf auth login";
        match (code(answer), answer.status) {
            ("GatedRepo", _) if self.client.has_token() => store(format!(
                "the dataset is gated, and the token's account has not been let in: accept its terms at {endpoint}/datasets/{id}, and see \
                 that the token may read gated repositories"
            )),
            ("GatedRepo", _) => store(format!(
                "the dataset is gated: accept its terms at {endpoint}/datasets/{id}, and give a token of that account ({token})"
            )),
            ("RevisionNotFound", _) => not_found(
                format!("revision {} of dataset {id}", self.repo.revision),
                "give a branch, a tag, a commit, or refs/convert/parquet".to_owned(),
            ),
            ("RepoNotFound", _) | ("", StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED)
                if !self.client.has_token() =>
            {
                let hint =
                    format!("check the name; if it is private, give a token of an account that may read it ({token})");
                not_found(format!("dataset {id} at {endpoint}"), hint)
            }
            ("RepoNotFound", _) | ("", StatusCode::NOT_FOUND) => {
                let hint = "check the name, and that the token's account may read it".to_owned();
                not_found(format!("dataset {id} at {endpoint}"), hint)
            }
            (_, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) if self.client.has_token() => store(format!(
                "the Hub refuses the token ({}): see that it is whole and may read {id} ({token})",
                answer.status
            )),
            (_, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
                store(format!("the Hub lets nobody in without a token ({}): give one ({token})", answer.status))
            }
            (_, status) => broken(format!("{endpoint} answers {status}")),
        }
    }
}

fn code(answer: &Answer) -> &str {
    answer.header(ERROR_CODE.as_str()).unwrap_or_default()
}

/// Returns true if the repository is there, and has no such file or directory.
fn is_missing_entry(answer: &Answer) -> bool {
    answer.status == StatusCode::NOT_FOUND && code(answer) == "EntryNotFound"
}

fn missing(path: &Path) -> StoreError {
    StoreError::NotFound { path: path.to_string(), source: "the commit has no such file".into() }
}

/// Error for bytes that are not of the version that the Hub told of.
fn other_bytes(path: &Path) -> StoreError {
    let source = "the bytes are not of the version that the Hub told of".into();
    StoreError::Precondition { path: path.to_string(), source }
}

fn parsed<T: for<'a> Deserialize<'a>>(answer: &Answer) -> Result<T> {
    serde_json::from_slice(&answer.body).map_err(|error| broken(format!("the Hub's answer is not understood: {error}")))
}

/// An entity tag as stores have it, of a content hash in any form.
fn quoted(tag: &str) -> String {
    format!("\"{}\"", tag.strip_prefix("W/").unwrap_or(tag).trim_matches('"'))
}

fn meta(location: Path, size: u64, etag: String) -> ObjectMeta {
    ObjectMeta { location, last_modified: SystemTime::UNIX_EPOCH.into(), size, e_tag: Some(etag), version: None }
}

/// The file that `entry` is; none for a directory.
fn file(entry: Entry) -> Option<Result<ObjectMeta>> {
    if entry.kind != "file" {
        return None;
    }
    let etag = quoted(entry.lfs.as_ref().map_or(&entry.oid, |lfs| &lfs.oid));
    Some(Path::parse(&entry.path).map(|path| meta(path, entry.size, etag)).map_err(StoreError::from))
}

impl fmt::Display for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.inner.repo.prefix())
    }
}

fn read_only<T>() -> Result<T> {
    let hint = "write to a directory, and upload it with hf upload";
    Err(broken(Error::unsupported("writing to hf://", hint)))
}

#[async_trait]
impl ObjectStore for Hub {
    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let GetOptions {
            if_match, if_none_match, if_modified_since, if_unmodified_since, range, version, head, ..
        } = options;
        if if_none_match.is_some() || if_modified_since.is_some() || if_unmodified_since.is_some() || version.is_some()
        {
            return Err(StoreError::NotImplemented {
                operation: "a condition but If-Match".to_owned(),
                implementer: "hf".to_owned(),
            });
        }
        let blob = self.inner.blob(location, None).await?;
        if let Some(wanted) = if_match.filter(|wanted| *wanted != blob.etag) {
            let source = format!("it is {}, not {wanted}", blob.etag).into();
            return Err(StoreError::Precondition { path: location.to_string(), source });
        }
        let meta = meta(location.clone(), blob.size, blob.etag.clone());
        let range = match range {
            None => 0..blob.size,
            Some(GetRange::Suffix(length)) => blob.size.saturating_sub(length)..blob.size,
            Some(range) => range.as_range(blob.size).map_err(|error| broken(error.to_string()))?,
        };
        let bytes = if head { Bytes::new() } else { self.inner.bytes(location, blob, range.clone()).await? };
        let payload = GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed());
        Ok(GetResult { payload, meta, range, attributes: Attributes::new(), extensions: Extensions::new() })
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        /// Progress of a listing.
        enum At {
            Start(Option<Path>),
            Page(Url),
            End,
        }
        let inner = Arc::clone(&self.inner);
        let pages = stream::try_unfold(At::Start(prefix.cloned()), move |at| {
            let inner = Arc::clone(&inner);
            async move {
                let url = match at {
                    At::Start(directory) => inner.tree(directory.as_ref(), true).await?,
                    At::Page(url) => url,
                    At::End => return Ok::<_, StoreError>(None),
                };
                let (entries, next) = inner.page(url).await?;
                Ok(Some((stream::iter(entries.into_iter().filter_map(file)), next.map_or(At::End, At::Page))))
            }
        });
        pages.try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let mut next = Some(self.inner.tree(prefix, false).await?);
        let (mut objects, mut common_prefixes) = (Vec::new(), Vec::new());
        while let Some(url) = next {
            let (entries, following) = self.inner.page(url).await?;
            next = following;
            for entry in entries {
                if entry.kind == "directory" {
                    common_prefixes.push(Path::parse(&entry.path)?);
                } else if let Some(file) = file(entry) {
                    objects.push(file?);
                }
            }
        }
        Ok(ListResult { objects, common_prefixes, extensions: Extensions::new() })
    }

    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        read_only()
    }

    async fn put_multipart_opts(&self, _: &Path, _: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        read_only()
    }

    fn delete_stream(&self, _: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        stream::once(async { read_only() }).boxed()
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        read_only()
    }
}
