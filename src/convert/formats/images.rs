//! Image folders: a directory per class, an image per file; classes are numbered in the order of their names.
//!
//! Columns: `image` (the file's bytes), `label`, `class`, `path`. In the other direction `class` (or `label`) names the directory and
//! `path` the file; other columns cannot be stored. Labels other than class numbers are in `_labels.json`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, Int64Array, RecordBatch, StringBuilder};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Int64Type, Metadata, Schema, SchemaRef};
use serde_json::{Value, json};

use super::labels::{self, Labels};
use crate::codec::image::probe;
use crate::convert::budget::Budget;
use crate::convert::errors::{refused, refused_value, unexpected};
use crate::convert::format::Format;
use crate::convert::limits::Limits;
use crate::convert::options::ConvertOptions;
use crate::convert::read::files::{self, Found};
use crate::convert::read::folder::Folder;
use crate::convert::read::listing::Listing;
use crate::convert::sink::{Part, Sink, Writer};
use crate::convert::source::{Batches, Opening, Shard, Source};
use crate::convert::types::{is_binary, is_text};
use crate::convert::values::sample::{IMAGE_KEY, NO_IMAGES, is_image as holds_images};
use crate::error::{Error, Place, Result};

/// Extensions of image files, as in torchvision, and GIF.
const ENDINGS: [&str; 10] = ["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "gif"];

/// Most files of a shard.
const SHARD_FILES: usize = 512;

/// Size in bytes at which a shard ends.
const SHARD_BYTES: u64 = 32 << 20;

/// Returns true if a file has the extension of an image.
pub(crate) fn is_image(name: &str) -> bool {
    let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
    ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str()))
}

/// Source of a row's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    /// Number of the class among all.
    Number,
    /// Name of the directory, which a conversion wrote from a text.
    Text,
    /// Name of the directory, which a conversion wrote from a number.
    Digits,
}

#[derive(Debug)]
struct FolderSource {
    folder: Folder,
    classes: Vec<String>,
    /// Labels of classes that are not numbered in order.
    labels: Option<Labels>,
    /// Name of the column with the images.
    image: String,
    /// Content of `label`.
    label: Label,
    schema: SchemaRef,
    shards: Vec<Shard>,
    limits: Limits,
}

pub(crate) fn open(tree: &Listing, opening: &Opening) -> Result<Box<dyn Source>> {
    if tree.file()?.is_some() {
        return Err(Error::config("src", format!("{} is not a directory of classes", tree.shown())));
    }
    let files = tree.list(&opening.limits, &is_image)?;
    if files.is_empty() {
        let hint = format!("names end in {}", ENDINGS.join(", "));
        return Err(Error::NotFound { what: format!("an image below {}", tree.shown()), hint });
    }
    let mut classes: Vec<String> = files.iter().filter_map(|file| class(&file.name)).map(str::to_owned).collect();
    // Files are sorted by path, in which "a-b/" comes before "a/".
    classes.sort_unstable();
    classes.dedup();
    let kept = labels::read(tree, &opening.limits)?;
    if let Some(labels) = &kept
        && let Some(class) = classes.iter().find(|class| !labels.has(class))
    {
        return Err(labels.lacks(class));
    }
    let (mut ranges, mut shards) = (Vec::new(), Vec::new());
    let (mut start, mut bytes, mut stamp) = (0, 0, String::new());
    for (number, file) in files.iter().enumerate() {
        bytes += file.bytes;
        stamp.push_str(&file.stamp);
        stamp.push('\n');
        if number + 1 == files.len() || number + 1 - start >= SHARD_FILES || bytes >= SHARD_BYTES {
            // The names determine a shard's files; a digest of all stamps is as good as the stamps.
            stamp.push_str(kept.as_ref().map_or("", Labels::text));
            let stamp = format!("{:016x}", twox_hash::XxHash3_64::oneshot(stamp.drain(..).as_str().as_bytes()));
            let id = format!("{}..{}", files.get(start).map_or("", |file| &*file.name), file.name);
            shards.push(Shard { id, bytes, rows: Some((number + 1 - start) as u64), stamp });
            ranges.push(start..number + 1);
            (start, bytes) = (number + 1, 0);
        }
    }
    let labelled = !classes.is_empty();
    let written = opening.written.as_ref();
    let image = written.into_iter().flat_map(|schema| schema.fields()).find(|field| holds_images(field));
    let image = image.map_or("image", |field| field.name()).to_owned();
    let label = written.and_then(|schema| schema.field_with_name("label").ok());
    let classless = written.is_some_and(|schema| schema.field_with_name("class").is_err());
    let label = match label.map(|field| field.data_type()) {
        Some(kind) if is_text(kind) && classless => Label::Text,
        Some(_) if classless => Label::Digits,
        _ => Label::Number,
    };
    let image_name = image.clone();
    let image = Field::new(image, DataType::Binary, false);
    let note = std::iter::once((IMAGE_KEY.to_owned(), String::new()));
    let mut fields = vec![image.with_metadata(note.collect::<Metadata>())];
    if labelled {
        // Files next to the directories have no class.
        let all = files.iter().all(|file| class(&file.name).is_some());
        let all_labelled = all && !kept.as_ref().is_some_and(Labels::has_null);
        let kind = if label == Label::Text { DataType::Utf8 } else { DataType::Int64 };
        fields.push(Field::new("label", kind, !all_labelled));
        fields.push(Field::new("class", DataType::Utf8, !all));
    }
    fields.push(Field::new("path", DataType::Utf8, false));
    let schema = Arc::new(Schema::new(fields));
    let limits = opening.limits.clone();
    Ok(Box::new(FolderSource {
        folder: Folder { files, ranges },
        classes,
        labels: kept,
        image: image_name,
        label,
        schema,
        shards,
        limits,
    }))
}

