//! The tables that can be read: the features that a table asks of its readers, checked against those supported here.

use super::action::{Metadata, Protocol};
use crate::dataset::table::Mapping;
use crate::error::{Error, Result};

/// Features of tables that a reader must know, and that this one does. Features for writers alone do not matter.
const KNOWN: &[&str] = &[
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "typeWidening-preview",
    "v2Checkpoint",
    "vacuumProtocolCheck",
];

/// Features by which a catalog has the last word on a table's commits.
const MANAGED: &[&str] = &["catalogManaged", "catalogOwned-preview"];

/// The property of a table whose latest commits a coordinator has, which puts them in the log later.
const COORDINATOR: &str = "delta.coordinatedCommits.commitCoordinator-preview";

/// Mapping of the columns of the table at `url`, if it can be read; `managed` if its catalog has told of its commits.
///
/// # Errors
/// [`Error::Unsupported`] naming the feature.
pub(super) fn check(protocol: &Protocol, metadata: &Metadata, managed: bool, url: &str) -> Result<Mapping> {
    let refused = |what: String| {
        let hint = "read the table with Spark and hand the rows over (docs/spark.md), or write a copy without it";
        Err(Error::unsupported(format!("{url}: {what} of Delta Lake"), hint))
    };
    let features = protocol.reader_features.as_deref().unwrap_or_default();
    match protocol.min_reader_version {
        1 | 2 => {}
        3 => {
            let is_managed = |feature: &str| MANAGED.contains(&feature);
            if let Some(feature) = features.iter().find(|feature| is_managed(feature) && !managed) {
                let hint =
                    "its log lacks the commits that its catalog keeps: open it by its name, uc://catalog.schema.table";
                return Err(Error::unsupported(format!("{url}: feature {feature:?} of Delta Lake"), hint));
            }
            let known = |feature: &str| KNOWN.contains(&feature) || is_managed(feature);
            if let Some(feature) = features.iter().find(|feature| !known(feature)) {
                let shown: String = feature.chars().take(64).collect();
                return refused(format!("feature {shown:?}"));
            }
        }
        other => return refused(format!("reader version {other}")),
    }
    if metadata.property(COORDINATOR).is_some_and(|name| !name.is_empty()) {
        return refused("coordinated commits (coordinatedCommits-preview)".to_owned());
    }
    if metadata.format.provider != "parquet" {
        let shown: String = metadata.format.provider.chars().take(64).collect();
        return refused(format!("data files of format {shown:?}"));
    }
    let maps = protocol.min_reader_version == 2 || features.iter().any(|feature| feature == "columnMapping");
    match metadata.property("delta.columnMapping.mode").filter(|_| maps) {
        None | Some("none") => Ok(Mapping::None),
        Some("name") => Ok(Mapping::Name),
        Some("id") => Ok(Mapping::Id),
        Some(other) => {
            let shown: String = other.chars().take(64).collect();
            refused(format!("column mapping {shown:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_refused_by_name() {
        let protocol = |version, features: Option<&[&str]>| Protocol {
            min_reader_version: version,
            reader_features: features.map(|all| all.iter().map(|name| (*name).to_owned()).collect()),
        };
        let metadata = |json: &str| serde_json::from_str::<Metadata>(json).unwrap();
        let plain = metadata(r#"{"schemaString":""}"#);
        let mapped = metadata(r#"{"schemaString":"","configuration":{"delta.columnMapping.mode":"id"}}"#);
        let both: &[&str] = &["columnMapping", "deletionVectors"];
        assert_eq!(check(&protocol(1, None), &mapped, false, "t").unwrap(), Mapping::None, "it does not ask for it");
        assert_eq!(check(&protocol(2, None), &mapped, false, "t").unwrap(), Mapping::Id);
        assert_eq!(check(&protocol(3, Some(both)), &mapped, false, "t").unwrap(), Mapping::Id);
        assert_eq!(check(&protocol(3, Some(both)), &plain, false, "t").unwrap(), Mapping::None);
        let refused = |version, features, metadata: &Metadata| {
            check(&protocol(version, features), metadata, false, "t").unwrap_err().to_string()
        };
        assert!(refused(3, Some(&["variantType"]), &plain).contains("feature \"variantType\""));
        let owned: &[&str] = &["catalogManaged", "deletionVectors"];
        assert!(
            refused(3, Some(owned), &plain).contains("\"catalogManaged\"")
                && refused(3, Some(owned), &plain).contains("uc://")
        );
        assert_eq!(check(&protocol(3, Some(owned)), &plain, true, "t").unwrap(), Mapping::None);
        let coordinated =
            r#"{"schemaString":"","configuration":{"delta.coordinatedCommits.commitCoordinator-preview":"dynamodb"}}"#;
        assert!(refused(1, None, &metadata(coordinated)).contains("coordinatedCommits-preview"));
        assert!(refused(99, None, &plain).contains("reader version 99"));
        assert!(refused(1, None, &metadata(r#"{"schemaString":"","format":{"provider":"orc"}}"#)).contains("\"orc\""));
    }
}
