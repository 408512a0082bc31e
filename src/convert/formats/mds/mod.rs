//! MosaicML's streaming format, MDS: shards of samples whose columns are encoded one by one, and an `index.json`.
//!
//! ```text
//!   shard:  samples u32 ─ offsets u32 x (samples + 1) ─ configuration as JSON ─ samples
//!   sample: sizes u32 of the variable-size columns ─ the columns' bytes, in the order of their names
//! ```
//! Pickled columns are refused: reading them would execute their content.

mod code;
mod encoding;
mod hash;
mod index;
mod shard;
mod take;
mod write;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{Field, Schema, SchemaRef};
use serde_json::json;

use self::encoding::Encoding;
use self::hash::{Hashing, KNOWN};
use self::index::{Entry, Index, MAX_SHARD};
use self::shard::Samples;
use self::take::Taker;
use crate::convert::budget::Budget;
use crate::convert::errors::unexpected;
use crate::convert::format::Format;
use crate::convert::limits::{BATCH_BYTES, BATCH_ROWS, Limits};
use crate::convert::read::files::{self, Found};
use crate::convert::read::listing::Listing;
use crate::convert::source::{Batches, Opening, Shard, Source, drain};
use crate::error::{Error, Place, Result};

pub(crate) use self::write::sink;

#[derive(Debug)]
struct MdsSource {
    entries: Vec<Entry>,
    files: Vec<Found>,
    encodings: Vec<Encoding>,
    schema: SchemaRef,
    shards: Vec<Shard>,
    limits: Limits,
}

