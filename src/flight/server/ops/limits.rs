//! All limits of the server per peer, with defaults that a training job never reaches.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tonic::transport::Server;

use crate::error::{Error, Result};

/// The limits of a server. Sizes are in bytes, times in seconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Largest message either way. A row of 64 MiB passes, with room for its header.
    pub message_bytes: usize,
    /// Largest `app_metadata` of a message.
    pub metadata_bytes: usize,
    /// Largest ticket or descriptor.
    pub ticket_bytes: usize,
    /// Largest body of an action.
    pub action_bytes: usize,
    /// Most connections at once; more are closed as soon as they are accepted.
    pub connections: usize,
    /// Most connections at once from one address; for IPv6 from one network of 64 bits, which belongs to one host.
    pub connections_per_peer: usize,
    /// Most streams at once on one connection.
    pub streams_per_connection: u32,
    /// Most streams of batches at once on the whole server.
    pub max_streams: u32,
    /// Most calls at once of one tenant, in addition to its streams of batches. Calls that wait for other ranks of a gang count only
    /// beyond `gang_ranks_per_tenant`.
    pub calls_per_tenant: u32,
    /// Most attempts that one tenant writes at once.
    pub writes_per_tenant: u32,
    /// Gangs of one tenant, or of those that share a space; 1,024 in all.
    pub gangs_per_tenant: u32,
    /// Ranks of all gangs of one tenant; 65,536 in all.
    pub gang_ranks_per_tenant: u32,
    /// Refusals per minute of calls of one address, or network as above, for lack of a good token or ticket; further ones are delayed
    /// by a second each.
    pub refused_per_minute: u32,
    /// Headers of one call together, as HTTP/2 counts them.
    pub header_list_bytes: u32,
    /// Bytes that a client may send ahead on one stream.
    pub stream_window_bytes: u32,
    /// Bytes that a client may send ahead on one connection.
    pub connection_window_bytes: u32,
    /// Largest frame that a client may send.
    pub frame_bytes: u32,
    /// Streams that a client may reset before the server has processed them.
    pub pending_resets: usize,
    /// Streams that the server may reset for a client's errors before it ends the connection.
    pub error_resets: usize,
    /// Time for the TLS handshake, for the first bytes of HTTP/2, and for the whole request of every call but DoPut.
    pub handshake_seconds: u64,
    /// Longest silence of a writer between two messages.
    pub put_silence_seconds: u64,
    /// Time for a written message, from its first byte to its last.
    pub put_message_seconds: u64,
    /// Silence after which a connection is pinged.
    pub keepalive_seconds: u64,
    /// Time to answer a ping.
    pub keepalive_timeout_seconds: u64,
    /// Silence after which a connection is closed; answers to pings count, unless the client leaves a stream unread for that long while
    /// others wait for memory.
    pub idle_seconds: u64,
    /// Age at which a connection is asked to end: calls in progress continue, new ones use a new connection.
    pub connection_age_seconds: u64,
    /// Time from then until it is closed; the client resumes streams that were cut.
    pub connection_grace_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            message_bytes: 80 << 20,
            metadata_bytes: 64 << 10,
            ticket_bytes: 64 << 10,
            // A message of a gang at its longest, in hexadecimal, and what is around it.
            action_bytes: (2 << 20) + (64 << 10),
            connections: 4096,
            connections_per_peer: 2048,
            streams_per_connection: 64,
            max_streams: 4096,
            calls_per_tenant: 4096,
            writes_per_tenant: 1024,
            gangs_per_tenant: 256,
            gang_ranks_per_tenant: 16_384,
            refused_per_minute: 600,
            header_list_bytes: 16 << 10,
            stream_window_bytes: 4 << 20,
            connection_window_bytes: 16 << 20,
            frame_bytes: 1 << 20,
            pending_resets: 20,
            error_resets: 256,
            handshake_seconds: 10,
            put_silence_seconds: 600,
            put_message_seconds: 120,
            keepalive_seconds: 20,
            keepalive_timeout_seconds: 10,
            idle_seconds: 300,
            connection_age_seconds: 12 * 3600,
            connection_grace_seconds: 300,
        }
    }
}

