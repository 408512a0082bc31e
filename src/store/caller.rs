//! The credentials that a client presents to a server of bowstring: a token, certificates. It is here because a cache asks servers too.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderValue;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::error::{Error, Result};

/// The keys of `storage_options` that apply to a server.
const KEYS: &[&str] = &["token", "token_file", "ca", "cert", "key", "server_name", "transport"];

/// The option that a data server's credentials are in.
const STORAGE: &str = "storage_options";
/// The option that those for the caches of other hosts are in.
const PEERS: &str = "cache_peer_options";

/// How long a token from a file is used before the file is read again: as long as a server takes to see a new one.
const FRESH: Duration = Duration::from_secs(1);

/// Transport for batches of a server on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Transport {
    /// Shared memory where available.
    #[default]
    Auto,
    /// Never shared memory.
    Tcp,
    /// Shared memory only.
    SharedMemory,
}

/// The authorization header of calls; it outlives connections. It is never printed.
#[derive(Clone)]
pub(crate) enum Authorization {
    Given(HeaderValue),
    /// From a file, whose token may be replaced at any time.
    File(Arc<TokenFile>),
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A file with a token, and the header made from it with the time of reading.
pub(crate) struct TokenFile {
    path: PathBuf,
    kept: Mutex<(Instant, HeaderValue)>,
}

impl Authorization {
    /// A call with `message`, and with the header of `authorization` if it is given.
    pub(crate) fn request<T>(authorization: Option<&Self>, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        if let Some(authorization) = authorization
            && let Ok(value) = AsciiMetadataValue::try_from(authorization.value().as_bytes())
        {
            request.metadata_mut().insert("authorization", value);
        }
        request
    }

    fn of_file(path: PathBuf) -> Result<Self> {
        let value = header(&read_token(&path)?)?;
        Ok(Self::File(Arc::new(TokenFile { path, kept: Mutex::new((Instant::now(), value)) })))
    }

    /// Returns the current header. While the file cannot be read, for instance because it is being written, the last token stays.
    pub(crate) fn value(&self) -> HeaderValue {
        match self {
            Self::Given(value) => value.clone(),
            Self::File(file) => {
                let mut kept = file.kept.lock().unwrap_or_else(PoisonError::into_inner);
                if kept.0.elapsed() >= FRESH {
                    kept.0 = Instant::now();
                    match read_token(&file.path).and_then(|token| header(&token)) {
                        Ok(value) => kept.1 = value,
                        Err(error) => {
                            let path = file.path.display();
                            tracing::warn!(%path, error = %error.chain(), "the token file is unusable; the last token stays");
                        }
                    }
                }
                kept.1.clone()
            }
        }
    }
}

/// PEM files that may be replaced at any time, with their contents when they last were a whole: certificates of the authorities that
/// sign servers, and this client's certificate and key.
struct PemFiles {
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
    /// The option that they are from.
    option: &'static str,
    kept: Mutex<Option<Pem>>,
}

/// Contents of [`PemFiles`].
#[derive(Clone, Default, PartialEq, Eq)]
struct Pem {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl PemFiles {
    fn new(ca: Option<PathBuf>, identity: Option<(PathBuf, PathBuf)>, option: &'static str) -> Self {
        Self { ca, identity, option, kept: Mutex::default() }
    }

    fn read(&self) -> Result<Pem> {
        let read = |path: &Path| read(path, self.option);
        let ca = self.ca.as_deref().map(read).transpose()?;
        let identity =
            self.identity.as_ref().map(|(cert, key)| Ok::<_, Error>((read(cert)?, read(key)?))).transpose()?;
        Ok(Pem { ca, identity })
    }

