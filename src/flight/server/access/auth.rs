//! Authentication by tokens from a file, compared in constant time.
//!
//! The file has one `tenant:token` or `tenant:sha256:<64 hex digits>` per line and `#` comments. It is checked for changes at most once
//! a second and read again when it changed. A wrong version is refused as a whole with a warning and the old entries stay, so that a
//! typing error does not lock out a running job.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once};
use std::time::SystemTime;

use sha2::{Digest as _, Sha256};
use subtle::{ConditionallySelectable as _, ConstantTimeEq as _};

use super::certificate::Certificate;
use super::secret::read_private;
use crate::error::{Error, Result};
use crate::flight::server::catalog::watched::Watched;
use crate::hex;

/// Fewest characters of a token.
const MIN_TOKEN: usize = 16;
/// Most characters of a token.
const MAX_TOKEN: usize = 4096;
/// Most tokens in a file; each costs a comparison per call.
const MAX_TOKENS: usize = 10_000;
/// Largest file of tokens, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Most characters of a tenant's name.
const MAX_NAME: usize = 128;

/// Prefix of the names of tenants that are identified by certificates.
const CERTIFICATE: &str = "certificate:";
/// Whether it was said that a certificate has no name for a tenant.
static UNNAMED: Once = Once::new();

/// The party that a call is attributed to: the holder of a token or of a certificate.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Tenant(Arc<str>);

impl Tenant {
    /// The tenant of every caller of a server without tokens.
    pub(crate) fn anonymous() -> Self {
        Self("anonymous".into())
    }

    /// Makes a tenant with a name of 1 to 128 letters, digits, `-`, `_` and `.`.
    ///
    /// # Errors
    /// [`Error::Config`] for another name.
    pub fn new(name: &str) -> Result<Self> {
        if is_name(name) {
            Ok(Self(name.into()))
        } else {
            Err(Error::config("tenant", format!("{name:?} is not 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`")))
        }
    }

    /// Makes the tenant of a certificate that the TLS handshake has verified: `certificate:` and the first of its common names that may
    /// name a tenant, or of its DNS names if it has no common name; else a digest of all its names, which a renewed certificate has too.
    fn of_certificate(certificate: Option<&Certificate<'_>>, der: &[u8]) -> Self {
        let names = certificate.map(Certificate::names).unwrap_or_default();
        let name = names.iter().find(|name| is_name(name)).cloned().unwrap_or_else(|| {
            let digest = certificate.map_or_else(|| Sha256::digest(der).into(), Certificate::digest);
            let name = hex::of(digest.get(..8).unwrap_or_default());
            UNNAMED.call_once(|| {
                tracing::warn!(
                    ?names,
                    "no name of a client's certificate is 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`: its tenant is \
                     {CERTIFICATE}{name}, after a digest of its names (said once for all certificates)"
                );
            });
            name
        });
        Self(format!("{CERTIFICATE}{name}").into())
    }

    /// Makes the tenant that a ticket was issued to: a name signed by this server or by another one with its key.
    pub(crate) fn of_ticket(name: &str) -> Self {
        let own = name.strip_prefix(CERTIFICATE).unwrap_or(name);
        if is_name(own) { Self(name.into()) } else { Self::anonymous() }
    }

    /// Returns the name, which may be logged.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns true if `name` may name a tenant or a dataset: it needs no escaping in a log, a label or an error.
pub(crate) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// The reason for refusing a call. It never reveals how close a wrong token came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// No `authorization` header.
    #[error("no token: send `authorization: Bearer <token>`")]
    Missing,
    /// A header other than `Bearer <token>`.
    #[error("the authorization header is not `Bearer <token>`")]
    Malformed,
    /// A token that no tenant has.
    #[error("the token is not known here")]
    Unknown,
    /// A certificate whose time was over after its connection had begun.
    #[error("the certificate of this connection has expired: connect again, with the next one")]
    Expired,
    /// A certificate of an authority that is none any more since its connection began.
    #[error(
        "the certificate of this connection is of no authority that is trusted now: connect again, with another one"
    )]
    Untrusted,
}

