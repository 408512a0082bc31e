//! The log of a Delta table from untrusted bytes, next to one good file: an error, or a dataset with that file and no other.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use bowstring::dataset::{Dataset, OpenOptions};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;

include!("scratch.rs");

fn place() -> &'static (Runtime, PathBuf) {
    static PLACE: OnceLock<(Runtime, PathBuf)> = OnceLock::new();
    PLACE.get_or_init(|| {
        let table = scratch("delta");
        std::fs::create_dir_all(table.join("_delta_log")).expect("a directory");
        std::fs::write(table.join("a.parquet"), include_bytes!("../seeds/footer/good.parquet"))
            .expect("room for a file");
        (tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"), table)
    })
}

fuzz_target!(|data: &[u8]| {
    let (runtime, table) = place();
    std::fs::write(table.join("_delta_log").join("00000000000000000000.json"), data).expect("room for the input");
    let opened = runtime.block_on(Dataset::open(&[table.to_string_lossy().into_owned()], OpenOptions::default()));
    let Ok(dataset) = opened else { return };
    assert_eq!(dataset.table_version(), Some(0));
    for file in &dataset.manifest().files {
        assert!(file.path.ends_with("a.parquet"), "{}", file.path);
    }
});
