//! The echo of an invoicing address: the provider sends a GUID and expects it back.
//!
//! Only a GUID is echoed, as it was written; nothing else is reflected.

use std::{sync::Arc, time::Duration};

use axum::{body::Body, response::Response};
use http::{HeaderValue, header, request::Parts};
use tokio::time::Instant;
use uuid::Uuid;

use base::metrics::RefusalReason;
use model::{InvoicingHook, Moment};

use super::{Echoed, request::RequestHandler};
use crate::webhooks::receiver_table::{Receiver, ReceiverLookup, ReceiverState};

/// Shortest time between two reported echoes of one address.
const ECHO_INTERVAL: Duration = Duration::from_secs(1);

/// A connector and the hook whose own address it is; `None`: the shared address.
pub(super) type EchoAddress = (Arc<str>, Option<InvoicingHook>);

impl RequestHandler {
    /// Answers the echo of an invoicing address. It names no connector, so it counts for each that receives there.
    pub(super) async fn echo(
        &self,
        found: &ReceiverLookup,
        hook: Option<InvoicingHook>,
        head: &Parts,
        body: Body,
    ) -> Response {
        let taking: Vec<&Arc<Receiver>> =
            found.receivers.iter().filter(|receiver| receiver.state != ReceiverState::Stopped).collect();
        let refusal = match (found.missing, asked(head.uri.query())) {
            (_, Some(guid)) if !taking.is_empty() => {
                for receiver in taking.into_iter().filter(|receiver| self.admits(head, receiver)) {
                    self.report_echo(receiver, hook);
                }
                return echo_response(guid);
            }
            (_, None) if !taking.is_empty() => RefusalReason::Echo,
            (Some(missing), _) => missing.into(),
            (None, _) if found.receivers.is_empty() => RefusalReason::Route,
            (None, _) => RefusalReason::Stopped,
        };
        self.refuse(refusal, head, body).await
    }

    /// Reports an echo, at most once in [`ECHO_INTERVAL`] for each address, because anybody may ask for one. The answer does not wait. A
    /// dropped echo is not repeated: the hook stays `Awaiting` until its next echo or first delivery, and is recreated after
    /// `subscriptions.acknowledge.timeout.ms`.
    fn report_echo(&self, receiver: &Receiver, hook: Option<InvoicingHook>) {
        let Some(echoed) = &self.options.echoed else { return };
        let connector = Arc::clone(&receiver.connector);
        let mut echoes = self.echoes.lock();
        let (place, now) = ((Arc::clone(&connector), hook), Instant::now());
        if echoes.get(&place).is_some_and(|last| now.duration_since(*last) < ECHO_INTERVAL) {
            return;
        }
        if echoed.try_send(Echoed { connector, hook, received_at: Moment::now().micros() }).is_ok() {
            echoes.retain(|_, last| now.duration_since(*last) < ECHO_INTERVAL);
            echoes.insert(place, now);
        }
    }
}

/// The requested echo. The headers keep browsers from interpreting it as anything but text.
fn echo_response(guid: &str) -> Response {
    let mut response = Response::new(Body::from(guid.to_owned()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The GUID of a query with exactly one `echo`; `None`: there is none, or several, or the value is no GUID.
fn asked(query: Option<&str>) -> Option<&str> {
    let mut values = query?.split('&').filter_map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (name == "echo").then_some(value)
    });
    let (value, None) = (values.next()?, values.next()) else { return None };
    is_guid(value).then_some(value)
}

/// 32 hexadecimal digits with all dashes or none, without braces or `urn:`.
fn is_guid(text: &str) -> bool {
    matches!(text.len(), 32 | 36) && Uuid::try_parse(text).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_is_echoed_as_it_was_written() {
        for guid in [
            "0123456789abcdef0123456789abcdef",
            "0123456789ABCDEF0123456789abcdef",
            "01234567-89ab-cdef-0123-456789ABCDEF",
        ] {
            assert_eq!(asked(Some(&format!("echo={guid}"))), Some(guid));
            assert_eq!(asked(Some(&format!("a=b&echo={guid}&c"))), Some(guid));
        }
    }

    #[test]
    fn nothing_but_one_guid_is_echoed() {
        let guid = "0123456789abcdef0123456789abcdef";
        for query in [
            None,
            Some(String::new()),
            Some("echo".to_owned()),
            Some("echo=".to_owned()),
            Some(format!("Echo={guid}")),
            Some(format!("echo={guid}&echo={guid}")),
            Some(format!("echo={guid}&echo")),
            Some(format!("echo={guid}0")),
            Some(format!("echo={}", &guid[1..])),
            Some(format!("echo={guid} ")),
            Some(format!("echo={{{guid}}}")),
            Some(format!("echo=%30{}", &guid[1..])),
            Some(format!("echo=g{}", &guid[1..])),
            Some(format!("echo=-{}", &guid[1..])),
            Some("echo=012345678-9ab-cdef-0123-456789ABCDEF".to_owned()),
            Some("echo=01234567-89ab-cdef-0123-456789ABCDE-".to_owned()),
            Some("echo=0123456789abcdef0123456789abcdef0123".to_owned()),
            Some("echo=<script>alert(1)</script>".to_owned()),
            Some(format!("echo=é{}", &guid[2..])),
        ] {
            assert_eq!(asked(query.as_deref()), None, "{query:?}");
        }
    }
}
