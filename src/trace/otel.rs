//! Spans on their way to a collector, by OpenTelemetry's own exporter.

use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanData, SpanEvents, SpanLinks, SpanProcessor};

use super::span::{Kind, Span, Value};

static EXPORTER: OnceLock<Option<Exporter>> = OnceLock::new();

#[derive(Debug)]
struct Exporter {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
    ratio: f64,
    /// The process that has the exporter's thread: a forked child has none.
    process: u32,
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.trim().is_empty())
}

pub(super) fn start() {
    EXPORTER.get_or_init(|| {
        let asked =
            ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"].into_iter().find_map(variable);
        let is = |name: &str, value: &str| variable(name).is_some_and(|found| found.trim().eq_ignore_ascii_case(value));
        if asked.is_none() || is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
            return None;
        }
        let protocol =
            ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"].into_iter().find_map(variable);
        if let Some(protocol) = protocol.filter(|protocol| protocol.trim() != "http/protobuf") {
            tracing::warn!("OTEL_EXPORTER_OTLP_PROTOCOL={protocol} is not known here; traces go over http/protobuf");
        }
        let ratio = sampled(variable("OTEL_TRACES_SAMPLER").as_deref(), variable("OTEL_TRACES_SAMPLER_ARG").as_deref());
        let ratio = ratio.inspect_err(|what| tracing::warn!("{what}; all steps are traced")).unwrap_or(1.0);
        if ratio <= 0.0 {
            return None;
        }
        let exporter = SpanExporter::builder().with_http().build();
        let exporter = exporter.inspect_err(|error| tracing::warn!(%error, "no traces are exported")).ok()?;
        let mut processor = BatchSpanProcessor::builder(exporter).build();
        let resource = Resource::builder();
        // The name of the environment has precedence.
        let named = variable("OTEL_SERVICE_NAME").is_some()
            || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|text| text.contains("service.name="));
        let resource = if named { resource } else { resource.with_service_name("bowstring") };
        processor.set_resource(&resource.build());
        let scope = InstrumentationScope::builder("bowstring").with_version(env!("CARGO_PKG_VERSION")).build();
        Some(Exporter { processor, scope, ratio, process: std::process::id() })
    });
}

/// The share of the traces that these variables ask for.
fn sampled(sampler: Option<&str>, argument: Option<&str>) -> Result<f64, String> {
    let sampler = sampler.map_or("always_on", str::trim);
    match sampler.strip_prefix("parentbased_").unwrap_or(sampler) {
        "always_on" => Ok(1.0),
        "always_off" => Ok(0.0),
        "traceidratio" => {
            let ratio = argument.map_or(Ok(1.0), |text| text.trim().parse::<f64>());
            let ratio = ratio.ok().filter(|ratio| (0.0..=1.0).contains(ratio));
            ratio.ok_or_else(|| {
                format!("OTEL_TRACES_SAMPLER_ARG={} is no number from 0 to 1", argument.unwrap_or_default())
            })
        }
        _ => Err(format!("OTEL_TRACES_SAMPLER={sampler} is not known here")),
    }
}

fn exporter() -> Option<&'static Exporter> {
    EXPORTER.get()?.as_ref().filter(|exporter| exporter.process == std::process::id())
}

pub(super) fn is_on() -> bool {
    exporter().is_some()
}

pub(super) fn ratio() -> f64 {
    exporter().map_or(0.0, |exporter| exporter.ratio)
}

pub(super) fn send(span: Span) {
    if let Some(exporter) = exporter() {
        exporter.processor.on_end(data(span, exporter.scope.clone()));
    }
}

/// The longest wait of a program that ends for its last spans.
const LAST: Duration = Duration::from_secs(5);

pub(super) fn flush() {
    let Some(exporter) = exporter() else { return };
    // A collector that does not answer keeps nobody.
    let (sender, receiver) = std::sync::mpsc::channel();
    let flushing = std::thread::Builder::new().name("bowstring-trace".to_owned()).spawn(move || {
        let flushed = exporter.processor.force_flush();
        drop(sender.send(flushed));
    });
    if flushing.is_ok()
        && let Ok(Err(error)) = receiver.recv_timeout(LAST)
    {
        tracing::warn!(%error, "the last traces were not exported");
    }
}

fn data(span: Span, instrumentation_scope: InstrumentationScope) -> SpanData {
    let context = |trace: [u8; 16], id: [u8; 8], remote| {
        let (trace, id) = (TraceId::from_bytes(trace), SpanId::from_bytes(id));
        SpanContext::new(trace, id, TraceFlags::SAMPLED, remote, TraceState::default())
    };
    let attribute = |(name, value): (&'static str, Value)| match value {
        Value::Number(number) => KeyValue::new(name, i64::try_from(number).unwrap_or(i64::MAX)),
        Value::Seconds(seconds) => KeyValue::new(name, seconds),
        Value::Text(text) => KeyValue::new(name, text),
    };
    let mut links = SpanLinks::default();
    links.links.extend(span.link.map(|(trace, id)| Link::with_context(context(trace, id, true))));
    SpanData {
        span_context: context(span.trace, span.id, false),
        parent_span_id: span.parent.map_or(SpanId::INVALID, SpanId::from_bytes),
        parent_span_is_remote: span.is_remote,
        span_kind: match span.kind {
            Kind::Internal => SpanKind::Internal,
            Kind::Client => SpanKind::Client,
            Kind::Server => SpanKind::Server,
        },
        name: span.name.into(),
        start_time: span.start,
        end_time: span.end,
        attributes: span.attributes.into_iter().map(attribute).collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links,
        status: span.error.map_or(Status::Unset, Status::error),
        instrumentation_scope,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_comes_from_the_standard_variables() {
        assert_eq!(sampled(None, None), Ok(1.0));
        assert_eq!(sampled(Some("parentbased_always_off"), None), Ok(0.0));
        assert_eq!(sampled(Some("traceidratio"), Some("0.25")), Ok(0.25));
        assert_eq!(sampled(Some("parentbased_traceidratio"), None), Ok(1.0));
        for wrong in ["2", "-1", "NaN", "x"] {
            assert!(sampled(Some("traceidratio"), Some(wrong)).unwrap_err().contains(wrong));
        }
        assert!(sampled(Some("xray"), None).unwrap_err().contains("xray"));
    }
}
