//! Opening of datasets: once for all who ask, a bounded number at once, each within memory claimed beforehand, none on a thread that
//! other tasks need.
//!
//! Opening reads footers, parses a client's expressions, evaluates its filter over a whole dataset, and inspects the first values of
//! columns, all before a stream has paid for anything. Callers wait for the one that opens, and never for a tenant whose turn or memory
//! is yet to come: whoever has to wait for those lets the others go first.

use std::sync::Arc;

use tokio::sync::{Mutex, SetOnce, oneshot};

use super::turns::{Turn, Turns};
use crate::dataset::held::{self, Held};
use crate::error::{Error, Result};
use crate::flight::server::access::auth::Tenant;
use crate::flight::server::stream::budget::{ByteBudget, Claim};
use crate::pipeline::LoaderOptions;

/// Most memory for evaluating a filter at first, if a quarter of the budget is more.
const FILTER_BYTES: u64 = 512 << 20;

/// The same for inspecting columns: for nulls, and for the size of the first image or vector.
const LOOK_BYTES: u64 = 64 << 20;

/// See the module.
#[derive(Debug)]
pub(crate) struct Openings(Turns);

impl Openings {
    /// Makes the openings of a server that decodes on `threads` threads.
    pub(crate) fn new(threads: usize) -> Self {
        Self(Turns::new("opens other datasets", threads))
    }

    /// Returns the way in for `tenant`, whose openings take memory of `claims`.
    pub(crate) fn door<'a>(&'a self, tenant: &'a Tenant, claims: &'a ByteBudget) -> Door<'a> {
        Door { turns: &self.0, tenant, claims }
    }
}

/// The place of a dataset that is opened once for all who ask for it.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    found: SetOnce<T>,
    /// Held by the one that opens.
    opening: Mutex<()>,
}

impl<T> Slot<T> {
    /// Returns what was opened.
    pub(crate) fn get(&self) -> Option<&T> {
        self.found.get()
    }
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { found: SetOnce::new(), opening: Mutex::new(()) }
    }
}

/// The openings as one tenant has them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Door<'a> {
    turns: &'a Turns,
    pub(crate) tenant: &'a Tenant,
    claims: &'a ByteBudget,
}

/// A turn, and the memory to open a dataset within.
#[derive(Debug)]
struct Admission {
    turn: Turn,
    memory: Claim,
}

impl Door<'_> {
    /// Returns what is in `slot`, else what `keep` makes of the result of `open`, which opens the dataset of `options` within their
    /// memory budget, in the turn of the tenant and once the memory for its filter and for inspecting columns is available. Dropping the
    /// future ends the opening at its next wait; turn and memory are held until all work that it began has ended.
    ///
    /// # Errors
    /// Those of `open` and `keep`; [`Error::Remote`], to be retried, if the turn or the memory did not come in time.
    pub(crate) async fn open<T, K, F>(
        self,
        slot: &Slot<K>,
        mut options: LoaderOptions,
        open: impl Fn(LoaderOptions) -> F,
        keep: impl Fn(T) -> Result<K>,
    ) -> Result<&K>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let evaluates = options.filter.is_some() || options.ngram.is_some();
        let most = if evaluates { FILTER_BYTES } else { LOOK_BYTES };
        let mut bytes = (self.claims.budget() / 4).clamp(1, most);
        let mut waited = None;
        loop {
            // Whoever waits here holds nothing, and whoever opens waits for nobody's turn or memory.
            let opening = match (&waited, slot.opening.try_lock()) {
                (_, Ok(opening)) => opening,
                (None, Err(_)) => slot.opening.lock().await,
                (Some(_), Err(_)) => {
                    waited = None;
                    continue;
                }
            };
            if let Some(found) = slot.get() {
                return Ok(found);
            }
            let Some(Admission { turn, memory }) = waited.take().or_else(|| self.try_admit(bytes)) else {
                drop(opening);
                tokio::select! {
                    biased;
                    found = slot.found.wait() => return Ok(found),
                    admission = self.admit(bytes) => waited = Some(admission?),
                }
                continue;
            };
            options.memory_budget = Some(bytes);
            match aside(open(options.clone()), Arc::new((turn, memory))).await {
                // One row group of the columns read may take more than usual, as long as the server has it.
                Err(Error::Limit { asked, option: "memory_budget", .. })
                    if asked > bytes && asked <= self.claims.budget() =>
                {
                    bytes = asked;
                }
                // It is empty: only the one that opens fills it.
                opened => _ = slot.found.set(keep(opened?)?),
            }
        }
    }

    /// Returns a turn and `bytes` of memory, if both are there now.
    fn try_admit(&self, bytes: u64) -> Option<Admission> {
        let turn = self.turns.try_turn(self.tenant)?;
        let memory = self.claims.try_claim(self.tenant, bytes)?;
        Some(Admission { turn, memory })
    }

    /// Waits for a turn and `bytes` of memory.
    async fn admit(&self, bytes: u64) -> Result<Admission> {
        let turn = self.turns.turn(self.tenant).await?;
        let memory = self.claims.claim(self.tenant, bytes).await?;
        Ok(Admission { turn, memory })
    }
}

