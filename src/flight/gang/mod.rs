//! A gang: N ranks of one training job that start together, meet at barriers, and restart together.
//!
//! ```text
//!  rank 0 ─ Member ─┐ join, heartbeat, barrier,              ┌─ Machine: decides; no clock, no I/O
//!  rank 1 ─ Member ─┼─ all_gather, ack, leave ─► Registry ───┤
//!  rank 2 ─ Member ─┘   (a `Wire` carries it)   waits, times └─ Journal: generations and acknowledged steps, on disk
//! ```
//!
//! This is what Spark's barrier execution mode gives its tasks (`BarrierTaskContext`), plus what training needs: a
//! **generation** that only ever rises and fences members of earlier ones, and an **acknowledged position** from
//! which a restarted gang continues. The rules:
//!
//! - A generation runs from the moment all N ranks have joined until one of them is lost (its lease ran out, it left with a
//!   failure, or a new process joined in its place). Then every wait and every stream of that generation ends at once with
//!   [`Error::Fenced`](crate::Error::Fenced), and all N join again.
//! - No position is acknowledged in two generations: an accepted `ack` of a step is durable before its answer, and a rank of
//!   an older generation, or another process of the same rank, is refused. Only a token given to `join` (a checkpoint that
//!   the trainer went back to) moves the position back, and only if all ranks present the same one.
//! - A generation reads one plan: data, spec and version of the order. The position that it resumes from binds it, else its first
//!   stream or acknowledgement; any other plan is an [`Error::Mismatch`](crate::Error::Mismatch) that names both.
//! - Every call is idempotent by its own keys (attempt, round, position), so a call whose answer was lost is simply repeated.
//! - Time is only ever a distance on one machine's monotonic clock, so clocks may differ by any amount. Their *rates* may
//!   differ by the margin that [`Member`] keeps.

mod bells;
mod call;
mod collectives;
mod group;
mod journal;
mod limits;
mod machine;
mod member;
#[cfg(test)]
mod model;
mod overview;
mod own_lease;
#[cfg(test)]
mod planted;
mod reading;
mod refusal;
mod registry;
#[cfg(test)]
mod tests;
mod transport;
pub mod wire;

pub(super) use journal::check as check_journal;
pub use member::{JoinOptions, Member};
pub use overview::{Overview, Waits};
pub use reading::Reading;
pub use registry::{Fence, Registry, RegistryOptions};
pub use transport::{CallError, Wire};
pub use wire::{MemberInfo, Position, Refusal, Share, Token};
