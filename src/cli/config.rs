//! `bowstring config show|schema|check`: the configuration of `bowstring serve` without a server.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{ArgMatches, Command, Parser, Subcommand};
use serde::Serialize;

use crate::Error;
use crate::cli::daemon::{checked, resolve};
use crate::cli::effective::{Effective, Sources};
use crate::cli::out::{Out, Outcome, tell};
use crate::cli::settings::{Settings, left_out, read};
use crate::cli::table::{plain, plural};
use crate::flight::server::config::{ServerOptions, something};
use crate::flight::server::file::{ServeFile, lines};
use crate::flight::server::{Audit, Config, schema};
use crate::store::Mount;

/// Options of `config`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Print the configuration of a server with the same arguments: each value with its source, secrets hidden
    Show(Box<ShowArgs>),
    /// Print the JSON Schema of the configuration file
    Schema,
    /// Check a configuration file as a server does at start; exit code 2 if it would not start
    Check(Box<CheckArgs>),
}

/// Options of `config show`.
#[derive(Debug, Parser)]
struct ShowArgs {
    /// Datasets, as of `serve`
    #[arg(value_name = "[NAME=]URL")]
    datasets: Vec<String>,
    /// TOML file of datasets and server options
    #[arg(long, env = "BOWSTRING_CONFIG", value_name = "FILE", hide_env_values = true)]
    config: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// Options of `config check`.
#[derive(Debug, Parser)]
struct CheckArgs {
    /// The file
    file: PathBuf,
    /// Read the files that it names, resolve addresses and open each dataset too
    #[arg(long)]
    open: bool,
    #[command(flatten)]
    settings: Settings,
}

/// Runs the verb, whose definition is `command`; `matches` are its arguments.
pub(crate) fn run(args: &Args, command: &Command, matches: &ArgMatches, out: &mut Out) -> Outcome {
    match &args.what {
        What::Show(args) => show(args, command, matches, out),
        // It is JSON in any case.
        What::Schema => out.document(&schema()),
        What::Check(args) => check(args, out),
    }
}

fn show(args: &ShowArgs, command: &Command, matches: &ArgMatches, out: &mut Out) -> Outcome {
    let file = args.settings.merged(args.config.as_deref(), &args.datasets)?;
    file.server.validate()?;
    let text = args.config.as_deref().map(read).transpose()?.unwrap_or_default();
    let name = args.config.as_deref().map(Path::display).map(|name| name.to_string()).unwrap_or_default();
    let sources = Sources::new(name, lines(&text));
    let sources = match (command.find_subcommand("show"), matches.subcommand_matches("show")) {
        (Some(command), Some(matches)) => sources.typed(command, matches),
        _ => sources,
    };
    out.report(&Effective::of(&file, &sources))
}

/// A file that a server would start with.
#[derive(Debug, Serialize)]
struct Checked {
    file: String,
    datasets: Vec<String>,
    mounts: Vec<String>,
    /// True if the datasets were opened.
    opened: bool,
    /// True if a server would have something to serve: a file may have mounts alone.
    #[serde(skip)]
    serves: bool,
}

fn check(args: &CheckArgs, out: &mut Out) -> Outcome {
    let file = args.settings.merged(Some(&args.file), &[])?;
    if let Some(left) = left_out() {
        tell(&format!("warning: {left}\n"));
    }
    let server = &file.server;
    server.validate()?;
    let shown = args.file.display().to_string();
    let mounts = file.catalogue.mounts().cloned();
    let has_mounts = mounts.as_ref().is_some_and(|mounts| mounts.origin() == shown);
    let serves = !file.catalogue.is_empty() || server.put.is_some();
    if serves || !has_mounts {
        something(&file.catalogue, server.put.is_some())?;
    }
    if let Some(address) = checked("listen", server.listen())? {
        server.may_listen(address)?;
    }
    if let Some(admin) = server.admin.as_deref().filter(|admin| admin.parse::<u16>().is_err()) {
        checked("admin", admin)?;
    }
    let datasets = file.catalogue.names().map(str::to_owned).collect();
    if args.open && serves {
        open(file)?;
    }
    let mounts = mounts.iter().flat_map(|mounts| mounts.iter()).map(Mount::url).collect();
    out.report(&Checked { file: shown, datasets, mounts, opened: args.open && serves, serves })
}

/// Reads what a server reads before it listens, and writes nothing.
fn open(file: ServeFile) -> crate::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Closed { why: format!("no runtime can be started: {error}") })?;
    let opened = runtime.block_on(async {
        // Opening an audit log makes its file.
        let audit = file.server.audit_log;
        let server = ServerOptions { audit_log: None, ..file.server };
        let config = Config::new(file.catalogue, &server)?;
        audit.as_deref().map_or(Ok(()), Audit::check)?;
        for address in resolve("listen", server.listen()).await? {
            config.check(address)?;
        }
        config.catalogue.get().check().await
    });
    // Reads in system calls may hang; the end of the process ends them.
    runtime.shutdown_background();
    opened
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, mounts) = (plain(&self.file), plural(self.mounts.len() as u64, "mount"));
        if !self.serves {
            return writeln!(f, "{file}: {mounts}");
        }
        let opened = if self.opened { ", opened" } else { "" };
        let mounts = if self.mounts.is_empty() { String::new() } else { format!(" and {mounts}") };
        let datasets = plural(self.datasets.len() as u64, "dataset");
        writeln!(f, "{file}: a server would start with {datasets}{mounts}{opened}")
    }
}
