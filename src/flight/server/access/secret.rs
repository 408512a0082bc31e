//! Secrets, which are never printed, and the files that hold them.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};

/// Text that `Debug` and `Display` show as `***`.
///
/// ```
/// use bowstring::flight::server::secret::Secret;
///
/// let secret = Secret::new("correct horse battery staple");
/// assert_eq!((format!("{secret}"), format!("{secret:?}")), ("***".to_owned(), "***".to_owned()));
/// assert_eq!(secret.expose(), "correct horse battery staple");
/// ```
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Hides `text`.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns the text itself, for the wire alone.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Reads a file that only its owner may read. `option` is the option that named it; `most` its largest size in bytes.
///
/// # Errors
/// [`Error::Config`] naming the file: it is missing, not a regular file, readable by others, or larger than `most`.
pub(crate) fn read_private(path: &Path, option: &'static str, most: u64) -> Result<Vec<u8>> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| Error::config(option, format!("file {shown} cannot be read: {error}"));
    // Checked before opening, because opening a named pipe would wait for a writer.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(Error::config(option, format!("{shown} is no regular file")));
    }
    let file = File::open(path).map_err(unreadable)?;
    // Checked again on the open file, because the name may refer to another file by now.
    let metadata = file.metadata().map_err(unreadable)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let mode = metadata.mode() & 0o7777;
        if is_open(mode, metadata.uid(), rustix::process::geteuid().as_raw()) {
            let problem =
                format!("file {shown} holds secrets and is open to others (mode {mode:04o}); run `chmod 600 {shown}`");
            return Err(Error::config(option, problem));
        }
    }
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > most {
        return Err(Error::config(option, format!("file {shown} has more than {most} bytes")));
    }
    Ok(bytes)
}

/// Returns true if anyone but root and the user `own` may read a file of user `owner`, or anyone but its owner may change it. A group
/// may read what root owns: that is how Kubernetes gives a secret to a process of another user.
#[cfg(unix)]
fn is_open(mode: u32, owner: u32, own: u32) -> bool {
    let forbidden = if owner == 0 && own != 0 { 0o037 } else { 0o077 };
    mode & forbidden != 0
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn a_group_may_read_what_root_owns() {
        let (root, user, other) = (0, 1000, 1001);
        for (mode, owner, own, open) in [
            (0o600, user, user, false),
            (0o440, user, user, true),
            (0o440, other, user, true),
            (0o440, root, root, true),
            (0o400, root, root, false),
            (0o440, root, user, false),
            (0o640, root, user, false),
            (0o660, root, user, true),
            (0o444, root, user, true),
        ] {
            assert_eq!(is_open(mode, owner, own), open, "{mode:o} of {owner} for {own}");
        }
    }

    #[test]
    fn only_the_owner_may_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("secrets");
        std::fs::write(&path, "x").unwrap();
        for (mode, good) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false), (0o601, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = read_private(&path, "tokens", 10);
            assert_eq!(read.is_ok(), good, "{mode:o}");
            if let Err(error) = read {
                assert!(error.to_string().contains("chmod 600"), "{error}");
            }
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(read_private(&path, "tokens", 0).is_err_and(|error| error.to_string().contains("more than 0 bytes")));
        assert!(read_private(directory.path(), "tokens", 10).is_err_and(|e| e.to_string().contains("no regular file")));
        assert!(read_private(&directory.path().join("none"), "tokens", 10).is_err());
    }
}
