//! One stream of batches, from its ticket to its end: opening, fencing by its gang, its tenant's quota.
//!
//! When others need memory, a stream may lose its subscription, whether its client reads or not; it then subscribes again and continues
//! with the same step.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::watch;
use tonic::{Code, Status};

use super::core::{Core, same_data, same_plan};
use crate::error::{Error, Result};
use crate::flight::gang::{Fence, Reading};
use crate::flight::server::access::auth::Tenant;
use crate::flight::server::access::space::Space;
use crate::flight::server::ops::metrics::StreamCounters;
use crate::flight::server::rpc::body::Message;
use crate::flight::server::stream::departed::Departures;
use crate::flight::server::stream::hangup::Hangup;
use crate::flight::server::stream::live::{About, Watched};
use crate::flight::server::stream::quota::{InFlight, StreamPermit};
use crate::flight::server::stream::revocable::Revocable;
use crate::flight::server::stream::shared_stream::{Found, Subscriber};
use crate::flight::server::stream::shared_streams::{OUTGOING, Terms};
use crate::flight::server::stream::wanted::Wanted;
use crate::flight::status::to_status;
use crate::flight::ticket::Ticket;
use crate::flight::wire::{Position, schema_message};
use crate::pipeline::Trail;
use crate::trace::{At, Clock, Kind, Root, Value};

impl Core {
    pub(crate) async fn stream(
        self: &Arc<Self>,
        tenant: &Tenant,
        ticket: Ticket,
        (outgoing, hangup): (u64, Option<Hangup>),
    ) -> Result<Streaming> {
        let asked = &ticket.asked;
        let fence = match &asked.gang {
            Some(caller) => {
                let member = self.caller(tenant, caller)?;
                let fence = self.gangs.fence(&member.gang, member.rank, member.attempt, member.generation)?;
                let (own, share) = (fence.share(), asked.share(0)?);
                if (own.rank, own.of) != (share.rank, share.world) {
                    return Err(Error::Mismatch {
                        what: format!("share of rank {} of gang {}", caller.rank, caller.gang),
                        expected: format!("{} of {}, as it joined", own.rank, own.of),
                        found: format!("{} of {}", share.rank, share.world),
                        hint: "leave rank and world_size to the gang".to_owned(),
                    });
                }
                fence.continues(asked.epoch, asked.step)?;
                Some(fence)
            }
            None => None,
        };
        let permit = self.config.quotas.open_stream(tenant)?;
        let mut leash = Leash { fence, space: self.config.spaces.of(tenant), draining: self.draining.clone() };
        // Opening may wait for a slow store or for memory; the stream can be ended then as well.
        let flow = tokio::select! {
            biased;
            end = leash.pulled(asked.step) => return Err(end.error()),
            flow = self.flow(tenant, &ticket, permit, (outgoing, hangup)) => flow?,
        };
        Ok(Streaming { flow, leash, begun: false })
    }

    async fn flow(
        self: &Arc<Self>,
        tenant: &Tenant,
        ticket: &Ticket,
        permit: StreamPermit,
        (outgoing, hangup): (u64, Option<Hangup>),
    ) -> Result<Flow> {
        let asked = &ticket.asked;
        let offer = self.offer(tenant, asked, true).await?;
        let data = offer.plan.fingerprint_as(ticket.fingerprint);
        same_data(ticket, data)?;
        let plan = offer.plan(asked.epoch, asked.world_size, (self.streams.planning(), tenant)).await?;
        let reading = Reading::new(&asked.dataset, data, plan.spec());
        same_plan(ticket, &reading)?;
        if let Some(caller) = &asked.gang {
            // Before any batch is sent, so that two ranks of a generation never get rows of two plans.
            self.gangs.read_to(&self.caller(tenant, caller)?, &reading, plan.steps())?;
        }
        let wanted = Wanted { tenant: tenant.clone(), offer, plan, share: asked.share(0)?, outgoing };
        let mut subscriber = self.streams.subscribe(&wanted, asked.step, Terms::default()).await?;
        let outgoing = Departures::new(subscriber.outgoing(), outgoing);
        let label = self.label(tenant, &asked.dataset);
        let about = About {
            tenant: tenant.clone(),
            dataset: label.to_owned(),
            gang: asked.gang.as_ref().map(|caller| (caller.gang.clone(), caller.generation)),
            plan: Arc::clone(&wanted.plan),
            offer: Arc::downgrade(&wanted.offer),
            share: wanted.share,
            // Only ranks of this host keep batches.
            local: wanted.outgoing > OUTGOING,
            hangup: hangup.clone(),
        };
        let watched = self.live.open(about, asked.step);
        watched.reads(subscriber.probe());
        let counters = self.config.admin.metrics().stream(label);
        let holding = self.streams.claims().holding(tenant, hangup);
        holding.put(subscriber);
        Ok(Flow {
            core: Arc::clone(self),
            wanted,
            generation: asked.gang.as_ref().map(|caller| caller.generation),
            holding,
            outgoing,
            counters,
            watched,
            permit,
            in_flight: None,
            step: asked.step,
            root: ticket.trace.as_ref().and_then(Root::of_call),
        })
    }
}

/// One open stream.
pub(crate) struct Streaming {
    flow: Flow,
    leash: Leash,
    begun: bool,
}

