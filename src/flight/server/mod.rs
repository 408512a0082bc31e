//! The server.
//!
//! | part | what it is |
//! |---|---|
//! | [`config`], [`file`](mod@file) | everything the server is started with; the TOML it may come from |
//! | [`catalogue`], [`entry`], `pictures` | datasets by name, and what a client may ask of each |
//! | [`auth`], [`certificate`], [`key`], [`secret`] | who may come in, what tickets are signed with, and what is never printed |
//! | `watched` | files that change while the server runs |
//! | [`space`] | whose names of gangs and of written datasets are whose |
//! | [`tls`] | certificates, and where the server may listen without them |
//! | [`limits`], [`connections`], [`quota`] | what one peer can take from the others: nothing |
//! | [`admin`](mod@admin), [`metrics`] | what operators see |
//! | `audit`, `refusals` | what callers did, for those who ask later; how often they may be refused |
//! | `auth_layer`, `incoming`, `health` | authentication: who may call, and what a request may take |
//! | `service`, `body` | the protocol: the calls, batches as messages |
//! | `local`, `put`, `rows` | batches through shared memory; datasets that are written; rows as they are stored |
//! | [`Background`], [`Writes`] | a server within a process that does other things, and what that puts into it |
//! | `core`, `dataset_cache`, `openings`, `shared_streams`, `shared_stream`, `shared_plan` | what is offered, what is open or on its way there, who shares the decoding of it |
//! | `budget`, `revocable` | in which memory, and whose turn it is |

pub mod admin;
mod audit;
pub mod auth;
mod auth_layer;
mod background;
mod body;
mod budget;
pub mod catalogue;
pub mod certificate;
pub mod config;
pub mod connections;
mod core;
mod dataset_cache;
pub mod entry;
pub mod file;
mod health;
mod incoming;
pub mod key;
pub mod limits;
mod local;
pub mod metrics;
mod openings;
mod pictures;
mod put;
pub mod quota;
mod refusals;
mod revocable;
mod rows;
pub mod secret;
mod service;
mod shared_plan;
mod shared_stream;
mod shared_streams;
pub mod space;
pub mod tls;
mod usage;
mod watched;
mod writes;

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use futures::Stream;
use futures::future::Either;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic_health::ServingStatus;

pub use admin::{AdminState, admin};
pub use audit::Audit;
pub use auth::{Denied, Tenant, Tokens};
pub use background::Background;
pub use catalogue::Catalogue;
pub use config::{Config, Put};
pub use entry::{ClientLimits, Entry};
pub use key::TicketKey;
pub use limits::Limits;
pub use quota::Quotas;
pub use writes::Writes;

use self::auth_layer::AuthLayer;
use self::core::{Core, Parts};
use self::service::Service;
use super::gang::{Registry, RegistryOptions};
use crate::error::{Error, Result};
use crate::memory::SharedAllocator;

/// How long the end of a server waits for lines of its audit log.
const AUDIT_WAIT: Duration = Duration::from_secs(1);

/// Serves on `listener` until `shutdown` is done, then drains: not serving at once, streams told where to go on, out within the
/// grace time.
///
/// # Errors
/// [`Error::Config`] if the server may not listen there or its certificates are wrong; [`Error::Remote`] if the transport fails.
pub async fn serve(listener: TcpListener, config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
    let address = listener.local_addr().map_err(|error| Error::config("listen", error.to_string()))?;
    config.check(address)?;
    serve_on(connections::accepted(listener), &address.to_string(), config, shutdown).await
}

