//! Options of the writer, and the check that they make sense.

use std::collections::HashSet;

use arrow::datatypes::{DataType, Field, SchemaRef};
use parquet::basic::{Compression as Codec, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::schema::types::ColumnPath;
use serde_json::Value;

use super::SCHEMA_KEY;
use crate::dataset::features::SPARK_ROW;
use crate::dataset::petastorm::Unischema;
use crate::error::{Error, Result};
use crate::schema::Stored;

/// Options of writing a dataset.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WriterOptions {
    /// Rows of a row group at most. Default 65,536.
    pub rows_per_group: usize,
    /// Bytes of a row group, as stored: the next one starts when they are reached. Default 32 MiB. One that shrinks to less
    /// than a hundredth ends at about 192 MiB as a reader decodes it. A row with a cell that shrinks to nearly nothing is one of its
    /// own, without compression if readers would refuse it otherwise.
    pub group_bytes: usize,
    /// Rows of a file, exactly but for the last file. Default: as `file_bytes` says.
    pub rows_per_file: Option<usize>,
    /// Bytes of a file, as stored: the next one starts when they are reached. Default 512 MiB. Pages that are not full count uncompressed, so that
    /// row groups and files of less than a few MiB end earlier than they should if their values shrink.
    pub file_bytes: u64,
    /// Compression of all columns except those whose cells are encoded already: arrays and images.
    pub compression: Compression,
    /// Columns that are not compressed, by dotted path: for packed content, such as images that no field says are images.
    pub uncompressed: Vec<String>,
    /// Columns without a dictionary, by dotted path: for values that hardly repeat.
    pub plain: Vec<String>,
    /// True if the dataset is read back soon, by bowstring, and then gone, as rows that a server keeps in memory are. Then pages are
    /// as cheap to write and read as possible: dictionaries for strings only, no statistics of floats and lists, no index of pages,
    /// and floats, which hardly shrink, as they are. `plain` and `uncompressed` apply in addition.
    pub fleeting: bool,
    /// True if the destination may have a dataset of bowstring in it, which the new one replaces.
    pub overwrite: bool,
    /// True if `overwrite` also deletes anything else at the destination, such as a dataset that others wrote.
    pub overwrite_foreign: bool,
    /// The schema for Petastorm, written beside the data in `_common_metadata`. It also says what the cells of binary columns hold,
    /// where their fields do not.
    pub petastorm: Option<Unischema>,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            rows_per_group: 64 << 10,
            group_bytes: 32 << 20,
            rows_per_file: None,
            file_bytes: 512 << 20,
            compression: Compression::default(),
            uncompressed: Vec::new(),
            plain: Vec::new(),
            fleeting: false,
            overwrite: false,
            overwrite_foreign: false,
            petastorm: None,
        }
    }
}

/// Compression of pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// Not at all.
    None,
    /// Snappy: what every reader of Parquet knows.
    Snappy,
    /// LZ4: the fastest.
    Lz4,
    /// Zstandard of this level, 1 to 22.
    Zstd(i32),
}

impl Default for Compression {
    fn default() -> Self {
        Self::Zstd(1)
    }
}

impl WriterOptions {
    /// For data that is read back soon and then gone, see [`fleeting`](Self::fleeting).
    pub(crate) fn fleeting() -> Self {
        Self { fleeting: true, ..Self::default() }
    }

