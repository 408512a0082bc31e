//! A table of a catalog: the location of its metadata, and credentials for its files.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use object_store::CredentialProvider;
use reqwest::StatusCode;
use url::Url;

use super::answers::{Config, Loaded};
use super::settings::Settings;
use crate::error::{Error, Result};
use crate::store::access::Access;
use crate::store::catalog::client::{Auth, Client};
use crate::store::catalog::table::{CatalogTable, Content, StoreAccess};
use crate::store::catalog::{names, refusal};
use crate::store::credentials::{CredentialSource, Credentials, store_error};
use crate::store::web::{Answer, Options, below, is_near};

/// Header that asks a catalog for credentials with a table.
const DELEGATION: (&str, &str) = ("X-Iceberg-Access-Delegation", "vended-credentials");

/// A table of a catalog by its parts.
#[derive(Debug)]
pub(in crate::store::catalog) struct Named<'a> {
    /// The name as the user gave it, for messages.
    pub(in crate::store::catalog) name: &'a str,
    pub(in crate::store::catalog) namespace: Vec<String>,
    pub(in crate::store::catalog) table: String,
}

/// Looks up the table `name`.
///
/// # Errors
/// [`Error::Config`] for a malformed name, and for settings; [`Error::NotFound`] for a missing table; [`Error::Store`].
pub(in crate::store::catalog) async fn table(
    name: &str,
    access: Access<'_>,
    options: Options<'_>,
) -> Result<CatalogTable> {
    let Settings { uri, warehouse, auth, connection } = Settings::new(access, options)?;
    let (namespace, table) = names::ICEBERG.levels(name)?;
    let remedy = match &auth {
        Auth::Signed(_) => "iceberg_rest_signing_name, iceberg_rest_signing_region and the keys of AWS",
        _ => "iceberg_token and iceberg_credential in storage_options",
    };
    let client = Client::new(&uri, &connection, auth, remedy)?;
    load(client, &uri, warehouse.as_deref(), Named { name, namespace, table }).await
}

/// Loads the table `named` from the catalog at `uri`, which `client` asks.
///
/// # Errors
/// As [`table`].
pub(in crate::store::catalog) async fn load(
    client: Client,
    uri: &Url,
    warehouse: Option<&str>,
    named: Named<'_>,
) -> Result<CatalogTable> {
    let Named { name, namespace, table } = named;
    let mut config = below(uri, &["v1", "config"]);
    if let Some(warehouse) = warehouse {
        config.query_pairs_mut().append_pair("warehouse", warehouse);
    }
    let answer = client.get(&config, &[]).await?;
    if !answer.status.is_success() {
        return Err(client.failed("ask for the configuration", &answer));
    }
    let wrong = |client: &Client, what: &str| client.broken("read the answer of the catalog", what.to_owned());
    let config: Config = client.parsed(answer).await?;
    let own = match config.uri().map(|uri| Url::parse(uri.trim_end_matches('/'))) {
        None => uri.clone(),
        Some(Ok(own)) if own.origin() == uri.origin() => own,
        // Tokens are for the host that the user named.
        Some(_) => return Err(wrong(&client, "it names another host for itself: give that as iceberg_uri")),
    };
    let mut at = below(&own, &["v1"]);
    if let Some(prefix) = config.prefix() {
        // It may have several segments, and be percent-encoded: one of S3 Tables is the name of a bucket.
        at.set_path(&format!("{}/{}", at.path(), prefix.trim_matches('/')));
    }
    let namespace = namespace.join(&config.separator());
    let at = below(&at, &["namespaces", namespace.as_str(), "tables", table.as_str()]);
    let loaded = loaded(&client, &at, name).await?;
    let metadata = loaded.metadata_location.clone();
    let metadata = metadata.ok_or_else(|| wrong(&client, "a table has no metadata-location"))?;
    let StoreAccess { settings, credentials } = loaded.store_access(&metadata);
    let credentials = credentials.map(|first| {
        let (client, name, location) = (Arc::new(client), name.to_owned(), metadata.clone());
        CredentialSource::new(Arc::new(VendedCredentials {
            client,
            at,
            name,
            location,
            first: Mutex::new(Some(first)),
        }))
    });
    let table = CatalogTable::new(Content::Iceberg, metadata, is_near(uri.host_str()));
    Ok(CatalogTable { settings, credentials, ..table })
}

/// Loads the table `name` from `at`.
async fn loaded(client: &Client, at: &Url, name: &str) -> Result<Loaded> {
    let answer: Answer = client.get(at, &[DELEGATION]).await?;
    if answer.status == StatusCode::NOT_FOUND {
        let hint = refusal::reason(&answer.body).map(|reason| format!("the catalog says {reason}")).unwrap_or_default();
        return Err(Error::NotFound { what: format!("table {name} of the catalog"), hint });
    }
    if !answer.status.is_success() {
        return Err(client.failed("load the table", &answer));
    }
    client.parsed(answer).await
}

/// Provides vended credentials: those of the first response, then new ones from each further request.
struct VendedCredentials {
    client: Arc<Client>,
    at: Url,
    name: String,
    location: String,
    first: Mutex<Option<Credentials>>,
}

impl fmt::Debug for VendedCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the catalog of {}", self.name)
    }
}

#[async_trait]
impl CredentialProvider for VendedCredentials {
    type Credential = Credentials;

    async fn get_credential(&self) -> object_store::Result<Arc<Credentials>> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(first) = first {
            return Ok(Arc::new(first));
        }
        let loaded = loaded(&self.client, &self.at, &self.name).await.map_err(store_error)?;
        let credentials = loaded.store_access(&self.location).credentials;
        let none =
            || Error::config("storage_options", format!("the catalog vends no more credentials for {}", self.name));
        credentials.map(Arc::new).ok_or_else(|| store_error(none()))
    }
}
