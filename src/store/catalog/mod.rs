//! Tables by their names in a catalog: of Iceberg's REST interface, Unity Catalog, Glue, or a Hive metastore.
//!
//! ```text
//!   iceberg://db.table           ┐                           ┌ location, kind
//!   uc://catalog.schema.table    ├─lookup─► client ─answers─►│ options of the store
//!   glue://db.table              │            ▲              └ credentials ──► CredentialSource ─► the store that the table is read from
//!   hms://host:9083/db.table     ┘            └───────────────── renewed, by ───────┘
//! ```
//! A catalog gives what is told of a table; its files are read as if their address had been given.

mod client;
mod glue;
mod hive;
mod hive_table;
mod iceberg;
mod lookup;
mod names;
mod options;
mod refusal;
mod sign;
mod table;
mod unity;

pub(super) use lookup::{is_name, table};
pub(super) use options::KEYS;
pub(super) use table::{CatalogTable, Content, Location, PLAIN};
