//! Random lives of a gang: the ledger of each keeps every promise, and a machine without fences is caught.

use super::ledger::{self, Entry, Random, violations};
use super::*;

/// One process of a trainer; a zombie continues with its knowledge after another took its rank.
struct Process {
    rank: u32,
    attempt: u128,
    member: Option<(Caller, u64, u64)>,
    /// The deadline of its join or of the round it waits at.
    waits: Option<Duration>,
    zombie: bool,
}

/// Random events on a gang; returns the ledger. `unfenced` switches the checks of generation and process off.
fn random_life(seed: u64, events: usize, unfenced: bool) -> (u32, Vec<Entry>) {
    let mut random = Random(seed);
    let world = 2 + random.below(3) as u32;
    let options = RegistryOptions { lease: LEASE, ..RegistryOptions::default() };
    let planted = if unfenced { Planted::NoFences } else { Planted::Nothing };
    let mut machine = Machine::new(options.clone());
    machine.planted = planted;
    let mut records = Vec::new();
    let (mut now, mut start) = (Duration::ZERO, Duration::ZERO);
    let mut entries = Vec::new();
    let mut attempts = 0_u128;
    let mut fresh = |rank| {
        attempts += 1;
        Process { rank, attempt: attempts, member: None, waits: None, zombie: false }
    };
    let mut processes: Vec<Process> = (0..world).map(&mut fresh).collect();
    for _ in 0..events {
        let longest = if random.below(40) == 0 { 15_000 } else { 400 };
        now += Duration::from_millis(random.below(longest));
        let index = random.below(processes.len() as u64) as usize;
        if random.below(60) == 0 {
            // A crash of the server: it comes back with its journal, or with a compacted one.
            let kept = if random.below(2) == 0 { machine.snapshot() } else { records.clone() };
            machine = Machine::restore(options.clone(), &kept);
            machine.planted = planted;
            records = kept;
            start = now;
        } else if random.below(25) == 0 && !processes[index].zombie {
            // A crash of a rank, or a rank that was only taken for dead.
            let new = fresh(processes[index].rank);
            let mut old = std::mem::replace(&mut processes[index], new);
            if old.member.is_some() && random.below(2) == 0 && processes.len() < 12 {
                old.zombie = true;
                processes.push(old);
            }
        } else {
            act(&mut machine, now, start, world, &mut processes[index], &mut random, &mut entries);
            let process = &mut processes[index];
            if process.zombie && random.below(30) == 0 {
                processes.swap_remove(index);
            } else if process.attempt == 0 {
                *process = fresh(process.rank);
            }
        }
        records.extend(machine.take_happened().records);
    }
    (world, entries)
}

