//! Credentials as users give them, by the names of `storage_options`, and as each store takes them.

use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;

use object_store::aws::{AmazonS3ConfigKey, AwsCredential};
use object_store::azure::{AzureAccessKey, AzureConfigKey, AzureCredential, split_sas};
use object_store::gcp::{GcpCredential, GoogleConfigKey};

use crate::error::{Error, Result};
use crate::nearest::nearest;

/// Credentials of a store, and until when they are good.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    values: BTreeMap<String, String>,
    expires: Option<SystemTime>,
}

impl Credentials {
    /// Credentials by the names of `storage_options`: `access_key_id`, `secret_access_key` and `token` for S3; `bearer_token` or `token` for
    /// Google and the Hugging Face Hub; `token`, `sas_token` or `access_key` for Azure. With the store before them (`aws_access_key_id`)
    /// or without. They are good until `expires`, or until they are refused.
    pub fn new(values: impl IntoIterator<Item = (String, String)>, expires: Option<SystemTime>) -> Self {
        let values = values.into_iter().map(|(key, value)| (key.to_ascii_lowercase(), value)).collect();
        Self { values, expires }
    }

    /// Time until which they are good, if that is known.
    pub fn expires(&self) -> Option<SystemTime> {
        self.expires
    }

    /// Checks that all consist of characters that a header may have: a store would not explain the error.
    fn check(&self) -> Result<()> {
        let odd = self.values.iter().find(|(_, value)| !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        odd.map_or(Ok(()), |(key, _)| {
            let key: String = key.chars().take(64).collect();
            Err(Error::config(
                "credential_provider",
                format!("the {key} that it gives has a line break, or no plain letters"),
            ))
        })
    }

    pub(in crate::store) fn aws(&self) -> Result<AwsCredential> {
        self.check()?;
        const NAMES: &[&str] = &["access_key_id", "secret_access_key", "token"];
        let [mut id, mut secret, mut token] = [None, None, None];
        for (key, value) in &self.values {
            match key.parse() {
                Ok(AmazonS3ConfigKey::AccessKeyId) => id = Some(value.clone()),
                Ok(AmazonS3ConfigKey::SecretAccessKey) => secret = Some(value.clone()),
                Ok(AmazonS3ConfigKey::Token) => token = Some(value.clone()),
                _ => return Err(odd(key, "S3", NAMES)),
            }
        }
        let (key_id, secret_key) =
            id.zip(secret).ok_or_else(|| lacking("S3", "access_key_id and secret_access_key"))?;
        Ok(AwsCredential { key_id, secret_key, token })
    }

    pub(super) fn gcp(&self) -> Result<GcpCredential> {
        self.check()?;
        let mut bearer = None;
        for (key, value) in &self.values {
            match key.parse() {
                Ok(GoogleConfigKey::BearerToken) => bearer = Some(value.clone()),
                _ if key == "token" => bearer = Some(value.clone()),
                _ => return Err(odd(key, "Google's store", &["bearer_token", "token"])),
            }
        }
        bearer.map(|bearer| GcpCredential { bearer }).ok_or_else(|| lacking("Google's store", "bearer_token"))
    }

    pub(super) fn azure(&self) -> Result<AzureCredential> {
        self.check()?;
        const NAMES: &[&str] = &["bearer_token", "token", "sas_token", "access_key", "account_key"];
        // Messages of these errors may quote secrets.
        let wrong = |name: &str| Error::config("credential_provider", format!("its {name} is none of Azure"));
        let mut found = None;
        for (key, value) in &self.values {
            let credential = match key.parse() {
                Ok(AzureConfigKey::Token) => AzureCredential::BearerToken(value.clone()),
                Ok(AzureConfigKey::SasKey) => {
                    AzureCredential::SASToken(split_sas(value).map_err(|_| wrong("sas_token"))?)
                }
                Ok(AzureConfigKey::AccessKey) => {
                    AzureCredential::AccessKey(AzureAccessKey::try_new(value).map_err(|_| wrong("access_key"))?)
                }
                // Keys that polars adds.
                Ok(AzureConfigKey::AccountName) => continue,
                _ => return Err(odd(key, "Azure", NAMES)),
            };
            if found.replace(credential).is_some() {
                let problem =
                    "it gives several credentials of Azure: give one of bearer_token, sas_token and access_key";
                return Err(Error::config("credential_provider", problem));
            }
        }
        found.ok_or_else(|| lacking("Azure", "bearer_token, sas_token or access_key"))
    }

    /// The token of the Hugging Face Hub.
    pub(in crate::store) fn hub(&self) -> Result<String> {
        const NAMES: &[&str] = &["hf_token", "token"];
        if let Some(key) = self.values.keys().find(|key| !NAMES.contains(&key.as_str())) {
            return Err(odd(key, "the Hub", NAMES));
        }
        self.values.values().next().cloned().ok_or_else(|| lacking("the Hub", "token"))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.values.keys().collect();
        f.debug_struct("Credentials").field("values", &names).field("expires", &self.expires).finish()
    }
}

fn odd(key: &str, store: &str, names: &'static [&'static str]) -> Error {
    // It may be a value that lost its key.
    let shown: String = key.chars().take(64).collect();
    let like = nearest(&shown, names.iter().copied()).map(|name| format!("; {name:?} is like it")).unwrap_or_default();
    let problem =
        format!("it gives {shown:?}, which is no credential of {store}: those are {}{like}", names.join(", "));
    Error::config("credential_provider", problem)
}

