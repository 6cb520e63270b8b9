//! Deliveries of both webhook families.

use std::{collections::BTreeMap, net::SocketAddr};

use url::Url;

use super::Latency;

knobs! {
    /// Deliveries of both webhook families.
    pub struct DeliveryKnobs {
        /// Time limit of a receiver's answer, milliseconds.
        pub time_limit: u64 = 5_000,
        /// Which answers count as accepted; an Acknowledge always needs 200.
        pub accepts: Accepts = Accepts::Only200,
        /// Which receiver addresses may be subscribed.
        pub receivers: ReceiverUrls = ReceiverUrls::Https443,
        /// Addresses of hosts instead of DNS: `host` → `address:port`.
        pub resolve: BTreeMap<String, SocketAddr> = BTreeMap::new(),
        /// Accepts any certificate of a receiver.
        pub trust_any: bool = false,
        /// Share of events sent twice.
        pub duplicate: f64 = 0.0,
        /// Share of events held back until up to four later ones of the same webhook and company have been sent, at most 2 s. Only
        /// one is held at a time, so 1.0 swaps neighbors.
        pub reorder: f64 = 0.0,
        /// Share of events never sent.
        pub lose: f64 = 0.0,
        /// Delay of each event before its first attempt.
        pub delay: Latency = Latency::None,
        /// Sends nothing until it is off again. An operation whose Acknowledge precedes its answer waits, too.
        pub hold: bool = false,
    }
}

choices! { "camelCase";
    /// Which answers of a receiver count as accepted; the document says both.
    pub enum Accepts {
        /// 200 alone.
        Only200,
        /// Any 2xx.
        Any2xx,
    }

    /// Which receiver addresses may be subscribed.
    pub enum ReceiverUrls {
        /// HTTPS on port 443, as documented.
        Https443,
        /// HTTPS on any port.
        Https,
        /// HTTP too.
        Any,
    }
}

impl ReceiverUrls {
    /// Checks that an address may be subscribed; the error says what is required.
    pub(crate) fn check(self, url: &Url) -> Result<(), &'static str> {
        let https = url.scheme() == "https";
        match self {
            Self::Https443 if !https || url.port_or_known_default() != Some(443) => {
                Err("must be an HTTPS address on port 443")
            }
            Self::Https if !https => Err("must be an HTTPS address"),
            Self::Any if !https && url.scheme() != "http" => Err("must be an HTTP or HTTPS address"),
            Self::Https443 | Self::Https | Self::Any => Ok(()),
        }
    }
}
