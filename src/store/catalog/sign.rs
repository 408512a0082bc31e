//! Keys of AWS that requests to a catalog are signed with: the same credentials that S3 is read with.

use std::fmt;
use std::sync::Arc;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, AwsCredential, AwsCredentialProvider};
use reqwest::Method;
use reqwest::header::HeaderMap;
use url::Url;

use crate::error::{Error, Result, Source};
use crate::store::access::Access;
use crate::store::credentials::{CredentialSource, Given};
use crate::store::keys;
use crate::store::profile::{self, Chosen};
use crate::store::sigv4::{self, Scope};
use crate::store::web::Options;

/// Where keys come from.
enum Keys {
    /// A `credential_provider`, or a profile.
    Source(CredentialSource),
    /// Options, variables, the container or the instance.
    Store(AwsCredentialProvider),
}

/// Keys of AWS, and their region where options, variables or a profile name one.
pub(super) struct AwsKeys {
    keys: Keys,
    pub(super) region: Option<String>,
}

/// See the module.
pub(super) struct Signer {
    keys: Keys,
    scope: Scope,
}

/// What a request is signed with.
pub(super) struct Signing<'a> {
    credential: Arc<AwsCredential>,
    /// Keys that can be renewed.
    pub(super) given: Option<(&'a CredentialSource, Arc<Given>)>,
    signer: &'a Signer,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("scope", &self.scope).finish_non_exhaustive()
    }
}

impl AwsKeys {
    /// Finds keys as for a bucket of S3: of `access`, the environment, or a profile.
    ///
    /// # Errors
    /// As opening a bucket.
    pub(super) fn find(access: Access<'_>, options: Options<'_>) -> Result<Self> {
        let known = |(key, value): (&str, &str)| {
            let key = key.to_ascii_lowercase();
            key.parse::<AmazonS3ConfigKey>().ok().map(|_| (key, value.to_owned()))
        };
        // As the store takes them: the environment first, then options, which win.
        let variables = keys::aws().filter_map(|name| Some((name, options.variable(&name.to_ascii_uppercase())?)));
        let variables: Vec<_> = variables.filter_map(|(name, value)| known((name, &value))).collect();
        let given = options.given.iter().filter_map(|(key, value)| known((key, value)));
        let mut settings = variables;
        settings.extend(given);
        keys::check_headers(&settings)?;
        let mut source = access.credentials.cloned();
        if source.is_some() {
            keys::no_credentials(options.given)?;
        } else {
            let Chosen { source: chosen, settings: more } = profile::choose(options.given, options.environment)?;
            source = chosen;
            settings.splice(..0, more);
        }
        keys::check_addresses(keys::Cloud::S3, &settings, source.is_some())?;
        // The store is asked for its keys alone; no bucket is looked at.
        let builder =
            settings.into_iter().fold(AmazonS3Builder::new().with_bucket_name("bowstring"), |builder, (key, value)| {
                match key.parse::<AmazonS3ConfigKey>() {
                    Ok(key) => builder.with_config(key, value),
                    Err(_) => builder,
                }
            });
        let region = builder.get_config_value(&AmazonS3ConfigKey::Region);
        let keys = match source {
            Some(source) => Keys::Source(source),
            None => {
                let store = builder.build().map_err(|error| Error::Store {
                    operation: "find keys".to_owned(),
                    url: "AWS".to_owned(),
                    source: error.into(),
                })?;
                Keys::Store(Arc::clone(store.credentials()))
            }
        };
        Ok(Self { keys, region })
    }

    /// Signs for `service` in `region`.
    pub(super) fn signer(self, service: &str, region: &str) -> Signer {
        Signer { keys: self.keys, scope: Scope { service: service.to_owned(), region: region.to_owned() } }
    }
}

impl Signer {
    /// Keys to sign a request with.
    ///
    /// # Errors
    /// [`Error::Store`] and others of what provides them.
    pub(super) async fn keys(&self) -> Result<Signing<'_>> {
        match &self.keys {
            Keys::Source(source) => {
                let given = source.get().await?;
                let credential = given.credentials.aws()?.into();
                Ok(Signing { credential, given: Some((source, given)), signer: self })
            }
            Keys::Store(provider) => {
                let found = provider.get_credential().await;
                let credential = found.map_err(|error| Error::Store {
                    operation: "get keys of AWS to sign with".to_owned(),
                    url: self.scope.service.clone(),
                    source: error.into(),
                })?;
                Ok(Signing { credential, given: None, signer: self })
            }
        }
    }
}

impl Signing<'_> {
    /// The token that requests have in them, or nothing; keys themselves never are.
    pub(super) fn session_token(&self) -> &str {
        self.credential.token.as_deref().unwrap_or_default()
    }

    /// `headers` of this request, and those that it is signed with.
    pub(super) fn headers(
        &self,
        request: (&Method, &Url),
        headers: HeaderMap,
        body: &[u8],
    ) -> Result<HeaderMap, Source> {
        sigv4::signed(&self.credential, &self.signer.scope, request, headers, body)
    }
}

/// Region and service in the host of one of AWS's own endpoints, such as `glue.eu-west-1.amazonaws.com`.
pub(super) fn of_host(host: &str) -> Option<(&str, &str)> {
    let name = host.strip_suffix(".amazonaws.com").or_else(|| host.strip_suffix(".amazonaws.com.cn"))?;
    let mut parts = name.split('.');
    let (service, region) = (parts.next()?, parts.next()?);
    parts.next().is_none().then_some((service, region))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_of_aws_say_their_service_and_region() {
        assert_eq!(of_host("glue.eu-west-1.amazonaws.com"), Some(("glue", "eu-west-1")));
        assert_eq!(of_host("s3tables.cn-north-1.amazonaws.com.cn"), Some(("s3tables", "cn-north-1")));
        for other in ["localhost", "amazonaws.com", "x.execute-api.eu-west-1.amazonaws.com", "glue.amazonaws.com"] {
            assert_eq!(of_host(other), None, "{other}");
        }
    }
}
