//! The table `[server]` of a server's configuration: options as given, their defaults and ranges, each in one place.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::flight::put::DiskQuotas;
use crate::flight::server::access::space::Spaces;
use crate::flight::server::access::tls::{TlsFiles, may_listen};
use crate::flight::server::ops::limits::Limits;
use crate::flight::server::stream::quota::QuotaOptions;
use crate::pipeline::machine;

/// Default address to listen at.
pub const LISTEN: &str = "127.0.0.1:8815";
/// Default time that streams have to end after shutdown began, in seconds.
const DRAIN_GRACE: f64 = 30.0;
/// Default lease of a gang, in seconds.
const GANG_LEASE: f64 = 10.0;
/// Default time for which the files of a dataset that nobody reads count as unchanged, in seconds.
const REFRESH: f64 = 60.0;
/// Default minimum memory of open datasets.
const OPEN_BYTES: u64 = 256 << 20;
/// A day.
const DAY: f64 = 86_400.0;

/// The range of an option, both ends included.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) name: &'static str,
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// `a whole number `, or nothing.
    kind: &'static str,
    /// ` seconds`, or nothing.
    unit: &'static str,
}

impl Range {
    const fn seconds(name: &'static str, least: f64) -> Self {
        Self { name, least, most: DAY, kind: "", unit: " seconds" }
    }

    /// Checks the option's `value`, if it is given; an error shows it as it was given.
    fn check<T: Copy + Display>(&self, value: Option<T>, number: impl Fn(T) -> f64) -> Result<()> {
        let Self { name, least, most, kind, unit } = *self;
        match value {
            Some(value) if !(least..=most).contains(&number(value)) => {
                Err(Error::config(name, format!("{value} is not {kind}from {least} to {most}{unit}")))
            }
            _ => Ok(()),
        }
    }
}

const THREADS_RANGE: Range =
    Range { name: "threads", least: 1.0, most: machine::MAX_THREADS as f64, kind: "a whole number ", unit: "" };
const DRAIN_GRACE_RANGE: Range = Range::seconds("drain_grace", 0.0);
/// A lease below it takes a busy machine for a dead one.
const GANG_LEASE_RANGE: Range = Range::seconds("gang_lease", 0.1);
const REFRESH_RANGE: Range = Range::seconds("refresh", 0.0);

/// Ranges of options that have any.
#[cfg(feature = "cli")]
pub(crate) const RANGES: [Range; 4] = [THREADS_RANGE, DRAIN_GRACE_RANGE, GANG_LEASE_RANGE, REFRESH_RANGE];

/// The table `[server]` of the configuration; flags have the same names.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "cli", derive(schemars::JsonSchema))]
#[serde(default, deny_unknown_fields)]
pub struct ServerOptions {
    /// Address and port for Flight; 127.0.0.1:8815 by default.
    pub listen: Option<String>,
    /// Address and port for `/metrics`, `/livez` and `/readyz`; without it, there are none.
    pub admin: Option<String>,
    /// File of tokens for `/metrics`; without it, counters name no datasets to other hosts.
    pub admin_tokens: Option<PathBuf>,
    /// Bytes that everything in flight may take; by default as for a loader.
    pub memory_budget: Option<u64>,
    /// CPU threads for decoding; by default all that this process may use.
    pub threads: Option<usize>,
    /// Most streams of batches at once over all tenants; the same as `limits.max_streams`.
    pub max_streams: Option<u32>,
    /// Addresses of all servers that serve the same datasets with the same key, this one included, as clients reach them.
    pub replicas: Vec<String>,
    /// Certificate, key, and the CA of clients.
    pub tls: Option<TlsFiles>,
    /// File of tokens.
    pub tokens: Option<PathBuf>,
    /// File of the key that signs tickets; without it, tickets end with this process.
    pub key_file: Option<PathBuf>,
    /// True to serve everyone who can reach the address.
    pub insecure: bool,
    /// Seconds that streams have to end after shutdown began; 30 by default.
    pub drain_grace: Option<f64>,
    /// File of the journal in which a gang's generation and step survive a crash.
    pub journal: Option<PathBuf>,
    /// Seconds after which a silent rank of a gang is lost; 10 by default, 0.1 to 86,400.
    pub gang_lease: Option<f64>,
    /// Seconds for which the files of a dataset that nobody reads count as unchanged; 60 by default, up to 86,400.
    pub refresh: Option<f64>,
    /// Bytes of the last batches of each stream that are kept for others that request the same, limited to a quarter of the free memory
    /// budget and to 1,024 batches: a stream that begins within them shares the decoding. 64 MiB, and at most 256 batches, by default.
    pub share_bytes: Option<u64>,
    /// Bytes of memory that open datasets take: their files, row groups, and the rows that filters selected. Datasets open for stored
    /// rows have as many of their own. A quarter of the memory budget, and at least 256 MiB, by default.
    pub open_bytes: Option<u64>,
    /// Destination of datasets that clients write: `memory`, or a directory. Without it, clients cannot write.
    pub put: Option<String>,
    /// True if ranks on this host get their batches through shared memory; the default.
    pub shared_memory: Option<bool>,
    /// File that gets a line of JSON for each call and each end of a stream.
    pub audit_log: Option<PathBuf>,
    /// Tenants whose gangs and written datasets share a space of names, by its name; each other tenant has its own.
    pub spaces: BTreeMap<String, Vec<String>>,
    /// Limits of one peer.
    pub limits: Limits,
    /// Quotas of tenants.
    pub quotas: QuotaOptions,
}

