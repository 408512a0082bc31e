//! Tells datasets on a server from others.

#[cfg(feature = "flight")]
use crate::flight::client::Address;
use crate::pipeline::LoaderOptions;

/// Returns true if the dataset that `options.urls` name is on a server.
#[cfg(feature = "flight")]
pub(super) fn is_remote(options: &LoaderOptions) -> bool {
    options.urls.iter().any(|url| Address::is_one(url))
}

/// Without the client, no dataset is on a server.
#[cfg(not(feature = "flight"))]
pub(super) fn is_remote(_: &LoaderOptions) -> bool {
    false
}
