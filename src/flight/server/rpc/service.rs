//! The calls of Arrow Flight. [`AuthLayer`](crate::flight::server::access::auth_layer::AuthLayer) answers DoGet and DoPut, without
//! copying batches.

use std::pin::Pin;
use std::sync::Arc;

use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::flight_descriptor::DescriptorType;
use arrow_flight::flight_service_server::FlightService;
use arrow_flight::{
    Action, ActionType, Criteria, Empty, FlightData, FlightDescriptor, FlightInfo, HandshakeRequest, HandshakeResponse,
    IpcMessage, PollInfo, PutResult, SchemaAsIpc, SchemaResult, Ticket,
};
use futures::Stream;
use futures::future::BoxFuture;
use tonic::{Request, Response, Status, Streaming};

use super::core::{Core, json};
use super::incoming::Place;
use super::room::Room;
use super::{listing, put};
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

    /// Returns the server as `tenant` sees it, as JSON.
    async fn snapshot(&self, tenant: &Tenant, room: &Room) -> Result<Vec<u8>, Error> {
        // It is made for the moment, so its length is known only afterwards.
        room.take(self.0.snapshot_bytes()).await?;
        let (core, tenant) = (Arc::clone(&self.0), tenant.clone());
        let made = tokio::task::spawn_blocking(move || json(&core.snapshot(Some(&tenant)))).await;
        let json = made.map_err(|error| Error::Closed { why: format!("the snapshot ended: {error}") })?;
        room.shrink(json.len());
        Ok(json)
    }
}

/// Returns the sender of the request, as identified by the authentication layer.
fn tenant<T>(request: &Request<T>) -> Result<Tenant, Status> {
    request.extensions().get::<Tenant>().cloned().ok_or_else(|| Status::unauthenticated("nobody sent this"))
}

