//! Actions of a gang from untrusted bytes, several in turn to one registry: an error or an answer, never a panic or a wait.
//!
//! Each line is a call: its first byte chooses the action, the rest is the body.
#![no_main]

use std::sync::OnceLock;
use std::time::Duration;

use bowstring::flight::gang::wire::{ACTIONS, Token};
use bowstring::flight::gang::{Registry, RegistryOptions};
use libfuzzer_sys::fuzz_target;
use tokio::runtime::Runtime;

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"))
}

fuzz_target!(|data: &[u8]| {
    runtime().block_on(async {
        let options = RegistryOptions { max_gangs: 4, max_world: 64, ..RegistryOptions::default() };
        let registry = Registry::open(None, options).expect("a registry");
        for line in data.split(|byte| *byte == b'\n').take(16) {
            let Some((choice, body)) = line.split_first() else { continue };
            // Also an action with an unknown name.
            let action = ACTIONS.get(usize::from(*choice) % (ACTIONS.len() + 1)).copied().unwrap_or("gang.none");
            // A call that would wait is dropped, which withdraws its arrival.
            if let Ok(Ok(answer)) = tokio::time::timeout(Duration::ZERO, registry.call(action, body)).await {
                serde_json::from_slice::<serde_json::Value>(&answer).expect("answers are JSON");
            }
            if let Ok(text) = std::str::from_utf8(body)
                && let Ok(token) = Token::parse(text)
            {
                assert_eq!(Token::parse(&token.to_string()).expect("what was written is read"), token);
            }
        }
        assert!(registry.running() <= 4);
    });
});
