//! The audit log of the REST API: one line for every change, and one for every refused request.
//!
//! - Anyone can cause refusals, so their lines are bounded: [`LINES_PER_ADDRESS`] per client address and [`LINES_PER_WINDOW`] in
//!   total per [`WINDOW`]. The rest is counted, and one line at the end of the window has the count.
//! - Only users of the configuration are written by name: a password sent in place of a name must not get into the log.
//! - Text from a client is percent-encoded unless it is printable ASCII, and truncated: no line can be forged or grow.

use std::{
    collections::HashMap,
    fmt::Write as _,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    extract::{ConnectInfo, Request},
    http::StatusCode,
};
use ipnet::IpNet;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

use server::origin;

use super::UNKNOWN;

/// Limit on refusal lines per client address and window.
const LINES_PER_ADDRESS: u32 = 20;
/// Limit on refusal lines per window; at their maximum length this is less than 100 MB a day.
const LINES_PER_WINDOW: u32 = 60;
/// Length of a window.
const WINDOW: Duration = Duration::from_secs(60);
/// Limit on client addresses that are counted separately in a window.
const MAX_ADDRESSES: usize = 1024;
/// Limits in bytes on the path and on the method in a line.
const MAX_PATH_BYTES: usize = 512;
const MAX_METHOD_BYTES: usize = 32;

/// A request as the audit log shows it.
#[derive(Debug)]
pub(super) struct AuditedRequest {
    method: String,
    path: String,
    peer: Option<SocketAddr>,
    /// The client address that a trusted proxy forwarded; `None` if the peer is no trusted proxy or forwarded none.
    forwarded: Option<IpAddr>,
}

impl AuditedRequest {
    pub(super) fn of(request: &Request, proxies: &[IpNet]) -> Self {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| *peer);
        let forwarded = peer.and_then(|peer| {
            let client = origin::of(peer.ip(), request.headers(), proxies);
            (client != peer.ip().to_canonical()).then_some(client)
        });
        let method = printable(request.method().as_str(), MAX_METHOD_BYTES);
        Self { method, path: printable(request.uri().path(), MAX_PATH_BYTES), peer, forwarded }
    }

    /// The client's address: the forwarded one, else the peer's.
    pub(super) fn client(&self) -> Option<IpAddr> {
        self.forwarded.or_else(|| self.peer.map(|peer| peer.ip()))
    }

    /// Logs a change with its outcome.
    pub(super) fn changed(&self, who: &str, status: StatusCode) {
        let (Self { method, path, .. }, remote) = (self, self.remote());
        let forwarded = self.forwarded.map(tracing::field::display);
        tracing::info!(target: "audit", who, method, path, status = status.as_u16(), remote, forwarded, "change");
    }

    /// Logs a refused request, or counts it.
    pub(super) fn refused(&self, audits: &Audits, who: &str, status: StatusCode) {
        let is_known = who != UNKNOWN && matches!(status.as_u16(), 401 | 403);
        let audit = if is_known { &audits.known } else { &audits.strangers };
        if !audit.admits(self.client()) {
            return;
        }
        let (Self { method, path, .. }, remote) = (self, self.remote());
        let forwarded = self.forwarded.map(tracing::field::display);
        tracing::warn!(target: "audit", who, method, path, status = status.as_u16(), remote, forwarded, "refused");
    }

    fn remote(&self) -> String {
        self.peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string())
    }
}

/// Keeps printable ASCII, percent-encodes the rest, and truncates to `most` bytes.
fn printable(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for byte in text.bytes() {
        if shown.len() >= most {
            shown.push_str("...");
            break;
        }
        if byte.is_ascii_graphic() {
            shown.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            write!(shown, "%{byte:02X}").ok();
        }
    }
    shown
}

/// Bounds the lines about refusals.
#[derive(Debug, Default)]
pub(super) struct Audit(Mutex<AuditWindow>);

/// Separate bounds for callers that named a configured user, so that strangers cannot use those up.
#[derive(Debug, Default)]
pub(super) struct Audits {
    strangers: Arc<Audit>,
    known: Arc<Audit>,
}

#[derive(Debug, Default)]
struct AuditWindow {
    /// `None` before the first refusal.
    begun: Option<Instant>,
    lines: u32,
    addresses: HashMap<Option<IpAddr>, u32>,
    suppressed: u64,
}

/// What happens to a line.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Write,
    /// The first one in its window that is suppressed; the window ends at this time.
    FirstSuppressed(Instant),
    Suppress,
}

impl Audit {
    /// Whether to write a line about this client. If not, it is counted.
    fn admits(self: &Arc<Self>, client: Option<IpAddr>) -> bool {
        match self.count(client, Instant::now()) {
            Verdict::Write => true,
            Verdict::Suppress => false,
            Verdict::FirstSuppressed(end) => {
                let audit = Arc::clone(self);
                tokio::spawn(async move {
                    sleep_until(end).await;
                    audit.close(Instant::now());
                });
                false
            }
        }
    }

