//! What writers and strangers send to a server costs it nothing: hostile messages, mute streams, checks of its health.

use std::path::Path;
use std::time::Duration;

use arrow::array::{Int64Array, RecordBatch};
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::utils::batches_to_flight_data;
use arrow_flight::{Action, FlightData, FlightDescriptor};
use bowstring::Loader;
use bowstring::flight::server::config::ServerOptions;
use bowstring::pipeline::LoaderOptions;
use futures::StreamExt as _;
use futures::stream;
use serde_json::json;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::flight::Served;
use crate::{child, support};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

async fn connected(served: &Served) -> Channel {
    Channel::from_shared(format!("http://{}", served.address())).unwrap().connect().await.unwrap()
}

/// The messages of an attempt.
fn attempt(task: u32) -> Vec<FlightData> {
    let rows = RecordBatch::try_from_iter([("id", std::sync::Arc::new(Int64Array::from(vec![1, 2])) as _)]).unwrap();
    let mut messages = batches_to_flight_data(&rows.schema(), [&rows]).unwrap();
    let part = json!({"dataset": "new", "write": "w", "task": task, "attempt": 0});
    messages[0].flight_descriptor = Some(FlightDescriptor::new_cmd(part.to_string()));
    messages
}

async fn put(client: &mut FlightServiceClient<Channel>, messages: Vec<FlightData>) -> Result<Vec<u8>, Status> {
    let mut answer = client.do_put(stream::iter(messages)).await?.into_inner();
    let result = answer.message().await?.ok_or_else(|| Status::unknown("no answer"))?;
    Ok(result.app_metadata.to_vec())
}

fn source(directory: &Path) -> String {
    support::write(directory, &[vec![40; 4]], 4);
    directory.to_str().unwrap().to_owned()
}

fn reads_all(served: &Served) {
    let mut options = LoaderOptions { timeout: 30.0, shuffle: false, ..LoaderOptions::new(served.url("data"), 8) };
    options.storage_options.insert("transport".to_owned(), "tcp".to_owned());
    let mut loader = Loader::open(options).unwrap();
    let rows = std::iter::from_fn(|| loader.next().unwrap()).map(|batch| support::ids(&batch).len()).sum::<usize>();
    assert_eq!(rows, 160);
}

#[test]
fn hostile_messages_of_a_writer_end_its_stream_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let url = source(directory.path());
    let options = ServerOptions { put: Some("memory".into()), memory_budget: Some(64 << 20), ..Default::default() };
    let served = Served::start(&[("data", &url)], &options);
    runtime().block_on(async {
        let mut client = FlightServiceClient::new(connected(&served).await);
        let refused = |messages: Vec<FlightData>| {
            let mut client = client.clone();
            async move { put(&mut client, messages).await.unwrap_err() }
        };
        // Cut bodies, headers of nothing, no schema, a second schema, no descriptor, a long one.
        let honest = attempt(0);
        let mut cut = honest.clone();
        cut[1].data_body = cut[1].data_body.slice(..8);
        let mut noise = honest.clone();
        noise[1].data_header = vec![0xff; 300].into();
        let mut headless = honest.clone();
        headless[0].flight_descriptor = None;
        let mut long = honest.clone();
        long[0].flight_descriptor = Some(FlightDescriptor::new_cmd(vec![b' '; 100 << 10]));
        let mut paths = honest.clone();
        paths[0].flight_descriptor = Some(FlightDescriptor::new_path(vec![String::new(); 300_000]));
        let mut twice = honest.clone();
        twice.push(FlightData { flight_descriptor: None, ..honest[0].clone() });
        let mut told = honest.clone();
        told[1].app_metadata = vec![0; 100 << 10].into();
        let mut large = honest.clone();
        large[1].data_body = vec![0; 60 << 20].into();
        for (what, messages) in [
            ("cut", cut),
            ("noise", noise),
            ("headless", headless),
            ("long", long),
            ("paths", paths),
            ("twice", twice),
            ("told", told),
            ("large", large),
            ("nothing", vec![]),
        ] {
            let status = refused(messages).await;
            let codes = [Code::FailedPrecondition, Code::InvalidArgument, Code::OutOfRange, Code::Unimplemented];
            assert!(codes.contains(&status.code()), "{what}: {status}");
        }
        let staged = put(&mut client, attempt(1)).await.unwrap();
        let staged: serde_json::Value = serde_json::from_slice(&staged).unwrap();
        assert_eq!(staged["rows"], 2);
        let token = &staged["token"];
        // The short form of a token, and the repeated commit with the long one.
        for token in [json!([token["task"], token["attempt"], token["number"]]), token.clone()] {
            let commit = json!({"dataset": "new", "write": "w", "mode": "create", "tokens": [token]});
            client.do_action(Action::new("put.commit", commit.to_string())).await.unwrap();
        }
    });
    reads_all(&served);
}

