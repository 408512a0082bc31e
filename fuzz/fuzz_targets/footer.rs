//! A Parquet file from untrusted bytes: opened, planned, read and decoded to its end. Errors are fine; panics, aborts, hangs
//! and allocations beyond the limits are not.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use bowstring::dataset::{Dataset, OpenOptions};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;

include!("../scratch.rs");

/// Maximum cost of a row group that is read; computing the cost itself must not overflow.
const READ_BYTES: u64 = 64 << 20;

fn place() -> &'static (Runtime, PathBuf) {
    static PLACE: OnceLock<(Runtime, PathBuf)> = OnceLock::new();
    PLACE.get_or_init(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        (runtime, scratch("footer").join("input.parquet"))
    })
}

fuzz_target!(|data: &[u8]| {
    let (runtime, path) = place();
    std::fs::write(path, data).expect("room for the input");
    let url = path.to_string_lossy().into_owned();
    let Ok(dataset) = runtime.block_on(Dataset::open(&[url], OpenOptions::default())) else { return };
    let names: Vec<String> = dataset.schema().fields().iter().map(|field| field.name().clone()).collect();
    let Ok(projection) = dataset.project(&names) else { return };
    for group in 0..dataset.manifest().groups.len() {
        let cost = dataset.cost(group, &projection);
        if cost.fetched.saturating_add(cost.decoded) > READ_BYTES {
            continue;
        }
        let Ok(fetched) = runtime.block_on(dataset.fetch(group, &projection)) else { continue };
        for root in 0..projection.roots().len() {
            if let Ok(array) = dataset.decode(&fetched, &projection, root) {
                assert_eq!(array.len() as u64, dataset.manifest().groups[group].selected);
            }
        }
    }
});
