//! What every request to the provider shares, whichever area it is for: how clients are built, how much of an answer is
//! read, and what time it is over there.
//!
//! - No client follows a redirect or keeps a cookie: a token never goes to an address that nobody configured.
//! - No client connects to an address that `provider.hosts.allowed` does not admit, whatever DNS answers (`GuardedDns`).
//! - No answer is read beyond its limit, counted after decompression.
//! - Whether a token is still good is a question to the provider's clock ([`ProviderClock`]), never to this machine's.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use parking_lot::RwLock;
use reqwest::{
    Response,
    dns::{Addrs, Name, Resolve, Resolving},
    header::{AGE, DATE, HeaderMap, HeaderName, RETRY_AFTER},
};

use base::{boot_clock, metrics};
use model::Moment;

use crate::{HostPolicy, Transport};

/// A file of certificates above this is none.
const MAX_PEM_BYTES: u64 = 1024 * 1024;
/// A longer wait than this is taken as this: a provider that is back must be noticed.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);
/// What is set aside for a body before it comes.
const FIRST_BYTES: usize = 64 * 1024;

/// Why no client can be made.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Setup {
    /// What was attempted, with the setting behind it.
    pub(crate) what: String,
    /// Why it did not work.
    #[source]
    pub(crate) source: Box<dyn std::error::Error + Send + Sync>,
}

/// Why an answer was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// It is longer than anybody wants.
    #[error("the answer is longer than {limit} bytes")]
    TooLarge {
        /// The limit.
        limit: usize,
    },
    /// The connection broke, or was silent for too long.
    #[error("read the answer")]
    Broken(#[source] reqwest::Error),
}

/// A client that goes where it is sent and nowhere else, with the settings' connect, read and request time-outs and
/// certificates. Reads a file if a setting names one.
///
/// # Errors
/// The file of certificates cannot be used.
pub fn builder(transport: &Transport) -> Result<reqwest::ClientBuilder, Setup> {
    let builder = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .connect_timeout(transport.connect)
        .read_timeout(transport.read)
        .timeout(transport.request)
        .user_agent(concat!("tributary/", env!("CARGO_PKG_VERSION")))
        .tls_backend_rustls()
        .tls_version_min(reqwest::tls::Version::TLS_1_2)
        .dns_resolver(GuardedDns(transport.hosts.clone()));
    match &transport.authorities {
        None => Ok(builder),
        Some(path) => Ok(builder.tls_certs_only(authorities(path)?)),
    }
}

/// The client of a builder.
///
/// # Errors
/// TLS cannot be set up.
pub fn build(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, Setup> {
    builder
        .build()
        .map_err(|error| Setup { what: "set up TLS to the provider".into(), source: Box::new(error) })
}

/// The system's DNS, without the addresses that the worker's policy does not admit. Every new connection asks it, so a name that has
/// changed its address is checked again. The client does not ask it for an IP address in a URL: the code that builds a client checks
/// its URLs with [`HostPolicy::check`].
#[derive(Debug, Clone)]
struct GuardedDns(HostPolicy);

/// A name whose addresses are all refused.
#[derive(Debug, thiserror::Error)]
#[error(
    "the host resolves to no address that provider.hosts.allowed in the worker's configuration admits: private, loopback and \
     link-local addresses need the host to be listed there in full"
)]
struct NotAdmitted;

impl Resolve for GuardedDns {
    fn resolve(&self, name: Name) -> Resolving {
        let Self(hosts) = self.clone();
        Box::pin(async move {
            let name = name.as_str();
            let found = tokio::net::lookup_host((name, 0)).await?;
            let admitted: Vec<_> = found.filter(|address| hosts.admits(name, address.ip())).collect();
            if admitted.is_empty() {
                return Err(NotAdmitted.into());
            }
            Ok(Box::new(admitted.into_iter()) as Addrs)
        })
    }
}