    /// The properties of every file of `schema`, whose strings and bytes are plain.
    ///
    /// # Errors
    /// `Config` names the option that is impossible, or the field with impossible metadata.
    pub(crate) fn check(&self, schema: &SchemaRef) -> Result<WriterProperties> {
        for (option, zero) in [
            ("rows_per_group", self.rows_per_group == 0),
            ("group_bytes", self.group_bytes == 0),
            ("rows_per_file", self.rows_per_file == Some(0)),
            ("file_bytes", self.file_bytes == 0),
        ] {
            if zero {
                return Err(Error::config(option, "0 is less than 1"));
            }
        }
        if self.overwrite_foreign && !self.overwrite {
            return Err(Error::config("overwrite_foreign", "only goes with overwrite"));
        }
        if schema.fields().is_empty() {
            return Err(Error::config("schema", "has no fields"));
        }
        let mut seen = HashSet::new();
        if let Some(twice) = schema.fields().iter().find(|field| !seen.insert(field.name())) {
            return Err(Error::config(
                "schema",
                format!("two fields are named {:?}: rename one of them", twice.name()),
            ));
        }
        if let Some(petastorm) = &self.petastorm {
            petastorm.to_pickle()?;
        }
        let codec = match self.compression {
            Compression::None => Codec::UNCOMPRESSED,
            Compression::Snappy => Codec::SNAPPY,
            Compression::Lz4 => Codec::LZ4_RAW,
            Compression::Zstd(level) => {
                let wrong = || Error::config("compression", format!("zstd: {level} is not a level from 1 to 22"));
                let known = ZstdLevel::try_new(level).ok().filter(|_| (1..=22).contains(&level));
                Codec::ZSTD(known.ok_or_else(wrong)?)
            }
        };
        let mut properties = WriterProperties::builder()
            .set_created_by(format!("bowstring version {}", env!("CARGO_PKG_VERSION")))
            .set_compression(codec)
            .set_max_row_group_row_count(Some(self.rows_per_group))
            .set_max_row_group_bytes(Some(self.group_bytes));
        if self.fleeting {
            properties = properties
                .set_dictionary_enabled(false)
                .set_statistics_enabled(EnabledStatistics::None)
                .set_offset_index_disabled(true)
                .set_data_page_row_count_limit(usize::MAX);
        }
        let mut fields = Vec::with_capacity(schema.fields().len());
        for field in schema.fields() {
            let stored = Stored::of(field.metadata()).transpose();
            let stored = stored.map_err(|why| Error::config("schema", format!("field {:?}: {why}", field.name())))?;
            let binary = matches!(field.data_type(), DataType::Binary | DataType::FixedSizeBinary(_));
            let path = ColumnPath::new(vec![field.name().clone()]);
            if stored.is_some() && !binary {
                let problem = format!("field {:?} of {} cannot hold encoded cells", field.name(), field.data_type());
                return Err(Error::config("schema", problem));
            }
            if binary {
                // Cells like arrays and images repeat so rarely that a dictionary only costs.
                properties = properties.set_column_dictionary_enabled(path.clone(), false);
            }
            if self.fleeting && is_compared(field.data_type()) {
                properties = properties.set_column_statistics_enabled(path.clone(), EnabledStatistics::Chunk);
            }
            if self.fleeting && is_text(field.data_type()) {
                properties = properties.set_column_dictionary_enabled(path.clone(), true);
            }
            if self.fleeting {
                for path in floats(field, Vec::new()) {
                    properties = properties.set_column_compression(path, Codec::UNCOMPRESSED);
                }
            }
            if stored.is_some() {
                properties = properties.set_column_compression(path, Codec::UNCOMPRESSED);
            }
            fields.push(serde_json::json!({"name": field.name(), "stored": stored, "nullable": field.is_nullable()}));
        }
        for name in &self.uncompressed {
            properties = properties.set_column_compression(path(schema, name), Codec::UNCOMPRESSED);
        }
        for name in &self.plain {
            properties = properties.set_column_dictionary_enabled(path(schema, name), false);
        }
        let ours = serde_json::json!({ "fields": fields }).to_string();
        let mut pairs = vec![KeyValue::new(SCHEMA_KEY.to_owned(), ours)];
        // Types that Spark alone has. A variant that is declared could no longer be filtered here.
        let spark = schema.metadata().get(SPARK_ROW).filter(|row| !has_variants(row));
        pairs.extend(spark.map(|row| KeyValue::new(SPARK_ROW.to_owned(), row.clone())));
        Ok(properties.set_key_value_metadata(Some(pairs)).build())
    }
}

/// Returns true if a column of Spark's schema `row` is a variant, or has some in it.
fn has_variants(row: &str) -> bool {
    fn is(kind: &Value) -> bool {
        let child = |key: &str| kind.get(key).is_some_and(is);
        let members = kind.get("fields").and_then(Value::as_array);
        kind == "variant"
            || ["elementType", "keyType", "valueType", "type"].into_iter().any(child)
            || members.is_some_and(|members| members.iter().any(|member| member.get("type").is_some_and(is)))
    }
    serde_json::from_str(row).is_ok_and(|row| is(&row))
}

