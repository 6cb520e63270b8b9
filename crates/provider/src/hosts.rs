//! `provider.hosts.allowed`: the hosts that a connector may use for the provider, its identity service and the egress proxy.
//!
//! ```text
//! connector ─▶ URL ─▶ check: listed, or public ─▶ client ─▶ DNS ─▶ admits: every address ─▶ connect
//! ```
//!
//! - The worker's configuration sets the policy, and connectors cannot widen it. Otherwise every REST user who can create
//!   connectors could choose where keys and tokens are sent.
//! - Without a list, all public hosts are allowed; private, loopback and link-local ones are not.
//! - With a list, only listed hosts are allowed. An entry with a full host name also allows private addresses. A `*.suffix` entry
//!   allows public addresses only, because many parties may control the names below a suffix.
//! - A name is checked twice: as text, and with the addresses that DNS returns for each connection. So a name whose address
//!   changes in between (DNS rebinding) reaches no private network.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use url::{Host, Url};

/// Hosts that connectors may use. Cheap to clone; the default allows all public hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostPolicy {
    /// `None` without a list.
    allowed: Option<Arc<[Pattern]>>,
}

/// An entry of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Pattern {
    /// The host in the form of [`normal`].
    host: String,
    /// Whether it matches all hosts below this domain, but not the domain itself.
    is_suffix: bool,
    /// `None` for any port.
    port: Option<u16>,
}

/// Why a host is not allowed. Names the rule and the remedy, never the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HostRefused {
    /// The host is not on the list.
    #[error("must name a host that provider.hosts.allowed in the worker's configuration lists")]
    NotListed,
    /// There is no list, and the host is not public.
    #[error(
        "must name a public host: private, loopback and link-local ones have to be listed in provider.hosts.allowed in the \
         worker's configuration"
    )]
    NotPublic,
}

impl HostRefused {
    /// What to do about it.
    pub const REMEDY: &str =
        "write an allowed host, or have an operator add this one to provider.hosts.allowed";
}

impl HostPolicy {
    /// A policy with these entries; the default if there are none. Skips malformed entries, which the setting's rule rejects.
    pub fn listing<T: AsRef<str>>(entries: &[T]) -> Self {
        let patterns = entries.iter().filter_map(|entry| Pattern::parse(entry.as_ref()));
        Self { allowed: (!entries.is_empty()).then(|| patterns.collect()) }
    }

    /// Checks the host and port of a URL as text, without resolving the name.
    ///
    /// # Errors
    /// The host is not allowed.
    pub fn check(&self, url: &Url) -> Result<(), HostRefused> {
        let Some(allowed) = &self.allowed else {
            return if is_private(url) { Err(HostRefused::NotPublic) } else { Ok(()) };
        };
        let Some(host) = url.host() else { return Err(HostRefused::NotListed) };
        // Only names match a suffix.
        let is_name = matches!(host, Host::Domain(_));
        let (host, port) = (normal(&host), url.port_or_known_default());
        let mut listed = allowed.iter().filter(|pattern| pattern.fits(port) && pattern.names(&host));
        if listed.any(|pattern| is_name || !pattern.is_suffix) { Ok(()) } else { Err(HostRefused::NotListed) }
    }

    /// Whether a connection to this name may use this address.
    #[must_use]
    pub fn admits(&self, name: &str, address: IpAddr) -> bool {
        let Some(allowed) = &self.allowed else { return is_public(address) };
        let name = bare(name);
        let mut listed = allowed.iter().filter(|pattern| pattern.names(&name));
        listed.any(|pattern| is_public(address) || !pattern.is_suffix)
    }

    /// Whether the list has the full host of this URL.
    #[must_use]
    pub fn names(&self, url: &Url) -> bool {
        let (Some(allowed), Some(host)) = (&self.allowed, url.host()) else { return false };
        let (host, port) = (normal(&host), url.port_or_known_default());
        allowed.iter().any(|pattern| !pattern.is_suffix && pattern.fits(port) && pattern.names(&host))
    }
}

