//! Responses of a catalog, and the options and credentials for a store in them: pure, so that tests can try any response.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use serde::Deserialize;

use crate::store::catalog::names::LEVELS;
use crate::store::catalog::table::StoreAccess;
use crate::store::credentials::Credentials;
use crate::store::member::or_default;
use crate::store::percent;

/// `GET v1/config`.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Config {
    #[serde(default, deserialize_with = "or_default")]
    defaults: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_default")]
    overrides: BTreeMap<String, String>,
}

impl Config {
    /// Path segments before `namespaces`.
    pub(super) fn prefix(&self) -> Option<&str> {
        self.of("prefix")
    }

    /// Address for all further requests.
    pub(super) fn uri(&self) -> Option<&str> {
        self.overrides.get("uri").map(String::as_str)
    }

    /// Text between the levels of a namespace; servers name it as it is, or as it is in an address.
    pub(super) fn separator(&self) -> String {
        let named = self.of("namespace-separator");
        named.map_or_else(|| LEVELS.to_owned(), |text| percent::decoded(text).unwrap_or_else(|| text.to_owned()))
    }

    fn of(&self, key: &str) -> Option<&str> {
        self.overrides.get(key).or_else(|| self.defaults.get(key)).map(String::as_str).filter(|value| !value.is_empty())
    }
}

/// `GET v1/{prefix}/namespaces/{namespace}/tables/{table}`; also the response that renews credentials.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) struct Loaded {
    #[serde(default)]
    pub(super) metadata_location: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    config: BTreeMap<String, String>,
    #[serde(default, deserialize_with = "or_default")]
    storage_credentials: Vec<StorageCredentials>,
}

/// Credentials for locations that begin with `prefix`.
#[derive(Debug, Deserialize)]
struct StorageCredentials {
    prefix: String,
    #[serde(default, deserialize_with = "or_default")]
    config: BTreeMap<String, String>,
}

