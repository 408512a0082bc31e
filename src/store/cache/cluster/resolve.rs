//! The addresses behind the names of `cache_peers`: all names are resolved at once, each within a time of its own, so that one slow name
//! delays nobody's first read by more than that.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures::stream::StreamExt;
use tokio::time::timeout;

use super::members::Entry;

/// Time to resolve a name.
const RESOLVING: Duration = Duration::from_secs(5);
/// Names that are resolved at once: each takes a thread that may block.
const AT_ONCE: usize = 64;

/// The addresses behind each of `entries` by `look_up`; none behind a name that is not resolved in time.
pub(super) async fn addresses<F>(entries: &[Entry], look_up: impl Fn((String, u16)) -> F) -> Vec<Vec<SocketAddr>>
where
    F: Future<Output = io::Result<Vec<SocketAddr>>>,
{
    let look_up = &look_up;
    let names: Vec<_> =
        entries.iter().map(|entry| entry.unresolved().map(|(host, port)| (host.to_owned(), port))).collect();
    let found = futures::stream::iter(names).map(|name| async move {
        let Some((host, port)) = name else { return Vec::new() };
        let why = match timeout(RESOLVING, look_up((host.clone(), port))).await {
            Ok(Ok(addresses)) => return addresses,
            Ok(Err(error)) => format!(": {error}"),
            Err(_) => format!(" in {RESOLVING:?}"),
        };
        tracing::warn!("cache_peers: {host} is not resolved{why}; its members stay");
        Vec::new()
    });
    found.buffered(AT_ONCE).collect().await
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::time::{Instant, sleep};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn names_are_resolved_at_once_and_a_slow_one_costs_its_own_time_alone() {
        let names = ["dns://slow", "10.0.0.9", "dns://dead", "dns://fast:9000", "dns://unknown", "dns://dead"];
        let entries: Vec<_> = names.iter().map(|name| Entry::parse(name).unwrap()).collect();
        let begin = Instant::now();
        let found = addresses(&entries, |(host, port)| async move {
            match host.as_str() {
                "slow" => sleep(Duration::from_secs(4)).await,
                "dead" => pending().await,
                "unknown" => return Err(io::Error::other("no such name")),
                _ => {}
            }
            Ok(vec![SocketAddr::from(([10, 0, 0, 1], port))])
        });
        let ports: Vec<Vec<u16>> =
            found.await.iter().map(|found| found.iter().map(SocketAddr::port).collect()).collect();
        assert_eq!(ports, [vec![8816], vec![], vec![], vec![9000], vec![], vec![]]);
        assert_eq!(begin.elapsed(), RESOLVING, "two dead names and a slow one");
    }
}
