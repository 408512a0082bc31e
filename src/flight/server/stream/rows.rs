//! Stored rows as the answer to a ticket: parts of a dataset, split at row groups, as plain Arrow batches.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, RecordBatch};
use arrow::datatypes::Schema;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteContext, IpcWriteOptions};
use bytes::Bytes;
use tokio::sync::watch;
use tonic::Status;

use super::budget::{ByteBudget, Claim};
use super::hangup::Hangup;
use super::quota::{InFlight, StreamPermit};
use super::revocable::Revocable;
use crate::error::{Error, Result};
use crate::flight::request::StoredRows;
use crate::flight::server::ops::metrics::StreamCounters;
use crate::flight::server::rpc::body::Message;
use crate::flight::status::to_status;
use crate::pipeline::{Stored, Workers};

/// Approximate bytes of one message, and its most rows.
const MESSAGE_BYTES: usize = 8 << 20;
const MESSAGE_ROWS: usize = 64 << 10;

/// Most parts of one dataset.
pub(crate) const MAX_PARTS: u32 = 1 << 20;

/// Checks that a part exists.
///
/// # Errors
/// [`Error::Config`].
pub(crate) fn check(rows: &StoredRows) -> Result<()> {
    if !(1..=MAX_PARTS).contains(&rows.parts) {
        return Err(Error::config("rows.parts", format!("{} is not from 1 to {MAX_PARTS}", rows.parts)));
    }
    match rows.part {
        Some(part) if part >= rows.parts => {
            Err(Error::config("rows.part", format!("{part} is not below parts, {}", rows.parts)))
        }
        _ => Ok(()),
    }
}

/// Returns the row groups of part `part` of `parts`. A row group belongs to the part that its first row falls into, so that parts have
/// about as many rows each, and every row group is in one.
fn groups(rows: &[u64], part: u32, parts: u32) -> VecDeque<usize> {
    let total = rows.iter().fold(0_u64, |sum, rows| sum.saturating_add(*rows)).max(1);
    let mut first = 0_u64;
    let mut found = VecDeque::new();
    for (group, rows) in rows.iter().enumerate() {
        let owner = u128::from(first.min(total - 1)) * u128::from(parts) / u128::from(total);
        if owner == u128::from(part) && *rows > 0 {
            found.push_back(group);
        }
        first = first.saturating_add(*rows);
    }
    found
}

/// The end of a stream whose server ends.
pub(crate) const DRAINING: &str = "the server is draining; read the part again at another replica, or here later";

/// Dependencies of a stream of stored rows.
pub(crate) struct Means {
    pub(crate) workers: Arc<Workers>,
    pub(crate) claims: Arc<ByteBudget>,
    pub(crate) permit: StreamPermit,
    pub(crate) counters: StreamCounters,
    /// Ends its connection.
    pub(crate) hangup: Option<Hangup>,
    /// True once the server is to end.
    pub(crate) draining: watch::Receiver<bool>,
}

/// One part being sent.
pub(crate) struct Sending {
    stored: Arc<Stored>,
    groups: VecDeque<usize>,
    means: Means,
    /// The first of `groups`, unless it was revoked for a stream that waits for memory: then it is read again.
    current: Revocable<Decoded>,
    /// Next row of it to send.
    row: usize,
    /// Claim on the memory of a message.
    message: Option<Claim>,
    /// Bytes by which the message on its way out exceeds that claim, and the claim on them.
    beyond: Option<(u64, Claim)>,
    /// Claim of the message on its way out.
    in_flight: Option<InFlight>,
    begun: bool,
}

/// A decoded row group.
#[derive(Debug)]
struct Decoded {
    rows: RecordBatch,
    _memory: Claim,
}

impl Sending {
    pub(crate) fn new(stored: Arc<Stored>, part: u32, parts: u32, means: Means) -> Self {
        let rows: Vec<u64> = (0..stored.groups()).map(|group| stored.rows(group)).collect();
        let groups = groups(&rows, part, parts);
        let current = means.claims.holding(means.permit.tenant(), means.hangup.clone());
        Self { stored, groups, means, current, row: 0, message: None, beyond: None, in_flight: None, begun: false }
    }

    /// Returns the dataset of the rows.
    pub(crate) fn stored(&self) -> &Arc<Stored> {
        &self.stored
    }

