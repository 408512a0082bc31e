//! `bowstring._native.FileSystem`, `File` and `FileWriter`: files of stores, awaited in slices.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bowstring::store::{Entry, File, FileOptions, FileSystem, Upload, Writer};
use bowstring::{Error, Next};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::calls::detached;
use crate::credentials::{Provider, provide};
use crate::errors::raise;
use crate::fork::Owned;
use crate::log;
use crate::options::parsed;
use crate::wait::{SLICE, Shared, Source, apart};

impl Source for File {
    fn timeout(&self) -> Duration {
        self.timeout()
    }

    fn timed_out(&self, waited: Duration) -> Error {
        self.timed_out(waited)
    }
}

impl Source for Writer {
    fn timeout(&self) -> Duration {
        self.timeout()
    }

    fn timed_out(&self, waited: Duration) -> Error {
        self.timed_out(waited)
    }
}

/// Address, size (none of a directory), time in nanoseconds since 1970, entity tag.
type Found = (String, Option<u64>, Option<i64>, Option<String>);

fn found(entry: Entry) -> Found {
    match entry.stamp {
        Some(stamp) => (entry.url, Some(stamp.size), stamp.modified, stamp.etag),
        None => (entry.url, None, None, None),
    }
}

/// The stores that are reached with one set of options.
#[pyclass(frozen, name = "FileSystem", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyFileSystem(Owned<FileSystem>);

impl PyFileSystem {
    fn made(
        py: Python<'_>,
        options: &str,
        provider: Option<Provider>,
        open: fn(FileOptions) -> bowstring::Result<FileSystem>,
    ) -> PyResult<Self> {
        let mut options = parsed(py, options)?;
        provide(py, &mut options, provider)?;
        let files = apart(py, move || open(options.file_options()?))?;
        Ok(Self(Owned::new(files)))
    }

    /// Runs `work` in a thread of its own.
    fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&FileSystem) -> bowstring::Result<T> + Send + 'static,
    ) -> PyResult<T> {
        let files = self.0.checked().map_err(|error| raise(py, &error))?.clone();
        apart(py, move || work(&files))
    }
}

#[pymethods]
impl PyFileSystem {
    #[new]
    #[pyo3(signature = (options, provider=None))]
    fn new(py: Python<'_>, options: &str, provider: Option<Provider>) -> PyResult<Self> {
        Self::made(py, options, provider, FileSystem::new)
    }

    /// With a cache that is there already, if one is given.
    #[staticmethod]
    #[pyo3(signature = (options, provider=None))]
    fn of_existing_cache(py: Python<'_>, options: &str, provider: Option<Provider>) -> PyResult<Self> {
        Self::made(py, options, provider, FileSystem::of_existing_cache)
    }

    fn open(&self, py: Python<'_>, url: String) -> PyResult<PyFile> {
        let file = self.run(py, move |files| files.open(&url))?;
        Ok(PyFile { url: file.url().to_owned(), size: file.size(), file: Shared::new(file) })
    }

    /// Begins to save what is to be at `url`, and to be uploaded when `upload` says.
    fn create(&self, py: Python<'_>, url: String, upload: &str) -> PyResult<PyFileWriter> {
        let upload = match upload {
            "wait" => Upload::Wait,
            "background" => Upload::Background,
            other => {
                let problem = format!("{other:?} is neither wait nor background");
                return Err(raise(py, &Error::Config { option: "upload", problem }));
            }
        };
        let writer = self.run(py, move |files| files.create(&url, upload))?;
        Ok(PyFileWriter { url: writer.url().to_owned(), writer: Shared::new(writer) })
    }

