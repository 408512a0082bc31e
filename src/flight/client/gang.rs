//! A rank's membership in a gang, for blocking code: join, barrier, all_gather, members, acknowledge, leave.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::runtime::Runtime;

use super::address::Address;
use super::connection::{Connection, Dial, Failure, Tcp};
use super::pending::Pending;
use crate::error::{Error, Result};
use crate::flight::gang::wire::{Caller, Members};
use crate::flight::gang::{CallError, JoinOptions, Member, Share, Token, Wire};
use crate::store::caller::Credentials;

/// Calls of a gang as Flight actions. The connection is opened on demand, and again after a failure.
#[derive(Debug)]
struct Actions {
    address: Address,
    credentials: Credentials,
    dial: Arc<dyn Dial>,
    connection: Mutex<Option<Connection>>,
}

impl Actions {
    async fn connection(&self) -> Result<Connection, Failure> {
        let found = self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match found {
            Some(connection) => Ok(connection),
            None => {
                let connection = Connection::open(&self.address, &self.credentials, &*self.dial).await?;
                *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(connection.clone());
                Ok(connection)
            }
        }
    }
}

impl Wire for Actions {
    fn peer(&self) -> String {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().map_or_else(|| self.address.server(), Connection::peer)
    }

    fn call(&self, action: &str, body: Vec<u8>, deadline: Duration) -> BoxFuture<'_, Result<Vec<u8>, CallError>> {
        let action = action.to_owned();
        Box::pin(async move {
            let answer = match self.connection().await {
                Ok(connection) => connection.action(&action, body, deadline).await,
                Err(failure) => Err(failure),
            };
            answer.map_err(|failure| match failure {
                // A rank that joins ends with it; a member tries again, as after other faults of the server.
                Failure::Final(error) | Failure::Refused(error) | Failure::Untrusted(error) => {
                    CallError::Answered(error)
                }
                Failure::Transient(error) => {
                    // An overloaded server is still there; its connection is kept.
                    if !matches!(error, Error::Limit { .. }) {
                        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    }
                    CallError::Unreached(error)
                }
            })
        })
    }
}

/// A rank that has joined a gang. Dropping it without [`leave`](Self::leave) tells the others that it failed.
///
/// A method waits only for its own call: a rank may ask, acknowledge or leave while it waits at a barrier.
#[derive(Debug)]
pub struct Gang {
    /// `None` after leaving. Locked only briefly.
    inside: Mutex<Option<Inside>>,
    caller: Caller,
    share: Share,
    world: u32,
}

#[derive(Debug)]
struct Inside {
    // Declared first, dropped first: its last message needs the runtime.
    member: Arc<Member>,
    runtime: Runtime,
}

/// Longest wait for the last message when a membership is dropped; otherwise the others learn of it by the lease.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A rank that is about to join. Dropping it gives up its place.
#[derive(Debug)]
pub struct Joining {
    pending: Pending<Member>,
    caller: Caller,
    share: Share,
    world: u32,
}

impl Joining {
    /// Returns the gang if all ranks are present within `wait`; once.
    pub fn wait(&mut self, wait: Duration) -> Option<Result<Gang>> {
        let joined = self.pending.wait(wait)?;
        Some(joined.and_then(|member| self.joined(member)))
    }

    fn joined(&mut self, member: Member) -> Result<Gang> {
        let runtime = self.pending.runtime();
        let runtime = runtime.ok_or_else(|| Error::Closed { why: "this rank has joined already".to_owned() })?;
        self.caller.generation = member.generation();
        let inside = Mutex::new(Some(Inside { member: Arc::new(member), runtime }));
        Ok(Gang { inside, caller: self.caller.clone(), share: self.share, world: self.world })
    }
}

impl Gang {
    /// Joins at the server of `url` (`grpc://host:port`), and waits for all other ranks. `credentials` are the `storage_options` of a
    /// loader for that server.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming the missing ranks; [`Error::Config`] for a rank that is taken or a gang of another size;
    /// [`Error::Mismatch`] if tokens or shares contradict each other.
    pub fn join(url: &str, credentials: &BTreeMap<String, String>, options: JoinOptions) -> Result<Self> {
        let mut joining = Self::joining(url, credentials, options)?;
        loop {
            // The call itself enforces the timeout of the options.
            if let Some(joined) = joining.wait(Duration::from_secs(3600)) {
                return joined;
            }
        }
    }

    /// As [`join`](Self::join), for callers that do other things while the others arrive.
    ///
    /// # Errors
    /// [`Error::Config`] for an invalid address or credentials; [`Error::Closed`] if no threads can be started.
    pub fn joining(url: &str, credentials: &BTreeMap<String, String>, options: JoinOptions) -> Result<Joining> {
        let address = Address::parse(url)?;
        let credentials = Credentials::new(credentials)?;
        let (world, share) = (options.world_size, options.share);
        let share = share.unwrap_or(Share { rank: options.rank, of: world });
        let (gang, rank, attempt) = (options.gang.clone(), options.rank, options.attempt);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("bowstring-gang")
            .enable_all()
            .build()
            .map_err(|error| Error::Closed { why: format!("no threads can be started: {error}") })?;
        let wire = Actions { address, credentials, dial: Arc::new(Tcp), connection: Mutex::default() };
        let pending = Pending::spawn(runtime.handle(), Member::join(Arc::new(wire), options)).ending(runtime);
        Ok(Joining { pending, caller: Caller { gang, generation: 0, rank, attempt }, share, world })
    }

