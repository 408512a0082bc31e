//! Catalogs with Iceberg's REST interface, those of AWS (Glue, S3 Tables) among them.

mod answers;
mod settings;
mod table;

pub(super) use table::{Named, load, table};
