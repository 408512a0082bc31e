//! `bowstring doctor`: the capabilities of this machine and build, the environment, and the reasons.

use std::fmt;

use clap::Parser;
use serde::Serialize;

use crate::codec::image;
use crate::pipeline::machine;
use crate::pipeline::rank::{self, Found};

use crate::cli::out::{Failure, Out, Outcome};
use crate::cli::table;

/// Options of `doctor`.
#[derive(Debug, Parser)]
pub(crate) struct Args {}

#[derive(Debug, Serialize)]
struct Report {
    version: &'static str,
    jpeg_decoder: &'static str,
    /// Instructions for the faster decoder, if this is not it.
    jpeg_decoder_hint: Option<&'static str>,
    stores: Vec<&'static str>,
    threads: usize,
    memory_available: Option<u64>,
    memory_budget: u64,
    /// Rank of this process; absent if the environment contradicts itself.
    rank: Option<Found>,
    rank_problem: Option<String>,
    /// Variables of bowstring and of launchers that give a rank and are set.
    launcher_variables: Vec<(String, String)>,
    #[cfg(feature = "cuda")]
    #[serde(flatten)]
    gpu: crate::cli::gpu::Report,
}

pub(crate) fn run(_: &Args, out: &mut Out) -> Outcome {
    let report = examine();
    out.report(&report)?;
    if report.rank_problem.is_some() { Err(Failure::Told(2)) } else { Ok(()) }
}

fn examine() -> Report {
    let (rank, rank_problem) = match rank::of_environment() {
        Ok(found) => (Some(found), None),
        Err(error) => (None, Some(error.chain())),
    };
    let mut stores = vec!["local files"];
    if cfg!(feature = "cloud") {
        stores.extend(["s3://", "gs://", "az://", "http(s)://"]);
    }
    if cfg!(feature = "hdfs") {
        stores.push("hdfs://");
    }
    Report {
        version: env!("CARGO_PKG_VERSION"),
        jpeg_decoder: image::backend(),
        jpeg_decoder_hint: (!cfg!(feature = "turbo")).then_some("feature turbo, which needs cmake and nasm, is faster"),
        stores,
        threads: machine::threads(),
        memory_available: machine::available_memory(),
        memory_budget: machine::default_budget(),
        rank,
        rank_problem,
        launcher_variables: rank::variables()
            .filter_map(|name| Some((name.to_owned(), std::env::var(name).ok()?)))
            .collect(),
        #[cfg(feature = "cuda")]
        gpu: crate::cli::gpu::Report::new(),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "bowstring     {}", self.version)?;
        writeln!(f, "JPEG decoder  {}", self.jpeg_decoder)?;
        if let Some(hint) = self.jpeg_decoder_hint {
            writeln!(f, "              {hint}")?;
        }
        writeln!(f, "stores        {}", self.stores.join(", "))?;
        writeln!(f, "threads       {} (affinity and cgroup quota respected)", self.threads)?;
        match self.memory_available {
            Some(free) => writeln!(f, "memory        {} available (system and cgroup)", table::bytes(free))?,
            None => writeln!(f, "memory        unknown: neither /proc/meminfo nor a cgroup can be read")?,
        }
        writeln!(f, "budget        {} unless memory_budget is given", table::bytes(self.memory_budget))?;
        match (&self.rank, &self.rank_problem) {
            (Some(found), _) => {
                let Found { rank, world_size, why } = found;
                writeln!(f, "rank          {rank} of {world_size}; {}", table::plain(why))?;
            }
            (None, problem) => {
                writeln!(f, "rank          problem: {}", table::plain(problem.as_deref().unwrap_or("unknown")))?
            }
        }
        for (name, value) in &self.launcher_variables {
            writeln!(f, "              {name}={}", table::plain(value))?;
        }
        #[cfg(feature = "cuda")]
        self.gpu.fmt(f)?;
        #[cfg(not(feature = "cuda"))]
        writeln!(f, "GPU           not looked for: this build is without the feature cuda")?;
        Ok(())
    }
}
