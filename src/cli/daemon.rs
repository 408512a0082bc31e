//! What verbs that serve have in common: files, addresses, the admin port, signals.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Parser, ValueEnum};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde::Serialize;
use tokio::net::TcpListener;

use crate::flight::server::config::{every_interface, on_loopback};
use crate::flight::server::tls::TlsFiles;
use crate::flight::server::{self, AdminState};
use crate::store::path_at_home;
use crate::{Error, Result};

use crate::cli::args::{MaybeSwitch, switch};
use crate::cli::out::{Out, Outcome};

/// Most open files: more than this server can use.
const OPEN_FILES: u64 = 1 << 16;

/// The format of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Lines for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// The addresses of the server.
#[derive(Debug, Serialize)]
pub(crate) struct Addresses {
    listen: String,
    admin: Option<String>,
}

impl Addresses {
    pub(crate) fn new(listen: String, admin: Option<SocketAddr>) -> Self {
        Self { listen, admin: admin.map(|admin| format!("http://{admin}")) }
    }

    /// Writes them: they were asked for, so --quiet does not leave them out.
    pub(crate) fn print(&self, out: &mut Out) -> Outcome {
        if out.is_json() { out.json(self) } else { out.text(&self.to_string()) }
    }
}

/// The admin port while it is served, if there is one.
pub(crate) struct AdminPort {
    address: Option<SocketAddr>,
    end: tokio::sync::oneshot::Sender<()>,
    serving: Option<tokio::task::JoinHandle<Result<()>>>,
}

impl AdminPort {
    pub(crate) async fn open(address: Option<&str>, state: Arc<AdminState>) -> Result<Self> {
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        let Some(address) = address else { return Ok(Self { address: None, end, serving: None }) };
        let listener = bind("admin", &on_loopback(address)).await?;
        let address = Some(local(&listener, "admin")?);
        let ended = async {
            let _ = ended.await;
        };
        Ok(Self { address, end, serving: Some(tokio::spawn(server::admin(listener, state, ended))) })
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    pub(crate) async fn end(self) {
        let _ = self.end.send(());
        if let Some(serving) = self.serving
            && let Ok(Err(error)) = serving.await
        {
            tracing::warn!(%error, "the admin port failed");
        }
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.listen)?;
        self.admin.iter().try_for_each(|admin| writeln!(f, "{admin}"))
    }
}

/// Raises the limit of open files, usually 1,024: connections and shared memory need them.
pub(crate) fn open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    let most = limit.maximum.map_or(OPEN_FILES, |most| most.min(OPEN_FILES));
    if limit.current.is_some_and(|now| now < most) {
        limit.current = Some(most);
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            tracing::debug!(%error, "the limit of open files stays as it is");
        }
    }
}

/// Flags and variables of who may connect, and how.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Access {
    /// Address and port for /metrics, /livez and /readyz, and the page /ui of a server; a port alone is 127.0.0.1
    #[arg(long, env = "BOWSTRING_ADMIN", value_name = "ADDR", hide_env_values = true)]
    pub(crate) admin: Option<String>,
    /// File of tokens for /ui and /metrics, in the form of --tokens
    #[arg(long, env = "BOWSTRING_ADMIN_TOKENS", value_name = "FILE", hide_env_values = true)]
    pub(crate) admin_tokens: Option<PathBuf>,
    /// Certificate in PEM, with intermediate certificates
    #[arg(long, env = "BOWSTRING_TLS_CERT", value_name = "FILE", hide_env_values = true)]
    tls_cert: Option<PathBuf>,
    /// Its private key in PEM
    #[arg(long, env = "BOWSTRING_TLS_KEY", value_name = "FILE", hide_env_values = true)]
    tls_key: Option<PathBuf>,
    /// CA of client certificates, in PEM; every client then needs a certificate
    #[arg(long, env = "BOWSTRING_CLIENT_CA", value_name = "FILE", hide_env_values = true)]
    client_ca: Option<PathBuf>,
    /// Serve everyone who can reach the address
    #[arg(
        long,
        env = "BOWSTRING_INSECURE",
        value_name = "BOOL",
        value_parser = switch,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        hide_env_values = true
    )]
    insecure: Option<MaybeSwitch>,
}

impl Access {
    /// True or false as the flag or its variable says; `None` if neither does.
    pub(crate) fn insecure(&self) -> Option<bool> {
        self.insecure.flatten()
    }

    /// The files of TLS, if any are given: those of the flags before those of the configuration `file`.
    ///
    /// # Errors
    /// [`Error::Config`] naming the one that is missing.
    pub(crate) fn tls(&self, file: Option<TlsFiles>) -> Result<Option<TlsFiles>> {
        let (cert, key, client_ca) =
            file.map_or((None, None, None), |file| (Some(file.cert), Some(file.key), file.client_ca));
        let given =
            |flag: &Option<PathBuf>, other: Option<PathBuf>| flag.clone().or(other).map(|path| path_at_home(&path));
        tls_files(given(&self.tls_cert, cert), given(&self.tls_key, key), given(&self.client_ca, client_ca))
    }
}

fn tls_files(cert: Option<PathBuf>, key: Option<PathBuf>, client_ca: Option<PathBuf>) -> Result<Option<TlsFiles>> {
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert, key, client_ca })),
        (None, None) if client_ca.is_none() => Ok(None),
        (None, _) => {
            Err(Error::config("tls_cert", "a key or a client CA is given without a certificate: give --tls-cert"))
        }
        (_, None) => Err(Error::config("tls_key", "a certificate is given without its key: give --tls-key")),
    }
}

/// Checks the form of an address and port without resolving a name; returns it if it has none.
///
/// # Errors
/// [`Error::Config`].
pub(crate) fn checked(option: &'static str, address: &str) -> Result<Option<SocketAddr>> {
    let literal = every_interface(address).parse().ok();
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
    match (literal, port) {
        (None, None) => Err(Error::config(option, format!("{address:?} is not an address and port"))),
        (literal, _) => Ok(literal),
    }
}

pub(crate) async fn resolve(option: &'static str, address: &str) -> Result<Vec<SocketAddr>> {
    let typed = every_interface(address);
    let found = tokio::net::lookup_host(&*typed).await;
    let found =
        found.map_err(|error| Error::config(option, format!("{address:?} is not an address and port: {error}")))?;
    Ok(found.collect())
}

pub(crate) async fn bind(option: &'static str, address: &str) -> Result<TcpListener> {
    let resolved = resolve(option, address).await?;
    TcpListener::bind(&*resolved)
        .await
        .map_err(|error| Error::config(option, format!("{address} cannot be bound: {error}")))
}

pub(crate) fn local(listener: &TcpListener, option: &'static str) -> Result<SocketAddr> {
    listener.local_addr().map_err(|error| Error::config(option, error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_alone_is_this_host_and_with_a_colon_every_interface() {
        for (typed, meant) in [(":8815", "0.0.0.0:8815"), (":0", "0.0.0.0:0"), ("[::1]:1", "[::1]:1"), (":x", ":x")] {
            assert_eq!(every_interface(typed), meant);
        }
        assert_eq!(checked("listen", ":1").unwrap().map(|address| address.to_string()).as_deref(), Some("0.0.0.0:1"));
        assert_eq!(checked("listen", "host.example:1").unwrap(), None);
        assert!(checked("listen", "host.example").is_err() && checked("listen", "h:99999").is_err());
        for (typed, meant) in [("9090", "127.0.0.1:9090"), (":9090", ":9090"), ("h:1", "h:1"), ("99999", "99999")] {
            assert_eq!(on_loopback(typed), meant);
        }
    }
}
