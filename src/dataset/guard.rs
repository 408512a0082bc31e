//! Decoders of Parquet over bytes that nobody has to trust.

use parquet::errors::ParquetError;

use crate::error::{Error, Place, Result};
use crate::page;

/// Runs a decoder over bytes that nobody has to trust: its panics and errors become [`Error::Corrupt`] at `place`.
pub(super) fn guard<T>(place: &Place, what: &str, work: impl FnOnce() -> Result<T, ParquetError>) -> Result<T> {
    // The remains of a decoder that panicked are dropped with it, so nothing half-done is seen afterwards.
    match page::quiet(work) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(ParquetError::NYI(what))) => Err(Error::unsupported(what, "").at(place.clone())),
        Ok(Err(error)) => Err(Error::corrupt_by(place.clone(), what, error)),
        Err(panic) => {
            let text = page::said(&*panic).unwrap_or("the decoder gave up");
            Err(Error::corrupt_by(place.clone(), what, text.to_owned()))
        }
    }
}