/// Runs `work` on a thread of its own, so that computing between two waits delays no other task. `held` is dropped once that thread,
/// and any work it began on other threads, has ended.
async fn aside<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static, held: Held) -> Result<T> {
    let runtime = tokio::runtime::Handle::current();
    // Dropped with this future, which signals the thread.
    let (_waits, gone) = oneshot::channel::<()>();
    let done = tokio::task::spawn_blocking(move || {
        runtime.block_on(held::scope(held, async {
            tokio::select! {
                done = work => done,
                _ = gone => Err(Error::Closed { why: "nobody waits for it any more".to_owned() }),
            }
        }))
    });
    done.await.unwrap_or_else(|error| Err(Error::Closed { why: format!("a dataset was not opened: {error}") }))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use tokio::sync::Semaphore;
    use tokio::time::Instant;

    use super::*;
    use crate::dataset::filter::Filter;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    /// Opens a dataset that nobody else asks for.
    async fn run<T, F>(
        openings: &Openings,
        (tenant, claims): (&Tenant, &ByteBudget),
        options: LoaderOptions,
        open: impl Fn(LoaderOptions) -> F,
    ) -> Result<T>
    where
        T: Clone + Send + Sync + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        openings.door(tenant, claims).open(&Slot::default(), options, open, Ok).await.cloned()
    }

    fn filtered() -> LoaderOptions {
        LoaderOptions { filter: Some(Filter::Text("x > 1".to_owned())), ..LoaderOptions::new("x", 1) }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn few_filters_run_at_once_and_all_within_the_budget() {
        const BUDGET: u64 = 64 << 20;
        let (openings, claims) = (Openings::new(8), ByteBudget::new(BUDGET));
        let (now, most, memory) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
        let run = async |name: &str| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            let open = |options: LoaderOptions| {
                let (now, most) = (Arc::clone(&now), Arc::clone(&most));
                let bytes = usize::try_from(options.memory_budget.unwrap()).unwrap();
                memory.fetch_max(bytes, Ordering::Relaxed);
                async move {
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    // Computes rather than waits: on the runtime's own threads it would stop all tasks.
                    std::thread::sleep(Duration::from_millis(5));
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok(bytes)
                }
            };
            run(&openings, (&tenant(name), &claims), filtered(), open).await.unwrap()
        };
        let names = ["anna", "bert", "carl"];
        let bytes = futures::future::join_all((0..24).map(|at| run(names[at % 3]))).await;
        assert!(bytes.iter().all(|bytes| *bytes as u64 == BUDGET / 4), "{bytes:?}");
        assert!((1..=4).contains(&most.load(Ordering::SeqCst)), "{most:?}");
        assert_eq!(claims.used(), 0);
    }

    #[tokio::test]
    async fn a_filter_over_large_row_groups_gets_what_they_take_or_an_error() {
        let (openings, claims) = (Openings::new(2), ByteBudget::new(64 << 20));
        let open = |needs: u64| {
            let claims = &claims;
            let openings = &openings;
            async move {
                let open = move |options: LoaderOptions| async move {
                    let limit = options.memory_budget.unwrap();
                    let what = "the filter's columns of a row group".to_owned();
                    if needs > limit {
                        return Err(Error::limit(what, needs, limit, "memory_budget"));
                    }
                    Ok(limit)
                };
                run(openings, (&Tenant::anonymous(), claims), filtered(), open).await
            }
        };
        assert_eq!(open(1 << 20).await.unwrap(), 16 << 20);
        assert_eq!(open(40 << 20).await.unwrap(), 40 << 20);
        assert!(matches!(open(65 << 20).await, Err(Error::Limit { asked, .. }) if asked == 65 << 20));
    }

    #[tokio::test]
    async fn what_is_looked_at_is_claimed_without_a_filter_too() {
        const BUDGET: u64 = 64 << 20;
        let (openings, claims) = (Openings::new(2), Arc::new(ByteBudget::new(BUDGET)));
        let open = |options: LoaderOptions| {
            let claims = Arc::clone(&claims);
            async move { Ok((options.memory_budget.unwrap(), claims.used())) }
        };
        let found = run(&openings, (&tenant("anna"), &claims), LoaderOptions::new("x", 1), open).await.unwrap();
        assert_eq!(found, (BUDGET / 4, BUDGET / 4));
        assert_eq!(claims.used(), 0);
        let large = ByteBudget::new(1 << 40);
        let open = |options: LoaderOptions| async move { Ok(options.memory_budget.unwrap()) };
        assert_eq!(
            run(&openings, (&tenant("anna"), &large), LoaderOptions::new("x", 1), open).await.unwrap(),
            LOOK_BYTES
        );
        assert_eq!(run(&openings, (&tenant("anna"), &large), filtered(), open).await.unwrap(), FILTER_BYTES);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_dropped_call_leaves_behind_is_paid_for_until_it_ends() {
        let (openings, claims) = (Openings::new(1), ByteBudget::new(64 << 20));
        let (started, release) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
        let open = |_: LoaderOptions| {
            let (started, release) = (Arc::clone(&started), Arc::clone(&release));
            async move {
                // Evaluates a row group, which cannot be stopped.
                let evaluating = held::spawn(move || {
                    started.add_permits(1);
                    while release.load(Ordering::SeqCst) == 0 {
                        std::thread::sleep(Duration::from_millis(1));
                    }
                });
                evaluating.await.map_err(|error| Error::Closed { why: error.to_string() })
            }
        };
        let anna = tenant("anna");
        for _ in 0..2 {
            tokio::select! {
                _ = run(&openings, (&anna, &claims), filtered(), open) => panic!("it cannot end"),
                begun = started.acquire() => begun.unwrap().forget(),
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(claims.used(), 32 << 20, "both are held");
        let third = tokio::time::timeout(Duration::from_millis(50), run(&openings, (&anna, &claims), filtered(), open));
        assert!(third.await.is_err() && started.available_permits() == 0, "and so are the turns");
        release.store(1, Ordering::SeqCst);
        run(&openings, (&anna, &claims), filtered(), open).await.unwrap();
        while claims.used() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_a_turn_keeps_nobody_from_opening() {
        let (openings, claims) = (Openings::new(4), ByteBudget::new(64 << 20));
        let (anna, bert) = (tenant("anna"), tenant("bert"));
        let start = Instant::now();
        let call = async |slot: &Slot<u64>, tenant: &Tenant| {
            let open = |options: LoaderOptions| async move { Ok(options.memory_budget.unwrap_or(0)) };
            let found = openings.door(tenant, &claims).open(slot, LoaderOptions::new("x", 1), open, Ok).await;
            (found.copied().map_err(|error| error.to_string()), start.elapsed())
        };
        // Anna opens other datasets, and asks for this one often.
        let turns = [openings.0.turn(&anna).await.unwrap(), openings.0.turn(&anna).await.unwrap()];
        let slot = Slot::default();
        let first = futures::future::join_all((0..40).map(|_| call(&slot, &anna)));
        let second = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            call(&slot, &bert).await
        };
        let (of_anna, (of_bert, came)) = tokio::join!(first, second);
        assert!(of_bert.is_ok() && came < Duration::from_secs(2), "{of_bert:?} after {came:?}");
        assert!(of_anna.iter().all(|(found, came)| found.is_ok() && *came < Duration::from_secs(2)), "{of_anna:?}");
        drop(turns);
        assert_eq!(claims.used(), 0, "who waited keeps nothing");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_being_opened_is_waited_for_without_a_turn_or_memory() {
        let (openings, claims) = (Openings::new(4), ByteBudget::new(64 << 20));
        let (slot, opened, release) = (Slot::default(), Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        let call = async |tenant: Tenant| {
            let open = |_: LoaderOptions| {
                let (opened, release) = (Arc::clone(&opened), Arc::clone(&release));
                async move {
                    opened.fetch_add(1, Ordering::SeqCst);
                    release.acquire().await.map(drop).map_err(|error| Error::Closed { why: error.to_string() })
                }
            };
            openings.door(&tenant, &claims).open(&slot, LoaderOptions::new("x", 1), open, Ok).await.copied()
        };
        let calls = futures::future::join_all((0..20).map(|at| call(tenant(&format!("t{at}")))));
        let looks = async {
            while opened.load(Ordering::SeqCst) == 0 {
                tokio::task::yield_now().await;
            }
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert_eq!(claims.used(), 16 << 20, "one of them pays");
            assert!(openings.0.try_turn(&tenant("others")).is_some());
            release.add_permits(1);
        };
        let (all, ()) = tokio::join!(calls, looks);
        assert!(all.iter().all(Result::is_ok) && opened.load(Ordering::SeqCst) == 1, "{all:?}");
    }
}
