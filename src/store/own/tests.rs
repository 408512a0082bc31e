//! Stores of files that are what a test says.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::thread;

use object_store::ObjectStoreExt;

use super::super::access::Access;
use super::super::find::find;
use super::super::found::Found;
use super::*;

/// Files that count reads and looks, and are what a test says.
#[derive(Debug, Default)]
struct Files {
    all: Mutex<BTreeMap<String, (OwnVersion, Bytes)>>,
    asked: Mutex<Vec<String>>,
    /// Time that a look takes.
    slow: Mutex<Duration>,
    /// Fails to look.
    busy: AtomicBool,
    /// Replaces each file after it was read.
    restless: AtomicBool,
}

impl Files {
    fn put(&self, path: &str, bytes: &'static [u8], modified: Option<i64>, tag: Option<&str>) {
        let version = OwnVersion { size: bytes.len() as u64, modified, tag: tag.map(str::to_owned) };
        self.all.lock().unwrap().insert(path.to_owned(), (version, Bytes::from_static(bytes)));
    }

    fn asked(&self) -> String {
        std::mem::take(&mut *self.asked.lock().unwrap()).join(" ")
    }
}

impl OwnFiles for Files {
    fn list(&self, directory: &str) -> Result<Vec<OwnEntry>, OwnError> {
        if let Some(endless) = directory.strip_prefix("endless") {
            return Ok(vec![OwnEntry { path: format!("endless{endless}/again"), file: None }]);
        }
        if directory == "wrong" {
            return Ok(vec![OwnEntry { path: "elsewhere/x".to_owned(), file: Some(OwnVersion::default()) }]);
        }
        let all = self.all.lock().unwrap();
        let mut entries = BTreeMap::new();
        for (path, (version, _)) in &*all {
            let rest = path.strip_prefix(directory).map(|rest| rest.trim_start_matches('/'));
            let Some(name) = rest.filter(|rest| !rest.is_empty()) else { continue };
            let at = path.len() - name.len();
            let (path, file) = match name.find('/') {
                Some(end) => (path[..at + end].to_owned(), None),
                None => (path.clone(), Some(version.clone())),
            };
            entries.insert(path, file);
        }
        // Some have an entry for the directory itself.
        entries.insert(directory.to_owned(), None);
        Ok(entries.into_iter().map(|(path, file)| OwnEntry { path, file }).collect())
    }

    fn look(&self, path: &str) -> Result<OwnVersion, OwnError> {
        thread::sleep(*self.slow.lock().unwrap());
        self.asked.lock().unwrap().push("look".to_owned());
        if self.busy.load(Ordering::Relaxed) {
            return Err(OwnError::Failed("busy".into()));
        }
        let all = self.all.lock().unwrap();
        all.get(path).map(|(version, _)| version.clone()).ok_or_else(|| OwnError::NotFound("no such file".into()))
    }

    fn read(&self, path: &str, range: Range<u64>, version: Option<&str>) -> Result<Bytes, OwnError> {
        self.asked.lock().unwrap().push(format!("read({range:?}, {})", version.unwrap_or("-")));
        let mut all = self.all.lock().unwrap();
        let (version, bytes) = all.get_mut(path).ok_or_else(|| OwnError::NotFound("no such file".into()))?;
        if self.restless.load(Ordering::Relaxed) {
            version.modified = version.modified.map(|modified| modified + 1);
        }
        Ok(bytes.slice(range.start as usize..range.end as usize))
    }
}

fn opened(timeout: Duration) -> (Arc<Files>, OwnStore) {
    let files = Arc::new(Files::default());
    let store = OwnStore::new("a b", Arc::<Files>::clone(&files), timeout);
    (files, store)
}

async fn found(urls: &[String]) -> crate::error::Result<Vec<String>> {
    let none = BTreeMap::new();
    let listing = find(urls, Access::from(&none), 100).await?;
    Ok(listing.files.iter().map(|file| file.name.to_string()).collect())
}

