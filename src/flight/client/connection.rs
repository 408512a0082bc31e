//! One connection to one server: its calls, with a deadline for each.

use std::error::Error as StdError;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{Action, FlightDescriptor, FlightInfo, Ticket as FlightTicket};
use bytes::{BufMut, Bytes, BytesMut};
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::body::Body;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tower_service::Service;

use super::address::Address;
use crate::error::{Error, Result};
use crate::flight::status::{from_status, is_transient};
use crate::flight::version::Theirs;
use crate::store::caller::{Authorization, Credentials};
use crate::trace::{Root, TraceContext};

/// Bytes that a server may send before they are read, per stream and per connection.
const WINDOW: u32 = 16 << 20;
/// Bytes of one HTTP/2 frame.
const FRAME: u32 = 1 << 20;
/// Silence after which a peer is pinged, and the time it has to answer.
const PING: Duration = Duration::from_secs(10);
/// What tonic says where HTTP refused the headers of a call: only a token can be so long.
const TOO_LONG: &str = "HTTP status code 431";
/// Time to connect.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
/// Most bytes of the answer to an action.
pub(super) const ANSWER: usize = 64 << 20;

/// Opens channels. The default uses TCP; tests use a network of their own.
pub trait Dial: std::fmt::Debug + Send + Sync {
    /// Opens a channel to the server that `endpoint` describes.
    fn dial(&self, endpoint: Endpoint) -> BoxFuture<'static, Result<Channel, tonic::transport::Error>>;
}

/// Dials with TCP.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tcp;

impl Dial for Tcp {
    fn dial(&self, endpoint: Endpoint) -> BoxFuture<'static, Result<Channel, tonic::transport::Error>> {
        Box::pin(async move { endpoint.connect().await })
    }
}

/// Failure of a call.
#[derive(Debug)]
pub(super) enum Failure {
    /// Another attempt, here or elsewhere, may help.
    Transient(Error),
    /// This server's certificate is of an unknown authority or of another name, or it refuses ours. Setting what is missing helps, and
    /// where it served before, its next certificate may.
    Untrusted(Error),
    /// This server refuses. One that has newer tokens, tickets' keys or datasets may not.
    Refused(Error),
    /// No other attempt helps.
    Final(Error),
}

impl Failure {
    /// The failure of a call that ended with `status`, which is `error`.
    pub(super) fn of(status: &Status, error: Error) -> Self {
        match status.code() {
            // A failure of the transport itself carries none of our details.
            _ if is_transient(status) => Self::Transient(error),
            Code::Unauthenticated | Code::PermissionDenied | Code::NotFound => Self::Refused(error),
            _ => Self::Final(error),
        }
    }

    /// Returns the error, where there is no other attempt.
    pub(super) fn error(self) -> Error {
        match self {
            Self::Transient(error) | Self::Untrusted(error) | Self::Refused(error) | Self::Final(error) => error,
        }
    }
}

