//! `bowstring cache status|verify|upload|rm|serve DIR`: shows a cache, checks its integrity, uploads what was saved in it, removes it,
//! serves it to other hosts.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand};
use serde::Serialize;

use crate::error::Error;
use crate::store::at_home;
use crate::store::cache::{self, CachePlace, Removed, Status, Unstored, Verified};
use crate::store::{FileOptions, FileSystem};

use crate::cli::args::storage_options;
use crate::cli::bar::{Bar, Counts, Seen, Unit};
#[cfg(feature = "flight")]
use crate::cli::cache_serve;
use crate::cli::out::{Failure, Out, Outcome};
use crate::cli::table::{bytes, plural};

/// Time between two looks at what was uploaded.
const LOOK: Duration = Duration::from_secs(1);
/// Exit code if blocks were damaged: that of data.
const DAMAGED: u8 = 3;
/// Exit code if something was not uploaded, or nobody knows whether it was: that of stores.
const LEFT: u8 = 4;

/// Options of `cache`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show what is in it
    Status(Place),
    /// Check all checksums, of saved files too, and remove damaged blocks, which are then read from their origins again
    Verify(Place),
    /// Upload what was saved and is not in its store yet, and wait for what other processes upload
    Upload(Uploaded),
    /// Remove it, and nothing else that may be in the directory
    Rm(Removal),
    /// Serve it to other hosts as the home of its part of a cluster's blocks (--cache-peers)
    #[cfg(feature = "flight")]
    Serve(Box<cache_serve::Args>),
}

#[derive(Debug, Parser)]
struct Uploaded {
    #[command(flatten)]
    place: Place,
    /// Options of the stores, as when it was saved, e.g. aws_region=eu-central-1; separated by commas, a part without = belongs to the value before it
    #[arg(long, env = "BOWSTRING_STORAGE_OPTIONS", value_name = "KEY=VALUE", hide_env_values = true)]
    storage_options: Vec<String>,
}

#[derive(Debug, Parser)]
struct Removal {
    #[command(flatten)]
    place: Place,
    /// Lose what was saved and is not in its store yet
    #[arg(long)]
    with_saves: bool,
}

/// The outcome of `upload`.
#[derive(Debug, Serialize)]
struct Left {
    directory: String,
    uploaded: u64,
    left: Vec<Unstored>,
    unread: Vec<String>,
}

#[derive(Debug, Parser)]
struct Place {
    /// The directory
    #[arg(value_name = "DIR")]
    directory: String,
}

impl Place {
    fn path(&self) -> PathBuf {
        PathBuf::from(at_home(&self.directory))
    }
}

#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Shown<T>(T);

impl Args {
    /// The options of a server, if it is one.
    #[cfg(feature = "flight")]
    pub(crate) fn served(&self) -> Option<&cache_serve::Args> {
        match &self.what {
            What::Serve(args) => Some(args),
            _ => None,
        }
    }
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    match &args.what {
        What::Status(place) => {
            let status = cache::status(&place.path())?;
            let is_known = status.unread.is_empty();
            out.report(&Shown(status))?;
            if is_known { Ok(()) } else { Err(Failure::Told(LEFT)) }
        }
        What::Verify(place) => {
            let counts = Counts::default();
            let bar = Bar::counted(out, "checking blocks", Unit::Bytes, &counts);
            let verified = cache::verify_seen(&place.path(), |done, all| counts.set(done, all));
            drop(bar);
            let verified = verified?;
            let is_damaged = !verified.damaged.is_empty() || !verified.damaged_saves.is_empty();
            out.report(&Shown(verified))?;
            if is_damaged { Err(Failure::Told(DAMAGED)) } else { Ok(()) }
        }
        #[cfg(feature = "flight")]
        What::Serve(args) => cache_serve::run(args, out),
        What::Upload(given) => upload(given, out),
        What::Rm(given) => out.report(&Shown(cache::remove(&given.place.path(), given.with_saves)?)),
    }
}

