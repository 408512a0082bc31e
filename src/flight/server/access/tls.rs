//! TLS certificates for both sides, and the addresses where a server may listen without them.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::flight::server::catalog::watched::Watched;

use crate::error::{Error, Result};

/// Largest PEM file, in bytes.
const MAX_PEM: u64 = 4 << 20;
/// First line of a certificate in PEM.
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----";

/// The files of a server's TLS, all PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct TlsFiles {
    /// The server's certificate, followed by the intermediates up to the root.
    pub cert: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
    /// Certificates of the authorities that may sign clients; if given, every client needs a certificate (mTLS).
    #[serde(default)]
    pub client_ca: Option<PathBuf>,
}

impl TlsFiles {
    /// Builds the server's side of TLS. A client that has not finished its handshake after `handshake` is disconnected.
    ///
    /// The files are checked at most once a second, when a client connects or calls: new connections use the current version, and open ones
    /// carry calls as long as their clients are trusted. A wrong version changes nothing.
    ///
    /// # Errors
    /// [`Error::Config`] naming the file: it cannot be read, holds no certificate or no private key, or the two do not match.
    pub fn server(&self, handshake: Duration) -> Result<ServerTls> {
        let files = self.clone();
        let paths = [&self.cert, &self.key].into_iter().chain(&self.client_ca).cloned().collect();
        let config = Watched::files("certificates", paths, move |_, _| files.read())?;
        let first = config.get();
        Ok(ServerTls { config, first, handshake })
    }

    fn read(&self) -> Result<Side> {
        let (certificate, key) = texts(&self.cert, &self.key)?;
        let mut files = format!("{} and {}", self.cert.display(), self.key.display());
        let builder =
            ServerConfig::builder_with_provider(Arc::new(default_provider())).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| refused(&files, &error))?;
        let mut clients = None;
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                files.push_str(&format!(", client CA {}", path.display()));
                let mut roots = RootCertStore::empty();
                let text = pem(path, "client_ca", &[CERTIFICATE], "certificate")?;
                roots.add_parsable_certificates(chain(&text).map_err(|error| refused(&files, &error))?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::new(default_provider()));
                let verifier = verifier.build().map_err(|error| refused(&files, &error))?;
                builder.with_client_cert_verifier(Arc::clone(clients.insert(verifier)))
            }
        };
        let chain = chain(&certificate).map_err(|error| refused(&files, &error))?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| refused(&files, &error))?;
        let mut config = builder.with_single_cert(chain, key).map_err(|error| refused(&files, &error))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        if self.client_ca.is_some() {
            // A session that is resumed shows no certificate again, which may have expired, or be of a CA that is no longer one.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
        }
        Ok(Side { config: Arc::new(config), clients })
    }
}

/// Parses the certificates of a PEM file.
fn chain(text: &str) -> Result<Vec<CertificateDer<'static>>, tokio_rustls::rustls::pki_types::pem::Error> {
    CertificateDer::pem_slice_iter(text.as_bytes()).collect()
}

/// What the files define.
#[derive(Debug)]
struct Side {
    config: Arc<ServerConfig>,
    /// Those who may be clients, if they show certificates.
    clients: Option<Arc<dyn ClientCertVerifier>>,
}

/// A server's side of TLS, as its files define it now. Clones share it.
#[derive(Debug, Clone)]
pub struct ServerTls {
    config: Watched<Side>,
    /// What the files defined at the start.
    first: Arc<Side>,
    handshake: Duration,
}

impl ServerTls {
    /// Reads the files now, changed or not; a wrong version changes nothing.
    pub fn reload(&self) {
        self.config.reload();
    }

    /// Returns true if the client that showed the certificates `chain`, which its handshake has verified, would still be trusted. While the
    /// files have not changed, that costs nothing.
    pub(crate) fn still_trusts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let now = self.config.get();
        match (&now.clients, chain.split_first()) {
            (Some(clients), Some((own, above))) if !Arc::ptr_eq(&now, &self.first) => {
                clients.verify_client_cert(own, above, UnixTime::now()).is_ok()
            }
            _ => true,
        }
    }

    /// Yields the connections of `incoming` that finish their handshake in time, in the order of completion.
    pub(crate) fn secured<S, IO>(self, incoming: S) -> impl Stream<Item = io::Result<TlsStream<IO>>> + Send
    where
        S: Stream<Item = io::Result<IO>> + Send,
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let shakes = incoming.map(move |io| {
            let tls = self.clone();
            async move {
                let accept = async move {
                    let acceptor = TlsAcceptor::from(Arc::clone(&tls.config.get().config));
                    tokio::time::timeout(tls.handshake, acceptor.accept(io?)).await.map_err(io::Error::other)?
                };
                // Spawned, because the arithmetic of a handshake would block the one task that accepts connections.
                match tokio::spawn(accept).await {
                    Ok(Ok(stream)) => Some(Ok(stream)),
                    Ok(Err(error)) => {
                        tracing::debug!(%error, "a TLS handshake failed");
                        None
                    }
                    Err(error) => Some(Err(io::Error::other(error))),
                }
            }
        });
        // Unbounded here: the number of connections is bounded elsewhere.
        shakes.buffer_unordered(usize::MAX).filter_map(std::future::ready)
    }
}

