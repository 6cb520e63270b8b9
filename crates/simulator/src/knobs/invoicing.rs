//! Login and webhooks of the invoicing API.

use axum::http::HeaderName;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use super::Status;

/// Webhooks of the invoicing API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct InvoicingKnobs {
    /// Every call must have `Api-Version: 2.0`, a header that the document does not show.
    pub version_required: bool,
    /// The last segment of a receiver's address.
    pub segment: String,
    /// Which addresses of receivers are taken.
    pub receiver_paths: ReceiverPaths,
    /// The receiver's host must be the address the request comes from.
    pub check_origin: bool,
    /// When the echo is asked for.
    pub echo: EchoTime,
    /// Which addresses are asked for the echo; at others it is as with [`EchoTime::Never`].
    pub echo_paths: ReceiverPaths,
    /// The echoed GUID is written with dashes.
    pub echo_dashes: bool,
    /// Fewest characters of a secret.
    pub secret_min: usize,
    /// Most characters of a secret.
    pub secret_max: usize,
    /// Status of a create that worked.
    pub created_status: Status,
    /// Create and delete answer with no body.
    pub silent: bool,
    /// Header of the signature; empty sends none. A name that no header can have is refused in JSON; in the same process it
    /// sends none either.
    #[serde(deserialize_with = "header_name")]
    pub signature_header: String,
    /// Body of a notification.
    pub body: InvoicingBody,
    /// `Host` and `SourceApplication` in flat bodies.
    pub extra_members: bool,
    /// Waits before each further attempt, milliseconds; after the last the message is given up, the hook stays.
    pub retries: Vec<u64>,
    /// Seconds a token lives.
    pub token_seconds: u64,
    /// Seconds a refresh token lives.
    pub refresh_seconds: u64,
    /// A refresh token chooses one company and is refused after that.
    pub refresh_once: bool,
    /// Scope with which a token of the identity service opens this API, as its first company; without it, none does.
    pub identity_scope: Option<String>,
}

impl Default for InvoicingKnobs {
    fn default() -> Self {
        Self {
            version_required: false,
            segment: "Invoicing".to_owned(),
            receiver_paths: ReceiverPaths::Documented,
            check_origin: true,
            echo: EchoTime::AfterAnswer,
            echo_paths: ReceiverPaths::Any,
            echo_dashes: true,
            secret_min: 32,
            secret_max: 64,
            created_status: Status::OK,
            silent: false,
            signature_header: "ms-signature".to_owned(),
            body: InvoicingBody::Flat,
            extra_members: false,
            retries: vec![60_000, 240_000],
            token_seconds: 3_600,
            refresh_seconds: 30 * 86_400,
            refresh_once: false,
            identity_scope: None,
        }
    }
}

fn header_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    match HeaderName::from_bytes(name.as_bytes()) {
        Err(_) if !name.is_empty() => Err(D::Error::custom(format!("{name:?} is no name of a header"))),
        _ => Ok(name),
    }
}

/// Addresses of receivers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ReceiverPaths {
    /// `/api/webhooks/incoming/<segment>`: the document shows no other.
    #[default]
    Documented,
    /// Any path, as the software behind the provider does.
    Any,
}

/// When the echo is asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum EchoTime {
    /// Once the POST has been answered.
    #[default]
    AfterAnswer,
    /// During the POST: without the echo it is refused with 400.
    DuringPost,
    /// Never: the hook is listed and never effective.
    Never,
}

/// The body of a notification.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum InvoicingBody {
    /// One notification, its fields at the top.
    #[default]
    Flat,
    /// `Id`, `Attempt`, `Properties`, `Notifications[]`, indented.
    Wrapped,
}
