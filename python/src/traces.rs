//! Traces of steps, exported if the environment asks for it.

use std::sync::Once;

use bowstring::pipeline::LoaderOptions;
use bowstring::trace;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::calls::detached;

static STARTED: Once = Once::new();

/// Starts to export, and sees to the last spans at the end of the process. Not at import, which has to be quick.
pub(crate) fn start(py: Python<'_>) -> PyResult<()> {
    if STARTED.is_completed() {
        return Ok(());
    }
    // It makes an HTTP client, which reads certificates.
    detached(py, || STARTED.call_once(trace::start));
    if trace::is_on() {
        py.import("atexit")?.call_method1("register", (wrap_pyfunction!(flush_traces, py)?,))?;
    }
    Ok(())
}

/// Makes the span of Python that is current, if the process uses OpenTelemetry's package, the parent of the loader's.
pub(crate) fn within(py: Python<'_>, options: &mut LoaderOptions) -> PyResult<()> {
    let modules = py.import("sys")?.getattr("modules")?;
    let propagate = modules.call_method1("get", ("opentelemetry.propagate",))?;
    if !trace::is_on() || propagate.is_none() {
        return Ok(());
    }
    let carrier = PyDict::new(py);
    propagate.call_method1("inject", (&carrier,))?;
    let text = |name| carrier.get_item(name)?.map(|value| value.extract::<String>()).transpose();
    if let Some(traceparent) = text("traceparent")? {
        options.caller = Some(trace::TraceContext { traceparent, tracestate: text("tracestate")? });
    }
    Ok(())
}

#[pyfunction]
fn flush_traces(py: Python<'_>) {
    detached(py, trace::flush);
}
