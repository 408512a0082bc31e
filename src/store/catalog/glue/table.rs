//! A table of Glue: GetTable, GetPartitions, and the links between accounts.

use serde::de::DeserializeOwned;
use serde_json::json;
use url::Url;

use super::answers::{Found, Page, Table};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::store::access::Access;
use crate::store::catalog::client::{Auth, Call, Client};
use crate::store::catalog::hive_table::{MOST_PARTITIONS, Partition, Way};
use crate::store::catalog::table::CatalogTable;
use crate::store::catalog::{names, refusal};
use crate::store::web::{Options, is_near};

/// Options that authorize, for messages.
const REMEDY: &str =
    "the keys of AWS (docs/storage.md), glue_region and glue_id; the caller needs glue:GetTable and glue:GetPartitions";

/// Partitions of one page; Glue's own limit.
const PAGE: usize = 1000;

struct Glue {
    client: Client,
    endpoint: Url,
}

/// A table by its parts.
#[derive(Clone)]
struct Key {
    id: Option<String>,
    database: String,
    table: String,
}

/// Looks up the table `name`.
///
/// # Errors
/// [`Error::Config`] for a malformed name, and for settings; [`Error::NotFound`] for a missing table; [`Error::Unsupported`] for what is not
/// read; [`Error::Limit`]; [`Error::Store`].
pub(in crate::store::catalog) async fn table(
    name: &str,
    access: Access<'_>,
    options: Options<'_>,
) -> Result<CatalogTable> {
    let [database, table] = names::GLUE.parts(name)?;
    let Settings { endpoint, region, id, signer, connection } = Settings::new(access, options)?;
    let client = Client::new(&endpoint, &connection, Auth::Signed(Box::new(signer)), REMEDY)?;
    let glue = Glue { client, endpoint };
    let mut key = Key { id, database, table };
    let mut found = glue.find(&key, name).await?;
    if let Some(target) = found.target_table.take() {
        key = Key {
            id: target.catalog_id.or(key.id),
            database: target.database_name.unwrap_or(key.database),
            table: target.name.unwrap_or(key.table),
        };
        found = glue.find(&key, name).await?;
    }
    if found.target_table.is_some() {
        return Err(Error::unsupported(format!("{name}, a link to a link,"), "name the table that it stands for"));
    }
    let found = found.hive();
    let (content, location) = match found.way(name)? {
        Way::At(content, location) => (content, location),
        Way::Partitions(location) => {
            let partitions = glue.partitions(&key, name).await?;
            (found.partitioned(name, &location, partitions)?, location)
        }
    };
    let mut table = CatalogTable::new(content, location, is_near(glue.endpoint.host_str()));
    // As a rule buckets are where their catalog is.
    table.settings.insert("aws_region".to_owned(), region);
    Ok(table)
}

impl Glue {
    /// Asks for `action` with `body`, for the table `name`.
    async fn ask<T: DeserializeOwned + Send + 'static>(
        &self,
        action: &'static str,
        body: &serde_json::Value,
        name: &str,
    ) -> Result<T> {
        let headers = [("content-type", "application/x-amz-json-1.1"), ("x-amz-target", action)];
        let body = body.to_string();
        let answer = self.client.send(Call { url: &self.endpoint, headers: &headers, body: Some(&body) }).await?;
        if refusal::kind(&answer.body).as_deref() == Some("EntityNotFoundException") {
            let hint = refusal::reason(&answer.body).map(|reason| format!("Glue says {reason}")).unwrap_or_default();
            return Err(Error::NotFound { what: format!("table {name}"), hint });
        }
        if !answer.status.is_success() {
            return Err(self.client.failed(&format!("look up {name}"), &answer));
        }
        self.client.parsed(answer).await
    }

    async fn find(&self, key: &Key, name: &str) -> Result<Table> {
        let mut body = json!({ "DatabaseName": key.database, "Name": key.table });
        if let Some(id) = &key.id {
            body["CatalogId"] = json!(id);
        }
        Ok(self.ask::<Found>("AWSGlue.GetTable", &body, name).await?.table)
    }

    async fn partitions(&self, key: &Key, name: &str) -> Result<Vec<Partition>> {
        let mut body = json!({
            "DatabaseName": key.database, "TableName": key.table, "ExcludeColumnSchema": true, "MaxResults": PAGE
        });
        if let Some(id) = &key.id {
            body["CatalogId"] = json!(id);
        }
        let wrong = |what: &str| self.client.broken("read the answer of the catalog", format!("{name}: {what}"));
        let mut all = Vec::new();
        // Pages may be empty.
        for _ in 0..MOST_PARTITIONS {
            let page: Page = self.ask("AWSGlue.GetPartitions", &body, name).await?;
            let (partitions, next) = page.partitions().map_err(wrong)?;
            all.extend(partitions);
            if all.len() > MOST_PARTITIONS {
                return Err(wrong(&format!("it has more than {MOST_PARTITIONS} partitions")));
            }
            let Some(next) = next else { return Ok(all) };
            if body.get("NextToken").and_then(serde_json::Value::as_str) == Some(next.as_str()) {
                return Err(wrong("it gives the same page again"));
            }
            body["NextToken"] = json!(next);
        }
        Err(wrong("it has too many pages"))
    }
}
