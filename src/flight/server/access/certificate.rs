//! What a client certificate says of its holder: names, the end of its time, and what a renewal keeps.
//!
//! The TLS handshake has verified the certificate; this only reads it. One that cannot be parsed has no names and no end.
//! `x509-parser` would bring some ten crates (`asn1-rs`, `nom`, `oid-registry`, ...) for a few fields of a certificate that is already
//! verified.
//!
//! ```text
//! Certificate ─► tbsCertificate ─► [0] version, serial, algorithm, issuer, validity, subject ─► CN
//!                                                                    key, [1], [2], [3] extensions ─► SAN ─► dNSName
//! ```

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const BOOLEAN: u8 = 0x01;
const OCTETS: u8 = 0x04;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// Years of two digits, and of four.
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
/// A `dNSName` among alternative names.
const DNS_NAME: u8 = 0x82;
/// UTF8String, PrintableString, T61String and IA5String: the kinds of text that are ASCII or UTF-8.
const TEXTS: [u8; 4] = [0x0c, 0x13, 0x14, 0x16];
/// 2.5.4.3
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// 2.5.29.17
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];

/// The fields of a certificate that its holder is known by.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Certificate<'a> {
    subject: &'a [u8],
    key: &'a [u8],
    /// The subject's alternative names; empty if there are none.
    alternatives: &'a [u8],
    end: Option<SystemTime>,
}

impl<'a> Certificate<'a> {
    /// Reads the certificate `der`.
    pub(crate) fn parse(der: &'a [u8]) -> Option<Self> {
        let mut certificate = Der(Der(der).want(SEQUENCE)?);
        let mut fields = Der(certificate.want(SEQUENCE)?);
        fields.skip_if(VERSION)?;
        for _serial_algorithm_issuer in 0..3 {
            fields.next()?;
        }
        let mut validity = Der(fields.want(SEQUENCE)?);
        let _begin = validity.next()?;
        let end = validity.next().and_then(|(tag, text)| time(tag, text));
        let subject = fields.want(SEQUENCE)?;
        let key = fields.want(SEQUENCE)?;
        let mut alternatives = None;
        while let Some((tag, bytes)) = fields.next() {
            if tag == EXTENSIONS {
                alternatives = alternative_names(bytes);
            }
        }
        Some(Self { subject, key, alternatives: alternatives.unwrap_or_default(), end })
    }

    /// Returns the common names of the subject; if it has none, its DNS names.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = common_names(self.subject);
        if names.is_empty() {
            names = dns_names(self.alternatives);
        }
        let names = names.into_iter();
        names.filter_map(|name| String::from_utf8(name.to_vec()).ok()).collect()
    }

    /// Returns the time from which the certificate is no longer valid.
    pub(crate) fn end(&self) -> Option<SystemTime> {
        self.end
    }

    /// Returns a digest of what the holder's next certificate has too: the subject and all its alternative names; the key, where there
    /// are neither.
    pub(crate) fn digest(&self) -> [u8; 32] {
        let (subject, rest) = match (self.subject, self.alternatives) {
            ([], []) => (self.subject, self.key),
            named => named,
        };
        // The length keeps the two apart.
        Sha256::new()
            .chain_update((subject.len() as u64).to_le_bytes())
            .chain_update(subject)
            .chain_update(rest)
            .finalize()
            .into()
    }
}

fn common_names(subject: &[u8]) -> Vec<&[u8]> {
    let (mut sets, mut names) = (Der(subject), Vec::new());
    while let Some(set) = sets.want(SET) {
        let mut pairs = Der(set);
        while let Some(pair) = pairs.want(SEQUENCE) {
            let mut pair = Der(pair);
            if pair.want(OID) == Some(&COMMON_NAME)
                && let Some((tag, text)) = pair.next()
                && TEXTS.contains(&tag)
            {
                names.push(text);
            }
        }
    }
    names
}

fn dns_names(alternatives: &[u8]) -> Vec<&[u8]> {
    let (mut all, mut names) = (Der(alternatives), Vec::new());
    while let Some((tag, name)) = all.next() {
        if tag == DNS_NAME {
            names.push(name);
        }
    }
    names
}

fn alternative_names(extensions: &[u8]) -> Option<&[u8]> {
    let mut extensions = Der(Der(extensions).want(SEQUENCE)?);
    while let Some(extension) = extensions.want(SEQUENCE) {
        let mut extension = Der(extension);
        if extension.want(OID)? != ALTERNATIVE_NAMES {
            continue;
        }
        extension.skip_if(BOOLEAN)?;
        return Der(extension.want(OCTETS)?).want(SEQUENCE);
    }
    None
}

