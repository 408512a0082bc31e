//! Head of a footer, the part about the whole file, not its row groups: the schema, Parquet's and Arrow's. Most files of a dataset
//! say the same, so that it is parsed and kept once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

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
        let footer = footer(schema, arrow);
        let Outline { digest, .. } = Outline::read(&footer, limits, place)?;
        let metadata = guard(place, "the schema is damaged", || ParquetMetaDataReader::decode_metadata(&footer))?;
        Ok(Self { schema: schema.into(), digest, arrow: arrow.map(Into::into), metadata: Arc::new(metadata) })
    }

    /// The Parquet schema.
    pub(super) fn descriptor(&self) -> SchemaDescPtr {
        self.metadata.file_metadata().schema_descr_ptr()
    }
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
