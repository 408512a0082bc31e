//! A server on threads of its own, within a process that does other things: a notebook, a Spark executor, a test.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::flight::server::catalog::config::{Config, Put};
use crate::flight::server::rpc::put::refused;
use crate::flight::server::{Writes, serve};

/// Time beyond the grace time that dropping waits for the server to end.
const AFTER_GRACE: Duration = Duration::from_secs(1);

/// A running server. It drains when it is closed or dropped.
#[derive(Debug)]
pub struct Background {
    address: SocketAddr,
    tls: bool,
    grace: Duration,
    writes: Option<Writes>,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    /// Until it is told to drain.
    stop: Option<oneshot::Sender<()>>,
    /// When it was told to.
    since: Option<Instant>,
    cut: oneshot::Sender<()>,
    ended: mpsc::Receiver<Result<()>>,
    thread: JoinHandle<()>,
}

impl Background {
    /// Starts a server of `config` at `listen`, an address and port; port 0 takes any that is free. The server accepts connections when
    /// this returns.
    ///
    /// # Errors
    /// [`Error::Config`] if the address cannot be bound or the server may not listen there; [`Error::Store`] if the directory for
    /// writes cannot be used; [`Error::Closed`] if another server holds it and does not end within the grace time, or if no threads can
    /// be started.
    pub fn start(mut config: Config, listen: &str) -> Result<Self> {
        let refused = |error: std::io::Error| Error::config("listen", format!("{listen}: {error}"));
        let addresses: Vec<SocketAddr> = listen.to_socket_addrs().map_err(refused)?.collect();
        // Checked before the port is bound, so that no client connects in between.
        addresses.iter().try_for_each(|address| config.check(*address))?;
        let listener = TcpListener::bind(&*addresses).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let (tls, grace) = (config.tls.is_some(), config.drain_grace);
        let no_threads = |error: std::io::Error| Error::Closed { why: format!("no server can be started: {error}") };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("bowstring-serve")
            .enable_all()
            .build()
            .map_err(no_threads)?;
        let mut writes = None;
        if let Some(put) = &config.put {
            let staging =
                runtime.block_on(put.open(config.memory_budget, config.quotas.written(), config.lock_patience()))?;
            writes = Some(Writes::new(staging.clone(), runtime.handle().clone(), config.catalogue.clone()));
            config.put = Some(Put::Shared(staging));
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let (cut, cutting) = oneshot::channel::<()>();
        let (told, ended) = mpsc::channel();
        let work = move || {
            let served = runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).map_err(no_threads)?;
                let shutdown = async {
                    // Dropping the sender has the same meaning.
                    let _ = stopped.await;
                };
                tokio::select! {
                    served = serve(listener, config, shutdown) => served,
                    Ok(()) = cutting => Ok(()),
                }
            });
            // Reads in system calls may hang.
            runtime.shutdown_background();
            // Nobody receives this if the owner gave up waiting.
            let _ = told.send(served);
        };
        let thread = std::thread::Builder::new().name("bowstring-serve".to_owned()).spawn(work).map_err(no_threads)?;
        let running = Running { stop: Some(stop), since: None, cut, ended, thread };
        Ok(Self { address, tls, grace, writes, running: Some(running) })
    }

    /// As [`start`](Self::start), after opening each dataset: a damaged or missing file is reported to the caller rather than to the
    /// first client.
    ///
    /// # Errors
    /// Those of opening, naming the file; those of [`start`](Self::start).
    pub fn start_checked(config: Config, listen: &str) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Error::Closed { why: format!("no runtime can be started: {error}") })?;
        let checked = runtime.block_on(config.catalogue.get().check());
        // Dropping a runtime waits for reads in system calls, which may hang.
        runtime.shutdown_background();
        checked?;
        Self::start(config, listen)
    }

    /// Returns the address that it listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the address as clients write it, e.g. `grpc://127.0.0.1:41234`.
    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls { "grpc+tls" } else { "grpc" }, self.address)
    }

    /// Returns the handle by which this process writes datasets to it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it takes no writes.
    pub fn writes(&self) -> Result<&Writes> {
        self.writes.as_ref().ok_or_else(refused)
    }

    /// Drains: streams have the configured grace time to end. Closing again does nothing.
    ///
    /// # Errors
    /// The error that ended serving; [`Error::Timeout`] if serving continues beyond the grace time.
    pub fn close(&mut self) -> Result<()> {
        // It waits no longer than the grace time, so there is an outcome.
        self.close_within(Duration::MAX).unwrap_or(Ok(()))
    }

    /// The same, for `patience` at most: `None` if it drains still. Later calls wait on.
    ///
    /// # Errors
    /// As of [`close`](Self::close).
    pub fn close_within(&mut self, patience: Duration) -> Option<Result<()>> {
        let Some(running) = &mut self.running else { return Some(Ok(())) };
        let most = self.grace.saturating_add(AFTER_GRACE);
        let left = most.saturating_sub(running.drain());
        let ended = running.ended.recv_timeout(left.min(patience));
        if left > patience && matches!(ended, Err(mpsc::RecvTimeoutError::Timeout)) {
            return None;
        }
        let thread = self.running.take().map(|running| running.thread);
        Some(match ended {
            Ok(served) => {
                // It has sent its last message.
                let _ = thread.map(JoinHandle::join);
                served
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(Error::Closed { why: "the server panicked".to_owned() }),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(Error::Timeout {
                stage: "draining",
                culprit: format!("streams of the server at {}", self.address),
                waited: most,
            }),
        })
    }

    /// Ends it at once: streams are cut.
    pub fn cut(mut self) {
        if let Some(Running { cut, .. }) = self.running.take() {
            // It may have ended by itself.
            let _ = cut.send(());
        }
    }
}

impl Running {
    /// Tells it to drain, if nobody has; returns how long it has been at it.
    fn drain(&mut self) -> Duration {
        drop(self.stop.take());
        self.since.get_or_insert_with(Instant::now).elapsed()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::warn!(error = %error.chain(), "a server did not end well");
        }
    }
}
