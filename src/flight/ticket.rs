//! Signed tickets with everything a server needs to serve a stream, so that it keeps no session and any replica may serve it.
//!
//! ```text
//!   "BT1" │ HMAC-SHA-256 of the rest, 32 bytes │ JSON: the request, the fingerprints of data and plan, the holder, the expiry
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::request::{MAX_BYTES, StreamRequest};
use crate::error::{Error, Result};
use crate::manifest::Fingerprint;
use crate::trace::TraceContext;

const MAGIC: &[u8] = b"BT1";
const MAC_BYTES: usize = 32;

/// Time within which a ticket may open a stream. The stream may run longer.
pub(crate) const TICKET_LIFE: Duration = Duration::from_secs(900);

/// Content of a ticket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ticket {
    /// The requested stream, including its rank.
    pub asked: StreamRequest,
    /// Fingerprint of the plan's data: another replica must have the same.
    pub fingerprint: Fingerprint,
    /// Fingerprint of the plan: the request leaves options to the catalogue, which may change before the ticket is used. Tickets of
    /// older versions and those for stored rows name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Fingerprint>,
    /// Tenant that it was issued to.
    pub tenant: String,
    /// Expiry in seconds since 1970, after which no stream may be opened with it.
    pub expires: u64,
    /// The trace of the loader that asked for it, if that exports one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) trace: Option<TraceContext>,
}

impl Ticket {
    /// Encodes the ticket, signed with `key`.
    pub fn sign(&self, key: &[u8]) -> Vec<u8> {
        // Strings, numbers and JSON values cannot fail to encode.
        let json = serde_json::to_vec(self).unwrap_or_default();
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&mac(key, &json).finalize().into_bytes());
        bytes.extend_from_slice(&json);
        bytes
    }

    /// Decodes the ticket in `bytes`, if it was signed with `key` and has not expired at `now`.
    ///
    /// # Errors
    /// [`Denied`], which reveals nothing that helps a forger.
    pub fn verify(bytes: &[u8], key: &[u8], now: SystemTime) -> Result<Self, Denied> {
        if let [b'B', b'T', form @ b'2'..=b'9', ..] = bytes {
            return Err(Denied::Newer(form - b'0'));
        }
        let rest = bytes.strip_prefix(MAGIC).filter(|_| bytes.len() <= MAX_BYTES).ok_or(Denied::Malformed)?;
        let (code, json) = rest.split_at_checked(MAC_BYTES).ok_or(Denied::Malformed)?;
        // Compared in constant time, before the JSON is parsed.
        mac(key, json).verify_slice(code).map_err(|_| Denied::Forged)?;
        let ticket: Self = serde_json::from_slice(json).map_err(|_| Denied::Malformed)?;
        if now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs() > ticket.expires {
            return Err(Denied::Expired);
        }
        Ok(ticket)
    }

    /// As [`verify`](Self::verify) with any of `keys`.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub(crate) fn verify_any(bytes: &[u8], keys: &[impl AsRef<[u8]>], now: SystemTime) -> Result<Self, Denied> {
        let tried = keys.iter().map(|key| Self::verify(bytes, key.as_ref(), now));
        // Only a ticket of another key may match the next one.
        tried.into_iter().find(|tried| *tried != Err(Denied::Forged)).unwrap_or(Err(Denied::Forged))
    }

    /// Returns the expiry of a ticket that is valid for `life` from `now` on.
    pub(crate) fn expiry(now: SystemTime, life: Duration) -> u64 {
        now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).saturating_add(life).as_secs()
    }
}

/// Reason for refusing a ticket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// Not a ticket.
    #[error("this is no ticket of bowstring; ask for one with GetFlightInfo")]
    Malformed,
    /// Of a newer form.
    #[error("the ticket has form {0}, and this server, bowstring {own}, reads form 1; replicas must have one version", own = env!("CARGO_PKG_VERSION"))]
    Newer(u8),
    /// Not signed with this server's key, or changed since.
    #[error("this server did not sign the ticket; replicas must share one key file")]
    Forged,
    /// Too old.
    #[error("the ticket has expired; ask for another with GetFlightInfo")]
    Expired,
}

impl From<Denied> for Error {
    fn from(denied: Denied) -> Self {
        Self::config("ticket", denied.to_string())
    }
}

fn mac(key: &[u8], json: &[u8]) -> Hmac<Sha256> {
    // HMAC takes keys of any length.
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(key).unwrap_or_else(|_| KeyInit::new(&Default::default()));
    mac.update(MAGIC);
    mac.update(json);
    mac
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{PlanSpec, Share};

    impl Ticket {
        /// Returns a typical ticket.
        pub(crate) fn sample() -> Self {
            let options = crate::pipeline::LoaderOptions::new("x", 4);
            let asked = StreamRequest::new("photos", &options, Share::whole()).unwrap();
            let manifests = [std::sync::Arc::new(crate::manifest::Manifest::imaginary(&[8], 8))];
            let spec = PlanSpec::new(0, 4).resolve(&manifests).unwrap();
            let fingerprint = crate::plan::Plan::new(&manifests, spec.clone(), 0).unwrap().fingerprint();
            let plan = Some(crate::flight::gang::Reading::fingerprint(fingerprint, &spec));
            Self { asked, fingerprint, plan, tenant: "a".to_owned(), expires: 1000, trace: None }
        }
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let (ticket, key) = (Ticket::sample(), b"0123456789abcdef");
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let bytes = ticket.sign(key);
        assert_eq!(Ticket::verify(&bytes, key, at(1000)), Ok(ticket));
        assert_eq!(Ticket::verify(&bytes, key, at(1001)), Err(Denied::Expired));
        assert_eq!(Ticket::verify(&bytes, b"0123456789abcdeg", at(0)), Err(Denied::Forged));
        assert_eq!(Ticket::verify(b"BT2", key, at(0)), Err(Denied::Newer(2)));
        let old = Ticket { plan: None, ..Ticket::sample() };
        assert!(!String::from_utf8_lossy(&old.sign(key)).contains("\"plan\""), "as older versions write them");
        assert_eq!(Ticket::verify(&old.sign(key), key, at(0)), Ok(old));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(Ticket::verify(&flipped, key, at(0)).is_err(), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(Ticket::verify(&bytes[..length], key, at(0)).is_err(), "{length} bytes");
        }
    }
}
