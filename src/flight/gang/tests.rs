//! The machine against an independent checker over random events, and its rules one by one.

pub(crate) mod ledger;
mod limits;
mod lives;
mod plans;

use std::sync::Arc;
use std::time::Duration;

use super::collectives::CollectiveKind;
use super::machine::Machine;
use super::planted::Planted;
use super::registry::RegistryOptions;
use super::wire::{
    AckRequest, Caller, Gathered, JoinRequest, Joined, LeaveRequest, MeetRequest, MemberInfo, Polled, Position,
    Reading, Refusal, Share, Token,
};
use crate::error::Error;
use crate::manifest::Fingerprint;
use crate::plan::PlanSpec;

const LEASE: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn request(rank: u32, world: u32, attempt: u128) -> JoinRequest {
    JoinRequest {
        gang: "g".into(),
        rank,
        world_size: world,
        attempt,
        share: None,
        info: MemberInfo { address: format!("h{rank}:1"), ..MemberInfo::default() },
        token: None,
        timeout_ms: 60_000,
        poll_ms: 1_000,
    }
}

fn caller(rank: u32, generation: u64, attempt: u128) -> Caller {
    Caller { gang: "g".into(), generation, rank, attempt }
}

fn meeting(caller: &Caller, round: u64, message: &str, timeout_ms: u64) -> MeetRequest {
    MeetRequest { caller: caller.clone(), round, message: message.into(), timeout_ms, poll_ms: 1_000 }
}

/// A running gang of `world` ranks with attempts 100, 101, ...
fn running(world: u32) -> (Machine, Vec<Caller>) {
    let mut machine = Machine::new(RegistryOptions::default());
    for rank in 0..world {
        let _ = machine.join(at(0), &request(rank, world, 100 + u128::from(rank))).unwrap();
    }
    (machine, (0..world).map(|rank| caller(rank, 1, 100 + u128::from(rank))).collect())
}

fn done(polled: Result<Polled<Joined>, Refusal>) -> Joined {
    match polled {
        Ok(Polled::Done(joined)) => joined,
        other => panic!("{other:?}"),
    }
}

fn text(refusal: Refusal) -> String {
    refusal.into_error("server").to_string()
}

#[test]
fn a_gang_starts_when_all_are_there_and_names_who_is_missing() {
    let mut machine = Machine::new(RegistryOptions::default());
    let waiting = machine.join(at(0), &request(2, 4, 7)).unwrap();
    assert!(matches!(&waiting, Polled::Waiting { missing, missing_count: 3, .. } if *missing == [0, 1, 3]));
    assert!(matches!(machine.join(at(5), &request(0, 4, 8)).unwrap(), Polled::Waiting { .. }));
    // Both ask again to stay, and both end at the deadline of the first.
    for second in [10, 20, 30, 40, 50, 59] {
        for (rank, attempt) in [(2, 7), (0, 8)] {
            let polled = machine.join(at(second), &request(rank, 4, attempt)).unwrap();
            assert!(matches!(polled, Polled::Waiting { .. }), "at {second}");
        }
    }
    for (rank, attempt) in [(0, 8), (2, 7), (2, 7)] {
        let end = machine.join(at(60), &request(rank, 4, attempt)).unwrap_err();
        let end = text(end);
        assert!(end.contains("ranks 1, 3 of gang g, 2 of 4 joined"), "{end}");
    }
    for rank in 0..4 {
        let _ = machine.join(at(61), &request(rank, 4, 20 + u128::from(rank))).unwrap();
    }
    assert_eq!(done(machine.join(at(61), &request(0, 4, 20))).generation, 1);
}