    /// Returns the identity of this process in the gang, which the tickets of a loader are bound to.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Returns the share of the data that this rank gets.
    pub fn share(&self) -> Share {
        self.share
    }

    /// Returns the number of ranks.
    pub fn world_size(&self) -> u32 {
        self.world
    }

    fn inside(&self) -> MutexGuard<'_, Option<Inside>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the member, to check that it still is one; `None` after leaving.
    pub(super) fn member(&self) -> Option<Arc<Member>> {
        self.inside().as_ref().map(|inside| Arc::clone(&inside.member))
    }

    fn inner(&self) -> Result<Arc<Member>> {
        self.member().ok_or_else(left)
    }

    /// Starts a call of the member.
    fn call<T: Send + 'static, F: Future<Output = Result<T>> + Send + 'static>(
        &self,
        call: impl FnOnce(Arc<Member>) -> F,
    ) -> Result<Pending<T>> {
        let inside = self.inside();
        let Inside { member, runtime } = inside.as_ref().ok_or_else(left)?;
        Ok(Pending::spawn(runtime.handle(), call(Arc::clone(member))))
    }

    /// Returns the last `(epoch, step)` that all ranks had acknowledged when the gang formed; `None` at the very start.
    ///
    /// # Errors
    /// [`Error::Closed`] after leaving.
    pub fn resume(&self) -> Result<Option<(u64, u64)>> {
        Ok(self.inner()?.resume())
    }

    /// Checks that this process is still a member.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the generation is over.
    pub fn check(&self) -> Result<()> {
        self.inner()?.check()
    }

    /// Waits until all ranks have arrived.
    ///
    /// # Errors
    /// As [`Member::barrier`].
    pub fn barrier(&self, timeout: Duration) -> Result<()> {
        self.arriving(timeout)?.finish()
    }

    /// As [`barrier`](Self::barrier); if the call is dropped, the rank no longer counts as arrived.
    ///
    /// # Errors
    /// [`Error::Closed`] after leaving.
    pub fn arriving(&self, timeout: Duration) -> Result<Pending<()>> {
        self.call(|member| async move { member.barrier(timeout).await })
    }

    /// Gives every rank the messages of all, in rank order.
    ///
    /// # Errors
    /// As [`Member::all_gather`].
    pub fn all_gather(&self, message: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        self.gathering(message, timeout)?.finish()
    }

    /// As [`all_gather`](Self::all_gather); if the call is dropped, the rank no longer counts as arrived.
    ///
    /// # Errors
    /// [`Error::Closed`] after leaving.
    pub fn gathering(&self, message: &[u8], timeout: Duration) -> Result<Pending<Vec<Vec<u8>>>> {
        let message = message.to_vec();
        self.call(|member| async move { member.all_gather(&message, timeout).await })
    }

    /// Returns all members: rank, address, device, host.
    ///
    /// # Errors
    /// As [`Member::members`].
    pub fn members(&self) -> Result<Members> {
        self.listing()?.finish()
    }

    /// As [`members`](Self::members).
    ///
    /// # Errors
    /// [`Error::Closed`] after leaving.
    pub fn listing(&self) -> Result<Pending<Members>> {
        self.call(|member| async move { member.members().await })
    }

    /// Acknowledges that this rank has completed everything up to `step` of `epoch`. The token goes into the checkpoint.
    ///
    /// # Errors
    /// As [`Member::ack`].
    pub fn ack(&self, epoch: u64, step: u64) -> Result<Token> {
        self.acking(epoch, step)?.finish()
    }

    /// As [`ack`](Self::ack); if the call is dropped, the step may be acknowledged or not.
    ///
    /// # Errors
    /// [`Error::Closed`] after leaving.
    pub fn acking(&self, epoch: u64, step: u64) -> Result<Pending<Token>> {
        self.call(|member| async move { member.ack(epoch, step).await })
    }

    /// Leaves the gang: the work is done or, with a reason, it failed and all ranks must restart. Pending calls end.
    ///
    /// # Errors
    /// As [`Member::leave`].
    pub fn leave(&self, failed: Option<&str>) -> Result<()> {
        self.leaving(failed).map_or(Ok(()), Pending::finish)
    }

    /// As [`leave`](Self::leave); `None` if this rank has left before. If the call is dropped, the others learn of it by the lease.
    pub fn leaving(&self, failed: Option<&str>) -> Option<Pending<()>> {
        let Inside { member, runtime } = self.inside().take()?;
        let failed = failed.map(str::to_owned);
        let telling = Pending::spawn(runtime.handle(), async move {
            match failed {
                None => member.leave().await,
                Some(why) => member.fail(&why).await,
            }
        });
        Some(telling.ending(runtime))
    }

    /// Does what dropping does, for holders of a shared membership: tells the gang that this rank failed, unless it has left. Waits for
    /// 1 s at most.
    pub fn abandon(&self) {
        let Some(mut telling) = self.leaving(Some("the process dropped its membership")) else { return };
        // If the message does not arrive, the others learn of it by the lease.
        if let Some(Err(error)) = telling.wait(LAST_WORD) {
            tracing::debug!(error = %error.chain(), "the gang was not told");
        }
    }
}

impl Drop for Gang {
    fn drop(&mut self) {
        self.abandon();
    }
}

fn left() -> Error {
    Error::Closed { why: "this rank has left the gang".to_owned() }
}