impl Pattern {
    fn parse(text: &str) -> Option<Self> {
        let (is_suffix, rest) = text.strip_prefix("*.").map_or((false, text), |rest| (true, rest));
        // The colons of an IPv6 address do not end the host, with or without brackets.
        let (host, port) = match rest.rsplit_once(':') {
            Some((host, port)) if host.ends_with(']') || !host.contains(':') => (host, Some(port)),
            _ => (rest, None),
        };
        let port = port
            .map(|port| port.parse().ok().filter(|port| *port > 0))
            .map_or(Some(None), |port| port.map(Some))?;
        let address: Option<Ipv6Addr> = host.parse().ok();
        let host = match address {
            Some(address) => Host::Ipv6(address),
            None => Host::parse(host).ok()?,
        };
        match &host {
            Host::Domain(name) if name.contains('*') || bare(name).is_empty() => None,
            Host::Ipv4(_) | Host::Ipv6(_) if is_suffix => None,
            host => Some(Self { host: normal(host), is_suffix, port }),
        }
    }

    /// Whether the entry matches this port.
    fn fits(&self, port: Option<u16>) -> bool {
        self.port.is_none() || self.port == port
    }

    /// Whether the entry matches this host, whatever its port.
    fn names(&self, host: &str) -> bool {
        match host.strip_suffix(self.host.as_str()) {
            Some(rest) if self.is_suffix => rest.len() > 1 && rest.ends_with('.'),
            rest => rest == Some(""),
        }
    }
}

/// Whether a text is a valid entry: a host, `host:port` or `*.suffix`.
pub fn is_host_pattern(text: &str) -> bool {
    Pattern::parse(text).is_some()
}

/// Whether a URL's host is local or private, as far as its text shows.
pub(crate) fn is_private(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => {
            let name = bare(name);
            name == "localhost" || name.ends_with(".localhost")
        }
        Some(Host::Ipv4(address)) => !is_public(address.into()),
        Some(Host::Ipv6(address)) => !is_public(address.into()),
        None => true,
    }
}

/// One spelling for each host.
fn normal<S: AsRef<str>>(host: &Host<S>) -> String {
    bare(&host.to_string())
}