pub(crate) fn open(tree: &Listing, opening: &Opening) -> Result<Box<dyn Source>> {
    let above = directory(tree)?;
    let tree = above.as_ref().unwrap_or(tree);
    let place = || Place::file("index.json");
    let content = tree.small("index.json", opening.limits.max_index_bytes)?;
    let index: Index = serde_json::from_slice(&content)
        .map_err(|error| Error::corrupt_by(place(), "it is not an index of MDS", error))?;
    if index.version != 2 {
        let what = format!("index.json: MDS of version {}", index.version);
        return Err(Error::unsupported(what, "version 2 is known"));
    }
    let Some(first) = index.shards.first() else {
        return Err(Error::corrupt(place(), "it names no shards, so there are no columns"));
    };
    opening.limits.columns("index.json", || "a shard".to_owned(), first.column_names.len())?;
    let encodings = first
        .column_names
        .iter()
        .zip(&first.column_encodings)
        .map(|(name, encoding)| Encoding::parse(name, encoding))
        .collect::<Result<Vec<_>>>()?;
    let mut names = Vec::with_capacity(index.shards.len());
    for (number, entry) in index.shards.iter().enumerate() {
        let wrong = |what: &str| Error::corrupt(place(), format!("shard {number}: {what}"));
        if entry.format != "mds" || entry.version != 2 {
            return Err(wrong(&format!("it is {} of version {}, not mds of version 2", entry.format, entry.version)));
        }
        let same = entry.column_names == first.column_names && entry.column_encodings == first.column_encodings;
        if !same || entry.column_sizes != first.column_sizes {
            return Err(wrong("its columns are not those of the first shard"));
        }
        let width = entry.column_names.len();
        if width == 0 || entry.column_encodings.len() != width || entry.column_sizes.len() != width {
            return Err(wrong("its names, encodings and sizes are not of one number"));
        }
        if encodings.iter().zip(&entry.column_sizes).any(|(encoding, size)| encoding.size() != *size) {
            return Err(wrong("a column's size is not that of its encoding"));
        }
        let stored = entry.stored();
        // A shard is next to the index or in a subdirectory, as in streams of several groups.
        let plain = !stored.basename.is_empty()
            && !stored.basename.starts_with('/')
            && !stored.basename.contains(['\0', '\\'])
            && stored.basename.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if !plain {
            let shown: String = stored.basename.chars().take(80).collect();
            return Err(wrong(&format!("the name {shown:?} leads elsewhere")));
        }
        // Each sample has an offset.
        if entry.raw_data.bytes > MAX_SHARD || entry.samples.saturating_mul(4).saturating_add(8) > entry.raw_data.bytes
        {
            return Err(wrong(&format!("{} samples are not in {} bytes", entry.samples, entry.raw_data.bytes)));
        }
        names.push(stored.basename.clone());
    }
    let unknown = Hashing::unknown(index.shards.iter().map(|entry| &entry.raw_data.hashes));
    if !unknown.is_empty() {
        // The data may be good, and their user cannot make other hashes.
        let unknown = Vec::from_iter(unknown).join(", ");
        tracing::warn!(
            "{}: hashes of shards are not checked: {unknown} of index.json are not known, {} are",
            tree.shown(),
            KNOWN.join(", ")
        );
    }
    let files = tree.find(&names)?;
    let mut shards = Vec::with_capacity(files.len());
    for (number, (file, entry)) in files.iter().zip(&index.shards).enumerate() {
        let claimed = entry.stored().bytes;
        if file.bytes != claimed {
            let what = format!("shard {number}: {} has {} bytes, {claimed} are claimed", file.name, file.bytes);
            return Err(Error::corrupt(place(), what));
        }
        let (id, stamp) = (file.name.to_string(), file.stamp.clone());
        shards.push(Shard { id, bytes: file.bytes, rows: Some(entry.samples), stamp });
    }
    let mut source = MdsSource {
        entries: index.shards,
        files,
        encodings,
        schema: Arc::new(Schema::empty()),
        shards,
        limits: opening.limits.clone(),
    };
    let sample = source.first()?;
    let mut fields = Vec::new();
    for (number, encoding) in source.encodings.iter().enumerate() {
        let Some(name) = first_name(&source.entries, number) else { continue };
        let cell = sample.as_ref().and_then(|cells| cells.get(number)).map(Vec::as_slice);
        let field = match opening.wanted(name) {
            Some(wanted) => Field::new(name, wanted.clone(), false).with_metadata(opening.metadata(name)),
            None => encoding.field(name, cell)?,
        };
        encoding.check(&field)?;
        fields.push(field);
    }
    // Nullability is as requested when writing; the values themselves are never null.
    if let Some(written) = &opening.written {
        for field in &mut fields {
            let nullable = written.field_with_name(field.name()).is_ok_and(Field::is_nullable);
            *field = field.clone().with_nullable(nullable);
        }
    }
    source.schema = Arc::new(Schema::new(fields));
    Ok(Box::new(source))
}

fn first_name(entries: &[Entry], number: usize) -> Option<&str> {
    entries.first()?.column_names.get(number).map(String::as_str)
}

/// Returns the directory of the index, if `tree` is the index file; `None` if it is the directory itself.
fn directory(tree: &Listing) -> Result<Option<Listing>> {
    match tree.file()? {
        None => Ok(None),
        Some(file) if &*file.name == "index.json" => Ok(Some(tree.parent())),
        Some(_) => Err(Error::unsupported(
            format!("the single shard {}", tree.shown()),
            "give the directory with its index.json",
        )),
    }
}

impl MdsSource {
    /// Returns the cells of the first sample, if there is one.
    fn first(&self) -> Result<Option<Vec<Vec<u8>>>> {
        let Some(number) = self.entries.iter().position(|entry| entry.samples > 0) else { return Ok(None) };
        // No budget is shared yet; the declared sizes of an index are limited when a shard is opened.
        let budget = Budget::new(u64::MAX);
        let mut samples = self.samples(number, &budget)?;
        if !samples.advance()? {
            return Ok(None);
        }
        Ok(Some(
            samples.cells.iter().map(|range| samples.sample.get(range.clone()).unwrap_or_default().to_vec()).collect(),
        ))
    }

