//! Opening of datasets: a bounded number at once, each within memory claimed beforehand, none on a thread that other tasks need.
//!
//! Opening reads footers, parses a client's expressions, evaluates its filter over a whole dataset, and inspects the first values of
//! columns, all before a stream has paid for anything.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::turns::Turns;
use crate::dataset::held::{self, Held};
use crate::error::{Error, Result};
use crate::flight::server::access::auth::Tenant;
use crate::flight::server::stream::budget::ByteBudget;
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

    /// Runs `open`, which opens the dataset of `options` within their memory budget, in the turn of `tenant` and once the memory for
    /// its filter and for inspecting columns is available. Dropping the future ends the opening at its next wait; turn and memory are
    /// held until all work that it began has ended.
    ///
    /// # Errors
    /// Those of `open`; [`Error::Remote`], to be retried, if the turn or the memory did not come in time.
    pub(crate) async fn run<T, F>(
        &self,
        tenant: &Tenant,
        claims: &ByteBudget,
        mut options: LoaderOptions,
        open: impl Fn(LoaderOptions) -> F,
    ) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let turn = Arc::new(self.0.turn(tenant).await?);
        let evaluates = options.filter.is_some() || options.ngram.is_some();
        let most = if evaluates { FILTER_BYTES } else { LOOK_BYTES };
        let mut bytes = (claims.budget() / 4).clamp(1, most);
        loop {
            let claim = claims.claim(tenant, bytes).await?;
            options.memory_budget = Some(bytes);
            match aside(open(options.clone()), Arc::new((Arc::clone(&turn), claim))).await {
                // One row group of the columns read may take more than usual, as long as the server has it.
                Err(Error::Limit { asked, option: "memory_budget", .. })
                    if asked > bytes && asked <= claims.budget() =>
                {
                    bytes = asked;
                }
                done => return done,
            }
        }
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

    use super::*;
    use crate::pipeline::Filter;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
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
            openings.run(&tenant(name), &claims, filtered(), open).await.unwrap()
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
                openings.run(&Tenant::anonymous(), claims, filtered(), open).await
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
        let found = openings.run(&tenant("anna"), &claims, LoaderOptions::new("x", 1), open).await.unwrap();
        assert_eq!(found, (BUDGET / 4, BUDGET / 4));
        assert_eq!(claims.used(), 0);
        let large = ByteBudget::new(1 << 40);
        let open = |options: LoaderOptions| async move { Ok(options.memory_budget.unwrap()) };
        assert_eq!(openings.run(&tenant("anna"), &large, LoaderOptions::new("x", 1), open).await.unwrap(), LOOK_BYTES);
        assert_eq!(openings.run(&tenant("anna"), &large, filtered(), open).await.unwrap(), FILTER_BYTES);
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
                _ = openings.run(&anna, &claims, filtered(), open) => panic!("it cannot end"),
                begun = started.acquire() => begun.unwrap().forget(),
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(claims.used(), 32 << 20, "both are held");
        let third = tokio::time::timeout(Duration::from_millis(50), openings.run(&anna, &claims, filtered(), open));
        assert!(third.await.is_err() && started.available_permits() == 0, "and so are the turns");
        release.store(1, Ordering::SeqCst);
        openings.run(&anna, &claims, filtered(), open).await.unwrap();
        while claims.used() > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}
