//! The gang as its ranks meet it: over memory with a clock that jumps, and over a simulated network that fails.

#[path = "../../src/flight/gang/tests/ledger.rs"]
mod ledger;
/// Ranks that would read different plans.
mod plans;
/// Ranks, a server and a network, each of which crashes, stalls and comes back.
mod simulated;

use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bowstring::flight::gang::{
    CallError, JoinOptions, Member, MemberInfo, Position, Registry, RegistryOptions, Share, Token, Wire,
};
use bowstring::{Error, Result};
use futures::future::BoxFuture;
use tokio::time::Instant;

use self::ledger::Random;

/// Calls to a registry in the same process, through a line that can be cut.
struct Memory {
    registry: Mutex<Arc<Registry>>,
    /// 0 works, 1 refuses, 2 swallows the call, 3 swallows the answer, 4 holds the answer to a leave back for a while, 5 swallows it.
    line: AtomicU8,
}

impl Memory {
    fn new(registry: Arc<Registry>) -> Arc<Self> {
        Arc::new(Self { registry: Mutex::new(registry), line: AtomicU8::new(0) })
    }

    fn set(&self, line: u8) {
        self.line.store(line, Ordering::Relaxed);
    }
}

impl Wire for Memory {
    fn call(&self, action: &str, body: Vec<u8>, _: Duration) -> BoxFuture<'_, Result<Vec<u8>, CallError>> {
        let action = action.to_owned();
        Box::pin(async move {
            match self.line.load(Ordering::Relaxed) {
                1 => {
                    let (peer, what) = ("memory".into(), "refused".into());
                    return Err(CallError::Unreached(Error::Remote { peer, what, source: None }));
                }
                2 => return std::future::pending().await,
                _ => {}
            }
            let registry = Arc::clone(&self.registry.lock().unwrap());
            let answer = registry.call(&action, &body).await;
            match self.line.load(Ordering::Relaxed) {
                3 => return std::future::pending().await,
                5 if action == "gang.leave" => return std::future::pending().await,
                4 if action == "gang.leave" => tokio::time::sleep(RegistryOptions::default().lease / 3).await,
                _ => {}
            }
            answer.map_err(CallError::Answered)
        })
    }
}

/// A directory in memory where there is one: thousands of fsyncs of a disk are not what is tested.
fn quick_directory() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { tempfile::tempdir_in(memory).unwrap() } else { tempfile::tempdir().unwrap() }
}

/// Runs `work` on a clock that jumps to the next timer.
fn jumping<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(work)
}

fn options(rank: u32, world: u32) -> JoinOptions {
    let info =
        MemberInfo { address: format!("10.0.0.{rank}:1"), device: format!("cuda:{rank}"), host: format!("n{rank}") };
    JoinOptions { info, timeout: Duration::from_secs(60), ..JoinOptions::new("run", rank, world) }
}

async fn join_all(wire: &Arc<Memory>, world: u32) -> Result<Vec<Member>> {
    let joins = (0..world).map(|rank| Member::join(Arc::clone(wire) as Arc<dyn Wire>, options(rank, world)));
    futures::future::join_all(joins).await.into_iter().collect()
}

fn registry(journal: Option<&Path>) -> Arc<Registry> {
    Registry::open(journal.map(Path::to_owned), RegistryOptions::default()).unwrap()
}

const LONG: Duration = Duration::from_secs(100);

#[test]
fn a_heartbeat_beside_a_leave_ends_nothing() {
    jumping(async {
        let wire = Memory::new(registry(None));
        let members = join_all(&wire, 2).await.unwrap();
        wire.set(4);
        for member in &members {
            // A heartbeat is due every quarter of the lease, and learns that the rank has left before the leave has its answer.
            member.leave().await.unwrap();
            assert!(matches!(member.barrier(LONG).await, Err(Error::Fenced { .. })));
        }
    });
}

#[test]
fn a_rank_has_left_though_the_answers_are_lost_for_longer_than_its_lease() {
    jumping(async {
        let wire = Memory::new(registry(None));
        let members = join_all(&wire, 2).await.unwrap();
        wire.set(5);
        let heals = async {
            tokio::time::sleep(RegistryOptions::default().lease * 5 / 4).await;
            wire.set(0);
        };
        let (left, ()) = tokio::join!(members[0].leave(), heals);
        left.unwrap();
        assert!(matches!(members[0].check(), Err(Error::Fenced { .. })));
        members[1].check().unwrap();
        members[1].leave().await.unwrap();
        // A server that never answers is named, and nothing is fenced by that.
        let members = join_all(&wire, 1).await.unwrap();
        wire.set(5);
        assert!(matches!(members[0].leave().await, Err(Error::Timeout { .. })));
    });
}

