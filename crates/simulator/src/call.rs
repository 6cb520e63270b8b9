//! A request that the gateway has let through, as the handlers of the APIs get it.

use std::net::SocketAddr;

use super::identity::Caller;

/// A request that has passed the gateway and the token check; handlers get it as `Extension<Call>`.
#[derive(Debug, Clone)]
pub struct Call {
    /// Who calls; `None` on the invoicing login.
    pub caller: Option<Caller>,
    /// The `context` header.
    pub context: Context,
    /// The address the request comes from.
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
    /// Anything else, with what is wrong.
    Invalid(String),
}