impl ServerOptions {
    /// Address and port for Flight.
    pub fn listen(&self) -> &str {
        self.listen.as_deref().unwrap_or(LISTEN)
    }

    /// Bytes that everything in flight may take.
    pub(crate) fn memory_budget(&self) -> u64 {
        self.memory_budget.unwrap_or_else(machine::default_budget)
    }

    /// CPU threads for decoding.
    pub(crate) fn threads(&self) -> usize {
        self.threads.unwrap_or_else(machine::threads)
    }

    /// Seconds that streams have to end after shutdown began.
    pub(crate) fn drain_grace(&self) -> f64 {
        self.drain_grace.unwrap_or(DRAIN_GRACE)
    }

    /// Seconds after which a silent rank of a gang is lost.
    pub(crate) fn gang_lease(&self) -> f64 {
        self.gang_lease.unwrap_or(GANG_LEASE)
    }

    /// Seconds for which the files of a dataset that nobody reads count as unchanged.
    pub(crate) fn refresh(&self) -> f64 {
        self.refresh.unwrap_or(REFRESH)
    }

    /// Bytes of memory that open datasets take.
    pub(crate) fn open_bytes(&self) -> u64 {
        self.open_bytes.unwrap_or_else(|| OPEN_BYTES.max(self.memory_budget() / 4))
    }

    /// True if ranks on this host get their batches through shared memory.
    pub(crate) fn shared_memory(&self) -> bool {
        self.shared_memory.unwrap_or(true)
    }

    /// The limits, with the number of streams that stands beside them.
    pub(crate) fn effective_limits(&self) -> Limits {
        Limits { max_streams: self.max_streams.unwrap_or(self.limits.max_streams), ..self.limits.clone() }
    }

    /// The same with every default filled in that does not follow from files or clients.
    #[must_use]
    pub fn with_defaults(&self) -> Self {
        let limits = self.effective_limits();
        Self {
            listen: Some(self.listen().to_owned()),
            memory_budget: Some(self.memory_budget()),
            threads: Some(self.threads()),
            max_streams: Some(limits.max_streams),
            drain_grace: Some(self.drain_grace()),
            gang_lease: Some(self.gang_lease()),
            refresh: Some(self.refresh()),
            open_bytes: Some(self.open_bytes()),
            shared_memory: Some(self.shared_memory()),
            limits,
            quotas: self.quotas.with_defaults(),
            ..self.clone()
        }
    }

