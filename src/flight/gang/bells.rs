//! Notifications of calls and streams that wait for a change of a gang.

use std::collections::BTreeMap;

use tokio::sync::watch;

/// The bells of all gangs with waiting calls or streams.
#[derive(Debug, Default)]
pub(super) struct Bells(BTreeMap<String, watch::Sender<()>>);

impl Bells {
    /// Rings from now on for calls that wait for a change of `gang`. Only for admitted calls: a bell keeps the name.
    pub(super) fn of(&mut self, gang: &str) -> watch::Receiver<()> {
        if let Some(bell) = self.0.get(gang) {
            return bell.subscribe();
        }
        // Bells without listeners are dropped first, so that there are never more than waiting calls and running streams.
        self.0.retain(|_, bell| bell.receiver_count() > 0);
        self.0.entry(gang.to_owned()).or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    /// Wakes calls and streams that wait for a change of `gang`.
    pub(super) fn ring(&self, gang: &str) {
        if let Some(bell) = self.0.get(gang) {
            bell.send_replace(());
        }
    }

    /// Wakes all of them.
    pub(super) fn ring_all(&self) {
        for bell in self.0.values() {
            bell.send_replace(());
        }
    }

    /// Bytes of names that are kept.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.0.keys().map(String::len).sum()
    }
}
