//! Batches from a server equal those of a local loader: the same columns, bytes, order and states.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use arrow::array::{Array, FixedSizeBinaryArray, RecordBatch, make_comparator};
use arrow::compute::SortOptions;
use arrow::datatypes::{Field, Schema};
use bowstring::dataset::filter::Filter;
use bowstring::dataset::{DatasetWriter, WriterOptions};
use bowstring::flight::server::config::ServerOptions;
use bowstring::flight::server::{Background, Catalogue, Config};
use bowstring::pipeline::{Cause, LoaderOptions};
use bowstring::plan::Tail;
use bowstring::tensor::{Batch, Value};
use bowstring::{Error, Loader};
use sha2::{Digest, Sha256};

use crate::support::{self, Random};

/// A server on its own threads; it drains when dropped, and must end without an error.
pub(crate) struct Served(Background);

impl Served {
    /// Serves datasets by name on any free port.
    pub(crate) fn start(datasets: &[(&str, &str)], options: &ServerOptions) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), datasets, options)
    }

    pub(crate) fn at(address: SocketAddr, datasets: &[(&str, &str)], options: &ServerOptions) -> Self {
        let mut catalogue = Catalogue::default();
        for (name, url) in datasets {
            catalogue.add(name, vec![(*url).to_owned()]).unwrap();
        }
        Self(Background::start(Config::new(catalogue, options).unwrap(), &address.to_string()).unwrap())
    }

    pub(crate) fn url(&self, dataset: &str) -> String {
        format!("{}/{dataset}", self.0.url())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Drains, and returns the outcome of serving.
    pub(crate) fn stop(&mut self) -> bowstring::Result<()> {
        self.0.close()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let stopped = self.stop();
        assert!(stopped.is_ok() || std::thread::panicking(), "{stopped:?}");
    }
}

/// Options of a server that stops at once.
pub(crate) fn hasty() -> ServerOptions {
    ServerOptions { drain_grace: Some(1.0), memory_budget: Some(1 << 30), threads: Some(2), ..ServerOptions::default() }
}

/// Checks that two batches are the same to the last byte.
pub(crate) fn assert_same(ours: &Batch, theirs: &Batch) {
    let place = format!("epoch {}, step {}", ours.epoch, ours.step);
    assert_eq!((ours.epoch, ours.step, ours.rows), (theirs.epoch, theirs.step, theirs.rows), "{place}");
    let names = |batch: &Batch| batch.columns().iter().map(|(name, _)| name.to_string()).collect::<Vec<_>>();
    assert_eq!(names(ours), names(theirs), "{place}");
    for ((name, ours), (_, theirs)) in ours.columns().iter().zip(theirs.columns()) {
        match (ours, theirs) {
            (Value::Tensor(ours), Value::Tensor(theirs)) => {
                assert_eq!((ours.dtype(), ours.shape()), (theirs.dtype(), theirs.shape()), "{place}, {name}");
                assert!(ours.bytes() == theirs.bytes(), "{place}, {name}: other bytes");
                assert_eq!(theirs.as_ptr() as usize % 64, 0, "{place}, {name}");
            }
            (Value::Arrow(ours), Value::Arrow(theirs)) => {
                assert_eq!((ours.data_type(), ours.len()), (theirs.data_type(), theirs.len()), "{place}, {name}");
                let equal = make_comparator(ours, theirs, SortOptions::default()).unwrap();
                assert!((0..ours.len()).all(|row| equal(row, row).is_eq()), "{place}, {name}");
            }
            other => panic!("{place}, {name}: {other:?}"),
        }
    }
}

