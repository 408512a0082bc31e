//! Address, authorization and connection of a catalog, from `storage_options` under PyIceberg's names.

use url::Url;

use crate::error::{Error, Result};
use crate::store::access::Access;
use crate::store::catalog::client::{Auth, OAuth};
use crate::store::catalog::sign::{AwsKeys, of_host};
use crate::store::secret::Secret;
use crate::store::web::{Connection, Options, address, below};

/// PyIceberg's default name of a service that signatures are for.
const SERVICE: &str = "execute-api";

/// See the module.
#[derive(Debug)]
pub(super) struct Settings {
    /// No slash at its end.
    pub(super) uri: Url,
    pub(super) warehouse: Option<String>,
    pub(super) auth: Auth,
    pub(super) connection: Connection,
}

impl Settings {
    /// Reads them from `options`; signatures are made with keys of `access`.
    ///
    /// # Errors
    /// [`Error::Config`] for a key that is missing or has a wrong value; [`Error::Unsupported`] for a catalog in a database.
    pub(super) fn new(access: Access<'_>, options: Options<'_>) -> Result<Self> {
        let wrong = |problem: &str| Error::config("storage_options", problem);
        let option = |name: &str| options.get(&[name]);
        let uri = option("iceberg_uri").ok_or_else(|| {
            wrong(
                "iceberg:// names a table of a catalog: give its address as iceberg_uri, such as https://host/catalog",
            )
        })?;
        let is_database =
            |scheme: &&str| uri.starts_with(&format!("{scheme}:")) || uri.starts_with(&format!("{scheme}+"));
        if let Some(scheme) =
            ["sqlite", "postgresql", "postgres", "mysql", "jdbc"].iter().find(|scheme| is_database(scheme))
        {
            let hint = "give the address that its table iceberg_tables has as metadata_location, as \
                        load_table(name).metadata_location of PyIceberg gives it";
            return Err(Error::unsupported(format!("iceberg_uri of {scheme}, a catalog in a database,"), hint));
        }
        let uri = address(uri)
            .ok_or_else(|| wrong("iceberg_uri is no address of a catalog, such as https://host/catalog"))?;
        let signed = options.get(&["iceberg_rest_sigv4_enabled", "rest.sigv4-enabled"]);
        let signed = match signed.map(str::to_ascii_lowercase).as_deref() {
            None | Some("false") => false,
            Some("true") => true,
            Some(_) => return Err(wrong("iceberg_rest_sigv4_enabled is neither true nor false")),
        };
        let plain = |text: &&str| text.bytes().all(|byte| byte.is_ascii_graphic());
        let auth = match (option("iceberg_token"), option("iceberg_credential")) {
            (Some(_), Some(_)) => {
                return Err(wrong("iceberg_token and iceberg_credential both say who asks; give one"));
            }
            (None, None) if signed => Auth::Signed(Box::new(signer(&uri, access, options)?)),
            _ if signed => {
                return Err(wrong(
                    "iceberg_rest_sigv4_enabled signs requests with keys of AWS: leave iceberg_token and iceberg_credential out",
                ));
            }
            (Some(token), None) => match plain(&token) {
                true => Auth::Token(Secret::new(token)),
                false => return Err(wrong("iceberg_token has characters that no token has")),
            },
            (None, Some(credential)) => {
                let (id, secret) = credential.split_once(':').unwrap_or(("", credential));
                let at = match option("iceberg_oauth2_server_uri") {
                    Some(text) => address(text).ok_or_else(|| wrong("iceberg_oauth2_server_uri is no address"))?,
                    None => below(&uri, &["v1", "oauth", "tokens"]),
                };
                let scope = option("iceberg_scope").unwrap_or("catalog").to_owned();
                Auth::Client(OAuth { id: id.to_owned(), secret: Secret::new(secret), scope, at, by_header: false })
            }
            (None, None) => Auth::Nobody,
        };
        let warehouse = option("iceberg_warehouse").map(str::to_owned);
        Ok(Self { uri, warehouse, auth, connection: Connection::new(options)? })
    }
}

/// Signs for the service and region that `options` name, or else the address `uri` of AWS, or else the keys.
fn signer(uri: &Url, access: Access<'_>, options: Options<'_>) -> Result<crate::store::catalog::sign::Signer> {
    let keys = AwsKeys::find(access, options)?;
    let host = uri.host_str().and_then(of_host);
    let service = options.get(&["iceberg_rest_signing_name", "rest.signing-name"]);
    let service = service.or(host.map(|(service, _)| service)).unwrap_or(SERVICE).to_owned();
    let region = options.get(&["iceberg_rest_signing_region", "rest.signing-region"]).map(str::to_owned);
    let region = region.or(host.map(|(_, region)| region.to_owned())).or(keys.region.clone()).ok_or_else(|| {
        Error::config("storage_options", "iceberg_rest_sigv4_enabled needs a region: give iceberg_rest_signing_region")
    })?;
    Ok(keys.signer(&service, &region))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<Settings> {
        let given: BTreeMap<String, String> =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Settings::new(Access::from(&given), Options { given: &given, environment: &|_| None })
    }

    #[test]
    fn the_service_and_region_of_signatures_are_given_or_those_of_the_address() {
        let keys = [("aws_access_key_id", "i"), ("aws_secret_access_key", "s")];
        let of = |more: &[(&str, &str)]| {
            let all = [&keys[..], more].concat();
            format!("{:?}", settings(&all).map(|settings| settings.auth))
        };
        let glue = ("iceberg_uri", "https://glue.eu-west-1.amazonaws.com/iceberg");
        let text = of(&[glue, ("iceberg_rest_sigv4_enabled", "true")]);
        assert!(text.contains(r#"service: "glue", region: "eu-west-1""#), "{text}");
        let text =
            of(&[glue, ("rest.sigv4-enabled", "TRUE"), ("rest.signing-name", "x"), ("rest.signing-region", "y")]);
        assert!(text.contains(r#"service: "x", region: "y""#), "{text}");
        let other = ("iceberg_uri", "https://catalog.example");
        let text = of(&[other, ("rest.sigv4-enabled", "true"), ("aws_region", "z")]);
        assert!(text.contains(r#"service: "execute-api", region: "z""#), "{text}");
        assert!(of(&[other, ("rest.sigv4-enabled", "true")]).contains("iceberg_rest_signing_region"));
        assert!(of(&[other, ("rest.sigv4-enabled", "yes")]).contains("neither true nor false"));
        assert!(of(&[other, ("rest.sigv4-enabled", "true"), ("iceberg_token", "t")]).contains("leave iceberg_token"));
        assert!(of(&[other, ("rest.sigv4-enabled", "false")]).contains("Nobody"));
    }

    #[test]
    fn a_catalog_in_a_database_is_refused_with_what_to_do() {
        for uri in ["sqlite:////tmp/catalog.db", "postgresql+psycopg2://user:sEcReT@h/db"] {
            let error = settings(&[("iceberg_uri", uri)]).unwrap_err().to_string();
            assert!(error.contains("metadata_location") && !error.contains("sEcReT"), "{error}");
        }
    }
}
