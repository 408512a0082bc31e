//! `bowstring completions SHELL`: a completion script on standard output.

use clap::{Command, Parser};
use clap_complete::Shell;

use crate::cli::out::{Out, Outcome};

/// Options of `completions`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// The shell to complete in
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut command: Command, out: &mut Out) -> Outcome {
    // Into memory first: the generator panics when its writer fails, as a closed pipe does.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "bowstring", &mut script);
    let script = String::from_utf8_lossy(&script);
    if out.is_json() {
        out.json(&serde_json::json!({ "shell": args.shell.to_string(), "script": script }))
    } else {
        out.text(&script)
    }
}
