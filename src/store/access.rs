//! Access to stores: their options, the source of credentials, and the mounts.

use std::collections::BTreeMap;
use std::fmt;

#[cfg(feature = "cloud")]
use super::credentials::CredentialSource;
use super::mounts::MountSource;

/// See the module.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    /// By object_store's names.
    pub(super) options: &'a BTreeMap<String, String>,
    /// Credentials that expire, beside the options.
    #[cfg(feature = "cloud")]
    pub(super) credentials: Option<&'a CredentialSource>,
    /// The mounts that addresses below `bow://` lead to; without, those that the environment names.
    pub(super) mounts: Option<&'a MountSource>,
}

impl<'a> From<&'a BTreeMap<String, String>> for Access<'a> {
    fn from(options: &'a BTreeMap<String, String>) -> Self {
        Self {
            options,
            #[cfg(feature = "cloud")]
            credentials: None,
            mounts: None,
        }
    }
}

impl<'a> Access<'a> {
    /// With the mounts of `source`, instead of those that the environment names.
    #[must_use]
    pub fn with_mounts(self, source: Option<&'a MountSource>) -> Self {
        Self { mounts: source, ..self }
    }
}

#[cfg(feature = "cloud")]
impl<'a> Access<'a> {
    /// With credentials from `source`.
    #[must_use]
    pub fn with_credentials(self, source: Option<&'a CredentialSource>) -> Self {
        Self { credentials: source, ..self }
    }
}

impl fmt::Debug for Access<'_> {
    /// Without the values, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.options.keys().collect();
        f.debug_struct("Access").field("options", &names).finish_non_exhaustive()
    }
}
