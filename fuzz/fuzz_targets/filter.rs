//! A filter from untrusted text, or from tuples as JSON: an error, or an expression whose text round-trips, and which a schema
//! accepts or refuses.
#![no_main]

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, TimeUnit};
use bowstring::dataset::filter::Expr;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let tuples = serde_json::from_str(text).ok().and_then(|tuples| Expr::from_dnf(&tuples).ok());
    for filter in Expr::parse(text).ok().into_iter().chain(tuples) {
        let shown = filter.to_string();
        assert_eq!(Expr::parse(&shown).expect("what was written is read"), filter, "{shown}");
        let columns = filter.columns();
        let kinds = [
            DataType::Int64,
            DataType::Utf8View,
            DataType::Boolean,
            DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            DataType::Decimal128(10, 2),
            DataType::List(Arc::new(Field::new("item", DataType::Int32, true))),
        ];
        for kind in kinds {
            let fields = columns.iter().filter(|name| !name.contains('.'));
            let fields: Vec<Field> = fields.map(|name| Field::new(name, kind.clone(), true)).collect();
            let _ = filter.check(&Arc::new(Schema::new(fields)));
        }
    }
});
