//! `bowstring mount URL DIR`: a directory of a store as a directory of this machine, until a signal ends it.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use serde::Serialize;

use crate::store::{FileSystem, Mounted};
use crate::{Error, Result};

use crate::cli::args::StoreArgs;
use crate::cli::out::{Out, Outcome, tell};
use crate::cli::signals::Signals;

/// Time between two looks at whether somebody else has unmounted it.
const LOOK: Duration = Duration::from_millis(200);

/// Options of `mount`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    store: StoreArgs,
    /// An empty directory of this machine, where the files appear, to read
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Seconds for which what the store says of a file or directory is believed
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    metadata_ttl: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    url: String,
    directory: PathBuf,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "{} is mounted on {}; Ctrl-C unmounts it", self.url, self.directory.display())
    }
}

impl Args {
    fn ttl(&self) -> Result<Duration> {
        let ttl = Duration::try_from_secs_f64(self.metadata_ttl);
        ttl.map_err(|error| Error::config("metadata_ttl", format!("{}: {error}", self.metadata_ttl)))
    }
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Closed { why: format!("no runtime can be started: {error}") })?;
    // Caught from here on: a signal leaves nothing mounted, unless to unmount it fails.
    let mut signals = {
        let _within = runtime.enter();
        Signals::new()?
    };
    let (url, options) = args.store.options()?;
    let mut mounted = Mounted::new(FileSystem::new(options)?, &url, &args.directory, args.ttl()?)?;
    out.report(&Report { url, directory: args.directory.clone() })?;
    runtime.block_on(over_or_signal(&mounted, &mut signals));
    if !mounted.detach()? {
        tell(&format!(
            "{} is unmounted; it is still in use, and served until its files are closed: another signal ends that\n",
            args.directory.display()
        ));
        runtime.block_on(over_or_signal(&mounted, &mut signals));
    }
    Ok(mounted.end()?)
}

async fn over_or_signal(mounted: &Mounted, signals: &mut Signals) {
    let over = async {
        while !mounted.is_over() {
            tokio::time::sleep(LOOK).await;
        }
    };
    tokio::select! {
        () = over => {}
        _ = signals.next() => {}
    }
}
