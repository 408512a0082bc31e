//! `bowstring bench URL`: runs the loader at full speed, measures its stages and names what limits it.

use std::fmt;
use std::time::{Duration, Instant};

use clap::Parser;
use serde::Serialize;

use crate::codec::image;
use crate::device::{DeviceBatch, DeviceValue};
use crate::pipeline::{Bottleneck, Stage, Stats, machine};
use crate::{AnyBatch, BadRowsFound, Loader, TimePart};

use crate::cli::args::LoaderArgs;
use crate::cli::bar::{Bar, Counts, Unit};
use crate::cli::html::{HtmlArgs, Plot, PlotKind};
use crate::cli::interrupt::Interrupt;
use crate::cli::out::{Failure, Out, Outcome, tell};
use crate::cli::program::Program;
use crate::cli::table::{Table, bytes, count, plural, rate, seconds};

/// Rows per batch by default.
const BATCH_SIZE: u64 = 64;

/// Options of `bench`.
#[derive(Debug, Parser)]
pub(crate) struct Args {
    #[command(flatten)]
    loader: LoaderArgs,
    /// Epochs to run
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
    /// Stop after this many steps
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Take one step per this many milliseconds, like a training loop
    #[arg(long, value_name = "MS", default_value_t = 0)]
    consumer_ms: u64,
    /// Measure another loader beside bowstring, on the same columns and batches: torch, a DataLoader over pyarrow
    #[arg(long, value_name = "LOADER", value_parser = ["torch"], conflicts_with_all = ["consumer_ms", "html"])]
    against: Option<String>,
    #[command(flatten)]
    html: HtmlArgs,
}

/// The measurement.
#[derive(Debug, Serialize)]
struct Report {
    urls: Vec<String>,
    /// The device of the batches.
    device: String,
    steps: u64,
    rows: u64,
    /// Bytes delivered: of tensors, and of columns of Arrow.
    bytes: u64,
    /// From the first call to the last batch; opening not counted.
    seconds: f64,
    rows_per_second: f64,
    bytes_per_second: f64,
    /// CPU time of the whole process over the same period; absent where the system does not report it.
    cpu_seconds: Option<f64>,
    rows_per_cpu_second: Option<f64>,
    seconds_to_open: f64,
    /// From the first call to the first batch.
    seconds_to_first_batch: Option<f64>,
    threads: usize,
    /// The most memory the process ever had resident, in bytes.
    peak_resident: Option<u64>,
    jpeg_decoder: &'static str,
    /// What the consumer's time went to, and what limits it.
    time: Vec<TimePart>,
    bottleneck: Option<Bottleneck>,
    bad_rows: BadRowsFound,
    stats: Stats,
}

