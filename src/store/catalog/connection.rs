//! How a catalog is reached: times, proxy, certificates; the options of that name apply to catalogs as they do to stores.

use std::time::Duration;

use url::Url;

use super::options::Options;
use crate::error::{Error, Result};
use crate::store::secret::Secret;

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Connection {
    /// Maximum wait for the start of a response, and for each further part.
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    proxy: Option<Secret>,
    user_agent: String,
    allow_invalid_certificates: bool,
}

impl Connection {
    /// Reads it from `options`.
    ///
    /// # Errors
    /// [`Error::Config`] for a wrong value.
    pub(super) fn new(options: Options<'_>) -> Result<Self> {
        let seconds = |name: &'static str, usual: u64| match options.get(&[name]) {
            None => Ok(Duration::from_secs(usual)),
            Some(text) => humantime::parse_duration(text).map_err(|error| {
                Error::config("storage_options", format!("{name} is no duration such as 30s: {error}"))
            }),
        };
        Ok(Self {
            timeout: seconds("timeout", 30)?,
            connect_timeout: seconds("connect_timeout", 5)?,
            proxy: options.get(&["proxy_url"]).map(Secret::new),
            user_agent: options
                .get(&["user_agent"])
                .map_or_else(|| concat!("bowstring/", env!("CARGO_PKG_VERSION")).to_owned(), str::to_owned),
            allow_invalid_certificates: options
                .get(&["allow_invalid_certificates"])
                .is_some_and(|text| text.eq_ignore_ascii_case("true")),
        })
    }

    /// A client of HTTP for the catalog that messages have as `name`.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(super) fn client(&self, name: &str) -> Result<reqwest::Client> {
        let failed = |error: reqwest::Error| Error::Store {
            operation: "open".to_owned(),
            url: name.to_owned(),
            source: error.without_url().into(),
        };
        let mut builder = reqwest::Client::builder()
            // A token never goes to a host that a response names.
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(self.connect_timeout)
            .read_timeout(self.timeout)
            .user_agent(&self.user_agent)
            .danger_accept_invalid_certs(self.allow_invalid_certificates);
        if let Some(proxy) = &self.proxy {
            builder = builder.proxy(reqwest::Proxy::all(proxy.reveal()).map_err(failed)?);
        }
        builder.build().map_err(failed)
    }
}

/// The address of a catalog in `text`: of the web, with nothing but host, port and path. No slash at its end.
pub(super) fn address(text: &str) -> Option<Url> {
    let url = Url::parse(text.trim_end_matches('/')).ok()?;
    let plain =
        url.username().is_empty() && url.password().is_none() && url.query().is_none() && url.fragment().is_none();
    (matches!(url.scheme(), "http" | "https") && url.has_host() && plain).then_some(url)
}

/// `url` with `parts` appended to its path.
pub(super) fn below(url: &Url, parts: &[&str]) -> Url {
    let mut url = url.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(parts);
    }
    url
}

/// Whether `host` is this machine.
pub(super) fn is_near(host: Option<&str>) -> bool {
    matches!(host, Some("localhost" | "127.0.0.1" | "[::1]" | "::1"))
}
