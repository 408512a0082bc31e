//! Stores in the memory of this process. Addresses are text, so stores that they name have to be found from anywhere.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use object_store::ObjectStore;

/// The scheme of their addresses.
pub(super) const MEMORY: &str = "memory";

type Registered = BTreeMap<String, Weak<dyn ObjectStore>>;

fn registered() -> MutexGuard<'static, Registered> {
    static REGISTERED: Mutex<Registered> = Mutex::new(BTreeMap::new());
    REGISTERED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `store` the one behind `memory://host/`, for as long as somebody else holds it.
#[cfg(feature = "flight")]
pub(crate) fn register(host: &str, store: &Arc<dyn ObjectStore>) {
    let mut registered = registered();
    registered.retain(|_, store| store.strong_count() > 0);
    registered.insert(host.to_owned(), Arc::downgrade(store));
}

/// The store behind `memory://host/`.
pub(super) fn find(host: &str) -> Option<Arc<dyn ObjectStore>> {
    registered().get(host).and_then(Weak::upgrade)
}