pub(crate) fn run(args: &Args, program: &Program, out: &mut Out) -> Outcome {
    args.html.check()?;
    let mut options = args.loader.options()?;
    if options.batch_size.is_none() && options.global_batch_size.is_none() {
        options.batch_size = Some(BATCH_SIZE);
    }
    if let Some(other) = &args.against {
        return against(args, other, options.batch_size, program, out);
    }
    let urls = options.urls.clone();
    let threads = options.threads.unwrap_or_else(machine::threads);
    let opening = Instant::now();
    let mut loader = Loader::open(options)?;
    let seconds_to_open = opening.elapsed().as_secs_f64();

    // An epoch without steps never yields.
    let wanted = if loader.steps() == 0 { 0 } else { args.steps.unwrap_or(loader.steps().saturating_mul(args.epochs)) };
    let counts = Counts::of(wanted);
    let bar = Bar::counted(out, "measuring", Unit::Steps, &counts);
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let (mut steps, mut first) = (0, None);
    let interrupt = Interrupt::listen(|| {});
    while steps < wanted && !interrupt.has_come() {
        // `None` is the end of an epoch; the next call starts the next one.
        if let Some(batch) = loader.next_any()? {
            // A batch on a device counts once it has arrived.
            if let AnyBatch::Device(batch) = &batch {
                arrived(batch)?;
            }
            first.get_or_insert_with(|| started.elapsed().as_secs_f64());
            drop(batch);
            steps += 1;
            counts.set(steps, wanted);
            if args.consumer_ms > 0 {
                std::thread::sleep(Duration::from_millis(args.consumer_ms));
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let cpu_seconds = cpu.zip(cpu_seconds()).map(|(before, after)| after - before);
    drop(bar);

    let crate::Report { device, time, bottleneck, bad_rows, stats, .. } = loader.report();
    let per = |amount: u64, seconds: f64| if seconds > 0.0 { amount as f64 / seconds } else { 0.0 };
    let interrupted = steps < wanted;
    if interrupted && !out.is_quiet() {
        tell(&format!("Interrupted after {} of {}; the figures so far:\n", count(steps), plural(wanted, "step")));
    }
    let report = Report {
        urls,
        device,
        steps,
        rows: stats.rows,
        bytes: stats.consumer.bytes,
        seconds,
        rows_per_second: per(stats.rows, seconds),
        bytes_per_second: per(stats.consumer.bytes, seconds),
        cpu_seconds,
        rows_per_cpu_second: cpu_seconds.filter(|cpu| *cpu > 0.0).map(|cpu| per(stats.rows, cpu)),
        seconds_to_open,
        seconds_to_first_batch: first,
        threads,
        peak_resident: machine::peak_resident(),
        jpeg_decoder: image::backend(),
        time,
        bottleneck,
        bad_rows,
        stats,
    };
    out.report(&report)?;
    args.html.write(&format!("Bench of {}", report.urls.join(", ")), || report.plots(), &report)?;
    if interrupted { Err(Failure::Told(interrupt.code())) } else { Ok(()) }
}

/// Measures another loader too. Both are opened by the Python package, so that both pay for the way into tensors of Python.
fn against(args: &Args, other: &str, batch_size: Option<u64>, program: &Program, out: &Out) -> Outcome {
    let Some(run) = program.against else {
        let remedy =
            "is measured by the `bowstring` command of the Python package: pip install \"bowstring[torch,arrow]\"";
        return Err(crate::Error::config("against", format!("{other} {remedy}")).into());
    };
    let comparison = serde_json::json!({
        "against": other,
        "options": args.loader.document()?,
        "batch_size": batch_size,
        "epochs": args.epochs,
        "steps": args.steps,
        "json": out.is_json(),
        "quiet": out.is_quiet(),
    });
    match run(&comparison.to_string()) {
        0 => Ok(()),
        code => Err(Failure::Told(code)),
    }
}

/// Waits until a batch is on its device: one copy brings all of it.
fn arrived(batch: &DeviceBatch) -> crate::Result<()> {
    let tensor = batch.columns().iter().find_map(|(_, value)| match value {
        DeviceValue::Tensor(tensor) => Some(tensor),
        DeviceValue::Arrow(_) => None,
    });
    tensor.map_or(Ok(()), |tensor| tensor.synchronize())
}

impl Report {
    /// Returns the stages by name, in order.
    fn stages(&self) -> [(&'static str, &Stage); 4] {
        let Stats { read, decode, batch, consumer, .. } = &self.stats;
        [("read", read), ("decode", decode), ("batch", batch), ("consumer", consumer)]
    }

    /// Returns the drawings of its page.
    fn plots(&self) -> Vec<Plot> {
        let time = |(name, stage): (&str, &Stage)| {
            let part = |time: f64, what: &str| (time, format!("{what} {}", seconds(time)));
            (name.to_owned(), vec![part(stage.worked_seconds, "worked"), part(stage.waited_seconds, "waited")])
        };
        let out = |(name, stage): (&str, &Stage)| (name.to_owned(), stage.bytes as f64, bytes(stage.bytes));
        let limit = self.bottleneck.iter().map(|found| format!(" {} {}.", found.sentence, found.advice));
        let limit: String = limit.collect();
        let cause = |part: &TimePart| {
            (part.cause.name().to_owned(), part.percent, format!("{:.1} %, {}", part.percent, seconds(part.seconds)))
        };
        vec![
            Plot {
                title: "Where time goes",
                note: format!("Every moment of the consumer goes to one cause; the shares sum to 100 %.{limit}"),
                kind: PlotKind::Bars(self.time.iter().filter(|part| part.seconds > 0.0).map(cause).collect()),
            },
            Plot {
                title: "Time of each stage",
                note: "Summed over threads.".to_owned(),
                kind: PlotKind::Stacks(vec!["worked", "waited"], self.stages().map(time).to_vec()),
            },
            Plot {
                title: "Bytes out of each stage",
                note: "As stored (read), decoded (decode), as tensors and columns of Arrow (batch, consumer)."
                    .to_owned(),
                kind: PlotKind::Bars(self.stages().map(out).to_vec()),
            },
        ]
    }
}

/// Returns the CPU seconds of this process, over all threads. The kernel reports them to user space in 1/100 s on every platform.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, the program's name in parentheses, may hold spaces; utime and stime are fields 14 and 15.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) as f64 / 100.0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |per_second: f64| format!("{}/s", bytes(per_second as u64));
        writeln!(
            f,
            "{} rows in {} steps to {}, {} in {}",
            count(self.rows),
            count(self.steps),
            self.device,
            bytes(self.bytes),
            seconds(self.seconds)
        )?;
        writeln!(f)?;
        writeln!(f, "  throughput       {} rows/s, {}", rate(self.rows, self.seconds), size(self.bytes_per_second))?;
        if let Some(cpu) = self.cpu_seconds {
            writeln!(
                f,
                "  per CPU second   {} rows ({} of CPU time, {} threads)",
                rate(self.rows, cpu),
                seconds(cpu),
                self.threads
            )?;
        }
        let first = self.seconds_to_first_batch.map_or("-".to_owned(), seconds);
        writeln!(
            f,
            "  first batch      {first} after the first call, which came {} after the start",
            seconds(self.seconds_to_open)
        )?;
        writeln!(f, "  copied           {:.2} bytes per byte delivered", self.stats.copied_per_delivered)?;
        let memory = &self.stats.memory;
        let resident = self.peak_resident.map_or("unknown".to_owned(), bytes);
        writeln!(
            f,
            "  memory           peak {} of the budget of {}; process peak {resident}",
            bytes(memory.peak),
            bytes(memory.budget)
        )?;
        writeln!(f, "  JPEG decoder     {}", self.jpeg_decoder)?;
        let spent = self.time.iter().filter(|part| part.percent >= 0.05);
        let spent: Vec<_> = spent.map(|part| format!("{} {:.1} %", part.cause.name(), part.percent)).collect();
        writeln!(f, "  time             {}", if spent.is_empty() { "-".to_owned() } else { spent.join(", ") })?;
        write!(f, "{}", self.bad_rows)?;
        writeln!(f)?;
        let mut stages = Table::new(&["stage", ">items", ">bytes out", ">worked", ">waited", ">bytes per worked s"]);
        for (name, stage) in self.stages() {
            // The consumer here only counts.
            let speed = if stage.worked_seconds > 0.0 && name != "consumer" {
                size(stage.bytes as f64 / stage.worked_seconds)
            } else {
                "-".to_owned()
            };
            stages.row([
                name.to_owned(),
                count(stage.items),
                bytes(stage.bytes),
                seconds(stage.worked_seconds),
                seconds(stage.waited_seconds),
                speed,
            ]);
        }
        write!(f, "{stages}")?;
        writeln!(f)?;
        self.bottleneck.iter().try_for_each(|found| write!(f, "{found}"))
    }
}