    /// Returns the next message; `None` after the last.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, Status> {
        if !self.begun {
            self.begun = true;
            self.current.sent();
            return Ok(Some(Message::Schema(schema_message(self.stored.schema()))));
        }
        self.current.asked();
        (self.in_flight, self.beyond) = (None, None);
        let mut draining = self.means.draining.clone();
        tokio::select! {
            biased;
            _ = draining.wait_for(|draining| *draining) => {
                Err(Status::unavailable(DRAINING))
            }
            message = self.message() => {
                self.current.sent();
                message.map_err(|error| to_status(&error))
            }
        }
    }

    async fn message(&mut self) -> Result<Option<Message>> {
        loop {
            let Some(group) = self.groups.front().copied() else { return Ok(None) };
            let decoded = match self.current.take() {
                Some(decoded) => decoded,
                None => self.read(group).await?,
            };
            let (batch, next) = (&decoded.rows, self.row);
            if next >= batch.num_rows() {
                self.groups.pop_front();
                self.row = 0;
                continue;
            }
            let each = (batch.get_array_memory_size() / batch.num_rows()).max(1);
            let rows = (MESSAGE_BYTES / each).clamp(1, MESSAGE_ROWS).min(batch.num_rows() - next);
            let piece = batch.slice(next, rows);
            let beyond = bytes(&piece).saturating_sub(MESSAGE_BYTES) as u64;
            if beyond > self.beyond.as_ref().map_or(0, |(paid, _)| *paid) {
                // One row may be far longer than the others. While this waits for memory, other streams may take the group's.
                drop(piece);
                self.current.put(decoded);
                self.beyond = None;
                let claim = self.means.claims.claim(self.means.permit.tenant(), beyond).await?;
                self.beyond = Some((beyond, claim));
                continue;
            }
            let (header, body) = encode(&piece)?;
            self.row = next + rows;
            self.in_flight = Some(self.means.permit.acquire(body.len() as u64).await?);
            self.means.counters.sent(rows as u64, body.len() as u64);
            self.current.put(decoded);
            return Ok(Some(Message::Rows(header, body)));
        }
    }

    /// Reads row group `group` once there is memory for it and for a message, which is a copy of its rows.
    async fn read(&mut self, group: usize) -> Result<Decoded> {
        let message = if self.message.is_none() { MESSAGE_BYTES as u64 } else { 0 };
        let tenant = self.means.permit.tenant();
        let mut memory = self.means.claims.claim(tenant, self.stored.cost(group).saturating_add(message)).await?;
        if message > 0 {
            self.message = memory.split(message);
        }
        let rows = self.stored.read(group, &self.means.workers).await?;
        Ok(Decoded { rows, _memory: memory })
    }
}

/// Returns the bytes that the rows of `batch` alone take in a message.
fn bytes(batch: &RecordBatch) -> usize {
    let column = |column: &ArrayRef| column.to_data().get_slice_memory_size();
    // An array without a known size is refused when it is encoded.
    batch.columns().iter().map(|array| column(array).unwrap_or(0)).fold(0, usize::saturating_add)
}

/// Encodes `schema` as an Arrow IPC message.
pub(crate) fn schema_message(schema: &Schema) -> Bytes {
    let mut tracker = DictionaryTracker::new(true);
    let generator = IpcDataGenerator::default();
    generator
        .schema_to_bytes_with_dictionary_tracker(schema, &mut tracker, &IpcWriteOptions::default())
        .ipc_message
        .into()
}

fn encode(batch: &RecordBatch) -> Result<(Bytes, Bytes)> {
    let unsupported = |error: &dyn std::fmt::Display| {
        Error::unsupported(format!("stored rows over Flight ({error})"), "leave the column out")
    };
    let (dictionaries, encoded) = IpcDataGenerator::default()
        .encode(batch, &mut DictionaryTracker::new(true), &IpcWriteOptions::default(), &mut IpcWriteContext::default())
        .map_err(|error| unsupported(&error))?;
    if !dictionaries.is_empty() {
        return Err(unsupported(&"a dictionary"));
    }
    Ok((encoded.ipc_message.into(), encoded.arrow_data.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_group_is_in_one_part() {
        for rows in [vec![], vec![0], vec![5], vec![6, 6, 0, 6, 1], vec![1; 40], vec![1000, 1, 1, 1]] {
            for parts in [1, 2, 3, 4, 7, 100] {
                let mut all: Vec<usize> = (0..parts).flat_map(|part| groups(&rows, part, parts)).collect();
                assert!(all.is_sorted(), "parts follow one another");
                all.dedup();
                let expected: Vec<usize> = (0..rows.len()).filter(|group| rows[*group] > 0).collect();
                assert_eq!(all, expected, "{rows:?} in {parts}");
            }
        }
        let sizes: Vec<usize> = (0..4).map(|part| groups(&[1; 40], part, 4).len()).collect();
        assert_eq!(sizes, [10; 4]);
    }

    #[test]
    fn parts_are_checked() {
        let rows = |part, parts| check(&StoredRows { part, parts });
        assert!(rows(None, 1).is_ok() && rows(Some(3), 4).is_ok());
        assert!(rows(Some(4), 4).is_err() && rows(None, 0).is_err() && rows(None, MAX_PARTS + 1).is_err());
    }
}