#[test]
fn what_comes_after_the_end_of_a_write_is_refused_for_good() {
    let directory = tempfile::tempdir().unwrap();
    let url = source(directory.path());
    let options = ServerOptions { put: Some("memory".into()), ..Default::default() };
    let served = Served::start(&[("data", &url)], &options);
    runtime().block_on(async {
        let mut client = FlightServiceClient::new(connected(&served).await);
        let staged: serde_json::Value = serde_json::from_slice(&put(&mut client, attempt(0)).await.unwrap()).unwrap();
        let commit = json!({"dataset": "new", "write": "w", "mode": "create", "tokens": [staged["token"]]});
        client.do_action(Action::new("put.commit", commit.to_string())).await.unwrap();
        let abort = json!({"dataset": "new", "write": "w"}).to_string();
        let late = put(&mut client, attempt(1)).await.unwrap_err();
        let aborted = client.do_action(Action::new("put.abort", abort)).await.unwrap_err();
        for status in [late, aborted] {
            // UNAVAILABLE would send the writer to another replica.
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains("is committed"), "{status}");
            let detail = status.metadata().get_bin("bowstring-error-bin").unwrap().to_bytes().unwrap();
            let detail: serde_json::Value = serde_json::from_slice(&detail).unwrap();
            assert_eq!(detail["kind"], "closed", "the kind that former writers know");
        }
    });
}

