//! AWS Glue's own interface: `glue://database.table`, by JSON and signed requests.

mod answers;
mod settings;
mod table;

pub(super) use table::table;
