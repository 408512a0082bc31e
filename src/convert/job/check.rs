//! Checks of a conversion before it is published: rows counted at every stage, and the output read again.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::journal::Done;
use super::publish::Staging;
use super::{Job, shuffle};
use crate::convert::budget::Progress;
use crate::convert::check::digest::{Digest, Summing};
use crate::convert::check::{census, tokens, verify};
use crate::convert::errors::{FAULT, differs};
use crate::convert::format::Format;
use crate::convert::formats::{self, huggingface};
use crate::convert::source::Opening;
use crate::error::{Error, Place, Result};
use crate::store::pinned::shown;

impl Job {
    /// Checks that no row was lost: the source's rows are those read, the selected ones are those written, and the files contain them.
    /// With `verify` the rows of the source are counted again by [`census`].
    pub(crate) fn count(&self, staging: &Staging, done: &[Done], progress: &Progress) -> Result<()> {
        let differs = |what: &str, expected: u64, found: u64| {
            let rows = |count: u64| format!("{count} rows");
            differs(Place::file(crate::store::display(&self.src)), what, rows(expected), rows(found), FAULT)
        };
        let written: u64 = done.iter().map(|done| done.rows).sum();
        let (read, selected) = match self.options.shuffle {
            Some(_) => shuffle::tally(self, staging)?,
            None => (done.iter().map(|done| done.read).sum(), written),
        };
        if selected != written {
            return Err(differs("what was scattered and what was gathered", selected, written));
        }
        let filed: u64 = done.iter().flat_map(|done| &done.parts).map(|part| part.rows).sum();
        if filed != written {
            return Err(differs("what was written and what its files have", written, filed));
        }
        if self.filter.is_none() && read != selected {
            return Err(differs("what was read and what was selected, without a filter", read, selected));
        }
        let format = self.sink.format();
        if written == 0 && matches!(format, Format::Images | Format::Numpy) {
            let what = format!("no rows in {format}");
            let hint = "its files are the rows, so nothing would be left to read; write another format";
            return Err(Error::unsupported(what, hint).at(Place::file(crate::store::display(&self.src))));
        }
        if self.options.verify {
            let there = census::rows(&self.src, &*self.source, &Opening::of(&self.options), progress)?;
            if there != read {
                return Err(differs("what the source has and what was read of it", there, read));
            }
        }
        Ok(())
    }

    /// Reads the output again, and compares it with the input.
    pub(crate) fn check(&self, data: &Path, done: &[Done], progress: &Progress) -> Result<()> {
        // A folder keeps only the last part of a path.
        let lost = |name: &str| self.sink.format() == Format::Images && matches!(name, "path" | "__key__");
        let names = || self.schema.fields().iter().map(|field| field.name().as_str()).filter(|name| !lost(name));
        let mut expected = Summing::new(names());
        for digest in done.iter().filter_map(|done| done.digest.as_ref()) {
            expected.merge(digest);
        }
        let opening = Opening {
            types: Default::default(),
            limits: self.options.limits.clone(),
            storage_options: Default::default(),
            read_bytes: self.options.read_bytes(),
            written: Some(Arc::clone(&self.schema)),
        };
        let data = shown(data);
        let place = data.to_string_lossy();
        let format = self.sink.format();
        let source = formats::open_as(format, &place, &opening)?;
        let described = [&self.schema, source.schema()].map(|schema| huggingface::kept(format, schema));
        if let Some(column) = huggingface::differing(described) {
            let what = format!("what Hugging Face's features say of column {column:?}");
            return Err(differs(Place::file(place), &what, "that of the source", "something else", FAULT));
        }
        let there = census::rows(&place, &*source, &opening, progress)?;
        progress.total.fetch_add(verify::stored(&*source), Ordering::Relaxed);
        let found = verify::digest(&*source, names(), &self.options, progress)?;
        let filter = self.filter.as_ref().map(|filter| (filter, &*self.read));
        tokens::check(&*self.source, names(), filter, &self.options, &found, progress)?;
        let mut expected = expected.digest();
        if names().count() < self.schema.fields().len() {
            // Whole rows cannot be compared without all of their columns.
            expected.sum.clone_from(&found.sum);
        }
        compare(&place, &expected, &found)?;
        if there != found.rows {
            let (expected, counted) =
                (format!("{} rows", found.rows), format!("{there} rows, counted without reading them"));
            return Err(differs(Place::file(place), "rows as they were written", expected, counted, FAULT));
        }
        Ok(())
    }
}

fn compare(place: &str, expected: &Digest, found: &Digest) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let column = expected.columns.iter().zip(&found.columns).find(|(a, b)| a != b);
    let what = match column {
        Some((column, _)) if expected.rows == found.rows => format!("column {:?} as it was written", column.name),
        _ => "rows as they were written".to_owned(),
    };
    let digest = |digest: &Digest| format!("{} rows, digest {}", digest.rows, digest.sum);
    Err(differs(Place::file(place), &what, digest(expected), digest(found), FAULT))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::convert::formats::tfrecord::write_record;
    use crate::convert::options::ConvertOptions;
    use crate::convert::sink::Part;

    #[test]
    fn rows_that_a_reader_lost_are_missed() {
        let directory = tempfile::tempdir().unwrap();
        let mut records = Vec::new();
        (0..3).for_each(|_| write_record(&[], &mut records));
        let sources: [(&str, &[u8]); 3] = [
            ("a.csv", b"id,word\n1,a\n2,\"b\nb\"\n3,c\n"),
            ("a.jsonl", b"{\"id\": 1}\n{\"id\": 2}\n\n{\"id\": 3}"),
            ("a.tfrecord", &records),
        ];
        for (name, content) in sources {
            let src = directory.path().join(name);
            std::fs::write(&src, content).unwrap();
            let options = ConvertOptions { verify: true, to: Some(Format::Arrow), ..ConvertOptions::default() };
            let dst = directory.path().join("out");
            // A feature absent from all records, so that there is a column.
            let options = ConvertOptions {
                schema: (name == "a.tfrecord").then(|| serde_json::from_str(r#"{"x": "int64"}"#).unwrap()),
                ..options
            };
            let job = Job::new(&src.to_string_lossy(), &dst, &options).unwrap();
            let (staging, _) =
                Staging::open(&dst, job.noted("/src"), false, options.replace(), &options.limits).unwrap();
            let done = |read: u64, rows: u64, filed: u64| {
                let part = Part { name: "x".into(), rows: filed, bytes: 0, extra: Value::Null };
                vec![Done { task: 0, parts: vec![part], digest: None, rows, read }]
            };
            job.count(&staging, &done(3, 3, 3), &Progress::default()).unwrap();
            for (read, rows, filed) in [(2, 2, 2), (4, 4, 4), (3, 2, 2), (3, 3, 2)] {
                let error = job.count(&staging, &done(read, rows, filed), &Progress::default()).unwrap_err();
                assert!(matches!(error, Error::Corrupt { .. }), "{name}, {read}, {rows}, {filed}: {error}");
            }
            staging.abandon(false);
        }
    }
}