/// Reads a time: `YYMMDDhhmmssZ` or `YYYYMMDDhhmmssZ`, the only forms that certificates have.
fn time(tag: u8, text: &[u8]) -> Option<SystemTime> {
    let (digits, zone) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let short = match (tag, digits.len()) {
        (UTC_TIME, 12) => true,
        (GENERALIZED_TIME, 14) => false,
        _ => return None,
    };
    if zone != b"Z" || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let pairs: Vec<u64> =
        digits.chunks(2).map(|pair| pair.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0'))).collect();
    let (year, rest) = match (short, pairs.as_slice()) {
        (true, [year, rest @ ..]) => (if *year < 50 { 2000 + year } else { 1900 + year }, rest),
        (false, [century, year, rest @ ..]) => (century * 100 + year, rest),
        _ => return None,
    };
    let [month @ 1..=12, day @ 1..=31, hour @ 0..=23, minute @ 0..=59, second @ 0..=60] = *rest else { return None };
    // Of a year that begins in March, so that a leap day is its last.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    // Days from 0000-03-01 to 1970-01-01; who held a certificate that ended before that is late in any case.
    let days = days.saturating_sub(719_468);
    Some(UNIX_EPOCH + Duration::from_secs(days * 86_400 + hour * 3600 + minute * 60 + second))
}

/// The unread rest of a run of DER values.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Reads the next value: its tag and its bytes. Lengths have up to four bytes, which is enough for certificates.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let mut length = usize::from(first);
        if first >= 0x80 {
            let (digits, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
            if digits.len() > 4 {
                return None;
            }
            length = digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit));
            rest = after;
        }
        let (value, after) = rest.split_at_checked(length)?;
        self.0 = after;
        Some((tag, value))
    }

    fn want(&mut self, tag: u8) -> Option<&'a [u8]> {
        self.next().filter(|(found, _)| *found == tag).map(|(_, bytes)| bytes)
    }

    /// Skips a value that may be missing.
    fn skip_if(&mut self, tag: u8) -> Option<()> {
        if self.0.first() == Some(&tag) { self.next().map(|_| ()) } else { Some(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};

    /// A certificate of a holder with these names, as it is after `renewals`.
    fn certificate(common: &[&str], names: &[&str], renewals: u64) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = CertificateParams::default();
        parameters.subject_alt_names = CertificateParams::new(names).unwrap().subject_alt_names;
        parameters.distinguished_name = DistinguishedName::new();
        for common in common {
            parameters.distinguished_name.push(DnType::CommonName, *common);
        }
        parameters.serial_number = Some(renewals.into());
        parameters.not_after = rcgen::date_time_ymd(2030 + renewals as i32, 3, 1);
        parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn names(der: &[u8]) -> Vec<String> {
        Certificate::parse(der).unwrap().names()
    }

    #[test]
    fn names_are_read_and_damage_is_none() {
        assert_eq!(names(&certificate(&["trainer-7"], &["a.example"], 0)), ["trainer-7"]);
        assert_eq!(names(&certificate(&[], &["127.0.0.1", "b.example", "c.example"], 0)), ["b.example", "c.example"]);
        assert!(names(&certificate(&[], &[], 0)).is_empty());
        let good = certificate(&["trainer-7"], &["a.example"], 0);
        for cut in 0..good.len() {
            assert!(Certificate::parse(&good[..cut]).is_none(), "cut at {cut}");
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            if let Some(bad) = Certificate::parse(&bad) {
                assert!(bad.names().len() < 64 && bad.digest() != [0; 32], "{:?}", bad.end());
            }
        }
    }

    #[test]
    fn a_renewal_keeps_the_digest_and_no_two_holders_share_one() {
        let digest = |der: &[u8]| Certificate::parse(der).unwrap().digest();
        let spiffe = |path: &str, renewals: u64| {
            let mut parameters = CertificateParams::default();
            parameters.distinguished_name = DistinguishedName::new();
            parameters.subject_alt_names = vec![SanType::URI(format!("spiffe://train/{path}").try_into().unwrap())];
            parameters.serial_number = Some(renewals.into());
            parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
        };
        assert_eq!(digest(&certificate(&["Bert Smith"], &[], 0)), digest(&certificate(&["Bert Smith"], &[], 1)));
        assert_eq!(digest(&spiffe("a", 0)), digest(&spiffe("a", 1)));
        let mut all =
            vec![digest(&spiffe("a", 0)), digest(&spiffe("b", 0)), digest(&certificate(&["Bert Smith"], &[], 0))];
        all.extend(
            [certificate(&["Bert Smith"], &["*.b"], 0), certificate(&[], &[], 0), certificate(&[], &[], 0)]
                .map(|der| digest(&der)),
        );
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "nobody is somebody else, and nameless holders are told apart by their keys");
    }

    #[test]
    fn the_end_is_read_in_both_forms() {
        let seconds =
            |tag, text: &str| time(tag, text.as_bytes()).map(|end| end.duration_since(UNIX_EPOCH).unwrap().as_secs());
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "491231235959Z", Some(2_524_607_999)),
            (UTC_TIME, "500101000000Z", Some(0)),
            (UTC_TIME, "000229120000Z", Some(951_825_600)),
            (GENERALIZED_TIME, "20500301000000Z", Some(2_529_705_600)),
            (GENERALIZED_TIME, "99991231235959Z", Some(253_402_300_799)),
            (UTC_TIME, "20500301000000Z", None),
            (GENERALIZED_TIME, "20501301000000Z", None),
            (GENERALIZED_TIME, "20500301000000+", None),
            (GENERALIZED_TIME, "2050030100000xZ", None),
            (UTC_TIME, "", None),
        ] {
            assert_eq!(seconds(tag, text), expected, "{text}");
        }
        let end = Certificate::parse(&certificate(&["a"], &[], 0)).unwrap().end().unwrap();
        assert_eq!(end, UNIX_EPOCH + Duration::from_secs(1_898_553_600));
    }
}