/// The name in lower case, without a trailing dot.
fn bare(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Whether an address is public: not in any range that IANA reserves for another purpose.
fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [first, second, third, _] = address.octets();
    !(address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        // This network; broadcast and the reserved range before it.
        || first == 0
        || first >= 240
        // Carrier-grade NAT.
        || (first == 100 && (64..128).contains(&second))
        // IETF protocol assignments; benchmarks.
        || (first == 192 && second == 0 && third == 0)
        || (first == 198 && (18..20).contains(&second)))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    let embedded = |high: u16, low: u16| {
        let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        // IPv4-mapped and IPv4-compatible, including loopback and unspecified.
        [0, 0, 0, 0, 0, 0 | 0xffff, high, low] => embedded(high, low),
        // NAT64 and 6to4 embed an IPv4 address.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x2002, high, low, ..] => embedded(high, low),
        // Local NAT64, discard, Teredo and other protocols, documentation.
        [0x64, 0xff9b, 1, ..] | [0x100, 0, 0, 0, ..] | [0x2001, 0..=0x1ff, ..] | [0x2001, 0xdb8, ..] => false,
        // Global unicast is 2000::/3, which excludes unique local, link-local and multicast.
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn without_a_list_only_public_hosts_are_allowed() {
        let policy = HostPolicy::default();
        for public in [
            "https://api.example.com",
            "https://8.8.8.8",
            "https://[2600::1]:8443",
            "https://localhost.example.com",
        ] {
            assert_eq!(policy.check(&url(public)), Ok(()), "{public}");
        }
        for private in [
            "https://localhost",
            "https://LOCALHOST.:8443",
            "https://a.localhost",
            "https://127.0.0.1",
            "https://127.1",
            "https://2130706433",
            "https://0x7f.0.0.1",
            "https://0177.0.0.1",
            "https://0.0.0.0",
            "https://10.1.2.3",
            "https://172.16.0.1",
            "https://172.31.255.255",
            "https://192.168.1.1",
            "https://169.254.169.254",
            "https://100.64.0.1",
            "https://100.127.255.255",
            "https://192.0.0.8",
            "https://198.18.0.1",
            "https://224.0.0.1",
            "https://255.255.255.255",
            "https://[::]",
            "https://[::1]",
            "https://[::ffff:10.0.0.1]",
            "https://[::ffff:169.254.169.254]",
            "https://[::127.0.0.1]",
            "https://[64:ff9b::a9fe:a9fe]",
            "https://[2002:7f00:1::]",
            "https://[2001:db8::1]",
            "https://[fc00::1]",
            "https://[fd12:3456::1]",
            "https://[fe80::1]",
            "https://[fec0::1]",
            "https://[ff02::1]",
        ] {
            assert_eq!(policy.check(&url(private)), Err(HostRefused::NotPublic), "{private}");
        }
    }

    #[test]
    fn with_a_list_only_listed_hosts_are_allowed() {
        let list =
            ["api.example.com", "Login.Example.com:8443", "*.example.org", "127.0.0.1", "[::1]:9", "fd00::7"];
        let policy = HostPolicy::listing(&list);
        for allowed in [
            "https://api.example.com",
            "https://API.example.com.:444",
            "https://login.example.com:8443",
            "https://a.example.org",
            "https://a.b.example.org:1",
            "http://127.0.0.1:5000",
            "http://2130706433",
            "http://[::1]:9",
            "https://[fd00::7]",
        ] {
            assert_eq!(policy.check(&url(allowed)), Ok(()), "{allowed}");
        }
        for other in [
            "https://example.com",
            "https://evil-api.example.com",
            "https://api.example.com.evil.net",
            "https://login.example.com",
            "https://example.org",
            "https://evilexample.org",
            "http://127.0.0.2",
            "http://[::1]:10",
            "http://[::ffff:127.0.0.1]",
            "http://localhost",
            "https://8.8.8.8",
        ] {
            assert_eq!(policy.check(&url(other)), Err(HostRefused::NotListed), "{other}");
        }
    }

    #[test]
    fn addresses_of_a_name_are_checked_again() {
        let [public, private]: [IpAddr; 2] = ["93.184.215.14", "10.0.0.1"].map(|one| one.parse().unwrap());
        let open = HostPolicy::default();
        let closed = HostPolicy::listing(&["api.internal:8443", "*.example.org"]);

        assert!(open.admits("api.example.com", public) && !open.admits("api.example.com", private));
        assert!(closed.admits("api.internal", private) && closed.admits("API.internal.", public));
        assert!(closed.admits("a.example.org", public) && !closed.admits("a.example.org", private));
        assert!(!closed.admits("api.example.com", public));
    }

    #[test]
    fn only_full_host_entries_name_a_host() {
        let policy = HostPolicy::listing(&["api.example.com", "*.example.org"]);

        assert!(policy.names(&url("https://api.example.com")));
        assert!(!policy.names(&url("https://a.example.org")));
        assert!(!HostPolicy::default().names(&url("https://api.example.com")));
    }

    #[test]
    fn an_entry_is_a_host_with_or_without_port_or_a_suffix() {
        for (text, sound) in [
            ("api.example.com", true),
            ("api.example.com:443", true),
            ("*.example.com:443", true),
            ("localhost", true),
            ("10.0.0.1:1", true),
            ("[::1]", true),
            ("::1", true),
            ("*", false),
            ("*.", false),
            ("a.*.com", false),
            ("*.10.0.0.1", false),
            ("https://api.example.com", false),
            ("api.example.com/path", false),
            ("user@api.example.com", false),
            ("api.example.com:0", false),
            ("api.example.com:port", false),
            ("api.example.com:", false),
            ("a b", false),
            ("", false),
        ] {
            assert_eq!(Pattern::parse(text).is_some(), sound, "{text}");
        }
    }
}
