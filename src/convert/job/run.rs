//! Runs a job to its end on this machine: its tasks, the final names of its files, and the files beside them.

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::commit::commit;
use super::journal::Done;
use super::publish::Staging;
use super::{Job, shuffle};
use crate::convert::budget::Progress;
use crate::convert::parallel::parallel;
use crate::convert::sink::Part;
use crate::error::{Error, Result};

impl Job {
    /// Runs the remaining tasks.
    pub(crate) fn run(&self, staging: &Staging, done: &mut Vec<Done>, progress: &Progress) -> Result<()> {
        let budget = self.budget();
        if let Some(seed) = self.options.shuffle {
            return shuffle::run(self, seed, staging, done, &budget, progress);
        }
        let left = self.left(done);
        commit(staging, self.sink.flushes(), done, |give| {
            let work = |task| give(self.work(task, &staging.task(task)?, &budget, progress)?);
            parallel(self.options.threads(), &left, progress, work)
        })
    }

    /// Gives the files their final names, writes the files beside them, and reads everything again if requested.
    pub(crate) fn name_and_check(
        &self,
        staging: &Staging,
        done: &mut Vec<Done>,
        progress: &Progress,
    ) -> Result<(Vec<Part>, bool)> {
        done.sort_by_key(|done| done.task);
        if done.iter().all(|done| done.parts.is_empty()) {
            // Without rows, a file is still needed for the schema.
            let task = done.iter().map(|done| done.task + 1).max().unwrap_or(0);
            let mut writer = self.sink.writer(&staging.task(task)?, &task.to_string())?;
            writer.write(&RecordBatch::new_empty(Arc::clone(&self.schema)))?;
            done.push(Done { task, parts: writer.finish()?, digest: None, rows: 0, read: 0 });
        }
        self.count(staging, done, progress)?;
        let total = done.iter().map(|done| done.parts.len()).sum();
        let mut named = Vec::with_capacity(total);
        for part in done.iter().flat_map(|done| &done.parts) {
            let name = self.sink.name(part, named.len(), total);
            named.push(Part { name, ..part.clone() });
        }
        let mut names: Vec<&str> = named.iter().map(|part| part.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::unsupported(
                format!("two rows for the file {:?} in {}", twice[0], self.sink.format()),
                "the column that names the files must be unique",
            ));
        }
        staging.gather(done, &named)?;
        let data = staging.data();
        self.sink.finish(&data, &named)?;
        if self.options.verify {
            self.check(&data, done, progress)?;
        }
        Ok((named, self.options.verify))
    }
}
