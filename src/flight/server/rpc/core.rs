//! The server's state and decisions, apart from the protocol: callers, datasets on offer, and their streams.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arrow::datatypes::SchemaRef;
use arrow_flight::{FlightDescriptor, FlightEndpoint, FlightInfo};
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use tonic::Status;
use tonic::transport::server::{TcpConnectInfo, TlsConnectInfo};

use super::room::Room;
use crate::codec::BadRows;
use crate::error::{Error, Result};
use crate::flight::client::{Local, StreamInfo};
use crate::flight::gang::wire::Caller;
use crate::flight::gang::{Reading, Registry};
use crate::flight::put::{Staging, Version};
use crate::flight::request::{StoredRows, StreamRequest, TAIL};
use crate::flight::server::access::auth::{Denied, Tenant};
use crate::flight::server::access::space::Space;
use crate::flight::server::catalog::catalogue::Patience;
use crate::flight::server::catalog::config::Config;
use crate::flight::server::catalog::dataset_cache::{Asked, DatasetCache};
use crate::flight::server::catalog::entry::{ClientLimits, Entry};
use crate::flight::server::catalog::open_dataset::OpenDataset;
use crate::flight::server::catalog::openings::Openings;
use crate::flight::server::catalog::ranks::Ranks;
use crate::flight::server::ops::strips::Strips;
use crate::flight::server::stream::hangup::Hangups;
use crate::flight::server::stream::live::LiveStreams;
use crate::flight::server::stream::rows::{self, schema_message};
use crate::flight::server::stream::shared_streams::{OUTGOING, SharedStreams};
use crate::flight::server::stream::usage::Usage;
use crate::flight::server::stream::wanted::Wanted;
use crate::flight::ticket::{TICKET_LIFE, Ticket};
use crate::manifest::Fingerprint;
use crate::memory::SharedAllocator;
use crate::pipeline::{HiddenColumns, LoaderOptions, Stored, Workers};
use crate::plan::{OrderVersion, State, Tail};
use crate::trace::TraceContext;

/// Most batches that one rank may hold before it returns some.
pub(crate) const WINDOW: u16 = 8;

/// Label of metrics for all datasets in tenants' own spaces.
pub(super) const PRIVATE: &str = "(private)";

/// Most tickets of one answer, and most bytes of their contents; a client with more ranks requests each separately.
const MAX_ENDPOINTS: u32 = 1024;
const MAX_ENDPOINTS_BYTES: u64 = 4 << 20;
/// Bytes of a ticket beside its request.
const TICKET: u64 = 512;

/// The channel that a ticket came by.
#[derive(Debug)]
pub(crate) enum Via<'a> {
    /// A call of this tenant.
    Network(&'a Tenant),
    /// A process of the same user on this host, as the kernel confirms: the ticket alone names the tenant.
    Local,
}

/// See the module.
pub(crate) struct Core {
    pub(crate) config: Config,
    pub(crate) gangs: Arc<Registry>,
    /// Destination of writes.
    pub(crate) staging: Option<Staging>,
    /// Name of the socket for ranks on this host.
    socket: Option<String>,
    pub(super) opened: DatasetCache<OpenDataset>,
    /// Datasets that are open for their stored rows.
    pub(super) tables: DatasetCache<Stored>,
    openings: Openings,
    pub(super) streams: SharedStreams,
    /// Streams that are open now.
    pub(super) live: LiveStreams,
    pub(super) strips: Strips,
    /// Time of the start.
    pub(super) born: Instant,
    /// Connections of clients, by address.
    pub(crate) hangups: Hangups,
    /// Amounts sent to each tenant.
    pub(crate) usage: Usage,
    /// True once the server is to end.
    pub(super) draining: watch::Receiver<bool>,
}

