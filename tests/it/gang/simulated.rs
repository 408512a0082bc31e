//! One server, four to eight ranks, and a network in simulated time: crashes, restarts, partitions, delays, clocks that run
//! at different rates, and a second process with the number of a rank. A ledger of what everybody saw is checked afterwards.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowstring::flight::gang::{CallError, JoinOptions, Member, Refusal, Registry, RegistryOptions, Wire};
use bowstring::manifest::Fingerprint;
use bowstring::{Error, Result};
use futures::future::BoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use turmoil::Sim;
use turmoil::net::{TcpListener, TcpStream};

use super::ledger::{Entry, Random, progress, violations};

const PORT: u16 = 7070;
const LEASE: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(20);

// ---- the wire: frames of `u32 length | bytes` over TCP --------------------------------------------------------------

async fn receive(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let length = stream.read_u32().await?;
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// A frame in one write, so that it is one segment of the simulated network.
fn frame(parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    [&(length as u32).to_be_bytes()[..], &parts.concat()].concat()
}

struct Tcp {
    idle: Mutex<Vec<TcpStream>>,
    /// How much longer a second of the server lasts on this host's clock, per mille.
    clock: u64,
}

impl Tcp {
    async fn exchange(&self, action: &str, body: &[u8]) -> std::io::Result<Vec<u8>> {
        let idle = self.idle.lock().unwrap().pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => TcpStream::connect(("server", PORT)).await?,
        };
        stream.write_all(&frame(&[&[action.len() as u8], action.as_bytes(), body])).await?;
        let answer = receive(&mut stream).await?;
        self.idle.lock().unwrap().push(stream);
        Ok(answer)
    }
}

impl Wire for Tcp {
    fn call(&self, action: &str, body: Vec<u8>, _: Duration) -> BoxFuture<'_, Result<Vec<u8>, CallError>> {
        let action = action.to_owned();
        Box::pin(async move {
            let answer = self.exchange(&action, &body).await.map_err(|error| {
                CallError::Unreached(Error::Remote {
                    peer: "server".into(),
                    what: format!("{action} failed"),
                    source: Some(error.into()),
                })
            })?;
            let (ok, answer) = answer.split_first().unwrap();
            if *ok == 0 {
                let refusal: Refusal = serde_json::from_slice(answer).unwrap();
                return Err(CallError::Answered(refusal.into_error("server")));
            }
            // A clock at another rate measures another lease: the only time that a member takes from the server.
            let mut answer: serde_json::Value = serde_json::from_slice(answer).unwrap();
            if let Some(lease) = answer.get_mut("lease_ms") {
                *lease = (lease.as_u64().unwrap() * self.clock / 1000).into();
            }
            Ok(serde_json::to_vec(&answer).unwrap())
        })
    }
}

async fn serve(journal: Option<PathBuf>) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let options = RegistryOptions { lease: LEASE, grace: LEASE, ..RegistryOptions::default() };
    let registry = Registry::open(journal, options)?;
    let listener = TcpListener::bind(("0.0.0.0", PORT)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let registry = Arc::clone(&registry);
        tokio::spawn(async move {
            let (mut from, mut to) = stream.into_split();
            while let Ok(request) = receive(&mut from).await {
                let (length, rest) = request.split_first().unwrap();
                let (action, body) = rest.split_at(usize::from(*length));
                let answer = tokio::select! {
                    biased;
                    answer = registry.call(std::str::from_utf8(action).unwrap(), body) => answer,
                    // The client has gone: so does its call.
                    _ = from.read_u8() => return,
                };
                let answer = match answer {
                    Ok(answer) => frame(&[&[1], &answer]),
                    Err(error) => frame(&[&[0], &serde_json::to_vec(&Refusal::of(&error)).unwrap()]),
                };
                if to.write_all(&answer).await.is_err() {
                    return;
                }
            }
        });
    }
}

// ---- the ranks ------------------------------------------------------------------------------------------------------

/// What all hosts of one simulation share; turmoil runs them on one thread.
struct Shared {
    world: u32,
    entries: RefCell<Vec<Entry>>,
    /// Simulated times: generations when they began first, and when somebody last worked in them.
    began: RefCell<Vec<(u64, Duration)>>,
    worked: RefCell<Vec<(u64, Duration)>>,
    attempts: AtomicU64,
    random: RefCell<Random>,
}

impl Shared {
    fn log(&self, entry: Entry) {
        self.entries.borrow_mut().push(entry);
    }

    fn below(&self, end: u64) -> u64 {
        self.random.borrow_mut().below(end)
    }
}

