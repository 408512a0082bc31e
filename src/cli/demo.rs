//! `bowstring demo`: pictures become training batches; an interrupted run continues exactly where it was.
//!
//! Each part is a claim and its proof: batches are compared by the SHA-256 of their bytes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::codec::ColumnOptions;
use crate::codec::image::{self, Crop, ImageOptions};
use crate::hex;
use crate::plan::State;
use crate::tensor::{Batch, Value};
use crate::{Error, Result};
use crate::{Loader, LoaderOptions};

use crate::cli::out::{Failure, Out, Outcome};
use crate::cli::program::Program;
use crate::cli::table::{bytes, plural, rate, seconds};

/// 40 pictures made by code (`scripts/pictures.py`), so that the demo runs wherever the program is and may be redistributed.
const PICTURES: &[u8] = include_bytes!("pictures.parquet");

/// Side of the crops, in pixels.
const SIDE: u32 = 224;

/// Rows of all ranks per step.
const GLOBAL_BATCH: u64 = 8;

/// Steps before the interruption.
const INTERRUPTED_AT: usize = 2;

/// Options of `demo`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    /// Parquet file with the columns `image` (JPEG) and `label`, instead of the pictures that come with the program
    #[arg(long, value_name = "FILE")]
    photos: Option<PathBuf>,
    /// Seed of order and augmentation
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Epochs for the throughput figure
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
}

/// The results as JSON.
#[derive(Debug, Serialize)]
struct Report {
    /// The given file; absent for the built-in pictures.
    #[serde(skip_serializing_if = "Option::is_none")]
    photos: Option<PathBuf>,
    rows: u64,
    steps: u64,
    lanes: u64,
    batch_shapes: Vec<(String, String)>,
    seconds_to_first_batch: f64,
    state: State,
    /// SHA-256 of the batches of an uninterrupted epoch.
    digests: Vec<String>,
    resume_identical: bool,
    ranks_identical: bool,
    served_identical: bool,
    rows_per_second: f64,
    jpeg_decoder: &'static str,
}