fn class(name: &str) -> Option<&str> {
    name.split_once('/').map(|(class, _)| class)
}

impl Source for FolderSource {
    fn format(&self) -> Format {
        Format::Images
    }

    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn shards(&self) -> &[Shard] {
        &self.shards
    }

    fn paths(&self) -> Vec<PathBuf> {
        self.folder.paths()
    }

    fn place(&self, shard: usize, row: u64) -> Place {
        self.folder.place(shard, row)
    }

    fn read<'a>(&'a self, shard: usize, columns: &[usize], _: &'a Budget) -> Result<Box<dyn Batches + 'a>> {
        let schema = Arc::new(self.schema.project(columns).map_err(unexpected)?);
        Ok(Box::new(Reader { files: self.folder.of(shard), source: self, schema, consumed: 0 }))
    }
}

struct Reader<'a> {
    files: &'a [Found],
    source: &'a FolderSource,
    schema: SchemaRef,
    consumed: u64,
}

impl Batches for Reader<'_> {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        let pixels = self.schema.field_with_name(&self.source.image).is_ok();
        let mut images = BinaryBuilder::new();
        let (mut labels, mut names, mut paths) = (Vec::new(), StringBuilder::new(), StringBuilder::new());
        let (files, rest) = self.files.split_at(files::batch(self.files));
        self.files = rest;
        if pixels {
            for content in Found::contents(files, &self.source.limits)? {
                images.append_value(content);
            }
        }
        for file in files {
            let class = class(&file.name);
            labels.push(match (class, self.source.label) {
                (Some(class), Label::Digits) => Some(class.parse::<i64>().map_err(|_| {
                    let place = Place::file(Arc::clone(&file.name)).column("label");
                    Error::corrupt(place, "the directory is not a number, as those that were written are")
                })?),
                (Some(class), _) if self.source.labels.is_some() => {
                    self.source.labels.as_ref().and_then(|labels| labels.of(class))
                }
                (Some(class), _) => {
                    let place = self.source.classes.binary_search_by(|own| own.as_str().cmp(class));
                    place.ok().map(|label| label as i64)
                }
                (None, _) => None,
            });
            names.append_option(class);
            paths.append_value(&*file.name);
        }
        if files.is_empty() {
            return Ok(None);
        }
        self.consumed += files.iter().map(|file| file.bytes).sum::<u64>();
        let mut arrays: Vec<ArrayRef> = Vec::with_capacity(4);
        let names: ArrayRef = Arc::new(names.finish());
        for field in self.schema.fields() {
            arrays.push(match field.name().as_str() {
                name if name == self.source.image => Arc::new(images.finish()),
                "label" if self.source.label == Label::Text => Arc::clone(&names),
                "label" => Arc::new(Int64Array::from(std::mem::take(&mut labels))),
                "class" => Arc::clone(&names),
                _ => Arc::new(paths.finish()),
            });
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(files.len()));
        RecordBatch::try_new_with_options(Arc::clone(&self.schema), arrays, &options).map(Some).map_err(unexpected)
    }

    fn consumed(&self) -> u64 {
        self.consumed
    }
}

#[derive(Debug, Clone)]
struct FolderSink {
    image: String,
    class: Option<String>,
    path: Option<String>,
    /// True if there is a number for a label, be it beside the class or the name of the directory.
    labelled: bool,
    /// True if images were re-encoded, so that a name may have its former extension.
    anew: bool,
}

