//! The names of `storage_options`: those of object_store for any of its stores, of the Hugging Face Hub, of HDFS and of
//! catalogs, and `hedge`, which is of all remote stores. Others are errors, since object_store ignores them.
//!
//! One dictionary may serve addresses in several clouds, so a key of any store is known, whatever the address; a store ignores the keys
//! of others.

use std::collections::BTreeMap;

#[cfg(feature = "cloud")]
use object_store::ObjectStoreScheme;
#[cfg(feature = "cloud")]
use url::Url;

#[cfg(feature = "cloud")]
use super::profile::is_region;
use crate::error::{Error, Result};
use crate::nearest::nearest;

/// Refuses keys that no store knows.
///
/// # Errors
/// [`Error::Config`] naming the key, and the nearest known one.
pub(super) fn check(options: &BTreeMap<String, String>) -> Result<()> {
    let Some(key) = options.keys().find(|key| !known(key) && !is_of_hdfs(key)) else { return Ok(()) };
    // It may be a value that lost its key, and a secret.
    let shown: String = key.chars().take(64).collect();
    let forms = NAMES.iter().flat_map(|name| [*name, short(name)]).chain(HDFS).chain(CATALOGS.iter().copied());
    let problem = match nearest(key, forms) {
        Some(name) => format!("no store knows the key {shown:?}; {name:?} is like it"),
        None => format!("no store knows the key {shown:?}; keys are those of object_store, e.g. {:?}", NAMES[0]),
    };
    Err(Error::config("storage_options", problem))
}

/// The key that says whether reads that are late are requested a second time.
const HEDGE: &str = "hedge";

/// Returns true unless `options` say that no read is requested a second time.
///
/// # Errors
/// [`Error::Config`] for a value that is neither true nor false.
pub(super) fn hedges(options: &BTreeMap<String, String>) -> Result<bool> {
    let Some((_, value)) = options.iter().find(|(key, _)| key.eq_ignore_ascii_case(HEDGE)) else { return Ok(true) };
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" => Ok(true),
        "false" | "0" | "off" | "no" => Ok(false),
        _ => Err(Error::config("storage_options", "hedge is true or false: whether late reads are requested twice")),
    }
}

/// Keys that only HDFS uses; known in builds without it, so that the error is that HDFS is missing.
const HDFS: [&str; 5] =
    ["hdfs_user", "hdfs_conf_dir", "hdfs_kerberos_principal", "hdfs_kerberos_keytab", "hdfs_kerberos_cache"];

/// Tests for a key of HDFS or of Hadoop's configuration.
fn is_of_hdfs(key: &str) -> bool {
    HDFS.iter().any(|known| key.eq_ignore_ascii_case(known)) || is_of_hadoop(key)
}

/// Tests for a key of Hadoop's configuration, which has hundreds.
pub(super) fn is_of_hadoop(key: &str) -> bool {
    ["dfs.", "fs.", "hadoop.", "ipc."].iter().any(|start| key.starts_with(start))
}

/// Keys that only catalogs use.
#[cfg(feature = "cloud")]
const CATALOGS: &[&str] = super::catalog::KEYS;
#[cfg(not(feature = "cloud"))]
const CATALOGS: &[&str] = &[];

/// Names of options of S3, which are those of variables too.
#[cfg(feature = "cloud")]
pub(super) fn aws() -> impl Iterator<Item = &'static str> {
    NAMES.iter().copied().filter(|name| name.starts_with("aws_"))
}

#[cfg(feature = "cloud")]
fn known(key: &str) -> bool {
    use object_store::ClientConfigKey;
    use object_store::aws::AmazonS3ConfigKey;
    use object_store::azure::AzureConfigKey;
    use object_store::gcp::GoogleConfigKey;

    let key = key.to_ascii_lowercase();
    key.parse::<AmazonS3ConfigKey>().is_ok()
        || key.parse::<GoogleConfigKey>().is_ok()
        || key.parse::<AzureConfigKey>().is_ok()
        || key.parse::<ClientConfigKey>().is_ok()
        || super::hub::KEYS.contains(&key.as_str())
        || CATALOGS.contains(&key.as_str())
        || key == "aws_profile"
        || key == HEDGE
}

