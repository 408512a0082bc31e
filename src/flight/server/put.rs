//! DoPut: attempts of tasks are staged as they come; an action makes them visible, all at once.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow_flight::decode::{DecodedPayload, FlightDataDecoder};
use arrow_flight::error::FlightError;
use arrow_flight::{FlightData, FlightDescriptor};
use futures::{Stream, StreamExt};
use serde::Deserialize;
use tonic::{Status, Streaming};

use super::core::{Core, json};
use crate::error::{Error, Result};
use crate::flight::put::{Committed, Mode, Staged, Staging, Token, WriteId};
use crate::flight::status::{from_status, to_status};

/// Actions that end a write, or a dataset.
pub(super) const ACTIONS: [(&str, &str); 3] = [
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
    /// The name that it is remembered by; that of the write without.
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

/// Stages one attempt.
pub(super) async fn stage(
    staging: &Staging,
    mut messages: Streaming<FlightData>,
    limit: usize,
) -> Result<Staged, Status> {
    let first = messages.message().await?.ok_or_else(|| Status::invalid_argument("nothing was put"))?;
    let cmd = match &first.flight_descriptor {
        Some(FlightDescriptor { cmd, .. }) if cmd.len() <= limit => cmd.clone(),
        Some(_) => return Err(Status::invalid_argument(format!("a descriptor has at most {limit} bytes"))),
        None => return Err(Status::invalid_argument("the first message needs a descriptor")),
    };
    let part: Part = read("descriptor", &cmd).map_err(|error| to_status(&error))?;
    let write = WriteId::new(&part.dataset, &part.write).map_err(|error| to_status(&error))?;
    let all = futures::stream::once(async { Ok(first) })
        .chain(messages.map(|message| message.map_err(|status| FlightError::Tonic(Box::new(status)))));
    let mut decoder = FlightDataDecoder::new(all);
    let schema: SchemaRef = loop {
        match decoder.next().await {
            Some(Ok(data)) => match data.payload {
                DecodedPayload::Schema(schema) => break schema,
                DecodedPayload::None => {}
                DecodedPayload::RecordBatch(_) => {
                    return Err(Status::invalid_argument("a batch came before its schema"));
                }
            },
            Some(Err(error)) => return Err(to_status(&undecodable(error))),
            None => return Err(Status::invalid_argument("nothing was put: there is no schema")),
        }
    };
    let staged = staging.stage(&write, part.task, part.attempt, schema, batches(decoder)).await;
    staged.map_err(|error| to_status(&error))
}

fn batches(decoder: FlightDataDecoder) -> impl Stream<Item = Result<RecordBatch>> {
    decoder.filter_map(|data| {
        let batch = match data {
            Ok(data) => match data.payload {
                DecodedPayload::RecordBatch(batch) => Some(Ok(batch)),
                DecodedPayload::Schema(_) => Some(Err(Error::Mismatch {
                    what: "a stream that is put".to_owned(),
                    expected: "one schema".to_owned(),
                    found: "another one".to_owned(),
                    hint: String::new(),
                })),
                DecodedPayload::None => None,
            },
            Err(error) => Some(Err(undecodable(error))),
        };
        std::future::ready(batch)
    })
}

fn undecodable(error: FlightError) -> Error {
    match error {
        FlightError::Tonic(status) => from_status("the writer", &status),
        error => Error::Remote {
            peer: "the writer".to_owned(),
            what: "sent what is no Arrow data".to_owned(),
            source: Some(Box::new(error)),
        },
    }
}

/// Answers the [`ACTIONS`].
pub(super) async fn act(core: &Core, action: &str, body: &[u8]) -> Result<Vec<u8>> {
    let staging = core.staging.as_ref().ok_or_else(refused)?;
    match action {
        "put.commit" => {
            let Commit { dataset, write, once, mode, tokens } = read("put.commit", body)?;
            let once = once.as_deref().unwrap_or(&write);
            let committed: Committed = staging.commit_as(&WriteId::new(&dataset, &write)?, once, mode, &tokens).await?;
            Ok(json(&committed))
        }
        "put.drop" => {
            let Dropped { dataset } = read("put.drop", body)?;
            let dropped = core.drop_dataset(staging, &dataset).await?;
            Ok(json(&serde_json::json!({ "dropped": dropped })))
        }
        _ => {
            let Abort { dataset, write, prefix } = read("put.abort", body)?;
            let aborted = match (write, prefix) {
                (Some(write), None) => staging.abort(&WriteId::new(&dataset, &write)?).await.map(|()| 1)?,
                (None, Some(prefix)) => staging.abort_all(&dataset, &prefix).await?,
                _ => return Err(Error::config("put.abort", "give a write, or the prefix of several")),
            };
            Ok(json(&serde_json::json!({ "aborted": aborted })))
        }
    }
}

/// What a server without a place for writes says.
pub(super) fn refused() -> Error {
    Error::Unsupported {
        what: "writing to this server".to_owned(),
        hint: "start it with --put DIRECTORY or --put memory, in Python with put=".to_owned(),
    }
}
