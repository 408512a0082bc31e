//! Descriptions of a dataset's cells beside its Parquet schema: bowstring's own JSON in the footers, or what Petastorm left in
//! `_common_metadata`.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use bytes::Bytes;
use serde::Deserialize;

use super::footer;
use super::limits::Limits;
use super::petastorm::{self, RowGroupIndex, Unischema};
use super::{OpenOptions, within};

use super::write::SCHEMA_KEY;
use crate::error::{Error, Place, Result};
use crate::schema::{DTYPE_KEY, DType, Stored};
use crate::store::Listing;

/// Files where Petastorm keeps its schema, in order of precedence: `_metadata` in datasets of old versions.
const FILES: [&str; 2] = ["_common_metadata", LEGACY];
const LEGACY: &str = "_metadata";

/// A dataset as Petastorm describes it.
#[derive(Debug, Clone)]
pub struct Petastorm {
    /// The schema.
    pub unischema: Unischema,
    /// Row groups of each file, by its path relative to the dataset, if they were counted.
    pub row_group_counts: Option<BTreeMap<String, usize>>,
    /// The stored row-group indexes, not read yet.
    indexes: Option<Vec<u8>>,
    limits: Limits,
    place: Place,
}

impl Petastorm {
    /// Reads what Petastorm says of the dataset at `urls` without opening it: no footer of a data file is read. None if it is no
    /// dataset of Petastorm. Must be called on a tokio runtime with timers.
    ///
    /// # Errors
    /// [`Error::NotFound`] if there is nothing; [`Error::Corrupt`], [`Error::Unsupported`] and [`Error::Limit`] for a description
    /// that is damaged or holds what it must not; [`Error::Timeout`]; [`Error::Store`].
    pub async fn read(urls: &[String], options: &OpenOptions) -> Result<Option<Self>> {
        let shown: Vec<String> = urls.iter().map(|url| crate::store::display(url)).collect();
        let find = crate::store::find(urls, options.access(), options.limits.max_files);
        let listing = within(options.timeout, format!("the files at {}", shown.join(", ")), find).await?;
        let reading = petastorm(&listing, &options.limits);
        let found = within(options.timeout, "the dataset's _common_metadata".to_owned(), reading).await?;
        Ok(found.map(|(petastorm, _)| petastorm))
    }

    /// The stored row-group indexes; none if none were built. Row groups are numbered over the files sorted by path.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Unsupported`] and [`Error::Limit`] for an index that is damaged or holds what it must not.
    pub fn indexes(&self) -> Result<Vec<RowGroupIndex>> {
        self.indexes
            .as_ref()
            .map_or_else(|| Ok(Vec::new()), |bytes| petastorm::indexes(bytes, &self.limits, &self.place))
    }
}

/// The footer of a file beside the data that describes it.
#[derive(Debug, Clone)]
pub(super) struct Beside {
    pub(super) name: Arc<str>,
    pub(super) footer: Bytes,
}

/// Petastorm's description and where it stands, if there is one beside the files.
pub(super) async fn petastorm(listing: &Listing, limits: &Limits) -> Result<Option<(Petastorm, Beside)>> {
    for name in FILES {
        let Some(found) = listing.beside(name) else { continue };
        let place = Place::file(Arc::clone(&found.name));
        let bytes = match footer::bytes(&found, limits).await {
            Ok(bytes) => bytes,
            Err(Error::NotFound { .. }) => continue,
            // Without the right to list, a store does not say that there is no such file.
            Err(error) if is_denied(&error) => {
                tracing::warn!("{} may not be read and is not used: {}", found.url(), error.chain());
                continue;
            }
            // Every engine leaves a file of this name, and most datasets are read without it.
            Err(error @ Error::Corrupt { .. }) if name == LEGACY => {
                tracing::warn!("{} is not a Parquet footer and is not used: {}", found.url(), error.chain());
                continue;
            }
            Err(error) => return Err(error),
        };
        let beside = Beside { name: name.into(), footer: bytes };
        if let Some(found) = beside.petastorm(limits, place).await? {
            return Ok(Some((found, beside)));
        }
    }
    Ok(None)
}

impl Beside {
    /// Petastorm's description in it.
    pub(super) async fn petastorm(&self, limits: &Limits, place: Place) -> Result<Option<Petastorm>> {
        let (bytes, limits) = (self.footer.clone(), limits.clone());
        // A schema may be as large as its limit allows: too much work for a thread that others wait on.
        let parsed = super::held::spawn(move || parse(&bytes, limits, place));
        let closed = |error| Err(Error::Closed { why: format!("{} was not parsed: {error}", self.name) });
        parsed.await.unwrap_or_else(closed)
    }
}

