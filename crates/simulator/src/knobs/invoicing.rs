//! Login and webhooks of the invoicing API.

use axum::http::HeaderName;
use serde::{Deserialize, Deserializer, de::Error as _};

use super::Status;

knobs! {
    /// Webhooks of the invoicing API.
    pub struct InvoicingKnobs {
        /// Every call must have `Api-Version: 2.0`, a header that the document does not show.
        pub version_required: bool = false,
        /// The last segment of a receiver's address.
        pub segment: String = "Invoicing".to_owned(),
        /// Which addresses of receivers are taken.
        pub receiver_paths: ReceiverPaths = ReceiverPaths::Documented,
        /// The receiver's host must be the address the request comes from.
        pub check_origin: bool = true,
        /// When the echo is asked for.
        pub echo: EchoTime = EchoTime::AfterAnswer,
        /// Which addresses are asked for the echo; at others it is as with [`EchoTime::Never`].
        pub echo_paths: ReceiverPaths = ReceiverPaths::Any,
        /// The echoed GUID is written with dashes.
        pub echo_dashes: bool = true,
        /// Fewest characters of a secret.
        pub secret_min: usize = 32,
        /// Most characters of a secret.
        pub secret_max: usize = 64,
        /// Status of a create that worked.
        pub created_status: Status = Status::OK,
        /// Create and delete answer with no body.
        pub silent: bool = false,
        /// Header of the signature; empty sends none. A name that no header can have is refused in JSON; in the same process it
        /// sends none either.
        #[serde(deserialize_with = "header_name")]
        pub signature_header: String = "ms-signature".to_owned(),
        /// Body of a notification.
        pub body: InvoicingBody = InvoicingBody::Flat,
        /// `Host` and `SourceApplication` in flat bodies.
        pub extra_members: bool = false,
        /// Waits before each further attempt, milliseconds; after the last the message is given up, the hook stays.
        pub retries: Vec<u64> = vec![60_000, 240_000],
        /// Seconds a token lives.
        pub token_seconds: u64 = 3_600,
        /// A refresh token chooses one company and is refused after that.
        pub refresh_once: bool = false,
        /// Scope with which a token of the identity service opens this API, as its first company; without it, none does.
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
    /// Addresses of receivers.
    pub enum ReceiverPaths {
        /// `/api/webhooks/incoming/<segment>`: the document shows no other.
        Documented,
        /// Any path, as the software behind the provider does.
        Any,
    }

    /// When the echo is asked for.
    pub enum EchoTime {
        /// Once the POST has been answered.
        AfterAnswer,
        /// During the POST: without the echo it is refused with 400.
        DuringPost,
        /// Never: the hook is listed and never effective.
        Never,
    }

    /// The body of a notification.
    pub enum InvoicingBody {
        /// One notification, its fields at the top.
        Flat,
        /// `Id`, `Attempt`, `Properties`, `Notifications[]`, indented.
        Wrapped,
    }
}
