//! The configuration of a server, or its list of tokens, from untrusted text: an error that quotes no line of it, or options from
//! which a server can be built.
#![no_main]

use bowstring::flight::server::Tokens;
use bowstring::flight::server::file::ServeFile;
use libfuzzer_sys::fuzz_target;

/// A secret to look for in errors, where an input has one.
const SECRET: &str = "s3cr3t-of-the-store";

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match ServeFile::from_toml(text, "serve.toml") {
        Ok(file) => {
            let json = serde_json::to_value(&file.server).expect("options are JSON");
            let again = serde_json::from_value(json).expect("what was written is read");
            assert_eq!(file.server, again);
            for entry in file.catalogue.entries() {
                let _ = entry.options(&serde_json::Value::Null);
            }
        }
        Err(error) => assert!(!error.to_string().contains(SECRET), "{error}"),
    }
    match Tokens::from_text(text) {
        Ok(tokens) => assert!(tokens.check(Some("Bearer x")).is_err(), "a token of one character"),
        Err(error) => assert!(!error.to_string().contains(SECRET), "{error}"),
    }
});
