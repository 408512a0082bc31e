//! The choice of a profile for the credentials of S3: after given keys and web identities, before the machine's own role.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use super::super::credentials::CredentialSource;
use super::container::Container;
use super::profiles::Profiles;
use super::provider::Provider;
use crate::error::{Error, Result};

/// The default region, as in object_store.
const REGION: &str = "us-east-1";

/// The default profile.
const DEFAULT: &str = "default";

const KEYS: &[&str] = &["aws_access_key_id", "access_key_id", "aws_secret_access_key", "secret_access_key"];
const REGIONS: &[&str] = &["aws_region", "region", "aws_default_region", "default_region"];
const ENDPOINTS: &[&str] =
    &["aws_endpoint", "endpoint", "aws_endpoint_url", "endpoint_url", "aws_endpoint_url_s3", "endpoint_url_s3"];
const STS: &[&str] = &["aws_endpoint_url_sts", "endpoint_url_sts"];
const WEB: &[&str] = &["aws_web_identity_token_file", "web_identity_token_file"];
const RELATIVE: &[&str] = &["aws_container_credentials_relative_uri", "container_credentials_relative_uri"];
const FULL: &[&str] = &["aws_container_credentials_full_uri", "container_credentials_full_uri"];
const TOKEN_FILE: &[&str] = &["aws_container_authorization_token_file", "container_authorization_token_file"];
/// object_store knows no such option.
const TOKEN: &[&str] = &["aws_container_authorization_token"];
const UNSIGNED: &[&str] = &["aws_skip_signature", "skip_signature"];

/// The contribution of a profile.
#[derive(Debug, Default)]
pub(in crate::store) struct Chosen {
    /// Credentials, unless it says nothing of them.
    pub(in crate::store) source: Option<CredentialSource>,
    /// Options of the store that are not given elsewhere: region and endpoint.
    pub(in crate::store) settings: Vec<(String, String)>,
}