fn is_text(kind: &DataType) -> bool {
    matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// Returns true if a filter may skip row groups by the statistics of such a column, at little cost to the writer.
fn is_compared(kind: &DataType) -> bool {
    is_text(kind) || kind.is_integer() || kind.is_temporal() || kind.is_decimal() || *kind == DataType::Boolean
}

/// The leaves below `field` that hold floats, as Parquet names them; `path` is what is above it.
fn floats(field: &Field, mut path: Vec<String>) -> Vec<ColumnPath> {
    path.push(field.name().clone());
    match field.data_type() {
        kind if kind.is_floating() => vec![ColumnPath::new(path)],
        DataType::List(child) | DataType::LargeList(child) | DataType::FixedSizeList(child, _) => {
            path.push("list".to_owned());
            floats(child, path)
        }
        DataType::Struct(members) => members.iter().flat_map(|member| floats(member, path.clone())).collect(),
        _ => Vec::new(),
    }
}

/// The column that the dotted path `name` means. A column's own name may have dots too: `image.jpg` in a tar file.
fn path(schema: &SchemaRef, name: &str) -> ColumnPath {
    let below = |column: &str| match name.strip_prefix(column) {
        Some("") => Some(Vec::new()),
        Some(rest) => rest.strip_prefix('.').map(|rest| rest.split('.').collect::<Vec<_>>()),
        None => None,
    };
    let found = schema.fields().iter().filter_map(|field| Some((field.name().as_str(), below(field.name())?)));
    // `a.b` means the column of that name rather than a member of the column `a`.
    let (column, members) = found.max_by_key(|(column, _)| column.len()).unwrap_or((name, Vec::new()));
    ColumnPath::new(std::iter::once(column).chain(members).map(ToOwned::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::Schema;

    use super::*;

    #[test]
    fn what_is_gone_soon_is_cheap_to_write() {
        let numbers = DataType::List(Arc::new(Field::new("element", DataType::Float32, true)));
        let kinds = [("x", DataType::Float64), ("id", DataType::Int64), ("word", DataType::Utf8), ("v", numbers)];
        let fields: Vec<_> = kinds.map(|(name, kind)| Field::new(name, kind, true)).to_vec();
        let schema = Arc::new(Schema::new(fields));
        let properties = WriterOptions::fleeting().check(&schema).unwrap();
        let column = |name: &str| ColumnPath::new(name.split('.').map(ToOwned::to_owned).collect());
        for (name, dictionary, statistics) in [
            ("x", false, EnabledStatistics::None),
            ("v.list.element", false, EnabledStatistics::None),
            ("id", false, EnabledStatistics::Chunk),
            ("word", true, EnabledStatistics::Chunk),
        ] {
            assert_eq!(properties.dictionary_enabled(&column(name)), dictionary, "{name}");
            assert_eq!(properties.statistics_enabled(&column(name)), statistics, "{name}");
            assert_eq!(
                properties.compression(&column(name)) == Codec::UNCOMPRESSED,
                !dictionary && name != "id",
                "{name}"
            );
        }
        assert!(properties.offset_index_disabled());
        let kept = WriterOptions::default().check(&schema).unwrap();
        assert!(kept.dictionary_enabled(&column("x")) && !kept.offset_index_disabled());
    }

    #[test]
    fn names_with_dots_mean_their_columns() {
        let fields = ["image.jpg", "a", "a.b", "x"].map(|name| Field::new(name, DataType::Utf8, true));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let parts = |name| path(&schema, name).parts().to_vec();
        assert_eq!(parts("image.jpg"), ["image.jpg"]);
        assert_eq!(parts("a.b"), ["a.b"]);
        assert_eq!(parts("a.c.d"), ["a", "c", "d"]);
        assert_eq!(parts("image.jpg.bytes"), ["image.jpg", "bytes"]);
        assert_eq!(parts("nothing"), ["nothing"]);
        let options = WriterOptions {
            uncompressed: vec!["image.jpg".into()],
            plain: vec!["a.b".into()],
            ..WriterOptions::default()
        };
        let properties = options.check(&schema).unwrap();
        let column = |name: &str| ColumnPath::new(vec![name.to_owned()]);
        assert_eq!(properties.compression(&column("image.jpg")), Codec::UNCOMPRESSED);
        assert_ne!(properties.compression(&column("a")), Codec::UNCOMPRESSED);
        assert!(!properties.dictionary_enabled(&column("a.b")) && properties.dictionary_enabled(&column("a")));
    }
}