impl Denied {
    /// Returns the word for a metric's label.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::Unknown => "unknown",
            Self::Expired => "expired",
            Self::Untrusted => "untrusted",
        }
    }
}

impl From<Denied> for tonic::Status {
    fn from(denied: Denied) -> Self {
        match denied {
            // Clients connect again and try once more: their files have been renewed, or the handshake refuses them.
            Denied::Expired | Denied::Untrusted => Self::unavailable(denied.to_string()),
            denied => Self::unauthenticated(denied.to_string()),
        }
    }
}

/// Returns the tenant of a call with this value of the `authorization` header, over a connection whose client showed this certificate
/// (DER, verified by the handshake), at a server with these tokens, which may ask for certificates. Where there are tokens, every call
/// needs one, with or without a certificate. A connection may outlive the certificate that opened it: it brings no further calls.
///
/// # Errors
/// [`Denied`].
pub(crate) fn tenant(
    tokens: Option<&Tokens>,
    client_ca: bool,
    header: Option<&str>,
    certificate: Option<&[u8]>,
    now: SystemTime,
) -> Result<Tenant, Denied> {
    let shown = certificate.filter(|_| client_ca).map(|der| (der, Certificate::parse(der)));
    if let Some((_, Some(certificate))) = &shown
        && certificate.end().is_some_and(|end| now > end)
    {
        return Err(Denied::Expired);
    }
    match (tokens, shown) {
        (Some(tokens), _) => tokens.check(header),
        (None, Some((der, certificate))) => Ok(Tenant::of_certificate(certificate.as_ref(), der)),
        // The handshake admits no client without a certificate; this check does not rely on it.
        (None, None) if client_ca => Err(Denied::Missing),
        (None, None) => Ok(Tenant::anonymous()),
    }
}

/// One tenant's token, as its SHA-256.
#[derive(Clone)]
struct Known {
    digest: [u8; 32],
    tenant: Tenant,
}

/// The accepted tokens. Clones share one list.
#[derive(Clone)]
pub struct Tokens {
    known: Watched<Vec<Known>>,
}

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("known", &self.known.get().len()).finish_non_exhaustive()
    }
}

impl Tokens {
    /// Reads the tokens of the file at `path`, which is checked again at most once a second when a token is checked.
    ///
    /// # Errors
    /// [`Error::Config`] naming the file and, for a wrong line, its number: the file is missing or open to others (mode & 077), a line
    /// is neither `tenant:token` nor `tenant:sha256:<hex>`, a token has fewer than 16 characters, or there are none.
    pub(crate) fn from_file(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let known = Watched::files("tokens", vec![path.clone()], move |_, _| read(&path))?;
        Ok(Self { known })
    }

    /// Parses tokens in the form of the file, for tests and for programs that get them elsewhere.
    ///
    /// # Errors
    /// As `Tokens::from_file`.
    pub fn from_text(text: &str) -> Result<Self> {
        Ok(Self { known: Watched::fixed(parse(text, "tokens")?) })
    }

    /// Reads the file now, changed or not; a wrong version changes nothing.
    pub fn reload(&self) {
        self.known.reload();
    }

    /// Returns the tenant whose token the `authorization` header's value holds. Every entry is compared, each in constant time.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn check(&self, header: Option<&str>) -> Result<Tenant, Denied> {
        let header = header.ok_or(Denied::Missing)?;
        let (scheme, token) = header.split_once(' ').ok_or(Denied::Malformed)?;
        let token = token.trim();
        if !scheme.eq_ignore_ascii_case("bearer") || !(1..=MAX_TOKEN).contains(&token.len()) {
            return Err(Denied::Malformed);
        }
        let known = self.known.get();
        let digest: [u8; 32] = Sha256::digest(token.as_bytes()).into();
        let mut found = u64::MAX;
        for (at, entry) in (0_u64..).zip(known.iter()) {
            found.conditional_assign(&at, entry.digest.ct_eq(&digest));
        }
        let entry = usize::try_from(found).ok().and_then(|at| known.get(at));
        entry.map(|entry| entry.tenant.clone()).ok_or(Denied::Unknown)
    }
}

