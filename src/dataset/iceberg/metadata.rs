//! The metadata of a table: its JSON, as far as a reader needs it, in all three versions of the format.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value as Json;

use crate::store::member::or_default;

/// A table.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Metadata {
    pub(super) location: String,
    #[serde(default, deserialize_with = "or_default")]
    schemas: Vec<Json>,
    /// Of the first version alone, which has one.
    #[serde(default)]
    schema: Option<Json>,
    #[serde(default)]
    pub(super) current_schema_id: Option<i64>,
    #[serde(default, deserialize_with = "or_default")]
    partition_specs: Vec<Spec>,
    #[serde(default)]
    partition_spec: Option<Vec<PartitionField>>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) properties: BTreeMap<String, String>,
    #[serde(default)]
    current_snapshot_id: Option<i64>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) snapshots: Vec<Snapshot>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) snapshot_log: Vec<Logged>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) refs: BTreeMap<String, Ref>,
    #[serde(default, deserialize_with = "or_default")]
    pub(super) encryption_keys: Vec<Json>,
}

/// Fields that tell whether the rest can be read.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Head {
    format_version: Option<Json>,
    view_uuid: Option<IgnoredAny>,
}

/// Partitioning of a table.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Spec {
    pub(super) spec_id: i32,
    pub(super) fields: Vec<PartitionField>,
}

/// A part of that.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct PartitionField {
    #[serde(default)]
    pub(super) source_id: Option<i32>,
    pub(super) transform: String,
}

impl Spec {
    /// Returns true if it leaves all files in one partition.
    pub(super) fn is_unpartitioned(&self) -> bool {
        self.fields.iter().all(|field| field.transform == "void")
    }
}

/// State of a table at a time.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Snapshot {
    pub(super) snapshot_id: i64,
    #[serde(default)]
    pub(super) schema_id: Option<i64>,
    #[serde(default)]
    pub(super) manifest_list: Option<String>,
}

/// When a snapshot became the current one.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Logged {
    pub(super) timestamp_ms: i64,
    pub(super) snapshot_id: i64,
}

/// A branch or a tag.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Ref {
    pub(super) snapshot_id: i64,
    #[serde(rename = "type")]
    pub(super) kind: String,
}

/// Reason why a table cannot be read.
#[derive(Debug, PartialEq)]
pub(super) enum Fault {
    Broken(String),
    /// Nothing here reads it.
    Refused(String),
}

impl Metadata {
    /// The metadata in `json`.
    pub(super) fn parse(json: &[u8]) -> Result<Self, Fault> {
        let broken = |error: serde_json::Error| Fault::Broken(error.to_string());
        let head: Head = serde_json::from_slice(json).map_err(broken)?;
        if head.view_uuid.is_some() {
            return Err(Fault::Refused("a view".to_owned()));
        }
        match head.format_version.as_ref().and_then(Json::as_i64) {
            Some(1..=3) => {}
            Some(other) => return Err(Fault::Refused(format!("version {other} of the format"))),
            None => return Err(Fault::Broken("it tells no version of the format".to_owned())),
        }
        let metadata: Self = serde_json::from_slice(json).map_err(broken)?;
        if !metadata.encryption_keys.is_empty() || metadata.properties.contains_key("encryption.key-id") {
            return Err(Fault::Refused("an encrypted table".to_owned()));
        }
        Ok(metadata)
    }

    /// The current snapshot, if there is one.
    pub(super) fn current(&self) -> Option<i64> {
        self.current_snapshot_id.filter(|id| *id >= 0)
    }

    /// Snapshot `id`.
    pub(super) fn snapshot(&self, id: i64) -> Option<&Snapshot> {
        self.snapshots.iter().find(|snapshot| snapshot.snapshot_id == id)
    }

