//! Tables of Iceberg by name in a catalog with Iceberg's REST interface.
//!
//! ```text
//!   iceberg://db.table ─settings─► client ─config, load─► answers: location of the metadata, options and credentials of the store
//!                                    ▲                        │
//!                                    └──── renewed, by ───────┴─► CredentialSource ─► the store that the table is read from
//! ```

mod answers;
mod client;
mod settings;
mod table;

pub(super) use settings::KEYS;
pub(super) use table::{CatalogTable, table};

/// Scheme of the names of tables.
pub(super) const SCHEME: &str = "iceberg://";
