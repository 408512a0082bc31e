//! The position of each batch, sent as the `app_metadata` of its message.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Most bytes of a position's JSON.
const MAX_BYTES: usize = 1024;

/// Position of a batch. On the wire it is JSON: `{"epoch":0,"step":12,"rows":32}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Epoch, from 0.
    pub epoch: u64,
    /// Global step within the epoch, from 0.
    pub step: u64,
    /// Rows, padding included.
    pub rows: u64,
    /// Generation of the gang that the stream belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

impl Position {
    /// Encodes the position as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        // Numbers cannot fail to encode.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Parses the output of [`to_json`](Self::to_json), ignoring unknown keys.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if it is something else.
    pub fn from_json(json: &[u8]) -> Result<Self> {
        let found = match serde_json::from_slice(json) {
            Ok(position) if json.len() <= MAX_BYTES => return Ok(position),
            Ok(_) => format!("{} bytes", json.len()),
            Err(error) => error.to_string(),
        };
        Err(Error::Mismatch {
            what: "app_metadata of a batch".to_owned(),
            expected: "JSON with epoch, step and rows".to_owned(),
            found,
            hint: "the server is not bowstring, or of another version".to_owned(),
        })
    }
}