#[test]
fn an_oversubscribed_gang_fails_at_once() {
    let mut machine = Machine::new(RegistryOptions::default());
    let _ = machine.join(at(0), &request(0, 2, 1)).unwrap();
    for (wrong, option) in [
        (request(2, 2, 2), "rank"),
        (JoinRequest { timeout_ms: 0, ..request(1, 3, 2) }, "world_size"),
        (request(0, 2, 2), "rank"),
        (request(0, 0, 2), "world_size"),
    ] {
        let refusal = machine.join(at(1), &wrong).unwrap_err();
        assert!(matches!(&refusal, Refusal::Config { option: it, .. } if it == option), "{wrong:?}: {refusal:?}");
    }
    // The process that holds the rank is gone: once its lease is over, another may have it.
    let _ = machine.join(at(12), &request(0, 2, 2)).unwrap();
    let _ = machine.join(at(12), &request(1, 2, 3)).unwrap();
    assert_eq!(machine.state(at(12), "g").unwrap().phase, "running");
    let wrong = JoinRequest { timeout_ms: 0, ..request(0, 3, 9) };
    assert!(matches!(machine.join(at(13), &wrong), Err(Refusal::Config { .. })), "the gang has two ranks");
    assert_eq!(machine.state(at(13), "g").unwrap().phase, "running", "and goes on");
}

#[test]
fn ranks_of_another_size_wait_for_the_lease_of_a_killed_run_and_are_refused_by_a_living_one() {
    let is_waiting = |polled: &Result<Polled<Joined>, Refusal>| matches!(polled, Ok(Polled::Waiting { .. }));
    let is_refused = |polled: &Result<Polled<Joined>, Refusal>| matches!(polled, Err(Refusal::Config { option, .. }) if option == "world_size");
    // All ranks of the first run were killed.
    let (mut machine, _) = running(2);
    for second in [1, 4, 8] {
        let polled = machine.join(at(second), &request(0, 1, 9));
        assert!(is_waiting(&polled), "{second} s: {polled:?}");
    }
    let Ok(Polled::Done(joined)) = machine.join(at(12), &request(0, 1, 9)) else { panic!("the lease is over") };
    assert_eq!(joined.generation, 2);
    // One of them lives.
    let (mut machine, callers) = running(2);
    assert!(is_waiting(&machine.join(at(1), &request(0, 1, 9))));
    machine.heartbeat(at(2), &callers[1]).unwrap();
    assert!(is_refused(&machine.join(at(3), &request(0, 1, 9))));
    // It was not restarted with another number of ranks, but started with a wrong one, beside ranks that wait.
    let mut machine = Machine::new(RegistryOptions::default());
    let _ = machine.join(at(0), &request(0, 2, 1)).unwrap();
    assert!(is_waiting(&machine.join(at(1), &request(1, 3, 2))));
    let _ = machine.join(at(2), &request(0, 2, 1)).unwrap();
    assert!(is_refused(&machine.join(at(3), &request(1, 3, 2))));
}

#[test]
fn a_lost_a_failed_and_a_replaced_member_end_the_generation_for_all() {
    for how in 0..3 {
        let (mut machine, callers) = running(3);
        let waiting = machine.meet(at(1), CollectiveKind::Barrier, &meeting(&callers[0], 1, "", 60_000)).unwrap();
        assert!(matches!(waiting, Polled::Waiting { missing_count: 2, .. }));
        let (now, why) = match how {
            0 => {
                for second in [5, 9] {
                    for caller in [&callers[0], &callers[2]] {
                        machine.heartbeat(at(second), caller).unwrap();
                    }
                }
                machine.tick(at(10));
                (at(10), "rank 1 lost: no heartbeat within the lease of 10 s")
            }
            1 => {
                let failure = Some("loss is NaN".into());
                machine.leave(at(2), &LeaveRequest { caller: callers[1].clone(), failure }).unwrap();
                (at(2), "rank 1 failed: loss is NaN")
            }
            _ => {
                let _ = machine.join(at(2), &request(1, 3, 999)).unwrap();
                (at(2), "rank 1 joined again")
            }
        };
        let happened = machine.take_happened();
        assert!(happened.woken.contains("g"));
        let end = text(machine.meet(now, CollectiveKind::Barrier, &meeting(&callers[0], 1, "", 60_000)).unwrap_err());
        assert!(end.contains(why) && end.contains("generation 1 of gang g"), "{end}");
        let ack = AckRequest { caller: callers[2].clone(), position: Position { epoch: 0, step: 1 }, plan: None };
        assert!(matches!(machine.ack(now, &ack), Err(Refusal::Fenced { .. })));
        assert!(matches!(machine.heartbeat(now, &callers[1]), Err(Refusal::Fenced { .. })));
        assert!(matches!(machine.members(now, &callers[1]), Err(Refusal::Fenced { .. })));
        // A late repetition of the join of a process of that generation gets its end, and disturbs no other.
        assert!(matches!(machine.join(now, &request(0, 3, 100)), Err(Refusal::Fenced { .. })));
        for rank in 0..3 {
            let _ = machine.join(now, &request(rank, 3, if rank == 1 { 999 } else { 200 + u128::from(rank) })).unwrap();
        }
        assert_eq!(done(machine.join(now, &request(0, 3, 200))).generation, 2);
        assert!(machine.heartbeat(now, &caller(0, 2, 100)).is_err(), "the old process with the new number");
        assert!(machine.heartbeat(now, &caller(0, 2, 200)).is_ok());
    }
}

