//! What can be asked of the writer, and the check that it makes sense.

use arrow::datatypes::{DataType, SchemaRef};
use parquet::basic::{Compression as Codec, ZstdLevel};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use super::SCHEMA_KEY;
use crate::dataset::petastorm::Unischema;
use crate::error::{Error, Result};
use crate::schema::Stored;

/// How a dataset is written.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WriterOptions {
    /// Rows of a row group at most. Default 65,536.
    pub rows_per_group: usize,
    /// Bytes of a row group, as stored: the next one starts when they are reached. Default 32 MiB.
    pub group_bytes: usize,
    /// Rows of a file, exactly but for the last file. Default: as `file_bytes` says.
    pub rows_per_file: Option<usize>,
    /// Bytes of a file, as stored: the next one starts when they are reached. Default 512 MiB.
    pub file_bytes: u64,
    /// Compression of all columns but those whose cells are encoded already: arrays and images.
    pub compression: Compression,
    /// Columns that are not compressed, by dotted path: what is packed already, such as images that no field says are images.
    pub uncompressed: Vec<String>,
    /// Columns without a dictionary, by dotted path: what hardly repeats.
    pub plain: Vec<String>,
    /// Whether the destination may have a dataset in it, which the new one replaces.
    pub overwrite: bool,
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
            overwrite: false,
            petastorm: None,
        }
    }
}

/// How pages are compressed.
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
                return Err(Error::config(option, "must be at least 1"));
            }
        }
        if schema.fields().is_empty() {
            return Err(Error::config("schema", "has no fields"));
        }
        if let Some(petastorm) = &self.petastorm {
            petastorm.to_pickle()?;
        }
        let codec = match self.compression {
            Compression::None => Codec::UNCOMPRESSED,
            Compression::Snappy => Codec::SNAPPY,
            Compression::Lz4 => Codec::LZ4_RAW,
            Compression::Zstd(level) => Codec::ZSTD(
                ZstdLevel::try_new(level)
                    .map_err(|_| Error::config("compression", "the levels of zstd are 1 to 22"))?,
            ),
        };
        let mut properties = WriterProperties::builder()
            .set_created_by(format!("bowstring version {}", env!("CARGO_PKG_VERSION")))
            .set_compression(codec)
            .set_max_row_group_row_count(Some(self.rows_per_group))
            .set_max_row_group_bytes(Some(self.group_bytes));
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
        let schema = serde_json::json!({ "fields": fields }).to_string();
        Ok(properties.set_key_value_metadata(Some(vec![KeyValue::new(SCHEMA_KEY.to_owned(), schema)])).build())
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

    use arrow::datatypes::{Field, Schema};

    use super::*;

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
