//! Error answers of a store, read from the texts of object_store's errors, whose type is private.

use std::error::Error;
use std::iter;

/// Prefix of these texts.
pub(in crate::store) const PREFIX: &str = "Server returned non-2xx status code: ";

/// Status and body of the error answers among `error` and its causes, such as `503 Service Unavailable: <Error/>`.
pub(in crate::store) fn answers<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = String> + 'a {
    iter::successors(Some(error), |error| (**error).source())
        .filter_map(|error| error.to_string().strip_prefix(PREFIX).map(str::to_owned))
}

/// Returns true if the same request may have another answer later: `501 Not Implemented` and `505 HTTP Version Not Supported` stay.
#[cfg(feature = "cloud")]
pub(in crate::store) fn passes(answer: &str) -> bool {
    answer.starts_with("429") || answer.starts_with('5') && !answer.starts_with("501") && !answer.starts_with("505")
}

/// Returns true if the store does not let these credentials in.
pub(in crate::store) fn is_refusal(error: &object_store::Error) -> bool {
    match error {
        object_store::Error::Unauthenticated { .. } | object_store::Error::PermissionDenied { .. } => true,
        object_store::Error::Generic { source, .. } => {
            answers(&**source).any(|answer| answer.starts_with("401 ") || answer.starts_with("403 "))
        }
        _ => false,
    }
}

/// Returns true for 400 Bad Request without a body: S3's answer to a HEAD with an expired token, among others, which has no room for a reason.
pub(in crate::store) fn is_unexplained(error: &object_store::Error) -> bool {
    let is_bare = |answer: String| answer.strip_prefix("400 Bad Request:").is_some_and(|body| body.trim().is_empty());
    matches!(error, object_store::Error::Generic { source, .. } if answers(&**source).any(is_bare))
}
