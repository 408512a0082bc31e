//! Batches of one rank as the answer to a ticket, message by message.
//!
//! Whoever needs memory may take a stream's place in its line while the client reads, or does not; the stream gets another place then,
//! and goes on with the same step.

use std::sync::Arc;

use tokio::sync::watch;
use tonic::{Code, Status};

use super::body::Message;
use super::claims::Claim;
use super::core::Core;
use super::hub::{Found, Subscriber, Wanted};
use super::metrics::StreamCounters;
use super::quota::{InFlight, StreamPermit};
use super::seat::Seat;
use crate::flight::gang::Fence;
use crate::flight::status::to_status;
use crate::flight::wire::{Position, schema_message};

/// One stream on its way.
pub(super) struct Streaming {
    pub(super) reading: Reading,
    pub(super) generation: Option<u64>,
    /// Its place in a line, unless it was given up to those who wait for memory: then it gets another.
    pub(super) seat: Seat<Subscriber>,
    /// The claim on batches that are on their way out.
    #[expect(dead_code, reason = "held for its drop")]
    pub(super) outgoing: Option<Claim>,
    pub(super) fence: Option<Fence>,
    pub(super) draining: watch::Receiver<bool>,
    pub(super) counters: StreamCounters,
    pub(super) permit: StreamPermit,
    /// The claim of the batch that is on its way out.
    pub(super) in_flight: Option<InFlight>,
    pub(super) begun: bool,
    /// The step that is sent next.
    pub(super) step: u64,
}

/// Where a stream finds its batches.
pub(super) struct Reading {
    pub(super) core: Arc<Core>,
    pub(super) wanted: Wanted,
}

impl Reading {
    /// What is there at `step`, in `place` or in another one if it has none or fell behind.
    async fn find(&self, place: &mut Option<Subscriber>, step: u64) -> Result<Found, Status> {
        loop {
            let subscriber = match place {
                Some(subscriber) => subscriber,
                None => {
                    let again = self.core.hub().subscribe(&self.wanted, step, true).await;
                    place.insert(again.map_err(|error| to_status(&error))?)
                }
            };
            match subscriber.next().await? {
                // The line that it left behind has no more use for its memory.
                Found::Behind => *place = None,
                found => return Ok(found),
            }
        }
    }
}

impl Streaming {
    /// The next message; none after the last.
    pub(super) async fn next(&mut self) -> Result<Option<Message>, Status> {
        let Reading { core, wanted } = &self.reading;
        if !self.begun {
            self.begun = true;
            return Ok(Some(Message::Schema(schema_message(&wanted.offer.columns))));
        }
        self.in_flight = None;
        let fence = &mut self.fence;
        let fenced = async {
            match fence {
                Some(fence) => fence.ended().await,
                None => std::future::pending().await,
            }
        };
        let (mut place, seat, permit) = (self.seat.take(), &self.seat, &self.permit);
        let made = async {
            let found = self.reading.find(&mut place, self.step).await?;
            if let Some(place) = place {
                // Also while it waits for its turn, which its own quota decides, others may have its memory.
                seat.put(place);
            }
            let Found::Batch(batch) = found else { return Ok(None) };
            let room = permit.acquire(batch.body_len() as u64).await.map_err(|error| to_status(&error))?;
            Ok(Some((batch, room)))
        };
        let made = tokio::select! {
            biased;
            error = fenced => return Err(to_status(&error)),
            _ = self.draining.wait_for(|draining| *draining) => return Err(draining(self.step)),
            made = made => made,
        };
        match made {
            Ok(None) => Ok(None),
            Ok(Some((batch, room))) => {
                self.in_flight = Some(room);
                self.counters.sent(batch.position.rows, batch.body_len() as u64);
                self.step = batch.position.step + 1;
                let metadata = match self.generation {
                    None => batch.metadata.clone(),
                    generation => Position { generation, ..batch.position.clone() }.to_json().into(),
                };
                Ok(Some(Message::Batch(batch, metadata)))
            }
            Err(status) => {
                let status: Status = status;
                if status.code() == Code::FailedPrecondition {
                    core.changed(&wanted.offer);
                }
                Err(status)
            }
        }
    }
}

/// What a stream is told when the server is to end.
pub(super) fn draining(step: u64) -> Status {
    Status::unavailable(format!("the server is draining; go on from step {step} at another replica, or here later"))
}
