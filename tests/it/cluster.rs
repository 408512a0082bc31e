//! One cache for a cluster: nodes that name each other read each byte of the origin once, however many readers and epochs, and whoever
//! of them is killed.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bowstring::flight::server::{CacheServer, CacheServerOptions};
use bowstring::pipeline::LocalSource;
use bowstring::store::cache::{CachePlace, CacheStats};
use bowstring::store::{FileOptions, FileSystem};
use bowstring::{Error, Loader, LoaderOptions};
use tokio::runtime::Runtime;

use crate::cache::{FILES, Rig, succeeded, taken};
use crate::dataset::PINNED;
use crate::serve_shell::{Authority, write};
use crate::support::{drain, until};
use crate::{child, cli};

/// Bytes that are read of a file's end before it is known where its row groups begin.
const END: u64 = 64 << 10;
/// A limit that leaves no room for a block.
pub(crate) const NOTHING: u64 = 4096;

/// A served cache in this process.
pub(crate) struct Node {
    pub(crate) directory: PathBuf,
    pub(crate) address: String,
    runtime: Option<Runtime>,
}

impl Node {
    pub(crate) fn start(options: &CacheServerOptions) -> Self {
        Self::at("127.0.0.1:0", options)
    }

    /// A node at an address of its own.
    fn at(address: &str, options: &CacheServerOptions) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let server = CacheServer::new(options).unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(runtime.spawn(server.serve(listener, std::future::pending())));
        Self { directory: options.place.clone().into(), address, runtime: Some(runtime) }
    }

    pub(crate) fn port(&self) -> &str {
        self.address.rsplit(':').next().unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.runtime.take().unwrap().shutdown_background();
    }
}

/// Nodes with a directory each, of which each may take `limit` bytes.
fn nodes(rig: &Rig, count: usize, limit: u64) -> Vec<Node> {
    let directory = |number: usize| rig.root.path().join(format!("node{number}")).to_str().unwrap().to_owned();
    let options =
        |number: usize| CacheServerOptions { place: directory(number), bytes: Some(limit), ..Default::default() };
    (0..count).map(|number| Node::start(&options(number))).collect()
}

pub(crate) fn addresses(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(|node| node.address.clone()).collect()
}

/// Options of a loader with these peers and its cache in `directory`.
pub(crate) fn options(rig: &Rig, directory: &Path, limit: u64, seed: u64, peers: Vec<String>) -> LoaderOptions {
    let mut options = rig.options(Some(limit));
    options.cache = Some(directory.to_str().unwrap().to_owned());
    options.seed = seed;
    options.cache_peers = peers;
    options
}

/// The epochs of a loader without a cache.
fn plain(rig: &Rig, seed: u64, epochs: usize) -> Vec<Vec<Vec<i64>>> {
    let mut loader = Loader::open(LoaderOptions { seed, ..rig.options(None) }).unwrap();
    (0..epochs).map(|_| drain(&mut loader)).collect()
}

/// All bytes once, and the ends of files once more.
fn once(rig: &Rig) -> u64 {
    rig.bytes + FILES as u64 * END
}

/// Waits until what `loader` has fetched is with its home, unless a home fails.
pub(crate) fn all_given(loader: &Loader) {
    until("blocks are given", || {
        let stats = loader.stats().cache;
        stats.given + stats.refused >= stats.misses || stats.peer_failures > 0
    });
}

