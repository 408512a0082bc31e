//! What an array in a cell may cost.

/// What one array may cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of an unpacked `.npz`, and of the list of where the strings of an array end.
    pub max_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 512 << 20 }
    }
}