/// Tests whether both keys name the same option.
#[cfg(feature = "cloud")]
pub(super) fn is_same(one: &str, other: &str) -> bool {
    use object_store::aws::AmazonS3ConfigKey;
    use object_store::gcp::GoogleConfigKey;

    let (one, other) = (one.to_ascii_lowercase(), other.to_ascii_lowercase());
    let s3 = |key: &str| key.parse::<AmazonS3ConfigKey>().ok();
    let google = |key: &str| key.parse::<GoogleConfigKey>().ok();
    one == other
        || (s3(&one).is_some() && s3(&one) == s3(&other))
        || (google(&one).is_some() && google(&one) == google(&other))
}

/// Returns true if there are credentials among `options`, of whatever cloud.
#[cfg(feature = "cloud")]
pub(super) fn has_credentials(options: &BTreeMap<String, String>) -> bool {
    options.keys().any(|key| is_credential(key))
}

/// Refuses credentials among `options` if a provider gives them.
///
/// # Errors
/// [`Error::Config`] naming the key.
#[cfg(feature = "cloud")]
pub(super) fn no_credentials(options: &BTreeMap<String, String>) -> Result<()> {
    let Some(key) = options.keys().find(|key| is_credential(key)) else { return Ok(()) };
    let problem = format!("storage_options have {key:?}: give either credentials or what provides them");
    Err(Error::config("credential_provider", problem))
}

/// Refuses credentials of S3 among `settings` that no header can have: object_store would panic.
///
/// # Errors
/// [`Error::Config`] naming the key.
#[cfg(feature = "cloud")]
pub(super) fn check_headers(settings: &[(String, String)]) -> Result<()> {
    use object_store::aws::AmazonS3ConfigKey::{AccessKeyId, SecretAccessKey, Token};

    let is_one = |key: &str| matches!(key.to_ascii_lowercase().parse(), Ok(AccessKeyId | SecretAccessKey | Token));
    let plain = |value: &str| value.bytes().all(|byte| byte.is_ascii_graphic());
    let Some((key, _)) = settings.iter().find(|(key, value)| is_one(key) && !plain(value)) else { return Ok(()) };
    let problem = format!("the value of {key:?} has a blank, a line break, or a character that is not ASCII");
    Err(Error::config("storage_options", problem))
}

/// Refuses addresses and regions of `cloud` among `settings` that no request can have: object_store would panic. Those of services that give
/// credentials are not asked if a provider gives some, which is `provided`.
///
/// # Errors
/// [`Error::Config`] naming the key.
#[cfg(feature = "cloud")]
pub(super) fn check_addresses(cloud: Cloud, settings: &[(String, String)], provided: bool) -> Result<()> {
    use object_store::aws::AmazonS3ConfigKey as S3;
    use object_store::azure::AzureConfigKey as Azure;
    use object_store::gcp::GoogleConfigKey as Google;

    let wrong = |key: &str, what: &str| {
        let problem = format!("{key:?}, of storage_options, a variable or a profile, is no {what}");
        Err(Error::config("storage_options", problem))
    };
    let is_whole = |(key, _): &(String, String)| {
        let name = key.to_ascii_lowercase();
        match cloud {
            Cloud::S3 => matches!(name.parse(), Ok(S3::AccessKeyId | S3::SecretAccessKey | S3::SkipSignature)),
            Cloud::Google => false,
            Cloud::Azure => {
                matches!(name.parse(), Ok(Azure::AccessKey | Azure::SasKey | Azure::Token | Azure::SkipSignature))
            }
        }
    };
    let asks = !provided && !settings.iter().any(is_whole);
    // Of several settings of a key the last one counts, and some keys give way to others.
    let settings: BTreeMap<String, (&str, &str)> =
        settings.iter().map(|(key, value)| (cloud.canonical(key), (key.as_str(), value.as_str()))).collect();
    let has = |key: S3| settings.contains_key(key.as_ref());
    for (name, (key, value)) in &settings {
        let is_address = match cloud {
            Cloud::S3 => match name.parse() {
                Ok(S3::Endpoint) => !has(S3::S3Endpoint),
                Ok(S3::S3Endpoint) => true,
                Ok(S3::StsEndpoint | S3::MetadataEndpoint) => asks,
                Ok(S3::DefaultRegion) if has(S3::Region) => false,
                // Some set a variable to nothing where the server has no regions.
                Ok(S3::Region | S3::DefaultRegion) if !value.is_empty() && !is_region(value) => {
                    return wrong(key, "region, such as eu-west-1");
                }
                _ => false,
            },
            Cloud::Google => matches!(name.parse(), Ok(Google::BaseUrl)),
            Cloud::Azure => match name.parse() {
                Ok(Azure::Endpoint) => true,
                Ok(Azure::AuthorityHost | Azure::MsiEndpoint) => asks,
                _ => false,
            },
        };
        // object_store appends to it.
        let url = Url::parse(&format!("{value}/")).ok().filter(|_| value.bytes().all(|byte| byte.is_ascii_graphic()));
        let is_one = url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
        if is_address && !is_one {
            return wrong(key, "address with its scheme, such as http://localhost:9000");
        }
    }
    Ok(())
}