/// Each node reads all data, two of them in one order, in three epochs; returns the sum of their counters.
fn three_epochs_of_four(rig: &Rig, limit: u64) -> CacheStats {
    let expected: Vec<_> = (0..2).map(|seed| plain(rig, seed, 3)).collect();
    rig.asked();
    let nodes = nodes(rig, 4, limit);
    let peers = addresses(&nodes);
    let stats = thread::scope(|scope| {
        let readers: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(number, node)| {
                let (peers, expected) = (peers.clone(), &expected);
                scope.spawn(move || {
                    let seed = number as u64 / 2;
                    let mut loader = Loader::open(options(rig, &node.directory, limit, seed, peers)).unwrap();
                    for (epoch, rows) in expected[seed as usize].iter().enumerate() {
                        assert_eq!(drain(&mut loader), *rows, "node {number}, epoch {epoch}");
                    }
                    loader.stats().cache
                })
            })
            .collect();
        let sum = |sum: CacheStats, stats: CacheStats| sum.and(&stats);
        readers.into_iter().map(|reader| reader.join().unwrap()).fold(CacheStats::default(), sum)
    });
    let (bytes, _) = rig.asked();
    println!("{bytes} bytes of {} from the origin: {stats:?}", rig.bytes);
    assert!(bytes <= once(rig), "{bytes} bytes for {}: {stats:?}", rig.bytes);
    assert_eq!(stats.origin_bytes, bytes);
    assert_eq!((stats.damaged, stats.failures), (0, 0), "{stats:?}");
    stats
}

#[test]
fn four_nodes_read_each_byte_of_the_origin_once() {
    let rig = Rig::new();
    let stats = three_epochs_of_four(&rig, 1 << 30);
    // Each has a copy of all after the first epoch.
    assert!(stats.peer_bytes >= rig.bytes * 19 / 10 && stats.peer_bytes <= 3 * once(&rig), "{stats:?}");
    assert!(stats.hit_bytes >= 7 * rig.bytes, "{stats:?}");
}

#[test]
fn data_that_fit_into_the_cluster_and_into_no_node_are_read_once() {
    let rig = Rig::new();
    // Ports decide which blocks are whose: a node may be the home of far more than a quarter.
    let stats = three_epochs_of_four(&rig, rig.bytes * 9 / 10);
    assert!(stats.peer_bytes > rig.bytes * 3 / 2, "{stats:?}");
}

/// A process that serves a cache; killed when dropped.
struct Process {
    child: Child,
    address: String,
}

