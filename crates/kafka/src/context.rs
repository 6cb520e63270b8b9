//! The callbacks that all clients share: librdkafka's log lines become ours, its statistics become metrics, token requests are
//! answered, and a producer that failed fatally drops its queued records.

use std::{
    collections::HashMap,
    error,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use rdkafka::{
    ClientContext,
    admin::AdminClient,
    client::OAuthToken,
    config::RDKafkaLogLevel as Level,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext},
    error::{KafkaError, RDKafkaErrorCode as Code},
    producer::PurgeConfig,
};
use serde::Deserialize;
use tracing::{debug, error, info, warn};

use base::metrics::{self, ClientStatistics, KafkaClient};

use super::{Error, error::KafkaCause, oauth::TokenCache, sys};

/// The client of a context.
pub(super) trait ClientHandle<R>: Send + Sync {
    /// The wrapper's own handle.
    fn handle(&self) -> &rdkafka::client::Client<ClientCallbacks<R>>
    where
        ClientCallbacks<R>: ClientContext;

    /// Purges every record without a delivery report if the client has failed fatally: librdkafka itself drops queued
    /// records, but waits forever for answers to requests in flight.
    fn purge_if_fatal(&self) {}
}

impl<R> ClientHandle<R> for BaseConsumer<ClientCallbacks<R>>
where
    ClientCallbacks<R>: ConsumerContext,
{
    fn handle(&self) -> &rdkafka::client::Client<ClientCallbacks<R>> {
        self.client()
    }
}

impl ClientHandle<()> for AdminClient<ClientCallbacks> {
    fn handle(&self) -> &rdkafka::client::Client<ClientCallbacks> {
        self.inner()
    }
}

/// Purges queued records and those in flight.
pub(super) fn purge_everything() -> PurgeConfig {
    PurgeConfig::default().queue().inflight().non_blocking()
}

/// The client of a context, set once it has been created; weak, since the client owns the context.
pub(super) type ClientLink<R> = Arc<OnceLock<Weak<dyn ClientHandle<R>>>>;

/// Our answer to librdkafka while no token has arrived yet; it is not a connection failure.
const TOKEN_PENDING: &str = "the token is being fetched";

/// Facility of librdkafka's log lines about connections that failed or closed.
const DISCONNECT_FACILITY: &str = "FAIL";
/// Part of these lines if the connection had been established.
const WAS_UP: &str = " in state UP";

/// The callbacks of one client. `own` is the state of those that only its kind has: delivery reports or rebalances.
pub(super) struct ClientCallbacks<R = ()> {
    client: KafkaClient,
    /// The addresses of `bootstrap.servers`.
    bootstrap: String,
    link: ClientLink<R>,
    tokens: Option<Arc<TokenCache>>,
    /// Statistics of the last window.
    totals: Mutex<ClientStatistics>,
    trouble: Mutex<Option<(Code, String)>>,
    disconnects: Arc<AtomicU64>,
    pub(super) own: R,
}

impl<R> ClientCallbacks<R> {
    pub(super) fn new(
        client: KafkaClient,
        bootstrap: String,
        tokens: Option<Arc<TokenCache>>,
        link: ClientLink<R>,
        own: R,
    ) -> Self {
        let (totals, trouble, disconnects) = (Mutex::default(), Mutex::default(), Arc::default());
        Self { client, bootstrap, link, tokens, totals, trouble, disconnects, own }
    }

    /// The addresses of `bootstrap.servers`.
    #[cfg(test)]
    pub(super) fn bootstrap(&self) -> &str {
        &self.bootstrap
    }

    /// How often an established connection was lost, or all brokers were down.
    pub(super) fn disconnects(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.disconnects)
    }

    /// Fetches a token if the client needs one and no fetch is running. Blocks.
    pub(super) fn first_token(&self) -> Option<Result<OAuthToken, Error>> {
        self.tokens.as_ref()?.next()
    }

    /// Uses the client on a separate thread: callbacks run on a thread of the client, which must not block.
    fn on_own_thread(&self, work: impl FnOnce(&dyn ClientHandle<R>) + Send + 'static)
    where
        R: 'static,
    {
        let link = Arc::clone(&self.link);
        let spawned = thread::Builder::new().name("kafka-aside".into()).spawn(move || {
            if let Some(client) = link.wait().upgrade() {
                work(&*client);
            }
        });
        if let Err(error) = spawned {
            warn!(client = self.client.label(), %error, "cannot start a thread for work of a Kafka client");
        }
    }

    /// The error of a failed request. A timeout gets the last connection error as its reason: otherwise a wrong password
    /// looks like a silent broker.
    pub(super) fn failed(&self, action: impl Into<String>, error: KafkaError) -> Error {
        let action = action.into();
        let silent = matches!(
            KafkaCause::from(error.clone()).code(),
            Some(Code::OperationTimedOut | Code::BrokerTransportFailure | Code::AllBrokersDown)
        );
        match &*self.trouble.lock() {
            Some((code, reason)) if silent => {
                Error::request(format!("{action} ({reason})"), KafkaError::Global(*code))
            }
            _ => Error::request(action, error),
        }
    }
}

