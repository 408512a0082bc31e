//! The metadata beside a batch, and the schema of a stream, from untrusted bytes: an error, or values that round-trip.
#![no_main]

use std::io::Cursor;

use arrow::ipc::reader::StreamReader;
use bowstring::flight::wire::{Columns, Position, arrow_schema};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(position) = Position::from_json(data) {
        assert_eq!(Position::from_json(&position.to_json()).expect("what was written is read"), position);
    }
    let Ok(reader) = StreamReader::try_new(Cursor::new(data), None) else { return };
    if let Ok(columns) = Columns::from_arrow(&reader.schema()) {
        let again = arrow_schema(columns.schema());
        let again = Columns::from_arrow(&again).expect("what was written is read");
        assert_eq!(again.schema(), columns.schema());
    }
});
