//! The client address of a request: the peer, or the address that a trusted proxy forwards.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use http::{HeaderMap, HeaderName};
use ipnet::IpNet;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The nearest address that is not a trusted proxy. A client can write anything into `X-Forwarded-For`, but each proxy appends
/// the address that it saw, so the right-most address that is no proxy counts. If that entry is not an address, the proxy itself
/// counts.
pub fn of(peer: IpAddr, headers: &HeaderMap, proxies: &[IpNet]) -> IpAddr {
    let mut nearest = peer.to_canonical();
    let values: Vec<_> = headers.get_all(FORWARDED_FOR).iter().collect();
    for text in values.into_iter().rev().flat_map(|value| value.as_bytes().rsplit(|byte| *byte == b',')) {
        if !is_proxy(nearest, proxies) {
            break;
        }
        match address(text) {
            Some(address) => nearest = address,
            None => break,
        }
    }
    nearest
}

/// Whether an address belongs to a trusted proxy.
pub fn is_proxy(address: IpAddr, proxies: &[IpNet]) -> bool {
    let address = address.to_canonical();
    proxies.iter().any(|network| network.contains(&address))
}

/// The network that limits per client count as one: the /64 of an IPv6 address, an IPv4 address as it is.
pub fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into(),
        address => address,
    }
}

/// An address, with or without a port.
fn address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?.trim();
    let with_port = || text.parse().ok().map(|address: SocketAddr| address.ip());
    text.parse().ok().or_else(with_port).map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(peer: &str, forwarded: &[&str]) -> String {
        let proxies = ["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()];
        let mut headers = HeaderMap::new();
        for value in forwarded {
            headers.append(FORWARDED_FOR, value.parse().unwrap());
        }
        of(peer.parse().unwrap(), &headers, &proxies).to_string()
    }

    #[test]
    fn only_a_proxy_can_forward_an_address() {
        assert_eq!(origin("192.0.2.1", &["198.51.100.7"]), "192.0.2.1");
        assert_eq!(origin("192.0.2.1", &["10.0.0.1, 10.0.0.2"]), "192.0.2.1");
    }

    #[test]
    fn the_right_most_address_that_is_no_proxy_counts() {
        assert_eq!(origin("10.0.0.1", &["198.51.100.7"]), "198.51.100.7");
        assert_eq!(origin("10.0.0.1", &["203.0.113.9, 198.51.100.7"]), "198.51.100.7");
        assert_eq!(origin("10.0.0.1", &["203.0.113.9,198.51.100.7 , 10.0.0.2"]), "198.51.100.7");
        assert_eq!(origin("10.0.0.1", &["203.0.113.9", "198.51.100.7", "10.0.0.2"]), "198.51.100.7");
        assert_eq!(origin("::ffff:10.0.0.1", &["::ffff:198.51.100.7"]), "198.51.100.7");
        assert_eq!(origin("2001:db8::1", &["[2001:db9::1]:443"]), "2001:db9::1");
        assert_eq!(origin("10.0.0.1", &["198.51.100.7:4711"]), "198.51.100.7");
    }

    #[test]
    fn a_forwarded_non_address_ends_the_search() {
        assert_eq!(origin("10.0.0.1", &[]), "10.0.0.1");
        assert_eq!(origin("10.0.0.1", &[""]), "10.0.0.1");
        assert_eq!(origin("10.0.0.1", &["198.51.100.7, unknown"]), "10.0.0.1");
        assert_eq!(origin("10.0.0.1", &["198.51.100.7,"]), "10.0.0.1");
        assert_eq!(origin("10.0.0.1", &["198.51.100.7, unknown, 10.0.0.2"]), "10.0.0.2");
    }
}