    /// Waits until the stores have all that was saved.
    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, FileSystem::flush)
    }

    fn rename(&self, py: Python<'_>, from: String, to: String) -> PyResult<()> {
        self.run(py, move |files| files.rename(&from, &to))
    }

    fn remove(&self, py: Python<'_>, url: String) -> PyResult<()> {
        self.run(py, move |files| files.remove(&url))
    }

    fn remove_all(&self, py: Python<'_>, url: String) -> PyResult<()> {
        self.run(py, move |files| files.remove_all(&url))
    }

    fn make_directory(&self, py: Python<'_>, url: String) -> PyResult<()> {
        self.run(py, move |files| files.make_directory(&url))
    }

    fn entry(&self, py: Python<'_>, url: String) -> PyResult<Found> {
        self.run(py, move |files| files.entry(&url)).map(found)
    }

    fn list(&self, py: Python<'_>, url: String) -> PyResult<Vec<Found>> {
        Ok(self.run(py, move |files| files.list(&url))?.into_iter().map(found).collect())
    }

    fn real_path(&self, py: Python<'_>, url: String) -> PyResult<Option<PathBuf>> {
        self.run(py, move |files| files.real_path(&url))
    }

    fn find(&self, py: Python<'_>, url: String) -> PyResult<Vec<Found>> {
        Ok(self.run(py, move |files| files.find(&url))?.into_iter().map(found).collect())
    }

    /// Reads ranges of files, concurrently. For each file it returns the bytes of its ranges, or its error.
    fn read<'py>(&self, py: Python<'py>, wanted: Vec<(String, Vec<(u64, u64)>)>) -> PyResult<Bound<'py, PyList>> {
        let ranges = |ranges: Vec<(u64, u64)>| ranges.into_iter().map(|(start, end)| start..end).collect();
        let wanted: Vec<(String, Vec<Range<u64>>)> = wanted.into_iter().map(|(url, of)| (url, ranges(of))).collect();
        let read = self.run(py, move |files| Ok(files.read(&wanted)))?;
        let all = PyList::empty(py);
        for parts in read {
            match parts {
                Ok(parts) => all.append(PyList::new(py, parts.iter().map(|part| PyBytes::new(py, part)))?)?,
                Err(error) => all.append(raise(py, &error).into_value(py))?,
            }
        }
        Ok(all)
    }

    /// Returns the counters of its cache.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let stats = self.0.checked().map_err(|error| raise(py, &error))?.stats();
        py.import("json")?.call_method1("loads", (serde_json::json!(stats).to_string(),))
    }
}

/// One file, at one version.
#[pyclass(frozen, name = "File", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyFile {
    #[pyo3(get)]
    url: String,
    #[pyo3(get)]
    size: u64,
    file: Shared<File>,
}

impl PyFile {
    /// Returns the next bytes, at most `most`; `None` at the end. The parts are not copied.
    fn part(&self, py: Python<'_>, most: u64) -> PyResult<Option<impl AsRef<[u8]> + use<>>> {
        let take = |file: &mut File, wait| {
            Ok(match file.next_within(most, wait)? {
                Some(part) if part.is_empty() => Next::End,
                Some(part) => Next::Item(part),
                None => Next::Pending,
            })
        };
        self.file.next(
            py,
            take,
            |file, part| file.set_position(file.position().saturating_sub(part.len() as u64)),
            |part| Ok(part.clone()),
        )
    }
}

