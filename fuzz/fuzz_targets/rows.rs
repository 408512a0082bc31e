//! A file of rows in another format (CSV, TSV, JSON lines, Arrow), chosen by its first byte, from untrusted bytes: opened, its
//! columns inferred, and read to its end.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use bowstring::convert::{Budget, ConvertOptions, Format, Limits, open};
use libfuzzer_sys::fuzz_target;

include!("../scratch.rs");

const FORMATS: [(Format, &str); 4] =
    [(Format::Csv, "csv"), (Format::Tsv, "tsv"), (Format::Jsonl, "jsonl"), (Format::Arrow, "arrow")];

fn place() -> &'static PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| scratch("rows").join("input"))
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let (format, suffix) = FORMATS[usize::from(*choice) % FORMATS.len()];
    let path = place().with_extension(suffix);
    std::fs::write(&path, data).expect("room for the input");
    let limits = Limits { max_record_bytes: 1 << 20, ..Limits::default() };
    let options = ConvertOptions { from: Some(format), limits, ..ConvertOptions::default() };
    let Ok(source) = open(&path.to_string_lossy(), &options) else { return };
    let columns: Vec<usize> = (0..source.schema().fields().len()).collect();
    let budget = Budget::new(64 << 20);
    for shard in 0..source.shards().len() {
        let Ok(mut batches) = source.read(shard, &columns, &budget) else { continue };
        while let Ok(Some(batch)) = batches.next() {
            assert_eq!(batch.num_columns(), columns.len());
            for (column, field) in batch.columns().iter().zip(source.schema().fields()) {
                assert_eq!(column.data_type(), field.data_type());
            }
        }
    }
});