pub(crate) fn sink(schema: &SchemaRef, options: &ConvertOptions) -> Result<Box<dyn Sink>> {
    let fields = schema.fields();
    let images: Vec<_> = fields.iter().filter(|field| is_binary(field.data_type()) && holds_images(field)).collect();
    let image = match images[..] {
        [one] => one.name().clone(),
        // Without rows, only its name identifies the column.
        [] if schema.field_with_name("image").is_ok_and(|field| is_binary(field.data_type())) => "image".to_owned(),
        [] => return Err(Error::config("columns", NO_IMAGES)),
        _ => return Err(Error::config("columns", "several columns hold images; choose one")),
    };
    let text = |name: &str| schema.field_with_name(name).ok().filter(|field| is_text(field.data_type()));
    let number = |name: &str| schema.field_with_name(name).ok().filter(|field| field.data_type().is_integer());
    let class = text("class").or(text("label")).or(number("label")).map(|field| field.name().clone());
    let path = text("path").or(text("__key__")).map(|field| field.name().clone());
    for field in fields {
        let name = field.name();
        let known = *name == image
            || class.as_ref() == Some(name)
            || path.as_ref() == Some(name)
            // Each class has one label.
            || (name == "label" && class.as_deref() == Some("class") && field.data_type().is_integer());
        if !known {
            let hint = "a folder holds images, a class or label, and a path; choose with --columns";
            return Err(refused(Format::Images, field, hint));
        }
    }
    let labelled = number("label").is_some();
    let anew = options.resize.is_some() || options.image_quality.is_some();
    Ok(Box::new(FolderSink { image, class, path, labelled, anew }))
}

impl Sink for FolderSink {
    fn format(&self) -> Format {
        Format::Images
    }

    fn flushes(&self) -> bool {
        false
    }

    fn writer(&self, directory: &Path, unit: &str) -> Result<Box<dyn Writer>> {
        Ok(Box::new(FolderWriter {
            sink: self.clone(),
            directory: directory.to_owned(),
            prefix: unit.to_owned(),
            labels: Labels::default(),
            rows: 0,
            parts: Vec::new(),
        }))
    }

    fn name(&self, part: &Part, _: usize, _: usize) -> String {
        // The prefix added by tasks that deal rows is dropped.
        let name = part.extra.get("name").unwrap_or(&part.extra).as_str().unwrap_or(&part.name);
        name.to_owned()
    }

    fn finish(&self, directory: &Path, parts: &[Part]) -> Result<()> {
        if !self.labelled {
            return Ok(());
        }
        let mut labels = Labels::default();
        for part in parts {
            let class = part.name.split('/').next().unwrap_or_default();
            // Directories that are labels tell them, also where an earlier version has written them.
            let label = match self.class.as_deref() {
                Some("label") => class.parse().ok(),
                _ => part.extra.get("label").and_then(Value::as_i64),
            };
            labels.add(class, label).map_err(|other| several(class, label, other))?;
        }
        labels.write(directory)
    }
}

struct FolderWriter {
    sink: FolderSink,
    directory: PathBuf,
    prefix: String,
    /// Labels of the classes so far.
    labels: Labels,
    rows: u64,
    parts: Vec<Part>,
}

/// Reports a class with two labels: a directory has only one.
fn several(class: &str, one: Option<i64>, other: Option<i64>) -> Error {
    let shown = |label: Option<i64>| label.map_or_else(|| "null".to_owned(), |label| label.to_string());
    Error::unsupported(
        format!("the class {class:?} with the labels {} and {} in images", shown(other), shown(one)),
        "a class has one label; leave out `label`, or leave out `class` for directories named by the label",
    )
}

/// Returns true if a file's extension `ending` means the format with the extension `known`.
pub(crate) fn ends_so(ending: &str, known: &str) -> bool {
    let ending = ending.to_ascii_lowercase();
    ending == known || (ending == "jpeg" && known == "jpg")
}

/// Returns true if a text is a single plain name of a file or directory.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && !name.starts_with(['.', '_']) && !name.contains(['/', '\\', '\0']) && name.len() <= 200
}

impl FolderWriter {
    fn text(&self, column: Option<&ArrayRef>, name: Option<&String>, at: usize) -> Result<Option<String>> {
        let (Some(column), Some(name)) = (column, name) else { return Ok(None) };
        if column.is_null(at) {
            let hint = "it names a directory or file";
            return Err(refused_value(Format::Images, name, at, "a null", hint));
        }
        Ok(Some(column.as_string::<i32>().value(at).to_owned()))
    }
}

