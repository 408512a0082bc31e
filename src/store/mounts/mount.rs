//! One mount: a name below `bow://`, the directory of a store that it stands for, and the options that this store alone is reached with.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use url::Url;

use super::super::address::Address;
use super::super::display::display;
use super::super::percent::decoded;
use super::super::{glob, keys};
use super::name::START;
use crate::error::{Error, Result};
use crate::nearest::nearest;

/// Most letters of a name.
const LONGEST: usize = 512;

/// Schemes of stores that have directories, or files by path.
const SCHEMES: [&str; 14] =
    ["s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https", "hf", "hdfs", "viewfs", "memory"];

/// See the module.
#[derive(Clone, PartialEq, Eq)]
pub struct Mount {
    name: String,
    /// Address of the directory, without a slash at its end.
    address: String,
    /// The same as a path, if it is of this machine.
    local: Option<PathBuf>,
    options: BTreeMap<String, String>,
    /// The place that says so, in messages.
    origin: Arc<str>,
}

impl fmt::Debug for Mount {
    /// Without the values of options, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.options.keys().collect();
        f.debug_struct("Mount")
            .field("name", &self.name)
            .field("address", &display(&self.address))
            .field("storage_options", &names)
            .finish_non_exhaustive()
    }
}

impl Mount {
    /// The directory at `address`, reached with `options`, as `bow://name`; `origin` is the file that says so.
    ///
    /// # Errors
    /// [`Error::Config`] naming `mounts` for the name, `url` for the address, `storage_options` for an unknown option.
    pub fn new(name: &str, address: &str, options: BTreeMap<String, String>, origin: &Arc<str>) -> Result<Self> {
        check_name(name).map_err(|problem| Error::config("mounts", problem))?;
        let wrong = |problem| Error::config("url", format!("{}: {problem}", display(address)));
        let local = check_address(address).map_err(wrong)?;
        keys::check(&options)?;
        keys::hedges(&options)?;
        let start = address.find("://").map_or(1, |at| at + 3);
        let end = address.trim_end_matches('/').len().max(start.min(address.len()));
        let address = address.get(..end).unwrap_or(address).to_owned();
        Ok(Self { name: name.to_owned(), address, local, options, origin: Arc::clone(origin) })
    }

    /// Its name: one segment of a path, or several.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its own address.
    pub fn url(&self) -> String {
        format!("{START}{}", self.name)
    }

    /// The directory that it stands for, as it may be shown.
    pub fn shown(&self) -> String {
        display(&self.address)
    }

    /// The names of its options; the values may be secret.
    pub fn option_names(&self) -> impl Iterator<Item = &str> {
        self.options.keys().map(String::as_str)
    }

    /// The file that says so.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// The directory that it stands for.
    pub(in crate::store) fn address(&self) -> &str {
        &self.address
    }

    /// The same, taken apart.
    pub(in crate::store) fn root(&self) -> Address {
        self.below(&[], &[], false)
    }

    pub(in crate::store) fn options(&self) -> &BTreeMap<String, String> {
        &self.options
    }

    /// The address of what is below it: of segments as they were written, and decoded. A slash at the end is kept.
    pub(super) fn below(&self, raw: &[String], parts: &[String], slash: bool) -> Address {
        if let Some(path) = &self.local {
            let mut path = path.clone();
            path.extend(parts);
            return Address::Local(path);
        }
        let mut text = self.address.clone();
        for part in raw {
            // In an address of the web a backslash separates segments, too.
            text = format!("{text}/{}", part.replace('\\', "%5C"));
        }
        // A scheme alone, as in hdfs:///, needs its slash.
        if slash || text.ends_with("://") {
            text.push('/');
        }
        Address::Remote(text)
    }
}

/// # Errors
/// The problem of a name that is none.
fn check_name(name: &str) -> Result<(), String> {
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.=".contains(&byte);
    let is_part = |part: &str| !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_letter);
    if name.len() <= LONGEST && name.split('/').all(is_part) {
        return Ok(());
    }
    let shown: String = name.chars().take(64).collect();
    Err(format!(
        "{shown:?} cannot name a mount: a name is segments of letters, digits, `-`, `_`, `.` and `=`, with / between them"
    ))
}

