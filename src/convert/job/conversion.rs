//! A conversion from its beginning to its publication. Its tasks run here, or in other processes.
//!
//! ```text
//!   begin ─► hidden directory ─► run here ─────────────────────────────────────────► finish ─► destination
//!                            └─► tasks ─► work, each in a process that sees it ─► adopt ─┘
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use arrow::datatypes::Field;
use serde::Serialize;
use serde_json::{Value, json};

use super::address::address;
use super::commit::{flush, flush_all};
use super::finished::{Found, finished};
use super::journal::{Done, Worked};
use super::publish::{self, Staging};
use super::{Job, destination, shuffle};
use crate::convert::budget::Progress;
use crate::convert::format::Format;
use crate::convert::options::ConvertOptions;
use crate::convert::types::{schema_json, type_text};
use crate::error::{Error, Kind, Result};
use crate::store::directory::failed;

/// Result of a conversion.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The source's format.
    pub from: Format,
    /// The destination's format.
    pub to: Format,
    /// Rows written.
    pub rows: u64,
    /// Files of data written.
    pub files: usize,
    /// Bytes of those files.
    pub bytes: u64,
    /// Bytes of the source.
    pub source_bytes: u64,
    /// Number of tasks; of a shuffle, of the buckets that rows are scattered into.
    pub tasks: usize,
    /// Those of them that had been finished before. Parts of the source that a shuffle had scattered do not count, and are not read again.
    pub resumed_tasks: usize,
    /// True if the destination already existed, made from the same source with the same options, and its files were unchanged.
    pub unchanged: bool,
    /// True if the output was read again and found equal, now or when it was made.
    pub verified: bool,
    /// Duration in seconds.
    pub seconds: f64,
    /// The columns written: name and type.
    #[serde(rename = "columns")]
    pub schema: Vec<(String, String)>,
}

/// Result of [`Conversion::begin`].
#[derive(Debug)]
pub enum Begun {
    /// The destination already exists, made from the same source with the same options.
    Unchanged(Report),
    /// There is work to do.
    Open(Box<Conversion>),
}

/// A conversion that is not visible yet. If it is dropped, finished tasks stay for [`resume`](ConvertOptions::resume).
#[derive(Debug)]
pub struct Conversion {
    job: Job,
    /// `None` once it is published or given up.
    staging: Option<Staging>,
    done: Vec<Done>,
    resumed: usize,
    source: String,
    started: Instant,
}

/// Converts the dataset at `src` into a directory at `dst`. Blocks; must not be called on a thread of an async runtime.
///
/// Nothing is visible at `dst` until all of it is complete. Tasks that finished before a failure are kept in a hidden directory beside
/// it, where [`resume`](ConvertOptions::resume) continues. If `dst` was made from the same source with the same options, and its files
/// are unchanged since they were published, nothing is done.
///
/// # Errors
/// Those of opening the source, its data, the sink, or the disk; `Closed` if `progress` was asked to stop.
pub fn convert(src: &str, dst: &Path, options: &ConvertOptions, progress: &Progress) -> Result<Report> {
    match Conversion::begin(src, dst, options)? {
        Begun::Unchanged(report) => Ok(report),
        Begun::Open(mut conversion) => {
            conversion.run(progress)?;
            conversion.finish(progress)
        }
    }
}

/// Runs task `task` of a conversion of `src` that another process began, in `directory`, which is created. Returns the argument of
/// [`Conversion::adopt`].
///
/// # Errors
/// As of [`convert`]; `Config` if this process sees another source than that of `fingerprint`, or was given other options.
pub fn work(
    src: &str,
    directory: &Path,
    options: &ConvertOptions,
    fingerprint: &str,
    task: usize,
    progress: &Progress,
) -> Result<String> {
    let job = Job::new(src, directory, options)?;
    if job.identity.fingerprint != fingerprint {
        let problem =
            format!("{}: this process sees another source than the one that began", crate::store::display(src));
        return Err(Error::config("src", problem));
    }
    progress.total.store(job.source_bytes(), Ordering::Relaxed);
    // The parent was made when the conversion began: after its end nothing is written any more.
    fs::create_dir(directory).map_err(|error| failed("create", directory, error))?;
    let done = job.work(task, directory, &job.budget(), progress)?;
    if job.sink.flushes() {
        flush(directory, &done.parts)?;
    } else {
        flush_all(directory, &done.parts)?;
    }
    let worked = Worked { fingerprint: job.identity.fingerprint, done };
    serde_json::to_string(&worked).map_err(|error| failed("describe", directory, std::io::Error::from(error)))
}

