//! A descriptor from untrusted bytes, merged with a dataset of the catalogue: an error, or options that keep the server's own.
#![no_main]

use std::sync::OnceLock;

use bowstring::flight::request::StreamRequest;
use bowstring::flight::server::{ClientLimits, Entry};
use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};

const MOST: u64 = 4096;

fn entry() -> &'static Entry {
    static ENTRY: OnceLock<Entry> = OnceLock::new();
    ENTRY.get_or_init(|| {
        let options = json!({
            "filter": "label < 900", "exclude": ["secret"], "memory_budget": 1 << 30, "threads": 2,
            "storage_options": {"aws_region": "x"}, "images": {"image": {"size": 64}},
        });
        let limits =
            ClientLimits { max_batch_size: Some(MOST), max_global_batch: Some(MOST), ..ClientLimits::default() };
        let Value::Object(options) = options else { unreachable!("an object") };
        Entry::new("photos", vec!["/data/photos".to_owned()], options, limits).expect("a good entry")
    })
}

fuzz_target!(|data: &[u8]| {
    let Ok(asked) = StreamRequest::from_json(data) else { return };
    let again = StreamRequest::from_json(&asked.to_json()).expect("what was written is read");
    assert_eq!(
        (&again.dataset, again.epoch, again.step, again.rank),
        (&asked.dataset, asked.epoch, asked.step, asked.rank)
    );
    assert_eq!((again.world_size, &again.gang), (asked.world_size, &asked.gang));
    if let Ok(share) = asked.share(0) {
        assert!(share.rank < share.world && share.world == asked.world_size);
    }
    let Ok(options) = entry().options(&Value::Object(asked.options)) else { return };
    assert_eq!(
        (options.urls.as_slice(), options.memory_budget, options.threads),
        (&["/data/photos".to_owned()][..], Some(1 << 30), Some(2))
    );
    assert_eq!(options.storage_options.len(), 1);
    assert!(options.columns.exclude.iter().any(|column| column == "secret"));
    assert!(
        options.batch_size.is_none_or(|rows| rows <= MOST) && options.global_batch_size.is_none_or(|rows| rows <= MOST)
    );
    // The filter of the catalogue is still there, and any filter joined to it is accepted or refused.
    let filter = serde_json::to_string(&options.filter).expect("a filter as JSON");
    assert!(filter.contains("label < 900"), "{filter}");
    let _ = options.open_options();
});