/// The batches of a stream, one step after another.
struct Flow {
    core: Arc<Core>,
    wanted: Wanted,
    generation: Option<u64>,
    /// Its subscription, which may be revoked for those who wait for memory: it then subscribes again.
    holding: Revocable<Subscriber>,
    /// Claim on batches that are on their way out.
    outgoing: Departures,
    counters: StreamCounters,
    /// Its place among the open streams, for operators.
    watched: Watched,
    permit: StreamPermit,
    /// Claim of the batch that is on its way out.
    in_flight: Option<InFlight>,
    /// Next step to send.
    step: u64,
    /// The trace of the loader that reads, if it is exported here.
    root: Option<Root>,
}

impl Streaming {
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, Status> {
        if !self.begun {
            self.begun = true;
            return Ok(Some(Message::Schema(schema_message(&self.flow.wanted.offer.columns))));
        }
        self.flow.in_flight = None;
        self.flow.holding.asked();
        self.flow.watched.asked();
        let step = self.flow.step;
        // Whatever the stream waits for, a batch, memory or its tenant's quota, its end takes priority: nothing is sent after it.
        tokio::select! {
            biased;
            end = self.leash.pulled(step) => Err(end.status()),
            message = self.flow.next() => {
                self.flow.holding.sent();
                message
            }
        }
    }
}

impl Flow {
    /// Waits for the next batch and for permission to send it.
    async fn next(&mut self) -> Result<Option<Message>, Status> {
        let asked = Instant::now();
        let mut place = self.holding.take();
        let found = self.find(&mut place).await.inspect_err(|status| {
            if status.code() == Code::FailedPrecondition {
                // A file changed: the next call must see the current data.
                self.core.opened.forget(&self.wanted.offer);
            }
        })?;
        if let Some(place) = place {
            // Its memory can be revoked also while it waits for its own quota.
            self.holding.put(place);
        }
        let Found::Batch(batch, trail) = found else { return Ok(None) };
        let there = Instant::now();
        let bytes = batch.body_len() as u64;
        let claim = self.permit.acquire(bytes).await.map_err(|error| to_status(&error))?;
        self.in_flight = Some(claim);
        self.counters.sent(batch.position.rows, bytes);
        self.watched.sent((batch.position.step, batch.position.rows, bytes), &trail, there);
        self.trace(&batch.position, &trail, asked);
        self.step = batch.position.step + 1;
        let metadata = match self.generation {
            None => batch.metadata.clone(),
            generation => Position { generation, ..batch.position.clone() }.to_json().into(),
        };
        Ok(Some(Message::Batch(batch, metadata, self.outgoing.leave())))
    }

    /// Exports what became of a batch that was asked for at `asked` and goes out now.
    fn trace(&self, position: &Position, trail: &Trail, asked: Instant) {
        let share = self.wanted.share;
        let Some(step) = self.root.and_then(|root| root.step((position.epoch, position.step), share.numbers())) else {
            return;
        };
        let at = At { name: "bowstring.serve", kind: Kind::Server, within: None, from: asked, to: Instant::now() };
        step.add(&Clock::new(), at, vec![("bowstring.rows", Value::Number(position.rows))]);
        trail.trace(&step);
    }

    /// Finds the batch of the next step, in `place` or in another subscription if there is none or it fell behind.
    async fn find(&self, place: &mut Option<Subscriber>) -> Result<Found, Status> {
        let mut terms = Terms { paid: true, alone: false };
        loop {
            let subscriber = match place {
                Some(subscriber) => subscriber,
                None => {
                    let again = self.core.streams.subscribe(&self.wanted, self.step, terms).await;
                    let again = again.map_err(|error| to_status(&error))?;
                    self.watched.reads(again.probe());
                    place.insert(again)
                }
            };
            match subscriber.next().await? {
                // The line left behind has no more use for its memory.
                Found::Behind => *place = None,
                Found::Left => (*place, terms.alone) = (None, true),
                found => return Ok(found),
            }
        }
    }
}

/// The events that end a stream at any time: its generation is over, or the server is to end.
struct Leash {
    fence: Option<Fence>,
    /// That of its tenant, which is told of the end in its names.
    space: Space,
    draining: watch::Receiver<bool>,
}

impl Leash {
    /// Waits until the stream must end at `step`, and returns the reason. Cancel-safe.
    async fn pulled(&mut self, step: u64) -> Pulled {
        let (fence, space) = (&mut self.fence, &self.space);
        let fenced = async {
            match fence {
                Some(fence) => space.told(fence.ended().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            error = fenced => Pulled::Fenced(error),
            _ = self.draining.wait_for(|draining| *draining) => Pulled::Draining(step),
        }
    }
}

/// The reason that a stream ends before its last batch.
enum Pulled {
    Fenced(Error),
    Draining(u64),
}

impl Pulled {
    fn error(self) -> Error {
        match self {
            Self::Fenced(error) => error,
            Self::Draining(step) => Error::Closed { why: draining(step).message().to_owned() },
        }
    }

    fn status(&self) -> Status {
        match self {
            Self::Fenced(error) => to_status(error),
            Self::Draining(step) => draining(*step),
        }
    }
}

/// Status of streams that end with the server.
pub(crate) fn draining(step: u64) -> Status {
    Status::unavailable(format!("the server is draining; go on from step {step} at another replica, or here later"))
}
