//! The Hub's endpoint, its user and time limits: from `storage_options` first, then from what huggingface_hub reads.

use std::collections::BTreeMap;
use std::ffi::OsString;

use url::Url;

use crate::error::{Error, Result};
use crate::store::home;
use crate::store::secret::Secret;
use crate::store::web::{Connection, Options, is_true};

/// Endpoint of the Hub, if none is named.
const ENDPOINT: &str = "https://huggingface.co";

/// Most bytes of a file that has a token.
const MAX_TOKEN_BYTES: u64 = 16 << 10;

/// Keys of `storage_options` that are the Hub's alone.
pub(in crate::store) const KEYS: &[&str] = &["hf_token", "hf_endpoint"];

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store) struct Settings {
    pub(super) endpoint: Url,
    pub(super) token: Option<Secret>,
    pub(super) connection: Connection,
}

impl Settings {
    /// From the options `given`, and from the variables of `environment`.
    ///
    /// # Errors
    /// [`Error::Config`] for a wrong value, and if the environment forbids the network; [`Error::Store`] for a file of a token
    /// that is named and cannot be read.
    pub(in crate::store) fn new(
        given: &BTreeMap<String, String>,
        environment: &(dyn Fn(&str) -> Option<OsString> + Sync),
    ) -> Result<Self> {
        let options = Options { given, environment };
        let variable = |name: &str| options.variable(name);
        if variable("HF_HUB_OFFLINE").is_some_and(|value| is_true(&value)) {
            let problem = "HF_HUB_OFFLINE is set, and hf:// is read over the network: unset it, or give a local copy";
            return Err(Error::config("urls", problem));
        }
        let endpoint = options.get(&["hf_endpoint"]).map(str::to_owned).or_else(|| variable("HF_ENDPOINT"));
        let endpoint = endpoint.unwrap_or_else(|| ENDPOINT.to_owned());
        let parsed = Url::parse(endpoint.trim_end_matches('/')).ok();
        let plain = |url: &Url| url.username().is_empty() && url.password().is_none() && url.query().is_none();
        let endpoint = parsed.filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host() && plain(url));
        let endpoint = endpoint.ok_or_else(|| {
            Error::config(
                "storage_options",
                "hf_endpoint (HF_ENDPOINT) is no address of a Hub, such as https://huggingface.co",
            )
        })?;
        let token = match options.get(&["hf_token"]).or_else(|| options.get(&["token"])) {
            Some(token) => Some(token.to_owned()),
            None if variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some_and(|value| is_true(&value)) => None,
            None => match variable("HF_TOKEN").or_else(|| variable("HUGGING_FACE_HUB_TOKEN")) {
                Some(token) => Some(token),
                None => of_file(environment)?,
            },
        };
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        if token.as_deref().is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(Error::config("storage_options", "the token of the Hub has characters that no token has"));
        }
        Ok(Self { endpoint, token: token.map(Secret::new), connection: Connection::new(options)? })
    }
}

