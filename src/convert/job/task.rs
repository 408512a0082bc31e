//! One task of a job: reads shards, filters and casts rows, writes them.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow::array::{BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;

use super::Job;
use super::journal::Done;
use crate::convert::budget::{Budget, Progress};
use crate::convert::check::digest::Summing;
use crate::convert::errors::unexpected;
use crate::convert::rolling::Dealt;
use crate::convert::sink::Writer;
use crate::convert::source::Source;
use crate::convert::values::cells::{as_type_at, by_name};
use crate::error::{Error, Place, Result};
use crate::store::directory::failed;

/// Source of a batch's rows.
#[derive(Debug)]
pub(crate) struct Origin {
    /// Number of the shard.
    pub(crate) shard: usize,
    /// Row of the shard that was the first before the filter.
    first: u64,
    /// Rows that the filter selected.
    selected: Option<BooleanArray>,
}

impl Origin {
    /// Row of the shard that row `at` of the batch is.
    fn row(&self, at: usize) -> u64 {
        let before = self.selected.as_ref().and_then(|selected| selected.values().set_indices().nth(at));
        self.first + before.unwrap_or(at) as u64
    }

    /// Names the place in the source that an error of a writer is about.
    fn name(&self, error: Error, source: &dyn Source) -> Error {
        let told = error.place().cloned().unwrap_or_default();
        let is_of_data = told.row.is_some() || matches!(error, Error::Unsupported { .. });
        if told.file.is_some() || !is_of_data {
            return error;
        }
        let Place { row, column, .. } = told;
        let at = row.and_then(|row| usize::try_from(row).ok()).map(|row| self.row(row));
        let place = source.place(self.shard, at.unwrap_or(self.first));
        match at {
            Some(_) => error.at(Place { column, ..place }),
            None => error.at(Place { row: None, row_group: None, column, ..place }),
        }
    }
}

impl Job {
    /// Returns the budget of all tasks, excluding the memory reserved per thread.
    pub(crate) fn budget(&self) -> Budget {
        let reserved = (self.options.sink_bytes() + self.read_ahead) * self.options.threads() as u64;
        Budget::lending(self.options.memory_budget - reserved.min(self.options.memory_budget / 2))
    }

    /// Runs one task in `directory`, which is empty.
    pub(crate) fn work(&self, task: usize, directory: &Path, budget: &Budget, progress: &Progress) -> Result<Done> {
        let files = self.files.as_ref().map(|files| files.get(task).copied().unwrap_or(1));
        let mut writer = self.writer(task, directory, files)?;
        let mut digest = self.summing();
        let mut rows = 0;
        let read = self.feed(task, budget, progress, &mut |origin, batch| {
            if let Some(digest) = &mut digest {
                digest.add(batch)?;
            }
            writer.write(batch).map_err(|error| origin.name(error, &*self.source))?;
            rows += batch.num_rows() as u64;
            progress.rows.fetch_add(batch.num_rows() as u64, Ordering::Relaxed);
            Ok(())
        })?;
        let parts = writer.finish()?;
        Ok(Done { task, parts, digest: digest.map(|digest| digest.digest()), rows, read })
    }

    /// Starts a digest, if the result is to be checked.
    pub(crate) fn summing(&self) -> Option<Summing> {
        let names = self.schema.fields().iter().map(|field| field.name().as_str());
        self.options.verify.then(|| Summing::new(names))
    }

    /// Makes the writer of a task, or of a bucket of a shuffle: for `files` files, or as many as their size requires.
    pub(crate) fn writer(&self, task: usize, directory: &Path, files: Option<usize>) -> Result<Box<dyn Writer>> {
        let Some(files) = files else { return self.sink.writer(directory, &task.to_string()) };
        let mut writers = Vec::with_capacity(files);
        for number in 0..files {
            let directory = directory.join(number.to_string());
            std::fs::create_dir(&directory).map_err(|error| failed("create", &directory, error))?;
            let mut writer = self.sink.writer(&directory, &format!("{task}_{number}"))?;
            // A file without rows counts too.
            writer.write(&RecordBatch::new_empty(Arc::clone(&self.schema)))?;
            writers.push(writer);
        }
        Ok(Box::new(Dealt { writers, next: 0 }))
    }

    /// Passes the batches of a task to `consume`, ready for writing, each with its origin. Returns the number of rows read of the
    /// source, before filtering.
    ///
    /// # Errors
    /// `Corrupt` if a shard yields another number of rows than its index declares.
    pub(crate) fn feed(
        &self,
        task: usize,
        budget: &Budget,
        progress: &Progress,
        consume: &mut dyn FnMut(&Origin, &RecordBatch) -> Result<()>,
    ) -> Result<u64> {
        let mut read = 0;
        for number in self.tasks.get(task).cloned().unwrap_or_default() {
            let mut batches = self.source.read(number, &self.read, budget)?;
            let mut consumed = 0;
            let mut row = 0;
            while let Some(batch) = batches.next()? {
                progress.go_on()?;
                let rows = batch.num_rows() as u64;
                let (origin, batch) = self.transform(batch, number, row)?;
                row += rows;
                if batch.num_rows() > 0 {
                    consume(&origin, &batch)?;
                }
                let now = batches.consumed();
                progress.bytes.fetch_add(now.saturating_sub(consumed), Ordering::Relaxed);
                consumed = now;
            }
            let Some(shard) = self.source.shards().get(number) else { continue };
            if let Some(claimed) = shard.rows.filter(|claimed| *claimed != row) {
                let what = format!("{row} rows were read, its index claims {claimed}");
                return Err(Error::corrupt(Place::file(shard.id.as_str()), what));
            }
            read += row;
            progress.bytes.fetch_add(shard.bytes.saturating_sub(consumed), Ordering::Relaxed);
        }
        Ok(read)
    }

