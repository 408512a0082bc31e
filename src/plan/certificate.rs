//! Certificates: what one rank of a run consumed, as a small document that can be signed.
//!
//! A certificate names the plan that a loader followed and the positions it went through. It holds no rows: those
//! follow from the plan. [`audit`](super::audit()) joins the certificates of all ranks and restarts of a run.

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use super::spec::PlanSpec;
use crate::document::words;
use crate::error::{Error, Result};
use crate::hex;
use crate::manifest::Fingerprint;

/// Version of the document.
const VERSION: u32 = 1;
/// Minimum bytes of a key.
const MIN_KEY: usize = 16;

/// Positions that a loader went through without a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    /// Epoch and step of the first batch.
    pub from: (u64, u64),
    /// Epoch and step after the last batch.
    pub to: (u64, u64),
    /// The span began at a state that was loaded: it replaces what earlier loaders consumed from there on.
    #[serde(default)]
    pub resumed: bool,
}

/// Bad rows found by a loader, from [`Ledger`](crate::pipeline::Ledger).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BadRows {
    /// Rows replaced by another row of their row group.
    pub skipped: u64,
    /// Rows with a column set to zero.
    pub zeroed: u64,
}

/// The record of what one loader consumed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Certificate {
    /// Version of this document.
    pub version: u32,
    /// A random name of the loader.
    pub loader: String,
    /// Time of opening the loader, in milliseconds since 1970.
    pub opened: u64,
    /// Time of writing this document, in milliseconds since 1970.
    pub written: u64,
    /// The data.
    pub fingerprint: Fingerprint,
    /// The resolved plan, with the version of the order.
    pub spec: PlanSpec,
    /// Rows of an epoch over all ranks.
    pub rows: u64,
    /// Steps of an epoch.
    pub steps: u64,
    /// The loader's rank.
    pub rank: u32,
    /// The number of ranks.
    pub world_size: u32,
    /// The generation of the gang that the loader was a member of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// The spans it consumed, in the order in which it did.
    pub consumed: Vec<Span>,
    /// Spans that did not fit in the list. A certificate with dropped spans proves nothing.
    #[serde(default)]
    pub dropped: u64,
    /// Bad rows.
    #[serde(default)]
    pub bad_rows: BadRows,
    /// HMAC-SHA-256 of the document without this field, in hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

impl Certificate {
    /// The version written.
    pub const VERSION: u32 = VERSION;
    /// Maximum spans of a certificate.
    pub(crate) const MAX_SPANS: usize = 10_000;
    /// Maximum bytes of a certificate's JSON.
    pub const MAX_BYTES: usize = 4 << 20;