#[pymethods]
impl PyFile {
    /// Returns the next `length` bytes; fewer only at the end.
    fn read<'py>(&self, py: Python<'py>, length: u64) -> PyResult<Bound<'py, PyBytes>> {
        let start = self.tell(py)?;
        let (mut parts, mut left) = (Vec::new(), length);
        while left > 0 {
            match self.part(py, left) {
                Ok(Some(part)) => {
                    left = left.saturating_sub(part.as_ref().len() as u64);
                    parts.push(part);
                }
                Ok(None) => break,
                Err(error) => {
                    self.seek(py, start)?;
                    return Err(error);
                }
            }
        }
        if let [part] = parts.as_slice() {
            return Ok(PyBytes::new(py, part.as_ref()));
        }
        PyBytes::new_with(py, parts.iter().map(|part| part.as_ref().len()).sum(), |bytes| {
            let mut at = 0;
            for part in parts.iter().map(AsRef::as_ref) {
                if let Some(to) = bytes.get_mut(at..at + part.len()) {
                    to.copy_from_slice(part);
                }
                at += part.len();
            }
            Ok(())
        })
    }

    /// Returns some of the next `most` bytes, those that come first; none only at the end.
    fn some<'py>(&self, py: Python<'py>, most: u64) -> PyResult<Bound<'py, PyBytes>> {
        let part = self.part(py, most)?;
        Ok(PyBytes::new(py, part.as_ref().map(AsRef::as_ref).unwrap_or_default()))
    }

    fn seek(&self, py: Python<'_>, position: u64) -> PyResult<()> {
        self.file.get(py, |file| file.set_position(position))
    }

    fn tell(&self, py: Python<'_>) -> PyResult<u64> {
        self.file.get(py, |file| file.position())
    }

    /// Returns the path of a file of this machine with these bytes.
    fn local_path(&self, py: Python<'_>) -> PyResult<std::path::PathBuf> {
        loop {
            let path = self.file.with(py, |file| Ok(file.local_path_within(SLICE)?.map(ToOwned::to_owned)));
            let passed_on = log::pass_on(py);
            if let Some(path) = path? {
                return Ok(path);
            }
            passed_on.and_then(|()| py.check_signals())?;
        }
    }

    /// Returns the descriptor of that file, if it is open.
    fn fileno(&self, py: Python<'_>) -> PyResult<Option<i32>> {
        use std::os::fd::AsRawFd;
        self.file.get(py, |file| file.local_file().map(|(file, _)| file.as_raw_fd()))
    }

    /// Returns the counters of the cache, of all files of its file system.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.file.document(py, |file| serde_json::to_string(&file.stats()))
    }

    /// Gives everything back; a forked child has nothing to give back.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.file.close(py, File::close)
    }
}

/// One file that is saved.
#[pyclass(frozen, name = "FileWriter", module = "bowstring._native")]
#[derive(Debug)]
pub(crate) struct PyFileWriter {
    #[pyo3(get)]
    url: String,
    writer: Shared<Writer>,
}

#[pymethods]
impl PyFileWriter {
    /// Writes all of `data`.
    fn write(&self, py: Python<'_>, data: &[u8]) -> PyResult<()> {
        let timeout = self.writer.get(py, |writer| Writer::timeout(writer))?;
        let (mut left, mut since) = (data, Instant::now());
        while !left.is_empty() {
            let taken = self.writer.with(py, |writer| writer.write_within(left, SLICE));
            let passed_on = log::pass_on(py);
            match taken? {
                Some(taken) => (left, since) = (left.get(taken..).unwrap_or_default(), Instant::now()),
                None if since.elapsed() > timeout => {
                    let error = self.writer.get(py, |writer| Writer::timed_out(writer, since.elapsed()))?;
                    return Err(raise(py, &error));
                }
                None => {}
            }
            passed_on.and_then(|()| py.check_signals())?;
        }
        Ok(())
    }

    /// Ends the file: it is there, whole.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        loop {
            let done = self.writer.with(py, |writer| writer.finish_within(SLICE));
            let passed_on = log::pass_on(py);
            if done? {
                return Ok(());
            }
            passed_on.and_then(|()| py.check_signals())?;
        }
    }

    /// Gives it up; a forked child has nothing to give up.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        self.writer.close(py, Writer::abort)
    }
}

/// Waits until no upload of this process is under way, for `seconds` at most; returns true if so.
#[pyfunction]
pub(crate) fn uploads_done(py: Python<'_>, seconds: f64) -> bool {
    let wait = Duration::try_from_secs_f64(seconds).unwrap_or(SLICE);
    detached(py, || bowstring::store::uploads_done(wait))
}
