//! A dataset's way through a cache: the readers of its stores' objects.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
#[cfg(feature = "flight")]
use std::hash::{BuildHasher as _, RandomState};
use std::ops::Range;
use std::path::Path as FsPath;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};

#[cfg(feature = "cloud")]
use super::super::profile;
use super::super::stamp::Stamp;
#[cfg(feature = "flight")]
use super::asked::Again;
use super::block::{Block, ObjectKey};
#[cfg(feature = "flight")]
use super::cluster::Cluster;
use super::counts::{CacheStats, Unkept};
use super::directory::Directory;
use super::fetched::Fetched;
use super::foresight::Foreseen;
use super::hold::{Held, Whole};
use super::readers::Reader;
use super::record::Target;
use super::saves::Saves;
use super::shared::{Cache, MEMORY, Wanted};
use crate::error::Result;
use crate::hex;

/// Variables of the environment that object_store reads begin with these.
const CLOUDS: [&str; 4] = ["AWS_", "AZURE_", "GOOGLE_", "HF_"];

/// The place of a cache, its limit, and the caches of other hosts.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CachePlace {
    /// A directory of this machine, or `memory`.
    pub place: String,
    /// Most bytes that it may take; by default half of the free space on its disk.
    pub bytes: Option<u64>,
    /// Bytes that are fetched ahead of their use beyond as many as have been read; 256 MiB by default, none with 0.
    pub ahead: Option<u64>,
    /// Hosts that serve their caches (`bowstring cache serve`), and are the homes of blocks: `host:port`, `grpc+tls://host:port`, or
    /// `dns://name:port` for all hosts behind a name. None for a cache of this host alone.
    pub peers: Vec<String>,
    /// What these want to see: `token` or `token_file`, `ca`, `cert` and `key`, `server_name`. It is never printed.
    pub peer_options: BTreeMap<String, String>,
}

/// Default of [`CachePlace::ahead`]: what a pipeline reads ahead as well.
const AHEAD: u64 = 256 << 20;

impl CachePlace {
    /// [`ahead`](Self::ahead), or its default.
    fn ahead(&self) -> u64 {
        self.ahead.unwrap_or(AHEAD)
    }

    /// Checks that the directory is there, and is a cache.
    ///
    /// # Errors
    /// As [`Directory::existing`].
    pub(in crate::store) fn check_existing(&self) -> Result<()> {
        if self.place == MEMORY { Ok(()) } else { Directory::existing(FsPath::new(&self.place)).map(drop) }
    }
}

impl fmt::Debug for CachePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.peer_options.keys().collect();
        f.debug_struct("CachePlace")
            .field("place", &self.place)
            .field("bytes", &self.bytes)
            .field("ahead", &self.ahead)
            .field("peers", &self.peers)
            .field("peer_options", &names)
            .finish()
    }
}

/// One open dataset that is read through a cache. Clones are the same reader.
#[derive(Debug, Clone)]
pub(crate) struct CacheReader {
    cache: Arc<Cache>,
    reader: Arc<Reader>,
    #[cfg(feature = "flight")]
    cluster: Option<Arc<Cluster>>,
    ahead: u64,
}

impl CacheReader {
    /// The cache itself.
    pub(crate) fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// One more reader of the cache at `place`. It may block.
    ///
    /// # Errors
    /// As [`Cache::open`]; [`Error::Config`](crate::Error::Config) for peers that are none.
    #[cfg(feature = "flight")]
    pub(crate) fn open(place: &CachePlace) -> Result<Self> {
        let has_peers = !place.peers.is_empty();
        let cluster = has_peers.then(|| Cluster::open(&place.peers, &place.peer_options)).transpose()?;
        let cache = Cache::open(&place.place, place.bytes)?;
        let reader = cache.reader();
        Ok(Self { cache, reader, cluster, ahead: place.ahead() })
    }

