//! Lines of a log, as far as they matter to a reader.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_json::Value;

/// Values of partition columns, by their names in data files.
pub(super) type PartitionValues = BTreeMap<String, Option<String>>;

/// A file that is added.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Add {
    /// As it is in the log: percent-encoded, relative to the table or absolute.
    pub(super) path: String,
    /// Neighbours in a checkpoint often have the same ones.
    #[serde(default)]
    pub(super) partition_values: Arc<PartitionValues>,
    #[serde(default)]
    pub(super) size: i64,
    #[serde(default)]
    pub(super) deletion_vector: Option<Box<Vector>>,
    /// Its statistics as JSON, where a filter needs them and has not judged the file yet.
    #[serde(default)]
    pub(super) stats: Option<Box<str>>,
    /// What the filter says of it.
    #[serde(skip)]
    pub(super) verdict: Option<Verdict>,
}

/// What the filter says of a file with statistics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) rows: u64,
    /// It has no selected row.
    pub(super) is_pruned: bool,
}

/// A file that is removed.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Remove {
    pub(super) path: String,
    #[serde(default)]
    pub(super) deletion_vector: Option<Vector>,
}

/// Location of the numbers of a file's deleted rows.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Vector {
    /// `i` in the log itself, `u` in a file that is named by a UUID, `p` at an address.
    pub(super) storage_type: String,
    pub(super) path_or_inline_dv: String,
    #[serde(default)]
    pub(super) offset: Option<i64>,
    pub(super) size_in_bytes: i64,
    pub(super) cardinality: i64,
}

impl Vector {
    /// Text that tells it from others of the same file.
    pub(super) fn id(&self) -> String {
        let offset = self.offset.map(|offset| format!("@{offset}")).unwrap_or_default();
        format!("{}{}{offset}", self.storage_type, self.path_or_inline_dv)
    }
}

/// Requirements on a reader.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Protocol {
    pub(super) min_reader_version: i64,
    #[serde(default)]
    pub(super) reader_features: Option<Vec<String>>,
}

/// Description of the table.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) schema_string: String,
    #[serde(default)]
    pub(super) partition_columns: Vec<String>,
    #[serde(default)]
    pub(super) configuration: BTreeMap<String, Option<String>>,
    #[serde(default)]
    pub(super) format: Format,
}

impl Metadata {
    /// A property of the table.
    pub(super) fn property(&self, name: &str) -> Option<&str> {
        self.configuration.get(name)?.as_deref()
    }
}

/// The format of data files.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Format {
    pub(super) provider: String,
}

impl Default for Format {
    fn default() -> Self {
        Self { provider: "parquet".to_owned() }
    }
}

/// A part of a checkpoint that has the files.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct Sidecar {
    pub(super) path: String,
}

/// One line.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    add: Option<Add>,
    remove: Option<Remove>,
    protocol: Option<Protocol>,
    meta_data: Option<Metadata>,
    sidecar: Option<Sidecar>,
    /// May be any JSON.
    commit_info: Option<Value>,
}

/// Content of a commit, or of a part of a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Actions {
    pub(super) adds: Vec<Add>,
    pub(super) removes: Vec<Remove>,
    pub(super) protocol: Option<Protocol>,
    pub(super) metadata: Option<Metadata>,
    pub(super) sidecars: Vec<Sidecar>,
    /// When it was made, in milliseconds, if it says so itself.
    pub(super) timestamp: Option<i64>,
}

impl Actions {
    /// The actions of a JSON file, one a line.
    ///
    /// # Errors
    /// The number of the first line that is no action, from 1, and what is wrong with it.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, (usize, String)> {
        let mut actions = Self::default();
        for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let line: Line = serde_json::from_slice(line).map_err(|error| (at + 1, error.to_string()))?;
            actions.adds.extend(line.add);
            actions.removes.extend(line.remove);
            actions.sidecars.extend(line.sidecar);
            actions.protocol = line.protocol.or(actions.protocol);
            actions.metadata = line.meta_data.or(actions.metadata);
            let told = line.commit_info.and_then(|info| info.get("inCommitTimestamp")?.as_i64());
            actions.timestamp = told.or(actions.timestamp);
        }
        Ok(actions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_a_wrong_one_is_named() {
        let text = br#"{"commitInfo":{"inCommitTimestamp":17,"operation":"WRITE"}}
{"protocol":{"minReaderVersion":3,"minWriterVersion":7,"readerFeatures":["deletionVectors"]}}
{"add":{"path":"a%20b","partitionValues":{"p":null,"q":"1"},"size":7,"modificationTime":1,"dataChange":true,"deletionVector":{"storageType":"u","pathOrInlineDv":"x","offset":1,"sizeInBytes":3,"cardinality":2}}}

{"remove":{"path":"c","dataChange":true}}
{"txn":{"appId":"x","version":1}}
"#;
        let found = Actions::parse(text).unwrap();
        assert_eq!((found.timestamp, found.removes[0].path.as_str()), (Some(17), "c"));
        assert_eq!(found.adds[0].deletion_vector.as_ref().unwrap().id(), "ux@1");
        assert_eq!(found.adds[0].partition_values["p"], None);
        assert_eq!(found.protocol.unwrap().reader_features.unwrap(), ["deletionVectors"]);
        assert_eq!(Actions::parse(b"{}\n{\"add\":{\"size\":1}}\n").unwrap_err().0, 2);
        for odd in ["\"text\"", r#"{"inCommitTimestamp":"2020"}"#, r#"{"inCommitTimestamp":1.5e12}"#, "[1]"] {
            let found = Actions::parse(format!("{{\"commitInfo\":{odd}}}").as_bytes()).unwrap();
            assert_eq!(found.timestamp, None, "{odd}");
        }
        assert!(Actions::parse(b"{").is_err() && Actions::parse(b"[]").is_err());
    }
}
