//! The libraries in NVIDIA's wheels and torchvision's, located beside the packages of the running interpreter.

use std::fs;
use std::path::PathBuf;

use bowstring::codec::image::Decoder;
use bowstring::device::cuda::{nvjpeg, visible};
use bowstring::pipeline::LoaderOptions;
use pyo3::prelude::*;
use serde_json::{Value, json};

/// Returns the GPUs, and the decoder of photos if there is a driver.
pub(crate) fn inventory(py: Python<'_>) -> (Value, Option<Value>) {
    let gpu = visible::inventory();
    let nvjpeg = gpu.driver.is_some().then(|| {
        look(py);
        nvjpeg::inventory().map_or_else(|problem| json!({ "problem": problem }), |found| json!(found))
    });
    (json!(gpu), nvjpeg)
}

/// Adds the folders of nvJPEG to the library's search path, if `options` request it.
pub(crate) fn prepare(py: Python<'_>, options: &LoaderOptions) {
    if options.columns.images.values().any(|image| image.decoder == Decoder::Nvjpeg) {
        look(py);
    }
}

/// Adds the folders of nvJPEG to the library's search path. Packages that cannot be queried count as missing.
pub(crate) fn look(py: Python<'_>) {
    let mut found = Vec::new();
    for folder in packages(py, "nvidia").unwrap_or_default() {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        found.extend(entries.map(|entry| entry.path().join("lib")).filter(|folder| folder.is_dir()));
    }
    // Newer releases are in folders whose names sort later.
    found.sort_unstable_by(|one, other| other.cmp(one));
    for folder in packages(py, "torchvision").unwrap_or_default() {
        found
            .extend(folder.parent().map(|packages| packages.join("torchvision.libs")).filter(|folder| folder.is_dir()));
    }
    nvjpeg::look_in(found);
}

/// Returns the folders of the package `name`, without importing it.
fn packages(py: Python<'_>, name: &str) -> PyResult<Vec<PathBuf>> {
    let spec = py.import("importlib.util")?.call_method1("find_spec", (name,))?;
    if spec.is_none() {
        return Ok(Vec::new());
    }
    spec.getattr("submodule_search_locations")?.try_iter()?.map(|folder| folder?.extract()).collect()
}
