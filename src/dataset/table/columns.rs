//! The columns of a table, which its data files are brought to.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::datatypes::Field;
use parquet::file::metadata::{FileMetaData, ParquetMetaData};
use parquet::schema::types::{SchemaDescriptor, TypePtr};

use super::column::Column;
use super::naming::Naming;
use super::numbers::Numbers;
use crate::dataset::guard::guard;
use crate::error::{Error, Place, Result};

/// See the module.
#[derive(Debug, Clone)]
pub(in crate::dataset) struct Columns {
    pub(in crate::dataset) naming: Naming,
    /// Columns that come from the log alone, after the others. Nullable if any file of the version, pruned or not, has no value.
    pub(in crate::dataset) partitions: Vec<Column>,
    /// Columns that have a value of their own in files that lack them: the file's partition, or the column's default.
    pub(in crate::dataset) told: BTreeSet<String>,
    /// Columns with a value that cannot be read: in a file that lacks one, and has no other value for it, it is unknown.
    pub(in crate::dataset) stored: BTreeSet<String>,
    /// Columns that have a value in each row: a file that lacks one, and has no value of its own for it, contradicts the table.
    pub(in crate::dataset) required: BTreeSet<String>,
    /// Numbers for the columns of files that have none.
    pub(in crate::dataset) numbers: Option<Arc<Numbers>>,
}

impl Columns {
    /// `file`, the schemas of a data file at `place`, by the names of the table, and without what its writer said of them in Arrow's
    /// terms: the table's types count.
    pub(in crate::dataset) fn named(&self, file: &ParquetMetaData, place: &Place) -> Result<Arc<ParquetMetaData>> {
        let known = file.file_metadata();
        let root = known.schema_descr().root_schema_ptr();
        let root = match &self.numbers {
            Some(numbers) if !self.naming.is_numbered(&root) => {
                guard(place, "the schema is damaged", || numbers.given(&root))?
            }
            _ => root,
        };
        if !self.naming.is_numbered(&root) {
            let what = "its columns have no numbers, and its table finds them by those";
            return Err(Error::corrupt(place.clone(), what));
        }
        let root: TypePtr = guard(place, "the schema is damaged", || self.naming.named(&root))?;
        let schema = Arc::new(SchemaDescriptor::new(root));
        let file = FileMetaData::new(known.version(), known.num_rows(), None, None, schema, None);
        Ok(Arc::new(ParquetMetaData::new(file, Vec::new())))
    }

    /// The columns of data files, as the table has them.
    pub(in crate::dataset) fn fields(&self) -> impl Iterator<Item = Field> {
        self.naming.columns.iter().map(Column::field)
    }

    /// The columns that come from the log.
    pub(in crate::dataset) fn partition_fields(&self) -> Vec<Field> {
        self.partitions.iter().map(Column::field).collect()
    }
}
