//! Access to stores: their options, and the source of credentials.

use std::collections::BTreeMap;
use std::fmt;

#[cfg(feature = "cloud")]
use super::credentials::CredentialSource;

/// See the module.
#[derive(Clone, Copy)]
pub struct Access<'a> {
    /// By object_store's names.
    pub(super) options: &'a BTreeMap<String, String>,
    /// Credentials that expire, beside the options.
    #[cfg(feature = "cloud")]
    pub(super) credentials: Option<&'a CredentialSource>,
}

impl<'a> From<&'a BTreeMap<String, String>> for Access<'a> {
    fn from(options: &'a BTreeMap<String, String>) -> Self {
        Self {
            options,
            #[cfg(feature = "cloud")]
            credentials: None,
        }
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
