//! The names by which clients may address this worker.
//!
//! A browser sends a page's request to whatever address the page's host name has at that moment. If an attacker points that
//! name at this worker (DNS rebinding), page and request have the same origin, and a worker without logins would obey. But such a
//! page can only address us by its own name. So
//!
//! - an IP address is accepted: no name was looked up to get here;
//! - `localhost` and the names in the configuration are accepted;
//! - a request without any host is accepted: browsers always send one.

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

    /// Whether every host in the request is one of this worker's names.
    pub(super) fn own(&self, request: &Request) -> bool {
        if self.any {
            return true;
        }
        // A host that is not text matches no name.
        let named = request.headers().get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or("?"));
        // HTTP/2 has the host in the request target.
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

/// `[::1]:8083` and `host:8083` without the port. An IPv6 address loses its brackets.
fn without_port(host: &str) -> &str {
    if let Some(inner) = host.strip_prefix('[') {
        return inner.split_once(']').map_or(host, |(address, _)| address);
    }
    match host.rsplit_once(':') {
        Some((name, _)) if host.parse::<Ipv6Addr>().is_err() => name,
        _ => host,
    }
}

/// Lowercase, without the final dot of a fully qualified name.
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
    fn worker_answers_to_addresses_localhost_and_its_names() {
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
    fn every_host_in_a_request_must_be_one_of_the_worker() {
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
