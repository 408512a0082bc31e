//! Address, authorization and connection of a catalog, from `storage_options` under PyIceberg's names.

use std::collections::BTreeMap;
use std::time::Duration;

use url::Url;

use crate::error::{Error, Result};
use crate::store::secret::Secret;

/// Keys of `storage_options` that only catalogs use.
pub(in crate::store) const KEYS: &[&str] = &[
    "iceberg_uri",
    "iceberg_warehouse",
    "iceberg_token",
    "iceberg_credential",
    "iceberg_scope",
    "iceberg_oauth2_server_uri",
];

/// How requests are authorized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Auth {
    Nobody,
    Token(Secret),
    /// A client of OAuth2, which gets tokens at `at`.
    Client {
        id: String,
        secret: Secret,
        scope: String,
        at: Url,
    },
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    /// No slash at its end.
    pub(super) uri: Url,
    pub(super) warehouse: Option<String>,
    pub(super) auth: Auth,
    /// Maximum wait for the start of a response, and for each further part.
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    pub(super) proxy: Option<Secret>,
    pub(super) user_agent: String,
    pub(super) allow_invalid_certificates: bool,
}

impl Settings {
    /// Reads them from `options`.
    ///
    /// # Errors
    /// [`Error::Config`] for a key that is missing or has a wrong value.
    pub(super) fn new(options: &BTreeMap<String, String>) -> Result<Self> {
        let wrong = |problem: &str| Error::config("storage_options", problem);
        let option = |name: &str| {
            let mut found = options.iter().filter(|(key, _)| key.eq_ignore_ascii_case(name));
            found.next().map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
        };
        let address = |text: &str| {
            let url = Url::parse(text.trim_end_matches('/')).ok()?;
            let plain = url.username().is_empty()
                && url.password().is_none()
                && url.query().is_none()
                && url.fragment().is_none();
            (matches!(url.scheme(), "http" | "https") && url.has_host() && plain).then_some(url)
        };
        let uri = option("iceberg_uri").ok_or_else(|| {
            wrong(
                "iceberg:// names a table of a catalog: give its address as iceberg_uri, such as https://host/catalog",
            )
        })?;
        let uri = address(uri)
            .ok_or_else(|| wrong("iceberg_uri is no address of a catalog, such as https://host/catalog"))?;
        let plain = |text: &&str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let auth = match (option("iceberg_token"), option("iceberg_credential")) {
            (Some(_), Some(_)) => {
                return Err(wrong("iceberg_token and iceberg_credential both say who asks; give one"));
            }
            (Some(token), None) => match plain(&token) {
                true => Auth::Token(Secret::new(token)),
                false => return Err(wrong("iceberg_token has characters that no token has")),
            },
            (None, Some(credential)) => {
                let (id, secret) = credential.split_once(':').unwrap_or(("", credential));
                let at = match option("iceberg_oauth2_server_uri") {
                    Some(text) => address(text).ok_or_else(|| wrong("iceberg_oauth2_server_uri is no address"))?,
                    None => below(&uri, &["v1", "oauth", "tokens"]),
                };
                let scope = option("iceberg_scope").unwrap_or("catalog").to_owned();
                Auth::Client { id: id.to_owned(), secret: Secret::new(secret), scope, at }
            }
            (None, None) => Auth::Nobody,
        };
        let seconds = |name: &'static str, usual: u64| match option(name) {
            None => Ok(Duration::from_secs(usual)),
            Some(text) => humantime::parse_duration(text).map_err(|error| {
                Error::config("storage_options", format!("{name} is no duration such as 30s: {error}"))
            }),
        };
        Ok(Self {
            uri,
            warehouse: option("iceberg_warehouse").map(str::to_owned),
            auth,
            timeout: seconds("timeout", 30)?,
            connect_timeout: seconds("connect_timeout", 5)?,
            proxy: option("proxy_url").map(Secret::new),
            user_agent: option("user_agent")
                .map_or_else(|| concat!("bowstring/", env!("CARGO_PKG_VERSION")).to_owned(), str::to_owned),
            allow_invalid_certificates: option("allow_invalid_certificates")
                .is_some_and(|text| text.eq_ignore_ascii_case("true")),
        })
    }
}

/// `url` with `parts` appended to its path.
pub(super) fn below(url: &Url, parts: &[&str]) -> Url {
    let mut url = url.clone();
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.pop_if_empty().extend(parts);
    }
    url
}