/// Room for the type of an action, and for keys and lengths of fields.
const AROUND: usize = 4 << 10;

/// Largest window, and smallest and largest frame, of HTTP/2.
const MAX_WINDOW: u64 = (1 << 31) - 1;
const FRAMES: (u64, u64) = (1 << 14, (1 << 24) - 1);
/// Largest size and number.
const MAX: u64 = u32::MAX as u64;
/// Longest time that can be set, about 30 years: adding it to a clock must not overflow.
const MAX_SECONDS: u64 = 1_000_000_000;

/// The least and the most of each limit.
pub(crate) const RANGES: [(&str, u64, u64); 27] = [
    ("message_bytes", 1, MAX),
    ("metadata_bytes", 1, MAX),
    ("ticket_bytes", 1, MAX),
    ("action_bytes", 1, MAX),
    ("connections", 1, MAX),
    ("connections_per_peer", 1, MAX),
    ("streams_per_connection", 1, MAX),
    ("max_streams", 1, MAX),
    ("calls_per_tenant", 1, MAX),
    ("writes_per_tenant", 1, MAX),
    ("gangs_per_tenant", 1, MAX),
    ("gang_ranks_per_tenant", 1, MAX),
    ("refused_per_minute", 1, MAX),
    ("header_list_bytes", 1, MAX),
    ("stream_window_bytes", 65_535, MAX_WINDOW),
    ("connection_window_bytes", 65_535, MAX_WINDOW),
    ("frame_bytes", FRAMES.0, FRAMES.1),
    ("pending_resets", 1, MAX),
    ("error_resets", 1, MAX),
    ("handshake_seconds", 1, MAX_SECONDS),
    ("put_silence_seconds", 1, MAX_SECONDS),
    ("put_message_seconds", 1, MAX_SECONDS),
    ("keepalive_seconds", 1, MAX_SECONDS),
    ("keepalive_timeout_seconds", 1, MAX_SECONDS),
    ("idle_seconds", 1, MAX_SECONDS),
    ("connection_age_seconds", 1, MAX_SECONDS),
    ("connection_grace_seconds", 1, MAX_SECONDS),
];

impl Limits {
    /// Checks every value.
    ///
    /// # Errors
    /// [`Error::Config`] naming the limit.
    pub(crate) fn validate(&self) -> Result<()> {
        let values = serde_json::to_value(self).map_err(|error| Error::config("limits", error.to_string()))?;
        for (name, least, most) in RANGES {
            let value = values[name].as_u64().unwrap_or(0);
            if !(least..=most).contains(&value) {
                return Err(Error::config(name, format!("{value} is not from {least} to {most}")));
            }
        }
        if self.idle_seconds <= self.keepalive_seconds + self.keepalive_timeout_seconds {
            let problem = "must be more than keepalive_seconds and keepalive_timeout_seconds together, else a quiet client is cut off";
            return Err(Error::config("idle_seconds", problem));
        }
        Ok(())
    }

    /// Returns the time for a handshake.
    pub fn handshake(&self) -> Duration {
        Duration::from_secs(self.handshake_seconds)
    }

    /// Sets the limits that the transport enforces. Connections, their idle time and their age are limited by `connections::admit`;
    /// sizes of messages by the services.
    pub fn apply(&self, server: Server) -> Server {
        // The grace after the maximum age is not given to the transport: with it, tonic cuts a connection without asking it to end
        // first.
        server
            .max_concurrent_streams(self.streams_per_connection)
            .http2_max_header_list_size(self.header_list_bytes)
            .initial_stream_window_size(self.stream_window_bytes)
            .initial_connection_window_size(self.connection_window_bytes)
            .max_frame_size(self.frame_bytes)
            .http2_max_pending_accept_reset_streams(Some(self.pending_resets))
            .http2_max_local_error_reset_streams(Some(self.error_resets))
            .http2_keepalive_interval(Some(Duration::from_secs(self.keepalive_seconds)))
            .http2_keepalive_timeout(Some(Duration::from_secs(self.keepalive_timeout_seconds)))
            .max_connection_age(Duration::from_secs(self.connection_age_seconds))
            .tcp_nodelay(true)
    }

