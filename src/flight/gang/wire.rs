//! The encoding of gang calls: JSON requests and answers, the resume token, and refusals that keep their type.
//!
//! Requests refuse unknown fields, so that a misspelled one is an error and not a default. Process ids and messages are hex.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};

pub use super::reading::Reading;
use super::reading::cut;
pub use super::refusal::Refusal;
use crate::error::{Error, Result};
use crate::manifest::Fingerprint;

/// The actions a registry answers, in the order of a rank's life.
pub const ACTIONS: [&str; 8] = [
    "gang.join",
    "gang.heartbeat",
    "gang.members",
    "gang.barrier",
    "gang.all_gather",
    "gang.ack",
    "gang.leave",
    "gang.state",
];

/// Actions that wait for other ranks.
pub(crate) const WAITS: [&str; 3] = ["gang.join", "gang.barrier", "gang.all_gather"];

/// A position in training: everything up to and including step `step` of epoch `epoch` is done. Ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Step within the epoch, from 0.
    pub step: u64,
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "epoch {} step {}", self.epoch, self.step)
    }
}

/// The share of the data that a rank gets. Ranks with the same `rank` here are one group (tensor, pipeline or context parallel) and get the
/// same batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    /// Number of the share, below `of`.
    pub rank: u32,
    /// Number of shares that the data is cut into; the same for all ranks of a gang.
    pub of: u32,
}

/// The location of a member, in its own words. Each text at most 256 bytes; may be empty.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberInfo {
    /// Address at which other ranks reach it, e.g. `10.0.0.7:29500`.
    pub address: String,
    /// Its device, e.g. `cuda:3`.
    pub device: String,
    /// Its host's name.
    pub host: String,
}

/// The token that a trainer keeps in its checkpoint: the position that the checkpoint holds, tied to one gang.
///
/// As text it is one line of JSON with a checksum, which guards against a damaged or mixed-up checkpoint and not against a
/// forger: a server that must trust it wraps it in its own authenticated ticket.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Token {
    /// The gang.
    pub gang: String,
    /// The generation that acknowledged the position.
    pub generation: u64,
    /// The position that the checkpoint holds.
    pub position: Position,
    /// The plan that the position is of: [`Reading::plan`]. Older tokens have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Fingerprint>,
    crc32: u32,
}

impl Token {
    /// The token of `position`, acknowledged in `generation` of `gang`.
    pub fn new(gang: impl Into<String>, generation: u64, position: Position) -> Self {
        let mut token = Self { gang: gang.into(), generation, position, plan: None, crc32: 0 };
        token.crc32 = token.checksum();
        token
    }

    /// The same, for a position of `plan`.
    #[must_use]
    pub(crate) fn of_plan(mut self, plan: Option<Fingerprint>) -> Self {
        self.plan = plan;
        self.crc32 = self.checksum();
        self
    }

    /// The same, of a gang that is known by another name.
    pub(super) fn of_gang(&self, gang: String) -> Self {
        Self::new(gang, self.generation, self.position).of_plan(self.plan)
    }

    fn checksum(&self) -> u32 {
        let Position { epoch, step } = self.position;
        let plan = self.plan.map(|plan| format!("\n{plan}")).unwrap_or_default();
        crc32fast::hash(format!("{}\n{}\n{epoch}\n{step}{plan}", self.gang, self.generation).as_bytes())
    }

    /// Reads a token back from its text.
    ///
    /// # Errors
    /// [`Error::Config`] (option `token`) if the text is not a token or was altered.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::config("token", format!("{why}; pass the text of the checkpoint unchanged"));
        if text.len() > 4096 {
            return Err(wrong(format!("{} bytes are too many for a token", text.len())));
        }
        let token: Self = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        if token.is_intact() { Ok(token) } else { Err(wrong("the checksum does not match".into())) }
    }

    /// Returns true if the checksum fits the fields.
    pub(crate) fn is_intact(&self) -> bool {
        self.crc32 == self.checksum()
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| std::fmt::Error)?)
    }
}

/// The caller: one process of one rank in one generation. Every call except `join` and `state` carries it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Caller {
    /// The gang.
    pub gang: String,
    /// The generation that the process joined.
    pub generation: u64,
    /// Its rank.
    pub rank: u32,
    /// The random number of the process.
    #[serde(with = "hex_u128")]
    pub attempt: u128,
}

/// `gang.join`: be rank `rank` of `world_size`, and wait for the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JoinRequest {
    /// The gang, 1 to 128 printable bytes.
    pub gang: String,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub world_size: u32,
    /// Drawn at random for each join, so that a process differs from the previous one of the rank.
    #[serde(with = "hex_u128")]
    pub attempt: u128,
    /// The share of the data; `None` is share `rank` of `world_size`.
    pub share: Option<Share>,
    /// Location of the member.
    pub info: MemberInfo,
    /// The token of the checkpoint that the process has loaded.
    pub token: Option<Token>,
    /// Time that the process still waits for the others, milliseconds.
    pub timeout_ms: u64,
    /// Longest time for which this call may be held before it answers `waiting`, milliseconds.
    pub poll_ms: u64,
}

/// The end of a `gang.join`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    /// The generation that has begun.
    pub generation: u64,
    /// A member that does not call for this long is lost, milliseconds.
    pub lease_ms: u64,
    /// The position after which to continue; `None` at the very start.
    pub resume: Option<Position>,
    /// The plan of the position at which the generation resumes, if it is settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<Reading>,
    /// True if an acknowledgement may name its plan, which older servers refuse as an unknown field.
    #[serde(default)]
    pub plans: bool,
}

