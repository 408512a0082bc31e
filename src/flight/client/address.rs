//! `grpc://host:port/dataset`: the address of a served dataset.

use std::fmt;

use url::Url;

use crate::error::{Error, Result};
use crate::store::decoded;

/// Default port of a server.
pub const PORT: u16 = 8815;

/// A dataset at a server.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Address {
    /// Host name or IP address, IPv6 in brackets.
    pub host: String,
    /// Port.
    pub port: u16,
    /// True if the connection is encrypted: `grpc+tls://`.
    pub tls: bool,
    /// Name of the dataset in the server's catalogue; empty for the server itself.
    pub dataset: String,
}

impl Address {
    /// Returns true if `url` has the scheme of a server.
    pub(crate) fn is_one(url: &str) -> bool {
        ["grpc://", "grpc+tcp://", "grpc+tls://"].iter().any(|scheme| url.starts_with(scheme))
    }

    /// Parses `grpc://host:port/dataset` or `grpc+tls://...`.
    ///
    /// # Errors
    /// [`Error::Config`] naming the mistake.
    pub fn parse(url: &str) -> Result<Self> {
        let wrong = |problem: &str| Error::config("url", format!("{}: {problem}", without_password(url)));
        let parsed = Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
        let tls = match parsed.scheme() {
            "grpc" | "grpc+tcp" => false,
            "grpc+tls" => true,
            _ => return Err(wrong("the schemes are grpc:// and grpc+tls://")),
        };
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(wrong("a token goes into storage_options or BOWSTRING_TOKEN, never into an address"));
        }
        if parsed.query().is_some() || parsed.fragment().is_some() {
            return Err(wrong("options are options of the loader, not part of the address"));
        }
        let host = parsed.host_str().filter(|host| !host.is_empty()).ok_or_else(|| wrong("there is no host"))?;
        let path = parsed.path().trim_matches('/');
        let dataset = decoded(path).ok_or_else(|| wrong("the name of the dataset is no UTF-8"))?;
        Ok(Self { host: host.to_owned(), port: parsed.port().unwrap_or(PORT), tls, dataset })
    }

    /// Returns the server's address for gRPC.
    pub(super) fn endpoint(&self) -> String {
        format!("{}://{}:{}", if self.tls { "https" } else { "http" }, self.host, self.port)
    }

    /// Returns the server's address for display: without the dataset.
    pub fn server(&self) -> String {
        format!("{}://{}:{}", if self.tls { "grpc+tls" } else { "grpc" }, self.host, self.port)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.server(), self.dataset)
    }
}

/// Masks everything before the last `@` of the authority, which may be a secret.
fn without_password(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}://***{}", &url[..scheme], &url[at..]),
        _ => url.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_secrets_are_not_repeated() {
        let address = Address::parse("grpc+tls://data.example:9000/photos/train%20set/").unwrap();
        assert_eq!((&*address.dataset, address.port, address.tls), ("photos/train set", 9000, true));
        assert_eq!(address.endpoint(), "https://data.example:9000");
        assert_eq!(Address::parse("grpc://[::1]/x").unwrap().server(), "grpc://[::1]:8815");
        let error = Address::parse("grpc://me:secret@host/x").unwrap_err().to_string();
        assert!(!error.contains("secret") && error.contains("BOWSTRING_TOKEN"), "{error}");
        for bad in ["grpc://", "http://h/x", "grpc://h/x?batch_size=3", "grpc://h/%ff"] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
        assert!(Address::is_one("grpc://h") && !Address::is_one("s3://h"));
    }
}
