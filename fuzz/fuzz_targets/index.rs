//! An index of footers from untrusted bytes, next to the file it describes: an error, or exactly the dataset that the footers give.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use bowstring::dataset::{Dataset, OpenOptions};
use bowstring::manifest::Fingerprint;
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;

include!("../scratch.rs");

const INDEX: &str = "_bowstring_index";

struct Place {
    runtime: Runtime,
    directory: PathBuf,
    /// Fingerprint of the dataset that the footers give.
    footers: Fingerprint,
    /// A good index.
    good: Vec<u8>,
}

fn place() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let directory = scratch("index");
        let file = include_bytes!("../seeds/footer/good.parquet");
        std::fs::write(directory.join("a.parquet"), file).expect("room for a file");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let url = directory.to_string_lossy().into_owned();
        let dataset = runtime.block_on(Dataset::open(&[url], OpenOptions::default())).expect("a good file");
        let (footers, good) = (dataset.manifest().fingerprint(), dataset.index().expect("its index"));
        Place { runtime, directory, footers, good }
    })
}

fuzz_target!(|data: &[u8]| {
    let Place { runtime, directory, footers, good } = place();
    // The good index with some bytes replaced, as the first byte says, or the bytes as they are.
    let Some((choice, data)) = data.split_first() else { return };
    let mut index = if choice & 1 == 1 { good.clone() } else { data.to_vec() };
    if choice & 1 == 1
        && let Some((at, bytes)) = data.split_first_chunk::<2>()
    {
        let at = usize::from(u16::from_le_bytes(*at)) % index.len().max(1);
        let end = (at + bytes.len()).min(index.len());
        index[at..end].copy_from_slice(&bytes[..end - at]);
    }
    std::fs::write(directory.join(INDEX), &index).expect("room for the input");
    let url = directory.to_string_lossy().into_owned();
    if let Ok(dataset) = runtime.block_on(Dataset::open(&[url], OpenOptions::default())) {
        assert_eq!(dataset.manifest().fingerprint(), *footers);
    }
});
