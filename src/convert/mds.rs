//! MosaicML's streaming format, MDS: shards of samples whose columns are encoded one by one, and an `index.json` over them.
//!
//! ```text
//!   shard:  samples u32 ─ offsets u32 x (samples + 1) ─ configuration as JSON ─ samples
//!   sample: sizes u32 of the columns that vary ─ the columns' bytes, in the order of their names
//! ```
//! Pickled columns are refused: reading them would run what they hold.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use serde::Deserialize;
use serde_json::{Value, json};

use super::chain::unexpected;
use super::coding::{Coder, Encoding, Taker};
use super::files::{self, Found, Input, Limits, Packed};
use super::format::Format;
use super::gate::{Gate, Permit};
use super::hash::Hashing;
use super::options::{ConvertOptions, Packing};
use super::roll::{Output, Rolling, Rows};
use super::sink::{Part, Sink, Writer, refused_value};
use super::source::{BATCH_BYTES, BATCH_ROWS, Batches, Opening, Shard, Source};
use crate::error::{Error, Place, Result};

/// Offsets are of 32 bits, so no shard is larger.
const MAX_SHARD: u64 = u32::MAX as u64;

/// Bytes of a shard's own configuration.
const MAX_CONFIG: u64 = 16 << 20;

#[derive(Debug, Deserialize)]
struct Index {
    version: u64,
    shards: Vec<Entry>,
}

/// A shard as the index has it.
#[derive(Debug, Clone, Deserialize)]
struct Entry {
    format: String,
    version: u64,
    samples: u64,
    column_names: Vec<String>,
    column_encodings: Vec<String>,
    column_sizes: Vec<Option<u64>>,
    compression: Option<String>,
    raw_data: File,
    zip_data: Option<File>,
}

#[derive(Debug, Clone, Deserialize)]
struct File {
    basename: String,
    bytes: u64,
    #[serde(default)]
    hashes: std::collections::BTreeMap<String, String>,
}

#[derive(Debug)]
struct MdsSource {
    entries: Vec<Entry>,
    files: Vec<Found>,
    encodings: Vec<Encoding>,
    schema: SchemaRef,
    shards: Vec<Shard>,
    limits: Limits,
}

