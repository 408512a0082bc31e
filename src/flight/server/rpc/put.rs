//! DoPut: attempts of tasks are staged on arrival; an action makes them visible, all at once.

use std::sync::Arc;

use arrow_flight::{FlightDescriptor, PutResult};
use bytes::{BufMut as _, BytesMut};
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::StreamBody;
use prost::Message as _;
use serde::Deserialize;
use tonic::Status;
use tonic::body::Body;

use super::body::trailers;
use super::core::{Core, json};
use super::incoming::{Arrivals, Arrived};
use crate::error::{Error, Result};
use crate::flight::put::ipc::{Decoder, Paid};
use crate::flight::put::{Committed, Mode, Staged, Token};
use crate::flight::server::access::space::Space;
use crate::flight::server::ops::errors::At;
use crate::flight::status::to_status;

/// Actions that end a write, or a dataset.
pub(crate) const ACTIONS: [(&str, &str); 3] = [
    ("put.commit", "makes attempts of a write visible, all at once"),
    ("put.abort", "ends a write; all that was staged for it vanishes"),
    ("put.drop", "removes a dataset that was written to this server"),
];

/// The command of a DoPut's descriptor.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    dataset: String,
    write: String,
    #[serde(default)]
    task: u32,
    #[serde(default)]
    attempt: u32,
}

/// The body of `put.commit`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Commit {
    dataset: String,
    write: String,
    /// Name that the commit is remembered by; the write's name if absent.
    once: Option<String>,
    mode: Mode,
    tokens: Vec<Token>,
}

/// The body of `put.abort`: one write, or all those that are open and begin with a prefix.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Abort {
    dataset: String,
    write: Option<String>,
    prefix: Option<String>,
}

/// The body of `put.drop`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Dropped {
    dataset: String,
}

fn read<'a, T: Deserialize<'a>>(what: &'static str, json: &'a [u8]) -> Result<T> {
    serde_json::from_slice(json).map_err(|error| Error::config(what, error.to_string()))
}

/// Stages the attempt in `messages`.
pub(crate) async fn answer(
    core: &Core,
    space: &Space,
    messages: Arrivals,
    dataset: &mut Option<String>,
) -> Result<Response<Body>, Status> {
    let staged = stage(core, space, messages, dataset).await.map_err(|error| {
        core.config.admin.metrics().error_at(&error, At::call("DoPut"));
        to_status(&space.told(error))
    })?;
    let result = PutResult { app_metadata: json(&staged).into() }.encode_to_vec();
    let mut message = BytesMut::with_capacity(5 + result.len());
    message.put_u8(0);
    message.put_u32(result.len() as u32);
    message.extend_from_slice(&result);
    let frames = [Frame::data(message.freeze()), Frame::trailers(trailers(&Status::ok("")))];
    let frames = futures::stream::iter(frames.map(Ok::<_, Status>));
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

async fn stage(core: &Core, space: &Space, mut messages: Arrivals, dataset: &mut Option<String>) -> Result<Staged> {
    let staging = core.staging.as_ref().ok_or_else(refused)?;
    let limits = &core.config.limits;
    let first = messages.next().await?.ok_or_else(|| Error::config("put", "nothing was put"))?;
    limits.admit_ticket(first.head.descriptor.len())?;
    if first.head.descriptor.is_empty() {
        return Err(Error::config("descriptor", "the first message needs one"));
    }
    let descriptor = FlightDescriptor::decode(first.head.descriptor.as_slice())
        .map_err(|error| Error::config("descriptor", error.to_string()))?;
    let part: Part = read("descriptor", &descriptor.cmd)?;
    core.config.catalogue.get().check_free(&part.dataset)?;
    let write = space.write(&part.dataset, &part.write)?;
    *dataset = Some(part.dataset);
    let mut head = first.head;
    // The descriptor may come before the schema.
    while head.header.is_empty() {
        let next = messages.next().await?;
        head = next.ok_or_else(|| Error::config("put", "nothing was put: there is no schema"))?.head;
    }
    let keeper = messages.keeper();
    let keep = move |bytes: usize| keeper.keep(bytes).map(|claim| Box::new(claim) as Paid);
    let mut decoder = Decoder::new(&head.header, limits.message_bytes, keep)?;
    let schema = Arc::clone(decoder.schema());
    let arriving = futures::stream::try_unfold(messages, |mut messages| async move {
        Ok(messages.next().await?.map(|message| (message, messages)))
    });
    let decode = move |message: &Arrived| decoder.decode(&message.head.header, &message.body);
    staging.stage_messages(&write, part.task, part.attempt, schema, arriving, decode).await
}

/// Answers the [`ACTIONS`].
pub(crate) async fn act(core: &Core, space: &Space, action: &str, body: &[u8]) -> Result<Vec<u8>> {
    let staging = core.staging.as_ref().ok_or_else(refused)?;
    match action {
        "put.commit" => {
            let Commit { dataset, write, once, mode, tokens } = read("put.commit", body)?;
            // A reload may have brought the name meanwhile.
            core.config.catalogue.get().check_free(&dataset)?;
            let once = once.as_deref().unwrap_or(&write);
            let committed: Committed = staging.commit_as(&space.write(&dataset, &write)?, once, mode, &tokens).await?;
            Ok(json(&committed))
        }
        "put.drop" => {
            let Dropped { dataset } = read("put.drop", body)?;
            let dropped = core.drop_dataset(staging, space, &dataset).await?;
            Ok(json(&serde_json::json!({ "dropped": dropped })))
        }
        _ => {
            let Abort { dataset, write, prefix } = read("put.abort", body)?;
            let aborted = match (write, prefix) {
                (Some(write), None) => staging.abort(&space.write(&dataset, &write)?).await.map(|()| 1)?,
                (None, Some(prefix)) => staging.abort_like(&space.write(&dataset, &prefix)?).await,
                _ => return Err(Error::config("put.abort", "give a write, or the prefix of several")),
            };
            Ok(json(&serde_json::json!({ "aborted": aborted })))
        }
    }
}

/// Returns the error of a server that accepts no writes.
pub(crate) fn refused() -> Error {
    Error::unsupported("writing to this server", "start it with --put DIRECTORY or --put memory, in Python with put=")
}
