//! Options of a loader as JSON from untrusted bytes: an error, or options that round-trip.
#![no_main]

use bowstring::LoaderOptions;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(options) = LoaderOptions::from_json(text) else { return };
    let json = serde_json::to_string(&options).expect("options are JSON");
    let again = LoaderOptions::from_json(&json).expect("what was written is read");
    assert_eq!(serde_json::to_string(&again).expect("options are JSON"), json);
    let _ = options.open_options();
});
