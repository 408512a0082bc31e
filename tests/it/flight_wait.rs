//! Every place where a client waits for a server that is stopped, silent, stalled or unreachable: a timely error that names the peer.
//! A slow consumer is never an error.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use bowstring::flight::client::Gang;
use bowstring::flight::gang::JoinOptions;
use bowstring::pipeline::LoaderOptions;
use bowstring::{Error, Loader};

use crate::flight_kill::Server;
use crate::support::{self, signal};

/// The limit of each wait, and the lease of the gang.
fn deadline() -> Duration {
    Duration::from_millis(if support::soak() { 1500 } else { 4000 })
}

/// Tolerance on top. A machine with other load takes longer; the soak expects one without.
fn slack() -> Duration {
    Duration::from_secs(if support::soak() { 1 } else { 8 })
}

/// Time after which a case counts as hanging.
const LONGEST: Duration = Duration::from_secs(120);
/// Cases that run at once: they sleep nearly all of the time.
const AT_ONCE: usize = 12;
const ROWS: [usize; 3] = [2500, 2500, 1001];
/// 24 MB of rows: more than the kernel buffers for a stopped server.
const MANY: [usize; 3] = [16_000; 3];
const BATCH: u64 = 256;

/// The fault of the peer.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// Its process is stopped.
    Stopped,
    /// It reads everything and sends nothing.
    Mute,
    /// It sends this many more bytes and then stops; it still reads.
    Stalls(usize),
    /// No data passes in either direction, and new connections are not answered.
    Dropped,
}
use Fault::{Dropped, Mute, Stalls, Stopped};

/// The place where the client waits at the fault.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Point {
    Connect,
    /// The n-th request of a loader: for the description, again for the epoch, and for the stream.
    Request(u64),
    /// In the stream, after two batches.
    Batches,
    /// Between the response that names the shared memory and its handshake.
    Handshake,
    SharedBatches,
    Join,
    Barrier,
    AllGather,
    Members,
    Ack,
    Leave,
}

/// 12 bytes are part of an HTTP/2 frame; 4000 are the headers without a batch; a batch has 133 kB.
const TABLE: &[(Point, &[Fault])] = &[
    (Point::Connect, &[Stopped, Mute, Dropped]),
    (Point::Request(1), &[Stopped, Mute, Stalls(12), Dropped]),
    (Point::Request(2), &[Stopped, Mute, Stalls(12), Dropped]),
    (Point::Request(3), &[Stopped, Mute, Stalls(12), Stalls(4000), Stalls(60_000), Dropped]),
    (Point::Batches, &[Stopped, Mute, Stalls(1), Stalls(70_000), Dropped]),
    (Point::Handshake, &[Stopped]),
    (Point::SharedBatches, &[Stopped]),
    (Point::Join, &[Stopped, Mute, Stalls(12), Dropped]),
    (Point::Barrier, &[Stopped, Mute, Stalls(12), Dropped]),
    (Point::AllGather, &[Stopped, Mute, Stalls(12), Dropped]),
    (Point::Members, &[Stopped, Mute, Stalls(12), Dropped]),
    (Point::Ack, &[Stopped, Mute, Stalls(12), Dropped]),
    (Point::Leave, &[Stopped, Mute, Stalls(12), Dropped]),
];

// ---- the network ---------------------------------------------------------------------------------------------------

/// The time at which the fault strikes by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Trigger {
    Never,
    /// Before the n-th request reaches the server.
    Request(u64),
    /// After the answer to the n-th request, before it reaches the client.
    Answer(u64),
}

#[derive(Debug)]
struct State {
    struck: Option<Instant>,
    requests: u64,
    /// Bytes that a stalling server still sends.
    left: usize,
}

#[derive(Debug)]
struct Network {
    server: u16,
    process: u32,
    fault: Fault,
    trigger: Trigger,
    state: Mutex<State>,
    sockets: Mutex<Vec<TcpStream>>,
    over: AtomicBool,
}

impl Network {
    fn strike(&self, state: &mut State) {
        if state.struck.is_none() {
            if self.fault == Stopped {
                signal(self.process, "-STOP");
                // Its threads stop one by one, as the kernel gets to them.
                thread::sleep(Duration::from_millis(100));
            }
            state.struck = Some(Instant::now());
        }
    }

