//! Tables of Iceberg by their names in a catalog, of which the REST interface is spoken here.
//!
//! ```text
//!   iceberg://db.table ─settings─► client ─config, load─► answers: where the metadata are, options and credentials of the store
//!                                    ▲                        │
//!                                    └──── renewed, by ───────┴─► CredentialSource ─► the store that the table is read from
//! ```

mod answers;
mod client;
mod settings;
mod table;

pub(super) use settings::KEYS;
pub(super) use table::{Told, table};

/// The scheme of such names.
pub(super) const SCHEME: &str = "iceberg://";
