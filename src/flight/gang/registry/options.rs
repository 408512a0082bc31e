//! Limits of all gangs of a server, and of those of one tenant.

use std::time::Duration;

/// Limits and times of a [`Registry`](super::Registry).
#[derive(Debug, Clone)]
pub struct RegistryOptions {
    /// A member that does not call for this long is lost. Default 10 s.
    pub lease: Duration,
    /// Time by which leases are extended after a restart of the server. Default 10 s.
    pub grace: Duration,
    /// The longest time that one call is held before it answers "not yet". Default 30 s.
    pub max_poll: Duration,
    /// The most ranks of one gang. Default 16,384.
    pub max_world: u32,
    /// The most gangs; ended and abandoned ones are forgotten first. Default 1,024.
    pub max_gangs: usize,
    /// The largest message of an `all_gather`, in bytes. Default 1 MiB.
    pub max_message: u64,
    /// The most bytes of all messages of one `all_gather`. Default 16 MiB.
    pub max_gathered: u64,
    /// The most ranks of all gangs together. Default 65,536.
    pub max_members: usize,
    /// The most bytes of messages of all gangs together. Default 256 MiB.
    pub max_held: u64,
    /// True if callers are tenants, so that gangs in no space belong to the tenants of the common one rather than to every caller. Default
    /// false.
    pub tenants: bool,
    /// The most gangs of one tenant, or of those that share a space. Default 256.
    pub gangs_per_tenant: usize,
    /// The most ranks of all gangs of one tenant. Default 16,384.
    pub ranks_per_tenant: usize,
    /// The most bytes of messages of all gangs of one tenant. Default 64 MiB.
    pub held_per_tenant: u64,
}

impl Default for RegistryOptions {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            grace: Duration::from_secs(10),
            max_poll: Duration::from_secs(30),
            max_world: 16_384,
            max_gangs: 1_024,
            max_message: 1 << 20,
            max_gathered: 16 << 20,
            max_members: 65_536,
            max_held: 256 << 20,
            tenants: false,
            gangs_per_tenant: 256,
            ranks_per_tenant: 16_384,
            held_per_tenant: 64 << 20,
        }
    }
}
