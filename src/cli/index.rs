//! `bowstring index URL`: the footers of a dataset in one file beside it, so that no rank reads them.

use std::fmt;

use clap::Parser;
use serde::Serialize;

use crate::dataset::{Dataset, OpenOptions};
use crate::store::at_home;
use crate::{Error, Result};

use crate::cli::args::PlaceArgs;
use crate::cli::bar::Bar;
use crate::cli::out::{Out, Outcome};
use crate::cli::table::plural;

/// Options of `index`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    dataset: PlaceArgs,
    /// The index's path; by default _bowstring_index in the dataset's directory, where loaders find it
    #[arg(short, long, value_name = "URL")]
    output: Option<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    index: String,
    files: u64,
    row_groups: u64,
    rows: u64,
    fingerprint: String,
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    let options = args.dataset.options()?;
    if !options.weights.is_empty() {
        return Err(
            Error::config("weights", "an index is of one dataset; index the members of a mixture one by one").into()
        );
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
    // The index does not depend on a selection of rows, which a file of options may contain.
    let open = OpenOptions { filter: None, selector: None, ngram: None, ..options.open_options()? };
    let bar = Bar::waiting(out, "reading footers");
    let report = runtime.block_on(write(&options.urls, open, args.output.as_deref().map(at_home).as_deref()));
    // Does not wait for a provider of credentials that never returns.
    runtime.shutdown_background();
    drop(bar);
    let report = report?;
    out.report(&report)
}

async fn write(urls: &[String], options: OpenOptions, output: Option<&str>) -> Result<Report> {
    let dataset = Dataset::open(urls, options.clone()).await?;
    let index = dataset.write_index(output, &options).await?;
    let manifest = dataset.manifest();
    Ok(Report {
        index,
        files: manifest.files.len() as u64,
        row_groups: manifest.groups.len() as u64,
        rows: manifest.rows(),
        fingerprint: manifest.fingerprint().to_string(),
    })
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, groups) = (plural(self.rows, "row"), plural(self.row_groups, "row group"));
        writeln!(f, "{rows} in {groups} of {}: {}", plural(self.files, "file"), self.index)
    }
}
