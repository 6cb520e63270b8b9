//! How many connections each address has, so that none takes the place of all others.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use parking_lot::Mutex;

use super::origin::{is_proxy, network};

/// See the module's head. An address of IPv6 stands for its /64: that is what one host is given.
#[derive(Debug)]
pub(super) struct AddressLimit {
    most: usize,
    /// Who may have any number: the proxies in front of us, behind which everybody is.
    exempt: Vec<IpNet>,
    connections: Mutex<HashMap<IpAddr, usize>>,
}

impl AddressLimit {
    pub(super) fn new(most: usize, exempt: Vec<IpNet>) -> Arc<Self> {
        Arc::new(Self { most, exempt, connections: Mutex::default() })
    }

    /// Counts a connection for as long as the result is kept; `None` where the address has too many already.
    pub(super) fn enter(self: &Arc<Self>, address: IpAddr) -> Option<CountedConnection> {
        if is_proxy(address, &self.exempt) {
            return Some(CountedConnection { counted_in: None });
        }
        let host = network(address);
        let mut connections = self.connections.lock();
        let count = connections.get(&host).copied().unwrap_or(0);
        if count >= self.most {
            return None;
        }
        connections.insert(host, count + 1);
        Some(CountedConnection { counted_in: Some((Arc::clone(self), host)) })
    }
}

/// A connection that is counted.
#[derive(Debug)]
pub(super) struct CountedConnection {
    counted_in: Option<(Arc<AddressLimit>, IpAddr)>,
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        let Some((addresses, host)) = &self.counted_in else { return };
        let mut connections = addresses.connections.lock();
        if let Entry::Occupied(mut count) = connections.entry(*host) {
            *count.get_mut() -= 1;
            // Who has none left is forgotten: the table is never longer than there are connections.
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(addresses: &Arc<AddressLimit>, address: &str) -> Option<CountedConnection> {
        addresses.enter(address.parse().unwrap())
    }

    #[test]
    fn an_address_has_its_number_and_gets_a_place_back_when_one_ends() {
        let addresses = AddressLimit::new(2, Vec::new());
        let first = enter(&addresses, "192.0.2.1");
        let second = enter(&addresses, "::ffff:192.0.2.1");
        assert!(first.is_some() && second.is_some());

        assert!(enter(&addresses, "192.0.2.1").is_none());
        assert!(enter(&addresses, "192.0.2.2").is_some());
        drop(first);

        assert!(enter(&addresses, "192.0.2.1").is_some());
    }

    #[test]
    fn the_addresses_of_one_ipv6_network_count_together() {
        let addresses = AddressLimit::new(1, Vec::new());
        let _one = enter(&addresses, "2001:db8::1").unwrap();

        assert!(enter(&addresses, "2001:db8::ffff:2").is_none());
        assert!(enter(&addresses, "2001:db8:0:1::1").is_some());
    }

    #[test]
    fn a_proxy_may_have_any_number() {
        let addresses = AddressLimit::new(0, vec!["10.0.0.0/8".parse().unwrap()]);

        assert!(enter(&addresses, "10.1.2.3").is_some() && enter(&addresses, "::ffff:10.1.2.3").is_some());
        assert!(enter(&addresses, "11.1.2.3").is_none());
    }

    #[test]
    fn who_has_no_connection_left_takes_no_memory() {
        let addresses = AddressLimit::new(1, Vec::new());

        let place = enter(&addresses, "192.0.2.1");
        assert!(enter(&addresses, "192.0.2.1").is_none());
        drop(place);

        assert!(addresses.connections.lock().is_empty());
    }
}
