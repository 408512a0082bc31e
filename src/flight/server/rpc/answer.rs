//! The answer to a ticket: a stream of batches or of stored rows, audited and counted until it ends.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use futures::Stream;
use tonic::{Code, Status};

use super::body::Message;
use super::core::{Core, Via, WINDOW, same_data};
use super::in_task::InTask;
use super::streaming::{Streaming, draining};
use crate::error::{Error, Result};
use crate::flight::request::StoredRows;
use crate::flight::server::access::audit::{self, AuditRecord};
use crate::flight::server::access::auth::Tenant;
use crate::flight::server::ops::errors::At;
use crate::flight::server::stream::hangup::Hangup;
use crate::flight::server::stream::rows::{self, Sending};
use crate::flight::server::stream::shared_streams::OUTGOING;
use crate::flight::status::{from_status, to_status};
use crate::flight::ticket::Ticket;

impl Core {
    /// Opens the stream of a ticket that came from `peer`, over the connection that `hangup` ends.
    pub(crate) async fn open(
        self: &Arc<Self>,
        via: Via<'_>,
        (peer, hangup): (Option<IpAddr>, Option<Hangup>),
        ticket: &[u8],
    ) -> Result<impl Stream<Item = Result<Message, Status>> + use<>, Status> {
        let holder = match via {
            Via::Network(tenant) => Some(tenant),
            Via::Local => None,
        };
        let mut entry = audit::Stream::new(&self.config.audit, AuditRecord::of("DoGet", peer, holder));
        let opened = self.begin(via, hangup, ticket, &mut entry).await;
        let (stream, tenant, of) = opened.inspect_err(|status| entry.end(Some(status)))?;
        let open = OpenStream::new(Arc::clone(self), tenant);
        let messages = futures::stream::unfold(Some((stream, open, of, entry)), async |streaming| {
            let (mut stream, open, of, mut entry) = streaming?;
            match stream.next().await {
                Ok(Some(message)) => {
                    open.core.usage.sent(&open.tenant, &message);
                    if let Message::Batch(batch, ..) = &message {
                        entry.sent(batch.position.step, batch.position.rows);
                    }
                    Some((Ok(message), Some((stream, open, of, entry))))
                }
                Ok(None) => {
                    entry.end(None);
                    None
                }
                Err(status) => {
                    let status = open.core.ended(&open.tenant, &of.0, status);
                    open.core.remember(&open.tenant, (&of.0, of.1), &status);
                    entry.end(Some(&status));
                    Some((Err(status), None))
                }
            }
        });
        Ok(InTask::new(messages))
    }

    async fn begin(
        self: &Arc<Self>,
        via: Via<'_>,
        hangup: Option<Hangup>,
        ticket: &[u8],
        entry: &mut audit::Stream,
    ) -> Result<(Answer, Tenant, (String, Option<u32>)), Status> {
        let ticket = Ticket::verify_any(ticket, &self.config.key.taken(), SystemTime::now())
            .map_err(|denied| Status::permission_denied(denied.to_string()))?;
        entry.reads(&ticket);
        let tenant = match via {
            Via::Network(tenant) if ticket.tenant == tenant.name() => tenant.clone(),
            Via::Network(_) => {
                return Err(Status::permission_denied(
                    "the ticket was given to somebody else; ask for one of your own",
                ));
            }
            Via::Local => Tenant::of_ticket(&ticket.tenant),
        };
        let outgoing = match via {
            Via::Network(_) => OUTGOING,
            Via::Local => OUTGOING + u64::from(WINDOW),
        };
        if *self.draining.borrow() {
            return Err(draining(ticket.asked.step));
        }
        let (dataset, rank) = (ticket.asked.dataset.clone(), ticket.asked.rank);
        let stream = self.answer(&tenant, ticket, (outgoing, hangup)).await.map_err(|error| {
            let at = At { call: "DoGet", dataset: Some(self.label(&tenant, &dataset)), rank };
            self.config.admin.metrics().error_at(&error, at);
            to_status(&self.config.spaces.of(&tenant).told(error))
        })?;
        Ok((stream, tenant, (dataset, rank)))
    }

