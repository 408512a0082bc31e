//! Shared memory between real processes: the same bytes, and no leftovers of processes that are killed, stopped or slow.
//!
//! The server is a child that serves synthetic batches: a ticket is `count bytes exclusive pause_ms`. The ticket `state` asks for the
//! memory it holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bowstring::error::Error;
use bowstring::flight::shm::{
    ConnectOptions, Incoming, Listener, ListenerOptions, Outgoing, Receiver, Refusal, Source, connect,
};
use bowstring::memory::{Pool, SharedAllocator, SlabPool};
use bytes::Bytes;
use futures::{FutureExt, StreamExt};

use crate::{child, support};

const BUDGET: usize = 1 << 30;
const WINDOW: u16 = 4;
/// Limit of every wait of these tests.
const PATIENCE: Duration = Duration::from_secs(20);

// ---- batches -------------------------------------------------------------------------------------------------------

/// Returns word `at` of batch `number`.
fn word(number: u64, at: usize) -> u64 {
    (number << 40 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn fill(bytes: &mut [u8], number: u64) {
    for (at, chunk) in bytes.chunks_mut(8).enumerate() {
        let word = word(number, at).to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

fn check(batch: &Incoming, number: u64) {
    assert_eq!(&batch.header[..], &number.to_le_bytes());
    assert_eq!(&batch.extra[..], format!("extra of {number}").as_bytes());
    let body = batch.body.as_ref().unwrap();
    for (at, chunk) in body.chunks(8).enumerate() {
        assert_eq!(chunk, &word(number, at).to_le_bytes()[..chunk.len()], "batch {number}, word {at}");
    }
}

/// Returns the bytes of batch `number`: most batches have one size, as in training, but not all of those with their own slabs.
fn length(bytes: usize, exclusive: bool, number: u64) -> usize {
    if exclusive && number.is_multiple_of(7) { bytes / 2 + number as usize * 8 } else { bytes }
}

fn source(memory: &Memory, ticket: &str) -> Result<Source, Refusal> {
    if ticket == "state" {
        let header = format!("{} {}", memory.used(), memory.allocator.slabs_held()).into();
        let state = Outgoing { header, slab: None, exclusive: false, extra: Vec::new(), paid: None };
        return Ok(futures::stream::iter([Ok(state)]).boxed().into());
    }
    if let Some(ticket) = ticket.strip_prefix("ended ") {
        let ended = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            Refusal { code: 14, message: "others wait for it".to_owned() }
        };
        return Ok(Source { ended: ended.boxed(), ..source(memory, ticket)? });
    }
    let numbers: Vec<usize> = ticket.split(' ').filter_map(|number| number.parse().ok()).collect();
    let &[count, bytes, exclusive, pause] = &numbers[..] else {
        return Err(Refusal { code: 77, message: format!("no such ticket: {ticket}") });
    };
    let pool = memory.pool(exclusive == 1, bytes);
    let batches = futures::stream::iter(0..count as u64).then(move |number| {
        let pool = Arc::clone(&pool);
        async move {
            tokio::time::sleep(Duration::from_millis(pause as u64)).await;
            let len = length(bytes, exclusive == 1, number);
            let mut slab = pool.reserve(len).await?.allocate(len)?;
            fill(&mut slab, number);
            let extra = vec![Bytes::from_static(b"extra "), format!("of {number}").into()];
            let header = Bytes::copy_from_slice(&number.to_le_bytes());
            Ok(Outgoing { header, slab: Some(Arc::new(slab)), exclusive: exclusive == 1, extra, paid: None })
        }
    });
    Ok(batches.boxed().into())
}

// ---- processes -----------------------------------------------------------------------------------------------------

fn options() -> ConnectOptions {
    let (heartbeat, deadline) = (Duration::from_millis(100), Duration::from_secs(1));
    ConnectOptions { window: WINDOW, heartbeat, deadline, ..ConnectOptions::default() }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// The memory of a server's batches.
struct Memory {
    allocator: Arc<SharedAllocator>,
    /// By the length of their batches, 0 for any length.
    pools: Mutex<BTreeMap<usize, Arc<Pool>>>,
}

impl Memory {
    fn new() -> Self {
        Self { allocator: Arc::new(SharedAllocator::new()), pools: Mutex::default() }
    }

    /// As in a server: batches for one client have their own slabs; small ones of one length share slabs.
    fn pool(&self, exclusive: bool, len: usize) -> Arc<Pool> {
        let mut pools = self.pools.lock().unwrap();
        let pool = pools.entry(if exclusive { 0 } else { len }).or_insert_with_key(|len| {
            let shared = || Arc::clone(&self.allocator);
            match SlabPool::new(shared(), *len, SlabPool::bytes(BUDGET, *len)) {
                Some(shelf) => Pool::new(Arc::new(shelf), BUDGET),
                None => Pool::new(shared(), BUDGET),
            }
        });
        Arc::clone(pool)
    }

    fn used(&self) -> usize {
        self.pools.lock().unwrap().values().map(|pool| pool.used()).sum()
    }
}

/// A child of this binary that is killed when the test ends, however it ends.
struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Process {
    fn start(role: &str, variables: &[(&str, &str)]) -> Self {
        let mut child = child::command(role)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Returns the text after `key` in the next line that begins with it.
    fn line(&mut self, key: &str) -> String {
        let mut seen = Vec::new();
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            if let Some(rest) = line.strip_prefix(key) {
                return rest.trim().to_owned();
            }
            seen.push(line);
        }
        panic!("the child ended without {key:?}: {seen:?}");
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn signal(&self, name: &str) {
        support::signal(self.child.id(), name);
    }

    /// Returns the names of the child's open descriptors, except its standard streams, which may be files of the caller.
    fn descriptors(&self) -> Vec<String> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().map(Result::unwrap);
        let own = entries.filter(|entry| !["0", "1", "2"].contains(&entry.file_name().to_str().unwrap()));
        let links = own.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.map(|link| link.to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Server(Process, String);

impl Server {
    fn start() -> Self {
        let mut process = Process::start("shm::server", &[]);
        let name = process.line("name ");
        Self(process, name)
    }

    async fn connect(&self, ticket: &str) -> Receiver {
        connect(&self.1, Bytes::copy_from_slice(ticket.as_bytes()), options()).await.unwrap()
    }

    /// Returns the bytes of the pools in use, and the number of slabs not freed.
    async fn state(&self) -> (usize, usize) {
        let batch = self.connect("state").await.next().await.unwrap().unwrap();
        let text = String::from_utf8(batch.header.to_vec()).unwrap();
        let (used, slabs) = text.split_once(' ').unwrap();
        (used.parse().unwrap(), slabs.parse().unwrap())
    }

    /// Waits until no batch is held.
    async fn idle(&self) {
        let start = Instant::now();
        while self.state().await.0 != 0 {
            assert!(start.elapsed() < PATIENCE, "still held: {:?}", self.state().await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Returns the abstract sockets of bowstring on this host.
fn sockets() -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/net/unix").unwrap();
    let names = table.lines().filter_map(|line| line.split_whitespace().nth(7));
    names.filter(|name| name.starts_with("@bowstring-")).map(str::to_owned).collect()
}

pub(crate) fn server() {
    // The test's name is at the start of the line.
    println!();
    let memory = Memory::new();
    let options = ListenerOptions {
        heartbeat: Duration::from_millis(100),
        silence: Duration::from_secs(3),
        handshake: Duration::from_millis(500),
        ..ListenerOptions::default()
    };
    runtime().block_on(async {
        let listener = Listener::bind(Arc::clone(&memory.allocator), options).unwrap();
        println!("name {}", listener.name());
        let (gone, parent) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            // Ends with the parent, even if that is killed.
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
            gone.send(())
        });
        let open = move |ticket: Bytes| {
            let source = source(&memory, &String::from_utf8_lossy(&ticket));
            std::future::ready(source)
        };
        listener.run(open, async { drop(parent.await) }).await;
    });
}

pub(crate) fn rank() {
    let name = support::variable("SHM_NAME").unwrap();
    let ticket = support::variable("SHM_TICKET").unwrap();
    println!();
    runtime().block_on(async {
        let mut batches = connect(&name, ticket.into(), options()).await.unwrap();
        let mut kept = Vec::new();
        let mut number = 0;
        while let Some(batch) = batches.next().await {
            let batch = batch.unwrap();
            check(&batch, number);
            // Two older batches are in use while the next is read, and must not change.
            kept.push((number, batch));
            if kept.len() == 3 {
                let (number, batch) = kept.remove(0);
                check(&batch, number);
            }
            println!("batch {number}");
            std::io::stdout().flush().unwrap();
            number += 1;
        }
        drop(batches);
        kept.iter().for_each(|(number, batch)| check(batch, *number));
        println!("end {number}");
    });
}

// ---- the tests -----------------------------------------------------------------------------------------------------

#[test]
fn ranks_get_the_same_bytes_in_another_process() {
    let server = Server::start();
    let count = if support::soak() { 1000 } else { 60 };
    let tickets = [1, 0].map(|exclusive| format!("{count} 1000000 {exclusive} 0"));
    let mut ranks =
        tickets.map(|ticket| Process::start("shm::rank", &[("SHM_NAME", &server.1), ("SHM_TICKET", &ticket)]));
    for rank in &mut ranks {
        assert_eq!(rank.line("end "), count.to_string());
        assert!(rank.child.wait().unwrap().success());
    }
    runtime().block_on(server.idle());
}

#[test]
fn killed_ranks_leave_nothing_and_disturb_nobody() {
    let cycles = if support::soak() { 200 } else { 20 };
    let mut server = Server::start();
    let before = sockets();
    assert!(before.contains(&format!("@{}", server.1)));
    let shm = || {
        fs::read_dir("/dev/shm").map_or(0, |entries| {
            entries.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().contains("bowstring")).count()
        })
    };
    let files = shm();
    runtime().block_on(async {
        // One honest rank continues through all of it, with batches in the slabs of those that are killed.
        let mut honest = server.connect("100000 100000 0 1").await;
        let mut number = 0;
        let mut open = Vec::new();
        for cycle in 0..cycles {
            let ticket = ["1000 100000 0 0", "1000 2000000 1 0", "1000 2000000 0 0"][cycle % 3];
            let mut rank = Process::start("shm::rank", &[("SHM_NAME", &server.1), ("SHM_TICKET", ticket)]);
            for _ in 0..=cycle % 5 {
                rank.line("batch ");
            }
            rank.kill();
            for _ in 0..20 {
                check(&honest.next().await.unwrap().unwrap(), number);
                number += 1;
            }
            if cycle >= 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
                open.push(server.0.descriptors().len());
            }
        }
        drop(honest);
        server.idle().await;
        let slabs = server.state().await.1;
        println!("{slabs} slabs in the end");
        assert!(slabs <= 12, "killed ranks leave slabs that never become empty");
        let (least, most) = (open.iter().min().unwrap(), open.iter().max().unwrap());
        println!(
            "{cycles} ranks killed: {least} to {most} descriptors in the server, {number} batches to another rank"
        );
        let late = open[open.len() * 3 / 4..].iter().min().unwrap();
        // Free slabs are kept for the next batch, as the pool decides; killed ranks must not add to them without end.
        assert!(*late <= least + 12, "descriptors grow: {open:?}");
        for name in server.0.descriptors() {
            assert!(!name.starts_with("/dev/shm") && !name.starts_with("/tmp"), "the server has {name}");
        }
    });
    server.0.kill();
    assert!(!sockets().contains(&format!("@{}", server.1)), "the socket outlived the server");
    assert_eq!(shm(), files);
}

#[test]
fn a_killed_server_is_an_error_at_once_and_a_stopped_one_within_the_deadline() {
    runtime().block_on(async {
        for signal in ["-KILL", "-STOP"] {
            let mut server = Server::start();
            let mut batches = server.connect("100000 100000 1 5").await;
            let kept = batches.next().await.unwrap().unwrap();
            for number in 1..10 {
                check(&batches.next().await.unwrap().unwrap(), number);
            }
            let start = Instant::now();
            server.0.signal(signal);
            // A few batches may have been in flight.
            let error = loop {
                match batches.next().await {
                    Some(Ok(batch)) => drop(batch),
                    Some(Err(error)) => break error,
                    None => panic!("the stream ended as if all were sent"),
                }
            };
            let waited = start.elapsed();
            println!("{signal}: after {waited:?}: {error}");
            assert!(error.to_string().contains(&server.1), "{error}");
            if signal == "-KILL" {
                assert!(matches!(error, Error::Remote { .. }));
            } else {
                assert!(matches!(error, Error::Timeout { .. }));
                assert!(waited < PATIENCE, "{waited:?}");
            }
            assert!(batches.next().await.is_none());
            server.0.kill();
            // The memory lives as long as its user.
            check(&kept, 0);
            let gone = connect(&server.1, Bytes::new(), options()).await.unwrap_err();
            assert!(matches!(gone, Error::Remote { .. }), "{gone}");
        }
    });
}

#[test]
fn slow_ranks_and_slow_sources_are_not_taken_for_dead() {
    let server = Server::start();
    runtime().block_on(async {
        let slow_source = async {
            let mut batches = server.connect("2 100000 1 3500").await;
            for number in 0..2 {
                check(&batches.next().await.unwrap().unwrap(), number);
            }
            assert!(batches.next().await.is_none());
        };
        let slow_rank = async {
            // Longer than the rank's deadline, and than the server's tolerance of silence.
            let mut batches = server.connect("20 100000 1 0").await;
            let first = batches.next().await.unwrap().unwrap();
            tokio::time::sleep(Duration::from_millis(3500)).await;
            check(&first, 0);
            drop(first);
            for number in 1..20 {
                check(&batches.next().await.unwrap().unwrap(), number);
            }
            assert!(batches.next().await.is_none());
        };
        tokio::join!(slow_source, slow_rank);
        server.idle().await;
    });
}

#[test]
fn a_rank_that_releases_nothing_blocks_only_itself() {
    let server = Server::start();
    runtime().block_on(async {
        let mut hoarder = server.connect("100 100000 1 0").await;
        let mut kept = Vec::new();
        for _ in 0..WINDOW {
            kept.push(hoarder.next().await.unwrap().unwrap());
        }
        let more = tokio::time::timeout(Duration::from_millis(300), hoarder.next()).await;
        assert!(more.is_err(), "a batch beyond the window");
        let mut other = server.connect("100 100000 1 0").await;
        for number in 0..100 {
            check(&other.next().await.unwrap().unwrap(), number);
        }
        kept.iter().zip(0..).for_each(|(batch, number)| check(batch, number));
        drop(kept);
        for number in u64::from(WINDOW)..100 {
            check(&hoarder.next().await.unwrap().unwrap(), number);
        }
        // Batches outlive the stream, and their memory is not used again for others.
        let mut last = server.connect("4 100000 1 0").await;
        let held = last.next().await.unwrap().unwrap();
        drop(last);
        server.idle().await;
        let mut next = server.connect("50 100000 1 0").await;
        while let Some(batch) = next.next().await {
            batch.unwrap();
        }
        check(&held, 0);
    });
}

#[test]
fn batches_kept_by_a_rank_are_reclaimed_when_its_source_ends() {
    let server = Server::start();
    runtime().block_on(async {
        let mut hoarder = server.connect("ended 100 100000 1 0").await;
        let mut kept = Vec::new();
        for _ in 0..WINDOW {
            kept.push(hoarder.next().await.unwrap().unwrap());
        }
        server.idle().await;
        let error = hoarder.next().await.unwrap().unwrap_err();
        let Error::Remote { source: Some(source), what, .. } = &error else { panic!("{error}") };
        assert_eq!((source.downcast_ref::<Refusal>().unwrap().code, &**what), (14, "others wait for it"));
        kept.iter().zip(0..).for_each(|(batch, number)| check(batch, number));
    });
}

#[test]
fn a_refusal_arrives_with_its_code() {
    let server = Server::start();
    runtime().block_on(async {
        let error = server.connect("nonsense").await.next().await.unwrap().unwrap_err();
        let Error::Remote { source: Some(source), what, .. } = &error else { panic!("{error}") };
        assert_eq!(what, "no such ticket: nonsense");
        assert_eq!(source.downcast_ref::<Refusal>().unwrap().code, 77);
    });
}
