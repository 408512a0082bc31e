//! The places of connections: so many in all, and for each host.
//!
//! Anybody may connect, say hello and answer pings for ever. So a place is kept for good only once a call of the connection was admitted;
//! where no place is free, the oldest connection without such a call gives way to a new one.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::flight::server::stream::hangup::Hangup;

/// Returns the address to count a peer by: one host may use any number of IPv6 addresses, all in one network of 64 bits.
pub(crate) fn host(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into(),
        address => address,
    }
}

/// All places. Clones share them.
#[derive(Debug, Clone)]
pub(super) struct Places {
    state: Arc<Mutex<State>>,
    most: usize,
    most_of_host: usize,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Who holds a place, in the order of arrival.
    holders: BTreeMap<u64, Option<Holder>>,
    hosts: HashMap<IpAddr, usize>,
}

/// A connection from a host. Sockets without an address are not counted by host, and never give way.
#[derive(Debug)]
struct Holder {
    host: IpAddr,
    hangup: Hangup,
}

impl State {
    fn of_host(&self, host: IpAddr) -> usize {
        self.hosts.get(&host).copied().unwrap_or_default()
    }

    /// Returns the oldest connection, of `host` if that is given, that has made no admitted call.
    fn stranger(&self, host: Option<IpAddr>) -> Option<u64> {
        let may_go = |holder: &Holder| holder.hangup.is_stranger() && host.is_none_or(|host| host == holder.host);
        self.holders.iter().find(|(_, holder)| holder.as_ref().is_some_and(may_go)).map(|(number, _)| *number)
    }

    /// Frees the place of `number`, if it has one still.
    fn free(&mut self, number: u64) -> Option<Holder> {
        let holder = self.holders.remove(&number)??;
        if let Some(count) = self.hosts.get_mut(&holder.host) {
            *count -= 1;
            if *count == 0 {
                self.hosts.remove(&holder.host);
            }
        }
        Some(holder)
    }
}

/// The outcome of asking for a place.
#[derive(Debug)]
pub(super) enum Asked {
    Taken(Place),
    /// Another connection was ended for it.
    TakenFrom(Place),
    Full,
}

impl Places {
    pub(super) fn new(most: usize, most_of_host: usize) -> Self {
        Self { state: Arc::default(), most, most_of_host }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a connection from `address`, which `hangup` ends.
    pub(super) fn take(&self, from: Option<(IpAddr, Hangup)>) -> Asked {
        let holder = from.map(|(address, hangup)| Holder { host: host(address), hangup });
        let mut state = self.lock();
        let crowded = holder.as_ref().is_some_and(|holder| state.of_host(holder.host) >= self.most_of_host);
        let full = crowded || state.holders.len() >= self.most;
        if full {
            // Those of its own host go first, so that no host drives out those of others while it has some.
            let own = holder.as_ref().and_then(|holder| state.stranger(Some(holder.host)));
            let Some(goes) = own.or_else(|| state.stranger(None).filter(|_| !crowded)) else { return Asked::Full };
            // Its place is free at once, and its socket a moment later.
            if let Some(gone) = state.free(goes) {
                gone.hangup.give_way();
            }
        }
        let number = state.next;
        state.next += 1;
        if let Some(holder) = &holder {
            *state.hosts.entry(holder.host).or_default() += 1;
        }
        state.holders.insert(number, holder);
        let place = Place { places: self.clone(), number };
        if full { Asked::TakenFrom(place) } else { Asked::Taken(place) }
    }
}

/// A place, held until it is dropped or given to another connection.
#[derive(Debug)]
pub(super) struct Place {
    places: Places,
    number: u64,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().free(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Rig {
        places: Places,
        held: Vec<(Place, Hangup)>,
    }

    impl Rig {
        fn new(most: usize, most_of_host: usize) -> Self {
            Self { places: Places::new(most, most_of_host), held: Vec::new() }
        }

        /// Connects from `address`. Returns true if there was a place.
        fn connect(&mut self, address: &str) -> bool {
            let hangup = Hangup::default();
            match self.places.take(Some((address.parse().unwrap(), hangup.clone()))) {
                Asked::Taken(place) | Asked::TakenFrom(place) => self.held.push((place, hangup)),
                Asked::Full => return false,
            }
            true
        }

        /// Returns the numbers of the connections that were ended.
        fn ended(&self) -> Vec<usize> {
            (0..self.held.len()).filter(|at| self.held[*at].1.why().is_some()).collect()
        }
    }

    #[test]
    fn who_has_made_no_call_gives_way_and_who_has_does_not() {
        let mut rig = Rig::new(3, 3);
        assert!(rig.connect("10.0.0.1") && rig.connect("10.0.0.2") && rig.connect("10.0.0.3"));
        rig.held[0].1.admit();
        assert!(rig.connect("10.0.0.4"));
        assert_eq!(rig.ended(), [1], "the oldest of those that were not admitted");
        assert!(rig.connect("10.0.0.4"));
        assert_eq!(rig.ended(), [1, 3], "that of the same host first");
        rig.held.iter().for_each(|(_, hangup)| hangup.admit());
        assert!(!rig.connect("10.0.0.5"));
        // Those that gave way free no place when they are gone at last.
        rig.held.retain(|(_, hangup)| hangup.why().is_none());
        assert!(!rig.connect("10.0.0.5"));
        rig.held.remove(0);
        assert!(rig.connect("10.0.0.5"));
    }

    #[test]
    fn a_crowded_host_takes_no_place_of_another() {
        let mut rig = Rig::new(4, 2);
        assert!(rig.connect("10.0.0.1") && rig.connect("10.0.0.2") && rig.connect("10.0.0.2"));
        assert!(rig.connect("::ffff:10.0.0.2"));
        assert_eq!(rig.ended(), [1]);
        rig.held[2].1.admit();
        rig.held[3].1.admit();
        assert!(!rig.connect("10.0.0.2"), "all of the host are admitted, and it may have no more");
        assert_eq!(rig.ended(), [1]);
        rig.held.clear();
        assert!(rig.places.lock().hosts.is_empty() && rig.places.lock().holders.is_empty());
    }

    #[test]
    fn a_host_is_one_peer_however_many_addresses_it_has() {
        for (addresses, hosts) in [
            (["2001:db8::1", "2001:db8::ffff:0:0:3", "2001:db8:0:1::1", "2001:db8:0:1::2"], 2),
            (["10.0.0.1", "10.0.0.2", "::ffff:10.0.0.2", "10.0.0.3"], 3),
        ] {
            let mut all: Vec<IpAddr> = addresses.iter().map(|address| host(address.parse().unwrap())).collect();
            all.dedup();
            assert_eq!(all.len(), hosts);
        }
    }
}
