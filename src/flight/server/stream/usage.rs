//! Usage of each tenant, for the action `stats`: a tenant sees only its own counts.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use crate::flight::server::access::auth::Tenant;
use crate::flight::server::rpc::body::Message;

/// Most tenants that are counted; beyond them those without an open stream are forgotten and start again at zero.
const TENANTS: usize = 10_000;

/// The counts of one tenant since the server started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// Streams open now.
    streams_open: u64,
    /// Streams ever opened.
    streams: u64,
    /// Messages of batches and of stored rows.
    batches: u64,
    /// Rows of batches, padding included.
    rows: u64,
    /// Bytes of those messages.
    bytes: u64,
}

/// The counts of all tenants.
#[derive(Debug, Default)]
pub(crate) struct Usage(Mutex<HashMap<Tenant, Counts>>);

impl Usage {
    fn counts(&self) -> MutexGuard<'_, HashMap<Tenant, Counts>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, tenant: &Tenant, change: impl FnOnce(&mut Counts)) {
        let mut all = self.counts();
        if all.len() >= TENANTS && !all.contains_key(tenant) {
            all.retain(|_, counts| counts.streams_open > 0);
        }
        change(all.entry(tenant.clone()).or_default());
    }

    /// Counts a new stream of `tenant`.
    pub(crate) fn opened(&self, tenant: &Tenant) {
        self.change(tenant, |counts| {
            counts.streams_open += 1;
            counts.streams += 1;
        });
    }

    /// Counts the end of a stream of `tenant`, for any reason.
    pub(crate) fn closed(&self, tenant: &Tenant) {
        self.change(tenant, |counts| counts.streams_open = counts.streams_open.saturating_sub(1));
    }

    /// Counts `message` as sent to `tenant`.
    pub(crate) fn sent(&self, tenant: &Tenant, message: &Message) {
        let (rows, bytes) = match message {
            Message::Schema(_) => return,
            Message::Batch(batch, ..) => (batch.position.rows, batch.body_len()),
            Message::Rows(header, body) => (0, header.len() + body.len()),
        };
        self.change(tenant, |counts| {
            counts.batches += 1;
            counts.rows = counts.rows.saturating_add(rows);
            counts.bytes = counts.bytes.saturating_add(bytes as u64);
        });
    }

    pub(crate) fn of(&self, tenant: &Tenant) -> Counts {
        self.counts().get(tenant).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_kept_per_tenant_and_bounded() {
        let usage = Usage::default();
        let tenant = |number: usize| Tenant::new(&format!("t{number}")).unwrap();
        usage.opened(&tenant(0));
        for number in 1..TENANTS + 10 {
            usage.opened(&tenant(number));
            usage.closed(&tenant(number));
        }
        assert!(usage.counts().len() <= TENANTS);
        assert_eq!(usage.of(&tenant(0)), Counts { streams_open: 1, streams: 1, ..Counts::default() });
        assert_eq!(usage.of(&tenant(1)), Counts::default(), "forgotten");
        usage.closed(&tenant(0));
        usage.closed(&tenant(0));
        assert_eq!(usage.of(&tenant(0)).streams_open, 0);
    }
}
