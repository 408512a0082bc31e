//! The rows of a dataset as stored, a row group at a time: for engines that need tables, not batches.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};

use super::hidden_columns::HiddenColumns;
use super::job::Workers;
use super::options::LoaderOptions;
use crate::codec::{check_excluded, column_is_meant, roots};
use crate::dataset::{Dataset, Projection};
use crate::error::{Error, Result};
use crate::manifest::Fingerprint;
use crate::schema::cast;

/// See the module documentation.
#[derive(Debug)]
pub struct Stored {
    dataset: Dataset,
    projection: Projection,
    schema: SchemaRef,
}

impl Stored {
    /// Opens the dataset that `options` name, with its filter, its selector and its columns, which are whole columns
    /// here, by name or glob. `exclude` may leave out members of a struct; a list or map that contains something
    /// excluded is left out as a whole. Options of batches, ranks and shuffling are ignored.
    ///
    /// # Errors
    /// [`Error::Config`] for a mixture; [`Error::NotFound`] for a column that does not exist; [`Error::Unsupported`]
    /// for a part of a column; and any error of opening the dataset.
    pub async fn open(options: &LoaderOptions) -> Result<Self> {
        Self::hiding(options, &HiddenColumns::default()).await
    }

    /// As [`open`](Self::open), without what `hidden` hides.
    ///
    /// # Errors
    /// As [`open`](Self::open); hidden columns are not found.
    pub(crate) async fn hiding(options: &LoaderOptions, hidden: &HiddenColumns) -> Result<Self> {
        let options = hidden.without(options);
        if !options.weights.is_empty() {
            return Err(Error::config("weights", "a mixture has no rows of its own; open each dataset"));
        }
        if options.ngram.is_some() {
            return Err(Error::config("ngram", "windows are batches; stored rows are single rows"));
        }
        let dataset = Dataset::open(&options.urls, hidden.over(options.open_options()?)?).await?;
        let exclude = &options.columns.exclude;
        check_excluded(dataset.schema(), exclude)?;
        let dataset = match exclude.as_slice() {
            [] => dataset,
            exclude => dataset.without(&|name| exclude.iter().any(|pattern| column_is_meant(pattern, name))),
        };
        let names = roots(dataset.schema(), &options.columns.columns)?;
        let projection = dataset.project(&names)?;
        let fields: Vec<FieldRef> = projection.roots().iter().map(|root| plain_field(root.field())).collect();
        let schema = Arc::new(Schema::new(fields));
        Ok(Self { dataset, projection, schema })
    }

    /// Returns true if `options`, with which it was opened, still lead to the same files: see [`Dataset::is_current`].
    ///
    /// # Errors
    /// As [`Dataset::is_current`].
    pub async fn is_current(&self, options: &LoaderOptions) -> Result<bool> {
        self.dataset.is_current(&options.urls, &options.open_options()?).await
    }

    /// The columns: as stored, except that views of strings and bytes, and what a dictionary has, are plain: every reader of Arrow supports
    /// that, and Flight sends no dictionaries.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Approximate bytes of memory of the open dataset.
    #[cfg(feature = "flight")]
    pub(crate) fn memory_size(&self) -> u64 {
        self.dataset.memory_size()
    }

    /// Row groups in file order.
    pub fn groups(&self) -> usize {
        self.dataset.manifest().groups.len()
    }

    /// Selected rows of row group `group`.
    pub fn rows(&self, group: usize) -> u64 {
        self.dataset.decoded_rows(group)
    }

    /// The identity of the data.
    pub fn fingerprint(&self) -> Fingerprint {
        self.dataset.manifest().fingerprint()
    }

    /// `given`, if the data have or had that fingerprint; else the one that they have.
    pub(crate) fn fingerprint_as(&self, given: Fingerprint) -> Fingerprint {
        self.fingerprint().or_former(self.dataset.manifest().former(), given)
    }

    /// Bytes that reading row group `group` takes, with the copies that make views and dictionaries plain: the maximum, but for long words
    /// that a dictionary has once and many rows have.
    pub fn cost(&self, group: usize) -> u64 {
        let cost = self.dataset.cost(group, &self.projection);
        cost.total().saturating_add(cost.fetched).saturating_add(cost.decoded)
    }

    /// The selected rows of row group `group`, decoded by `workers`.
    ///
    /// # Errors
    /// As [`Dataset::fetch`] and [`Dataset::decode`]; [`Error::Limit`] if the strings of one row group exceed 2 GiB.
    pub async fn read(self: &Arc<Self>, group: usize, workers: &Workers) -> Result<RecordBatch> {
        let fetched = self.dataset.fetch(group, &self.projection).await?;
        let stored = Arc::clone(self);
        let decode = move || {
            let mut arrays: Vec<ArrayRef> = Vec::with_capacity(stored.schema.fields().len());
            for (root, field) in stored.schema.fields().iter().enumerate() {
                let array = stored.dataset.decode(&fetched, &stored.projection, root)?;
                arrays.push(stored.plain(&array, field, group)?);
            }
            let rows = usize::try_from(stored.rows(group)).unwrap_or(usize::MAX);
            let options = RecordBatchOptions::new().with_row_count(Some(rows));
            RecordBatch::try_new_with_options(Arc::clone(&stored.schema), arrays, &options).map_err(|error| {
                Error::corrupt_by(stored.dataset.place(group), "its columns do not fit the schema", error)
            })
        };
        workers.run(decode).await
    }

    fn plain(&self, array: &ArrayRef, field: &Field, group: usize) -> Result<ArrayRef> {
        cast(array, field.data_type()).map_err(|misfit| {
            Error::unsupported(
                format!("{} rows as {} ({misfit})", array.len(), field.data_type()),
                "write smaller row groups",
            )
            .at(self.dataset.place(group).column(field.name().as_str()))
        })
    }
}

/// `field` without views and dictionaries at any depth.
fn plain_field(field: &FieldRef) -> FieldRef {
    let inner = |field: &FieldRef| plain_field(field);
    let plain = match field.data_type() {
        DataType::Dictionary(_, values) => {
            return plain_field(&Arc::new(Field::clone(field).with_data_type(values.as_ref().clone())));
        }
        DataType::Utf8View => DataType::Utf8,
        DataType::BinaryView => DataType::Binary,
        DataType::List(item) => DataType::List(inner(item)),
        DataType::LargeList(item) => DataType::LargeList(inner(item)),
        DataType::FixedSizeList(item, length) => DataType::FixedSizeList(inner(item), *length),
        DataType::Map(entries, sorted) => DataType::Map(inner(entries), *sorted),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(inner).collect()),
        _ => return Arc::clone(field),
    };
    Arc::new(Field::clone(field).with_data_type(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_not_every_reader_has_is_plain_at_every_depth() {
        let words = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8View));
        let list = |item: DataType| DataType::List(Arc::new(Field::new("item", item, true)));
        let member = |ty: DataType| DataType::Struct(vec![Field::new("x", ty, false)].into());
        for (stored, plain) in [
            (words.clone(), DataType::Utf8),
            (list(words.clone()), list(DataType::Utf8)),
            (member(list(words.clone())), member(list(DataType::Utf8))),
            (list(DataType::BinaryView), list(DataType::Binary)),
            (DataType::Int8, DataType::Int8),
        ] {
            let field = Arc::new(Field::new("c", stored, true));
            assert_eq!(plain_field(&field).as_ref(), &Field::new("c", plain, true));
        }
    }
}
