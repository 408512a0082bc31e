//! What a file system is opened with.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::cache::CachePlace;
#[cfg(feature = "cloud")]
use super::super::credentials::CredentialSource;
use super::super::mounts::MountSource;

/// When a file that is saved has to be in its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Upload {
    /// Before its end returns. The loss of this machine costs nothing that was saved.
    #[default]
    Wait,
    /// Later: it is on the disk of this machine, in the cache, and readers of this machine find it there. The loss of the machine costs
    /// what was not uploaded yet; [`FileSystem::flush`](super::FileSystem::flush) waits for that.
    Background,
}

/// Options of a [`FileSystem`](super::FileSystem).
#[derive(Debug, Clone)]
pub struct FileOptions {
    /// Options of the stores, by object_store's names.
    pub storage_options: BTreeMap<String, String>,
    /// Source of expiring credentials, in addition to the options.
    #[cfg(feature = "cloud")]
    pub credential_provider: Option<CredentialSource>,
    /// The mounts that addresses below `bow://` lead to; without, those that the environment names.
    pub mounts: Option<MountSource>,
    /// The cache that files are read through; none without. Files of this machine are read as they are.
    pub cache: Option<CachePlace>,
    /// The longest wait for bytes, and for what a store says of a file or a directory.
    pub timeout: Duration,
    /// Most files that [`FileSystem::find`](super::FileSystem::find) gives.
    pub max_files: usize,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            storage_options: BTreeMap::new(),
            #[cfg(feature = "cloud")]
            credential_provider: None,
            mounts: None,
            cache: None,
            timeout: Duration::from_secs(600),
            max_files: 1 << 20,
        }
    }
}