/// Runs a local loader and a served one side by side for an epoch and a half, resuming the served one from time to time.
fn assert_equal(served: &Served, dataset: &str, options: &LoaderOptions) -> usize {
    let mut local = Loader::open(options.clone()).unwrap();
    let remote = LoaderOptions { urls: vec![served.url(dataset)], timeout: 30.0, ..options.clone() };
    let mut theirs = Loader::open(remote.clone()).unwrap();
    assert_eq!(local.schema(), theirs.schema());
    assert_eq!((local.steps(), local.rows()), (theirs.steps(), theirs.rows()));
    let mut batches = 0;
    for round in 0..local.steps() + local.steps() / 2 {
        let (ours, others) = (local.next().unwrap(), theirs.next().unwrap());
        match (&ours, &others) {
            (Some(ours), Some(theirs)) => assert_same(ours, theirs),
            (None, None) => {}
            other => panic!("one ended: {other:?}"),
        }
        batches += usize::from(ours.is_some());
        assert_eq!(local.state(), theirs.state());
        if round % 7 == 3 {
            let state = theirs.state();
            theirs = Loader::open(remote.clone()).unwrap();
            theirs.load_state(&state).unwrap();
        }
    }
    batches
}

#[test]
fn columns_of_other_libraries_are_the_same_from_a_server() {
    let served = Served::start(
        &[("vectors", "fixtures/features/vectors_null.parquet"), ("photos", "fixtures/features/huggingface.parquet")],
        &hasty(),
    );
    let asked = |url: &str, columns: &str| {
        let mut options = LoaderOptions::new(format!("fixtures/features/{url}.parquet"), 4);
        options.columns = serde_json::from_str(columns).unwrap();
        options
    };
    let mut batches = assert_equal(&served, "vectors", &asked("vectors_null", r#"{"nulls": "mask"}"#));
    let csr = asked("vectors_null", r#"{"nulls": "mask", "lists": {"features": "csr"}, "row_id": true}"#);
    batches += assert_equal(&served, "vectors", &csr);
    let photos = asked("huggingface", r#"{"columns": ["text", "image", "label"], "images": {"image": {}}}"#);
    batches += assert_equal(&served, "photos", &photos);
    assert_eq!(batches, 15);
    // A server reports at open the same errors as a file, about nulls too.
    let error = Loader::open(LoaderOptions::new(served.url("vectors"), 4)).unwrap_err();
    assert!(matches!(error, Error::Nulls { .. }) && error.place().is_some(), "{error}");
}

#[test]
fn the_report_of_a_served_dataset_has_the_waits_for_its_server() {
    let served = Served::start(&[("photos", "fixtures/imagenet40.parquet")], &hasty());
    let mut loader = Loader::open(LoaderOptions::new(served.url("photos"), 8)).unwrap();
    for batch in &mut loader {
        drop(batch.unwrap());
    }
    let report = loader.report();
    let spent = report.stats.spent;
    assert!(
        spent.of(Cause::Server) > 0.0 && spent.of(Cause::Store) == 0.0 && spent.of(Cause::Decode) == 0.0,
        "{report}"
    );
    let stage = report.stats.consumer;
    assert!((spent.total() - stage.worked_seconds - stage.waited_seconds).abs() < 1e-6, "{report}");
    let found = report.bottleneck.as_ref().unwrap();
    assert!(found.cause == "server" && report.to_string().contains("bowstring top ADDRESS"), "{report}");
}

#[test]
fn photos_and_numbers_are_the_same_from_a_server() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![90, 33, 70], vec![64; 5], vec![7]], 3);
    let numbers = directory.path().to_str().unwrap();
    let served = Served::start(&[("photos", "fixtures/imagenet40.parquet"), ("numbers", numbers)], &hasty());
    let mut batches = 0;
    for (rank, world) in [(0, 1), (1, 2), (2, 3)] {
        let mut options = LoaderOptions::new("fixtures/imagenet40.parquet", 4);
        (options.rank, options.world_size, options.seed) = (Some(rank), Some(world), 5);
        options.columns.images =
            serde_json::from_str(r#"{"image": {"size": [64, 48], "random_resized_crop": true}}"#).unwrap_or_default();
        options.columns.row_id = true;
        batches += assert_equal(&served, "photos", &options);
        for shuffle in [false, true] {
            let mut options = support::options(Path::new(numbers), 24, rank, world);
            options.shuffle = shuffle;
            options.filter = Some(Filter::Text("id >= 20".to_owned()));
            batches += assert_equal(&served, "numbers", &options);
        }
    }
    assert!(batches > 100, "{batches}");
}

#[test]
fn every_kind_of_column_is_the_same_from_a_server() {
    let all = "fixtures/petastorm/petastorm_allcodecs_0.13.1";
    let spark = "fixtures/spark43_parquet/flat_snappy";
    let legacy = "fixtures/petastorm/petastorm_legacy_0.7.6";
    let served = Served::start(&[("all", all), ("spark", spark), ("legacy", legacy)], &hasty());
    for (name, url) in [("all", all), ("spark", spark), ("legacy", legacy)] {
        let mut options = LoaderOptions::new(url, 5);
        (options.rank, options.world_size) = (Some(0), Some(1));
        options.columns.nulls = serde_json::from_str(r#"{"*": "mask"}"#).unwrap();
        // Excludes the columns that no loader reads, one after another, as a user would.
        let mut local = Loader::open(options.clone());
        while let Err(Error::Unsupported { what, .. }) = &local {
            let column = what.split_whitespace().nth(1).unwrap().to_owned();
            options.columns.exclude.push(column);
            local = Loader::open(options.clone());
        }
        local.unwrap();
        assert!(assert_equal(&served, name, &options) > 0, "{name}");
    }
}

#[test]
fn errors_of_a_server_are_those_of_a_loader() {
    let served = Served::start(&[("photos", "fixtures/imagenet40.parquet")], &hasty());
    let open = |url: String, change: &dyn Fn(&mut LoaderOptions)| {
        let mut options = LoaderOptions::new(url, 4);
        (options.rank, options.world_size, options.timeout) = (Some(0), Some(1), 3.0);
        change(&mut options);
        Loader::open(options).unwrap_err()
    };
    let error = open(served.url("photo"), &|_| {});
    assert!(matches!(&error, Error::NotFound { .. }) && error.to_string().contains("photos"), "{error}");
    let error = open(served.url("photos"), &|options| options.columns.columns = vec!["lable".to_owned()]);
    assert!(matches!(&error, Error::NotFound { .. }) && error.to_string().contains("label"), "{error}");
    let error = open(served.url("photos"), &|options| options.weights = vec![1.0]);
    assert!(matches!(&error, Error::Config { option: "weights", .. }), "{error}");
    let error = open("grpc://127.0.0.1:1/photos".to_owned(), &|_| {});
    assert!(matches!(&error, Error::Timeout { .. }) && error.to_string().contains("127.0.0.1:1"), "{error}");
}

#[test]
fn a_loader_continues_at_another_replica() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![50; 20]], 8);
    let numbers = directory.path().to_str().unwrap().to_owned();
    let start = || Served::start(&[("numbers", &numbers)], &hasty());
    let mut servers = [Some(start()), Some(start())];
    let mut options = support::options(directory.path(), 10, 0, 1);
    options.prefetch = 1;
    let mut local = Loader::open(options.clone()).unwrap();
    options.urls = servers.iter().flatten().map(|server| server.url("numbers")).collect();
    options.timeout = 20.0;
    let mut theirs = Loader::open(options).unwrap();
    for round in 0_usize.. {
        // Each server in turn is stopped and restarted at the same address.
        if round % 25 == 24 {
            let at = round / 25 % 2;
            let address = servers[at].as_ref().unwrap().address();
            servers[at].take().unwrap().stop().unwrap();
            servers[at] = Some(Served::at(address, &[("numbers", &numbers)], &hasty()));
        }
        match (local.next().unwrap(), theirs.next().unwrap()) {
            (Some(ours), Some(theirs)) => assert_same(&ours, &theirs),
            (None, None) => break,
            other => panic!("one ended: {other:?}"),
        }
    }
    drop(theirs);
}

