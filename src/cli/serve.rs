//! `bowstring serve [NAME=]URL...`: serves datasets to ranks until a signal ends it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use tokio::runtime::Handle;

use crate::flight::server::config::{Reload, ServerOptions};
use crate::flight::server::file::ServeFile;
use crate::flight::server::{self, Config};
use crate::{Error, Result};

use crate::cli::daemon::{Addresses, AdminPort, LogFormat, bind, local, open_files, resolve};
use crate::cli::out::{Failure, Out, Outcome};
use crate::cli::settings::{Settings, left_out};
use crate::cli::signals::Signals;

/// Time after the grace time within which streams are cut and the process ends.
const AFTER_GRACE: Duration = Duration::from_secs(1);

/// Options of `serve`.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Args {
    /// Datasets: files, directories, globs or URLs, each named before `=` or by its last part; a repeated name
    /// adds to one dataset
    #[arg(value_name = "[NAME=]URL", required_unless_present_any = ["config", "put"])]
    datasets: Vec<String>,
    /// TOML file of datasets and server options; flags and environment override it. SIGHUP reads its datasets again
    #[arg(long, env = "BOWSTRING_CONFIG", value_name = "FILE", hide_env_values = true)]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
    /// Format of the log on standard error
    #[arg(long, env = "BOWSTRING_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, hide_env_values = true)]
    pub(crate) log_format: LogFormat,
    /// Print the addresses, with the actual port for port 0
    #[arg(long)]
    print_address: bool,
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    let file = args.merged()?;
    if let Some(left) = left_out() {
        tracing::warn!("{left}");
    }
    open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Closed { why: format!("no runtime can be started: {error}") })?;
    let outcome = runtime.block_on(serve(args, file, out));
    // Reads in system calls may hang; the end of the process ends them.
    runtime.shutdown_background();
    outcome
}

impl Args {
    fn merged(&self) -> Result<ServeFile> {
        self.settings.merged(self.config.as_deref(), &self.datasets)
    }
}

async fn serve(args: &Args, file: ServeFile, out: &mut Out) -> Outcome {
    // First of all, so that a signal during startup does not have its default effect, a sudden end.
    let mut signals = Signals::new()?;
    let config = Config::new(file.catalogue, &file.server)?;
    let reload = config.reload();
    let mut hangup = signals.hangup.take();
    let again = (args.clone(), file.server.clone(), reload, Handle::current());
    tokio::spawn(async move {
        while let Some(signal) = &mut hangup
            && signal.recv().await.is_some()
        {
            tracing::info!("told to read its files again");
            let (args, before, reload, runtime) = again.clone();
            let _ = tokio::task::spawn_blocking(move || read_again(&args, &before, &reload, &runtime)).await;
        }
    });
    let listen = file.server.listen();
    // Checked before the port is bound, so that no client connects in between.
    for address in resolve("listen", listen).await? {
        config.check(address)?;
    }
    // Errors are reported here rather than to the first client.
    let catalogue = config.catalogue.get();
    tokio::select! {
        checked = catalogue.check() => checked?,
        _ = signals.next() => return Ok(()),
    }
    let listener = bind("listen", listen).await?;
    let address = local(&listener, "listen")?;
    let scheme = if config.tls.is_some() { "grpc+tls" } else { "grpc" };
    let grace = config.drain_grace;

    let admin = AdminPort::open(file.server.admin.as_deref(), Arc::clone(&config.admin)).await?;
    let names: Vec<&str> = catalogue.names().collect();
    tracing::info!(
        %address,
        admin = admin.address().map(tracing::field::display),
        tls = config.tls.is_some(),
        client_certificates = config.client_ca,
        tokens = config.tokens.is_some(),
        datasets = names.join(", "),
        "serving"
    );
    if config.insecure {
        tracing::warn!("--insecure: whoever can reach the address is served");
    }
    if args.print_address {
        Addresses::new(format!("{scheme}://{address}"), admin.address()).print(out)?;
    }

    let (first, told) = tokio::sync::oneshot::channel::<()>();
    let (begin, drained) = tokio::sync::oneshot::channel::<()>();
    let shutdown = async {
        let _ = told.await;
        let _ = begin.send(());
    };
    let outcome = tokio::select! {
        ended = server::serve(listener, config, shutdown) => ended.map_err(Failure::Error),
        code = signals.watch(first) => {
            tracing::warn!("told to end a second time: ending at once");
            Err(Failure::Told(code))
        }
        () = late(drained, grace + AFTER_GRACE) => {
            tracing::warn!(seconds = grace.as_secs_f64(), "the grace time is over: the last streams are cut");
            Ok(())
        }
    };
    // The admin port lives until the last stream has ended, to show why the process is still running.
    admin.end().await;
    if outcome.is_ok() {
        tracing::info!("ended");
    }
    outcome
}

