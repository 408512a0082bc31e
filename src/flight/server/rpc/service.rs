//! The calls of Arrow Flight. [`AuthLayer`](crate::flight::server::access::auth_layer::AuthLayer) answers DoGet and DoPut, without
//! copying batches.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    IpcMessage, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use futures::future::BoxFuture;
use futures::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use super::core::{Core, endpoints_bytes, json};
use super::incoming::{Claim, Place};
use super::put;
use crate::error::Error;
use crate::flight::gang::wire::{ACTIONS, WAITS};
use crate::flight::request::StreamRequest;
use crate::flight::server::access::auth::Tenant;
use crate::flight::server::ops::errors::At;
use crate::flight::status::to_status;
use crate::trace::TraceContext;

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Service(pub(crate) Arc<Core>);

/// Bytes of an answer that is not paid for: the number of such answers is limited by the number of calls.
const SHORT: usize = 64 << 10;

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    /// Decodes the request of a descriptor: a path is the name of a dataset, a command the JSON of [`StreamRequest`].
    fn asked(&self, descriptor: &FlightDescriptor) -> Result<StreamRequest, Status> {
        self.0.config.limits.admit_ticket(descriptor.cmd.len()).map_err(|error| to_status(&error))?;
        let asked = match (DescriptorType::try_from(descriptor.r#type), descriptor.path.as_slice()) {
            (Ok(DescriptorType::Cmd), _) => StreamRequest::from_json(&descriptor.cmd),
            (Ok(DescriptorType::Path), [dataset]) => Ok(StreamRequest::all(dataset)),
            _ => Err(Error::config("descriptor", "give a path of one name, or a command")),
        };
        asked.map_err(|error| to_status(&error))
    }

    fn failed(&self, error: &Error, at: At<'_>) -> Status {
        self.0.config.admin.metrics().error_at(error, at);
        to_status(error)
    }
}

/// Returns the sender of the request, as identified by the authentication layer.
fn tenant<T>(request: &Request<T>) -> Result<Tenant, Status> {
    request.extensions().get::<Tenant>().cloned().ok_or_else(|| Status::unauthenticated("nobody sent this"))
}

/// Returns the place of `request`, which pays for answers that the client may never read.
fn room<T>(request: &Request<T>) -> Result<Arc<Place>, Status> {
    request.extensions().get::<Arc<Place>>().cloned().ok_or_else(|| Status::internal("a call without a place"))
}

/// Attaches to `answer` the memory that it is charged to.
fn paid<T>(answer: T, claim: Option<Claim>) -> Response<T> {
    let mut response = Response::new(answer);
    if let Some(claim) = claim {
        response.extensions_mut().insert(Arc::new(claim));
    }
    response
}

fn unimplemented(what: &str) -> Status {
    Status::unimplemented(format!("{what} is not part of bowstring's protocol"))
}

#[tonic::async_trait]
impl FlightService for Service {
    type HandshakeStream = Answers<HandshakeResponse>;
    type ListFlightsStream = Answers<FlightInfo>;
    type DoGetStream = Answers<FlightData>;
    type DoPutStream = Answers<PutResult>;
    type DoActionStream = Answers<arrow_flight::Result>;
    type ListActionsStream = Answers<ActionType>;
    type DoExchangeStream = Answers<FlightData>;

    async fn handshake(
        &self,
        _: Request<Streaming<HandshakeRequest>>,
    ) -> Result<Response<Self::HandshakeStream>, Status> {
        Err(unimplemented("Handshake: send `authorization: Bearer TOKEN` with every call; it"))
    }

