//! A span of another process, in the headers of W3C Trace Context.

use serde::{Deserialize, Serialize};

use crate::hex;

/// Bits of a trace's identifier from which samples are drawn.
const DRAWN: u32 = 56;

/// The span of a caller: the headers `traceparent` and, if only a share of the traces counts, `tracestate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceContext {
    /// `00-TRACE-SPAN-FLAGS`.
    pub traceparent: String,
    /// The threshold of the sample in its entry `ot`; other entries are ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}

/// What they say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) trace: [u8; 16],
    pub(super) span: [u8; 8],
    pub(super) sampled: bool,
    /// Traces whose drawn bits are below are left out.
    pub(super) threshold: u64,
}

impl TraceContext {
    /// That of the environment, as launchers leave it.
    pub(super) fn of_environment() -> Option<Self> {
        let [parent, state] = ["TRACEPARENT", "TRACESTATE"].map(|name| std::env::var(name).ok());
        Self::of(|name| if name == "traceparent" { parent.as_deref() } else { state.as_deref() })
    }

    /// Reads headers by their names.
    pub(crate) fn of<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        // Ours are short; those of others may be of any length, and are of no use here.
        let state = header("tracestate").and_then(threshold_of).filter(|threshold| *threshold > 0);
        let said = said(header("traceparent")?, state.unwrap_or(0))?;
        Some(Self::new(&said))
    }

    pub(super) fn new(said: &Said) -> Self {
        let Said { trace, span, sampled, threshold } = said;
        let (trace, span) = (hex::of(trace), hex::of(span));
        let traceparent = format!("00-{trace}-{span}-{:02x}", u8::from(*sampled));
        let digits = format!("{threshold:014x}");
        let tracestate = (*threshold > 0).then(|| format!("ot=th:{}", digits.trim_end_matches('0')));
        Self { traceparent, tracestate }
    }

    pub(super) fn said(&self) -> Option<Said> {
        let threshold = self.tracestate.as_deref().and_then(threshold_of).unwrap_or(0);
        said(&self.traceparent, threshold)
    }
}

/// The threshold above which `ratio` of all traces are.
pub(super) fn threshold(ratio: f64) -> u64 {
    let all = (1_u64 << DRAWN) as f64;
    ((1.0 - ratio.clamp(0.0, 1.0)) * all) as u64
}

/// Returns true if a trace is drawn.
pub(super) fn is_drawn(trace: [u8; 16], threshold: u64) -> bool {
    let [.., a, b, c, d, e, f, g] = trace;
    u64::from_be_bytes([0, a, b, c, d, e, f, g]) >= threshold
}

fn said(traceparent: &str, threshold: u64) -> Option<Said> {
    let mut parts = traceparent.trim().split('-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let [version] = bytes::<1>(version)?;
    // Later versions may have more parts.
    if version == 0xff || (version == 0 && parts.next().is_some()) {
        return None;
    }
    let (trace, span, [flags]) = (bytes::<16>(trace)?, bytes::<8>(span)?, bytes::<1>(flags)?);
    (trace != [0; 16] && span != [0; 8]).then_some(Said { trace, span, sampled: flags & 1 == 1, threshold })
}

/// The threshold in the entry `ot` of a `tracestate`.
fn threshold_of(state: &str) -> Option<u64> {
    let entry = state.split(',').find_map(|entry| entry.trim().strip_prefix("ot="))?;
    let digits = entry.split(';').find_map(|part| part.strip_prefix("th:"))?;
    if !(1..=14).contains(&digits.len()) || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u64::from_str_radix(&format!("{digits:0<14}"), 16).ok()
}

/// The bytes of so many digits, which are lower case.
fn bytes<const LENGTH: usize>(text: &str) -> Option<[u8; LENGTH]> {
    hex::parse(text).filter(|_| !text.bytes().any(|digit| digit.is_ascii_uppercase()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn of(traceparent: &str, tracestate: Option<&str>) -> Option<TraceContext> {
        TraceContext::of(|name| {
            if name == "traceparent" { Some(traceparent) } else { tracestate.filter(|_| name == "tracestate") }
        })
    }

    #[test]
    fn headers_come_back() {
        let parent = of(TEXT, None).unwrap();
        assert_eq!((parent.traceparent.as_str(), &parent.tracestate), (TEXT, &None));
        let later = of("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", None).unwrap();
        assert_eq!(later, parent, "what a later version adds is left out");
        let sampled = of(TEXT, Some("vendor=x, ot=rv:1;th:fd70a4 ,other=y")).unwrap();
        assert_eq!(sampled.tracestate.as_deref(), Some("ot=th:fd70a4"));
        assert_eq!(sampled.said().unwrap().threshold, 0xfd_70a4_0000_0000);
        for state in ["ot=th:", "ot=th:xyz", "ot=th:123456789012345", "th:1", "ot=th:0"] {
            assert_eq!(of(TEXT, Some(state)).unwrap().tracestate, None, "{state}");
        }
        assert!(!of(&TEXT.replace("-01", "-00"), None).unwrap().said().unwrap().sampled);
    }

    #[test]
    fn what_is_no_traceparent_is_none() {
        for text in [
            "",
            "00",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e47-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
        ] {
            assert_eq!(of(text, None), None, "{text}");
        }
    }

    #[test]
    fn a_threshold_leaves_a_share() {
        let drawn = |ratio| {
            let trace = |n: u64| (u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 3).to_be_bytes();
            (0..10_000).filter(|n| is_drawn(trace(*n), threshold(ratio))).count()
        };
        assert_eq!((drawn(1.0), drawn(0.0)), (10_000, 0));
        assert!((900..1100).contains(&drawn(0.1)), "{}", drawn(0.1));
    }
}
