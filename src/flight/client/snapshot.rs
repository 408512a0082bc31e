//! Snapshots of a running server: through Flight as a tenant, or from its admin port as an operator.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use url::Url;

use super::address::Address;
use super::connection::{ANSWER, Connection, Failure, Tcp};
use crate::error::{Error, Result};
use crate::flight::server::Snapshot;
use crate::flight::server::snapshot::SCHEMA;
use crate::pipeline::LoaderOptions;
use crate::store::caller::Credentials;

/// A server to look at.
#[derive(Debug)]
pub(crate) struct Viewed {
    place: Place,
    credentials: Credentials,
    timeout: Duration,
}

#[derive(Debug)]
enum Place {
    Flight {
        address: Address,
        connection: Option<Connection>,
    },
    /// The admin port: host, port and address for display.
    Admin {
        host: String,
        port: u16,
        shown: String,
    },
}

impl Viewed {
    /// The server at the only address of `options`: `grpc://host:port`, or `http://host:port` for its admin port. Nothing is asked yet.
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid address or invalid options.
    pub(crate) fn new(options: &LoaderOptions) -> Result<Self> {
        let [url] = options.urls.as_slice() else {
            return Err(Error::config("urls", "one server at a time"));
        };
        let place = if Address::is_one(url) {
            Place::Flight { address: Address::parse(url)?, connection: None }
        } else {
            admin(url)?
        };
        let credentials = Credentials::new(&options.storage_options)?;
        Ok(Self { place, credentials, timeout: options.deadline()? })
    }

    /// The address for display.
    pub(crate) fn name(&self) -> String {
        match &self.place {
            Place::Flight { address, .. } => address.server(),
            Place::Admin { shown, .. } => shown.clone(),
        }
    }

    /// The server at this moment.
    ///
    /// # Errors
    /// [`Error::Remote`] if it cannot be reached or does not know the caller; [`Error::Timeout`]; [`Error::Unsupported`] if its version
    /// has another form of snapshots.
    pub(crate) async fn take(&mut self) -> Result<Snapshot> {
        let (peer, timeout) = (self.name(), self.timeout);
        let taking = async {
            match &mut self.place {
                Place::Flight { address, connection } => {
                    let open = match connection.take() {
                        Some(open) => open,
                        None => Connection::open(address, &self.credentials, &Tcp).await.map_err(Failure::error)?,
                    };
                    let answer = open.action("snapshot", Vec::new(), timeout).await.map_err(Failure::error)?;
                    *connection = Some(open);
                    Ok(answer)
                }
                Place::Admin { host, port, .. } => fetch(&peer, (host, *port), &self.credentials).await,
            }
        };
        let answer = match tokio::time::timeout(timeout, taking).await {
            Ok(answer) => answer?,
            Err(_) => return Err(Error::late("snapshot", &peer, timeout, timeout)),
        };
        read(&peer, &answer)
    }
}

/// Parses the address of an admin port.
fn admin(url: &str) -> Result<Place> {
    // The address may hold a password, so it is not repeated.
    let wrong = |problem: &str| Error::config("url", format!("the address of a server: {problem}"));
    let parsed = Url::parse(url).map_err(|error| wrong(&error.to_string()))?;
    match parsed.scheme() {
        "http" => {}
        "https" => {
            return Err(wrong("an admin port speaks plain HTTP; write http://HOST:PORT, or grpc+tls:// for Flight"));
        }
        _ => return Err(wrong("write grpc://HOST:PORT, grpc+tls://HOST:PORT, or http://HOST:PORT for the admin port")),
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(wrong("a token goes into storage_options or BOWSTRING_TOKEN, never into an address"));
    }
    let host = parsed.host_str().ok_or_else(|| wrong("there is no host"))?;
    let port = parsed.port().unwrap_or(80);
    Ok(Place::Admin { host: host.to_owned(), port, shown: format!("http://{host}:{port}") })
}

/// Reads a snapshot of another process.
fn read(peer: &str, answer: &[u8]) -> Result<Snapshot> {
    let snapshot: Snapshot = serde_json::from_slice(answer).map_err(|error| Error::Remote {
        peer: peer.to_owned(),
        what: "its answer is no snapshot: it is not a server of bowstring".to_owned(),
        source: Some(Box::new(error)),
    })?;
    if snapshot.schema != SCHEMA {
        let what = format!("snapshots of form {} of {peer}, version {}", snapshot.schema, snapshot.version);
        return Err(Error::unsupported(what, "use the bowstring of the server's version"));
    }
    Ok(snapshot)
}

async fn fetch(peer: &str, (host, port): (&str, u16), credentials: &Credentials) -> Result<Vec<u8>> {
    let failed = |what: &str, source: Option<Box<dyn std::error::Error + Send + Sync>>| Error::Remote {
        peer: peer.to_owned(),
        what: what.to_owned(),
        source,
    };
    // The brackets are the URL's.
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let stream =
        TcpStream::connect((name, port)).await.map_err(|error| failed("no connection", Some(Box::new(error))))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|error| failed("no connection", Some(Box::new(error))))?;
    // It ends with its sender; what goes wrong is told there.
    let task = tokio::spawn(connection);
    let mut request = Request::get("/ui/data").header(header::HOST, format!("{host}:{port}"));
    if let Some(authorization) = credentials.authorization() {
        request = request.header(header::AUTHORIZATION, authorization.value());
    }
    let request =
        request.body(Empty::<Bytes>::new()).map_err(|error| Error::config("url", format!("{peer}: {error}")))?;
    let answer = sender.send_request(request).await;
    let answer: Response<Incoming> = answer.map_err(|error| failed("no answer", Some(Box::new(error))))?;
    let status = answer.status();
    let body = Limited::new(answer.into_body(), ANSWER).collect().await;
    let body = body.map_err(|error| failed("the answer ended early", Some(error)))?.to_bytes();
    drop(sender);
    task.abort();
    if status.is_success() {
        return Ok(body.into());
    }
    let text: String = String::from_utf8_lossy(&body).trim().chars().take(200).collect();
    Err(failed(&format!("status {}: {text}", status.as_u16()), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_flight_or_of_an_admin_port() {
        let of = |url: &str| Viewed::new(&LoaderOptions::new(url, 1)).map(|viewed| viewed.name());
        assert_eq!(of("grpc://host/photos").unwrap(), "grpc://host:8815");
        assert_eq!(of("http://[::1]:9632/ui").unwrap(), "http://[::1]:9632");
        for (url, part) in [
            ("https://host", "plain HTTP"),
            ("http://me:secret@host", "BOWSTRING_TOKEN"),
            ("s3://host", "grpc://HOST"),
            ("host", "address"),
        ] {
            let error = of(url).unwrap_err().to_string();
            assert!(error.contains(part) && !error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn other_forms_are_refused() {
        let error = read("grpc://x", br#"{"schema": 99, "version": "9.0"}"#).unwrap_err();
        assert!(matches!(error, Error::Unsupported { .. }) && error.to_string().contains("9.0"), "{error}");
        assert!(matches!(read("grpc://x", b"<html>").unwrap_err(), Error::Remote { .. }));
    }
}