fn read(path: &Path) -> Result<Vec<Known>> {
    let bytes = read_private(path, "tokens", MAX_FILE)?;
    let shown = path.display().to_string();
    let text = String::from_utf8(bytes).map_err(|_| Error::config("tokens", format!("file {shown} is no UTF-8")))?;
    parse(&text, &shown)
}

fn parse(text: &str, origin: &str) -> Result<Vec<Known>> {
    let mut known = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // Never includes the line itself: most of it is a secret.
        let wrong = |problem: &str| Error::config("tokens", format!("{origin}, line {number}: {problem}"));
        let (tenant, token) =
            line.split_once(':').ok_or_else(|| wrong("neither tenant:token nor tenant:sha256:<hex>"))?;
        let tenant = Tenant::new(tenant.trim())
            .map_err(|_| wrong("a tenant's name is 1 to 128 letters, digits, `-`, `_` and `.`"))?;
        if tenant == Tenant::anonymous() {
            return Err(wrong(
                "anonymous is whoever calls a server without tokens, who sees all tenants: take another name",
            ));
        }
        let token = token.trim();
        let digest = match token.strip_prefix("sha256:") {
            Some(digits) => hex::parse(digits).ok_or_else(|| wrong("a SHA-256 has 64 hexadecimal digits"))?,
            None if token.len() < MIN_TOKEN => return Err(wrong("a token has at least 16 characters")),
            None if token.len() > MAX_TOKEN => return Err(wrong("a token has at most 4096 characters")),
            None if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                return Err(wrong("a token is of visible ASCII characters"));
            }
            None => Sha256::digest(token.as_bytes()).into(),
        };
        if known.iter().any(|other: &Known| other.digest == digest && other.tenant != tenant) {
            return Err(wrong("another tenant has the same token"));
        }
        if known.len() == MAX_TOKENS {
            return Err(wrong("more than 10000 tokens"));
        }
        known.push(Known { digest, tenant });
    }
    if known.is_empty() {
        return Err(Error::config("tokens", format!("{origin} holds no token, so nobody could come in")));
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    const ANNA: &str = "correct-horse-battery";
    const BERT: &str = "0123456789abcdef";

    fn text() -> String {
        let digest = hex::of(Sha256::digest(BERT));
        format!("# who may read\n\nanna: {ANNA}\nbert:sha256:{digest}\nanna:another-token-of-anna\n")
    }

    #[test]
    fn tokens_are_told_apart_and_never_shown() {
        let tokens = Tokens::from_text(&text()).unwrap();
        let check = |header: &str| tokens.check(Some(header)).map(|tenant| tenant.name().to_owned());
        assert_eq!(check(&format!("Bearer {ANNA}")), Ok("anna".into()));
        assert_eq!(check("bearer another-token-of-anna"), Ok("anna".into()));
        assert_eq!(check(&format!("Bearer {BERT}")), Ok("bert".into()));
        assert_eq!(tokens.check(None), Err(Denied::Missing));
        for bad in ["", "Bearer", "Bearer ", "Basic abc", ANNA] {
            assert_eq!(check(bad), Err(Denied::Malformed), "{bad:?}");
        }
        for bit in 0..ANNA.len() * 8 {
            let mut token = ANNA.as_bytes().to_vec();
            token[bit / 8] ^= 1 << (bit % 8);
            if let Ok(token) = String::from_utf8(token) {
                assert!(check(&format!("Bearer {token}")).is_err(), "{token:?}");
            }
        }
        assert!(!format!("{tokens:?}").contains(ANNA));
    }

    #[test]
    fn wrong_lines_are_named_without_their_secret() {
        for (text, what) in [
            ("anna", "line 1: neither"),
            ("anna:short-secret", "line 1: a token has at least 16"),
            ("\na b:correct-horse-battery", "line 2: a tenant's name"),
            ("anna:sha256:12", "64 hexadecimal digits"),
            ("anna:correct-horse-bättery", "visible ASCII"),
            ("a:correct-horse-battery\nb:correct-horse-battery", "line 2: another tenant"),
            ("# nobody", "holds no token"),
        ] {
            let error = Tokens::from_text(text).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
            assert!(!error.contains("horse") && !error.contains("short-secret"), "{error}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_changed_file_is_read_again_and_a_wrong_one_changes_nothing() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        let start = Instant::now();
        let write = |text: &str, seconds: u64| {
            std::fs::write(&path, text).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        };
        write(&text(), 1);
        let tokens = Tokens::from_file(&path).unwrap();
        let anna = format!("Bearer {ANNA}");
        let new = "Bearer a-quite-new-token";
        write("carl:a-quite-new-token", 2);
        tokens.known.refresh(start);
        assert!(tokens.check(Some(new)).is_err(), "looked at less than a second ago");
        tokens.known.refresh(start + Duration::from_secs(2));
        assert_eq!(tokens.check(Some(new)).unwrap().name(), "carl");
        assert_eq!(tokens.check(Some(&anna)), Err(Denied::Unknown), "what is no longer in the file is no token");
        write("broken", 3);
        tokens.known.refresh(start + Duration::from_secs(4));
        assert!(tokens.check(Some(new)).is_ok());
    }

    /// A certificate with this common name, these alternative names and this serial number, which ends with 2029.
    fn certificate(common: &str, names: &[&str], serial: u64) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = rcgen::CertificateParams::new(names).unwrap();
        parameters.distinguished_name = rcgen::DistinguishedName::new();
        parameters.distinguished_name.push(rcgen::DnType::CommonName, common);
        parameters.serial_number = Some(serial.into());
        parameters.not_after = rcgen::date_time_ymd(2030, 1, 1);
        parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn a_renewed_certificate_is_of_the_same_tenant() {
        let now = SystemTime::UNIX_EPOCH;
        let of = |der: &[u8]| tenant(None, true, None, Some(der), now).unwrap().name().to_owned();
        for (common, names, name) in [
            ("bert.example", &["anna.example"][..], Some("bert.example")),
            // Not the tenant of a machine that it may be used on.
            ("Bert Smith", &["*.example", "bert.example", "anna.example"], None),
            ("*.train.example", &["*.train.example"], None),
            ("Jürgen", &[], None),
        ] {
            let (first, renewed) = (certificate(common, names, 1), certificate(common, names, 2));
            assert_eq!(of(&first), of(&renewed), "{common}");
            match name {
                Some(name) => assert_eq!(of(&first), format!("certificate:{name}")),
                None => assert_ne!(of(&first), of(&certificate("Jörg", names, 1)), "{common}"),
            }
        }
    }

    #[test]
    fn an_expired_certificate_brings_no_further_calls() {
        let der = certificate("bert", &[], 1);
        let tokens = Tokens::from_text("anna:correct-horse-battery").unwrap();
        let header = format!("Bearer {ANNA}");
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_893_456_000);
        for (now, over) in [(end, false), (end + Duration::from_secs(1), true)] {
            for tokens in [None, Some(&tokens)] {
                let found = tenant(tokens, true, Some(&header), Some(&der), now);
                assert_eq!(found == Err(Denied::Expired), over, "{found:?}");
            }
        }
        let status = tonic::Status::from(Denied::Expired);
        assert_eq!(status.code(), tonic::Code::Unavailable, "clients connect again");
        assert!(tenant(None, false, None, Some(&der), end + Duration::from_secs(1)).is_ok(), "nobody asked for one");
    }

    #[test]
    fn a_ticket_is_counted_for_whom_it_was_given_to() {
        for name in ["anna", "certificate:rank-7.example", "anonymous"] {
            assert_eq!(Tenant::of_ticket(name).name(), name);
        }
        let certificate = Tenant::of_certificate(None, b"unreadable");
        assert_eq!(Tenant::of_ticket(certificate.name()), certificate);
        for name in ["", "certificate:", "certificate:a b", "x\n", "certificate:certificate:x"] {
            assert_eq!(Tenant::of_ticket(name), Tenant::anonymous(), "{name:?}");
        }
    }
}
