//! Unity Catalog, of Databricks and as an own server: `uc://catalog.schema.table`.
//!
//! ```text
//!   tables/{name} ─► format, location ─┬─► Parquet, Delta: read there, with temporary credentials
//!                                      ├─► Delta whose commits the catalog keeps: delta/v1/.../tables/{name} has those that the log lacks
//!                                      └─► Iceberg: by the catalog's REST interface of Iceberg
//! ```

mod answers;
mod settings;
mod table;

pub(super) use table::table;