impl Process {
    fn start(directory: &Path, limit: u64) -> Self {
        let mut child = serve(directory)
            .args(["--listen", "127.0.0.1:0", "--print-address", "--cache-bytes", &limit.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().to_owned();
        assert!(address.starts_with("grpc://"), "{address:?}");
        Self { child, address }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bowstring"));
    command.args(["cache", "serve", directory.to_str().unwrap()]).stdin(Stdio::null());
    command
}

#[test]
fn a_node_that_is_killed_costs_its_blocks_once_more_and_nothing_else() {
    let rig = Rig::new();
    let expected = plain(&rig, 3, 4);
    rig.asked();
    let mut nodes: Vec<_> =
        (0..3).map(|number| Process::start(&rig.root.path().join(format!("node{number}")), 1 << 30)).collect();
    let peers: Vec<_> = nodes.iter().map(|node| node.address.clone()).collect();
    // Nothing stays with the readers.
    let reader = |number: usize| {
        let directory = rig.root.path().join(format!("reader{number}"));
        Loader::open(options(&rig, &directory, NOTHING, 3, peers.clone())).unwrap()
    };
    let (mut first, mut second) = (reader(1), reader(2));
    assert_eq!(drain(&mut first), expected[0]);
    assert_eq!(drain(&mut second), expected[0]);
    let (bytes, _) = rig.asked();
    assert!(bytes <= once(&rig), "{bytes} of {}", rig.bytes);
    all_given(&first);
    all_given(&second);
    // Both are in the middle of an epoch when it dies.
    let lost = thread::scope(|scope| {
        for loader in [&mut first, &mut second] {
            let expected = &expected;
            scope.spawn(move || {
                for (epoch, rows) in expected.iter().enumerate().skip(1) {
                    assert_eq!(drain(loader), *rows, "epoch {epoch}");
                }
            });
        }
        thread::sleep(Duration::from_millis(30));
        // Ports decide which blocks are whose.
        let held = |number: usize| taken(&rig.root.path().join(format!("node{number}")));
        let (lost, fullest) = (0..nodes.len()).map(|number| (held(number), number)).max().unwrap();
        nodes[fullest].child.kill().unwrap();
        lost
    });
    let mut asked: HashMap<String, usize> = HashMap::new();
    let mut again = 0;
    for request in rig.server.requests() {
        let range = request.strip_prefix("GET ").and_then(|request| request.rsplit_once("bytes=")?.1.split_once('-'));
        if let Some((start, end)) = range {
            again += end.parse::<u64>().unwrap() + 1 - start.parse::<u64>().unwrap();
            *asked.entry(request.clone()).or_default() += 1;
        }
    }
    let both = first.stats().cache.and(&second.stats().cache);
    println!("{again} bytes of {} again, in {} ranges: {both:?}", rig.bytes, asked.len());
    assert!(!asked.is_empty() && asked.values().all(|times| *times == 1), "{asked:?}");
    assert!(again <= lost, "{again} of {lost}");
    assert!(both.peer_failures > 0 && both.damaged == 0, "{both:?}");
    // Its successors have them.
    rig.asked();
    let mut third = reader(3);
    assert_eq!(drain(&mut third), expected[0]);
    // The ends of files are read once, when they are opened: those that were lost were not missed until now.
    let (bytes, _) = rig.asked();
    assert!(bytes <= FILES as u64 * END, "{bytes}");
}

#[test]
fn readers_share_the_directory_of_their_nodes_server() {
    let rig = Rig::new();
    let directories: Vec<_> = (0..2).map(|number| rig.root.path().join(format!("node{number}"))).collect();
    let nodes: Vec<_> = directories.iter().map(|directory| Process::start(directory, 1 << 30)).collect();
    let peers: Vec<_> = nodes.iter().map(|node| node.address.clone()).collect();
    let readers: Vec<_> = (0..4)
        .map(|number| {
            let variables = [
                ("CACHE_STORAGE", serde_json::to_string(&rig.server.storage_options()).unwrap()),
                ("CACHE_SEED", (number / 3).to_string()),
                ("CACHE_DIR", directories[number % 2].to_str().unwrap().to_owned()),
                ("CACHE_LIMIT", (1_u64 << 30).to_string()),
                ("CACHE_EPOCHS", "2".to_owned()),
                ("CACHE_PEERS", peers.join(",")),
            ];
            child::start("cache::reader", &variables)
        })
        .collect();
    for reader in readers {
        let output = reader.wait_with_output().unwrap();
        assert!(succeeded(&output), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let (bytes, _) = rig.asked();
    assert!(bytes <= once(&rig), "{bytes} of {} for four processes on two nodes", rig.bytes);
}

#[test]
fn a_checkpoint_is_read_once_for_all_nodes() {
    const SIZE: usize = 13 * (1 << 20) + 4321;
    let content: Vec<u8> = (0..SIZE as u64).map(|at| (at * 31 + (at >> 8) * 7) as u8).collect();
    let rig = Rig::new();
    rig.server.put("bucket/model.bin", content.clone(), PINNED);
    let nodes = nodes(&rig, 3, 1 << 30);
    let peers = addresses(&nodes);
    thread::scope(|scope| {
        for node in &nodes {
            let (peers, rig, content) = (peers.clone(), &rig, &content);
            scope.spawn(move || {
                let place = node.directory.to_str().unwrap().to_owned();
                let cache = CachePlace { place, bytes: Some(1 << 30), peers, ..CachePlace::default() };
                let storage_options = rig.server.storage_options();
                let files = FileSystem::new(FileOptions { storage_options, cache: Some(cache), ..Default::default() });
                let mut file = files.unwrap().open("s3://bucket/model.bin").unwrap();
                assert!(std::fs::read(file.local_path().unwrap()).unwrap() == *content);
            });
        }
    });
    assert_eq!(rig.asked().0, SIZE as u64);
}

/// A link in front of `address`: whoever connects to it gets what the other side says at `rate` bytes a second, all together.
fn link(address: &str, rate: u64) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (shown, address) = (listener.local_addr().unwrap().to_string(), address.to_owned());
    let free = Arc::new(Mutex::new(Instant::now()));
    thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&address) else { break };
            let (mut asking, mut asked) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            thread::spawn(move || drop(std::io::copy(&mut asking, &mut asked)));
            let (mut near, mut far, free) = (near, far, Arc::clone(&free));
            thread::spawn(move || {
                let mut bytes = vec![0; 64 << 10];
                while let Ok(length @ 1..) = far.read(&mut bytes) {
                    let until = {
                        let mut free = free.lock().unwrap();
                        *free = (*free).max(Instant::now()) + Duration::from_secs_f64(length as f64 / rate as f64);
                        *free
                    };
                    thread::sleep(until.saturating_duration_since(Instant::now()));
                    if near.write_all(&bytes[..length]).is_err() {
                        break;
                    }
                }
            });
        }
    });
    shown
}

