//! One plan for each generation: the calls that bind it and those that are refused, the state after a restart, and requests of older
//! versions.

use super::super::journal::Record;
use super::super::wire::Reading;
use super::*;
use crate::manifest::Fingerprint;
use crate::plan::PlanSpec;

fn plan(seed: u64) -> Reading {
    Reading::new("photos", Fingerprint::from_bytes([7; 32]), &PlanSpec::new(seed, 8))
}

fn ack(caller: &Caller, step: u64, plan: Option<Fingerprint>) -> AckRequest {
    AckRequest { caller: caller.clone(), position: Position { epoch: 0, step }, plan }
}

/// All ranks join again at `second` with new processes; the answer of the last, and the callers.
fn again(machine: &mut Machine, second: u64, world: u32, token: Option<&Token>) -> (Joined, Vec<Caller>) {
    let attempt = |rank: u32| u128::from(second) * 1000 + u128::from(rank);
    let mut last = None;
    for rank in 0..world {
        let asked = JoinRequest { token: token.cloned(), ..request(rank, world, attempt(rank)) };
        last = Some(machine.join(at(second), &asked));
    }
    let joined = done(last.unwrap());
    let generation = joined.generation;
    (joined, (0..world).map(|rank| caller(rank, generation, attempt(rank))).collect())
}

#[test]
fn two_plans_in_one_generation_are_a_mismatch_that_names_both() {
    let (mut machine, callers) = running(2);
    let (ours, theirs) = (plan(1), plan(2));
    machine.read(at(1), &callers[0], &ours).unwrap();
    machine.read(at(1), &callers[1], &ours).unwrap();
    let records = machine.take_happened().records;
    assert_eq!(records.iter().filter(|it| matches!(it, Record::Bound { .. })).count(), 1, "bound once: {records:?}");
    let other = machine.read(at(1), &callers[1], &theirs).unwrap_err();
    assert!(matches!(other, Refusal::Mismatch { .. }));
    let other = text(other);
    for part in [&ours.plan.to_string(), &theirs.plan.to_string(), "\"seed\":1", "\"seed\":2", "rank 1", "generation 1"]
    {
        assert!(other.contains(part), "no {part} in {other}");
    }
    assert!(other.len() < 3500, "{} bytes do not fit in the trailers of an answer", other.len());
    // Only a member binds anything.
    let (mut machine, callers) = running(2);
    assert!(matches!(machine.read(at(1), &caller(0, 1, 5), &ours), Err(Refusal::Fenced { .. })));
    assert_eq!(machine.reads(at(1), &callers[0]).unwrap(), None);
}

#[test]
fn an_acknowledgement_and_a_token_are_of_the_plan_that_was_read() {
    let (mut machine, callers) = running(2);
    machine.read(at(1), &callers[0], &plan(1)).unwrap();
    // An older client names no plan, and can have read no other.
    let first = machine.ack(at(1), &ack(&callers[0], 3, None)).unwrap().token;
    assert_eq!(machine.ack(at(1), &ack(&callers[1], 3, Some(plan(1).plan))).unwrap().token, first);
    assert_eq!(first.plan, Some(plan(1).plan));
    assert_eq!(Token::parse(&first.to_string()).unwrap(), first);
    let forged = first.to_string().replace(&plan(1).plan.to_string(), &plan(2).plan.to_string());
    assert!(Token::parse(&forged).is_err(), "the checksum covers the plan");
    // A rank that read elsewhere.
    let other = machine.ack(at(1), &ack(&callers[1], 4, Some(plan(2).plan))).unwrap_err();
    assert!(matches!(other, Refusal::Mismatch { .. }));
    assert_eq!(machine.state(at(1), "g").unwrap().acknowledged, Some(Position { epoch: 0, step: 3 }));
    // If nothing was read here, the first acknowledgement names the plan.
    let (mut machine, callers) = running(2);
    machine.ack(at(1), &ack(&callers[0], 3, Some(plan(1).plan))).unwrap();
    assert!(machine.ack(at(1), &ack(&callers[1], 3, Some(plan(2).plan))).is_err());
    assert!(machine.read(at(1), &callers[1], &plan(2)).is_err());
    machine.read(at(1), &callers[1], &plan(1)).unwrap();
    assert_eq!(machine.reads(at(1), &callers[1]).unwrap(), Some((plan(1), false)), "now more is known of it");
}

