//! `bowstring inspect grpc://host:port`: the datasets of a server, and `inspect grpc://host:port/NAME`: the columns of one. A server
//! delivers batches rather than files, so the report has no files.

use std::fmt;

use serde::Serialize;

use crate::Error;
use crate::flight::client::{Address, Served, served};
use crate::flight::request::of_the_owner;
use crate::pipeline::LoaderOptions;
use crate::pipeline::option_table::{Scope, option};
use crate::schema::Field;

use crate::cli::out::{Out, Outcome};
use crate::cli::table::{Table, count, plain, plural};

/// The datasets of a server.
#[derive(Debug, Serialize)]
struct Report {
    server: String,
    datasets: Vec<Dataset>,
    /// True if a single dataset was requested.
    #[serde(skip)]
    is_one: bool,
}

#[derive(Debug, Serialize)]
struct Dataset {
    name: String,
    rows: Option<u64>,
    fingerprint: Option<String>,
    columns: Vec<Column>,
    /// The error that prevents opening it.
    problem: Option<String>,
    /// The nulls in it, which a loader without options for them refuses.
    note: Option<String>,
}

/// A column as delivered.
#[derive(Debug, Serialize)]
struct Column {
    name: String,
    outcome: String,
}

/// Reports the datasets of the server, or the one, that `options` name; `typed` are those that no variable gave.
pub(crate) fn run(options: &LoaderOptions, mut typed: impl Iterator<Item = &'static str>, out: &mut Out) -> Outcome {
    let address = options.urls.first().map(|url| Address::parse(url)).transpose()?;
    let (server, is_one) = address.map(|address| (address.server(), !address.dataset.is_empty())).unwrap_or_default();
    // The list obeys the others, or they are of this process.
    let asked = |name: &&str| option(name).is_some_and(|entry| entry.scope == Scope::Asked || entry.is_of_the_owner());
    if let Some(name) = typed.find(|name| !is_one && asked(name)) {
        if let Some(entry) = option(name).filter(|entry| entry.is_of_the_owner()) {
            return Err(of_the_owner(entry).into());
        }
        let problem = format!("is of one dataset, and {server} is a server; write {server}/NAME, or leave it out");
        return Err(Error::config(name, problem).into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::Closed { why: format!("no runtime can be started: {error}") })?;
    let found = runtime.block_on(served(options))?;
    out.report(&Report { server, datasets: found.into_iter().map(Dataset::new).collect(), is_one })
}

impl Dataset {
    fn new(found: Served) -> Self {
        let (offered, problem) = match found.offered {
            Ok(offered) => (Some(offered), None),
            Err(problem) => (None, Some(problem)),
        };
        let column = |field: &Field| {
            let text = field.to_string();
            // The field's text begins with its name.
            let outcome = text.strip_prefix(&*field.name).unwrap_or(&text).trim_start().to_owned();
            Column { name: field.name.to_string(), outcome }
        };
        let fields = offered.iter().flat_map(|offered| offered.schema.fields());
        let columns = fields.map(column).collect();
        let (rows, fingerprint) = offered.map(|of| (of.info.rows, of.info.fingerprint.to_string())).unzip();
        Self { name: found.name, rows, fingerprint, columns, problem, note: found.note }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let ([dataset], true) = (self.datasets.as_slice(), self.is_one) {
            let fingerprint = dataset.fingerprint.as_deref().unwrap_or_default();
            let rows = plural(dataset.rows.unwrap_or(0), "row");
            writeln!(f, "{} at {}: {rows}; fingerprint {fingerprint:.12}", plain(&dataset.name), self.server)?;
            writeln!(f, "\nColumns")?;
            let mut table = Table::new(&["name", "in the batch"]);
            for column in &dataset.columns {
                table.row([column.name.clone(), column.outcome.clone()]);
            }
            return write!(f, "{table}");
        }
        writeln!(f, "{} at {}", plural(self.datasets.len() as u64, "dataset"), self.server)?;
        if self.datasets.is_empty() {
            return Ok(());
        }
        writeln!(f)?;
        let mut table = Table::new(&["name", ">rows", ">columns", "problem or note"]);
        for dataset in &self.datasets {
            let columns = if dataset.problem.is_none() { count(dataset.columns.len() as u64) } else { String::new() };
            table.row([
                dataset.name.clone(),
                dataset.rows.map(count).unwrap_or_default(),
                columns,
                dataset.problem.as_ref().or(dataset.note.as_ref()).cloned().unwrap_or_default(),
            ]);
        }
        write!(f, "{table}")?;
        writeln!(f, "\nThe columns of one: bowstring inspect {}/NAME", self.server)
    }
}
