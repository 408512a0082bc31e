//! Certificates of order from untrusted bytes, one a line: an error, or certificates that round-trip, never verify with a key that
//! did not sign them, and can be audited together.
#![no_main]

use bowstring::plan::{Certificate, audit};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let lines = data.split(|byte| *byte == b'\n').take(8);
    let certificates: Vec<Certificate> = lines.filter_map(|line| Certificate::from_json(line).ok()).collect();
    for certificate in &certificates {
        let json = certificate.to_json();
        let again = Certificate::from_json(&json).expect("what was written is read");
        assert_eq!(again.to_json(), json);
        assert!(certificate.verify(b"a key that the fuzzer does not sign with").is_err(), "forged");
    }
    let _ = audit(&certificates);
});