    /// Returns the largest message of a call that puts no data: an action or a descriptor, and its framing.
    pub(crate) fn call_bytes(&self) -> usize {
        self.action_bytes.max(self.ticket_bytes).saturating_add(AROUND)
    }

    /// Refuses a ticket or descriptor of `bytes` bytes that is too large.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub(crate) fn admit_ticket(&self, bytes: usize) -> Result<()> {
        within("a ticket or descriptor", bytes, self.ticket_bytes, "ticket_bytes")
    }

    /// Refuses the body of an action of `bytes` bytes that is too large.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub(crate) fn admit_action(&self, bytes: usize) -> Result<()> {
        within("the body of an action", bytes, self.action_bytes, "action_bytes")
    }

    /// Refuses a call of one request whose body has come to `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Limit`]. Tickets are smaller by default: the option that it names is that of actions.
    pub(crate) fn admit_call(&self, bytes: usize) -> Result<()> {
        within("a request", bytes, self.call_bytes(), "action_bytes")
    }

    /// Refuses the metadata of a message of `bytes` bytes that is too large.
    ///
    /// # Errors
    /// [`Error::Limit`].
    pub(crate) fn admit_metadata(&self, bytes: usize) -> Result<()> {
        within("the metadata of a message", bytes, self.metadata_bytes, "metadata_bytes")
    }
}

fn within(what: &str, asked: usize, limit: usize, option: &'static str) -> Result<()> {
    if asked <= limit {
        return Ok(());
    }
    Err(Error::limit(what.to_owned(), asked as u64, limit as u64, option))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_hold_and_wrong_limits_are_named() {
        Limits::default().validate().unwrap();
        assert!(Limits::default().message_bytes > (64 << 20) + (1 << 20), "rows of 64 MiB pass");
        let text = serde_json::to_value(Limits::default()).unwrap();
        assert!(text.as_object().unwrap().keys().all(|name| RANGES.iter().any(|(known, ..)| known == name)));
        for (name, value) in text.as_object().unwrap() {
            assert!(value.as_u64().is_some(), "{name}");
            for bad in [0, u64::MAX >> 12] {
                let mut text = text.clone();
                text[name] = bad.into();
                // A value that does not fit its type is refused when it is read.
                if let Ok(limits) = serde_json::from_value::<Limits>(text) {
                    let error = limits.validate().unwrap_err().to_string();
                    assert!(error.contains(name.as_str()), "{name} {bad}: {error}");
                }
            }
        }
        let hasty = Limits { idle_seconds: 30, ..Limits::default() };
        assert!(hasty.validate().unwrap_err().to_string().contains("idle_seconds"));
        assert!(serde_json::from_str::<Limits>(r#"{"conections": 1}"#).is_err());
    }

    #[test]
    fn what_is_too_large_is_refused_with_its_option() {
        let limits = Limits::default();
        assert!(limits.admit_ticket(64 << 10).is_ok() && limits.admit_action(2 << 20).is_ok());
        assert!(limits.admit_ticket((64 << 10) + 1).unwrap_err().to_string().contains("ticket_bytes"));
        assert!(limits.admit_action((2 << 20) + (64 << 10) + 1).unwrap_err().to_string().contains("action_bytes"));
        assert!(limits.admit_metadata((64 << 10) + 1).unwrap_err().to_string().contains("metadata_bytes"));
    }
}
