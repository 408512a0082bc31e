//! A journal that fails, and calls that leave nothing behind.

use super::super::wire::{JoinRequest, MemberInfo, Position, State};
use super::*;

#[test]
fn calls_that_are_refused_leave_nothing_behind() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let registry = Registry::open(None, RegistryOptions::default()).unwrap();
        for number in 0..100_u32 {
            let long = format!("{}{number}", "x".repeat(1 << 20));
            let short = format!("gang {number}");
            for gang in [&long, &short] {
                let caller = Caller { gang: gang.clone(), generation: 1, rank: 0, attempt: 5 };
                let message = String::new();
                let meet = MeetRequest { caller, round: 1, message, timeout_ms: 0, poll_ms: 0 };
                let meet = write(&meet).unwrap();
                for action in ["gang.barrier", "gang.all_gather"] {
                    let error = registry.call(action, &meet).await.unwrap_err().chain();
                    assert!(error.len() < 600, "an error of {} bytes", error.len());
                }
                assert!(registry.fence(gang, 0, 5, 1).is_err());
                let unknown = format!(r#"{{"{gang}":1}}"#);
                assert!(registry.call("gang.all_gather", unknown.as_bytes()).await.unwrap_err().chain().len() < 600);
            }
            let big = registry.call("gang.heartbeat", long.as_bytes()).await.unwrap_err();
            assert!(matches!(big, Error::Limit { limit: 65_536, .. }), "{big}");
            assert!(registry.call(&long, b"{}").await.unwrap_err().chain().len() < 600);
        }
        assert_eq!(registry.lock().bells.bytes(), 0);
    });
}

#[test]
fn long_answers_are_made_once_there_is_room_and_outside_of_the_lock() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let registry = Registry::open(None, RegistryOptions::default()).unwrap();
        let asked = Mutex::new(Vec::new());
        let room = |bytes: usize| -> BoxFuture<'_, Result<()>> {
            assert!(registry.inner.try_lock().is_ok(), "others wait");
            asked.lock().unwrap().push(bytes);
            Box::pin(std::future::ready(if bytes > 300_000 { Err(Error::limit("x", 1, 0, "x")) } else { Ok(()) }))
        };
        let call = |action, body: Vec<u8>| {
            let room: Room<'_> = &room;
            let registry = &registry;
            async move { registry.call_as(action, &body, |gang| Ok(gang.to_owned()), room).await }
        };
        let join = |gang: &str, rank, world_size| JoinRequest {
            gang: gang.to_owned(),
            rank,
            world_size,
            attempt: 5,
            share: None,
            info: MemberInfo::default(),
            token: None,
            timeout_ms: 1_000_000,
            poll_ms: 0,
        };
        let gather = |round, bytes| {
            let caller = Caller { gang: "g".to_owned(), generation: 1, rank: 0, attempt: 5 };
            let message = "ab".repeat(bytes);
            write(&MeetRequest { caller, round, message, timeout_ms: 1000, poll_ms: 0 }).unwrap()
        };
        call("gang.join", write(&join("g", 0, 1)).unwrap()).await.unwrap();
        for (round, bytes) in [(1, 30_000), (2, 100_000), (2, 100_000), (3, 200_000)] {
            let answer = call("gang.all_gather", gather(round, bytes)).await;
            let expected = format!(r#"{{"state":"done","messages":["{}"]}}"#, "ab".repeat(bytes));
            assert_eq!(answer.ok(), (bytes < 150_000).then(|| expected.into_bytes()), "round {round}");
        }
        assert_eq!(*asked.lock().unwrap(), [200_003, 200_003, 400_003]);
        for rank in 0..100 {
            call("gang.join", write(&join("h", rank, 101)).unwrap()).await.unwrap();
        }
        asked.lock().unwrap().clear();
        call("gang.state", br#"{"gang":"h"}"#.to_vec()).await.unwrap();
        assert_eq!(*asked.lock().unwrap(), [100 * limits::ENTRY]);
    });
}

#[test]
fn a_process_that_asks_to_be_held_for_ever_is_forgotten_all_the_same() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let registry = Registry::open(None, RegistryOptions::default()).unwrap();
        let join = |attempt| {
            let info = MemberInfo::default();
            let (gang, share, token) = ("g".to_owned(), None, None);
            let (timeout_ms, poll_ms) = (u64::MAX, u64::MAX >> 1);
            write(&JoinRequest { gang, rank: 0, world_size: 2, attempt, share, info, token, timeout_ms, poll_ms })
                .unwrap()
        };
        registry.call("gang.join", &join(1)).await.unwrap();
        tokio::time::advance(registry.options.lease + registry.options.max_poll).await;
        registry.call("gang.join", &join(2)).await.expect("its rank is free");
    });
}