impl Conversion {
    /// Opens the source, checks it against the sink, and takes the hidden directory beside `dst` for this process.
    ///
    /// # Errors
    /// As of [`convert`], for the parts that it runs.
    pub fn begin(src: &str, dst: &Path, options: &ConvertOptions) -> Result<Begun> {
        let started = Instant::now();
        destination::check(src, dst)?;
        let job = Job::new(src, dst, options)?;
        let source = address(src);
        // Overwriting always makes the dataset again, but one that was killed when it had published its files is over.
        let found = match options.overwrite && !(options.resume && publish::is_published(dst)) {
            true => Found::Nothing,
            false => finished(dst, &job, &source)?,
        };
        if !options.overwrite {
            found.check_current(dst, options)?;
        }
        match found {
            Found::Whole { success, verified } if verified || !options.verify => {
                publish::sweep(dst)?;
                let number = |name: &str| success.get(name).and_then(Value::as_u64).unwrap_or_default();
                let (rows, files, bytes) = (number("rows"), number("files") as usize, number("bytes"));
                let report = report(&job, rows, files, bytes, started);
                return Ok(Begun::Unchanged(Report { unchanged: true, verified, ..report }));
            }
            Found::Changed(why) if !options.overwrite => {
                let shown = dst.display();
                let problem = format!(
                    "{shown} was made from this source with these options, but {why}; set overwrite to make it again"
                );
                return Err(Error::config("overwrite", problem));
            }
            Found::Changed(_) | Found::Former | Found::Nothing | Found::Other(_) | Found::Whole { .. } => {}
        }
        let noted = job.noted(&source);
        let (staging, mut done) = Staging::open(dst, noted, options.resume, options.replace(), &options.limits)?;
        done.retain(|done| done.task < job.units);
        let resumed = done.len();
        Ok(Begun::Open(Box::new(Self { job, staging: Some(staging), done, resumed, source, started })))
    }

    /// Runs all remaining tasks in this process.
    ///
    /// # Errors
    /// As of [`convert`].
    pub fn run(&mut self, progress: &Progress) -> Result<()> {
        progress.total.store(self.job.source_bytes(), Ordering::Relaxed);
        let Self { job, staging: Some(staging), done, .. } = self else { return Err(over()) };
        let outcome = job.run(staging, done, progress);
        self.settled(outcome)
    }

    /// Returns the numbers of the remaining tasks, for [`work`] in other processes.
    ///
    /// # Errors
    /// `Config` for a shuffle, which runs on one machine.
    pub fn tasks(&self) -> Result<Vec<usize>> {
        if self.job.options.shuffle.is_some() {
            return Err(Error::config(
                "shuffle",
                "rows are scattered and sorted on one machine; shuffle while training",
            ));
        }
        Ok(self.job.left(&self.done))
    }

    /// Returns the format being written.
    pub fn to(&self) -> Format {
        self.job.sink.format()
    }

    /// Returns the fingerprint that [`work`] must find too.
    pub fn fingerprint(&self) -> &str {
        &self.job.identity.fingerprint
    }

    /// Makes a new directory that exists until the conversion ends, or this is called again; [`work`] gets directories in it. Tasks of
    /// another source or other options, which may still be running, have another one.
    ///
    /// # Errors
    /// `Store` if it cannot be made.
    pub fn attempts(&self) -> Result<PathBuf> {
        self.staging.as_ref().ok_or_else(over)?.attempts(&self.job.identity.fingerprint)
    }