    fn samples<'a>(&'a self, shard: usize, budget: &'a Budget) -> Result<Samples<'a>> {
        let (Some(entry), Some(found)) = (self.entries.get(shard), self.files.get(shard)) else {
            return Err(Error::NotFound { what: format!("shard {shard}"), hint: String::new() });
        };
        Samples::open(entry, found, budget, &self.limits)
    }
}

impl Source for MdsSource {
    fn format(&self) -> Format {
        Format::Mds
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn shards(&self) -> &[Shard] {
        &self.shards
    }

    fn paths(&self) -> Vec<PathBuf> {
        files::paths(&self.files)
    }

    fn read<'a>(&'a self, shard: usize, columns: &[usize], budget: &'a Budget) -> Result<Box<dyn Batches + 'a>> {
        let samples = self.samples(shard, budget)?;
        let schema = Arc::new(self.schema.project(columns).map_err(unexpected)?);
        let columns = columns.iter().filter_map(|number| self.encodings.get(*number).map(|own| (*number, own)));
        let columns = columns
            .zip(schema.fields())
            .map(|((number, encoding), field)| (number, Taker::new(encoding.clone(), field)))
            .collect();
        Ok(Box::new(Reader { samples, schema, columns, before: 0 }))
    }
}

struct Reader<'a> {
    samples: Samples<'a>,
    schema: SchemaRef,
    columns: Vec<(usize, Taker)>,
    /// Number of samples in earlier batches.
    before: u64,
}

impl Batches for Reader<'_> {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let (mut rows, mut bytes) = (0, 0);
        while rows < BATCH_ROWS && bytes < BATCH_BYTES && self.samples.advance()? {
            for (number, taker) in &mut self.columns {
                let range = self.samples.cells.get(*number).cloned().unwrap_or_default();
                let cell = self.samples.sample.get(range).unwrap_or_default();
                taker.push(cell).map_err(|what| self.samples.wrong(Some(taker.name()), &what))?;
            }
            bytes += self.samples.sample.len();
            rows += 1;
        }
        if rows == 0 {
            return Ok(None);
        }
        let mut arrays = Vec::with_capacity(self.columns.len());
        for (_, taker) in &mut self.columns {
            arrays.push(taker.finish().map_err(|error| self.samples.within(self.before, error))?);
        }
        self.before += rows as u64;
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options).map(Some).map_err(unexpected)
    }

    fn consumed(&self) -> u64 {
        self.samples.input.consumed()
    }
}

/// Reads bytes as a shard of two columns, for the fuzzer. Errors are fine.
#[doc(hidden)]
pub fn fuzz_shard(directory: &Path, shard: &[u8], samples: u64) -> Result<u64> {
    let write = |name: &str, bytes: &[u8]| {
        let path = directory.join(name);
        std::fs::write(&path, bytes).map_err(|error| crate::store::directory::failed("write", &path, error))
    };
    write("shard.00000.mds", shard)?;
    let entry = json!({
        "column_encodings": ["ndarray", "json", "int32", "list[jpeg]", "ndarray:float32", "str"],
        "column_names": ["a", "b", "c", "d", "e", "f"],
        "column_sizes": [null, null, 4, null, null, null],
        "compression": null, "format": "mds", "hashes": [], "version": 2, "samples": samples, "zip_data": null,
        "raw_data": {"basename": "shard.00000.mds", "bytes": shard.len(), "hashes": {}},
    });
    write("index.json", json!({"version": 2, "shards": [entry]}).to_string().as_bytes())?;
    let opening = Opening {
        types: Default::default(),
        limits: Limits::default(),
        storage_options: Default::default(),
        read_bytes: 4 << 20,
        written: None,
    };
    let source = open(&Listing::local(directory)?, &opening)?;
    let budget = Budget::new(64 << 20);
    let columns: Vec<usize> = (0..source.schema().fields().len()).collect();
    let mut rows = 0;
    drain(&mut *source.read(0, &columns, &budget)?, |batch| {
        rows += batch.num_rows() as u64;
        Ok(())
    })?;
    Ok(rows)
}
