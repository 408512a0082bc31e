//! The source of credentials: a provider, its last result, and the time of the next request.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use object_store::CredentialProvider;

use super::values::Credentials;
use crate::error::{Error, Result, Source};

/// A function as a provider.
struct Function {
    name: String,
    function: Arc<dyn Fn() -> Result<Credentials, Source> + Send + Sync>,
}

impl fmt::Debug for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "credential_provider {}", self.name)
    }
}

#[async_trait]
impl CredentialProvider for Function {
    type Credential = Credentials;

    async fn get_credential(&self) -> object_store::Result<Arc<Credentials>> {
        let function = Arc::clone(&self.function);
        let called = tokio::task::spawn_blocking(move || function()).await;
        let source = match called {
            Ok(Ok(credentials)) => return Ok(Arc::new(credentials)),
            Ok(Err(source)) => source,
            Err(error) => error.into(),
        };
        Err(object_store::Error::Generic { store: "credentials", source })
    }
}

/// Time before their end at which credentials are renewed; short-lived ones in their last fifth.
const EARLY: Duration = Duration::from_secs(300);

/// Time for which a failed provider is left alone while its last credentials are still good.
const AGAIN: Duration = Duration::from_secs(30);

/// Longest wait of a request for a provider: without credentials, and with some that are still good.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1));

/// Least time between two refusals that request other credentials: a caller without a right is refused with any.
const REFUSED: Duration = Duration::from_secs(1);

/// Credentials from a provider. It is called when they are first needed, shortly before they expire, and once if a store refuses them: not
/// for each request, and never concurrently. Clones share the credentials.
#[derive(Clone)]
pub struct CredentialSource {
    inner: Arc<Inner>,
}

struct Inner {
    provider: Arc<dyn CredentialProvider<Credential = Credentials>>,
    state: Mutex<State>,
}

/// One of this crate's errors on its way through a store.
pub(in crate::store) fn store_error(error: Error) -> object_store::Error {
    object_store::Error::Generic { store: "credentials", source: Box::new(error) }
}

/// A call that all waiters may poll: one that leaves does not stop it for the others.
type Asking = Shared<BoxFuture<'static, Result<Arc<Given>, Arc<Error>>>>;

#[derive(Default)]
struct State {
    number: u64,
    given: Option<Arc<Given>>,
    asking: Option<Asking>,
    /// Time at which the provider is called again after a failure.
    rest: Option<SystemTime>,
    /// Time of the last refusal that called it.
    refused: Option<Instant>,
}

/// The result of a provider.
#[derive(Debug)]
pub(in crate::store) struct Given {
    pub(in crate::store) credentials: Credentials,
    number: u64,
    /// Time of renewal.
    renew: Option<SystemTime>,
}

impl Given {
    fn is_over(&self, now: SystemTime) -> bool {
        self.credentials.expires().is_some_and(|expires| expires <= now)
    }
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CredentialSource({:?})", self.inner.provider)
    }
}

impl CredentialSource {
    /// Makes a source of `provider`. Its `Debug` text names it in errors.
    pub fn new(provider: Arc<dyn CredentialProvider<Credential = Credentials>>) -> Self {
        Self { inner: Arc::new(Inner { provider, state: Mutex::default() }) }
    }

    /// Makes a source of `function`, which is called where it may block; `name` names it in errors.
    pub fn of_function(
        name: impl Into<String>,
        function: impl Fn() -> Result<Credentials, Source> + Send + Sync + 'static,
    ) -> Self {
        Self::new(Arc::new(Function { name: name.into(), function: Arc::new(function) }))
    }