    async fn list_flights(&self, request: Request<Criteria>) -> Result<Response<Self::ListFlightsStream>, Status> {
        let tenant = tenant(&request)?;
        let names: Vec<String> = self.0.config.catalogue.get().names().map(str::to_owned).collect();
        let core = Arc::clone(&self.0);
        let infos = futures::stream::iter(names).then(move |name| {
            let (core, tenant) = (Arc::clone(&core), tenant.clone());
            async move {
                let descriptor = FlightDescriptor::new_path(vec![name.clone()]);
                // A dataset that cannot be opened does not hide the others: it is listed with its error.
                let described = match core.describe(&tenant, StreamRequest::all(&name)).await {
                    // The client chooses the batch size; the columns are the same for any.
                    Err(Error::Config { option: "batch_size", .. }) => {
                        core.describe(&tenant, StreamRequest::all(&name).in_batches_of(1)).await
                    }
                    described => described,
                };
                match described {
                    Ok(info) => Ok(FlightInfo { endpoint: Vec::new(), ..info.with_descriptor(descriptor) }),
                    Err(error) => Ok(FlightInfo::new()
                        .with_descriptor(descriptor)
                        .with_total_records(-1)
                        .with_total_bytes(-1)
                        .with_app_metadata(json(&serde_json::json!({ "error": error.chain() })))),
                }
            }
        });
        Ok(Response::new(Box::pin(infos)))
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        let tenant = tenant(&request)?;
        let asked = self.asked(request.get_ref())?;
        let (place, bytes) = (room(&request)?, endpoints_bytes(&asked));
        let (dataset, rank) = (self.0.label(&tenant, &asked.dataset).to_owned(), asked.rank);
        let header = |name: &str| request.metadata().get(name).and_then(|value| value.to_str().ok());
        let trace = TraceContext::of(header);
        let described = async {
            let claim = if bytes > SHORT { Some(place.answer(bytes).await?) } else { None };
            Ok::<_, Error>((self.0.describe_in(trace, &tenant, asked).await?, claim))
        };
        let (info, claim) = described
            .await
            .map_err(|error| self.failed(&error, At { call: "GetFlightInfo", dataset: Some(&dataset), rank }))?;
        Ok(paid(info, claim))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(unimplemented("PollFlightInfo"))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let tenant = tenant(&request)?;
        let asked = self.asked(request.get_ref())?;
        let columns = self.0.columns(&tenant, &asked).await.map_err(|error| {
            let dataset = Some(self.0.label(&tenant, &asked.dataset));
            self.failed(&error, At { call: "GetSchema", dataset, rank: asked.rank })
        })?;
        let message: IpcMessage = SchemaAsIpc::new(&columns, &IpcWriteOptions::default())
            .try_into()
            .map_err(|error: arrow::error::ArrowError| Status::internal(error.to_string()))?;
        Ok(Response::new(SchemaResult { schema: message.0 }))
    }

    async fn do_get(&self, _: Request<Ticket>) -> Result<Response<Self::DoGetStream>, Status> {
        Err(Status::internal("DoGet went past its own service; this is a bug in bowstring"))
    }

    async fn do_put(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoPutStream>, Status> {
        Err(Status::internal("DoPut went past its own service; this is a bug in bowstring"))
    }

    async fn do_exchange(&self, _: Request<Streaming<FlightData>>) -> Result<Response<Self::DoExchangeStream>, Status> {
        Err(unimplemented("DoExchange"))
    }

    async fn do_action(&self, request: Request<Action>) -> Result<Response<Self::DoActionStream>, Status> {
        let (tenant, place) = (tenant(&request)?, room(&request)?);
        let Action { r#type, body } = request.into_inner();
        self.0.config.limits.admit_action(body.len()).map_err(|error| to_status(&error))?;
        let claim = Mutex::default();
        let claimed = |bytes| -> BoxFuture<'_, Result<(), Error>> {
            let (place, claim) = (&place, &claim);
            Box::pin(async move {
                let room = place.answer(bytes).await?;
                *claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(room);
                Ok(())
            })
        };
        let answer = match r#type.as_str() {
            "stats" => Ok(json(&self.0.stats(&tenant))),
            "snapshot" => {
                let core = Arc::clone(&self.0);
                let made = tokio::task::spawn_blocking(move || json(&core.snapshot(Some(&tenant)))).await;
                match made {
                    Ok(json) if json.len() > SHORT => claimed(json.len()).await.map(|()| json),
                    Ok(json) => Ok(json),
                    Err(error) => Err(Error::Closed { why: format!("the snapshot ended: {error}") }),
                }
            }
            "state" => match StreamRequest::from_json(&body) {
                Ok(asked) => self.0.state(&tenant, &asked).await.map(|state| state.to_json().into_bytes()),
                Err(error) => Err(error),
            },
            put if put::ACTIONS.iter().any(|(name, _)| *name == put) => {
                put::act(&self.0, &self.0.config.spaces.of(&tenant), put, &body).await
            }
            gang => {
                if WAITS.contains(&gang) {
                    place.wait();
                }
                let space = self.0.config.spaces.of(&tenant);
                self.0.gangs.call_as(gang, &body, |name| space.gang(name), &claimed).await
            }
        };
        let answer = answer.map_err(|error| self.failed(&error, At::call(&r#type)))?;
        let answer = arrow_flight::Result::new(answer);
        let claim = claim.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(paid(Box::pin(futures::stream::iter([Ok(answer)])), claim))
    }

    async fn list_actions(&self, _: Request<Empty>) -> Result<Response<Self::ListActionsStream>, Status> {
        let own = [
            ("stats", "what the server does and sent to the tenant, as JSON"),
            ("snapshot", "open streams, plans and gangs at this moment, as JSON; see docs/ui.md"),
            ("state", "a loader's state at a position"),
        ];
        let own = own
            .into_iter()
            .chain(put::ACTIONS)
            .map(|(name, about)| ActionType { r#type: name.to_owned(), description: about.to_owned() });
        let gang = ACTIONS
            .iter()
            .map(|name| ActionType { r#type: (*name).to_owned(), description: "see docs/protocol.md".to_owned() });
        let actions: Vec<_> = own.chain(gang).map(Ok).collect();
        Ok(Response::new(Box::pin(futures::stream::iter(actions))))
    }
}
