//! Parsing of request bodies, with every error in them.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::{Map, Value};
use url::Url;

use crate::{
    catalog::{Kind, Resource},
    knobs::ReceiverUrls,
    random::Guid,
};

/// Length limit of texts, characters.
const MAX_TEXT_CHARS: usize = 4_096;

/// The body of subscribe and unsubscribe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WebhookSubscription {
    /// `thirdPartyApplicationName`.
    pub(super) application: String,
    /// As sent.
    pub(super) url: String,
    pub(super) secret: String,
    /// Kinds of events.
    pub(super) kinds: BTreeSet<Kind>,
}

/// An error in a request.
#[derive(Debug, Serialize)]
pub(super) struct RequestError {
    /// For programs.
    pub(super) code: &'static str,
    /// For people.
    pub(super) message: String,
}

impl RequestError {
    pub(super) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// Parses a subscription and its address, or returns all errors.
pub(super) fn subscription(
    body: &[u8],
    resource: Resource,
    receivers: ReceiverUrls,
) -> Result<(WebhookSubscription, Url), Vec<RequestError>> {
    let mut members = RequestMembers::parse(body)?;
    let application = members.text("thirdPartyApplicationName");
    let address = members.url(receivers);
    let secret = members.text("secret");
    let kinds = members.kinds(resource);
    let parsed = (application, address, secret, kinds);
    let (Some(application), Some((url, address)), Some(secret), Some(kinds)) = parsed else {
        return Err(members.errors);
    };
    Ok((WebhookSubscription { application, url, secret, kinds }, address))
}

/// Parses `enable` from a body that names this webhook.
pub(super) fn status(body: &[u8], webhook: Guid) -> Result<bool, Vec<RequestError>> {
    let mut members = RequestMembers::parse(body)?;
    members.webhook(webhook);
    let enable = members.take("enable", "a boolean", |value| value.as_bool());
    match enable {
        Some(enable) if members.errors.is_empty() => Ok(enable),
        _ => Err(members.errors),
    }
}

/// Parses the new address from a body that names this webhook; as sent and parsed.
pub(super) fn change(
    body: &[u8],
    webhook: Guid,
    receivers: ReceiverUrls,
) -> Result<(String, Url), Vec<RequestError>> {
    let mut members = RequestMembers::parse(body)?;
    members.webhook(webhook);
    match members.url(receivers) {
        Some(url) if members.errors.is_empty() => Ok(url),
        _ => Err(members.errors),
    }
}

/// The members of a body, and the errors found so far.
struct RequestMembers {
    members: Map<String, Value>,
    errors: Vec<RequestError>,
}

impl RequestMembers {
    fn parse(body: &[u8]) -> Result<Self, Vec<RequestError>> {
        match serde_json::from_slice(body) {
            Ok(Value::Object(members)) => Ok(Self { members, errors: Vec::new() }),
            Ok(_) => Err(vec![RequestError::new("InvalidBody", "the body must be a JSON object")]),
            Err(error) => {
                Err(vec![RequestError::new("InvalidBody", format!("the body is no JSON: {error}"))])
            }
        }
    }

    /// A required member of the right type.
    fn take<T>(&mut self, name: &str, kind: &str, read: impl FnOnce(&Value) -> Option<T>) -> Option<T> {
        let Some(value) = self.members.get(name) else {
            self.add_error("Required", format!("{name} is required"));
            return None;
        };
        let read = read(value);
        if read.is_none() {
            self.add_error("InvalidType", format!("{name} must be {kind}"));
        }
        read
    }

    /// A string that is neither empty nor too long.
    fn text(&mut self, name: &str) -> Option<String> {
        let text = self.take(name, "a string", |value| value.as_str().map(str::to_owned))?;
        if text.is_empty() {
            self.add_error("Required", format!("{name} must not be empty"));
            return None;
        }
        if text.chars().count() > MAX_TEXT_CHARS {
            self.add_error("TooLong", format!("{name} must not have more than {MAX_TEXT_CHARS} characters"));
            return None;
        }
        Some(text)
    }

    fn url(&mut self, receivers: ReceiverUrls) -> Option<(String, Url)> {
        let text = self.text("url")?;
        let parsed = Url::parse(&text).map_err(|_| "is not an address");
        match parsed.and_then(|url| receivers.check(&url).map(|()| url)) {
            Ok(url) => Some((text, url)),
            Err(rule) => {
                self.add_error("InvalidUrl", format!("url {rule}"));
                None
            }
        }
    }

    fn kinds(&mut self, resource: Resource) -> Option<BTreeSet<Kind>> {
        let texts = self.take("eventTypes", "an array of strings", |value| {
            value.as_array()?.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>()
        })?;
        if texts.is_empty() {
            self.add_error("Required", "eventTypes must name at least one event");
            return None;
        }
        let mut kinds = BTreeSet::new();
        for text in texts {
            let named = |kind: &Kind| resource.semantic_name(*kind) == text;
            let Some(kind) = resource.kinds().into_iter().find(named) else {
                // One error is enough: a body may contain very many.
                self.add_error("UnknownEvent", format!("{} has no event {text:?}", resource.plural()));
                return None;
            };
            kinds.insert(kind);
        }
        Some(kinds)
    }

    /// Checks that `webhookId` is the one in the path.
    fn webhook(&mut self, expected: Guid) {
        let Some(text) = self.text("webhookId") else { return };
        match Guid::parse(&text) {
            None => self.add_error("InvalidId", "webhookId must be a GUID"),
            Some(id) if id != expected => {
                self.add_error("InvalidId", "webhookId differs from the one in the path");
            }
            Some(_) => {}
        }
    }

    fn add_error(&mut self, code: &'static str, message: impl Into<String>) {
        self.errors.push(RequestError::new(code, message));
    }
}
