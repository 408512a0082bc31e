//! The trace of a loader, and those of its steps.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Instant;

use sha2::{Digest, Sha256};

#[cfg(feature = "flight")]
use super::context::Said;
use super::context::{self, TraceContext, is_drawn};
use super::export;
use super::span::{Clock, Kind, Span, Value};
use crate::error::Error;

/// The trace of a loader: that of its caller, or its own. Known to the loader and to the server it reads from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Root {
    trace: [u8; 16],
    /// The span of the loader's opening.
    span: [u8; 8],
    threshold: u64,
}

/// The trace of one step of one rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Step {
    root: Root,
    trace: [u8; 16],
    /// The span of the consumer's wait, which all others of the rank are in.
    wait: [u8; 8],
    at: (u64, u64),
    rank: (u32, u32),
}

/// Where a span is: its name, kind, parent and moments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// A span of the step; the wait of the consumer, if there is none.
    pub(crate) within: Option<[u8; 8]>,
    pub(crate) from: Instant,
    pub(crate) to: Instant,
}

impl Root {
    /// Opens the trace of a loader that began to open at `began`: within that of its caller, in the options or else in the
    /// environment's `TRACEPARENT` and `TRACESTATE`. `None` if nothing is exported, or if the caller's trace is not sampled.
    pub(crate) fn open(
        began: Instant,
        (rank, world): (u32, u32),
        urls: &[String],
        caller: Option<&TraceContext>,
    ) -> Option<Self> {
        if !export::is_on() {
            return None;
        }
        let caller = caller.cloned().or_else(TraceContext::of_environment).and_then(|caller| caller.said());
        if caller.is_some_and(|caller| !caller.sampled) {
            return None;
        }
        let threshold = context::threshold(export::ratio()).max(caller.map_or(0, |caller| caller.threshold));
        let root = Self { trace: caller.map_or_else(random, |caller| caller.trace), span: random(), threshold };
        let clock = Clock::new();
        export::send(Span {
            name: "bowstring.open",
            kind: Kind::Internal,
            trace: root.trace,
            id: root.span,
            parent: caller.map(|caller| caller.span),
            is_remote: caller.is_some(),
            link: None,
            start: clock.at(began),
            end: clock.at(Instant::now()),
            attributes: [of_rank((rank, world)).as_slice(), &[("bowstring.url", Value::Text(plain(urls)))]].concat(),
            error: None,
        });
        Some(root)
    }

    /// The trace of the loader at the other end of a call; `None` if nothing is exported, or if it is not sampled.
    #[cfg(feature = "flight")]
    pub(crate) fn of_call(caller: &TraceContext) -> Option<Self> {
        let Said { trace, span, sampled, threshold } = caller.said().filter(|_| export::is_on())?;
        sampled.then_some(Self { trace, span, threshold })
    }

    /// The headers that bring it to a server.
    #[cfg(feature = "flight")]
    pub(crate) fn parent(&self) -> TraceContext {
        let Self { trace, span, threshold } = *self;
        TraceContext::new(&Said { trace, span, sampled: true, threshold })
    }

    /// The trace of a step of a rank in a world of some size; `None` if it is not in the sample.
    pub(crate) fn step(&self, (epoch, step): (u64, u64), rank: (u32, u32)) -> Option<Step> {
        let numbers = [epoch.to_be_bytes(), step.to_be_bytes()].concat();
        let trace = digest(&[b"step", &self.trace, &numbers]);
        let wait = digest(&[b"wait", &self.trace, &self.span, &numbers, &rank.0.to_be_bytes()]);
        is_drawn(trace, self.threshold).then_some(Step { root: *self, trace, wait, at: (epoch, step), rank })
    }
}

impl Step {
    /// Exports the consumer's wait for the step, which gave `rows` rows or an error.
    pub(crate) fn waited(&self, from: Instant, to: Instant, found: Result<u64, &Error>) {
        let at = At { name: "bowstring.next", kind: Kind::Client, within: None, from, to };
        let mut attributes =
            vec![("bowstring.epoch", Value::Number(self.at.0)), ("bowstring.step", Value::Number(self.at.1))];
        attributes.extend(of_rank(self.rank));
        attributes.extend(found.ok().map(|rows| ("bowstring.rows", Value::Number(rows))));
        let span = self.span(&Clock::new(), at, attributes);
        let link = Some((self.root.trace, self.root.span));
        export::send(Span { id: self.wait, parent: None, link, error: found.err().map(Error::chain), ..span });
    }

