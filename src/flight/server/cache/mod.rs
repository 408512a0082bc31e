//! A served cache: the home of its part of a cluster's blocks, for the readers of all hosts.
//!
//! It is a server of its own, beside those of datasets, with tokens of its own. A caller may read each block whose name it knows and give
//! blocks that it says are those of a store; a client of datasets may do neither.

mod door;
mod leases;
mod service;
mod turns;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use futures::future::Either;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic_health::ServingStatus;

use self::door::{Door, Guard};
use self::service::{Home, Service};
use super::access::auth::Tokens;
use super::access::tls::{ServerTls, TlsFiles, may_listen};
use super::ops::admin::AdminState;
use super::ops::connections;
use super::ops::health::Health;
use super::ops::limits::Limits;
use super::stream::hangup::Hangups;
use crate::error::{Error, Result};
use crate::store::cache::cluster::wire;
use crate::store::cache::{Cache, totals};

/// Calls of one reader at once: leases last as long as fetches.
const CALLS: u32 = 1024;
/// Time that calls may take after the server was told to end; readers ask another home, or the origin.
const GRACE: Duration = Duration::from_secs(2);

/// Address that a cache is served at by default.
pub const LISTEN: &str = "127.0.0.1:8816";

/// Options of a served cache.
#[derive(Debug, Clone, Default)]
pub struct CacheServerOptions {
    /// A directory of this machine, which loaders of this machine may use as well, or `memory`.
    pub place: String,
    /// Most bytes that it may take; by default half of the free space on its disk.
    pub bytes: Option<u64>,
    /// File of tokens, as that of a server of datasets.
    pub tokens: Option<PathBuf>,
    /// The files of its TLS.
    pub tls: Option<TlsFiles>,
    /// Serve everybody who can reach the address.
    pub insecure: bool,
    /// File of tokens for its counters.
    pub admin_tokens: Option<PathBuf>,
}

/// A served cache, ready to be served.
#[derive(Debug, Clone)]
pub struct CacheServer {
    cache: Arc<Cache>,
    guard: Guard,
    tls: Option<ServerTls>,
    insecure: bool,
    limits: Limits,
    /// What operators see.
    pub admin: Arc<AdminState>,
}

impl CacheServer {
    /// Opens the cache, and reads tokens and certificates.
    ///
    /// # Errors
    /// As [`Cache::open`]; [`Error::Config`] naming the file that is wrong.
    pub fn new(options: &CacheServerOptions) -> Result<Self> {
        let limits = Limits { streams_per_connection: CALLS, ..Limits::default() };
        let admin = Arc::new(AdminState::new());
        if let Some(path) = &options.admin_tokens {
            admin.set_tokens(Tokens::from_file(path)?);
        }
        admin.set_probe(|metrics| metrics.cache(&totals()));
        Ok(Self {
            cache: Cache::open(&options.place, options.bytes)?,
            guard: Guard {
                tokens: options.tokens.as_ref().map(Tokens::from_file).transpose()?,
                client_ca: options.tls.as_ref().is_some_and(|files| files.client_ca.is_some()),
            },
            tls: options.tls.as_ref().map(|files| files.server(limits.handshake())).transpose()?,
            insecure: options.insecure,
            limits,
            admin,
        })
    }

    /// Checks that it may listen at `address`.
    ///
    /// # Errors
    /// As [`may_listen`].
    pub fn check(&self, address: SocketAddr) -> Result<()> {
        may_listen(address, self.tls.is_some(), self.guard.tokens.is_some() || self.guard.client_ca, self.insecure)
    }

    /// Returns true if it speaks TLS.
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// The cache.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Serves on `listener` until `shutdown` completes.
    ///
    /// # Errors
    /// [`Error::Config`] if it may not listen there; [`Error::Remote`] if the transport fails.
    pub async fn serve(self, listener: TcpListener, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
        let address = listener.local_addr().map_err(|error| Error::config("listen", error.to_string()))?;
        self.check(address)?;
        let mut server = self.limits.apply(Server::builder());
        let (reporter, health) = tonic_health::server::health_reporter();
        let health = Health::new(health, self.limits.handshake());
        let (stop, mut stopped) = watch::channel(false);
        let (cut, cutting) = watch::channel(false);
        let metrics = self.admin.metrics().clone();
        let hangups = Hangups::default();
        let home = Arc::new(Home::new(Arc::clone(&self.cache), hangups.clone()));
        let incoming =
            connections::admit(connections::accepted(listener), &self.limits, metrics, cutting, hangups.clone());
        let service = FlightServiceServer::new(Service(home))
            .max_decoding_message_size(wire::MESSAGE)
            .max_encoding_message_size(wire::MESSAGE);
        let (admin, tls) = (Arc::clone(&self.admin), self.tls.clone());
        let router = server.add_service(health).add_service(Door::new(
            service,
            self.guard,
            &self.limits,
            self.admin.metrics().clone(),
            hangups,
        ));
        let stopping = async move {
            // Its sender lives as long as this future.
            let _ = stopped.wait_for(|stopped| *stopped).await;
        };
        let serving = match tls {
            Some(tls) => Either::Left(router.serve_with_incoming_shutdown(tls.secured(incoming), stopping)),
            None => Either::Right(router.serve_with_incoming_shutdown(incoming, stopping)),
        };
        let mut shutdown = pin!(shutdown);
        let drain = async {
            shutdown.as_mut().await;
            admin.set_draining();
            reporter.set_service_status("", ServingStatus::NotServing).await;
            stop.send_replace(true);
            tokio::time::sleep(GRACE).await;
            cut.send_replace(true);
        };
        admin.set_ready();
        tokio::select! {
            ended = serving => ended.map_err(|error| Error::Remote {
                peer: address.to_string(),
                what: "serving failed".to_owned(),
                source: Some(Box::new(error)),
            }),
            () = drain => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::LISTEN;
    use crate::store::cache::cluster::PORT;

    #[test]
    fn servers_and_readers_have_one_default_port() {
        assert!(LISTEN.ends_with(&format!(":{PORT}")));
    }
}
