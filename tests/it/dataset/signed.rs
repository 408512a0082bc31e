//! A judge of AWS's signatures, written from their description and held against what botocore signs.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::answering::Request;

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `text` percent-encoded, but for the characters that need none and for `more`.
fn encoded(text: &str, more: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || "-._~".contains(byte as char) || more.contains(byte as char);
    text.bytes().map(|byte| if plain(byte) { (byte as char).to_string() } else { format!("%{byte:02X}") }).collect()
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escape = (*first == b'%').then(|| std::str::from_utf8(&after[..2]).unwrap());
        bytes.push(escape.map_or(*first, |digits| u8::from_str_radix(digits, 16).unwrap()));
        rest = if escape.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap()
}

/// The key, service and region of a request that is signed by `secret`; or what is wrong with its signature.
pub(crate) fn signer(request: &Request, secret: &str) -> Result<String, String> {
    let header = request.header("authorization").ok_or("nobody signed it")?;
    let fields = header.strip_prefix("AWS4-HMAC-SHA256 ").ok_or("it is not signed by version 4")?;
    let field = |name: &str| {
        let found = fields.split(", ").find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        found.ok_or_else(|| format!("there is no {name}"))
    };
    let (credential, names, given) = (field("Credential")?, field("SignedHeaders")?, field("Signature")?);
    let (key, scope) = credential.split_once('/').unwrap();
    let [date, region, service, "aws4_request"] = scope.split('/').collect::<Vec<_>>()[..] else {
        return Err(format!("the scope is {scope}"));
    };
    let payload = hex(Sha256::digest(request.body.as_bytes()));
    if request.header("x-amz-content-sha256") != Some(payload.as_str()) {
        return Err("the digest is not that of the body".to_owned());
    }
    let time = request.header("x-amz-date").ok_or("there is no date")?;
    if !time.starts_with(date) {
        return Err("two dates differ".to_owned());
    }
    for name in ["host", "x-amz-date", "content-type", "x-amz-target", "x-amz-security-token"] {
        let signed = names.split(';').any(|signed| signed == name);
        if request.header(name).is_some() && !signed {
            return Err(format!("{name} is not signed"));
        }
    }
    let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (encoded(&decoded(name), ""), encoded(&decoded(value), "")))
        .collect();
    pairs.sort();
    let query = pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join("&");
    let headers: String =
        names.split(';').map(|name| format!("{name}:{}\n", request.header(name).unwrap_or_default().trim())).collect();
    // All services but S3 encode what is encoded already.
    let path = encoded(path, "/");
    let canonical = format!("{}\n{path}\n{query}\n{headers}\n{names}\n{payload}", request.method);
    let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(Sha256::digest(canonical.as_bytes())));
    let mut signing = hmac(format!("AWS4{secret}").as_bytes(), date);
    for part in [region, service, "aws4_request"] {
        signing = hmac(&signing, part);
    }
    if hex(hmac(&signing, &text)) != given {
        return Err(format!("the signature is another one, over:\n{canonical}"));
    }
    Ok(format!("{key} {service} {region}"))
}

/// What botocore 1.44.8 signed with the key of AWS's documentation.
#[test]
fn the_judge_knows_what_botocore_signs() {
    const SECRET: &str = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";
    let request = |method: &str, path: &str, body: &str, headers: &[(&str, &str)]| Request {
        method: method.to_owned(),
        path: path.to_owned(),
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        body: body.to_owned(),
    };
    let mut glue = request(
        "POST",
        "/",
        r#"{"DatabaseName":"db","Name":"t"}"#,
        &[
            ("host", "127.0.0.1:4566"),
            ("content-type", "application/x-amz-json-1.1"),
            ("x-amz-target", "AWSGlue.GetTable"),
            ("x-amz-content-sha256", "5d659ff0d950d943c46caf89594fb4f63da6cb23530f01d2efd0f0ebf8b704f8"),
            ("x-amz-date", "20261126T120000Z"),
            (
                "authorization",
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261126/eu-west-1/glue/aws4_request, SignedHeaders=content-type;host;\
          x-amz-content-sha256;x-amz-date;x-amz-target, Signature=4cde9cbb35a0c7bc42ff4490f78780cef7e1ab2590dc74d9079bd27bc6f3b38d",
            ),
        ],
    );
    assert_eq!(signer(&glue, SECRET).as_deref(), Ok("AKIDEXAMPLE glue eu-west-1"));
    let rest = request(
        "GET",
        "/iceberg/v1/catalogs/1/namespaces/db%1Fpart/tables/t?warehouse=w%2F1&a=b%20c",
        "",
        &[
            ("host", "h.example"),
            ("x-iceberg-access-delegation", "vended-credentials"),
            ("x-amz-content-sha256", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
            ("x-amz-date", "20261126T120000Z"),
            ("x-amz-security-token", "session+token"),
            (
                "authorization",
                "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261126/eu-west-1/execute-api/aws4_request, SignedHeaders=host;\
          x-amz-content-sha256;x-amz-date;x-amz-security-token;x-iceberg-access-delegation, \
          Signature=9c899b3c6b062d2f2f313d2beac3525302091cd7e8163099fdc67aac2eb20e1a",
            ),
        ],
    );
    assert_eq!(signer(&rest, SECRET).as_deref(), Ok("AKIDEXAMPLE execute-api eu-west-1"));
    assert!(signer(&rest, "another").is_err());
    glue.body.push(' ');
    assert!(signer(&glue, SECRET).is_err());
}
