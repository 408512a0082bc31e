//! Directories of Hugging Face `datasets`: Arrow streams with `state.json` and `dataset_info.json`; and the features of columns, which are
//! in the metadata of every Arrow schema of Hugging Face, also in Parquet.

use std::path::Path;
use std::sync::Arc;

use arrow::datatypes::{Field, Metadata, Schema, SchemaRef};
use arrow::ipc::CompressionType;
use serde_json::{Value, json};

use super::ipc::{IpcSource, StreamRows};
use crate::convert::errors::refused;
use crate::convert::format::Format;
use crate::convert::formats::ipc;
use crate::convert::options::ConvertOptions;
use crate::convert::read::listing::Listing;
use crate::convert::rolling::RollingWriter;
use crate::convert::sink::{Part, Sink, Writer};
use crate::convert::source::{Opening, Source};
use crate::dataset::{HUGGING_FACE, hugging_face_columns, hugging_face_of};
use crate::error::{Error, Place, Result};
use crate::store::directory::remove;
use crate::store::publish::put_file;

/// Returns the metadata of a source's schema for some of its columns.
pub(crate) fn metadata_of(metadata: &Metadata, columns: &[Field]) -> Metadata {
    let mut metadata = metadata.clone();
    if let Some(described) = metadata.remove(HUGGING_FACE) {
        let names: Vec<&str> = columns.iter().map(|field| field.name().as_str()).collect();
        metadata.extend(hugging_face_of(&described, &names).map(|described| (HUGGING_FACE.to_owned(), described)));
    }
    metadata
}

/// Returns what Hugging Face says of the columns, as a dataset of this format keeps it; nothing for formats without Arrow's schemas.
pub(crate) fn kept(format: Format, schema: &Schema) -> Option<&str> {
    let keeps = matches!(format, Format::Parquet | Format::Arrow | Format::Datasets);
    schema.metadata().get(HUGGING_FACE).filter(|_| keeps).map(|described| described.as_str())
}

/// Returns a column of which two descriptions say different things.
pub(crate) fn differing(descriptions: [Option<&str>; 2]) -> Option<String> {
    let [a, b] = descriptions.map(|described| described.map(hugging_face_columns).unwrap_or_default());
    a.keys().chain(b.keys()).find(|name| a.get(*name) != b.get(*name)).cloned()
}

pub(crate) fn open(tree: &Listing, opening: &Opening) -> Result<Box<dyn Source>> {
    if matches!(tree.small("dataset_dict.json", opening.limits.max_index_bytes), Ok(_) | Err(Error::Limit { .. })) {
        return Err(Error::unsupported(
            format!("{}: a DatasetDict, which is several datasets,", tree.shown()),
            "convert its splits, which are the directories in it, one by one",
        ));
    }
    let place = || Place::file("state.json");
    let content = tree.small("state.json", opening.limits.max_index_bytes)?;
    let state: Value = serde_json::from_slice(&content)
        .map_err(|error| Error::corrupt_by(place(), "it is not a state of a dataset", error))?;
    let names = state.get("_data_files").and_then(Value::as_array);
    let names = names.ok_or_else(|| Error::corrupt(place(), "it names no data files"))?;
    if state.get("_indices_data_files").and_then(Value::as_array).is_some_and(|files| !files.is_empty()) {
        return Err(Error::unsupported(
            format!("{}: a dataset with an order of its own", tree.shown()),
            "call flatten_indices() and save it again",
        ));
    }
    let mut wanted = Vec::with_capacity(names.len());
    for name in names {
        let name = name.get("filename").and_then(Value::as_str);
        let name = name.ok_or_else(|| Error::corrupt(place(), "a data file has no name"))?;
        if name.is_empty() || name.contains(['/', '\\', '\0']) || name == ".." || name == "." {
            let shown: String = name.chars().take(80).collect();
            return Err(Error::corrupt(place(), format!("the name {shown:?} leads elsewhere")));
        }
        wanted.push(name.to_owned());
    }
    let found = tree.find(&wanted)?;
    Ok(Box::new(IpcSource::new(Format::Datasets, found, opening)?))
}

#[derive(Debug)]
struct DatasetsSink {
    schema: SchemaRef,
    compression: Option<CompressionType>,
    target: u64,
}

pub(crate) fn sink(schema: &SchemaRef, options: &ConvertOptions) -> Result<Box<dyn Sink>> {
    let compression = ipc::compression(options, Format::Datasets)?;
    // `datasets` has no view types; its features support plain types.
    let schema = Arc::new(ipc::plain_schema(schema));
    for field in schema.fields() {
        use arrow::datatypes::DataType;
        if matches!(field.data_type(), DataType::Map(..) | DataType::Interval(_) | DataType::Union(..)) {
            return Err(refused(Format::Datasets, field, "its features have no such type"));
        }
    }
    let target = if options.shards.is_some() { u64::MAX } else { options.target_file_size };
    Ok(Box::new(DatasetsSink { schema, compression, target }))
}

impl Sink for DatasetsSink {
    fn format(&self) -> Format {
        Format::Datasets
    }

    fn writer(&self, directory: &Path, _: &str) -> Result<Box<dyn Writer>> {
        let (schema, compression) = (Arc::clone(&self.schema), self.compression);
        let make = move |path: &Path| StreamRows::create(path, &schema, compression);
        Ok(RollingWriter::writer(directory, "arrow", self.target, Arc::new(make)))
    }

    fn name(&self, _: &Part, number: usize, total: usize) -> String {
        format!("data-{number:05}-of-{total:05}.arrow")
    }

    fn finish(&self, directory: &Path, parts: &[Part]) -> Result<()> {
        let files: Vec<Value> = parts.iter().map(|part| json!({"filename": part.name})).collect();
        // The fingerprint only has to differ between datasets; sizes and names of the files suffice.
        let fingerprint = twox_hash::XxHash3_64::oneshot(json!(parts).to_string().as_bytes());
        let state = json!({
            "_data_files": files,
            "_fingerprint": format!("{fingerprint:016x}"),
            "_format_columns": null, "_format_kwargs": {}, "_format_type": null,
            "_output_all_columns": false, "_split": null,
        });
        let info = json!({"citation": "", "description": "", "features": null, "homepage": "", "license": ""});
        for (name, content) in [("state.json", state), ("dataset_info.json", info)] {
            let path = directory.join(name);
            remove(&path)?;
            put_file(&path, serde_json::to_string_pretty(&content).unwrap_or_default().as_bytes())?;
        }
        Ok(())
    }
}