/// The path of `address`, if it is of this machine.
///
/// # Errors
/// The problem of an address that no mount can have.
fn check_address(address: &str) -> Result<Option<PathBuf>, String> {
    if address.contains(|letter: char| letter.is_control()) {
        return Err("it has a control character in it".to_owned());
    }
    let Some((scheme, path)) = address.split_once("://").filter(|(scheme, _)| *scheme != "file") else {
        let Ok(Address::Local(path)) = Address::parse(address) else {
            return Err("it is no address of a directory".to_owned());
        };
        if !path.is_absolute() || has_dots(path.to_str().unwrap_or("..")) {
            return Err("it is no absolute path; write one from / on, without . and ..".to_owned());
        }
        return if glob::is_pattern(path.to_str().unwrap_or_default()) { Err(pattern()) } else { Ok(Some(path)) };
    };
    match scheme {
        "bow" => return Err("a mount stands for a directory of a store, not for another mount".to_owned()),
        "grpc" | "grpc+tcp" | "grpc+tls" => {
            return Err(
                "a server gives batches and no files; it is not mounted, but opened by its own address".to_owned()
            );
        }
        "iceberg" | "uc" | "glue" | "hms" => {
            return Err("a table of a catalog is opened by its own name; a mount stands for a directory".to_owned());
        }
        scheme if !SCHEMES.contains(&scheme) => {
            let meant = nearest(scheme, SCHEMES.iter().copied());
            let meant = meant.map_or_else(String::new, |meant| format!("; did you mean {meant}://?"));
            let known = SCHEMES.iter().filter(|known| **known != "memory").copied().collect::<Vec<_>>().join(", ");
            return Err(format!("the scheme is unknown{meant} There are paths of this machine, {known}"));
        }
        _ => {}
    }
    if path.contains(['?', '#']) {
        return Err("a query is no part of a directory's address; credentials go into storage_options".to_owned());
    }
    if glob::is_pattern(path) {
        return Err(pattern());
    }
    let url = Url::parse(address).map_err(|error| format!("it is no address: {error}"))?;
    // Azure's abfs form has the container before the @.
    let has_user = !url.username().is_empty() && !scheme.starts_with("abfs");
    if url.password().is_some() || has_user {
        return Err("it has a user name or password in it; those go into storage_options".to_owned());
    }
    let Some(path) = decoded(path) else {
        return Err("it is no UTF-8, or has a % that begins no byte: write %25".to_owned());
    };
    if has_dots(&path) || path.contains('\\') {
        return Err("it has . or .. or a backslash in it; write the path without".to_owned());
    }
    Ok(None)
}

fn pattern() -> String {
    "it is a pattern; a mount stands for one directory, and patterns go behind its name".to_owned()
}

fn has_dots(path: &str) -> bool {
    path.split('/').any(|part| part == "." || part == "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount(name: &str, address: &str) -> Result<Mount> {
        Mount::new(name, address, BTreeMap::new(), &"mounts.toml".into())
    }

    fn below(address: &str, path: &str) -> Address {
        let parts: Vec<String> = path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        mount("x", address).unwrap().below(&parts, &parts, path.ends_with('/'))
    }

    #[test]
    fn what_is_below_a_mount_is_below_its_directory() {
        for (address, path, meant) in [
            ("s3://b/p/", "a/b", "s3://b/p/a/b"),
            ("s3://b", "", "s3://b"),
            ("s3://b", "a/", "s3://b/a/"),
            ("s3://b/p", "/", "s3://b/p/"),
            ("hdfs:///", "a", "hdfs:///a"),
            ("https://h/p//", r"..\x", "https://h/p/..%5Cx"),
            ("abfss://c@a.dfs.core.windows.net/p", "x", "abfss://c@a.dfs.core.windows.net/p/x"),
        ] {
            assert_eq!(below(address, path), Address::Remote(meant.to_owned()), "{address} {path}");
        }
        for (address, path, meant) in [("/data/", "a/b", "/data/a/b"), ("/", "a", "/a"), ("file:///d%20e", "", "/d e")]
        {
            assert_eq!(below(address, path), Address::Local(meant.into()), "{address} {path}");
        }
    }

    #[test]
    fn what_cannot_be_mounted_is_told_without_secrets() {
        for (name, address) in [
            ("x", ""),
            ("x", "data/train"),
            ("x", "/data/../etc"),
            ("x", "/data/*.parquet"),
            ("x", "s3://b/{a,b}"),
            ("x", "bow://y"),
            ("x", "grpc://host/y"),
            ("x", "iceberg://a.b"),
            ("x", "https://me:secret@host/x"),
            ("x", "s3://secret@host/x"),
            ("x", "https://host/x?sig=secret"),
            ("x", "https://host/a/%2e%2e/b"),
            ("x", "https://host/a\\b"),
            ("", "/data"),
            ("/x", "/data"),
            ("x/", "/data"),
            ("a/../b", "/data"),
            ("a b", "/data"),
            ("a%20b", "/data"),
        ] {
            let error = mount(name, address).unwrap_err();
            assert!(
                matches!(error, Error::Config { .. }) && !error.chain().contains("secret"),
                "{name} {address}: {error}"
            );
        }
        let error = mount("x", "s4://b").unwrap_err().to_string();
        assert!(error.contains("did you mean s3://"), "{error}");
        let named = mount("year=2026/a.b-c_d", "s3://b/x").unwrap();
        assert_eq!((named.url(), named.shown()), ("bow://year=2026/a.b-c_d".to_owned(), "s3://b/x".to_owned()));
    }

    #[cfg(feature = "cloud")]
    #[test]
    fn options_are_known_ones_and_never_shown() {
        let options = |key: &str| BTreeMap::from([(key.to_owned(), "s3cr3t".to_owned())]);
        let origin: Arc<str> = "mounts.toml".into();
        let mount = Mount::new("x", "s3://b", options("aws_secret_access_key"), &origin).unwrap();
        let shown = format!("{mount:?}");
        assert!(shown.contains("aws_secret_access_key") && !shown.contains("s3cr3t"), "{shown}");
        let error = Mount::new("x", "s3://b", options("aws_secret_acess_key"), &origin).unwrap_err().to_string();
        assert!(error.contains("\"aws_secret_access_key\"") && !error.contains("s3cr3t"), "{error}");
    }
}
