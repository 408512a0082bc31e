//! Gangs that are small enough to be looked at whole, and defects that must not go unnoticed.

use super::*;
use crate::flight::explore::{Broken, Explored, explore};

fn soak() -> bool {
    std::env::var_os("BOWSTRING_SOAK").is_some()
}

#[expect(clippy::print_stdout, reason = "the figures of the test")]
fn holds(name: &str, gang: &Gang, most: usize) -> Explored {
    match explore(gang, most) {
        Ok(explored) => {
            println!("{name}: {explored}");
            explored
        }
        Err(broken) => panic!("{name}, of {gang:?}:\n{broken}"),
    }
}

#[test]
fn two_ranks_keep_every_promise_whatever_happens() {
    holds("two ranks", &Gang::new(2, 2, if soak() { 3 } else { 1 }, ALL), 10_000_000);
}
