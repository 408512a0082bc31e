//! Stores that are slow now and then, or as a whole: reads that are late are requested a second time, and there are few of these.

use std::path::Path;
use std::time::Duration;

use bowstring::{Loader, LoaderOptions};
use tempfile::TempDir;

use crate::dataset::Server;
use crate::support::{self, drain};

const FILES: usize = 4;
const GROUPS: usize = 60;
const ROWS: usize = 1000;

/// A dataset on a server like S3, in a bucket of its own: what is known of an origin is known to the process.
struct Rig {
    _root: TempDir,
    server: Server,
    url: String,
}

impl Rig {
    fn new(bucket: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        support::write(root.path(), &vec![vec![ROWS; GROUPS]; FILES], 4);
        let server = Server::start();
        server.upload(root.path(), &format!("{bucket}/d"));
        Self { _root: root, server, url: format!("s3://{bucket}/d") }
    }

    fn loader(&self, hedge: &str) -> Loader {
        let mut storage_options = self.server.storage_options();
        storage_options.insert("hedge".to_owned(), hedge.to_owned());
        // A request that is not answered is not given up.
        storage_options.insert("timeout".to_owned(), "1h".to_owned());
        let loader = Loader::open(LoaderOptions {
            urls: vec![self.url.clone()],
            storage_options,
            seed: 7,
            lanes: Some(2),
            window_rows: Some(ROWS as u64),
            ..support::options(Path::new(""), 100, 0, 1)
        });
        loader.unwrap()
    }

    /// Requests for ranges since the last call.
    fn asked(&self) -> usize {
        self.server
            .requests()
            .iter()
            .filter(|request| request.starts_with("GET ") && request.contains("bytes="))
            .count()
    }
}

#[test]
fn requests_that_are_never_answered_are_overtaken_by_a_few_second_ones() {
    let rig = Rig::new("stalling");
    let mut plain = rig.loader("false");
    rig.asked();
    let epochs: Vec<_> = (0..3).map(|_| drain(&mut plain)).collect();
    let first = rig.asked();
    let mut hedged = rig.loader("true");
    rig.asked();
    assert_eq!(drain(&mut hedged), epochs[0]);
    rig.server.stall(60);
    // Without second requests, this waits for an hour.
    assert_eq!([drain(&mut hedged), drain(&mut hedged)], epochs[1..]);
    let (asked, (stalled, waiting)) = (rig.asked(), rig.server.stalled());
    println!("{asked} requests for {first}, {stalled} stalled");
    assert!(stalled >= 6 && waiting == 0, "{stalled} stalled, {waiting} still do");
    let more = asked - first;
    assert!(more as u64 >= stalled && more * 20 <= first, "{more} more than {first}, {stalled} stalled");
    assert_eq!(hedged.stats().read.bytes, plain.stats().read.bytes);
}

#[test]
fn a_store_that_is_slow_as_a_whole_gets_hardly_more_requests() {
    let rig = Rig::new("slow");
    let mut plain = rig.loader("false");
    rig.asked();
    let epochs = [drain(&mut plain), drain(&mut plain)];
    let first = rig.asked();
    let mut hedged = rig.loader("true");
    rig.asked();
    assert_eq!(drain(&mut hedged), epochs[0]);
    rig.server.delay(Duration::from_millis(120));
    assert_eq!(drain(&mut hedged), epochs[1]);
    let more = rig.asked() - first;
    println!("{more} requests more than {first}");
    assert!(more > 0 && more * 20 <= first, "{more} more than {first}");
}

#[test]
fn a_store_that_has_too_many_requests_gets_no_second_ones() {
    let rig = Rig::new("busy");
    let mut plain = rig.loader("false");
    let mut hedged = rig.loader("true");
    assert_eq!(drain(&mut hedged), drain(&mut plain));
    rig.asked();
    rig.server.refuse_one();
    rig.server.delay(Duration::from_millis(120));
    for _ in 0..300 {
        hedged.next().unwrap().unwrap();
    }
    let requests = rig.server.requests();
    let mut ranges: Vec<_> = requests.iter().filter(|request| request.contains("bytes=")).collect();
    let all = ranges.len();
    ranges.sort();
    ranges.dedup();
    assert!(
        all >= 30 && all - ranges.len() == 1,
        "{all} requests for {} ranges: that refused one came again",
        ranges.len()
    );
}