#[test]
fn who_resumes_goes_on_with_the_plan_of_the_position_and_who_begins_anew_is_free() {
    for restarted in [false, true] {
        let (mut machine, callers) = running(2);
        let mut records = machine.take_happened().records;
        let mut restart = |machine: &mut Machine| {
            records.extend(machine.take_happened().records);
            if restarted {
                let compacted = machine.snapshot();
                *machine = Machine::restore(RegistryOptions::default(), &records);
                assert_eq!(machine.snapshot(), compacted);
                *machine = Machine::restore(RegistryOptions::default(), &compacted);
                records = compacted;
            }
        };
        machine.read(at(1), &callers[0], &plan(1)).unwrap();
        machine.ack(at(1), &ack(&callers[0], 3, None)).unwrap();
        restart(&mut machine);
        assert!(machine.read(at(1), &callers[1], &plan(2)).is_err());
        // One rank acknowledged nothing: all begin anew, with the current data.
        let (joined, callers) = again(&mut machine, 2, 2, None);
        assert_eq!((joined.resume, joined.reads), (None, None));
        machine.read(at(2), &callers[0], &plan(2)).unwrap();
        let token = machine.ack(at(2), &ack(&callers[0], 5, None)).unwrap().token;
        machine.ack(at(2), &ack(&callers[1], 5, None)).unwrap();
        restart(&mut machine);
        let (joined, callers) = again(&mut machine, 3, 2, None);
        assert_eq!((joined.resume, joined.reads), (Some(Position { epoch: 0, step: 5 }), Some(plan(2))));
        let other = text(machine.read(at(3), &callers[0], &plan(1)).unwrap_err());
        assert!(other.contains("of which epoch 0 step 5 is done"), "{other}");
        assert_eq!(machine.reads(at(3), &callers[0]).unwrap(), Some((plan(2), true)));
        machine.read(at(3), &callers[1], &plan(2)).unwrap();
        restart(&mut machine);
        // Nothing more was acknowledged, and a checkpoint says the same, or something older.
        let (joined, callers) = again(&mut machine, 4, 2, Some(&token));
        assert_eq!(joined.reads, Some(plan(2)));
        for caller in &callers {
            machine.leave(at(4), &LeaveRequest { caller: caller.clone(), failure: None }).unwrap();
        }
        restart(&mut machine);
        let (joined, _) = again(&mut machine, 5, 2, None);
        assert_eq!((joined.resume, joined.reads), (None, None), "another run");
        let (joined, callers) = again(&mut machine, 6, 2, Some(&token));
        assert_eq!(joined.reads.unwrap().plan, plan(2).plan, "as the token says");
        assert!(machine.read(at(6), &callers[1], &plan(1)).is_err());
        let old = Token::new("g", 1, Position { epoch: 0, step: 5 });
        let mixed = |rank: u32, token: &Token| JoinRequest { token: Some(token.clone()), ..request(rank, 2, 7777) };
        let _ = machine.join(at(7), &mixed(0, &token)).unwrap();
        let end = text(machine.join(at(7), &mixed(1, &old.clone().of_plan(Some(plan(1).plan)))).unwrap_err());
        assert!(end.contains(&plan(1).plan.to_string()) && end.contains(&plan(2).plan.to_string()), "{end}");
        // A token of an older version names no plan: the first stream binds, as if nothing were acknowledged.
        let (joined, callers) = again(&mut machine, 8, 2, Some(&old));
        assert_eq!((joined.resume, joined.reads), (Some(old.position), None));
        machine.read(at(8), &callers[1], &plan(1)).unwrap();
        assert!(machine.read(at(8), &callers[0], &plan(2)).is_err());
    }
}

#[test]
fn a_step_that_an_epoch_does_not_have_is_not_acknowledged() {
    let (mut machine, callers) = running(2);
    machine.read(at(1), &callers[0], &plan(1)).unwrap();
    machine.ack(at(1), &ack(&callers[0], 9, None)).expect("nobody knows yet");
    machine.ends(at(1), &callers[0], (plan(1).plan, 4)).unwrap();
    machine.ack(at(1), &ack(&callers[1], 3, Some(plan(1).plan))).unwrap();
    let refused = machine.ack(at(1), &ack(&callers[1], 4, None)).unwrap_err();
    assert!(matches!(refused, Refusal::Mismatch { .. }));
    let refused = text(refused);
    assert!(refused.contains("a step below 4") && refused.contains("epoch 0 step 4"), "{refused}");
    // The end of another plan is none of this one.
    machine.ends(at(1), &callers[0], (plan(2).plan, 4)).unwrap();
    machine.ack(at(1), &ack(&callers[1], 4, None)).unwrap();
}

#[test]
fn requests_answers_and_tokens_of_older_versions_are_read() {
    let ack: AckRequest = serde_json::from_str(
        r#"{"caller":{"gang":"g","generation":1,"rank":0,"attempt":"00000000000000000000000000000064"},"position":{"epoch":0,"step":1}}"#,
    )
    .unwrap();
    assert_eq!(ack.plan, None);
    assert!(!serde_json::to_string(&ack).unwrap().contains("plan"), "an older server reads it too");
    let joined: Joined = serde_json::from_str(r#"{"generation":1,"lease_ms":10000,"resume":null}"#).unwrap();
    assert_eq!((joined.reads, joined.plans), (None, false));
    let token = r#"{"gang":"g","generation":1,"position":{"epoch":3,"step":8},"crc32":CRC}"#;
    let token = token.replace("CRC", &crc32fast::hash(b"g\n1\n3\n8").to_string());
    assert_eq!(Token::parse(&token).unwrap(), Token::new("g", 1, Position { epoch: 3, step: 8 }));
}