/// As [`serve`], on connections that come from anywhere: a simulated network, a socket of another kind. Whether they are safe is
/// the caller's affair.
///
/// # Errors
/// As [`serve`].
pub async fn serve_on<IO>(
    incoming: impl Stream<Item = io::Result<IO>> + Send,
    address: &str,
    config: Config,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<()>
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let mut server = config.limits.apply(Server::builder());
    let tls = config.tls.clone();
    let (reporter, health) = tonic_health::server::health_reporter();
    let (stop, stopped) = watch::channel(false);
    let (cut, cutting) = watch::channel(false);
    let gang_options = RegistryOptions {
        lease: config.gang_lease,
        grace: config.gang_lease,
        gangs_per_tenant: config.limits.gangs_per_tenant as usize,
        ranks_per_tenant: config.limits.gang_ranks_per_tenant as usize,
        ..RegistryOptions::default()
    };
    let mut shutdown = pin!(shutdown);
    let patience = config.lock_patience();
    let opening = async {
        let gangs = Registry::open_within(config.journal.clone(), gang_options, patience).await?;
        let staging = match &config.put {
            Some(put) => Some(put.open(config.memory_budget, patience).await?),
            None => None,
        };
        Ok::<_, Error>((gangs, staging))
    };
    let (gangs, staging) = tokio::select! {
        biased;
        opened = opening => opened?,
        // Told to end while it waited for the one before it.
        () = &mut shutdown => return Ok(()),
    };
    let (admin, grace, limits) = (Arc::clone(&config.admin), config.drain_grace, config.limits.clone());
    let audit = config.audit.clone();
    let allocator = Arc::new(SharedAllocator::new().for_many());
    let listener = if config.shared_memory { local::listen(&allocator) } else { None };
    let parts = Parts {
        gangs,
        staging,
        socket: listener.as_ref().map(|listener| listener.name().to_owned()),
        shared: listener.is_some().then(|| Arc::clone(&allocator)),
        draining: stopped.clone(),
    };
    let core = Arc::new(Core::new(config, parts)?);
    let ranks_of_this_host = {
        let core = Arc::clone(&core);
        async move {
            match listener {
                Some(listener) => local::serve(listener, core, allocator).await,
                None => std::future::pending().await,
            }
        }
    };
    let seen = Arc::downgrade(&core);
    admin.set_probe(move |metrics| {
        if let Some(core) = seen.upgrade() {
            let (used, budget) = core.memory();
            metrics.memory(used, budget);
            let (row_groups, rows) = core.decoded();
            metrics.decoded(row_groups, rows);
        }
    });
    let flight = FlightServiceServer::new(Service(Arc::clone(&core))).max_encoding_message_size(limits.message_bytes);
    let flight = AuthLayer::new(flight.max_decoding_message_size(limits.call_bytes()), core);
    let health = health::Health::new(health, limits.handshake());
    let drain = async {
        shutdown.await;
        admin.set_draining();
        reporter.set_service_status("", ServingStatus::NotServing).await;
        stop.send_replace(true);
        tokio::time::sleep(grace).await;
        // Whoever has not left by now is cut off: peers that read nothing keep a connection open for ever.
        cut.send_replace(true);
    };
    let incoming = connections::admit(incoming, &limits, admin.metrics().clone(), cutting);
    let mut asked = stopped;
    let stopping = async move {
        // The sender lives as long as this.
        let _ = asked.wait_for(|stopped| *stopped).await;
    };
    let router = server.add_service(health).add_service(flight);
    let serving = match tls {
        Some(tls) => Either::Left(router.serve_with_incoming_shutdown(tls.secured(incoming), stopping)),
        None => Either::Right(router.serve_with_incoming_shutdown(incoming, stopping)),
    };
    admin.set_ready();
    let ended = tokio::select! {
        ended = serving => ended.map_err(|error| Error::Remote {
            peer: address.to_owned(),
            what: "serving failed".to_owned(),
            source: Some(Box::new(error)),
        }),
        () = drain => Ok(()),
        () = ranks_of_this_host => Ok(()),
    };
    // Its lines are lost with the process. A thread that cannot be had is no reason to end otherwise.
    let _ = tokio::task::spawn_blocking(move || audit.flush(AUDIT_WAIT)).await;
    ended
}