/// The parts of a core other than its configuration.
pub(crate) struct Parts {
    pub(crate) gangs: Arc<Registry>,
    pub(crate) staging: Option<Staging>,
    pub(crate) socket: Option<String>,
    /// Memory for batches of ranks on this host, if there may be any.
    pub(crate) shared: Option<Arc<SharedAllocator>>,
    /// Connections of clients, by address.
    pub(crate) hangups: Hangups,
    pub(crate) draining: watch::Receiver<bool>,
}

/// The options of a request, the columns that the dataset hides, and its newest version if it was written here.
type Resolved = (LoaderOptions, HiddenColumns, Option<Version>);

impl Core {
    pub(crate) fn new(config: Config, parts: Parts) -> Result<Self> {
        let Parts { gangs, staging, socket, shared, hangups, draining } = parts;
        let workers = Workers::new(config.threads)?;
        let openings = Openings::new(workers.threads());
        let streams = SharedStreams::new(workers, shared, config.memory_budget, config.share_bytes)
            .unread_for(Duration::from_secs(config.limits.idle_seconds));
        let (opened, tables) = (DatasetCache::new(config.open_bytes), DatasetCache::new(config.open_bytes));
        let usage = Usage::default();
        Ok(Self {
            config,
            gangs,
            staging,
            socket,
            opened,
            tables,
            openings,
            streams,
            live: LiveStreams::default(),
            strips: Strips::default(),
            born: Instant::now(),
            hangups,
            usage,
            draining,
        })
    }

    /// Returns the number of row groups decoded for streams of batches since the start, and of their rows.
    pub(crate) fn decoded(&self) -> (u64, u64) {
        self.streams.workers().decoded()
    }

    /// Returns the claimed bytes of the memory budget, and the budget.
    pub(crate) fn memory(&self) -> (u64, u64) {
        (self.streams.claims().used(), self.streams.claims().budget())
    }

    /// Returns the sender of a request, if it is admitted.
    pub(crate) fn tenant(&self, request: &http::request::Parts) -> Result<Tenant, Status> {
        let chain = request.extensions.get::<TlsConnectInfo<TcpConnectInfo>>().and_then(TlsConnectInfo::peer_certs);
        let certificate = chain.as_ref().and_then(|chain| chain.first()).map(AsRef::as_ref);
        let header = request.headers.get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let tenant = self.config.tenant(header, certificate)?;
        // The handshake is long ago.
        if let (Some(tls), Some(chain)) = (&self.config.tls, &chain)
            && !tls.still_trusts(chain)
        {
            self.config.admin.metrics().refused(Denied::Untrusted);
            return Err(Denied::Untrusted.into());
        }
        Ok(tenant)
    }

    /// Returns a member of a gang under the registry's name for it: in the space of `tenant`.
    pub(super) fn caller(&self, tenant: &Tenant, caller: &Caller) -> Result<Caller> {
        Ok(Caller { gang: self.config.spaces.of(tenant).gang(&caller.gang)?, ..caller.clone() })
    }

    /// Resolves `asked`.
    fn options(&self, tenant: &Tenant, asked: &StreamRequest) -> Result<Resolved> {
        let catalogue = self.config.catalogue.get();
        let written;
        let mut version = None;
        let entry = match (catalogue.get(&asked.dataset), &self.staging) {
            (Ok(entry), _) => entry,
            (Err(unknown), None) => return Err(unknown),
            (Err(unknown), Some(staging)) => {
                let newest = self.config.spaces.of(tenant).version(staging, &asked.dataset).ok_or(unknown)?;
                let urls = vec![newest.url.clone()];
                version = Some(newest);
                written = Entry::new(&asked.dataset, urls, Map::new(), ClientLimits::default())?;
                &written
            }
        };
        let (mut options, hidden) = entry.request(&Value::Object(asked.options.clone()), asked.world_size)?;
        // Requests from before orders had versions continue in the first one, and those that name no tail are padded.
        options.order_version.get_or_insert(OrderVersion::V1);
        if !asked.options.contains_key(TAIL) {
            options.tail.get_or_insert(Tail::Pad);
        }
        // As for every address, `batch_size` is per rank.
        if let Some(batch) = options.batch_size.take() {
            let global = batch
                .checked_mul(u64::from(asked.world_size))
                .ok_or_else(|| Error::config("batch_size", "batch_size times world_size overflows"))?;
            if options.global_batch_size.is_some_and(|given| given != global) {
                return Err(Error::config("global_batch_size", "it is not batch_size times world_size; give one"));
            }
            options.global_batch_size = Some(global);
        }
        if let Some(global) = options.global_batch_size {
            entry.check_global_batch(global, asked.world_size)?;
        }
        Ok((options, hidden, version))
    }

