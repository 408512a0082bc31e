//! `bowstring convert SRC DST`: a dataset from one format into another, streaming, in parallel, resumable.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Parser;
use serde::Serialize;

use crate::convert::{ConvertOptions, Format, Limits, Plan, Progress, Report, convert, plan};
use crate::dataset::filter::Filter;
use crate::store::{at_home, path_at_home};
use crate::{Error, Result};

use crate::cli::args::storage_options;
use crate::cli::bar::{Bar, Seen, Unit};
use crate::cli::interrupt::Interrupt;
use crate::cli::out::{Failure, Out, Outcome, tell};
use crate::cli::streams::{self, DASH, Directory};
use crate::cli::table::{Table, bytes, count, plural, rate, seconds};

/// Options of `convert`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// The dataset: a file, a directory, a glob, or an address in a store; `-` is standard input (with --from)
    #[arg(value_name = "SRC")]
    src: String,
    /// The directory to create; its name may give the format: out.tfrecord, photos-mds; `-` is one file on standard output (with --to)
    #[arg(value_name = "DST")]
    dst: PathBuf,
    /// Format of the source, if its names do not give it
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    from: Option<Format>,
    /// Format of the destination: parquet, petastorm, arrow, csv, tsv, jsonl, tfrecord, webdataset, mds, images, numpy, datasets
    #[arg(long, value_name = "FORMAT", value_parser = format)]
    to: Option<Format>,
    /// Columns to take, in this order, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    columns: Vec<String>,
    #[allow(rustdoc::invalid_html_tags, reason = "it is the text of --help")]
    /// Types by column, e.g. "id: int64, tags: list<string>", or such an object as JSON, or @FILE with either
    #[arg(long, value_name = "TYPES")]
    schema: Option<String>,
    /// Rows to take, e.g. "label >= 3 and country in ('de', 'us')"
    #[arg(long, value_name = "EXPR")]
    filter: Option<String>,
    /// Maximum rows of a Parquet row group
    #[arg(long, value_name = "ROWS")]
    rows_per_group: Option<usize>,
    /// Size at which an output file ends, e.g. 512MiB [default: 256MiB; of MDS 64MiB]
    #[arg(long, value_name = "BYTES", value_parser = crate::cli::args::bytes)]
    target_file_size: Option<u64>,
    /// none, snappy, lz4, zstd, zstd:LEVEL or gzip, if the format supports it
    #[arg(long, value_name = "NAME")]
    compression: Option<String>,
    /// Re-encode images as JPEG of this quality, from 1 to 100
    #[arg(long, value_name = "QUALITY")]
    image_quality: Option<u8>,
    /// Scale images down to this length of the shorter side: JPEG is encoded again as JPEG of quality 90, other images as PNG
    #[arg(long, value_name = "PIXELS")]
    resize: Option<u32>,
    /// Columns to which --resize and --image-quality apply, separated by commas; needed if several columns hold images
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    images: Vec<String>,
    /// Shuffle all rows, with this seed
    #[arg(long, value_name = "SEED", num_args = 0..=1, default_missing_value = "0")]
    shuffle: Option<u64>,
    /// Write exactly this many files
    #[arg(long, value_name = "N")]
    shards: Option<usize>,
    #[command(flatten)]
    read: ReadArgs,
    /// Continue an interrupted conversion to the same place
    #[arg(long)]
    resume: bool,
    /// Replace the dataset at the destination, if bowstring made it
    #[arg(long)]
    overwrite: bool,
    /// With --overwrite: delete the destination even if bowstring did not make it
    #[arg(long, requires = "overwrite")]
    overwrite_foreign: bool,
    /// Count the rows of the source by other means, read the written files, and compare, before anything appears
    #[arg(long)]
    verify: bool,
    /// Print the plan (formats, columns, the first rows) and write nothing
    #[arg(long)]
    dry_run: bool,
}

/// Reading options of `convert` and `verify`.
#[derive(Debug, Parser)]
pub(crate) struct ReadArgs {
    /// Threads [default: one per CPU]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Memory for everything in flight [default: 512MiB]
    #[arg(long, env = "BOWSTRING_MEMORY_BUDGET", value_name = "BYTES", value_parser = crate::cli::args::bytes, hide_env_values = true)]
    memory_budget: Option<u64>,
    /// Options of the stores that are read, e.g. aws_region=eu-central-1; separated by commas, a part without = belongs to the value before it
    #[arg(long, env = "BOWSTRING_STORAGE_OPTIONS", value_name = "KEY=VALUE", hide_env_values = true)]
    storage_options: Vec<String>,
    /// Limits against hostile files, e.g. max_record_bytes=1GiB; separated by commas
    #[arg(long, value_name = "KEY=VALUE", value_delimiter = ',', value_parser = crate::cli::args::pair)]
    limits: Vec<(String, String)>,
}

