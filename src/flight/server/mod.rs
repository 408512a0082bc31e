//! The server.
//!
//! | room | content |
//! |---|---|
//! | `access` | authentication, authorization and their records: [`auth`], [`certificate`], [`key`], [`secret`], [`tls`], [`space`], the audit log, refusals |
//! | `catalog` | the server's content: [`config`], [`file`](mod@file), [`catalogue`], [`entry`], watched files, open datasets |
//! | `stream` | streams of batches: shared production, memory, [`quota`], usage per tenant |
//! | `rpc` | the calls of Flight: `service` and `core`, bodies, incoming calls, writes, ranks on this host |
//! | [`cache`] | a served cache: another server, the home of its part of a cluster's blocks |
//! | `ops` | operation: [`limits`], [`connections`], health, [`admin`](mod@admin), [`metrics`], [`Background`] |

mod access;
pub mod cache;
mod catalog;
mod ops;
mod rpc;
mod stream;

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

pub use access::audit::Audit;
pub use access::auth::{Denied, Tenant, Tokens};
pub use access::key::TicketKey;
pub use access::{auth, certificate, key, secret, space, tls};
pub use cache::{CacheServer, CacheServerOptions};
pub use catalog::catalogue::{Catalogue, Current};
pub use catalog::config::{Config, Put, Reload};
pub use catalog::entry::{ClientLimits, Entry};
#[cfg(feature = "cli")]
pub(crate) use catalog::schema::schema;
pub use catalog::{catalogue, config, entry, file};
pub use ops::admin::{AdminState, admin};
pub use ops::background::Background;
pub use ops::limits::Limits;
pub use ops::snapshot::Snapshot;
pub use ops::{admin, connections, errors, limits, metrics, snapshot};
pub use rpc::writes::Writes;
pub use stream::quota;
pub use stream::quota::Quotas;

use self::access::auth_layer::AuthLayer;
use self::rpc::core::{Core, Parts};
use self::rpc::service::Service;
use self::stream::hangup::Hangups;
use super::gang::{Registry, RegistryOptions};
use crate::error::{Error, Result};
use crate::memory::SharedAllocator;

/// Time that a stopping server waits for the lines of its audit log.
const AUDIT_WAIT: Duration = Duration::from_secs(1);

/// Returns how long a drain may take that would last for `grace`. Members of gangs with a journal wait for the server's successor, which
/// starts once this one has ended, and give up after `lease`: they are not kept waiting for clients that do not read.
fn drain_time(grace: Duration, lease: Duration, journalled_members: u64) -> Duration {
    if journalled_members == 0 { grace } else { grace.min(lease / 4) }
}

/// Serves on `listener` until `shutdown` completes, then drains: reports not serving at once, tells streams where to continue, and
/// exits within the grace time.
///
/// # Errors
/// [`Error::Config`] if the server may not listen there or its certificates are wrong; [`Error::Remote`] if the transport fails.
pub async fn serve(listener: TcpListener, config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
    let address = listener.local_addr().map_err(|error| Error::config("listen", error.to_string()))?;
    config.check(address)?;
    serve_on(ops::connections::accepted(listener), &address.to_string(), config, shutdown).await
}

/// As [`serve`], on connections from any source: a simulated network, another kind of socket. The caller answers for their safety.
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
        tenants: config.has_tenants(),
        gangs_per_tenant: config.limits.gangs_per_tenant as usize,
        ranks_per_tenant: config.limits.gang_ranks_per_tenant as usize,
        ..RegistryOptions::default()
    };
    let mut shutdown = pin!(shutdown);
    let patience = config.lock_patience();
    let opening = async {
        let gangs = Registry::open_within(config.journal.clone(), gang_options, patience).await?;
        let staging = match &config.put {
            Some(put) => Some(put.open(config.memory_budget, config.quotas.written(), patience).await?),
            None => None,
        };
        Ok::<_, Error>((gangs, staging))
    };
    let (gangs, staging) = tokio::select! {
        biased;
        opened = opening => opened?,
        // Stopped while waiting for its predecessor.
        () = &mut shutdown => return Ok(()),
    };
    let (admin, grace, limits) = (Arc::clone(&config.admin), config.drain_grace, config.limits.clone());
    let (lease, has_journal) = (config.gang_lease, config.journal.is_some());
    let audit = config.audit.clone();
    let allocator = Arc::new(SharedAllocator::new().for_many());
    let listener = if config.shared_memory { rpc::local::listen(&allocator) } else { None };
    let hangups = Hangups::default();
    let parts = Parts {
        gangs,
        staging,
        socket: listener.as_ref().map(|listener| listener.name().to_owned()),
        shared: listener.is_some().then(|| Arc::clone(&allocator)),
        hangups: hangups.clone(),
        draining: stopped.clone(),
    };
    let core = Arc::new(Core::new(config, parts)?);
    let ranks_of_this_host = {
        let core = Arc::clone(&core);
        async move {
            match listener {
                Some(listener) => rpc::local::serve(listener, core, allocator).await,
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
            let (generations, members) = core.gangs.counts();
            metrics.gangs(generations, members);
            metrics.cache(&crate::store::cache::totals());
            metrics.hedged(&crate::store::origins());
            let (spent, lag) = core.ranks();
            metrics.ranks(spent, lag);
        }
    });
    let seen = Arc::downgrade(&core);
    admin.set_view(move || seen.upgrade().map(|core| core.snapshot(None)));
    let draining = Arc::clone(&core);
    let flight = FlightServiceServer::new(Service(Arc::clone(&core))).max_encoding_message_size(limits.message_bytes);
    let flight = AuthLayer::new(flight.max_decoding_message_size(limits.call_bytes()), core);
    let health = ops::health::Health::new(health, limits.handshake());
    let drain = async {
        shutdown.await;
        admin.set_draining();
        reporter.set_service_status("", ServingStatus::NotServing).await;
        stop.send_replace(true);
        let (_, members) = draining.gangs.counts();
        let patience = drain_time(grace, lease, if has_journal { members } else { 0 });
        if patience < grace {
            tracing::info!(
                members,
                "streams have {patience:?} to end, a quarter of gang_lease: gangs wait for the next server"
            );
        }
        tokio::time::sleep(patience).await;
        // Cuts off the peers that are still connected: those that read nothing keep a connection open for ever.
        cut.send_replace(true);
    };
    let incoming = ops::connections::admit(incoming, &limits, admin.metrics().clone(), cutting, hangups);
    let mut asked = stopped;
    let stopping = async move {
        // Its sender lives as long as this future.
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
    // Unwritten lines are lost with the process. Failing to start a thread does not change the result.
    let _ = tokio::task::spawn_blocking(move || audit.flush(AUDIT_WAIT)).await;
    ended
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gangs_with_a_journal_do_not_wait_for_clients_that_do_not_read() {
        let seconds = Duration::from_secs;
        for (grace, lease, members, expected) in
            [(30, 10, 0, 30_000), (30, 10, 2, 2500), (1, 10, 2, 1000), (30, 200, 2, 30_000)]
        {
            assert_eq!(drain_time(seconds(grace), seconds(lease), members), Duration::from_millis(expected));
        }
    }
}