/// Reads tokens, keys and certificates again, and the datasets that the configuration names now; wrong ones keep their former state.
/// `before` is the configuration of the server itself, which stays until the process ends. Blocks meanwhile.
fn read_again(args: &Args, before: &ServerOptions, reload: &Reload, runtime: &Handle) {
    reload.now();
    let taken = args.merged().and_then(|file| {
        if file.server != *before {
            tracing::warn!("the configuration of the server itself changed: restart it for that");
        }
        let names = file.catalogue.names().collect::<Vec<_>>().join(", ");
        runtime.block_on(reload.catalogue(file.catalogue)).map(|()| names)
    });
    match taken {
        Ok(datasets) => tracing::info!(datasets, "the catalogue was read again"),
        Err(error) => {
            tracing::error!(error = %error.chain(), "the catalogue is wrong; what was there before stays");
        }
    }
}

/// Completes when `time` has passed after `drained`.
async fn late(drained: tokio::sync::oneshot::Receiver<()>, time: Duration) {
    match drained.await {
        Ok(()) => tokio::time::sleep(time).await,
        // The server ended by itself.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_go_before_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "[server]\nlisten = \"127.0.0.1:1\"\nthreads = 3\ntls = { cert = \"c\", key = \"k\" }\n[datasets.d]\nurl = \"u\"";
        std::fs::write(&file, text).unwrap();
        let parse = |more: &[&str]| {
            let args = Args::try_parse_from([&["serve", "--config", file.path().to_str().unwrap()], more].concat());
            args.unwrap().merged()
        };
        let merged = parse(&["--listen", "127.0.0.1:2", "--memory-budget", "1GiB", "--client-ca", "a", "e=x"]).unwrap();
        assert_eq!(merged.server.listen.as_deref(), Some("127.0.0.1:2"));
        assert_eq!((merged.server.threads, merged.server.memory_budget), (Some(3), Some(1 << 30)));
        assert_eq!(merged.server.tls.unwrap().client_ca, Some("a".into()));
        assert_eq!(merged.catalogue.names().collect::<Vec<_>>(), ["d", "e"]);
        assert_eq!((merged.server.insecure, merged.server.shared_memory), (false, None));
        std::fs::write(&file, text.replace("listen", "insecure = true\nlisten")).unwrap();
        for (flag, insecure) in
            // Nothing, as of an empty variable, leaves the file's.
            [
                ("--threads=3", true),
                ("--insecure", true),
                ("--insecure=", true),
                ("--insecure=false", false),
                ("--insecure=0", false),
            ]
        {
            assert_eq!(parse(&[flag]).unwrap().server.insecure, insecure, "{flag}");
        }
        assert!(Args::try_parse_from(["serve", "x=y", "--insecure=flase"]).is_err());
        let without = Args::try_parse_from(["serve", "x=y", "--tls-cert", "c"]).unwrap();
        assert!(without.merged().unwrap_err().to_string().contains("--tls-key"));
        assert!(Args::try_parse_from(["serve"]).is_err());
    }
}
