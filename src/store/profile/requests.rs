//! Requests to AWS: for a role (STS), and for the credentials of a login (IAM Identity Center).

use std::time::{Duration, SystemTime};

use object_store::aws::AwsCredential;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::Deserialize;
use url::Url;

use super::super::credentials::Credentials;
use super::process::keys;
use super::times;
use crate::error::Source;
use crate::store::sigv4::{Scope, signed};
use crate::store::web::{Connection, Problem, Retries, passes, patient};

/// Longest time of a request.
pub(super) const TIMEOUT: Duration = Duration::from_secs(10);
const RETRIES: Retries = Retries { most: 2, first: Duration::from_millis(600), longest: Duration::from_secs(2) };

/// Most bytes of an answer.
const MAX_BYTES: u64 = 1 << 20;

/// Sends `request` until there is an answer that is no failure of the server `name`. Returns its status and text.
pub(super) async fn answer(name: &str, request: RequestBuilder) -> Result<(StatusCode, String), Source> {
    let again = || request.try_clone().ok_or_else(|| "the request cannot be sent twice".into());
    let failed = |problem: Problem| Source::from(format!("{name}: {problem}"));
    let answer = patient(&RETRIES, MAX_BYTES, &passes, &again).await.map_err(failed)?;
    Ok((answer.status, String::from_utf8_lossy(&answer.body).into_owned()))
}

/// The text of the first element `name` in `xml`.
fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    Some(rest.split_once(&format!("</{name}>"))?.0.trim())
}

/// The request to STS, signed; by itself, since its parts are not for several threads.
fn asking(
    endpoint: &Url,
    region: &str,
    action: &str,
    parameters: &[(&str, &str)],
    signer: Option<&AwsCredential>,
) -> Result<RequestBuilder, Source> {
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.extend_pairs([("Action", action), ("Version", "2011-06-15")]).extend_pairs(parameters);
    let body = form.finish();
    let form = HeaderValue::from_static("application/x-www-form-urlencoded; charset=utf-8");
    let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, form)]);
    if let Some(signer) = signer {
        let scope = Scope { service: "sts".to_owned(), region: region.to_owned() };
        headers = signed(signer, &scope, (&Method::POST, endpoint), headers, body.as_bytes())?;
    }
    Ok(Connection::within(TIMEOUT).client()?.post(endpoint.clone()).headers(headers).body(body))
}

/// Asks STS at `endpoint` in `region` for `action` with `parameters`, signed by `signer` if it must be.
///
/// # Errors
/// Errors of STS, by their code alone.
pub(super) async fn role(
    endpoint: &Url,
    region: &str,
    action: &str,
    parameters: &[(&str, &str)],
    signer: Option<&AwsCredential>,
) -> Result<Credentials, Source> {
    let request = asking(endpoint, region, action, parameters, signer)?;
    let (status, text) = answer("STS", request).await?;
    if !status.is_success() {
        let code = element(&text, "Code").unwrap_or("no reason");
        return Err(format!("STS refuses the role ({status}): {code}").into());
    }
    let part = |name: &str| element(&text, name).map(str::to_owned).ok_or_else(|| format!("STS gives no {name}"));
    let expires = part("Expiration")?;
    let expires = times::parse(&expires).ok_or("STS gives an Expiration that is no time")?;
    Ok(keys(part("AccessKeyId")?, part("SecretAccessKey")?, Some(part("SessionToken")?), Some(expires)))
}

/// The file that the tools keep of a login.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Login {
    access_token: String,
    expires_at: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Roles {
    role_credentials: Role,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Role {
    access_key_id: String,
    secret_access_key: String,
    session_token: String,
    /// Milliseconds since 1970.
    expiration: u64,
}

/// The credentials of `role` in `account`, for the login in the file `kept`, from the portal `endpoint`. `login` names the remedy if there
/// is none.
///
/// # Errors
/// The fault of the login.
pub(super) async fn sso(
    endpoint: &Url,
    kept: &[u8],
    account: &str,
    role: &str,
    login: &str,
) -> Result<Credentials, Source> {
    let kept: Login = serde_json::from_slice(kept).map_err(|_| format!("the login is not understood; {login}"))?;
    let over = times::parse(&kept.expires_at).is_none_or(|end| end <= SystemTime::now());
    if over {
        return Err(format!("the login is over; {login}").into());
    }
    let mut url = endpoint.join("/federation/credentials")?;
    url.query_pairs_mut().extend_pairs([("role_name", role), ("account_id", account)]);
    let mut token =
        HeaderValue::from_str(&kept.access_token).map_err(|_| format!("the login is not understood; {login}"))?;
    token.set_sensitive(true);
    let request = Connection::within(TIMEOUT).client()?.get(url).header("x-amz-sso_bearer_token", token);
    let (status, text) = answer("IAM Identity Center", request).await?;
    if !status.is_success() {
        return Err(format!("IAM Identity Center refuses the role ({status}); {login}").into());
    }
    let Roles { role_credentials: found } =
        serde_json::from_str(&text).map_err(|_| "the answer of IAM Identity Center is not understood")?;
    let expires = SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(found.expiration));
    Ok(keys(found.access_key_id, found.secret_access_key, Some(found.session_token), expires))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_found_in_what_sts_answers() {
        let xml = "<A><Credentials><AccessKeyId> i </AccessKeyId><Code>c</Code></Credentials></A>";
        assert_eq!(
            (element(xml, "AccessKeyId"), element(xml, "Code"), element(xml, "Secret")),
            (Some("i"), Some("c"), None)
        );
        assert_eq!(element("<Code>", "Code"), None);
    }
}
