//! From the name of a table to what its catalog says, by the scheme of the name.

use super::table::CatalogTable;
use super::{glue, hive, iceberg, unity};
use crate::error::Result;
use crate::store::access::Access;
use crate::store::web::Options;

/// A catalog of tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Iceberg,
    Unity,
    Glue,
    Hive,
}

/// Schemes of names of tables.
const SCHEMES: &[(&str, Kind)] = &[
    ("iceberg://", Kind::Iceberg),
    ("uc://", Kind::Unity),
    ("glue://", Kind::Glue),
    ("hms://", Kind::Hive),
    ("thrift://", Kind::Hive),
];

fn kind(text: &str) -> Option<Kind> {
    SCHEMES.iter().find(|(scheme, _)| text.starts_with(scheme)).map(|(_, kind)| *kind)
}

/// Whether `text` names a table of a catalog.
pub(in crate::store) fn is_name(text: &str) -> bool {
    kind(text).is_some()
}

/// Looks up the table `name`.
///
/// # Errors
/// [`Error::Config`](crate::Error::Config) for a malformed name, and for settings; [`Error::NotFound`](crate::Error::NotFound) for a missing
/// table; [`Error::Unsupported`](crate::Error::Unsupported) for one that is not read; [`Error::Store`](crate::Error::Store).
pub(in crate::store) async fn table(name: &str, access: Access<'_>) -> Result<CatalogTable> {
    let options = Options { given: access.options, environment: &|name| std::env::var_os(name) };
    match kind(name) {
        Some(Kind::Unity) => unity::table(name, options).await,
        Some(Kind::Glue) => glue::table(name, access, options).await,
        Some(Kind::Hive) => hive::table(name, options).await,
        Some(Kind::Iceberg) | None => iceberg::table(name, access, options).await,
    }
}
