//! Division of a conversion into tasks, and their execution on several threads.

use std::ops::Range;

use crate::convert::options::ConvertOptions;
use crate::convert::source::Source;

/// Most tasks of a conversion if the number of files is not given, unless they would write more than one file each.
const MOST_TASKS: u64 = 16;

/// Least bytes of a task: less is not worth a file.
const LEAST_TASK: u64 = 8 << 20;

/// Assigns shards to tasks, and files to each task if their number is given. Depends on the source and the options alone, so that a
/// resumed conversion has the same tasks.
pub(crate) fn tasks(source: &dyn Source, options: &ConvertOptions) -> (Vec<Range<usize>>, Option<Vec<usize>>) {
    let shards = source.shards();
    let total: u64 = shards.iter().map(|shard| shard.bytes).sum();
    let count = match options.shards {
        Some(files) => files.min(shards.len()),
        None => {
            let task = (total / MOST_TASKS).max(LEAST_TASK).min(options.target_file_size.max(1));
            usize::try_from(total.div_ceil(task)).unwrap_or(usize::MAX).min(shards.len())
        }
    }
    .max(1);
    // Cut where the preceding bytes reach the next share.
    let mut tasks = Vec::with_capacity(count);
    let (mut start, mut before) = (0, 0_u128);
    for (number, shard) in shards.iter().enumerate() {
        before += u128::from(shard.bytes);
        let (cut, left) = (tasks.len() + 1, shards.len() - number - 1);
        let share = u128::from(total) * cut as u128 / count as u128;
        // Every later task needs a shard of its own.
        if cut < count && (before >= share || left == count - cut) {
            tasks.push(start..number + 1);
            start = number + 1;
        }
    }
    tasks.push(start..shards.len());
    let files = options.shards.map(|files| {
        let (each, more) = (files / tasks.len(), files % tasks.len());
        (0..tasks.len()).map(|task| each + usize::from(task < more)).collect()
    });
    (tasks, files)
}
