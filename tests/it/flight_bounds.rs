//! A client's request is bounded before it costs anything, and columns that a catalogue hides cannot be requested.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{Array, ArrayRef, Int64Array, RecordBatch, StructArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow_flight::flight_service_client::FlightServiceClient;
use arrow_flight::{FlightData, FlightDescriptor};
use bowstring::Loader;
use bowstring::dataset::filter::Filter;
use bowstring::error::Error;
use bowstring::flight::server::Limits;
use bowstring::flight::server::config::ServerOptions;
use bowstring::pipeline::LoaderOptions;
use bowstring::plan::Tail;
use parquet::arrow::ArrowWriter;
use serde_json::{Value, json};
use tonic::transport::{Channel, Endpoint};

use crate::flight::{Served, hasty};
use crate::serve_shell::{Server, connect, write};
use crate::support;

/// Writes `id`, `secret_a` and `person` with `age` and `secret_b`: the secret values are ten times the id.
fn people(path: &Path) {
    let ids = || Int64Array::from_iter_values(0..64);
    let tens = || Arc::new(Int64Array::from_iter_values((0..64).map(|id| id * 10))) as ArrayRef;
    let number = |name: &str| Arc::new(Field::new(name, DataType::Int64, false));
    let person = StructArray::from(vec![(number("age"), Arc::new(ids()) as ArrayRef), (number("secret_b"), tens())]);
    let fields = vec![
        Field::new("id", DataType::Int64, false),
        Field::new("secret_a", DataType::Int64, false),
        Field::new("person", person.data_type().clone(), false),
    ];
    let columns: Vec<ArrayRef> = vec![Arc::new(ids()), tens(), Arc::new(person)];
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn remote(server: &Server, dataset: &str, change: impl FnOnce(&mut LoaderOptions)) -> Result<Loader, Error> {
    let mut options = LoaderOptions {
        rank: Some(0),
        world_size: Some(1),
        timeout: 30.0,
        ..LoaderOptions::new(format!("{}/{dataset}", server.listen), 16)
    };
    change(&mut options);
    Loader::open(options)
}

/// Returns the described schema of `asked` as text, or the error message.
fn described(server: &Server, asked: &Value) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = FlightServiceClient::new(connect(server.port(), None).await?);
        let descriptor = FlightDescriptor::new_cmd(asked.to_string());
        let info = client.get_flight_info(descriptor).await.map_err(|status| status.message().to_owned())?;
        let schema = info.into_inner().try_decode_schema().map_err(|error| error.to_string())?;
        Ok(schema.to_string())
    })
}

#[test]
fn excluded_columns_do_not_exist_for_a_client() {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("people.parquet");
    people(&data);
    let config = format!(
        "[datasets.people]\nurl = {data:?}\nexclude = [\"*secret*\"]\nfilter = \"secret_a >= 100\"\n\
         [datasets.open]\nurl = {data:?}\n"
    );
    let server = Server::start(&["--config", &write(directory.path(), "serve.toml", &config)]);
    // The owner's filter may use hidden columns.
    let mut loader = remote(&server, "people", |options| options.shuffle = false).unwrap();
    assert_eq!(loader.rows(), 54);
    let names: Vec<&str> = loader.schema().fields().iter().map(|field| &*field.name).collect();
    assert_eq!(names, ["id", "person.age"]);
    assert_eq!(support::ids(&loader.next().unwrap().unwrap())[0], 10);
    // A client's filter may use every visible column, and learns nothing of the others.
    let seen = |text: &str| {
        let filter = Some(Filter::Text(text.to_owned()));
        remote(&server, "people", |options| options.filter = filter).map(|loader| loader.rows())
    };
    assert_eq!(seen("person.age < 20 and id > 0").unwrap(), 10);
    for hidden in
        ["secret_a > 300", "person.secret_b > 300", "secret_a is null", "split(secret_a, 0, 0.5)", "nothing > 1"]
    {
        let error = seen(hidden).unwrap_err();
        let text = error.to_string();
        let name = hidden.trim_start_matches("split(").split([' ', ',']).next().unwrap();
        assert!(matches!(error, Error::NotFound { .. }), "{hidden}: {text}");
        assert!(!text.replace(name, "").contains("secret"), "{hidden}: {text}");
    }
    // The same under other names, as rows or as batches.
    for columns in [vec!["*"], vec!["person"], vec!["id", "person.*"]] {
        let asked = json!({"dataset": "people", "options": {"batch_size": 8, "columns": columns}});
        let schema = described(&server, &asked).unwrap();
        assert!(schema.contains("person") && !schema.contains("secret"), "{columns:?}: {schema}");
    }
    for columns in [vec!["*"], vec!["person"], vec![]] {
        let asked = json!({"dataset": "people", "rows": {}, "options": {"columns": columns}});
        let schema = described(&server, &asked).unwrap();
        assert!(schema.contains("age") && !schema.contains("secret"), "{columns:?}: {schema}");
    }
    for columns in ["secret_a", "person.secret_b", "secret*"] {
        for rows in [json!(null), json!({})] {
            let options = json!({"batch_size": 8, "columns": [columns]});
            let asked = json!({"dataset": "people", "rows": rows, "options": options});
            let error = described(&server, &asked).unwrap_err();
            // Stored rows are complete columns, hidden or not.
            assert!(error.contains("not found") || error.contains("name the whole column"), "{columns}: {error}");
            assert!(!error.replace(columns, "").contains("secret"), "{columns}: {error}");
        }
    }
    // A client's own exclusions apply to stored rows at any depth too, and excluded columns may still be in the filter.
    let options = json!({"exclude": ["*secret*"], "filter": "secret_a > 300"});
    let schema = described(&server, &json!({"dataset": "open", "rows": {}, "options": options})).unwrap();
    assert!(schema.contains("age") && !schema.contains("secret"), "{schema}");
}

