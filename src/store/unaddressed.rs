//! Keys that no address leads to: with an empty part (`a//b`), a part `.` or `..`, or a control character. `object_store` fails a whole list
//! with such a key in it, so that one of them, in a hidden directory perhaps, would make all other files unreadable. From a key with a slash at
//! its start or end (`/a`, `a/`) it cuts that slash, so that another object would be read in its place; empty ones are marks of directories.
//!
//! ```text
//!   page of a list ─without─► the keys that have addresses ─► object_store
//!                  └─ the others, if the list is one that notes them ─► error by name, unless they are none of its files
//! ```

#[cfg(feature = "cloud")]
use std::sync::{Arc, Mutex, PoisonError};

use object_store::path;

/// Most such keys of one list; with more of them it fails.
#[cfg(feature = "cloud")]
const MOST: usize = 10_000;

#[cfg(feature = "cloud")]
tokio::task_local! {
    /// The keys that were left out of the list that this task makes.
    static LEFT_OUT: Arc<Mutex<Vec<String>>>;
}

/// The outcome of `list`, whose pages are without such keys, and these keys.
#[cfg(feature = "cloud")]
pub(super) async fn noting<T>(list: impl Future<Output = T>) -> (T, Vec<String>) {
    let noted = Arc::<Mutex<Vec<String>>>::default();
    let outcome = LEFT_OUT.scope(Arc::clone(&noted), list).await;
    let keys = std::mem::take(&mut *noted.lock().unwrap_or_else(PoisonError::into_inner));
    (outcome, keys)
}

/// The outcome of `list`: stores that are not of clouds have no pages.
#[cfg(not(feature = "cloud"))]
pub(super) async fn noting<T>(list: impl Future<Output = T>) -> (T, Vec<String>) {
    (list.await, Vec::new())
}

/// `page` of a list in the language of S3 or Azure without the objects of such keys, if the list [notes](noting) them. None if it has none,
/// or too many.
#[cfg(feature = "cloud")]
pub(super) fn without(page: &[u8]) -> Option<Vec<u8>> {
    let noted = LEFT_OUT.try_with(Arc::clone).ok()?;
    let page = std::str::from_utf8(page).ok()?;
    let (mut kept, mut keys) = (String::new(), Vec::new());
    for (start, end, name) in [("<Contents>", "</Contents>", "Key"), ("<Blob>", "</Blob>", "Name")] {
        let mut rest = page;
        while let Some((before, after)) = rest.split_once(start) {
            let Some((object, after)) = after.split_once(end) else { break };
            let is_empty =
                ["<Size>0</Size>", "<Content-Length>0</Content-Length>"].iter().any(|size| object.contains(size));
            let is_cut = |key: &str| !is_empty && (key.starts_with('/') || key.ends_with('/'));
            match key(object, name).filter(|key| is_cut(key) || path::Path::parse(key).is_err()) {
                Some(key) => {
                    keys.push(key);
                    kept.push_str(before);
                }
                None => [before, start, object, end].into_iter().for_each(|text| kept.push_str(text)),
            }
            rest = after;
        }
        if !keys.is_empty() {
            kept.push_str(rest);
            let mut noted = noted.lock().unwrap_or_else(PoisonError::into_inner);
            noted.append(&mut keys);
            return (noted.len() <= MOST).then(|| kept.into_bytes());
        }
        kept.clear();
    }
    None
}

/// The key of `object`, its element `name`.
#[cfg(feature = "cloud")]
fn key(object: &str, name: &str) -> Option<String> {
    let (_, rest) = object.split_once(&format!("<{name}>"))?;
    let (mut rest, _) = rest.split_once(&format!("</{name}>"))?;
    let mut key = String::new();
    while let Some((before, after)) = rest.split_once('&') {
        let (entity, after) = after.split_once(';')?;
        let number = |digits: &str, radix| u32::from_str_radix(digits, radix).ok().and_then(char::from_u32);
        key.push_str(before);
        key.push(match entity {
            "amp" => '&',
            "lt" => '<',
            "gt" => '>',
            "quot" => '"',
            "apos" => '\'',
            _ => match entity.strip_prefix("#x") {
                Some(digits) => number(digits, 16)?,
                None => number(entity.strip_prefix('#')?, 10)?,
            },
        });
        rest = after;
    }
    key.push_str(rest);
    Some(key)
}

/// What `key`, which no address leads to, has in it.
pub(super) fn fault_of(key: &str) -> &'static str {
    path::Path::parse(key).err().map_or("a slash at its start or end", |wrong| fault(&wrong))
}

/// The path that `wrong` is about.
pub(super) fn named(wrong: &path::Error) -> &str {
    match wrong {
        path::Error::EmptySegment { path }
        | path::Error::BadSegment { path, .. }
        | path::Error::NonUnicode { path, .. } => path,
        _ => "",
    }
}

/// What a path has in it that none may have.
pub(super) fn fault(wrong: &path::Error) -> &'static str {
    match wrong {
        path::Error::EmptySegment { .. } => "an empty part",
        path::Error::BadSegment { path, .. } if path.contains(|letter: char| letter.is_ascii_control()) => {
            "a control character"
        }
        path::Error::BadSegment { .. } => "a part `.` or `..`",
        _ => "a part that is not UTF-8",
    }
}

#[cfg(all(test, feature = "cloud"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_page_is_without_keys_that_have_no_address_where_they_are_noted() {
        let object = |key: &str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
        let page = |keys: &[&str]| {
            let objects: String = keys.iter().map(|key| object(key)).collect();
            format!("<ListBucketResult><Prefix>d/</Prefix>{objects}<IsTruncated>false</IsTruncated></ListBucketResult>")
        };
        let mixed =
            page(&["d/a.parquet", "d//&lt;x&gt;&amp;.txt", "d/b&amp;c", "d/&#x1;", "d/&#9;", "d/../e", "/d/f", "d/f/"]);
        let mark = "<Contents><Key>d/</Key><Size>0</Size></Contents>";
        let mixed = mixed.replace("<IsTruncated>", &format!("{mark}<IsTruncated>"));
        assert_eq!(without(mixed.as_bytes()), None, "nobody notes them");
        let (kept, keys) = noting(async { without(mixed.as_bytes()) }).await;
        let expected = page(&["d/a.parquet", "d/b&amp;c"]).replace("<IsTruncated>", &format!("{mark}<IsTruncated>"));
        assert_eq!(String::from_utf8(kept.unwrap()).unwrap(), expected);
        assert_eq!(keys, ["d//<x>&.txt", "d/\u{1}", "d/\t", "d/../e", "/d/f", "d/f/"]);
        let faults: Vec<_> = keys.iter().map(|key| fault_of(key)).collect();
        assert_eq!(faults[3..], ["a part `.` or `..`", "a slash at its start or end", "a slash at its start or end"]);
        let azure = "<Blobs><Blob><Name>a//b</Name></Blob><BlobPrefix><Name>c/</Name></BlobPrefix></Blobs>";
        let (kept, keys) = noting(async { without(azure.as_bytes()) }).await;
        assert_eq!(kept.unwrap(), b"<Blobs><BlobPrefix><Name>c/</Name></BlobPrefix></Blobs>");
        assert_eq!(keys, ["a//b"]);
        for whole in [page(&["d/a", "d/b"]), page(&[]), "<Contents><Key>a//b".to_owned()] {
            let (kept, keys) = noting(async { without(whole.as_bytes()) }).await;
            assert!(kept.is_none() && keys.is_empty(), "{whole}");
        }
    }
}
