//! Opening by many ranks at once from a store that answers after 5 ms and refuses requests beyond 3,000 a second, as S3
//! does.
//!
//! `cargo bench --bench opening_ranks -- 3000` puts that many files of 40 columns into such a store, in this process,
//! and opens them: by one rank; by 64 ranks that receive the first one's index, as in `bowstring.torch.shared_index`;
//! by 64 ranks that find an index beside the files; and, with the word `alone` after the number, by 64 ranks that each
//! read all footers. Reported are seconds until all are ready, and requests, including refused ones.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Float64Array, RecordBatch};
use bowstring::dataset::{Dataset, Index, OpenOptions};
use bytes::Bytes;
use parquet::arrow::ArrowWriter;

const COLUMNS: usize = 40;
const ROWS: usize = 100;
const RANKS: usize = 64;
/// Delay before each answer.
const LATENCY: Duration = Duration::from_millis(5);
/// Maximum requests per second.
const LIMIT: u32 = 3000;
/// Names in one answer of a listing.
const PAGE: usize = 1000;

#[derive(Debug)]
struct Store {
    objects: Mutex<BTreeMap<String, Bytes>>,
    /// Requests in total and refused ones, and start and count of the current second.
    asked: Mutex<(u64, u64, Instant, u32)>,
}

impl Store {
    /// Returns true if one more request is answered.
    fn admit(&self) -> bool {
        let mut asked = self.asked.lock().unwrap();
        let (all, refused, since, count) = &mut *asked;
        if since.elapsed() >= Duration::from_secs(1) {
            (*since, *count) = (Instant::now(), 0);
        }
        *all += 1;
        *count += 1;
        let admitted = *count <= LIMIT;
        *refused += u64::from(!admitted);
        admitted
    }

    /// Requests since the last call, and how many of them were refused.
    fn counted(&self) -> (u64, u64) {
        let mut asked = self.asked.lock().unwrap();
        let counted = (asked.0, asked.1);
        *asked = (0, 0, Instant::now(), 0);
        counted
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let mut reader = BufReader::new(stream.try_clone()?);
        loop {
            let mut request = String::new();
            if reader.read_line(&mut request)? == 0 {
                return Ok(());
            }
            let (mut range, mut length) = (None, 0);
            loop {
                let mut line = String::new();
                reader.read_line(&mut line)?;
                let Some((name, value)) = line.trim_end().split_once(": ") else { break };
                match name.to_ascii_lowercase().as_str() {
                    "range" => range = Some(value.to_owned()),
                    "content-length" => length = value.parse().unwrap_or(0),
                    _ => {}
                }
            }
            let mut body = vec![0; length];
            std::io::Read::read_exact(&mut reader, &mut body)?;
            let mut words = request.split(' ');
            let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            std::thread::sleep(LATENCY);
            let (status, extra, answer) = if self.admit() {
                self.answer(method, target, range.as_deref(), body)
            } else {
                ("503 Slow Down", String::new(), Bytes::new())
            };
            write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\n{extra}\r\n", answer.len())?;
            if method != "HEAD" {
                stream.write_all(&answer)?;
            }
        }
    }

    fn answer(&self, method: &str, target: &str, range: Option<&str>, body: Vec<u8>) -> (&'static str, String, Bytes) {
        let mut objects = self.objects.lock().unwrap();
        if let Some((_, query)) = target.split_once('?').filter(|(_, query)| query.contains("list-type=2")) {
            return ("200 OK", String::new(), list(&objects, query));
        }
        if method == "PUT" {
            objects.insert(target.to_owned(), body.into());
            return ("200 OK", "etag: \"new\"\r\n".to_owned(), Bytes::new());
        }
        let Some(bytes) = objects.get(target) else { return ("404 Not Found", String::new(), Bytes::new()) };
        let (etag, size) = (format!("etag: \"{:x}\"\r\n", bytes.len()), bytes.len());
        let Some((start, end)) = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-')) else {
            return ("200 OK", etag, bytes.clone());
        };
        let (start, end) = match (start.parse::<usize>(), end.parse::<usize>()) {
            (Ok(start), Ok(last)) => (start, (last + 1).min(size)),
            (Ok(start), Err(_)) => (start, size),
            (Err(_), last) => (size.saturating_sub(last.unwrap_or(0)), size),
        };
        let extra = format!("{etag}content-range: bytes {start}-{}/{size}\r\n", end.saturating_sub(1));
        ("206 Partial Content", extra, bytes.slice(start.min(end)..end))
    }
}

