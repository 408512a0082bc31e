//! What is known of a save, as it is written beside its bytes.

use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};

use super::block::ObjectKey;

/// Version of the format of records.
const VERSION: u32 = 1;

/// The object that a save becomes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Target {
    /// Its address, without credentials.
    pub(crate) url: String,
    /// A digest of what distinguishes its store from others with the same addresses.
    pub(crate) origin: String,
}

impl Target {
    /// The name of its lock.
    pub(super) fn name(&self) -> ObjectKey {
        digest(&[b"address", self.origin.as_bytes(), self.url.as_bytes()])
    }
}

/// An upload that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Begun {
    /// Its number in the store.
    pub(crate) id: String,
    /// What the store calls the parts that it has.
    pub(crate) parts: Vec<Option<String>>,
}

/// What is known of a save.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Version of this format.
    #[serde(deserialize_with = "version")]
    pub(super) bowstring_save: u32,
    #[serde(flatten)]
    pub(crate) target: Target,
    pub(crate) size: u64,
    /// Saves of a cache are numbered in the order in which they were closed.
    pub(crate) sequence: u64,
    /// Time of that, in nanoseconds since 1970-01-01 UTC.
    pub(crate) saved_at: i64,
    /// True if readers find it. Otherwise it only tells whoever comes next which upload is to be ended.
    pub(crate) is_there: bool,
    #[serde(default)]
    pub(crate) upload: Option<Begun>,
    /// The last failure of its upload.
    #[serde(default)]
    pub(crate) failure: Option<String>,
    /// What its store had when something was about to be put there that came later: with anything else there, this save is over.
    #[serde(default)]
    pub(crate) before: Option<String>,
    /// What its store had when it was closed: with another object there, and not this one, somebody saved it later elsewhere. None if that is
    /// not known, or something of this cache may have been on its way there.
    #[serde(default)]
    pub(crate) found: Option<String>,
}

impl Record {
    pub(super) fn new(target: Target, size: u64, is_there: bool) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let saved_at = i64::try_from(since.as_nanos()).unwrap_or(i64::MAX);
        let (upload, failure, before, found) = (None, None, None, None);
        Self { bowstring_save: VERSION, target, size, sequence: 0, saved_at, is_there, upload, failure, before, found }
    }
}

/// The version of a record, which comes first in it. Nobody guesses what those of other versions mean, or deletes what they saved.
fn version<'de, D: Deserializer<'de>>(record: D) -> Result<u32, D::Error> {
    match u32::deserialize(record)? {
        VERSION => Ok(VERSION),
        other => Err(D::Error::custom(format!(
            "it is of version {other} of this format, and this bowstring reads version {VERSION}: flush() with the one that saved it"
        ))),
    }
}

/// A name of 128 bits for `parts`.
pub(super) fn digest(parts: &[&[u8]]) -> ObjectKey {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update((part.len() as u64).to_le_bytes());
        digest.update(part);
    }
    let mut key = [0; 16];
    key.iter_mut().zip(digest.finalize()).for_each(|(to, from)| *to = from);
    ObjectKey(key)
}