    /// Checks every value as far as no file, no address of a name and no dataset needs to be looked at.
    ///
    /// # Errors
    /// [`Error::Config`] naming the option.
    pub fn validate(&self) -> Result<()> {
        self.effective_limits().validate()?;
        self.quotas.validate()?;
        self.replicas.iter().try_for_each(|replica| check_replica(replica))?;
        THREADS_RANGE.check(self.threads, |threads| threads as f64)?;
        for (range, seconds) in
            [(DRAIN_GRACE_RANGE, self.drain_grace), (GANG_LEASE_RANGE, self.gang_lease), (REFRESH_RANGE, self.refresh)]
        {
            range.check(seconds, |seconds| seconds)?;
        }
        let put = self.put.as_deref().is_some_and(str::is_empty);
        let empty = |path: &Option<PathBuf>| path.as_deref().is_some_and(|path| path.as_os_str().is_empty());
        for (option, is_empty) in
            [("put", put), ("journal", empty(&self.journal)), ("audit_log", empty(&self.audit_log))]
        {
            if is_empty {
                return Err(Error::config(option, "is empty; name a place, or leave it out, also as a variable"));
            }
        }
        let in_directory = self.put.as_deref().is_some_and(|put| put != MEMORY);
        if self.quotas.written() != DiskQuotas::default() && !in_directory {
            let problem = "is a quota of the disk, and only datasets that are written to a directory are there: give put = DIRECTORY";
            return Err(Error::config("written_bytes", problem));
        }
        self.check_ports()?;
        Spaces::new(&self.spaces).map(drop)
    }

    /// Refuses one address for both ports, as far as they tell without resolving names: the second could not be bound.
    fn check_ports(&self) -> Result<()> {
        let Some(admin) = &self.admin else { return Ok(()) };
        let theirs = on_loopback(admin);
        let (ours, theirs) = (every_interface(self.listen()), every_interface(&theirs));
        let is_taken = match (ours.parse::<SocketAddr>(), theirs.parse::<SocketAddr>()) {
            (Ok(ours), Ok(theirs)) => {
                let meets = ours.ip() == theirs.ip() || ours.ip().is_unspecified() || theirs.ip().is_unspecified();
                ours.port() != 0 && ours.port() == theirs.port() && ours.is_ipv4() == theirs.is_ipv4() && meets
            }
            _ => ours == theirs && !ours.ends_with(":0"),
        };
        if !is_taken {
            return Ok(());
        }
        let problem =
            format!("{admin} is taken by listen, {}; give another port, or 0 for one that is free", self.listen());
        Err(Error::config("admin", problem))
    }

    /// Checks that this server may listen at `address`.
    ///
    /// # Errors
    /// As [`may_listen`].
    pub fn may_listen(&self, address: SocketAddr) -> Result<()> {
        let tenants = self.tokens.is_some() || self.tls.as_ref().is_some_and(|files| files.client_ca.is_some());
        may_listen(address, self.tls.is_some(), tenants, self.insecure)
    }
}

/// Expands `:8815` to every interface of this host, as other servers do; permission is checked on the resolved addresses.
pub(crate) fn every_interface(address: &str) -> Cow<'_, str> {
    if address.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok()) {
        format!("0.0.0.0{address}").into()
    } else {
        address.into()
    }
}

/// Expands `9090` to this host alone: an admin port is for operators.
pub(crate) fn on_loopback(address: &str) -> Cow<'_, str> {
    if address.parse::<u16>().is_ok() { format!("127.0.0.1:{address}").into() } else { address.into() }
}

/// `put` for datasets that live in the memory of the process.
pub(super) const MEMORY: &str = "memory";

/// Checks a replica's address, which is handed to clients unchanged: it must be valid and hold no password.
fn check_replica(replica: &str) -> Result<()> {
    let wrong = |problem: &str| Error::config("replicas", format!("{replica:?} {problem}, e.g. grpc://10.0.0.2:8815"));
    // Text that is no address may hold anything, so it is not repeated.
    let url = url::Url::parse(replica)
        .map_err(|_| Error::config("replicas", "one is no address; write e.g. grpc://10.0.0.2:8815"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Error::config("replicas", "one holds a user or a password; clients bring their own tokens"));
    }
    if !["grpc", "grpc+tcp", "grpc+tls"].contains(&url.scheme()) {
        return Err(wrong("must begin with grpc:// or grpc+tls://"));
    }
    if url.host_str().is_none_or(str::is_empty) || url.port().is_none() {
        return Err(wrong("needs a host and a port"));
    }
    Ok(())
}