/// The token that `hf auth login` left.
fn of_file(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<String>> {
    let path = |name: &str| home::path(environment, name);
    let named = path("HF_TOKEN_PATH");
    let cache = || path("XDG_CACHE_HOME").or_else(|| Some(home::home(environment)?.join(".cache")));
    let own = || path("HF_HOME").or_else(|| Some(cache()?.join("huggingface")));
    let Some(file) = named.or_else(|| Some(own()?.join("token"))) else { return Ok(None) };
    let failed = |error: std::io::Error| Error::Store {
        operation: "read the token of the Hub".to_owned(),
        url: file.display().to_string(),
        source: error.into(),
    };
    match std::fs::metadata(&file) {
        Ok(meta) if meta.is_file() && meta.len() <= MAX_TOKEN_BYTES => {
            std::fs::read_to_string(&file).map(Some).map_err(failed)
        }
        Ok(_) => Err(failed(std::io::Error::other("it is no file of a token"))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn settings(options: &[(&str, &str)], variables: &[(&str, &str)]) -> Result<Settings> {
        let options = options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let environment = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into());
        Settings::new(&options, &environment)
    }

    fn token(options: &[(&str, &str)], variables: &[(&str, &str)]) -> Option<String> {
        settings(options, variables).unwrap().token.map(|token| token.reveal().to_owned())
    }

    #[test]
    fn a_token_is_found_where_the_hubs_own_library_looks() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, token: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, format!("{token}\r\n")).unwrap();
            path.to_str().unwrap().to_owned()
        };
        let named = write("named", "hf_named");
        write(".cache/huggingface/token", "hf_home");
        write("xdg/huggingface/token", "hf_xdg");
        write("own/token", "hf_own");
        let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        let (home, xdg, own) = (at(""), at("xdg"), at("own"));
        let home = ("HOME", home.as_str());
        assert_eq!(token(&[], &[home]).as_deref(), Some("hf_home"));
        let xdg = ("XDG_CACHE_HOME", xdg.as_str());
        assert_eq!(token(&[], &[home, xdg]).as_deref(), Some("hf_xdg"));
        let own = ("HF_HOME", own.as_str());
        assert_eq!(token(&[], &[home, xdg, own]).as_deref(), Some("hf_own"));
        assert_eq!(token(&[], &[home, xdg, ("HF_HOME", "~/own")]).as_deref(), Some("hf_own"));
        let named = ("HF_TOKEN_PATH", named.as_str());
        assert_eq!(token(&[], &[home, own, named]).as_deref(), Some("hf_named"));
        let old = ("HUGGING_FACE_HUB_TOKEN", "hf_old");
        assert_eq!(token(&[], &[named, old]).as_deref(), Some("hf_old"));
        assert_eq!(token(&[], &[named, old, ("HF_TOKEN", " hf_variable\n")]).as_deref(), Some("hf_variable"));
        assert_eq!(token(&[("token", "hf_option")], &[("HF_TOKEN", "x")]).as_deref(), Some("hf_option"));
        assert_eq!(token(&[("token", "x"), ("HF_TOKEN", "hf_option")], &[]).as_deref(), Some("hf_option"));
        let implicit = ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1");
        assert_eq!(token(&[], &[implicit, ("HF_TOKEN", "x"), home]), None);
        assert_eq!(token(&[("hf_token", "hf_option")], &[implicit]).as_deref(), Some("hf_option"));
        assert_eq!(token(&[], &[("HF_TOKEN_PATH", "/nowhere/at/all")]), None);
        assert_eq!(token(&[], &[("HF_TOKEN", "")]), None);
        let folder = folder.path().to_str().unwrap();
        assert!(matches!(settings(&[], &[("HF_TOKEN_PATH", folder)]), Err(Error::Store { .. })));
    }

    #[test]
    fn wrong_values_are_told_and_secrets_are_not() {
        let error = |options: &[(&str, &str)], variables: &[(&str, &str)]| {
            settings(options, variables).unwrap_err().to_string()
        };
        assert!(error(&[], &[("HF_HUB_OFFLINE", "1")]).contains("HF_HUB_OFFLINE"));
        assert!(error(&[("timeout", "soon")], &[]).contains("30s"));
        for endpoint in ["ftp://h", "https://user:secret@h", "huggingface.co", "https://h?secret=1"] {
            let error = error(&[], &[("HF_ENDPOINT", endpoint)]);
            assert!(error.contains("https://huggingface.co") && !error.contains("secret"), "{error}");
        }
        let odd = error(&[("hf_token", "hf_sec ret")], &[]);
        assert!(odd.contains("characters") && !odd.contains("hf_sec"), "{odd}");
        let settings =
            settings(&[("hf_token", "hf_secret"), ("timeout", "2m")], &[("HF_ENDPOINT", "http://h:1/sub/")]).unwrap();
        assert!(!format!("{settings:?}").contains("hf_secret"));
        assert_eq!(
            (settings.endpoint.as_str(), settings.connection.timeout),
            ("http://h:1/sub", Duration::from_secs(120))
        );
    }
}
