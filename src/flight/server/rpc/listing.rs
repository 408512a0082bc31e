//! The answer to ListFlights: the datasets of the catalogue, each opened when the one before is on its way.

use std::sync::Arc;

use arrow_flight::{FlightDescriptor, FlightInfo};
use futures::Stream;
use serde_json::Value;
use tonic::Status;

use super::core::{Core, json};
use super::in_task::InTask;
use super::incoming::{Claim, Place};
use super::room::Room;
use crate::error::Error;
use crate::flight::request::StreamRequest;
use crate::flight::server::access::auth::Tenant;

/// Lists the datasets as `tenant` sees them.
///
/// Opening a dataset holds its place in the cache, turns and memory that others wait for, so it does not depend on the client.
pub(crate) fn list(
    core: &Arc<Core>,
    tenant: Tenant,
    place: Arc<Place>,
) -> impl Stream<Item = Result<FlightInfo, Status>> + Send + use<> {
    let core = Arc::clone(core);
    let names: Vec<String> = core.config.catalogue.get().names().map(str::to_owned).collect();
    InTask::new(futures::stream::unfold((names.into_iter(), None::<Claim>), move |(mut names, paid)| {
        let (core, tenant, room) = (Arc::clone(&core), tenant.clone(), Room::new(Arc::clone(&place)));
        async move {
            // The transport asks for an entry once it has sent the one before.
            drop(paid);
            let info = entry(&core, &tenant, &names.next()?, &room).await;
            Some((Ok(info), (names, room.into_claim())))
        }
    }))
}

/// Describes the dataset `name`. One that cannot be opened does not hide the others: it is listed with its error.
async fn entry(core: &Core, tenant: &Tenant, name: &str, room: &Room) -> FlightInfo {
    let descriptor = FlightDescriptor::new_path(vec![name.to_owned()]);
    let mut asked = StreamRequest::all(name);
    let described = match core.describe(None, tenant, asked.clone(), room).await {
        // The client chooses the batch size; the columns are the same for any.
        Err(Error::Config { option: "batch_size", .. }) => {
            asked = asked.in_batches_of(1);
            core.describe(None, tenant, asked.clone(), room).await
        }
        described => described,
    };
    // The client says what becomes of nulls, too.
    let described = match described {
        Err(Error::Nulls { what, .. }) => {
            core.describe_despite_nulls(tenant, asked, room).await.map(|info| noted(info, &what))
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

/// Adds `note` to what is said of a dataset.
fn noted(info: FlightInfo, note: &str) -> FlightInfo {
    let Ok(Value::Object(mut said)) = serde_json::from_slice(&info.app_metadata) else { return info };
    said.insert("note".to_owned(), note.into());
    info.with_app_metadata(json(&said))
}