#[test]
fn rounds_open_full_answer_again_and_break_for_all_on_a_mismatch() {
    let (mut machine, callers) = running(3);
    let gather = |machine: &mut Machine, rank: usize, round, message| {
        machine.meet(at(1), CollectiveKind::AllGather, &meeting(&callers[rank], round, message, 60_000))
    };
    assert!(matches!(gather(&mut machine, 2, 1, "02"), Ok(Polled::Waiting { .. })));
    assert!(matches!(gather(&mut machine, 0, 1, "0000"), Ok(Polled::Waiting { missing_count: 1, .. })));
    let _ = machine.take_happened();
    assert!(matches!(gather(&mut machine, 0, 1, "0001"), Err(Refusal::Mismatch { .. })), "another message");
    assert!(!machine.take_happened().woken.contains("g"), "nothing happened to those who wait");
    let all = Gathered(Arc::new(vec![vec![0; 2], Vec::new(), vec![2]]));
    for rank in [1, 0, 1, 2] {
        assert_eq!(
            gather(&mut machine, rank, 1, ""),
            Ok(Polled::Done(all.clone())),
            "the result, as often as asked for"
        );
    }
    // One rank at a barrier, one at an all_gather: both get the mismatch, and so does every later caller.
    assert!(matches!(gather(&mut machine, 0, 2, "aa"), Ok(Polled::Waiting { .. })));
    let end = machine.meet(at(2), CollectiveKind::Barrier, &meeting(&callers[1], 2, "", 60_000)).unwrap_err();
    assert!(text(end.clone()).contains("expected all_gather (rank 0 wait there), found rank 1 at barrier"));
    assert_eq!(gather(&mut machine, 0, 2, "aa"), Err(end.clone()));
    assert_eq!(gather(&mut machine, 2, 2, "aa"), Err(end));

    let (mut machine, callers) = running(2);
    let ahead = machine.meet(at(1), CollectiveKind::Barrier, &meeting(&callers[1], 2, "", 60_000)).unwrap_err();
    assert!(text(ahead).contains("rank 1 at barrier 2"));

    let (mut machine, callers) = running(2);
    assert!(machine.meet(at(1), CollectiveKind::Barrier, &meeting(&callers[1], 1, "", 5_000)).is_ok());
    let late = text(machine.meet(at(6), CollectiveKind::Barrier, &meeting(&callers[1], 1, "", 0)).unwrap_err());
    assert!(late.contains("gang barrier waited 5 s for rank 0 of gang g at round 1"), "{late}");
    // A rank that gave up has gone; the others do not open without it.
    let other = machine.meet(at(6), CollectiveKind::Barrier, &meeting(&callers[0], 1, "", 5_000)).unwrap();
    assert!(matches!(other, Polled::Waiting { missing_count: 1, .. }));
    let big = "00".repeat((1 << 20) + 1);
    let big = machine.meet(at(6), CollectiveKind::AllGather, &meeting(&callers[0], 1, &big, 0)).unwrap_err();
    assert!(matches!(big, Refusal::Limit { .. }));
}

