//! Whether spans are exported, and the way out of the process for them, which the feature `otel` has.

#[cfg(feature = "otel")]
use super::otel;
use super::span::Span;

/// Starts to export spans if the environment asks for it: `OTEL_EXPORTER_OTLP_ENDPOINT` or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` names a
/// collector (OTLP over HTTP, in protobuf: usually its port 4318), and neither `OTEL_SDK_DISABLED=true` nor `OTEL_TRACES_EXPORTER=none` nor
/// `OTEL_TRACES_SAMPLER=always_off` forbids it. The crate has to have its feature `otel`. Later calls do nothing.
///
/// The command line and the Python package call it; a program that uses the crate does so before it opens a loader.
pub fn start() {
    #[cfg(feature = "otel")]
    otel::start();
}

/// Sends the spans that are not sent yet, for the end of a program, and waits at most 5 s for that.
pub fn flush() {
    #[cfg(feature = "otel")]
    otel::flush();
}

/// Returns true if this process exports spans.
pub fn is_on() -> bool {
    #[cfg(feature = "otel")]
    return otel::is_on();
    #[cfg(not(feature = "otel"))]
    false
}

/// The share of the steps that are traced, from 0 to 1.
pub(super) fn ratio() -> f64 {
    #[cfg(feature = "otel")]
    return otel::ratio();
    #[cfg(not(feature = "otel"))]
    1.0
}

/// Exports `span`, if this process does that.
pub(super) fn send(span: Span) {
    #[cfg(feature = "otel")]
    otel::send(span);
    #[cfg(not(feature = "otel"))]
    drop(span);
}
