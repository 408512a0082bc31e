//! The hashes that an index of MDS may carry, as far as they are known here.

use std::collections::BTreeMap;
use std::hash::Hasher;

use md5::Md5;
use sha2::{Digest, Sha256};
use twox_hash::{XxHash3_64, XxHash32, XxHash64};

/// A hash that grows.
pub(super) enum Hashing {
    Xxh32(XxHash32),
    Xxh64(XxHash64),
    Xxh3(Box<XxHash3_64>),
    Md5(Md5),
    Sha256(Sha256),
}

impl Hashing {
    pub(super) fn xxh64() -> Self {
        Self::Xxh64(XxHash64::with_seed(0))
    }

    /// One of those that are given, the fastest that is known, with what it should be. `None` if none is known.
    pub(super) fn choose(given: &BTreeMap<String, String>) -> Option<(Self, String)> {
        let made = |name: &str| match name {
            "xxh3_64" => Some(Self::Xxh3(Box::new(XxHash3_64::with_seed(0)))),
            "xxh64" => Some(Self::xxh64()),
            "xxh32" => Some(Self::Xxh32(XxHash32::with_seed(0))),
            "md5" => Some(Self::Md5(<Md5 as md5::Digest>::new())),
            "sha256" => Some(Self::Sha256(Sha256::new())),
            _ => None,
        };
        ["xxh3_64", "xxh64", "xxh32", "md5", "sha256"]
            .into_iter()
            .find_map(|name| Some((made(name)?, given.get(name)?.clone())))
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Xxh32(hash) => hash.write(bytes),
            Self::Xxh64(hash) => hash.write(bytes),
            Self::Xxh3(hash) => hash.write(bytes),
            Self::Md5(hash) => md5::Digest::update(hash, bytes),
            Self::Sha256(hash) => hash.update(bytes),
        }
    }

    /// The hash in hexadecimal.
    pub(super) fn finish(self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Xxh32(hash) => format!("{:08x}", hash.finish_32()),
            Self::Xxh64(hash) => format!("{:016x}", hash.finish()),
            Self::Xxh3(hash) => format!("{:016x}", hash.finish()),
            Self::Md5(hash) => hex(&md5::Digest::finalize(hash)),
            Self::Sha256(hash) => hex(&hash.finalize()),
        }
    }
}