#[test]
fn a_loader_reads_while_hundreds_of_writers_say_nothing() {
    let (directory, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let url = source(directory.path());
    let options = ServerOptions { put: Some(place.path().to_str().unwrap().to_owned()), ..Default::default() };
    let served = Served::start(&[("data", &url)], &options);
    let runtime = runtime();
    let held = runtime.block_on(async {
        let mut held = Vec::new();
        // More than the runtime has threads for work that may block.
        for connection in 0..10_u32 {
            let channel = connected(&served).await;
            for stream in 0..54_u32 {
                let mut client = FlightServiceClient::new(channel.clone());
                let mut messages = attempt(connection * 100 + stream);
                messages.truncate(1);
                held.push(tokio::spawn(async move {
                    client.do_put(stream::iter(messages).chain(stream::pending())).await.map(|_| ())
                }));
            }
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(held.iter().all(|writer| !writer.is_finished()));
        held
    });
    reads_all(&served);
    runtime.block_on(async {
        let mut client = FlightServiceClient::new(connected(&served).await);
        put(&mut client, attempt(9999)).await.unwrap();
    });
    held.iter().for_each(tokio::task::JoinHandle::abort);
    drop(runtime);
}

#[test]
fn only_what_was_written_to_the_server_is_served_from_its_directory() {
    let place = tempfile::tempdir().unwrap();
    let foreign = place.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    let url = source(&foreign);
    std::os::unix::fs::symlink(&foreign, place.path().join("linked")).unwrap();
    let options = ServerOptions { put: Some(place.path().to_str().unwrap().to_owned()), ..Default::default() };
    let served = Served::start(&[("data", &url)], &options);
    for name in ["foreign", "linked"] {
        let error = Loader::open(LoaderOptions::new(served.url(name), 8)).unwrap_err();
        assert!(matches!(error, bowstring::Error::NotFound { .. }), "{name}: {error}");
    }
    reads_all(&served);
}

#[test]
fn strangers_ask_for_its_health_in_a_kilobyte() {
    let directory = tempfile::tempdir().unwrap();
    let url = source(directory.path());
    let served = Served::start(&[("data", &url)], &ServerOptions::default());
    runtime().block_on(async {
        let mut health = tonic_health::pb::health_client::HealthClient::new(connected(&served).await);
        let ask = |bytes: usize| tonic_health::pb::HealthCheckRequest { service: "x".repeat(bytes) };
        assert_eq!(health.check(ask(0)).await.unwrap().into_inner().status, 1);
        assert_eq!(health.check(ask(900)).await.unwrap_err().code(), Code::NotFound);
        assert_eq!(health.check(ask(2000)).await.unwrap_err().code(), Code::OutOfRange);
        let mut watches = Vec::new();
        let mut crowd = Vec::new();
        for number in 0..65 {
            if number % 32 == 0 {
                crowd.push(tonic_health::pb::health_client::HealthClient::new(connected(&served).await));
            }
            match crowd.last_mut().unwrap().watch(ask(0)).await {
                Ok(watch) => watches.push(watch),
                Err(status) => assert!(status.code() == Code::ResourceExhausted && number == 64, "{status}"),
            }
        }
        assert_eq!(watches.len(), 64);
        assert_eq!(health.check(ask(0)).await.unwrap().into_inner().status, 1, "one answer is always to be had");
        drop(watches);
        for _ in 0..100 {
            if health.watch(ask(0)).await.is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("places are given back");
    });
    reads_all(&served);
}

/// Bytes of this process in memory, the server's and the test's.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

#[test]
#[cfg(target_os = "linux")]
fn clients_that_vanish_in_the_middle_of_a_stream_leave_nothing() {
    // Memory is measured: that of other tests must not count.
    let output = child::start("flight_put::vanishing", &[]).wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

pub(crate) fn vanishing() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![500; 8]], 16);
    let url = directory.path().to_str().unwrap().to_owned();
    let options = ServerOptions { memory_budget: Some(64 << 20), threads: Some(1), ..Default::default() };
    let served = Served::start(&[("data", &url)], &options);
    let rounds = if support::soak() { 500 } else { 15 };
    runtime().block_on(async {
        let mut steady = FlightServiceClient::new(connected(&served).await);
        let mut sizes = Vec::new();
        for round in 0..rounds {
            let mut streams = Vec::new();
            for rank in 0..12 {
                // Each with a connection of its own, and of its own plan: nothing is shared.
                let mut client = FlightServiceClient::new(connected(&served).await);
                let asked = json!({
                    "dataset": "data", "rank": 0, "world_size": 1,
                    "options": {"global_batch_size": 200, "seed": round * 12 + rank, "shuffle": true},
                });
                let info = client.get_flight_info(FlightDescriptor::new_cmd(asked.to_string())).await.unwrap();
                let ticket = info.into_inner().endpoint[0].ticket.clone().unwrap();
                let mut stream = client.do_get(ticket).await.unwrap().into_inner();
                for _ in 0..3 {
                    stream.message().await.unwrap().unwrap();
                }
                streams.push((client, stream));
            }
            drop(streams);
            sizes.push(resident());
        }
        let mut used = u64::MAX;
        for _ in 0..200 {
            let stats = steady.do_action(Action::new("stats", "")).await.unwrap().into_inner().message().await;
            let stats: serde_json::Value = serde_json::from_slice(&stats.unwrap().unwrap().body).unwrap();
            used = stats["memory"]["used"].as_u64().unwrap();
            if used == 0 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(used, 0, "all that was claimed is given back");
        // What the allocator keeps is reached early; after that it is flat.
        let early = *sizes[rounds / 5..rounds / 2].iter().max().unwrap();
        let late = *sizes[rounds * 4 / 5..].iter().max().unwrap();
        println!("{rounds} rounds of 12: {} MiB early, {} MiB late", early >> 20, late >> 20);
        assert!(late < early + (32 << 20), "{sizes:?}");
    });
}