    /// The document as JSON.
    pub fn to_json(&self) -> String {
        // Numbers and strings: nothing can fail.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// [`Error::Config`] if it is not a certificate, or contradicts itself; [`Error::Mismatch`] for a later version.
    pub fn from_json(json: impl AsRef<[u8]>) -> Result<Self> {
        let json = json.as_ref();
        let wrong = |problem: String| Error::config("certificate", problem);
        if json.len() > Self::MAX_BYTES {
            return Err(wrong(format!("{} bytes; a certificate has at most {}", json.len(), Self::MAX_BYTES)));
        }
        let value: serde_json::Value = serde_json::from_slice(json)
            .map_err(|error| wrong(format!("not a certificate: {}", words(&error.to_string()))))?;
        if let Some(version) = value.get("version").and_then(serde_json::Value::as_u64)
            && version != u64::from(VERSION)
        {
            return Err(Error::Mismatch {
                what: "version of the certificate".to_owned(),
                expected: VERSION.to_string(),
                found: version.to_string(),
                hint: "audit it with the version of bowstring that wrote it".to_owned(),
            });
        }
        let certificate: Self = serde_json::from_value(value)
            .map_err(|error| wrong(format!("not a certificate: {}", words(&error.to_string()))))?;
        certificate.check().map_err(wrong)?;
        Ok(certificate)
    }

    fn check(&self) -> Result<(), String> {
        if self.world_size == 0 || self.rank >= self.world_size {
            return Err(format!("rank {} of {}: ranks count from 0", self.rank, self.world_size));
        }
        self.spec.check_numbers().map_err(|error| error.to_string())?;
        if u64::from(self.world_size) > self.spec.global_batch {
            let batch = self.spec.global_batch;
            return Err(format!("{} ranks for a global batch of {batch} rows", self.world_size));
        }
        if self.consumed.len() > Self::MAX_SPANS {
            return Err(format!("{} spans; a certificate has at most {}", self.consumed.len(), Self::MAX_SPANS));
        }
        let beyond = |(_, step): (u64, u64)| step > self.steps;
        match self.consumed.iter().find(|span| span.from > span.to || beyond(span.from) || beyond(span.to)) {
            Some(Span { from, to, .. }) => Err(format!("no span of {} steps: {from:?} to {to:?}", self.steps)),
            None => Ok(()),
        }
    }

    /// Signs the document with `key`, of at least 16 bytes.
    ///
    /// # Errors
    /// [`Error::Config`] for a shorter key.
    pub fn sign(&mut self, key: &[u8]) -> Result<()> {
        self.signature = None;
        let code = self.mac(key)?.finalize().into_bytes();
        self.signature = Some(hex::of(code));
        Ok(())
    }

    /// Checks that `key` signed the document as it is.
    ///
    /// # Errors
    /// [`Error::Config`] if it is unsigned, signed with another key, or changed since.
    pub fn verify(&self, key: &[u8]) -> Result<()> {
        let Some(signature) = &self.signature else {
            return Err(Error::config("certificate", format!("that of rank {} is not signed", self.rank)));
        };
        // Of another length or form it is no signature, and agrees with none.
        let code = hex::parse::<32>(signature).map_or_else(Vec::new, Vec::from);
        let bare = Self { signature: None, ..self.clone() };
        // Compared in constant time.
        let is_right = bare.mac(key)?.verify_slice(&code).is_ok();
        let problem = || format!("that of rank {} was changed, or signed with another key", self.rank);
        if is_right { Ok(()) } else { Err(Error::config("certificate", problem())) }
    }

    fn mac(&self, key: &[u8]) -> Result<Hmac<Sha256>> {
        if key.len() < MIN_KEY {
            let problem = format!("{} bytes; a key has at least {MIN_KEY}", key.len());
            return Err(Error::config("certificate_key", problem));
        }
        // HMAC takes keys of any length.
        let mut mac =
            Hmac::<Sha256>::new_from_slice(key).map_err(|error| Error::config("certificate_key", error.to_string()))?;
        mac.update(self.to_json().as_bytes());
        Ok(mac)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn certificate() -> Certificate {
        Certificate {
            version: VERSION,
            loader: "00ff".to_owned(),
            opened: 1,
            written: 2,
            fingerprint: Fingerprint::from_bytes([7; 32]),
            spec: PlanSpec::new(1, 8),
            rows: 100,
            steps: 13,
            rank: 1,
            world_size: 2,
            generation: None,
            consumed: vec![Span { from: (0, 3), to: (2, 0), resumed: true }],
            dropped: 0,
            bad_rows: BadRows::default(),
            signature: None,
        }
    }

    #[test]
    fn a_signature_holds_every_field() {
        let mut signed = certificate();
        let key = [3; 32];
        assert!(signed.verify(&key).unwrap_err().to_string().contains("not signed"));
        signed.sign(&key).unwrap();
        let read = Certificate::from_json(signed.to_json()).unwrap();
        assert_eq!(read, signed);
        read.verify(&key).unwrap();
        assert!(read.verify(&[4; 32]).is_err());
        assert!(read.verify(&[3; 15]).is_err(), "short keys");
        let changes: [fn(&mut Certificate); 6] = [
            |changed| changed.rank = 0,
            |changed| changed.consumed[0].to = (2, 1),
            |changed| changed.consumed[0].resumed = false,
            |changed| changed.spec.seed = 2,
            |changed| changed.opened = 0,
            |changed| changed.bad_rows.skipped = 1,
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut changed = read.clone();
            change(&mut changed);
            assert!(changed.verify(&key).is_err(), "change {number}");
        }
    }

    #[test]
    fn a_document_that_contradicts_itself_is_refused() {
        let json = certificate().to_json();
        for (from, to) in [
            ("\"rank\":1", "\"rank\":2"),
            ("\"world_size\":2", "\"world_size\":0"),
            ("\"world_size\":2", "\"world_size\":4294967295"),
            ("\"global_batch\":8", "\"global_batch\":0"),
            ("[0,3]", "[0,14]"),
            ("[2,0]", "[0,2]"),
            ("\"rank\":1", "\"rank\":1,\"more\":1"),
            ("{\"version\"", "{{\"version\""),
        ] {
            let wrong = json.replacen(from, to, 1);
            assert_ne!(wrong, json, "{from}");
            assert!(
                matches!(Certificate::from_json(&wrong), Err(Error::Config { option: "certificate", .. })),
                "{wrong}"
            );
        }
        let later = json.replacen("\"version\":1", "\"version\":2,\"more\":1", 1);
        assert!(matches!(Certificate::from_json(later), Err(Error::Mismatch { .. })));
    }
}
