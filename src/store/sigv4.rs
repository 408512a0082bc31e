//! Signatures of AWS (SigV4) on requests that are not for objects: to catalogs, and to STS for a role.

use object_store::aws::{AwsAuthorizer, AwsCredential};
use object_store::client::{HttpRequest, HttpRequestBody};
use reqwest::Method;
use reqwest::header::HeaderMap;
use url::Url;

use crate::error::Source;

/// Service and region that a signature is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Scope {
    pub(super) service: String,
    pub(super) region: String,
}

/// `headers` of a request, and those that sign it with `credential`. Debug text shows no value of them.
///
/// # Errors
/// The address cannot be signed.
pub(super) fn signed(
    credential: &AwsCredential,
    scope: &Scope,
    (method, url): (&Method, &Url),
    headers: HeaderMap,
    body: &[u8],
) -> Result<HeaderMap, Source> {
    let mut request = HttpRequest::new(HttpRequestBody::from(body.to_vec()));
    *request.method_mut() = method.clone();
    *request.uri_mut() = url.as_str().parse().map_err(|_| "the address of a request cannot be signed")?;
    *request.headers_mut() = headers;
    AwsAuthorizer::new(credential, &scope.service, &scope.region).try_authorize(&mut request, None)?;
    let mut headers = std::mem::take(request.headers_mut());
    headers.values_mut().for_each(|value| value.set_sensitive(true));
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};

    use super::*;

    #[test]
    fn what_is_given_and_the_body_are_signed_and_nothing_is_shown() {
        let credential = AwsCredential {
            key_id: "AKID".to_owned(),
            secret_key: "sEcReT".to_owned(),
            token: Some("tOkEn".to_owned()),
        };
        let scope = Scope { service: "glue".to_owned(), region: "eu-west-1".to_owned() };
        let url = Url::parse("https://glue.eu-west-1.amazonaws.com/").unwrap();
        let sign = |body: &[u8]| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
            signed(&credential, &scope, (&Method::POST, &url), headers, body).unwrap()
        };
        let headers = sign(b"{}");
        let authorization = headers[AUTHORIZATION].to_str().unwrap();
        assert!(authorization.contains("/eu-west-1/glue/aws4_request"), "{authorization}");
        assert!(authorization.contains("SignedHeaders=content-type;host;"), "{authorization}");
        assert_eq!(
            (&headers["x-amz-security-token"], &headers[CONTENT_TYPE]),
            (&"tOkEn".parse().unwrap(), &"application/json".parse().unwrap())
        );
        assert_ne!(sign(b"{ }")["x-amz-content-sha256"], headers["x-amz-content-sha256"]);
        assert!(!format!("{headers:?}").contains("tOkEn") && !format!("{headers:?}").contains("AKID"));
    }
}
