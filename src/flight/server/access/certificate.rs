//! The name in a client certificate: the few fields of X.509 that a tenant's name is taken from.
//!
//! The TLS handshake has verified the certificate; this only reads its names. A certificate that cannot be parsed has no name.
//! `x509-parser` would bring some ten crates (`asn1-rs`, `nom`, `oid-registry`, ...) for two fields of a certificate that is already
//! verified.
//!
//! ```text
//! Certificate ─► tbsCertificate ─► [0] version, serial, algorithm, issuer, validity, subject ─► CN
//!                                                                    key, [1], [2], [3] extensions ─► SAN ─► dNSName
//! ```

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OID: u8 = 0x06;
const BOOLEAN: u8 = 0x01;
const OCTETS: u8 = 0x04;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;
/// A `dNSName` among alternative names.
const DNS_NAME: u8 = 0x82;
/// UTF8String, PrintableString, T61String and IA5String: the kinds of text that are ASCII or UTF-8.
const TEXTS: [u8; 4] = [0x0c, 0x13, 0x14, 0x16];
/// 2.5.4.3
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
/// 2.5.29.17
const ALTERNATIVE_NAMES: [u8; 3] = [0x55, 0x1d, 0x11];

/// Returns the common name of the subject, else its first DNS name.
pub(crate) fn holder(der: &[u8]) -> Option<String> {
    let mut certificate = Der(Der(der).want(SEQUENCE)?);
    let mut fields = Der(certificate.want(SEQUENCE)?);
    fields.skip_if(VERSION)?;
    for _serial_algorithm_issuer_validity in 0..4 {
        fields.next()?;
    }
    let subject = fields.want(SEQUENCE)?;
    common_name(subject).or_else(|| {
        fields.next()?;
        while let Some((tag, bytes)) = fields.next() {
            if tag == EXTENSIONS {
                return dns_name(bytes);
            }
        }
        None
    })
}

fn common_name(subject: &[u8]) -> Option<String> {
    let mut sets = Der(subject);
    while let Some(set) = sets.want(SET) {
        let mut pairs = Der(set);
        while let Some(pair) = pairs.want(SEQUENCE) {
            let mut pair = Der(pair);
            if pair.want(OID)? == COMMON_NAME {
                let (tag, text) = pair.next()?;
                return TEXTS.contains(&tag).then(|| String::from_utf8(text.to_vec()).ok()).flatten();
            }
        }
    }
    None
}

fn dns_name(extensions: &[u8]) -> Option<String> {
    let mut extensions = Der(Der(extensions).want(SEQUENCE)?);
    while let Some(extension) = extensions.want(SEQUENCE) {
        let mut extension = Der(extension);
        if extension.want(OID)? != ALTERNATIVE_NAMES {
            continue;
        }
        extension.skip_if(BOOLEAN)?;
        let mut names = Der(Der(extension.want(OCTETS)?).want(SEQUENCE)?);
        while let Some((tag, name)) = names.next() {
            if tag == DNS_NAME {
                return String::from_utf8(name.to_vec()).ok();
            }
        }
    }
    None
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
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    fn certificate(common: Option<&str>, names: &[&str]) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = CertificateParams::new(names).unwrap();
        parameters.distinguished_name = DistinguishedName::new();
        parameters.distinguished_name.push(DnType::OrganizationName, "Bows");
        if let Some(common) = common {
            parameters.distinguished_name.push(DnType::CommonName, common);
        }
        parameters.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn names_are_read_and_damage_is_none() {
        assert_eq!(holder(&certificate(Some("trainer-7"), &["a.example"])), Some("trainer-7".into()));
        assert_eq!(holder(&certificate(None, &["127.0.0.1", "b.example"])), Some("b.example".into()));
        assert_eq!(holder(&certificate(None, &[])), None);
        let good = certificate(Some("trainer-7"), &["a.example"]);
        for cut in 0..good.len() {
            assert_eq!(holder(&good[..cut]), None, "cut at {cut}");
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            holder(&bad);
        }
    }
}