#[tokio::test]
async fn paths_are_meant_exactly_and_directories_are_found_to_any_depth() {
    let (files, store) = opened(Duration::from_secs(60));
    assert!(store.url("x").starts_with("filesystem://a-b-"), "{}", store.url("x"));
    for path in ["t/k=a%2Fb/1.parquet", "t/[x]*?.parquet", "t/deep/er/2", "t/_SUCCESS", "u/3.parquet"] {
        files.put(path, b"0123", Some(5), None);
    }
    let names = found(&[store.url("/t/")]).await.unwrap();
    assert_eq!(names, ["[x]*?.parquet", "deep/er/2", "k=a%2Fb/1.parquet"]);
    assert_eq!(found(&[store.url("t/[x]*?.parquet")]).await.unwrap(), ["[x]*?.parquet"]);
    assert_eq!(found(&[store.url("t/deep/er/2")]).await.unwrap(), ["2"]);
    assert_eq!(found(&[store.url("")]).await.unwrap().len(), 4);
    assert!(matches!(found(&[store.url("v")]).await, Err(Error::NotFound { .. })));
    for (wrong, says) in [("endless", "64 directories"), ("wrong", "elsewhere/x")] {
        let error = found(&[store.url(wrong)]).await.unwrap_err().chain();
        assert!(error.contains(says), "{error}");
    }
    // A loader after the other may have a store of one kind, which are told apart nowhere else.
    assert_eq!(super::super::registered::kind(&store.prefix), Some("filesystem://a-b"));
    let url = store.url("t");
    drop(store);
    assert!(matches!(found(&[url]).await, Err(Error::NotFound { .. })), "nobody holds it");
}

#[tokio::test]
async fn a_pinned_version_is_looked_at_behind_each_read_and_others_before_too() {
    let (files, store) = opened(Duration::from_secs(60));
    let none = BTreeMap::new();
    let object = async |path: &str| {
        let listing = find(&[store.url(path)], Access::from(&none), 1).await.unwrap();
        listing.files[0].tail(2).await.unwrap().object
    };
    files.put("timed.parquet", b"01234567", Some(5), None);
    files.put("tagged.parquet", b"01234567", Some(5), Some("\"v1\""));
    files.put("sized.parquet", b"01234567", None, None);
    let (timed, tagged, sized) =
        (object("timed.parquet").await, object("tagged.parquet").await, object("sized.parquet").await);
    files.asked();
    assert_eq!(timed.read_range(2..4).await.unwrap(), b"23"[..]);
    assert_eq!(files.asked(), "read(2..4, \"5-8\") look");
    assert_eq!(tagged.read_range(2..4).await.unwrap(), b"23"[..]);
    assert_eq!(files.asked(), "read(2..4, \"v1\") look");
    assert_eq!(sized.read_range(2..4).await.unwrap(), b"23"[..]);
    assert_eq!(files.asked(), "look read(2..4, -) look");
    // A touched file with the same tag is the same.
    files.put("tagged.parquet", b"01234567", Some(6), Some("\"v1\""));
    assert!(tagged.read_range(0..8).await.is_ok());
    files.put("tagged.parquet", b"76543210", Some(6), Some("\"v2\""));
    files.put("timed.parquet", b"76543210", Some(6), None);
    files.put("sized.parquet", b"7654321", None, None);
    for object in [tagged, timed, sized] {
        let error = object.read_range(2..4).await.unwrap_err();
        assert!(matches!(error, Error::SourceChanged { .. }), "{error}");
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_looked_at_is_not_taken_for_one_that_is_missing() {
    let (files, store) = opened(Duration::from_secs(60));
    let none = BTreeMap::new();
    let found = Found::at(&store.url("x"), Access::from(&none)).unwrap();
    assert_eq!(found.beginning(2).await.unwrap(), None);
    files.put("x", b"0123", Some(5), None);
    files.busy.store(true, Ordering::Relaxed);
    assert!(found.beginning(2).await.is_err());
    files.busy.store(false, Ordering::Relaxed);
    assert_eq!(found.beginning(2).await.unwrap().unwrap(), b"01"[..]);
}

#[tokio::test]
async fn a_file_that_is_replaced_all_the_time_is_given_up() {
    let (files, store) = opened(Duration::from_secs(60));
    files.put("x", b"0123", Some(5), None);
    files.restless.store(true, Ordering::Relaxed);
    let own = super::super::registered::find(&store.prefix).unwrap();
    let error = own.get_range(&Path::from("x"), 0..2).await.unwrap_err().to_string();
    assert!(error.contains("again and again"), "{error}");
}

#[tokio::test]
async fn a_call_that_never_answers_is_the_last() {
    let (files, store) = opened(Duration::from_millis(200));
    files.put("x.parquet", b"0123", Some(5), None);
    *files.slow.lock().unwrap() = Duration::from_secs(3);
    let own = super::super::registered::find(&store.prefix).unwrap();
    for _ in 0..2 {
        let StoreError::Generic { source, .. } = own.head(&Path::from("x.parquet")).await.unwrap_err() else {
            panic!("no timeout")
        };
        let late = source.downcast::<Error>().unwrap();
        assert!(matches!(*late, Error::Timeout { .. }) && late.to_string().contains("look up"), "{late}");
        *files.slow.lock().unwrap() = Duration::ZERO;
    }
    assert_eq!(own.put(&Path::from("x"), "y".into()).await.unwrap_err().to_string().matches("write with").count(), 1);
}
