//! Hostile peers: every malicious frame of a server or rank becomes a typed error, and honest peers are still served.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::StreamExt;
use tokio::net::{UnixListener, UnixStream};

use super::fd;
use super::link::{Broken, Inbox, Outbox};
use super::wire::{Body, Frame, MAX_TICKET, VERSION};
use super::{ConnectOptions, Listener, ListenerOptions, Outgoing, Receiver, Refusal, Source, connect};
use crate::error::Error;
use crate::memory::{HostAllocator, Pool, SharedAllocator, Slab, SlabPool};

const DEADLINE: Duration = Duration::from_millis(400);

fn options() -> ConnectOptions {
    let heartbeat = Duration::from_millis(50);
    ConnectOptions {
        window: 2,
        deadline: DEADLINE,
        heartbeat,
        max_frame: 1000,
        max_slab: 1 << 20,
        ..Default::default()
    }
}

/// Returns a socket name unique to this process.
fn name(of: &str) -> String {
    format!("bowstring-test-{}-{of}", std::process::id())
}

/// Connects a rank to a fake server that has read its hello.
async fn pair(of: &str) -> (Receiver, UnixStream) {
    let name = name(of);
    let listener = UnixListener::bind(format!("\0{name}")).unwrap();
    let receiver = connect(&name, Bytes::from_static(b"ticket"), options()).await.unwrap();
    let (socket, _) = listener.accept().await.unwrap();
    let hello = Inbox::new(1000).next(&socket).await.unwrap();
    assert_eq!(hello, Frame::Hello { version: VERSION, window: 2, ticket: Bytes::from_static(b"ticket") });
    (receiver, socket)
}

async fn send(socket: &UnixStream, frame: &Frame, pass: Option<BorrowedFd<'_>>) {
    let bytes = frame.encode().unwrap().concat();
    socket.writable().await.unwrap();
    assert_eq!(fd::send(socket.as_fd(), &[IoSlice::new(&bytes)], pass).unwrap(), bytes.len());
}

/// Allocates a slab of `len` bytes that lives as long as the returned value.
fn slab(allocator: &SharedAllocator, len: usize) -> Arc<Slab> {
    allocator.allocate(len).unwrap();
    allocator.newest()
}

fn batch(number: u64, body: Body) -> Frame {
    Frame::Batch { number, body: Some(body), header: Bytes::from_static(b"header"), extra: Vec::new() }
}

fn body(slab: u64, slab_len: u64, new: bool) -> Body {
    Body { slab, slab_len, offset: 0, len: 100, new, exclusive: true }
}

