//! `bowstring._native.preview`: an image of a batch as a PNG.

use bowstring::Error;
use bowstring::codec::ImageOptions;
use bowstring::codec::image::{self, Layout, Size};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::calls::detached;
use crate::errors::raise;
use crate::tensor::PyTensor;

/// Encodes image `at` of `tensor`, whose last three axes are those of one image, as a PNG of at most `side` pixels a side. `options`
/// are those of the image, as JSON.
#[pyfunction]
pub(crate) fn preview<'py>(
    py: Python<'py>,
    tensor: &PyTensor,
    at: usize,
    options: &str,
    side: u32,
) -> PyResult<Bound<'py, PyBytes>> {
    let tensor = tensor.host(py)?;
    let wrong = |problem: String| raise(py, &Error::Config { option: "images", problem });
    let mut options: ImageOptions = serde_json::from_str(options).map_err(|error| wrong(error.to_string()))?;
    options.dtype = tensor.dtype();
    let no_image = || wrong(format!("image {at} of a tensor of shape {:?}", tensor.shape()));
    let axes = tensor.shape().last_chunk::<3>().ok_or_else(no_image)?;
    let (height, width, channels) = match (options.layout, *axes) {
        (Layout::Chw, [channels, height, width]) | (Layout::Hwc, [height, width, channels]) => {
            (height, width, channels)
        }
    };
    options.channels = u8::try_from(channels).map_err(|_| no_image())?;
    let size = Size {
        height: u32::try_from(height).map_err(|_| no_image())?,
        width: u32::try_from(width).map_err(|_| no_image())?,
    };
    let bytes = axes.iter().product::<usize>() * tensor.dtype().size();
    let start = at.checked_mul(bytes).ok_or_else(no_image)?;
    let row = start.checked_add(bytes).and_then(|end| tensor.bytes().get(start..end)).ok_or_else(no_image)?;
    let png = detached(py, || image::preview(row, &options, size, side)).map_err(|error| raise(py, &error))?;
    Ok(PyBytes::new(py, &png))
}
