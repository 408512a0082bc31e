//! Flushes finished tasks and records them in the journal, concurrently with running ones, so that disk and cores work at the same
//! time.

use std::path::Path;
use std::sync::mpsc::sync_channel;

use super::journal::Done;
use super::publish::Staging;
use crate::convert::sink::Part;
use crate::error::{Error, Result};
use crate::store::directory::{flush_file, flush_file_system};

/// Most finished tasks that wait for the disk; a task that finishes beyond that waits too.
const WAITING: usize = 4;

/// Runs `work`, which hands over the tasks that it finishes. Their files are flushed, one by one if `flushes`, journaled, and added to
/// `done`.
///
/// # Errors
/// The disk's error, else that of `work`.
pub(crate) fn commit(
    staging: &Staging,
    flushes: bool,
    done: &mut Vec<Done>,
    work: impl FnOnce(&(dyn Fn(Done) -> Result<()> + Sync)) -> Result<()>,
) -> Result<()> {
    let (sender, receiver) = sync_channel::<Done>(WAITING);
    std::thread::scope(|scope| {
        let settling = scope.spawn(move || {
            let mut settled = Vec::new();
            for finished in receiver {
                let files = staging.files(finished.task);
                let on_disk = if flushes { flush(&files, &finished.parts) } else { flush_all(&files, &finished.parts) };
                if let Err(error) = on_disk.and_then(|()| staging.journal.done(&finished)) {
                    // Dropping the receiver ends the work.
                    return (settled, Err(error));
                }
                settled.push(finished);
            }
            (settled, Ok(()))
        });
        let ended = || Error::Closed { why: "finished tasks are not noted any more".to_owned() };
        let worked = work(&|finished| sender.send(finished).map_err(|_| ended()));
        drop(sender);
        let (settled, noted) = settling.join().unwrap_or_else(|_| (Vec::new(), Err(ended())));
        done.extend(settled);
        noted.and(worked)
    })
}

/// Flushes files of `directory` that are so many that one by one would take days.
pub(super) fn flush_all(directory: &Path, parts: &[Part]) -> Result<()> {
    if parts.is_empty() || flush_file_system(directory)? {
        return Ok(());
    }
    flush(directory, parts)
}

/// Flushes files of `directory`.
pub(crate) fn flush(directory: &Path, parts: &[Part]) -> Result<()> {
    parts.iter().try_for_each(|part| flush_file(&directory.join(&part.name)))
}