pub(super) fn open(path: &Path, opening: &Opening) -> Result<Box<dyn Source>> {
    let (root, index) = if path.is_dir() { (path.to_owned(), path.join("index.json")) } else { parent(path)? };
    let place = || Place::file("index.json");
    let content = files::read_small(&index, opening.limits.max_index_bytes)?;
    let index: Index =
        serde_json::from_slice(&content).map_err(|error| Error::corrupt_by(place(), "it is no index of MDS", error))?;
    if index.version != 2 {
        let what = format!("index.json: MDS of version {}", index.version);
        return Err(Error::Unsupported { what, hint: "version 2 is known".into() });
    }
    let Some(first) = index.shards.first() else {
        return Err(Error::corrupt(place(), "it names no shards, so there are no columns"));
    };
    opening.limits.columns(|| "index.json: a shard".to_owned(), first.column_names.len())?;
    let encodings = first
        .column_names
        .iter()
        .zip(&first.column_encodings)
        .map(|(name, encoding)| Encoding::parse(name, encoding))
        .collect::<Result<Vec<_>>>()?;
    let mut found = Vec::with_capacity(index.shards.len());
    let mut shards = Vec::with_capacity(index.shards.len());
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
        let stored = entry.zip_data.as_ref().filter(|_| entry.compression.is_some()).unwrap_or(&entry.raw_data);
        // A shard beside the index, or in a directory below: streams of several groups have such.
        let plain = !stored.basename.is_empty()
            && !stored.basename.starts_with('/')
            && !stored.basename.contains(['\0', '\\'])
            && stored.basename.split('/').all(|part| !matches!(part, "" | "." | ".."));
        if !plain {
            let shown: String = stored.basename.chars().take(80).collect();
            return Err(wrong(&format!("the name {shown:?} leads elsewhere")));
        }
        let file = Found::at(&root.join(&stored.basename), &stored.basename)?;
        if file.bytes != stored.bytes {
            return Err(wrong(&format!("{} has {} bytes, {} are claimed", stored.basename, file.bytes, stored.bytes)));
        }
        // Each sample takes an offset.
        if entry.raw_data.bytes > MAX_SHARD || entry.samples.saturating_mul(4).saturating_add(8) > entry.raw_data.bytes
        {
            return Err(wrong(&format!("{} samples are not in {} bytes", entry.samples, entry.raw_data.bytes)));
        }
        let (id, stamp) = (stored.basename.clone(), file.stamp.clone());
        shards.push(Shard { id, bytes: file.bytes, rows: Some(entry.samples), stamp });
        found.push(file);
    }
    let mut source = MdsSource {
        entries: index.shards,
        files: found,
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
    // Whether a column may be null is what was asked for when it was written; its values are not.
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

fn parent(path: &Path) -> Result<(std::path::PathBuf, std::path::PathBuf)> {
    if path.file_name().is_some_and(|name| name == "index.json") {
        let root = path.parent().unwrap_or(Path::new(".")).to_owned();
        return Ok((root, path.to_owned()));
    }
    Err(Error::Unsupported {
        what: format!("the single shard {}", path.display()),
        hint: "give the directory with its index.json".into(),
    })
}

impl MdsSource {
    /// The cells of the first sample, if there is one.
    fn first(&self) -> Result<Option<Vec<Vec<u8>>>> {
        let Some(number) = self.entries.iter().position(|entry| entry.samples > 0) else { return Ok(None) };
        let gate = Gate::new(u64::MAX);
        let mut samples = self.samples(number, &gate)?;
        if !samples.advance()? {
            return Ok(None);
        }
        Ok(Some(
            samples.cells.iter().map(|range| samples.sample.get(range.clone()).unwrap_or_default().to_vec()).collect(),
        ))
    }

    fn samples<'a>(&'a self, shard: usize, gate: &'a Gate) -> Result<Samples<'a>> {
        let (Some(entry), Some(found)) = (self.entries.get(shard), self.files.get(shard)) else {
            return Err(Error::NotFound { what: format!("shard {shard}"), hint: String::new() });
        };
        Samples::open(entry, found, gate, &self.limits)
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

    fn read<'a>(&'a self, shard: usize, columns: &[usize], gate: &'a Gate) -> Result<Box<dyn Batches + 'a>> {
        let samples = self.samples(shard, gate)?;
        let schema = Arc::new(self.schema.project(columns).map_err(unexpected)?);
        let columns = columns.iter().filter_map(|number| self.encodings.get(*number).map(|own| (*number, own)));
        let columns = columns
            .zip(schema.fields())
            .map(|((number, encoding), field)| (number, Taker::new(encoding.clone(), field)))
            .collect();
        Ok(Box::new(Reader { samples, schema, columns }))
    }
}

struct Reader<'a> {
    samples: Samples<'a>,
    schema: SchemaRef,
    columns: Vec<(usize, Taker)>,
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
            arrays.push(taker.finish()?);
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options).map(Some).map_err(unexpected)
    }

    fn consumed(&self) -> u64 {
        self.samples.input.consumed()
    }
}

/// The samples of one shard.
struct Samples<'a> {
    input: Unpacked,
    entry: &'a Entry,
    limits: Limits,
    offsets: Vec<u32>,
    next: usize,
    /// The current sample, and where its columns are in it.
    sample: Vec<u8>,
    cells: Vec<std::ops::Range<usize>>,
    hashing: Option<(Hashing, String)>,
    _permit: Permit<'a>,
}

/// A shard's raw bytes: unpacked on the way, or, where the packing has no stream, at once.
enum Unpacked {
    Stream(Input),
    Whole { bytes: Vec<u8>, at: usize, packed: u64 },
}

