//! Limits on the cost of an array in a cell.

/// Limits on the cost of one array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Bytes of an unpacked `.npz`, and of the list of the ends of an array's strings.
    pub max_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_bytes: 512 << 20 }
    }
}
