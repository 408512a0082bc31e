//! The client of a cluster: deadlines, and repeated calls after errors that may pass.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use hdfs_native::{Client, ClientBuilder, HdfsError};
use object_store::Result;
use tokio::runtime::{Handle, Id};
use tokio::time::Instant;

use super::problem::{Asked, Problem, broken};
use super::settings::Settings;
use crate::error::Error;

/// Time for the retries of one operation, the same as object_store's; name nodes change places in some seconds, and restart in minutes.
const PATIENCE: Duration = Duration::from_secs(180);

/// The same for a cluster that never answered: its address may be wrong.
const FIRST_PATIENCE: Duration = Duration::from_secs(15);

/// The shortest and the longest wait in between.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Default port of a name node.
const PORT: u16 = 8020;

/// Key for the number of name nodes that the client tries next within one call: enough for two or three. [`Cluster::ask`] repeats the call.
const FAILOVERS: &str = "dfs.client.failover.max.attempts";

/// Returns true if `address` names a single name node, not a name service.
fn has_port(address: &str) -> bool {
    url::Url::parse(address).is_ok_and(|url| url.port().is_some())
}

/// A client, whose connections live on one runtime.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) client: Client,
    pub(super) runtime: Id,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Cluster {
    /// Scheme and authority: `hdfs://nameservice`.
    address: String,
    settings: Settings,
    live: Mutex<Option<Arc<Live>>>,
    /// True after a name node hung: new clients try the name nodes in a random order, so that it is not always the first.
    shuffled: AtomicBool,
    /// True once the cluster has answered a call.
    answered: AtomicBool,
}

/// The deadline of an operation, and the wait before its next retry.
#[derive(Debug)]
pub(super) struct Patience {
    end: Instant,
    wait: Duration,
}

impl Patience {
    pub(super) fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Waits, longer each time; returns false if there is no time left.
    pub(super) async fn again(&mut self) -> bool {
        if self.left() <= self.wait {
            return false;
        }
        tokio::time::sleep(self.wait).await;
        self.wait = self.wait.saturating_mul(2).min(BACKOFF.1);
        true
    }
}

