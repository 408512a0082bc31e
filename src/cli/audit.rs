//! `bowstring audit CERTIFICATE...`: joins the certificates of all ranks and restarts of a run.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Parser;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::figures::ranks as named_ranks;
use crate::pipeline::{BatchSource as _, LoaderOptions, LocalSource};
use crate::plan::{self, Apart, Audit, Certificate, Fault, Finding, PlanSpec, Share, Shuffle, State};
use crate::store::path_at_home;
use crate::{Error, Result};

use crate::cli::bar::Bar;
use crate::cli::out::{Failure, Out, Outcome};
use crate::cli::table::{count, plain, plural};

/// Exit code of a run that is not exact, or that some ranks have not finished: that of data.
const INEXACT: u8 = 3;
/// Largest key file.
const MAX_KEY: usize = 4096;

/// Options of `audit`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Certificates as JSON files, or directories of them: those of all ranks, and of those before each restart
    #[arg(value_name = "CERTIFICATE", required = true)]
    certificates: Vec<PathBuf>,
    /// File of the key that the certificates are signed with; without one, signatures are not looked at
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// The dataset, to name rows that were not consumed once
    #[arg(long, value_name = "URL")]
    data: Vec<String>,
    /// JSON file of the loader's other options for --data: columns, filter, ...
    #[arg(long, value_name = "FILE", requires = "data")]
    options: Option<PathBuf>,
    /// Most rows to name
    #[arg(long, value_name = "N", default_value_t = 1000)]
    rows: usize,
}

/// A row that was not consumed once.
#[derive(Debug, Serialize)]
struct Row {
    fault: Fault,
    epoch: u64,
    step: u64,
    row_id: u64,
    file: String,
    row_group: usize,
    row: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    audit: Audit,
    signed: bool,
    /// Rows of the findings, from the first on; empty without the dataset.
    rows_found: Vec<Row>,
    /// True if there are more.
    more_rows: bool,
    #[serde(skip)]
    has_data: bool,
}

pub(crate) fn run(args: &Args, out: &mut Out) -> Outcome {
    let bar = Bar::waiting(out, "joining certificates");
    let mut certificates = Vec::new();
    for path in &args.certificates {
        for file in files(path)? {
            let read = |bytes| Certificate::from_json(bytes);
            let certificate = bounded(&file, Certificate::MAX_BYTES, "certificate").and_then(read);
            certificates.push(certificate.map_err(|error| named(&file, error))?);
        }
    }
    if let Some(path) = &args.key_file {
        let key = bounded(path, MAX_KEY, "key_file")?;
        for certificate in &certificates {
            certificate.verify(&key)?;
        }
    }
    let audit = plan::audit(&certificates)?;
    let has_data = !args.data.is_empty();
    let (rows_found, more_rows) = if has_data { name_rows(args, &audit)? } else { (Vec::new(), false) };
    drop(bar);
    let is_whole = audit.exact && audit.complete;
    out.report(&Report { audit, signed: args.key_file.is_some(), rows_found, more_rows, has_data })?;
    if is_whole { Ok(()) } else { Err(Failure::Told(INEXACT)) }
}

fn named(file: &Path, error: Error) -> Error {
    match error {
        Error::Config { option, problem } => Error::config(option, format!("{}: {problem}", file.display())),
        error => error,
    }
}

