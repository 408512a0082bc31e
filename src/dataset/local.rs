//! Footers of files of this machine: read and parsed on a few threads, each file from its opening to its numbers on one of them.
//!
//! Handing each small read from the runtime to a thread and back costs more than the read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;

use super::footer::{Footer, Footers, TAIL_BYTES, inside, joined, not_empty, stray};
use crate::error::{Error, Place, Result};
use crate::store::Found;

/// Files of this machine that are worth a thread to read their footers, and most threads.
const FILES_PER_THREAD: usize = 32;
const MOST_THREADS: usize = 16;

impl Footers {
    /// As [`read`](Self::read), for a file of this machine, on this thread, which must belong to no runtime.
    fn read_here(&self, found: &Found) -> Result<Footer> {
        let place = Place::file(Arc::clone(&found.name));
        not_empty(found, &place)?;
        let tail = found.tail_here(TAIL_BYTES)?;
        let (bytes, start) = match inside(&tail, &self.limits, &place).map_err(|error| stray(error, &found.name))? {
            Ok(whole) => whole,
            Err(start) => joined(&tail, start, &tail.object.read_range_here(start..tail.start)?),
        };
        self.footer(tail.object, &bytes, start, &place)
    }

    /// Reads and checks the footers of `found`, all of this machine, on threads of their own: so many at most. No file may take longer
    /// than `timeout`. The error is that of the first file that has one.
    pub(super) async fn read_local(
        self: Arc<Self>,
        found: Vec<Found>,
        threads: usize,
        timeout: Duration,
    ) -> Result<Vec<Footer>> {
        let work = Arc::new(Work { found, next: AtomicUsize::new(0), stop: AtomicBool::new(false) });
        let count = work.found.len();
        if count == 0 {
            return Ok(Vec::new());
        }
        let (sender, mut done) = mpsc::unbounded_channel();
        let threads = threads.min(count.div_ceil(FILES_PER_THREAD)).clamp(1, MOST_THREADS);
        for number in 0..threads {
            let (reader, work, sender) = (Arc::clone(&self), Arc::clone(&work), sender.clone());
            let run = move || {
                while let Some((at, found)) = work.next() {
                    let footer = reader.read_here(found);
                    if footer.is_err() {
                        work.stop.store(true, Ordering::Relaxed);
                    }
                    if sender.send((at, footer)).is_err() {
                        return;
                    }
                }
            };
            let started = std::thread::Builder::new().name("bowstring-open".to_owned()).spawn(run);
            if let (0, Err(error)) = (number, started) {
                return Err(Error::Closed { why: format!("no threads can be started: {error}") });
            }
        }
        drop(sender);
        // Those that still wait for a file have nothing to do when nobody waits for them.
        let _stop = Stop(Arc::clone(&work));
        let mut footers: Vec<Option<Footer>> = std::iter::repeat_with(|| None).take(count).collect();
        let mut failed: Option<(usize, Error)> = None;
        loop {
            let Ok(next) = tokio::time::timeout(timeout, done.recv()).await else {
                let first = footers.iter().position(Option::is_none).and_then(|first| work.found.get(first));
                let culprit = format!("the footer of file {}", first.map_or("", |found| &found.name));
                return Err(Error::late("open", culprit, timeout, timeout));
            };
            match next {
                Some((at, Ok(footer))) => {
                    if let Some(place) = footers.get_mut(at) {
                        *place = Some(footer);
                    }
                }
                Some((at, Err(error))) if failed.as_ref().is_none_or(|(first, _)| at < *first) => {
                    failed = Some((at, error));
                }
                Some(_) => {}
                None => break,
            }
        }
        if let Some((_, error)) = failed {
            return Err(error);
        }
        let all: Option<Vec<Footer>> = footers.into_iter().collect();
        all.ok_or_else(|| Error::Closed { why: "a footer was not parsed".to_owned() })
    }
}

/// Files whose footers threads read by turns, in order.
#[derive(Debug)]
struct Work {
    found: Vec<Found>,
    next: AtomicUsize,
    stop: AtomicBool,
}

impl Work {
    fn next(&self) -> Option<(usize, &Found)> {
        if self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        self.found.get(at).map(|found| (at, found))
    }
}

/// Stops the work when it is dropped.
struct Stop(Arc<Work>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use crate::dataset::OpenOptions;

    #[test]
    fn a_file_that_does_not_come_in_time_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("slow.parquet");
        std::fs::write(&path, [7; 1000]).unwrap();
        let options = OpenOptions::default();
        let urls = [directory.path().to_str().unwrap().to_owned()];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let error = runtime.block_on(async {
            let found = crate::store::find(&urls, options.access(), options.limits.max_files).await.unwrap().files;
            assert_eq!(found.len(), 1);
            // A pipe that nobody writes to: whoever opens it waits.
            std::fs::remove_file(&path).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
            let reader = Arc::new(Footers::new(options.limits.clone(), 0));
            reader.read_local(found, 1, Duration::from_millis(50)).await.unwrap_err()
        });
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.to_string().contains("the footer of file slow.parquet"), "{error}");
        // Lets the thread end.
        drop(std::fs::OpenOptions::new().read(true).write(true).open(&path));
    }
}