#[test]
fn no_call_is_held_longer_than_the_registry_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let registry = Registry::open(None, RegistryOptions::default()).unwrap();
        let join = |world_size, timeout_ms| JoinRequest {
            gang: format!("of {world_size}"),
            rank: 0,
            world_size,
            attempt: 5,
            share: None,
            info: MemberInfo::default(),
            token: None,
            timeout_ms,
            poll_ms: u64::MAX,
        };
        let begin = Instant::now();
        let answer = registry.call("gang.join", &write(&join(2, u64::MAX)).unwrap()).await.unwrap();
        assert!(String::from_utf8_lossy(&answer).contains("waiting"), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(begin.elapsed(), registry.options.max_poll);
        // No wait is longer than the caller asks for either.
        let begin = Instant::now();
        let error = registry.call("gang.join", &write(&join(3, 1_000)).unwrap()).await.unwrap_err();
        assert!(matches!(error, Error::Timeout { .. }) && begin.elapsed() <= Duration::from_secs(2), "{error}");
        // A barrier carries nothing.
        registry.call("gang.join", &write(&join(1, 1_000)).unwrap()).await.unwrap();
        let caller = Caller { gang: "of 1".into(), generation: 1, rank: 0, attempt: 5 };
        let meet = |message: &str| {
            let message = message.to_owned();
            write(&MeetRequest { caller: caller.clone(), round: 1, message, timeout_ms: 0, poll_ms: u64::MAX }).unwrap()
        };
        let error = registry.call("gang.barrier", &meet("00")).await.unwrap_err();
        assert!(matches!(error, Error::Config { .. } | Error::Mismatch { .. } | Error::Limit { .. }), "{error}");
        registry.call("gang.barrier", &meet("")).await.unwrap();
    });
}

#[test]
fn a_journal_that_cannot_be_written_stops_all_answers_and_forgets_none() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("gangs");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let join = JoinRequest {
            gang: "g".into(),
            rank: 0,
            world_size: 1,
            attempt: 5,
            share: None,
            info: MemberInfo::default(),
            token: None,
            timeout_ms: u64::MAX,
            poll_ms: u64::MAX,
        };
        let ack = |step| {
            let caller = Caller { gang: "g".into(), generation: 1, rank: 0, attempt: 5 };
            write(&AckRequest { caller, position: Position { epoch: u64::MAX, step }, plan: None }).unwrap()
        };
        let registry = Registry::open(Some(path.clone()), RegistryOptions::default()).unwrap();
        registry.call("gang.join", &write(&join).unwrap()).await.unwrap();
        registry.call("gang.ack", &ack(7)).await.unwrap();
        let mut fence = registry.fence("g", 0, 5, 1).unwrap();
        registry.lock().journal.as_mut().unwrap().fail_from_now_on();
        // The step is not acknowledged by an answer, and nothing is answered after it.
        assert!(matches!(registry.call("gang.ack", &ack(8)).await, Err(Error::Store { .. })));
        assert!(matches!(registry.call("gang.ack", &ack(7)).await, Err(Error::Store { .. })));
        assert!(matches!(registry.call("gang.state", br#"{"gang":"g"}"#).await, Err(Error::Store { .. })));
        assert!(matches!(fence.ended().await, Error::Store { .. }));
        let busy = Registry::open(Some(path.clone()), RegistryOptions::default()).unwrap_err();
        assert!(matches!(&busy, Error::Closed { why } if why.contains("process")), "{busy}");
        let again = Registry::open_within(Some(path), RegistryOptions::default(), Duration::from_secs(30));
        let ending = async {
            tokio::time::sleep(Duration::from_secs(20)).await;
            drop((fence, registry));
        };
        let (again, ()) = futures::join!(again, ending);
        let again = again.unwrap();
        let state = again.call("gang.state", br#"{"gang":"g"}"#).await.unwrap();
        let state: State = serde_json::from_slice(&state).unwrap();
        assert_eq!(state.acknowledged, Some(Position { epoch: u64::MAX, step: 7 }));
        again.call("gang.ack", &ack(u64::MAX)).await.unwrap();
    });
}

#[test]
fn a_journal_of_obsolete_records_is_compacted_by_whoever_opens_it() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("journal");
        let open = || Registry::open(Some(path.clone()), RegistryOptions::default()).unwrap();
        let join = JoinRequest {
            gang: "g".into(),
            rank: 0,
            world_size: 1,
            attempt: 5,
            share: None,
            info: MemberInfo::default(),
            token: None,
            timeout_ms: 1000,
            poll_ms: 0,
        };
        let caller = Caller { gang: "g".into(), generation: 1, rank: 0, attempt: 5 };
        let ack = AckRequest { caller, position: Position { epoch: 0, step: 7 }, plan: None };
        let registry = open();
        registry.call("gang.join", &write(&join).unwrap()).await.unwrap();
        registry.call("gang.ack", &write(&ack).unwrap()).await.unwrap();
        drop(registry);
        let mut longest = 0;
        for _ in 0..8 {
            // Each life leaves less than what is worth compacting.
            let (mut journal, records) = Journal::open(&path, Journal::lock_now(&path).unwrap()).unwrap();
            journal.append(&vec![records.last().unwrap().clone(); 4000]).unwrap();
            longest = longest.max(std::fs::metadata(&path).unwrap().len());
            drop(journal);
            let registry = open();
            let state = registry.call("gang.state", br#"{"gang":"g"}"#).await.unwrap();
            let state: State = serde_json::from_slice(&state).unwrap();
            assert_eq!(state.acknowledged, Some(ack.position));
            let size = std::fs::metadata(&path).unwrap().len();
            assert!(size <= 1 << 20, "{size} bytes");
        }
        assert!(longest > 1 << 20, "{longest} bytes");
    });
}
