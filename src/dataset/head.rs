//! Head of a footer, the part about the whole file, not its row groups: the schema, Parquet's and Arrow's. Most files of a dataset
//! say the same, so that it is parsed and kept once.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::ipc::{Int, root_as_message};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::schema::types::SchemaDescPtr;
use sha2::{Digest, Sha256};

use super::guard::guard;
use super::limits::Limits;
use super::outline::Outline;
use crate::error::{Place, Result};

/// The key under which Arrow writers leave their schema.
pub(super) const ARROW_SCHEMA: &str = "ARROW:schema";

/// The schemas of a file.
#[derive(Debug)]
pub(super) struct Head {
    /// The schema's elements, as the footer has them.
    pub(super) schema: Box<[u8]>,
    /// SHA-256 of these.
    pub(super) digest: [u8; 32],
    /// The Arrow schema that a writer left beside it, as it is there.
    pub(super) arrow: Option<Box<str>>,
    /// Both as a footer without row groups.
    pub(super) metadata: Arc<ParquetMetaData>,
}

impl Head {
    /// Parses the schemas of a footer at `place`.
    pub(super) fn new(schema: &[u8], arrow: Option<&str>, limits: &Limits, place: &Place) -> Result<Self> {
        let known = arrow.map(without_wide_integers);
        let footer = footer(schema, known.as_deref());
        let Outline { digest, .. } = Outline::read(&footer, limits, place)?;
        let metadata = guard(place, "the schema is damaged", || ParquetMetaDataReader::decode_metadata(&footer))?;
        Ok(Self { schema: schema.into(), digest, arrow: arrow.map(Into::into), metadata: Arc::new(metadata) })
    }

    /// The Parquet schema.
    pub(super) fn descriptor(&self) -> SchemaDescPtr {
        self.metadata.file_metadata().schema_descr_ptr()
    }
}

/// The Arrow schema with other integers in place of those of more than 64 bits, of which polars writes some, and which Arrow's readers
/// refuse. No integer is what Parquet has there, so a reader takes Parquet's word.
fn without_wide_integers(arrow: &str) -> Cow<'_, str> {
    let Ok(mut bytes) = STANDARD.decode(arrow) else { return Cow::Borrowed(arrow) };
    // A message begins with a mark and its length; those of old writers with neither.
    let begin = if bytes.starts_with(&[0xff; 4]) { 8 } else { 0 };
    let widths = bytes.get(begin..).map(wide_integers).unwrap_or_default();
    if widths.is_empty() {
        return Cow::Borrowed(arrow);
    }
    for at in widths {
        if let Some(width) = bytes.get_mut(begin + at..).and_then(<[u8]>::first_chunk_mut) {
            *width = 64_i32.to_le_bytes();
        }
    }
    Cow::Owned(STANDARD.encode(bytes))
}

/// Where a message with an Arrow schema has the widths of integers of more than 64 bits.
fn wide_integers(message: &[u8]) -> Vec<usize> {
    let mut widths = Vec::new();
    let schema = root_as_message(message).ok().and_then(|message| message.header_as_schema());
    let mut fields: Vec<_> = schema.and_then(|schema| schema.fields()).into_iter().flatten().collect();
    while let Some(field) = fields.pop() {
        if let Some(integer) = field.type_as_int().filter(|integer| integer.bitWidth() > 64) {
            widths.push(integer._tab.loc() + usize::from(integer._tab.vtable().get(Int::VT_BITWIDTH)));
        }
        fields.extend(field.children().into_iter().flatten());
    }
    widths
}

/// A footer with these schemas, and without row groups.
fn footer(schema: &[u8], arrow: Option<&str>) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(schema.len() + arrow.map_or(0, str::len) + 64);
    // version = 1, then the schema.
    bytes.extend_from_slice(&[0x15, 0x02, 0x19]);
    bytes.extend_from_slice(schema);
    // No rows, no row groups.
    bytes.extend_from_slice(&[0x16, 0x00, 0x19, 0x0c]);
    if let Some(arrow) = arrow {
        bytes.extend_from_slice(&[0x19, 0x1c]);
        for text in [ARROW_SCHEMA, arrow] {
            bytes.push(0x18);
            let mut length = text.len();
            while length >= 0x80 {
                bytes.push(length as u8 | 0x80);
                length >>= 7;
            }
            bytes.push(length as u8);
            bytes.extend_from_slice(text.as_bytes());
        }
        bytes.push(0);
    }
    bytes.push(0);
    bytes
}

/// SHA-256 of both schemas.
type Digests = ([u8; 32], Option<[u8; 32]>);

/// Heads met so far, by their bytes.
#[derive(Debug, Default)]
pub(super) struct Heads {
    known: Mutex<HashMap<Digests, Arc<Head>>>,
    /// Any head of each schema: a footer with the same one is parsed without it.
    schemas: Mutex<HashMap<[u8; 32], Arc<Head>>>,
}

impl Heads {
    /// A head with the schema of this digest.
    pub(super) fn of_schema(&self, digest: &[u8; 32]) -> Option<Arc<Head>> {
        self.schemas.lock().unwrap_or_else(PoisonError::into_inner).get(digest).map(Arc::clone)
    }

    /// The head of a footer at `place` whose schema has this digest.
    pub(super) fn intern(
        &self,
        schema: &[u8],
        digest: [u8; 32],
        arrow: Option<&str>,
        limits: &Limits,
        place: &Place,
    ) -> Result<Arc<Head>> {
        let key = (digest, arrow.map(|arrow| Sha256::digest(arrow).into()));
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(head) = known().get(&key) {
            return Ok(Arc::clone(head));
        }
        let head = Arc::new(Head::new(schema, arrow, limits, place)?);
        self.schemas.lock().unwrap_or_else(PoisonError::into_inner).entry(digest).or_insert_with(|| Arc::clone(&head));
        Ok(Arc::clone(known().entry(key).or_insert(head)))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
    use parquet::arrow::encode_arrow_schema;

    use super::*;
    use crate::dataset::{Dataset, OpenOptions};

    #[test]
    fn integers_of_128_bits_are_as_parquet_has_them() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/features/int128.parquet");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let urls = [path.display().to_string()];
        let dataset = runtime.block_on(Dataset::open(&urls, OpenOptions::default())).unwrap();
        let types: Vec<_> = dataset.schema().fields().iter().map(|field| field.data_type().clone()).collect();
        let wide = || DataType::FixedSizeBinary(16);
        let inner = DataType::Struct(vec![Field::new("y", wide(), true)].into());
        // The rest of the Arrow schema stands: the zone is in no other.
        let zoned = DataType::Timestamp(TimeUnit::Microsecond, Some("Europe/Berlin".into()));
        assert_eq!(types, [DataType::Int64, wide(), inner, zoned]);
    }

    #[test]
    fn other_schemas_stay_as_they_are() {
        let inner = DataType::Struct(vec![Field::new("y", DataType::UInt64, true)].into());
        let fields = [Field::new("a", DataType::Int8, true), Field::new("s", inner, true)];
        let text = encode_arrow_schema(&Schema::new(fields.to_vec()));
        for text in [text.as_str(), "", "no base64", "AAAA", "/////w==", &text[..text.len() / 8 * 4]] {
            assert!(matches!(without_wide_integers(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }
}