/// All at once, each block would come too late: a second for each 4 MiB and five more are its time.
#[test]
fn hosts_that_share_a_slow_link_to_a_home_read_all_blocks_from_it() {
    const SIZE: usize = 24 << 20;
    const HOSTS: usize = 5;
    let rig = Rig::new();
    rig.server.put("bucket/model.bin", vec![7; SIZE], PINNED);
    let node = nodes(&rig, 1, 1 << 30).pop().unwrap();
    let read = |name: String, peer: &str| {
        let place = rig.root.path().join(name).to_str().unwrap().to_owned();
        let cache = CachePlace { place, bytes: Some(1 << 30), peers: vec![peer.to_owned()], ..CachePlace::default() };
        let storage_options = rig.server.storage_options();
        let files = FileSystem::new(FileOptions { storage_options, cache: Some(cache), ..Default::default() });
        let mut file = files.unwrap().open("s3://bucket/model.bin").unwrap();
        assert_eq!(std::fs::metadata(file.local_path().unwrap()).unwrap().len(), SIZE as u64);
        file.stats()
    };
    // The first one waits until its blocks are with their home.
    assert_eq!(read("first".to_owned(), &node.address).misses, 6);
    until("the home has all blocks", || bytes_kept(&node.directory) >= SIZE as u64);
    rig.asked();
    let peer = link(&node.address, 16_000_000);
    thread::scope(|scope| {
        let hosts: Vec<_> = (0..HOSTS)
            .map(|number| {
                let (read, peer) = (&read, &peer);
                scope.spawn(move || read(format!("host{number}"), peer))
            })
            .collect();
        for host in hosts {
            let stats = host.join().unwrap();
            assert_eq!((stats.peer_hits, stats.peer_failures, stats.misses), (6, 0, 0), "{stats:?}");
        }
    });
    assert_eq!(rig.asked().0, 0);
}

#[test]
fn a_home_that_comes_back_empty_is_given_blocks_again() {
    const SIZE: usize = 6 << 20;
    let rig = Rig::new();
    let place = |name: &str| rig.root.path().join(name).to_str().unwrap().to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let cache =
        CachePlace { place: place("own"), bytes: Some(1 << 30), peers: vec![address.clone()], ..CachePlace::default() };
    let storage_options = rig.server.storage_options();
    let files = FileSystem::new(FileOptions { storage_options, cache: Some(cache), ..Default::default() }).unwrap();
    let mut count = 0;
    let mut read = || {
        count += 1;
        rig.server.put(&format!("bucket/{count}.bin"), vec![7; SIZE], PINNED);
        let mut file = files.open(&format!("s3://bucket/{count}.bin")).unwrap();
        assert_eq!(std::fs::metadata(file.local_path().unwrap()).unwrap().len(), SIZE as u64);
        file.stats()
    };
    let stats = read();
    assert!(stats.peer_failures > 0 && stats.given == 0, "{stats:?}");
    let directory = PathBuf::from(place("home"));
    let options = CacheServerOptions { place: place("home"), bytes: Some(1 << 30), ..CacheServerOptions::default() };
    let _node = Node::at(&address, &options);
    // It is passed by for a second or two; whoever tries it then gets a lease first, as it has nothing.
    until("it has blocks", || {
        read();
        thread::sleep(Duration::from_millis(300));
        bytes_kept(&directory) > 0
    });
}