/// Petastorm's description in a footer; none if it says nothing of Petastorm.
fn parse(footer: &[u8], limits: Limits, place: Place) -> Result<Option<Petastorm>> {
    let mut values: BTreeMap<String, Vec<u8>> = petastorm::key_values(footer, &place)?.into_iter().collect();
    let Some(unischema) = values.remove(petastorm::UNISCHEMA_KEY) else { return Ok(None) };
    let counts = values.remove(petastorm::ROW_GROUP_COUNTS_KEY);
    Ok(Some(Petastorm {
        unischema: Unischema::from_pickle(&unischema, &limits, &place)?,
        row_group_counts: counts.map(|json| petastorm::row_group_counts(&json, &place)).transpose()?,
        indexes: values.remove(petastorm::ROW_GROUP_INDEX_KEY),
        limits,
        place,
    }))
}

/// Returns true if a store refused to say anything.
fn is_denied(error: &Error) -> bool {
    let Error::Store { source, .. } = error else { return false };
    let source = source.downcast_ref::<object_store::Error>();
    matches!(source, Some(object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. }))
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

/// Facts about one column: what its cells hold, or the element type that its numbers are meant to have.
#[derive(Debug, Clone)]
pub(super) enum Known {
    RowGroupBlock(Stored),
    Number(DType),
}

/// Descriptions of columns by name, from bowstring's own JSON in one of the files and from `petastorm`.
pub(super) fn columns(
    native: Option<&str>,
    petastorm: Option<&Petastorm>,
    place: &Place,
) -> Result<BTreeMap<String, Known>> {
    if let Some(json) = native {
        let native: Native = serde_json::from_str(json)
            .map_err(|error| Error::corrupt_by(place.clone(), format!("its {SCHEMA_KEY} is damaged"), error))?;
        return Ok(native
            .fields
            .into_iter()
            .filter_map(|field| Some((field.name, Known::RowGroupBlock(field.stored?))))
            .collect());
    }
    let mut columns = BTreeMap::new();
    for field in petastorm.iter().flat_map(|petastorm| &petastorm.unischema.fields) {
        if let Some(stored) = field.stored()? {
            columns.insert(field.name.clone(), Known::RowGroupBlock(stored));
        } else if let Some(dtype) = field.dtype() {
            columns.insert(field.name.clone(), Known::Number(dtype));
        }
    }
    Ok(columns)
}

/// `schema` with what is known of its columns, where it fits their types.
pub(super) fn apply(schema: &SchemaRef, columns: &BTreeMap<String, Known>) -> SchemaRef {
    if columns.is_empty() {
        return Arc::clone(schema);
    }
    let described = |field: &Arc<Field>| {
        let (key, value) = match columns.get(field.name()) {
            Some(Known::RowGroupBlock(stored)) if is_binary(field.data_type()) => stored.metadata(),
            Some(Known::Number(dtype)) if field.data_type().is_integer() || field.data_type().is_floating() => {
                (DTYPE_KEY.to_owned(), dtype.name().to_owned())
            }
            _ => return Arc::clone(field),
        };
        let mut metadata = field.metadata().clone();
        metadata.insert(key, value);
        Arc::new(Field::clone(field).with_metadata(metadata))
    };
    let fields: Vec<_> = schema.fields().iter().map(described).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn is_binary(ty: &DataType) -> bool {
    matches!(ty, DataType::Binary | DataType::LargeBinary | DataType::BinaryView)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denied_look_is_no_failure_but_others_are() {
        let denied = |source: object_store::Error| Error::Store {
            operation: "read".to_owned(),
            url: "s3://b/_common_metadata".to_owned(),
            source: source.into(),
        };
        let path = || "_common_metadata".to_owned();
        assert!(is_denied(&denied(object_store::Error::PermissionDenied { path: path(), source: "403".into() })));
        assert!(is_denied(&denied(object_store::Error::Unauthenticated { path: path(), source: "401".into() })));
        assert!(!is_denied(&denied(object_store::Error::NotFound { path: path(), source: "404".into() })));
        assert!(!is_denied(&Error::NotFound { what: String::new(), hint: String::new() }));
    }

    #[test]
    fn numbers_are_named_as_numpy_names_them() {
        let field = |numpy_dtype: &str| petastorm::UnischemaField {
            name: "x".to_owned(),
            numpy_dtype: numpy_dtype.to_owned(),
            shape: Vec::new(),
            codec: None,
            nullable: false,
        };
        // `float` is a short name of float32 in options, and Python's name of float64 here.
        for (name, dtype) in
            [("float", Some(DType::Float64)), ("uint8", Some(DType::Uint8)), ("f32", None), ("str_", None)]
        {
            assert_eq!(field(name).dtype(), dtype, "{name}");
        }
    }
}
