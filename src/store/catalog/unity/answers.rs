//! Responses of Unity Catalog, and what they say of a table: pure, so that tests can try any response.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::store::credentials::Credentials;
use crate::store::logs::Ratified;

/// Most commits that a catalog keeps beside the log: servers hold them to less.
const MOST_COMMITS: usize = 100_000;

/// `GET tables/{full name}`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Table {
    table_type: Option<String>,
    data_source_format: Option<String>,
    pub(super) storage_location: Option<String>,
    pub(super) table_id: Option<String>,
    properties: Option<BTreeMap<String, Option<String>>>,
    columns: Option<Vec<Column>>,
    row_filter: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Column {
    name: Option<String>,
    mask: Option<Value>,
}

/// How a table is read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Way {
    Delta,
    /// The catalog has commits that the log lacks.
    CatalogManagedDelta,
    Parquet,
    Iceberg,
}

/// Properties by which a table of Delta Lake says that a catalog has its latest commits.
const MANAGED: &[&str] = &["delta.feature.catalogManaged", "delta.feature.catalogOwned-preview"];

impl Table {
    /// How the table `name` is read.
    ///
    /// # Errors
    /// [`Error::Unsupported`] naming what is not read.
    pub(super) fn way(&self, name: &str) -> Result<Way> {
        let shown = |text: &str| text.chars().filter(|letter| !letter.is_control()).take(64).collect::<String>();
        let refused = |what: &str, hint: &str| Err(Error::unsupported(format!("{name}, {what},"), hint));
        let kind = self.table_type.as_deref().unwrap_or_default();
        if kind.contains("VIEW") || kind == "FOREIGN" {
            let hint = "read it with Spark and hand the rows over (docs/spark.md), or open the tables below it";
            return refused(&format!("a {} of Unity Catalog", shown(kind).to_lowercase().replace('_', " ")), hint);
        }
        // Files have the rows and values that these hide.
        let hint = "read it with Spark and hand the rows over (docs/spark.md)";
        let is_set = |value: &Option<Value>| value.as_ref().is_some_and(|value| !value.is_null());
        if is_set(&self.row_filter) {
            return refused("which has a row filter", hint);
        }
        if let Some(column) = self.columns.iter().flatten().find(|column| is_set(&column.mask)) {
            let column = shown(column.name.as_deref().unwrap_or_default());
            return refused(&format!("whose column {column:?} has a mask"), hint);
        }
        let set = |name: &&str| {
            let value = self.properties.as_ref().and_then(|all| all.get(*name)).and_then(Option::as_deref);
            value.is_some_and(|value| !value.is_empty())
        };
        match self.data_source_format.as_deref() {
            Some("DELTA") if MANAGED.iter().any(set) => Ok(Way::CatalogManagedDelta),
            Some("DELTA") => Ok(Way::Delta),
            Some("PARQUET") => Ok(Way::Parquet),
            Some("ICEBERG") => Ok(Way::Iceberg),
            other => {
                let format = shown(other.unwrap_or("unknown"));
                refused(
                    &format!("a table of format {format}"),
                    "read it with Spark and hand the rows over (docs/spark.md)",
                )
            }
        }
    }
}

/// `POST temporary-table-credentials`. Times are in milliseconds since 1970.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Temporary {
    aws_temp_credentials: Option<Aws>,
    azure_user_delegation_sas: Option<Sas>,
    azure_aad: Option<Aad>,
    gcp_oauth_token: Option<OAuth>,
    expiration_time: Option<u64>,
}

#[derive(Deserialize)]
struct Aws {
    access_key_id: String,
    secret_access_key: String,
    #[serde(default)]
    session_token: Option<String>,
}

#[derive(Deserialize)]
struct Sas {
    sas_token: String,
}

#[derive(Deserialize)]
struct Aad {
    aad_token: String,
}

#[derive(Deserialize)]
struct OAuth {
    oauth_token: String,
}

impl Temporary {
    /// They by the names of `storage_options`; none of a kind that is not known.
    pub(super) fn credentials(self) -> Option<Credentials> {
        let mut values: Vec<(&str, String)> = Vec::new();
        if let Some(Aws { access_key_id, secret_access_key, session_token }) = self.aws_temp_credentials {
            values.extend([("access_key_id", access_key_id), ("secret_access_key", secret_access_key)]);
            values.extend(session_token.filter(|token| !token.is_empty()).map(|token| ("token", token)));
        } else if let Some(Sas { sas_token }) = self.azure_user_delegation_sas {
            values.push(("sas_token", sas_token));
        } else if let Some(Aad { aad_token }) = self.azure_aad {
            values.push(("bearer_token", aad_token));
        } else if let Some(OAuth { oauth_token }) = self.gcp_oauth_token {
            values.push(("bearer_token", oauth_token));
        }
        let expires =
            self.expiration_time.filter(|at| *at > 0).and_then(|at| UNIX_EPOCH.checked_add(Duration::from_millis(at)));
        let values = values.into_iter().map(|(name, value)| (name.to_owned(), value));
        (values.len() > 0).then(|| Credentials::new(values, expires))
    }
}

/// `GET delta/v1/catalogs/{c}/schemas/{s}/tables/{t}`: the commits that the log of a table lacks.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Loaded {
    metadata: Metadata,
    #[serde(default)]
    commits: Option<Vec<Commit>>,
    #[serde(default)]
    latest_table_version: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    location: String,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Commit {
    version: u64,
    file_name: String,
}

