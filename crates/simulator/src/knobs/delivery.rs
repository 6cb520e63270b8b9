//! How deliveries of both families travel, and what goes wrong on the way.

use std::{collections::BTreeMap, net::SocketAddr};

use super::Latency;

knobs! {
    /// How deliveries travel.
    pub struct DeliveryKnobs {
        /// The longest a receiver may take, milliseconds.
        pub time_limit: u64 = 5_000,
        /// Which answers count as accepted; an Acknowledge always needs 200.
        pub accepts: Accepts = Accepts::Only200,
        /// Which receiver addresses may be subscribed.
        pub receivers: ReceiverUrls = ReceiverUrls::Https443,
        /// Hosts and where they really are, `host` → `address:port`, instead of asking DNS.
        pub resolve: BTreeMap<String, SocketAddr> = BTreeMap::new(),
        /// Does not check receivers' certificates.
        pub trust_any: bool = false,
        /// Share sent twice.
        pub duplicate: f64 = 0.0,
        /// Share held back until up to four later ones of the same webhook and company have gone, at most 2 s. One at a time is,
        /// so that 1.0 lets every second one wait for its next.
        pub reorder: f64 = 0.0,
        /// Share never sent.
        pub lose: f64 = 0.0,
        /// What each waits before its first attempt.
        pub delay: Latency = Latency::None,
        /// Sends nothing until off again; what is due waits, and so does the answer of an operation whose Acknowledge goes before
        /// it.
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