#[test]
fn eight_ranks_and_two_jobs_decode_each_row_once() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![40; 16]], 2);
    let served = Served::start(&[("numbers", directory.path().to_str().unwrap())], &hasty());
    let urls = vec![served.url("numbers")];
    let mut digests = Vec::new();
    for jobs in [1, 2] {
        let mut loaders = Vec::new();
        for rank in 0..8 {
            for _ in 0..jobs {
                let options = LoaderOptions { urls: urls.clone(), ..support::options(directory.path(), 32, rank, 8) };
                loaders.push(Loader::open(options).unwrap());
            }
        }
        let mut digest = Sha256::new();
        for _ in 0..loaders[0].steps() {
            for loader in &mut loaders {
                let batch = loader.next().unwrap().unwrap();
                digest.update(batch.tensor("id").unwrap().bytes());
            }
        }
        digests.push(digest.finalize());
        drop(loaders);
    }
    assert_eq!(digests.len(), 2);
    let stats = stats(&served);
    // Two rounds of 640 rows, whatever the number of jobs.
    assert_eq!(stats["rows_decoded"], 2 * 640, "{stats}");
}

#[test]
fn a_job_that_begins_late_shares_kept_batches() {
    let directory = tempfile::tempdir().unwrap();
    // 40 MiB, more than connections buffer, so that the first job's stream stays open until it reads on.
    let (rows, width) = (640, 64 << 10);
    let bytes = FixedSizeBinaryArray::try_from_iter((0..rows).map(|row| vec![row as u8; width])).unwrap();
    let field = Field::new("bytes", bytes.data_type().clone(), false);
    let schema = Arc::new(Schema::new(vec![field]));
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(bytes)]).unwrap();
    let path = directory.path().join("rows");
    let mut writer = DatasetWriter::create(&path, schema, WriterOptions::default()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    for (share_bytes, shared) in [(Some(64 << 20), true), (None, false)] {
        let served = Served::start(&[("rows", path.to_str().unwrap())], &ServerOptions { share_bytes, ..hasty() });
        let open = || {
            let options = LoaderOptions { urls: vec![served.url("rows")], ..LoaderOptions::new("", 1) };
            Loader::open(options).unwrap()
        };
        let mut early = open();
        for _ in 0..500 {
            early.next().unwrap().unwrap();
        }
        let mut late = open();
        for _ in 0..500 {
            late.next().unwrap().unwrap();
        }
        for _ in 500..rows {
            let (early, late) = (early.next().unwrap().unwrap(), late.next().unwrap().unwrap());
            assert_eq!(early.tensor("bytes").unwrap().bytes(), late.tensor("bytes").unwrap().bytes());
        }
        let decoded = stats(&served)["rows_decoded"].as_u64().unwrap();
        assert_eq!(decoded == rows, shared, "{decoded} rows");
    }
}