fn upload(given: &Uploaded, out: &mut Out) -> Outcome {
    let path = given.place.path();
    let before = cache::status(&path)?.saves;
    let place = path.to_str().ok_or_else(|| Error::config("cache", "its name is not Unicode"))?.to_owned();
    let files = FileSystem::new(FileOptions {
        storage_options: storage_options(&given.storage_options)?,
        cache: Some(CachePlace { place, ..CachePlace::default() }),
        ..FileOptions::default()
    })?;
    let bar = Bar::new(out, "uploading", Unit::Bytes, sent(path.clone(), &before));
    let flushed = files.flush();
    drop(bar);
    let Status { directory, saves: left, unread, .. } = cache::status(&path)?;
    let uploaded = before.len().saturating_sub(left.len()) as u64;
    let is_left = !left.is_empty();
    out.report(&Shown(Left { directory, uploaded, left, unread }))?;
    flushed?;
    if is_left { Err(Failure::Told(LEFT)) } else { Ok(()) }
}

/// Returns what looks how much of `saves` the stores have: what is whole there is no longer among the unstored ones of the cache.
fn sent(path: PathBuf, saves: &[Unstored]) -> impl FnMut() -> Seen + Send + 'static {
    let all: u64 = saves.iter().map(|save| save.bytes).sum();
    let (mut seen, mut looked) = (Seen { done: 0, all, more: String::new() }, None::<Instant>);
    move || {
        // A look reads the records of all saves.
        if looked.is_none_or(|at| at.elapsed() >= LOOK) {
            looked = Some(Instant::now());
            if let Ok(status) = cache::status(&path) {
                let left: u64 = status.saves.iter().map(|save| save.bytes.saturating_sub(save.sent)).sum();
                seen.done = all.saturating_sub(left);
                seen.more = format!("{} left", plural(status.saves.len() as u64, "file"));
            }
        }
        seen.clone()
    }
}

impl fmt::Display for Shown<Left> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Left { directory, uploaded, left, unread } = &self.0;
        writeln!(f, "{directory}: {} uploaded", plural(*uploaded, "file"))?;
        show(f, left, unread)
    }
}

/// Shows what is not in its store yet.
fn show(f: &mut fmt::Formatter<'_>, saves: &[Unstored], unread: &[String]) -> fmt::Result {
    for Unstored { url, bytes: size, sent, age, is_going, failure } in saves {
        let going = if *is_going { "on its way" } else { "waits" };
        writeln!(f, "  not in its store: {url}, {}, {going}, {} sent, saved {age} s ago", bytes(*size), bytes(*sent))?;
        if let Some(failure) = failure {
            writeln!(f, "    last failure: {failure}")?;
        }
    }
    for unread in unread {
        writeln!(f, "  perhaps not in its store: what this record is of, which cannot be read: {unread}")?;
    }
    Ok(())
}

impl fmt::Display for Shown<Status> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { directory, blocks, bytes: size, objects, awaited, accounted, saves, unread } = &self.0;
        writeln!(f, "{directory}: {} in {} of {}", bytes(*size), plural(*blocks, "block"), plural(*objects, "object"))?;
        writeln!(f, "  on their way  {}", plural(*awaited, "block"))?;
        writeln!(f, "  accounted     {}", bytes(*accounted))?;
        show(f, saves, unread)
    }
}

impl fmt::Display for Shown<Verified> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verified { directory, good, bytes: size, damaged, damaged_saves } = &self.0;
        writeln!(f, "{directory}: {} are good, {}", plural(*good, "block"), bytes(*size))?;
        for damaged in damaged {
            writeln!(f, "  removed {damaged}")?;
        }
        for damaged in damaged_saves {
            writeln!(f, "  damaged, and not in its store: {damaged}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Shown<Removed> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Removed { directory, blocks, bytes: size, gone } = &self.0;
        let left = if *gone { "" } else { "; the directory stays, for there are files in it that are not the cache's" };
        writeln!(f, "{directory}: {} removed, {}{left}", plural(*blocks, "block"), bytes(*size))
    }
}
