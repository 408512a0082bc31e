//! Writes rows as shards, and their index.

use std::path::Path;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use serde_json::{Value, json};

use super::code::Coder;
use super::encoding::Encoding;
use super::hash::Hashing;
use super::index::{MAX_CONFIG, MAX_SHARD};
use crate::convert::errors::refused_value;
use crate::convert::format::Format;
use crate::convert::options::{ConvertOptions, Packing};
use crate::convert::read::files::Found;
use crate::convert::read::input::{Input, Packed};
use crate::convert::rolling::{Output, RollingWriter, Rows};
use crate::convert::sink::{Part, Sink, Writer};
use crate::convert::values::cells::by_name;
use crate::error::{Error, Result};
use crate::store::directory::remove;
use crate::store::publish::put_file;

#[derive(Debug)]
struct MdsSink {
    /// In the order of their names, as in MDS.
    columns: Vec<(String, Encoding)>,
    packing: Packing,
    target: u64,
}

pub(crate) fn sink(schema: &SchemaRef, options: &ConvertOptions) -> Result<Box<dyn Sink>> {
    let mut columns = Vec::with_capacity(schema.fields().len());
    for field in schema.fields() {
        columns.push((field.name().clone(), Encoding::of(field)?));
    }
    columns.sort_by(|a, b| a.0.cmp(&b.0));
    let allowed = ["none", "zstd", "gzip", "snappy"];
    let packing = Packing::parse(options.compression.as_deref(), Format::Mds, &allowed, Packing::None)?;
    // Shards are the unit that nodes download and cache: MosaicML's default size, unless one is given.
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

    fn writer(&self, directory: &Path, _: &str) -> Result<Box<dyn Writer>> {
        let (columns, packing) = (self.columns.clone(), self.packing);
        let make = move |path: &Path| -> Result<Box<dyn Rows>> {
            let body = path.with_extension("body");
            let samples = Output::create(&body, Packing::None)?;
            let (path, columns) = (path.to_owned(), columns.clone());
            Ok(Box::new(MdsRows { path, body, samples, columns, packing, sizes: Vec::new() }))
        };
        Ok(RollingWriter::writer(directory, "mds", self.target.min(MAX_SHARD), Arc::new(make)))
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
        remove(&path)?;
        put_file(&path, index.as_bytes())
    }
}

/// A shard being written: samples go to a file of their own, because the offsets precede them.
struct MdsRows {
    path: std::path::PathBuf,
    body: std::path::PathBuf,
    samples: Output,
    columns: Vec<(String, Encoding)>,
    packing: Packing,
    sizes: Vec<u32>,
}

impl Rows for MdsRows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut coders = Vec::with_capacity(self.columns.len());
        let named = by_name(batch);
        for (name, encoding) in &self.columns {
            let Some(column) = named.get(name.as_str()).copied() else {
                return Err(Error::NotFound { what: format!("column {name:?} of a batch"), hint: String::new() });
            };
            coders.push(Coder::new(name, encoding, column)?);
        }
        let (mut head, mut body, mut out) = (Vec::new(), Vec::new(), Vec::new());
        for at in 0..batch.num_rows() {
            head.clear();
            body.clear();
            for (coder, (name, encoding)) in coders.iter().zip(&self.columns) {
                let start = body.len();
                coder.put(at, &mut body)?;
                let len = body.len() - start;
                if encoding.size().is_none() {
                    let len = u32::try_from(len);
                    let len = len.map_err(|_| refused_value(Format::Mds, name, at, "a value of over 4 GiB", ""))?;
                    head.extend_from_slice(&len.to_le_bytes());
                }
            }
            let size = head.len() + body.len();
            let total = self.samples.given() + (out.len() + size) as u64 + 8 * self.sizes.len() as u64;
            if total > MAX_SHARD - MAX_CONFIG {
                let hint = "a shard has at most 4 GiB; write more of them";
                return Err(refused_value(Format::Mds, "shard", at, "too many bytes", hint));
            }
            out.extend_from_slice(&head);
            out.extend_from_slice(&body);
            self.sizes.push(u32::try_from(size).unwrap_or(u32::MAX));
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
            let word = u32::try_from(offset)
                .map_err(|_| Error::unsupported("a shard of MDS of more than 4 GiB", "write more shards"))?;
            head.extend_from_slice(&word.to_le_bytes());
        }
        head.extend_from_slice(text.as_bytes());
        let raw = offset;
        let mut hashing = Hashing::xxh64();
        let mut reader = Input::open_as(&Found::at(&body, "body")?, Packed::Plain)?;
        let mut piece = head;
        let bytes = if packing == Packing::Snappy {
            // Snappy does not stream here: the shard is compressed whole, as its reader decompresses it.
            while reader.append(1 << 20, &mut piece)? > 0 {}
            hashing.update(&piece);
            let packed = snap::raw::Encoder::new().compress_vec(&piece).map_err(|error| {
                Error::unsupported(format!("packing a shard with snappy ({error})"), "choose another compression")
            })?;
            let mut output = Output::create(&path, Packing::None)?;
            output.put(&packed)?;
            output.close()?
        } else {
            let mut output = Output::create_for(&path, packing, Some(raw))?;
            while !piece.is_empty() {
                hashing.update(&piece);
                output.put(&piece)?;
                piece.clear();
                reader.append(1 << 20, &mut piece)?;
            }
            output.close()?
        };
        remove(&body)?;
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
