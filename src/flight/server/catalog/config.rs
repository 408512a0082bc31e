//! The complete configuration of a server: the values that its options resolve to, with files, keys and a catalogue.

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{Access, access};

use super::catalogue::{Catalogue, Current};
use super::options::MEMORY;
pub use super::options::{LISTEN, ServerOptions};
#[cfg(feature = "cli")]
pub(crate) use super::options::{every_interface, on_loopback};
use super::write_directory::check_outside_datasets;
use crate::dataset::WriterOptions;
use crate::error::{Error, Result};
use crate::flight::gang::check_journal;
use crate::flight::put::{DiskQuotas, Staging, StagingOptions};
use crate::flight::server::access::audit::Audit;
use crate::flight::server::access::auth::{Denied, Tenant, Tokens, tenant};
use crate::flight::server::access::key::TicketKey;
use crate::flight::server::access::space::Spaces;
use crate::flight::server::access::tls::{ServerTls, may_listen};
use crate::flight::server::ops::admin::AdminState;
use crate::flight::server::ops::limits::Limits;
use crate::flight::server::stream::quota::Quotas;

/// Additional time for the process to exit.
const AFTER_DRAIN: Duration = Duration::from_secs(2);
/// Resolved configuration of a server.
#[derive(Debug)]
pub struct Config {
    /// The datasets.
    pub catalogue: Current,
    /// Limits of one peer.
    pub limits: Limits,
    /// Accepted tokens; `None` requires none.
    pub tokens: Option<Tokens>,
    /// Key that signs tickets.
    pub key: TicketKey,
    /// The server's side of TLS; `None` speaks plain HTTP/2.
    pub tls: Option<ServerTls>,
    /// True if every client must show a certificate.
    pub client_ca: bool,
    /// True if the server may be open to everybody.
    pub insecure: bool,
    /// Addresses of all replicas, e.g. `grpc://10.0.0.2:8815`; if empty, the address that a client came by.
    pub replicas: Vec<String>,
    /// Bytes that everything in flight may take.
    pub memory_budget: u64,
    /// CPU threads for decoding.
    pub threads: usize,
    /// Time that streams have to end after shutdown began.
    pub drain_grace: Duration,
    /// State visible to operators.
    pub admin: Arc<AdminState>,
    /// File of the journal.
    pub journal: Option<PathBuf>,
    /// Time after which a silent rank of a gang is lost. After a restart of the server ranks have twice as long.
    pub gang_lease: Duration,
    /// Time for which the files of a dataset that nobody reads count as unchanged.
    pub refresh: Duration,
    /// Bytes of the last batches of each stream that are kept for others that ask for the same.
    pub share_bytes: Option<u64>,
    /// Bytes of memory that open datasets take.
    pub open_bytes: u64,
    /// Destination of datasets that clients write; `None` refuses writes.
    pub put: Option<Put>,
    /// True if ranks on this host get their batches through shared memory.
    pub shared_memory: bool,
    /// Log of calls and ends of streams.
    pub audit: Audit,
    /// Namespaces of tenants.
    pub spaces: Spaces,
    /// Quotas of one tenant.
    pub quotas: Quotas,
}

/// Configuration that may change while a server runs.
#[derive(Debug, Clone)]
pub struct Reload {
    tokens: Option<Tokens>,
    key: TicketKey,
    tls: Option<ServerTls>,
    audit: Audit,
    admin: Arc<AdminState>,
    catalogue: Current,
    /// Destination of datasets that clients write; with one, the catalogue may be empty.
    put: Option<Put>,
}

impl Reload {
    /// Reads all files again, changed or not. A wrong one keeps its former content, with a warning. Blocks on the files.
    pub fn now(&self) {
        self.tokens.iter().chain(self.admin.tokens()).for_each(Tokens::reload);
        self.key.reload();
        self.tls.iter().for_each(ServerTls::reload);
        self.audit.reopen();
    }

    /// Replaces the catalogue once each dataset of the new one [was opened](Catalogue::check). Running streams continue, new ones use
    /// the new catalogue, and files that were seen before are checked again.
    ///
    /// # Errors
    /// Those of opening, naming the file, and [`Error::Config`] if nothing would be served, or what clients write would be part of a dataset:
    /// the catalogue then stays as it was.
    pub async fn catalogue(&self, catalogue: Catalogue) -> Result<()> {
        something(&catalogue, self.put.is_some())?;
        self.put.as_ref().map_or(Ok(()), |put| put.check_outside_datasets(&catalogue))?;
        catalogue.check().await?;
        self.catalogue.replace(catalogue);
        Ok(())
    }
}

