//! The version of the other side: a header of every answer, so that an error between two versions names both.

use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderValue};

/// The header. A server that does not send it is older than it.
pub(crate) const HEADER: &str = "bowstring-version";
/// The version of this program.
pub(crate) const OWN: &str = env!("CARGO_PKG_VERSION");
/// Most bytes of a version that is believed.
const LONGEST: usize = 64;

/// Adds the version of this server to the headers of an answer.
pub(crate) fn tell(headers: &mut HeaderMap) {
    headers.insert(HEADER, HeaderValue::from_static(OWN));
}

/// The version of a server, once one of its answers has told it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Theirs(Arc<OnceLock<String>>);

impl Theirs {
    /// Takes it from the headers of an answer.
    pub(crate) fn hear(&self, headers: &HeaderMap) {
        let version = headers.get(HEADER).and_then(|version| version.to_str().ok());
        if let Some(version) = version.filter(|version| version.len() <= LONGEST) {
            let _ = self.0.set(version.to_owned());
        }
    }

    /// The server `peer`, with both versions if they differ.
    pub(crate) fn named(&self, peer: &str) -> String {
        match self.0.get() {
            Some(theirs) if theirs != OWN => both(peer, theirs),
            _ => peer.to_owned(),
        }
    }
}

/// Names `peer` with its version and this program's.
pub(crate) fn both(peer: &str, theirs: &str) -> String {
    format!("{peer} (bowstring {theirs}; this is {OWN})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_of_another_version_is_named_with_both() {
        let (theirs, mut headers) = (Theirs::default(), HeaderMap::new());
        theirs.hear(&headers);
        assert_eq!(theirs.named("grpc://a:1"), "grpc://a:1", "an older server does not tell");
        headers.insert(HEADER, HeaderValue::from_str(&"9".repeat(LONGEST + 1)).unwrap());
        theirs.hear(&headers);
        assert_eq!(theirs.named("grpc://a:1"), "grpc://a:1");
        headers.insert(HEADER, HeaderValue::from_static("9.9.9"));
        theirs.hear(&headers);
        assert_eq!(theirs.named("grpc://a:1"), format!("grpc://a:1 (bowstring 9.9.9; this is {OWN})"));
        let same = Theirs::default();
        tell(&mut headers);
        same.hear(&headers);
        assert_eq!(same.named("grpc://a:1"), "grpc://a:1");
    }
}