impl<R> Drop for ClientCallbacks<R> {
    /// A closing client subtracts its part of the gauges.
    fn drop(&mut self) {
        let totals = self.totals.get_mut();
        let gone = ClientStatistics {
            queued_messages: -totals.queued_messages,
            queued_bytes: -totals.queued_bytes,
            brokers_up: -totals.brokers_up,
            ..ClientStatistics::default()
        };
        if gone != ClientStatistics::default() {
            metrics::client_statistics(self.client, &gone);
        }
    }
}

impl<R: Send + Sync + 'static> ClientContext for ClientCallbacks<R> {
    const ENABLE_REFRESH_OAUTH_TOKEN: bool = true;

    fn log(&self, level: Level, facility: &str, message: &str) {
        let client = self.client.label();
        // Connections that were never up do not count.
        if facility == DISCONNECT_FACILITY && message.contains(WAS_UP) {
            self.disconnects.fetch_add(1, Ordering::AcqRel);
        }
        match level {
            // Fencing of a shard's producer is normal; the failed call reports it.
            Level::Emerg | Level::Alert | Level::Critical if self.client != KafkaClient::Transactional => {
                error!(client, facility, "{message}");
            }
            // librdkafka recovers by itself from what it logs as an error (a refused connection): no action is needed.
            Level::Emerg | Level::Alert | Level::Critical | Level::Error | Level::Warning => {
                warn!(client, facility, "{message}");
            }
            Level::Notice | Level::Info => info!(client, facility, "{message}"),
            Level::Debug => debug!(client, facility, "{message}"),
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The log callback reports the same; calls on the client return the fatal ones.
        debug!(client = self.client.label(), %error, reason, "client error");
        let code = error.rdkafka_error_code();
        // The log does not mention brokers that were removed from the list.
        if code == Some(Code::AllBrokersDown) {
            self.disconnects.fetch_add(1, Ordering::AcqRel);
        }
        // A fatal error arrives with the code of its cause, so every code is checked except frequent connection errors.
        if !matches!(code, None | Some(Code::AllBrokersDown | Code::BrokerTransportFailure | Code::Resolve)) {
            self.on_own_thread(|client| client.purge_if_fatal());
        }
        match code {
            // Gives no reason.
            None | Some(Code::AllBrokersDown) => {}
            Some(Code::Authentication) if reason.contains(TOKEN_PENDING) => {}
            Some(code) => {
                *self.trouble.lock() = Some((code, reason.to_owned()));
            }
        }
    }

    fn stats_raw(&self, json: &[u8]) {
        match serde_json::from_slice::<ClientStats>(json) {
            Ok(statistics) => {
                if statistics.has_no_brokers() {
                    // A stopping broker may answer with an empty broker list. librdkafka then drops every broker, the bootstrap
                    // servers included, and never sends another request.
                    warn!(
                        client = self.client.label(),
                        "the client has no broker left; adding the bootstrap servers again"
                    );
                    let bootstrap = self.bootstrap.clone();
                    self.on_own_thread(move |client| sys::add_brokers(client.handle(), &bootstrap));
                }
                let mut totals = self.totals.lock();
                metrics::client_statistics(self.client, &statistics.window(&mut totals));
            }
            Err(error) => {
                debug!(client = self.client.label(), %error, "cannot parse librdkafka's statistics")
            }
        }
    }

    fn generate_oauth_token(&self, _config: Option<&str>) -> Result<OAuthToken, Box<dyn error::Error>> {
        let Some(tokens) = &self.tokens else {
            return Err("sasl.oauthbearer.token.endpoint.url is not set".into());
        };
        let (fetcher, label) = (Arc::clone(tokens), self.client.label());
        self.on_own_thread(move |client| {
            let Some(token) = fetcher.next() else { return };
            if let Err(error) = &token {
                warn!(client = label, %error, "cannot get a token for Kafka; librdkafka asks again");
            }
            sys::answer(client.handle(), token);
        });
        tokens.current().ok_or_else(|| TOKEN_PENDING.into())
    }
}

impl ConsumerContext for ClientCallbacks {}

/// The part of librdkafka's statistics that we export.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ClientStats {
    msg_cnt: i64,
    msg_size: i64,
    tx_bytes: u64,
    rx_bytes: u64,
    brokers: Option<HashMap<String, BrokerStats>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BrokerStats {
    nodeid: i64,
    state: String,
    /// `configured`, `learned`, or an internal or logical entry that is no broker.
    source: String,
    txerrs: u64,
    rxerrs: u64,
    req_timeouts: u64,
    rtt: Option<RoundTripStats>,
}

#[derive(Deserialize)]
struct RoundTripStats {
    /// Microseconds.
    avg: u64,
}