/// Refuses a server without datasets that accepts none from clients either.
///
/// # Errors
/// [`Error::Config`].
pub(crate) fn something(catalogue: &Catalogue, put: bool) -> Result<()> {
    if catalogue.is_empty() && !put {
        return Err(Error::config("datasets", "there is nothing to serve: name a dataset, or let clients write"));
    }
    Ok(())
}

/// Destination of datasets that clients write.
#[derive(Debug, Clone)]
pub enum Put {
    /// The memory of this process, until it ends; they take up to half of the memory budget in addition to streams.
    Memory,
    /// A directory, as Parquet.
    Directory(PathBuf),
    /// A staging area that other code in this process writes to as well.
    Shared(Staging),
}

impl Put {
    /// Parses `memory` or a directory.
    fn parse(text: &str) -> Self {
        if text == MEMORY { Self::Memory } else { Self::Directory(text.into()) }
    }

    /// Refuses a directory that cannot be made or written, without making it.
    ///
    /// # Errors
    /// [`Error::Config`].
    fn check(&self) -> Result<()> {
        let Self::Directory(path) = self else { return Ok(()) };
        let here = Path::new(".");
        let there = path.ancestors().find(|path| path.exists()).unwrap_or(here);
        let wrong =
            |problem: &dyn Display| Error::config("put", format!("{}: {} {problem}", path.display(), there.display()));
        if !there.is_dir() {
            return Err(wrong(&"is a file, where a directory belongs"));
        }
        access(there, Access::WRITE_OK | Access::EXEC_OK)
            .map_err(|error| wrong(&format!("cannot be written to: {error}")))
    }

    /// Refuses a directory that is part of a dataset of `catalogue`.
    ///
    /// # Errors
    /// [`Error::Config`] naming both.
    fn check_outside_datasets(&self, catalogue: &Catalogue) -> Result<()> {
        let Self::Directory(path) = self else { return Ok(()) };
        check_outside_datasets(catalogue, path)
    }

    /// Opens the destination, waiting up to `patience` for a directory that another server holds. Needs a runtime.
    ///
    /// # Errors
    /// [`Error::Closed`] naming the process that holds the directory; [`Error::Store`].
    pub(crate) async fn open(&self, memory_budget: u64, disk: DiskQuotas, patience: Duration) -> Result<Staging> {
        match self {
            Self::Memory => {
                let options = StagingOptions { writer: WriterOptions::fleeting(), ..StagingOptions::default() };
                Staging::memory(memory_budget / 2, options)
            }
            Self::Directory(path) => {
                let buffer_bytes = memory_budget / 4;
                let options =
                    StagingOptions { lock_patience: patience, buffer_bytes, disk, ..StagingOptions::default() };
                Staging::directory(path, options).await
            }
            Self::Shared(staging) => Ok(staging.clone()),
        }
    }
}

impl Config {
    /// Resolves `options` for a server of `catalogue`: reads files, makes keys, fills in defaults.
    ///
    /// # Errors
    /// [`Error::Config`] naming the option or the file that is wrong.
    pub fn new(catalogue: Catalogue, options: &ServerOptions) -> Result<Self> {
        options.validate()?;
        something(&catalogue, options.put.is_some())?;
        let limits = options.effective_limits();
        let put = options.put.as_deref().map(Put::parse);
        // They are opened once the address is known, since another server may hold them until then.
        put.as_ref().map_or(Ok(()), |put| put.check().and_then(|()| put.check_outside_datasets(&catalogue)))?;
        options.journal.as_deref().map_or(Ok(()), check_journal)?;
        let memory_budget = options.memory_budget();
        let admin = Arc::new(AdminState::new());
        if let Some(path) = &options.admin_tokens {
            admin.set_tokens(Tokens::from_file(path)?);
        }
        Ok(Self {
            catalogue: Current::new(catalogue),
            tokens: options.tokens.as_ref().map(Tokens::from_file).transpose()?,
            key: match &options.key_file {
                Some(path) => TicketKey::from_file(path)?,
                None => TicketKey::random()?,
            },
            tls: options.tls.as_ref().map(|files| files.server(limits.handshake())).transpose()?,
            client_ca: options.tls.as_ref().is_some_and(|files| files.client_ca.is_some()),
            insecure: options.insecure,
            replicas: options.replicas.clone(),
            memory_budget,
            threads: options.threads(),
            drain_grace: Duration::from_secs_f64(options.drain_grace()),
            admin,
            journal: options.journal.clone(),
            gang_lease: Duration::from_secs_f64(options.gang_lease()),
            refresh: Duration::from_secs_f64(options.refresh()),
            share_bytes: options.share_bytes,
            open_bytes: options.open_bytes(),
            put,
            shared_memory: options.shared_memory(),
            audit: options.audit_log.as_deref().map(Audit::open).transpose()?.unwrap_or_default(),
            spaces: Spaces::new(&options.spaces)?,
            quotas: Quotas::new(options.quotas.clone(), limits.max_streams)?,
            limits,
        })
    }