/// Returns true if `key` is a name of a credential.
#[cfg(feature = "cloud")]
pub(super) fn is_credential(key: &str) -> bool {
    Cloud::ALL.into_iter().any(|cloud| cloud.is_credential(key)) || key.eq_ignore_ascii_case("hf_token")
}

/// Local files have none.
#[cfg(not(feature = "cloud"))]
pub(super) fn is_credential(_: &str) -> bool {
    false
}

/// A cloud whose credentials may come from options or from variables.
#[cfg(feature = "cloud")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cloud {
    S3,
    Google,
    Azure,
}

#[cfg(feature = "cloud")]
impl Cloud {
    const ALL: [Self; 3] = [Self::S3, Self::Google, Self::Azure];

    /// The cloud of stores of `scheme`, if they are of one.
    pub(super) fn of(scheme: &ObjectStoreScheme) -> Option<Self> {
        match scheme {
            ObjectStoreScheme::AmazonS3 => Some(Self::S3),
            ObjectStoreScheme::GoogleCloudStorage => Some(Self::Google),
            ObjectStoreScheme::MicrosoftAzure => Some(Self::Azure),
            _ => None,
        }
    }

    /// Start of the names of its variables.
    pub(super) fn start(self) -> &'static str {
        match self {
            Self::S3 => "AWS_",
            Self::Google => "GOOGLE_",
            Self::Azure => "AZURE_",
        }
    }

    /// Returns true if `key` is a name of one of its credentials.
    pub(super) fn is_credential(self, key: &str) -> bool {
        use object_store::aws::AmazonS3ConfigKey as S3;
        use object_store::azure::AzureConfigKey as Azure;
        use object_store::gcp::GoogleConfigKey as Google;

        let key = key.to_ascii_lowercase();
        match self {
            Self::S3 => {
                let of = [S3::AccessKeyId, S3::SecretAccessKey, S3::Token, S3::WebIdentityTokenFile, S3::SkipSignature];
                key == "aws_profile" || key.parse().is_ok_and(|key| of.contains(&key))
            }
            Self::Google => {
                let of = [
                    Google::ServiceAccount,
                    Google::ServiceAccountKey,
                    Google::ApplicationCredentials,
                    Google::BearerToken,
                ];
                key.parse().is_ok_and(|key| of.contains(&key))
            }
            Self::Azure => {
                let of =
                    [Azure::AccessKey, Azure::SasKey, Azure::Token, Azure::ClientSecret, Azure::FederatedTokenFile];
                key.parse().is_ok_and(|key| of.contains(&key))
            }
        }
    }

    /// `key` in the form that object_store gives it, or in lower case if it is of no store.
    fn canonical(self, key: &str) -> String {
        use object_store::aws::AmazonS3ConfigKey as S3;
        use object_store::azure::AzureConfigKey as Azure;
        use object_store::gcp::GoogleConfigKey as Google;

        let name = key.to_ascii_lowercase();
        let known = match self {
            Self::S3 => name.parse::<S3>().ok().map(|key| key.as_ref().to_owned()),
            Self::Google => name.parse::<Google>().ok().map(|key| key.as_ref().to_owned()),
            Self::Azure => name.parse::<Azure>().ok().map(|key| key.as_ref().to_owned()),
        };
        known.unwrap_or(name)
    }

    /// Returns true if `key` is that of an endpoint of the store itself.
    pub(super) fn is_endpoint(self, key: &str) -> bool {
        ["aws_endpoint", "aws_endpoint_url_s3", "google_base_url", "azure_storage_endpoint", "azure_endpoint"]
            .contains(&self.canonical(key).as_str())
    }

    /// Returns true if `options` name the endpoint or the region that the variable `key` is about, under any name: some names would win over
    /// others, wherever they come from.
    pub(super) fn gives_way(self, key: &str, options: &BTreeMap<String, String>) -> bool {
        let is_region = |key: &str| ["aws_region", "aws_default_region"].contains(&self.canonical(key).as_str());
        self.is_endpoint(key) && options.keys().any(|key| self.is_endpoint(key))
            || is_region(key) && options.keys().any(|key| is_region(key))
    }

    /// Returns true if `options` have credentials of it, or say that requests are not signed.
    pub(super) fn has_credentials(self, options: &BTreeMap<String, String>) -> bool {
        options.iter().any(|(key, value)| {
            let skips = ["aws_skip_signature", "google_skip_signature", "azure_skip_signature"];
            // That requests are signed does not say with what.
            if skips.contains(&self.canonical(key).as_str()) { is_yes(value) } else { self.is_credential(key) }
        })
    }

    /// Returns true if `options` say who reads its stores: by [credentials](Self::has_credentials), or by an identity of this machine.
    pub(super) fn has_identity(self, options: &BTreeMap<String, String>) -> bool {
        use object_store::azure::AzureConfigKey as Azure;

        let names = |key: &str, value: &str| match key.to_ascii_lowercase().parse() {
            Ok(Azure::UseAzureCli) => is_yes(value),
            Ok(key) => [Azure::MsiEndpoint, Azure::ClientId].contains(&key),
            Err(_) => false,
        };
        self.has_credentials(options) || self == Self::Azure && options.iter().any(|(key, value)| names(key, value))
    }
}