#[test]
fn a_round_that_opened_is_open_for_all_though_later_ones_broke() {
    let (mut machine, callers) = running(3);
    let barrier = |machine: &mut Machine, rank: usize, round| {
        machine.meet(at(1), CollectiveKind::Barrier, &meeting(&callers[rank], round, "", 60_000))
    };
    for rank in 0..3 {
        barrier(&mut machine, rank, 1).unwrap();
    }
    // Rank 0 was not asked again yet when one of the others waits for the next round, and the other one leaves.
    assert!(matches!(barrier(&mut machine, 1, 2), Ok(Polled::Waiting { .. })));
    machine.leave(at(1), &LeaveRequest { caller: callers[2].clone(), failure: None }).unwrap();
    assert!(matches!(barrier(&mut machine, 0, 1), Ok(Polled::Done(_))), "it opened");
    assert!(barrier(&mut machine, 1, 2).is_err() && barrier(&mut machine, 0, 2).is_err());
}

#[test]
fn a_call_that_comes_late_is_refused_alone() {
    let (mut machine, callers) = running(2);
    let barrier = |machine: &mut Machine, rank: usize, round| {
        machine.meet(at(1), CollectiveKind::Barrier, &meeting(&callers[rank], round, "", 60_000))
    };
    for round in 1..=2 {
        for rank in 0..2 {
            barrier(&mut machine, rank, round).unwrap();
        }
    }
    assert!(matches!(barrier(&mut machine, 0, 3), Ok(Polled::Waiting { .. })));
    let _ = machine.take_happened();
    // Sent before the others, over a connection that was slow.
    let late = text(barrier(&mut machine, 1, 1).unwrap_err());
    assert!(late.contains("round 3 (opened so far: 2)") && late.contains("rank 1 at barrier 1"), "{late}");
    assert!(machine.take_happened().woken.is_empty());
    assert!(matches!(barrier(&mut machine, 1, 3), Ok(Polled::Done(_))), "the rounds go on");
    assert!(
        barrier(&mut machine, 1, 5).is_err() && barrier(&mut machine, 0, 4).is_err(),
        "one that is ahead ends them"
    );
}

#[test]
fn who_is_missing_is_known_however_ranks_come_and_go() {
    let (mut machine, callers) = running(20);
    let mut wait = |rank: usize, timeout_ms| {
        machine.meet(at(1), CollectiveKind::Barrier, &meeting(&callers[rank], 1, "", timeout_ms))
    };
    let mut there = std::collections::BTreeSet::new();
    for rank in [3, 0, 19, 4, 0, 7, 18, 1] {
        there.insert(rank as u32);
        let Ok(Polled::Waiting { missing, missing_count, .. }) = wait(rank, 60_000) else { panic!() };
        let absent: Vec<u32> = (0..20).filter(|rank| !there.contains(rank)).collect();
        assert_eq!((&missing[..], missing_count), (&absent[..absent.len().min(16)], absent.len() as u64));
    }
    assert!(matches!(wait(4, 0), Err(Refusal::Timeout { .. })), "it gives up");
    let Ok(Polled::Waiting { missing, missing_count: 14, .. }) = wait(0, 60_000) else { panic!() };
    assert!(missing.contains(&4) && missing.len() == 14);
}

