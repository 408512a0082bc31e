//! Credentials from a Python callable, which `bowstring.credentials` has normalised.

use bowstring::pipeline::LoaderOptions;
use pyo3::prelude::*;

/// A callable, and its name for errors.
pub(crate) type Provider = (String, Py<PyAny>);

/// Makes `provider` the source of the stores' credentials.
#[cfg(feature = "cloud")]
pub(crate) fn provide(_: Python<'_>, options: &mut LoaderOptions, provider: Option<Provider>) -> PyResult<()> {
    use std::collections::BTreeMap;
    use std::time::{Duration, SystemTime};

    use bowstring::error::Source;
    use bowstring::store::{CredentialSource, Credentials};

    use crate::calls::{ENDING, call};

    let Some((name, callable)) = provider else { return Ok(()) };
    // Runs on a thread that may block, and holds no locks.
    let ask = move || -> Result<Credentials, Source> {
        // Converted to text at once: formatting an exception takes the GIL again, for which the code that formats it must not wait.
        let asked = call(|py| {
            let found =
                callable.bind(py).call0().and_then(|found| found.extract::<(BTreeMap<String, String>, Option<f64>)>());
            found.map_err(|error| error.to_string())
        });
        let (values, expires) = asked.ok_or(ENDING)??;
        let after = |seconds: f64| Duration::try_from_secs_f64(seconds).ok();
        let expires = match expires {
            None => None,
            Some(seconds) => Some(
                after(seconds)
                    .and_then(|after| SystemTime::UNIX_EPOCH.checked_add(after))
                    .ok_or_else(|| format!("{seconds} is no time at which credentials expire"))?,
            ),
        };
        Ok(Credentials::new(values, expires))
    };
    options.credential_provider = Some(CredentialSource::of_function(name, ask));
    Ok(())
}

/// Refuses a provider: this build has no stores with credentials.
#[cfg(not(feature = "cloud"))]
pub(crate) fn provide(py: Python<'_>, _: &mut LoaderOptions, provider: Option<Provider>) -> PyResult<()> {
    let problem = "this build of bowstring has no stores of clouds";
    let refused = |_| Err(crate::errors::raise(py, &bowstring::Error::config("credential_provider", problem)));
    provider.map_or(Ok(()), refused)
}
