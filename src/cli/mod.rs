//! The `bowstring` command line: one verb per file, results on standard output, everything else on standard error.
//!
//! It is a function, shared by the binary and the command of the Python package.

mod advice;
mod args;
mod audit;
mod bar;
mod bench;
mod cache;
#[cfg(feature = "flight")]
mod cache_serve;
mod certify;
mod completions;
#[cfg(feature = "flight")]
mod config;
#[cfg(feature = "convert")]
mod convert;
#[cfg(feature = "flight")]
mod daemon;
mod demo;
mod doctor;
#[cfg(feature = "flight")]
mod effective;
#[cfg(feature = "cuda")]
mod gpu;
mod html;
mod index;
mod inspect;
mod interrupt;
mod leaf;
mod man;
#[cfg(all(feature = "fuse", target_os = "linux"))]
mod mount;
mod out;
mod plan;
mod program;
#[cfg(feature = "flight")]
mod serve;
#[cfg(feature = "flight")]
mod served;
#[cfg(feature = "flight")]
mod settings;
mod signals;
#[cfg(feature = "convert")]
mod streams;
mod table;
#[cfg(feature = "flight")]
mod top;
#[cfg(feature = "convert")]
mod verify;
mod warm;

use std::error::Error as _;
use std::ffi::OsString;
use std::io::{self, IsTerminal};

use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing::Dispatch;
use tracing_subscriber::EnvFilter;

use crate::pipeline::option_table::misspelling;
use out::{Failure, Out, Outcome, tell};

pub use program::Program;

/// Parquet to training batches.
#[derive(Debug, Parser)]
#[command(name = "bowstring", version, max_term_width = 100, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// Print one JSON document instead of text
    #[arg(long, global = true)]
    json: bool,
    /// Print no report and no progress: errors, warnings, the exit code, and what --json, --html or --print-address asks for
    #[arg(short, long, global = true)]
    quiet: bool,
    /// Log to standard error: -v events, -vv reasons, -vvv everything (BOWSTRING_LOG overrides)
    #[arg(short, long, global = true, action = ArgAction::Count)]
    verbose: u8,
}

const EXIT_CODES: &str = "Exit codes: 0 done, 1 stopped, 2 usage, 3 data, 4 store, 5 a source changed during the run, 6 timeout, 7 a peer, 8 fenced, 9 a device, 130 Ctrl-C, 143 SIGTERM.";

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show a dataset's files and columns, and advice; of a server, what it has
    Inspect(inspect::Args),
    /// Write a dataset's footers into one index file, so that no rank reads them
    Index(index::Args),
    /// Show the plan: steps and bytes per rank, memory, shuffle quality
    Plan(plan::Args),
    /// Walk the order of an epoch: check that each row comes once, and print a digest to compare with other machines
    Certify(certify::Args),
    /// Join the certificates of a run: check that each step was consumed once, and name the rows that were not
    Audit(audit::Args),
    /// Measure throughput stage by stage and name the bottleneck
    Bench(bench::Args),
    /// Load what epochs will read into a cache, in the order of the plan, up to its limit
    Warm(warm::Args),
    /// Show, check or remove a cache, or serve it to other hosts
    Cache(cache::Args),
    /// Mount a directory of a store as a directory of this machine, to read
    #[cfg(all(feature = "fuse", target_os = "linux"))]
    Mount(mount::Args),
    /// Convert a dataset between formats: Parquet, TFRecord, WebDataset, MDS, CSV, ...
    #[cfg(feature = "convert")]
    Convert(Box<convert::Args>),
    /// Compare two datasets of any formats, rows in any order
    #[cfg(feature = "convert")]
    Verify(verify::Args),
    /// Read, decode, interrupt, resume and serve pictures that come with the program
    Demo(demo::Args),
    /// Serve datasets to ranks over Arrow Flight
    #[cfg(feature = "flight")]
    Serve(Box<serve::Args>),
    /// Show the configuration of a server, check a file of it, or print its schema
    #[cfg(feature = "flight")]
    Config(config::Args),
    /// Show a running server: what limits its ranks, where the time of each goes
    #[cfg(feature = "flight")]
    Top(top::Args),
    /// Report what was found on this machine
    Doctor(doctor::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
    /// Write man pages into a directory
    Man(man::Args),
}

