//! The options of catalogs among `storage_options`, by the names that other programs have for them.

use std::collections::BTreeMap;
use std::ffi::OsString;

/// Keys of `storage_options` that only catalogs use. Those with dots are PyIceberg's own spelling.
pub(in crate::store) const KEYS: &[&str] = &[
    "iceberg_uri",
    "iceberg_warehouse",
    "iceberg_token",
    "iceberg_credential",
    "iceberg_scope",
    "iceberg_oauth2_server_uri",
    "iceberg_rest_sigv4_enabled",
    "iceberg_rest_signing_name",
    "iceberg_rest_signing_region",
    "rest.sigv4-enabled",
    "rest.signing-name",
    "rest.signing-region",
    "databricks_host",
    "databricks_token",
    "databricks_client_id",
    "databricks_client_secret",
    "databricks_workspace_url",
    "unity_workspace_url",
    "unity_access_token",
    "unity_client_id",
    "unity_client_secret",
    "glue_id",
    "glue_region",
    "glue_endpoint",
    "glue.id",
    "glue.region",
    "glue.endpoint",
];

/// Options as users give them, and the variables of the environment that stand in for some.
#[derive(Clone, Copy)]
pub(super) struct Options<'a> {
    pub(super) given: &'a BTreeMap<String, String>,
    pub(super) environment: &'a (dyn Fn(&str) -> Option<OsString> + Sync),
}

impl<'a> Options<'a> {
    /// The value under one of `names`, in any case of letters; an empty one counts as none.
    pub(super) fn get(&self, names: &[&str]) -> Option<&'a str> {
        let named = |key: &str| names.iter().any(|name| key.eq_ignore_ascii_case(name));
        let mut found = self.given.iter().filter(|(key, _)| named(key)).map(|(_, value)| value.trim());
        found.rfind(|value| !value.is_empty())
    }

    /// The variable `name` of the environment; an empty one counts as none.
    pub(super) fn variable(&self, name: &str) -> Option<String> {
        let value = (self.environment)(name)?.into_string().ok()?;
        Some(value.trim().to_owned()).filter(|value| !value.is_empty())
    }
}
