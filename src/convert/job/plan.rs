//! The plan of a conversion, computed without running it.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::Field;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use serde::Serialize;

use super::address::address;
use super::finished::{Found, finished};
use super::{Job, destination};
use crate::convert::errors::unexpected;
use crate::convert::format::Format;
use crate::convert::options::ConvertOptions;
use crate::convert::types::type_text;
use crate::convert::values::timezone;
use crate::error::Result;
use crate::store::directory::Destination;

/// Preview of a conversion.
#[derive(Debug, Clone, Serialize)]
pub struct Plan {
    /// The source's format.
    pub from: Format,
    /// True if that was guessed.
    pub guessed: bool,
    /// The destination's format.
    pub to: Format,
    /// The columns that would be written: name, type, and nullability.
    #[serde(rename = "columns")]
    pub schema: Vec<(String, String, bool)>,
    /// Parts of the source.
    pub shards: usize,
    /// Bytes of the source.
    pub bytes: u64,
    /// Rows of the source, if known without reading it.
    pub rows: Option<u64>,
    /// Number of tasks; of a shuffle, of the buckets that rows are scattered into.
    pub tasks: usize,
    /// The first rows, as text by column.
    pub sample: Vec<Vec<String>>,
    /// True if the destination already exists, made from the same source with the same options.
    pub unchanged: bool,
}

/// Previews [`convert`](crate::convert::convert): opens the source, infers its columns, checks them against the sink, reads the first
/// rows, and writes nothing.
///
/// # Errors
/// As of [`convert`](crate::convert::convert), for the parts that it runs.
pub fn plan(src: &str, dst: &Path, options: &ConvertOptions) -> Result<Plan> {
    destination::check(src, dst)?;
    let job = Job::new(src, dst, options)?;
    let found = match options.overwrite {
        true => Found::Nothing,
        false => finished(dst, &job, &address(src))?,
    };
    found.check_current(dst, options)?;
    let unchanged = matches!(found, Found::Whole { .. });
    if !unchanged {
        Destination::of(dst, "dst")?.vacant(options.replace())?;
    }
    let shown = job.transform(job.sample.slice(0, job.sample.num_rows().min(5)), job.sampled, 0)?.1;
    let format = FormatOptions::default().with_null("null");
    let mut sample = Vec::new();
    for column in shown.columns() {
        let column = &timezone::shown(column)?;
        let formatter = ArrayFormatter::try_new(column, &format).map_err(unexpected)?;
        let cell = |row| formatter.value(row).try_to_string().unwrap_or_default();
        sample.push((0..column.len()).map(|row| cell(row).chars().take(80).collect()).collect());
    }
    let shards = job.source.shards();
    let column = |field: &Arc<Field>| (field.name().clone(), type_text(field.data_type()), field.is_nullable());
    Ok(Plan {
        from: job.source.format(),
        guessed: options.from.is_none(),
        to: job.sink.format(),
        schema: job.schema.fields().iter().map(column).collect(),
        shards: shards.len(),
        bytes: job.source_bytes(),
        rows: shards.iter().map(|shard| shard.rows).sum(),
        tasks: job.units,
        sample,
        unchanged,
    })
}
