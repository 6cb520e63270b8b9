//! HTTP shared by all requests to the provider: building clients, reading bodies, and the provider's clock.
//!
//! - Clients follow no redirects and keep no cookies, so a token only goes to configured addresses.
//! - Clients connect only to addresses that `provider.hosts.allowed` admits, whatever DNS answers (`GuardedDns`).
//! - Bodies are read up to a limit, counted after decompression.
//! - Whether a token is valid depends on the provider's clock ([`ProviderClock`]), never on this machine's.

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

/// Size limit of a file of certificates.
const MAX_PEM_BYTES: u64 = 1024 * 1024;
/// Upper bound of a named wait, so that a recovered provider is noticed.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3_600);
/// Upper bound of the memory that is allocated before a body arrives.
const MAX_PREALLOCATED_BYTES: usize = 64 * 1024;

/// Any error.
type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The client cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct ClientSetupError {
    /// What was attempted, with the setting behind it.
    what: String,
    /// The cause.
    #[source]
    source: BoxError,
}

/// Why a body was not read completely.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// It exceeds the limit.
    #[error("the response is longer than {limit} bytes")]
    TooLarge {
        /// The limit in bytes.
        limit: usize,
    },
    /// The connection broke or timed out.
    #[error("cannot read the response")]
    Broken(#[source] reqwest::Error),
}

impl ClientSetupError {
    /// Adds to an error what was attempted.
    pub fn wrap<E: Into<BoxError>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |source| Self { what: what.into(), source: source.into() }
    }
}

