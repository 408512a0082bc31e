//! The stores of clouds and of the web, the former over one source of credentials if there is one.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential};
use object_store::azure::{AzureConfigKey, AzureCredential, MicrosoftAzure, MicrosoftAzureBuilder};
use object_store::client::ClientConfigKey;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::{CredentialProvider, ObjectStore, ObjectStoreScheme, Result};
use url::{Position, Url};

use super::super::azure;
use super::super::client::Connector;
use super::super::transport::Redirects;
use super::renewing::{Renewing, RenewingParts};
use super::source::{CredentialSource, store_error};
use crate::error::Error;
use crate::store::multipart::{Opened, PartStore};

/// Gives a store its kind of credentials.
#[derive(Debug)]
struct Adapter(CredentialSource);

/// The three adapters differ in a type and a name.
macro_rules! adapter {
    ($name:ident, $credential:ty, $convert:ident) => {
        #[derive(Debug)]
        struct $name(Adapter);

        #[async_trait]
        impl CredentialProvider for $name {
            type Credential = $credential;

            async fn get_credential(&self) -> Result<Arc<$credential>> {
                let given = self.0.0.get().await.map_err(store_error)?;
                given.credentials.$convert().map(Arc::new).map_err(store_error)
            }
        }
    };
}

adapter!(Aws, AwsCredential, aws);
adapter!(Google, GcpCredential, gcp);
adapter!(Azure, AzureCredential, azure);

/// A store whose listings are as they come.
fn plain<T: ObjectStore>(store: Arc<T>) -> Arc<dyn ObjectStore> {
    store
}

/// See [`azure`].
fn listing(store: Arc<MicrosoftAzure>) -> Arc<dyn ObjectStore> {
    Arc::new(azure::Azure::new(store))
}

/// Returns true if `settings` of S3 say that it takes no conditional writes.
fn is_unconditional(settings: &[(String, String)]) -> bool {
    let of_it = |key: &str| matches!(key.to_ascii_lowercase().parse(), Ok(AmazonS3ConfigKey::ConditionalPut));
    let last = settings.iter().rev().find(|(key, _)| of_it(key));
    last.is_some_and(|(_, value)| value.trim() == "disabled")
}

/// Opens the store at `url` of `scheme`, whose addresses begin with `prefix`, with `settings`, and credentials from `source` if it is given.
/// The second is the same store, if its uploads have numbers.
pub(in crate::store) fn open(
    url: &Url,
    scheme: &ObjectStoreScheme,
    prefix: &Arc<str>,
    settings: Vec<(String, String)>,
    source: Option<&CredentialSource>,
) -> crate::error::Result<Result<Opened>> {
    // Requests to plain web servers have no credentials.
    let redirects = if *scheme == ObjectStoreScheme::Http { Redirects::Anywhere } else { Redirects::Within };
    // As object_store itself makes a store of an address; keys of others are passed over.
    macro_rules! builder {
        ($builder:ty, $key:ty, $url:expr) => {
            settings.into_iter().fold(
                <$builder>::new().with_url($url.to_string()).with_http_connector(Connector::new(prefix, redirects)),
                |builder, (key, value)| match key.to_ascii_lowercase().parse::<$key>() {
                    Ok(key) => builder.with_config(key, value),
                    Err(_) => builder,
                },
            )
        };
    }
    // Google takes no conditions there, and Azure has no such request.
    let takes_conditions = *scheme == ObjectStoreScheme::AmazonS3 && !is_unconditional(&settings);
    macro_rules! build {
        ($builder:ty, $key:ty, $provider:ident, $opened:expr) => {{
            let builder = builder!($builder, $key, url);
            let builder = match source {
                Some(source) => builder.with_credentials(Arc::new($provider(Adapter(source.clone())))),
                None => builder,
            };
            builder.build().map(|store| {
                let store = Arc::new(store);
                let opened = $opened(Arc::clone(&store));
                match source {
                    Some(source) => {
                        let parts = RenewingParts::new(store, source.clone());
                        let store = Renewing::new(opened, source.clone());
                        (
                            Arc::new(store) as Arc<dyn ObjectStore>,
                            Some(PartStore::new(Arc::new(parts)).with_conditions(takes_conditions)),
                        )
                    }
                    None => {
                        let parts = PartStore::new(store).with_conditions(takes_conditions);
                        (opened, Some(parts))
                    }
                }
            })
        }};
    }
    let store = match scheme {
        ObjectStoreScheme::AmazonS3 => build!(AmazonS3Builder, AmazonS3ConfigKey, Aws, plain),
        ObjectStoreScheme::GoogleCloudStorage => build!(GoogleCloudStorageBuilder, GoogleConfigKey, Google, plain),
        ObjectStoreScheme::MicrosoftAzure => build!(MicrosoftAzureBuilder, AzureConfigKey, Azure, listing),
        _ if source.is_some() => {
            let problem = format!("a store of {}:// takes no credentials; leave it out", url.scheme());
            return Err(Error::config("credential_provider", problem));
        }
        ObjectStoreScheme::Http => builder!(HttpBuilder, ClientConfigKey, &url[..Position::BeforePath])
            .build()
            .map(|store| (Arc::new(store) as Arc<dyn ObjectStore>, None)),
        _ => object_store::parse_url_opts(url, settings).map(|(store, _)| (store.into(), None)),
    };
    Ok(store)
}
