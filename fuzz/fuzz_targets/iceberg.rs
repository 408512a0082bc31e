//! The metadata, the list of manifests or one manifest of an Iceberg table from untrusted bytes, next to good files: an error, or a
//! dataset with the one data file and no other.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use bowstring::dataset::filter::Expr;
use bowstring::dataset::{Dataset, OpenOptions};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;

include!("../scratch.rs");

/// Prefix of the table's address in the seeds, and the length of that address.
const ROOT: &[u8] = b"/tmp/bowstring-fuzz-iceberg-";
const LENGTH: usize = 64;

/// The seeds by their first bytes, as files of the table.
const FILES: &[(&str, &[u8])] = &[
    ("v1.metadata.json", include_bytes!("../seeds/iceberg/metadata")),
    ("list.avro", include_bytes!("../seeds/iceberg/list")),
    ("m1.avro", include_bytes!("../seeds/iceberg/manifest")),
    ("m2.avro", include_bytes!("../seeds/iceberg/deletes")),
];

struct Place {
    runtime: Runtime,
    table: PathBuf,
}

impl Place {
    /// Writes `bytes`, with the address of the table, as file `name` of its metadata.
    fn put(&self, name: &str, bytes: &[u8]) {
        let was = [ROOT, &vec![b'0'; LENGTH - ROOT.len()]].concat();
        let mut bytes = bytes.to_vec();
        let mut at = 0;
        while let Some(found) = bytes.get(at..).and_then(|rest| rest.windows(LENGTH).position(|window| window == was)) {
            bytes[at + found..][..LENGTH].copy_from_slice(self.table.to_string_lossy().as_bytes());
            at += found + LENGTH;
        }
        std::fs::write(self.table.join("metadata").join(name), bytes).expect("room for the input");
    }
}

fn place() -> &'static Place {
    static PLACE: OnceLock<Place> = OnceLock::new();
    PLACE.get_or_init(|| {
        let table = scratch("iceberg").join("table");
        let table = PathBuf::from(format!("{:x<LENGTH$}", table.display()));
        for inner in ["metadata", "data"] {
            std::fs::create_dir_all(table.join(inner)).expect("a directory");
        }
        std::fs::write(table.join("data/a.parquet"), include_bytes!("../seeds/footer/good.parquet"))
            .expect("room for a file");
        Place { runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"), table }
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((first, data)) = data.split_first() else { return };
    let place = place();
    for (name, seed) in FILES {
        let (kind, good) = seed.split_first().expect("a seed");
        place.put(name, if kind == first { data } else { good });
    }
    let urls = [place.table.to_string_lossy().into_owned()];
    let Ok(dataset) = place.runtime.block_on(Dataset::open(&urls, OpenOptions::default())) else { return };
    assert!(dataset.manifest().rows() <= 200);
    for file in &dataset.manifest().files {
        assert!(file.path.ends_with("a.parquet"), "{}", file.path);
    }
    // A filter has the statistics in the metadata read too.
    let Some(column) = dataset.schema().fields().first().map(|field| field.name().replace('"', "")) else { return };
    for filter in [format!("\"{column}\" in (5)"), format!("\"{column}\" is null or \"{column}\" > 'a'")] {
        let options = OpenOptions { filter: Expr::parse(&filter).ok(), ..OpenOptions::default() };
        if let Ok(filtered) = place.runtime.block_on(Dataset::open(&urls, options)) {
            assert!(filtered.manifest().rows() <= dataset.manifest().rows());
        }
    }
});