    /// Returns the time to wait for a journal and a write directory that another server holds: the one being replaced drains first.
    pub(crate) fn lock_patience(&self) -> Duration {
        self.drain_grace + AFTER_DRAIN
    }

    /// Returns the handle that reads changeable files again: tokens, keys, certificates.
    pub fn reload(&self) -> Reload {
        Reload {
            tokens: self.tokens.clone(),
            key: self.key.clone(),
            tls: self.tls.clone(),
            audit: self.audit.clone(),
            admin: Arc::clone(&self.admin),
            catalogue: self.catalogue.clone(),
            put: self.put.clone(),
        }
    }

    /// Checks that this server may listen at `address`.
    ///
    /// # Errors
    /// As [`may_listen`].
    pub fn check(&self, address: SocketAddr) -> Result<()> {
        may_listen(address, self.tls.is_some(), self.has_tenants(), self.insecure)
    }

    /// Returns true if callers are identified, by a token or a certificate.
    pub(crate) fn has_tenants(&self) -> bool {
        self.tokens.is_some() || self.client_ca
    }

    /// Returns the tenant of a call with this value of the `authorization` header, over a connection whose client showed this
    /// certificate (DER, verified by the handshake). Where there are tokens, every call needs one, with or without a certificate.
    ///
    /// # Errors
    /// [`Denied`], which is counted.
    pub fn tenant(&self, header: Option<&str>, certificate: Option<&[u8]>) -> Result<Tenant, Denied> {
        let found = tenant(self.tokens.as_ref(), self.client_ca, header, certificate, SystemTime::now());
        found.inspect_err(|denied| self.admin.metrics().refused(*denied))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catalogue() -> Catalogue {
        let mut catalogue = Catalogue::default();
        catalogue.add("x", vec!["fixtures/imagenet40.parquet".to_owned()]).unwrap();
        catalogue
    }

    #[test]
    fn defaults_serve_this_host_alone() {
        let config = Config::new(catalogue(), &ServerOptions::default()).unwrap();
        assert!(config.check(LISTEN.parse().unwrap()).is_ok());
        assert!(config.check("0.0.0.0:8815".parse().unwrap()).is_err());
        assert_eq!((config.drain_grace, config.limits.max_streams), (Duration::from_secs(30), 4096));
        assert!(config.threads > 0 && config.memory_budget > 0);
        let open = Config::new(catalogue(), &ServerOptions { insecure: true, ..ServerOptions::default() }).unwrap();
        assert!(open.check("0.0.0.0:8815".parse().unwrap()).is_ok());
    }

    #[test]
    fn a_call_is_somebodys_or_refused() {
        let mut config = Config::new(catalogue(), &ServerOptions::default()).unwrap();
        assert_eq!(config.tenant(None, None), Ok(Tenant::anonymous()));
        assert_eq!(config.tenant(None, Some(b"not asked for")), Ok(Tenant::anonymous()));
        config.client_ca = true;
        assert_eq!(config.tenant(Some("Bearer correct-horse-battery"), None), Err(Denied::Missing));
        assert!(config.tenant(None, Some(b"unreadable")).unwrap().name().starts_with("certificate:"));
        config.tokens = Some(Tokens::from_text("anna:correct-horse-battery").unwrap());
        assert_eq!(config.tenant(None, Some(b"x")), Err(Denied::Missing), "a certificate is no token");
        assert_eq!(config.tenant(Some("Bearer correct-horse-battery"), None).unwrap().name(), "anna");
        assert_eq!(config.tenant(Some("Bearer correct-horse-batterz"), None), Err(Denied::Unknown));
        let text = config.admin.metrics().encode();
        assert!(text.contains("auth_refused_total{reason=\"missing\"} 2"), "{text}");
    }

    #[tokio::test]
    async fn a_directory_for_writes_that_is_part_of_a_dataset_is_refused_at_start_and_at_a_reload() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        std::fs::create_dir(&data).unwrap();
        let of = |path: &Path| {
            let mut catalogue = Catalogue::default();
            catalogue.add("x", vec![path.to_str().unwrap().to_owned()]).unwrap();
            catalogue
        };
        let put = data.join("put").to_str().unwrap().to_owned();
        let options = ServerOptions { put: Some(put.clone()), ..ServerOptions::default() };
        let told = |error: Error| {
            let text = error.to_string();
            assert!(text.contains("option put:") && text.contains("dataset x:") && text.contains(&put), "{text}");
        };
        told(Config::new(of(&data), &options).unwrap_err());
        let config = Config::new(of(&directory.path().join("other")), &options).unwrap();
        told(config.reload().catalogue(of(directory.path())).await.unwrap_err());
        assert!(config.catalogue.get().get("x").unwrap().urls().all(|url| url.ends_with("other")), "it stays");
    }

