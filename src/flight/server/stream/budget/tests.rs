use super::*;
use crate::memory::SystemAllocator;

const DATA: Fingerprint = Fingerprint::from_bytes([0; 32]);

fn pool(budget: u64) -> Arc<Pool> {
    Pool::new(Arc::new(SystemAllocator), budget as usize)
}

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

#[tokio::test]
async fn what_ended_lines_keep_is_nobodys_wait() {
    let (anna, claims) = (tenant("anna"), ByteBudget::new(100 * UNIT));
    let line = claims.claim(&anna, 80 * UNIT).await.unwrap();
    assert!(claims.try_claim(&anna, 30 * UNIT).is_none());
    // The line ends while a stream waits: its memory goes to the stream and is not kept.
    let waits = claims.claim(&anna, 90 * UNIT);
    let ends = async {
        tokio::task::yield_now().await;
        claims.keep(pool(UNIT), DATA, line, 0);
    };
    let (claimed, ()) =
        tokio::time::timeout(Duration::from_secs(10), async { tokio::join!(waits, ends) }).await.unwrap();
    drop(claimed.unwrap());
    // Kept while no stream waits, reused, and released for one that needs it.
    claims.keep(pool(60 * UNIT), DATA, claims.claim(&anna, 60 * UNIT).await.unwrap(), 0);
    assert_eq!(claims.used(), 0);
    assert!(claims.try_spare(&anna, 50 * UNIT).is_none(), "what is nice to have takes nothing from what is kept");
    assert!(claims.reuse((&anna, DATA), 60 * 4096, 100_000).is_none(), "a pool for batches of another length");
    assert!(claims.reuse((&anna, DATA), 60 * 4096, 0).is_some() && claims.reuse((&anna, DATA), 60 * 4096, 0).is_none());
    claims.keep(pool(60 * UNIT), DATA, claims.claim(&anna, 60 * UNIT).await.unwrap(), 0);
    let mut all = claims.claim(&anna, 100 * UNIT).await.unwrap();
    let part = all.split(40 * UNIT).unwrap();
    drop(all);
    assert_eq!(claims.used(), 40 * UNIT);
    drop(part);
    // Only the pool's own part is kept of a line that read far ahead, so that the next one can read ahead too.
    let claims = ByteBudget::new(1000 * UNIT);
    for _ in 0..3 {
        claims.keep(pool(256 * UNIT), DATA, claims.claim(&anna, 900 * UNIT).await.unwrap(), 0);
        assert_eq!(claims.free.available_permits(), 744);
        claims.reuse((&anna, DATA), 1 << 20, 0).unwrap();
    }
    // The excess of its slabs over the pool's budget is paid for too.
    claims.keep(pool(256 * UNIT), DATA, claims.claim(&anna, 900 * UNIT).await.unwrap(), 100_000);
    assert_eq!(claims.free.available_permits(), 1000 - 512);
    claims.reuse((&anna, DATA), 1 << 20, 100_000).unwrap();
    // A line that has not paid for all of it keeps nothing.
    claims.keep(pool(256 * UNIT), DATA, claims.claim(&anna, 500 * UNIT).await.unwrap(), 100_000);
    assert!(claims.free.available_permits() == 1000 && claims.reuse((&anna, DATA), 1 << 20, 100_000).is_none());
    assert!(matches!(claims.claim(&anna, 1001 * UNIT).await, Err(Error::Limit { .. })));
}