#[test]
fn a_step_of_two_billion_rows_is_refused_and_delays_no_other_client() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![50; 20]], 1);
    let config = format!(
        "[server]\nmemory_budget = 67_108_864\n[datasets.numbers]\nurl = {0:?}\n[datasets.small]\nurl = {0:?}\nlimits = {{ max_batch_size = 100 }}\n",
        directory.path()
    );
    let config_directory = tempfile::tempdir().unwrap();
    let server = Server::start(&["--config", &write(config_directory.path(), "serve.toml", &config)]);
    let start = Instant::now();
    for tail in [Tail::Repeat, Tail::Pad] {
        let huge = remote(&server, "numbers", |options| {
            (options.batch_size, options.tail) = (Some((1 << 31) - 1), Some(tail));
        });
        let error = huge.and_then(|mut loader| loader.next()).unwrap_err();
        assert!(matches!(error, Error::Limit { .. }), "{error}");
    }
    // Impossible numbers are refused by client and server, without a panic.
    type Change = fn(&mut LoaderOptions);
    let cases: [(Change, &str); 9] = [
        (|options| options.batch_size = Some(1 << 63), "global_batch_size"),
        (|options| options.batch_size = Some(u64::MAX), "global_batch_size"),
        (|options| options.window_rows = Some(u64::MAX), "window_rows"),
        (|options| options.timeout = u64::MAX as f64, "timeout"),
        (|options| options.lanes = Some(u32::MAX), "lanes"),
        (|options| options.window_rows = Some(1 << 63), "window_rows"),
        (|options| options.prefetch = 1 << 63, "prefetch"),
        (|options| options.prefetch = usize::MAX, "prefetch"),
        (|options| options.timeout = 9.3e18, "timeout"),
    ];
    for (change, option) in cases {
        let error = remote(&server, "numbers", change).unwrap_err().to_string();
        assert!(error.contains(option), "{option}: {error}");
    }
    for (options, option) in [
        (json!({"global_batch_size": 1_u64 << 63}), "global_batch_size"),
        (json!({"batch_size": 8, "lanes": 1_u64 << 63}), "whole number from 1 to 65536"),
        (json!({"batch_size": 8, "lanes": u32::MAX}), "lanes"),
        (json!({"batch_size": 8, "window_rows": 1_u64 << 63}), "window_rows"),
        (json!({"batch_size": 8, "prefetch": 1_u64 << 63}), "prefetch"),
        (json!({"batch_size": 8, "timeout": 9.3e18}), "timeout"),
        (json!({"global_batch_size": u64::MAX}), "global_batch_size"),
        (json!({"batch_size": u64::MAX}), "batch_size"),
        (json!({"batch_size": 8, "lanes": u64::MAX}), "lanes"),
        (json!({"batch_size": 8, "window_rows": u64::MAX}), "window_rows"),
        (json!({"batch_size": 8, "prefetch": u64::MAX}), "prefetch"),
        (json!({"batch_size": 8, "timeout": u64::MAX}), "timeout"),
    ] {
        let error = described(&server, &json!({"dataset": "numbers", "options": options})).unwrap_err();
        assert!(error.contains(option), "{option}: {error}");
    }
    // A limit for one rank applies to the client's request, which is the batch of all ranks.
    let error = remote(&server, "small", |options| options.batch_size = Some(101)).unwrap_err().to_string();
    assert!(error.contains("needs 101, the limit is 100"), "{error}");
    remote(&server, "small", |options| options.batch_size = Some(100)).unwrap();
    // Each of the tickets for all ranks repeats the whole request.
    let long: Vec<u32> = (0..1 << 12).collect();
    let asked = json!({"dataset": "numbers", "world_size": 1024, "options": {"global_batch_size": 1024, "filter": [["id", "in", long]]}});
    let error = described(&server, &asked).unwrap_err();
    assert!(error.contains("in bytes"), "{error}");
    let mut loader = remote(&server, "numbers", |_| ()).unwrap();
    let mut rows = 0;
    while let Some(batch) = loader.next().unwrap() {
        rows += support::ids(&batch).len();
    }
    assert_eq!(rows, 1000);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