    /// Returns the files' names, for messages.
    fn shown(&self) -> String {
        let identity = self.identity.iter().flat_map(|(cert, key)| [cert, key]);
        self.ca.iter().chain(identity).map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the current contents. While the files are no whole, for instance because they are being replaced, the last ones stay.
    ///
    /// # Errors
    /// [`Error::Config`] if they never were: for a file that cannot be read, and for contents that are no certificates or do not belong
    /// together.
    fn value(&self) -> Result<Pem> {
        let last = self.kept.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let read = self.read().and_then(|pem| {
            if last.as_ref() != Some(&pem) {
                pem.check().map_err(|problem| Error::config(self.option, format!("{}: {problem}", self.shown())))?;
            }
            Ok(pem)
        });
        match (read, last) {
            (Ok(pem), _) => {
                *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(pem.clone());
                Ok(pem)
            }
            (Err(error), Some(last)) => {
                tracing::warn!(error = %error.chain(), "certificates are unusable; the last ones stay");
                Ok(last)
            }
            (Err(error), None) => Err(error),
        }
    }
}

impl Pem {
    fn tls(self) -> ClientTlsConfig {
        let tls = match self.ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        match self.identity {
            Some((cert, key)) => tls.identity(Identity::from_pem(cert, key)),
            None => tls,
        }
    }

    /// Checks that a connection may be made with them.
    fn check(&self) -> Result<(), String> {
        // The machine's own certificates are not looked at here.
        let ca = self.ca.clone().or_else(|| self.identity.as_ref().map(|(cert, _)| cert.clone()));
        let Some(ca) = ca else { return Ok(()) };
        let certificates: Vec<_> =
            CertificateDer::pem_slice_iter(&ca).collect::<Result<_, _>>().map_err(|error| error.to_string())?;
        if certificates.is_empty() {
            return Err("no certificate in PEM in one of them".to_owned());
        }
        let tls = Self { ca: Some(ca), ..self.clone() }.tls();
        let checked = Endpoint::from_static("https://localhost").tls_config(tls);
        checked.map(drop).map_err(|error| {
            let causes = std::iter::successors(std::error::Error::source(&error), |error| error.source());
            causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
        })
    }
}

/// Token, certificates and transport. Token and key are never printed.
#[derive(Clone, Default)]
pub(crate) struct Credentials {
    authorization: Option<Authorization>,
    certificates: Option<Arc<PemFiles>>,
    server_name: Option<String>,
    pub(crate) transport: Transport,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("token", &self.authorization)
            .field("certificates", &self.certificates.as_ref().map(|files| files.shown()))
            .field("server_name", &self.server_name)
            .field("transport", &self.transport)
            .finish()
    }
}

impl Credentials {
    /// Reads the `storage_options` of a loader: `token` or `token_file`, `ca`, `cert` and `key` (PEM files), `server_name`, and
    /// `transport`: `auto`, `tcp` or `shared_memory`. Without a token there, it is taken from `BOWSTRING_TOKEN` and
    /// `BOWSTRING_TOKEN_FILE`.
    ///
    /// # Errors
    /// [`Error::Config`] for an unknown key, half of a pair, or a file that cannot be read.
    pub(crate) fn new(options: &BTreeMap<String, String>) -> Result<Self> {
        check(options, STORAGE, KEYS)?;
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let has_token = options.contains_key("token") || options.contains_key("token_file");
        let mut all = options.clone();
        for (key, name) in [("token", "BOWSTRING_TOKEN"), ("token_file", "BOWSTRING_TOKEN_FILE")] {
            // As if the first were the only one.
            if !has_token
                && !all.contains_key("token")
                && let Some(value) = variable(name)
            {
                all.insert(key.to_owned(), value);
            }
        }
        Self::read(&all, STORAGE)
    }

    /// Reads the `cache_peer_options` of a loader: as above, without `transport`. The token of a data server is for that server, so the
    /// environment gives none.
    ///
    /// # Errors
    /// As above.
    pub(crate) fn of_peers(options: &BTreeMap<String, String>) -> Result<Self> {
        check(options, PEERS, KEYS.get(..6).unwrap_or_default())?;
        Self::read(options, PEERS)
    }

