//! Which names this worker is called by.
//!
//! A browser sends a page's request to whatever address the page's own name has at that moment. A page whose owner makes
//! that name point here (DNS rebinding) is of the same origin as its request, and a worker that asks nobody for a password
//! would follow it. What such a page cannot do is call us by another name than its own, so
//!
//! - an address is taken: no name was looked up to get here;
//! - `localhost` is taken, and names the configuration has;
//! - a request without any name is taken: no browser sends one.

use std::net::{IpAddr, Ipv6Addr};

use axum::{extract::Request, http::header};

/// The names of this worker.
#[derive(Debug)]
pub(super) struct Hosts {
    names: Vec<String>,
    any: bool,
}

impl Hosts {
    pub(super) fn new(names: &[String]) -> Self {
        let any = names.iter().any(|name| name == "*");
        Self { names: names.iter().map(|name| bare(name)).collect(), any }
    }

    /// Whether a request calls this worker by a name of its own, wherever it says one.
    pub(super) fn own(&self, request: &Request) -> bool {
        if self.any {
            return true;
        }
        // What is not text is nobody's name.
        let named = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or("?"));
        // HTTP/2 has it in the request's target.
        let target = request.uri().authority().map(|authority| authority.as_str());
        named.chain(target).all(|host| self.is_own(host))
    }

    fn is_own(&self, host: &str) -> bool {
        let name = bare(without_port(host));
        name.parse::<IpAddr>().is_ok()
            || name == "localhost"
            || name.ends_with(".localhost")
            || self.names.contains(&name)
    }
}

/// `[::1]:8083` and `host:8083` without the port. An address with brackets keeps none.
fn without_port(host: &str) -> &str {
    if let Some(inner) = host.strip_prefix('[') {
        return inner.split_once(']').map_or(host, |(address, _)| address);
    }
    match host.rsplit_once(':') {
        Some((name, _)) if host.parse::<Ipv6Addr>().is_err() => name,
        _ => host,
    }
}

/// Names are the same in any case, and with the dot that ends a full one.
fn bare(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn called(host: &[u8]) -> Request {
        Request::builder().uri("/").header(header::HOST, host).body(Body::empty()).unwrap()
    }

    #[test]
    fn a_worker_goes_by_addresses_localhost_and_its_own_names() {
        let hosts = Hosts::new(&["0.0.0.0".to_owned(), "Connect.example.com".to_owned()]);
        let table: [(&[u8], bool); 15] = [
            (b"127.0.0.1:8083", true),
            (b"127.0.0.1", true),
            (b"10.1.2.3:8083", true),
            (b"[::1]:8083", true),
            (b"[::1]", true),
            (b"localhost:8083", true),
            (b"LOCALHOST.", true),
            (b"tributary.localhost", true),
            (b"connect.EXAMPLE.com:8083", true),
            (b"attacker.example:8083", false),
            (b"connect.example.com.attacker.example", false),
            (b"127.0.0.1.attacker.example:8083", false),
            (b"notlocalhost", false),
            (b"", false),
            (b"\xff", false),
        ];

        for (host, own) in table {
            assert_eq!(hosts.own(&called(host)), own, "{}", String::from_utf8_lossy(host));
        }
        assert!(Hosts::new(&["*".to_owned()]).own(&called(b"attacker.example")));
    }

    #[test]
    fn every_place_that_names_a_host_has_to_name_an_own_one() {
        let hosts = Hosts::new(&[]);
        let request = |uri: &str| Request::builder().uri(uri).body(Body::empty()).unwrap();

        let nowhere = request("/connectors");
        let mut twice = called(b"localhost");
        twice.headers_mut().append(header::HOST, "attacker.example".parse().unwrap());

        assert!(hosts.own(&nowhere));
        assert!(!hosts.own(&request("http://attacker.example/connectors")));
        assert!(!hosts.own(&twice));
    }
}
