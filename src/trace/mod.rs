//! Traces of steps: where the time between a trainer's `next` and the store's answer went, over all processes that had a part.
//!
//! ```text
//!   bowstring.open ◄─link─┐                                          one span for each loader
//!                         │
//!   bowstring.next ───────┴────────────────────────────────────     one trace for each step
//!     ├─ bowstring.serve  (on the server, by `traceparent`) ──┐
//!     └──────────────────────────────────────────────────────┴─┬─ bowstring.read ── bowstring.get (a request of a store)
//!                                                               ├─ bowstring.decode
//!                                                               └─ bowstring.batch
//! ```
//! Batches are made ahead of the consumer, so no call can carry the context of a step. Instead both sides compute it: the trace of a step
//! is a digest of the loader's trace, which `traceparent` brings to the server, of the epoch and of the step. A sample is drawn from these
//! digests, too, and is the same everywhere.
//!
//! Spans are made from the moments that a batch's [`Trail`](crate::pipeline::Trail) has anyway, after the fact: a step that is not traced
//! costs one look at a flag. Of the row groups of a step they tell of the one that was there last; the others took no time that anybody
//! waited for.

mod context;
mod export;
#[cfg(feature = "otel")]
mod otel;
mod root;
mod span;

pub use context::TraceContext;
pub use export::{flush, is_on, start};
pub use root::Root;
pub(crate) use root::{At, Step};
pub(crate) use span::{Clock, Kind, Value};