/// Returns `path`, or the JSON files in it if it is a directory.
fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let unreadable = |error: std::io::Error| Error::config("certificate", format!("{}: {error}", path.display()));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let file = entry.map_err(unreadable)?.path();
        if file.extension().is_some_and(|extension| extension == "json") {
            found.push(file);
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a file of at most `most` bytes.
fn bounded(path: &Path, most: usize, option: &'static str) -> Result<Vec<u8>> {
    use std::io::Read as _;

    let mut bytes = Vec::new();
    let path = &path_at_home(path);
    let file = std::fs::File::open(path);
    let read = file.and_then(|file| file.take(most as u64 + 1).read_to_end(&mut bytes));
    match read {
        Ok(_) if bytes.len() > most => {
            Err(Error::config(option, format!("{}: more than {most} bytes", path.display())))
        }
        Ok(_) => Ok(bytes),
        Err(error) => Err(Error::config(option, format!("{}: {error}", path.display()))),
    }
}

/// Returns the loader's options for the plan of the certificates.
fn options(args: &Args, spec: &PlanSpec) -> Result<LoaderOptions> {
    let mut document = match &args.options {
        None => Map::new(),
        Some(path) => match serde_json::from_slice(&bounded(path, Certificate::MAX_BYTES, "options")?) {
            Ok(Value::Object(document)) => document,
            _ => return Err(Error::config("options", format!("{}: not one JSON object", path.display()))),
        },
    };
    let own = json!({
        "urls": args.data,
        "global_batch_size": spec.global_batch,
        "batch_size": null,
        "seed": spec.seed,
        "shuffle": spec.shuffle == Shuffle::Windows,
        "tail": spec.tail,
        "lanes": spec.lanes,
        "window_rows": spec.window_rows,
        "order_version": spec.order_version,
        "rank": 0,
        "world_size": 1,
        // No data are read.
        "memory_budget": isize::MAX,
    });
    document.extend(own.as_object().cloned().unwrap_or_default());
    if let Some(mix) = &spec.mix {
        document.insert("weights".to_owned(), json!(mix.weights));
        document.insert("stop".to_owned(), json!(mix.stop));
    }
    if spec.shuffle == Shuffle::None {
        document.remove("window_rows");
    }
    LoaderOptions::from_json(&Value::Object(document).to_string())
}

/// Names the rows of the findings.
fn name_rows(args: &Args, audit: &Audit) -> Result<(Vec<Row>, bool)> {
    let mut source = LocalSource::open(options(args, &audit.spec)?)?;
    let found = source.plan().fingerprint_as(audit.fingerprint);
    if found != audit.fingerprint && !audit.findings.is_empty() {
        return Err(Error::Mismatch {
            what: "--data is not what the certificates are of".to_owned(),
            expected: format!("fingerprint {}", audit.fingerprint),
            found: found.to_string(),
            hint: "give the data, and with --options the columns and the filter, that the run read; of a table its version".to_owned(),
        });
    }
    let mut rows = Vec::new();
    for Finding { fault, from, to, rank, world_size } in &audit.findings {
        let share = rank.map_or(Ok(Share::whole()), |rank| Share::new(rank, *world_size))?;
        let (mut epoch, mut step) = *from;
        while (epoch, step) < *to {
            source.resume(&State::at(audit.fingerprint, audit.spec.clone(), epoch, step))?;
            // A world that takes the last two steps in one has no rows in the second.
            let found = source.plan().for_world(share.world).step(step, share);
            for row in &found.rows[..found.real] {
                if rows.len() == args.rows {
                    return Ok((rows, true));
                }
                let Some((place, row_id)) = source.place(*row) else { continue };
                rows.push(Row {
                    fault: *fault,
                    epoch,
                    step,
                    row_id,
                    file: place.file.map_or_else(String::new, |file| file.to_string()),
                    row_group: place.row_group.unwrap_or_default(),
                    row: place.row.unwrap_or_default(),
                });
            }
            (epoch, step) = if step + 1 < audit.steps { (epoch, step + 1) } else { (epoch + 1, 0) };
        }
    }
    Ok((rows, false))
}

fn fault(fault: Fault) -> &'static str {
    match fault {
        Fault::NotConsumed => "not consumed",
        Fault::Repeated => "consumed more than once",
    }
}

/// Formats a position.
fn at((epoch, step): (u64, u64)) -> String {
    format!("epoch {epoch}, step {step}")
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let audit = &self.audit;
        let verdict = if audit.exact { "Exact: every step once on every rank" } else { "NOT exact" };
        match audit.steps {
            0 => writeln!(f, "Exact: the plan has no steps, so there is nothing to consume")?,
            _ => writeln!(f, "{verdict}, from {} up to {}", at(audit.from), at(audit.until))?,
        }
        if audit.continues {
            writeln!(f, "Continues an earlier run, of which no certificates are here")?;
        }
        if !audit.complete {
            writeln!(f, "NOT complete: some ranks end there, others at {}", at(audit.end))?;
        }
        writeln!(f, "  fingerprint {}", audit.fingerprint)?;
        writeln!(f, "  epoch       {} in {}", plural(audit.rows, "row"), plural(audit.steps, "step"))?;
        let signed = if self.signed { "signed with the key" } else { "signatures not checked" };
        writeln!(f, "  loaders     {}, {signed}", count(audit.loaders as u64))?;
        writeln!(
            f,
            "  resumes     {}, which rolled back {} of ranks",
            count(audit.resumes as u64),
            plural(audit.replaced_steps, "step")
        )?;
        writeln!(f, "  bad rows    {} replaced, {} set to zero", count(audit.skipped_rows), count(audit.zeroed_rows))?;
        for finding in &audit.findings {
            let who = match finding.rank {
                Some(rank) => format!("by rank {rank} of {}", finding.world_size),
                None if finding.fault == Fault::NotConsumed => "by any rank".to_owned(),
                None => "by all ranks".to_owned(),
            };
            let unfinished = if finding.from >= audit.until { " (the run has not got there on all ranks)" } else { "" };
            writeln!(f, "  {} {who}: {} up to {}{unfinished}", fault(finding.fault), at(finding.from), at(finding.to))?;
        }
        if audit.more_findings > 0 {
            writeln!(f, "  and {} more", count(audit.more_findings))?;
        }
        for Apart { at: position, ranks, more_ranks, world_size } in &audit.apart {
            let who =
                named_ranks(ranks, ranks.len().saturating_add(usize::try_from(*more_ranks).unwrap_or(usize::MAX)));
            writeln!(f, "  resumed at {}: only {who} of {world_size}", at(*position))?;
        }
        if !audit.apart.is_empty() {
            writeln!(f, "  a model that all ranks train together has lost or repeated the steps in between:")?;
            writeln!(f, "  load a checkpoint of one step on all of them")?;
        }
        for row in &self.rows_found {
            writeln!(
                f,
                "  {}: {}, row group {}, row {} (row id {})",
                fault(row.fault),
                plain(&row.file),
                row.row_group,
                row.row,
                row.row_id
            )?;
        }
        if self.more_rows {
            writeln!(f, "  and more rows: --rows lists more of them")?;
        }
        let sound = audit.exact && audit.complete;
        if !sound && !self.has_data {
            writeln!(f, "  name the rows with --data URL")?;
        }
        Ok(())
    }
}
