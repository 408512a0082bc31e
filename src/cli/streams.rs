//! `-` in `convert`: standard input as a file before it is read, one finished file to standard output.
//!
//! Formats read their files more than once, and nothing of a conversion may be visible before all of it is verified. So both go through
//! a temporary directory of this process (`TMPDIR`), which is removed with it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::convert::{ConvertOptions, Format};
use crate::{Error, Result};

use crate::cli::interrupt::Interrupt;

/// The name that stands for a standard stream.
pub(crate) const DASH: &str = "-";

/// Time between checks for the end of the input and for a signal.
const GLANCE: Duration = Duration::from_millis(100);

/// Returns true for formats whose dataset may be one file.
fn is_one_file(format: Format) -> bool {
    use Format::{Arrow, Csv, Jsonl, Numpy, Parquet, Tfrecord, Tsv, Webdataset};
    matches!(format, Arrow | Csv | Tsv | Jsonl | Numpy | Parquet | Tfrecord | Webdataset)
}

/// Returns true for formats whose files a terminal can show.
fn is_text(format: Format) -> bool {
    matches!(format, Format::Csv | Format::Tsv | Format::Jsonl)
}

/// Refuses `-` if `options` request something that a stream cannot provide, before anything is read.
pub(crate) fn check(src: &str, dst: &Path, options: &ConvertOptions) -> Result<()> {
    if src == DASH {
        let problem = match options.from {
            None => Some("standard input has no name that tells its format; give it with --from".to_owned()),
            Some(format) if !is_one_file(format) => {
                Some(format!("{format} is a directory of files, and standard input is one file"))
            }
            _ => None,
        };
        if let Some(problem) = problem {
            return Err(Error::config("from", problem));
        }
    }
    if dst != Path::new(DASH) {
        return Ok(());
    }
    let format = match options.to {
        None => {
            return Err(Error::config("to", "standard output has no name that tells the format; give it with --to"));
        }
        Some(format) => format,
    };
    // An array for each row.
    if !is_one_file(format) || format == Format::Numpy {
        return Err(Error::config(
            "to",
            format!("{format} is a directory of files, and standard output takes one file"),
        ));
    }
    if !is_text(format) && io::stdout().is_terminal() {
        let problem =
            format!("standard output is a terminal, and {format} is not text; send it to a file or a program");
        return Err(Error::config("to", problem));
    }
    let is_sized = options.target_file_size != ConvertOptions::default().target_file_size;
    for (option, given) in [
        ("resume", options.resume),
        ("overwrite", options.overwrite),
        ("shards", options.shards.is_some_and(|shards| shards != 1)),
        ("target_file_size", is_sized),
    ] {
        if given {
            return Err(Error::config(option, "standard output is one file that is made anew; leave the option out"));
        }
    }
    Ok(())
}

/// A directory of this process alone, removed on drop.
#[derive(Debug)]
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
        let path = std::env::temp_dir().join(format!("bowstring-{}-{now}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path).map_err(|error| failed("create", &path, error))?;
        Ok(Self(path))
    }

    /// Returns a path in it.
    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Copies standard input to a file, named with the extension of its format; `None` if a signal came first.
    ///
    /// # Errors
    /// `Store` if the input cannot be read, or the file cannot be written.
    pub(crate) fn input(&self, format: Option<Format>, interrupt: &Interrupt) -> Result<Option<PathBuf>> {
        let ending = format.map_or("", |format| if format == Format::Numpy { "npy" } else { format.extension() });
        let path = self.join("standard input").with_extension(ending);
        let file = File::create_new(&path).map_err(|error| failed("create", &path, error))?;
        let (done, ended) = mpsc::channel();
        let thread = std::thread::Builder::new().name("bowstring-stdin".to_owned());
        // The thread is not joined: a read of a terminal or a pipe ends only when the other side lets it.
        let started = thread.spawn(move || done.send(copy(&mut io::stdin().lock(), file)));
        started.map_err(|error| failed("read", Path::new("standard input"), error))?;
        loop {
            match ended.recv_timeout(GLANCE) {
                Ok(copied) => {
                    copied.map_err(|error| failed("read", Path::new("standard input"), error))?;
                    return Ok(Some(path));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(Error::Closed { why: "the thread that read standard input is gone".to_owned() });
                }
                Err(mpsc::RecvTimeoutError::Timeout) if interrupt.has_come() => return Ok(None),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Copies the only data file of the dataset at `path` to standard output.
    ///
    /// # Errors
    /// Those of standard output; those of the file, as standard output's.
    pub(crate) fn output(path: &Path) -> io::Result<()> {
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            // Names that begin with `_` are not data.
            if !entry.file_name().to_string_lossy().starts_with('_') {
                let mut stdout = io::stdout().lock();
                io::copy(&mut File::open(entry.path())?, &mut stdout)?;
                stdout.flush()?;
            }
        }
        Ok(())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A failure leaves it to the cleaning of temporary directories.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn copy(from: &mut impl Read, mut to: File) -> io::Result<()> {
    io::copy(from, &mut to)?;
    Ok(())
}

fn failed(operation: &str, path: &Path, error: io::Error) -> Error {
    Error::Store { operation: operation.to_owned(), url: path.display().to_string(), source: error.into() }
}
