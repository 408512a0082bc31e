//! Addresses as messages show them: without credentials.

use object_store::path::Path;
use url::Url;

/// A URL as it may be shown: without user name, password, query and fragment, decoded.
pub(super) fn shown(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    // Azure's abfs form has the container before the @: that is an address, not a credential.
    let container = if url.scheme().starts_with("abfs") && url.password().is_none() && !url.username().is_empty() {
        format!("{}@", url.username())
    } else {
        String::new()
    };
    let path = Path::from_url_path(url.path()).map_or_else(|_| url.path().to_owned(), |path| format!("/{path}"));
    format!("{}://{container}{host}{port}{path}", url.scheme())
}

/// An address as users write it, as it may be shown: a local path as it is, a URL without credentials and query.
pub(crate) fn display(text: &str) -> String {
    if !text.contains("://") {
        return text.to_owned();
    }
    match Url::parse(text) {
        Ok(url) => shown(&url),
        Err(_) => unparsed(text).to_owned(),
    }
}

/// Part that may be shown of a text that is no URL: up to the last `@` there may be a password, behind `?` or `#` a signature.
pub(super) fn unparsed(text: &str) -> &str {
    let shown = text.rsplit_once('@').map_or(text, |(_, after)| after);
    shown.split(['?', '#']).next().unwrap_or_default()
}
