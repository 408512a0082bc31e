//! The rows of each rank and their order: arithmetic only, the same on every machine.
//!
//! ```text
//! rows of the dataset, in file order
//!   row groups shuffled by a key                             key: seed, epoch
//!   cut into L lanes of equal rows (+-1), at any row         odd lanes run backwards, so that the two lanes that share
//!                                                            a row group need it at the same time
//!   each lane is a run of windows of whole row groups        rows shuffled inside a window by a key of its own
//! position p of the epoch = row p / L of lane p % L
//! step s                  = positions [s*G, (s+1)*G), listed lane after lane      G = global batch rows
//! rank r of W             = its even share of that list
//! ```
//!
//! The [`Tail`] decides where the last steps end and how they are filled. Their rows do not depend on W either, so that
//! a state continues with any number of ranks and each row comes once: [`Tail::Short`] fills the last step according to
//! W, and the filling is not part of the list; under [`Tail::Even`] the last two steps share their rows according to G
//! alone, wherever less than half of G is left, and not where there happen to be too many ranks. Ranks of one row each
//! that are more than half of G have these two steps as one; they refuse a state between the two, which only fewer
//! ranks reach.
//!
//! The list does not depend on W, so every world size sees the same global batches, and a position in an epoch is a
//! number of steps. If W divides L and L divides G, the share of a rank is L/W whole lanes, and a row group is read by
//! one rank; the exceptions are the W-1 row groups that are cut where one rank's lanes end, and the last, incomplete
//! step, which is divided evenly. For any other W the slices are as exact, but more row groups are read by two ranks,
//! and if W is larger than L, each of the W/L ranks that share a lane reads all of it. So L follows G by default:
//! training on more ranks has a larger global batch, and with it more lanes ([`OrderVersion::V3`]). [`Plan::reads`]
//! counts what the ranks of a world read together.
//!
//! Without shuffle there is one lane, and a step takes consecutive rows in file order: every rank reads every row group
//! that is larger than its part of a step. If that costs too much, set `lanes`: each is then a part of the file order.
//!
//! A row group is here an entry of the manifest: large ones with a page index are listed in parts, which are shuffled,
//! dealt and read like row groups ([`OrderVersion::V3`]).
//!
//! Nothing here holds rows: a plan keeps about 20 bytes per row group and at most 36 MiB of orders of windows, and
//! finds any step by binary search. The shuffle depends on the [`OrderVersion`].

mod apart;
mod audit;
mod census;
mod certificate;
mod cuts;
mod defaults;
mod feistel;
mod interleave;
mod layout;
mod live;
mod method;
mod mixture;
mod order;
mod permute;
mod quality;
mod reads;
mod recent;
mod rollback;
mod share;
mod spec;
mod state;
mod steps;
mod tail;
mod uses;
mod version;

pub use apart::Apart;
pub use audit::{Audit, Fault, Finding, audit};
pub use census::Census;
pub use certificate::{BadRows, Certificate, Span};
pub(crate) use defaults::MAX_LANES;
pub(crate) use order::Listed;
pub use order::Order;
pub use permute::random;
pub use reads::{Read, Reads};
pub use recent::{KeptOrder, TakenRows};
pub use share::Share;
pub(crate) use spec::{MAX_GLOBAL_BATCH, MAX_WINDOW_ROWS};
pub use spec::{Mix, PlanSpec, Shuffle, Stop};
pub use state::State;
pub use steps::{Plan, RowRef, Step, WindowUse};
pub use tail::Tail;
pub use uses::{Use, UseSpan};
pub use version::OrderVersion;
