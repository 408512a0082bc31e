//! The way of one batch: the moments at which the things it needed were there. Says what somebody who waited for it waited for.
//!
//! ```text
//!   asked ──read──► fetched ──decode──► loaded ──(queue)──► ready ──transform, batch──► made
//! ```
//! Of the row groups of a batch it follows the one that was there last: the others took no time that anybody waited for.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cause::{CAUSES, Cause, Spent};
use crate::error::Place;
use crate::store::fetch_time::Request;
use crate::trace::{self, Clock, Kind, Value};

/// The way of one row group.
#[derive(Debug, Clone)]
pub(super) struct Way {
    /// It was asked for.
    pub(super) asked: Instant,
    /// Its bytes were there.
    pub(super) fetched: Instant,
    /// Its values were there.
    pub(super) loaded: Instant,
    /// The part of the reading, from 0 to 1, that was done by origins rather than caches.
    pub(super) origin: f64,
    /// What was read, if traces are exported.
    pub(super) read: Option<Arc<Read>>,
}

/// A row group that was read, for a trace.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) place: Place,
    /// Bytes fetched.
    pub(super) bytes: u64,
    /// The requests to its origin.
    pub(super) requests: Vec<Request>,
}

/// See the module. Sources of batches hand it on; it is read here alone.
#[derive(Debug, Clone)]
pub struct Trail {
    /// What the time before all that is known went to.
    pub(super) before: Cause,
    /// The way of its last row group; `None` if it needed none.
    pub(super) last: Option<Way>,
    /// All row groups were there.
    pub(super) ready: Instant,
    /// Time for images after that.
    pub(super) transform: Duration,
    /// It was made.
    pub(super) made: Instant,
}

impl Trail {
    /// The way of a batch that a server sent, which arrived at `arrived`.
    #[cfg(feature = "flight")]
    pub(crate) fn served(arrived: Instant) -> Self {
        Self { before: Cause::Server, last: None, ready: arrived, transform: Duration::ZERO, made: arrived }
    }

    /// What a wait for this batch from `from` to `to` was for. The parts sum to the whole.
    pub(crate) fn waits(&self, from: Instant, to: Instant) -> Spent {
        let mut spent = [Duration::ZERO; CAUSES];
        let whole = to.saturating_duration_since(from);
        let within = |begin: Instant, end: Instant| end.min(to).saturating_duration_since(begin.max(from));
        let mut left = whole;
        let mut take = |cause: Cause, time: Duration| {
            let time = time.min(left);
            left -= time;
            spent[cause as usize] += time;
        };
        // What comes after it was made, its encoding, belongs to the batch.
        let gathered = within(self.ready, to.max(self.made));
        let all = self.made.saturating_duration_since(self.ready);
        let images = self.transform.min(all);
        let images = if all.is_zero() { 0.0 } else { images.as_secs_f64() / all.as_secs_f64() };
        let transform = within(self.ready, self.made).mul_f64(images);
        take(Cause::Transform, transform);
        take(Cause::Batch, gathered.saturating_sub(transform));
        if let Some(way) = &self.last {
            take(Cause::Decode, within(way.fetched, way.loaded));
            let read = within(way.asked, way.fetched);
            let store = read.mul_f64(way.origin.clamp(0.0, 1.0));
            take(Cause::Store, store);
            take(Cause::Cache, read.saturating_sub(store));
        }
        take(self.before, whole);
        spent
    }

    /// Exports the batch's way as spans of `step`. A batch that a server sent has none here.
    pub(crate) fn trace(&self, step: &trace::Step) {
        let clock = Clock::new();
        let add = |name, kind, within, (from, to), attributes| {
            step.add(&clock, trace::At { name, kind, within, from, to }, attributes)
        };
        if let Some(way) = &self.last {
            let read = way.read.as_deref();
            let mut attributes = Vec::new();
            if let Some(Read { place, bytes, .. }) = read {
                attributes.extend(place.file.iter().map(|file| ("bowstring.file", Value::Text(file.to_string()))));
                let group = place.row_group.and_then(|group| u64::try_from(group).ok());
                attributes.extend(group.map(|group| ("bowstring.row_group", Value::Number(group))));
                attributes.push(("bowstring.bytes", Value::Number(*bytes)));
            }
            let id = add("bowstring.read", Kind::Internal, None, (way.asked, way.fetched), attributes);
            for Request { url, range, began, ended, answered } in read.map_or(&[][..], |read| &read.requests) {
                let mut attributes = vec![
                    ("url.full", Value::Text(url.clone())),
                    ("bowstring.offset", Value::Number(range.start)),
                    ("bowstring.bytes", Value::Number(range.end.saturating_sub(range.start))),
                ];
                if !answered {
                    attributes.push(("error.type", Value::Text("_OTHER".to_owned())));
                }
                add("bowstring.get", Kind::Client, Some(id), (*began, *ended), attributes);
            }
            add("bowstring.decode", Kind::Internal, None, (way.fetched, way.loaded), Vec::new());
        }
        if self.made > self.ready {
            let images = [("bowstring.images", Value::Seconds(self.transform.as_secs_f64()))];
            let images = images.into_iter().filter(|_| !self.transform.is_zero()).collect();
            add("bowstring.batch", Kind::Internal, None, (self.ready, self.made), images);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_split_along_the_way_and_nothing_is_lost() {
        let begin = Instant::now();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        let way = Way { asked: at(100), fetched: at(300), loaded: at(360), origin: 0.75, read: None };
        let trail = Trail {
            before: Cause::Queue,
            last: Some(way),
            ready: at(400),
            transform: Duration::from_millis(60),
            made: at(480),
        };
        let millis = |from, to| trail.waits(at(from), at(to)).map(|part| part.as_millis());
        //                             store cache decode transform batch queue wire server transfer consumer
        assert_eq!(millis(0, 490), [150, 50, 60, 60, 30, 140, 0, 0, 0, 0]);
        assert_eq!(millis(200, 480), [75, 25, 60, 60, 20, 40, 0, 0, 0, 0]);
        assert_eq!(millis(440, 480), [0, 0, 0, 30, 10, 0, 0, 0, 0, 0]);
        assert_eq!(millis(500, 510), [0, 0, 0, 0, 10, 0, 0, 0, 0, 0], "it was there, and only had to be encoded");
        assert_eq!(millis(480, 480), [0; CAUSES]);
        let none = Trail { last: None, ..trail.clone() };
        assert_eq!(none.waits(at(0), at(480)).map(|part| part.as_millis()), [0, 0, 0, 60, 20, 400, 0, 0, 0, 0]);
        let mut state = 3_u64;
        for _ in 0..2000 {
            let mut draw = || {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                at(state >> 54)
            };
            let way = Way { asked: draw(), fetched: draw(), loaded: draw(), origin: 0.3, read: None };
            let trail = Trail {
                last: Some(way),
                ready: draw(),
                transform: Duration::from_millis(9),
                made: draw(),
                ..trail.clone()
            };
            let (from, to) = (draw(), draw());
            let sum: Duration = trail.waits(from, to).iter().sum();
            assert_eq!(sum, to.saturating_duration_since(from), "{trail:?} {from:?} {to:?}");
        }
    }
}
