//! A request before its service sees it: who sent it, and its one message, which comes within a size and a time.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Limited};
use tonic::Status;
use tonic::body::Body;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};

/// Returns the address that a call came from.
pub(crate) fn sender(extensions: &http::Extensions) -> Option<SocketAddr> {
    let plain = extensions.get::<TcpConnectInfo>();
    let info = plain.or_else(|| extensions.get::<TlsConnectInfo<TcpConnectInfo>>().map(TlsConnectInfo::get_ref));
    info.and_then(TcpConnectInfo::remote_addr)
}

/// Reads all of `body`: at most so many bytes, within `patience`.
///
/// # Errors
/// A status for one that is too long, too late or cut off.
pub(crate) async fn whole(body: Body, most: usize, patience: Duration) -> Result<Bytes, Status> {
    match tokio::time::timeout(patience, Limited::new(body, most).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => Err(Status::out_of_range(format!("a request has at most {most} bytes"))),
        Err(_) => Err(Status::deadline_exceeded("the request did not come in time")),
    }
}