    fn to_server(&self, mut client: TcpStream, mut server: TcpStream) {
        let mut buffer = vec![0; 16 << 10];
        let mut frames = Frames { skip: 24, head: Vec::new() };
        while let Ok(read @ 1..) = client.read(&mut buffer) {
            let mut state = self.state.lock().unwrap();
            state.requests += frames.requests(&buffer[..read]);
            if matches!(self.trigger, Trigger::Request(at) if state.requests >= at) {
                self.strike(&mut state);
            }
            let swallowed = state.struck.is_some() && self.fault == Dropped;
            drop(state);
            if !swallowed && server.write_all(&buffer[..read]).is_err() {
                break;
            }
        }
        let _ = server.shutdown(Shutdown::Both);
    }

    fn to_client(&self, mut server: TcpStream, mut client: TcpStream) {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(read @ 1..) = server.read(&mut buffer) {
            // A slow network: a stream must not end before a fault can strike.
            thread::sleep(Duration::from_millis(5));
            let mut state = self.state.lock().unwrap();
            if matches!(self.trigger, Trigger::Answer(at) if state.requests >= at) && state.struck.is_none() {
                // Wait until the whole answer is under way.
                thread::sleep(Duration::from_millis(200));
                self.strike(&mut state);
            }
            let passed = match (state.struck, self.fault) {
                (None, _) | (_, Stopped) => read,
                (_, Mute | Dropped) => 0,
                (_, Stalls(_)) => read.min(state.left),
            };
            if state.struck.is_some() {
                state.left -= passed.min(state.left);
            }
            drop(state);
            if client.write_all(&buffer[..passed]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
    }
}

/// Counts the requests of an HTTP/2 client: each has one DATA frame that is not empty.
struct Frames {
    skip: usize,
    head: Vec<u8>,
}

impl Frames {
    fn requests(&mut self, mut bytes: &[u8]) -> u64 {
        let mut found = 0;
        while !bytes.is_empty() {
            if self.skip > 0 {
                let skipped = self.skip.min(bytes.len());
                self.skip -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            self.head.push(bytes[0]);
            bytes = &bytes[1..];
            if self.head.len() == 9 {
                let length = self.head[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
                found += u64::from(self.head[3] == 0 && length > 0);
                self.skip = length;
                self.head.clear();
            }
        }
        found
    }
}

/// A proxy in front of a server, where a fault can strike.
struct Proxy {
    network: Arc<Network>,
    port: u16,
}

impl Proxy {
    fn start(server: &Server, fault: Fault, trigger: Trigger) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let left = if let Stalls(left) = fault { left } else { 0 };
        let network = Arc::new(Network {
            server: server.port,
            process: server.id(),
            fault,
            trigger,
            state: Mutex::new(State { struck: None, requests: 0, left }),
            sockets: Mutex::default(),
            over: AtomicBool::new(false),
        });
        let inside = Arc::clone(&network);
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                if inside.over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(server) = connect(inside.server) else { continue };
                let copies = || (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (there, back) = (copies(), copies());
                inside.sockets.lock().unwrap().extend([client, server]);
                let (one, other) = (Arc::clone(&inside), Arc::clone(&inside));
                thread::spawn(move || one.to_server(there.0, there.1));
                thread::spawn(move || other.to_client(back.1, back.0));
            }
        });
        Self { network, port }
    }

    fn strike(&self) {
        self.network.strike(&mut self.network.state.lock().unwrap());
    }

    fn struck(&self) -> Option<Instant> {
        self.network.state.lock().unwrap().struck
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.network.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        for socket in self.network.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Opens a connection that buffers little unread data.
fn connect(port: u16) -> std::io::Result<TcpStream> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stream = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(64 << 10)?;
        socket.connect(std::net::SocketAddr::from(([127, 0, 0, 1], port))).await?.into_std()
    })?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Opens a port that ignores connections: its queue is full, and the kernel drops new ones.
fn deaf() -> (u16, Vec<TcpStream>, tokio::net::TcpListener, tokio::runtime::Runtime) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _inside = runtime.enter();
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = socket.listen(1).unwrap();
    let address = listener.local_addr().unwrap();
    let waiting = std::iter::from_fn(|| TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok());
    let waiting: Vec<_> = waiting.take(64).collect();
    assert!(waiting.len() < 64, "the queue is never full");
    drop(_inside);
    (address.port(), waiting, listener, runtime)
}

