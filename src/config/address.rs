//! Addresses in configuration: listeners, hosts, networks, URLs.

use std::net::IpAddr;

use ipnet::IpNet;
use url::Url;

use provider::is_host_pattern;

use super::key::{Rule, Violation};

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listener {
    /// Whether it speaks TLS.
    pub tls: bool,
    /// Name or address to bind; `0.0.0.0` when none was given, as in Kafka Connect.
    pub host: String,
    /// Port; 0 lets the system choose.
    pub port: u16,
}

impl Listener {
    /// Its address for clients on the same machine; `None` if the system chooses the port.
    #[must_use]
    pub fn local_url(&self) -> Option<Url> {
        // A listener on all interfaces also listens on loopback.
        let host = match self.host.as_str() {
            "0.0.0.0" => "127.0.0.1",
            "::" | "[::]" => "[::1]",
            host => host,
        };
        (self.port != 0).then(|| url(self.tls, host, self.port)).flatten()
    }

    /// Whether only this machine can reach it.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        is_loopback(&self.host)
    }
}

/// The URL of a host; an IPv6 address may lack its brackets.
pub(crate) fn url(tls: bool, host: &str, port: u16) -> Option<Url> {
    let scheme = if tls { "https" } else { "http" };
    let is_bare = host.parse::<std::net::Ipv6Addr>().is_ok();
    let host = if is_bare { format!("[{host}]") } else { host.to_owned() };
    Url::parse(&format!("{scheme}://{host}:{port}")).ok()
}

/// Whether a host is this machine. Names are not resolved; only `localhost` counts.
pub(crate) fn is_loopback(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host.eq_ignore_ascii_case("localhost"),
    }
}

pub(crate) const LISTENER: Rule =
    Rule::custom("http://host:port or https://host:port", |text| listener(text).map(drop))
        .remedy("write for example http://127.0.0.1:8083");

pub(crate) const HOST_PORT: Rule = Rule::custom("host:port", |text| host_port(text).map(drop))
    .remedy("write for example kafka-1:9092,kafka-2:9092");

pub(crate) const ALLOWED_HOST: Rule = Rule::custom("a host, host:port or *.suffix", |text| {
    if is_host_pattern(text) { Ok(()) } else { Err("it is none of them".into()) }
})
.remedy(
    "write for example api.example.com,login.example.com:8443,*.example.org; an IPv6 address goes in \
     brackets",
);

pub(crate) const NETWORK: Rule =
    Rule::custom("an IP address or a network in CIDR notation", |text| network(text).map(drop))
        .remedy("write for example 10.0.0.0/8");

pub(crate) const HTTP_URL: Rule =
    Rule::custom("an http:// or https:// address", |text| http_url(text).map(drop))
        .remedy("write for example https://api.example.com");

pub(crate) fn listener(text: &str) -> Result<Listener, Violation> {
    let (scheme, rest) = text.split_once("://").ok_or("it has no scheme")?;
    let tls = match scheme.to_ascii_lowercase().as_str() {
        "http" => false,
        "https" => true,
        _ => return Err("its scheme is neither http nor https".into()),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    match rest.strip_prefix(':') {
        // Kafka Connect writes http://:8083 for every interface.
        Some(port) => Ok(Listener { tls, host: "0.0.0.0".to_owned(), port: self::port(port)? }),
        None => host_port(rest).map(|(host, port)| Listener { tls, host, port }),
    }
}

pub(crate) fn host_port(text: &str) -> Result<(String, u16), Violation> {
    let (host, port) = text.rsplit_once(':').ok_or("it has no port")?;
    let bare = host.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
    let sound = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !host.is_empty()
                && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
        }
    };
    if !sound {
        return Err("its host is invalid".into());
    }
    Ok((bare.unwrap_or(host).to_owned(), self::port(port)?))
}

pub(crate) fn network(text: &str) -> Result<IpNet, Violation> {
    let single = text.parse::<IpAddr>().map(IpNet::from);
    single.or_else(|_| text.parse::<IpNet>()).map_err(|_| "it is neither".into())
}

pub(crate) fn http_url(text: &str) -> Result<Url, Violation> {
    let url = Url::parse(text).map_err(|_| "it is not an address")?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("its scheme is neither http nor https".into());
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err("it has a query or a fragment".into());
    }
    Ok(url)
}

fn port(text: &str) -> Result<u16, Violation> {
    text.parse().map_err(|_| "its port is not a number from 0 to 65535".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_are_read_as_connect_writes_them() {
        let table = [
            ("http://127.0.0.1:8083", Some((false, "127.0.0.1", 8083))),
            ("HTTPS://host.example:443/", Some((true, "host.example", 443))),
            ("http://:8083", Some((false, "0.0.0.0", 8083))),
            ("http://[::1]:0", Some((false, "::1", 0))),
            ("http://host", None),
            ("host:8083", None),
            ("ftp://host:21", None),
            ("http://host:99999", None),
            ("http://ho st:1", None),
            ("http://[zz]:1", None),
        ];

        for (text, expected) in table {
            let expected = expected.map(|(tls, host, port)| Listener { tls, host: host.to_owned(), port });
            assert_eq!(listener(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn loopback_listeners_are_recognized() {
        let table = [
            ("http://127.0.0.1:1", true),
            ("http://127.9.9.9:1", true),
            ("http://[::1]:1", true),
            ("http://LocalHost:1", true),
            ("http://:1", false),
            ("http://[::]:1", false),
            ("http://10.0.0.1:1", false),
            ("http://worker-1:1", false),
        ];

        for (text, expected) in table {
            assert_eq!(listener(text).unwrap().is_loopback(), expected, "{text}");
        }
    }

    #[test]
    fn networks_and_single_addresses_are_both_networks() {
        assert!(network("10.0.0.0/8").unwrap().contains(&"10.1.2.3".parse::<IpAddr>().unwrap()));
        assert_eq!(network("2001:db8::1").unwrap().prefix_len(), 128);
        assert!(network("10.0.0.0/40").is_err());
        assert!(network("example.com").is_err());
    }

    #[test]
    fn an_address_of_a_service_may_have_a_path_but_no_query() {
        assert_eq!(http_url("https://registry/apis/ccompat/v7").unwrap().path(), "/apis/ccompat/v7");
        assert!(http_url("https://host/?a=b").is_err());
        assert!(http_url("ftp://host").is_err());
        assert!(http_url("registry:8081").is_err());
    }
}