    /// Exports a span, and returns its identifier, for those within it.
    pub(crate) fn add(&self, clock: &Clock, at: At, attributes: Vec<(&'static str, Value)>) -> [u8; 8] {
        let span = self.span(clock, at, attributes);
        let id = span.id;
        export::send(span);
        id
    }

    fn span(
        &self,
        clock: &Clock,
        At { name, kind, within, from, to }: At,
        attributes: Vec<(&'static str, Value)>,
    ) -> Span {
        let (start, end) = (clock.at(from), clock.at(to));
        Span {
            name,
            kind,
            trace: self.trace,
            id: random(),
            parent: Some(within.unwrap_or(self.wait)),
            is_remote: within.is_none() && kind == Kind::Server,
            link: None,
            start,
            end: end.max(start),
            attributes,
            error: None,
        }
    }
}

fn of_rank((rank, world): (u32, u32)) -> [(&'static str, Value); 2] {
    let number = |number: u32| Value::Number(number.into());
    [("bowstring.rank", number(rank)), ("bowstring.world_size", number(world))]
}

/// Addresses without what may be a password or a signature.
fn plain(urls: &[String]) -> String {
    let plain = |text: &String| match url::Url::parse(text) {
        Ok(mut url) if url.has_host() => {
            // Both fail only for addresses without a host.
            let _ = (url.set_password(None), url.set_username(""));
            url.set_query(None);
            url.to_string()
        }
        _ => text.clone(),
    };
    urls.iter().take(8).map(plain).collect::<Vec<_>>().join(", ")
}

fn digest<const LENGTH: usize>(parts: &[&[u8]]) -> [u8; LENGTH] {
    let mut sha = Sha256::new();
    parts.iter().for_each(|part| sha.update(part));
    let mut id = [0; LENGTH];
    id.iter_mut().zip(sha.finalize()).for_each(|(byte, found)| *byte = found);
    // An identifier of zeros is none.
    id[0] |= u8::from(id == [0; LENGTH]);
    id
}

fn random<const LENGTH: usize>() -> [u8; LENGTH] {
    // The standard library seeds its hashes with random bytes from the system, and never the same way twice.
    let numbers = [0_u8, 1].map(|half| RandomState::new().hash_one(half).to_be_bytes());
    digest(&[&numbers.concat()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root(threshold: u64) -> Root {
        Root { trace: [7; 16], span: [3; 8], threshold }
    }

    #[test]
    fn ranks_share_the_trace_of_a_step_and_have_waits_of_their_own() {
        let step = |at, rank| root(0).step(at, (rank, 4)).unwrap();
        let (first, second) = (step((1, 5), 0), step((1, 5), 3));
        assert_eq!(first.trace, second.trace);
        assert_ne!(first.wait, second.wait);
        assert_ne!(first.trace, step((1, 6), 0).trace);
        assert_ne!(first.trace, step((2, 5), 0).trace);
        assert_ne!(random::<16>(), random::<16>());
    }

    #[cfg(feature = "flight")]
    #[test]
    fn both_ends_draw_the_same_sample() {
        let sampled = root(context::threshold(0.25));
        let said = sampled.parent().said().unwrap();
        let other = Root { trace: said.trace, span: said.span, threshold: said.threshold };
        assert_eq!(other, sampled);
        let drawn = |root: Root| (0..4000).filter(|step| root.step((0, *step), (0, 1)).is_some()).count();
        assert_eq!(drawn(other), drawn(sampled));
        assert!((850..1150).contains(&drawn(sampled)), "{}", drawn(sampled));
    }

    #[test]
    fn addresses_are_told_without_secrets() {
        let urls = ["s3://key:secret@bucket/a?X-Amz-Signature=1", "/data/my file.parquet", "grpc://host:1/photos"];
        let told = plain(&urls.map(str::to_owned));
        assert_eq!(told, "s3://bucket/a, /data/my file.parquet, grpc://host:1/photos");
    }
}