impl Loaded {
    /// The location and commits of the table.
    pub(super) fn ratified(self) -> Result<(String, Ratified), &'static str> {
        let commits = self.commits.unwrap_or_default();
        if commits.len() > MOST_COMMITS {
            return Err("it has too many commits that are not in the log");
        }
        let mut by_version = BTreeMap::new();
        for Commit { version, file_name } in commits {
            // It becomes a part of a path.
            let plain =
                file_name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_'));
            if !plain || file_name.len() > 256 || !file_name.ends_with(".json") {
                return Err("the file of a commit has no name of one");
            }
            if by_version.insert(version, file_name).is_some() {
                return Err("two commits are of one version");
            }
        }
        let last = by_version.last_key_value().map(|(version, _)| *version);
        let latest = self.latest_table_version.or(last).ok_or("it names no latest version")?;
        let mut versions = by_version.keys().rev().enumerate();
        if !versions.all(|(behind, version)| latest.checked_sub(behind as u64) == Some(*version)) {
            return Err("its commits do not lead to its latest version");
        }
        Ok((self.metadata.location, Ratified { latest, commits: by_version }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(json: &str) -> Table {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn the_format_says_how_a_table_is_read_and_others_are_refused_by_name() {
        let way = |json: &str| table(json).way("uc://c.s.t").map_err(|error| error.to_string());
        assert_eq!(
            way(r#"{"table_type":"EXTERNAL","data_source_format":"DELTA","columns":[{"name":"a","mask":null}]}"#),
            Ok(Way::Delta)
        );
        assert_eq!(way(r#"{"data_source_format":"PARQUET","properties":null,"new":{"x":1}}"#), Ok(Way::Parquet));
        assert_eq!(way(r#"{"data_source_format":"ICEBERG"}"#), Ok(Way::Iceberg));
        for name in MANAGED {
            let json = format!(r#"{{"data_source_format":"DELTA","properties":{{"{name}":"supported"}}}}"#);
            assert_eq!(way(&json), Ok(Way::CatalogManagedDelta));
        }
        for (json, told) in [
            (r#"{"table_type":"MATERIALIZED_VIEW","data_source_format":"DELTA"}"#, "materialized view"),
            (r#"{"table_type":"FOREIGN","data_source_format":"DELTA"}"#, "foreign"),
            (r#"{"data_source_format":"DELTA","row_filter":{"function_name":"f"}}"#, "row filter"),
            (
                r#"{"data_source_format":"DELTA","columns":[{"name":"ssn","mask":{"function_name":"f"}}]}"#,
                "\"ssn\" has a mask",
            ),
            (r#"{"data_source_format":"CSV"}"#, "format CSV"),
            (r#"{}"#, "format unknown"),
        ] {
            let told_now = way(json).unwrap_err();
            assert!(told_now.contains(told) && told_now.contains("uc://c.s.t"), "{told_now}");
        }
    }

    #[test]
    fn credentials_of_every_cloud_are_understood() {
        let of = |json: &str| serde_json::from_str::<Temporary>(json).unwrap().credentials();
        let is = |values: &[(&str, &str)], at: Option<u64>| {
            let values = values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            Some(Credentials::new(values, at.map(|at| UNIX_EPOCH + Duration::from_millis(at))))
        };
        let aws = r#"{"aws_temp_credentials":{"access_key_id":"i","secret_access_key":"s","session_token":"t"},"expiration_time":1500,"url":"s3://b"}"#;
        assert_eq!(of(aws), is(&[("access_key_id", "i"), ("secret_access_key", "s"), ("token", "t")], Some(1500)));
        assert_eq!(of(r#"{"azure_user_delegation_sas":{"sas_token":"sv=1"}}"#), is(&[("sas_token", "sv=1")], None));
        assert_eq!(of(r#"{"azure_aad":{"aad_token":"a"},"expiration_time":0}"#), is(&[("bearer_token", "a")], None));
        assert_eq!(
            of(r#"{"gcp_oauth_token":{"oauth_token":"g"},"expiration_time":7}"#),
            is(&[("bearer_token", "g")], Some(7))
        );
        assert_eq!(of(r#"{"aws_temp_credentials":null}"#), None);
        assert_eq!(
            of(r#"{"expiration_time":18446744073709551615,"gcp_oauth_token":{"oauth_token":"g"}}"#).map(|_| ()),
            Some(())
        );
    }

    #[test]
    fn commits_of_a_catalog_are_whole_or_refused() {
        let of = |commits: &str, more: &str| {
            let json = format!(r#"{{"metadata":{{"location":"s3://b/t","etag":"x"}},"commits":{commits}{more}}}"#);
            serde_json::from_str::<Loaded>(&json)
                .unwrap()
                .ratified()
                .map(|(_, found)| (found.latest, found.commits.len()))
        };
        let commit =
            |version: u64, name: &str| format!(r#"{{"version":{version},"file-name":"{name}","file-size":1}}"#);
        let two = format!("[{},{}]", commit(5, "5.a-b.json"), commit(4, "4.a-b.json"));
        assert_eq!(of(&two, ""), Ok((5, 2)));
        assert_eq!(of(&two, r#","latest-table-version":5"#), Ok((5, 2)));
        assert_eq!(of("[]", r#","latest-table-version":3"#), Ok((3, 0)));
        assert_eq!(of("null", r#","latest-table-version":0"#), Ok((0, 0)));
        assert!(of(&two, r#","latest-table-version":6"#).is_err());
        assert!(of(&format!("[{},{}]", commit(5, "5.json"), commit(3, "3.json")), "").is_err());
        assert!(of(&format!("[{},{}]", commit(5, "5.json"), commit(5, "6.json")), "").is_err());
        assert!(of("[]", "").is_err());
        for name in ["../x.json", "a/b.json", "x", "%2e%2e.json", ""] {
            assert!(of(&format!("[{}]", commit(1, name)), "").is_err(), "{name}");
        }
    }
}