#[test]
fn new_readers_get_the_current_files_and_running_ones_keep_theirs() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![40; 2]], 2);
    let served = |refresh| {
        let options = ServerOptions { refresh: Some(refresh), ..hasty() };
        Served::start(&[("numbers", directory.path().to_str().unwrap())], &options)
    };
    let (fresh, patient) = (served(0.0), served(3600.0));
    let open = |server: &Served, rank| {
        let urls = vec![server.url("numbers")];
        Loader::open(LoaderOptions { urls, ..support::options(directory.path(), 16, rank, 2) }).unwrap()
    };
    let (mut first, mut second) = (open(&fresh, 0), open(&fresh, 1));
    assert_eq!((first.rows(), second.rows(), open(&patient, 0).rows()), (80, 80, 80));
    first.next().unwrap().unwrap();
    let part = tempfile::tempdir().unwrap();
    support::write(part.path(), &[vec![40; 3]], 2);
    let added = std::fs::read_dir(part.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::copy(added, directory.path().join("z-later.parquet")).unwrap();
    for loader in [&mut first, &mut second] {
        while loader.next().unwrap().is_some() {}
    }
    // All readers are idle now. A new client sees the added file, while running ones enter the next epoch without it, in as many steps.
    let mut third = open(&fresh, 0);
    assert_eq!((third.rows(), first.rows()), (200, 80));
    let mut steps = [0_u64; 2];
    for (loader, steps) in [&mut first, &mut second].into_iter().zip(&mut steps) {
        while let Some(batch) = loader.next().unwrap() {
            assert_eq!(batch.epoch, 1);
            *steps += 1;
        }
    }
    assert_eq!(steps, [first.steps(); 2]);
    assert!(third.next().unwrap().is_some());
    assert_eq!(open(&fresh, 1).rows(), 200);
    assert_eq!(open(&patient, 1).rows(), 80);
}

