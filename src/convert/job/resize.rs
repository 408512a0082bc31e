//! Images made smaller on the way: decoded, scaled down, encoded again as JPEG.
//!
//! Orientation from EXIF is applied first, as the new file has none. Images that are small enough stay as they are, byte for byte,
//! unless a quality asks for a new encoding.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryBuilder, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema};
use image::ExtendedColorType;
use image::codecs::jpeg::JpegEncoder;

use crate::codec::Decode;
use crate::codec::image::{ImageDecoder, ImageOptions, Layout, Size, probe};
use crate::convert::errors::unexpected;
use crate::convert::options::ConvertOptions;
use crate::convert::types::is_binary;
use crate::convert::values::cells::as_type_of;
use crate::convert::values::sample::{IMAGE_KEY, NO_IMAGES, is_image};
use crate::error::{Error, Place, Result};

/// Quality where only a size is given.
const QUALITY: u8 = 90;

/// What becomes of the columns of images.
#[derive(Debug)]
pub(crate) struct Resizer {
    columns: Vec<String>,
    quality: Option<u8>,
    side: Option<u32>,
}

impl Resizer {
    /// `None` if nothing was asked for.
    ///
    /// # Errors
    /// `Config` if there are no images.
    pub(crate) fn new(schema: &Schema, options: &ConvertOptions) -> Result<Option<Self>> {
        let option = match (options.resize, options.image_quality) {
            (None, None) => return Ok(None),
            (Some(_), _) => "resize",
            _ => "image_quality",
        };
        let images = schema.fields().iter().filter(|field| is_image(field) && is_binary(field.data_type()));
        let columns: Vec<String> = images.map(|field| field.name().clone()).collect();
        if columns.is_empty() {
            return Err(Error::config(option, NO_IMAGES));
        }
        Ok(Some(Self { columns, quality: options.image_quality, side: options.resize }))
    }

    /// `schema` as it is afterwards.
    pub(crate) fn schema(&self, schema: &Schema) -> Schema {
        let field = |field: &Arc<Field>| {
            if !self.columns.contains(field.name()) {
                return Field::clone(field);
            }
            let mut metadata = field.metadata().clone();
            // Images that were small enough may keep their format.
            let format = if self.quality.is_some() { "jpeg" } else { "" };
            metadata.insert(IMAGE_KEY.to_owned(), format.to_owned());
            metadata.remove(crate::schema::STORED_KEY);
            Field::clone(field).with_data_type(DataType::Binary).with_metadata(metadata)
        };
        Schema::new_with_metadata(schema.fields().iter().map(field).collect::<Vec<_>>(), schema.metadata().clone())
    }

    /// The batch with its images made anew; `place` says where a row of it is.
    pub(crate) fn apply(&self, batch: &RecordBatch, place: &dyn Fn(usize) -> Place) -> Result<RecordBatch> {
        let mut columns = batch.columns().to_vec();
        for (column, field) in columns.iter_mut().zip(batch.schema_ref().fields()) {
            if self.columns.contains(field.name()) {
                *column = self.column(column, field.name(), place)?;
            }
        }
        RecordBatch::try_new(batch.schema(), columns).map_err(unexpected)
    }

    fn column(&self, column: &ArrayRef, name: &str, place: &dyn Fn(usize) -> Place) -> Result<ArrayRef> {
        let first = place(0).row.unwrap_or(0);
        let views = as_type_of(name, first, column, &DataType::BinaryView)?;
        let views = views.as_binary_view();
        let mut made = BinaryBuilder::new();
        for at in 0..views.len() {
            if views.is_null(at) {
                made.append_null();
                continue;
            }
            let image = self.image(views.value(at)).map_err(|error| error.at(place(at).column(name)))?;
            match image {
                Some(image) => made.append_value(image),
                None => made.append_value(views.value(at)),
            }
        }
        Ok(Arc::new(made.finish()))
    }

    /// The new image; `None` if the old one is good.
    fn image(&self, cell: &[u8]) -> Result<Option<Vec<u8>>> {
        let info = probe(cell)?;
        let (width, height) = info.oriented();
        let shorter = width.min(height);
        let side = self.side.filter(|side| *side < shorter);
        if side.is_none() && self.quality.is_none() {
            return Ok(None);
        }
        let scaled = |length: u32| match side {
            // Rounded to the nearest, at least one.
            Some(side) => {
                let length = (u64::from(length) * u64::from(side) + u64::from(shorter) / 2) / u64::from(shorter.max(1));
                u32::try_from(length).unwrap_or(u32::MAX).max(1)
            }
            None => length,
        };
        let (width, height) = (scaled(width), scaled(height));
        let options = ImageOptions {
            size: Some(Size { height, width }),
            crop: crate::codec::image::Crop::None,
            layout: Layout::Hwc,
            ..ImageOptions::default()
        };
        let decoder = ImageDecoder::new(&options)?;
        let mut pixels = vec![0; decoder.shape().iter().product()];
        decoder.decode_into(cell, 0, &mut pixels)?;
        let mut out = Vec::new();
        let mut encoder = JpegEncoder::new_with_quality(&mut out, self.quality.unwrap_or(QUALITY));
        encoder.encode(&pixels, width, height, ExtendedColorType::Rgb8).map_err(|error| {
            Error::unsupported(
                format!("an image of {width} x {height} pixels as JPEG ({error})"),
                "JPEG has at most 65,535 pixels to a side",
            )
        })?;
        Ok(Some(out))
    }
}