    /// Returns how long files that were checked count as unchanged.
    fn patience(&self) -> Patience {
        self.config.catalogue.patience(self.config.refresh)
    }

    /// Returns the label of metrics for a dataset that `tenant` reads: its name, unless that is private to a space.
    pub(super) fn label<'a>(&self, tenant: &Tenant, dataset: &'a str) -> &'a str {
        let space = self.config.spaces.of(tenant);
        let own = |staging| matches!(space, Space::Own(_)) && space.own(staging, dataset).is_some();
        let private =
            !self.config.catalogue.get().names().any(|name| name == dataset) && self.staging.as_ref().is_some_and(own);
        if private { PRIVATE } else { dataset }
    }

    /// Returns the open dataset of `asked`. One that `begins` is a rank that reads it, or all ranks; others only look.
    pub(super) async fn offer(&self, tenant: &Tenant, asked: &StreamRequest, begins: bool) -> Result<Arc<OpenDataset>> {
        self.offer_of(self.options(tenant, asked)?, tenant, asked, begins).await
    }

    /// As [`offer`](Self::offer), of the options that `asked` was resolved to.
    async fn offer_of(
        &self,
        (options, hidden, version): Resolved,
        tenant: &Tenant,
        asked: &StreamRequest,
        begins: bool,
    ) -> Result<Arc<OpenDataset>> {
        let ranks = begins.then_some(Ranks { world: asked.world_size, rank: asked.rank });
        let claims = self.streams.claims();
        let open = |options| OpenDataset::open(options, hidden.clone(), claims.budget());
        let door = self.openings.door(tenant, claims);
        let request = Asked { options, hidden: &hidden, version, ranks };
        self.opened.get(door, request, asked.fingerprint, self.patience(), open).await
    }

    pub(super) async fn stored(
        &self,
        tenant: &Tenant,
        asked: &StreamRequest,
        rows: &StoredRows,
    ) -> Result<Arc<Stored>> {
        rows::check(rows)?;
        let (options, hidden, version) = self.options(tenant, asked)?;
        // Parts are read like ranks.
        let ranks = Some(Ranks { world: rows.parts, rank: rows.part });
        let open = |options: LoaderOptions| {
            let hidden = hidden.clone();
            async move { Stored::hiding(&options, &hidden).await }
        };
        let door = self.openings.door(tenant, self.streams.claims());
        let request = Asked { options, hidden: &hidden, version, ranks };
        self.tables.get(door, request, asked.fingerprint, self.patience(), open).await
    }

    /// Describes the stream of `asked`, with a ticket for its rank, or one for each rank. Takes `room` before the answer is made.
    /// The tickets keep the caller's `trace`.
    pub(crate) async fn describe(
        &self,
        trace: Option<TraceContext>,
        tenant: &Tenant,
        asked: StreamRequest,
        room: &Room,
    ) -> Result<FlightInfo> {
        self.described(trace, tenant, asked, false, room).await
    }

    /// As [`describe`](Self::describe), for a list, of a dataset with nulls that its options do not allow. No client may read it so.
    pub(crate) async fn describe_despite_nulls(
        &self,
        tenant: &Tenant,
        asked: StreamRequest,
        room: &Room,
    ) -> Result<FlightInfo> {
        self.described(None, tenant, asked, true, room).await
    }

    async fn described(
        &self,
        trace: Option<TraceContext>,
        tenant: &Tenant,
        mut asked: StreamRequest,
        despite_nulls: bool,
        room: &Room,
    ) -> Result<FlightInfo> {
        let tickets = endpoints_bytes(&asked);
        if let Some(rows) = asked.rows.take() {
            return self.describe_rows(tenant, asked, rows, (tickets, room)).await;
        }
        if let Some(caller) = &asked.gang
            && asked.fingerprint.is_none()
        {
            // A gang that resumes continues with the same files, although newer ones may exist.
            asked.fingerprint = self.gangs.resumed(&self.caller(tenant, caller)?);
        }
        let mut resolved = self.options(tenant, &asked)?;
        if despite_nulls {
            // Then a null is no error, and the columns are the same.
            resolved.0.bad_rows = BadRows::Skip;
        }
        let offer = self.offer_of(resolved, tenant, &asked, true).await?;
        let plan = offer.plan(asked.epoch, asked.world_size, (self.streams.planning(), tenant)).await?;
        // Who began with a server of a former version goes on in its terms.
        let data = match (asked.fingerprint, plan.former(), &asked.gang) {
            (Some(given), ..) => plan.fingerprint_as(given),
            (None, Some(former), Some(caller)) => {
                let reads = self.gangs.reads(&self.caller(tenant, caller)?);
                let is_former = reads == Some(Reading::fingerprint(former, plan.spec()));
                if is_former { former } else { offer.fingerprint }
            }
            _ => offer.fingerprint,
        };
        let reading = Reading::new(&asked.dataset, data, plan.spec());
        if let Some(caller) = &asked.gang {
            self.gangs.may_read(&self.caller(tenant, caller)?, &reading)?;
        }
        let state = State::at(data, plan.spec().clone(), asked.epoch, asked.step);
        asked.step = state.step_of(plan.rows(), asked.world_size)?;
        let wanted = Wanted {
            tenant: tenant.clone(),
            offer: Arc::clone(&offer),
            plan: Arc::clone(&plan),
            share: asked.share(0)?,
            outgoing: OUTGOING,
        };
        // A step that another rank can never get is refused before anyone waits for it.
        self.streams.check(&wanted).await?;
        let ranks = match asked.rank {
            Some(rank) => rank..rank.saturating_add(1),
            None => all(asked.world_size, &asked, "ranks", "rank")?,
        };
        room.take(tickets.saturating_add(offer.schema_bytes)).await?;
        let announced = StreamInfo {
            fingerprint: data,
            former: plan.former().filter(|former| *former != data),
            spec: plan.spec().clone(),
            steps: plan.steps(),
            rows: plan.rows(),
            server: env!("CARGO_PKG_VERSION").to_owned(),
            local: self.socket.clone().and_then(Local::here),
            kinds: Some(Arc::clone(offer.prepared.kinds())),
        };
        let descriptor = FlightDescriptor::new_cmd(asked.to_json());
        let mut info = FlightInfo::new()
            .try_with_schema(offer.columns.arrow())
            .map_err(|error| Error::Closed { why: format!("the schema cannot be written: {error}") })?
            .with_descriptor(descriptor)
            .with_total_records(i64::try_from(plan.rows()).unwrap_or(i64::MAX))
            .with_total_bytes(-1)
            .with_ordered(true)
            .with_app_metadata(json(&announced));
        for rank in ranks {
            asked.rank = Some(rank);
            plan.check_share(asked.share(rank)?)?;
            info = info.with_endpoint(self.endpoint(tenant, &asked, (data, Some(reading.plan)), trace.clone()));
        }
        Ok(info)
    }

    /// Describes the parts of a dataset's stored rows, with a ticket for each.
    async fn describe_rows(
        &self,
        tenant: &Tenant,
        mut asked: StreamRequest,
        rows: StoredRows,
        (tickets, room): (usize, &Room),
    ) -> Result<FlightInfo> {
        if asked.gang.is_some() {
            return Err(Error::config("gang", "stored rows belong to no gang"));
        }
        let stored = self.stored(tenant, &asked, &rows).await?;
        let parts = match rows.part {
            Some(part) => part..part.saturating_add(1),
            None => all(rows.parts, &asked, "parts", "rows.part")?,
        };
        room.take(tickets.saturating_add(schema_message(stored.schema()).len())).await?;
        let total = (0..stored.groups()).fold(0_u64, |sum, group| sum.saturating_add(stored.rows(group)));
        let data = asked.fingerprint.map_or_else(|| stored.fingerprint(), |given| stored.fingerprint_as(given));
        let about = json!({
            "fingerprint": data,
            "rows": total,
            "parts": rows.parts,
            "row_groups": stored.groups(),
            "server": env!("CARGO_PKG_VERSION"),
        });
        let mut info = FlightInfo::new()
            .try_with_schema(stored.schema())
            .map_err(|error| Error::Closed { why: format!("the schema cannot be written: {error}") })?
            .with_total_records(i64::try_from(total).unwrap_or(i64::MAX))
            .with_total_bytes(-1)
            .with_ordered(true)
            .with_app_metadata(json(&about));
        for part in parts {
            asked.rows = Some(StoredRows { part: Some(part), ..rows.clone() });
            info = info.with_endpoint(self.endpoint(tenant, &asked, (data, None), None));
        }
        asked.rows = Some(rows);
        Ok(info.with_descriptor(FlightDescriptor::new_cmd(asked.to_json())))
    }

    /// Returns the locations that serve `asked`, with a ticket for `tenant` and for these data in this plan.
    fn endpoint(
        &self,
        tenant: &Tenant,
        asked: &StreamRequest,
        (fingerprint, plan): (Fingerprint, Option<Fingerprint>),
        trace: Option<TraceContext>,
    ) -> FlightEndpoint {
        let ticket = Ticket {
            asked: asked.clone(),
            fingerprint,
            plan,
            tenant: tenant.name().to_owned(),
            expires: Ticket::expiry(SystemTime::now(), TICKET_LIFE),
            trace,
        };
        let ticket = arrow_flight::Ticket::new(ticket.sign(&self.config.key.bytes()));
        let endpoint = FlightEndpoint::new().with_ticket(ticket);
        self.config.replicas.iter().fold(endpoint, |endpoint, replica| endpoint.with_location(replica))
    }

    /// Returns the schema of the stream of `asked`, and its bytes in an answer.
    pub(crate) async fn columns(&self, tenant: &Tenant, asked: &StreamRequest) -> Result<(SchemaRef, usize)> {
        if let Some(rows) = &asked.rows {
            let stored = self.stored(tenant, asked, rows).await?;
            return Ok((Arc::clone(stored.schema()), schema_message(stored.schema()).len()));
        }
        let offer = self.offer(tenant, asked, false).await?;
        Ok((Arc::clone(offer.columns.arrow()), offer.schema_bytes))
    }

    /// Returns the state of a loader at the position of `asked`.
    pub(crate) async fn state(&self, tenant: &Tenant, asked: &StreamRequest) -> Result<State> {
        let offer = self.offer(tenant, asked, false).await?;
        let plan = offer.plan(asked.epoch, asked.world_size, (self.streams.planning(), tenant)).await?;
        let state = State::at(offer.fingerprint, plan.spec().clone(), asked.epoch, asked.step);
        state.step_in(&plan)?;
        Ok(state)
    }

    /// Removes a dataset that was written here; false if there was none.
    pub(crate) async fn drop_dataset(&self, staging: &Staging, space: &Space, dataset: &str) -> Result<bool> {
        if space.own(staging, dataset).is_none() && self.config.catalogue.get().get(dataset).is_ok() {
            let problem =
                format!("{dataset} is of the server's catalogue and was not written to it: its files are its owner's");
            return Err(Error::config("dataset", problem));
        }
        let name = space.write(dataset, "drop")?;
        let dropped = staging.drop_of(name.clone()).await?;
        if dropped {
            // A dataset written later under the same name is another one.
            self.opened.forget_written(name.dataset());
            self.tables.forget_written(name.dataset());
        }
        // The name of one in a space of its own is no label, and may be that of another dataset.
        if dropped && !matches!(space, Space::Own(_)) && self.config.catalogue.get().get(dataset).is_err() {
            self.config.admin.metrics().forget(dataset);
        }
        Ok(dropped)
    }

    /// Returns true if the server is to end.
    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Core").field("streams", &self.streams).finish_non_exhaustive()
    }
}