    #[test]
    fn wrong_options_are_named() {
        let none = ServerOptions::default;
        for (options, what) in [
            (ServerOptions { drain_grace: Some(-1.0), ..none() }, "drain_grace"),
            (ServerOptions { drain_grace: Some(f64::NAN), ..none() }, "drain_grace"),
            (ServerOptions { gang_lease: Some(0.01), ..none() }, "gang_lease"),
            (ServerOptions { gang_lease: Some(f64::NAN), ..none() }, "gang_lease"),
            (ServerOptions { refresh: Some(-1.0), ..none() }, "refresh"),
            (ServerOptions { threads: Some(0), ..none() }, "threads"),
            (ServerOptions { threads: Some(1 << 32), ..none() }, "4294967296 is not a whole number from 1 to 4096"),
            (ServerOptions { max_streams: Some(0), ..none() }, "max_streams"),
            (ServerOptions { audit_log: Some(PathBuf::new()), ..none() }, "audit_log: is empty"),
            (ServerOptions { replicas: vec!["10.0.0.2:8815".into()], ..none() }, "replicas"),
            (ServerOptions { replicas: vec!["http://10.0.0.2:8815".into()], ..none() }, "grpc://"),
            (ServerOptions { replicas: vec!["grpc://10.0.0.2".into()], ..none() }, "port"),
            (ServerOptions { replicas: vec!["grpc://me:hidden@10.0.0.2:1".into()], ..none() }, "password"),
        ] {
            let error = Config::new(catalogue(), &options).unwrap_err().to_string();
            assert!(error.contains(what) && !error.contains("hidden"), "{error}");
        }
        assert!(Config::new(Catalogue::default(), &none()).is_err());
    }

    #[test]
    fn the_admin_port_is_another_one() {
        let of = |listen: Option<&str>, admin: &str| {
            let (listen, admin) = (listen.map(str::to_owned), Some(admin.to_owned()));
            ServerOptions { listen, admin, ..ServerOptions::default() }.validate()
        };
        for (listen, admin) in [
            (Some("127.0.0.1:9000"), "127.0.0.1:9000"),
            (Some("127.0.0.1:9000"), "9000"),
            (Some(":9000"), "9000"),
            (Some("127.0.0.1:9000"), ":9000"),
            (Some("127.0.0.1:9000"), "0.0.0.0:9000"),
            (Some("[::1]:9000"), "[::]:9000"),
            (Some("host.example:9000"), "host.example:9000"),
            (None, "8815"),
        ] {
            let error = of(listen, admin).unwrap_err().to_string();
            assert!(error.contains("option admin:") && error.contains("another port"), "{listen:?} {admin}: {error}");
        }
        for (listen, admin) in [
            (Some("127.0.0.1:0"), "127.0.0.1:0"),
            (Some("127.0.0.1:9000"), "127.0.0.1:9001"),
            (Some("127.0.0.2:9000"), "127.0.0.1:9000"),
            (Some("host.example:0"), "host.example:0"),
            (None, "0"),
        ] {
            of(listen, admin).unwrap_or_else(|error| panic!("{listen:?} {admin}: {error}"));
        }
    }
}
