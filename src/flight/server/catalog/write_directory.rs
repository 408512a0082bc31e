//! The directory that clients write to, which must be outside the datasets of the catalogue: rows that a client writes below a
//! dataset's directory would become rows of that dataset, and staged files would be listed with it.

use std::path::{Component, Path, PathBuf};

use super::catalogue::Catalogue;
use crate::error::{Error, Result};
use crate::store::directory::SERVED;
use crate::store::glob::{Pattern, is_hidden, split};

/// Refuses a catalogue with a dataset that would list what clients write to the directory `put`. A dataset that was written there may be
/// named by its own path.
///
/// # Errors
/// [`Error::Config`] naming the directory and the dataset.
pub(super) fn check_outside_datasets(catalogue: &Catalogue, put: &Path) -> Result<()> {
    let real = real(put);
    for entry in catalogue.entries() {
        for path in entry.urls().filter_map(local) {
            if lists(&path, &real) {
                let (name, put, path) = (entry.name(), put.display(), path.display());
                let problem = format!(
                    "clients would write rows into dataset {name}: it is read from {path}, where {put} is; give put a directory of its own"
                );
                return Err(Error::config("put", problem));
            }
        }
    }
    Ok(())
}

/// The path of an address on this machine. Addresses below mounts are of their stores.
fn local(url: &str) -> Option<PathBuf> {
    if url.starts_with("file:") {
        return url::Url::parse(url).ok()?.to_file_path().ok();
    }
    (!url.contains("://")).then(|| PathBuf::from(url))
}

/// `path` without links, as far as it exists.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let found = path.ancestors().find_map(|above| {
        let rest = path.strip_prefix(above).ok()?;
        Some(above.canonicalize().ok()?.join(rest))
    });
    found.unwrap_or(path)
}

/// Returns true if a dataset at `path`, a file, directory or pattern, has what is written to `put`.
fn lists(path: &Path, put: &Path) -> bool {
    let text = path.to_string_lossy();
    // A file of that name is no pattern.
    let is_pattern = text.contains(['*', '?', '[', '{']) && !path.exists();
    let (base, pattern) = if is_pattern { split(&text) } else { (&*text, "") };
    let base = real(Path::new(if base.is_empty() { "." } else { base }));
    // What is staged, and the files of single versions.
    if base.starts_with(put.join(SERVED)) {
        return true;
    }
    let Some(below) = put.strip_prefix(&base).ok().and_then(parts) else { return false };
    if pattern.is_empty() {
        return below.iter().all(|part| !is_hidden(part));
    }
    reaches(pattern, &below)
}

/// The names of a relative path.
fn parts(path: &Path) -> Option<Vec<String>> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => name.to_str().map(str::to_owned),
        _ => None,
    };
    path.components().map(name).collect()
}

/// Returns true if `pattern` may name something in the directory `below`, both from the same directory on. Clients choose the names
/// there.
fn reaches(pattern: &str, below: &[String]) -> bool {
    let names = |pattern: &str, path: &str| Pattern::new(pattern).ok().and_then(|made| made.matches(path));
    let whole = below.join("/");
    let asked: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty()).collect();
    let above = asked.get(..below.len()).map(|asked| asked.join("/"));
    let goes_on = asked.len() > below.len() && above.is_some_and(|above| names(&above, &whole) == Some(below.len()));
    let any = asked.iter().position(|part| part.contains("**"));
    below.is_empty()
        || names(pattern, &whole).is_some()
        || goes_on
        || any.is_some_and(|any| {
            // What comes before `**` must lead there.
            let before = asked.get(..any).unwrap_or_default().join("/");
            let led = |below: &[String]| any == 0 || names(&before, &below.join("/")).is_some();
            below.get(..any).is_some_and(led) && below.iter().skip(any).all(|part| !is_hidden(part))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_write_is_no_part_of_a_dataset_of_the_catalogue() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::create_dir_all(root.join("n/day=1")).unwrap();
        std::fs::write(root.join("n/a.parquet"), b"").unwrap();
        let at = |path: &str| root.join(path).to_str().unwrap().to_owned();
        let refused = |url: &str, put: &str| {
            let mut catalogue = Catalogue::default();
            catalogue.add("others", vec!["s3://bucket/n".to_owned(), at("elsewhere")]).unwrap();
            catalogue.add("n", vec![url.to_owned()]).unwrap();
            let error = check_outside_datasets(&catalogue, Path::new(put)).err()?;
            assert!(matches!(error, Error::Config { option: "put", .. }), "{error}");
            let text = error.to_string();
            assert!(text.contains("dataset n:") && text.contains(url.trim_start_matches("file://")), "{text}");
            assert!(text.contains(put), "{text}");
            Some(())
        };
        for (url, put) in [
            ("n", "n"),
            ("n", "n/put"),
            ("n/", "n/put/deeper"),
            ("n", "n/day=1/put"),
            ("n/*", "n/put"),
            ("n/**/*.parquet", "n/put"),
            ("n/*/*.parquet", "n/put"),
            ("n/p*/*/*.parquet", "n/put"),
            ("n/*.parquet", "n"),
            ("n/../n", "n/put"),
            ("put/.bowstring/_staged", "put"),
        ] {
            assert!(refused(&at(url), &at(put)).is_some(), "{url} and {put}");
        }
        assert!(refused(&format!("file://{}", at("n")), &at("n/put")).is_some());
        for (url, put) in [
            ("n", "put"),
            ("n", "n2"),
            ("n", "n/_put"),
            ("n", "n/.put"),
            ("n/*.parquet", "n/put"),
            ("n/day=*/*.parquet", "n/put"),
            ("n/a.parquet", "n"),
            // A name of the catalogue cannot be written, and one that was written may be read with options of its own.
            ("n", ""),
            ("put/written", "put"),
        ] {
            assert!(refused(&at(url), &at(put)).is_none(), "{url} and {put}");
        }
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(root.join("n"), root.join("link")).unwrap();
            assert!(refused(&at("link"), &at("n/put")).is_some() && refused(&at("n"), &at("link/put")).is_some());
        }
    }
}