/// Reads the profile that `options` or the variables of `environment` name, or the default one; nothing if they give keys themselves, or
/// request none.
///
/// # Errors
/// [`Error::NotFound`] for a profile that is not there; [`Error::Config`] for one that contradicts itself or other options;
/// [`Error::Store`] for files that cannot be read.
pub(in crate::store) fn choose(
    options: &BTreeMap<String, String>,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Result<Chosen> {
    let option = |names: &[&str]| {
        let mut found = options.iter().filter(|(key, _)| names.iter().any(|name| key.eq_ignore_ascii_case(name)));
        found.next().map(|(_, value)| value.as_str()).filter(|value| !value.is_empty())
    };
    let variable =
        |name: &str| environment(name).and_then(|value| value.into_string().ok()).filter(|value| !value.is_empty());
    // Variables have the store's name before them.
    let either = |names: &[&str]| {
        let of_aws = names.iter().filter(|name| name.starts_with("aws_"));
        let given = || of_aws.clone().find_map(|name| variable(&name.to_ascii_uppercase()));
        option(names).map(str::to_owned).or_else(given)
    };
    let asked = option(&["aws_profile"]);
    if either(UNSIGNED)
        .is_some_and(|value| ["1", "true", "on", "yes", "y"].iter().any(|yes| value.eq_ignore_ascii_case(yes)))
    {
        return Ok(Chosen::default());
    }
    if option(KEYS).is_some() {
        return match asked {
            Some(_) => Err(Error::config("storage_options", "give either aws_profile or keys, not both")),
            None => Ok(Chosen::default()),
        };
    }
    if asked.is_none() && (variable("AWS_ACCESS_KEY_ID").is_some() || either(WEB).is_some()) {
        return Ok(Chosen::default());
    }
    let named =
        asked.map(str::to_owned).or_else(|| variable("AWS_PROFILE")).or_else(|| variable("AWS_DEFAULT_PROFILE"));
    let profiles = Profiles::read(environment)?;
    let name = match named {
        Some(name) => name,
        None if profiles.has(DEFAULT) => DEFAULT.to_owned(),
        None => return Ok(Chosen { source: contained(&either)?, settings: Vec::new() }),
    };
    let means = profiles.means(&name)?;
    let mut settings = Vec::new();
    let region = either(REGIONS);
    if let (None, Some(region)) = (&region, profiles.value(&name, "region")) {
        settings.push(("aws_region".to_owned(), region.to_owned()));
    }
    let endpoint = profiles.value(&name, "s3.endpoint_url").or_else(|| profiles.value(&name, "endpoint_url"));
    if let (None, Some(endpoint)) = (either(ENDPOINTS), endpoint) {
        settings.push(("aws_endpoint".to_owned(), endpoint.to_owned()));
    }
    let source = match means {
        None if asked.is_some() => {
            let problem = format!("profile {name} of AWS has no credentials; leave aws_profile out");
            return Err(Error::config("storage_options", problem));
        }
        None => contained(&either)?,
        Some(means) => {
            let region = region.or_else(|| profiles.value(&name, "region").map(str::to_owned));
            let region = region.unwrap_or_else(|| REGION.to_owned());
            let provider = Provider::new(name, means, region, either(STS), variable("AWS_ENDPOINT_URL_SSO"))?;
            Some(CredentialSource::new(Arc::new(provider)))
        }
    };
    Ok(Chosen { source, settings })
}

/// The credentials of the service beside the container, if there is one whose address is whole; `either` gives an option or a variable.
fn contained(either: &dyn Fn(&[&str]) -> Option<String>) -> Result<Option<CredentialSource>> {
    let uri = either(FULL).filter(|_| either(RELATIVE).is_none());
    let Some(uri) = uri else { return Ok(None) };
    let container = Container::new(&uri, either(TOKEN_FILE), either(TOKEN))?;
    Ok(Some(CredentialSource::new(Arc::new(container))))
}

/// The endpoint that a profile of this machine gives to the store whose addresses begin with `prefix`, if one does.
pub(in crate::store) fn endpoint(
    prefix: &str,
    options: &BTreeMap<String, String>,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Option<String> {
    if !["s3://", "s3a://", "s3n://"].iter().any(|scheme| prefix.starts_with(scheme)) {
        return None;
    }
    // One that cannot be read is an error of the store itself.
    let chosen = choose(options, environment).ok()?;
    chosen.settings.into_iter().find(|(key, _)| key == "aws_endpoint").map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[default]\naws_access_key_id=d\naws_secret_access_key=sEcReT\nregion=eu-north-1\n\
                        [lab]\naws_access_key_id=l\naws_secret_access_key=sEcReT\nendpoint_url=http://lab:9000\n[bare]\nregion=x-1\n";

    fn chosen(options: &[(&str, &str)], variables: &[(&str, &str)]) -> Result<Chosen> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("credentials");
        std::fs::write(&file, FILE).unwrap();
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        choose(&options, &|name| match name {
            "AWS_SHARED_CREDENTIALS_FILE" => Some(file.clone().into()),
            "HOME" => Some(folder.path().into()),
            _ => variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()),
        })
    }

    #[test]
    fn the_endpoint_of_a_profile_belongs_to_the_store() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config");
        let of = |prefix: &str, text: &str, profile: &str| {
            std::fs::write(&file, text).unwrap();
            let options = BTreeMap::from([("aws_profile".to_owned(), profile.to_owned())]);
            endpoint(prefix, &options, &|name| match name {
                "AWS_CONFIG_FILE" => Some(file.clone().into()),
                "HOME" => Some(folder.path().into()),
                _ => None,
            })
        };
        let at = |endpoint: &str| {
            format!("[profile lab]\naws_access_key_id=l\naws_secret_access_key=s\nendpoint_url={endpoint}\n")
        };
        assert_eq!(of("s3://b/", &at("http://one:9000"), "lab").unwrap(), "http://one:9000");
        assert_eq!(of("s3a://b/", &at("http://two:9000"), "lab").unwrap(), "http://two:9000");
        assert_eq!((of("gs://b/", &at("http://one:9000"), "lab"), of("s3://b/", "", "none")), (None, None));
    }

    fn said(options: &[(&str, &str)], variables: &[(&str, &str)]) -> String {
        let chosen = chosen(options, variables).unwrap();
        let text = format!("{chosen:?}");
        assert!(!text.contains("sEcReT"), "{text}");
        chosen.source.map_or_else(|| "none".to_owned(), |source| format!("{source:?}"))
    }

    #[test]
    fn keys_go_before_profiles_and_a_named_profile_before_what_the_environment_has() {
        let default = "CredentialSource(profile default of AWS)";
        let lab = "CredentialSource(profile lab of AWS)";
        assert_eq!(said(&[], &[]), default);
        assert_eq!(said(&[], &[("AWS_PROFILE", "lab")]), lab);
        assert_eq!(said(&[("AWS_Profile", "lab")], &[("AWS_ACCESS_KEY_ID", "x"), ("AWS_PROFILE", "default")]), lab);
        assert_eq!(said(&[], &[("AWS_PROFILE", "bare")]), "none");
        for (options, variables) in [
            (&[("access_key_id", "x")][..], &[("AWS_PROFILE", "lab")][..]),
            (&[], &[("AWS_PROFILE", "lab"), ("AWS_ACCESS_KEY_ID", "x")]),
            (&[], &[("AWS_WEB_IDENTITY_TOKEN_FILE", "/x")]),
            (&[("skip_signature", "true")], &[("AWS_PROFILE", "nowhere")]),
            (&[], &[("AWS_SKIP_SIGNATURE", "1")]),
        ] {
            assert_eq!(said(options, variables), "none", "{options:?} {variables:?}");
        }
        let both = chosen(&[("aws_profile", "lab"), ("aws_secret_access_key", "sEcReT")], &[]).unwrap_err().to_string();
        assert!(both.contains("not both") && !both.contains("sEcReT"), "{both}");
        assert!(
            matches!(chosen(&[("aws_profile", "lap")], &[]), Err(Error::NotFound { hint, .. }) if hint == "there is lab")
        );
    }

    #[test]
    fn the_service_beside_a_container_goes_after_profiles_and_before_the_machine() {
        let home = tempfile::tempdir().unwrap();
        let said = |variables: &[(&str, &str)]| {
            let chosen = choose(&BTreeMap::new(), &|name| match name {
                "HOME" => Some(home.path().into()),
                _ => variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into()),
            });
            chosen.unwrap().source.map(|source| format!("{source:?}"))
        };
        let uri = ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:9099/");
        let container = "CredentialSource(AWS_CONTAINER_CREDENTIALS_FULL_URI)";
        assert_eq!(said(&[uri]).as_deref(), Some(container));
        assert_eq!(said(&[uri, ("AWS_CONTAINER_AUTHORIZATION_TOKEN", "t")]).as_deref(), Some(container));
        // object_store knows the short form, which goes first.
        assert_eq!(said(&[uri, ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/x")]), None);
        assert_eq!(said(&[uri, ("AWS_ACCESS_KEY_ID", "x")]), None);
        assert_eq!(super::tests::said(&[], &[uri]), "CredentialSource(profile default of AWS)");
        assert_eq!(super::tests::said(&[], &[uri, ("AWS_PROFILE", "bare")]), container);
    }

    #[test]
    fn a_profile_gives_the_region_and_endpoint_that_nobody_else_gives() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(chosen(&[], &[]).unwrap().settings, [pair("aws_region", "eu-north-1")]);
        assert_eq!(chosen(&[("region", "x")], &[]).unwrap().settings, []);
        assert_eq!(chosen(&[], &[("AWS_DEFAULT_REGION", "x")]).unwrap().settings, []);
        let lab = ("aws_profile", "lab");
        assert_eq!(chosen(&[lab], &[]).unwrap().settings, [pair("aws_endpoint", "http://lab:9000")]);
        assert_eq!(chosen(&[lab, ("aws_endpoint_url", "http://other")], &[]).unwrap().settings, []);
        assert!(chosen(&[], &[("AWS_REGION", "a/b")]).is_err());
    }
}
