//! Region, endpoint and account of Glue, from `storage_options` under PyIceberg's names, or what S3 has.

use url::Url;

use crate::error::{Error, Result};
use crate::store::access::Access;
use crate::store::catalog::sign::{AwsKeys, Signer};
use crate::store::web::{Connection, Options, address};

/// See the module.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) endpoint: Url,
    pub(super) region: String,
    /// The account that the catalog belongs to, if not the caller's.
    pub(super) id: Option<String>,
    pub(super) signer: Signer,
    pub(super) connection: Connection,
}

impl Settings {
    /// Reads them from `options`; requests are signed with keys of `access`.
    ///
    /// # Errors
    /// [`Error::Config`] for a key that is missing or has a wrong value.
    pub(super) fn new(access: Access<'_>, options: Options<'_>) -> Result<Self> {
        let wrong = |problem: &str| Error::config("storage_options", problem);
        let keys = AwsKeys::find(access, options)?;
        let region = options.get(&["glue_region", "glue.region"]).map(str::to_owned).or_else(|| keys.region.clone());
        let region = region.ok_or_else(|| wrong("glue:// needs a region: give glue_region or aws_region"))?;
        // It becomes a part of a host's name.
        if !region.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
            return Err(wrong("glue_region is no region, such as eu-west-1"));
        }
        let given = options.get(&["glue_endpoint", "glue.endpoint"]).map(str::to_owned);
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        let endpoint = given.or_else(|| options.variable("AWS_ENDPOINT_URL_GLUE"));
        let endpoint = endpoint.unwrap_or_else(|| format!("https://glue.{region}.{domain}"));
        let endpoint = address(&endpoint).ok_or_else(|| wrong("glue_endpoint is no address of Glue"))?;
        let id = options.get(&["glue_id", "glue.id"]).map(str::to_owned);
        let signer = keys.signer("glue", &region);
        Ok(Self { endpoint, region, id, signer, connection: Connection::new(options)? })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn settings(pairs: &[(&str, &str)], variables: &[(&'static str, &'static str)]) -> Result<Settings> {
        let given: BTreeMap<String, String> =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        Settings::new(
            Access::from(&given),
            Options { given: &given, environment: &|name| variables.get(name).map(Into::into) },
        )
    }

    #[test]
    fn the_region_is_of_glue_or_of_s3() {
        let of = |pairs: &[(&str, &str)], variables: &[(&'static str, &'static str)]| {
            let found = settings(pairs, variables).unwrap();
            format!("{} {} {}", found.endpoint, found.region, found.id.unwrap_or_default())
        };
        assert_eq!(of(&[("aws_region", "eu-west-1")], &[]), "https://glue.eu-west-1.amazonaws.com/ eu-west-1 ");
        let both = [("region", "a-1"), ("glue.region", "cn-north-1"), ("Glue_Id", "12")];
        assert_eq!(of(&both, &[]), "https://glue.cn-north-1.amazonaws.com.cn/ cn-north-1 12");
        let variables = [("AWS_DEFAULT_REGION", "b-1"), ("AWS_ENDPOINT_URL_GLUE", "http://localhost:4566")];
        assert_eq!(of(&[], &variables), "http://localhost:4566/ b-1 ");
        assert_eq!(of(&[("glue_endpoint", "http://h:1")], &variables), "http://h:1/ b-1 ");
        for (pairs, told) in [
            (&[][..], "needs a region"),
            (&[("glue_region", "evil.example/")][..], "no region"),
            (&[("glue_region", "a-1"), ("glue_endpoint", "ftp://h")][..], "glue_endpoint"),
            (&[("glue_region", "a-1"), ("aws_secret_access_key", "sEcReT\n")][..], "line break"),
        ] {
            let error = settings(pairs, &[]).unwrap_err().to_string();
            assert!(error.contains(told) && !error.contains("sEcReT"), "{error}");
        }
    }
}
