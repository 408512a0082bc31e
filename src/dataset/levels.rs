//! The decoder's assembly of a column's leaves: made for the first row group of a layout, and used for all.

use arrow::datatypes::{Fields, TimeUnit};
use parquet::arrow::{FieldLevels, ProjectionMask, parquet_to_arrow_field_levels};
use parquet::errors::ParquetError;

use super::{Layout, times};

/// The decoder's assembly of a root column's leaves.
#[derive(Debug)]
pub(super) enum Levels {
    Plain(FieldLevels),
    /// With times of 96 bits: in two units, from which those of the schema are made.
    Times([FieldLevels; 2], Vec<Option<TimeUnit>>),
}

impl Levels {
    pub(super) fn new(layout: &Layout, leaves: &[usize]) -> Result<Self, ParquetError> {
        let descriptor = layout.descriptor();
        let fields = layout.schema.fields();
        let make = |fields: &Fields| {
            let mask = ProjectionMask::leaves(descriptor, leaves.iter().copied());
            parquet_to_arrow_field_levels(descriptor, mask, Some(fields))
        };
        if !times::any(descriptor, leaves.iter().copied()) {
            return Ok(Self::Plain(make(fields)?));
        }
        let [seconds, nanos] = times::PARTS.map(|unit| make(&times::with_unit(fields, descriptor, unit)));
        Ok(Self::Times([seconds?, nanos?], times::units(fields, descriptor, leaves)))
    }
}