impl Cluster {
    /// Returns the cluster at `address` without a call to it.
    ///
    /// # Errors
    /// [`Error::Config`] if the configuration has no name nodes for it; outside a runtime the first call returns this error.
    pub(super) fn new(address: String, settings: Settings) -> crate::error::Result<Self> {
        let (shuffled, answered) = (AtomicBool::new(false), AtomicBool::new(false));
        let cluster = Self { address, settings, live: Mutex::new(None), shuffled, answered };
        if let Ok(here) = Handle::try_current() {
            cluster.on(here.id())?;
        }
        Ok(cluster)
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the client of this runtime.
    pub(super) fn live(&self) -> Result<Arc<Live>> {
        let here = Handle::try_current().map_err(|_| broken("HDFS is read from within a runtime"))?;
        self.on(here.id()).map_err(broken)
    }

    /// Returns the client of `runtime`, the current one.
    fn on(&self, runtime: Id) -> crate::error::Result<Arc<Live>> {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(live) = live.as_ref().filter(|live| live.runtime == runtime) {
            return Ok(Arc::clone(live));
        }
        let made = Arc::new(Live { client: self.client()?, runtime });
        *live = Some(Arc::clone(&made));
        Ok(made)
    }

    fn client(&self) -> crate::error::Result<Client> {
        let built = match self.built(&self.address) {
            // The configuration has no such name service, so this is a host.
            Err(HdfsError::InvalidArgument(_)) if !has_port(&self.address) && self.address.starts_with("hdfs://") => {
                self.built(&format!("{}:{PORT}", self.address))
            }
            built => built,
        };
        built.map_err(|error| {
            let source = self.settings.source();
            let problem = format!("{} cannot be opened ({error}): look at {source}", self.address);
            Error::config("urls", problem)
        })
    }

    fn built(&self, address: &str) -> hdfs_native::Result<Client> {
        let Settings { directory, pairs, user, principal, keytab, cache, .. } = &self.settings;
        let mut pairs = pairs.clone();
        let failovers = if has_port(address) { "0" } else { "2" };
        pairs.entry(FAILOVERS.to_owned()).or_insert_with(|| failovers.to_owned());
        if self.shuffled.load(Ordering::Relaxed) {
            let service = address.split_once("://").map_or("", |(_, service)| service);
            pairs.insert(format!("dfs.client.failover.random.order.{service}"), "true".to_owned());
        }
        let mut builder = ClientBuilder::new().with_url(address).with_config(pairs);
        if let Some(directory) = directory {
            builder = builder.with_config_dir(directory.to_string_lossy());
        }
        if let Some(user) = user {
            builder = builder.with_user(user);
        }
        if let Some(principal) = principal {
            builder = builder.with_kerberos_principal(principal);
        }
        if let Some(keytab) = keytab {
            builder = builder.with_kerberos_keytab(keytab);
        }
        if let Some(cache) = cache {
            builder = builder.with_kerberos_cache(cache);
        }
        builder.build()
    }

    /// Classifies `error` about the file at `path`.
    pub(super) fn problem(&self, error: HdfsError, asked: Asked, path: &str) -> Problem {
        Problem::of(error, asked, &self.address, &self.settings.source(), path)
    }

    pub(super) fn patience(&self) -> Patience {
        let known = self.answered.load(Ordering::Relaxed);
        let end = Instant::now() + if known { PATIENCE } else { FIRST_PATIENCE };
        Patience { end, wait: BACKOFF.0 }
    }

    /// Returns the time that a name node may take to answer.
    pub(super) fn limit(&self, patience: &Patience) -> Duration {
        self.settings.timeout.min(patience.left())
    }

    /// Runs `call` for at most `limit`; a panic of the client is an error.
    pub(super) async fn guarded<T>(
        &self,
        limit: Duration,
        asked: Asked,
        path: &str,
        call: impl Future<Output = hdfs_native::Result<T>>,
    ) -> std::result::Result<T, Problem> {
        match tokio::time::timeout(limit, AssertUnwindSafe(call).catch_unwind()).await {
            Ok(Ok(Ok(value))) => {
                self.answered.store(true, Ordering::Relaxed);
                Ok(value)
            }
            Ok(Ok(Err(error))) => Err(self.problem(error, asked, path)),
            Ok(Err(_)) => {
                let problem = format!("{}: the client of HDFS did not understand the answer", self.address);
                Err(Problem::last(broken(problem)))
            }
            Err(_) => {
                let whom = if asked == Asked::NameNode { "name node" } else { "DataNode" };
                let limit = limit.as_secs_f32();
                let problem = format!("no {whom} of {} answers within {limit:.1} s", self.address);
                Err(Problem { hung: true, ..Problem::passing(problem) })
            }
        }
    }

    /// Runs `call` about `path` at a name node, and repeats it after errors that may pass.
    pub(super) async fn ask<T, F>(&self, path: &str, call: impl Fn(Arc<Live>) -> F) -> Result<T>
    where
        F: Future<Output = hdfs_native::Result<T>>,
    {
        let mut patience = self.patience();
        let mut before = None;
        loop {
            let live = self.live()?;
            let limit = self.limit(&patience);
            let problem = match self.guarded(limit, Asked::NameNode, path, call(Arc::clone(&live))).await {
                Ok(value) => return Ok(value),
                Err(problem) => problem,
            };
            if problem.hung {
                self.renew(&live);
            }
            if !problem.passing || !patience.again().await {
                // The last call may have had too little time: the error before it says more.
                let cut = problem.hung && limit < self.settings.timeout;
                return Err(before.filter(|_| cut).unwrap_or(problem.error));
            }
            tracing::info!("{} is asked again about {path}: {}", self.address, problem.error);
            before = Some(problem.error);
        }
    }

    /// Drops a client with a hanging connection, so that the next call makes a new one.
    pub(super) fn renew(&self, stale: &Arc<Live>) {
        let mut live = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        if live.as_ref().is_some_and(|live| Arc::ptr_eq(live, stale)) {
            self.shuffled.store(true, Ordering::Relaxed);
            *live = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn cluster(address: &str, options: &[(&str, &str)]) -> crate::error::Result<Cluster> {
        let options: BTreeMap<String, String> =
            options.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Cluster::new(address.to_owned(), Settings::new(&options, &|_| None).unwrap())
    }

    #[tokio::test]
    async fn a_name_that_no_configuration_has_is_a_host_with_the_usual_port() {
        cluster("hdfs://nobody.invalid", &[]).unwrap();
        cluster("hdfs://ns", &[("dfs.ha.namenodes.ns", "a"), ("dfs.namenode.rpc-address.ns.a", "127.0.0.1:1")])
            .unwrap();
        let error = cluster("viewfs://tables", &[]).unwrap_err();
        assert!(error.to_string().contains("HADOOP_CONF_DIR"), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_cluster_that_never_answered_is_given_up_early_and_the_error_names_it() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let cluster = cluster(&format!("hdfs://{free}"), &[]).unwrap();
        let start = Instant::now();
        let asked = cluster
            .ask("a", |live| async move { live.client.get_file_info("/a").await.map(|_| ()) })
            .await
            .unwrap_err();
        assert!(asked.to_string().contains(&format!("no name node of hdfs://{free}")), "{asked}");
        assert!(start.elapsed() <= FIRST_PATIENCE + Duration::from_secs(20), "{:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_node_that_hangs_is_left_for_another_client() {
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let cluster = cluster(&format!("hdfs://{}", silent.local_addr().unwrap()), &[("timeout", "1s")]).unwrap();
        let first = cluster.live().unwrap();
        let asked = cluster.ask("a", |_| std::future::pending::<hdfs_native::Result<()>>()).await.unwrap_err();
        assert!(asked.to_string().contains("no name node of hdfs://127.0.0.1"), "{asked}");
        assert!(asked.to_string().contains("within 1.0 s"), "{asked}");
        assert!(!Arc::ptr_eq(&first, &cluster.live().unwrap()));
    }

    #[tokio::test]
    async fn a_panic_of_the_client_is_an_error() {
        let cluster = cluster("hdfs://127.0.0.1:1", &[]).unwrap();
        let call = async { panic!("by a test") };
        let limit = Duration::from_secs(1);
        let problem = cluster.guarded::<()>(limit, Asked::DataNodes, "a", call).await.unwrap_err();
        assert!(!problem.passing && problem.error.to_string().contains("did not understand"), "{problem:?}");
    }
}