    fn read(options: &BTreeMap<String, String>, option: &'static str) -> Result<Self> {
        let given = |key: &str| options.get(key).cloned();
        let (token, file) = match (given("token"), given("token_file")) {
            (Some(_), Some(_)) => return Err(Error::config(option, "give token or token_file, not both")),
            both => both,
        };
        let authorization = match (token, file) {
            (Some(token), _) => Some(Authorization::Given(header(&token)?)),
            (None, Some(file)) => Some(Authorization::of_file(file.into())?),
            (None, None) => None,
        };
        let identity = match (given("cert"), given("key")) {
            (Some(cert), Some(key)) => Some((cert.into(), key.into())),
            (None, None) => None,
            _ => return Err(Error::config(option, "cert and key go together")),
        };
        let transport = match given("transport").as_deref() {
            None | Some("auto") => Transport::Auto,
            Some("tcp") => Transport::Tcp,
            Some("shared_memory") => Transport::SharedMemory,
            Some(other) => {
                let problem = format!("transport is auto, tcp or shared_memory, not {other}");
                return Err(Error::config(option, problem));
            }
        };
        let ca: Option<PathBuf> = given("ca").map(Into::into);
        let certificates = match (&ca, &identity) {
            (None, None) => None,
            _ => Some(Arc::new(PemFiles::new(ca, identity, option))),
        };
        Ok(Self { authorization, certificates, server_name: given("server_name"), transport })
    }

    pub(crate) fn authorization(&self) -> Option<&Authorization> {
        self.authorization.as_ref()
    }

    /// Returns the client's side of TLS, as the files are now or last were; the server's certificate must have `name`, unless
    /// `server_name` was given.
    ///
    /// # Errors
    /// [`Error::Config`] for files that never were a whole.
    pub(crate) fn tls(&self, name: Option<&str>) -> Result<ClientTlsConfig> {
        let pem = self.certificates.as_ref().map(|files| files.value()).transpose()?.unwrap_or_default();
        Ok(match self.server_name.as_deref().or(name) {
            Some(name) => pem.tls().domain_name(name),
            None => pem.tls(),
        })
    }
}

fn header(token: &str) -> Result<HeaderValue> {
    let wrong = || Error::config("token", "a token is printable ASCII, without line breaks");
    let value = HeaderValue::try_from(format!("Bearer {token}")).ok().filter(|_| token.is_ascii());
    let mut value = value.ok_or_else(wrong)?;
    value.set_sensitive(true);
    Ok(value)
}

fn check(options: &BTreeMap<String, String>, option: &'static str, keys: &[&str]) -> Result<()> {
    match options.keys().find(|key| !keys.contains(&key.as_str())) {
        Some(key) => Err(Error::config(option, format!("a server's address takes {}, not {key}", keys.join(", ")))),
        None => Ok(()),
    }
}

fn read(path: &Path, option: &'static str) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(|error| Error::config(option, format!("{}: {error}", path.display())))
}

fn read_token(path: &Path) -> Result<String> {
    let text = String::from_utf8(read(path, "token_file")?)
        .map_err(|_| Error::config("token_file", format!("{} is no text", path.display())))?;
    let token = text.trim();
    if token.is_empty() {
        return Err(Error::config("token_file", format!("{} has no token in it", path.display())));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_not_shown_and_wrong_keys_are_named() {
        let options = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect::<BTreeMap<_, _>>()
        };
        let credentials = Credentials::new(&options(&[("token", "s3cret-s3cret-s3cret")])).unwrap();
        assert!(!format!("{credentials:?}").contains("s3cret"));
        let header = credentials.authorization().unwrap().value();
        assert!(!format!("{header:?}").contains("s3cret") && header.to_str().unwrap().ends_with("s3cret"));
        let error = Credentials::new(&options(&[("tokn", "x")])).unwrap_err().to_string();
        assert!(error.contains("tokn") && error.contains("token_file"), "{error}");
        assert!(Credentials::new(&options(&[("cert", "x")])).is_err());
        assert!(Credentials::new(&options(&[("token", "two\nlines")])).is_err());
    }

    #[test]
    fn a_token_that_is_exchanged_in_its_file_is_seen_within_a_second() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        std::fs::write(&path, "of-yesterday\n").unwrap();
        let options = BTreeMap::from([("token_file".to_owned(), path.display().to_string())]);
        let credentials = Credentials::new(&options).unwrap();
        let empty = directory.path().join("empty");
        std::fs::write(&empty, "\n").unwrap();
        let refused = Credentials::new(&BTreeMap::from([("token_file".to_owned(), empty.display().to_string())]));
        assert!(refused.unwrap_err().to_string().contains("no token in it"));
        let authorization = credentials.authorization().unwrap().clone();
        let says = |token: &str| authorization.value().to_str().unwrap() == format!("Bearer {token}");
        assert!(says("of-yesterday"));
        assert!(!format!("{authorization:?} {credentials:?}").contains("yesterday"));
        let seen_as = |token: &str| {
            let start = Instant::now();
            while !says(token) {
                assert!(start.elapsed() < 20 * FRESH, "{token} is not seen");
                std::thread::sleep(FRESH / 20);
            }
        };
        std::fs::write(&path, "of-today").unwrap();
        seen_as("of-today");
        // A file that is being written, or gone, takes no token away.
        for broken in [Some(""), Some("no\ntoken"), None] {
            match broken {
                Some(text) => std::fs::write(&path, text).unwrap(),
                None => std::fs::remove_file(&path).unwrap(),
            }
            std::thread::sleep(FRESH + FRESH / 10);
            assert!(says("of-today"), "{broken:?}");
        }
        std::fs::write(&path, "of-tomorrow").unwrap();
        seen_as("of-tomorrow");
    }