    /// Credentials that are good.
    ///
    /// # Errors
    /// [`Error::Store`] names the provider that failed, [`Error::Timeout`] one that does not answer; [`Error::Config`].
    pub(in crate::store) async fn get(&self) -> Result<Arc<Given>> {
        let (asking, good) = {
            let mut state = self.inner.lock();
            let now = SystemTime::now();
            if let Some(given) = &state.given {
                let rests = state.rest.is_some_and(|rest| rest > now);
                let early = given.renew.is_some_and(|renew| renew <= now);
                if !given.is_over(now) && (!early || rests) {
                    return Ok(Arc::clone(given));
                }
            }
            let good = state.given.clone().filter(|given| !given.is_over(now));
            let asking = match &state.asking {
                Some(asking) => asking.clone(),
                None => {
                    let asking = self.inner.ask(Arc::downgrade(&self.inner));
                    state.asking = Some(asking.clone());
                    asking
                }
            };
            (asking, good)
        };
        let wait = if good.is_some() { PATIENCE.1 } else { PATIENCE.0 };
        if let Ok(answer) = tokio::time::timeout(wait, asking).await {
            return answer.map_err(|error| Error::again(&error));
        }
        // The call continues for later requests.
        self.inner.lock().rest = SystemTime::now().checked_add(AGAIN);
        let culprit = format!("{:?}", self.inner.provider);
        good.ok_or(Error::Timeout { stage: "credentials", culprit, waited: wait })
    }

    /// Records that a store refused `given`: unless there are newer credentials, they are requested again.
    pub(in crate::store) fn refused(&self, given: &Given) {
        let mut state = self.inner.lock();
        let rests = state.refused.is_some_and(|last| last.elapsed() < REFUSED);
        if !rests && state.given.as_ref().is_some_and(|known| known.number == given.number) {
            (state.given, state.refused) = (None, Some(Instant::now()));
        }
    }
}

impl Inner {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls the provider, and keeps its result in `inner`, if that still exists.
    fn ask(&self, inner: Weak<Self>) -> Asking {
        let provider = Arc::clone(&self.provider);
        let asking = async move {
            let asked = SystemTime::now();
            let answer = match provider.get_credential().await {
                Ok(credentials) => given(&credentials, asked, SystemTime::now()),
                Err(object_store::Error::Generic { source, .. }) => Err(source),
                Err(error) => Err(error.into()),
            };
            let name = format!("{provider:?}");
            let answer = answer.map_err(|source| match source.downcast::<Error>() {
                Ok(told) => *told,
                Err(source) => Error::Store { operation: "get credentials".to_owned(), url: name.clone(), source },
            });
            let Some(inner) = inner.upgrade() else { return answer.map(Arc::new).map_err(Arc::new) };
            let mut state = inner.lock();
            state.asking = None;
            match answer {
                Ok(mut given) => {
                    state.number += 1;
                    given.number = state.number;
                    let given = Arc::new(given);
                    (state.given, state.rest) = (Some(Arc::clone(&given)), None);
                    Ok(given)
                }
                Err(error) => {
                    let now = SystemTime::now();
                    state.rest = now.checked_add(AGAIN);
                    let good = state.given.as_ref().filter(|given| !given.is_over(now)).cloned();
                    drop(state);
                    good.inspect(|_| {
                        tracing::warn!("the last credentials are used while they are good: {}", error.chain())
                    })
                    .ok_or_else(|| Arc::new(error))
                }
            }
        };
        asking.boxed().shared()
    }
}