    /// As above.
    ///
    /// # Errors
    /// As above, and for any peers.
    #[cfg(not(feature = "flight"))]
    pub(crate) fn open(place: &CachePlace) -> Result<Self> {
        if !place.peers.is_empty() {
            return Err(crate::Error::config("cache_peers", "this build has no network; enable the feature `flight`"));
        }
        let cache = Cache::open(&place.place, place.bytes)?;
        let reader = cache.reader();
        Ok(Self { cache, reader, ahead: place.ahead() })
    }

    /// `block` from the caches of other hosts, if there are any, or by `origin`.
    ///
    /// # Errors
    /// Those of `origin`.
    async fn fetch(
        &self,
        block: Block,
        wanted: Wanted,
        origin: impl Future<Output = Result<Bytes>>,
    ) -> Result<Fetched> {
        #[cfg(feature = "flight")]
        if let Some(cluster) = &self.cluster {
            let (cache, reader) = (Arc::clone(&self.cache), Arc::clone(&self.reader));
            let read = (!wanted.ahead).then_some(wanted.group);
            let again = if wanted.opening { Again::default() } else { reader.again(&block, read) };
            return cluster.fetch((block, again), move |event| cache.count(&reader, event), origin).await;
        }
        #[cfg(not(feature = "flight"))]
        let _ = (block, wanted);
        origin.await.map(Fetched::from)
    }

    /// Returns true if another host may be the home of `block`.
    fn may_be_kept_elsewhere(&self, block: &Block) -> bool {
        #[cfg(feature = "flight")]
        return self.cluster.is_some() && super::cluster::wire::may_travel(block);
        #[cfg(not(feature = "flight"))]
        {
            let _ = block;
            false
        }
    }

    /// Follows a plan from `step` on, or none: see [`Foreseen`]. It may block.
    pub(crate) fn follow(&self, foreseen: Option<Foreseen>, step: u64) {
        self.cache.follow(&self.reader, foreseen.map(Arc::new), step);
    }

    /// Says that all steps of `epoch` before `step` are over.
    pub(crate) fn reached(&self, epoch: u64, step: u64) {
        self.reader.reached(epoch, step);
    }

    /// Steps that are over.
    pub(crate) fn position(&self) -> u64 {
        self.reader.position()
    }

    /// Returns true if row group `group` was read since the plan is followed.
    pub(crate) fn has_read(&self, group: u32) -> bool {
        self.reader.has_read(group)
    }

    /// Ends when a step has ended after this call.
    pub(crate) fn moved(&self) -> impl Future<Output = ()> {
        self.reader.moved()
    }

    /// Bytes that are fetched ahead of their use beyond as many as have been read.
    pub(crate) fn ahead(&self) -> u64 {
        self.ahead
    }

    /// Hits and misses of this reader.
    pub(crate) fn stats(&self) -> CacheStats {
        self.reader.stats()
    }

    /// Bytes that blocks may take: in all homes together, if there are any, or here.
    pub(crate) async fn room(&self) -> u64 {
        let here = self.cache.limit();
        #[cfg(feature = "flight")]
        if let Some(cluster) = &self.cluster {
            return cluster.room().await.max(here);
        }
        here
    }

    /// Bytes that the ends of files take, which each opening reads and which stay. In all homes together they are those of this dataset,
    /// `own`, as nobody knows of others.
    pub(crate) fn ends(&self, own: u64) -> u64 {
        #[cfg(feature = "flight")]
        if self.cluster.is_some() {
            return own;
        }
        #[cfg(not(feature = "flight"))]
        let _ = own;
        self.cache.kept(|keeper| keeper.taken(|_| false))
    }

    /// Returns true if `range` of the version `key` was here when that was last known, whatever it is a part of.
    pub(crate) fn has(&self, key: ObjectKey, range: &Range<u64>) -> bool {
        Block::new(key, range).is_some_and(|block| self.cache.may_have(&block))
    }

    /// What the caches of other hosts were offered by this process and do not have.
    pub(crate) fn unkept(&self) -> Vec<Unkept> {
        #[cfg(feature = "flight")]
        if let Some(cluster) = &self.cluster {
            return cluster.unkept();
        }
        Vec::new()
    }

