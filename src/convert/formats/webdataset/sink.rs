//! Rows, as samples of tar files.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Int64Type, SchemaRef};
use serde_json::Value;

use super::super::images::ends_so;
use super::super::{jsonl, tar};
use super::{BYTES, INTEGERS, KEY, TEXTS, ending};
use crate::codec::image::probe;
use crate::convert::errors::{refused, refused_value};
use crate::convert::format::Format;
use crate::convert::options::{ConvertOptions, Packing};
use crate::convert::rolling::{self, Output, RollingWriter, Rows, prefix};
use crate::convert::sink::{Part, Sink, Writer};
use crate::convert::types::{is_binary, is_number, is_text, item};
use crate::convert::values::cells::as_type_of;
use crate::convert::values::sample::is_image;
use crate::convert::values::unheld::{Unheld, unheld};
use crate::error::{Error, Result};

/// Extensions of image files by format; others use `bmp`, or `bin` for bytes that are not an image.
const IMAGES: [(&str, &str); 4] = [("JPEG", "jpg"), ("PNG", "png"), ("WebP", "webp"), ("GIF", "gif")];

/// An ending of files as webdataset's own reader tells it from others, in small letters.
fn folded(ending: &str) -> String {
    ending.to_lowercase()
}

/// Mapping of a column to members.
#[derive(Debug, Clone)]
enum Member {
    /// The key of the sample.
    Key,
    /// A text under this name.
    Text(String),
    /// An integer under this name.
    Integer(String),
    /// Bytes under this name.
    Bytes(String),
    /// Image files under this name plus the extension of their format.
    Image(String),
    /// Re-encoded image files under this name, which ends in the extension of a format; images of another format get that one's
    /// extension.
    Anew(String),
    /// JSON under this name.
    Json(String),
}

impl Member {
    /// Returns the name after the key; for an image without the extension of its format.
    fn file(&self) -> &str {
        match self {
            Self::Key => KEY,
            Self::Text(name) | Self::Integer(name) | Self::Bytes(name) | Self::Json(name) => name,
            Self::Image(name) | Self::Anew(name) => name,
        }
    }
}

#[derive(Debug)]
struct TarSink {
    members: Vec<Member>,
    packing: Packing,
    target: u64,
}

