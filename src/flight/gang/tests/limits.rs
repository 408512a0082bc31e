//! All contents of calls are bounded, and a refused call leaves nothing behind: the table of `limits`, line by line.

use super::*;

fn limited(machine: &mut Machine, asked: &JoinRequest, option: &str) {
    match machine.join(at(0), asked).unwrap_err() {
        Refusal::Config { option: found, problem } => {
            assert_eq!(found, option, "{problem}");
            assert!(problem.len() < 600, "an error repeats {} bytes", problem.len());
        }
        Refusal::Limit { option: found, .. } => assert_eq!(found, option),
        other => panic!("{other:?}"),
    }
}

#[test]
fn names_and_texts_are_bounded_and_leave_nothing() {
    let mut machine = Machine::new(RegistryOptions::default());
    let good = request(0, 2, 7);
    for name in [String::new(), "x".repeat(129), "x".repeat(1 << 20), "a\nb".into(), "\u{9b}2J".into()] {
        limited(&mut machine, &JoinRequest { gang: name.clone(), ..good.clone() }, "gang");
        let stranger = Caller { gang: name.clone(), ..caller(0, 1, 7) };
        assert!(matches!(machine.heartbeat(at(0), &stranger), Err(Refusal::Config { .. })));
        assert!(matches!(machine.members(at(0), &stranger), Err(Refusal::Config { .. })));
        let met = machine.meet(at(0), CollectiveKind::AllGather, &meeting(&stranger, 1, "00", 0)).unwrap_err();
        assert!(matches!(met, Refusal::Config { .. }), "{met:?}");
        let leave = LeaveRequest { caller: stranger.clone(), failure: None };
        assert!(matches!(machine.leave(at(0), &leave), Err(Refusal::Config { .. })));
        let ack = AckRequest { caller: stranger, position: Position { epoch: 0, step: 0 }, plan: None };
        assert!(matches!(machine.ack(at(0), &ack), Err(Refusal::Config { .. })));
        assert!(matches!(machine.state(at(0), &name), Err(Refusal::Config { .. })));
    }
    let long = || "x".repeat(257);
    for info in [
        MemberInfo { address: long(), ..MemberInfo::default() },
        MemberInfo { device: long(), ..MemberInfo::default() },
        MemberInfo { host: long(), ..MemberInfo::default() },
    ] {
        limited(&mut machine, &JoinRequest { info, ..good.clone() }, "rank");
    }
    let share = Some(Share { rank: 0, of: u32::MAX });
    limited(&mut machine, &JoinRequest { share, ..good.clone() }, "share");
    limited(&mut machine, &JoinRequest { world_size: 16_385, ..good.clone() }, "world_size");
    let token = Some(Token::new("x".repeat(1 << 20), 1, Position { epoch: 0, step: 0 }));
    limited(&mut machine, &JoinRequest { token, ..good.clone() }, "gang");
    let token = Some(Token::new("g", 1 << 53, Position { epoch: 0, step: 0 }));
    limited(&mut machine, &JoinRequest { token, ..good }, "token");
    assert_eq!(machine.snapshot().len(), 1, "no gang is there");
    assert!(machine.take_happened().records.is_empty());

    let (mut machine, callers) = running(2);
    let failure = Some("\u{1F4A5}".repeat(20_000));
    machine.leave(at(0), &LeaveRequest { caller: callers[0].clone(), failure }).unwrap();
    assert!(machine.state(at(0), "g").unwrap().why.len() < 4 * 512 + 64);
}

#[test]
fn a_gang_that_would_go_on_makes_no_room_for_another_tenant() {
    let mut machine = Machine::new(RegistryOptions { max_gangs: 1, ..RegistryOptions::default() });
    let join = |gang: &str, attempt| JoinRequest { gang: gang.into(), ..request(0, 1, attempt) };
    let _ = machine.join(at(0), &join("anna/a", 1)).unwrap();
    let position = Position { epoch: 0, step: 7 };
    let caller = Caller { gang: "anna/a".into(), ..caller(0, 1, 1) };
    let _ = machine.ack(at(0), &AckRequest { caller, position, plan: None }).unwrap();
    machine.tick(at(60));
    assert_eq!(machine.state(at(60), "anna/a").unwrap().phase, "forming", "interrupted");
    assert!(matches!(machine.join(at(61), &join("bert/b", 2)), Err(Refusal::Limit { .. })));
    assert_eq!(done(machine.join(at(62), &join("anna/a", 3))).resume, Some(position));
    machine.tick(at(120));
    assert!(machine.join(at(121), &join("anna/b", 4)).is_ok(), "its own tenant's may");
}

