//! Throughput of shared memory from a server to a rank, compared with `memcpy`: a gigabyte in batches of several sizes,
//! each in a slab of its own or shared by all readers, handed over and copied out.
//!
//! `cargo bench --bench shared_memory`; the rank is a process of its own.
#![expect(clippy::print_stdout, reason = "a bench prints its figures")]

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bowstring::flight::shm::{ConnectOptions, Listener, ListenerOptions, Outgoing, connect};
use bowstring::memory::{Pool, SharedAllocator, SlabPool};
use bytes::Bytes;
use futures::StreamExt;

const BUDGET: usize = 1 << 30;
const WINDOW: u16 = 4;
/// Environment variable with the server's name, for the rank.
const NAME: &str = "BOWSTRING_BENCH_SHM";

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("threads can be started");
    match std::env::var(NAME) {
        Ok(name) => runtime.block_on(rank(&name)),
        Err(_) => runtime.block_on(server()),
    }
}

async fn server() {
    let (allocator, pools) = (Arc::new(SharedAllocator::new()), Mutex::new(BTreeMap::new()));
    let listener = Listener::bind(Arc::clone(&allocator), ListenerOptions::default()).expect("a socket can be bound");
    let name = listener.name().to_owned();
    let (done, end) = tokio::sync::oneshot::channel::<()>();
    let open = move |ticket: Bytes| {
        let text = String::from_utf8_lossy(&ticket).into_owned();
        let numbers: Vec<usize> = text.split(' ').filter_map(|number| number.parse().ok()).collect();
        let (count, len, exclusive) = (numbers[0], numbers[1], numbers[2] == 1);
        // As in a server: batches for a single receiver have slabs of their own; others of one length share some, if
        // they are small.
        let pool: Arc<Pool> = {
            let mut pools = pools.lock().expect("nobody panics");
            let of = if exclusive { 0 } else { len };
            Arc::clone(pools.entry(of).or_insert_with(|| {
                match SlabPool::new(Arc::clone(&allocator), of, SlabPool::bytes(BUDGET, of)) {
                    Some(slab_pool) => Pool::new(Arc::new(slab_pool), BUDGET),
                    None => Pool::new(Arc::clone(&allocator) as _, BUDGET),
                }
            }))
        };
        // As if decoded beforehand: only the transport is measured.
        let batches = futures::stream::iter(0..count + 2 * usize::from(WINDOW)).then(move |_| {
            let pool = Arc::clone(&pool);
            async move {
                let slab = Some(Arc::new(pool.reserve(len).await?.allocate(len)?));
                Ok(Outgoing { header: Bytes::from_static(b"h"), slab, exclusive, extra: Vec::new(), paid: None })
            }
        });
        std::future::ready(Ok(batches.boxed().into()))
    };
    let serving = tokio::spawn(listener.run(open, async { drop(end.await) }));
    let rank = tokio::task::spawn_blocking(move || {
        let program = std::env::current_exe().expect("a program has a path");
        Command::new(program).env(NAME, name).status().expect("the rank can be started")
    });
    let status = rank.await.expect("nobody panics");
    assert!(status.success(), "the rank failed: {status}");
    done.send(()).expect("the server runs");
    serving.await.expect("nobody panics");
}

async fn rank(name: &str) {
    for (exclusive, bytes) in [(true, 64 << 20), (false, 64 << 20), (true, 1 << 20), (false, 1 << 20), (true, 64 << 10)]
    {
        let ticket = format!("{} {bytes} {}", (1_usize << 30) / bytes, u8::from(exclusive));
        let mut copy = vec![0_u8; bytes];
        for consume in [false, true] {
            let options = ConnectOptions { window: WINDOW, ..ConnectOptions::default() };
            let mut batches = connect(name, ticket.clone().into(), options).await.expect("the server answers");
            // The first slabs are mapped only once.
            for _ in 0..2 * WINDOW {
                drop(batches.next().await.expect("there are more").expect("it comes whole"));
            }
            let (start, mut received, mut count) = (Instant::now(), 0, 0);
            while let Some(batch) = batches.next().await {
                let body = batch.expect("it comes whole").body.expect("it has a body");
                if consume {
                    copy.copy_from_slice(&body);
                }
                received += body.len();
                count += 1;
            }
            let seconds = start.elapsed().as_secs_f64();
            let (rate, each) = (received as f64 / seconds / 1e9, seconds / f64::from(count) * 1e6);
            let how = if exclusive { "exclusive" } else { "copy on write" };
            let doing = if consume { "copied out by the rank" } else { "handed over" };
            println!("{} KiB, {how}, {doing}: {rate:.1} GB/s, {each:.0} us each", bytes >> 10);
        }
        let from = vec![1_u8; bytes];
        let (start, rounds) = (Instant::now(), (1 << 30) / bytes);
        for _ in 0..rounds {
            copy.copy_from_slice(std::hint::black_box(&from));
        }
        let rate = (rounds * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9;
        println!("{} KiB, memcpy in one process: {rate:.1} GB/s", bytes >> 10);
    }
}
