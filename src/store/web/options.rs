//! Options for services of the web among `storage_options`, and variables of the environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use crate::error::{Error, Result};

/// Options as users give them, and the variables of the environment that stand in for some.
#[derive(Clone, Copy)]
pub(in crate::store) struct Options<'a> {
    pub(in crate::store) given: &'a BTreeMap<String, String>,
    pub(in crate::store) environment: &'a (dyn Fn(&str) -> Option<OsString> + Sync),
}

impl<'a> Options<'a> {
    /// The value under one of `names`, in any case of letters; an empty one counts as none.
    pub(in crate::store) fn get(&self, names: &[&str]) -> Option<&'a str> {
        let named = |key: &str| names.iter().any(|name| key.eq_ignore_ascii_case(name));
        let mut found = self.given.iter().filter(|(key, _)| named(key)).map(|(_, value)| value.trim());
        found.rfind(|value| !value.is_empty())
    }

    /// The variable `name` of the environment; an empty one counts as none.
    pub(in crate::store) fn variable(&self, name: &str) -> Option<String> {
        let value = (self.environment)(name)?.into_string().ok()?;
        Some(value.trim().to_owned()).filter(|value| !value.is_empty())
    }

    /// The duration under `name`, by default `usual` seconds.
    ///
    /// # Errors
    /// [`Error::Config`] for a text that is no duration.
    pub(super) fn duration(&self, name: &'static str, usual: u64) -> Result<Duration> {
        match self.get(&[name]) {
            None => Ok(Duration::from_secs(usual)),
            Some(text) => humantime::parse_duration(text).map_err(|error| {
                Error::config("storage_options", format!("{name} is no duration such as 30s: {error}"))
            }),
        }
    }
}

/// Returns true for a switch that is on, as `object_store` and huggingface_hub read them.
pub(in crate::store) fn is_true(text: &str) -> bool {
    ["1", "on", "yes", "y", "true"].iter().any(|word| text.eq_ignore_ascii_case(word))
}