impl ClientStats {
    /// Whether no broker is left that could be asked for metadata.
    fn has_no_brokers(&self) -> bool {
        let is_real = |broker: &BrokerStats| matches!(&*broker.source, "configured" | "learned");
        self.brokers.as_ref().is_some_and(|brokers| !brokers.values().any(is_real))
    }

    /// Change since the last call; that of gauges may be negative. `last` holds the previous values.
    fn window(&self, last: &mut ClientStatistics) -> ClientStatistics {
        let brokers = || self.brokers.iter().flat_map(HashMap::values);
        let round_trips = brokers().filter_map(|broker| Some(broker.rtt.as_ref()?.avg));
        let now = ClientStatistics {
            queued_messages: self.msg_cnt,
            queued_bytes: self.msg_size,
            sent_bytes: self.tx_bytes,
            received_bytes: self.rx_bytes,
            request_errors: brokers().map(|broker| broker.txerrs + broker.rxerrs + broker.req_timeouts).sum(),
            // Bootstrap and coordinator connections have no node id and would count a broker twice.
            brokers_up: brokers().map(|broker| i64::from(broker.nodeid >= 0 && broker.state == "UP")).sum(),
            round_trip: Duration::from_micros(round_trips.max().unwrap_or(0)),
        };
        let before = std::mem::replace(last, now);
        ClientStatistics {
            queued_messages: now.queued_messages - before.queued_messages,
            queued_bytes: now.queued_bytes - before.queued_bytes,
            sent_bytes: now.sent_bytes.saturating_sub(before.sent_bytes),
            received_bytes: now.received_bytes.saturating_sub(before.received_bytes),
            // The errors of a removed broker are no longer in the sum, so it may fall.
            request_errors: now.request_errors.saturating_sub(before.request_errors),
            brokers_up: now.brokers_up - before.brokers_up,
            round_trip: now.round_trip,
        }
    }
}

#[cfg(test)]
mod tests {
    use base::retry::Retry;

    use super::*;

    fn statistics(sent: u64, errors: u64) -> ClientStats {
        let json = format!(
            r#"{{"name":"x","msg_cnt":3,"msg_size":300,"tx_bytes":{sent},"rx_bytes":20,"brokers":{{
                "a:9092/1":{{"nodeid":1,"state":"UP","txerrs":{errors},"rxerrs":1,"req_timeouts":2,"rtt":{{"avg":900}}}},
                "b:9092/2":{{"nodeid":2,"state":"CONNECT","txerrs":0,"rxerrs":0,"req_timeouts":0,"rtt":{{"avg":1500}}}},
                "a:9092/bootstrap":{{"nodeid":-1,"state":"UP"}}}}}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    #[test]
    fn window_reports_the_change_since_the_last() {
        let mut totals = ClientStatistics::default();
        let first = statistics(100, 5).window(&mut totals);
        assert_eq!((first.queued_messages, first.queued_bytes, first.brokers_up), (3, 300, 1));

        let window = statistics(130, 6).window(&mut totals);

        let expected = ClientStatistics {
            queued_messages: 0,
            queued_bytes: 0,
            sent_bytes: 30,
            received_bytes: 0,
            request_errors: 1,
            brokers_up: 0,
            round_trip: Duration::from_micros(1500),
        };
        assert_eq!(window, expected);
        let fallen = statistics(130, 0).window(&mut totals);
        assert_eq!(fallen.request_errors, 0, "a sum that falls is no growth");
    }

    #[test]
    fn timeout_names_the_last_connection_error() {
        let context =
            ClientCallbacks::new(KafkaClient::Admin, String::new(), None, ClientLink::default(), ());
        let silence = || KafkaError::MetadataFetch(Code::OperationTimedOut);
        assert_eq!(context.failed("list topics", silence()).retry(), Retry::Later);

        context.error(KafkaError::Global(Code::Authentication), "wrong password");
        context.error(KafkaError::Global(Code::AllBrokersDown), "1/1 brokers are down");

        let error = context.failed("list topics", silence());
        assert_eq!(error.to_string(), "list topics (wrong password)");
        assert_eq!(error.retry(), Retry::Never);
        let answered = context.failed("list topics", KafkaError::MetadataFetch(Code::NotController));
        assert_eq!(answered.to_string(), "list topics", "an answer is its own reason");
    }

    #[test]
    fn client_without_a_real_broker_has_no_brokers() {
        let known = |sources: &[&str]| {
            let brokers =
                sources.iter().map(|source| format!(r#""{source}":{{"nodeid":-1,"source":"{source}"}}"#));
            let json = format!(r#"{{"brokers":{{{}}}}}"#, brokers.collect::<Vec<_>>().join(","));
            !serde_json::from_str::<ClientStats>(&json).unwrap().has_no_brokers()
        };
        assert!(known(&["configured", "logical"]) && known(&["learned"]));
        assert!(!known(&["logical"]) && !known(&[]));
        let silent: ClientStats = serde_json::from_str("{}").unwrap();
        assert!(!silent.has_no_brokers(), "statistics without a broker list prove nothing");
    }
}