// ---- the cases -----------------------------------------------------------------------------------------------------

fn options(port: u16, transport: &str) -> LoaderOptions {
    LoaderOptions {
        urls: vec![format!("grpc://127.0.0.1:{port}/numbers")],
        storage_options: BTreeMap::from([("transport".to_owned(), transport.to_owned())]),
        global_batch_size: Some(BATCH),
        rank: Some(0),
        world_size: Some(1),
        timeout: deadline().as_secs_f64(),
        prefetch: 2,
        memory_budget: Some(64 << 20),
        ..LoaderOptions::default()
    }
}

/// Reads an epoch; after each batch, `taken` gets the number so far.
fn epoch(options: LoaderOptions, mut taken: impl FnMut(usize)) -> Result<(), Error> {
    let mut loader = Loader::open(options)?;
    let mut batches = 0;
    while loader.next()?.is_some() {
        batches += 1;
        taken(batches);
    }
    Ok(())
}

/// Runs a single rank whose server is struck before the call `what`.
fn rank(proxy: &Proxy, gang: &str, what: Point) -> Result<(), Error> {
    let mut join = JoinOptions::new(gang, 0, 1);
    join.timeout = deadline();
    if what == Point::Join {
        proxy.strike();
    }
    let gang = Gang::join(&format!("grpc://127.0.0.1:{}", proxy.port), &BTreeMap::new(), join)?;
    // The server works before the fault.
    gang.barrier(deadline())?;
    proxy.strike();
    match what {
        Point::Barrier => gang.barrier(deadline()),
        Point::AllGather => gang.all_gather(b"here", deadline()).map(drop),
        Point::Members => gang.members().map(drop),
        Point::Ack => gang.ack(0, 0).map(drop),
        _ => gang.leave(None),
    }
}

/// Runs one case, again if a busy machine finished it before the fault.
fn run(point: Point, fault: Fault, server: &Server, number: usize) -> Result<Duration, String> {
    let again = |attempt| attempt_at(point, fault, server, 10 * number + attempt);
    (0..3).map(again).find(|(struck, _)| *struck).map_or(Err("it was never struck".to_owned()), |(_, outcome)| outcome)
}

/// Returns true if the fault struck, and the duration of the error or a description of the failure.
fn attempt_at(point: Point, fault: Fault, server: &Server, number: usize) -> (bool, Result<Duration, String>) {
    let mut struck = false;
    let outcome = strike(point, fault, server, number, &mut struck);
    (struck, outcome)
}

fn strike(
    point: Point,
    fault: Fault,
    server: &Server,
    number: usize,
    was_struck: &mut bool,
) -> Result<Duration, String> {
    let trigger = match point {
        Point::Request(at) => Trigger::Request(at),
        Point::Handshake => Trigger::Answer(2),
        _ => Trigger::Never,
    };
    let proxy = Proxy::start(server, fault, trigger);
    let mut last = Instant::now();
    let (outcome, port) = match point {
        Point::Connect if fault == Dropped => {
            let (port, _waiting, _listener, _runtime) = deaf();
            last = Instant::now();
            proxy.strike();
            (epoch(options(port, "tcp"), |_| {}), port)
        }
        Point::Connect | Point::Request(_) | Point::Batches | Point::Handshake | Point::SharedBatches => {
            if point == Point::Connect {
                proxy.strike();
            }
            let shared = matches!(point, Point::Handshake | Point::SharedBatches);
            let transport = if shared { "shared_memory" } else { "tcp" };
            let strikes = matches!(point, Point::Batches | Point::SharedBatches);
            let outcome = epoch(options(proxy.port, transport), |batches| {
                if strikes && batches == 2 {
                    proxy.strike();
                }
                last = Instant::now();
            });
            (outcome, proxy.port)
        }
        _ => (rank(&proxy, &format!("gang{number}"), point), proxy.port),
    };
    // Batches that had already arrived are still delivered.
    let took = proxy.struck().map(|struck| struck.max(last).elapsed());
    *was_struck = took.is_some();
    let (Err(error), Some(took)) = (&outcome, took) else {
        return Err(format!("it came to {outcome:?}, and was struck {took:?} ago"));
    };
    let text = error.chain();
    if !matches!(error, Error::Timeout { .. } | Error::Fenced { .. }) {
        return Err(format!("not an error of time: {text}"));
    }
    if !text.contains(&format!("127.0.0.1:{port}")) {
        return Err(format!("the peer at port {port} is not named: {text}"));
    }
    if took > deadline() + slack() {
        return Err(format!("it took {took:?}: {text}"));
    }
    Ok(took)
}