/// Returns the place of `request`, which pays for answers that the client may never read.
fn place<T>(request: &Request<T>) -> Result<Arc<Place>, Status> {
    request.extensions().get::<Arc<Place>>().cloned().ok_or_else(|| Status::internal("a call without a place"))
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
        let list = listing::list(&self.0, tenant(&request)?, place(&request)?);
        Ok(Response::new(Box::pin(list)))
    }

    async fn get_flight_info(&self, request: Request<FlightDescriptor>) -> Result<Response<FlightInfo>, Status> {
        let tenant = tenant(&request)?;
        let asked = self.asked(request.get_ref())?;
        let room = Room::new(place(&request)?);
        let (dataset, rank) = (self.0.label(&tenant, &asked.dataset).to_owned(), asked.rank);
        let header = |name: &str| request.metadata().get(name).and_then(|value| value.to_str().ok());
        let trace = TraceContext::of(header);
        let described = self.0.describe(trace, &tenant, asked, &room).await;
        let info = described.map_err(|error| {
            let error = self.0.config.spaces.of(&tenant).told(error);
            self.failed(&error, At { call: "GetFlightInfo", dataset: Some(&dataset), rank })
        })?;
        Ok(room.paid(info))
    }

    async fn poll_flight_info(&self, _: Request<FlightDescriptor>) -> Result<Response<PollInfo>, Status> {
        Err(unimplemented("PollFlightInfo"))
    }

    async fn get_schema(&self, request: Request<FlightDescriptor>) -> Result<Response<SchemaResult>, Status> {
        let tenant = tenant(&request)?;
        let asked = self.asked(request.get_ref())?;
        let room = Room::new(place(&request)?);
        let found = async {
            let (columns, bytes) = self.0.columns(&tenant, &asked).await?;
            room.take(bytes).await?;
            Ok::<_, Error>(columns)
        };
        let columns = found.await.map_err(|error| {
            let dataset = Some(self.0.label(&tenant, &asked.dataset));
            self.failed(&error, At { call: "GetSchema", dataset, rank: asked.rank })
        })?;
        let message: IpcMessage = SchemaAsIpc::new(&columns, &IpcWriteOptions::default())
            .try_into()
            .map_err(|error: arrow::error::ArrowError| Status::internal(error.to_string()))?;
        Ok(room.paid(SchemaResult { schema: message.0 }))
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
        let (tenant, place) = (tenant(&request)?, place(&request)?);
        let Action { r#type, body } = request.into_inner();
        self.0.config.limits.admit_action(body.len()).map_err(|error| to_status(&error))?;
        let room = Room::new(Arc::clone(&place));
        let claimed = |bytes| -> BoxFuture<'_, Result<(), Error>> {
            let room = &room;
            Box::pin(room.take(bytes))
        };
        let space = self.0.config.spaces.of(&tenant);
        let answer = match r#type.as_str() {
            "stats" => Ok(json(&self.0.stats(&tenant))),
            "snapshot" => self.snapshot(&tenant, &room).await,
            "state" => match StreamRequest::from_json(&body) {
                Ok(asked) => self.0.state(&tenant, &asked).await.map(|state| state.to_json().into_bytes()),
                Err(error) => Err(error),
            },
            put if put::ACTIONS.iter().any(|(name, _)| *name == put) => put::act(&self.0, &space, put, &body).await,
            gang => {
                if WAITS.contains(&gang) {
                    place.wait();
                }
                self.0.gangs.call_as(gang, &body, |name| space.gang(name), &claimed).await
            }
        };
        let answer = answer.map_err(|error| self.failed(&space.told(error), At::call(&r#type)))?;
        let answer = arrow_flight::Result::new(answer);
        let answers: Self::DoActionStream = Box::pin(futures::stream::iter([Ok(answer)]));
        Ok(room.paid(answers))
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;
    use std::time::{Duration, SystemTime};

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use futures::{FutureExt as _, StreamExt as _};
    use parquet::arrow::ArrowWriter;
    use tokio::sync::watch;
    use tokio::time::timeout;

    use super::*;
    use crate::flight::gang::{Registry, RegistryOptions};
    use crate::flight::request::StoredRows;
    use crate::flight::server::catalog::catalogue::Catalogue;
    use crate::flight::server::catalog::config::{Config, ServerOptions};
    use crate::flight::server::catalog::entry::{ClientLimits, Entry};
    use crate::flight::server::ops::limits::Limits;
    use crate::flight::server::rpc::core::{Parts, Via};
    use crate::flight::server::rpc::incoming::{Incoming, Kind};
    use crate::flight::server::stream::hangup::Hangups;
    use crate::flight::ticket::Ticket as SignedTicket;

    /// A server of the datasets `names`, which it writes to `directory`. Their schemas take more than an answer that is not paid for.
    fn service(directory: &Path, names: &[&str]) -> Service {
        service_until(directory, names, watch::channel(false).1)
    }

    /// The same until `draining` says that it is to end.
    fn service_until(directory: &Path, names: &[&str], draining: watch::Receiver<bool>) -> Service {
        let mut catalogue = Catalogue::default();
        for name in names {
            let path = directory.join(format!("{name}.parquet"));
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..8));
            let columns = (0..64).map(|column| (format!("c{column}_{}", "x".repeat(2048)), Arc::clone(&numbers)));
            let batch = RecordBatch::try_from_iter(columns).unwrap();
            let mut writer = ArrowWriter::try_new(File::create(&path).unwrap(), batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            writer.close().unwrap();
            catalogue.add(name, vec![path.to_str().unwrap().to_owned()]).unwrap();
        }
        let parts = Parts {
            gangs: Registry::open(None, RegistryOptions::default()).unwrap(),
            staging: None,
            socket: None,
            shared: None,
            hangups: Hangups::default(),
            draining,
        };
        let config = Config::new(catalogue, &ServerOptions::default()).unwrap();
        Service(Arc::new(Core::new(config, parts).unwrap()))
    }

    /// A call with `message`, as the authentication layer passes it on.
    fn call<T>(incoming: &Arc<Incoming>, message: T) -> Request<T> {
        let (mut request, tenant) = (Request::new(message), Tenant::anonymous());
        let place = Arc::new(incoming.enter(&tenant, Kind::Call).unwrap());
        request.extensions_mut().insert(tenant);
        request.extensions_mut().insert(place);
        request
    }

    fn descriptor(asked: &StreamRequest) -> FlightDescriptor {
        FlightDescriptor::new_cmd(asked.to_json())
    }

    /// Which of the calls with long answers are answered within `patience`.
    async fn answered(service: &Service, incoming: &Arc<Incoming>, patience: Duration) -> [bool; 5] {
        let batches = StreamRequest::all("wide").in_batches_of(1);
        let rows = StreamRequest { rows: Some(StoredRows { part: Some(0), parts: 1 }), ..StreamRequest::all("wide") };
        let mut answered = [false; 5];
        for (at, asked) in [&batches, &rows].into_iter().enumerate() {
            let info = timeout(patience, service.get_flight_info(call(incoming, descriptor(asked)))).await;
            let schema = timeout(patience, service.get_schema(call(incoming, descriptor(asked)))).await;
            answered[2 * at] = info.is_ok_and(|info| info.is_ok());
            answered[2 * at + 1] = schema.is_ok_and(|schema| schema.is_ok());
        }
        let snapshot = timeout(patience, service.do_action(call(incoming, Action::new("snapshot", "")))).await;
        answered[4] = snapshot.is_ok_and(|snapshot| snapshot.is_ok());
        answered
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn long_answers_are_paid_for_before_they_are_made() {
        let directory = tempfile::tempdir().unwrap();
        let service = service(directory.path(), &["wide"]);
        let incoming = Incoming::new(Limits::default(), 0);
        let (long, short) = (Duration::from_secs(60), Duration::from_millis(500));
        assert_eq!(answered(&service, &incoming, long).await, [true; 5]);
        let place = incoming.enter(&Tenant::anonymous(), Kind::Call).unwrap();
        let unread = place.answer(1 << 30).await.unwrap();
        assert_eq!(answered(&service, &incoming, short).await, [false; 5], "others are not read yet");
        drop(unread);
        assert_eq!(answered(&service, &incoming, long).await, [true; 5]);
        // A snapshot of next to nothing gives back what it took.
        let snapshot = service.do_action(call(&incoming, Action::new("snapshot", ""))).await.unwrap();
        timeout(long, place.answer(1 << 30)).await.unwrap().unwrap();
        drop(snapshot);
    }

    /// The tickets for `asked`.
    async fn tickets(service: &Service, asked: &StreamRequest) -> Vec<Vec<u8>> {
        let incoming = Incoming::new(Limits::default(), 0);
        let info = service.get_flight_info(call(&incoming, descriptor(asked))).await.unwrap().into_inner();
        info.endpoint.into_iter().map(|endpoint| endpoint.ticket.unwrap().ticket.to_vec()).collect()
    }

    /// Opens the stream of a ticket, and drops it.
    async fn opened(service: &Service, ticket: &[u8]) -> Result<(), Status> {
        service.0.open(Via::Network(&Tenant::anonymous()), (None, None), ticket).await.map(drop)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_ticket_is_for_one_plan_whatever_the_catalogue_says_later() {
        let directory = tempfile::tempdir().unwrap();
        let (_ends, draining) = watch::channel(false);
        let service = service_until(directory.path(), &["d"], draining);
        let reload = |options: serde_json::Value| {
            let urls = vec![directory.path().join("d.parquet").to_str().unwrap().to_owned()];
            let serde_json::Value::Object(options) = options else { panic!() };
            let mut catalogue = Catalogue::default();
            catalogue.insert(Entry::new("d", urls, options, ClientLimits::default()).unwrap()).unwrap();
            service.0.config.catalogue.replace(catalogue);
        };
        let asked = StreamRequest { world_size: 2, ..StreamRequest::all("d").in_batches_of(2) };
        for other in [serde_json::json!({"seed": 2}), serde_json::json!({"seed": 1, "shuffle": false})] {
            reload(serde_json::json!({"seed": 1}));
            let before = tickets(&service, &asked).await;
            opened(&service, &before[0]).await.unwrap();
            reload(other.clone());
            let refused = opened(&service, &before[1]).await.unwrap_err();
            assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{other}: {refused}");
            assert!(refused.message().contains("plan") && refused.message().contains("seed"), "{other}: {refused}");
            opened(&service, &tickets(&service, &asked).await[1]).await.unwrap();
            // Older replicas name no plan.
            let key = service.0.config.key.bytes();
            let old = SignedTicket::verify(&before[1], &key, SystemTime::now()).unwrap();
            opened(&service, &SignedTicket { plan: None, ..old }.sign(&key)).await.unwrap();
            reload(serde_json::json!({"seed": 1}));
            opened(&service, &before[1]).await.unwrap();
        }
    }

    #[tokio::test]
    async fn stored_rows_that_wait_to_be_opened_end_with_the_server() {
        let directory = tempfile::tempdir().unwrap();
        let (ends, draining) = watch::channel(false);
        let service = service_until(directory.path(), &["d"], draining);
        let asked = StreamRequest { rows: Some(StoredRows { part: Some(0), parts: 1 }), ..StreamRequest::all("d") };
        let ticket = tickets(&service, &asked).await.remove(0);
        let rows = asked.rows.clone().unwrap();
        let opened_before = service.0.stored(&Tenant::anonymous(), &asked, &rows).await.unwrap();
        service.0.tables.forget(&opened_before);
        let claims = service.0.streams.claims();
        let _others = claims.claim(&Tenant::anonymous(), claims.budget() - (1 << 20)).await.unwrap();
        let drains = async {
            tokio::time::sleep(Duration::from_millis(200)).await;
            ends.send_replace(true)
        };
        let start = std::time::Instant::now();
        let (refused, _) = tokio::join!(opened(&service, &ticket), drains);
        let refused = refused.unwrap_err();
        assert!(refused.code() == tonic::Code::Unavailable && refused.message().contains("draining"), "{refused}");
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_client_that_stops_reading_a_list_holds_up_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let names = ["a", "b", "c"];
        let service = service(directory.path(), &names);
        let incoming = Incoming::new(Limits::default(), 0);
        let mut list = service.list_flights(call(&incoming, Criteria::default())).await.unwrap().into_inner();
        let first = list.next().await.unwrap().unwrap();
        assert!(first.total_records == 8 && first.schema.len() > 64 << 10, "{}", first.total_records);
        // As the transport: it looks whether there is more to send with it, and does not return while the window is full.
        let _ = list.next().now_or_never();
        for name in names {
            let asked = StreamRequest::all(name).in_batches_of(1);
            let info =
                timeout(Duration::from_secs(20), service.get_flight_info(call(&incoming, descriptor(&asked)))).await;
            assert!(info.is_ok_and(|info| info.is_ok()), "{name} is not described");
        }
        // What it does not read is paid for until it leaves.
        let place = incoming.enter(&Tenant::anonymous(), Kind::Call).unwrap();
        assert!(timeout(Duration::from_millis(500), place.answer(1 << 30)).await.is_err());
        drop(list);
        timeout(Duration::from_secs(20), place.answer(1 << 30)).await.unwrap().unwrap();
    }
}