impl ReadArgs {
    /// Builds the options of a conversion from these and `schema`; the others have their defaults.
    pub(crate) fn options(&self, schema: Option<&str>) -> Result<ConvertOptions> {
        let default = ConvertOptions::default();
        let wrong = |error: serde_json::Error| Error::Config { option: "schema", problem: error.to_string() };
        let schema = schema.map(|text| serde_json::from_value(types(text)?).map_err(wrong)).transpose()?;
        Ok(ConvertOptions {
            schema,
            jobs: self.jobs,
            memory_budget: self.memory_budget.unwrap_or(default.memory_budget),
            storage_options: storage_options(&self.storage_options)?,
            limits: limits(&self.limits)?,
            ..default
        })
    }
}

/// Parses the name of a format.
pub(crate) fn format(text: &str) -> Result<Format, String> {
    Format::parse(text).map_err(|error| error.to_string())
}

/// Reads types from the command line or from a file.
fn types(text: &str) -> Result<serde_json::Value> {
    let text = match text.strip_prefix('@') {
        Some(path) => {
            let path = at_home(path);
            std::fs::read_to_string(&path)
                .map_err(|error| Error::config("schema", format!("{path} cannot be read: {error}")))?
        }
        None => text.to_owned(),
    };
    let wrong = |error: serde_json::Error| Error::Config { option: "schema", problem: error.to_string() };
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(&text).map_err(wrong);
    }
    Ok(serde_json::Value::String(text))
}

/// Parses limits, with sizes as on the command line.
fn limits(given: &[(String, String)]) -> Result<Limits> {
    let wrong = |problem: String| Error::Config { option: "limits", problem };
    let mut named = serde_json::Map::new();
    for (name, value) in given {
        let value = crate::cli::args::bytes(value).map_err(|why| wrong(format!("{name}: {why}")))?;
        named.insert(name.clone(), value.into());
    }
    serde_json::from_value(named.into()).map_err(|error| wrong(error.to_string()))
}

impl Args {
    fn options(&self) -> Result<ConvertOptions> {
        let given = self.read.options(self.schema.as_deref())?;
        Ok(ConvertOptions {
            from: self.from,
            to: self.to,
            columns: self.columns.clone(),
            rows_per_group: self.rows_per_group,
            target_file_size: self.target_file_size.unwrap_or(given.target_file_size),
            compression: self.compression.clone(),
            image_quality: self.image_quality,
            resize: self.resize,
            images: self.images.clone(),
            shuffle: self.shuffle,
            shards: self.shards,
            filter: self.filter.clone().map(Filter::Text),
            resume: self.resume,
            overwrite: self.overwrite,
            overwrite_foreign: self.overwrite_foreign,
            verify: self.verify,
            ..given
        })
    }
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    let mut options = args.options()?;
    let (src, dst) = (at_home(&args.src), path_at_home(&args.dst));
    streams::check(&src, &dst, &options)?;
    let (reads, writes) = (src == DASH, dst == Path::new(DASH));
    let streams = if reads || writes { Some(Directory::new()?) } else { None };
    let progress = Arc::new(Progress::default());
    let told = Arc::clone(&progress);
    let interrupt = Interrupt::listen(move || told.stop());
    let (mut from, mut to) = (src, dst);
    if let Some(streams) = &streams {
        if reads {
            let Some(path) = streams.input(options.from, &interrupt)? else {
                tell("Interrupted while standard input was read: nothing was done.\n");
                return Err(Failure::Told(interrupt.code()));
            };
            from = path.display().to_string();
        }
        if writes {
            to = streams.join("output");
            // One file, of whatever size.
            options.shards = Some(1);
        }
    }
    if args.dry_run {
        return out.report(&Dry(plan(&from, &to, &options)?));
    }
    let bar = watched(&progress, "converting", out);
    let anew = args.resume && !crate::convert::is_unfinished(&to);
    let outcome = convert(&from, &to, &options, &progress);
    drop(bar);
    // Other errors are reported as they are.
    if interrupt.has_come() && matches!(outcome, Err(Error::Closed { .. })) {
        let rows = plural(progress.rows(), "row");
        let left = match (reads, writes) {
            (_, true) => "nothing was written.".to_owned(),
            (true, false) => format!("nothing is at {} yet. Standard input is over, so it starts again.", to.display()),
            _ if crate::convert::is_unfinished(&to) => format!(
                "nothing is at {} yet. What is finished is kept beside it; the same command with --resume goes on, without it starts \
                 again.",
                to.display()
            ),
            _ => {
                format!("nothing is at {} yet, and nothing was finished: the same command starts again.", to.display())
            }
        };
        tell(&format!("Interrupted after {rows}: {left}\n"));
        return Err(Failure::Told(interrupt.code()));
    }
    let report = outcome?;
    let (src, dst) = (args.src.clone(), args.dst.display().to_string());
    let done = Done { report, src, dst, guessed: args.from.is_none(), anew };
    if writes {
        Directory::output(&to)?;
        // Messages never go to the stream that carries the data.
        if let Some(told) = out.rendered(&done)? {
            tell(&told);
        }
        return Ok(());
    }
    out.report(&done)
}

