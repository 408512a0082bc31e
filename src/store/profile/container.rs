//! Credentials of a service beside the container (`AWS_CONTAINER_CREDENTIALS_FULL_URI`): EKS's pod identity, aws-vault. object_store's own
//! needs a file of a token, and sends what is in it with its line break.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use object_store::CredentialProvider;
use reqwest::header::{AUTHORIZATION, HeaderValue};
use serde::Deserialize;
use url::Url;

use super::super::credentials::Credentials;
use super::process::keys;
use super::provider::read;
use super::requests::{self, TIMEOUT};
use super::times;
use crate::error::{Error, Result, Source};
use crate::store::secret::Secret;
use crate::store::web::{Connection, is_near};

/// Hosts of ECS and EKS that are asked without TLS, as AWS's own clients do; further ones are this machine's.
const NEAR: [&str; 3] = ["169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"];

/// See the module.
pub(super) struct Container {
    url: Url,
    token: Option<Token>,
}

/// What the service lets its container in by.
enum Token {
    File(PathBuf),
    Text(Secret),
}

/// An answer of the service.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Given {
    access_key_id: String,
    secret_access_key: String,
    token: Option<String>,
    expiration: Option<String>,
}

impl Container {
    /// The service at `uri`, which lets in who sends the token in `file`, or `text`.
    ///
    /// # Errors
    /// [`Error::Config`] for an address that no token is sent to.
    pub(super) fn new(uri: &str, file: Option<String>, text: Option<String>) -> Result<Self> {
        let is_one = |url: &Url| match url.scheme() {
            "https" => url.has_host(),
            "http" => is_near(url.host_str()) || url.host_str().is_some_and(|host| NEAR.contains(&host)),
            _ => false,
        };
        let url = Url::parse(uri).ok().filter(is_one).ok_or_else(|| {
            let problem = "AWS_CONTAINER_CREDENTIALS_FULL_URI is no address with https://, or with http:// of this machine, ECS or EKS";
            Error::config("storage_options", problem)
        })?;
        let text = || text.map(|text| Token::Text(Secret::new(text)));
        Ok(Self { url, token: file.map(|file| Token::File(PathBuf::from(file))).or_else(text) })
    }

    async fn ask(&self) -> Result<Credentials, Source> {
        let token = match &self.token {
            None => None,
            Some(Token::Text(text)) => Some(text.reveal().to_owned()),
            Some(Token::File(path)) => Some(text(path).await?),
        };
        let mut request = Connection::within(TIMEOUT).client()?.get(self.url.clone());
        if let Some(token) = token {
            let mut header =
                HeaderValue::from_str(token.trim()).map_err(|_| "the token of the container is no header")?;
            header.set_sensitive(true);
            request = request.header(AUTHORIZATION, header);
        }
        let (status, answer) = requests::answer("the container's service", request).await?;
        if !status.is_success() {
            return Err(format!("the container's service refuses ({status})").into());
        }
        // The error would quote the answer.
        let given: Given =
            serde_json::from_str(&answer).map_err(|_| "the answer of the container's service is not understood")?;
        let expires = given
            .expiration
            .map(|text| times::parse(&text).ok_or("the container's service gives an Expiration that is no time"));
        Ok(keys(given.access_key_id, given.secret_access_key, given.token, expires.transpose()?))
    }
}

/// The token in the file at `path`, which is written anew when it expires.
async fn text(path: &Path) -> Result<String, Source> {
    let token = read(path).await.map_err(|error| format!("{}: {error}", path.display()))?;
    String::from_utf8(token).map_err(|_| "the token of the container is no text".into())
}

impl fmt::Debug for Container {
    /// Its name in errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AWS_CONTAINER_CREDENTIALS_FULL_URI")
    }
}

#[async_trait]
impl CredentialProvider for Container {
    type Credential = Credentials;

    async fn get_credential(&self) -> object_store::Result<Arc<Credentials>> {
        let found = self.ask().await.map(Arc::new);
        found.map_err(|source| object_store::Error::Generic { store: "S3", source })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn a_token_goes_to_this_machine_and_over_tls_alone() {
        let new = |uri: &str| Container::new(uri, None, Some("sEcReT".to_owned()));
        for uri in
            ["http://localhost:9099/role", "http://[::1]/", "http://169.254.170.23/v1/credentials", "https://h/x"]
        {
            assert!(!format!("{:?}", new(uri).unwrap()).contains("sEcReT"), "{uri}");
        }
        for uri in ["http://example.com/", "169.254.170.23/v1", "", "file:///x", "http://169.254.170.2.example.com/"] {
            let problem = new(uri).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(problem.contains("AWS_CONTAINER_CREDENTIALS_FULL_URI"), "{uri}: {problem}");
        }
    }

    #[tokio::test]
    async fn the_service_is_asked_with_the_token_of_a_file_of_a_variable_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("token");
        std::fs::write(&file, "of-file\n").unwrap();
        let file = file.to_str().unwrap().to_owned();
        for (file, text, sent) in [
            (Some(file), Some("of-variable".to_owned()), Some("authorization: of-file\r\n")),
            (None, Some("of-variable".to_owned()), Some("authorization: of-variable\r\n")),
            (None, None, None),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let uri = format!("http://{}/role", listener.local_addr().unwrap());
            let server = thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.extend(byte);
                }
                let body = r#"{"AccessKeyId": "i", "SecretAccessKey": "s", "Token": "t", "Expiration": "2099-01-01T00:00:00Z"}"#;
                let length = body.len();
                write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}")
                    .unwrap();
                String::from_utf8(request).unwrap()
            });
            let given = Container::new(&uri, file, text).unwrap().get_credential().await.unwrap();
            let keys = given.aws().unwrap();
            assert_eq!((keys.key_id.as_str(), keys.token.as_deref()), ("i", Some("t")));
            assert!(given.expires().is_some());
            let request = server.join().unwrap();
            assert!(request.starts_with("GET /role "), "{request}");
            match sent {
                Some(header) => assert!(request.contains(header), "{request}"),
                None => assert!(!request.contains("authorization"), "{request}"),
            }
        }
    }
}