/// `gang.barrier` and `gang.all_gather`: round `round` of this generation, counted from 1 over both kinds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MeetRequest {
    /// The caller.
    pub caller: Caller,
    /// The round.
    pub round: u64,
    /// The message, hex; empty at a barrier.
    pub message: String,
    /// Time that the rank still waits, milliseconds.
    pub timeout_ms: u64,
    /// Longest time for which this call may be held before it answers `waiting`, milliseconds.
    pub poll_ms: u64,
}

/// The end of a barrier or an all-gather.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Met {
    /// The messages in rank order, hex; none at a barrier.
    pub messages: Vec<String>,
}

/// A [`Met`] on its way out: its messages become hex only when it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Gathered(pub(crate) Arc<Vec<Vec<u8>>>);

impl Gathered {
    /// Approximate bytes that it takes as JSON.
    pub(crate) fn bytes(&self) -> usize {
        self.0.iter().map(|message| 2 * message.len() + 3).sum()
    }
}

impl Serialize for Gathered {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        struct Hex<'a>(&'a [u8]);
        impl Serialize for Hex<'_> {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&to_hex(self.0))
            }
        }
        let messages: Vec<Hex<'_>> = self.0.iter().map(|message| Hex(message)).collect();
        let mut met = to.serialize_struct("Met", 1)?;
        met.serialize_field("messages", &messages)?;
        met.end()
    }
}

/// An answer that may be "not yet, ask again".
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum Polled<T> {
    /// Not yet; the arrival is kept until the caller's timeout or lease is over.
    Waiting {
        /// The first 16 ranks that are missing.
        missing: Vec<u32>,
        /// Number of missing ranks.
        missing_count: u64,
        /// The gang's lease, milliseconds.
        lease_ms: u64,
    },
    /// It happened.
    Done(T),
}

/// `gang.heartbeat` and `gang.members`: the caller only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallerRequest {
    /// The caller.
    pub caller: Caller,
}

/// The answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Alive {
    /// The lease, which this call renewed, milliseconds.
    pub lease_ms: u64,
    /// The position that all ranks have acknowledged.
    pub acknowledged: Option<Position>,
}

/// One member of a running gang.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberEntry {
    /// Its rank.
    pub rank: u32,
    /// Its share of the data.
    pub share: Share,
    /// Its location.
    pub info: MemberInfo,
}

/// The members of a generation in rank order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Members {
    /// The generation.
    pub generation: u64,
    /// All of them, by rank.
    pub members: Vec<MemberEntry>,
}

/// `gang.ack`: this rank is done with everything up to and including `position`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AckRequest {
    /// The caller.
    pub caller: Caller,
    /// The position.
    pub position: Position,
    /// The plan that the rank read: [`Reading::plan`]. Without it, the position is of the generation's plan, which is the
    /// only one that anybody may read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Fingerprint>,
}

/// The answer to an acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acked {
    /// For the checkpoint that holds this position; the same for all ranks.
    pub token: Token,
    /// The position that all ranks have acknowledged: where the gang would continue if it restarted now.
    pub acknowledged: Option<Position>,
}

/// `gang.leave`: the rank is done, or has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LeaveRequest {
    /// The caller.
    pub caller: Caller,
    /// Why, if the rank failed; `None` is a clean end.
    pub failure: Option<String>,
}

/// `gang.state`: the state of a gang; for people and dashboards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateRequest {
    /// The gang.
    pub gang: String,
}

/// The answer to `gang.state`. Holds nothing that would let its reader act as a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The gang.
    pub gang: String,
    /// `forming`, `running` or `ended`.
    pub phase: String,
    /// The generation that runs, or the one that is being formed.
    pub generation: u64,
    /// Number of ranks; 0 while it is unknown.
    pub world_size: u32,
    /// The members of the running generation, or the ranks that wait to join.
    pub present: Vec<MemberEntry>,
    /// Ranks that are missing: not joined yet, or left cleanly. At most the first 16.
    pub missing: Vec<u32>,
    /// The position that all ranks have acknowledged.
    pub acknowledged: Option<Position>,
    /// The reason for the end of the previous generation; empty if there was none.
    pub why: String,
    /// The plan that the generation reads, if that is settled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<Reading>,
}

/// Reads a request of action `action`.
pub(crate) fn read<T: DeserializeOwned>(action: &str, body: &[u8]) -> Result<T> {
    // A field's name may be as long as the request.
    let wrong = |error: serde_json::Error| Error::config("gang call", cut(format!("{action}: {error}"), 300));
    serde_json::from_slice(body).map_err(wrong)
}

/// Writes a request or an answer.
pub(crate) fn write<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| Error::config("gang call", error.to_string()))
}

/// Bytes as lowercase hex.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble & 15)]);
    let mut hex = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        hex.push(digit(byte >> 4));
        hex.push(digit(*byte));
    }
    hex
}

/// Bytes from hex; `None` if it is not hex.
pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some(digit(*high)? << 4 | digit(*low)?)).collect()
}

pub(crate) mod hex_u128 {
    //! A u128 as 32 hex digits: JSON numbers of other languages end at 2^53.
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &u128, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{value:032x}"))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u128, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(D::Error::custom("expected 32 hex digits"));
        }
        u128::from_str_radix(&text, 16).map_err(D::Error::custom)
    }
}