/// One page of all objects, in S3's format.
fn list(objects: &BTreeMap<String, Bytes>, query: &str) -> Bytes {
    let token = query.split('&').find_map(|pair| pair.strip_prefix("continuation-token="));
    let first = token.and_then(|token| token.parse::<usize>().ok()).unwrap_or(0);
    let more = first + PAGE < objects.len();
    let mut text = format!("<ListBucketResult><IsTruncated>{more}</IsTruncated>");
    if more {
        text.push_str(&format!("<NextContinuationToken>{}</NextContinuationToken>", first + PAGE));
    }
    for (path, bytes) in objects.iter().skip(first).take(PAGE) {
        let key = path.trim_start_matches("/bucket/");
        text.push_str(&format!(
            "<Contents><Key>{key}</Key><LastModified>2026-11-21T00:00:00.000Z</LastModified>\
             <ETag>&quot;{0:x}&quot;</ETag><Size>{0}</Size></Contents>",
            bytes.len()
        ));
    }
    text.push_str("</ListBucketResult>");
    text.into()
}

fn file() -> Bytes {
    let column = |at: usize| {
        let values: Vec<f64> = (0..ROWS).map(|row| (row * 31 + at) as f64 / 7.0).collect();
        (format!("column_{at}"), Arc::new(Float64Array::from(values)) as ArrayRef)
    };
    let batch = RecordBatch::try_from_iter((0..COLUMNS).map(column)).unwrap();
    let mut bytes = Vec::new();
    let mut writer = ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes.into()
}

fn options(address: SocketAddr, index: Index) -> OpenOptions {
    let endpoint = format!("http://{address}");
    let pairs = [
        ("aws_endpoint", endpoint.as_str()),
        ("aws_allow_http", "true"),
        ("aws_access_key_id", "id"),
        ("aws_secret_access_key", "secret"),
        ("aws_region", "eu-west-1"),
    ];
    let storage_options = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    OpenOptions { storage_options, index, ..OpenOptions::default() }
}

const URL: &str = "s3://bucket/data/";

async fn open(address: SocketAddr, index: Index) -> Dataset {
    Dataset::open(&[URL.to_owned()], options(address, index)).await.unwrap()
}

/// Opens on `ranks` ranks at once.
async fn all(address: SocketAddr, ranks: usize, index: &Index) {
    let ranks = (0..ranks).map(|_| tokio::spawn(open(address, index.clone())));
    for rank in ranks.collect::<Vec<_>>() {
        rank.await.unwrap();
    }
}

fn main() {
    let mut words = std::env::args().skip(1).skip_while(|word| word.parse::<usize>().is_err());
    let files = words.next().and_then(|word| word.parse().ok()).unwrap_or(3000);
    let bytes = file();
    let objects = (0..files).map(|at| (format!("/bucket/data/part-{at:06}.parquet"), bytes.clone()));
    let store =
        Arc::new(Store { objects: Mutex::new(objects.collect()), asked: Mutex::new((0, 0, Instant::now(), 0)) });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = Arc::clone(&store);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let store = Arc::clone(&serving);
            std::thread::spawn(move || drop(store.serve(stream)));
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!("{files} files of {COLUMNS} columns; {LATENCY:?} before each answer, {LIMIT} requests a second");
    let tell = |what: &str, started: Instant| {
        let seconds = started.elapsed().as_secs_f64();
        let (requests, refused) = store.counted();
        println!("{what:<64} {seconds:>7.2} s  {requests:>7} requests, {refused} of them refused");
    };
    store.counted();

    let started = Instant::now();
    let first = runtime.block_on(open(address, Index::None));
    tell("one rank", started);
    drop(first);
    let started = Instant::now();
    runtime.block_on(async {
        let first = open(address, Index::None).await;
        all(address, RANKS - 1, &Index::Bytes(first.index().unwrap().into())).await;
    });
    tell(&format!("{RANKS} ranks, the first one's index goes to the others"), started);
    if words.next().is_some_and(|word| word == "alone") {
        let started = Instant::now();
        runtime.block_on(all(address, RANKS, &Index::None));
        tell(&format!("{RANKS} ranks, each reads all footers"), started);
    }
    let made = runtime.block_on(async {
        let dataset = open(address, Index::None).await;
        dataset.write_index(None, &options(address, Index::None)).await.unwrap()
    });
    store.counted();
    let started = Instant::now();
    runtime.block_on(open(address, Index::Auto));
    tell(&format!("one rank from {made}"), started);
    let started = Instant::now();
    runtime.block_on(all(address, RANKS, &Index::Auto));
    tell(&format!("{RANKS} ranks from it"), started);
}
