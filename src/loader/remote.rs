//! Which datasets a server has.

#[cfg(feature = "flight")]
use crate::flight::client::Address;
use crate::pipeline::LoaderOptions;

/// Whether a server has the dataset that `options.urls` name.
#[cfg(feature = "flight")]
pub(super) fn is_remote(options: &LoaderOptions) -> bool {
    options.urls.iter().any(|url| Address::is_one(url))
}

/// No server has any dataset.
#[cfg(not(feature = "flight"))]
pub(super) fn is_remote(_: &LoaderOptions) -> bool {
    false
}
