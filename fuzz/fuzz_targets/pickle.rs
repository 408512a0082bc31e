//! Petastorm's pickled metadata from untrusted bytes: an error, or values that round-trip.
#![no_main]

use bowstring::Place;
use bowstring::dataset::Limits;
use bowstring::dataset::petastorm::{IndexKind, Unischema, UnischemaField, indexes, key_values, row_group_counts};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let (limits, place) = (Limits { max_pickle_bytes: 16 << 20, ..Limits::default() }, Place::default());
    if let Ok(schema) = Unischema::from_pickle(data, &limits, &place) {
        let _ = schema.fields.iter().map(UnischemaField::stored).filter(Result::is_ok).count();
        let pickle = schema.to_pickle().expect("what was read has names that can be written");
        // The written form may be longer than a short pickle, but its length is bounded by it.
        if let Ok(again) = Unischema::from_pickle(&pickle, &Limits::default(), &place) {
            assert_eq!(again, schema);
        }
    }
    for index in indexes(data, &limits, &place).unwrap_or_default() {
        let sorted = |row_groups: &[u32]| assert!(row_groups.is_sorted());
        match &index.kind {
            IndexKind::SingleField { values } => values.iter().for_each(|(_, row_groups)| sorted(row_groups)),
            IndexKind::FieldNotNull { row_groups } => sorted(row_groups),
        }
    }
    let _ = key_values(data, &place);
    let _ = row_group_counts(data, &place);
});