/// A client's side of TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ClientFiles {
    /// Certificates of the authorities that may sign servers, PEM; without, the system's are used.
    pub ca: Option<PathBuf>,
    /// This client's certificate, PEM; requires `key`.
    pub cert: Option<PathBuf>,
    /// Private key of the certificate, PEM.
    pub key: Option<PathBuf>,
    /// The name that the server's certificate must have, if it differs from the address.
    pub domain: Option<String>,
}

impl ClientFiles {
    /// Builds the client's side of TLS. A server that has not finished its handshake after `handshake` is given up.
    ///
    /// # Errors
    /// [`Error::Config`] naming the file or the option that is missing.
    pub fn client(&self, handshake: Duration) -> Result<ClientTlsConfig> {
        let mut config = ClientTlsConfig::new().timeout(handshake);
        config = match &self.ca {
            Some(path) => config.ca_certificate(certificates(path, "tls_ca")?),
            None => config.with_enabled_roots(),
        };
        config = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => config.identity(identity(cert, key)?),
            (None, None) => config,
            (Some(_), None) => return Err(Error::config("tls_key", "tls_cert is given without its key")),
            (None, Some(_)) => return Err(Error::config("tls_cert", "tls_key is given without its certificate")),
        };
        if let Some(domain) = &self.domain {
            config = config.domain_name(domain.clone());
        }
        let shown = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let files: Vec<String> = [&self.ca, &self.cert, &self.key].into_iter().filter_map(shown).collect();
        let files = if files.is_empty() { "the system's certificates".to_owned() } else { files.join(", ") };
        Endpoint::from_static("https://localhost")
            .tls_config(config.clone())
            .map_err(|error| refused(&files, &error))?;
        Ok(config)
    }
}

/// Turns a complaint of rustls about `files` into an error.
pub(crate) fn refused(files: &str, error: &dyn std::error::Error) -> Error {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    if text.contains("KeyMismatch") || text.contains("InconsistentKeys") {
        text.push_str(" (the private key does not belong to the certificate)");
    }
    Error::config("tls", format!("{files} cannot be used: {text}"))
}

fn identity(cert: &Path, key: &Path) -> Result<Identity> {
    let (certificate, secret) = texts(cert, key)?;
    Ok(Identity::from_pem(certificate, secret))
}

/// Reads a certificate and its private key.
fn texts(cert: &Path, key: &Path) -> Result<(String, String)> {
    let certificate = pem(cert, "tls_cert", &[CERTIFICATE], "certificate")?;
    let markers = ["-----BEGIN PRIVATE KEY-----", "-----BEGIN EC PRIVATE KEY-----", "-----BEGIN RSA PRIVATE KEY-----"];
    let secret = pem(key, "tls_key", &markers, "unencrypted private key")?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        // Only a warning, unlike for tokens: orchestrators mount keys readable by a group.
        if std::fs::metadata(key).is_ok_and(|metadata| metadata.permissions().mode() & 0o007 != 0) {
            tracing::warn!(file = %key.display(), "the private key can be read by everybody on this machine");
        }
    }
    Ok((certificate, secret))
}

fn certificates(path: &Path, option: &'static str) -> Result<Certificate> {
    Ok(Certificate::from_pem(pem(path, option, &[CERTIFICATE], "certificate")?))
}

/// Reads a PEM file that must hold one of `markers`.
fn pem(path: &Path, option: &'static str, markers: &[&str], what: &str) -> Result<String> {
    use std::io::Read as _;
    let shown = path.display();
    let wrong = |problem: String| Error::config(option, format!("file {shown} {problem}"));
    let unreadable = |error: std::io::Error| wrong(format!("cannot be read: {error}"));
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(wrong("is no regular file".to_owned()));
    }
    let mut text = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(MAX_PEM + 1).read_to_end(&mut text).map_err(unreadable)?;
    if text.len() as u64 > MAX_PEM {
        return Err(wrong(format!("has more than {MAX_PEM} bytes")));
    }
    let text = String::from_utf8(text).map_err(|_| wrong(format!("is no PEM: a {what} is wanted as PEM")))?;
    if !markers.iter().any(|marker| text.contains(marker)) {
        return Err(wrong(format!("holds no {what} in PEM")));
    }
    Ok(text)
}