/// One call of one process. A process that learned of its end gets attempt 0, for a fresh one to be drawn.
fn act(
    machine: &mut Machine,
    now: Duration,
    start: Duration,
    world: u32,
    process: &mut Process,
    random: &mut Random,
    entries: &mut Vec<Entry>,
) {
    let rank = process.rank;
    let left = |waits: Option<Duration>| waits.unwrap_or(now + Duration::from_secs(30)).saturating_sub(now);
    let Some((caller, round, step)) = process.member.clone() else {
        let timeout = left(process.waits);
        process.waits = Some(now + timeout);
        let timeout_ms = timeout.as_millis() as u64;
        let asked = JoinRequest { timeout_ms, ..request(rank, world, process.attempt) };
        match machine.join(now - start, &asked) {
            Ok(Polled::Done(joined)) => {
                let at = joined.resume.map_or(0, |position| position.step);
                let generation = joined.generation;
                entries.push(Entry::Began { generation, rank, process: process.attempt, at });
                process.member = Some((super::caller(rank, generation, process.attempt), 1, at));
                process.waits = None;
            }
            Ok(Polled::Waiting { .. }) => assert!(timeout_ms > 0, "a join waits after its deadline"),
            Err(_) => process.attempt = 0,
        }
        return;
    };
    let generation = caller.generation;
    let answer = match random.below(8) {
        _ if process.waits.is_some() => meet(machine, now, start, process, entries),
        0 | 1 => meet(machine, now, start, process, entries),
        2 if random.below(20) == 0 && !process.zombie => {
            process.attempt = 0;
            let failure = Some("gave up".into());
            machine.leave(now - start, &LeaveRequest { caller, failure })
        }
        2 => machine.heartbeat(now - start, &caller).map(drop),
        3 => {
            // The time of opening them decides which of two plans it reads.
            let seed = random.below(2);
            let reading = Reading::new("d", Fingerprint::from_bytes([0; 32]), &PlanSpec::new(seed, 8));
            match machine.read(now - start, &caller, &reading) {
                Ok(()) => {
                    entries.push(Entry::Reads { generation, rank, plan: seed });
                    Ok(())
                }
                // The other one is there to be read.
                Err(Refusal::Mismatch { .. }) => Ok(()),
                Err(other) => Err(other),
            }
        }
        _ => {
            let step = step + 1;
            entries.push(Entry::Acks { generation, rank, step });
            let position = Position { epoch: 0, step };
            machine.ack(now - start, &AckRequest { caller: caller.clone(), position, plan: None }).map(|acked| {
                let all = acked.acknowledged.map_or(0, |position| position.step);
                entries.push(Entry::Acked { generation, rank, step, all });
                process.member = Some((caller, round, step));
            })
        }
    };
    if answer.is_err() && !process.zombie {
        process.attempt = 0;
    }
}

fn meet(
    machine: &mut Machine,
    now: Duration,
    start: Duration,
    process: &mut Process,
    entries: &mut Vec<Entry>,
) -> Result<(), Refusal> {
    let Some((caller, round, step)) = process.member.clone() else { return Ok(()) };
    let (generation, rank) = (caller.generation, caller.rank);
    let until = *process.waits.get_or_insert(now + Duration::from_secs(20));
    let timeout_ms = until.saturating_sub(now).as_millis() as u64;
    entries.push(Entry::Arrives { generation, rank, round });
    let kind = if round % 3 == 0 { CollectiveKind::AllGather } else { CollectiveKind::Barrier };
    match machine.meet(now - start, kind, &meeting(&caller, round, "", timeout_ms))? {
        Polled::Waiting { .. } => assert!(timeout_ms > 0, "a round waits after its deadline"),
        Polled::Done(_) => {
            entries.push(Entry::Opened { generation, rank, round });
            process.member = Some((caller, round + 1, step));
            process.waits = None;
        }
    }
    Ok(())
}

#[test]
fn random_lives_keep_every_promise_and_an_unfenced_machine_is_caught() {
    let soak = std::env::var_os("BOWSTRING_SOAK").is_some();
    let chosen = std::env::var("BOWSTRING_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds = chosen.map_or(0..if soak { 20_000 } else { 1_000 }, |seed| seed..seed + 1);
    let (mut caught, mut generations, mut steps, mut opened) = (0, 0, 0, 0);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let (world, entries) = random_life(seed, 600, false);
        let found = violations(world, &entries, true);
        assert!(found.is_empty(), "{}\nBOWSTRING_SEED={seed} cargo nextest run --lib random_lives", found.join("\n"));
        steps += ledger::progress(&entries);
        opened += entries.iter().filter(|it| matches!(it, Entry::Opened { .. })).count();
        generations += entries
            .iter()
            .map(|it| if let Entry::Began { generation, .. } = it { *generation } else { 0 })
            .max()
            .unwrap_or(0);
        let (world, entries) = random_life(seed, 600, true);
        caught += u64::from(!violations(world, &entries, true).is_empty());
    }
    #[expect(clippy::print_stdout, reason = "the figures of the test")]
    {
        println!(
            "{count} lives: {generations} generations, {steps} steps, {opened} rounds; without fences {caught} caught"
        );
    }
    assert!(chosen.is_some() || caught * 2 > count, "the checker caught {caught} of {count} machines without fences");
    assert!(chosen.is_some() || (generations > count && steps > count && opened as u64 > count), "the lives were dull");
}
