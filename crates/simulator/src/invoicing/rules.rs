//! Validation of subscriptions: rules 1 to 3 of the document, and the origin of the request.
//!
//! Each error starts with the field's name. Undocumented fields are ignored; `isPaused`, `applicationName` and `description` may
//! be absent or `null`.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use aws_lc_rs::hmac;
use serde_json::{Map, Value};
use tokio::{net::lookup_host, time::timeout};
use url::{Host, Url};

use super::{HookSubject, ProviderHook};
use crate::{
    catalog::{Action, Entity},
    knobs::{DeliveryKnobs, EchoTime, Knobs, ReceiverPaths},
    random::Guid,
};

/// Length limit of addresses, names and descriptions, characters.
const MAX_TEXT_CHARS: usize = 4_096;

/// Parses a subscription into a hook without an id; the error names the field and the rule.
pub(super) fn parse(body: &[u8], company: u32, knobs: &Knobs) -> Result<ProviderHook, String> {
    let body: Value = serde_json::from_slice(body).map_err(|error| format!("body: no JSON: {error}"))?;
    let Value::Object(fields) = body else { return Err("body: a JSON object is needed".to_owned()) };

    let uri = text(&fields, "uri", MAX_TEXT_CHARS)?.ok_or("uri: a string is needed")?;
    let url = receiver(&uri, knobs)?;

    let name = text(&fields, "entity", MAX_TEXT_CHARS)?.ok_or("entity: a string is needed")?;
    let entity = Entity::ALL.into_iter().find(|entity| format!("{entity:?}") == name);
    let entity = entity.ok_or_else(|| format!("entity: there is no entity {name:?}"))?;

    let name = text(&fields, "action", MAX_TEXT_CHARS)?.ok_or("action: a string is needed")?;
    let action = Action::ALL.into_iter().find(|action| format!("{action:?}") == name);
    let action = action.ok_or_else(|| format!("action: {name:?} is not Created, Updated or Deleted"))?;
    if !entity.offers(action) {
        return Err(format!("action: {entity:?} only offers Updated"));
    }

    let secret = text(&fields, "secret", usize::MAX)?.ok_or("secret: a string is needed")?;
    let (min, max) = (knobs.invoicing.secret_min, knobs.invoicing.secret_max);
    if !(min..=max).contains(&secret.chars().count()) {
        return Err(format!("secret: between {min} and {max} characters are needed"));
    }
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());

    let paused = match fields.get("isPaused") {
        None | Some(Value::Null) => false,
        Some(Value::Bool(paused)) => *paused,
        Some(_) => return Err("isPaused: true or false is needed".to_owned()),
    };
    let application = text(&fields, "applicationName", MAX_TEXT_CHARS)?;
    let description = match text(&fields, "description", MAX_TEXT_CHARS)? {
        // Spelled as in the document's sample body.
        None => text(&fields, "descripion", MAX_TEXT_CHARS)?,
        description => description,
    };
    Ok(ProviderHook {
        id: Guid(0),
        subject: HookSubject { company, entity, action },
        uri,
        url,
        key,
        application,
        description,
        effective: false,
        paused,
        echo_failure: None,
    })
}

/// Checks that the receiver's host is the address the request comes from.
pub(super) async fn check_origin(url: &Url, peer: SocketAddr, knobs: &DeliveryKnobs) -> Result<(), String> {
    let peer = peer.ip().to_canonical();
    if addresses(url, knobs).await.iter().any(|address| address.to_canonical() == peer) {
        return Ok(());
    }
    Err(format!("uri: the host is not {peer}, which the request comes from"))
}

/// Addresses of a host: by the knob, literally, or by DNS; none if DNS fails or is too slow.
async fn addresses(url: &Url, knobs: &DeliveryKnobs) -> Vec<IpAddr> {
    let host = match url.host() {
        Some(Host::Domain(host)) => host,
        Some(Host::Ipv4(address)) => return vec![address.into()],
        Some(Host::Ipv6(address)) => return vec![address.into()],
        None => return Vec::new(),
    };
    // Hosts in URLs are lower case, those of the knob may not be.
    if let Some((_, known)) = knobs.resolve.iter().find(|(name, _)| name.eq_ignore_ascii_case(host)) {
        return vec![known.ip()];
    }
    match timeout(Duration::from_millis(knobs.time_limit), lookup_host((host, 0))).await {
        Ok(Ok(found)) => found.map(|address| address.ip()).collect(),
        Ok(Err(_)) | Err(_) => Vec::new(),
    }
}

/// An optional string.
fn text(fields: &Map<String, Value>, name: &str, limit: usize) -> Result<Option<String>, String> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.chars().count() <= limit => Ok(Some(text.clone())),
        Some(Value::String(_)) => Err(format!("{name}: more than {limit} characters")),
        Some(_) => Err(format!("{name}: a string is needed")),
    }
}

/// `https://<host>/api/webhooks/incoming/<segment>`, or any path where the knob allows it. A query may follow; the echo replaces
/// it.
fn receiver(uri: &str, knobs: &Knobs) -> Result<Url, String> {
    // The parser would drop these silently, and the list would show another address than the one called.
    if uri.chars().any(|char| char.is_whitespace() || char.is_control()) {
        return Err("uri: no address".to_owned());
    }
    let url = Url::parse(uri).map_err(|error| format!("uri: no address: {error}"))?;
    knobs.delivery.receivers.check(&url).map_err(|rule| format!("uri: {rule}"))?;
    if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
        return Err("uri: neither user, password nor fragment may be given".to_owned());
    }
    if knobs.invoicing.receiver_paths == ReceiverPaths::Any {
        return Ok(url);
    }
    if !is_documented(&url, knobs) {
        return Err(format!("uri: the path must be {}", documented(knobs)));
    }
    Ok(url)
}

/// Whether the receiver is asked for its echo.
pub(super) fn is_asked(url: &Url, knobs: &Knobs) -> bool {
    let is_path = knobs.invoicing.echo_paths == ReceiverPaths::Any || is_documented(url, knobs);
    is_path && knobs.invoicing.echo != EchoTime::Never
}

/// The documented path.
fn documented(knobs: &Knobs) -> String {
    format!("/api/webhooks/incoming/{}", knobs.invoicing.segment)
}

fn is_documented(url: &Url, knobs: &Knobs) -> bool {
    let mut expected = url.clone();
    expected.set_path(&documented(knobs));
    url.path() == expected.path()
}
