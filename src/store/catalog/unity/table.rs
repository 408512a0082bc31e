//! A table of Unity Catalog: where it lies, which commits the catalog keeps, and temporary credentials for its files.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use object_store::CredentialProvider;
use reqwest::StatusCode;
use serde::de::DeserializeOwned;
use url::Url;

use super::answers::{Loaded, Table, Temporary, Way};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::store::catalog::client::{Call, Client};
use crate::store::catalog::table::{CatalogTable, Content};
use crate::store::catalog::{iceberg, names, refusal};
use crate::store::credentials::{CredentialSource, Credentials, store_error};
use crate::store::logs::Ratified;
use crate::store::web::{Options, below, is_near};

/// Path of the interface.
const API: &[&str] = &["api", "2.1", "unity-catalog"];

/// Options that authorize, for messages.
const REMEDY: &str = "databricks_token, or databricks_client_id and databricks_client_secret, in storage_options";

/// What temporary credentials need.
const GRANTS: &str =
    "they need EXTERNAL USE SCHEMA on the schema, SELECT on the table, and external data access of the metastore";

/// Looks up the table `name`.
///
/// # Errors
/// [`Error::Config`] for a malformed name, and for settings; [`Error::NotFound`] for a missing table; [`Error::Unsupported`] for what is not
/// read; [`Error::Store`].
pub(in crate::store::catalog) async fn table(name: &str, options: Options<'_>) -> Result<CatalogTable> {
    let Settings { host, auth, connection } = Settings::new(options)?;
    let [catalog, schema, table] = names::UNITY.parts(name)?;
    let client = Client::new(&host, &connection, auth, REMEDY)?;
    let api = below(&host, API);
    let full = [catalog.as_str(), &schema, &table].join(".");
    let found: Table = asked(&client, &below(&api, &["tables", &full]), name).await?;
    let way = found.way(name)?;
    let broken =
        |client: &Client, what: &str| client.broken("read the answer of the catalog", format!("{name}: {what}"));
    if way == Way::Iceberg {
        let named = iceberg::Named { name, namespace: vec![schema], table };
        return iceberg::load(client, &below(&api, &["iceberg-rest"]), Some(&catalog), named).await;
    }
    let location = found.storage_location.clone().filter(|location| !location.is_empty());
    let mut location = location.ok_or_else(|| broken(&client, "the table has no storage_location"))?;
    let content = match way {
        Way::CatalogManagedDelta => {
            let at = below(&api, &["delta", "v1", "catalogs", &catalog, "schemas", &schema, "tables", &table]);
            let (own, ratified) = commits(&client, &at, name).await?;
            location = own;
            Content::Delta(Some(ratified))
        }
        Way::Parquet => Content::Parquet(None),
        Way::Delta | Way::Iceberg => Content::Delta(None),
    };
    let near = is_near(host.host_str());
    let credentials = match found.table_id.filter(|id| !id.is_empty()) {
        Some(id) => {
            let at = below(&api, &["temporary-table-credentials"]);
            let body = serde_json::json!({ "table_id": id, "operation": "READ" }).to_string();
            Some(CredentialSource::new(Arc::new(TemporaryCredentials { client, at, body, name: name.to_owned() })))
        }
        None => return Err(broken(&client, "the table has no table_id")),
    };
    Ok(CatalogTable { credentials, ..CatalogTable::new(content, location, near) })
}

/// Gets `at`, which tells of the table `name`.
async fn asked<T: DeserializeOwned + Send + 'static>(client: &Client, at: &Url, name: &str) -> Result<T> {
    let answer = client.get(at, &[]).await?;
    if answer.status == StatusCode::NOT_FOUND {
        let reason = refusal::reason(&answer.body).map(|reason| format!("the catalog says {reason}"));
        return Err(Error::NotFound { what: format!("table {name}"), hint: reason.unwrap_or_default() });
    }
    if !answer.status.is_success() {
        return Err(client.failed(&format!("look up {name}"), &answer));
    }
    client.parsed(answer).await
}

/// The location of the table `name`, and the commits that its log lacks. Without them the log alone would give an old version.
async fn commits(client: &Client, at: &Url, name: &str) -> Result<(String, Ratified)> {
    let answer = client.get(at, &[]).await?;
    if matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED | StatusCode::NOT_IMPLEMENTED) {
        let what = format!(
            "{name}, a catalog-managed table of Delta Lake whose catalog lacks the interface for its commits (delta/v1),"
        );
        let hint = "read it with Spark and hand the rows over (docs/spark.md)";
        return Err(Error::unsupported(what, hint));
    }
    if !answer.status.is_success() {
        return Err(client.failed(&format!("ask for the commits of {name}"), &answer));
    }
    let loaded: Loaded = client.parsed(answer).await?;
    let wrong = |what: &str| client.broken("read the answer of the catalog", format!("{name}: {what}"));
    loaded.ratified().map_err(wrong)
}

/// Asks for credentials for the files of one table.
struct TemporaryCredentials {
    client: Client,
    at: Url,
    body: String,
    name: String,
}

impl fmt::Debug for TemporaryCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the catalog of {}", self.name)
    }
}

#[async_trait]
impl CredentialProvider for TemporaryCredentials {
    type Credential = Credentials;

    async fn get_credential(&self) -> object_store::Result<Arc<Credentials>> {
        self.ask().await.map(Arc::new).map_err(store_error)
    }
}

impl TemporaryCredentials {
    async fn ask(&self) -> Result<Credentials> {
        let headers = [("content-type", "application/json")];
        let answer = self.client.send(Call { url: &self.at, headers: &headers, body: Some(&self.body) }).await?;
        let operation = format!("get temporary credentials for {}", self.name);
        if matches!(answer.status, StatusCode::FORBIDDEN | StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND) {
            let reason = refusal::reason(&answer.body).map(|reason| format!(" ({reason})")).unwrap_or_default();
            return Err(self.client.broken(&operation, format!("it answers {}{reason}: {GRANTS}", answer.status)));
        }
        if !answer.status.is_success() {
            return Err(self.client.failed(&operation, &answer));
        }
        let temporary: Temporary = self.client.parsed(answer).await?;
        let unknown = "it gives none of S3, Azure or Google Cloud: give credentials in storage_options".to_owned();
        temporary.credentials().ok_or_else(|| self.client.broken(&operation, unknown))
    }
}
