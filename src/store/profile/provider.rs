//! A profile as a provider of credentials.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use object_store::CredentialProvider;
use url::Url;

use super::super::credentials::Credentials;
use super::profiles::{Means, is_region};
use super::{process, requests};
use crate::error::{Error, Result, Source};

/// Most bytes of a file of a token or a login.
const MAX_BYTES: u64 = 1 << 20;

/// See the module.
pub(super) struct Provider {
    name: String,
    means: Means,
    region: String,
    /// Address of STS, if not AWS's own.
    sts: Option<Url>,
    /// The same of IAM Identity Center's portal.
    portal: Option<Url>,
}

impl Provider {
    /// Profile `name`, which gets credentials by `means`, and takes roles in `region`.
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid region or endpoint.
    pub(super) fn new(
        name: String,
        means: Means,
        region: String,
        sts: Option<String>,
        portal: Option<String>,
    ) -> Result<Self> {
        if !is_region(&region) {
            return Err(Error::config("storage_options", "aws_region is no region, such as eu-west-1"));
        }
        let url = |text: Option<String>| text.map(|text| Url::parse(&text)).transpose();
        let wrong = |_| Error::config("storage_options", "aws_endpoint_url_sts or AWS_ENDPOINT_URL_SSO is no address");
        Ok(Self { name, means, region, sts: url(sts).map_err(wrong)?, portal: url(portal).map_err(wrong)? })
    }

    fn by<'a>(&'a self, means: &'a Means) -> BoxFuture<'a, Result<Credentials, Source>> {
        // Boxed: a role may be taken by a role.
        async move {
            match means {
                Means::Keys { id, secret, token } => Ok(process::keys(id.clone(), secret.clone(), token.clone(), None)),
                Means::Process(command) => {
                    let command = command.clone();
                    tokio::task::spawn_blocking(move || process::run(&command)).await?
                }
                Means::Sso { cache, region, account, role, profile } => {
                    let login = format!("run aws sso login --profile {profile}");
                    let kept = read(cache).await.map_err(|error| format!("there is no login ({error}); {login}"))?;
                    let endpoint = match &self.portal {
                        Some(endpoint) => endpoint.clone(),
                        None => Url::parse(&format!("https://portal.sso.{region}.{}", domain(region)))?,
                    };
                    requests::sso(&endpoint, &kept, account, role, &login).await
                }
                Means::Role { arn, session, external_id, seconds, of } => {
                    let signer = self.by(of).await?.aws()?;
                    let mut parameters = vec![("RoleArn", arn.as_str()), ("RoleSessionName", session.as_str())];
                    parameters.extend(external_id.as_deref().map(|id| ("ExternalId", id)));
                    parameters.extend(seconds.as_deref().map(|seconds| ("DurationSeconds", seconds)));
                    requests::role(&self.sts()?, &self.region, "AssumeRole", &parameters, Some(&signer)).await
                }
                Means::WebIdentity { arn, session, token } => {
                    let token = read(token).await.map_err(|error| format!("{}: {error}", token.display()))?;
                    let token = String::from_utf8(token).map_err(|_| "the token of the web identity is no text")?;
                    let parameters = [
                        ("RoleArn", arn.as_str()),
                        ("RoleSessionName", session.as_str()),
                        ("WebIdentityToken", token.trim()),
                    ];
                    requests::role(&self.sts()?, &self.region, "AssumeRoleWithWebIdentity", &parameters, None).await
                }
            }
        }
        .boxed()
    }

    fn sts(&self) -> Result<Url, url::ParseError> {
        match &self.sts {
            Some(endpoint) => Ok(endpoint.clone()),
            None => Url::parse(&format!("https://sts.{}.{}", self.region, domain(&self.region))),
        }
    }
}

/// Domain of the services of `region`.
fn domain(region: &str) -> &'static str {
    if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
}

pub(super) async fn read(path: &Path) -> Result<Vec<u8>, Source> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || {
        let meta = std::fs::metadata(&path)?;
        if !meta.is_file() || meta.len() > MAX_BYTES {
            return Err(std::io::Error::other("it is no small file"));
        }
        std::fs::read(&path)
    });
    Ok(read.await??)
}

impl fmt::Debug for Provider {
    /// Its name in errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "profile {} of AWS", self.name)
    }
}

#[async_trait]
impl CredentialProvider for Provider {
    type Credential = Credentials;

    async fn get_credential(&self) -> object_store::Result<Arc<Credentials>> {
        let found = self.by(&self.means).await.map(Arc::new);
        found.map_err(|source| object_store::Error::Generic { store: "S3", source })
    }
}
