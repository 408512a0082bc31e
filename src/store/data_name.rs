//! Names in a listing that are data, and those behind which data may hide.

use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStoreExt};

use super::glob;
use super::place::Place;
use super::walk::{LEAST_BYTES, is_end, is_staged};
use crate::error::{Error, Result};

/// End of the names of objects with which Hadoop's older stores mark a directory.
const FOLDER: &str = "_$folder$";

/// Returns true if a file below a directory is data. The first `named` parts were named by a pattern and are not judged. The number that
/// `object_store` appends to a `local` name while it writes is no part of an extension.
pub(super) fn is_data(below: &str, named: usize, local: bool) -> bool {
    let parts: Vec<&str> = below.split('/').collect();
    let Some(&name) = parts.last() else { return false };
    let name = if local { unnumbered(name) } else { name };
    let file_named = named == parts.len();
    !parts.iter().skip(named).any(|part| glob::is_hidden(part))
        && (file_named || extension(name).is_none_or(is_parquet))
        && !name.ends_with(FOLDER)
}

/// Returns true for an empty object of a store in the name of a directory: tools mark empty directories so, with a slash that
/// `object_store` takes off, and partitions whose files went. An empty file of Parquet is damaged.
pub(super) fn marks_directory(meta: &ObjectMeta) -> bool {
    meta.size == 0 && meta.location.filename().is_none_or(|name| extension(name).is_none())
}

/// Endings of compressed files.
pub(crate) const COMPRESSIONS: [&str; 20] = [
    "gz", "gzip", "bz2", "bz", "xz", "lzma", "zst", "zstd", "zz", "z", "lz4", "br", "brotli", "snappy", "snz", "sz",
    "deflate", "lzo", "zip", "7z",
];

/// Most files of such names whose ends are looked at.
pub(super) const LOOKED_AT: usize = 16;

/// A name without a number that [is appended](is_staged) to it.
fn unnumbered(name: &str) -> &str {
    if is_staged(name) { name.rsplit_once('#').map_or(name, |(name, _)| name) } else { name }
}

/// Returns true for a name that is one of Parquet without its last ending, a number or a compression. Programs give such endings to whole
/// files, in which only the pages are compressed: the file's end says what it is. A number after `#` is such an ending unless it is `local`.
pub(super) fn is_renamed(below: &str, local: bool) -> bool {
    let is_parquet = |bare: &str| extension(bare).is_some_and(is_parquet) && is_data(bare, 0, local);
    let numbered = unnumbered(below);
    if numbered.len() < below.len() {
        return !local && is_parquet(numbered);
    }
    let Some((bare, ending)) = below.rsplit_once('.') else { return false };
    let number = !ending.is_empty() && ending.bytes().all(|byte| byte.is_ascii_digit());
    let known = number || COMPRESSIONS.iter().any(|known| ending.eq_ignore_ascii_case(known));
    known && is_parquet(bare)
}

/// Refuses the file `name` if it is a whole one of Parquet, whose rows would be missing.
pub(super) async fn refuse_whole(place: &Place, base: &Path, name: &str) -> Result<()> {
    let Ok(path) = Path::parse(format!("{base}/{name}").trim_start_matches('/')) else { return Ok(()) };
    let end = async {
        let size = place.store.head(&path).await?.size;
        let start = size.checked_sub(4).filter(|_| size >= LEAST_BYTES);
        match start {
            Some(start) => place.store.get_range(&path, start..size).await.map(|end| is_end(&end)),
            None => Ok(false),
        }
    };
    match end.await {
        Ok(false) | Err(object_store::Error::NotFound { .. }) => Ok(()),
        Ok(true) => {
            let url = place.url(&path);
            let problem = format!(
                "{url} is a whole file of Parquet by another name, and its rows would be missing; rename it so that it ends in .parquet, \
                 or move it away"
            );
            Err(Error::config("urls", problem))
        }
        Err(error) => Err(place.failed("read the end", &path, error)),
    }
}

pub(super) fn extension(name: &str) -> Option<&str> {
    name.rsplit_once('.').map(|(_, extension)| extension)
}

pub(super) fn is_parquet(extension: &str) -> bool {
    ["parquet", "parq", "pq"].iter().any(|known| extension.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_and_foreign_files_are_no_data() {
        for data in ["a.parquet", "x/b.PQ", "part-0001", "_k=1/a.parquet", "x.parquet#1", "x/b.parquet#12", "part#7"] {
            assert!(is_data(data, 0, true), "{data}");
        }
        for other in [
            "_SUCCESS",
            "_metadata",
            "._SUCCESS.crc",
            ".a.parquet.crc",
            "README.md",
            "_tmp/a.parquet",
            ".x/a.parquet",
            "README.md#1",
            "_a.parquet#1",
            "a.parquet#x",
        ] {
            assert!(!is_data(other, 0, true), "{other}");
        }
        for numbered in ["x.parquet#1", "x/b.parquet#12"] {
            assert!(!is_data(numbered, 0, false) && is_renamed(numbered, false), "{numbered}");
            assert!(!is_renamed(numbered, true), "{numbered}");
        }
        assert!(is_data("part#7", 0, false) && !is_renamed("part#7", false) && !is_renamed("README.md#1", false));
        assert!(is_data("_tmp/a.dat", 2, true), "what a pattern names is taken");
        for renamed in ["a.parquet.gz", "k=1/a.parquet.snappy", "a.PARQUET.1", "a.pq.zst"] {
            assert!(is_renamed(renamed, true), "{renamed}");
        }
        for other in [
            "a.parquet",
            "a.gz.parquet",
            "a.parquet.crc",
            "a.parquet.bak",
            "a.parquet.tmp",
            "_a.parquet.gz",
            ".a.parquet.1",
            "a.csv.gz",
            "a.parquet.",
            "README.1",
        ] {
            assert!(!is_renamed(other, true), "{other}");
        }
    }

    #[test]
    fn an_empty_object_without_an_extension_marks_a_directory() {
        let marks = |name: &str, size| {
            let last_modified = std::time::UNIX_EPOCH.into();
            marks_directory(&ObjectMeta { location: Path::from(name), last_modified, size, e_tag: None, version: None })
        };
        assert!(marks("d/day=2026-11-28", 0) && marks("day=", 0) && marks("d/sub", 0) && marks("", 0));
        assert!(!marks("d/day=2026-11-28", 9) && !marks("d/day=2026.parquet", 0) && !marks("d/part-0", 9));
    }
}