#[test]
fn ranks_join_meet_gather_acknowledge_and_leave() {
    jumping(async {
        let wire = Memory::new(registry(None));
        let members = join_all(&wire, 4).await.unwrap();
        let infos = members[2].members().await.unwrap();
        let seen: Vec<_> = infos.members.iter().map(|it| (it.rank, it.info.device.as_str(), it.share)).collect();
        assert_eq!(seen[3], (3, "cuda:3", Share { rank: 3, of: 4 }));
        assert_eq!((infos.generation, seen.len()), (1, 4));

        // The barrier opens with the last rank, hours of heartbeats later.
        let begin = Instant::now();
        let hour = Duration::from_secs(3600);
        let waits = members.iter().enumerate().map(|(rank, member)| async move {
            tokio::time::sleep(hour * rank as u32).await;
            member.barrier(hour * 5).await.unwrap();
            begin.elapsed()
        });
        for waited in futures::future::join_all(waits).await {
            assert!(waited >= hour * 3 && waited < hour * 3 + Duration::from_secs(1), "{waited:?}");
        }
        let bytes: Vec<Vec<u8>> = (0..4_u8).map(|rank| vec![rank; usize::from(rank) * 1000]).collect();
        let gathers = members.iter().zip(&bytes).map(|(member, bytes)| member.all_gather(bytes, LONG));
        for gathered in futures::future::join_all(gathers).await {
            assert_eq!(gathered.unwrap(), bytes);
        }

        let mut tokens = Vec::new();
        for (member, step) in members.iter().zip([7, 7, 5, 7]) {
            tokens.push(member.ack(2, step).await.unwrap());
        }
        assert_eq!(tokens[0], tokens[3]);
        assert_eq!(tokens[2], Token::new("run", 1, Position { epoch: 2, step: 5 }));
        assert_eq!(members[3].acknowledged(), Some((2, 5)));
        for member in &members {
            member.leave().await.unwrap();
            assert!(matches!(member.barrier(LONG).await, Err(Error::Fenced { .. })));
        }
        let state = wire.call("gang.state", br#"{"gang":"run"}"#.to_vec(), LONG).await.unwrap();
        assert!(String::from_utf8(state).unwrap().contains(r#""phase":"ended""#));
    });
}

#[test]
fn unknown_and_malformed_calls_are_refused_by_name() {
    jumping(async {
        let registry = registry(None);
        let text = |result: Result<Vec<u8>>| result.unwrap_err().to_string();
        let unknown = text(registry.call("gang.juin", b"{}").await);
        assert!(unknown.contains("gang.juin") && unknown.contains("gang.join, gang.heartbeat"), "{unknown}");
        for body in [&b"{}"[..], b"", b"\xff", br#"{"gang":"x","extra":1}"#, b"[]", b"null", br#"{"gang":7}"#] {
            for action in bowstring::flight::gang::wire::ACTIONS {
                let error = registry.call(action, body).await.unwrap_err();
                assert!(matches!(error, Error::Config { option: "gang call", .. }), "{action} {body:?}: {error:?}");
            }
        }
        assert!(matches!(registry.call("gang.join", &vec![b' '; 3 << 20]).await, Err(Error::Limit { .. })));
        assert!(matches!(registry.call("gang.state", br#"{"gang":"x"}"#).await, Err(Error::NotFound { .. })));
    });
    assert!(matches!(Registry::open(None, RegistryOptions::default()), Err(Error::Config { .. })), "no runtime");
}

/// Time from the last sign of life of a rank to the moment when another rank knows.
#[test]
fn a_lost_member_is_noticed_within_the_lease() {
    let lease = RegistryOptions::default().lease;
    let mut random = Random(11);
    let rounds = if crate::support::soak() { 1000 } else { 100 };
    let mut times: Vec<(Duration, Duration, u8)> = (0..rounds)
        .map(|_| {
            let (alive, how) = (Duration::from_millis(random.below(60_000)), 1 + random.below(3) as u8);
            jumping(async {
                let server = registry(None);
                let (wire, bad) = (Memory::new(Arc::clone(&server)), Memory::new(server));
                let three = (0..3).map(|rank| Member::join(Arc::clone(&wire) as Arc<dyn Wire>, options(rank, 4)));
                let fourth = Member::join(Arc::clone(&bad) as Arc<dyn Wire>, options(3, 4));
                let (three, fourth) = futures::join!(futures::future::join_all(three), fourth);
                let (three, fourth) = (three.into_iter().collect::<Result<Vec<_>>>().unwrap(), fourth.unwrap());
                tokio::time::sleep(alive).await;
                bad.set(how);
                let begin = Instant::now();
                let (others, own) = futures::join!(
                    async {
                        let error = three[0].barrier(LONG * 100).await.unwrap_err();
                        assert!(matches!(&error, Error::Fenced { why, .. } if why.contains("rank 3 lost")), "{error}");
                        begin.elapsed()
                    },
                    async {
                        let error = fourth.ended().await;
                        assert!(matches!(error, Error::Fenced { .. }), "{error}");
                        begin.elapsed()
                    }
                );
                (others, own, how)
            })
        })
        .collect();
    // Where only the way back is dead, heartbeats still renew the lease, until the member has fenced itself.
    for (others, own, how) in &times {
        assert!(own <= others, "the member took itself for alive for {own:?}, the gang lost it after {others:?}");
        assert!(*own <= lease && *others <= if *how == 3 { lease * 2 } else { lease }, "{how}: {others:?}, {own:?}");
    }
    times.retain(|(_, _, how)| *how != 3);
    times.sort_unstable();
    let at = |per_cent: usize| times[(times.len() - 1) * per_cent / 100].0.as_secs_f64() / lease.as_secs_f64();
    println!(
        "detection of a lost member, in leases of {lease:?}: p50 {:.2}, p99 {:.2}, most {:.2}",
        at(50),
        at(99),
        at(100)
    );
}

#[test]
fn every_wait_ends_by_its_deadline_and_names_the_culprit() {
    // join, barrier, all_gather x (a rank is missing; the server refuses, swallows calls, swallows answers)
    for line in 0..4_u8 {
        jumping(async {
            let wire = Memory::new(registry(None));
            let members = join_all(&wire, 2).await.unwrap();
            let wait = Duration::from_millis(3_200);
            wire.set(line);
            let begin = Instant::now();
            let joining = JoinOptions { timeout: wait, gang: "other".into(), ..options(1, 2) };
            let results = [
                Member::join(Arc::clone(&wire) as Arc<dyn Wire>, joining).await.map(drop),
                members[0].barrier(wait).await,
            ];
            let waited = begin.elapsed();
            assert!(waited >= wait * 2 && waited <= (wait + Duration::from_secs(1)) * 2, "{waited:?}");
            for result in results {
                let error = result.unwrap_err();
                assert!(matches!(error, Error::Timeout { .. }), "line {line}: {error:?}");
                let text = error.to_string();
                let named = match line {
                    0 => text.contains("rank 0 of gang other") || text.contains("rank 1 of gang run"),
                    _ => text.contains("the server of gang"),
                };
                assert!(named, "line {line}: {text}");
            }
            if line == 0 {
                let gathered = members[1].all_gather(b"x", wait).await.unwrap_err().to_string();
                assert!(gathered.contains("rank 0 of gang run"), "{gathered}");
                members[1].leave().await.unwrap();
            } else {
                // Without heartbeats the member takes itself for dead, and everything ends at once.
                let error = members[1].all_gather(b"x", LONG).await.unwrap_err();
                assert!(matches!(error, Error::Fenced { .. }), "{error:?}");
                assert!(begin.elapsed() < Duration::from_secs(11));
                assert!(matches!(members[1].ack(0, 1).await, Err(Error::Fenced { .. })));
            }
        });
    }
}

#[test]
fn a_dropped_call_takes_its_arrival_back() {
    jumping(async {
        let wire = Memory::new(registry(None));
        let members = join_all(&wire, 2).await.unwrap();
        let gone = tokio::time::timeout(Duration::from_secs(1), members[0].barrier(LONG)).await;
        assert!(gone.is_err());
        let short = members[1].barrier(Duration::from_secs(2)).await.unwrap_err().to_string();
        assert!(short.contains("rank 0 of gang run"), "it must not open short: {short}");
        let (a, b) = futures::join!(members[0].barrier(LONG), members[1].barrier(LONG));
        a.and(b).unwrap();

        // A join that was given up leaves the rank free at once.
        let other = |rank| JoinOptions { gang: "other".into(), ..options(rank, 2) };
        let gone = Member::join(Arc::clone(&wire) as Arc<dyn Wire>, other(0));
        assert!(tokio::time::timeout(Duration::from_millis(500), gone).await.is_err());
        let (a, b) = futures::join!(
            Member::join(Arc::clone(&wire) as Arc<dyn Wire>, other(0)),
            Member::join(Arc::clone(&wire) as Arc<dyn Wire>, other(1))
        );
        assert_eq!((a.unwrap().generation(), b.unwrap().generation()), (1, 1));
    });
}

#[test]
fn a_dropped_member_ends_the_generation_and_its_streams() {
    jumping(async {
        let server = registry(None);
        let wire = Memory::new(Arc::clone(&server));
        let mut members = join_all(&wire, 3).await.unwrap();
        let (attempt, other) = (members[1].attempt(), members[2].attempt());
        let mut fence = server.fence("run", 1, attempt, 1).unwrap();
        for (rank, attempt, generation) in [(1, other, 1), (2, attempt, 1), (1, attempt, 2), (3, attempt, 1)] {
            assert!(matches!(server.fence("run", rank, attempt, generation), Err(Error::Fenced { .. })));
        }
        assert!(matches!(server.fence("no", 1, attempt, 1), Err(Error::Fenced { .. })));
        assert!(tokio::time::timeout(LONG, fence.ended()).await.is_err(), "it runs");
        let begin = Instant::now();
        drop(members.pop());
        let end = fence.ended().await.to_string();
        assert!(end.contains("rank 2 failed: it was dropped without leaving"), "{end}");
        let end = members[0].barrier(LONG).await.unwrap_err().to_string();
        assert!(end.contains("rank 2 failed"), "{end}");
        assert!(begin.elapsed() < Duration::from_millis(100), "at once");
        assert!(fence.check().is_err());
        members[1].fail("x").await.unwrap_err();
        assert_eq!(join_all(&wire, 3).await.unwrap()[0].generation(), 2);
    });
}

#[test]
fn a_server_that_was_killed_goes_on_with_the_same_generation() {
    let home = quick_directory();
    let path = home.path().join("gangs");
    jumping(async {
        let wire = Memory::new(registry(Some(&path)));
        let members = join_all(&wire, 3).await.unwrap();
        for round in 0..4_u64 {
            // Two ranks have the answer of the round, the third only after the restart.
            let begin = Instant::now();
            let own: [[u8; 2]; 3] = [0, 1, 2].map(|rank| [rank, round as u8]);
            let late = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                members[2].all_gather(&own[2], LONG).await
            };
            let crash = async {
                tokio::time::sleep(Duration::from_millis(1500)).await;
                wire.set(1);
                // Calls that the old one holds end with it.
                *wire.registry.lock().unwrap() = registry(None);
                tokio::time::sleep(Duration::from_millis(5_500)).await;
                *wire.registry.lock().unwrap() = registry(Some(&path));
                wire.set(0);
                tokio::time::sleep(Duration::from_secs(3)).await;
            };
            let (a, b, c, ()) =
                futures::join!(members[0].all_gather(&own[0], LONG), members[1].all_gather(&own[1], LONG), late, crash);
            let all: Vec<Vec<u8>> = own.iter().map(|own| own.to_vec()).collect();
            assert_eq!(
                [a.unwrap(), b.unwrap(), c.unwrap()],
                [all.clone(), all.clone(), all],
                "after {:?}",
                begin.elapsed()
            );
            for member in &members {
                member.ack(0, round).await.unwrap();
                assert_eq!(member.generation(), 1);
            }
        }
        assert_eq!(members[0].members().await.unwrap().generation, 1);
        assert_eq!(members[2].acknowledged(), Some((0, 3)));
    });
    // Torn at any byte, it opens, and never says more than was acknowledged.
    let whole = std::fs::read(&path).unwrap();
    let torn = home.path().join("torn");
    let mut last = None;
    for length in (0..=whole.len()).rev() {
        std::fs::write(&torn, &whole[..length]).unwrap();
        jumping(async {
            let state = registry(Some(&torn)).call("gang.state", br#"{"gang":"run"}"#).await;
            let state: Option<bowstring::flight::gang::wire::State> =
                state.ok().map(|state| serde_json::from_slice(&state).unwrap());
            let found = state.map(|state| (state.generation, state.acknowledged));
            assert!(last.is_none_or(|last| found <= last), "{found:?} after {last:?} at {length}");
            last = Some(found);
        });
    }
    assert_eq!(last, Some(None), "nothing is left of nothing");
}