    fn count(&self, client: Option<IpAddr>, now: Instant) -> Verdict {
        self.close(now);
        let mut window = self.0.lock();
        let begun = *window.begun.get_or_insert(now);
        let client = client.map(origin::network);
        let known = window.addresses.len() < MAX_ADDRESSES || window.addresses.contains_key(&client);
        let written = if known { *window.addresses.entry(client).or_default() } else { LINES_PER_ADDRESS };
        if window.lines >= LINES_PER_WINDOW || written >= LINES_PER_ADDRESS {
            window.suppressed += 1;
            return if window.suppressed == 1 {
                Verdict::FirstSuppressed(begun + WINDOW)
            } else {
                Verdict::Suppress
            };
        }
        window.lines += 1;
        window.addresses.insert(client, written + 1);
        Verdict::Write
    }

    /// If the window has ended, resets it and logs how many lines it suppressed.
    fn close(&self, now: Instant) {
        let mut window = self.0.lock();
        if window.begun.is_none_or(|begun| now.saturating_duration_since(begun) < WINDOW) {
            return;
        }
        let AuditWindow { addresses, suppressed, .. } = std::mem::take(&mut *window);
        drop(window);
        if suppressed > 0 {
            let (addresses, seconds) = (addresses.len(), WINDOW.as_secs());
            tracing::warn!(target: "audit", suppressed, addresses, seconds, "refusals not logged individually");
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;
    use crate::telemetry::captured_logs::captured_logs;

    fn audited(uri: &str, peer: &str, forwarded: Option<&str>) -> AuditedRequest {
        let mut request = Request::builder().uri(uri);
        if let Some(forwarded) = forwarded {
            request = request.header("x-forwarded-for", forwarded);
        }
        let mut request = request.body(Body::empty()).unwrap();
        request.extensions_mut().insert(ConnectInfo(peer.parse::<SocketAddr>().unwrap()));
        AuditedRequest::of(&request, &["10.0.0.0/8".parse().unwrap()])
    }

    #[test]
    fn only_trusted_proxies_set_the_client_address() {
        let table = [
            ("10.0.0.1:1", Some("198.51.100.7"), "198.51.100.7", true),
            ("10.0.0.1:1", Some("evil\ttext"), "10.0.0.1", false),
            ("10.0.0.1:1", None, "10.0.0.1", false),
            ("192.0.2.1:1", Some("198.51.100.7"), "192.0.2.1", false),
        ];

        for (peer, forwarded, client, is_forwarded) in table {
            let audited = audited("/", peer, forwarded);

            assert_eq!(audited.client(), Some(client.parse().unwrap()), "{peer} {forwarded:?}");
            assert_eq!(audited.forwarded.is_some(), is_forwarded, "{peer} {forwarded:?}");
        }
    }

    #[test]
    fn clients_cannot_forge_or_stretch_an_audit_line() {
        assert_eq!(printable("/a%0ab", 512), "/a%0ab");
        assert_eq!(printable("/a\nb\u{85}\u{1b}[2K \"", 512), "/a%0Ab%C2%85%1B[2K%20\"");
        assert_eq!(printable(&"x".repeat(9_000), 512).len(), 515);
        assert_eq!(audited("/connectors?password=hunter2", "192.0.2.1:1", None).path, "/connectors");
    }

    #[test]
    fn lines_are_bounded_by_address_and_by_window() {
        let (audit, begun) = (Audit::default(), Instant::now());
        let client = |number: u32| Some(IpAddr::from(number.to_be_bytes()));
        let written = |client, times: u32, now| {
            (0..times).filter(|_| audit.count(client, now) == Verdict::Write).count() as u32
        };

        assert_eq!(written(client(1), LINES_PER_ADDRESS + 100, begun), LINES_PER_ADDRESS);
        assert_eq!(written(client(2), 1, begun), 1, "another address has its own");
        let flood: u32 = (10..10_000).map(|number| written(client(number), 1, begun)).sum();
        assert_eq!(flood, LINES_PER_WINDOW - LINES_PER_ADDRESS - 1);
        let window = audit.0.lock();
        assert!(window.addresses.len() <= MAX_ADDRESSES, "{}", window.addresses.len());
        assert_eq!(u64::from(100 + 9_990 - flood), window.suppressed);
        drop(window);

        assert_eq!(
            written(client(1), LINES_PER_ADDRESS + 1, begun + WINDOW),
            LINES_PER_ADDRESS,
            "the next window"
        );
    }

    #[tokio::test]
    async fn end_of_a_window_logs_the_suppressed_count() {
        let text = captured_logs(
            true,
            |text| text.contains("suppressed"),
            async || {
                let (audit, begun) = (Audit::default(), Instant::now());
                let verdicts: Vec<_> = (0..LINES_PER_ADDRESS + 3).map(|_| audit.count(None, begun)).collect();
                assert_eq!(verdicts[LINES_PER_ADDRESS as usize], Verdict::FirstSuppressed(begun + WINDOW));
                assert_eq!(verdicts.last(), Some(&Verdict::Suppress));
                audit.close(begun + WINDOW / 2);
                audit.close(begun + WINDOW);
                audit.close(begun + WINDOW * 3);
            },
        )
        .await;

        let lines: Vec<_> = text.lines().filter(|line| line.contains("\"target\":\"audit\"")).collect();
        assert_eq!(lines.len(), 1, "{text}");
        assert!(lines[0].contains("\"suppressed\":3"), "{text}");
    }
}
