//! A table of a catalog: the location of its metadata, and credentials for its files.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::path::Path;
use reqwest::StatusCode;
use url::Url;

use super::answers::{self, Config, Loaded, StoreAccess};
use super::client::{Answer, Client};
use super::settings::{Settings, below};
use crate::error::{Error, Result};
use crate::store::credentials::{CredentialSource, Credentials, store_error};

/// Header that asks a catalog for credentials with a table.
const DELEGATION: (&str, &str) = ("X-Iceberg-Access-Delegation", "vended-credentials");

/// Separator of the levels of a namespace.
const LEVELS: &str = "\u{1f}";

/// A table as a catalog describes it.
#[derive(Debug)]
pub(in crate::store) struct CatalogTable {
    /// Address of its current metadata.
    pub(in crate::store) metadata: String,
    /// Options of its store; keys are names of `storage_options`.
    pub(in crate::store) settings: BTreeMap<String, String>,
    pub(in crate::store) credentials: Option<CredentialSource>,
    /// The catalog is on this machine, and may name files of it.
    pub(in crate::store) is_near: bool,
}

/// The levels of the namespace of `name`, such as `iceberg://db.part.table`, and the table's own name.
fn parts(name: &str) -> Option<(Vec<String>, String)> {
    let rest = name.split_once("://")?.1.trim_end_matches('/');
    let decoded = |part: &str| Path::from_url_path(part).ok().map(|part| part.to_string());
    let mut parts = rest.split('.').map(decoded).collect::<Option<Vec<String>>>()?;
    let table = parts.pop()?;
    let odd = |part: &String| part.is_empty() || part.contains(['/', '\u{1f}']);
    (!parts.is_empty() && !odd(&table) && !parts.iter().any(odd)).then_some((parts, table))
}

/// Loads the table `name`.
///
/// # Errors
/// [`Error::Config`] for a malformed name, and for settings; [`Error::NotFound`] for a missing table; [`Error::Store`].
pub(in crate::store) async fn table(name: &str, options: &BTreeMap<String, String>) -> Result<CatalogTable> {
    let settings = Settings::new(options)?;
    let (namespace, table) = parts(name).ok_or_else(|| {
        Error::config("urls", format!("{name} names no table of a catalog: write iceberg://namespace.table"))
    })?;
    let client = Client::new(&settings)?;
    let mut config = below(&settings.uri, &["v1", "config"]);
    if let Some(warehouse) = &settings.warehouse {
        config.query_pairs_mut().append_pair("warehouse", warehouse);
    }
    let answer = client.get(&config, &[]).await?;
    if !answer.status.is_success() {
        return Err(client.failed("ask for the configuration", &answer));
    }
    let wrong = |client: &Client, what: String| client.broken("read the answer of the catalog", what);
    let config: Config = answers::parse(&answer.body).map_err(|what| wrong(&client, what))?;
    let uri = match config.uri().map(|uri| Url::parse(uri.trim_end_matches('/'))) {
        None => settings.uri.clone(),
        Some(Ok(uri)) if uri.origin() == settings.uri.origin() => uri,
        // Tokens are for the host in `iceberg_uri`.
        Some(_) => return Err(wrong(&client, "it names another host for itself: give that as iceberg_uri".to_owned())),
    };
    let mut path = vec!["v1"];
    // A prefix may have several segments.
    path.extend(config.prefix().into_iter().flat_map(|prefix| prefix.split('/').filter(|part| !part.is_empty())));
    let namespace = namespace.join(LEVELS);
    path.extend(["namespaces", namespace.as_str(), "tables", table.as_str()]);
    let at = below(&uri, &path);
    let loaded = load(&client, &at, name).await?;
    let metadata = loaded.metadata_location.clone();
    let metadata = metadata.ok_or_else(|| wrong(&client, "a table has no metadata-location".to_owned()))?;
    let is_near = matches!(settings.uri.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
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
    Ok(CatalogTable { metadata, settings, credentials, is_near })
}

/// Loads the table `name` from `at`.
async fn load(client: &Client, at: &Url, name: &str) -> Result<Loaded> {
    let answer: Answer = client.get(at, &[DELEGATION]).await?;
    if answer.status == StatusCode::NOT_FOUND {
        let hint = answers::reason(&answer.body).map(|reason| format!("the catalog says {reason}")).unwrap_or_default();
        return Err(Error::NotFound { what: format!("table {name} of the catalog"), hint });
    }
    if !answer.status.is_success() {
        return Err(client.failed("load the table", &answer));
    }
    // The response has the whole metadata of the table: too much to parse on a thread that does I/O.
    let parsed = tokio::task::spawn_blocking(move || answers::parse(&answer.body)).await;
    let parsed = parsed.unwrap_or_else(|error| Err(format!("an answer was not read: {error}")));
    parsed.map_err(|what| client.broken("read the answer of the catalog", what))
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
        let loaded = load(&self.client, &self.at, &self.name).await.map_err(store_error)?;
        let credentials = loaded.store_access(&self.location).credentials;
        let none =
            || Error::config("storage_options", format!("the catalog vends no more credentials for {}", self.name));
        credentials.map(Arc::new).ok_or_else(|| store_error(none()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_namespace_and_a_table() {
        let found = |name| parts(name).map(|(levels, table)| (levels.join("/"), table));
        let is = |levels: &str, table: &str| Some((levels.to_owned(), table.to_owned()));
        assert_eq!(found("iceberg://db.t"), is("db", "t"));
        assert_eq!(found("iceberg://A.b%2Ec.T/"), is("A/b.c", "T"));
        for none in
            ["iceberg://t", "iceberg://", "iceberg://db.", "iceberg://.t", "iceberg://a/b.t", "iceberg://a%1Fb.t"]
        {
            assert_eq!(found(none), None, "{none}");
        }
    }
}