/// Bytes of the blocks in a cache's directory.
fn bytes_kept(directory: &Path) -> u64 {
    bowstring::store::cache::status(directory).unwrap().bytes
}

#[test]
fn who_warms_warms_the_cluster() {
    let rig = Rig::new();
    let nodes = nodes(&rig, 2, rig.bytes);
    let directory = |name: &str| rig.root.path().join(name);
    let source = LocalSource::open(options(&rig, &directory("warm"), NOTHING, 1, addresses(&nodes))).unwrap();
    let warmed = source.warm(1, &|_, _| true).unwrap();
    assert!(warmed.limit > rig.bytes && warmed.left_out == 0 && warmed.cache.given > 0, "{warmed:?}");
    // The ends of files are read again from their origin: there was no room for them where they were read.
    assert!(rig.asked().0 <= once(&rig));
    drop(source);
    let mut loader = Loader::open(options(&rig, &directory("reader"), NOTHING, 1, addresses(&nodes))).unwrap();
    assert_eq!(drain(&mut loader), plain(&rig, 1, 1)[0]);
    assert_eq!(loader.stats().cache.origin_bytes, 0, "{:?}", loader.stats().cache);
}

#[test]
fn warming_names_the_host_that_keeps_nothing() {
    let rig = Rig::new();
    let mut nodes = nodes(&rig, 1, 2 * rig.bytes);
    let place = rig.root.path().join("nothing").to_str().unwrap().to_owned();
    nodes.push(Node::start(&CacheServerOptions { place, bytes: Some(NOTHING), ..Default::default() }));
    let warm = |directory: &str, peers: Vec<String>| {
        let options = options(&rig, &rig.root.path().join(directory), NOTHING, 1, peers);
        LocalSource::open(options).unwrap().warm(1, &|_, _| true).unwrap()
    };
    let warmed = warm("warm", addresses(&nodes));
    assert!(!warmed.is_whole() && warmed.cache.given > 0, "{warmed:?}");
    assert_eq!(warmed.unkept.len(), 1, "{warmed:?}");
    let unkept = &warmed.unkept[0];
    assert!(unkept.peer == nodes[1].address && unkept.refused > 0 && unkept.failures == 0, "{warmed:?}");
    // A host that is not there leaves out what it could take.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = listener.local_addr().unwrap().to_string();
    drop(listener);
    let warmed = warm("alone", vec![gone.clone()]);
    assert!(!warmed.is_whole() && warmed.left_out == warmed.row_groups, "{warmed:?}");
    assert!(warmed.unkept.len() == 1 && warmed.unkept[0].peer == gone && warmed.unkept[0].failures > 0, "{warmed:?}");
}