    /// Takes over what [`work`] did in `directory`. A task that was adopted before is skipped: of two attempts, one counts.
    ///
    /// # Errors
    /// `Config` if `worked` is not the result of [`work`], or belongs to another source or other options; `Store`.
    pub fn adopt(&mut self, worked: &str, directory: &Path) -> Result<()> {
        let staging = self.staging.as_ref().ok_or_else(over)?;
        let wrong = |why: String| Error::config("worked", why);
        let Worked { fingerprint, done } = serde_json::from_str(worked).map_err(|error| wrong(error.to_string()))?;
        let lacks_digest = self.job.options.verify && done.digest.is_none();
        if fingerprint != self.job.identity.fingerprint || lacks_digest {
            return Err(wrong(format!("task {} is of another source or other options", done.task)));
        }
        if done.task >= self.job.tasks.len() {
            return Err(wrong(format!("task {} of {}", done.task, self.job.tasks.len())));
        }
        if self.done.iter().all(|known| known.task != done.task) {
            staging.adopt(&done, directory)?;
            self.done.push(done);
        }
        Ok(())
    }

    /// Publishes the dataset, all at once.
    ///
    /// # Errors
    /// As of [`convert`]; `Closed` if tasks are missing, or if `progress` was asked to stop before it is published: the tasks then
    /// stay for [`resume`](ConvertOptions::resume).
    pub fn finish(mut self, progress: &Progress) -> Result<Report> {
        let missing = self.job.left(&self.done).len();
        let Self { job, staging: Some(staging), done, .. } = &mut self else { return Err(over()) };
        let named = match missing {
            0 => job.name_and_check(staging, done, progress),
            _ => Err(Error::Closed { why: format!("{missing} tasks of {} are not done", job.units) }),
        };
        let (named, verified) = self.settled(named)?;
        let Self { job, staging, done, resumed, source, started } = &mut self;
        let rows = done.iter().map(|done| done.rows).sum();
        let bytes = named.iter().map(|part| part.bytes).sum();
        let success = json!({
            "bowstring": env!("CARGO_PKG_VERSION"),
            "fingerprint": job.identity.fingerprint,
            "settings": job.identity.settings,
            "verified": verified,
            "format": job.sink.format(),
            "source": source,
            "rows": rows,
            "files": named.len(),
            "bytes": bytes,
            "schema": schema_json(&job.schema),
        });
        let published = staging.as_ref().ok_or_else(over)?.publish(success, job.options.threads(), progress);
        let report = Report { resumed_tasks: *resumed, verified, ..report(job, rows, named.len(), bytes, *started) };
        self.settled(published)?;
        if let Some(staging) = self.staging.take() {
            staging.clear_away();
        }
        Ok(report)
    }

    fn settled<T>(&mut self, outcome: Result<T>) -> Result<T> {
        outcome.inspect_err(|error| self.give_up(error.kind()))
    }

    fn give_up(&mut self, kind: Kind) {
        // Errors of the source or the options would recur; those of the disk may not.
        let passing = matches!(kind, Kind::Store | Kind::Closed | Kind::Timeout | Kind::Remote);
        if let Some(staging) = self.staging.take() {
            let is_worth = !self.done.is_empty() || shuffle::has_scattered(&self.job, &staging);
            staging.abandon(passing && is_worth);
        }
    }
}

impl Drop for Conversion {
    fn drop(&mut self) {
        self.give_up(Kind::Closed);
    }
}

fn over() -> Error {
    Error::Closed { why: "the conversion is over".to_owned() }
}

fn report(job: &Job, rows: u64, files: usize, bytes: u64, started: Instant) -> Report {
    let column = |field: &Arc<Field>| (field.name().clone(), type_text(field.data_type()));
    Report {
        from: job.source.format(),
        to: job.sink.format(),
        rows,
        files,
        bytes,
        source_bytes: job.source_bytes(),
        tasks: job.units,
        resumed_tasks: 0,
        unchanged: false,
        verified: false,
        seconds: started.elapsed().as_secs_f64(),
        schema: job.schema.fields().iter().map(column).collect(),
    }
}
