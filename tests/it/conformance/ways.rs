//! The ways to the batches of one dataset: each opens a loader with any options.

use std::any::Any;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, BinaryArray, Float32Array, Int64Array, RecordBatch};
use bowstring::device::{DeviceValue, Sim};
use bowstring::tensor::Value;
use bowstring::{AnyBatch, Loader, LoaderOptions, Result};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use super::watched::Watched;
use crate::support::{self, cell};

/// Row groups of uneven sizes in three files.
const FILES: [&[usize]; 3] = [&[20, 70, 1], &[30, 33], &[40, 36]];
/// Rows of [`FILES`].
pub(super) const ROWS: i64 = 230;
/// Rows of all ranks in a step: 9 whole steps and one of 14 rows.
pub(super) const GLOBAL: u64 = 24;

type Open = Box<dyn Fn(LoaderOptions) -> Result<Loader>>;

/// A way to the batches of [`ROWS`] rows: `id`, `f0` as in [`cell`], and `image`, which is bad in every seventh row.
pub(super) struct Way {
    pub(super) name: &'static str,
    open: Open,
    /// Rows of an epoch: a mixture ends with the first of its members, and leaves out a row of the other.
    pub(super) rows: u64,
    /// Points where a file order starts again: between the members of a mixture.
    pub(super) borders: &'static [i64],
    /// Set if this process decodes, so that bad rows are in the loader's own ledger.
    pub(super) decodes: bool,
    /// Resources that must live as long: files, servers.
    _keep: Box<dyn Any>,
}

impl Way {
    fn new(name: &'static str, keep: impl Any, open: impl Fn(LoaderOptions) -> Result<Loader> + 'static) -> Self {
        Self { name, open: Box::new(open), rows: ROWS as u64, borders: &[], decodes: true, _keep: Box::new(keep) }
    }

    /// A loader of rank `rank` of `world`, padded, without images unless `change` includes them.
    pub(super) fn try_open(&self, rank: u32, world: u32, change: impl FnOnce(&mut LoaderOptions)) -> Result<Loader> {
        let mut options = support::options(Path::new(""), GLOBAL, rank, world);
        (options.seed, options.timeout) = (7, 60.0);
        options.columns.exclude = vec!["image".to_owned()];
        change(&mut options);
        (self.open)(options)
    }

    pub(super) fn open(&self, rank: u32, world: u32, change: impl FnOnce(&mut LoaderOptions)) -> Loader {
        self.try_open(rank, world, change).unwrap_or_else(|error| panic!("{}: {}", self.name, error.chain()))
    }

    /// A loader of a single rank.
    pub(super) fn whole(&self) -> Loader {
        self.open(0, 1, |_| ())
    }
}

/// A batch, on the host or a device: its position, the ids of its real rows, and each tensor's bytes by name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Seen {
    pub(super) at: (u64, u64),
    pub(super) rows: usize,
    pub(super) ids: Vec<i64>,
    pub(super) tensors: Vec<(String, Vec<u8>)>,
}

pub(super) fn seen(batch: &AnyBatch) -> Seen {
    let (rows, tensors) = match batch {
        AnyBatch::Host(batch) => {
            let tensor = |(name, value): &(Arc<str>, Value)| match value {
                Value::Tensor(tensor) => Some((name.to_string(), tensor.bytes().to_vec())),
                Value::Arrow(_) => None,
            };
            (batch.rows, batch.columns().iter().filter_map(tensor).collect::<Vec<_>>())
        }
        AnyBatch::Device(batch) => {
            let tensor = |(name, value): &(Arc<str>, DeviceValue)| match value {
                DeviceValue::Tensor(tensor) => Some((name.to_string(), tensor.to_host().unwrap())),
                DeviceValue::Arrow(_) => None,
            };
            (batch.rows, batch.columns().iter().filter_map(tensor).collect())
        }
    };
    let of = |column: &str| tensors.iter().find(|(name, _)| name == column).map(|(_, bytes)| bytes.as_slice());
    let ids = of("id").unwrap_or_default().chunks_exact(8).map(|id| i64::from_le_bytes(id.try_into().unwrap()));
    let mask = of("_mask").map(<[u8]>::to_vec).unwrap_or_else(|| vec![1; rows]);
    let ids = ids.zip(mask).filter(|(_, real)| *real == 1).map(|(id, _)| id).collect();
    Seen { at: batch.at(), rows, ids, tensors }
}

pub(super) fn next(loader: &mut Loader) -> Option<Seen> {
    loader.next_any().unwrap().map(|batch| seen(&batch))
}

/// The rest of the epoch.
pub(super) fn epoch(loader: &mut Loader) -> Vec<Seen> {
    std::iter::from_fn(|| next(loader)).collect()
}

/// A bitmap of one pixel, cut short in every seventh row.
fn bitmap(row: i64) -> Vec<u8> {
    let mut bytes = b"BM\x3a\0\0\0\0\0\0\0\x36\0\0\0\x28\0\0\0\x01\0\0\0\x01\0\0\0\x01\0\x18".to_vec();
    bytes.resize(54, 0);
    bytes.extend([row as u8, row as u8, row as u8, 0]);
    bytes.truncate(if is_bad(row) { 40 } else { bytes.len() });
    bytes
}

/// Returns true if the image of a row cannot be decoded.
pub(super) fn is_bad(row: i64) -> bool {
    row % 7 == 3
}