/// Credentials, requested at `asked`, and received at `now`.
fn given(credentials: &Credentials, asked: SystemTime, now: SystemTime) -> Result<Given, Source> {
    let credentials = credentials.clone();
    let renew = match credentials.expires() {
        None => None,
        Some(expires) if expires <= now => return Err("the credentials that it gives are over already".into()),
        Some(expires) => {
            let life = expires.duration_since(asked).unwrap_or_default();
            let last = asked.checked_add(life.mul_f64(0.8));
            expires.checked_sub(EARLY).max(last)
        }
    };
    Ok(Given { credentials, number: 0, renew })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Gives credentials that are good for so long, slowly, and counts.
    #[derive(Default)]
    struct Counting {
        life: Option<Duration>,
        asked: AtomicU64,
        fails: AtomicU64,
    }

    impl fmt::Debug for Counting {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("of_the_test")
        }
    }

    #[async_trait]
    impl CredentialProvider for Counting {
        type Credential = Credentials;

        async fn get_credential(&self) -> object_store::Result<Arc<Credentials>> {
            let number = self.asked.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(20)).await;
            if self.fails.load(Ordering::SeqCst) > 0 {
                return Err(object_store::Error::Generic { store: "x", source: "no network".into() });
            }
            let expires = self.life.and_then(|life| SystemTime::now().checked_add(life));
            Ok(Arc::new(Credentials::new([("token".to_owned(), number.to_string())], expires)))
        }
    }

    async fn token(source: &CredentialSource) -> String {
        source.get().await.unwrap().credentials.hub().unwrap()
    }

    #[tokio::test]
    async fn all_who_wait_ask_once_and_a_refusal_asks_once_more() {
        let provider = Arc::new(Counting::default());
        let source = CredentialSource::new(Arc::clone(&provider) as _);
        let waiting = (0..50).map(|_| source.get());
        let given = futures::future::join_all(waiting).await;
        assert_eq!(provider.asked.load(Ordering::SeqCst), 1);
        assert_eq!(token(&source).await, "0");
        // Of many refusals of the same credentials, one calls the provider.
        for given in &given {
            source.refused(given.as_ref().unwrap());
        }
        assert_eq!(token(&source).await, "1");
        source.refused(given.first().unwrap().as_ref().unwrap());
        assert_eq!(token(&source.clone()).await, "1");
        assert_eq!(provider.asked.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn whoever_goes_while_it_is_asked_leaves_the_others_their_answer() {
        let provider = Arc::new(Counting::default());
        let source = CredentialSource::new(Arc::clone(&provider) as _);
        let gone = tokio::time::timeout(Duration::from_millis(1), source.get()).await;
        assert!(gone.is_err());
        assert_eq!(token(&source).await, "0");
        assert_eq!(provider.asked.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn they_are_renewed_before_their_end_and_used_to_it_if_that_fails() {
        let life = Duration::from_secs(5);
        let provider = Arc::new(Counting { life: Some(life), ..Counting::default() });
        let source = CredentialSource::new(Arc::clone(&provider) as _);
        let start = SystemTime::now();
        let first = source.get().await.unwrap();
        let renew = first.renew.unwrap().duration_since(start).unwrap();
        assert!(renew > Duration::from_secs(3) && renew < life, "{renew:?}");
        // As if most of its life were over.
        let early = |given: &Arc<Given>| Given {
            credentials: given.credentials.clone(),
            number: given.number,
            renew: Some(SystemTime::UNIX_EPOCH),
        };
        source.inner.lock().given = Some(Arc::new(early(&first)));
        provider.fails.store(1, Ordering::SeqCst);
        assert_eq!((token(&source).await.as_str(), token(&source).await.as_str()), ("0", "0"));
        assert_eq!(provider.asked.load(Ordering::SeqCst), 2, "who failed is not asked by each request");
        provider.fails.store(0, Ordering::SeqCst);
        source.inner.lock().rest = None;
        assert_eq!(token(&source).await, "2");
    }

    #[tokio::test]
    async fn a_failure_names_the_provider_and_so_does_what_is_over_at_once() {
        let provider = Arc::new(Counting { fails: AtomicU64::new(1), ..Counting::default() });
        let error = CredentialSource::new(provider).get().await.unwrap_err();
        assert!(matches!(&error, Error::Store { url, .. } if url.contains("of_the_test")), "{error}");
        assert!(error.chain().contains("no network"), "{}", error.chain());
        let provider = Arc::new(Counting { life: Some(Duration::ZERO), ..Counting::default() });
        let source = CredentialSource::new(provider);
        let error = source.get().await.unwrap_err();
        assert!(error.chain().contains("over already"), "{}", error.chain());
        assert!(format!("{source:?}").contains("of_the_test"));
    }

    #[test]
    fn credentials_of_an_hour_are_renewed_five_minutes_before_its_end() {
        let now = SystemTime::now();
        let expires = now.checked_add(Duration::from_secs(3600));
        let given = given(&Credentials::new([], expires), now, now).unwrap();
        assert_eq!(given.renew, now.checked_add(Duration::from_secs(3300)));
    }
}
