//! The suite on the host's own memory, where nothing is copied and nothing is late.

use std::sync::Arc;

use bowstring::device::{Address, Device, Host, Stream};
use bowstring::memory::HostAllocator;

use super::suite::{self, Bench};

struct Own(Arc<Host>);

impl Bench for Own {
    fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.0) as _
    }

    fn stream(&self) -> Stream {
        Stream::LegacyDefault
    }

    #[expect(unsafe_code, reason = "an address is all that a reader on a stream has")]
    fn read_later(&self, _stream: Stream, at: Address, bytes: usize) -> Box<dyn FnOnce() -> Vec<u8>> {
        // Memory of the host has no streams: a late reader keeps its batch.
        let mut read = vec![0; bytes];
        // SAFETY: the suite requests tensors of batches that it holds.
        unsafe { self.0.read(at, &mut read).unwrap() }
        Box::new(move || read)
    }

    fn is_asynchronous(&self) -> bool {
        false
    }

    fn allocations(&self) -> (u64, u64) {
        (0, 0)
    }

    fn complaint(&self) -> Option<String> {
        None
    }
}

#[test]
fn the_suite_passes_and_nothing_is_copied() {
    suite::all("host", |_| Own(Arc::new(Host::default())));
    assert!(!Host::default().staging().is_pinned());
    let _: Arc<dyn HostAllocator> = Host::default().staging();
}
