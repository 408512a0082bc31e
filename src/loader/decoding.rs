//! Photos decoded on a device: the columns, and the part left to the device. Requested by name (`decoder: nvjpeg`), so
//! that what the device cannot decode is an error, never a silent fallback to the CPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::remote::is_remote;
use crate::codec::BadRows;
use crate::codec::image::{Decoder, Deferred, Held, ImageOptions, Layout, Stored};
use crate::device::{Developing, Normalisation, Photo, Photos, View};
use crate::error::{Error, Result};
use crate::pipeline::LoaderOptions;
use crate::schema::{DType, Dim, Field, Schema};

/// Rows that the codec wrote, as a device reads them.
#[derive(Debug)]
struct Rows(Deferred);

impl Photos for Rows {
    fn read<'a>(&self, row: &'a [u8]) -> Result<Photo<'a>> {
        Ok(match self.0.held(row)? {
            Held::Nothing => Photo::Nothing,
            Held::Pixels(pixels) => Photo::Pixels(pixels),
            Held::Jpeg(Stored { bytes, width, height, rect, sealed, turn }) => {
                let (transpose, flip_x, flip_y) = (turn.transpose, turn.flip_x, turn.flip_y);
                Photo::Jpeg(bytes, View { width, height, rect, sealed, transpose, flip_x, flip_y })
            }
        })
    }

    fn pixels(&self, row: &[u8], out: &mut [u8]) -> Result<()> {
        self.0.pixels(row, out)
    }
}

fn asked(options: &LoaderOptions) -> impl Iterator<Item = (&String, &ImageOptions)> {
    options.columns.images.iter().filter(|(_, image)| image.decoder != Decoder::Cpu)
}

/// Checks that no column asks for a decoder on a device, since batches stay in host memory.
pub(super) fn check_host(options: &LoaderOptions) -> Result<()> {
    match asked(options).next() {
        None => Ok(()),
        Some((name, _)) => Err(refused(name, &format!("device is \"{}\"; nvjpeg decodes on a GPU", options.device))),
    }
}

/// The same options with the CPU as the decoder, for lack of a device.
pub(super) fn on_host(options: &LoaderOptions) -> LoaderOptions {
    let mut options = options.clone();
    options.columns.images.values_mut().for_each(|image| image.decoder = Decoder::Cpu);
    options
}

/// Returns the host's options, which leave the requested decoding to the device, and the device's part for each column.
///
/// # Errors
/// [`Error::Config`] if the device cannot decode a column.
pub(super) fn deferred(options: &LoaderOptions) -> Result<(LoaderOptions, BTreeMap<Arc<str>, Developing>)> {
    let (mut changed, mut columns) = (options.clone(), BTreeMap::new());
    for (name, image) in asked(options) {
        let problem = if is_remote(options) {
            "a server decodes what it sends"
        } else if name.contains(['*', '?']) {
            "a pattern may mean columns that are no photos; give the column's name"
        } else if options.ngram.is_some() {
            "windows of rows are put together on the host"
        } else if options.bad_rows != BadRows::Error {
            "bad_rows other than error needs the host to look at every photo"
        } else if !options.columns.nulls_are_errors(name) {
            "nulls other than error are filled on the host"
        } else {
            let (image, developing) = developing(image)?;
            changed.columns.images.insert(name.clone(), image);
            columns.insert(name.as_str().into(), developing);
            continue;
        };
        return Err(refused(name, problem));
    }
    Ok((changed, columns))
}

/// Checks that the columns match the device's instructions.
pub(super) fn check(schema: &Schema, columns: &BTreeMap<Arc<str>, Developing>) -> Result<()> {
    for (name, developing) in columns {
        let below = |field: &Field| field.name.strip_prefix(&**name).is_some_and(|rest| rest.starts_with('.'));
        if schema.fields().iter().any(below) {
            return Err(refused(name, "it stands for those below it; give each by its own name"));
        }
        let fits = |field: &Field| {
            let row = matches!(&*field.dims, [Dim::Batch, Dim::Fixed(found)] if *found == developing.row_bytes);
            row && field.dtype() == Some(DType::Uint8) && !field.valid
        };
        if !schema.get(name).is_none_or(fits) {
            return Err(refused(name, "it is no plain column of encoded photos"));
        }
    }
    Ok(())
}

/// The host's options for a column that the device decodes, and the device's part.
fn developing(image: &ImageOptions) -> Result<(ImageOptions, Developing)> {
    let (deferred, scale, bias) = image.deferred()?;
    let photos = Deferred::new(&deferred)?;
    let row_bytes = photos.row_bytes();
    let shape = *photos.shape().first_chunk().unwrap_or(&[0; 3]);
    let values = Normalisation { to: image.dtype, scale, bias };
    let planes = image.layout == Layout::Chw;
    Ok((deferred, Developing { photos: Arc::new(Rows(photos)), row_bytes, shape, planes, values }))
}

fn refused(column: &str, problem: &str) -> Error {
    Error::config("decoder", format!("column {column}: {problem}; give decoder=\"cpu\""))
}