#[test]
fn ranks_and_messages_of_all_gangs_together_are_bounded() {
    let options = RegistryOptions { max_members: 3, max_held: 10, ..RegistryOptions::default() };
    let mut machine = Machine::new(options);
    let ask = |gang: &str, rank, attempt| JoinRequest { gang: gang.into(), ..request(rank, 2, attempt) };
    for (gang, rank) in [("a", 0), ("a", 1), ("b", 0)] {
        let _ = machine.join(at(0), &ask(gang, rank, 1)).unwrap();
    }
    for (gang, rank) in [("b", 1), ("c", 0)] {
        let refusal = machine.join(at(0), &ask(gang, rank, 1)).unwrap_err();
        assert!(matches!(&refusal, Refusal::Limit { option, asked: 4, limit: 3, .. } if option == "max_members"));
        assert_eq!(
            refusal.clone().into_error("x").to_string(),
            Refusal::of(&refusal.into_error("x")).into_error("x").to_string()
        );
    }
    assert!(machine.state(at(0), "c").is_err(), "the refused one is not there");
    let _ = machine.join(at(0), &ask("b", 0, 1)).expect("whoever is in asks again");
    let member = |rank| Caller { gang: "a".into(), ..caller(rank, 1, 1) };
    let gather = |machine: &mut Machine, rank, round, message: &str| {
        machine.meet(at(0), CollectiveKind::AllGather, &meeting(&member(rank), round, message, 60_000))
    };
    let _ = gather(&mut machine, 0, 1, &"00".repeat(6)).unwrap();
    let refusal = gather(&mut machine, 1, 1, &"00".repeat(5)).unwrap_err();
    assert!(matches!(&refusal, Refusal::Limit { option, asked: 11, .. } if option == "max_held"), "{refusal:?}");
    let _ = gather(&mut machine, 0, 1, &"00".repeat(6)).expect("the same again takes no more room");
    let met = gather(&mut machine, 1, 1, &"00".repeat(4)).unwrap();
    assert!(matches!(met, Polled::Done(_)));
    // A result is kept for repeated calls until the next round; a barrier needs no room.
    assert!(gather(&mut machine, 0, 2, "00").is_err());
    let barrier = |machine: &mut Machine, rank| {
        machine.meet(at(0), CollectiveKind::Barrier, &meeting(&member(rank), 2, "", 60_000))
    };
    let _ = (barrier(&mut machine, 0).unwrap(), barrier(&mut machine, 1).unwrap());
    let _ = gather(&mut machine, 0, 3, "00").unwrap();
    // Gangs that have ended make room.
    for rank in 0..2 {
        machine.leave(at(0), &LeaveRequest { caller: member(rank), failure: None }).unwrap();
    }
    let _ = machine.join(at(0), &ask("c", 0, 1)).unwrap();
    assert!(machine.state(at(0), "a").is_err(), "forgotten");
    let _ = machine.join(at(0), &ask("b", 1, 1)).unwrap();
}

#[test]
fn one_tenant_cannot_take_what_another_needs() {
    let options =
        RegistryOptions { gangs_per_tenant: 2, ranks_per_tenant: 4, held_per_tenant: 10, ..RegistryOptions::default() };
    let mut machine = Machine::new(options);
    let of = |gang: &str, rank, world| JoinRequest { gang: gang.into(), ..request(rank, world, 1) };
    let refused = |outcome: Result<Polled<Joined>, Refusal>| match outcome {
        Err(Refusal::Limit { option, .. }) => option,
        other => panic!("{other:?}"),
    };
    let _ = done(machine.join(at(0), &of("anna/a", 0, 1)));
    let _ = machine.join(at(0), &of("anna/b", 0, 4)).unwrap();
    assert_eq!(refused(machine.join(at(0), &of("anna/c", 0, 1))), "gangs_per_tenant");
    let _ = machine.join(at(0), &of("anna/b", 1, 4)).unwrap();
    let _ = machine.join(at(0), &of("anna/b", 2, 4)).unwrap();
    assert_eq!(refused(machine.join(at(0), &of("anna/b", 3, 4))), "gang_ranks_per_tenant");
    // Other tenants have limits of their own, and gangs in no space are subject to the server's only.
    for gang in ["bert/a", "bert/b", "a", "b", "c"] {
        let _ = done(machine.join(at(0), &of(gang, 0, 1)));
    }
    let said = |gang: &str, bytes: usize| MeetRequest {
        caller: Caller { gang: gang.into(), ..caller(0, 1, 1) },
        ..meeting(&caller(0, 1, 1), 1, &"00".repeat(bytes), 1_000)
    };
    let refusal = machine.meet(at(0), CollectiveKind::AllGather, &said("anna/a", 11)).unwrap_err();
    assert!(matches!(&refusal, Refusal::Limit { option, .. } if option == "held_per_tenant"), "{refusal:?}");
    let _ = machine.meet(at(0), CollectiveKind::AllGather, &said("bert/a", 10)).unwrap();
    let _ = machine.meet(at(0), CollectiveKind::AllGather, &said("a", 11)).unwrap();
    // A gang that is over makes room in its own space, and in no other.
    let over = Caller { gang: "anna/a".into(), ..caller(0, 1, 1) };
    machine.leave(at(1), &LeaveRequest { caller: over, failure: None }).unwrap();
    assert_eq!(refused(machine.join(at(1), &of("bert/c", 0, 1))), "gangs_per_tenant");
    let _ = done(machine.join(at(1), &of("anna/c", 0, 1)));
}

