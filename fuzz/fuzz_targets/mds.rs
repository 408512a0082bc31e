//! A shard of MDS from untrusted bytes, with an index that claims a number of samples chosen by its first bytes.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use bowstring::convert::fuzz_mds_shard;
use libfuzzer_sys::fuzz_target;

include!("../scratch.rs");

fn place() -> &'static PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| scratch("mds"))
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    if choice & 1 == 0 {
        let samples = data.first_chunk().map_or(0, |four| u32::from_le_bytes(*four));
        let _ = fuzz_mds_shard(place(), data, samples.into());
        return;
    }
    // One sample with a valid head, so that the fuzzer reaches the columns.
    let config = b"{}";
    let start = 4 + 8 + config.len() as u32;
    let mut shard = 1_u32.to_le_bytes().to_vec();
    shard.extend_from_slice(&start.to_le_bytes());
    shard.extend_from_slice(&(start + data.len() as u32).to_le_bytes());
    shard.extend_from_slice(config);
    shard.extend_from_slice(data);
    let _ = fuzz_mds_shard(place(), &shard, 1);
});