#[test]
fn a_clean_end_ends_the_gang_and_is_no_excuse_for_those_who_wait() {
    let (mut machine, callers) = running(3);
    let leave = |rank: usize| LeaveRequest { caller: callers[rank].clone(), failure: None };
    let _ = machine.meet(at(1), CollectiveKind::Barrier, &meeting(&callers[0], 1, "", 60_000)).unwrap();
    machine.leave(at(1), &leave(2)).unwrap();
    machine.leave(at(1), &leave(2)).unwrap();
    let end = text(machine.meet(at(1), CollectiveKind::Barrier, &meeting(&callers[0], 1, "", 60_000)).unwrap_err());
    assert!(end.contains("found rank 2 left cleanly"), "{end}");
    assert!(text(machine.heartbeat(at(1), &callers[2]).unwrap_err()).contains("rank 2 has left"));
    machine.leave(at(1), &leave(0)).unwrap();
    machine.tick(at(9));
    assert_eq!(machine.state(at(9), "g").unwrap().phase, "running", "one rank is still at work");
    machine.leave(at(9), &leave(1)).unwrap();
    machine.leave(at(9), &leave(1)).unwrap();
    assert_eq!(machine.state(at(100), "g").unwrap().phase, "ended");
    for rank in 0..2 {
        let _ = machine.join(at(101), &request(rank, 2, 300 + u128::from(rank))).unwrap();
    }
    let joined = done(machine.join(at(101), &request(0, 2, 300)));
    assert_eq!((joined.generation, joined.resume), (2, None), "a new run, of another size");
}

#[test]
fn a_join_that_is_refused_changes_nothing_of_an_ended_gang_and_who_has_left_may_say_so_again() {
    let (mut machine, callers) = running(2);
    for caller in &callers {
        let position = Position { epoch: 0, step: 7 };
        machine.ack(at(1), &AckRequest { caller: caller.clone(), position, plan: None }).unwrap();
        machine.leave(at(1), &LeaveRequest { caller: caller.clone(), failure: None }).unwrap();
    }
    let ended = machine.state(at(2), "g").unwrap();
    let wrong = JoinRequest { share: Some(Share { rank: 5, of: 3 }), ..request(0, 2, 300) };
    let refusal = machine.join(at(2), &wrong).unwrap_err();
    assert!(matches!(&refusal, Refusal::Config { option, .. } if option == "share"), "{refusal:?}");
    assert_eq!(machine.state(at(2), "g").unwrap(), ended);
    let leave = |rank: usize| LeaveRequest { caller: callers[rank].clone(), failure: None };
    machine.leave(at(2), &leave(1)).unwrap();
    // The answer to a leave may be lost, and another run begin before it comes again.
    for rank in 0..2 {
        let _ = machine.join(at(3), &request(rank, 2, 300 + u128::from(rank))).unwrap();
        machine.leave(at(3), &leave(1)).unwrap();
    }
    assert_eq!(machine.state(at(4), "g").unwrap().phase, "running", "it goes on");
    let late = text(machine.join(at(4), &request(1, 2, 101)).unwrap_err());
    assert!(late.contains("rank 1 has left"), "{late}");
    let stranger = LeaveRequest { caller: caller(1, 1, 999), failure: None };
    assert!(matches!(machine.leave(at(4), &stranger), Err(Refusal::Fenced { .. })));
    let failed = LeaveRequest { failure: Some("too late".into()), ..leave(1) };
    assert!(matches!(machine.leave(at(4), &failed), Err(Refusal::Fenced { .. })));
    assert_eq!(machine.state(at(4), "g").unwrap().phase, "running");
}

#[test]
fn a_gang_that_all_have_left_has_ended_though_its_server_was_killed_before_it_wrote_so() {
    let (mut machine, callers) = running(2);
    for (rank, caller) in callers.iter().enumerate() {
        let position = Position { epoch: 0, step: 5 };
        machine.ack(at(1), &AckRequest { caller: caller.clone(), position, plan: None }).unwrap();
        machine.leave(at(1), &LeaveRequest { caller: callers[rank].clone(), failure: None }).unwrap();
    }
    let mut records = machine.take_happened().records;
    assert!(matches!(records.pop(), Some(super::journal::Record::Ended { .. })));
    let mut machine = Machine::restore(RegistryOptions::default(), &records);
    assert_eq!(machine.state(at(0), "g").unwrap().phase, "ended", "it would run for ever, and nobody could forget it");
    machine.leave(at(0), &LeaveRequest { caller: callers[1].clone(), failure: None }).unwrap();
    for rank in 0..2 {
        let _ = machine.join(at(1), &request(rank, 2, 300 + u128::from(rank))).unwrap();
    }
    let joined = done(machine.join(at(1), &request(0, 2, 300)));
    assert_eq!((joined.generation, joined.resume), (2, None), "a new run begins at the beginning");
}