    /// Waits until all fetched blocks are written.
    pub(crate) async fn settle(&self) {
        #[cfg(feature = "flight")]
        if let Some(cluster) = &self.cluster {
            cluster.settle().await;
        }
        self.cache.settle().await;
    }
}

/// The way to the objects of one store.
#[derive(Debug)]
pub(crate) struct Through {
    reader: CacheReader,
    origin: String,
}

impl Through {
    /// To the store whose addresses begin with `prefix`, which is opened with these options and the environment. A `mount` has blocks of its
    /// own: they were fetched with its credentials, which may open what those of another one do not.
    pub(in crate::store) fn new(
        reader: CacheReader,
        prefix: &str,
        options: &BTreeMap<String, String>,
        mount: Option<&str>,
    ) -> Self {
        let mut origin = origin(prefix, options, std::env::vars_os().filter_map(text));
        #[cfg(feature = "cloud")]
        if let Some(endpoint) = profile::endpoint(prefix, options, &|name| std::env::var_os(name)) {
            origin.push_str(&format!("\nprofile {endpoint}"));
        }
        if let Some(mount) = mount {
            origin.push_str(&format!("\nmount {mount}"));
        }
        Self { reader, origin }
    }

    /// Shuffles the slices of an object beside other hosts: see [`Whole::seed`].
    pub(in crate::store) fn seed_of_slices(&self) -> Option<u64> {
        #[cfg(feature = "flight")]
        return self.reader.cluster.as_ref().map(|_| RandomState::new().hash_one(std::process::id()));
        #[cfg(not(feature = "flight"))]
        None
    }

    /// The saves of the cache, if it is on a disk.
    pub(in crate::store) fn saves(&self) -> Option<Saves> {
        Saves::of(&self.reader.cache)
    }

    /// What is to be at `url`, an address of this store.
    pub(in crate::store) fn target(&self, url: String) -> Target {
        let digest = Sha256::digest(self.origin.as_bytes());
        Target { url, origin: hex::of(digest) }
    }

    /// The name of the version `stamp` of the object at `address`; `None` if versions cannot be distinguished.
    pub(in crate::store) fn key(&self, address: &str, stamp: &Stamp) -> Option<ObjectKey> {
        ObjectKey::of(&self.origin, address, stamp)
    }

    /// `range` of the version `stamp` of the object at `address`, from the cache or by `fetch`.
    ///
    /// # Errors
    /// Those of `fetch`.
    pub(in crate::store) async fn read(
        &self,
        address: &str,
        stamp: &Stamp,
        range: &Range<u64>,
        wanted: Wanted,
        fetch: impl Future<Output = Result<Bytes>>,
    ) -> Result<Bytes> {
        let CacheReader { cache, reader, .. } = &self.reader;
        let block = self.key(address, stamp).map(|key| Block::new(key, range));
        match block {
            Some(Some(block)) => cache.read(reader, block, wanted, self.reader.fetch(block, wanted, fetch)).await,
            Some(None) => fetch.await,
            None => {
                cache.bypassed(reader);
                fetch.await
            }
        }
    }

    /// Fetches `range` of the version `stamp` of the object at `address` ahead of its use, if the cache has room for it: as
    /// [`Cache::fetch_ahead`].
    ///
    /// # Errors
    /// Those of `fetch`.
    pub(in crate::store) async fn fetch_ahead(
        &self,
        address: &str,
        stamp: &Stamp,
        range: &Range<u64>,
        fetch: impl Future<Output = Result<Bytes>>,
    ) -> Result<Option<u64>> {
        let CacheReader { cache, reader, .. } = &self.reader;
        match self.key(address, stamp).and_then(|key| Block::new(key, range)) {
            Some(block) => {
                // Its copy here serves the next use: its home hears of the one after that.
                let fetch = self.reader.fetch(block, Wanted::default(), fetch);
                cache.fetch_ahead(reader, block, self.reader.may_be_kept_elsewhere(&block), fetch).await
            }
            None => Ok(Some(0)),
        }
    }