/// A client builder without redirects, with the configured timeouts and certificates. Reads the file of certificates, if one is
/// set.
///
/// # Errors
/// The file of certificates cannot be used.
pub fn builder(transport: &Transport) -> Result<reqwest::ClientBuilder, ClientSetupError> {
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

/// Builds the client.
///
/// # Errors
/// TLS cannot be set up.
pub fn build(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, ClientSetupError> {
    builder.build().map_err(ClientSetupError::wrap("cannot set up TLS to the provider"))
}

/// The system's DNS, filtered by the worker's host policy. Each new connection resolves its name again, so a changed address is
/// checked too. IP addresses in URLs do not pass through it: the code that builds a client checks its URLs with
/// [`HostPolicy::check`].
#[derive(Debug, Clone)]
struct GuardedDns(HostPolicy);

/// All addresses of the name are forbidden.
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

/// Reads a body up to a limit.
///
/// # Errors
/// The body exceeds the limit or is incomplete.
pub(crate) async fn read_bounded(mut response: Response, limit: usize) -> Result<Bytes, ReadError> {
    let length = response.content_length().and_then(|length| usize::try_from(length).ok());
    if length.is_some_and(|length| length > limit) {
        return Err(ReadError::TooLarge { limit });
    }
    let mut body = BytesMut::with_capacity(length.unwrap_or_default().min(MAX_PREALLOCATED_BYTES));
    while let Some(chunk) = response.chunk().await.map_err(|error| ReadError::Broken(error.without_url()))? {
        if body.len() + chunk.len() > limit {
            return Err(ReadError::TooLarge { limit });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// The `Retry-After` of a response, in seconds or as a date by the provider's clock; an hour at most.
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

/// The provider's clock, learned from the `Date` of its responses. Clones share it.
///
/// Before the first response it is this machine's clock. Afterwards it advances by itself, even if this machine's clock jumps.
#[derive(Debug, Clone)]
pub struct ProviderClock(Arc<SharedTransport>);

#[derive(Debug)]
struct SharedTransport {
    /// Last observed time in milliseconds since 1970, and when it was observed by [`boot_clock`].
    observed_ms: RwLock<Option<(i64, Duration)>>,
    /// Difference between the clocks above which a warning is logged.
    tolerance: Duration,
    warned: AtomicBool,
}

impl ProviderClock {
    /// A clock that warns once when it differs from this machine's by more than `tolerance`.
    pub fn new(tolerance: Duration) -> Self {
        Self(Arc::new(SharedTransport {
            observed_ms: RwLock::default(),
            tolerance,
            warned: AtomicBool::new(false),
        }))
    }

    /// Learns from the headers of a response that has just arrived.
    pub fn observe(&self, headers: &HeaderMap) {
        let Some(date) = text(headers, &DATE).and_then(parse_date) else { return };
        // A cached response has the time of its creation in `Date`, and the time since then in `Age`.
        let age: i64 = text(headers, &AGE).and_then(|age| age.parse::<u32>().ok()).unwrap_or_default().into();
        // `Date` is rounded down to seconds.
        let observed = date.saturating_add(age * 1_000).saturating_add(500);
        *self.0.observed_ms.write() = Some((observed, boot_clock::now()));
        self.compare(observed.saturating_sub(local_ms()));
    }

    /// Milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        match *self.0.observed_ms.read() {
            None => local_ms(),
            Some((observed_ms, at)) => {
                observed_ms.saturating_add(milliseconds(boot_clock::now().saturating_sub(at)))
            }
        }
    }

    /// Time since the last observation; `None` before the first.
    pub fn observed_age(&self) -> Option<Duration> {
        self.0.observed_ms.read().map(|(_, at)| boot_clock::now().saturating_sub(at))
    }

    /// Allowed difference between the clocks, and the leeway for times in tokens.
    pub fn tolerance(&self) -> Duration {
        self.0.tolerance
    }

    /// Updates the metric, and warns when the difference is too large.
    fn compare(&self, ahead_ms: i64) {
        let seconds = ahead_ms as f64 / 1_000.0;
        metrics::clock_difference(seconds);
        let apart = Duration::from_millis(ahead_ms.unsigned_abs()) > self.0.tolerance;
        if apart && !self.0.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                seconds,
                "the clocks of this machine and the provider differ by more than clock.skew.max.ms"
            );
        } else if !apart {
            // Warn again next time.
            self.0.warned.store(false, Ordering::Relaxed);
        }
    }
}

/// Reads `Sun, 06 Nov 1994 08:49:37 GMT`, the only format that servers may send, as milliseconds since 1970.
pub(crate) fn parse_date(text: &str) -> Option<i64> {
    Moment::parse_http(text).map(|moment| moment.micros() / 1_000)
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

fn local_ms() -> i64 {
    Moment::now().micros() / 1_000
}

/// Whole milliseconds, saturating.
pub(crate) fn milliseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn authorities(path: &Path) -> Result<Vec<reqwest::Certificate>, ClientSetupError> {
    read_authorities(path).map_err(ClientSetupError::wrap(format!(
        "cannot read the certificates of provider.ssl.ca.location {}",
        path.display()
    )))
}

fn read_authorities(path: &Path) -> Result<Vec<reqwest::Certificate>, BoxError> {
    if fs::metadata(path)?.len() > MAX_PEM_BYTES {
        return Err(format!("it is larger than {MAX_PEM_BYTES} bytes").into());
    }
    let found = reqwest::Certificate::from_pem_bundle(&fs::read(path)?)?;
    if found.is_empty() { Err("it holds no certificate".into()) } else { Ok(found) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Provider, auth::tests::stub::provider};

    const DAY_MS: i64 = 86_400_000;

    fn headers(pairs: &[(HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect()
    }

    fn transport(authorities: Option<&Path>) -> Transport {
        let Provider { transport, .. } = provider(&"https://provider.example".parse().unwrap());
        Transport { authorities: authorities.map(Path::to_owned), hosts: HostPolicy::default(), ..transport }
    }

    #[tokio::test]
    async fn a_name_that_resolves_to_this_machine_is_refused() {
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
                    let error = base::retry::ErrorChain(&sent.unwrap_err()).to_string();
                    assert!(error.contains("provider.hosts.allowed"), "{error}");
                    false
                }
            };

            assert_eq!(connected, connects, "{listed:?}");
        }
    }

    /// A response of unknown length whose body arrives in these pieces.
    fn pieces(pieces: &[&'static str]) -> Response {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok::<_, std::io::Error>(*piece)).collect();
        let body = reqwest::Body::wrap_stream(futures::stream::iter(pieces));
        Response::from(http::Response::new(body))
    }

    #[test]
    fn only_the_imf_fixdate_format_is_read() {
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
    fn the_clock_follows_date_and_age_of_responses() {
        let clock = ProviderClock::new(Duration::from_secs(300));
        let other = clock.clone();
        let far = |clock: &ProviderClock, expected: i64| (clock.now_ms() - expected).abs() < 30_000;
        assert!(far(&clock, local_ms()));
        assert_eq!(clock.observed_age(), None);

        clock.observe(&headers(&[(DATE, "Sun, 06 Nov 1994 08:49:37 GMT")]));
        assert!(far(&other, 784_111_777_000), "{}", other.now_ms());
        clock.observe(&headers(&[(DATE, "Sun, 06 Nov 1994 08:49:37 GMT"), (AGE, "86400")]));
        assert!(far(&clock, 784_111_777_000 + DAY_MS), "{}", clock.now_ms());
        // Invalid and missing dates change nothing.
        clock.observe(&headers(&[(DATE, "yesterday")]));
        clock.observe(&HeaderMap::new());
        assert!(clock.observed_age().is_some_and(|since| since < Duration::from_secs(30)));
        assert!(far(&clock, 784_111_777_000 + DAY_MS), "{}", clock.now_ms());
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_an_hour_at_most() {
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
    async fn a_body_is_read_up_to_its_limit() {
        assert_eq!(read_bounded(pieces(&["abc", "def"]), 6).await.unwrap(), "abcdef");
        let whole = Response::from(http::Response::new("abcdef"));
        for long in [pieces(&["abc", "defg"]), whole] {
            let limit = 5;
            assert!(matches!(read_bounded(long, limit).await, Err(ReadError::TooLarge { limit: 5 })));
        }
    }

    #[test]
    fn a_file_without_certificates_names_its_setting() {
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