/// The body of an answer, up to a limit.
///
/// # Errors
/// It is longer, or did not come whole.
pub(crate) async fn read_bounded(mut response: Response, limit: usize) -> Result<Bytes, ReadError> {
    let told = response.content_length().and_then(|length| usize::try_from(length).ok());
    if told.is_some_and(|length| length > limit) {
        return Err(ReadError::TooLarge { limit });
    }
    let mut body = BytesMut::with_capacity(told.unwrap_or_default().min(FIRST_BYTES));
    while let Some(chunk) = response.chunk().await.map_err(|error| ReadError::Broken(error.without_url()))? {
        if body.len() + chunk.len() > limit {
            return Err(ReadError::TooLarge { limit });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// The wait that an answer names, in seconds or as a date by the provider's clock; an hour at most.
pub(crate) fn retry_after(headers: &HeaderMap, clock: &ProviderClock) -> Option<Duration> {
    let value = text(headers, &RETRY_AFTER)?;
    let wait = match value.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let left = parse_date(value)?.saturating_sub(clock.now_ms());
            Duration::from_millis(u64::try_from(left).unwrap_or_default())
        }
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

/// The provider's time, as the `Date` of its answers tells it. Clones share what they know.
///
/// Before the first answer it is this machine's. From then on it goes on by itself, whatever happens to this machine's.
#[derive(Debug, Clone)]
pub struct ProviderClock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// What was told last, in milliseconds since 1970, and when that was, by [`boot_clock`].
    told_ms: RwLock<Option<(i64, Duration)>>,
    /// Milliseconds that the two may differ before somebody should know.
    tolerance: Duration,
    warned: AtomicBool,
}

impl ProviderClock {
    /// A clock that says so once when the two are further apart than `tolerance`.
    pub fn new(tolerance: Duration) -> Self {
        Self(Arc::new(Shared { told_ms: RwLock::default(), tolerance, warned: AtomicBool::new(false) }))
    }

    /// Learns from the headers of an answer that has just come.
    pub fn observe(&self, headers: &HeaderMap) {
        let Some(date) = text(headers, &DATE).and_then(parse_date) else { return };
        // An answer out of somebody's cache tells when it was made, and for how long it has lain there.
        let age: i64 = text(headers, &AGE).and_then(|age| age.parse::<u32>().ok()).unwrap_or_default().into();
        // Whole seconds are told, rounded down.
        let told = date.saturating_add(age * 1_000).saturating_add(500);
        *self.0.told_ms.write() = Some((told, boot_clock::now()));
        self.compare(told.saturating_sub(local_ms()));
    }

    /// Milliseconds since 1970, over there.
    pub fn now_ms(&self) -> i64 {
        match *self.0.told_ms.read() {
            None => local_ms(),
            Some((told_ms, at)) => told_ms.saturating_add(milliseconds(boot_clock::now().saturating_sub(at))),
        }
    }

    /// How long ago the provider has told the time; `None` if it never has.
    pub fn told_since(&self) -> Option<Duration> {
        self.0.told_ms.read().map(|(_, at)| boot_clock::now().saturating_sub(at))
    }

    /// How far the two clocks may differ, which is also how exactly times in tokens are taken.
    pub fn tolerance(&self) -> Duration {
        self.0.tolerance
    }

    /// Tells how far the two clocks are apart, and people when that is too far.
    fn compare(&self, ahead_ms: i64) {
        let seconds = ahead_ms as f64 / 1_000.0;
        metrics::clock_difference(seconds);
        let apart = Duration::from_millis(ahead_ms.unsigned_abs()) > self.0.tolerance;
        if apart && !self.0.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(seconds, "this machine's clock and the provider's differ");
        } else if !apart {
            // The next time is news again.
            self.0.warned.store(false, Ordering::Relaxed);
        }
    }
}

/// Reads `Sun, 06 Nov 1994 08:49:37 GMT`, the one form that servers may send, as milliseconds since 1970.
pub(crate) fn parse_date(text: &str) -> Option<i64> {
    Moment::parse_http(text).map(|moment| moment.micros() / 1_000)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn local_ms() -> i64 {
    Moment::now().micros() / 1_000
}

/// Whole milliseconds, at most the largest that fit.
pub(crate) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn authorities(path: &Path) -> Result<Vec<reqwest::Certificate>, Setup> {
    let wrong = |source: Box<dyn std::error::Error + Send + Sync>| Setup {
        what: format!("read the certificates of provider.ssl.ca.location {}", path.display()),
        source,
    };
    let size = fs::metadata(path).map_err(|error| wrong(error.into()))?.len();
    if size > MAX_PEM_BYTES {
        return Err(wrong(format!("it is larger than {MAX_PEM_BYTES} bytes").into()));
    }
    let pem = fs::read(path).map_err(|error| wrong(error.into()))?;
    let found = reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| wrong(error.into()))?;
    if found.is_empty() { Err(wrong("it holds none".into())) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: i64 = 86_400_000;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    fn transport(authorities: Option<&Path>) -> Transport {
        Transport {
            connect: Duration::from_secs(5),
            read: Duration::from_secs(5),
            request: Duration::from_secs(5),
            response_limit: 1 << 20,
            authorities: authorities.map(Path::to_owned),
            hosts: HostPolicy::default(),
        }
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_this_machine_is_not_reached() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://localhost:{}/", listener.local_addr().unwrap().port());
        for (listed, connects) in
            [(&[][..], false), (&["other.example"][..], false), (&["localhost"][..], true)]
        {
            let transport = Transport { hosts: HostPolicy::listing(listed), ..transport(None) };
            let client = build(builder(&transport).unwrap().no_proxy()).unwrap();

            let connected = tokio::select! {
                accepted = listener.accept() => accepted.is_ok(),
                sent = client.get(&address).send() => {
                    let told = base::retry::ErrorChain(&sent.unwrap_err()).to_string();
                    assert!(told.contains("provider.hosts.allowed"), "{told}");
                    false
                }
            };

            assert_eq!(connected, connects, "{listed:?}");
        }
    }

    /// An answer whose body comes in these pieces, of a length that nobody tells.
    fn pieces(pieces: &[&'static str]) -> Response {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok::<_, std::io::Error>(*piece)).collect();
        let body = reqwest::Body::wrap_stream(futures::stream::iter(pieces));
        Response::from(http::Response::new(body))
    }

    #[test]
    fn a_date_is_read_in_the_one_form_that_servers_send() {
        for (text, expected) in [
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(784_111_777_000)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Sat, 31 Dec 2016 23:59:60 GMT", Some(1_483_228_799_000)),
            ("Thu, 29 Feb 2024 12:00:00 GMT", Some(1_709_208_000_000)),
            ("Wed, 29 Feb 2023 12:00:00 GMT", None),
            ("Sunday, 06-Nov-94 08:49:37 GMT", None),
            ("Sun Nov  6 08:49:37 1994", None),
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("Sun, 06 Nov 1994 08:49:37 GMT x", None),
            ("Sun, 06 Hop 1994 08:49:37 GMT", None),
            ("Sun, +6 Nov 1994 08:49:37 GMT", None),
            ("", None),
        ] {
            assert_eq!(parse_date(text), expected, "{text}");
        }
    }

    #[test]
    fn the_clock_follows_the_dates_of_answers_and_their_age() {
        let clock = ProviderClock::new(Duration::from_secs(300));
        let other = clock.clone();
        let far = |clock: &ProviderClock, expected: i64| (clock.now_ms() - expected).abs() < 30_000;
        assert!(far(&clock, local_ms()));
        assert_eq!(clock.told_since(), None);

        clock.observe(&headers(&[(DATE, "Sun, 06 Nov 1994 08:49:37 GMT")]));
        assert!(far(&other, 784_111_777_000), "{}", other.now_ms());
        clock.observe(&headers(&[(DATE, "Sun, 06 Nov 1994 08:49:37 GMT"), (AGE, "86400")]));
        assert!(far(&clock, 784_111_777_000 + DAY_MS), "{}", clock.now_ms());
        // Neither nonsense nor silence is news.
        clock.observe(&headers(&[(DATE, "yesterday")]));
        clock.observe(&HeaderMap::new());
        assert!(clock.told_since().is_some_and(|since| since < Duration::from_secs(30)));
        assert!(far(&clock, 784_111_777_000 + DAY_MS), "{}", clock.now_ms());
    }

    #[test]
    fn a_named_wait_is_seconds_or_a_date_by_the_providers_clock_and_an_hour_at_most() {
        let clock = ProviderClock::new(Duration::from_secs(300));
        clock.observe(&headers(&[(DATE, "Sun, 06 Nov 1994 08:49:37 GMT")]));
        let named = |value: &str| retry_after(&headers(&[(RETRY_AFTER, value)]), &clock);

        assert_eq!(named("7"), Some(Duration::from_secs(7)));
        assert_eq!(named("86400"), Some(MAX_RETRY_AFTER));
        assert_eq!(named("soon"), None);
        assert_eq!(named("-1"), None);
        let left = named("Sun, 06 Nov 1994 08:59:37 GMT").unwrap();
        assert!((Duration::from_secs(560)..=Duration::from_secs(600)).contains(&left), "{left:?}");
        assert_eq!(named("Sat, 05 Nov 1994 08:49:37 GMT"), Some(Duration::ZERO));
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_its_limit_and_not_beyond() {
        assert_eq!(read_bounded(pieces(&["abc", "def"]), 6).await.unwrap(), "abcdef");
        let told = Response::from(http::Response::new("abcdef"));
        for long in [pieces(&["abc", "defg"]), told] {
            let limit = 5;
            assert!(matches!(read_bounded(long, limit).await, Err(ReadError::TooLarge { limit: 5 })));
        }
    }

    #[test]
    fn a_file_that_holds_no_certificate_is_told_with_its_setting() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("ca.pem");
        assert!(builder(&transport(None)).is_ok());

        for content in [None, Some(""), Some("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")] {
            if let Some(content) = content {
                fs::write(&path, content).unwrap();
            }
            let error = builder(&transport(Some(&path))).unwrap_err();
            assert!(error.what.contains("provider.ssl.ca.location"), "{error}");
        }
    }
}
