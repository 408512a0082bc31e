//! Counters of the server, in Prometheus' text format.
//!
//! Names of datasets are labels; names of tenants are not, and no option, address, token or ticket ever is.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::errors::{At, RecentErrors};
use super::timings::Timings;
use crate::error::{Error, Kind};
use crate::flight::server::access::auth::Denied;
use crate::pipeline::{CAUSES, Cause};
use crate::store::OriginStats;
use crate::store::cache::CacheStats;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfDataset {
    dataset: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfReason {
    reason: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfOutcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfTier {
    tier: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct OfCause {
    cause: &'static str,
}

/// All counters of one server. Clones share them.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    streams_open: Gauge,
    streams: Family<OfDataset, Counter>,
    batches: Family<OfDataset, Counter>,
    rows: Family<OfDataset, Counter>,
    bytes: Family<OfDataset, Counter>,
    decoded: [Counter; 2],
    errors: Family<OfKind, Counter>,
    recent: RecentErrors,
    refused: Family<OfReason, Counter>,
    connections_open: Gauge,
    connections_refused: Counter,
    generations: Counter,
    members: Gauge,
    draining: Gauge,
    memory_used: Gauge,
    memory_budget: Gauge,
    cache: Family<OfOutcome, Counter>,
    cache_bytes: Family<OfTier, Counter>,
    /// Second requests, and those that were answered first.
    hedges: [Counter; 2],
    rank_seconds: Family<OfCause, Counter<f64, AtomicU64>>,
    lag: Gauge,
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

impl Metrics {
    /// Makes counters that all start at zero.
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("bowstring");
        let info = Info::new([("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The server's version", info);
        let mut inner = Inner {
            registry: Registry::default(),
            streams_open: Gauge::default(),
            streams: Family::default(),
            batches: Family::default(),
            rows: Family::default(),
            bytes: Family::default(),
            decoded: Default::default(),
            errors: Family::default(),
            recent: RecentErrors::default(),
            refused: Family::default(),
            connections_open: Gauge::default(),
            connections_refused: Counter::default(),
            generations: Counter::default(),
            members: Gauge::default(),
            draining: Gauge::default(),
            memory_used: Gauge::default(),
            memory_budget: Gauge::default(),
            cache: Family::default(),
            cache_bytes: Family::default(),
            hedges: Default::default(),
            rank_seconds: Family::default(),
            lag: Gauge::default(),
        };
        registry.register("streams_open", "Streams of batches open now", inner.streams_open.clone());
        registry.register("streams", "Streams of batches ever opened", inner.streams.clone());
        registry.register("batches", "Batches sent", inner.batches.clone());
        registry.register("rows", "Rows sent", inner.rows.clone());
        registry.register_with_unit("sent", "Bytes of batches sent", Unit::Bytes, inner.bytes.clone());
        let [row_groups, rows] = inner.decoded.clone();
        registry.register(
            "row_groups_decoded",
            "Row groups or units of them decoded, however many ranks took rows of them",
            row_groups,
        );
        registry.register("rows_decoded", "Rows decoded, however many ranks they were sent to", rows);
        registry.register("errors", "Calls that ended with an error", inner.errors.clone());
        registry.register("auth_refused", "Calls refused for want of a good token", inner.refused.clone());
        registry.register("connections_open", "Connections open now", inner.connections_open.clone());
        registry.register(
            "connections_refused",
            "Connections closed because there were too many",
            inner.connections_refused.clone(),
        );
        registry.register("gang_generations", "Generations begun, over all gangs", inner.generations.clone());
        registry.register("gang_members", "Members of all gangs now", inner.members.clone());
        registry.register("draining", "1 while the server is ending", inner.draining.clone());
        registry.register_with_unit("memory_used", "Memory in flight", Unit::Bytes, inner.memory_used.clone());
        registry.register_with_unit(
            "memory_budget",
            "Memory that may be in flight",
            Unit::Bytes,
            inner.memory_budget.clone(),
        );
        registry.register("cache_ranges", "Ranges of bytes by what the caches did with them", inner.cache.clone());
        registry.register_with_unit(
            "cache_read",
            "Bytes read through caches, by where they came from",
            Unit::Bytes,
            inner.cache_bytes.clone(),
        );
        let [sent, won] = inner.hedges.clone();
        registry.register("hedged_requests", "Requests to stores for bytes that were late, beside the first", sent);
        registry.register("hedges_won", "Those of them that were answered before the first", won);
        registry.register_with_unit(
            "rank",
            "Time of all ranks by what it went to, as /ui has it",
            Unit::Seconds,
            inner.rank_seconds.clone(),
        );
        registry.register_with_unit(
            "rank_lag",
            "The most steps by which a rank is behind the first one of its job",
            Unit::Other("steps".to_owned()),
            inner.lag.clone(),
        );
        registry.register_collector(Box::new(Timings));
        inner.registry = registry;
        Self(Arc::new(inner))
    }

    /// Returns all counters as OpenMetrics text.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail; if it ever did, half a page would be worse than none.
        match encode(&mut text, &self.0.registry) {
            Ok(()) => text,
            Err(fmt::Error) => String::new(),
        }
    }

    /// Counts a stream of `dataset`, a name of the catalogue, until the returned value is dropped.
    pub fn stream(&self, dataset: &str) -> StreamCounters {
        let label = OfDataset { dataset: dataset.to_owned() };
        self.0.streams.get_or_create(&label).inc();
        StreamCounters {
            batches: self.0.batches.get_or_create_owned(&label),
            rows: self.0.rows.get_or_create_owned(&label),
            bytes: self.0.bytes.get_or_create_owned(&label),
            _open: Open::new(&self.0.streams_open),
        }
    }

    /// Sets the number of row groups decoded since the start, and of their rows.
    pub fn decoded(&self, row_groups: u64, rows: u64) {
        for (counter, count) in self.0.decoded.iter().zip([row_groups, rows]) {
            counter.inner().fetch_max(count, Ordering::Relaxed);
        }
    }

    /// Sets the counts of this process's caches since its start.
    pub fn cache(&self, stats: &CacheStats) {
        let CacheStats { hits, shared, misses, kept, refused, evicted, damaged, failures, bypassed, .. } = *stats;
        let CacheStats { peer_hits, peer_failures, given, .. } = *stats;
        for (outcome, count) in [
            ("hit", hits),
            ("shared", shared),
            ("peer_hit", peer_hits),
            ("peer_failed", peer_failures),
            ("given", given),
            ("miss", misses),
            ("kept", kept),
            ("refused", refused),
            ("evicted", evicted),
            ("damaged", damaged),
            ("failed", failures),
            ("bypassed", bypassed),
        ] {
            self.0.cache.get_or_create(&OfOutcome { outcome }).inner().fetch_max(count, Ordering::Relaxed);
        }
        for (tier, bytes) in [
            ("cache", stats.hit_bytes),
            ("shared", stats.shared_bytes),
            ("peer", stats.peer_bytes),
            ("origin", stats.origin_bytes),
        ] {
            self.0.cache_bytes.get_or_create(&OfTier { tier }).inner().fetch_max(bytes, Ordering::Relaxed);
        }
    }

    /// Sets the counts of second requests of this process since its start.
    pub fn hedged(&self, origins: &[OriginStats]) {
        let counts = origins.iter().fold([0, 0], |[sent, won], one| [sent + one.hedged, won + one.hedges_won]);
        for (counter, count) in self.0.hedges.iter().zip(counts) {
            counter.inner().fetch_max(count, Ordering::Relaxed);
        }
    }

    /// Sets the seconds of all ranks since the start, by cause, and the most steps by which one of them is behind now.
    pub(crate) fn ranks(&self, spent: [f64; CAUSES], lag: u64) {
        for cause in Cause::OF_A_STREAM {
            let counter = self.0.rank_seconds.get_or_create_owned(&OfCause { cause: cause.name() });
            // Numbers that are not negative are ordered as their bits are.
            counter.inner().fetch_max(spent[cause as usize].to_bits(), Ordering::Relaxed);
        }
        self.0.lag.set(i64::try_from(lag).unwrap_or(i64::MAX));
    }

    /// Counts an error sent to a caller.
    pub fn error(&self, error: &Error) {
        self.0.errors.get_or_create(&OfKind { kind: name(error.kind()) }).inc();
    }

    /// As [`error`](Self::error), and remembers its place.
    pub(crate) fn error_at(&self, error: &Error, at: At<'_>) {
        self.error(error);
        self.remember(error.kind(), at);
    }

    /// Remembers an error of `kind` that is no call's: a stream's.
    pub(crate) fn remember(&self, kind: Kind, at: At<'_>) {
        self.0.recent.add(name(kind), at);
    }

    /// Returns the last errors.
    pub(crate) fn recent_errors(&self) -> &RecentErrors {
        &self.0.recent
    }

    /// Counts a call that authentication refused.
    pub fn refused(&self, denied: Denied) {
        self.0.refused.get_or_create(&OfReason { reason: denied.reason() }).inc();
    }

    /// Counts a connection until the returned value is dropped.
    pub fn connection(&self) -> Open {
        Open::new(&self.0.connections_open)
    }

    /// Counts a connection that was closed because there were too many.
    pub(crate) fn connection_refused(&self) {
        self.0.connections_refused.inc();
    }

    /// Sets the number of generations that began since the start, over all gangs, and of members that are there now.
    pub fn gangs(&self, generations: u64, members: u64) {
        self.0.generations.inner().fetch_max(generations, Ordering::Relaxed);
        self.0.members.set(i64::try_from(members).unwrap_or(i64::MAX));
    }

    /// Forgets what was counted of `dataset`, which is gone: names that clients give would fill the memory.
    pub(crate) fn forget(&self, dataset: &str) {
        let label = OfDataset { dataset: dataset.to_owned() };
        for family in [&self.0.streams, &self.0.batches, &self.0.rows, &self.0.bytes] {
            family.remove(&label);
        }
    }

    /// Sets the bytes in flight, and their limit.
    pub fn memory(&self, used: u64, budget: u64) {
        self.0.memory_used.set(i64::try_from(used).unwrap_or(i64::MAX));
        self.0.memory_budget.set(i64::try_from(budget).unwrap_or(i64::MAX));
    }

    pub(crate) fn draining(&self) {
        self.0.draining.set(1);
    }
}

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Usage => "usage",
        Kind::Data => "data",
        Kind::Store => "store",
        Kind::Changed => "changed",
        Kind::Timeout => "timeout",
        Kind::Closed => "closed",
        Kind::Remote => "remote",
        Kind::Fenced => "fenced",
        Kind::Device => "device",
    }
}

/// Something that is counted while it lives.
#[derive(Debug)]
pub struct Open(Gauge);

impl Open {
    fn new(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The counters of one stream.
#[derive(Debug)]
pub struct StreamCounters {
    batches: Counter,
    rows: Counter,
    bytes: Counter,
    _open: Open,
}

impl StreamCounters {
    /// Counts one batch of `rows` rows and `bytes` bytes as sent.
    pub fn sent(&self, rows: u64, bytes: u64) {
        self.batches.inc();
        self.rows.inc_by(rows);
        self.bytes.inc_by(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_counted_is_in_the_text() {
        let metrics = Metrics::new();
        let (first, second) = (metrics.stream("photos"), metrics.stream("photos"));
        first.sent(32, 1000);
        second.sent(32, 24);
        drop(second);
        metrics.decoded(2, 32);
        metrics.cache(&CacheStats {
            hits: 3,
            peer_bytes: 8,
            peer_failures: 2,
            origin_bytes: 9,
            ..CacheStats::default()
        });
        let origin = |hedged, hedges_won| OriginStats { hedged, hedges_won, ..OriginStats::default() };
        metrics.hedged(&[origin(3, 2), origin(1, 1)]);
        let mut spent = [0.0; CAUSES];
        (spent[Cause::Store as usize], spent[Cause::Consumer as usize]) = (1.5, 2.25);
        metrics.ranks(spent, 7);
        metrics.ranks([0.0; CAUSES], 3);
        metrics.error(&Error::config("x", "y"));
        metrics.refused(Denied::Unknown);
        metrics.gangs(1, 2);
        metrics.memory(5, 7);
        metrics.draining();
        let text = metrics.encode();
        for line in [
            "bowstring_streams_open 1",
            "bowstring_streams_total{dataset=\"photos\"} 2",
            "bowstring_batches_total{dataset=\"photos\"} 2",
            "bowstring_rows_total{dataset=\"photos\"} 64",
            "bowstring_sent_bytes_total{dataset=\"photos\"} 1024",
            "bowstring_row_groups_decoded_total 2",
            "bowstring_rows_decoded_total 32",
            "bowstring_cache_ranges_total{outcome=\"hit\"} 3",
            "bowstring_cache_ranges_total{outcome=\"peer_failed\"} 2",
            "bowstring_cache_read_bytes_total{tier=\"peer\"} 8",
            "bowstring_cache_read_bytes_total{tier=\"origin\"} 9",
            "bowstring_hedged_requests_total 4",
            "bowstring_hedges_won_total 3",
            "bowstring_rank_seconds_total{cause=\"store\"} 1.5",
            "bowstring_rank_seconds_total{cause=\"consumer\"} 2.25",
            "bowstring_rank_lag_steps 3",
            "bowstring_errors_total{kind=\"usage\"} 1",
            "bowstring_auth_refused_total{reason=\"unknown\"} 1",
            "bowstring_gang_generations_total 1",
            "bowstring_gang_members 2",
            "bowstring_draining 1",
            "bowstring_memory_used_bytes 5",
            "bowstring_memory_budget_bytes 7",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        // Of the whole process: other tests may have counted too.
        for line in [
            "bowstring_store_requests_total{at=\"store\",outcome=\"done\"} ",
            "bowstring_store_requests_total{at=\"disk\",outcome=\"abandoned\"} ",
            "# TYPE bowstring_store_request_seconds histogram",
            "bowstring_store_request_seconds_bucket{le=\"0.0005\",at=\"store\"} ",
            "bowstring_store_request_seconds_count{at=\"disk\"} ",
            "bowstring_decode_seconds_bucket{le=\"+Inf\"} ",
            "bowstring_decode_seconds_sum ",
        ] {
            assert!(text.lines().any(|found| found.starts_with(line)), "{line} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n") && text.contains("bowstring_build_info{version="), "{text}");
        metrics.gangs(1, 0);
        assert!(metrics.encode().contains("bowstring_gang_members 0"));
    }

    #[test]
    fn a_dataset_that_is_gone_has_no_label() {
        let metrics = Metrics::new();
        let read = metrics.stream("written");
        metrics.stream("photos").sent(1, 1);
        metrics.forget("written");
        // A stream that is still open counts on, for nobody.
        read.sent(1, 1);
        let text = metrics.encode();
        assert!(!text.contains("written") && text.contains("bowstring_rows_total{dataset=\"photos\"} 1"), "{text}");
        assert!(text.contains("bowstring_streams_open 1"), "{text}");
    }
}
