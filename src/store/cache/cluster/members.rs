//! The members of a cluster, from what `cache_peers` says: hosts by name, and names that stand for all hosts behind them.
//!
//! Each member has one name by which all hosts know it, for the name decides which blocks it is home to: its address as it was given, or
//! the number that a name was resolved to. A name that resolves to nothing, or not at all, leaves the members as they were: a failing
//! name server must not empty the ring.

use std::collections::HashSet;
use std::net::SocketAddr;

use url::Url;

use crate::error::{Error, Result};

/// Port of a served cache, unless the address has one.
pub(crate) const PORT: u16 = 8816;
/// Most members.
const MOST: usize = 4096;

/// One host that serves its cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Member {
    /// Name and port, as all hosts know it.
    pub(super) name: String,
    /// True if it speaks TLS.
    pub(super) tls: bool,
    /// The name that its certificate must have, if it is not the host's.
    pub(super) certified: Option<String>,
}

impl Member {
    /// The address for gRPC.
    pub(super) fn endpoint(&self) -> String {
        format!("{}://{}", if self.tls { "https" } else { "http" }, self.name)
    }
}

/// An entry of `cache_peers`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// One host.
    One(Member),
    /// All hosts that a name resolves to.
    All {
        /// The name.
        host: String,
        /// The port of all of them.
        port: u16,
        /// True if they speak TLS, with a certificate for the name.
        tls: bool,
    },
}

impl Entry {
    /// Parses `host:port`, `grpc://host:port`, `grpc+tls://host:port`, `dns://name:port` or `dns+tls://name:port`.
    ///
    /// # Errors
    /// [`Error::Config`] naming the mistake.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        let forms = "write host:port, grpc+tls://host:port, or dns://name:port for all hosts behind a name";
        // What is no address may hold anything, so it is not repeated.
        let wrong = |problem: &str| Error::config("cache_peers", format!("{problem}; {forms}"));
        let whole = if text.contains("://") { text.to_owned() } else { format!("grpc://{text}") };
        let parsed = Url::parse(&whole).map_err(|_| wrong("one is no address"))?;
        let (all, tls) = match parsed.scheme() {
            "grpc" | "grpc+tcp" => (false, false),
            "grpc+tls" => (false, true),
            "dns" => (true, false),
            "dns+tls" => (true, true),
            _ => return Err(wrong("one has another scheme")),
        };
        if !parsed.username().is_empty() || parsed.password().is_some() {
            return Err(Error::config(
                "cache_peers",
                "one holds a user or a password; a token goes into cache_peer_options",
            ));
        }
        let is_bare = matches!(parsed.path(), "" | "/") && parsed.query().is_none() && parsed.fragment().is_none();
        let host = parsed.host_str().filter(|host| !host.is_empty() && is_bare);
        let host = host.ok_or_else(|| wrong("one is no host and port"))?.to_ascii_lowercase();
        let port = parsed.port().unwrap_or(PORT);
        Ok(if all {
            // A number of IPv6 is resolved without the brackets of an address.
            let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).map(str::to_owned);
            Self::All { host: bare.unwrap_or(host), port, tls }
        } else {
            Self::One(Member { name: format!("{host}:{port}"), tls, certified: None })
        })
    }

    /// What has to be resolved: name and port.
    pub(super) fn unresolved(&self) -> Option<(&str, u16)> {
        match self {
            Self::One(_) => None,
            Self::All { host, port, .. } => Some((host, *port)),
        }
    }

    /// The members behind it: `before`, unless `found` has some. A host with addresses of both kinds is one member: those of IPv4 count
    /// if there are any.
    pub(super) fn members(&self, before: &[Member], found: &[SocketAddr]) -> Vec<Member> {
        let (host, tls) = match self {
            Self::One(member) => return vec![member.clone()],
            Self::All { host, tls, .. } => (host, *tls),
        };
        let is_four = found.iter().any(SocketAddr::is_ipv4);
        let mut addresses: Vec<_> = found.iter().filter(|address| address.is_ipv4() == is_four).collect();
        addresses.sort_unstable();
        if addresses.is_empty() {
            return before.to_vec();
        }
        let member =
            |address: &&SocketAddr| Member { name: address.to_string(), tls, certified: tls.then(|| host.clone()) };
        addresses.iter().map(member).collect()
    }
}

/// All members, each once.
pub(super) fn united(parts: impl Iterator<Item = Vec<Member>>) -> Vec<Member> {
    let mut seen = HashSet::new();
    parts.flatten().filter(|member| seen.insert(member.name.clone())).take(MOST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn entries_are_hosts_or_names_of_many() {
        let one = |text: &str| match Entry::parse(text).unwrap() {
            Entry::One(member) => (member.endpoint(), member.name),
            Entry::All { .. } => panic!("{text}"),
        };
        let pair = |endpoint: &str, name: &str| (endpoint.to_owned(), name.to_owned());
        assert_eq!(one("Node-1:9000"), pair("http://node-1:9000", "node-1:9000"));
        assert_eq!(one(" node-1"), pair("http://node-1:8816", "node-1:8816"));
        assert_eq!(one("grpc+tls://node-1:9000/"), pair("https://node-1:9000", "node-1:9000"));
        assert_eq!(one("[::1]:9000"), pair("http://[::1]:9000", "[::1]:9000"));
        let all = Entry::parse("dns+tls://cache.ns.svc:9000").unwrap();
        assert_eq!(all.unresolved(), Some(("cache.ns.svc", 9000)));
        assert_eq!(Entry::parse("dns://[::1]:8932").unwrap().unresolved(), Some(("::1", 8932)));
        for bad in ["", "http://x:1", "x:99999", "grpc://x/data", "grpc://x?y=1", "a b:1"] {
            let error = Entry::parse(bad).unwrap_err().to_string();
            assert!(error.contains("cache_peers"), "{bad}: {error}");
        }
        let error = Entry::parse("grpc://me:secret@x:1").unwrap_err().to_string();
        assert!(!error.contains("secret") && error.contains("cache_peer_options"), "{error}");
    }

    #[test]
    fn a_name_that_resolves_to_nothing_leaves_the_members_as_they_were() {
        let entry = Entry::parse("dns+tls://cache.ns.svc").unwrap();
        let found = entry.members(&[], &addresses(&["10.0.0.2:8816", "[fd00::2]:8816", "10.0.0.1:8816"]));
        let names: Vec<_> = found.iter().map(|member| member.name.as_str()).collect();
        assert_eq!(names, ["10.0.0.1:8816", "10.0.0.2:8816"], "one member has one name");
        assert!(found.iter().all(|member| member.certified.as_deref() == Some("cache.ns.svc")));
        assert_eq!(entry.members(&found, &[]), found);
        let six = entry.members(&found, &addresses(&["[fd00::2]:8816"]));
        assert_eq!((six.len(), six[0].endpoint().as_str()), (1, "https://[fd00::2]:8816"));
        let static_one = Entry::parse("10.0.0.1").unwrap();
        let all = united([static_one.members(&[], &[]), found].into_iter());
        assert_eq!(all.len(), 2, "each once");
    }
}
