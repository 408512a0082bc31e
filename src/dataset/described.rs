//! What a dataset says of its cells beside its Parquet schema: bowstring's own JSON in the footers, or what Petastorm left in
//! `_common_metadata`.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use parquet::file::metadata::ParquetMetaData;
use serde::Deserialize;

use super::footer;
use super::limits::Limits;
use super::petastorm::{self, RowGroupIndex, Unischema};

use crate::error::{Error, Place, Result};
use crate::schema::Stored;
use crate::store::Listing;

/// The key of the footer's metadata that holds the schema of bowstring, as JSON.
pub(super) const SCHEMA_KEY: &str = "bowstring.schema.v1";

/// Where Petastorm keeps its schema, in order of precedence: `_metadata` in datasets of old versions.
const FILES: [&str; 2] = ["_common_metadata", "_metadata"];

/// A dataset as Petastorm describes it.
#[derive(Debug, Clone)]
pub struct Petastorm {
    /// The schema.
    pub unischema: Unischema,
    /// Row groups of each file, by its path relative to the dataset, if they were counted.
    pub row_group_counts: Option<BTreeMap<String, usize>>,
    /// The stored row-group indexes, not read yet.
    indexes: Option<Vec<u8>>,
    place: Place,
}

impl Petastorm {
    /// The stored row-group indexes; none if none were built. Row groups are numbered over the files sorted by path.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Unsupported`] and [`Error::Limit`] for an index that is damaged or holds what it must not.
    pub fn indexes(&self) -> Result<Vec<RowGroupIndex>> {
        self.indexes.as_ref().map_or_else(|| Ok(Vec::new()), |bytes| petastorm::indexes(bytes, &self.place))
    }
}

/// Petastorm's description, if there is one beside the files.
pub(super) async fn petastorm(listing: &Listing, limits: &Limits) -> Result<Option<Petastorm>> {
    for name in FILES {
        let Some(found) = listing.beside(name) else { continue };
        let place = Place::file(Arc::clone(&found.name));
        let bytes = match footer::bytes(&found, limits).await {
            Ok(bytes) => bytes,
            Err(Error::NotFound { .. }) => continue,
            Err(error) => return Err(error),
        };
        let mut values: BTreeMap<String, Vec<u8>> = petastorm::key_values(&bytes, &place)?.into_iter().collect();
        let Some(unischema) = values.remove(petastorm::UNISCHEMA_KEY) else { continue };
        let counts = values.remove(petastorm::ROW_GROUPS_KEY);
        return Ok(Some(Petastorm {
            unischema: Unischema::from_pickle(&unischema, &place)?,
            row_group_counts: counts.map(|json| petastorm::row_group_counts(&json, &place)).transpose()?,
            indexes: values.remove(petastorm::INDEXES_KEY),
            place,
        }));
    }
    Ok(None)
}

#[derive(Deserialize)]
struct Native {
    fields: Vec<NativeField>,
}

#[derive(Deserialize)]
struct NativeField {
    name: String,
    stored: Option<Stored>,
}

/// What `metadata` of one of the files, and `petastorm`, say of columns: name and cells.
pub(super) fn cells(
    metadata: Option<&ParquetMetaData>,
    petastorm: Option<&Petastorm>,
    place: &Place,
) -> Result<BTreeMap<String, Stored>> {
    let pairs = metadata.and_then(|metadata| metadata.file_metadata().key_value_metadata());
    let native = pairs.into_iter().flatten().find(|pair| pair.key == SCHEMA_KEY).and_then(|pair| pair.value.as_ref());
    if let Some(json) = native {
        let native: Native = serde_json::from_str(json)
            .map_err(|error| Error::corrupt_by(place.clone(), format!("its {SCHEMA_KEY} is damaged"), error))?;
        return Ok(native.fields.into_iter().filter_map(|field| Some((field.name, field.stored?))).collect());
    }
    let mut cells = BTreeMap::new();
    for field in petastorm.iter().flat_map(|petastorm| &petastorm.unischema.fields) {
        if let Some(stored) = field.stored()? {
            cells.insert(field.name.clone(), stored);
        }
    }
    Ok(cells)
}

/// `schema` with what is known of the cells of its binary columns.
pub(super) fn apply(schema: &SchemaRef, cells: &BTreeMap<String, Stored>) -> SchemaRef {
    if cells.is_empty() {
        return Arc::clone(schema);
    }
    let described = |field: &Arc<Field>| match cells.get(field.name()) {
        Some(stored) if is_binary(field.data_type()) => {
            let mut metadata = field.metadata().clone();
            let (key, value) = stored.metadata();
            metadata.insert(key, value);
            Arc::new(Field::clone(field).with_metadata(metadata))
        }
        _ => Arc::clone(field),
    };
    let fields: Vec<_> = schema.fields().iter().map(described).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn is_binary(ty: &DataType) -> bool {
    matches!(ty, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}
