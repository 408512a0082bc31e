//! Error answers of a store, read from the texts of object_store's errors, whose type is private.

use std::error::Error;
use std::iter;

/// Prefix of these texts.
const PREFIX: &str = "Server returned non-2xx status code: ";

/// Status and body of the error answers among `error` and its causes, such as `503 Service Unavailable: <Error/>`.
pub(in crate::store) fn answers<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = String> + 'a {
    iter::successors(Some(error), |error| (**error).source())
        .filter_map(|error| error.to_string().strip_prefix(PREFIX).map(str::to_owned))
}
