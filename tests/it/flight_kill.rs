//! Real processes under real signals: ranks killed and stopped, servers killed with torn journals, and drains with peers that
//! never read. Every row is trained on once, no process hangs, and the time to notice a failure is printed.

mod ledger;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use bowstring::flight::client::Gang;
use bowstring::flight::gang::JoinOptions;
use bowstring::pipeline::LoaderOptions;
use bowstring::{Error, Loader};

use crate::support::signal;
use crate::{child, support};
use ledger::{Entry, Event, Promised, Tail, Writer, now};

const WORLD: u32 = 4;
const GLOBAL: u64 = 16;
const FILES: [usize; 4] = [700, 1, 1300, 1607];
/// Lease of the gang: shorter than the stops, longer than the pauses of a busy machine.
const LEASE: Duration = Duration::from_millis(800);
/// Time after which a step counts as hanging.
const LONGEST: Duration = Duration::from_secs(40);

// ---- processes -----------------------------------------------------------------------------------------------------

/// A separate `bowstring serve` process; killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

impl Server {
    /// Serves `data` as `numbers` at `port`, or at any free one for 0. Its log is appended to the file `log`.
    pub(crate) fn start(data: &Path, port: u16, log: &Path, more: &[&str]) -> Self {
        let listen = format!("127.0.0.1:{port}");
        let data = format!("numbers={}", data.display());
        let mut child = crate::serve_shell::command(&[&data, "--listen", &listen, "--print-address"])
            .args(["--memory-budget", "256MiB", "--threads", "2"])
            .args(more)
            .stdout(Stdio::piped())
            .stderr(OpenOptions::new().create(true).append(true).open(log).unwrap())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
        let port = port.unwrap_or_else(|| panic!("no server: {}", fs::read_to_string(log).unwrap()));
        Self { child, port }
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end; returns its exit code and the time this took.
    fn ended(&mut self) -> (Option<i32>, Duration) {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (status.code(), started.elapsed());
            }
            assert!(started.elapsed() < LONGEST, "hang: the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One life of one rank.
struct Rank(Child);

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// ---- a rank --------------------------------------------------------------------------------------------------------

/// Trains as rank `RANK` until the epoch that the file `end` names, whatever happens on the way.
pub(crate) fn rank() {
    let home = PathBuf::from(support::variable("RANK_HOME").unwrap());
    let rank: u32 = support::variable("RANK").unwrap().parse().unwrap();
    let url = support::variable("RANK_URL").unwrap();
    let process = support::variable("RANK_PROCESS").unwrap();
    let mut ledger = Writer::open(&home.join(format!("ledger-{rank}-{process}")));
    let over = || home.join("finished").exists() || home.join(format!("retired-{process}")).exists();
    let mut generation = 0;
    while !over() {
        match life(&home, &url, rank, &mut ledger, &mut generation) {
            Ok(()) => return,
            Err(error) => ledger.write(generation, &Event::Error(error.chain())),
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Runs from joining to the end of the work, or to the first error.
fn life(home: &Path, url: &str, rank: u32, ledger: &mut Writer, generation: &mut u64) -> Result<(), Error> {
    let mut join = JoinOptions::new("kills", rank, WORLD);
    join.timeout = Duration::from_secs(15);
    let gang = Gang::join(url, &BTreeMap::new(), join)?;
    *generation = gang.caller().generation;
    let resume = gang.resume()?;
    ledger.write(*generation, &Event::Joined(resume));
    let transport = if rank.is_multiple_of(2) { "tcp" } else { "auto" };
    let options = LoaderOptions {
        urls: vec![format!("{url}/numbers")],
        storage_options: BTreeMap::from([("transport".to_owned(), transport.to_owned())]),
        timeout: 10.0,
        ..shape()
    };
    let mut loader = Loader::open_in(&options, &gang)?;
    if let Some((epoch, step)) = resume {
        let mut state = loader.state();
        (state.epoch, state.step) = (epoch, step + 1);
        loader.load_state(&state)?;
    }
    let ends = || fs::read_to_string(home.join("end")).ok().and_then(|epoch| epoch.parse::<u64>().ok());
    // A loader at the end of an epoch has not entered the next one.
    while loader.step() > 0 || ends().is_none_or(|end| loader.epoch() < end) {
        if let Some(batch) = loader.next()? {
            ledger.write(*generation, &Event::Batch(batch.epoch, batch.step, support::ids(&batch)));
            gang.ack(batch.epoch, batch.step)?;
            ledger.write(*generation, &Event::Acked(batch.epoch, batch.step));
        }
    }
    // A rank that passes this barrier knows that all are done.
    gang.barrier(Duration::from_secs(15))?;
    fs::write(home.join("finished"), "").unwrap();
    gang.leave(None)
}

/// The common options of all loaders here.
fn shape() -> LoaderOptions {
    LoaderOptions {
        global_batch_size: Some(GLOBAL),
        memory_budget: Some(64 << 20),
        prefetch: 4,
        threads: Some(1),
        tail: Some(bowstring::plan::Tail::Pad),
        ..LoaderOptions::default()
    }
}

// ---- the test of kills ---------------------------------------------------------------------------------------------

/// The counts of a run.
struct Counts {
    kills: usize,
    stops: usize,
    server_kills: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    Kill,
    Stop,
    Server,
}

struct Chaos {
    home: tempfile::TempDir,
    data: PathBuf,
    server: Option<Server>,
    port: u16,
    ranks: BTreeMap<u32, Rank>,
    born: u32,
    tails: Vec<Tail>,
    entries: Vec<Entry>,
    /// The newest generation that any rank joined.
    newest: u64,
    random: u64,
    taken: usize,
    torn: usize,
    /// Milliseconds.
    detection: Vec<f64>,
    detection_replaced: Vec<f64>,
    first_batch: Vec<f64>,
    outage: Vec<f64>,
}

impl Chaos {
    fn draw(&mut self, bound: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % bound
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn start_server(&mut self) {
        let (journal, key, log) = (self.path("journal"), self.path("key"), self.path("server-log"));
        let lease = LEASE.as_secs_f64().to_string();
        let more = ["--journal", journal.to_str().unwrap(), "--key-file", key.to_str().unwrap()];
        let server = Server::start(&self.data, self.port, &log, &[&more[..], &["--gang-lease", &lease]].concat());
        self.port = server.port;
        self.server = Some(server);
    }

    fn start_rank(&mut self, rank: u32) -> Option<Rank> {
        self.born += 1;
        let variables = [
            ("RANK_HOME", self.home.path().to_str().unwrap().to_owned()),
            ("RANK", rank.to_string()),
            ("RANK_URL", format!("grpc://127.0.0.1:{}", self.port)),
            ("RANK_PROCESS", self.born.to_string()),
        ];
        let path = self.path(&format!("ledger-{rank}-{}", self.born));
        self.tails.push(Tail::new(path, rank, self.born));
        self.ranks.insert(rank, Rank(child::start("flight_kill::rank", &variables)))
    }

    fn read(&mut self) {
        for tail in &mut self.tails {
            for entry in tail.more() {
                self.newest = self.newest.max(entry.generation);
                self.entries.push(entry);
            }
        }
    }

    /// Reads the last lines of a process that has ended.
    fn bury(&mut self, process: u32) {
        self.read();
        self.tails.retain(|tail| tail.process != process);
    }

    /// Returns the current process of `rank`.
    fn process(&self, rank: u32) -> u32 {
        self.tails.iter().filter(|tail| tail.rank == rank).map(|tail| tail.process).max().unwrap()
    }

    /// Reads the ranks' ledgers until `so` accepts the lines from number `mark` on and the newest generation; `what` names the wait.
    fn wait(&mut self, what: &str, mark: usize, so: impl Fn(&[Entry], u64) -> bool) {
        let started = Instant::now();
        loop {
            self.read();
            if so(&self.entries[mark..], self.newest) {
                return;
            }
            assert!(started.elapsed() < LONGEST, "hang: waited {LONGEST:?} for {what}\n{}", self.story());
            std::thread::sleep(Duration::from_millis(4));
        }
    }

    /// Describes the state for a failure report.
    fn story(&self) -> String {
        let mut lines: Vec<String> = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.generation + 1 >= self.newest) {
            if matches!(entry.event, Event::Joined(_) | Event::Error(_)) {
                lines.push(format!("{entry:?}"));
            }
        }
        for rank in 0..WORLD {
            let last = self.entries.iter().filter(|entry| entry.rank == rank).max_by_key(|entry| entry.at);
            lines.push(format!("last of rank {rank}: {last:?}"));
        }
        lines.push(fs::read_to_string(self.path("server-log")).unwrap_or_default());
        lines.join("\n")
    }

    /// Waits until all ranks have acknowledged something in one generation beyond `beyond`, by the lines from `mark` on.
    fn steady(&mut self, mark: usize, beyond: u64) {
        self.wait("all ranks to go on", mark, |entries, newest| {
            let acked = |it: &&Entry| it.generation == newest && matches!(it.event, Event::Acked(..));
            let ranks: BTreeSet<u32> = entries.iter().filter(acked).map(|it| it.rank).collect();
            newest > beyond && ranks.len() == WORLD as usize
        });
    }

    /// Waits for an error at every rank except `rank`, and returns the milliseconds each took since `time`. If the machine was too busy for
    /// a heartbeat, and the generation ended before the fault, there is nothing to notice, and a newer one forms.
    fn noticed(&mut self, rank: u32, (time, mark): (u64, usize), generation: u64) -> Vec<f64> {
        let ended =
            move |it: &&Entry| it.rank != rank && it.generation == generation && matches!(it.event, Event::Error(_));
        let error = move |it: &&Entry| ended(it) && it.at > time;
        let enough = WORLD as usize - 1;
        self.wait("the other ranks to notice", 0, |entries, newest| {
            let noticed = entries.iter().filter(ended).map(|it| it.rank).collect::<BTreeSet<_>>().len();
            noticed == enough || newest > generation
        });
        let others = (0..WORLD).filter(|other| *other != rank);
        let seen = &self.entries[mark..];
        let first = |other| seen.iter().filter(error).filter(|it| it.rank == other).map(|it| it.at).min();
        others.filter_map(first).map(|at| (at - time) as f64 / 1e6).collect()
    }

    /// Makes `fault` happen. If the gang was `steady` before, waits until it has recovered; otherwise leaves that to the next fault.
    fn strike(&mut self, fault: Fault, steady: bool) {
        let generation = self.newest;
        let rank = self.draw(u64::from(WORLD)) as u32;
        let (time, mark) = (now(), self.entries.len());
        match fault {
            Fault::Kill => {
                drop(self.ranks.remove(&rank));
                self.bury(self.process(rank));
                // A supervisor starts it again at once, or only when the others have ended.
                if !steady || self.draw(2) == 0 {
                    self.start_rank(rank);
                    if steady {
                        let noticed = self.noticed(rank, (time, mark), generation);
                        self.detection_replaced.extend(noticed);
                    }
                } else {
                    let noticed = self.noticed(rank, (time, mark), generation);
                    self.detection.extend(noticed);
                    self.start_rank(rank);
                }
            }
            Fault::Stop => {
                let process = self.ranks[&rank].0.id();
                let born = self.process(rank);
                signal(process, "-STOP");
                let stopped = Instant::now();
                if steady {
                    let noticed = self.noticed(rank, (time, mark), generation);
                    self.detection.extend(noticed);
                }
                std::thread::sleep((LEASE + LEASE / 4).saturating_sub(stopped.elapsed()));
                if steady && self.draw(2) == 0 {
                    // Another process takes its place, and then the old one wakes up in the middle of its work.
                    fs::write(self.path(&format!("retired-{born}")), "").unwrap();
                    let mut old = self.start_rank(rank).unwrap();
                    self.steady(mark, generation);
                    signal(process, "-CONT");
                    let woken = Instant::now();
                    while old.0.try_wait().unwrap().is_none() {
                        assert!(
                            woken.elapsed() < LONGEST,
                            "hang: a rank that was stopped does not end\n{}",
                            self.story()
                        );
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    assert!(old.0.wait().unwrap().success(), "a rank that was stopped failed");
                    self.bury(born);
                } else {
                    signal(process, "-CONT");
                }
            }
            Fault::Server => {
                drop(self.server.take());
                self.tear();
                self.start_server();
                if steady {
                    // An acknowledgement answered at the moment of the kill may be recorded shortly after it.
                    let acked = |it: &&Entry| it.at > time + 10_000_000 && matches!(it.event, Event::Acked(..));
                    self.wait("an acknowledgement after the server's return", mark, |entries, _| {
                        entries.iter().any(|it| acked(&it))
                    });
                    let first = self.entries[mark..].iter().filter(acked).map(|it| it.at - time).min();
                    self.outage.extend(first.map(|after| after as f64 / 1e6));
                }
            }
        }
        if steady {
            self.steady(self.entries.len(), if fault == Fault::Server { 0 } else { generation });
        }
    }

    /// Half of the time the server was killed during a write, which leaves part of a record. Sometimes the machine crashed too,
    /// and the last acknowledgement, which is not fsynced, never reached the disk.
    fn tear(&mut self) {
        let path = self.path("journal");
        let mut bytes = fs::read(&path).unwrap();
        let mut last = 8..8;
        while let Some(head) = bytes.get(last.end..last.end + 8) {
            let length = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize;
            if last.end + 8 + length > bytes.len() {
                break;
            }
            last = last.end..last.end + 8 + length;
        }
        let acknowledgement = String::from_utf8_lossy(&bytes[last.clone()]).contains("\"acked\"");
        match self.draw(4) {
            0 if acknowledgement => {
                bytes.truncate(last.end - 1 - self.draw(8) as usize);
                self.taken += 1;
                fs::write(&path, &bytes).unwrap();
            }
            0 | 1 => {
                let part = self.draw(last.len() as u64 - 1) as usize + 1;
                let part = bytes[last.start..last.start + part].to_vec();
                OpenOptions::new().append(true).open(&path).unwrap().write_all(&part).unwrap();
            }
            _ => return,
        }
        self.torn += 1;
    }
}

fn percentiles(what: &str, mut milliseconds: Vec<f64>) {
    milliseconds.sort_unstable_by(f64::total_cmp);
    let at = |part: f64| milliseconds.get(((milliseconds.len() as f64 - 1.0) * part).round() as usize).copied();
    let (p50, p99) = (at(0.5).unwrap_or(0.0), at(0.99).unwrap_or(0.0));
    println!("{what}: p50 {p50:.0} ms, p99 {p99:.0} ms, n {}", milliseconds.len());
}

#[test]
fn ranks_and_servers_are_killed_and_every_row_counts_once() {
    let counts = if support::soak() {
        Counts { kills: 100, stops: 50, server_kills: 50 }
    } else {
        Counts { kills: 10, stops: 5, server_kills: 5 }
    };
    let seed = support::seed("flight_kill::ranks");
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir(&data).unwrap();
    support::write(&data, &FILES.map(|rows| vec![rows]), 2);
    let key = home.path().join("key");
    fs::write(&key, std::array::from_fn::<u8, 32, _>(|at| at as u8 * 7)).unwrap();
    fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut chaos = Chaos {
        home,
        data,
        server: None,
        port: 0,
        ranks: BTreeMap::new(),
        born: 0,
        tails: Vec::new(),
        entries: Vec::new(),
        newest: 0,
        random: seed | 1,
        taken: 0,
        torn: 0,
        detection: Vec::new(),
        detection_replaced: Vec::new(),
        first_batch: Vec::new(),
        outage: Vec::new(),
    };
    let started = Instant::now();
    chaos.start_server();
    for rank in 0..WORLD {
        chaos.start_rank(rank);
    }
    chaos.steady(0, 0);
    let mut faults = vec![Fault::Kill; counts.kills];
    faults.extend(vec![Fault::Stop; counts.stops]);
    faults.extend(vec![Fault::Server; counts.server_kills]);
    for at in (1..faults.len()).rev() {
        let other = chaos.draw(at as u64 + 1) as usize;
        faults.swap(at, other);
    }
    for (at, fault) in faults.iter().enumerate() {
        // One in four strikes while the gang is still recovering from the previous one.
        let steady = chaos.draw(4) != 0 || at + 1 == faults.len();
        if steady {
            chaos.steady(chaos.entries.len(), 0);
        }
        chaos.strike(*fault, steady);
    }
    let seconds = started.elapsed().as_secs_f64();
    let epoch =
        chaos.entries.iter().filter_map(|it| if let Event::Batch(epoch, ..) = it.event { Some(epoch) } else { None });
    let epochs = epoch.max().unwrap() + 1;
    fs::write(chaos.path("end.part"), epochs.to_string()).unwrap();
    fs::rename(chaos.path("end.part"), chaos.path("end")).unwrap();
    for (rank, mut process) in std::mem::take(&mut chaos.ranks) {
        let ending = Instant::now();
        let status = loop {
            if let Some(status) = process.0.try_wait().unwrap() {
                break status;
            }
            assert!(ending.elapsed() < LONGEST, "hang: rank {rank} does not end");
            std::thread::sleep(Duration::from_millis(10));
        };
        assert!(status.success(), "rank {rank} failed: {status}");
    }
    chaos.read();

    for joined in chaos.entries.iter().filter(|it| matches!(it.event, Event::Joined(_))) {
        let of_it = |it: &&Entry| it.process == joined.process && it.generation == joined.generation;
        let first = chaos.entries.iter().filter(of_it).find(|it| matches!(it.event, Event::Batch(..)));
        chaos.first_batch.extend(first.map(|first| (first.at - joined.at) as f64 / 1e6));
    }
    let rows = FILES.iter().sum::<usize>() as i64;
    let steps = (rows as u64).div_ceil(GLOBAL);
    let promised = Promised { world: WORLD, steps, rows, epochs, taken: chaos.taken };
    let found = ledger::check(&chaos.entries, &promised);
    let Counts { kills, stops, server_kills } = counts;
    println!(
        "{kills} kills and {stops} stops of ranks, {server_kills} kills of the server ({} torn journals, {} lost acknowledgements), {seconds:.0} s",
        chaos.torn, chaos.taken
    );
    println!(
        "{} generations, {epochs} epochs, {} steps committed, {} stale batches",
        found.generations, found.committed, found.stale
    );
    percentiles("a lost rank is noticed by the others (lease 800 ms)", std::mem::take(&mut chaos.detection));
    percentiles("a replaced rank is noticed by the others", std::mem::take(&mut chaos.detection_replaced));
    percentiles("first batch after joining", std::mem::take(&mut chaos.first_batch));
    percentiles("outage by a kill of the server", std::mem::take(&mut chaos.outage));
    assert!(found.violations.is_empty(), "{}\n{}", found.violations.join("\n"), chaos.story());
    assert_eq!(found.committed, epochs * steps);
    println!("duplicates 0, missing 0, hangs 0");
}

// ---- the test of drains --------------------------------------------------------------------------------------------

const RANKS: u32 = 8;
const READERS: u32 = 6;

/// Opens the stream of `rank` as any Flight client does, and never reads from it.
async fn never_reading(port: u16, rank: u32) -> tonic::Streaming<arrow_flight::FlightData> {
    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    let channel = endpoint.connect_timeout(LONGEST).connect().await.unwrap();
    let mut client = arrow_flight::flight_service_client::FlightServiceClient::new(channel);
    let options = format!("{{\"global_batch_size\": {}}}", 8 * RANKS);
    let asked =
        format!("{{\"dataset\": \"numbers\", \"options\": {options}, \"rank\": {rank}, \"world_size\": {RANKS}}}");
    let info = client.get_flight_info(arrow_flight::FlightDescriptor::new_cmd(asked)).await.unwrap().into_inner();
    let ticket = info.endpoint.into_iter().next().and_then(|endpoint| endpoint.ticket).unwrap();
    client.do_get(ticket).await.unwrap().into_inner()
}

#[test]
fn a_server_told_to_end_is_gone_in_time_whoever_does_not_read() {
    let rounds = if support::soak() { 50 } else { 3 };
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    fs::create_dir(&data).unwrap();
    // The stream is longer than a client reads ahead by itself.
    support::write(&data, &[vec![1500; 2], vec![1001]], 128);
    let log = home.path().join("server-log");
    let options = |rank| support::options(&data, u64::from(8 * RANKS), rank, RANKS);
    let expected: Vec<Vec<Vec<i64>>> =
        (0..RANKS).map(|rank| support::drain(&mut Loader::open(options(rank)).unwrap())).collect();
    let mut took = Vec::new();
    for round in 0..rounds {
        // With a journal, the rank of a gang gives up sooner than the grace of 30 s ends: a quarter of its lease is all the time there is.
        let journal = home.path().join(format!("journal-{round}"));
        let journal = ["--journal", journal.to_str().unwrap(), "--gang-lease", "8"];
        let has_gang = round % 3 == 1;
        let flags: &[&str] = if has_gang { &journal } else { &["--drain-grace", "1"] };
        let mut server = Server::start(&data, 0, &log, flags);
        let port = server.port;
        let url = format!("grpc://127.0.0.1:{port}");
        let gang = has_gang.then(|| Gang::join(&url, &BTreeMap::new(), JoinOptions::new("g", 0, 1)).unwrap());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let unread: Vec<_> = (READERS..RANKS).map(|rank| runtime.block_on(never_reading(port, rank))).collect();
        let (half, reached) = std::sync::mpsc::channel();
        let readers: Vec<_> = (0..READERS)
            .map(|rank| {
                let transport = if rank.is_multiple_of(2) { "tcp" } else { "auto" };
                let options = LoaderOptions {
                    urls: vec![format!("grpc://127.0.0.1:{port}/numbers")],
                    storage_options: BTreeMap::from([("transport".to_owned(), transport.to_owned())]),
                    timeout: 20.0,
                    prefetch: 2,
                    ..options(rank)
                };
                let half = half.clone();
                std::thread::spawn(move || {
                    let mut loader = Loader::open(options).unwrap();
                    let mut steps = Vec::new();
                    while let Some(batch) = loader.next().unwrap() {
                        steps.push(support::ids(&batch));
                        if steps.len() == 10 + rank as usize {
                            half.send(()).unwrap();
                        }
                        std::thread::sleep(Duration::from_millis(15));
                    }
                    steps
                })
            })
            .collect();
        for _ in 0..READERS {
            reached.recv_timeout(LONGEST).expect("hang: the readers do not come to the middle");
        }
        server.signal("-TERM");
        let (code, time) = server.ended();
        assert_eq!(code, Some(0), "round {round}: {}", fs::read_to_string(&log).unwrap());
        let grace = Duration::from_secs(if has_gang { 2 } else { 1 });
        assert!(time < 2 * grace, "round {round}: it took {time:?}, the grace is {grace:?}");
        took.push((time - grace.min(time)).as_secs_f64() * 1e3);
        let _next = Server::start(&data, port, &log, if has_gang { &journal } else { &[] });
        for (rank, reader) in readers.into_iter().enumerate() {
            assert_eq!(reader.join().unwrap(), expected[rank], "round {round}, rank {rank}");
        }
        if let Some(gang) = gang {
            gang.ack(0, 0).unwrap();
            gang.leave(None).unwrap();
        }
        drop(unread);
        runtime.shutdown_background();
    }
    percentiles("from the grace of 1 or 2 s to the end, where two of eight streams are never read", took);
}
