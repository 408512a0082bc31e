//! A TFRecord file from untrusted bytes: read to its end. Errors are fine; panics and allocations beyond the limits are not.
#![no_main]

use std::path::PathBuf;
use std::sync::OnceLock;

use bowstring::convert::{Limits, RecordReader, write_record};
use libfuzzer_sys::fuzz_target;

include!("../scratch.rs");

fn place() -> &'static PathBuf {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| scratch("tfrecord").join("input.tfrecord"))
}

fuzz_target!(|data: &[u8]| {
    let Some((choice, data)) = data.split_first() else { return };
    let mut framed = Vec::new();
    // Half of the inputs become the content of one record, so that checksums do not stop the fuzzer before the messages.
    let bytes = if choice & 1 == 1 {
        write_record(data, &mut framed);
        &framed
    } else {
        data
    };
    std::fs::write(place(), bytes).expect("room for the input");
    let limits = Limits { max_record_bytes: 1 << 20, ..Limits::default() };
    if let Ok(mut reader) = RecordReader::open(place(), &limits) {
        while let Ok(Some(record)) = reader.next() {
            assert!(record.len() as u64 <= limits.max_record_bytes);
        }
    }
    let options = bowstring::convert::ConvertOptions {
        from: Some(bowstring::convert::Format::Tfrecord),
        limits,
        ..Default::default()
    };
    let Ok(source) = bowstring::convert::open(&place().to_string_lossy(), &options) else { return };
    let columns: Vec<usize> = (0..source.schema().fields().len()).collect();
    let budget = bowstring::convert::Budget::new(64 << 20);
    if let Ok(mut batches) = source.read(0, &columns, &budget) {
        while let Ok(Some(batch)) = batches.next() {
            assert_eq!(batch.num_columns(), columns.len());
        }
    };
});