pub(crate) fn sink(schema: &SchemaRef, options: &ConvertOptions) -> Result<Box<dyn Sink>> {
    let mut members = Vec::with_capacity(schema.fields().len());
    let (mut names, mut known_endings) = (HashSet::new(), HashSet::new());
    let anew = options.resize.is_some() || options.image_quality.is_some();
    for field in schema.fields() {
        let name = field.name().as_str();
        let bad = name.is_empty() || name.contains(['/', '\\', '\0']) || name.split('.').any(str::is_empty);
        if bad {
            return Err(refused(Format::Webdataset, field, "its name cannot be the ending of a file's name"));
        }
        let end = ending(name).to_ascii_lowercase();
        let known = |endings: &[&str]| endings.contains(&end.as_str());
        let with = |more: &str| format!("{name}.{more}");
        let kind = field.data_type();
        if name == KEY && !is_text(kind) {
            // As a member it would be a second column of that name when it is read back.
            let hint = "the key of a sample is a text; give it that type with --schema, or leave the column out";
            return Err(refused(Format::Webdataset, field, hint));
        }
        let member = if name == KEY {
            Member::Key
        } else if is_text(kind) {
            Member::Text(if known(&TEXTS) { name.to_owned() } else { with("txt") })
        } else if is_binary(kind) {
            match known(&BYTES) {
                true if anew && is_image(field) => Member::Anew(name.to_owned()),
                true => Member::Bytes(name.to_owned()),
                false if is_image(field) => Member::Image(name.to_owned()),
                false => Member::Bytes(with("bin")),
            }
        } else if kind.is_integer() && *kind != DataType::UInt64 || *kind == DataType::Boolean {
            Member::Integer(if known(&INTEGERS) { name.to_owned() } else { with("cls") })
        } else if is_number(kind) || item(kind).is_some_and(|item| is_number(item) || is_text(item)) {
            Member::Json(with("json"))
        } else {
            let hint = "samples hold text, integers, bytes, and numbers and lists as JSON; choose with --columns";
            return Err(refused(Format::Webdataset, field, hint));
        };
        if !known_endings.insert(folded(member.file())) {
            let hint = "another column has the same ending, or one that differs in case alone, which webdataset does not tell apart; \
                        rename one, or choose with --columns";
            return Err(refused(Format::Webdataset, field, hint));
        }
        names.insert(member.file().to_owned());
        members.push(member);
    }
    for (member, field) in members.iter().zip(schema.fields()) {
        // When read back, that member would be taken for this column.
        if member.file() != field.name() && names.contains(field.name()) {
            let hint = format!("another column's member is {:?}; rename one, or choose with --columns", field.name());
            return Err(refused(Format::Webdataset, field, &hint));
        }
    }
    for (member, field) in members.iter().zip(schema.fields()) {
        let (Member::Image(name) | Member::Anew(name)) = member else { continue };
        let ends = IMAGES.iter().map(|(_, end)| *end).chain(["bmp", "bin"]);
        if let Some(other) = ends
            .map(|end| format!("{name}.{end}"))
            .find(|other| known_endings.contains(&folded(other)) || schema.field_with_name(other).is_ok())
        {
            let hint =
                format!("its images may be {other:?}, as another column is; rename one, or choose with --columns");
            return Err(refused(Format::Webdataset, field, &hint));
        }
    }
    if members.iter().all(|member| matches!(member, Member::Key)) {
        return Err(Error::config("columns", "a sample needs more than its key"));
    }
    let packing = Packing::parse(options.compression.as_deref(), Format::Webdataset, &["none", "gzip"], Packing::None)?;
    let target = if options.shards.is_some() { u64::MAX } else { options.target_file_size };
    Ok(Box::new(TarSink { members, packing, target }))
}

impl Sink for TarSink {
    fn format(&self) -> Format {
        Format::Webdataset
    }

    fn writer(&self, directory: &Path, unit: &str) -> Result<Box<dyn Writer>> {
        let (members, packing, unit) = (self.members.clone(), self.packing, unit.to_owned());
        let make = move |path: &Path| -> Result<Box<dyn Rows>> {
            let output = Output::create(path, packing)?;
            let prefix = prefix(&unit, path);
            Ok(Box::new(TarRows { output, members: members.clone(), prefix, rows: 0, last: None }))
        };
        Ok(RollingWriter::writer(directory, &rolling::ending("tar", self.packing), self.target, Arc::new(make)))
    }

    fn name(&self, _: &Part, number: usize, _: usize) -> String {
        format!("shard-{number:06}.{}", rolling::ending("tar", self.packing))
    }
}

struct TarRows {
    output: Output,
    members: Vec<Member>,
    prefix: String,
    rows: u64,
    last: Option<String>,
}

impl TarRows {
    fn key(&self, keys: Option<&ArrayRef>, at: usize) -> Result<String> {
        let Some(keys) = keys else { return Ok(format!("{}_{:08}", self.prefix, self.rows)) };
        let wrong = |what: &str| {
            let hint = "a key is a relative path whose last part has no dot, and whose first directory, if there is one, has no name like \
                        __this__, which webdataset skips; leave the column out for numbers";
            refused_value(Format::Webdataset, KEY, at, what, hint)
        };
        if keys.is_null(at) {
            return Err(wrong("a null"));
        }
        let key = keys.as_string_view().value(at);
        let parts = || key.split('/');
        let bad = key.contains(['\0', '\\'])
            || parts().any(|part| matches!(part, "" | "." | ".."))
            || parts().next_back().is_none_or(|last| last.contains('.'))
            || key.contains('/') && tar::is_skipped(key);
        if bad {
            return Err(wrong(&format!("the key {:?}", key.chars().take(60).collect::<String>())));
        }
        if self.last.as_deref() == Some(key) {
            return Err(wrong("a key that comes twice in a row"));
        }
        Ok(key.to_owned())
    }
}

