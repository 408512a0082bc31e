//! Work on threads that may block. It holds the memory claimed for it until it ends.
//!
//! Dropping the future of an opening leaves such work behind: it runs to its end, with everything it was given, and its claims are
//! released only then.

use std::any::Any;
use std::sync::Arc;

use tokio::task::JoinHandle;

/// Claim that pays for work.
pub(crate) type Held = Arc<dyn Any + Send + Sync>;

tokio::task_local! {
    static HELD: Held;
}

/// Runs `work`; whatever it [spawns](spawn) holds `held`.
#[cfg(feature = "flight")]
pub(crate) async fn scope<T>(held: Held, work: impl Future<Output = T>) -> T {
    HELD.scope(held, work).await
}

/// Runs `work` where it may block. It holds what the task that asks for it holds.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let held = HELD.try_with(Arc::clone).ok();
    tokio::task::spawn_blocking(move || {
        let _held = held;
        work()
    })
}
