//! Responses of Glue: pure, so that tests can try any response.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::store::catalog::hive_table::{self, HiveTable};

/// Parameters, of which any may be null.
type Parameters = Option<BTreeMap<String, Option<String>>>;

/// `GetTable`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Found {
    pub(super) table: Table,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Table {
    table_type: Option<String>,
    parameters: Parameters,
    partition_keys: Option<Vec<Column>>,
    storage_descriptor: Option<Storage>,
    /// The table that a resource link stands for.
    pub(super) target_table: Option<Target>,
}

/// A table of another database or account.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Target {
    pub(super) catalog_id: Option<String>,
    pub(super) database_name: Option<String>,
    pub(super) name: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Column {
    name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Storage {
    location: Option<String>,
    input_format: Option<String>,
    serde_info: Option<Serde>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Serde {
    parameters: Parameters,
}

/// `GetPartitions`, one page.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Page {
    partitions: Option<Vec<Partition>>,
    next_token: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
struct Partition {
    storage_descriptor: Option<Storage>,
}

fn given(parameters: Parameters) -> BTreeMap<String, String> {
    parameters.into_iter().flatten().filter_map(|(key, value)| Some((key, value?))).collect()
}

impl Table {
    /// It as a metastore has it.
    pub(super) fn hive(self) -> HiveTable {
        let storage = self.storage_descriptor.unwrap_or_default();
        HiveTable {
            table_type: self.table_type.unwrap_or_default(),
            location: storage.location.unwrap_or_default(),
            input_format: storage.input_format.unwrap_or_default(),
            parameters: given(self.parameters),
            serde_parameters: given(storage.serde_info.unwrap_or_default().parameters),
            partition_keys: self.partition_keys.into_iter().flatten().map(|column| column.name).collect(),
        }
    }
}

impl Page {
    /// Its partitions, of which each must have a location, and what continues it.
    pub(super) fn partitions(self) -> Result<(Vec<hive_table::Partition>, Option<String>), &'static str> {
        let partition = |partition: Partition| {
            let storage = partition.storage_descriptor?;
            let location = storage.location.filter(|at| !at.is_empty())?;
            Some(hive_table::Partition { location, input_format: storage.input_format.unwrap_or_default() })
        };
        let all: Option<Vec<_>> = self.partitions.into_iter().flatten().map(partition).collect();
        let next = self.next_token.filter(|next| !next.is_empty());
        Ok((all.ok_or("a partition has no location")?, next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_glue_is_one_of_hive() {
        let json = r#"{"Table":{"Name":"t","DatabaseName":"d","CreateTime":1.7E9,"TableType":"EXTERNAL_TABLE",
            "Parameters":{"table_type":"ICEBERG","metadata_location":"s3://b/m.metadata.json","x":null},"PartitionKeys":[{"Name":"dt","Type":"string"}],
            "StorageDescriptor":{"Columns":[],"Location":"s3://b/t","InputFormat":"f","SerdeInfo":{"Parameters":{"path":"p"}}},
            "IsRegisteredWithLakeFormation":false,"VersionId":"3"}}"#;
        let found = serde_json::from_str::<Found>(json).unwrap().table.hive();
        assert_eq!(
            (found.location.as_str(), found.input_format.as_str(), found.table_type.as_str()),
            ("s3://b/t", "f", "EXTERNAL_TABLE")
        );
        assert_eq!(
            (found.partition_keys, found.serde_parameters.len(), found.parameters.len()),
            (vec!["dt".to_owned()], 1, 2)
        );
        let bare = serde_json::from_str::<Found>(r#"{"Table":{"PartitionKeys":null}}"#).unwrap().table.hive();
        assert!(bare.location.is_empty());
        assert!(serde_json::from_str::<Found>("{}").is_err());
    }

    #[test]
    fn a_page_has_partitions_and_a_mark_of_the_next() {
        let page = |json: &str| serde_json::from_str::<Page>(json).unwrap().partitions();
        let one = r#"{"Partitions":[{"Values":["1"],"StorageDescriptor":{"Location":"s3://b/t/dt=1","InputFormat":"f"}}],"NextToken":"n"}"#;
        let partition = hive_table::Partition { location: "s3://b/t/dt=1".to_owned(), input_format: "f".to_owned() };
        assert_eq!(page(one), Ok((vec![partition], Some("n".to_owned()))));
        assert_eq!(page(r#"{"Partitions":[],"NextToken":""}"#), Ok((Vec::new(), None)));
        assert!(page(r#"{"Partitions":[{"Values":["1"]}]}"#).is_err());
    }
}
