//! The answer to ListFlights: the datasets of the catalogue, each opened when the one before is on its way.

use std::sync::Arc;

use arrow_flight::{FlightDescriptor, FlightInfo};
use futures::Stream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::Status;

use super::core::{Core, json};
use super::incoming::{Claim, Place};
use super::room::Room;
use crate::error::Error;
use crate::flight::request::StreamRequest;
use crate::flight::server::access::auth::Tenant;

/// A dataset of the list, and the memory that it is charged to.
type Entry = (FlightInfo, Option<Claim>);

/// Lists the datasets as `tenant` sees them.
///
/// A task makes the entries: opening a dataset holds its place in the cache, turns and memory that others wait for, and a stream is not
/// polled while its client's window is full. Dropping the stream ends the task.
pub(crate) fn list(
    core: &Arc<Core>,
    tenant: Tenant,
    place: Arc<Place>,
) -> impl Stream<Item = Result<FlightInfo, Status>> + Send + use<> {
    let (entries, made) = mpsc::channel(1);
    let mut task = JoinSet::new();
    task.spawn(make(Arc::clone(core), tenant, place, entries));
    futures::stream::unfold((made, task, None), |(mut made, task, paid)| async move {
        // The transport asks for an entry once it has sent the one before.
        drop(paid);
        let (info, claim) = made.recv().await?;
        Some((Ok(info), (made, task, claim)))
    })
}

/// Makes the entries, one ahead of the client.
async fn make(core: Arc<Core>, tenant: Tenant, place: Arc<Place>, entries: mpsc::Sender<Entry>) {
    let names: Vec<String> = core.config.catalogue.get().names().map(str::to_owned).collect();
    for name in names {
        let room = Room::new(Arc::clone(&place));
        let info = entry(&core, &tenant, &name, &room).await;
        if entries.send((info, room.into_claim())).await.is_err() {
            return;
        }
    }
}

/// Describes the dataset `name`. One that cannot be opened does not hide the others: it is listed with its error.
async fn entry(core: &Core, tenant: &Tenant, name: &str, room: &Room) -> FlightInfo {
    let descriptor = FlightDescriptor::new_path(vec![name.to_owned()]);
    let described = match core.describe(tenant, StreamRequest::all(name), room).await {
        // The client chooses the batch size; the columns are the same for any.
        Err(Error::Config { option: "batch_size", .. }) => {
            core.describe(tenant, StreamRequest::all(name).in_batches_of(1), room).await
        }
        described => described,
    };
    match described {
        Ok(info) => FlightInfo { endpoint: Vec::new(), ..info.with_descriptor(descriptor) },
        Err(error) => FlightInfo::new()
            .with_descriptor(descriptor)
            .with_total_records(-1)
            .with_total_bytes(-1)
            .with_app_metadata(json(&serde_json::json!({ "error": error.chain() }))),
    }
}
