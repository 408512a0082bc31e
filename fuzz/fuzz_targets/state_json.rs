//! A resume state from untrusted bytes: an error, or a state that round-trips.
#![no_main]

use bowstring::plan::State;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Ok(state) = State::from_json(data) {
        let json = state.to_json();
        assert!(json.len() <= State::MAX_BYTES, "{} bytes", json.len());
        let again = State::from_json(&json).expect("what was written is read");
        assert_eq!(again.to_json(), json);
    }
});
