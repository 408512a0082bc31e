//! A gang from a rank's side, for code that blocks: join, barrier, all_gather, members, acknowledge, leave.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::runtime::Runtime;

use super::address::Address;
use super::connection::{Connection, Dial, Failure, Tcp};
use super::credentials::Credentials;
use crate::error::{Error, Result};
use crate::flight::gang::wire::{Caller, Members};
use crate::flight::gang::{JoinOptions, Member, Share, Token, Wire};

/// Calls of a gang as Flight actions. The connection is made when it is needed, and again when it broke.
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
        self.address.server()
    }

    fn call(&self, action: &str, body: Vec<u8>, deadline: Duration) -> BoxFuture<'_, Result<Vec<u8>>> {
        let action = action.to_owned();
        Box::pin(async move {
            let answer = match self.connection().await {
                Ok(connection) => connection.action(&action, body, deadline).await,
                Err(failure) => Err(failure),
            };
            answer.map_err(|failure| match failure {
                Failure::Final(error) => error,
                Failure::Transient(error) => {
                    *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    // To be repeated, which only an error of this kind is.
                    match error {
                        Error::Remote { .. } => error,
                        error => Error::Remote {
                            peer: self.address.server(),
                            what: "no answer".to_owned(),
                            source: Some(Box::new(error)),
                        },
                    }
                }
            })
        })
    }
}

/// A rank that has joined a gang. Dropping it without [`leave`](Self::leave) tells the others that it failed.
#[derive(Debug)]
pub struct Gang {
    // Declared first, dropped first: its last word needs the runtime.
    member: Option<Arc<Member>>,
    runtime: Option<Runtime>,
    caller: Caller,
    share: Share,
    world: u32,
}

impl Gang {
    /// Joins at the server of `url` (`grpc://host:port`), and waits for all others. `credentials` are the `storage_options` of a
    /// loader for that server.
    ///
    /// # Errors
    /// [`Error::Timeout`] naming the ranks that are missing; [`Error::Config`] for a rank that is taken or a gang of another size;
    /// [`Error::Mismatch`] where tokens or shares contradict each other.
    pub fn join(url: &str, credentials: &BTreeMap<String, String>, options: JoinOptions) -> Result<Self> {
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
        match runtime.block_on(Member::join(Arc::new(wire), options)) {
            Ok(member) => {
                let caller = Caller { gang, generation: member.generation(), rank, attempt };
                Ok(Self { member: Some(Arc::new(member)), runtime: Some(runtime), caller, share, world })
            }
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Who this process is in the gang: what a loader's tickets are bound to.
    pub fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Which share of the data this rank gets.
    pub fn share(&self) -> Share {
        self.share
    }

    /// How many ranks there are.
    pub fn world_size(&self) -> u32 {
        self.world
    }

    /// The member, to be asked whether it still is one.
    pub(super) fn member(&self) -> Option<Arc<Member>> {
        self.member.clone()
    }

    fn parts(&self) -> Result<(&Runtime, &Arc<Member>)> {
        match (&self.runtime, &self.member) {
            (Some(runtime), Some(member)) => Ok((runtime, member)),
            _ => Err(Error::Closed { why: "this rank has left the gang".to_owned() }),
        }
    }

    /// The last `(epoch, step)` that all ranks had acknowledged when the gang formed; `None` at the very start.
    ///
    /// # Errors
    /// [`Error::Closed`] after leaving.
    pub fn resume(&self) -> Result<Option<(u64, u64)>> {
        Ok(self.parts()?.1.resume())
    }

    /// That this process is still a member.
    ///
    /// # Errors
    /// [`Error::Fenced`] if the generation is over.
    pub fn check(&self) -> Result<()> {
        self.parts()?.1.check()
    }

    /// Waits until all ranks are here.
    ///
    /// # Errors
    /// As [`Member::barrier`].
    pub fn barrier(&self, timeout: Duration) -> Result<()> {
        let (runtime, member) = self.parts()?;
        runtime.block_on(member.barrier(timeout))
    }

    /// Gives every rank the messages of all, in rank order.
    ///
    /// # Errors
    /// As [`Member::all_gather`].
    pub fn all_gather(&self, message: &[u8], timeout: Duration) -> Result<Vec<Vec<u8>>> {
        let (runtime, member) = self.parts()?;
        runtime.block_on(member.all_gather(message, timeout))
    }

    /// Everybody: rank, address, device, host.
    ///
    /// # Errors
    /// As [`Member::members`].
    pub fn members(&self) -> Result<Members> {
        let (runtime, member) = self.parts()?;
        runtime.block_on(member.members())
    }

    /// This rank is done with everything up to `step` of `epoch`. The token goes into the checkpoint.
    ///
    /// # Errors
    /// As [`Member::ack`].
    pub fn ack(&self, epoch: u64, step: u64) -> Result<Token> {
        let (runtime, member) = self.parts()?;
        runtime.block_on(member.ack(epoch, step))
    }

    /// Leaves: the work is done, or, with a reason, it failed and all are to start again.
    ///
    /// # Errors
    /// As [`Member::leave`].
    pub fn leave(&mut self, failed: Option<&str>) -> Result<()> {
        let (Some(member), Some(runtime)) = (self.member.take(), self.runtime.take()) else { return Ok(()) };
        let left = runtime.block_on(async {
            match failed {
                None => member.leave().await,
                Some(why) => member.fail(why).await,
            }
        });
        drop(member);
        runtime.shutdown_background();
        left
    }
}

impl Drop for Gang {
    fn drop(&mut self) {
        if self.member.is_some() {
            // The others learn of it by the lease if the word does not reach them.
            if let Err(error) = self.leave(Some("the process dropped its membership")) {
                tracing::debug!(error = %error.chain(), "the gang was not told");
            }
        }
    }
}
