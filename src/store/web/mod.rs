//! Requests to services of the web that hold no objects: catalogs of tables, the Hub, the services that lend credentials of AWS.
//!
//! ```text
//!   options ─► connection ─► client of HTTP ─┐
//!                               a request ─► patient ─► once ─► an answer, read to its end, within a limit
//!                                               ▲          │
//!                                               └─ retries ┘  for how long, and how often
//! ```

mod connection;
mod options;
mod patient;
mod retries;

pub(super) use connection::{Connection, address, below, is_near};
pub(super) use options::{Options, is_true};
pub(super) use patient::{Answer, Problem, bearer, passes, patient};
pub(super) use retries::{Retries, told};