    /// `range` of the version `stamp` of the object at `address`, if the cache has it, as a part of whatever block.
    pub(in crate::store) async fn look(&self, address: &str, stamp: &Stamp, range: &Range<u64>) -> Option<Bytes> {
        let CacheReader { cache, reader, .. } = &self.reader;
        cache.look(reader, Block::new(self.key(address, stamp)?, range)?, Wanted::default()).await
    }

    /// The object `whole` as a file, of slices that `fetch` gets.
    ///
    /// # Errors
    /// As [`Cache::hold`].
    pub(in crate::store) async fn hold<F: Future<Output = Result<Bytes>>>(
        &self,
        whole: &Whole,
        fetch: impl Fn(Range<u64>) -> F,
    ) -> Result<Held> {
        let slice = |range: Range<u64>| {
            let (block, origin) = (Block::new(whole.key, &range), fetch(range));
            async move {
                match block {
                    Some(block) => {
                        self.reader.fetch(block, Wanted { opening: true, ..Wanted::default() }, origin).await
                    }
                    None => origin.await.map(Fetched::from),
                }
            }
        };
        self.reader.cache.hold(&self.reader.reader, whole, slice).await
    }

    /// The file of the object `whole`, if it is here and good.
    pub(in crate::store) async fn held(&self, whole: &Whole) -> Option<Held> {
        self.reader.cache.held(&self.reader.reader, whole).await
    }
}

fn text((name, value): (std::ffi::OsString, std::ffi::OsString)) -> Option<(String, String)> {
    Some((name.into_string().ok()?, value.into_string().ok()?))
}

/// The settings that distinguish a store from others with the same addresses: the location of its bucket or container.
fn origin(
    prefix: &str,
    options: &BTreeMap<String, String>,
    environment: impl Iterator<Item = (String, String)>,
) -> String {
    let tells = |name: &str| {
        let name = name.to_ascii_lowercase();
        ["endpoint", "account_name", "base_url", "profile"].iter().any(|part| name.contains(part))
    };
    let ours = |name: &str| CLOUDS.iter().any(|cloud| name.starts_with(cloud));
    let set = environment.filter(|(name, _)| ours(name) && tells(name)).map(|(_, value)| value);
    let given = options.iter().filter(|(name, _)| tells(name)).map(|(_, value)| value.clone());
    // Only the store knows which of them wins. One too many costs a read, one too few gives the bytes of another store; the same value
    // under another name is the same.
    let values: BTreeSet<String> = set.chain(given).collect();
    let values: Vec<_> = values.iter().map(|value| value.trim_end_matches('/')).collect();
    format!("{prefix}\n{}", values.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_of_one_name_at_two_endpoints_are_two_origins() {
        let set = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let of = |options: &[(&str, &str)], environment: &[(&str, &str)]| {
            origin("s3://b/", &set(options).into_iter().collect(), set(environment).into_iter())
        };
        let (one, two) = (("aws_endpoint", "http://one:9000"), ("aws_endpoint", "http://two:9000"));
        assert_ne!(of(&[one], &[]), of(&[two], &[]));
        assert_ne!(of(&[one], &[]), of(&[], &[]));
        assert_eq!(of(&[one], &[]), of(&[], &[("AWS_ENDPOINT_URL", "http://one:9000/")]));
        let both = of(&[one], &[("AWS_ENDPOINT", "http://two:9000")]);
        assert!(both != of(&[one], &[]) && both != of(&[two], &[]));
        assert_ne!(of(&[], &[("AWS_PROFILE", "one")]), of(&[], &[("AWS_PROFILE", "two")]));
        assert_ne!(
            of(&[("aws_endpoint_url_sts", "x")], &[("AWS_ENDPOINT_URL", "y")]),
            of(&[("aws_endpoint_url_sts", "x")], &[])
        );
        assert_eq!(of(&[], &[("AWS_SECRET_ACCESS_KEY", "x"), ("MY_ENDPOINT", "y")]), of(&[], &[]));
    }
}