fn rows(ids: std::ops::Range<i64>) -> RecordBatch {
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values(ids.clone()))),
        ("f0", Arc::new(Float32Array::from_iter_values(ids.clone().map(|id| cell(id, 0))))),
        ("image", Arc::new(BinaryArray::from_iter_values(ids.map(bitmap)))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, false))).unwrap()
}

/// Writes `files`, whose ids begin with `first`.
fn write(directory: &Path, files: &[&[usize]], mut first: i64) {
    for (number, groups) in files.iter().enumerate() {
        let file = File::create(directory.join(format!("part-{number}.parquet"))).unwrap();
        let properties = WriterProperties::builder().set_max_row_group_row_count(None).build();
        let mut writer = ArrowWriter::try_new(file, rows(0..0).schema(), Some(properties)).unwrap();
        for length in *groups {
            writer.write(&rows(first..first + *length as i64)).unwrap();
            writer.flush().unwrap();
            first += *length as i64;
        }
        writer.close().unwrap();
    }
}

fn files() -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &FILES, 0);
    let url = directory.path().to_str().unwrap().to_owned();
    (directory, url)
}

fn at(url: &str, options: LoaderOptions) -> LoaderOptions {
    LoaderOptions { urls: vec![url.to_owned()], ..options }
}

/// Files read by this process.
pub(super) fn local() -> Way {
    let (keep, url) = files();
    Way::new("local", keep, move |options| Loader::open(at(&url, options)))
}

/// Files, read through a source around a source.
pub(super) fn decorated() -> Way {
    let (keep, url) = files();
    Way::new("decorated", keep, move |options| Watched::open(at(&url, options)))
}

/// Two datasets of equal parts, read by this process.
pub(super) fn mixture() -> Way {
    let parts = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let half = ROWS / 2;
    write(parts[0].path(), &[&[20, 70, 1], &[24]], 0);
    write(parts[1].path(), &[&[39], &[40, 36]], half);
    let urls: Vec<_> = parts.iter().map(|part| part.path().to_str().unwrap().to_owned()).collect();
    let open = move |options| Loader::open(LoaderOptions { urls: urls.clone(), weights: vec![0.5, 0.5], ..options });
    Way { rows: ROWS as u64 - 1, borders: &[ROWS / 2], ..Way::new("mixture", parts, open) }
}

/// Files, delivered on a simulated device.
pub(super) fn simulated_device() -> Way {
    let (keep, url) = files();
    Way::new("simulated device", keep, move |options| Loader::open_on(&at(&url, options), Sim::new(3)))
}

/// Files, delivered as the option `device` says.
#[cfg(all(target_os = "linux", feature = "cuda"))]
pub(super) fn at_device(device: &'static str) -> Way {
    let (keep, url) = files();
    let open = move |options| Loader::open(LoaderOptions { device: device.to_owned(), ..at(&url, options) });
    Way::new(device, keep, open)
}

pub(super) use remote::{put, shared_memory, tcp};

mod remote {
    use arrow_flight::flight_service_client::FlightServiceClient;
    use arrow_flight::utils::batches_to_flight_data;
    use arrow_flight::{Action, FlightDescriptor};
    use bowstring::flight::server::config::ServerOptions;
    use serde_json::json;

    use super::*;
    use crate::flight::{Served, hasty};

    fn over(transport: &'static str, url: String, name: &'static str, keep: impl Any) -> Way {
        let open = move |options: LoaderOptions| {
            let storage_options = [("transport".to_owned(), transport.to_owned())].into();
            Loader::open(LoaderOptions { storage_options, ..at(&url, options) })
        };
        Way { decodes: false, ..Way::new(name, keep, open) }
    }

    fn served(transport: &'static str, name: &'static str) -> Way {
        let (directory, url) = files();
        let served = Served::start(&[("rows", &url)], &hasty());
        over(transport, served.url("rows"), name, (served, directory))
    }

    /// A server of the files, over TCP.
    pub(crate) fn tcp() -> Way {
        served("tcp", "tcp")
    }

    /// A server of the files, through shared memory.
    pub(crate) fn shared_memory() -> Way {
        served("shared_memory", "shared memory")
    }

    /// Files put at a server by tasks, as by Spark's, and then served by it.
    pub(crate) fn put() -> Way {
        let directory = tempfile::tempdir().unwrap();
        let options = ServerOptions { put: Some(directory.path().display().to_string()), ..hasty() };
        let served = Served::start(&[], &options);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let address = format!("http://{}", served.address());
            let channel = tonic::transport::Channel::from_shared(address).unwrap().connect().await.unwrap();
            let mut client = FlightServiceClient::new(channel);
            let mut tokens = Vec::new();
            for (task, ids) in [0..90, 90..ROWS].into_iter().enumerate() {
                let rows = rows(ids);
                let mut messages = batches_to_flight_data(&rows.schema(), [&rows]).unwrap();
                let part = json!({"dataset": "rows", "write": "w", "task": task, "attempt": 0});
                messages[0].flight_descriptor = Some(FlightDescriptor::new_cmd(part.to_string()));
                let mut answer = client.do_put(futures::stream::iter(messages)).await.unwrap().into_inner();
                let staged = answer.message().await.unwrap().unwrap().app_metadata;
                let staged: serde_json::Value = serde_json::from_slice(&staged).unwrap();
                tokens.push(staged["token"].clone());
            }
            let commit = json!({"dataset": "rows", "write": "w", "mode": "create", "tokens": tokens});
            client.do_action(Action::new("put.commit", commit.to_string())).await.unwrap();
        });
        over("auto", served.url("rows"), "put", (served, directory))
    }
}
