//! The caches of other hosts: each block has one home among them, so that a cluster fetches it from its origin once.
//!
//! ```text
//!   not here ─► the block's home ─► it has the block ─────────────────────────────► its bytes, checked
//!                            ├────► another reader fetches it ─► waits ──────────► its bytes, checked
//!                            └────► a lease ─► this reader fetches it from the origin and gives it to the home
//!            ─► the home fails: the next one in rank, then the origin
//! ```
//! A home never fetches from an origin by itself. It has no credentials of stores and needs none, so nobody can make it fetch
//! what they may not read; what it has already, it gives to whoever may talk to it. The price is that the first reader sends each block
//! once over the network. A lease ends with its connection: if the reader dies, the next one that waits gets it.
//!
//! Nobody is told of members that come and go, and nothing is copied for them: [`ring`] is arithmetic over the list that each host has.
//! Lists that differ for a while cost reads of the origin.

mod members;
mod peer;
mod resolve;
mod ring;
mod standing;
mod transfer;
pub(crate) mod wire;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Semaphore;

#[cfg(test)]
pub(crate) use self::members::PORT;
use self::members::{Entry, Member};
use self::peer::{Asked, Lease, Peer};
use self::resolve::addresses;
use self::ring::Point;
use super::super::caller::Credentials;
use super::asked::Again;
use super::block::Block;
use super::counts::{Event, Unkept};
use super::fetched::Fetched;
use crate::error::{Error, Result};
use crate::per_process::PerProcess;

/// Homes that are asked for a block before its origin is.
const HOMES: usize = 2;
/// Members that take the place of a home, one after the other.
const RANKED: usize = 16;
/// Time after which names are resolved again.
const AGAIN: Duration = Duration::from_secs(10);
/// One home has more blocks than another, by less than this part.
const UNEVEN: u64 = 16;
/// Bytes on their way to their homes at once; in units of a permit, of which each block takes some, so that there are not too many.
const GIVING: usize = 128 << 20;
/// Longest time that a reader waits to begin with that.
const QUEUE: Duration = Duration::from_secs(5);
const PERMIT: usize = 64 << 10;
const LEAST: usize = 16;

/// See the module. Clusters of one list and credentials are one.
#[derive(Debug)]
pub(super) struct Cluster {
    entries: Vec<Entry>,
    credentials: Credentials,
    known: RwLock<Known>,
    /// Held by the one that resolves names for the first time.
    first: tokio::sync::Mutex<()>,
    giving: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Known {
    /// The members behind each entry.
    behind: Vec<Vec<Member>>,
    peers: Vec<Arc<Peer>>,
    /// When names were last resolved, or began to be.
    resolved: Option<Instant>,
}

/// Counts what happens, for a reader.
pub(super) trait Count: Fn(Event) + Clone + Send + Sync + 'static {}

impl<F: Fn(Event) + Clone + Send + Sync + 'static> Count for F {}

type Options = (Vec<String>, BTreeMap<String, String>);

/// Clusters by their options.
type Open = Vec<(Options, Weak<Cluster>)>;

impl Cluster {
    /// The cluster of these `cache_peers` and `cache_peer_options`.
    ///
    /// # Errors
    /// [`Error::Config`] naming the option that is wrong.
    pub(super) fn open(peers: &[String], options: &BTreeMap<String, String>) -> Result<Arc<Self>> {
        static OPEN: PerProcess<Mutex<Open>> = PerProcess::new();
        let mut open = OPEN.get().lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|(_, cluster)| cluster.strong_count() > 0);
        let known = open.iter().find(|(found, _)| found.0 == peers && found.1 == *options);
        if let Some(cluster) = known.and_then(|(_, cluster)| cluster.upgrade()) {
            return Ok(cluster);
        }
        let entries = peers.iter().map(|peer| Entry::parse(peer)).collect::<Result<Vec<_>>>()?;
        if entries.is_empty() {
            return Err(Error::config("cache_peers", "it is empty; leave it out"));
        }
        let behind: Vec<_> = entries.iter().map(|entry| entry.members(&[], &[])).collect();
        let known = Known { peers: peers_of(&behind, &[]), behind, resolved: None };
        let cluster = Arc::new(Self {
            entries,
            credentials: Credentials::of_peers(options)?,
            known: RwLock::new(known),
            first: tokio::sync::Mutex::default(),
            giving: Arc::new(Semaphore::new(GIVING / PERMIT)),
        });
        open.push(((peers.to_vec(), options.clone()), Arc::downgrade(&cluster)));
        Ok(cluster)
    }

    /// `block` from its home, or by `origin`, after which its home has it too. `again` says when the plan of
    /// whoever asks needs it next.
    ///
    /// # Errors
    /// Those of `origin`.
    pub(super) async fn fetch(
        self: &Arc<Self>,
        (block, again): (Block, Again),
        count: impl Count,
        origin: impl Future<Output = Result<Bytes>>,
    ) -> Result<Fetched> {
        if wire::may_travel(&block) {
            let mut asked = 0;
            for peer in self.homes(&block).await {
                // Whoever may try a peer that failed does.
                if asked == HOMES || !peer.may_be_asked() {
                    continue;
                }
                asked += 1;
                let begin = Instant::now();
                let answer = peer.ask(&self.credentials, &block, again).await;
                // Whether it takes the block is seen when that is given.
                if !matches!(answer, Ok(Asked::Lease(_))) {
                    peer.note(begin, answer.as_ref().err());
                }
                match answer {
                    Ok(Asked::Block(bytes)) => return Ok(Fetched::of_peer(bytes)),
                    Ok(Asked::Lease(lease)) => {
                        let bytes = origin.await?;
                        transfer::received(bytes.len());
                        if bytes.len() as u64 != block.len() {
                            return Ok(bytes.into());
                        }
                        let is_going = self.give(peer, lease, (block, again), bytes.clone(), count).await;
                        return Ok(if is_going { Fetched::given(bytes) } else { bytes.into() });
                    }
                    Ok(Asked::Declined) => break,
                    // That is no fault of the peer's.
                    Ok(Asked::InVain) => {
                        count(Event::PeerFailed);
                        break;
                    }
                    Err(_) => count(Event::PeerFailed),
                }
            }
        }
        origin.await.map(Fetched::from)
    }

