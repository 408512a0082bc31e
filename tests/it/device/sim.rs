//! The suite on the simulated device, where everything that may be late is late.

use std::sync::Arc;

use bowstring::device::{Address, Device, Sim, Stream};

use super::suite::{self, Bench};

pub(crate) struct Simulated(pub(crate) Arc<Sim>);

impl Bench for Simulated {
    fn device(&self) -> Arc<dyn Device> {
        Arc::clone(&self.0) as _
    }

    fn stream(&self) -> Stream {
        self.0.stream()
    }

    fn read_later(&self, stream: Stream, at: Address, bytes: usize) -> Box<dyn FnOnce() -> Vec<u8>> {
        let reading = self.0.read_on(stream, at, bytes);
        let sim = Arc::clone(&self.0);
        Box::new(move || sim.collect(&reading).expect("the stream goes on"))
    }

    fn capture(&self, stream: Stream, capturing: bool) -> bool {
        self.0.capture(stream, capturing);
        true
    }

    fn fail_at(&self, n: u64) -> bool {
        self.0.fail_at(n);
        true
    }

    fn allocations(&self) -> (u64, u64) {
        let counters = self.0.counters();
        (counters.allocations, counters.pinned)
    }

    fn complaint(&self) -> Option<String> {
        let counters = self.0.counters();
        let well = counters.is_balanced() && counters.strays == 0 && counters.spoiled == 0;
        (!well).then(|| format!("{counters:?}"))
    }
}

#[test]
fn the_suite_passes_and_without_fences_it_does_not() {
    suite::all("sim", |seed| Simulated(Sim::new(seed)));
}