pub(crate) fn run(args: &Args, program: &Program, out: &mut Out) -> Outcome {
    let data = Data::of(args)?;
    let demo = Demo { photos: data.url(), seed: args.seed };
    let say = |out: &mut Out, text: String| out.say(&text);

    let mut loader = demo.open(0, 1)?;
    let (rows, steps, lanes) = (loader.rows(), loader.steps(), u64::from(loader.state().spec.lanes.unwrap_or(1)));
    say(out, format!("The data   {rows} pictures with labels, as JPEG in Parquet: {}\n", data.described()))?;
    say(
        out,
        format!(
            "The plan   seed {} and epoch 0 put them in one order: {} of {GLOBAL_BATCH} rows, cut from {}\n",
            demo.seed,
            plural(steps, "step"),
            plural(lanes, "lane")
        ),
    )?;

    let started = Instant::now();
    let mut digests = Vec::new();
    let mut row_digests = Vec::new();
    let mut shapes = Vec::new();
    let mut first = 0.0;
    while let Some(batch) = loader.next()? {
        if digests.is_empty() {
            first = started.elapsed().as_secs_f64();
            shapes = described(&batch);
            let shapes: Vec<_> = shapes.iter().map(|(name, shape)| format!("{name} {shape}")).collect();
            say(out, format!("A batch    {}; the first came after {}\n", shapes.join(", "), seconds(first)))?;
        }
        row_digests.extend(digests_of_rows(&batch));
        digests.push(digest(&batch));
    }
    say(
        out,
        format!(
            "An epoch   {}, each picture cropped at random and scaled to {SIDE} x {SIDE}: digest {}\n",
            plural(rows, "row"),
            short(&digests)
        ),
    )?;

    // The interruption: only the state survives.
    let mut interrupted = demo.open(0, 1)?;
    for _ in 0..INTERRUPTED_AT {
        interrupted.next()?;
    }
    let state = interrupted.state();
    drop(interrupted);
    let json = state.to_json();
    say(
        out,
        format!(
            "Interrupt  after step {INTERRUPTED_AT} of {steps} another loader is dropped; {} of state are kept\n",
            bytes(json.len() as u64)
        ),
    )?;

    let mut resumed = demo.open(0, 1)?;
    resumed.load_state(&State::from_json(&json)?)?;
    let mut rest = Vec::new();
    while let Some(batch) = resumed.next()? {
        rest.push(digest(&batch));
    }
    let resume_identical = digests.get(INTERRUPTED_AT..) == Some(rest.as_slice());
    say(
        out,
        format!("Resume     a new loader yields the other {} batches: {}\n", rest.len(), verdict(resume_identical)),
    )?;

    // The same state on two ranks: their rows together are the rows of the single rank.
    let mut ranks = [demo.open(0, 2)?, demo.open(1, 2)?];
    let mut together = Vec::new();
    for rank in &mut ranks {
        rank.load_state(&State::from_json(&json)?)?;
        while let Some(batch) = rank.next()? {
            together.extend(digests_of_rows(&batch));
        }
    }
    let mut all_rows = row_digests.clone();
    all_rows.sort_unstable();
    let mut alone: Vec<_> = row_digests.split_off((INTERRUPTED_AT * GLOBAL_BATCH as usize).min(row_digests.len()));
    alone.sort_unstable();
    together.sort_unstable();
    let ranks_identical = alone == together;
    say(
        out,
        format!(
            "Two ranks  the same state on 2 ranks instead of 1: their rows together are {}\n",
            verdict(ranks_identical)
        ),
    )?;

    // The same two ranks, served by another process.
    #[cfg(feature = "flight")]
    let served_identical = {
        let served = demo.served(program)?;
        say(
            out,
            format!(
                "A server   another process reads and decodes; 2 ranks that only receive have together {} rows: {}\n",
                served.len(),
                verdict(served == all_rows)
            ),
        )?;
        served == all_rows
    };
    #[cfg(not(feature = "flight"))]
    let served_identical = {
        // This build has no server.
        let _ = program;
        true
    };

    let (mut loader, started, mut rows_run) = (demo.open(0, 1)?, Instant::now(), 0u64);
    for _ in 0..args.epochs {
        while let Some(batch) = loader.next()? {
            rows_run += batch.rows as u64;
        }
    }
    let elapsed = started.elapsed().as_secs_f64();
    say(
        out,
        format!(
            "Speed      {} pictures per second over {}, decoded by {}\n",
            rate(rows_run, elapsed),
            plural(args.epochs, "epoch"),
            image::backend()
        ),
    )?;
    if out.is_json() {
        out.json(&Report {
            photos: args.photos.clone(),
            rows,
            steps,
            lanes,
            batch_shapes: shapes,
            seconds_to_first_batch: first,
            state,
            digests,
            resume_identical,
            ranks_identical,
            served_identical,
            rows_per_second: rows_run as f64 / elapsed,
            jpeg_decoder: image::backend(),
        })?;
    }
    if resume_identical && ranks_identical && served_identical { Ok(()) } else { Err(Failure::Told(1)) }
}

struct Demo {
    photos: String,
    seed: u64,
}

impl Demo {
    fn open(&self, rank: u32, world_size: u32) -> Result<Loader> {
        Loader::open(self.options(&self.photos, rank, world_size))
    }

    fn options(&self, url: &str, rank: u32, world_size: u32) -> LoaderOptions {
        let mut options = LoaderOptions::new(url, GLOBAL_BATCH / u64::from(world_size));
        (options.rank, options.world_size) = (Some(rank), Some(world_size));
        options.seed = self.seed;
        options.columns = image_columns();
        options
    }

    /// Returns the digests of the rows that two ranks get from `bowstring serve`, in no order.
    #[cfg(feature = "flight")]
    fn served(&self, program: &Program) -> Result<Vec<[u8; 32]>> {
        let server = Server::start(program, &self.photos)?;
        let mut digests = Vec::new();
        for rank in 0..2 {
            let mut loader = Loader::open(self.options(&format!("{}/photos", server.address), rank, 2))?;
            while let Some(batch) = loader.next()? {
                digests.extend(digests_of_rows(&batch));
            }
        }
        digests.sort_unstable();
        Ok(digests)
    }
}

/// A `bowstring serve` of this very program, killed on drop.
#[cfg(feature = "flight")]
struct Server {
    child: std::process::Child,
    address: String,
}

