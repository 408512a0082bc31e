//! The supported hashes of an MDS index.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;

use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use twox_hash::{XxHash3_64, XxHash32, XxHash64};

use crate::hex;

/// The supported ones, the fastest first.
pub(crate) const KNOWN: [&str; 9] =
    ["xxh3_64", "xxh64", "xxh32", "sha1", "md5", "sha512", "sha384", "sha256", "sha224"];

/// A running hash.
pub(crate) enum Hashing {
    Xxh32(XxHash32),
    Xxh64(XxHash64),
    Xxh3(Box<XxHash3_64>),
    Md5(Md5),
    Sha1(Sha1),
    Sha224(Sha224),
    Sha256(Sha256),
    Sha384(Box<Sha384>),
    Sha512(Box<Sha512>),
}

impl Hashing {
    pub(crate) fn xxh64() -> Self {
        Self::Xxh64(XxHash64::with_seed(0))
    }

    /// Chooses the fastest supported one of the given hashes, and returns it with its expected value. `None` if none is supported.
    pub(crate) fn choose(given: &BTreeMap<String, String>) -> Option<(Self, String)> {
        let made = |name: &str| match name {
            "xxh3_64" => Some(Self::Xxh3(Box::new(XxHash3_64::with_seed(0)))),
            "xxh64" => Some(Self::xxh64()),
            "xxh32" => Some(Self::Xxh32(XxHash32::with_seed(0))),
            "md5" => Some(Self::Md5(<Md5 as md5::Digest>::new())),
            "sha1" => Some(Self::Sha1(Sha1::new())),
            "sha224" => Some(Self::Sha224(Sha224::new())),
            "sha256" => Some(Self::Sha256(Sha256::new())),
            "sha384" => Some(Self::Sha384(Box::new(Sha384::new()))),
            "sha512" => Some(Self::Sha512(Box::new(Sha512::new()))),
            _ => None,
        };
        KNOWN.into_iter().find_map(|name| Some((made(name)?, given.get(name)?.clone())))
    }

    /// The names of those that none of the supported ones is among, so that nothing of them is checked.
    pub(crate) fn unknown<'a>(all: impl Iterator<Item = &'a BTreeMap<String, String>>) -> BTreeSet<&'a str> {
        let unknown = all.filter(|given| KNOWN.iter().all(|name| !given.contains_key(*name)));
        unknown.flat_map(|given| given.keys().map(String::as_str)).collect()
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Xxh32(hash) => hash.write(bytes),
            Self::Xxh64(hash) => hash.write(bytes),
            Self::Xxh3(hash) => hash.write(bytes),
            Self::Md5(hash) => md5::Digest::update(hash, bytes),
            Self::Sha1(hash) => hash.update(bytes),
            Self::Sha224(hash) => hash.update(bytes),
            Self::Sha256(hash) => hash.update(bytes),
            Self::Sha384(hash) => hash.update(bytes),
            Self::Sha512(hash) => hash.update(bytes),
        }
    }

    /// Returns the hash in hexadecimal.
    pub(crate) fn finish(self) -> String {
        match self {
            Self::Xxh32(hash) => format!("{:08x}", hash.finish_32()),
            Self::Xxh64(hash) => format!("{:016x}", hash.finish()),
            Self::Xxh3(hash) => format!("{:016x}", hash.finish()),
            Self::Md5(hash) => hex::of(md5::Digest::finalize(hash)),
            Self::Sha1(hash) => hex::of(hash.finalize()),
            Self::Sha224(hash) => hex::of(hash.finalize()),
            Self::Sha256(hash) => hex::of(hash.finalize()),
            Self::Sha384(hash) => hex::of(hash.finalize()),
            Self::Sha512(hash) => hex::of(hash.finalize()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_the_standards() {
        for (name, expected) in [
            ("md5", "900150983cd24fb0d6963f7d28e17f72"),
            ("sha1", "a9993e364706816aba3e25717850c26c9cd0d89d"),
            ("sha224", "23097d223405d8228642a477bda255b32aadbce4bda0b3f7e36c9da7"),
            ("sha256", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"),
            (
                "sha384",
                "cb00753f45a35e8bb5a03d699ac65007272c32ab0eded1631a8b605a43ff5bed8086072ba1e7cc2358baeca134c825a7",
            ),
            (
                "sha512",
                "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a\
                 2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
            ),
        ] {
            let given = BTreeMap::from([(name.to_owned(), expected.to_owned())]);
            let (mut hash, wanted) = Hashing::choose(&given).unwrap();
            hash.update(b"a");
            hash.update(b"bc");
            assert_eq!(hash.finish(), wanted, "{name}");
        }
        assert!(Hashing::choose(&BTreeMap::from([("blake2b".to_owned(), String::new())])).is_none());
    }

    #[test]
    fn hashes_are_unknown_where_none_of_them_is_supported() {
        let of = |names: &[&str]| -> BTreeMap<String, String> {
            names.iter().map(|name| ((*name).to_owned(), String::new())).collect()
        };
        let shards = [of(&["sha3_256", "blake2b"]), of(&["blake2b"]), of(&["blake2s", "sha1"]), of(&[])];
        assert_eq!(Vec::from_iter(Hashing::unknown(shards.iter())), ["blake2b", "sha3_256"]);
        assert!(KNOWN.iter().all(|name| Hashing::choose(&of(&[name])).is_some()));
    }
}
