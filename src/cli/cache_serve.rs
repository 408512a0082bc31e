//! `bowstring cache serve DIR`: serves a cache to other hosts, as the home of its part of a cluster's blocks, until a signal ends it.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Parser;

use crate::flight::server::cache::{CacheServer, CacheServerOptions, LISTEN};
use crate::store::cache::MEMORY;
use crate::store::{at_home, path_at_home};
use crate::{Error, Result};

use crate::cli::args::bytes;
use crate::cli::daemon::{Access, Addresses, AdminPort, LogFormat, bind, local, open_files, resolve};
use crate::cli::out::{Failure, Out, Outcome};
use crate::cli::signals::Signals;

/// Options of `cache serve`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// The directory, which loaders of this machine may use as well; or `memory`
    #[arg(value_name = "DIR")]
    directory: String,
    /// Bytes that it may take; by default half of what is free on its disk, e.g. 500GiB
    #[arg(long, env = "BOWSTRING_CACHE_BYTES", value_name = "BYTES", value_parser = bytes, hide_env_values = true)]
    cache_bytes: Option<u64>,
    /// Address and port for the readers of other hosts; `:8816` is every interface [default: 127.0.0.1:8816]
    #[arg(long, env = "BOWSTRING_CACHE_LISTEN", value_name = "ADDR", hide_env_values = true)]
    listen: Option<String>,
    #[command(flatten)]
    access: Access,
    /// File of tokens, one `name:token` or `name:sha256:<hex>` per line; whoever has one may read and write blocks
    #[arg(long, env = "BOWSTRING_CACHE_TOKENS", value_name = "FILE", hide_env_values = true)]
    tokens: Option<PathBuf>,
    /// Format of the log on standard error
    #[arg(long, env = "BOWSTRING_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, hide_env_values = true)]
    pub(crate) log_format: LogFormat,
    /// Print the addresses, with the actual port for port 0
    #[arg(long)]
    print_address: bool,
}

impl Args {
    fn options(&self) -> Result<CacheServerOptions> {
        let place = if self.directory == MEMORY { MEMORY.to_owned() } else { at_home(&self.directory) };
        Ok(CacheServerOptions {
            place,
            bytes: self.cache_bytes,
            tokens: self.tokens.as_deref().map(path_at_home),
            tls: self.access.tls(None)?,
            insecure: self.access.insecure().unwrap_or_default(),
            admin_tokens: self.access.admin_tokens.as_deref().map(path_at_home),
        })
    }
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Closed { why: format!("no runtime can be started: {error}") })?;
    let outcome = runtime.block_on(serve(args, out));
    runtime.shutdown_background();
    outcome
}

async fn serve(args: &Args, out: &mut Out) -> Outcome {
    let mut signals = Signals::new()?;
    let server = CacheServer::new(&args.options()?)?;
    let listen = args.listen.as_deref().unwrap_or(LISTEN);
    // Checked before the port is bound, so that nobody connects in between.
    for address in resolve("listen", listen).await? {
        server.check(address)?;
    }
    let listener = bind("listen", listen).await?;
    let address = local(&listener, "listen")?;
    let admin = AdminPort::open(args.access.admin.as_deref(), Arc::clone(&server.admin)).await?;
    let scheme = if server.is_encrypted() { "grpc+tls" } else { "grpc" };
    tracing::info!(%address, cache = args.directory, bytes = server.cache().limit(), "serving a cache");
    if args.access.insecure() == Some(true) {
        tracing::warn!("--insecure: whoever can reach the address may read and write blocks");
    }
    if args.print_address {
        Addresses::new(format!("{scheme}://{address}"), admin.address()).print(out)?;
    }
    let (first, told) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async {
        let _ = told.await;
    };
    let outcome = tokio::select! {
        ended = server.serve(listener, shutdown) => ended.map_err(Failure::Error),
        code = signals.watch(first) => Err(Failure::Told(code)),
    };
    admin.end().await;
    outcome
}