    /// The schema of number `id`, or the table's current one.
    pub(super) fn schema(&self, id: Option<i64>) -> Result<&Json, Fault> {
        let of =
            |id: i64| self.schemas.iter().find(|schema| schema.get("schema-id").and_then(Json::as_i64) == Some(id));
        let found = match id.or(self.current_schema_id) {
            Some(id) => of(id).or_else(|| self.schema.as_ref().filter(|_| self.schemas.is_empty())),
            None => self.schema.as_ref(),
        };
        found.ok_or_else(|| Fault::Broken("a schema that it names is not there".to_owned()))
    }

    /// All schemas that it ever had, the current one first and then the latest.
    pub(super) fn every_schema(&self) -> Vec<&Json> {
        let id = |schema: &Json| schema.get("schema-id").and_then(Json::as_i64);
        let mut all: Vec<&Json> = self.schemas.iter().chain(&self.schema).collect();
        all.sort_by_key(|schema| (id(schema) != self.current_schema_id, std::cmp::Reverse(id(schema))));
        all
    }

    /// Partitioning of files of spec `id`.
    pub(super) fn spec(&self, id: i32) -> Result<Spec, Fault> {
        let known = self.partition_specs.iter().find(|spec| spec.spec_id == id).cloned();
        let old = || {
            let fields = self.partition_spec.clone().filter(|_| self.partition_specs.is_empty() && id == 0)?;
            Some(Spec { spec_id: 0, fields })
        };
        known
            .or_else(old)
            .ok_or_else(|| Fault::Broken(format!("partition spec {id}, which a manifest names, is not there")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Metadata, Fault> {
        Metadata::parse(text.as_bytes())
    }

    #[test]
    fn what_is_no_table_or_not_read_is_told() {
        let table = |more: &str| parse(&format!(r#"{{"format-version":2,"location":"s3://b/t"{more}}}"#));
        assert!(table("").unwrap().current().is_none());
        assert!(table(r#","current-snapshot-id":-1"#).unwrap().current().is_none());
        let nulls =
            ["schemas", "partition-specs", "properties", "snapshots", "snapshot-log", "refs", "encryption-keys"];
        for member in nulls {
            assert!(table(&format!(r#","{member}":null"#)).is_ok(), "{member}");
        }
        for (text, named) in [
            (r#"{"format-version":4,"location":"x"}"#, "version 4"),
            (r#"{"format-version":1,"view-uuid":"x"}"#, "view"),
            (r#"{"format-version":3,"location":"x","encryption-keys":[{}]}"#, "encrypted"),
            (r#"{"format-version":2,"location":"x","properties":{"encryption.key-id":"k"}}"#, "encrypted"),
        ] {
            assert!(matches!(parse(text), Err(Fault::Refused(what)) if what.contains(named)), "{text}");
        }
        for text in ["", "[]", "{", r#"{"format-version":"2"}"#, r#"{"format-version":2}"#] {
            assert!(matches!(parse(text), Err(Fault::Broken(_))), "{text}");
        }
    }

    #[test]
    fn schemas_and_specs_are_found_in_every_version_of_the_format() {
        let old = r#"{"format-version":1,"location":"x","schema":{"fields":[]},"partition-spec":[{"name":"a","transform":"identity","source-id":1}]}"#;
        let old = parse(old).unwrap();
        assert!(old.schema(None).is_ok() && old.spec(0).unwrap().fields.len() == 1 && old.spec(1).is_err());
        let new = r#"{"format-version":2,"location":"x","current-schema-id":1,"schemas":[{"schema-id":0},{"schema-id":2},{"schema-id":1}],
            "partition-specs":[{"spec-id":3,"fields":[{"name":"v","transform":"void","source-id":1,"field-id":1000}]}]}"#;
        let new = parse(new).unwrap();
        assert_eq!(new.schema(None).unwrap()["schema-id"], 1);
        assert_eq!(new.schema(Some(0)).unwrap()["schema-id"], 0);
        assert!(new.schema(Some(9)).is_err() && new.spec(3).unwrap().is_unpartitioned() && new.spec(0).is_err());
        let order: Vec<i64> = new.every_schema().iter().map(|schema| schema["schema-id"].as_i64().unwrap()).collect();
        assert_eq!(order, [1, 2, 0]);
    }
}
