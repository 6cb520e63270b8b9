//! Login and webhooks of the invoicing API.

use axum::http::HeaderName;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::HttpStatus;

knobs! {
    /// Login and webhooks of the invoicing API.
    pub struct InvoicingKnobs {
        /// Requires `Api-Version: 2.0`, a header that the document does not show.
        pub version_required: bool = false,
        /// The last segment of a receiver's address.
        pub segment: String = "Invoicing".to_owned(),
        /// Which receiver paths are accepted.
        pub receiver_paths: ReceiverPaths = ReceiverPaths::Documented,
        /// Requires the receiver's host to be the address the request comes from.
        pub check_origin: bool = true,
        /// When the echo is requested.
        pub echo: EchoTime = EchoTime::AfterAnswer,
        /// Which receiver paths are asked for the echo; others behave as with [`EchoTime::Never`].
        pub echo_paths: ReceiverPaths = ReceiverPaths::Any,
        /// Writes the GUID of the echo with dashes.
        pub echo_dashes: bool = true,
        /// Minimum length of a secret, characters.
        pub secret_min: usize = 32,
        /// Maximum length of a secret, characters.
        pub secret_max: usize = 64,
        /// Status of a successful create.
        pub created_status: HttpStatus = HttpStatus::OK,
        /// Answers create and delete without a body.
        pub silent: bool = false,
        /// Name of the signature header; empty sends none. JSON with an invalid name is refused; set in the same process, it sends
        /// none.
        #[serde(deserialize_with = "header_name")]
        pub signature_header: String = "ms-signature".to_owned(),
        /// Body of a notification.
        pub body: InvoicingBody = InvoicingBody::Flat,
        /// Tenants of all companies together, dealt out to them in turn; a change is of any tenant of its company. 0: each company
        /// has one.
        pub tenants: u32 = 0,
        /// Adds `Host` and `SourceApplication` to flat bodies.
        pub extra_members: bool = false,
        /// Delays before each retry, milliseconds. After the last the message is given up and the hook stays.
        pub retries: Vec<u64> = vec![60_000, 240_000],
        /// Lifetime of a token, seconds.
        pub token_seconds: u64 = 3_600,
        /// A refresh token can choose a company only once.
        pub refresh_once: bool = false,
        /// Scope with which an identity token opens this API for its first company; unset accepts none.
        pub identity_scope: Option<String> = None,
    }
}

fn header_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    let name = String::deserialize(deserializer)?;
    match HeaderName::from_bytes(name.as_bytes()) {
        Err(_) if !name.is_empty() => Err(D::Error::custom(format!("{name:?} is no name of a header"))),
        _ => Ok(name),
    }
}

choices! { "camelCase";
    /// Receiver paths.
    pub enum ReceiverPaths {
        /// `/api/webhooks/incoming/<segment>`: the document shows no other.
        Documented,
        /// Any path, as the software behind the provider accepts.
        Any,
    }

    /// When the echo is requested.
    pub enum EchoTime {
        /// After the POST has been answered.
        AfterAnswer,
        /// During the POST, which is refused with 400 without the echo.
        DuringPost,
        /// Never: the hook is listed but not effective.
        Never,
    }

    /// The body of a notification.
    pub enum InvoicingBody {
        /// A single notification.
        Flat,
        /// `Id`, `Attempt`, `Properties`, `Notifications[]`, indented.
        Wrapped,
    }
}