/// Runs the command line on `arguments`, which do not begin with the program's name, and returns the exit code. Needs a process of its
/// own: it writes to the standard streams, catches Ctrl-C and SIGTERM if a verb ends with a partial result, and ends the process at the second one.
pub fn run(program: &Program, arguments: impl IntoIterator<Item = OsString>) -> u8 {
    signals::outlive_limits();
    let name = std::iter::once(OsString::from("bowstring"));
    let mut command = Cli::command();
    let parsed = command.try_get_matches_from_mut(name.chain(arguments)).and_then(|matches| {
        let cli = Cli::from_arg_matches(&matches).map_err(|problem| problem.format(&mut command))?;
        Ok((cli, matches))
    });
    let (cli, matches) = match parsed {
        Ok(parsed) => parsed,
        Err(problem) => {
            // Help and version are reported this way too; a closed stream is no error.
            let _ = problem.print();
            return u8::try_from(problem.exit_code()).unwrap_or(2);
        }
    };
    // Where values come from is told of a server's configuration alone.
    #[cfg(not(feature = "flight"))]
    drop(matches);
    (program.log)(log_of(&cli));
    if let Some(problem) = misspelt_variable() {
        tell(&format!("error: {problem}\n"));
        return 2;
    }
    crate::trace::start();
    let mut out = Out::new(cli.json, cli.quiet);
    let outcome = match &cli.verb {
        Verb::Inspect(args) => inspect::run(args, &mut out),
        Verb::Index(args) => index::run(args, &mut out),
        Verb::Plan(args) => plan::run(args, &mut out),
        Verb::Certify(args) => certify::run(args, &mut out),
        Verb::Audit(args) => audit::run(args, &mut out),
        Verb::Bench(args) => bench::run(args, program, &mut out),
        Verb::Warm(args) => warm::run(args, &mut out),
        Verb::Cache(args) => cache::run(args, &mut out),
        #[cfg(all(feature = "fuse", target_os = "linux"))]
        Verb::Mount(args) => mount::run(args, &mut out),
        #[cfg(feature = "convert")]
        Verb::Convert(args) => convert::run(args, &mut out),
        #[cfg(feature = "convert")]
        Verb::Verify(args) => verify::run(args, &mut out),
        Verb::Demo(args) => demo::run(args, program, &mut out),
        #[cfg(feature = "flight")]
        Verb::Serve(args) => serve::run(args, &mut out),
        #[cfg(feature = "flight")]
        Verb::Config(args) => match (command.find_subcommand("config"), matches.subcommand_matches("config")) {
            (Some(command), Some(matches)) => config::run(args, command, matches, &mut out),
            _ => Ok(()),
        },
        #[cfg(feature = "flight")]
        Verb::Top(args) => top::run(args, &mut out),
        Verb::Doctor(args) => doctor::run(args, &mut out),
        Verb::Completions(args) => completions::run(args, Cli::command(), &mut out),
        Verb::Man(args) => man::run(args, Cli::command(), &mut out),
    };
    crate::trace::flush();
    exit_code(outcome)
}

/// Returns the first misspelt variable of the environment, which would be ignored.
fn misspelt_variable() -> Option<String> {
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let problems = variables.filter_map(|name| misspelling(&name));
    problems.min()
}

fn exit_code(outcome: Outcome) -> u8 {
    match outcome {
        Ok(()) => 0,
        Err(Failure::Told(code)) => code,
        // The reader of the output has closed it: `bowstring inspect x | head`.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => 0,
        Err(Failure::Output(error)) => {
            tell(&format!("error: standard output: {error}\n"));
            1
        }
        Err(Failure::File(path, error)) => {
            tell(&format!("error: {} cannot be written: {error}\n", path.display()));
            1
        }
        Err(Failure::Error(error)) => {
            tell(&told(&error));
            error.kind().exit_code()
        }
    }
}

/// The text of an error and of its causes, in five lines at most: causes that those before them quote are left out, and of many
/// the middle ones, since the first say what to do and the last says what happened.
fn told(error: &crate::Error) -> String {
    let mut lines = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !lines.iter().any(|line| line.contains(&text)) {
            lines.push(text);
        }
        cause = error.source();
    }
    if lines.len() > 5 {
        lines.drain(4..lines.len() - 1);
    }
    let texts = lines.iter().map(|line| table::plain(line));
    let heads = ["error"].into_iter().chain(std::iter::repeat("  caused by"));
    heads.zip(texts).map(|(head, text)| format!("{head}: {text}\n")).collect()
}

/// Makes a log on standard error.
fn log_of(cli: &Cli) -> Dispatch {
    // A server logs events; a short verb does not.
    #[cfg(feature = "flight")]
    let (serves, json) = match &cli.verb {
        Verb::Serve(args) => (true, args.log_format == daemon::LogFormat::Json),
        Verb::Cache(args) => match args.served() {
            Some(args) => (true, args.log_format == daemon::LogFormat::Json),
            None => (false, false),
        },
        _ => (false, false),
    };
    #[cfg(not(feature = "flight"))]
    let (serves, json) = (false, false);
    let level = match cli.verbose.max(u8::from(serves && !cli.quiet)) {
        0 => "error",
        1 => "bowstring=info",
        2 => "bowstring=debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("BOWSTRING_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    if json {
        log.json().into()
    } else {
        // https://no-color.org: set and not empty.
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        log.with_ansi(io::stderr().is_terminal() && !plain).into()
    }
}
