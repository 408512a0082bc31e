//! `bowstring._native.audit`: joins the certificates of a run.

use bowstring::Error;
use bowstring::error::Result;
use bowstring::plan::{self, Certificate};
use pyo3::prelude::*;

use crate::wait::apart;

/// Audits certificates given as JSON documents. Returns the audit as JSON.
#[pyfunction]
#[pyo3(signature = (certificates, key=None))]
pub(crate) fn audit(py: Python<'_>, certificates: Vec<String>, key: Option<Vec<u8>>) -> PyResult<String> {
    apart(py, move || joined(&certificates, key.as_deref()))
}

fn joined(certificates: &[String], key: Option<&[u8]>) -> Result<String> {
    let certificates = certificates.iter().map(Certificate::from_json).collect::<Result<Vec<_>>>()?;
    if let Some(key) = key {
        certificates.iter().try_for_each(|certificate| certificate.verify(key))?;
    }
    let audit = plan::audit(&certificates)?;
    serde_json::to_string(&audit).map_err(|error| Error::Closed { why: error.to_string() })
}
