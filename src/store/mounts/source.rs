//! Where the mounts are said: in a file that an option or the environment names, or in the configuration of a server.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::super::home::at_home;
use super::table::Mounts;
use crate::error::{Error, Result};

/// The variable of the environment that names the file.
const VARIABLE: &str = "BOWSTRING_MOUNTS";

/// Largest file, in bytes.
const MAX_FILE: u64 = 1 << 20;

/// See the module. As text it is the path of the file. [`Given`](Self::Given) is of this process alone, and its text is no path: it differs for
/// other mounts.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum MountSource {
    /// In the file at this path, as it is when an address is opened.
    File(String),
    /// These.
    Given(Arc<Mounts>),
}

impl From<String> for MountSource {
    fn from(path: String) -> Self {
        Self::File(path)
    }
}

impl From<MountSource> for String {
    fn from(source: MountSource) -> Self {
        match source {
            MountSource::File(path) => path,
            MountSource::Given(mounts) => format!("[mounts] of {}, {}", mounts.origin(), mounts.digest()),
        }
    }
}

impl fmt::Debug for MountSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "File({path:?})"),
            Self::Given(mounts) => write!(f, "Given({mounts:?})"),
        }
    }
}

impl Mounts {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`Error::Config`] if it cannot be read, and as [`from_toml`](Self::from_toml).
    pub fn read(path: &str) -> Result<Self> {
        let unreadable =
            |error: std::io::Error| Error::config("mounts", format!("file {path} cannot be read: {error}"));
        let mut text = String::new();
        let file = std::fs::File::open(Path::new(path)).map_err(unreadable)?;
        file.take(MAX_FILE + 1).read_to_string(&mut text).map_err(unreadable)?;
        if text.len() as u64 > MAX_FILE {
            return Err(Error::config("mounts", format!("file {path} has more than {MAX_FILE} bytes")));
        }
        Self::from_toml(&text, path)
    }

    /// Those that the environment names; none if it names no file.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn of_environment() -> Result<Option<Self>> {
        named().map(|path| Self::read(&path)).transpose()
    }

    /// The file that the environment names.
    ///
    /// # Errors
    /// [`Error::Config`] if it names none.
    pub(super) fn file_of_environment() -> Result<String> {
        named().ok_or_else(|| {
            let problem = format!(
                "there are none for bow:// addresses: name a TOML file with [mounts.NAME] tables in the option mounts or in {VARIABLE}"
            );
            Error::config("mounts", problem)
        })
    }

    /// Those of `source`, or else of the environment.
    ///
    /// # Errors
    /// [`Error::Config`] if there are none, and as [`read`](Self::read).
    pub(in crate::store) fn of(source: Option<&MountSource>) -> Result<Arc<Self>> {
        match source {
            Some(MountSource::Given(mounts)) => Ok(Arc::clone(mounts)),
            Some(MountSource::File(path)) => Self::read(path).map(Arc::new),
            None => Self::read(&Self::file_of_environment()?).map(Arc::new),
        }
    }
}

/// The file that the environment names.
fn named() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|path| !path.is_empty()).map(|path| at_home(&path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_when_it_is_asked_for() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let source = MountSource::from(path.clone());
        for address in ["/one", "/two"] {
            std::fs::write(&path, format!("[mounts.m]\nurl = \"{address}\"")).unwrap();
            let mounts = Mounts::of(Some(&source)).unwrap();
            assert_eq!(mounts.iter().map(|mount| mount.shown()).collect::<Vec<_>>(), [address]);
        }
        assert_eq!(String::from(source), path);
        let gone = Mounts::of(Some(&MountSource::File("/nowhere/m.toml".to_owned()))).unwrap_err().to_string();
        assert!(gone.contains("/nowhere/m.toml cannot be read"), "{gone}");
    }

    #[test]
    fn the_text_of_given_mounts_is_another_one_for_others_and_has_no_secret() {
        let text = |key: &str| {
            let text = format!("[mounts.m]\nurl = \"s3://b\"\nstorage_options = {{ timeout = \"{key}\" }}");
            Mounts::from_toml(&text, "m.toml").map(|mounts| String::from(MountSource::Given(Arc::new(mounts))))
        };
        if let (Ok(one), Ok(two)) = (text("s3cr3t"), text("other")) {
            assert!(one != two && !one.contains("s3cr3t"), "{one}");
        }
    }
}