/// Forwards connections to a server, and cuts each after a random number of bytes.
struct Cutter {
    address: SocketAddr,
    cuts: Arc<AtomicUsize>,
}

impl Cutter {
    fn start(server: SocketAddr, mut random: Random) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let cuts = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&cuts);
        std::thread::spawn(move || {
            while let Ok((near, _)) = listener.accept() {
                let Ok(far) = TcpStream::connect(server) else { continue };
                // Most connections live long enough for a few batches.
                let mut left = 2_000 + random.below(60_000) as usize;
                let counter = Arc::clone(&counter);
                let (mut up, mut sink) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut up, &mut sink));
                std::thread::spawn(move || {
                    let (mut far, mut near, mut piece) = (far, near, [0; 4096]);
                    while let Ok(some @ 1..) = far.read(&mut piece) {
                        if some >= left || near.write_all(&piece[..some]).is_err() {
                            counter.fetch_add(usize::from(some >= left), Ordering::Relaxed);
                            break;
                        }
                        left -= some;
                    }
                    let _ = (near.shutdown(Shutdown::Both), far.shutdown(Shutdown::Both));
                });
            }
        });
        Self { address, cuts }
    }
}

/// SHA-256 over (rank, step, bytes) of every rank's epoch.
fn digest_of(world: u32, open: &dyn Fn(u32) -> LoaderOptions) -> [u8; 32] {
    let mut digest = Sha256::new();
    for rank in 0..world {
        let mut loader = Loader::open(open(rank)).unwrap();
        while let Some(batch) = loader.next().unwrap() {
            digest.update(rank.to_le_bytes());
            digest.update(batch.step.to_le_bytes());
            for (name, value) in batch.columns() {
                digest.update(name.as_bytes());
                match value {
                    Value::Tensor(tensor) => digest.update(tensor.bytes()),
                    Value::Arrow(array) => digest.update(format!("{array:?}").as_bytes()),
                }
            }
        }
    }
    digest.finalize().into()
}