fn home(rows: [usize; 3]) -> (tempfile::TempDir, PathBuf, PathBuf) {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("data");
    std::fs::create_dir(&data).unwrap();
    support::write(&data, &rows.map(|rows| vec![rows]), 128);
    let log = home.path().join("server-log");
    (home, data, log)
}

fn start(data: &Path, log: &Path) -> Server {
    let lease = deadline().as_secs_f64().to_string();
    Server::start(data, 0, log, &["--gang-lease", &lease, "--drain-grace", "0"])
}

#[test]
fn every_wait_of_a_client_ends_in_time_and_names_the_peer() {
    let (_home, data, log) = home(MANY);
    let everybodys = Arc::new(start(&data, &log));
    let cases = TABLE.iter().flat_map(|(point, faults)| faults.iter().map(|fault| (*point, *fault)));
    // A third of the table, selected by the number.
    let part: usize = std::env::var("BOWSTRING_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let cases: Vec<_> = if support::soak() { cases.collect() } else { cases.skip(part % 3).step_by(3).collect() };
    let mut wrong = Vec::new();
    let mut took = Vec::new();
    for (wave, some) in cases.chunks(AT_ONCE).enumerate() {
        let (done, outcomes) = mpsc::channel();
        for (index, (point, fault)) in some.iter().copied().enumerate() {
            let (data, log, everybodys, done) = (data.clone(), log.clone(), Arc::clone(&everybodys), done.clone());
            thread::spawn(move || {
                // A stopped process is not shared with other cases.
                let server = if fault == Stopped { Arc::new(start(&data, &log)) } else { everybodys };
                let outcome = run(point, fault, &server, wave * AT_ONCE + index);
                let _ = done.send((point, fault, outcome));
            });
        }
        drop(done);
        for _ in some {
            let (point, fault, outcome) =
                outcomes.recv_timeout(LONGEST).expect("hang: a case does not end, or panicked");
            match outcome {
                Ok(time) => took.push(time),
                Err(problem) => wrong.push(format!("{point:?} x {fault:?}: {problem}")),
            }
        }
    }
    println!(
        "{} cases, the slowest error after {:?}, the deadline is {:?}",
        cases.len(),
        took.iter().max(),
        deadline()
    );
    // On a busy machine a case may end before its fault strikes, but most must not.
    let (missed, wrong): (Vec<_>, Vec<_>) = wrong.into_iter().partition(|problem| problem.contains("never struck"));
    missed.iter().for_each(|problem| println!("{problem}"));
    let most = if support::soak() { 0 } else { cases.len() / 4 };
    assert!(missed.len() <= most, "{} of {} cases were never struck: {missed:?}", missed.len(), cases.len());
    assert!(wrong.is_empty(), "{} of {} cases:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
    println!("hangs 0");
}

#[test]
fn a_slow_consumer_is_not_an_error() {
    let (_home, data, log) = home(ROWS);
    let server = start(&data, &log);
    let port = server.port;
    // The last case copies the batches that wait for its consumer, with room for two copies.
    let cases = [("tcp", 2, 64 << 20), ("shared_memory", 2, 64 << 20), ("shared_memory", 8, 300_000)];
    let readers = cases.map(|(transport, prefetch, budget)| {
        thread::spawn(move || {
            let options = LoaderOptions { prefetch, memory_budget: Some(budget), ..options(port, transport) };
            let mut loader = Loader::open(options).unwrap();
            let mut ids = Vec::new();
            let mut batches = 0;
            while let Some(batch) = loader.next().unwrap_or_else(|error| panic!("{transport}: {}", error.chain())) {
                ids.extend(support::ids(&batch));
                batches += 1;
                if batches % if support::soak() { 10 } else { 50 } == 1 {
                    thread::sleep(3 * deadline());
                }
            }
            ids.sort_unstable();
            assert_eq!(ids, (0..ROWS.iter().sum::<usize>() as i64).collect::<Vec<_>>(), "{transport}");
            batches
        })
    });
    for reader in readers {
        assert_eq!(reader.join().unwrap(), ROWS.iter().sum::<usize>().div_ceil(BATCH as usize));
    }
}