impl Unpacked {
    fn append(&mut self, count: u64, out: &mut Vec<u8>) -> Result<u64> {
        match self {
            Self::Stream(input) => input.append(count, out),
            Self::Whole { bytes, at, .. } => {
                let rest = bytes.get(*at..).unwrap_or_default();
                let taken = rest.get(..usize::try_from(count).unwrap_or(usize::MAX)).unwrap_or(rest);
                out.extend_from_slice(taken);
                *at += taken.len();
                Ok(taken.len() as u64)
            }
        }
    }

    fn consumed(&self) -> u64 {
        match self {
            Self::Stream(input) => input.consumed(),
            Self::Whole { packed, .. } => *packed,
        }
    }
}

impl<'a> Samples<'a> {
    fn open(entry: &'a Entry, found: &Found, gate: &'a Gate, limits: &Limits) -> Result<Self> {
        let raw = entry.raw_data.bytes;
        let offsets = entry.samples.saturating_add(1).saturating_mul(4);
        let packing = entry.compression.as_deref().map(|name| name.split(':').next().unwrap_or(name));
        let snappy = packing == Some("snappy");
        let needed = offsets.saturating_mul(2) + if snappy { raw.saturating_add(found.bytes) } else { 0 };
        let permit = gate.reserve(needed, || format!("file {}: its offsets", found.name))?;
        let input = match packing {
            None => Unpacked::Stream(Input::open_as(found, Packed::Plain)?),
            Some("zstd") => Unpacked::Stream(Input::open_as(found, Packed::Zstd)?),
            Some("gz") => Unpacked::Stream(Input::open_as(found, Packed::Gzip)?),
            Some("snappy") => {
                let packed = files::read_small(&found.path, found.bytes)?;
                let place = || Place::file(Arc::clone(&found.name));
                let damaged = |error| Error::corrupt_by(place(), "its compression is damaged", error);
                let len = snap::raw::decompress_len(&packed).map_err(damaged)?;
                if len as u64 != raw {
                    return Err(Error::corrupt(place(), format!("it unpacks to {len} bytes, {raw} are claimed")));
                }
                let bytes = snap::raw::Decoder::new().decompress_vec(&packed).map_err(damaged)?;
                Unpacked::Whole { bytes, at: 0, packed: found.bytes }
            }
            Some(other) => {
                return Err(Error::Unsupported {
                    what: format!("file {}: the compression {other:?} of MDS", found.name),
                    hint: "zstd, gz, snappy and none are supported".into(),
                });
            }
        };
        let hashing = Hashing::choose(&entry.raw_data.hashes);
        let mut samples = Self {
            input,
            entry,
            limits: limits.clone(),
            offsets: Vec::new(),
            next: 0,
            sample: Vec::new(),
            cells: Vec::new(),
            hashing,
            _permit: permit,
        };
        samples.start()?;
        Ok(samples)
    }

    fn wrong(&self, column: Option<&str>, what: &str) -> Error {
        let mut place = Place::file(self.entry.raw_data.basename.as_str());
        place.column = column.map(Into::into);
        let at = self.offsets.get(self.next.saturating_sub(1)).copied().unwrap_or_default();
        Error::corrupt(place, format!("sample {} (byte {at}): {what}", self.next.saturating_sub(1)))
    }