    /// Row of a shard that is number `row` of those that the filter selects; `None` if there is none.
    pub(crate) fn selected(&self, shard: usize, row: u64, budget: &Budget) -> Result<Option<u64>> {
        if self.filter.is_none() {
            return Ok(Some(row));
        }
        let mut left = usize::try_from(row).unwrap_or(usize::MAX);
        let (mut batches, mut first) = (self.source.read(shard, &self.read, budget)?, 0);
        while let Some(batch) = batches.next()? {
            let rows = batch.num_rows() as u64;
            let (origin, batch) = self.transform(batch, shard, first)?;
            if left < batch.num_rows() {
                return Ok(Some(origin.row(left)));
            }
            left -= batch.num_rows();
            first += rows;
        }
        Ok(None)
    }

    /// Applies the filter, the selection of columns and the casts to a batch, whose first row is row `first` of its shard.
    pub(crate) fn transform(&self, batch: RecordBatch, shard: usize, first: u64) -> Result<(Origin, RecordBatch)> {
        let selected = self.filter.as_ref().map(|filter| filter.evaluate(&batch)).transpose()?;
        let batch = match &selected {
            Some(selected) => filter_record_batch(&batch, selected).map_err(unexpected)?,
            None => batch,
        };
        let origin = Origin { shard, first, selected };
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        let named = by_name(&batch);
        for field in self.schema.fields() {
            let Some(column) = named.get(field.name().as_str()).copied() else {
                return Err(Error::NotFound {
                    what: format!("column {:?} of a batch", field.name()),
                    hint: String::new(),
                });
            };
            columns.push(as_type_at(field.name(), |at| origin.row(at), column, field.data_type()).map_err(
                |error| {
                    let at = error.place().and_then(|place| place.row);
                    error.at(self.source.place(shard, at.unwrap_or(first)).column(field.name().as_str()))
                },
            )?);
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let batch =
            RecordBatch::try_new_with_options(Arc::clone(&self.schema), columns, &options).map_err(unexpected)?;
        let batch = match &self.pixels {
            Some(pixels) => pixels.apply(&batch, &|at| self.source.place(shard, origin.row(at)))?,
            None => batch,
        };
        Ok((origin, batch))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Float64Array, Int64Array};
    use parquet::arrow::ArrowWriter;

    use super::*;
    use crate::convert::{ConvertOptions, Format, convert};
    use crate::dataset::filter::Filter;

    fn parquet(path: &Path, values: ArrayRef) {
        let batch = RecordBatch::try_from_iter([("x", values)]).unwrap();
        let mut writer = ArrowWriter::try_new(std::fs::File::create(path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn a_value_that_the_format_cannot_hold_is_told_with_its_file() {
        let directory = tempfile::tempdir().unwrap();
        for (name, values) in [("a", vec![1.0]), ("b", vec![2.0, f64::NAN])] {
            parquet(&directory.path().join(format!("{name}.parquet")), Arc::new(Float64Array::from(values)));
        }
        let options = ConvertOptions { to: Some(Format::Jsonl), ..ConvertOptions::default() };
        let dst = tempfile::tempdir().unwrap();
        let out = dst.path().join("out");
        let error = convert(directory.path().to_str().unwrap(), &out, &options, &Progress::default()).unwrap_err();
        let said = error.chain();
        assert!(
            said.contains("b.parquet") && !said.contains("a.parquet") && said.contains("column x, row 1"),
            "{said}"
        );
        assert!(error.place().is_some_and(|place| place.file.is_some()), "{said}");
    }

    #[test]
    fn the_row_of_a_refused_value_is_that_of_the_source_through_filters_and_dealing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.parquet");
        let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..20));
        let mut values: Vec<_> = (0..20).map(f64::from).collect();
        values[13] = f64::NAN;
        let batch =
            RecordBatch::try_from_iter([("id", ids), ("x", Arc::new(Float64Array::from(values)) as _)]).unwrap();
        let mut writer = ArrowWriter::try_new(std::fs::File::create(&path).unwrap(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        for (shards, shuffle) in [(None, None), (Some(3), None), (Some(3), Some(1))] {
            let options = ConvertOptions {
                to: Some(Format::Jsonl),
                filter: Some(Filter::Text("id >= 5 and id != 8".into())),
                shards,
                shuffle,
                ..ConvertOptions::default()
            };
            let dst = tempfile::tempdir().unwrap();
            let out = dst.path().join("out");
            let error = convert(path.to_str().unwrap(), &out, &options, &Progress::default()).unwrap_err();
            let place = error.place().unwrap_or_else(|| panic!("{}", error.chain()));
            assert_eq!(place.column.as_deref(), Some("x"), "{}", error.chain());
            assert_eq!(place.row, Some(13), "{}", error.chain());
            assert!(place.file.is_some(), "{}", error.chain());
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_named_by_its_row_in_the_source() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.parquet");
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2, 3, 4, 300]));
        parquet(&path, numbers);
        let options = ConvertOptions {
            schema: Some(serde_json::from_str(r#"{"x": "int8"}"#).unwrap()),
            filter: Some(Filter::Text("x >= 4".into())),
            to: Some(Format::Jsonl),
            ..ConvertOptions::default()
        };
        let dst = directory.path().join("out");
        let error = convert(path.to_str().unwrap(), &dst, &options, &Progress::default()).unwrap_err();
        let said = error.chain();
        for part in ["x.parquet", "row group 0", "column x", "row 4", "300"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_eq!(error.kind(), crate::error::Kind::Data, "{said}");
    }
}