/// Holds `bytes` of `claims` for `tenant`, as a stream does between two messages.
async fn stream(claims: &ByteBudget, tenant: &Tenant, bytes: u64) -> Revocable<Claim> {
    let holding = claims.holding(tenant, None);
    holding.put(claims.claim(tenant, bytes).await.unwrap());
    holding
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_nobody_reads_gives_its_memory_to_the_next_one() {
    let (anna, bert, claims) = (tenant("anna"), tenant("bert"), ByteBudget::new(100 * UNIT));
    let unread = stream(&claims, &anna, 90 * UNIT).await;
    let start = Instant::now();
    let claimed = claims.claim(&bert, 80 * UNIT).await.unwrap();
    assert!((STALLED..STALLED + 2 * ASKS).contains(&start.elapsed()), "{:?}", start.elapsed());
    // Its client comes back and waits like any other: only for memory within reach, and no longer than the error says.
    assert!(unread.take().is_none());
    let start = Instant::now();
    let error = claims.claim(&anna, 90 * UNIT).await.unwrap_err().to_string();
    assert!(error.contains("no memory for another stream") && error.contains("within 30 s"), "{error}");
    assert!(!error.contains("bert"), "{error}");
    let others = (80 * UNIT).to_string();
    assert!(!error.contains(&others), "what others hold is not told: {error}");
    assert_eq!(start.elapsed(), PATIENCE);
    drop(claimed);
    unread.put(claims.claim(&anna, 90 * UNIT).await.unwrap());
    assert!(unread.take().is_some());
}

#[tokio::test(start_paused = true)]
async fn streams_that_are_read_keep_their_memory_unless_their_tenant_has_more_than_its_share() {
    let (anna, bert, claims) = (tenant("anna"), tenant("bert"), Arc::new(ByteBudget::new(100 * UNIT)));
    let mut holdings = Vec::new();
    for _ in 0..5 {
        holdings.push(stream(&claims, &anna, 20 * UNIT).await);
    }
    let read = async |holdings: &[Revocable<Claim>]| loop {
        for holding in holdings {
            if let Some(claim) = holding.take() {
                holding.put(claim);
            }
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    };
    // Her own next stream waits in vain; another tenant's succeeds.
    tokio::select! {
        _ = read(&holdings) => unreachable!(),
        claimed = claims.claim(&anna, 20 * UNIT) => assert!(claimed.is_err()),
    }
    let mut of_bert = Vec::new();
    for _ in 0..2 {
        tokio::select! {
            _ = read(&holdings) => unreachable!(),
            claimed = claims.claim(&bert, 20 * UNIT) => of_bert.push(claimed.unwrap()),
        }
    }
    assert_eq!(holdings.iter().filter(|holding| holding.take().map(|claim| holding.put(claim)).is_some()).count(), 3);
    // A third would be more than bert's share of a half.
    tokio::select! {
        _ = read(&holdings) => unreachable!(),
        claimed = claims.claim(&bert, 20 * UNIT) => assert!(claimed.is_err()),
    }
    assert_eq!(holdings.iter().filter(|holding| holding.take().is_some()).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn who_asks_for_more_than_others_can_give_up_takes_nothing_from_them() {
    let (anna, bert, claims) = (tenant("anna"), tenant("bert"), Arc::new(ByteBudget::new(100 * UNIT)));
    let mut holdings = Vec::new();
    for _ in 0..9 {
        holdings.push(stream(&claims, &anna, 10 * UNIT).await);
    }
    let read = async {
        loop {
            for holding in &holdings {
                if let Some(claim) = holding.take() {
                    holding.put(claim);
                }
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    // Anna keeps her half in any case.
    tokio::select! {
        _ = read => unreachable!(),
        claimed = claims.claim(&bert, 60 * UNIT) => assert!(claimed.is_err()),
    }
    let held = holdings.iter().filter(|holding| holding.take().map(|claim| holding.put(claim)).is_some()).count();
    assert_eq!(held, 9, "nothing was taken in vain");
}

#[tokio::test(start_paused = true)]
async fn many_claims_of_one_tenant_are_one_place_in_the_queue() {
    let (anna, bert, claims) = (tenant("anna"), tenant("bert"), Arc::new(ByteBudget::new(100 * UNIT)));
    let first = claims.claim(&anna, 100 * UNIT).await.unwrap();
    let order = Mutex::new(Vec::new());
    let wait = async |tenant: &Tenant| {
        let claimed = claims.claim(tenant, 100 * UNIT).await.unwrap();
        order.lock().unwrap().push(tenant.name().to_owned());
        drop(claimed);
    };
    let release = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        drop(first);
    };
    tokio::join!(wait(&anna), wait(&anna), wait(&anna), wait(&bert), release);
    assert_eq!(order.into_inner().unwrap(), ["anna", "bert", "anna", "anna"]);
}

#[tokio::test]
async fn memory_of_one_tenant_is_never_the_next_ones() {
    let (anna, bert, claims) = (tenant("anna"), tenant("bert"), ByteBudget::new(100 * UNIT));
    claims.keep(pool(60 * UNIT), DATA, claims.claim(&anna, 60 * UNIT).await.unwrap(), 0);
    assert!(claims.reuse((&bert, DATA), 60 * 4096, 0).is_none());
    let other = Fingerprint::from_bytes([1; 32]);
    assert!(
        claims.reuse((&anna, other), 60 * 4096, 0).is_none(),
        "others may read these data with anna, and not those"
    );
    assert!(claims.reuse((&anna, DATA), 60 * 4096, 0).is_some());
}

/// A stream that its client does not read, over a connection of its own: it holds `bytes` in its holding, and `sent` for messages on
/// their way out, which go with the connection.
async fn unread(claims: &ByteBudget, tenant: &Tenant, bytes: u64, sent: u64) -> Hangup {
    let hangup = Hangup::default();
    let holding = claims.holding(tenant, Some(hangup.clone()));
    holding.put(claims.claim(tenant, bytes).await.unwrap());
    let sent = claims.claim(tenant, sent).await.unwrap();
    holding.sent();
    let ends = hangup.asked();
    tokio::spawn(async move {
        ends.await;
        drop((holding, sent));
    });
    hangup
}

#[tokio::test(start_paused = true)]
async fn what_clients_do_not_read_is_not_held_for_ever() {
    let (anna, bert) = (tenant("anna"), tenant("bert"));
    let claims = ByteBudget::new(100 * UNIT).unread_for(Duration::from_secs(120));
    // Each gives up its memory to the next one, and keeps the messages it sent.
    for _ in 0..5 {
        unread(&claims, &anna, 10 * UNIT, 20 * UNIT).await;
    }
    assert_eq!(claims.used(), 100 * UNIT);
    let asked = claims.claim(&anna, 30 * UNIT).await;
    assert!(asked.is_err(), "not before their clients had two minutes");
    tokio::time::advance(Duration::from_secs(120)).await;
    // A client that reads keeps its connection.
    let hangup = Hangup::default();
    let holding: Revocable<Claim> = claims.holding(&bert, Some(hangup.clone()));
    holding.asked();
    let claimed = claims.claim(&bert, 30 * UNIT).await.unwrap();
    holding.put(claimed);
    assert!(hangup.ask(), "nobody asked for its end");
}

#[tokio::test(start_paused = true)]
async fn of_connections_that_are_not_read_those_go_first_on_which_nothing_is_read() {
    let (anna, claims) = (tenant("anna"), ByteBudget::new(100 * UNIT).unread_for(Duration::from_secs(60)));
    let first = unread(&claims, &anna, 0, 50 * UNIT).await;
    let read: Revocable<Claim> = claims.holding(&anna, Some(first.clone()));
    read.asked();
    tokio::time::advance(Duration::from_secs(30)).await;
    let second = unread(&claims, &anna, 0, 50 * UNIT).await;
    tokio::time::advance(Duration::from_secs(60)).await;
    let claimed = claims.claim(&anna, 50 * UNIT).await.unwrap();
    assert!(!second.ask() && first.ask(), "the later one, and not the one of which a stream is read");
    drop(claimed);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_beyond_its_share_is_not_waited_for_while_its_clients_read_nothing() {
    let (anna, bert, claims) = (tenant("anna"), tenant("bert"), ByteBudget::new(100 * UNIT));
    let unread: Vec<Hangup> = {
        let mut all = Vec::new();
        for _ in 0..4 {
            all.push(unread(&claims, &anna, 0, 25 * UNIT).await);
        }
        all
    };
    // Nothing is read of the first connection but by another stream of it.
    let read: Revocable<Claim> = claims.holding(&anna, Some(unread[0].clone()));
    read.asked();
    let start = Instant::now();
    let claimed = claims.claim(&bert, 50 * UNIT).await.unwrap();
    assert!((TURN..TURN + 10 * ASKS).contains(&start.elapsed()), "{:?}", start.elapsed());
    let ended: Vec<bool> = unread.iter().map(|hangup| hangup.why().is_some()).collect();
    assert!(!ended[0] && ended.iter().filter(|ended| **ended).count() == 2, "{ended:?}: no more than what is needed");
    // What would be beyond bert's own share is waited for as before.
    assert!(claims.claim(&bert, UNIT).await.is_err());
    drop(claimed);
}