impl Loaded {
    /// Options and credentials for objects below `location`.
    pub(super) fn store_access(&self, location: &str) -> StoreAccess {
        let mut config = self.config.clone();
        // Hadoop's schemes name the same store.
        let plain = |text: &str| text.replacen("s3a://", "s3://", 1).replacen("s3n://", "s3://", 1);
        let location = plain(location);
        let matching = self.storage_credentials.iter().filter(|one| location.starts_with(&plain(&one.prefix)));
        if let Some(longest) = matching.max_by_key(|one| one.prefix.len()) {
            config.extend(longest.config.clone());
        }
        let get = |key: &str| config.get(key).filter(|value| !value.is_empty()).cloned();
        let mut access = StoreAccess::default();
        let mut set = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                access.settings.insert(name.to_owned(), value);
            }
        };
        let scheme = location.split_once("://").map_or("", |(scheme, _)| scheme);
        let until = |key: &str| {
            get(key).and_then(|text| text.parse().ok()).and_then(|at| UNIX_EPOCH.checked_add(Duration::from_millis(at)))
        };
        let (values, expires): (Vec<(&str, Option<String>)>, _) = match scheme {
            "s3" => {
                let endpoint = get("s3.endpoint");
                let is_plain = endpoint.as_deref().is_some_and(|endpoint| endpoint.starts_with("http://"));
                set("aws_allow_http", is_plain.then(|| "true".to_owned()));
                if let (Some(_), Some(by_path)) = (&endpoint, get("s3.path-style-access")) {
                    set("aws_virtual_hosted_style_request", Some((!by_path.eq_ignore_ascii_case("true")).to_string()));
                }
                set("aws_endpoint", endpoint);
                set("aws_region", get("s3.region").or_else(|| get("client.region")));
                let (id, secret) = (get("s3.access-key-id"), get("s3.secret-access-key"));
                let both = id.is_some() && secret.is_some();
                let all = [("access_key_id", id), ("secret_access_key", secret), ("token", get("s3.session-token"))];
                (if both { all.to_vec() } else { Vec::new() }, until("s3.session-token-expires-at-ms"))
            }
            "gs" | "gcs" => {
                set("google_base_url", get("gcs.service.host"));
                (vec![("bearer_token", get("gcs.oauth2.token"))], until("gcs.oauth2.token-expires-at"))
            }
            "abfs" | "abfss" | "wasb" | "wasbs" | "az" | "azure" | "adl" => {
                // The account in the address, or the only account where the address has none.
                let account = location.split_once('@').and_then(|(_, host)| host.split(['.', '/']).next());
                let of = |key: &str| {
                    let mut keyed = config.iter().filter_map(|(name, value)| Some((name.strip_prefix(key)?, value)));
                    let found = match account {
                        Some(account) => keyed.find(|(name, _)| name.split('.').next() == Some(account)),
                        None => keyed.next().filter(|_| keyed.next().is_none()),
                    };
                    found.map(|(_, value)| value.clone())
                };
                let at = of("adls.sas-token-expires-at-ms.").and_then(|text| text.parse().ok());
                let at = at.and_then(|at| UNIX_EPOCH.checked_add(Duration::from_millis(at)));
                (vec![("sas_token", of("adls.sas-token."))], at)
            }
            _ => (Vec::new(), None),
        };
        let values: Vec<(String, String)> =
            values.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        access.credentials = (!values.is_empty()).then(|| Credentials::new(values, expires));
        access
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::catalog::client::parse;

    fn access(json: &str, location: &str) -> StoreAccess {
        parse::<Loaded>(json.as_bytes()).unwrap().store_access(location)
    }

    fn given(values: &[(&str, &str)], millis: Option<u64>) -> Option<Credentials> {
        let values = values.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Some(Credentials::new(values, millis.map(|at| UNIX_EPOCH + Duration::from_millis(at))))
    }

    #[test]
    fn the_longest_prefix_gives_the_credentials() {
        let json = r#"{"metadata-location":"s3://b/t/metadata/v1.metadata.json","metadata":{"x":1},
            "config":{"s3.endpoint":"http://h:1","s3.path-style-access":"true","client.region":"eu-west-1","s3.access-key-id":"a","s3.secret-access-key":"b"},
            "storage-credentials":[
                {"prefix":"s3://b/t/data","config":{"s3.access-key-id":"no","s3.secret-access-key":"no"}},
                {"prefix":"s3","config":{"s3.access-key-id":"short","s3.secret-access-key":"short"}},
                {"prefix":"s3a://b/t","config":{"s3.access-key-id":"id","s3.secret-access-key":"key","s3.session-token":"tok","s3.session-token-expires-at-ms":"1500"}}]}"#;
        let found = access(json, "s3://b/t/metadata/v1.metadata.json");
        let key = [("access_key_id", "id"), ("secret_access_key", "key"), ("token", "tok")];
        assert_eq!(found.credentials, given(&key, Some(1500)));
        let settings: Vec<_> = found.settings.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        let expected = [
            ("aws_allow_http", "true"),
            ("aws_endpoint", "http://h:1"),
            ("aws_region", "eu-west-1"),
            ("aws_virtual_hosted_style_request", "false"),
        ];
        assert_eq!(settings, expected);
        let other = access(json, "s3://other/t");
        assert_eq!(other.credentials, given(&[("access_key_id", "short"), ("secret_access_key", "short")], None));
        assert_eq!(access(r#"{"config":{"s3.access-key-id":"alone"}}"#, "s3://b/t").credentials, None);
    }

    #[test]
    fn other_clouds_have_tokens() {
        let json = r#"{"config":{"gcs.oauth2.token":"g","gcs.oauth2.token-expires-at":"7","adls.sas-token.one.dfs.core.windows.net":"s1",
            "adls.sas-token.two":"s2","adls.sas-token-expires-at-ms.two":"9"}}"#;
        assert_eq!(access(json, "gs://b/t").credentials, given(&[("bearer_token", "g")], Some(7)));
        let one = access(json, "abfss://c@one.dfs.core.windows.net/t").credentials;
        assert_eq!(one, given(&[("sas_token", "s1")], None));
        let two = access(json, "abfss://c@two.dfs.core.windows.net/t").credentials;
        assert_eq!(two, given(&[("sas_token", "s2")], Some(9)));
        assert_eq!(access(json, "file:///t"), StoreAccess::default());
    }

    #[test]
    fn what_is_wrong_quotes_nothing() {
        let error = parse::<Loaded>(br#"{"config":{"s3.secret-access-key":["secret"]}}"#).unwrap_err();
        assert!(!error.contains("secret"), "{error}");
        let config =
            parse::<Config>(br#"{"defaults":{"prefix":"a"},"overrides":{"prefix":"b"},"endpoints":["GET /v1/x"]}"#)
                .unwrap();
        assert_eq!((config.prefix(), config.uri()), (Some("b"), None));
    }

    #[test]
    fn levels_are_separated_as_the_server_says() {
        for (said, meant) in
            [("{}", "\u{1f}"), (r#"{"namespace-separator":"."}"#, "."), (r#"{"namespace-separator":"%2E"}"#, ".")]
        {
            let json = format!(r#"{{"defaults":{{"namespace-separator":"%1F"}},"overrides":{said}}}"#);
            assert_eq!(parse::<Config>(json.as_bytes()).unwrap().separator(), meant, "{said}");
        }
        assert_eq!(Config::default().separator(), "\u{1f}");
    }

    #[test]
    fn null_is_as_good_as_nothing() {
        assert_eq!(parse::<Config>(br#"{"defaults":null,"overrides":null}"#).unwrap().prefix(), None);
        let json =
            r#"{"metadata-location":"s3://b/t","config":null,"storage-credentials":[{"prefix":"s3","config":null}]}"#;
        assert_eq!(access(json, "s3://b/t"), StoreAccess::default());
        assert_eq!(access(r#"{"config":null,"storage-credentials":null}"#, "s3://b/t"), StoreAccess::default());
    }
}
