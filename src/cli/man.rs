//! `bowstring man DIR`: man pages, one of the program and one of each verb.

use std::path::PathBuf;

use clap::{Command, Parser};
use clap_mangen::Man;
use serde_json::json;

use crate::cli::out::{Failure, Out, Outcome};

/// The foot of each page.
const SOURCE: &str = concat!("bowstring ", env!("CARGO_PKG_VERSION"));

/// Options of `man`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// The directory to write to, e.g. ~/.local/share/man/man1; made if it is not there
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

pub(crate) fn run(args: &Args, command: Command, out: &mut Out) -> Outcome {
    std::fs::create_dir_all(&args.directory).map_err(|error| Failure::File(args.directory.clone(), error))?;
    // `help` has no page: it is of no use outside the program.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    add(&command, &mut pages)?;
    let mut written = Vec::new();
    for (name, page) in pages {
        let path = args.directory.join(name);
        std::fs::write(&path, page).map_err(|error| Failure::File(path.clone(), error))?;
        written.push(path.display().to_string());
    }
    if out.is_json() { out.json(&json!({ "pages": written })) } else { out.say(&(written.join("\n") + "\n")) }
}

/// Adds the pages of `command` and of the commands below it: file names and texts.
fn add(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> std::io::Result<()> {
    let man = Man::new(command.clone()).source(SOURCE).manual("User Commands");
    let mut page = Vec::new();
    man.render(&mut page)?;
    pages.push((man.get_filename(), page));
    command.get_subcommands().filter(|below| !below.is_hide_set()).try_for_each(|below| add(below, pages))
}