/// Checks that a ticket is for the data that are there.
pub(super) fn same_data(ticket: &Ticket, found: Fingerprint) -> Result<()> {
    if found == ticket.fingerprint {
        return Ok(());
    }
    Err(Error::Mismatch {
        what: format!("dataset {} of the ticket", ticket.asked.dataset),
        expected: format!("fingerprint {}", ticket.fingerprint),
        found: format!("fingerprint {found}"),
        hint: "replicas must serve the same files, and files must not change during an epoch".to_owned(),
    })
}

/// Checks that a ticket is for the plan that its request has now: other ranks may read with tickets of the same time.
pub(super) fn same_plan(ticket: &Ticket, found: &Reading) -> Result<()> {
    let Some(plan) = ticket.plan.filter(|plan| *plan != found.plan) else { return Ok(()) };
    Err(Error::Mismatch {
        what: format!("plan of the ticket for dataset {}", ticket.asked.dataset),
        expected: format!("plan {plan}"),
        found: found.to_string(),
        hint: "the dataset's options changed in the catalogue, or differ at this replica; ask for new tickets, for all ranks"
            .to_owned(),
    })
}

/// Returns the approximate bytes of the tickets for `asked`: of those for all ranks or parts, if none is named.
fn endpoints_bytes(asked: &StreamRequest) -> usize {
    let count = match (&asked.rows, asked.rank) {
        (Some(StoredRows { part: Some(_), .. }), _) | (None, Some(_)) => 1,
        (Some(rows), _) => rows.parts,
        (None, None) => asked.world_size,
    };
    // Beside its request a ticket has a tenant, a time and a signature, and an endpoint has replicas.
    let bytes = u64::from(count.min(MAX_ENDPOINTS)).saturating_mul(2 * asked.to_json().len() as u64 + TICKET);
    usize::try_from(bytes.min(2 * MAX_ENDPOINTS_BYTES)).unwrap_or(usize::MAX)
}

/// Returns the range of all `count` tickets, if they and their copies of `asked` are within the limits of one answer.
fn all(count: u32, asked: &StreamRequest, what: &str, option: &'static str) -> Result<Range<u32>> {
    let refused = |what: String, asked: u64, limit: u64| Err(Error::limit(what.clone(), asked, limit, option));
    if count > MAX_ENDPOINTS {
        return refused(format!("tickets for all {what} at once"), count.into(), MAX_ENDPOINTS.into());
    }
    let bytes = u64::from(count).saturating_mul(asked.to_json().len() as u64);
    if bytes > MAX_ENDPOINTS_BYTES {
        return refused(format!("tickets for all {what} at once, in bytes,"), bytes, MAX_ENDPOINTS_BYTES);
    }
    Ok(0..count)
}

/// Serialises a value that cannot fail to serialise.
pub(crate) fn json(value: &impl serde::Serialize) -> Vec<u8> {
    serde_json::to_vec(value).unwrap_or_default()
}