    /// Gives `block` to its home while its reader continues. Returns false if too much is on its way: then the reader keeps it.
    async fn give(
        self: &Arc<Self>,
        peer: Arc<Peer>,
        lease: Lease,
        block: (Block, Again),
        bytes: Bytes,
        count: impl Count,
    ) -> bool {
        let permits = bytes.len().div_ceil(PERMIT).clamp(LEAST, GIVING / PERMIT);
        let acquired = Arc::clone(&self.giving).acquire_many_owned(permits as u32);
        let Ok(Ok(permit)) = tokio::time::timeout(QUEUE, acquired).await else {
            count(Event::Refused);
            return false;
        };
        let cluster = Arc::clone(self);
        drop(tokio::spawn(async move {
            match peer.give(&cluster.credentials, lease, block, bytes).await {
                Ok(true) => count(Event::Given),
                Ok(false) => count(Event::Refused),
                Err(_) => {
                    count(Event::PeerFailed);
                    count(Event::Refused);
                }
            }
            drop(permit);
        }));
        true
    }

    /// Bytes that all homes together may take, less what an uneven share of them costs.
    pub(super) async fn room(self: &Arc<Self>) -> u64 {
        let peers = self.peers().await;
        let rooms = peers.iter().map(|peer| async move {
            let (begin, room) = (Instant::now(), peer.room(&self.credentials).await);
            peer.note(begin, room.as_ref().err());
            room.unwrap_or(0)
        });
        let all = futures::future::join_all(rooms).await.into_iter().fold(0, u64::saturating_add);
        all - all / UNEVEN
    }

    /// What each member was offered by this process and does not have.
    pub(super) fn unkept(&self) -> Vec<Unkept> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.peers.iter().map(|peer| peer.unkept()).collect()
    }

    /// Waits until all fetched blocks are with their homes, or refused.
    pub(super) async fn settle(&self) {
        drop(self.giving.acquire_many((GIVING / PERMIT) as u32).await);
    }

    /// The home of `block`, whoever takes its place if it is gone, and so on.
    async fn homes(self: &Arc<Self>, block: &Block) -> Vec<Arc<Peer>> {
        let peers = self.peers().await;
        let ranked = ring::homes(peers.iter().map(|peer| peer.point), Point::of_block(block));
        ranked.into_iter().take(RANKED).filter_map(|at| peers.get(at)).cloned().collect()
    }

    /// The members as they are known now. Names are resolved the first time, and every now and then in the background.
    async fn peers(self: &Arc<Self>) -> Vec<Arc<Peer>> {
        let known = || self.known.read().unwrap_or_else(PoisonError::into_inner);
        if self.entries.iter().any(|entry| entry.unresolved().is_some()) {
            let is_resolved = known().resolved.is_some();
            if !is_resolved {
                let _one = self.first.lock().await;
                if known().resolved.is_none() {
                    self.resolve().await;
                }
            } else if self.is_time() {
                let cluster = Arc::clone(self);
                drop(tokio::spawn(async move { cluster.resolve().await }));
            }
        }
        known().peers.clone()
    }

    /// Returns true for one caller when names are to be resolved again.
    fn is_time(&self) -> bool {
        let is_old = |known: &Known| known.resolved.is_none_or(|resolved| resolved.elapsed() > AGAIN);
        if !is_old(&self.known.read().unwrap_or_else(PoisonError::into_inner)) {
            return false;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let is_time = is_old(&known);
        if is_time {
            known.resolved = Some(Instant::now());
        }
        is_time
    }

    async fn resolve(&self) {
        let found = addresses(&self.entries, |(host, port)| async move {
            Ok(tokio::net::lookup_host((host.as_str(), port)).await?.collect())
        });
        let found = found.await;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let none = Vec::new();
        let all = self.entries.iter().zip(&found).enumerate();
        let behind: Vec<_> =
            all.map(|(at, (entry, found))| entry.members(known.behind.get(at).unwrap_or(&none), found)).collect();
        if behind != known.behind {
            known.peers = peers_of(&behind, &known.peers);
            known.behind = behind;
            tracing::info!("the cluster of caches has {} members", known.peers.len());
        }
        known.resolved = Some(Instant::now());
    }
}

/// A peer for each member; those that were there stay, with what is known of them.
fn peers_of(behind: &[Vec<Member>], before: &[Arc<Peer>]) -> Vec<Arc<Peer>> {
    let known: HashMap<_, _> = before.iter().map(|peer| (&peer.member, peer)).collect();
    let members = members::united(behind.iter().cloned());
    members
        .into_iter()
        .map(|member| known.get(&member).map_or_else(|| Arc::new(Peer::new(member.clone())), |peer| Arc::clone(peer)))
        .collect()
}