    #[test]
    fn certificates_that_are_away_or_half_replaced_leave_the_last_ones() {
        use rcgen::{CertificateParams, KeyPair};
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let pair = || {
            let key = KeyPair::generate().unwrap();
            let certificate = CertificateParams::new(["job".to_owned()]).unwrap().self_signed(&key).unwrap();
            (certificate.pem(), key.serialize_pem())
        };
        let write = |(cert, key): &(String, String)| {
            std::fs::write(path("cert"), cert).unwrap();
            std::fs::write(path("key"), key).unwrap();
            std::fs::write(path("ca"), cert).unwrap();
        };
        let options: BTreeMap<String, String> =
            ["ca", "cert", "key"].map(|name| (name.to_owned(), path(name).display().to_string())).into();
        let unusable = || Credentials::new(&options).unwrap().tls(None).unwrap_err().to_string();
        let missing = unusable();
        assert!(missing.contains("storage_options") && missing.contains("ca"), "{missing}");
        let (first, next) = (pair(), pair());
        write(&first);
        let credentials = Credentials::new(&options).unwrap();
        assert!(!format!("{credentials:?}").contains("BEGIN"));
        assert!(credentials.tls(None).is_ok());
        let files = credentials.certificates.clone().unwrap();
        let is = |(cert, key): &(String, String)| {
            let pem = files.value().unwrap();
            pem.ca.unwrap() == cert.as_bytes() && pem.identity.unwrap() == (cert.clone().into(), key.clone().into())
        };
        for name in ["ca", "cert", "key"] {
            for text in [None, Some(""), Some("-----BEGIN CERT")] {
                write(&first);
                match text {
                    None => std::fs::remove_file(path(name)).unwrap(),
                    Some(text) => std::fs::write(path(name), text).unwrap(),
                }
                assert!(is(&first), "{name} {text:?}");
            }
        }
        write(&(next.0.clone(), first.1.clone()));
        assert!(is(&first), "a certificate without its key");
        assert!(unusable().contains("key"));
        write(&next);
        assert!(is(&next));
    }
}
