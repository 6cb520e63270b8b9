//! A request that has passed the gateway, as handlers get it.

use std::net::SocketAddr;

use super::identity::Caller;

/// A request that has passed the gateway and its token check: `Extension<Call>` of handlers.
#[derive(Debug, Clone)]
pub struct Call {
    /// The caller; `None` on the invoicing login.
    pub caller: Option<Caller>,
    /// The `context` header.
    pub context: Context,
    /// The address of the client.
    pub peer: SocketAddr,
}

/// The `context` header as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Context {
    /// Not sent.
    Absent,
    /// The text `none`.
    None,
    /// A JSON object with one member `clientId`.
    Company(String),
    /// Anything else, with the reason why it is invalid.
    Invalid(String),
}
