use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;

use async_trait::async_trait;
use futures::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::{
    CopyOptions, ListResult, MultipartUpload, ObjectMeta, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result as StoreResult,
};

use super::*;
use crate::store::OriginStats;

const BYTES: &[u8] = b"0123456789";
/// As good as never.
const DAY: Duration = Duration::from_secs(86_400);

/// Time until an answer begins, and until its second half comes.
type Lag = (Duration, Duration);

/// A store in memory whose next answers are late.
#[derive(Debug, Default)]
struct Lagging {
    inner: InMemory,
    lags: Mutex<VecDeque<Lag>>,
}

impl fmt::Display for Lagging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Lagging")
    }
}

#[async_trait]
impl ObjectStore for Lagging {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Path,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> StoreResult<GetResult> {
        let lag = if options.head { None } else { self.lags.lock().unwrap().pop_front() };
        let (head, body) = lag.unwrap_or_default();
        if !head.is_zero() {
            tokio::time::sleep(head).await;
        }
        let mut answer = self.inner.get_opts(location, options).await?;
        if !body.is_zero() {
            let GetResultPayload::Stream(all) = answer.payload else { panic!("no stream") };
            let bytes: Bytes = all.try_collect::<Vec<_>>().await?.concat().into();
            let (first, rest) = (bytes.slice(..bytes.len() / 2), bytes.slice(bytes.len() / 2..));
            let rest = stream::once(async move {
                tokio::time::sleep(body).await;
                Ok(rest)
            });
            answer.payload = GetResultPayload::Stream(stream::once(async { Ok(first) }).chain(rest).boxed());
        }
        Ok(answer)
    }

    fn delete_stream(&self, paths: BoxStream<'static, StoreResult<Path>>) -> BoxStream<'static, StoreResult<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> StoreResult<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> StoreResult<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

/// An object of a store whose reads were all soon so far.
struct Rig {
    store: Arc<Lagging>,
    object: Object,
}

impl Rig {
    async fn new(prefix: &str, hedges: bool) -> Self {
        let store = Arc::new(Lagging::default());
        let path = Path::from("a");
        store.put(&path, BYTES.into()).await.unwrap();
        let stamp = Stamp::of(&store.head(&path).await.unwrap());
        let place = Place { hedges, ..Place::new(Arc::clone(&store) as Arc<dyn ObjectStore>, prefix) };
        let rig = Self { store, object: Object { place, path, name: "a".into(), stamp } };
        for _ in 0..60 {
            assert_eq!(rig.read([]).await.0.unwrap(), BYTES[2..8]);
        }
        rig
    }

    /// Reads six bytes, by requests that lag so; and tells how long it took.
    async fn read(&self, lags: impl IntoIterator<Item = Lag>) -> (Result<Bytes>, Duration) {
        *self.store.lags.lock().unwrap() = lags.into_iter().collect();
        let began = Instant::now();
        (self.object.read_range(2..8).await, began.elapsed())
    }

    async fn replace(&self, bytes: &'static [u8]) {
        self.store.put(&self.object.path, bytes.into()).await.unwrap();
    }

    fn stats(&self) -> OriginStats {
        let origins = origins::origins();
        origins.into_iter().find(|one| one.address == *self.object.place.prefix).unwrap()
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_that_are_late_are_asked_for_twice_and_counted_once() {
    let rig = Rig::new("memory://late/", true).await;
    for lag in [(DAY, Duration::ZERO), (Duration::ZERO, DAY)] {
        let (read, took) = rig.read([lag]).await;
        assert_eq!(read.unwrap(), BYTES[2..8]);
        assert!(took < Duration::from_secs(1), "{took:?}");
    }
    let stats = rig.stats();
    assert_eq!((stats.requests, stats.bytes, stats.failures, stats.in_flight), (62, 62 * 6, 0, 0));
    assert_eq!((stats.hedged, stats.hedges_won), (2, 2));
    // The second one is later still.
    let seconds = Duration::from_secs;
    let (read, took) = rig.read([(seconds(1), Duration::ZERO), (seconds(2), Duration::ZERO)]).await;
    assert!(read.is_ok() && took < seconds(2), "{took:?}");
    assert_eq!((rig.stats().hedged, rig.stats().hedges_won, rig.stats().in_flight), (3, 2, 0));
    assert_eq!(rig.stats().bytes, 63 * 6);
    // Nothing is left to pay for one more.
    let (read, took) = rig.read([(seconds(9), Duration::ZERO)]).await;
    assert!(read.is_ok() && took >= seconds(9) && rig.stats().hedged == 3, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_asked_for_twice_where_that_is_switched_off() {
    let rig = Rig::new("memory://patient/", false).await;
    let (read, took) = rig.read([(DAY, Duration::ZERO)]).await;
    assert!(read.is_ok() && took >= DAY && rig.stats().hedged == 0, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn two_requests_are_of_one_version_or_the_object_has_changed() {
    let rig = Rig::new("memory://replaced/", true).await;
    let second = Duration::from_secs(1);
    // The first answer began before the object was replaced, and ends after that; the second request finds the new version.
    let (read, ()) = tokio::join!(rig.read([(Duration::ZERO, second)]), async {
        tokio::task::yield_now().await;
        rig.replace(b"abcdefghij").await;
    });
    assert_eq!(read.0.unwrap(), BYTES[2..8], "bytes of the pinned version alone");
    assert!(read.1 >= second && rig.stats().hedged == 1 && rig.stats().hedges_won == 0, "{:?}", rig.stats());
    let (read, took) = rig.read([(second, Duration::ZERO)]).await;
    assert!(matches!(read, Err(Error::SourceChanged { .. })), "{read:?}");
    assert!(took >= second && rig.stats().hedged == 2 && rig.stats().hedges_won == 0, "{took:?}");
}
