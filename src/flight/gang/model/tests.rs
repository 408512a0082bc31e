//! Gangs that are small enough to be looked at whole, and defects that must not go unnoticed.

use super::*;
use crate::flight::explore::{Broken, explore};

/// More than any of these gangs has.
const MOST: usize = 20_000_000;

/// Returns true if there is time for the larger gangs.
fn soak() -> bool {
    std::env::var_os("BOWSTRING_SOAK").is_some()
}

/// Checks that `gang` breaks no promise.
#[expect(clippy::print_stdout, reason = "the figures of the test")]
fn holds(name: &str, gang: &Gang) {
    match explore(gang, MOST) {
        Ok(explored) => println!("{name}, {} faults at most: {explored}", gang.faults),
        Err(broken) => panic!("{name}:\n{broken}"),
    }
}

/// The shortest way to see that `gang` breaks a promise.
#[expect(clippy::print_stdout, reason = "traces are to be read")]
fn caught(name: &str, gang: &Gang) -> Broken {
    match explore(gang, MOST) {
        Ok(explored) => panic!("{name} was not noticed: {explored}"),
        Err(broken) => {
            println!("{name}:\n{broken}\n");
            *broken
        }
    }
}

#[test]
fn two_ranks_keep_every_promise_whatever_happens() {
    holds("2 ranks, 2 steps, everything", &Gang::new(2, 2, 1, ALL));
    if soak() {
        holds("2 ranks, 1 step, everything", &Gang::new(2, 1, 2, ALL));
    }
}

#[test]
fn ranks_and_servers_that_are_killed_lose_nothing() {
    let kinds = &[Kind::Kill, Kind::Crash, Kind::Fail];
    holds("2 ranks, 2 steps, kills", &Gang::new(2, 2, if soak() { 3 } else { 2 }, kinds));
}

#[test]
fn networks_that_lose_delay_and_repeat_break_nothing() {
    let kinds: &[Kind] = if soak() {
        &[Kind::Lose, Kind::Stray, Kind::Crash, Kind::Twin]
    } else {
        &[Kind::Lose, Kind::Stray, Kind::Crash]
    };
    holds("2 ranks, 2 steps, messages", &Gang::new(2, 2, 2, kinds));
}

#[test]
fn who_was_replaced_or_cut_off_stops_in_time() {
    let kinds = &[Kind::Twin, Kind::Cut, Kind::Deaf, Kind::Late, Kind::Delay];
    holds("2 ranks, 1 step, cuts", &Gang::new(2, 1, if soak() { 2 } else { 1 }, kinds));
}

#[test]
fn three_ranks_keep_every_promise() {
    let kinds: &[Kind] = if soak() { ALL } else { &[Kind::Kill, Kind::Lose, Kind::Crash] };
    holds("3 ranks, 1 step", &Gang::new(3, 1, 1, kinds));
}

#[test]
fn a_generation_reads_one_plan_whatever_happens() {
    let kinds: &[Kind] = if soak() { ALL } else { &[Kind::Kill, Kind::Twin, Kind::Crash] };
    let gang = Gang { reads: true, ..Gang::new(2, 1, 1, kinds) };
    holds("2 ranks, 1 step, 2 plans", &gang);
}

#[test]
fn ranks_whose_programs_differ_are_told_and_do_not_wait() {
    let two = Gang { uneven: true, ..Gang::new(2, 1, if soak() { 2 } else { 1 }, ALL) };
    holds("2 ranks, of which one meets nobody", &two);
    let three = Gang { uneven: true, ..Gang::new(3, 2, u8::from(soak()), &[Kind::Lose, Kind::Kill]) };
    holds("3 ranks, of which one meets nobody at last", &three);
}

#[test]
fn a_power_cut_takes_no_generation_away() {
    let kinds = &[Kind::Power, Kind::Kill];
    holds("2 ranks, power cuts", &Gang::new(2, if soak() { 2 } else { 1 }, 2, kinds));
}

// ---- defects that must be caught ------------------------------------------------------------------------------------

#[test]
fn planted_defects_are_caught_by_short_traces() {
    let gang = |kinds| Gang::new(2, 1, 2, kinds);
    let planted = |planted, kinds| Gang { planted, ..gang(kinds) };
    let shell = |shell, kinds| Gang { shell, ..gang(kinds) };
    let none = Shell::default();
    let defects = [
        ("a gang without fences", planted(Planted::NoFences, ALL), "fenced"),
        ("a generation that ends does not count up", planted(Planted::SameNumber, ALL), "is to come"),
        ("callers of an older generation are let in", planted(Planted::OlderCallers, &[Kind::Twin]), "fenced"),
        (
            "those who wait are not woken",
            Gang { planted: Planted::NobodyWoken, ..Gang::new(2, 2, 1, &[Kind::Kill]) },
            "nobody wakes",
        ),
        ("the ends of processes are forgotten", planted(Planted::EndsForgotten, ALL), "is over"),
        ("answers before the journal", shell(Shell { no_journal: true, ..none }, &[Kind::Crash]), "restart changed"),
        ("a journal without fsync", shell(Shell { no_sync: true, ..none }, &[Kind::Power]), "power cut took"),
        (
            "a lease from when the answer came",
            Gang { late_lease: true, ..gang(&[Kind::Late, Kind::Delay, Kind::Cut]) },
            "acts on",
        ),
    ];
    for (name, gang, promise) in defects {
        let broken = caught(name, &gang);
        assert!(broken.promise.contains(promise), "{name} broke another promise: {broken}");
        assert!(broken.trace.len() <= 20, "{name}: {} steps are long to read", broken.trace.len());
    }
}