#[cfg(feature = "cloud")]
fn is_yes(value: &str) -> bool {
    ["1", "true", "on", "yes", "y"].iter().any(|yes| value.eq_ignore_ascii_case(yes))
}

/// Local files take no options.
#[cfg(not(feature = "cloud"))]
fn known(_: &str) -> bool {
    false
}

/// The name without its store, which object_store takes too.
fn short(name: &'static str) -> &'static str {
    let rest = ["aws_", "google_", "azure_storage_", "azure_"].iter().find_map(|store| name.strip_prefix(store));
    rest.filter(|rest| known(rest)).unwrap_or(name)
}

/// Names that an unknown key may have meant: object_store can tell whether it knows a name, but does not list those it knows.
const NAMES: &[&str] = &[
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_profile",
    "aws_region",
    "aws_default_region",
    "aws_bucket",
    "aws_endpoint",
    "aws_endpoint_url",
    "aws_endpoint_url_s3",
    "aws_endpoint_url_sts",
    "aws_allow_http",
    "aws_imdsv1_fallback",
    "aws_virtual_hosted_style_request",
    "aws_s3_express",
    "aws_metadata_endpoint",
    "aws_unsigned_payload",
    "aws_checksum_algorithm",
    "aws_container_credentials_relative_uri",
    "aws_container_credentials_full_uri",
    "aws_container_authorization_token_file",
    "aws_web_identity_token_file",
    "aws_role_arn",
    "aws_role_session_name",
    "aws_skip_signature",
    "aws_copy_if_not_exists",
    "aws_conditional_put",
    "aws_disable_tagging",
    "aws_request_payer",
    "aws_server_side_encryption",
    "aws_sse_kms_key_id",
    "aws_sse_bucket_key_enabled",
    "aws_sse_customer_key_base64",
    "google_service_account",
    "google_service_account_key",
    "google_bucket",
    "google_base_url",
    "google_application_credentials",
    "google_bearer_token",
    "google_skip_signature",
    "azure_storage_account_name",
    "azure_storage_account_key",
    "azure_storage_client_id",
    "azure_storage_client_secret",
    "azure_storage_tenant_id",
    "azure_storage_authority_host",
    "azure_storage_sas_key",
    "azure_storage_token",
    "azure_credential_type",
    "azure_storage_use_emulator",
    "azure_storage_endpoint",
    "azure_msi_endpoint",
    "azure_object_id",
    "azure_msi_resource_id",
    "azure_federated_token_file",
    "azure_use_azure_cli",
    "azure_skip_signature",
    "azure_container_name",
    "azure_disable_tagging",
    "azure_use_fabric_endpoint",
    "hf_token",
    "hf_endpoint",
    HEDGE,
    "allow_http",
    "allow_invalid_certificates",
    "connect_timeout",
    "disable_system_certificates",
    "default_content_type",
    "http1_only",
    "http2_only",
    "http2_keep_alive_interval",
    "http2_keep_alive_timeout",
    "http2_keep_alive_while_idle",
    "http2_max_frame_size",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_url",
    "proxy_ca_certificate",
    "proxy_excludes",
    "randomize_addresses",
    "read_timeout",
    "timeout",
    "user_agent",
];

#[cfg(all(test, feature = "cloud"))]
mod tests {
    use super::*;

    fn problem(key: &str) -> Option<String> {
        check(&BTreeMap::from([(key.to_owned(), "secret".to_owned())])).err().map(|error| error.to_string())
    }

    #[test]
    fn a_misspelt_key_is_refused_with_the_one_that_is_meant() {
        for (key, meant) in [
            ("aws_acces_key_id", "aws_access_key_id"),
            ("acess_key_id", "access_key_id"),
            ("aws_regoin", "aws_region"),
            ("AWS_ENDPOIN", "aws_endpoint"),
            ("alow_http", "allow_http"),
            ("google_service_acount", "google_service_account"),
            ("azure_storage_acount_name", "azure_storage_account_name"),
            ("hf_tokn", "hf_token"),
            ("HF_ENDPOIN", "hf_endpoint"),
            ("hdfs_usr", "hdfs_user"),
            ("hegde", "hedge"),
            ("hdfs_conf_dri", "hdfs_conf_dir"),
            ("iceberg_waerhouse", "iceberg_warehouse"),
            ("databricks_hsot", "databricks_host"),
            ("rest.sigv4-enable", "rest.sigv4-enabled"),
            ("glue_regoin", "glue_region"),
        ] {
            let problem = problem(key).unwrap();
            assert!(problem.contains(&format!("{key:?}")) && problem.contains(&format!("{meant:?}")), "{problem}");
            assert!(!problem.contains("secret"), "{problem}");
        }
        let far = problem(&"x".repeat(100_000)).unwrap();
        assert!(far.contains("keys are those of object_store") && far.len() < 300, "{far}");
    }

    #[test]
    fn a_key_with_a_line_break_is_told_before_it_is_sent() {
        let settings = |value: &str| vec![("AWS_SESSION_TOKEN".to_owned(), value.to_owned())];
        assert!(check_headers(&settings("abc")).is_ok());
        let problem = check_headers(&settings("sEcReT\n")).unwrap_err().to_string();
        assert!(problem.contains("AWS_SESSION_TOKEN") && !problem.contains("sEcReT"), "{problem}");
    }

    #[test]
    fn an_address_that_no_request_can_have_is_told_by_its_key() {
        let told = |cloud, key: &str, value: &str, provided| {
            let settings = [(key.to_owned(), value.to_owned())];
            check_addresses(cloud, &settings, provided).err().map(|error| error.to_string())
        };
        for (cloud, key) in [
            (Cloud::S3, "endpoint"),
            (Cloud::S3, "AWS_ENDPOINT_URL"),
            (Cloud::S3, "aws_endpoint_url_s3"),
            (Cloud::Google, "google_base_url"),
            (Cloud::Azure, "azure_endpoint"),
        ] {
            for good in ["http://localhost:9000", "https://h.example/a/", "http://[::1]:9000", "http://a_b"] {
                assert_eq!(told(cloud, key, good, false), None, "{key} {good}");
            }
            for bad in
                ["localhost:9000", "minio", "127.0.0.1:9000", "http://h:9 000", "http://h ", "", "s3://h", "http://"]
            {
                let problem = told(cloud, key, bad, false).unwrap();
                assert!(
                    problem.contains(&format!("{key:?}")) && problem.contains("http://localhost:9000"),
                    "{problem}"
                );
            }
        }
        for (value, right) in [("eu-west-1", true), ("auto", true), ("", true), ("eu west", false), ("eu\nwest", false)]
        {
            assert_eq!(told(Cloud::S3, "AWS_REGION", value, false).is_none(), right, "{value:?}");
        }
        // The address of a service that is not asked, and of another cloud, is nobody's problem.
        assert!(told(Cloud::S3, "AWS_ENDPOINT_URL_STS", "sts", false).is_some());
        assert_eq!(told(Cloud::S3, "AWS_ENDPOINT_URL_STS", "sts", true), None);
        let keys = ["AWS_ENDPOINT_URL_STS", "aws_access_key_id"].map(|key| (key.to_owned(), "sEcReT".to_owned()));
        assert!(check_addresses(Cloud::S3, &keys, false).is_ok());
        assert_eq!(told(Cloud::Azure, "aws_endpoint", "minio", true), None);
        // What a later setting replaces, or a stronger one, is nobody's either.
        for (weak, strong) in [
            (("AWS_ENDPOINT", "minio"), ("endpoint", "http://minio:9000")),
            (("AWS_ENDPOINT_URL_S3", "http://minio:9000"), ("endpoint", "minio")),
            (("AWS_DEFAULT_REGION", "eu west"), ("AWS_REGION", "eu-west-1")),
        ] {
            let settings = [weak, strong].map(|(key, value)| (key.to_owned(), value.to_owned()));
            assert!(check_addresses(Cloud::S3, &settings, false).is_ok(), "{settings:?}");
        }
    }

    #[test]
    fn a_variable_gives_way_to_an_option_under_any_name() {
        let gives_way = |cloud: Cloud, variable: &str, option: &str| {
            cloud.gives_way(variable, &BTreeMap::from([(option.to_owned(), "x".to_owned())]))
        };
        for (cloud, variable, option) in [
            (Cloud::S3, "AWS_ENDPOINT_URL_S3", "endpoint"),
            (Cloud::S3, "AWS_ENDPOINT_URL", "aws_endpoint_url_s3"),
            (Cloud::S3, "AWS_REGION", "aws_default_region"),
            (Cloud::Azure, "AZURE_STORAGE_ENDPOINT", "endpoint"),
        ] {
            assert!(gives_way(cloud, variable, option), "{variable} {option}");
        }
        for (variable, option) in
            [("AWS_ENDPOINT_URL_STS", "endpoint"), ("AWS_REGION", "endpoint"), ("AWS_ENDPOINT_URL_S3", "region")]
        {
            assert!(!gives_way(Cloud::S3, variable, option), "{variable} {option}");
        }
    }

    #[test]
    fn an_identity_of_the_machine_takes_no_credentials_of_the_environment_away() {
        let options = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        for (key, value) in
            [("azure_client_id", "x"), ("azure_msi_endpoint", "http://h"), ("azure_use_azure_cli", "true")]
        {
            let options = options(key, value);
            assert!(Cloud::Azure.has_identity(&options) && !Cloud::Azure.has_credentials(&options), "{key}");
            assert!(!Cloud::S3.has_identity(&options), "{key}");
        }
        assert!(!Cloud::Azure.has_identity(&options("azure_use_azure_cli", "false")));
        assert!(Cloud::Azure.has_credentials(&options("azure_skip_signature", "true")));
        assert!(!Cloud::Azure.has_identity(&options("azure_skip_signature", "false")));
    }

    #[test]
    fn late_reads_are_requested_twice_unless_that_is_switched_off() {
        let hedges = |key: &str, value: &str| hedges(&BTreeMap::from([(key.to_owned(), value.to_owned())]));
        assert!(hedges("region", "false").unwrap() && hedges("hedge", "True").unwrap());
        assert!(!hedges("hedge", "false").unwrap() && !hedges("HEDGE", "off").unwrap());
        let problem = hedges("hedge", "sEcReT").unwrap_err().to_string();
        assert!(problem.contains("true or false") && !problem.contains("sEcReT"), "{problem}");
    }

    #[test]
    fn keys_of_any_store_are_known_in_every_form_that_object_store_takes() {
        for name in NAMES {
            assert!(known(name) && known(short(name)), "{name}");
        }
        for key in ["region", "AWS_REGION", "access_key_id", "aws_allow_http", "timeout", "account_name", "bucket"]
            .into_iter()
            .chain(HDFS)
            .chain(["dfs.client.socket-timeout", "fs.defaultFS", "HDFS_USER"])
        {
            assert_eq!(problem(key), None, "{key}");
        }
    }
}
