//! How the decoder puts the leaves of a column together: made for a layout's first row group, and used for all.

use arrow::datatypes::{Fields, TimeUnit};
use parquet::arrow::{FieldLevels, ProjectionMask, parquet_to_arrow_field_levels};
use parquet::errors::ParquetError;

use super::{Layout, times};

/// How the decoder puts the leaves of a root column together.
#[derive(Debug)]
pub(super) enum Levels {
    Plain(FieldLevels),
    /// With times of 96 bits: in two units, of which those are made that the schema has.
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