#[test]
fn generations_of_one_tenants_tokens_are_no_matter_of_another() {
    let options = RegistryOptions { gangs_per_tenant: 1, ..RegistryOptions::default() };
    let mut machine = Machine::new(options.clone());
    let position = Position { epoch: 0, step: 7 };
    let alone = |gang: &str, attempt, token| JoinRequest { gang: gang.into(), token, ..request(0, 1, attempt) };
    let end = |machine: &mut Machine, gang: &str, generation, attempt| {
        let caller = Caller { gang: gang.into(), ..caller(0, generation, attempt) };
        let token = machine.ack(at(0), &AckRequest { caller: caller.clone(), position, plan: None }).unwrap().token;
        machine.leave(at(0), &LeaveRequest { caller, failure: None }).unwrap();
        token
    };
    let highest = (1 << 53) - 1;
    let forged = Some(Token::new("evil/a", highest, Position { epoch: 0, step: 6 }));
    let joined = done(machine.join(at(0), &alone("evil/a", 1, forged)));
    assert_eq!(joined.generation, 1 << 53);
    let own = end(&mut machine, "evil/a", joined.generation, 1);
    // The first gang makes room for the second.
    let _ = done(machine.join(at(0), &alone("evil/b", 2, None)));
    assert!(machine.state(at(0), "evil/a").is_err());
    let written = [machine.snapshot(), machine.take_happened().records];
    let again = written.map(|records| Machine::restore(options.clone(), &records));
    for mut machine in again.into_iter().chain([machine]) {
        for gang in ["anna/a", "g"] {
            let joined = done(machine.join(at(1), &alone(gang, 3, None)));
            assert_eq!(joined.generation, 1, "{gang}");
            let token = end(&mut machine, gang, 1, 3);
            assert_eq!(done(machine.join(at(2), &alone(gang, 4, Some(token)))).resume, Some(position));
        }
        // Generations reached here may come back, and none beyond them.
        end(&mut machine, "evil/b", joined.generation + 1, 2);
        let beyond = Some(Token::new("evil/a", (1 << 53) + 2, position));
        assert!(matches!(machine.join(at(3), &alone("evil/a", 5, beyond)), Err(Refusal::Config { .. })));
        assert_eq!(done(machine.join(at(3), &alone("evil/a", 6, Some(own.clone())))).resume, Some(position));
    }
}

#[test]
fn tenants_of_the_common_space_have_the_limits_of_one_tenant() {
    let options = RegistryOptions {
        tenants: true,
        gangs_per_tenant: 2,
        ranks_per_tenant: 4,
        held_per_tenant: 10,
        ..RegistryOptions::default()
    };
    let mut machine = Machine::new(options);
    let of = |gang: &str, rank, world| JoinRequest { gang: gang.into(), ..request(rank, world, 1) };
    let refused = |outcome: Result<Polled<Joined>, Refusal>| match outcome {
        Err(Refusal::Limit { option, .. }) => option,
        other => panic!("{other:?}"),
    };
    let _ = done(machine.join(at(0), &of("a", 0, 1)));
    for rank in 0..3 {
        let _ = machine.join(at(0), &of("b", rank, 4)).unwrap();
    }
    assert_eq!(refused(machine.join(at(0), &of("b", 3, 4))), "gang_ranks_per_tenant");
    let message = MeetRequest {
        caller: Caller { gang: "a".into(), ..caller(0, 1, 1) },
        ..meeting(&caller(0, 1, 1), 1, &"00".repeat(11), 1_000)
    };
    let refusal = machine.meet(at(0), CollectiveKind::AllGather, &message).unwrap_err();
    assert!(matches!(&refusal, Refusal::Limit { option, .. } if option == "held_per_tenant"), "{refusal:?}");
    machine.tick(at(60));
    let _ = machine.join(at(60), &of("b", 0, 4)).unwrap();
    let _ = done(machine.join(at(60), &of("c", 0, 1)));
    assert_eq!(refused(machine.join(at(60), &of("d", 0, 1))), "gangs_per_tenant");
    let _ = done(machine.join(at(60), &of("dora/a", 0, 1)));
}

#[test]
fn ended_processes_of_all_gangs_of_a_tenant_are_bounded() {
    let options = RegistryOptions { ranks_per_tenant: 10, ..RegistryOptions::default() };
    let mut machine = Machine::new(options);
    for gang in ["anna/a", "anna/b", "anna/c", "bert/a"] {
        for rank in 0..50 {
            let asked = JoinRequest { gang: gang.into(), timeout_ms: 0, ..request(rank, 100, rank.into()) };
            // Its time is up at once, and a repetition gets the same answer.
            for _ in 0..2 {
                assert!(matches!(machine.join(at(0), &asked), Err(Refusal::Timeout { .. })), "{gang}, rank {rank}");
            }
        }
    }
    assert_eq!(machine.remembered("bert/a"), 50, "others have their own");
    assert!((1..=80).contains(&machine.remembered("anna/a")), "{}", machine.remembered("anna/a"));
}