impl Writer for FolderWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let texts = |name: &Option<String>| {
            let column = name.as_ref().and_then(|name| batch.column_by_name(name));
            column.map(|column| cast(column, &DataType::Utf8).map_err(unexpected)).transpose()
        };
        let (classes, paths) = (texts(&self.sink.class)?, texts(&self.sink.path)?);
        let Some(images) = batch.column_by_name(&self.sink.image) else { return Ok(()) };
        let images = cast(images, &DataType::BinaryView).map_err(unexpected)?;
        let images = images.as_binary_view();
        let labels = match self.sink.labelled.then(|| batch.column_by_name("label")).flatten() {
            Some(labels) => {
                let cast = cast(labels, &DataType::Int64).map_err(unexpected)?;
                if let Some(at) = (0..labels.len()).find(|at| labels.is_valid(*at) && cast.is_null(*at)) {
                    return Err(refused_value(Format::Images, "label", at, "a label beyond int64", ""));
                }
                Some(cast)
            }
            None => None,
        };
        for at in 0..batch.num_rows() {
            if images.is_null(at) {
                return Err(refused_value(Format::Images, &self.sink.image, at, "a null", "a row is an image"));
            }
            let image = images.value(at);
            let class = self.text(classes.as_ref(), self.sink.class.as_ref(), at)?;
            if let Some(class) = class.as_ref().filter(|class| !is_plain(class)) {
                let what = format!("the class {:?}", class.chars().take(60).collect::<String>());
                let name = self.sink.class.as_deref().unwrap_or("class");
                return Err(refused_value(Format::Images, name, at, &what, "it cannot name a directory"));
            }
            let ending = match probe(image).map(|info| info.format.name()) {
                Ok("JPEG") => "jpg",
                Ok("PNG") => "png",
                Ok("WebP") => "webp",
                Ok("GIF") => "gif",
                Ok(_) => "bmp",
                Err(error) => {
                    let what = format!("something that is not an image ({error})");
                    return Err(refused_value(Format::Images, &self.sink.image, at, &what, ""));
                }
            };
            let given = self.text(paths.as_ref(), self.sink.path.as_ref(), at)?;
            let file = match given.as_deref().map(|path| path.rsplit('/').next().unwrap_or(path)) {
                Some(name) if is_plain(name) && is_image(name) => match name.rsplit_once('.') {
                    Some((stem, old)) if self.sink.anew && !ends_so(old, ending) => format!("{stem}.{ending}"),
                    _ => name.to_owned(),
                },
                Some(name) if is_plain(name) => format!("{name}.{ending}"),
                Some(name) => {
                    let what = format!("the path {:?}", name.chars().take(60).collect::<String>());
                    let column = self.sink.path.as_deref().unwrap_or("path");
                    return Err(refused_value(Format::Images, column, at, &what, "it cannot name a file"));
                }
                None => format!("{}_{:08}.{ending}", self.prefix, self.rows),
            };
            let label = labels.as_ref().filter(|labels| labels.is_valid(at));
            let label = label.map(|labels| labels.as_primitive::<Int64Type>().value(at));
            if let Some(class) = class.as_ref().filter(|_| self.sink.labelled) {
                let row = Place::default().column("label").row(at as u64);
                self.labels.add(class, label).map_err(|other| several(class, label, other).at(row))?;
            }
            let name = class.map_or_else(|| file.clone(), |class| format!("{class}/{file}"));
            let path = self.directory.join(&name);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)
                    .map_err(|error| crate::store::directory::failed("create", parent, error))?;
            }
            if path.exists() {
                let column = self.sink.path.as_deref().unwrap_or("path");
                let what = format!("a second file {name:?}");
                return Err(refused_value(Format::Images, column, at, &what, "leave the column out for numbers"));
            }
            // Not flushed one by one: millions of files would take days.
            std::fs::write(&path, image).map_err(|error| crate::store::directory::failed("write", &path, error))?;
            let extra = match self.sink.labelled {
                true => json!({"name": name, "label": label}),
                false => Value::String(name.clone()),
            };
            self.parts.push(Part { extra, name, rows: 1, bytes: image.len() as u64 });
            self.rows += 1;
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<Vec<Part>> {
        Ok(self.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_directories_come_from_their_names_also_where_an_earlier_version_wrote_the_files() {
        let (image, class) = ("image".to_owned(), Some("label".to_owned()));
        let sink = FolderSink { image, class, path: None, labelled: true, anew: false };
        let directory = tempfile::tempdir().unwrap();
        let parts = ["9/a.png", "10/b.png"].map(str::to_owned);
        let parts = parts.map(|name| Part { extra: Value::String(name.clone()), name, rows: 1, bytes: 1 });
        sink.finish(directory.path(), &parts).unwrap();
        let kept = std::fs::read_to_string(directory.path().join("_labels.json")).unwrap();
        assert_eq!(serde_json::from_str::<Value>(&kept).unwrap(), json!({"9": 9, "10": 10}));
    }
}
