//! `bowstring cache status|verify|rm|serve DIR`: shows a cache, checks its integrity, removes it, serves it to other hosts.

use std::fmt;
use std::path::PathBuf;

use clap::{Parser, Subcommand};
use serde::Serialize;

use crate::store::at_home;
use crate::store::cache::{self, Removed, Status, Verified};

#[cfg(feature = "flight")]
use crate::cli::cache_serve;
use crate::cli::out::{Failure, Out, Outcome};
use crate::cli::table::{bytes, plural};

/// Exit code if blocks were damaged: that of data.
const DAMAGED: u8 = 3;

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
    /// Check all checksums and remove what is damaged, which is then read from its origin again
    Verify(Place),
    /// Remove it, and nothing else that may be in the directory
    Rm(Place),
    /// Serve it to other hosts as the home of its part of a cluster's blocks (--cache-peers)
    #[cfg(feature = "flight")]
    Serve(Box<cache_serve::Args>),
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
        What::Status(place) => out.report(&Shown(cache::status(&place.path())?)),
        What::Verify(place) => {
            let verified = cache::verify(&place.path())?;
            let is_damaged = !verified.damaged.is_empty();
            out.report(&Shown(verified))?;
            if is_damaged { Err(Failure::Told(DAMAGED)) } else { Ok(()) }
        }
        #[cfg(feature = "flight")]
        What::Serve(args) => cache_serve::run(args, out),
        What::Rm(place) => out.report(&Shown(cache::remove(&place.path())?)),
    }
}

impl fmt::Display for Shown<Status> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { directory, blocks, bytes: size, objects, awaited, accounted } = &self.0;
        writeln!(f, "{directory}: {} in {} of {}", bytes(*size), plural(*blocks, "block"), plural(*objects, "object"))?;
        writeln!(f, "  on their way  {}", plural(*awaited, "block"))?;
        writeln!(f, "  accounted     {}", bytes(*accounted))
    }
}

impl fmt::Display for Shown<Verified> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verified { directory, good, bytes: size, damaged } = &self.0;
        writeln!(f, "{directory}: {} are good, {}", plural(*good, "block"), bytes(*size))?;
        for damaged in damaged {
            writeln!(f, "  removed {damaged}")?;
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
