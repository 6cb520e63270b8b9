//! Limits the connections of one client address, so that no address takes all slots.

use std::{
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    sync::Arc,
};

use ipnet::IpNet;
use parking_lot::Mutex;

use super::origin::{is_proxy, network};

/// Counts open connections by address. An IPv6 address counts as its /64, which one host owns.
#[derive(Debug)]
pub(super) struct AddressLimit {
    most: usize,
    /// Networks without a limit: trusted proxies, which carry many clients.
    exempt: Vec<IpNet>,
    connections: Mutex<HashMap<IpAddr, usize>>,
}

impl AddressLimit {
    pub(super) fn new(most: usize, exempt: Vec<IpNet>) -> Arc<Self> {
        Arc::new(Self { most, exempt, connections: Mutex::default() })
    }

    /// Counts a connection until the result is dropped. `None` if the address is at its limit.
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

/// One counted connection.
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
            // Removing empty entries bounds the table by the number of open connections.
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
    fn addresses_of_one_ipv6_network_count_together_and_mapped_ones_as_ipv4() {
        let addresses = AddressLimit::new(1, Vec::new());
        let _both = [enter(&addresses, "2001:db8::1").unwrap(), enter(&addresses, "192.0.2.1").unwrap()];

        for (address, is_free) in [
            ("2001:db8::ffff:2", false),
            ("2001:db8:0:1::1", true),
            ("::ffff:192.0.2.1", false),
            ("::ffff:192.0.2.2", true),
        ] {
            assert_eq!(enter(&addresses, address).is_some(), is_free, "{address}");
        }
    }

    #[test]
    fn a_proxy_may_have_any_number() {
        let addresses = AddressLimit::new(0, vec!["10.0.0.0/8".parse().unwrap()]);

        assert!(enter(&addresses, "10.1.2.3").is_some() && enter(&addresses, "::ffff:10.1.2.3").is_some());
        assert!(enter(&addresses, "11.1.2.3").is_none());
    }

    #[test]
    fn an_address_without_connections_takes_no_memory() {
        let addresses = AddressLimit::new(1, Vec::new());

        let place = enter(&addresses, "192.0.2.1");
        assert!(enter(&addresses, "192.0.2.1").is_none());
        drop(place);

        assert!(addresses.connections.lock().is_empty());
    }
}
