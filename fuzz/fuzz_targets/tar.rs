//! A tar file from untrusted bytes: every member is read, and no name escapes the directory.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use bowstring::convert::{Limits, TarReader};
use libfuzzer_sys::fuzz_target;

include!("../scratch.rs");

fn place() -> &'static PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| scratch("tar").join("input.tar"))
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let mut bytes = data.to_vec();
    if choice & 1 == 1 {
        // Valid checksums, so that the fuzzer gets past the first block.
        for block in bytes.chunks_exact_mut(512) {
            block[148..156].fill(b' ');
            let sum: u64 = block.iter().map(|byte| u64::from(*byte)).sum();
            block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
        bytes.extend_from_slice(&[0; 1024]);
    }
    std::fs::write(place(), &bytes).expect("room for the input");
    let limits = Limits { max_record_bytes: 1 << 20, ..Limits::default() };
    let Ok(mut reader) = TarReader::open(place(), &limits) else { return };
    let mut content = Vec::new();
    while let Ok(Some(entry)) = reader.entry() {
        let safe = !entry.name.starts_with('/') && entry.name.split('/').all(|part| !matches!(part, "" | "." | ".."));
        assert!(safe, "{:?}", entry.name);
        content.clear();
        if reader.read(&mut content).is_ok() {
            assert_eq!(content.len() as u64, entry.size);
        }
    }
});