#[cfg(feature = "flight")]
impl Server {
    fn start(program: &Program, photos: &str) -> Result<Self> {
        use std::io::BufRead as _;
        let failed = |what: &str, error: std::io::Error| Error::Remote {
            peer: "bowstring serve".to_owned(),
            what: what.to_owned(),
            source: Some(Box::new(error)),
        };
        let unknown = || failed("nothing says how this program is started", std::io::ErrorKind::NotFound.into());
        let (first, others) = program.command.split_first().ok_or_else(unknown)?;
        let mut child = std::process::Command::new(first)
            .args(others)
            .args(["serve", &format!("photos={photos}"), "--listen", "127.0.0.1:0", "--print-address"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn()
            .map_err(|error| failed("it cannot be started", error))?;
        let mut address = String::new();
        let read = child.stdout.take().map(|stdout| std::io::BufReader::new(stdout).read_line(&mut address));
        let server = Self { child, address: address.trim().to_owned() };
        match read {
            Some(Ok(_)) if !server.address.is_empty() => Ok(server),
            Some(Err(error)) => Err(failed("it said nothing", error)),
            _ => Err(failed("it did not start", std::io::ErrorKind::UnexpectedEof.into())),
        }
    }
}

#[cfg(feature = "flight")]
impl Drop for Server {
    fn drop(&mut self) {
        // It has nothing to lose; a failure means that it is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the columns: the label, and the photo as in training: a random crop, scaled to one size, perhaps mirrored.
fn image_columns() -> ColumnOptions {
    let photo =
        ImageOptions { size: Some(SIDE.into()), crop: Crop::RANDOM_RESIZED, flip: 0.5, ..ImageOptions::default() };
    ColumnOptions {
        columns: vec!["image".to_owned(), "label".to_owned()],
        images: BTreeMap::from([("image".to_owned(), photo)]),
        ..ColumnOptions::default()
    }
}

/// A file of pictures, deleted at the end if the demo wrote it.
enum Data {
    Given(PathBuf),
    Own { file: PathBuf, _directory: TempDir },
}

impl Data {
    fn of(args: &Args) -> Result<Self> {
        if let Some(photos) = &args.photos {
            return Ok(Self::Given(photos.clone()));
        }
        let failed = |at: &Path, error: std::io::Error| Error::Store {
            operation: "write".to_owned(),
            url: at.display().to_string(),
            source: Box::new(error),
        };
        let directory = tempfile::Builder::new()
            .prefix("bowstring-demo-")
            .tempdir()
            .map_err(|error| failed(&std::env::temp_dir(), error))?;
        let file = directory.path().join("pictures.parquet");
        fs::write(&file, PICTURES).map_err(|error| failed(&file, error))?;
        Ok(Self::Own { file, _directory: directory })
    }

    fn url(&self) -> String {
        let (Self::Given(file) | Self::Own { file, .. }) = self;
        file.to_string_lossy().into_owned()
    }

    fn described(&self) -> String {
        match self {
            Self::Given(file) => file.display().to_string(),
            Self::Own { .. } => "made by code, they come with the program".to_owned(),
        }
    }
}

fn described(batch: &Batch) -> Vec<(String, String)> {
    let described = batch.columns().iter().map(|(name, value)| {
        let text = match value {
            Value::Tensor(tensor) => format!("{:?} {}", tensor.shape(), tensor.dtype()),
            Value::Arrow(array) => array.data_type().to_string(),
        };
        (name.to_string(), text)
    });
    described.collect()
}

fn digest(batch: &Batch) -> String {
    let mut digest = Sha256::new();
    for (name, tensor) in tensors(batch) {
        digest.update(name.as_bytes());
        digest.update(tensor.bytes());
    }
    hex::of(digest.finalize())
}

/// Digests each row: the batch axis is the first of each tensor.
fn digests_of_rows(batch: &Batch) -> Vec<[u8; 32]> {
    let row = |index: usize| {
        let mut digest = Sha256::new();
        for (_, tensor) in tensors(batch) {
            let size = tensor.bytes().len() / batch.rows.max(1);
            digest.update(tensor.bytes().get(index * size..(index + 1) * size).unwrap_or_default());
        }
        digest.finalize().into()
    };
    (0..batch.rows).map(row).collect()
}

fn tensors(batch: &Batch) -> impl Iterator<Item = (&str, &crate::tensor::Tensor)> {
    batch.columns().iter().filter_map(|(name, value)| Some((&**name, value.tensor()?)))
}

/// Returns the first digits of a digest over all.
fn short(digests: &[String]) -> String {
    hex::of(Sha256::digest(digests.concat()))[..12].to_owned()
}

fn verdict(identical: bool) -> &'static str {
    if identical { "bit for bit the same" } else { "NOT the same; this is a bug, please report it" }
}