/// Joins for ever, trains for ever.
async fn train(shared: Rc<Shared>, rank: u32, clock: u64) {
    loop {
        let attempt = u128::from(shared.attempts.fetch_add(1, Ordering::Relaxed)) + 1;
        let wire = Arc::new(Tcp { idle: Mutex::default(), clock });
        let timeout = Duration::from_secs(10);
        let options = JoinOptions { timeout, attempt, ..JoinOptions::new("run", rank, shared.world) };
        if let Ok(member) = Member::join(wire, options).await {
            // Whatever goes wrong, the rank joins again. What it does on its own goes on while it takes itself for alive.
            tokio::select! {
                biased;
                () = act_alone(&shared, &member) => {}
                _ = work(&shared, &member, attempt) => {}
            }
        }
        tokio::time::sleep(Duration::from_millis(50 + shared.below(100))).await;
    }
}

/// Acts as the rank as long as the member says that it may, without asking the server.
async fn act_alone(shared: &Shared, member: &Member) {
    while member.check().is_ok() {
        shared.worked.borrow_mut().push((member.generation(), turmoil::sim_elapsed().unwrap()));
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
}

async fn work(shared: &Shared, member: &Member, process: u128) -> Result<()> {
    let (rank, generation) = (member.rank(), member.generation());
    let at = member.resume().map_or(0, |(_, step)| step);
    shared.log(Entry::Began { generation, rank, process, at });
    if shared.began.borrow().iter().all(|(it, _)| *it != generation) {
        shared.began.borrow_mut().push((generation, turmoil::sim_elapsed().unwrap()));
    }
    // Now and then a rank comes with another plan; who resumes has the one that it was on.
    let plan = member.reads().map_or(u8::from(shared.below(32) == 0), |reads| reads.plan.as_bytes()[0]);
    member.has_read(Fingerprint::from_bytes([plan; 32]));
    let mut round = 1;
    for step in at + 1.. {
        tokio::time::sleep(Duration::from_millis(shared.below(40))).await;
        shared.log(Entry::Acks { generation, rank, step });
        member.ack(0, step).await?;
        let all = member.acknowledged().map_or(0, |(_, step)| step);
        shared.log(Entry::Acked { generation, rank, step, all });
        shared.log(Entry::Reads { generation, rank, plan: plan.into() });
        if step % 3 == 0 {
            shared.log(Entry::Arrives { generation, rank, round });
            if round % 4 == 0 {
                let own = [rank as u8, round as u8];
                let all = member.all_gather(&own, Duration::from_secs(5)).await?;
                let expected: Vec<[u8; 2]> = (0..shared.world).map(|rank| [rank as u8, round as u8]).collect();
                assert_eq!(all, expected, "all_gather of round {round}");
            } else {
                member.barrier(Duration::from_secs(5)).await?;
            }
            shared.log(Entry::Opened { generation, rank, round });
            round += 1;
        }
    }
    Ok(())
}

// ---- the faults -----------------------------------------------------------------------------------------------------

#[derive(Debug, Clone, Copy)]
enum Fault {
    Crash,
    Bounce,
    Partition,
    PartitionTo,
    PartitionFrom,
    Hold,
    Slow,
    Server,
    Everybody,
    Double,
}

const FAULTS: [Fault; 10] = [
    Fault::Crash,
    Fault::Bounce,
    Fault::Partition,
    Fault::PartitionTo,
    Fault::PartitionFrom,
    Fault::Hold,
    Fault::Slow,
    Fault::Server,
    Fault::Everybody,
    Fault::Double,
];

fn name(rank: u32) -> String {
    format!("rank{rank}")
}

/// Begins or ends `fault` at `rank`.
fn strike(
    sim: &mut Sim<'_>,
    fault: Fault,
    rank: u32,
    world: u32,
    begin: bool,
    journal: Option<&Path>,
    random: &mut Random,
) {
    let host = name(rank);
    match (fault, begin) {
        (Fault::Crash, true) => sim.crash(host),
        (Fault::Bounce, true) | (Fault::Crash, false) => sim.bounce(host),
        (Fault::Partition, true) => sim.partition(host, "server"),
        (Fault::PartitionTo, true) => sim.partition_oneway(host, "server"),
        (Fault::PartitionFrom, true) => sim.partition_oneway("server", host),
        (Fault::Partition | Fault::PartitionTo | Fault::PartitionFrom, false) => sim.repair(host, "server"),
        (Fault::Hold, true) => sim.hold(host, "server"),
        (Fault::Hold, false) => sim.release(host, "server"),
        (Fault::Slow, true) => sim.set_link_latency(host, "server", Duration::from_millis(50 + random.below(400))),
        (Fault::Slow, false) => sim.set_link_latency(host, "server", Duration::from_millis(1)),
        (Fault::Server, true) => {
            sim.crash("server");
            if let Some(journal) = journal {
                // What a kill in the middle of a write leaves: a part of a record that nobody was told of.
                let mut file = OpenOptions::new().append(true).open(journal).unwrap();
                let record = frame(&[b"\x11\x22\x33\x44", br#"{"record":"ended","gang":"run","generation":1}"#]);
                file.write_all(&record[..random.below(record.len() as u64) as usize]).unwrap();
            }
        }
        (Fault::Server, false) => sim.bounce("server"),
        (Fault::Everybody, begin) => {
            for rank in 0..world {
                if begin { sim.crash(name(rank)) } else { sim.bounce(name(rank)) }
            }
        }
        (Fault::Double, true) => sim.bounce("double"),
        (Fault::Double, false) => sim.crash("double"),
        (Fault::Bounce, false) => {}
    }
}

struct Outcome {
    world: u32,
    entries: Vec<Entry>,
    /// Promises broken that the ledger does not know of.
    found: Vec<String>,
    generations: usize,
    healed: Duration,
}

/// What is different from a usual simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Variant {
    Usual,
    /// The server has no journal, and crashes.
    Forgetful,
    /// A rank is cut off, and another process takes its number. The first one's clock may be far too slow.
    CutOff {
        slow: bool,
    },
}

/// One simulation.
fn simulate(seed: u64, variant: Variant) -> Outcome {
    let forgetful = variant == Variant::Forgetful;
    let mut random = Random(seed);
    let world = 4 + random.below(5) as u32;
    let home = super::quick_directory();
    let journal = (!forgetful).then(|| home.path().join("gangs"));
    let mut sim = turmoil::Builder::new()
        .rng_seed(seed)
        .tick_duration(TICK)
        .simulation_duration(Duration::from_secs(600))
        .min_message_latency(Duration::from_millis(1))
        .max_message_latency(Duration::from_millis(1 + random.below(30)))
        .tcp_capacity(1024)
        .build();
    let path = journal.clone();
    sim.host("server", move || serve(path.clone()));
    let shared = Rc::new(Shared {
        world,
        entries: RefCell::default(),
        began: RefCell::default(),
        worked: RefCell::default(),
        attempts: AtomicU64::new(0),
        random: RefCell::new(Random(random.next())),
    });
    let twin = random.below(u64::from(world)) as u32;
    for rank in (0..world).chain([twin]).enumerate().map(|(index, rank)| (index as u32 == world, rank)) {
        let (is_double, rank) = rank;
        let shared = Rc::clone(&shared);
        let slow = variant == Variant::CutOff { slow: true } && !is_double;
        let clock = if slow { 3000 } else { 970 + random.below(60) };
        sim.host(if is_double { "double".into() } else { name(rank) }, move || {
            let shared = Rc::clone(&shared);
            async move {
                train(shared, rank, clock).await;
                Ok(())
            }
        });
    }
    sim.crash("double");

    // Faults begin within five seconds and last up to three.
    let mut events: Vec<(Duration, bool, Fault, u32)> = Vec::new();
    for index in 0..2 + random.below(5) {
        let fault = if forgetful && index == 0 { Fault::Server } else { FAULTS[random.below(10) as usize] };
        let begin = Duration::from_millis(500 + random.below(4_500));
        let end =
            begin + Duration::from_millis(random.below(if matches!(fault, Fault::Server) { 1_500 } else { 3_000 }));
        let rank = random.below(u64::from(world)) as u32;
        events.extend([(begin, true, fault, rank), (end, false, fault, rank)]);
    }
    if let Variant::CutOff { .. } = variant {
        let at = Duration::from_millis;
        events = vec![
            (at(1500), true, Fault::Partition, twin),
            (at(1600), true, Fault::Double, twin),
            (at(6000), false, Fault::Double, twin),
            (at(6000), false, Fault::Partition, twin),
        ];
    }
    events.sort_by_key(|event| event.0);
    for (when, begin, fault, rank) in events {
        while sim.elapsed() < when {
            sim.step().unwrap();
        }
        strike(&mut sim, fault, rank, world, begin, journal.as_deref(), &mut random);
    }
    // Everything works from now on.
    if sim.is_host_running("double") {
        sim.crash("double");
    }
    for rank in 0..world {
        sim.release(name(rank), "server");
        sim.repair(name(rank), "server");
        sim.set_link_latency(name(rank), "server", Duration::from_millis(1));
        if !sim.is_host_running(name(rank)) {
            sim.bounce(name(rank));
        }
    }
    if !sim.is_host_running("server") {
        sim.bounce("server");
    }
    let (last, before) = (sim.elapsed(), progress(&shared.entries.borrow()));
    let mut found = Vec::new();
    while progress_grew(&shared, before) < 5 {
        sim.step().unwrap();
        if sim.elapsed() > last + Duration::from_secs(60) {
            found.push(format!("not healed 60 s after the last fault, at step {before}"));
            break;
        }
    }
    let healed = sim.elapsed() - last;
    // A member that cannot hear of its end fences itself: nobody works in a generation for a lease after the next began.
    for (generation, when) in shared.worked.borrow().iter() {
        for (later, began) in shared.began.borrow().iter() {
            if later > generation && *when > *began + LEASE {
                found.push(format!("work in generation {generation} at {when:?}, {later} began at {began:?}"));
            }
        }
    }
    found.truncate(20);
    drop(sim);
    let generations = shared.began.borrow().len();
    let entries = shared.entries.take();
    Outcome { world, entries, found, generations, healed }
}

fn progress_grew(shared: &Shared, before: u64) -> u64 {
    // Only the newest entries can have grown it.
    let entries = shared.entries.borrow();
    let newest = &entries[entries.len().saturating_sub(64)..];
    progress(newest).saturating_sub(before)
}

#[test]
fn simulated_networks_break_no_promise_and_heal() {
    let chosen = std::env::var("BOWSTRING_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let count = if crate::support::soak() { 2_000 } else { 200 };
    let seeds = chosen.map_or(0..count, |seed| seed..seed + 1);
    let begin = std::time::Instant::now();
    let (mut generations, mut steps, mut healed) = (0, 0, Vec::new());
    for seed in seeds {
        let mut outcome = simulate(seed, Variant::Usual);
        outcome.found.extend(violations(outcome.world, &outcome.entries, false));
        assert!(
            outcome.found.is_empty(),
            "{}\nBOWSTRING_SEED={seed} cargo nextest run gang::simulated::simulated_networks",
            outcome.found.join("\n")
        );
        generations += outcome.generations;
        steps += progress(&outcome.entries);
        healed.push(outcome.healed);
    }
    healed.sort_unstable();
    let at = |per_cent: usize| healed[(healed.len() - 1) * per_cent / 100];
    println!(
        "{} seeds in {:?}: {generations} generations, {steps} steps; healed after p50 {:?}, p99 {:?}, most {:?} (simulated)",
        healed.len(),
        begin.elapsed(),
        at(50),
        at(99),
        at(100)
    );
    assert!(chosen.is_some() || generations > healed.len() * 3 / 2, "the faults did nothing");
}

#[test]
fn a_seed_repeats_exactly() {
    for seed in [1, 77, 4096] {
        let (first, second) = (simulate(seed, Variant::Usual), simulate(seed, Variant::Usual));
        assert_eq!(first.healed, second.healed);
        assert!(first.entries == second.entries, "two runs of seed {seed} differ");
    }
}

/// The negative control: a server that forgets its gangs when it crashes breaks the promises, and the checker says so.
#[test]
fn a_server_without_a_journal_is_caught() {
    let caught = (0..20)
        .filter(|seed| {
            let outcome = simulate(*seed, Variant::Forgetful);
            !violations(outcome.world, &outcome.entries, false).is_empty()
        })
        .count();
    println!("{caught} of 20 servers that forget were caught");
    assert!(caught >= 10, "{caught} of 20");
}

/// The negative control of self-fencing: a rank whose clock is three times too slow acts on after it was replaced.
#[test]
fn a_clock_far_too_slow_is_caught() {
    let late = |seed, slow| {
        let outcome = simulate(seed, Variant::CutOff { slow });
        assert!(outcome.generations > 1, "nobody took the place of the rank that was cut off");
        let found = violations(outcome.world, &outcome.entries, false);
        assert!(found.is_empty(), "the server fences it all the same: {}", found.join("\n"));
        outcome.found.iter().any(|it| it.starts_with("work in generation"))
    };
    for seed in 0..8 {
        assert!(late(seed, true), "seed {seed}: the slow clock was not noticed");
        assert!(!late(seed, false), "seed {seed}: a clock within the margin acted for too long");
    }
}