/// Returns an error about the address of `peer` if `error` shows that only one side speaks TLS.
///
/// A plain-text answer is no TLS record; and a TLS alert in answer to a plain-text preface, read as an HTTP/2 frame, exceeds the frame
/// size.
fn crossed(peer: &str, error: &(dyn StdError + 'static)) -> Option<Error> {
    let (mark, problem, meant, at) = match (peer.strip_prefix("grpc+tls://"), peer.strip_prefix("grpc://")) {
        (Some(at), _) => ("InvalidContentType", "the server speaks no TLS", "grpc", at),
        (None, Some(at)) => ("frame with invalid size", "the server speaks TLS", "grpc+tls", at),
        (None, None) => return None,
    };
    std::iter::successors(Some(error), |error| (**error).source())
        .any(|error| error.to_string().contains(mark))
        .then(|| Error::config("url", format!("{peer}: {problem}; write {meant}://{at}")))
}

/// What to set for a server whose certificate is of another authority or another name than expected, or that wants another one of ours;
/// `None` for other errors. A certificate that has expired or is not valid yet is replaced by its server.
fn distrusted(error: &(dyn StdError + 'static)) -> Option<&'static str> {
    std::iter::successors(Some(error), |error| (**error).source()).find_map(|error| {
        let text = error.to_string();
        // The words of rustls.
        if let Some((_, alert)) = text.split_once("received fatal alert: ") {
            return unwelcome(alert);
        }
        let (_, why) = text.split_once("invalid peer certificate: ")?;
        if why.starts_with("UnknownIssuer") {
            Some("no connection: no known CA has signed its certificate; give its CA as ca in storage_options")
        } else if why.starts_with("NotValidForName") || why.starts_with("certificate not valid for name") {
            Some("no connection: its certificate is of another name; give that name as server_name in storage_options")
        } else {
            None
        }
    })
}

/// What to set for a server that refused this client's certificate with `alert`, or that it has none. It says so after the handshake, in
/// answer to the first call.
fn unwelcome(alert: &str) -> Option<&'static str> {
    if alert.starts_with("CertificateRequired") {
        Some("no connection: it wants a certificate of its clients; give cert and key in storage_options")
    } else if ["UnknownCA", "BadCertificate", "AccessDenied"].iter().any(|refused| alert.starts_with(refused)) {
        Some("no connection: it does not trust the certificate that is given as cert in storage_options")
    } else {
        None
    }
}

/// A connection to one server.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    channel: Channel,
    peer: Arc<str>,
    theirs: Theirs,
    authorization: Option<Authorization>,
}

impl Connection {
    /// Connects to the server of `address`.
    pub(super) async fn open(address: &Address, credentials: &Credentials, dial: &dyn Dial) -> Result<Self, Failure> {
        let peer: Arc<str> = address.server().into();
        let unreachable = |error: tonic::transport::Error| {
            if let Some(error) = crossed(&peer, &error) {
                return Failure::Final(error);
            }
            let hint = distrusted(&error);
            let what = hint.unwrap_or("no connection").to_owned();
            let error = Error::Remote { peer: peer.to_string(), what, source: Some(Box::new(error)) };
            if hint.is_some() { Failure::Untrusted(error) } else { Failure::Transient(error) }
        };
        let invalid =
            |error: tonic::transport::Error| Failure::Final(Error::config("url", format!("{address}: {error}")));
        let mut endpoint = Endpoint::from_shared(address.endpoint())
            .map_err(invalid)?
            .connect_timeout(CONNECT)
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_frame_size(FRAME)
            .http2_keep_alive_interval(PING)
            .keep_alive_timeout(PING)
            .keep_alive_while_idle(true);
        if address.tls {
            endpoint = endpoint.tls_config(credentials.tls(None).map_err(Failure::Final)?).map_err(unreachable)?;
        }
        let channel = within(CONNECT, &peer, "connect", dial.dial(endpoint)).await?.map_err(unreachable)?;
        Ok(Self { channel, peer, theirs: Theirs::default(), authorization: credentials.authorization().cloned() })
    }

    /// Returns the server's address, for messages; with both versions if it is known to have another one.
    pub(super) fn peer(&self) -> String {
        self.theirs.named(&self.peer)
    }

    fn failed(&self, status: &Status) -> Failure {
        self.theirs.hear(status.metadata().as_ref());
        if let Some(error) = crossed(&self.peer, status) {
            return Failure::Final(error);
        }
        if status.message().contains(TOO_LONG) {
            let problem = format!("{} takes no headers as long as with this token (its header_list_bytes)", self.peer);
            return Failure::Final(Error::config("token", problem));
        }
        if let Some(hint) = distrusted(status) {
            let source: Box<dyn StdError + Send + Sync> = Box::new(status.clone());
            let error = Error::Remote { peer: self.peer.to_string(), what: hint.to_owned(), source: Some(source) };
            return Failure::Untrusted(error);
        }
        let error = from_status(&self.peer(), status);
        Failure::of(status, error)
    }

    fn request<T>(&self, message: T) -> tonic::Request<T> {
        Authorization::request(self.authorization.as_ref(), message)
    }

    fn stock(&self) -> FlightServiceClient<Channel> {
        FlightServiceClient::new(self.channel.clone()).max_decoding_message_size(ANSWER)
    }

    /// Requests the description of a descriptor's stream, whose ticket brings the trace of `root` to the server.
    pub(super) async fn info(
        &self,
        descriptor: FlightDescriptor,
        root: Option<Root>,
        deadline: Duration,
    ) -> Result<FlightInfo, Failure> {
        let mut client = self.stock();
        let mut request = self.request(descriptor);
        if let Some(TraceContext { traceparent, tracestate }) = root.map(|root| root.parent()) {
            for (name, value) in [("traceparent", Some(traceparent)), ("tracestate", tracestate)] {
                if let Some(Ok(value)) = value.map(AsciiMetadataValue::try_from) {
                    request.metadata_mut().insert(name, value);
                }
            }
        }
        let asking = client.get_flight_info(request);
        let info = within(deadline, &self.peer, "GetFlightInfo", asking).await?;
        let info = info.map_err(|status| self.failed(&status))?;
        self.theirs.hear(info.metadata().as_ref());
        Ok(info.into_inner())
    }

    /// Requests the descriptions of all datasets of the server.
    #[cfg(feature = "cli")]
    pub(super) async fn list(&self, deadline: Duration) -> Result<Vec<FlightInfo>, Failure> {
        let mut client = self.stock();
        let asking = async {
            let infos = client.list_flights(self.request(arrow_flight::Criteria::default())).await?;
            self.theirs.hear(infos.metadata().as_ref());
            let mut infos = infos.into_inner();
            let (mut all, mut length) = (Vec::new(), 0_usize);
            while let Some(info) = infos.next().await {
                let info = info?;
                length = length.saturating_add(info.encoded_len());
                if length > ANSWER {
                    return Err(Status::out_of_range("the list is too long"));
                }
                all.push(info);
            }
            Ok(all)
        };
        within(deadline, &self.peer, "ListFlights", asking).await?.map_err(|status| self.failed(&status))
    }

    /// Runs an action, and returns its answers, concatenated.
    pub(super) async fn action(&self, action: &str, body: Vec<u8>, deadline: Duration) -> Result<Vec<u8>, Failure> {
        let mut client = self.stock();
        let asking = async {
            let answers = client.do_action(self.request(Action::new(action, body))).await?;
            self.theirs.hear(answers.metadata().as_ref());
            let mut answers = answers.into_inner();
            let mut whole = Vec::new();
            while let Some(answer) = answers.next().await {
                let answer = answer?;
                if whole.len() + answer.body.len() > ANSWER {
                    return Err(Status::out_of_range("the answer is too long"));
                }
                whole.extend_from_slice(&answer.body);
            }
            Ok(whole)
        };
        within(deadline, &self.peer, action, asking).await?.map_err(|status| self.failed(&status))
    }

    /// Opens the stream of `ticket`: its body is gRPC messages of FlightData, its trailers the status.
    pub(super) async fn get(&self, ticket: Bytes, deadline: Duration) -> Result<Body, Failure> {
        let message = FlightTicket { ticket };
        let mut framed = BytesMut::with_capacity(5 + message.encoded_len());
        framed.put_u8(0);
        framed.put_u32(message.encoded_len() as u32);
        framed.extend_from_slice(&message.encode_to_vec());
        let invalid = |error: http::Error| Failure::Final(Error::config("url", error.to_string()));
        let mut request = Request::builder()
            .method(Method::POST)
            .uri("/arrow.flight.protocol.FlightService/DoGet")
            .version(http::Version::HTTP_2)
            .header(header::CONTENT_TYPE, "application/grpc")
            .header(header::TE, "trailers");
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization.value());
        }
        let request = request.body(Body::new(Full::new(framed.freeze()))).map_err(invalid)?;
        let mut channel = self.channel.clone();
        let asking = async {
            std::future::poll_fn(|context| channel.poll_ready(context)).await?;
            channel.call(request).await
        };
        let response = within(deadline, &self.peer, "DoGet", asking).await?.map_err(|error| {
            if let Some(error) = crossed(&self.peer, &error) {
                return Failure::Final(error);
            }
            Failure::Transient(Error::Remote {
                peer: self.peer.to_string(),
                what: "DoGet failed".to_owned(),
                source: Some(Box::new(error)),
            })
        })?;
        let (parts, body) = response.into_parts();
        self.theirs.hear(&parts.headers);
        if parts.status != http::StatusCode::OK {
            return Err(self.failed(&Status::unavailable(format!("HTTP status {}", parts.status))));
        }
        // An immediate error comes without a body.
        match Status::from_header_map(&parts.headers) {
            Some(status) if status.code() != Code::Ok => Err(self.failed(&status)),
            _ => Ok(body),
        }
    }

    /// Returns the next piece of a body; `None` at a regular end. Empty pieces are skipped: they are no progress.
    pub(super) async fn piece(&self, body: &mut Body) -> Result<Option<Bytes>, Failure> {
        loop {
            match body.frame().await {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) if data.is_empty() => continue,
                    Ok(data) => return Ok(Some(data)),
                    Err(frame) => {
                        let status = frame.trailers_ref().and_then(Status::from_header_map);
                        match status {
                            Some(status) if status.code() == Code::Ok => return Ok(None),
                            Some(status) => return Err(self.failed(&status)),
                            None => continue,
                        }
                    }
                },
                Some(Err(status)) => return Err(self.failed(&status)),
                None => return Err(self.failed(&Status::unavailable("the stream was cut off"))),
            }
        }
    }
}