/// Checks that a server may listen at `address`: beyond this host only with TLS and with tokens or client certificates, unless
/// `insecure` is set. Unix sockets need no such check: the file system guards them.
///
/// ```
/// use bowstring::flight::server::tls::may_listen;
///
/// assert!(may_listen("127.0.0.1:8815".parse().unwrap(), false, false, false).is_ok());
/// assert!(may_listen("0.0.0.0:8815".parse().unwrap(), true, false, false).is_err());
/// ```
///
/// # Errors
/// [`Error::Config`] naming what is missing, and the flags that provide it.
pub fn may_listen(address: SocketAddr, tls: bool, tokens_or_mtls: bool, insecure: bool) -> Result<()> {
    if address.ip().to_canonical().is_loopback() || (tls && tokens_or_mtls) || insecure {
        return Ok(());
    }
    let encryption = "TLS (--tls-cert and --tls-key)";
    let identity = "a way to tell who calls (--tokens FILE, or --client-ca FILE for client certificates)";
    let missing = match (tls, tokens_or_mtls) {
        (false, false) => format!("{encryption} and {identity} are missing"),
        (false, true) => format!("{encryption} is missing"),
        (true, _) => format!("{identity} is missing"),
    };
    let problem = format!(
        "{address} can be reached from other machines: {missing}; listen on 127.0.0.1, or give --insecure to serve everybody who \
         can reach it"
    );
    Err(Error::config("listen", problem))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair};

    #[test]
    fn nothing_is_open_by_accident() {
        for (address, tls, known, insecure, problem) in [
            ("127.0.0.1:1", false, false, false, None),
            ("127.9.9.9:1", false, false, false, None),
            ("[::1]:1", false, false, false, None),
            ("[::ffff:127.0.0.1]:1", false, false, false, None),
            ("10.0.0.1:1", true, true, false, None),
            ("10.0.0.1:1", false, false, true, None),
            ("0.0.0.0:1", false, false, false, Some("--tls-cert and --tls-key) and a way to tell")),
            ("[::]:1", false, true, false, Some("(--tls-cert and --tls-key) is missing")),
            ("10.0.0.1:1", true, false, false, Some("--client-ca FILE for client certificates) is missing")),
            ("[::ffff:10.0.0.1]:1", false, false, false, Some("missing")),
        ] {
            let found = may_listen(address.parse().unwrap(), tls, known, insecure);
            match (problem, found) {
                (None, found) => assert!(found.is_ok(), "{address}"),
                (Some(what), Err(error)) => assert!(error.to_string().contains(what), "{error}"),
                (Some(_), Ok(())) => panic!("{address} may be listened at"),
            }
        }
    }

    #[test]
    fn sessions_of_clients_with_certificates_are_not_resumed() {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        let (cert, private) = (directory.path().join("cert"), directory.path().join("key"));
        std::fs::write(&cert, certificate.pem()).unwrap();
        std::fs::write(&private, key.serialize_pem()).unwrap();
        let files = |client_ca| TlsFiles { cert: cert.clone(), key: private.clone(), client_ca }.read().unwrap().config;
        let (open, mutual) = (files(None), files(Some(cert.clone())));
        assert!(open.session_storage.can_cache() && open.send_tls13_tickets > 0);
        assert!(!mutual.session_storage.can_cache() && mutual.send_tls13_tickets == 0 && !mutual.ticketer.enabled());
    }

    #[test]
    fn wrong_files_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key).unwrap();
        let cert = write("cert.pem", &certificate.pem());
        let good = write("key.pem", &key.serialize_pem());
        let other = write("other.pem", &KeyPair::generate().unwrap().serialize_pem());
        let garbled = write("garbled.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
        let files = |cert: &PathBuf, key: &PathBuf, client_ca: Option<&PathBuf>| {
            TlsFiles { cert: cert.clone(), key: key.clone(), client_ca: client_ca.cloned() }
                .server(Duration::from_secs(1))
        };
        files(&cert, &good, None).unwrap();
        files(&cert, &good, Some(&cert)).unwrap();
        for (found, what) in [
            (files(&good, &good, None), "key.pem holds no certificate"),
            (files(&cert, &cert, None), "cert.pem holds no unencrypted private key"),
            (files(&cert, &other, None), "does not belong"),
            (files(&garbled, &good, None), "garbled.pem"),
            (files(&cert, &good, Some(&good)), "key.pem holds no certificate"),
            (files(&cert, &good, Some(&garbled)), "garbled.pem"),
            (files(&directory.path().join("none.pem"), &good, None), "none.pem cannot be read"),
        ] {
            let error = found.unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        }
        let client = ClientFiles { ca: Some(cert.clone()), ..ClientFiles::default() };
        client.client(Duration::from_secs(1)).unwrap();
        let error = ClientFiles { cert: Some(cert), ..client }.client(Duration::from_secs(1)).unwrap_err();
        assert!(error.to_string().contains("tls_key"), "{error}");
    }
}