/// Opens a stream of batches in the order of `seed` and reads only its first message. The stream lasts as long as the returned values.
async fn unread(served: &Served, seed: u64) -> (Channel, tonic::Streaming<FlightData>) {
    let address = format!("http://{}", served.address());
    // Room for a part of one batch.
    let endpoint = Endpoint::from_shared(address).unwrap().initial_stream_window_size(65_535);
    let channel = endpoint.initial_connection_window_size(65_535).connect().await.unwrap();
    let mut client = FlightServiceClient::new(channel.clone()).max_decoding_message_size(64 << 20);
    let asked = json!({"dataset": "rows", "rank": 0, "world_size": 1, "options": {"batch_size": 1000, "seed": seed, "order_version": 3, "tail": null}});
    let descriptor = FlightDescriptor::new_cmd(asked.to_string());
    let info = client.get_flight_info(descriptor).await.unwrap().into_inner();
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let mut stream = client.do_get(ticket).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    (channel, stream)
}

#[test]
fn unread_streams_hold_no_memory_that_others_wait_for() {
    let directory = tempfile::tempdir().unwrap();
    support::write(directory.path(), &[vec![1000; 40]], 200);
    let data = [("rows", directory.path().to_str().unwrap())];
    let limits = Limits { idle_seconds: 3, keepalive_seconds: 1, keepalive_timeout_seconds: 1, ..Limits::default() };
    let server = |memory_budget| {
        let limits = limits.clone();
        Served::start(&data, &ServerOptions { limits, memory_budget: Some(memory_budget), ..hasty() })
    };
    let open = |served: &Served, seed| {
        let mut options = LoaderOptions::new(served.url("rows"), 1000);
        (options.rank, options.world_size, options.seed, options.timeout) = (Some(0), Some(1), seed, 60.0);
        options.storage_options.insert("transport".to_owned(), "tcp".to_owned());
        Loader::open(options)
    };
    // The need of one stream, a seventh of which is for batches being sent.
    let least = match open(&server(8 << 20), 0).and_then(|mut loader| loader.next().map(drop)) {
        Err(Error::Limit { asked, .. }) => asked,
        other => panic!("{other:?}"),
    };
    let served = server(least + least / 10);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let streams: Vec<_> = (1..3).map(|seed| runtime.block_on(unread(&served, seed))).collect();
    let mut loader = open(&served, 7).unwrap();
    assert_eq!(support::drain(&mut loader).iter().map(Vec::len).sum::<usize>(), 40_000);
    // A client that returns finds its stream ended.
    let ended = streams.into_iter().filter_map(|(_, mut stream)| {
        let last = async {
            loop {
                match stream.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return None,
                    Err(status) => return Some(status.code()),
                }
            }
        };
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), last).await.unwrap() })
    });
    assert!(ended.count() > 0, "the transport says so");
}
