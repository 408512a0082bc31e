//! Properties of the first rows that types do not show: columns of bytes that hold images, and values that hardly repeat.

use std::collections::HashSet;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Schema};

use crate::codec::image;
use crate::convert::errors::unexpected;
use crate::convert::types::{is_binary, is_text};
use crate::error::{Error, Place, Result};
use crate::schema::Stored;

/// Error text for a missing image column.
pub(crate) const NO_IMAGES: &str = "no column holds images";

/// Metadata key of a field: its cells are image files, of this format if they all have the same one.
pub(crate) const IMAGE_KEY: &str = "bowstring.image";

/// Returns true if the cells of a column are image files.
pub(crate) fn is_image(field: &Field) -> bool {
    field.metadata().contains_key(IMAGE_KEY)
        || Stored::of(field.metadata()).is_some_and(|stored| {
            stored.is_ok_and(|stored| matches!(stored.codec, crate::schema::Codec::Png | crate::schema::Codec::Jpeg))
        })
}

/// Adds [`IMAGE_KEY`] to the columns of bytes whose cells in `sample` all begin like images.
pub(crate) fn mark_images(schema: &Schema, sample: &RecordBatch) -> Result<Schema> {
    let mut fields: Vec<Field> = schema.fields().iter().map(|field| Field::clone(field)).collect();
    for field in &mut fields {
        if !is_binary(field.data_type()) || is_image(field) || Stored::of(field.metadata()).is_some() {
            continue;
        }
        let Some(column) = sample.column_by_name(field.name()) else { continue };
        let views = cast(column, &DataType::BinaryView).map_err(unexpected)?;
        let mut formats = HashSet::new();
        let all = views.as_binary_view().iter().flatten().take(64).all(|cell| match image::probe(cell) {
            Ok(info) => {
                formats.insert(info.format.name());
                true
            }
            Err(_) => false,
        });
        if all && !formats.is_empty() {
            let format = if formats.len() == 1 { formats.into_iter().next().unwrap_or("") } else { "" };
            let mut metadata = field.metadata().clone();
            metadata.insert(IMAGE_KEY.to_owned(), format.to_ascii_lowercase());
            *field = field.clone().with_metadata(metadata);
        }
    }
    Ok(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Replaces the error about missing images by one about the odd cell, if a column has a cell that is no image among images.
pub(crate) fn odd_image(error: Error, sample: &RecordBatch, place: &dyn Fn(u64) -> Place) -> Error {
    if !matches!(&error, Error::Config { problem, .. } if problem == NO_IMAGES) {
        return error;
    }
    for (field, column) in sample.schema_ref().fields().iter().zip(sample.columns()) {
        let Ok(views) = cast(column, &DataType::BinaryView) else { continue };
        if !is_binary(field.data_type()) {
            continue;
        }
        let (mut images, mut odd) = (0, None);
        let views = views.as_binary_view();
        for row in (0..views.len()).filter(|row| views.is_valid(*row)).take(64) {
            match image::probe(views.value(row)) {
                Ok(_) => images += 1,
                Err(why) => odd = odd.or(Some((row, why))),
            }
        }
        if let (1.., Some((row, why))) = (images, odd) {
            let what = "a cell among images is not an image; filter it out, or choose another column".to_owned();
            let place = place(row as u64).column(field.name().as_str());
            return Error::Corrupt { place, what, source: Some(why.into()) };
        }
    }
    error
}

/// Returns the columns for which a dictionary does not pay: floats, and text that hardly repeats in `sample`.
pub(crate) fn hardly_repeat(sample: &RecordBatch) -> Vec<String> {
    let mut names = Vec::new();
    for (field, column) in sample.schema_ref().fields().iter().zip(sample.columns()) {
        let rows = column.len() - column.logical_null_count();
        let rarely = match field.data_type() {
            DataType::Float16 | DataType::Float32 | DataType::Float64 => true,
            kind if is_text(kind) || kind.is_integer() => {
                let Ok(text) = cast(column, &DataType::Utf8View) else { continue };
                let values: HashSet<&str> = text.as_string_view().iter().flatten().collect();
                rows >= 256 && values.len() * 10 > rows * 9
            }
            _ => false,
        };
        if rarely {
            names.push(field.name().clone());
        }
    }
    names
}
