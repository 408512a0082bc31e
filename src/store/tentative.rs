//! A look that may go unanswered: what is asked beside other work, only to be sure of something that hardly ever is so.

use std::time::Duration;

use futures::future::{Either, select};
use object_store::path::Path;
use object_store::{GetOptions, ObjectMeta, ObjectStore};

/// The longest wait for the answer once the other work is done.
const REST: Duration = Duration::from_secs(1);

/// Marks the request, for which nobody is asked for other credentials.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tentative;

/// Does `work`, and looks meanwhile for what `store` has at `path`. None if it is not there, or the store does not say so soon.
pub(super) async fn beside<T>(
    work: impl Future<Output = T>,
    store: &dyn ObjectStore,
    path: &Path,
) -> (T, Option<ObjectMeta>) {
    let mut options = GetOptions { head: true, ..GetOptions::default() };
    options.extensions.insert(Tentative);
    let look = async { store.get_opts(path, options).await.ok().map(|found| found.meta) };
    match select(std::pin::pin!(work), std::pin::pin!(look)).await {
        Either::Left((done, look)) => (done, tokio::time::timeout(REST, look).await.ok().flatten()),
        Either::Right((found, work)) => (work.await, found),
    }
}

#[cfg(test)]
mod tests {
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn what_is_there_is_found_whatever_takes_longer() {
        let store = InMemory::new();
        store.put(&Path::from("x"), "four".into()).await.unwrap();
        for wait in [0, 20] {
            let work = || tokio::time::sleep(Duration::from_millis(wait));
            let size = async |name: &str| beside(work(), &store, &Path::from(name)).await.1.map(|found| found.size);
            assert_eq!((size("x").await, size("none").await), (Some(4), None));
        }
    }
}
