//! The server.
//!
//! | part | what it is |
//! |---|---|
//! | [`config`], [`file`](mod@file) | everything the server is started with; the TOML it may come from |
//! | [`catalogue`], [`entry`] | datasets by name, and what a client may ask of each |
//! | [`auth`], [`certificate`], [`secret`] | who may come in, and what is never printed |
//! | [`tls`] | certificates, and where the server may listen without them |
//! | [`limits`], [`connections`], [`quota`] | what one peer can take from the others: nothing |
//! | [`admin`], [`metrics`] | what operators see |

pub mod admin;
pub mod auth;
pub mod catalogue;
pub mod certificate;
pub mod config;
pub mod connections;
pub mod entry;
pub mod file;
pub mod limits;
pub mod metrics;
pub mod quota;
pub mod secret;
pub mod tls;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic_health::ServingStatus;

pub use admin::{AdminState, admin};
pub use auth::{Denied, Tenant, TicketKey, Tokens};
pub use catalogue::Catalogue;
pub use config::Config;
pub use entry::{ClientLimits, Entry};
pub use limits::Limits;
pub use quota::Quotas;

use crate::error::{Error, Result};

/// Serves on `listener` until `shutdown` is done, then drains: not serving at once, out within the grace time.
///
/// # Errors
/// [`Error::Config`] if the server may not listen there or its certificates are wrong; [`Error::Remote`] if the transport fails.
pub async fn serve(listener: TcpListener, config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<()> {
    let address = listener.local_addr().map_err(|error| Error::config("listen", error.to_string()))?;
    config.check(address)?;
    let mut server = config.limits.apply(Server::builder());
    if let Some(tls) = &config.tls {
        server = server.tls_config(tls.clone()).map_err(|error| tls::refused("the configuration", &error))?;
    }
    let (reporter, health) = tonic_health::server::health_reporter();
    let admin = Arc::clone(&config.admin);
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let drain = async {
        shutdown.await;
        admin.set_draining();
        reporter.set_service_status("", ServingStatus::NotServing).await;
        stop.send_replace(true);
        tokio::time::sleep(config.drain_grace.min(Duration::from_secs(3600))).await;
    };
    let incoming = connections::admit(connections::accepted(listener), &config.limits, config.admin.metrics().clone());
    config.admin.metrics().memory(0, config.memory_budget);
    config.admin.set_ready();
    let serving = server.serve_with_incoming_shutdown(health, incoming, async move {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    });
    tokio::select! {
        ended = serving => ended.map_err(|error| Error::Remote {
            peer: address.to_string(),
            what: "serving failed".to_owned(),
            source: Some(Box::new(error)),
        }),
        () = drain => Ok(()),
    }
}