/// Returns the error that the rank reads, skipping batches.
async fn error(receiver: &mut Receiver) -> Error {
    let read = async {
        loop {
            match receiver.next().await {
                Some(Err(error)) => return error,
                Some(Ok(_)) => {}
                None => panic!("the stream ended as if all were sent"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(5), read).await.unwrap()
}

#[tokio::test]
async fn lying_servers_are_typed_errors() {
    let allocator = SharedAllocator::new();
    let good = slab(&allocator, 4096);
    let plain = tempfile::tempfile().unwrap();
    plain.set_len(4096).unwrap();
    let (pipe, _other) = std::io::pipe().unwrap();
    let one = |body: Body, fd| vec![(batch(0, body), fd)];
    let (fd, plain, pipe) = (Some(good.as_fd()), Some(plain.as_fd()), Some(pipe.as_fd()));
    type Sent<'a> = Vec<(Frame, Option<BorrowedFd<'a>>)>;
    let cases: Vec<(&str, Sent<'_>)> = vec![
        ("not sealed", one(body(1, 4096, true), plain)),
        ("not sealed", one(body(1, 4096, true), pipe)),
        ("of 4096 bytes as one of 8192", one(body(1, 8192, true), fd)),
        ("of 4096 bytes as one of 4000", one(body(1, 4000, true), fd)),
        ("the limit is 1048576", one(body(1, u64::MAX, true), fd)),
        ("descriptor of a new slab is missing", one(body(1, 4096, true), None)),
        ("without its descriptor", one(body(77, 4096, false), None)),
        ("100 bytes at 8 of a slab", one(Body { offset: 8, ..body(1, 4096, true) }, fd)),
        ("a body without a slab", one(body(0, 4096, false), None)),
        ("100 bytes at 4032 of a slab of 4096", one(Body { offset: 4032, ..body(1, 4096, true) }, fd)),
        (
            "again before it was released",
            vec![(batch(0, body(1, 4096, true)), fd), (batch(1, body(1, 4096, false)), None)],
        ),
        (
            "again before it was released",
            vec![(batch(0, body(1, 4096, true)), fd), (batch(1, Body { offset: 1024, ..body(1, 4096, false) }), None)],
        ),
        ("descriptor of a slab twice", vec![(batch(0, body(1, 4096, true)), fd), (batch(1, body(1, 4096, true)), fd)]),
        ("without its descriptor", vec![(batch(0, body(1, 4096, true)), fd), (batch(1, body(1, 8192, false)), None)]),
        ("one number", vec![(batch(0, body(1, 4096, true)), fd), (batch(0, body(2, 4096, true)), fd)]),
        ("than it was told", (0..3).map(|n| (batch(n, body(n + 1, 4096, true)), fd)).collect()),
        ("descriptors without frames", (0..40).map(|_| (Frame::Heartbeat, fd)).collect()),
        ("only ranks send", vec![(Frame::Release(0), None)]),
        ("only ranks send", vec![(Frame::Hello { version: 1, window: 1, ticket: Bytes::new() }, None)]),
        ("1 to 1000 are accepted", vec![(Frame::Failed(Refusal { code: 1, message: "x".repeat(2000) }), None)]),
        ("no more", vec![(Frame::Failed(Refusal { code: 1, message: "no more".into() }), None)]),
    ];
    for (case, (why, frames)) in cases.into_iter().enumerate() {
        let (mut receiver, socket) = pair(&format!("liar{case}")).await;
        // Received batches stay in use.
        let mut kept = Vec::new();
        for (frame, fd) in &frames {
            send(&socket, frame, *fd).await;
        }
        let error = loop {
            match tokio::time::timeout(Duration::from_secs(5), receiver.next()).await.unwrap() {
                Some(Ok(batch)) => kept.push(batch),
                Some(Err(error)) => break error,
                None => panic!("{why}: ended as if all were sent"),
            }
        };
        assert!(matches!(error, Error::Remote { .. } | Error::Limit { .. }), "{error:?}");
        assert!(error.chain().contains(why), "{why}: {}", error.chain());
        assert!(receiver.next().await.is_none());
    }
}

#[tokio::test]
async fn junk_silence_and_half_frames_are_typed_errors() {
    for (case, (bytes, why)) in [
        (&b"\0\0\0\0"[..], "malformed"),
        (b"\xff\xff\xff\xff", "malformed"),
        (b"GET / HTTP/1.1\r\n\r\n", "malformed"),
        (b"\x09\0\0\0\x05abc", "closed the connection"),
        (b"", "closed the connection"),
    ]
    .into_iter()
    .enumerate()
    {
        let (mut receiver, socket) = pair(&format!("junk{case}")).await;
        if !bytes.is_empty() {
            fd::send(socket.as_fd(), &[IoSlice::new(bytes)], None).unwrap();
        }
        drop(socket);
        let error = error(&mut receiver).await;
        assert!(error.to_string().contains(why), "{error}");
    }
    // Silent from the start, and after half a frame.
    for bytes in [&b""[..], b"\x09\0\0\0\x05abc"] {
        let (mut receiver, socket) = pair(&format!("mute{}", bytes.len())).await;
        if !bytes.is_empty() {
            fd::send(socket.as_fd(), &[IoSlice::new(bytes)], None).unwrap();
        }
        let start = Instant::now();
        let error = error(&mut receiver).await;
        assert!(matches!(error, Error::Timeout { .. }), "{error}");
        assert!(error.to_string().contains("bowstring-test-"), "{error}");
        assert!((DEADLINE..DEADLINE + Duration::from_secs(1)).contains(&start.elapsed()), "{:?}", start.elapsed());
        drop(socket);
    }
}

async fn hear(socket: &UnixStream) -> Result<Frame, Broken> {
    let mut inbox = Inbox::new(1 << 20);
    loop {
        match tokio::time::timeout(Duration::from_secs(5), inbox.next(socket)).await.unwrap() {
            Ok(Frame::Heartbeat | Frame::Batch { .. }) => {}
            other => return other,
        }
    }
}

#[tokio::test]
async fn what_lies_in_one_slab_with_others_is_not_to_be_written_to() {
    let allocator = Arc::new(SharedAllocator::new());
    let slabs = Arc::new(SlabPool::new(Arc::clone(&allocator), 100_000, 4 << 20).unwrap());
    let pools = [Pool::new(slabs, 1 << 20), Pool::new(Arc::<SharedAllocator>::clone(&allocator), 1 << 20)];
    let listener = Listener::bind(Arc::clone(&allocator), ListenerOptions::default()).unwrap();
    let name = listener.name().to_owned();
    let open = move |_| {
        let buffers = pools.clone().map(|pool| pool.try_reserve(100_000).unwrap().allocate(100_000).unwrap());
        let batches = buffers.map(|buffer| {
            Ok(Outgoing {
                header: Bytes::new(),
                slab: Some(Arc::new(buffer)),
                exclusive: true,
                extra: Vec::new(),
                paid: None,
            })
        });
        std::future::ready(Ok(Source::from(futures::stream::iter(batches).boxed())))
    };
    let serving = tokio::spawn(listener.run(open, std::future::pending()));
    let socket = UnixStream::connect(format!("\0{name}")).await.unwrap();
    let mut outbox = Outbox::default();
    assert!(outbox.push(&Frame::Hello { version: VERSION, window: 2, ticket: Bytes::new() }, None));
    outbox.flush(&socket).await.unwrap();
    let (mut inbox, mut exclusive) = (Inbox::new(1 << 20), Vec::new());
    while exclusive.len() < 2 {
        let frame = tokio::time::timeout(Duration::from_secs(5), inbox.next(&socket)).await.unwrap().unwrap();
        if let Frame::Batch { body: Some(body), .. } = frame {
            exclusive.push((body.slab_len, body.exclusive));
        }
    }
    assert_eq!(exclusive, [(2 << 20, false), (102_400, true)]);
    serving.abort();
}

#[tokio::test]
async fn lying_ranks_are_refused_and_the_honest_are_served() {
    let allocator = Arc::new(SharedAllocator::new());
    let provider: Arc<dyn HostAllocator> = Arc::<SharedAllocator>::clone(&allocator);
    let pool = Pool::new(provider, 1 << 20);
    let limits = ListenerOptions {
        heartbeat: Duration::from_millis(50),
        handshake: Duration::from_millis(200),
        silence: Duration::from_millis(600),
        ..ListenerOptions::default()
    };
    let listener = Listener::bind(allocator, limits).unwrap();
    let name = listener.name().to_owned();
    let (done, end) = tokio::sync::oneshot::channel::<()>();
    let served = Arc::clone(&pool);
    let open = move |_| {
        let pool = Arc::clone(&served);
        let batches = futures::stream::iter(0..50).then(move |_| {
            let pool = Arc::clone(&pool);
            async move {
                let slab = Some(Arc::new(pool.reserve(5000).await?.allocate(5000)?));
                Ok(Outgoing { header: Bytes::new(), slab, exclusive: true, extra: Vec::new(), paid: None })
            }
        });
        std::future::ready(Ok(Source::from(batches.boxed())))
    };
    let serving = tokio::spawn(listener.run(open, async { drop(end.await) }));
    let hello = Frame::Hello { version: VERSION, window: 2, ticket: Bytes::new() };
    let cases: Vec<(&str, Vec<Frame>)> = vec![
        ("no greeting", vec![Frame::Heartbeat]),
        ("within the time", vec![]),
        ("version 9", vec![Frame::Hello { version: 9, window: 2, ticket: Bytes::new() }]),
        (
            "bytes, and 1 to",
            vec![Frame::Hello { version: VERSION, window: 2, ticket: vec![0; MAX_TICKET + 100].into() }],
        ),
        ("a ticket has", vec![Frame::Hello { version: VERSION, window: 2, ticket: vec![0; MAX_TICKET + 1].into() }]),
        ("does not have", vec![hello.clone(), Frame::Release(1 << 60)]),
        ("only servers send", vec![hello.clone(), Frame::End]),
        ("nothing for too long", vec![hello.clone()]),
    ];
    for (why, frames) in cases {
        let socket = UnixStream::connect(format!("\0{name}")).await.unwrap();
        let mut outbox = Outbox::default();
        frames.iter().for_each(|frame| assert!(outbox.push(frame, None)));
        // A refusal may come, and the connection end, before all is sent.
        let _ = outbox.flush(&socket).await;
        match hear(&socket).await {
            Ok(Frame::Failed(refusal)) => assert!(refusal.message.contains(why), "{why}: {refusal}"),
            Err(Broken::Closed) => {}
            other => panic!("{why}: {other:?}"),
        }
    }
    assert_eq!(pool.used(), 0, "nothing is kept for those that were refused");
    let batches = connect(&name, Bytes::new(), ConnectOptions::default()).await.unwrap();
    let received: Vec<_> = batches.map(|batch| batch.unwrap().body.unwrap().len()).collect().await;
    assert_eq!(received, [5000; 50]);
    done.send(()).unwrap();
    serving.await.unwrap();
}

#[tokio::test]
async fn a_rank_that_reads_nothing_stops_no_batch_that_is_being_made() {
    let limits = ListenerOptions { heartbeat: Duration::from_millis(1), ..ListenerOptions::default() };
    let listener = Listener::bind(Arc::new(SharedAllocator::new()), limits).unwrap();
    let name = listener.name().to_owned();
    // Other ranks wait for the lock.
    let (lock, made) = (Arc::new(tokio::sync::Mutex::new(())), Arc::new(tokio::sync::Notify::new()));
    let (held, ready) = (Arc::clone(&lock), Arc::clone(&made));
    let open = move |_| {
        let (held, ready) = (Arc::clone(&held), Arc::clone(&ready));
        let batches = futures::stream::once(async move {
            let _held = held.lock().await;
            ready.notified().await;
            Err(Refusal { code: 7, message: "that is all".to_owned() })
        });
        std::future::ready(Ok(Source::from(batches.boxed())))
    };
    let serving = tokio::spawn(listener.run(open, std::future::pending()));
    let socket = UnixStream::connect(format!("\0{name}")).await.unwrap();
    let mut outbox = Outbox::default();
    assert!(outbox.push(&Frame::Hello { version: VERSION, window: 2, ticket: Bytes::from_static(b"ticket") }, None));
    outbox.flush(&socket).await.unwrap();
    while lock.try_lock().is_ok() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // Heartbeats fill the socket.
    tokio::time::sleep(Duration::from_secs(2)).await;
    made.notify_one();
    drop(tokio::time::timeout(Duration::from_secs(5), lock.lock()).await.expect("the lock is given back"));
    serving.abort();
}