    fn take(&mut self, count: u64, what: &str) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        if self.input.append(count, &mut bytes)? < count {
            return Err(self.wrong(None, &format!("it ends within {what}")));
        }
        if let Some((hashing, _)) = &mut self.hashing {
            hashing.update(&bytes);
        }
        Ok(bytes)
    }

    /// Reads what stands before the samples.
    fn start(&mut self) -> Result<()> {
        let raw = self.entry.raw_data.bytes;
        let count = self.take(4, "its head")?;
        let count = u64::from(count.first_chunk().map_or(0, |count| u32::from_le_bytes(*count)));
        if count != self.entry.samples {
            return Err(self.wrong(None, &format!("it has {count} samples, the index has {}", self.entry.samples)));
        }
        let offsets = self.take((count + 1) * 4, "its offsets")?;
        self.offsets =
            offsets.chunks_exact(4).map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect();
        let head = 4 + (count + 1) * 4;
        let first = u64::from(self.offsets.first().copied().unwrap_or_default());
        let last = u64::from(self.offsets.last().copied().unwrap_or_default());
        let sorted = self.offsets.windows(2).all(|pair| pair[0] <= pair[1]);
        if !sorted || first < head || last != raw {
            return Err(self.wrong(None, "its offsets do not fit its size"));
        }
        let config = first - head;
        if config > MAX_CONFIG {
            return Err(self.wrong(None, "its configuration is too long"));
        }
        let config = self.take(config, "its configuration")?;
        let config: Value = serde_json::from_slice(&config)
            .map_err(|error| self.wrong(None, &format!("its configuration is no JSON ({error})")))?;
        let same = |name: &str, own: Value| config.get(name).is_none_or(|found| *found == own);
        if !same("column_names", json!(self.entry.column_names))
            || !same("column_encodings", json!(self.entry.column_encodings))
            || !same("column_sizes", json!(self.entry.column_sizes))
        {
            return Err(self.wrong(None, "its columns are not those of the index"));
        }
        Ok(())
    }

    /// Goes to the next sample; false at the end.
    fn advance(&mut self) -> Result<bool> {
        let (Some(start), Some(end)) = (self.offsets.get(self.next), self.offsets.get(self.next + 1)) else {
            self.end()?;
            return Ok(false);
        };
        let len = u64::from(end - start);
        self.next += 1;
        let name = &self.entry.raw_data.basename;
        self.limits.record(|| format!("file {name}, sample {}", self.next - 1), len)?;
        self.sample.clear();
        if self.input.append(len, &mut self.sample)? < len {
            return Err(self.wrong(None, "it ends within the sample"));
        }
        if let Some((hashing, _)) = &mut self.hashing {
            hashing.update(&self.sample);
        }
        self.cells.clear();
        let varying = self.entry.column_sizes.iter().filter(|size| size.is_none()).count();
        let mut at = varying * 4;
        let mut size_at = 0;
        for size in &self.entry.column_sizes {
            let size = match size {
                Some(size) => usize::try_from(*size).ok(),
                None => {
                    let four = self.sample.get(size_at..).and_then(|rest| rest.first_chunk());
                    size_at += 4;
                    four.map(|four| u32::from_le_bytes(*four) as usize)
                }
            };
            let end = size.and_then(|size| at.checked_add(size)).filter(|end| *end <= self.sample.len());
            let Some(end) = end else { return Err(self.wrong(None, "its columns are larger than itself")) };
            self.cells.push(at..end);
            at = end;
        }
        if at != self.sample.len() {
            return Err(self.wrong(None, "it is larger than its columns"));
        }
        Ok(true)
    }

    /// After the last sample: nothing more, and the hash is right.
    fn end(&mut self) -> Result<()> {
        let mut more = Vec::new();
        if self.input.append(1, &mut more)? > 0 {
            return Err(self.wrong(None, "more follows than the index claims"));
        }
        if let Some((hashing, expected)) = self.hashing.take() {
            let found = hashing.finish();
            if !found.eq_ignore_ascii_case(&expected) {
                return Err(self.wrong(None, &format!("the shard's hash is {found}, the index has {expected}")));
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct MdsSink {
    /// In the order of the names, as MDS has them.
    columns: Vec<(String, Encoding)>,
    packing: Packing,
    target: u64,
}

pub(super) fn sink(schema: &SchemaRef, options: &ConvertOptions) -> Result<Box<dyn Sink>> {
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        columns.push((field.name().clone(), Encoding::of(field)?));
    }
    columns.sort_by(|a, b| a.0.cmp(&b.0));
    let allowed = ["none", "zstd", "gzip", "snappy"];
    let packing = Packing::parse(options.compression.as_deref(), Format::Mds, &allowed, Packing::None)?;
    // Shards are what a node downloads and caches: MosaicML's own size where none is given.
    let default = options.target_file_size == ConvertOptions::default().target_file_size;
    let target = match options.shards {
        Some(_) => MAX_SHARD,
        None if default => 64 << 20,
        None => options.target_file_size,
    };
    Ok(Box::new(MdsSink { columns, packing, target }))
}

impl Sink for MdsSink {
    fn format(&self) -> Format {
        Format::Mds
    }

    fn writer(&self, directory: &Path) -> Result<Box<dyn Writer>> {
        let (columns, packing) = (self.columns.clone(), self.packing);
        let make = move |path: &Path| -> Result<Box<dyn Rows>> {
            let body = path.with_extension("body");
            let samples = Output::create(&body, Packing::None)?;
            let (path, columns) = (path.to_owned(), columns.clone());
            Ok(Box::new(MdsRows { path, body, samples, columns, packing, sizes: Vec::new(), rows: 0 }))
        };
        Ok(Rolling::writer(directory, "mds", self.target.min(MAX_SHARD), Arc::new(make)))
    }

    fn name(&self, _: &Part, number: usize, _: usize) -> String {
        match self.packing {
            Packing::None | Packing::Lz4 => format!("shard.{number:05}.mds"),
            Packing::Zstd(_) => format!("shard.{number:05}.mds.zstd"),
            Packing::Gzip => format!("shard.{number:05}.mds.gz"),
            Packing::Snappy => format!("shard.{number:05}.mds.snappy"),
        }
    }

    fn finish(&self, directory: &Path, parts: &[Part]) -> Result<()> {
        let mut shards = Vec::with_capacity(parts.len());
        for (number, part) in parts.iter().enumerate() {
            let mut entry = part.extra.clone();
            if let Some(raw) = entry.get_mut("raw_data") {
                raw["basename"] = json!(format!("shard.{number:05}.mds"));
            }
            if let Some(zip) = entry.get_mut("zip_data").filter(|zip| !zip.is_null()) {
                zip["basename"] = json!(part.name);
            }
            shards.push(entry);
        }
        let index = json!({"version": 2, "shards": shards}).to_string();
        let path = directory.join("index.json");
        super::publish::remove(&path)?;
        super::roll::put_file(&path, index.as_bytes())
    }
}

/// A shard that is written: samples go to a file of their own, for the offsets stand before them.
struct MdsRows {
    path: std::path::PathBuf,
    body: std::path::PathBuf,
    samples: Output,
    columns: Vec<(String, Encoding)>,
    packing: Packing,
    sizes: Vec<u32>,
    rows: u64,
}

impl Rows for MdsRows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut coders = Vec::with_capacity(self.columns.len());
        for (name, encoding) in &self.columns {
            let Some(column) = batch.column_by_name(name) else {
                return Err(Error::NotFound { what: format!("column {name:?} of a batch"), hint: String::new() });
            };
            coders.push(Coder::new(name, encoding, column, self.rows)?);
        }
        let (mut head, mut body, mut out) = (Vec::new(), Vec::new(), Vec::new());
        for at in 0..batch.num_rows() {
            head.clear();
            body.clear();
            for (coder, (name, encoding)) in coders.iter().zip(&self.columns) {
                let start = body.len();
                coder.put(at, self.rows, &mut body)?;
                let len = body.len() - start;
                if encoding.size().is_none() {
                    let len = u32::try_from(len);
                    let len =
                        len.map_err(|_| refused_value(Format::Mds, name, self.rows, "a value of over 4 GiB", ""))?;
                    head.extend_from_slice(&len.to_le_bytes());
                }
            }
            let size = head.len() + body.len();
            let total = self.samples.given() + (out.len() + size) as u64 + 8 * self.sizes.len() as u64;
            if total > MAX_SHARD - MAX_CONFIG {
                let hint = "a shard has at most 4 GiB; write more of them";
                return Err(refused_value(Format::Mds, "shard", self.rows, "too many bytes", hint));
            }
            out.extend_from_slice(&head);
            out.extend_from_slice(&body);
            self.sizes.push(u32::try_from(size).unwrap_or(u32::MAX));
            self.rows += 1;
            if out.len() >= 1 << 20 {
                self.samples.put(&out)?;
                out.clear();
            }
        }
        self.samples.put(&out)
    }

    fn bytes(&self) -> u64 {
        self.samples.given() + 4 * self.sizes.len() as u64
    }

    fn finish(self: Box<Self>) -> Result<(u64, Value)> {
        let Self { path, body, samples, columns, packing, sizes, .. } = *self;
        samples.close()?;
        let names: Vec<&String> = columns.iter().map(|(name, _)| name).collect();
        let encodings: Vec<String> = columns.iter().map(|(_, encoding)| encoding.to_string()).collect();
        let fixed: Vec<Option<u64>> = columns.iter().map(|(_, encoding)| encoding.size()).collect();
        let compression = match packing {
            Packing::None | Packing::Lz4 => None,
            Packing::Zstd(level) => Some(format!("zstd:{level}")),
            Packing::Gzip => Some("gz:6".to_owned()),
            Packing::Snappy => Some("snappy".to_owned()),
        };
        let mut config = json!({
            "column_encodings": encodings, "column_names": names, "column_sizes": fixed,
            "compression": compression, "format": "mds", "hashes": ["xxh64"], "size_limit": null, "version": 2,
        });
        let text = config.to_string();
        let start = 4 + 4 * (sizes.len() as u64 + 1) + text.len() as u64;
        let mut head = Vec::new();
        head.extend_from_slice(&u32::try_from(sizes.len()).unwrap_or(u32::MAX).to_le_bytes());
        let mut offset = start;
        for size in std::iter::once(0).chain(sizes.iter().map(|size| u64::from(*size))) {
            offset += size;
            let word = u32::try_from(offset).map_err(|_| Error::Unsupported {
                what: "a shard of MDS of more than 4 GiB".to_owned(),
                hint: "write more shards".to_owned(),
            })?;
            head.extend_from_slice(&word.to_le_bytes());
        }
        head.extend_from_slice(text.as_bytes());
        let raw = offset;
        let mut hashing = Hashing::xxh64();
        let mut reader = Input::open_as(&Found::at(&body, "body")?, Packed::Plain)?;
        let mut piece = head;
        let bytes = if packing == Packing::Snappy {
            // Snappy has no stream here: the shard is packed whole, as its reader unpacks it.
            while reader.append(1 << 20, &mut piece)? > 0 {}
            hashing.update(&piece);
            let packed = snap::raw::Encoder::new().compress_vec(&piece).map_err(|error| Error::Unsupported {
                what: format!("packing a shard with snappy ({error})"),
                hint: "choose another compression".to_owned(),
            })?;
            let mut output = Output::create(&path, Packing::None)?;
            output.put(&packed)?;
            output.close()?
        } else {
            let mut output = Output::create(&path, packing)?;
            while !piece.is_empty() {
                hashing.update(&piece);
                output.put(&piece)?;
                piece.clear();
                reader.append(1 << 20, &mut piece)?;
            }
            output.close()?
        };
        super::publish::remove(&body)?;
        let raw_data = json!({"basename": "", "bytes": raw, "hashes": {"xxh64": hashing.finish()}});
        let zip_data = match compression {
            Some(_) => json!({"basename": "", "bytes": bytes, "hashes": {}}),
            None => Value::Null,
        };
        config["raw_data"] = raw_data;
        config["zip_data"] = zip_data;
        config["samples"] = json!(sizes.len());
        Ok((bytes, config))
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
        written: None,
    };
    let source = open(directory, &opening)?;
    let gate = Gate::new(64 << 20);
    let columns: Vec<usize> = (0..source.schema().fields().len()).collect();
    let mut rows = 0;
    super::chain::drain(&mut *source.read(0, &columns, &gate)?, |batch| {
        rows += batch.num_rows() as u64;
        Ok(())
    })?;
    Ok(rows)
}

/// Whether an array has a null at all.
pub(super) fn has_nulls(array: &ArrayRef) -> bool {
    !matches!(array.data_type(), DataType::Null) && array.logical_null_count() > 0
}