async fn within<T>(deadline: Duration, peer: &str, what: &str, work: impl Future<Output = T>) -> Result<T, Failure> {
    tokio::time::timeout(deadline, work).await.map_err(|_| {
        Failure::Transient(Error::Timeout {
            stage: "receive",
            culprit: format!("{peer} to answer {what}"),
            waited: deadline,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unknown_authority_and_another_name_are_for_the_caller_to_mend() {
        let of = |why: &str| distrusted(&std::io::Error::other(format!("invalid peer certificate: {why}")));
        assert!(of("UnknownIssuer").is_some_and(|hint| hint.contains("as ca ")));
        for why in ["NotValidForName", "certificate not valid for name \"a\"; certificate is only valid for ..."] {
            assert!(of(why).is_some_and(|hint| hint.contains("server_name")), "{why}");
        }
        for why in
            ["certificate expired: verification time 2 (UNIX)", "certificate not valid yet: ...", "Expired", "Revoked"]
        {
            assert_eq!(of(why), None, "{why}");
        }
        assert_eq!(distrusted(&std::io::Error::other("UnknownIssuer")), None);
        let told = |alert: &str| distrusted(&std::io::Error::other(format!("received fatal alert: {alert}")));
        assert!(told("CertificateRequired").is_some_and(|hint| hint.contains("cert and key")));
        for alert in ["UnknownCA", "BadCertificate", "AccessDenied"] {
            assert!(told(alert).is_some_and(|hint| hint.contains("given as cert")), "{alert}");
        }
        assert_eq!((told("CertificateExpired"), told("InternalError")), (None, None));
    }
}
