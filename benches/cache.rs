//! The cost of the cache: an epoch from local files, from a store, from a store through an empty cache, and from one
//! through a full cache.
//!
//! `cargo bench --bench cache -- 64` makes files of that many MiB in total (256 without a number) of plain numbers,
//! which cost the least to decode: images would hide the cost. The store is a server in this process that answers at
//! once. The variants take turns; reported is the median of five epochs of each, as row groups are fetched, and as
//! batches are delivered.
#![expect(clippy::print_stdout, clippy::unwrap_used, reason = "a bench prints its figures")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Float32Array, RecordBatch};
use bowstring::{Loader, LoaderOptions};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;

const COLUMNS: usize = 16;
const GROUP_ROWS: usize = 65_536;
const FILE_GROUPS: usize = 4;
const ROUNDS: usize = 5;

/// Answers requests for files below `root`, which have a single version.
fn serve(mut stream: TcpStream, root: &Path) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut request = String::new();
        if reader.read_line(&mut request)? == 0 {
            return Ok(());
        }
        let mut range = None;
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            if name.eq_ignore_ascii_case("range") {
                range = Some(value.to_owned());
            }
        }
        let mut words = request.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if target.contains("list-type=2") {
            let mut text = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
            for entry in fs::read_dir(root)? {
                let entry = entry?;
                text.push_str(&format!(
                    "<Contents><Key>data/{}</Key><LastModified>2026-11-21T00:00:00.000Z</LastModified><ETag>&quot;a&quot;</ETag><Size>{}</Size></Contents>",
                    entry.file_name().to_string_lossy(),
                    entry.metadata()?.len()
                ));
            }
            text.push_str("</ListBucketResult>");
            write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{text}", text.len())?;
            continue;
        }
        let Ok(file) = File::open(root.join(target.rsplit('/').next().unwrap_or_default())) else {
            write!(stream, "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")?;
            continue;
        };
        let size = file.metadata()?.len();
        let asked = range.as_deref().and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let (start, end) = match asked.map(|(start, end)| (start.parse::<u64>(), end.parse::<u64>())) {
            Some((Ok(start), Ok(last))) => (start, (last + 1).min(size)),
            Some((Ok(start), Err(_))) => (start, size),
            Some((Err(_), last)) => (size.saturating_sub(last.unwrap_or(0)), size),
            None => (0, size),
        };
        let mut bytes = vec![0; (end - start) as usize];
        file.read_exact_at(&mut bytes, start)?;
        let (status, place) = match asked {
            Some(_) => {
                ("206 Partial Content", format!("content-range: bytes {start}-{}/{size}\r\n", end.saturating_sub(1)))
            }
            None => ("200 OK", String::new()),
        };
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: {}\r\netag: \"a\"\r\n{place}\r\n", bytes.len())?;
        if method != "HEAD" {
            stream.write_all(&bytes)?;
        }
    }
}

fn write(directory: &Path, megabytes: usize) {
    let group = GROUP_ROWS * COLUMNS * 4;
    let files = (megabytes << 20).div_ceil(group * FILE_GROUPS).max(1);
    for number in 0..files {
        let column = |at: usize| {
            let values = (0..GROUP_ROWS).map(|row| (row * 31 + at * 7 + number) as f32 / 7.0);
            (format!("column_{at}"), Arc::new(Float32Array::from_iter_values(values)) as ArrayRef)
        };
        let batch = RecordBatch::try_from_iter((0..COLUMNS).map(column)).unwrap();
        let properties = WriterProperties::builder()
            .set_compression(Compression::UNCOMPRESSED)
            .set_dictionary_enabled(false)
            .set_max_row_group_row_count(Some(GROUP_ROWS))
            .build();
        let file = File::create(directory.join(format!("part-{number:04}.parquet"))).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        for _ in 0..FILE_GROUPS {
            writer.write(&batch).unwrap();
        }
        writer.close().unwrap();
    }
}

fn options(url: String, storage_options: BTreeMap<String, String>, cache: Option<&Path>) -> LoaderOptions {
    LoaderOptions {
        storage_options,
        cache: cache.map(|cache| cache.to_str().unwrap().to_owned()),
        cache_bytes: cache.map(|_| 1 << 40),
        rank: Some(0),
        world_size: Some(1),
        ..LoaderOptions::new(url, 4096)
    }
}

/// Seconds of one epoch.
fn epoch(options: &LoaderOptions) -> f64 {
    let mut loader = Loader::open(options.clone()).unwrap();
    let started = Instant::now();
    while loader.next().unwrap().is_some() {}
    started.elapsed().as_secs_f64()
}

fn main() {
    let megabytes = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(256);
    let root = tempfile::tempdir().unwrap();
    let (data, cache): (PathBuf, PathBuf) = (root.path().join("data"), root.path().join("cache"));
    fs::create_dir(&data).unwrap();
    write(&data, megabytes);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let served = data.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let root = served.clone();
            std::thread::spawn(move || drop(serve(stream, &root)));
        }
    });
    let pairs = [
        ("aws_endpoint", endpoint.as_str()),
        ("aws_allow_http", "true"),
        ("aws_access_key_id", "id"),
        ("aws_secret_access_key", "secret"),
        ("aws_region", "eu-west-1"),
    ];
    let storage: BTreeMap<_, _> = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    let remote = "s3://bucket/data/".to_owned();
    let local = options(data.to_str().unwrap().to_owned(), BTreeMap::new(), None);
    let store = options(remote.clone(), storage.clone(), None);
    let cached = options(remote, storage, Some(&cache));
    let mut seconds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let mut add = |name, taken| seconds.entry(name).or_default().push(taken);
        add("1 local files", epoch(&local));
        add("2 store", epoch(&store));
        // The cache is absent at first.
        let _removed = bowstring::store::cache::remove(&cache, false);
        add("3 store, every read a miss", epoch(&cached));
        add("4 store, every read a hit", epoch(&cached));
    }
    println!("{megabytes} MiB, row groups of {} MiB, median of {ROUNDS} epochs", (GROUP_ROWS * COLUMNS * 4) >> 20);
    for (name, mut taken) in seconds {
        taken.sort_by(f64::total_cmp);
        let (median, least, most) = (taken[ROUNDS / 2], taken[0], taken[ROUNDS - 1]);
        println!("{name:<28} {median:.3} s ({least:.3} to {most:.3}), {:.0} MiB/s", megabytes as f64 / median);
    }
}