#[test]
fn random_plans_are_the_same_over_every_transport() {
    let seed = std::env::var("BOWSTRING_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    println!("BOWSTRING_SEED={seed} cargo nextest run random_plans_are_the_same_over_every_transport");
    let mut random = Random(seed);
    let directory = tempfile::tempdir().unwrap();
    let files: Vec<Vec<usize>> =
        (0..3).map(|_| (0..1 + random.below(5)).map(|_| 1 + random.below(300) as usize).collect()).collect();
    support::write(directory.path(), &files, 5);
    let url = directory.path().to_str().unwrap().to_owned();
    let servers = [Served::start(&[("d", &url)], &hasty()), Served::start(&[("d", &url)], &hasty())];
    let cutters = [0, 1].map(|at: usize| Cutter::start(servers[at].address(), Random(random.next())));
    let plans = if support::soak() { 200 } else { 15 };
    for plan in 0..plans {
        let world = 1 + random.below(5) as u32;
        let per_rank = 1 + random.below(40);
        let mut options = support::options(directory.path(), per_rank * u64::from(world), 0, world);
        options.seed = random.next();
        options.shuffle = random.below(4) > 0;
        options.tail = Some([Tail::Short, Tail::Even, Tail::Pad, Tail::Repeat, Tail::Drop][random.below(5) as usize]);
        options.columns.row_id = random.below(2) > 0;
        options.mask = random.below(2) > 0;
        if random.below(3) == 0 {
            options.filter = Some(Filter::Text(format!("id != {}", random.below(50))));
        }
        let local = digest_of(world, &|rank| LoaderOptions { rank: Some(rank), ..options.clone() });
        let ways: [(&str, Vec<String>); 3] = [
            ("tcp", vec![servers[0].url("d")]),
            ("shared_memory", vec![servers[1].url("d")]),
            ("tcp", cutters.iter().map(|cutter| format!("grpc://{}/d", cutter.address)).collect()),
        ];
        for (transport, urls) in ways {
            let remote = digest_of(world, &|rank| LoaderOptions {
                rank: Some(rank),
                urls: urls.clone(),
                timeout: 30.0,
                storage_options: [("transport".to_owned(), transport.to_owned())].into(),
                ..options.clone()
            });
            assert!(local == remote, "plan {plan} over {transport} at {urls:?}: {options:?}");
        }
    }
    let cuts: usize = cutters.iter().map(|cutter| cutter.cuts.load(Ordering::Relaxed)).sum();
    println!("{plans} plans, {cuts} connections cut");
    assert!(cuts > plans / 4, "the cutters cut only {cuts} connections");
}

#[test]
fn a_descriptor_that_names_no_tail_is_padded_and_a_new_loader_is_not() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![20, 7]], 1);
    let served = Served::start(&[("d", directory.path().to_str().unwrap())], &hasty());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tail = |options: &str| {
        let command = format!(r#"{{"dataset": "d", "options": {options}}}"#);
        runtime.block_on(async {
            let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", served.address())).unwrap();
            let channel = endpoint.connect_timeout(Duration::from_secs(5)).connect().await.unwrap();
            let mut client = arrow_flight::flight_service_client::FlightServiceClient::new(channel);
            let descriptor = arrow_flight::FlightDescriptor::new_cmd(command);
            let info = client.get_flight_info(descriptor).await.unwrap().into_inner();
            let announced: serde_json::Value = serde_json::from_slice(&info.app_metadata).unwrap();
            announced["spec"]["tail"].as_str().unwrap().to_owned()
        })
    };
    assert_eq!(tail(r#"{"batch_size": 8}"#), "pad");
    assert_eq!(tail(r#"{"batch_size": 8, "tail": null}"#), "short");
    assert_eq!(tail(r#"{"batch_size": 8, "tail": "even"}"#), "even");
    let mut loader = Loader::open(LoaderOptions::new(served.url("d"), 8)).unwrap();
    assert_eq!(loader.state().spec.tail, Tail::Short);
    let rows: Vec<usize> = loader.iter().map(|batch| batch.unwrap().rows).collect();
    assert_eq!(rows, [8, 8, 8, 3]);
}

/// Returns the server's own statistics.
pub(crate) fn stats(served: &Served) -> serde_json::Value {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{}", served.address())).unwrap();
        let channel = endpoint.connect_timeout(Duration::from_secs(5)).connect().await.unwrap();
        let mut client = arrow_flight::flight_service_client::FlightServiceClient::new(channel);
        let action = arrow_flight::Action::new("stats", "");
        let mut answers = client.do_action(action).await.unwrap().into_inner();
        let answer = answers.message().await.unwrap().unwrap();
        serde_json::from_slice(&answer.body).unwrap()
    })
}
