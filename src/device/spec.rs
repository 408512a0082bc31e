//! The option `device`: the place of delivery.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The place of delivery, from the option `device`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Place {
    /// `cpu`: pageable host memory.
    #[default]
    Cpu,
    /// `pinned`: page-locked host memory, for consumers that copy themselves.
    Pinned,
    /// `auto`: the GPU of this process if there is a usable one, otherwise `cpu`.
    Auto,
    /// `cuda`, `cuda:N`, `cuda:GPU-<uuid>`, `cuda:MIG-<uuid>`: this GPU, or an error.
    Gpu(Gpu),
}

/// The choice of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Gpu {
    /// The one of this process: assigned by its scheduler, or by its local rank.
    #[default]
    Default,
    /// By its number among those that this process sees, as CUDA counts them.
    Ordinal(u32),
    /// By its identifier, `GPU-...` or `MIG-...`, or a prefix of one.
    Uuid(String),
}

/// The condition for reusing a batch's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Fence {
    /// When the streams that it was given to have finished the work queued until it was dropped. Right for consumers
    /// that use a batch on the stream on which they took it.
    #[default]
    Stream,
    /// When all work queued on the device until then is done, on any stream of the context that frameworks share.
    Context,
    /// As `context`, and the transfer thread waits for it on the host.
    Sync,
    /// At once, which is wrong: for tests, which must detect it.
    #[serde(skip)]
    #[doc(hidden)]
    Off,
}

impl Place {
    /// The place that `text` names.
    ///
    /// # Errors
    /// [`Error::Config`] with the accepted forms.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "pinned" => Ok(Self::Pinned),
            "auto" => Ok(Self::Auto),
            "cuda" => Ok(Self::Gpu(Gpu::Default)),
            _ => match text.strip_prefix("cuda:").and_then(Gpu::parse) {
                Some(gpu) => Ok(Self::Gpu(gpu)),
                None => Err(Error::config(
                    "device",
                    format!(
                        "{text:?}; give cpu, pinned, auto, cuda, cuda:N with N from 0, cuda:GPU-<uuid> or cuda:MIG-<uuid>"
                    ),
                )),
            },
        }
    }
}

impl Gpu {
    fn parse(text: &str) -> Option<Self> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().ok().map(Self::Ordinal);
        }
        let rest = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"))?;
        // Older drivers write MIG-GPU-<uuid>/<instance>/<instance>.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/');
        (!rest.is_empty() && rest.bytes().all(plain)).then(|| Self::Uuid(text.to_owned()))
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Pinned => f.write_str("pinned"),
            Self::Auto => f.write_str("auto"),
            Self::Gpu(gpu) => gpu.fmt(f),
        }
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("cuda"),
            Self::Ordinal(ordinal) => write!(f, "cuda:{ordinal}"),
            Self::Uuid(uuid) => write!(f, "cuda:{uuid}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_what_is_meant() {
        for text in ["cpu", "pinned", "auto", "cuda", "cuda:0", "cuda:17", "cuda:GPU-1ab-2", "cuda:MIG-GPU-7/1/0"] {
            assert_eq!(Place::parse(text).unwrap().to_string(), text);
        }
        for text in ["", "gpu", "CUDA", "cuda:", "cuda:-1", "cuda:4294967296", "cuda:GPU-", "cuda:MIG-a b", "cuda:0 "] {
            assert!(Place::parse(text).unwrap_err().to_string().contains("option device"), "{text}");
        }
    }
}