impl Rows for TarRows {
    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let mut columns = Vec::with_capacity(self.members.len());
        let mut keys = None;
        for ((member, column), field) in self.members.iter().zip(batch.columns()).zip(batch.schema_ref().fields()) {
            let bytes = |column: &ArrayRef| match column.data_type() {
                DataType::FixedSizeBinary(_) => {
                    let plain = as_type_of(field.name(), column, &DataType::Binary)?;
                    as_type_of(field.name(), &plain, &DataType::BinaryView)
                }
                _ => as_type_of(field.name(), column, &DataType::BinaryView),
            };
            let column = match member {
                Member::Key => {
                    keys = Some(as_type_of(field.name(), column, &DataType::Utf8View)?);
                    Arc::clone(column)
                }
                Member::Text(_) | Member::Bytes(_) | Member::Image(_) | Member::Anew(_) => bytes(column)?,
                Member::Integer(_) => as_type_of(field.name(), column, &DataType::Int64)?,
                Member::Json(_) => {
                    if let Some(Unheld { row, what, hint }) = unheld(column)? {
                        return Err(refused_value(Format::Webdataset, field.name(), row, what, hint));
                    }
                    Arc::new(jsonl::texts(column)?)
                }
            };
            columns.push(column);
        }
        let mut out = Vec::new();
        for at in 0..batch.num_rows() {
            let key = self.key(keys.as_ref(), at)?;
            let mut any = false;
            for (member, column) in self.members.iter().zip(&columns) {
                if column.is_null(at) || matches!(member, Member::Key) {
                    continue;
                }
                any = true;
                let mut put =
                    |name: &str, content: &[u8]| tar::write_member(&format!("{key}.{name}"), content, &mut out);
                match member {
                    Member::Key => {}
                    Member::Text(name) | Member::Bytes(name) => put(name, column.as_binary_view().value(at)),
                    Member::Integer(name) => {
                        put(name, column.as_primitive::<Int64Type>().value(at).to_string().as_bytes());
                    }
                    Member::Json(name) => put(name, column.as_string::<i32>().value(at).as_bytes()),
                    Member::Image(name) | Member::Anew(name) => {
                        let cell = column.as_binary_view().value(at);
                        let format = probe(cell).ok().map(|info| info.format.name());
                        let known = IMAGES.iter().find(|(name, _)| Some(*name) == format);
                        let end = known.map_or(if format.is_some() { "bmp" } else { "bin" }, |(_, end)| *end);
                        match member {
                            Member::Anew(name) if ends_so(ending(name), end) => put(name, cell),
                            _ => put(&format!("{name}.{end}"), cell),
                        }
                    }
                }
            }
            if !any {
                let hint = "a sample is its members: without any it is nothing";
                return Err(refused_value(Format::Webdataset, KEY, at, "a row of nulls only", hint));
            }
            self.rows += 1;
            self.last = Some(key);
            if out.len() >= 1 << 20 {
                self.output.put(&out)?;
                out.clear();
            }
        }
        self.output.put(&out)
    }

    fn bytes(&self) -> u64 {
        self.output.bytes()
    }

    fn finish(mut self: Box<Self>) -> Result<(u64, Value)> {
        self.output.put(&tar::END)?;
        Ok((self.output.close()?, Value::Null))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;
    use arrow::datatypes::{Field, Metadata, Schema};

    use super::*;
    use crate::convert::values::sample::IMAGE_KEY;

    #[test]
    fn images_never_have_the_name_of_another_column() {
        let sink = |names: &[&str]| {
            let field = |name: &&str| {
                let known = (*name == "image").then(|| (IMAGE_KEY.to_owned(), String::new()));
                Field::new(*name, DataType::Binary, false).with_metadata(known.into_iter().collect::<Metadata>())
            };
            let fields: Vec<Field> = names.iter().map(field).collect();
            sink(&Arc::new(Schema::new(fields)), &ConvertOptions::default())
        };
        for other in ["image.jpg", "image.png", "image.bin"] {
            for names in [["image", other], [other, "image"]] {
                let error = sink(&names).unwrap_err().to_string();
                assert!(error.contains(other), "{error}");
            }
        }
        sink(&["image", "Image.jpg"]).unwrap_err();
        sink(&["image", "mask.jpg"]).unwrap();
    }

    #[test]
    fn a_key_that_is_no_text_is_refused() {
        for kind in [DataType::Int64, DataType::Binary, DataType::Float64, DataType::new_list(DataType::Utf8, true)] {
            let fields = vec![Field::new(KEY, kind, false), Field::new("a", DataType::Utf8, true)];
            let said = sink(&Arc::new(Schema::new(fields)), &ConvertOptions::default()).unwrap_err().to_string();
            assert!(said.contains("__key__") && said.contains("--schema"), "{said}");
        }
        let fields = vec![Field::new(KEY, DataType::LargeUtf8, false), Field::new("a", DataType::Utf8, true)];
        sink(&Arc::new(Schema::new(fields)), &ConvertOptions::default()).unwrap();
    }

    #[test]
    fn a_key_that_webdataset_skips_is_refused() {
        let fields = vec![Field::new(KEY, DataType::Utf8, false), Field::new("a", DataType::Utf8, true)];
        let schema = Arc::new(Schema::new(fields));
        let written = |key: &str| {
            let texts = [key, "x"].map(|text| Arc::new(StringArray::from(vec![text])) as ArrayRef);
            let batch = RecordBatch::try_new(Arc::clone(&schema), texts.to_vec()).unwrap();
            let directory = tempfile::tempdir().unwrap();
            sink(&schema, &ConvertOptions::default()).unwrap().writer(directory.path(), "0").unwrap().write(&batch)
        };
        for key in ["__b__/2", "____/2", "__b.c__/d/2"] {
            let said = written(key).unwrap_err().to_string();
            assert!(said.contains(key) && said.contains("webdataset skips"), "{said}");
        }
        for key in ["__b__", "a/__b__/2", "__b/2", "b__/2", "___/2"] {
            written(key).unwrap();
        }
    }

    #[test]
    fn no_column_has_the_name_of_another_ones_member() {
        let sink = |columns: &[(&str, DataType)]| {
            let field = |(name, kind): &(&str, DataType)| Field::new(*name, kind.clone(), true);
            let schema = Schema::new(columns.iter().map(field).collect::<Vec<_>>());
            super::sink(&Arc::new(schema), &ConvertOptions::default())
        };
        for (column, member) in [(DataType::Utf8, "a.txt"), (DataType::Int64, "a.cls"), (DataType::Float32, "a.json")] {
            for columns in [
                [("a", column.clone()), (member, DataType::Binary)],
                [(member, DataType::Binary), ("a", column.clone())],
            ] {
                let error = sink(&columns).unwrap_err().to_string();
                assert!(error.contains(member), "{error}");
            }
        }
        // webdataset makes all endings small, and refuses two that are the same then.
        for (one, other) in [("Caption", "caption"), ("a.TXT", "a"), ("É", "é")] {
            let error = sink(&[(one, DataType::Utf8), (other, DataType::Utf8)]).unwrap_err().to_string();
            assert!(error.contains(&format!("{other:?}")) && error.contains("case"), "{error}");
        }
        sink(&[("Caption", DataType::Utf8), ("caption", DataType::Int64)]).unwrap();
        sink(&[("a", DataType::Utf8), ("b.txt", DataType::Binary)]).unwrap();
        sink(&[("a.txt", DataType::Utf8), ("a", DataType::Binary)]).unwrap();
    }
}