#[test]
fn peers_speak_tls_and_hand_blocks_only_to_holders_of_a_token() {
    let rig = Rig::new();
    let keys = rig.root.path();
    let authority = Authority::new(keys, "cluster");
    let tokens = write(keys, "tokens", "ranks:a-token-of-the-ranks\n");
    let (cert, key) = &authority.server;
    let node = Node::start(&CacheServerOptions {
        place: keys.join("node").to_str().unwrap().to_owned(),
        bytes: Some(1 << 30),
        tokens: Some(tokens.into()),
        tls: Some(bowstring::flight::server::tls::TlsFiles { cert: cert.into(), key: key.into(), client_ca: None }),
        ..Default::default()
    });
    let expected = plain(&rig, 5, 1);
    let read = |name: &str, peer: &str, given: &[(&str, &str)]| {
        let mut options = options(&rig, &keys.join(name), NOTHING, 5, vec![peer.to_owned()]);
        options.cache_peer_options =
            given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        assert!(!format!("{options:?}").contains("a-token"), "{options:?}");
        let mut loader = Loader::open(options).unwrap();
        assert_eq!(drain(&mut loader), expected[0], "{name}");
        all_given(&loader);
        loader.stats().cache
    };
    let peer = format!("grpc+tls://localhost:{}", node.port());
    let ca = ("ca", authority.ca.as_str());
    let first = read("first", &peer, &[ca, ("token", "a-token-of-the-ranks")]);
    assert!(first.given + first.peer_hits > 0 && first.peer_failures == 0, "{first:?}");
    let second =
        read("second", &format!("dns+tls://localhost:{}", node.port()), &[ca, ("token", "a-token-of-the-ranks")]);
    assert!(second.peer_failures == 0, "the certificate is for the name: {second:?}");
    let third = read("third", &peer, &[ca, ("token", "a-token-of-the-ranks")]);
    assert!(third.peer_hits > 0 && third.origin_bytes == 0, "{third:?}");
    for (name, given) in [
        ("no token", vec![ca]),
        ("another token", vec![ca, ("token", "a-token-of-somebody")]),
        ("another authority", vec![("token", "a-token-of-the-ranks")]),
    ] {
        let stats = read(name, &peer, &given);
        assert!(stats.peer_hits == 0 && stats.given == 0 && stats.peer_failures > 0, "{name}: {stats:?}");
    }
    let plain = read("plain text", &node.address, &[("token", "a-token-of-the-ranks")]);
    assert!(plain.peer_hits == 0 && plain.peer_failures > 0, "{plain:?}");
}

#[test]
fn names_stand_for_the_hosts_behind_them_and_wrong_options_are_named() {
    let rig = Rig::new();
    let node = nodes(&rig, 1, 1 << 30).remove(0);
    let peers = vec![format!("dns://localhost:{}", node.port()), "dns://no-such-host.invalid".to_owned()];
    let directory = |name: &str| rig.root.path().join(name);
    for name in ["first", "second"] {
        let mut loader = Loader::open(options(&rig, &directory(name), NOTHING, 0, peers.clone())).unwrap();
        assert_eq!(drain(&mut loader), plain(&rig, 0, 1)[0]);
        all_given(&loader);
        let stats = loader.stats().cache;
        assert_eq!(stats.peer_failures, 0, "{stats:?}");
        assert!(name == "first" || stats.origin_bytes == 0, "{stats:?}");
    }
    for (peer, given, option) in [
        ("http://x:1", ("ca", "x"), "cache_peers"),
        ("x:1", ("transport", "tcp"), "cache_peer_options"),
        ("x:1", ("cert", "x"), "cache_peer_options"),
        ("x:1", ("token_file", "/no/such/file"), "token_file"),
    ] {
        let mut options = options(&rig, &directory("wrong"), NOTHING, 0, vec![peer.to_owned()]);
        options.cache_peer_options = [(given.0.to_owned(), given.1.to_owned())].into();
        match Loader::open(options) {
            Err(Error::Config { option: found, .. }) => assert_eq!(found, option),
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("{peer} and {given:?} are taken"),
        }
    }
}

#[test]
fn a_cache_is_not_open_by_accident() {
    let directory = tempfile::tempdir().unwrap();
    let output = serve(&directory.path().join("x")).args(["--listen", "0.0.0.0:0"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && text.contains("--tokens"), "{text}");
    let help = cli::run(&["cache", "serve", "--help"]);
    let text = help.stdout;
    assert!(help.code == 0 && text.contains("BOWSTRING_CACHE_TOKENS") && text.contains("127.0.0.1:8816"), "{text}");
}