#[test]
fn a_late_join_of_who_has_left_begins_no_new_run_after_a_restart() {
    let (mut machine, callers) = running(2);
    for caller in &callers {
        machine.leave(at(1), &LeaveRequest { caller: caller.clone(), failure: None }).unwrap();
    }
    let written = machine.take_happened().records;
    for records in [machine.snapshot(), written] {
        let mut machine = Machine::restore(RegistryOptions::default(), &records);
        let late = text(machine.join(at(0), &request(1, 2, 101)).unwrap_err());
        assert!(late.contains("rank 1 has left"), "{late}");
        assert_eq!(machine.state(at(0), "g").unwrap().phase, "ended");
    }
}

#[test]
fn the_least_acknowledged_step_is_where_the_gang_goes_on_and_tokens_may_say_otherwise() {
    let (mut machine, callers) = running(2);
    let position = |step| Position { epoch: 3, step };
    let ack = |rank: usize, step| AckRequest { caller: callers[rank].clone(), position: position(step), plan: None };
    let first = machine.ack(at(1), &ack(0, 10)).unwrap();
    assert_eq!(first.acknowledged, None);
    let token = machine.ack(at(1), &ack(1, 8)).unwrap();
    assert_eq!(token.acknowledged, Some(position(8)));
    assert_eq!(machine.ack(at(1), &ack(0, 10)).unwrap().token, first.token, "the same again is the same");
    assert!(matches!(machine.ack(at(1), &ack(0, 9)), Err(Refusal::Mismatch { .. })));
    let token = token.token;
    assert_eq!(Token::parse(&token.to_string()).unwrap(), token);
    for (index, _) in token.to_string().char_indices() {
        let mut text = token.to_string().into_bytes();
        text[index] ^= 1;
        let parsed = String::from_utf8(text).ok().and_then(|text| Token::parse(&text).ok());
        assert!(parsed.is_none(), "{parsed:?} from a token that was altered at {index}");
    }

    let restart = |machine: &mut Machine, now, attempts: u128, tokens: [Option<Token>; 2]| {
        let mut last = None;
        for (rank, token) in (0..2).zip(tokens) {
            last = Some(machine.join(at(now), &JoinRequest { token, ..request(rank, 2, attempts + u128::from(rank)) }));
        }
        last.unwrap()
    };
    let joined = done(restart(&mut machine, 2, 300, [None, None]));
    assert_eq!((joined.generation, joined.resume), (2, Some(position(8))));
    let again = AckRequest { caller: caller(0, 2, 300), position: position(8), plan: None };
    assert!(text(machine.ack(at(2), &again).unwrap_err()).contains("expected a position after epoch 3 step 8"));
    let other = Token::new("g", 1, position(5));
    let end = text(restart(&mut machine, 3, 400, [Some(token.clone()), Some(other.clone())]).unwrap_err());
    assert!(
        end.contains("epoch 3 step 8 of generation 1") && end.contains("step 5 of generation 1 at rank 1"),
        "{end}"
    );
    let end = text(restart(&mut machine, 3, 500, [Some(token), None]).unwrap_err());
    assert!(end.contains("no token at rank 1"), "{end}");
    let joined = done(restart(&mut machine, 3, 600, [Some(other.clone()), Some(other)]));
    assert_eq!((joined.generation, joined.resume), (3, Some(position(5))), "an older checkpoint was loaded");
    let foreign = Token::new("h", 1, position(5));
    assert!(matches!(restart(&mut machine, 4, 700, [Some(foreign), None]), Ok(_) | Err(Refusal::Mismatch { .. })));
    // A token from before this server's memory lifts the generation above its own.
    let mut machine = Machine::new(RegistryOptions::default());
    let old = Some(Token::new("g", 41, position(77)));
    let joined = done(restart(&mut machine, 0, 800, [old.clone(), old]));
    assert_eq!((joined.generation, joined.resume), (42, Some(position(77))));
}

