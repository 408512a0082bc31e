use std::sync::LazyLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use tokio::sync::Semaphore;

use super::super::catalogue::{Catalogue, Current};
use super::super::openings::Openings;
use super::*;
use crate::flight::server::stream::budget::ByteBudget;

/// The data of the files, and how often they were opened.
#[derive(Debug, Default)]
struct Files {
    now: AtomicU8,
    opened: AtomicU8,
    /// Seconds that the store takes for a check.
    slow: AtomicU8,
    /// Bytes of them kept in memory.
    bytes: AtomicU64,
}

#[derive(Debug)]
struct Data(Arc<Files>, u8);

fn data(version: u8) -> Fingerprint {
    Fingerprint::from_bytes([version; 32])
}

impl Source for Data {
    fn is_of(&self, fingerprint: Fingerprint) -> bool {
        data(self.1) == fingerprint
    }

    fn bytes(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    async fn is_current(&self, _: &LoaderOptions) -> Result<bool> {
        // Lets other tasks run in between.
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_secs(self.0.slow.load(Ordering::Relaxed).into())).await;
        Ok(self.0.now.load(Ordering::Relaxed) == self.1)
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// A request for files that were not written here.
fn of(options: LoaderOptions) -> Asked<'static> {
    static NOTHING: LazyLock<HiddenColumns> = LazyLock::new(HiddenColumns::default);
    Asked { options, hidden: &NOTHING, version: None, ranks: None }
}

async fn get(opened: &DatasetCache<Data>, files: &Arc<Files>, fingerprint: Option<u8>) -> (Arc<Data>, u8) {
    get_of(opened, files, fingerprint, minute()).await
}

async fn get_of(
    opened: &DatasetCache<Data>,
    files: &Arc<Files>,
    fingerprint: Option<u8>,
    patience: Patience,
) -> (Arc<Data>, u8) {
    let open = |_| {
        let files = Arc::clone(files);
        async move {
            tokio::task::yield_now().await;
            files.opened.fetch_add(1, Ordering::Relaxed);
            let now = files.now.load(Ordering::Relaxed);
            Ok(Data(files, now))
        }
    };
    let asked = of(LoaderOptions::default());
    let (tenant, (openings, claims)) = (Tenant::anonymous(), means());
    let door = openings.door(&tenant, &claims);
    let found = opened.get(door, asked, fingerprint.map(data), patience, open).await.unwrap();
    let version = found.1;
    (found, version)
}

fn means() -> (Openings, ByteBudget) {
    (Openings::new(4), ByteBudget::new(1 << 30))
}

/// That of a catalogue that was never replaced.
fn minute() -> Patience {
    Current::new(Catalogue::default()).patience(MINUTE)
}

#[tokio::test(start_paused = true)]
async fn who_begins_has_the_plan_of_those_who_read_or_what_is_there() {
    let (opened, files) = (DatasetCache::new(u64::MAX), Arc::new(Files::default()));
    let (first, _) = get(&opened, &files, None).await;
    files.now.store(1, Ordering::Relaxed);
    tokio::time::advance(10 * MINUTE).await;
    assert_eq!(get(&opened, &files, None).await.1, 0, "somebody reads it");
    drop(first);
    assert_eq!(get(&opened, &files, None).await.1, 0, "somebody joined just now");
    tokio::time::advance(2 * MINUTE).await;
    let asked = futures::future::join_all((0..8).map(|_| get(&opened, &files, None))).await;
    assert!(asked.iter().all(|(_, version)| *version == 1));
    assert_eq!(files.opened.load(Ordering::Relaxed), 2, "opened once for all");
    assert_eq!(get(&opened, &files, Some(0)).await.1, 0, "who has begun goes on");
    assert_eq!(get(&opened, &files, None).await.1, 1, "which makes them nobody else's");
    tokio::time::advance(2 * MINUTE).await;
    assert_eq!((get(&opened, &files, None).await.1, files.opened.load(Ordering::Relaxed)), (1, 2), "nothing changed");
}

#[tokio::test(start_paused = true)]
async fn a_reload_shows_changed_files_even_while_others_read() {
    let (opened, files, current) =
        (DatasetCache::new(u64::MAX), Arc::new(Files::default()), Current::new(Catalogue::default()));
    let begin = async || get_of(&opened, &files, None, current.patience(MINUTE)).await;
    let (reading, _) = begin().await;
    files.now.store(1, Ordering::Relaxed);
    tokio::time::advance(MINUTE / 2).await;
    assert_eq!(begin().await.1, 0, "somebody reads it");
    tokio::time::advance(MINUTE / 60).await;
    current.replace(Catalogue::default());
    tokio::time::advance(MINUTE / 60).await;
    let begun = futures::future::join_all((0..8).map(|_| begin())).await;
    assert!(begun.iter().all(|(_, version)| *version == 1));
    assert_eq!(files.opened.load(Ordering::Relaxed), 2, "opened once for all");
    let known = get_of(&opened, &files, Some(0), current.patience(MINUTE)).await;
    assert!(Arc::ptr_eq(&known.0, &reading), "who has begun goes on");
    // The next change waits for its readers again.
    files.now.store(2, Ordering::Relaxed);
    tokio::time::advance(2 * MINUTE).await;
    assert_eq!(begin().await.1, 1);
}

#[tokio::test(start_paused = true)]
async fn a_slow_store_holds_nobody_up_for_long() {
    let (opened, files) = (DatasetCache::new(u64::MAX), Arc::new(Files::default()));
    drop(get(&opened, &files, None).await);
    files.now.store(1, Ordering::Relaxed);
    files.slow.store(200, Ordering::Relaxed);
    tokio::time::advance(2 * MINUTE).await;
    let start = Instant::now();
    let asked = futures::future::join_all((0..8).map(|_| get(&opened, &files, None))).await;
    assert!(asked.iter().all(|(_, version)| *version == 0), "what is open");
    assert!(start.elapsed() < 2 * LOOK, "{:?}", start.elapsed());
    drop(asked);
    files.slow.store(1, Ordering::Relaxed);
    tokio::time::advance(2 * MINUTE).await;
    assert_eq!(get(&opened, &files, None).await.1, 1, "once the store answers in time");
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_knows_older_files_than_the_ticket_looks_at_once() {
    let (opened, files) = (DatasetCache::new(u64::MAX), Arc::new(Files::default()));
    let (reading, _) = get(&opened, &files, None).await;
    files.now.store(1, Ordering::Relaxed);
    tokio::time::advance(2 * SOON).await;
    assert_eq!(get(&opened, &files, Some(1)).await.1, 1);
    assert_eq!(get(&opened, &files, Some(0)).await.1, 0);
    files.now.store(2, Ordering::Relaxed);
    assert_eq!(get(&opened, &files, Some(7)).await.1, 1, "but not more often than each second");
    opened.forget(&reading);
    assert_eq!(opened.lock().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_others_read_stays_open_whatever_is_asked_for() {
    let (opened, files) = (DatasetCache::new(u64::MAX), Arc::new(Files::default()));
    let (reading, _) = get(&opened, &files, None).await;
    for seed in 0..2 * KEPT as u64 {
        let open = |_| {
            let files = Arc::clone(&files);
            async { Ok(Data(files, 0)) }
        };
        let asked = of(LoaderOptions { seed, ..LoaderOptions::default() });
        let (openings, claims) = means();
        opened.get(openings.door(&Tenant::anonymous(), &claims), asked, None, minute(), open).await.unwrap();
    }
    assert_eq!(opened.lock().len(), KEPT);
    assert!(Arc::ptr_eq(&get(&opened, &files, None).await.0, &reading), "the same for those who read with it");
}

#[tokio::test(start_paused = true)]
async fn who_goes_on_with_older_files_is_not_forgotten_for_those_who_begin() {
    let (opened, files) = (DatasetCache::new(u64::MAX), Arc::new(Files::default()));
    for version in 0..2 * KEPT as u8 {
        files.now.store(version, Ordering::Relaxed);
        tokio::time::advance(2 * MINUTE).await;
        assert_eq!(get(&opened, &files, None).await.1, version);
        assert_eq!(get(&opened, &files, Some(0)).await.1, 0, "version {version}");
        assert_eq!(get(&opened, &files, None).await.1, version);
    }
    assert_eq!(opened.lock().len(), KEPT);
}

/// The open version of a written dataset for `rank` of 2, at `version` by now.
async fn written(opened: &DatasetCache<Data>, version: u8, rank: u32, fingerprint: Option<u8>) -> (Arc<Data>, u8) {
    written_after(opened, &Arc::new(Semaphore::new(1)), (version, rank), fingerprint).await
}

/// The same, with an opening that ends once `gate` has a permit.
async fn written_after(
    opened: &DatasetCache<Data>,
    gate: &Arc<Semaphore>,
    (version, rank): (u8, u32),
    fingerprint: Option<u8>,
) -> (Arc<Data>, u8) {
    let open = |options: LoaderOptions| {
        let gate = Arc::clone(gate);
        async move {
            gate.acquire().await.unwrap().forget();
            let version = options.urls[0].parse().unwrap();
            Ok(Data(Arc::default(), version))
        }
    };
    let of_dataset = Version { dataset: "d".to_owned(), url: version.to_string(), lease: Arc::new(Lease::default()) };
    let options = LoaderOptions { urls: vec![version.to_string()], ..LoaderOptions::default() };
    let asked = Asked { version: Some(of_dataset), ranks: Some(Ranks { world: 2, rank: Some(rank) }), ..of(options) };
    let (tenant, (openings, claims)) = (Tenant::anonymous(), means());
    let door = openings.door(&tenant, &claims);
    let found = opened.get(door, asked, fingerprint.map(data), minute(), open).await.unwrap();
    let version = found.1;
    (found, version)
}

#[tokio::test(start_paused = true)]
async fn ranks_of_a_job_read_one_version_of_a_written_dataset() {
    let opened = DatasetCache::new(u64::MAX);
    let (first, _) = written(&opened, 1, 0, None).await;
    tokio::time::advance(9 * MINUTE).await;
    assert_eq!(written(&opened, 2, 0, None).await.1, 2, "another job");
    let (second, version) = written(&opened, 3, 1, None).await;
    assert_eq!(version, 2, "its other rank has just begun");
    assert_eq!(written(&opened, 3, 1, None).await.1, 1, "that of the first job reads");
    assert_eq!(written(&opened, 3, 1, None).await.1, 3);
    tokio::time::advance(11 * MINUTE).await;
    assert_eq!(written(&opened, 4, 0, None).await.1, 4, "too late for the other rank of that job");
    for rank in 0..2 {
        assert_eq!(written(&opened, 3, rank, Some(1)).await.1, 1, "who has begun goes on");
    }
    drop((first, second));
    assert_eq!(written(&opened, 4, 0, Some(9)).await.1, 4, "nobody has it open: the newest tells so");
}

#[tokio::test(start_paused = true)]
async fn jobs_whose_ranks_come_in_between_leave_nothing_to_later_ones() {
    let opened = DatasetCache::new(u64::MAX);
    let mut reading = Vec::new();
    for rank in [0, 0, 1, 1] {
        reading.push(written(&opened, 1, rank, None).await);
    }
    for rank in 0..2 {
        assert_eq!(written(&opened, 2, rank, None).await.1, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_commit_while_a_rank_opens_does_not_part_it_from_the_next() {
    let (opened, gate) = (DatasetCache::new(u64::MAX), Arc::new(Semaphore::new(0)));
    let ends = async { gate.add_permits(1) };
    let first = written_after(&opened, &gate, (1, 0), None);
    // They are polled in this order: the second asks while the first one's opening waits.
    let (first, second, ()) = tokio::join!(first, written(&opened, 2, 1, None), ends);
    assert_eq!((first.1, second.1), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_rank_that_gives_up_while_it_opens_is_not_waited_for() {
    let (opened, gate) = (DatasetCache::new(u64::MAX), Arc::new(Semaphore::new(0)));
    let mut first = Box::pin(written_after(&opened, &gate, (1, 0), None));
    assert!(futures::poll!(&mut first).is_pending());
    drop(first);
    assert_eq!(written(&opened, 2, 1, None).await.1, 2);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ended_holds_nobody_to_its_version() {
    let opened = DatasetCache::new(u64::MAX);
    drop(written(&opened, 1, 0, None).await);
    assert_eq!(written(&opened, 2, 1, None).await.1, 1, "it may be about to begin");
    let opened = DatasetCache::new(u64::MAX);
    drop(written(&opened, 1, 0, None).await);
    tokio::time::advance(2 * MINUTE).await;
    assert_eq!(written(&opened, 2, 1, None).await.1, 2);
    opened.forget_written("d");
    assert!(opened.lock().is_empty());
}

/// Opens `seed` of `bytes` bytes for `tenant`.
async fn open(opened: &DatasetCache<Data>, tenant: &str, seed: u64, bytes: u64) -> Result<Arc<Data>> {
    let files = Arc::new(Files { bytes: AtomicU64::new(bytes), ..Files::default() });
    let asked = of(LoaderOptions { seed, ..LoaderOptions::default() });
    let (tenant, (openings, claims)) = (Tenant::new(tenant).unwrap(), means());
    let open = |_| {
        let files = Arc::clone(&files);
        async { Ok(Data(files, 0)) }
    };
    opened.get(openings.door(&tenant, &claims), asked, None, minute(), open).await
}

fn limit(error: Error) -> (u64, u64, &'static str) {
    match error {
        Error::Limit { asked, limit, option, .. } => (asked, limit, option),
        other => panic!("{other}"),
    }
}

#[tokio::test(start_paused = true)]
async fn open_datasets_are_bounded_by_their_bytes() {
    let opened = DatasetCache::new(1000);
    let held = |opened: &DatasetCache<Data>| {
        opened.lock().iter().filter_map(|entry| entry.slot.get()).map(|data| data.bytes()).sum::<u64>()
    };
    // Those that nobody reads make room, oldest first, for any tenant.
    for seed in 0..20 {
        drop(open(&opened, if seed % 2 == 0 { "anna" } else { "bert" }, seed, 300).await.unwrap());
        assert!(held(&opened) <= 1000, "{seed}");
    }
    let last = open(&opened, "bert", 19, 0).await.unwrap();
    assert_eq!(last.bytes(), 300, "the one that was used last is open still");
    // Datasets in use stay, and the error gives the need and the limit.
    let second = open(&opened, "bert", 100, 400).await.unwrap();
    assert_eq!(limit(open(&opened, "bert", 101, 100).await.unwrap_err()), (800, 750, "open_bytes"));
    let of_anna = open(&opened, "anna", 101, 300).await.unwrap();
    assert_eq!(limit(open(&opened, "anna", 102, 100).await.unwrap_err()), (1100, 1000, "open_bytes"));
    assert!(Arc::ptr_eq(&open(&opened, "carl", 100, 0).await.unwrap(), &second), "what is open is everybody's");
    // A dataset in use counts even if it is no longer found.
    opened.forget(&of_anna);
    assert!(open(&opened, "anna", 102, 100).await.is_err());
    drop(of_anna);
    drop(open(&opened, "anna", 102, 300).await.unwrap());
    drop((last, second));
    let error = open(&opened, "anna", 103, 751).await.unwrap_err();
    assert!(error.to_string().contains(ALONE), "{error}");
    assert_eq!(limit(error), (751, 750, "open_bytes"));
    drop(open(&opened, "anna", 103, 750).await.unwrap());
}