/// Draws a bar of the bytes read.
pub(crate) fn watched(progress: &Arc<Progress>, what: &'static str, out: &Out) -> Bar {
    let progress = Arc::clone(progress);
    Bar::new(out, what, Unit::Bytes, move || {
        let rows = progress.rows();
        let more = if rows > 0 { plural(rows, "row") } else { String::new() };
        Seen { done: progress.bytes(), all: progress.total(), more }
    })
}

#[derive(Serialize)]
struct Done {
    #[serde(flatten)]
    report: Report,
    src: String,
    dst: String,
    guessed: bool,
    /// True if it was to continue an earlier run, of which nothing was there.
    #[serde(skip)]
    anew: bool,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { report, src, dst, guessed, anew } = self;
        let told = if *guessed { " (by its names)" } else { "" };
        writeln!(f, "{src}: {}{told} -> {dst}: {}", report.from, report.to)?;
        if report.unchanged {
            return writeln!(
                f,
                "Nothing to do: it was made from this source with these options before, and its files are unchanged."
            );
        }
        let mut table = Table::new(&["", ">rows", ">files", ">bytes", ">rows/s", ">bytes/s"]);
        let rates = |bytes: u64| [rate(report.rows, report.seconds), rate(bytes, report.seconds)];
        let [rows, read] = rates(report.source_bytes);
        let dash = || "-".to_owned();
        table.row(["read".to_owned(), dash(), dash(), bytes(report.source_bytes), rows, read]);
        let [rows, written] = rates(report.bytes);
        let files = count(report.files as u64);
        table.row(["written".to_owned(), count(report.rows), files, bytes(report.bytes), rows, written]);
        write!(f, "{table}")?;
        let resumed = match report.resumed_tasks {
            0 if *anew => ", from the beginning: nothing of an earlier run was there to resume".to_owned(),
            0 => String::new(),
            tasks => format!(", {tasks} of them finished before"),
        };
        let verified = if report.verified { "; read again and found equal" } else { "" };
        writeln!(f, "{} in {}{resumed}{verified}", plural(report.tasks as u64, "task"), seconds(report.seconds))
    }
}

#[derive(Serialize)]
struct Dry(Plan);

impl fmt::Display for Dry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = &self.0;
        let told = if plan.guessed { " (by its names)" } else { "" };
        let rows = plan.rows.map_or_else(String::new, |rows| format!(", {}", plural(rows, "row")));
        let parts = plural(plan.shards as u64, "part");
        writeln!(
            f,
            "{}{told} -> {}: {parts}, {}{rows}; {}",
            plan.from,
            plan.to,
            bytes(plan.bytes),
            plural(plan.tasks as u64, "task")
        )?;
        if plan.unchanged {
            writeln!(
                f,
                "Nothing to do: it was made from this source with these options before, and its files are unchanged."
            )?;
        }
        let mut table = Table::new(&["column", "type", "null", "first rows"]);
        for (number, (name, kind, nullable)) in plan.schema.iter().enumerate() {
            let cells = plan.sample.get(number).map(|cells| cells.join(" | ")).unwrap_or_default();
            let null = if *nullable { "yes" } else { "no" };
            table.row([name.clone(), kind.clone(), null.to_owned(), cells]);
        }
        write!(f, "{table}")
    }
}