    async fn answer(
        self: &Arc<Self>,
        tenant: &Tenant,
        mut ticket: Ticket,
        (outgoing, hangup): (u64, Option<Hangup>),
    ) -> Result<Answer> {
        // A ticket fixes the version of the data.
        ticket.asked.fingerprint = Some(ticket.fingerprint);
        match ticket.asked.rows.take() {
            Some(rows) => {
                let sending = self.rows(tenant, ticket, &rows, hangup).await?;
                Ok(Answer::Rows(Arc::clone(self), Box::new(sending)))
            }
            None => {
                let streaming = self.stream(tenant, ticket, (outgoing, hangup)).await?;
                Ok(Answer::Batches(Box::new(streaming)))
            }
        }
    }

    async fn rows(
        &self,
        tenant: &Tenant,
        ticket: Ticket,
        rows: &StoredRows,
        hangup: Option<Hangup>,
    ) -> Result<Sending> {
        let permit = self.config.quotas.open_stream(tenant)?;
        let mut ends = self.draining.clone();
        // As for batches, opening may wait for a slow store or for memory.
        let stored = tokio::select! {
            biased;
            _ = ends.wait_for(|draining| *draining) => return Err(Error::Closed { why: rows::DRAINING.to_owned() }),
            stored = self.stored(tenant, &ticket.asked, rows) => stored?,
        };
        same_data(&ticket, stored.fingerprint_as(ticket.fingerprint))?;
        let means = rows::Means {
            workers: Arc::clone(self.streams.workers()),
            claims: Arc::clone(self.streams.claims()),
            permit,
            counters: self.config.admin.metrics().stream(self.label(tenant, &ticket.asked.dataset)),
            hangup,
            draining: self.draining.clone(),
        };
        Ok(Sending::new(stored, rows.part.unwrap_or(0), rows.parts, means))
    }

    /// Remembers the failure of a stream. That the server drains is none.
    fn remember(&self, tenant: &Tenant, (dataset, rank): (&str, Option<u32>), status: &Status) {
        if self.is_draining() {
            return;
        }
        let at = At { call: "DoGet", dataset: Some(self.label(tenant, dataset)), rank };
        self.config.admin.metrics().remember(from_status("", status).kind(), at);
    }

    /// Returns the reason that a stream of `dataset` ended: that the dataset was dropped, if its files are missing for that reason.
    fn ended(&self, tenant: &Tenant, dataset: &str, status: Status) -> Status {
        let missing = matches!(status.code(), Code::FailedPrecondition | Code::NotFound);
        match &self.staging {
            Some(staging)
                if missing
                    && !self.config.spaces.of(tenant).has(staging, dataset)
                    && self.config.catalogue.get().get(dataset).is_err() =>
            {
                let hint = "it was dropped while it was read".to_owned();
                to_status(&Error::NotFound { what: format!("dataset {dataset:?}"), hint })
            }
            _ => status,
        }
    }
}

/// A stream of a tenant, counted until it is dropped.
struct OpenStream {
    core: Arc<Core>,
    tenant: Tenant,
}

impl OpenStream {
    fn new(core: Arc<Core>, tenant: Tenant) -> Self {
        core.usage.opened(&tenant);
        Self { core, tenant }
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.core.usage.closed(&self.tenant);
    }
}

/// The answer to a ticket.
enum Answer {
    Batches(Box<Streaming>),
    Rows(Arc<Core>, Box<Sending>),
}

impl Answer {
    async fn next(&mut self) -> Result<Option<Message>, Status> {
        match self {
            Self::Batches(streaming) => streaming.next().await,
            Self::Rows(core, sending) => sending.next().await.inspect_err(|status| {
                if status.code() == Code::FailedPrecondition {
                    // As for batches, the next call must see the data as they are now.
                    core.tables.forget(sending.stored());
                }
            }),
        }
    }
}
