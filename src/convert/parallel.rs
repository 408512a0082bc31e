//! Runs numbered work items on several threads, until one fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::convert::budget::Progress;
use crate::error::Result;

/// Runs `work` for every number on several threads, until one fails.
pub(crate) fn parallel(
    threads: usize,
    numbers: &[usize],
    progress: &Progress,
    work: impl Fn(usize) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failure = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..threads.min(numbers.len()) {
            scope.spawn(|| {
                while let Some(number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if failure.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
                        return;
                    }
                    let outcome = progress.go_on().and_then(|()| work(*number));
                    if let Err(error) = outcome {
                        failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                        return;
                    }
                }
            });
        }
    });
    failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