#[test]
fn groups_of_ranks_hold_all_shares_or_nobody_starts() {
    let mut machine = Machine::new(RegistryOptions::default());
    let join = |machine: &mut Machine, rank, attempt, share| {
        machine.join(at(0), &JoinRequest { share: Some(share), ..request(rank, 4, attempt) })
    };
    for rank in 0..3 {
        let _ = join(&mut machine, rank, 1, Share { rank: 0, of: 2 }).unwrap();
    }
    let other = JoinRequest { share: Some(Share { rank: 0, of: 3 }), timeout_ms: 0, ..request(3, 4, 1) };
    let other = machine.join(at(0), &other).unwrap_err();
    assert!(matches!(&other, Refusal::Config { option, .. } if option == "share"), "{other:?}");
    assert!(join(&mut machine, 3, 2, Share { rank: 2, of: 2 }).is_err());
    let end = join(&mut machine, 3, 3, Share { rank: 0, of: 2 }).unwrap_err();
    assert!(text(end.clone()).contains("nobody with share [1]"));
    assert_eq!(join(&mut machine, 0, 1, Share { rank: 0, of: 2 }), Err(end), "all are told");
    for rank in 0..4 {
        let _ = join(&mut machine, rank, 9, Share { rank: rank / 2, of: 2 }).unwrap();
    }
    let members = machine.members(at(0), &caller(3, 1, 9)).unwrap();
    let shares: Vec<_> = members.members.iter().map(|it| (it.rank, it.share.rank, it.info.address.as_str())).collect();
    assert_eq!(shares, [(0, 0, "h0:1"), (1, 0, "h1:1"), (2, 1, "h2:1"), (3, 1, "h3:1")]);
}

#[test]
fn gangs_are_bounded_and_a_forgotten_name_does_not_count_from_one_again() {
    let mut machine = Machine::new(RegistryOptions { max_gangs: 2, ..RegistryOptions::default() });
    let single = |gang: &str, attempt| JoinRequest { gang: gang.into(), ..request(0, 1, attempt) };
    let member = |gang: &str, generation, attempt| Caller { gang: gang.into(), ..caller(0, generation, attempt) };
    let _ = done(machine.join(at(0), &single("a", 1)));
    let _ = done(machine.join(at(0), &single("b", 1)));
    assert!(matches!(machine.join(at(0), &single("c", 1)), Err(Refusal::Limit { .. })), "both run");
    machine.leave(at(0), &LeaveRequest { caller: member("a", 1, 1), failure: None }).unwrap();
    assert_eq!(done(machine.join(at(1), &single("c", 1))).generation, 2);
    assert!(matches!(machine.heartbeat(at(1), &member("a", 1, 1)), Err(Refusal::Fenced { .. })));
    machine.leave(at(1), &LeaveRequest { caller: member("c", 2, 1), failure: None }).unwrap();
    assert_eq!(done(machine.join(at(1), &single("a", 1))).generation, 3);
}

#[test]
fn refusals_come_out_of_the_wire_as_the_errors_that_went_in() {
    let errors = [
        Error::Fenced { gang: "g".into(), generation: 4, why: "rank 2 lost".into() },
        Error::Timeout { stage: "gang barrier", culprit: "rank 1".into(), waited: at(3) },
        Error::Mismatch { what: "a".into(), expected: "b".into(), found: "c".into(), hint: "d".into() },
        Error::Config { option: "world_size", problem: "x".into() },
        Error::limit("a", 2, 1, "max_message"),
        Error::NotFound { what: "action".into(), hint: "h".into() },
    ];
    for error in errors {
        let bytes = serde_json::to_vec(&Refusal::of(&error)).unwrap();
        let back = serde_json::from_slice::<Refusal>(&bytes).unwrap().into_error("server");
        assert_eq!(format!("{back:?}"), format!("{error:?}"));
    }
    let other = Refusal::of(&Error::Closed { why: "drained".into() }).into_error("server:1");
    assert_eq!(other.to_string(), "server:1: closed: drained");
}
