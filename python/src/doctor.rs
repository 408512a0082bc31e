//! `bowstring._native.doctor()`: the capabilities of this build and this machine, and the rank of this process.

use bowstring::codec::image;
use bowstring::pipeline::{machine, rank};
use pyo3::prelude::*;
use serde_json::json;

use crate::nvidia;

/// Returns the findings and their reasons as a document. Queries the CUDA driver if there is one, which initialises it in this process.
#[pyfunction]
pub(crate) fn doctor(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    let (found, problem) = match rank::of_environment() {
        Ok(found) => (Some(found), None),
        Err(error) => (None, Some(error.chain())),
    };
    let launcher: serde_json::Map<_, _> =
        rank::variables().filter_map(|name| Some((name.to_owned(), json!(std::env::var(name).ok()?)))).collect();
    let (gpu, nvjpeg) = nvidia::inventory(py);
    let report = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "jpeg_decoder": image::backend(),
        "cloud_stores": cfg!(feature = "cloud"),
        "threads": machine::threads(),
        "memory_available": machine::available_memory(),
        "memory_budget": machine::default_budget(),
        "rank": found,
        "rank_problem": problem,
        "launcher_variables": launcher,
        "gpu": gpu,
        "nvjpeg": nvjpeg,
    });
    py.import("json")?.call_method1("loads", (report.to_string(),))
}
