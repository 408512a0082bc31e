//! Address and authorization of Unity Catalog: `storage_options`, or the variables that Databricks' tools have.

use url::Url;

use crate::error::{Error, Result};
use crate::store::catalog::client::{Auth, OAuth};
use crate::store::secret::Secret;
use crate::store::web::{Connection, Options, address, below};

const HOST: &[&str] = &["databricks_host", "databricks_workspace_url", "unity_workspace_url"];
const TOKEN: &[&str] = &["databricks_token", "unity_access_token"];
const CLIENT_ID: &[&str] = &["databricks_client_id", "unity_client_id"];
const CLIENT_SECRET: &[&str] = &["databricks_client_secret", "unity_client_secret"];

/// What a service principal asks tokens for.
const SCOPE: &str = "all-apis";

/// See the module.
#[derive(Debug)]
pub(super) struct Settings {
    /// Address of the workspace or server, without a path.
    pub(super) host: Url,
    pub(super) auth: Auth,
    pub(super) connection: Connection,
}

impl Settings {
    /// Reads them from `options`.
    ///
    /// # Errors
    /// [`Error::Config`] for a key that is missing or has a wrong value.
    pub(super) fn new(options: Options<'_>) -> Result<Self> {
        let wrong = |problem: &str| Error::config("storage_options", problem);
        let host = options.get(HOST).map(str::to_owned).or_else(|| options.variable("DATABRICKS_HOST"));
        let host = host.ok_or_else(|| {
            wrong(
                "uc:// names a table of Unity Catalog: give its address as databricks_host (or DATABRICKS_HOST), such as \
                 https://dbc-1.cloud.databricks.com",
            )
        })?;
        // Databricks' tools take a host alone.
        let host = if host.contains("://") { host } else { format!("https://{host}") };
        let host = address(&host).filter(|host| matches!(host.path(), "" | "/"));
        let host = host.ok_or_else(|| {
            wrong("databricks_host is no address of a workspace, such as https://dbc-1.cloud.databricks.com, without a path")
        })?;
        let text = |names: &[&str]| options.get(names).map(str::to_owned);
        let given = (text(TOKEN), text(CLIENT_ID), text(CLIENT_SECRET));
        // Options win as a whole: their client is not mixed with a token of the environment.
        let (token, id, secret) = match given {
            (None, None, None) => {
                let variable = |name| options.variable(name);
                let token = variable("DATABRICKS_TOKEN");
                match token {
                    Some(token) => (Some(token), None, None),
                    None => (None, variable("DATABRICKS_CLIENT_ID"), variable("DATABRICKS_CLIENT_SECRET")),
                }
            }
            given => given,
        };
        let plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let auth = match (token, id, secret) {
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
                return Err(wrong("databricks_token and databricks_client_id both say who asks; give one"));
            }
            (Some(token), None, None) if plain(&token) => Auth::Token(Secret::new(token)),
            (Some(_), None, None) => return Err(wrong("databricks_token has characters that no token has")),
            (None, Some(id), Some(secret)) => {
                let at = below(&host, &["oidc", "v1", "token"]);
                let (secret, scope) = (Secret::new(secret), SCOPE.to_owned());
                Auth::Client(OAuth { id, secret, scope, at, by_header: true })
            }
            (None, None, None) => Auth::Nobody,
            (None, _, _) => {
                return Err(wrong("databricks_client_id and databricks_client_secret go together; give both"));
            }
        };
        Ok(Self { host, auth, connection: Connection::new(options)? })
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
        Settings::new(Options { given: &given, environment: &|name| variables.get(name).map(Into::into) })
    }

    #[test]
    fn options_win_over_the_environment() {
        let both = [("DATABRICKS_HOST", "env.example"), ("DATABRICKS_TOKEN", "e")];
        let of = |pairs: &[(&str, &str)], variables: &[(&'static str, &'static str)]| {
            let found = settings(pairs, variables).unwrap();
            let who = match &found.auth {
                Auth::Nobody => "nobody".to_owned(),
                Auth::Token(token) => format!("token {}", token.reveal()),
                Auth::Client(client) => format!("client {} {} {}", client.id, client.secret.reveal(), client.at),
                Auth::Signed(_) => "signed".to_owned(),
            };
            format!("{} {who}", found.host)
        };
        assert_eq!(of(&[], &both), "https://env.example/ token e");
        assert_eq!(
            of(&[("Databricks_Host", "http://h:1/"), ("unity_access_token", "o")], &both),
            "http://h:1/ token o"
        );
        let client = [("databricks_client_id", "i"), ("databricks_client_secret", "s")];
        assert_eq!(of(&client, &both), "https://env.example/ client i s https://env.example/oidc/v1/token");
        let variables = [("DATABRICKS_CLIENT_ID", "j"), ("DATABRICKS_CLIENT_SECRET", "t")];
        let host = [("databricks_workspace_url", "https://w.example")];
        assert_eq!(of(&host, &variables), "https://w.example/ client j t https://w.example/oidc/v1/token");
        assert_eq!(of(&[("unity_workspace_url", "http://localhost:8080")], &[]), "http://localhost:8080/ nobody");
    }

    #[test]
    fn what_is_wrong_is_told_without_secrets() {
        let host = ("databricks_host", "h.example");
        for (pairs, told) in [
            (&[][..], "databricks_host"),
            (&[("databricks_host", "https://user:sEcReT@h")][..], "databricks_host"),
            (&[("databricks_host", "https://h/path")][..], "without a path"),
            (&[host, ("databricks_token", "sEcReT"), ("databricks_client_secret", "sEcReT")][..], "give one"),
            (&[host, ("databricks_client_id", "i")][..], "give both"),
            (&[host, ("databricks_token", "sEcReT\u{e9}")][..], "characters"),
        ] {
            let error = settings(pairs, &[]).unwrap_err().to_string();
            assert!(error.contains(told) && !error.contains("sEcReT"), "{error}");
        }
        let shown = format!("{:?}", settings(&[host, ("databricks_token", "sEcReT")], &[]).unwrap());
        assert!(!shown.contains("sEcReT"), "{shown}");
    }
}
