//! Requests to stores and the decoding of row groups in the metrics: counts, and histograms of durations.
//!
//! The parts of the library that do the work count it for the whole process; a scrape reads what is there.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use crate::histogram::Counted;
use crate::{pipeline, store};

/// The requests and the decoding of this process.
#[derive(Debug)]
pub(super) struct Timings;

impl Collector for Timings {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let requests = store::requests();
        let help = "Requests for data that are over, by where it is and what became of them";
        let mut family = encoder.encode_descriptor("store_requests", help, None, MetricType::Counter)?;
        for of in &requests {
            for (outcome, count) in of.outcomes {
                let labels = [("at", of.at), ("outcome", outcome)];
                family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
            }
        }
        let (seconds, kind) = (Some(&Unit::Seconds), MetricType::Histogram);
        let help = "Durations of requests for data, by where it is";
        let mut family = encoder.encode_descriptor("store_request", help, seconds, kind)?;
        for of in &requests {
            write(family.encode_family(&[("at", of.at)])?, &of.took)?;
        }
        let help = "Durations of the decoding of row groups or units of them";
        write(encoder.encode_descriptor("decode", help, seconds, kind)?, &pipeline::decodes())
    }
}

fn write(mut encoder: MetricEncoder<'_>, counted: &Counted) -> fmt::Result {
    encoder.encode_histogram::<NoLabelSet>(counted.seconds, counted.count(), &counted.buckets, None)
}