fn lacking(store: &str, names: &str) -> Error {
    Error::config("credential_provider", format!("it gives no credentials of {store}: {names}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Credentials {
        Credentials::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())), None)
    }

    #[test]
    fn every_store_takes_its_own_names_with_and_without_it_before_them() {
        for token in ["token", "session_token", "aws_session_token"] {
            let found = of(&[("AWS_ACCESS_KEY_ID", "i"), ("secret_access_key", "s"), (token, "t")]).aws().unwrap();
            assert_eq!(
                (found.key_id.as_str(), found.secret_key.as_str(), found.token.as_deref()),
                ("i", "s", Some("t"))
            );
        }
        for name in ["bearer_token", "google_bearer_token", "token"] {
            assert_eq!(of(&[(name, "b")]).gcp().unwrap().bearer, "b");
        }
        for name in ["bearer_token", "azure_storage_token", "token"] {
            assert_eq!(of(&[(name, "b")]).azure().unwrap(), AzureCredential::BearerToken("b".to_owned()));
        }
        let sas = of(&[("sas_token", "?sv=1&sig=x%2B")]).azure().unwrap();
        let pairs = vec![("sv".to_owned(), "1".to_owned()), ("sig".to_owned(), "x+".to_owned())];
        assert_eq!(sas, AzureCredential::SASToken(pairs));
        assert!(matches!(of(&[("account_key", "c2VjcmV0")]).azure().unwrap(), AzureCredential::AccessKey(_)));
        assert_eq!(of(&[("hf_token", "h")]).hub().unwrap(), "h");
    }

    #[test]
    fn what_is_lacking_or_odd_is_told_without_a_value() {
        let told = |error: Error| {
            assert!(matches!(error, Error::Config { option: "credential_provider", .. }), "{error}");
            assert!(!error.to_string().contains("sEcReT"), "{error}");
            error.to_string()
        };
        assert!(told(of(&[("access_key_id", "sEcReT")]).aws().unwrap_err()).contains("secret_access_key"));
        assert!(told(of(&[("acces_key_id", "sEcReT")]).aws().unwrap_err()).contains("\"access_key_id\" is like it"));
        assert!(told(of(&[("region", "sEcReT")]).aws().unwrap_err()).contains("no credential of S3"));
        assert!(told(of(&[]).gcp().unwrap_err()).contains("bearer_token"));
        assert!(told(of(&[("access_key", "sEcReT!")]).azure().unwrap_err()).contains("access_key"));
        assert!(told(of(&[("token", "sEcReT"), ("sas_token", "a=sEcReT")]).azure().unwrap_err()).contains("one of"));
        assert!(told(of(&[]).hub().unwrap_err()).contains("token"));
        let broken = of(&[("access_key_id", "i"), ("secret_access_key", "s"), ("token", "sEcReT\n")]);
        assert!(told(broken.aws().unwrap_err()).contains("the token that it gives"));
        assert!(!format!("{:?}", of(&[("token", "sEcReT")])).contains("sEcReT"));
    }
}
