//! Stores that are objects of this process. Addresses are text, so stores that they name have to be found from anywhere.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use object_store::ObjectStore;

use crate::per_process::PerProcess;

/// The scheme of addresses of stores in memory.
const MEMORY: &str = "memory";

/// The scheme of addresses of stores of the user's own.
pub(super) const FILES: &str = "filesystem";

type Registered = BTreeMap<String, Weak<dyn ObjectStore>>;

fn registered() -> MutexGuard<'static, Registered> {
    static REGISTERED: PerProcess<Mutex<Registered>> = PerProcess::new();
    REGISTERED.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `store` the one behind addresses that begin with `prefix`, `scheme://host/`, for as long as somebody else holds it.
pub(super) fn register(prefix: &str, store: &Arc<dyn ObjectStore>) {
    let mut registered = registered();
    registered.retain(|_, store| store.strong_count() > 0);
    registered.insert(prefix.to_owned(), Arc::downgrade(store));
}

/// Makes `store` the one behind `memory://host/`, as [`register`] does.
#[cfg(feature = "flight")]
pub(crate) fn register_memory(host: &str, store: &Arc<dyn ObjectStore>) {
    register(&format!("{MEMORY}://{host}/"), store);
}

/// Returns true if `address` is of a store of this process.
pub(super) fn is_registered(address: &str) -> bool {
    let scheme = address.split_once("://").map(|(scheme, _)| scheme);
    scheme.is_some_and(|scheme| matches!(scheme, MEMORY | FILES))
}

/// The part of `prefix` that all stores of the user's own have in common that are of one kind: there may be one for each loader.
pub(super) fn kind(prefix: &str) -> Option<&str> {
    prefix.strip_prefix(FILES)?.starts_with("://").then(|| prefix.rsplit_once('-').map(|(kind, _)| kind))?
}

/// The store behind addresses that begin with `prefix`.
pub(super) fn find(prefix: &str) -> Option<Arc<dyn ObjectStore>> {
    registered().get(prefix).and_then(Weak::upgrade)
}
